//! Frames with the fields of those that real NICs sent (`frames.tsv`). Addresses, keys and payload
//! are others, and the ICRC is computed.

use std::net::{IpAddr, Ipv4Addr};
use std::vec;
use std::vec::Vec;

use rocade_wire::icrc::IcrcFlow;
use rocade_wire::ip::Datagram;
use rocade_wire::mad::{
    CmMessage, CmPath, CmTimeout, CommId, Drep, Dreq, Ece, Failover, GSI_QKEY, IpCmHeader, Mad,
    Rep, Req, Rtu, ServiceId, TransactionId, TransportType,
};
use rocade_wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Gid, Guid, Headers, ImmDt, MaskedEth, Msn, Operation,
    Pkey, Psn, Qkey, Qpn, ROCE_UDP_PORT, Reth, Rkey, Syndrome,
};

const TABLE: &str = include_str!("frames.tsv");

/// Names of all conversations, and the number of their frames.
pub(crate) const CONVERSATIONS: [(&str, usize); 7] = [
    ("masked-cas", 16),
    ("masked-cas-retry", 34),
    ("send-ack-vlan", 5),
    ("ack-credits", 1),
    ("cnp", 1),
    ("vf-ack-cnp", 2),
    ("send-imm", 105),
];

/// Address of the end that sent the first frame.
pub(crate) const A: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
/// Address of the other end.
pub(crate) const B: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);

/// Address and key of the memory that requests name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) va: u64,
    pub(crate) rkey: Rkey,
}

/// Offset of the memory that plain atomics and READs name. Masked atomics name the beginning.
pub(crate) const ELSEWHERE: u64 = 64;

impl Place {
    pub(crate) const ANY: Self = Self {
        va: 0x1000,
        rkey: Rkey::new(0x0102_0304),
    };
}

/// A row of the table.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    /// The end that sent the first frame has sent it.
    pub(crate) from_a: bool,
    /// Milliseconds since the first frame.
    pub(crate) ms: f64,
    /// The tag of 802.1Q.
    pub(crate) vlan: Option<u16>,
    pub(crate) tos: u8,
    pub(crate) ip_id: u16,
    pub(crate) src_port: u16,
    pub(crate) bth: Bth,
    payload_len: usize,
    fields: &'static str,
}

/// Returns the frames of a conversation.
pub(crate) fn frames(conversation: &str) -> Vec<Frame> {
    let rows = TABLE.lines().filter(|line| !line.starts_with('#')).skip(1);
    let cells = rows.map(|row| row.split('\t').collect::<Vec<_>>());
    cells
        .filter(|cells| cells[0] == conversation)
        .map(|cells| Frame::of(&cells))
        .collect()
}

fn number(text: &str) -> u64 {
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    };
    parsed.expect("a number")
}

fn narrow<T: TryFrom<u64>>(value: u64) -> T {
    let Ok(value) = T::try_from(value) else {
        panic!("{value:#x} is too large")
    };
    value
}

impl Frame {
    fn of(cells: &[&'static str]) -> Self {
        let byte = |index: usize| narrow::<u8>(number(cells[index]));
        let qpn: u32 = narrow(number(cells[10]));
        let psn: u32 = narrow(number(cells[12]));
        let mut bth = [byte(7), byte(8), 0xff, 0xff, byte(9), 0, 0, 0, 0, 0, 0, 0];
        bth[5..8].copy_from_slice(&qpn.to_be_bytes()[1..]);
        bth[8..].copy_from_slice(&(u32::from(byte(11)) << 31 | psn).to_be_bytes());
        Self {
            from_a: cells[1] == "A",
            ms: cells[2].parse().expect("a time"),
            vlan: (cells[3] != "-").then(|| narrow(number(cells[3]))),
            tos: byte(4),
            ip_id: narrow(number(cells[5])),
            src_port: narrow(number(cells[6])),
            bth: Bth::from_bytes(&bth),
            payload_len: narrow(number(cells[13])),
            fields: cells[14],
        }
    }

    fn word(&self, name: &str) -> Option<&'static str> {
        let words = self.fields.split(' ');
        words
            .filter_map(|word| word.split_once('='))
            .find(|(key, _)| *key == name)
            .map(|(_, v)| v)
    }

    /// Returns the value of a field after the BTH.
    pub(crate) fn field(&self, name: &str) -> Option<u64> {
        self.word(name).map(number)
    }

    pub(crate) fn operation(&self) -> Operation {
        self.bth.opcode.operation().expect("a defined opcode")
    }

    fn headers(&self, place: Place) -> Headers {
        let field = |name| self.field(name).expect(name);
        let mut headers = Headers::new(self.bth);
        let operation = self.operation();
        if self.bth.dest_qp == Qpn::GSI {
            headers.deth = Some(Deth {
                qkey: GSI_QKEY,
                resv: 0,
                src_qp: Qpn::GSI,
            });
        }
        if operation.is_masked_atomic() {
            headers.masked = Some(MaskedEth {
                va: place.va + field("va"),
                rkey: place.rkey,
                log_size: MaskedEth::SHORT_LOG_SIZE,
                resv: [0; 3],
            });
        } else if operation.is_atomic() {
            headers.atomic = Some(AtomicEth {
                va: place.va + ELSEWHERE,
                rkey: place.rkey,
                swap_add: field("swap"),
                compare: field("compare"),
            });
        } else if operation == Operation::ReadRequest {
            headers.reth = Some(Reth {
                va: place.va + ELSEWHERE,
                rkey: place.rkey,
                dma_len: narrow(field("len")),
            });
        }
        if let Some(code) = self.field("syndrome") {
            headers.aeth = Some(Aeth {
                syndrome: Syndrome::from_code(narrow(code)),
                msn: Msn::new(narrow(field("msn"))),
            });
        }
        headers.atomic_ack = self
            .field("original")
            .map(|original| AtomicAckEth { original });
        let imm = self.field("imm").map(narrow::<u32>);
        headers.imm = imm.map(|imm| ImmDt(imm.to_be_bytes()));
        headers
    }

    /// Returns the payload: a pattern, a message of the connection manager, or operands.
    pub(crate) fn payload(&self) -> Vec<u8> {
        if let Some(name) = self.word("mad") {
            return Mad::new(TransactionId::new(2), message(name))
                .to_bytes()
                .to_vec();
        }
        if self.operation().is_masked_atomic() {
            let names = ["swap", "compare", "swap_mask", "compare_mask"];
            let words = names.map(|name| self.field(name).expect(name).to_be_bytes());
            return words.concat();
        }
        if self.operation() == Operation::Cnp {
            return vec![0; self.payload_len];
        }
        (0..self.payload_len)
            .map(|at| narrow(at as u64 * 7 % 251))
            .collect()
    }

    /// Returns the packet: all after the UDP header.
    pub(crate) fn packet(&self, place: Place) -> Vec<u8> {
        let headers = self.headers(place);
        let mut packet = vec![0; headers.len()];
        headers.emit(&mut packet).expect("space");
        packet.extend(self.payload());
        packet.resize(packet.len() + usize::from(self.bth.pad_count), 0);
        let (src, dst) = self.addresses();
        let flow = IcrcFlow::new(src, dst, self.src_port).expect("one IP version");
        let icrc = flow.compute(self.ip_id, &packet);
        packet.extend(icrc.to_le_bytes());
        packet
    }

    pub(crate) fn addresses(&self) -> (IpAddr, IpAddr) {
        if self.from_a {
            (A.into(), B.into())
        } else {
            (B.into(), A.into())
        }
    }

    /// Returns the IP datagram.
    pub(crate) fn datagram(&self, place: Place) -> Vec<u8> {
        let packet = self.packet(place);
        let (src, dst) = self.addresses();
        let datagram = Datagram {
            src,
            dst,
            ip_id: self.ip_id,
            dont_fragment: true,
            flow_label: 0,
            tos: self.tos,
            ttl: 64,
            src_port: self.src_port,
            dst_port: ROCE_UDP_PORT,
            udp_checksum: 0,
            udp_payload: &packet,
        };
        let mut bytes = vec![0; datagram.len()];
        datagram.emit(&mut bytes).expect("space");
        bytes
    }

    /// Returns the Ethernet frame, without FCS.
    pub(crate) fn ethernet(&self, place: Place) -> Vec<u8> {
        let end = |from_a: bool| [2, 0, 0, 0, 0, if from_a { 1 } else { 2 }];
        let mut frame = [end(!self.from_a), end(self.from_a)].concat();
        if let Some(tag) = self.vlan {
            frame.extend([0x81, 0]);
            frame.extend(tag.to_be_bytes());
        }
        frame.extend([8, 0]);
        frame.extend(self.datagram(place));
        frame
    }
}

/// Returns a message of the connection manager with the values that ConnectX-5 sends. GUIDs, port
/// and IDs are others.
pub(crate) fn message(name: &str) -> CmMessage {
    let (local_id, remote_id) = (CommId::new(7), CommId::new(8));
    match name {
        "REQ" => CmMessage::Req(request()),
        "REP" => CmMessage::Rep(reply()),
        "RTU" => CmMessage::Rtu(Rtu {
            local_id,
            remote_id,
            private_data: [0; Rtu::PRIVATE_LEN],
        }),
        "DREQ" => CmMessage::Dreq(Dreq {
            local_id,
            remote_id,
            remote_qpn: Qpn::new(0x1f0),
            private_data: [0; Dreq::PRIVATE_LEN],
        }),
        "DREP" => CmMessage::Drep(Drep {
            local_id: remote_id,
            remote_id: local_id,
            private_data: [0; Drep::PRIVATE_LEN],
        }),
        other => panic!("no message {other}"),
    }
}

fn request() -> Req {
    let header = IpCmHeader {
        src_port: 0x85f9,
        src: A.into(),
        dst: B.into(),
    };
    let mut private_data = [0; Req::PRIVATE_LEN];
    private_data[..IpCmHeader::LEN].copy_from_slice(&header.to_bytes());
    Req {
        local_id: CommId::new(7),
        ece: Ece::NONE,
        service_id: ServiceId::of_port(0x0106, 0x5196),
        ca_guid: Guid::new(0x0200_0003_0000_0001),
        qkey: Qkey::new(0),
        qpn: Qpn::new(0x366),
        responder_resources: 16,
        eecn: 0,
        initiator_depth: 16,
        remote_eecn: 0,
        remote_response_timeout: CmTimeout::new(22),
        transport: TransportType::Rc,
        flow_control: false,
        starting_psn: Psn::new(0x96_cb1e),
        local_response_timeout: CmTimeout::new(22),
        retry_count: 3,
        pkey: Pkey::DEFAULT,
        mtu: 3,
        rdc_exists: false,
        rnr_retry_count: 0,
        max_cm_retries: 15,
        srq: false,
        primary: CmPath {
            local_lid: 0xffff,
            remote_lid: 0xffff,
            local_gid: Gid::from_ip(A.into()),
            remote_gid: Gid::from_ip(B.into()),
            packet_rate: 7,
            hop_limit: 64,
            ack_timeout: CmTimeout::new(19),
            ..CmPath::NONE
        },
        alternate: CmPath::NONE,
        sap_supported: false,
        private_data,
    }
}

fn reply() -> Rep {
    Rep {
        local_id: CommId::new(8),
        remote_id: CommId::new(7),
        qkey: Qkey::new(0),
        qpn: Qpn::new(0x1f0),
        eecn: Qpn::new(0),
        ece: Ece::NONE,
        starting_psn: Psn::new(0x90_9cac),
        responder_resources: 16,
        initiator_depth: 16,
        target_ack_delay: CmTimeout::new(16),
        failover: Failover::Accepted,
        flow_control: false,
        rnr_retry_count: 0,
        srq: false,
        ca_guid: Guid::new(0x0200_0003_0000_0002),
        private_data: [0; Rep::PRIVATE_LEN],
    }
}
