//! Known answers: the responder receives recorded requests to the Linux kernel's rxe. Its responses
//! must equal those of rxe bit by bit, except for the MigReq bit.
//!
//! The contents of memory are inferred from the recorded responses.

#![expect(
    clippy::unwrap_used,
    reason = "a test helper reports errors by panicking"
)]

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::net::IpAddr;
use std::path::Path;

use pcap_file::pcap::PcapReader;
use rocade_transport::testing::Setup;
use rocade_transport::{
    AccessError, Accessor, AckPlacement, AtomicOp, Bind, BindError, Extent, Fill, LocalAccess,
    MaskedOp, Memory, PacketMeta, QpState, RemoteAccess, Sge, Time, TxBuffer, WideOperand,
};
use rocade_wire::ip::Datagram;
use rocade_wire::{Bth, Lkey, NakCode, Operation, Packet, Psn, Qpn, Rkey, Service, Syndrome};

/// The number of receives that are posted when a request arrives.
const RECEIVES: usize = 4;

/// Captures in which rxe deviates from the specification, or which cannot be replayed.
const OTHER_ANSWERS: [(&str, &str); 6] = [
    (
        "vec-old-psn-duplicate",
        "RXE-52: the ACK before the first request has PSN 0xffffff",
    ),
    ("vec-nak-recv-too-small", "RXE-57: NAK 0x63 instead of 0x61"),
    (
        "vec-send-inv",
        "not replayed: the inferred memory invalidates no keys",
    ),
    ("vec-atomic-write", "not replayed: ATOMIC WRITE"),
    (
        "rc-loss-retransmit",
        "the recorded packets are not those that arrived",
    ),
    (
        "rc-reorder-duplicate",
        "the recorded packets are not those that arrived",
    ),
];

struct Recorded {
    source: IpAddr,
    destination: IpAddr,
    bytes: Vec<u8>,
}

impl Recorded {
    fn packet(&self) -> Packet<'_> {
        Packet::parse(&self.bytes).unwrap()
    }

    fn operation(&self) -> Operation {
        self.packet().bth().opcode.operation().unwrap()
    }

    fn psn(&self) -> Psn {
        self.packet().bth().psn
    }
}

/// Returns all RC packets of a capture.
fn read_capture(path: &Path) -> Vec<Recorded> {
    let mut reader = PcapReader::new(File::open(path).unwrap()).unwrap();
    let mut packets = Vec::new();
    while let Some(record) = reader.next_packet() {
        let record = record.unwrap();
        let Ok(datagram) = Datagram::parse(&record.data[14..]) else {
            continue;
        };
        let bytes = datagram.udp_payload.to_vec();
        if Packet::parse(&bytes).is_ok_and(|p| p.bth().opcode.service() == Service::Rc) {
            packets.push(Recorded {
                source: datagram.src,
                destination: datagram.dst,
                bytes,
            });
        }
    }
    packets
}

/// The peer's memory, as far as the capture shows it.
#[derive(Debug, Default)]
struct Inferred {
    bytes: RefCell<BTreeMap<u64, u8>>,
    refused: BTreeSet<(Rkey, u64)>,
}

impl Inferred {
    fn learn(&mut self, va: u64, data: &[u8], known: &mut BTreeSet<u64>) {
        for (address, byte) in (va..).zip(data) {
            if known.insert(address) {
                self.bytes.get_mut().insert(address, *byte);
            }
        }
    }
}

impl Memory for Inferred {
    fn check_local(
        &self,
        _: Accessor,
        _: Lkey,
        _: u64,
        _: u64,
        _: LocalAccess,
    ) -> Result<Extent, AccessError> {
        Ok(Extent::One)
    }

    fn check_remote(
        &self,
        _: Accessor,
        rkey: Rkey,
        va: u64,
        _: u64,
        _: RemoteAccess,
    ) -> Result<Extent, AccessError> {
        if self.refused.contains(&(rkey, va)) {
            Err(AccessError::Permission)
        } else {
            Ok(Extent::One)
        }
    }

    fn check_region(&self, _: Accessor, _: Rkey, _: RemoteAccess) -> Result<(), AccessError> {
        // The recorded peer supports no FLUSH.
        Err(AccessError::BadKey)
    }

    fn store_remote(
        &self,
        who: Accessor,
        rkey: Rkey,
        va: u64,
        bytes: [u8; 8],
    ) -> Result<(), AccessError> {
        self.write_remote(who, rkey, va, &bytes)
    }

    fn read_local(&self, _: Accessor, _: Lkey, _: u64, _: &mut [u8]) -> Result<(), AccessError> {
        Ok(())
    }

    fn write_local(&self, _: Accessor, _: Lkey, _: u64, _: &[u8]) -> Result<(), AccessError> {
        Ok(())
    }

    fn read_remote(
        &self,
        _: Accessor,
        _: Rkey,
        va: u64,
        dst: &mut [u8],
    ) -> Result<(), AccessError> {
        let bytes = self.bytes.borrow();
        for (address, byte) in (va..).zip(dst) {
            *byte = bytes.get(&address).copied().unwrap_or_default();
        }
        Ok(())
    }

    fn write_remote(&self, _: Accessor, _: Rkey, va: u64, src: &[u8]) -> Result<(), AccessError> {
        self.bytes
            .borrow_mut()
            .extend((va..).zip(src.iter().copied()));
        Ok(())
    }

    fn atomic_remote(
        &self,
        who: Accessor,
        rkey: Rkey,
        va: u64,
        op: AtomicOp,
    ) -> Result<u64, AccessError> {
        let mut bytes = [0; 8];
        self.read_remote(who, rkey, va, &mut bytes)?;
        let original = u64::from_ne_bytes(bytes);
        let new = op.apply(original);
        self.write_remote(who, rkey, va, &new.to_ne_bytes())?;
        Ok(original)
    }

    fn masked_remote(
        &self,
        _: Accessor,
        _: Rkey,
        _: u64,
        _: u8,
        _: &MaskedOp,
    ) -> Result<WideOperand, AccessError> {
        Err(AccessError::BadKey)
    }

    fn bind(&self, _: Accessor, _: &Bind) -> Result<(), BindError> {
        Err(BindError::NoWindow)
    }

    fn fill(&self, _: Accessor, _: Fill) -> Result<(), BindError> {
        Err(BindError::NoWindow)
    }

    fn invalidate(&self, _: Accessor, _: Rkey) -> Result<(), AccessError> {
        Err(AccessError::BadKey)
    }
}

/// The packets to and from one responder of a capture.
struct Dialogue<'a> {
    requests: Vec<&'a Recorded>,
    responses: Vec<&'a Recorded>,
}

/// Returns the exchange whose requests go to `responder`, or `None` unless exactly one QP pair
/// takes part.
fn dialogue(packets: &[Recorded], responder: IpAddr) -> Option<Dialogue<'_>> {
    let (mut requests, mut responses) = (Vec::new(), Vec::new());
    for packet in packets {
        if packet.destination == responder && packet.operation().is_request() {
            requests.push(packet);
        } else if packet.source == responder && packet.operation().is_response() {
            responses.push(packet);
        }
    }
    let qps = |packets: &[&Recorded]| -> BTreeSet<Qpn> {
        packets.iter().map(|p| p.packet().bth().dest_qp).collect()
    };
    let one_each = qps(&requests).len() == 1 && qps(&responses).len() == 1;
    one_each.then_some(Dialogue {
        requests,
        responses,
    })
}

impl Dialogue<'_> {
    fn pmtu(&self) -> u32 {
        let packets = || self.requests.iter().chain(&self.responses);
        let len = |p: &Recorded| u32::try_from(p.packet().payload().len()).unwrap();
        match packets().find(|p| p.operation().is_first() || p.operation().is_middle()) {
            Some(full) => len(full),
            // No packet shows the path MTU. Any value that fits will do.
            None => packets()
                .map(|p| len(p))
                .max()
                .unwrap_or(0)
                .next_power_of_two()
                .max(1024),
        }
    }

    fn memory(&self, pmtu: u32) -> Inferred {
        let mut memory = Inferred::default();
        let mut known = BTreeSet::new();
        let mut write_to = (0, 0);
        for request in &self.requests {
            let packet = request.packet();
            let psn = request.psn();
            let len = packet.payload().len() as u64;
            let place = match (packet.headers().reth, packet.headers().atomic) {
                (Some(reth), _) => Some((reth.rkey, reth.va)),
                (_, Some(eth)) => Some((eth.rkey, eth.va)),
                _ => None,
            };
            if let Some(reth) = packet.headers().reth {
                write_to = (reth.va, 0);
            }
            if request.operation().is_write() {
                known.extend(write_to.0 + write_to.1..write_to.0 + write_to.1 + len);
                write_to.1 += len;
            }
            let Some((rkey, va)) = place else { continue };
            let psns = match packet.headers().reth {
                Some(reth) if request.operation() == Operation::ReadRequest => {
                    reth.dma_len.div_ceil(pmtu).max(1)
                }
                _ => 1,
            };
            for response in &self.responses {
                let index = response.psn().sub(psn.get()).get();
                let answer = response.packet();
                let aeth = answer.headers().aeth;
                if index >= psns {
                    continue;
                }
                if aeth.is_some_and(|a| a.syndrome == Syndrome::Nak(NakCode::RemoteAccess)) {
                    memory.refused.insert((rkey, va));
                } else if let Some(ack) = answer.headers().atomic_ack {
                    memory.learn(va, &ack.original.to_ne_bytes(), &mut known);
                } else if request.operation() == Operation::ReadRequest {
                    memory.learn(va + u64::from(index * pmtu), answer.payload(), &mut known);
                }
            }
        }
        memory
    }

    /// Returns rxe's responses and Rocade's responses as comparable text.
    fn replay(&self) -> (Vec<String>, Vec<String>) {
        let pmtu = self.pmtu();
        let memory = self.memory(pmtu);
        let (first, answer) = (self.requests[0], self.responses[0]);
        let mut setup = Setup::new(
            first.packet().bth().dest_qp.get(),
            first.destination,
            answer.packet().bth().dest_qp.get(),
            first.source,
        );
        setup.attr.path_mtu = (pmtu / 128).ilog2();
        setup.attr.rq_psn = match answer.packet().headers().aeth {
            // The first request does not have the expected PSN, which is in the NAK.
            Some(aeth) if aeth.syndrome == Syndrome::Nak(NakCode::PsnSequence) => {
                answer.psn().get()
            }
            _ => first.psn().get(),
        };
        let mut rnr_naks = 0;
        for response in &self.responses {
            if let Some(Syndrome::RnrNak(timer)) =
                response.packet().headers().aeth.map(|a| a.syndrome)
            {
                setup.attr.min_rnr_timer = timer.code();
                rnr_naks += 1;
            }
        }
        let mut qp = setup.build(QpState::Rtr);
        let meta = PacketMeta {
            source: first.source,
            destination: first.destination,
            traffic_class: 0,
            hop_limit: 64,
        };
        let mut tx = TxBuffer::new(65_000, 64);
        let mut ours = Vec::new();
        let buffer = Sge {
            addr: 0,
            len: 1 << 24,
            lkey: Lkey::new(1),
        };
        for (index, request) in self.requests.iter().enumerate() {
            // In the captures with RNR NAKs, the receive was posted after the last of them. Several
            // receives are posted, so that they do not run out. After an ACK with zero credits the
            // responder would send an unsolicited ACK for the next receive.
            while index >= rnr_naks && qp.recv_queue_len() < RECEIVES {
                qp.post_recv(Time::ZERO, 0, &[buffer]).unwrap();
            }
            qp.handle_packet(Time::ZERO, &meta, &request.packet(), &memory);
            loop {
                tx.clear();
                qp.poll_transmit(Time::ZERO, &memory, AckPlacement::First, &mut tx);
                if tx.is_empty() {
                    break;
                }
                let segments = tx.bytes().chunks(tx.segment_len());
                ours.extend(segments.map(|bytes| text(&without_credits(bytes))));
            }
        }
        (
            self.responses.iter().map(|r| text(&r.bytes)).collect(),
            ours,
        )
    }
}

/// Replaces the credit count of an ACK by "no credits", because Linux's responder advertises none
/// and Rocade's does.
fn without_credits(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let aeth = Packet::parse(&bytes).unwrap().headers().aeth;
    if let Some(Syndrome::Ack(_)) = aeth.map(|aeth| aeth.syndrome) {
        bytes[Bth::LEN] = 0x1f;
    }
    bytes
}

/// Returns a readable line with the packet's headers and all of its bytes.
fn text(bytes: &[u8]) -> String {
    let mut bytes = bytes.to_vec();
    bytes[1] &= !0x40;
    let packet = Packet::parse(&bytes).unwrap();
    format!("{packet} {:02x?}", packet.covered())
}

#[test]
fn our_responder_answers_like_rxe_where_rxe_is_right() {
    let captures = Path::new(env!("CARGO_MANIFEST_DIR")).join("captures");
    let (mut dialogues, mut answers) = (0, 0);
    for folder in [
        "linux-6.1-mtu1500",
        "linux-6.1-mtu4200",
        "linux-6.12-mtu1500",
    ] {
        for entry in fs::read_dir(captures.join(folder)).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            let single = name.starts_with("vec-") || name.starts_with("rc-");
            if !single || OTHER_ANSWERS.iter().any(|(other, _)| name == *other) {
                continue;
            }
            let packets = read_capture(&path);
            let addresses: BTreeSet<IpAddr> = packets.iter().map(|p| p.destination).collect();
            for address in addresses {
                let Some(dialogue) = dialogue(&packets, address) else {
                    continue;
                };
                let (theirs, ours) = dialogue.replay();
                assert_eq!(ours, theirs, "{folder}/{name}, responder {address}");
                dialogues += 1;
                answers += theirs.len();
            }
        }
    }
    println!("{dialogues} dialogues, {answers} answers");
    assert!(
        dialogues >= 60 && answers >= 400,
        "{dialogues} dialogues, {answers} answers"
    );
}
