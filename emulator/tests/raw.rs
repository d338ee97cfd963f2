//! Raw packets over the loopback interface, where each frame comes back.

#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a failure may panic, sizes are small"
)]

mod common;

use std::time::{Duration, Instant};

use rocade_emulator::{
    Completion, Cq, EthFields, Flow, FlowAttr, FlowKind, FlowSpec, ImmOrInv, Ipv4Fields, Masked,
    PortFields, Qp, QpAttr, QpAttrMask, QpCap, QpInitAttr, QpState, QpType, SendFlags, SendOp,
    SendWr, Sge, Srq, SrqInitAttr, Tso, VerbsError, WcFlags, WcOpcode, WcStatus,
};
use rocade_skip::skip;

use common::Side;

const UDP: u8 = 17;
const TCP: u8 = 6;

/// A raw packet QP in RTS, with the memory and the CQ of a side.
struct Raw {
    side: Side,
    qp: Qp,
    /// The CQ of its sends, because receives may complete first.
    sent: Cq,
}

/// Makes a raw packet QP. Returns `None` if the process has no permission.
fn raw(address: &str) -> Option<Raw> {
    let side = Side::new(address, 1 << 16);
    let sent = side.context.create_cq(64, None, 0, 8).unwrap();
    let qp = match create(&side, &sent, None) {
        Ok(qp) => qp,
        Err(VerbsError::NotPermitted(_)) => return None,
        Err(error) => panic!("{error}"),
    };
    Some(Raw { side, qp, sent })
}

fn create(side: &Side, sent: &Cq, srq: Option<Srq>) -> Result<Qp, VerbsError> {
    let qp = side.pd.create_qp(QpInitAttr {
        send_cq: sent.clone(),
        recv_cq: side.cq.clone(),
        srq,
        cap: QpCap {
            max_send_wr: 16,
            max_recv_wr: 64,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline_data: 256,
        },
        qp_type: QpType::RawPacket,
        sq_sig_all: false,
        cookie: 1,
    })?;
    let attr = QpAttr {
        port_num: 1,
        ..QpAttr::default()
    };
    for (state, more) in [
        (QpState::Init, QpAttrMask::PORT),
        (QpState::Rtr, QpAttrMask::empty()),
        (QpState::Rts, QpAttrMask::empty()),
    ] {
        let attr = QpAttr {
            qp_state: state.code(),
            ..attr
        };
        qp.modify(&attr, QpAttrMask::STATE | more)?;
    }
    Ok(qp)
}

fn wr<'a>(wr_id: u64, flags: SendFlags, sges: &'a [Sge]) -> SendWr<'a> {
    SendWr {
        wr_id,
        op: SendOp::Send { imm: None },
        flags: flags | SendFlags::SIGNALED,
        sges,
    }
}

impl Raw {
    /// Sends a frame, and waits until it was sent.
    fn send(&self, flags: SendFlags, frame: &[u8]) {
        self.side.fill(0, frame);
        let sges = [self.side.sge(0, frame.len())];
        self.qp
            .post_sends(|queue| queue.push(&wr(1, flags, &sges)))
            .unwrap();
        let sent = self.left();
        assert_eq!((sent.wr_id, sent.status), (1, WcStatus::Success));
    }

    /// Returns the next completion of a send.
    fn left(&self) -> Completion {
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            if let Some(sent) = self.sent.poll_one() {
                return sent;
            }
            assert!(Instant::now() < until, "nothing has left");
        }
    }

    fn receive_into(&self, wr_id: u64, offset: usize) {
        let sges = [self.side.sge(offset, 2048)];
        self.qp.recv_queue().push(wr_id, &sges).unwrap();
    }

    fn completion(&self) -> Completion {
        self.side.completion()
    }

    fn bytes(&self, received: &Completion, offset: usize) -> Vec<u8> {
        self.side.bytes(offset, received.byte_len as usize)
    }
}

/// A frame with wrong checksums. Its ports identify its receiver.
fn frame(protocol: u8, to: u16, data: &[u8]) -> Vec<u8> {
    let header = if protocol == UDP { 8 } else { 20 };
    let len = (header + data.len()) as u16;
    let mut bytes = vec![0; 12];
    bytes.extend([8, 0, 0x45, 0]);
    bytes.extend((len + 20).to_be_bytes());
    bytes.extend([0, 7, 0, 0, 64, protocol, 0, 0]);
    bytes.extend([198, 51, 100, 1, 198, 51, 100, 2]);
    bytes.extend(9u16.to_be_bytes());
    bytes.extend(to.to_be_bytes());
    if protocol == UDP {
        bytes.extend(len.to_be_bytes());
        bytes.extend([1, 1]);
    } else {
        bytes.extend([0, 0, 0, 100, 0, 0, 0, 0, 0x50, 0x18, 1, 0, 1, 1, 0, 0]);
    }
    bytes.extend_from_slice(data);
    bytes
}

fn ports(to: u16) -> Masked<PortFields> {
    let port = |dst_port| PortFields {
        dst_port,
        ..PortFields::default()
    };
    Masked {
        val: port(to.to_be_bytes()),
        mask: port([0xff; 2]),
    }
}

fn flow(specs: &[FlowSpec]) -> FlowAttr {
    FlowAttr {
        kind: FlowKind::Normal,
        priority: 0,
        dont_trap: false,
        specs: specs.to_vec(),
    }
}

macro_rules! raw_or_skip {
    ($address:literal) => {
        match raw($address) {
            Some(raw) => raw,
            None => skip!("no raw packets: needs CAP_NET_RAW"),
        }
    };
}

#[test]
fn frames_go_where_flows_lead_and_nowhere_else() {
    let raw = raw_or_skip!("127.13.0.1");
    let other = create(&raw.side, &raw.sent, None).unwrap();
    let lead = |qp: &Qp, specs: &[FlowSpec]| qp.create_flow(flow(specs)).unwrap();
    let v4 = FlowSpec::Ipv4(Masked {
        val: Ipv4Fields {
            dst_ip: [198, 51, 100, 2],
            ..Ipv4Fields::default()
        },
        mask: Ipv4Fields {
            dst_ip: [255; 4],
            ..Ipv4Fields::default()
        },
    });
    let first = lead(
        &raw.qp,
        &[v4, FlowSpec::Udp(ports(7001)), FlowSpec::Tag(55)],
    );
    let _second = lead(&other, &[FlowSpec::Udp(ports(7002))]);
    raw.receive_into(10, 4096);
    raw.receive_into(11, 8192);
    other
        .recv_queue()
        .push(20, &[raw.side.sge(12_288, 2048)])
        .unwrap();
    let message = common::pattern(333, 1);
    raw.send(SendFlags::empty(), &frame(UDP, 7003, b"for nobody"));
    raw.send(SendFlags::empty(), &frame(TCP, 7001, b"not UDP"));
    raw.send(SendFlags::IP_CSUM, &frame(UDP, 7001, &message));
    let mine = raw.completion();
    assert_eq!((mine.wr_id, mine.opcode), (10, WcOpcode::Recv));
    assert_eq!(mine.qp_num, raw.qp.qp_num());
    assert_eq!(mine.imm_or_inv, ImmOrInv::FlowTag(55));
    assert_eq!(
        mine.wc_flags,
        WcFlags::IP_CSUM_OK,
        "the sender requested checksums"
    );
    let bytes = raw.bytes(&mine, 4096);
    assert_eq!(bytes.len(), 14 + 20 + 8 + 333);
    assert_eq!(bytes[42..], message);
    raw.send(SendFlags::empty(), &frame(UDP, 7002, b"as it is"));
    let theirs = raw.completion();
    assert_eq!((theirs.wr_id, theirs.qp_num), (20, other.qp_num()));
    assert_eq!(raw.bytes(&theirs, 12_288), frame(UDP, 7002, b"as it is"));
    assert_eq!(theirs.wc_flags, WcFlags::empty(), "wrong checksums");
    // Without its flow, no frames arrive. The frame for the other QP, which is sent later, does
    // arrive.
    first.destroy().unwrap();
    assert!(first.destroy().is_err());
    other
        .recv_queue()
        .push(21, &[raw.side.sge(12_288, 2048)])
        .unwrap();
    raw.send(SendFlags::empty(), &frame(UDP, 7001, b"too late"));
    raw.send(SendFlags::empty(), &frame(UDP, 7002, b"last"));
    assert_eq!(raw.completion().wr_id, 21);
}

#[test]
fn segments_are_whole_frames() {
    let raw = raw_or_skip!("127.13.0.3");
    let _flow = raw
        .qp
        .create_flow(flow(&[FlowSpec::Tcp(ports(7011))]))
        .unwrap();
    for wr_id in 0..4 {
        raw.receive_into(10 + wr_id, 16_384 + 2048 * wr_id as usize);
    }
    let header = frame(TCP, 7011, b"");
    let data = common::pattern(3_300, 2);
    raw.side.fill(0, &data);
    let sges = [raw.side.sge(0, 1000), raw.side.sge(1000, 2300)];
    let tso = Tso {
        header: &header,
        mss: 1000,
    };
    let request = wr(1, SendFlags::empty(), &sges);
    raw.qp
        .post_sends(|queue| queue.push_tso(&request, tso, None))
        .unwrap();
    let sent = raw.left();
    assert_eq!(
        (sent.opcode, sent.status),
        (WcOpcode::Tso, WcStatus::Success)
    );
    let mut received = Vec::new();
    for _ in 0..4 {
        let done = raw.completion();
        assert_eq!(done.status, WcStatus::Success);
        assert_eq!(done.wc_flags, WcFlags::IP_CSUM_OK);
        let segment = raw.bytes(&done, 16_384 + 2048 * (done.wr_id as usize - 10));
        let number = u32::from_be_bytes(segment[38..42].try_into().unwrap());
        assert_eq!(number as usize, 100 + received.len());
        let pushed = segment[47] & 8 != 0;
        received.extend_from_slice(&segment[54..]);
        assert_eq!(
            pushed,
            received.len() == data.len(),
            "PSH with the last one"
        );
    }
    assert_eq!(received, data);
}

#[test]
fn a_sniffer_and_defaults_see_unclaimed_frames() {
    let raw = raw_or_skip!("127.13.0.4");
    let sniffer = create(&raw.side, &raw.sent, None).unwrap();
    let _eth = raw
        .qp
        .create_flow(flow(&[FlowSpec::Eth(Masked {
            val: EthFields {
                ether_type: [0x88, 0xb5],
                ..EthFields::default()
            },
            mask: EthFields {
                ether_type: [0xff; 2],
                ..EthFields::default()
            },
        })]))
        .unwrap();
    let sniffs = FlowAttr {
        kind: FlowKind::Sniffer,
        ..flow(&[])
    };
    let _sniffs = sniffer.create_flow(sniffs).unwrap();
    let mut local = vec![0; 12];
    // The EtherType for experiments.
    local.extend([0x88, 0xb5]);
    local.extend([7; 50]);
    // Other programs use the interface at the same time, so that receives may run out.
    let refill = |wr_id| {
        let sges = [raw.side.sge(8192, 2048)];
        sniffer.recv_queue().push(wr_id, &sges).unwrap();
    };
    (100..132).for_each(refill);
    let until = Instant::now() + Duration::from_secs(20);
    let (mut mine, mut sniffed) = (false, false);
    while !(mine && sniffed) {
        assert!(Instant::now() < until, "mine {mine}, sniffed {sniffed}");
        raw.receive_into(1000, 4096);
        raw.send(SendFlags::empty(), &local);
        let again = Instant::now() + Duration::from_millis(100);
        while !(mine && sniffed) && Instant::now() < again {
            match raw.side.cq.poll_one() {
                None => {}
                Some(done) if done.wr_id == 1000 => {
                    assert_eq!(raw.bytes(&done, 4096), local);
                    mine = true;
                }
                Some(done) => {
                    sniffed |= done.byte_len as usize == local.len();
                    refill(done.wr_id);
                }
            }
        }
    }
}

#[test]
fn receives_may_come_from_a_shared_queue() {
    let raw = raw_or_skip!("127.13.0.5");
    let srq = raw
        .side
        .pd
        .create_srq(SrqInitAttr {
            max_wr: 4,
            max_sge: 1,
            cookie: 3,
        })
        .unwrap();
    let qp = create(&raw.side, &raw.sent, Some(srq.clone())).unwrap();
    let _flow = qp.create_flow(flow(&[FlowSpec::Udp(ports(7021))])).unwrap();
    srq.recv_queue()
        .push(77, &[raw.side.sge(4096, 2048)])
        .unwrap();
    raw.send(SendFlags::empty(), &frame(UDP, 7021, b"shared"));
    let done = raw.completion();
    assert_eq!((done.wr_id, done.qp_num), (77, qp.qp_num()));
}

//= DST-04 type=test
#[test]
fn wrong_arguments_and_the_wrong_order() {
    let raw = raw_or_skip!("127.13.0.6");
    let udp = flow(&[FlowSpec::Udp(ports(1))]);
    let refused = raw.side.qp.create_flow(udp.clone());
    assert!(matches!(refused, Err(VerbsError::InvalidArgument(_))));
    let twice = flow(&[FlowSpec::Udp(ports(1)), FlowSpec::Udp(ports(1))]);
    let refused = raw.qp.create_flow(twice);
    assert!(matches!(refused, Err(VerbsError::InvalidArgument(_))));
    let lives: Flow = raw.qp.create_flow(udp.clone()).unwrap();
    assert!(matches!(raw.qp.destroy(), Err(VerbsError::Busy(_))));
    drop(lives);
    raw.qp.destroy().unwrap();
    let gone = raw.qp.create_flow(udp);
    assert!(matches!(gone, Err(VerbsError::InvalidArgument(_))));
}

//= WCS-01 type=test
#[test]
fn a_frame_that_the_interface_does_not_take_is_an_error() {
    let raw = raw_or_skip!("127.13.0.7");
    let sges = [raw.side.sge(0, 65_535), raw.side.sge(0, 65_535)];
    raw.qp
        .post_sends(|queue| queue.push(&wr(5, SendFlags::empty(), &sges)))
        .unwrap();
    let failed = raw.left();
    assert_eq!((failed.wr_id, failed.status), (5, WcStatus::LocLenErr));
    assert_eq!(raw.qp.state(), QpState::Sqe);
    // Moves the QP back to RTS.
    let attr = QpAttr {
        qp_state: QpState::Rts.code(),
        ..QpAttr::default()
    };
    raw.qp.modify(&attr, QpAttrMask::STATE).unwrap();
    raw.send(SendFlags::empty(), &frame(UDP, 7031, b"once more"));
}

/// A frame wakes a thread that sleeps until one arrives.
#[test]
fn a_frame_wakes_a_sleeping_poller() {
    let raw = raw_or_skip!("127.13.0.8");
    let _flow = raw
        .qp
        .create_flow(flow(&[FlowSpec::Udp(ports(7041))]))
        .unwrap();
    raw.receive_into(9, 4096);
    let socket = std::net::UdpSocket::bind("127.13.0.8:0").unwrap();
    raw.side.cq.req_notify(false).unwrap();
    assert!(raw.side.cq.poll_one().is_none());
    // A packet of the kernel, which leaves the checksum to the interface.
    socket.send_to(b"hello", "127.13.0.8:7041").unwrap();
    let woken = raw.side.channel.get_event().unwrap();
    assert_eq!(woken, 7);
    raw.side.cq.ack_events(1);
    let done = raw.completion();
    assert_eq!(
        done.wc_flags,
        WcFlags::IP_CSUM_OK,
        "the checksum was filled in"
    );
    assert_eq!(raw.bytes(&done, 4096)[42..], *b"hello");
}
