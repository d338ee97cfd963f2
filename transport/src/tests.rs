//! Tests of the transport through its public calls: two QPs, or one QP and hand-made packets.

mod ack_durability;
mod coalesce;
mod congested;
mod credits;
mod cross_channel;
mod dc;
mod errors;
mod fast_path;
mod fast_path_effects;
mod flush;
#[allow(dead_code, reason = "tests of other crates use the rest")]
#[path = "../../tests/captures/hardware/frames.rs"]
mod frames;
mod hardware;
mod indirect;
mod masked;
mod migration;
mod modify;
mod op_count;
mod order;
mod partial_batch;
mod raw;
mod refusals;
mod responder;
mod retry;
mod single;
mod srq;
mod states;
mod transfer;
mod unreliable;
mod windows;
mod xrc;

use alloc::vec;
use alloc::vec::Vec;

use rocade_wire::{
    Aeth, AtomicEth, Bth, Headers, ImmDt, Opcode, Operation, Packet, Psn, Qpn, Reth, Rkey, Service,
    Syndrome,
};

use crate::testing::{Pair, Region, Side};
use crate::{AccessFlags, Completion, SendOp, WcStatus};

const ALL: AccessFlags = AccessFlags::LOCAL_WRITE
    .union(AccessFlags::REMOTE_READ)
    .union(AccessFlags::REMOTE_WRITE)
    .union(AccessFlags::REMOTE_ATOMIC);

/// First PSN of the tests' connections.
const PSN: u32 = 0x10_0000;
const PMTU: u32 = 1024;

/// Returns bytes that repeat only after about 64 KiB.
fn pattern(len: u32, seed: u32) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            state.to_le_bytes()[1]
        })
        .collect()
}

fn register(pair: &Pair, side: Side, len: u32) -> Region {
    pair.node(side).mem.register(len, ALL)
}

fn register_filled(pair: &Pair, side: Side, len: u32, seed: u32) -> Region {
    let region = register(pair, side, len);
    pair.node(side).mem.fill(&region, 0, &pattern(len, seed));
    region
}

fn send() -> SendOp {
    SendOp::Send { imm: None }
}

fn write(to: &Region) -> SendOp {
    SendOp::Write {
        va: to.addr,
        rkey: to.rkey,
        imm: None,
    }
}

fn read(from: &Region) -> SendOp {
    SendOp::Read {
        va: from.addr,
        rkey: from.rkey,
    }
}

fn statuses(completions: &[Completion]) -> Vec<(u64, WcStatus)> {
    completions.iter().map(|c| (c.wr_id, c.status)).collect()
}

/// Returns the operations and PSNs of the packets that one side sent, lost ones included.
fn operations(pair: &Pair, side: Side) -> Vec<(Operation, u32)> {
    pair.trace()
        .iter()
        .filter(|t| t.from == side)
        .map(|t| {
            let packet = t.packet();
            let operation = packet.bth().opcode.operation().unwrap();
            (operation, packet.bth().psn.sub(PSN).get())
        })
        .collect()
}

/// A packet to B as A would send it, built by hand.
struct Request {
    headers: Headers,
    payload: Vec<u8>,
}

impl Request {
    /// Creates a packet with AckReq set. `psn` counts from [`PSN`].
    fn new(operation: Operation, psn: u32) -> Self {
        let opcode = Opcode::of(Service::Rc, operation).unwrap();
        let mut bth = Bth::new(opcode, Qpn::new(0x22), Psn::new(PSN).add(psn));
        bth.ack_req = true;
        Self {
            headers: Headers::new(bth),
            payload: Vec::new(),
        }
    }

    fn reth(mut self, va: u64, rkey: Rkey, dma_len: u32) -> Self {
        self.headers.reth = Some(Reth { va, rkey, dma_len });
        self
    }

    fn atomic(mut self, va: u64, rkey: Rkey, swap_add: u64, compare: u64) -> Self {
        self.headers.atomic = Some(AtomicEth {
            va,
            rkey,
            swap_add,
            compare,
        });
        self
    }

    fn imm(mut self, imm: [u8; 4]) -> Self {
        self.headers.imm = Some(ImmDt(imm));
        self
    }

    fn payload(mut self, payload: &[u8]) -> Self {
        self.payload = payload.to_vec();
        self.headers.bth.pad_count = [0, 3, 2, 1][payload.len() % 4];
        self
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.headers.len()];
        self.headers.emit(&mut bytes).unwrap();
        bytes.extend(&self.payload);
        bytes.resize(bytes.len() + usize::from(self.headers.bth.pad_count) + 4, 0);
        bytes
    }

    fn inject(&self, pair: &mut Pair) {
        pair.inject(Side::B, &self.bytes());
    }
}

/// Returns the answers of B since the last call: operation, PSN from [`PSN`], syndrome text, MSN.
/// Credits are left out (see [`credits`]).
fn answers(pair: &mut Pair) -> Vec<alloc::string::String> {
    let answers = pair
        .trace()
        .iter()
        .filter(|t| t.from == Side::B)
        .map(|t| answer_text(&t.packet()))
        .collect();
    pair.clear_trace();
    answers
}

fn answer_text(packet: &Packet<'_>) -> alloc::string::String {
    let psn = packet.bth().psn.diff(Psn::new(PSN));
    let what = match packet.bth().opcode.operation() {
        Some(Operation::Acknowledge) => alloc::string::String::new(),
        Some(operation) => alloc::format!("{operation:?} "),
        None => "? ".into(),
    };
    match packet.headers().aeth {
        Some(Aeth {
            syndrome: Syndrome::Ack(_),
            msn,
        }) => {
            alloc::format!("{what}ACK psn={psn} msn={}", msn.get())
        }
        Some(aeth) => alloc::format!("{what}{} psn={psn} msn={}", aeth.syndrome, aeth.msn.get()),
        None => alloc::format!("{what}psn={psn}"),
    }
}
