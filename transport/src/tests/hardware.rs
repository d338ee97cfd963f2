//! Conversations of real NICs, replayed with a QP in the place of each end. Its packets are
//! compared with those of the NIC.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;

use rocade_wire::{Headers, NakCode, Operation, Packet, Psn, Qpn, Rkey, Syndrome};

use super::frames::{ELSEWHERE, Frame, Place, frames};
use super::responder::target;
use super::{Request, answers, register, register_filled, send, statuses, write};
use crate::testing::{Delivery, Pair, Region, Side};
use crate::{MaskedOp, Operands, QpState, SendFlags, SendOp, SendWr, WcStatus};

const OK: WcStatus = WcStatus::Success;

/// One conversation with a QP in the place of `side`.
struct Replay {
    side: Side,
    pair: Pair,
    region: Region,
    place: Place,
    frames: Vec<Frame>,
}

const fn is_of(frame: &Frame, side: Side) -> bool {
    frame.from_a == matches!(side, Side::A)
}

impl Replay {
    /// Prepares a conversation whose requests have these first PSNs.
    fn new(conversation: &str, side: Side, psns: [u32; 2]) -> Self {
        let mut frames = frames(conversation);
        frames.retain(|frame| frame.bth.dest_qp != Qpn::GSI);
        let number = |side: Side| {
            let to_it = frames.iter().find(|frame| !is_of(frame, side));
            to_it.map_or(0x77, |frame| frame.bth.dest_qp.get())
        };
        let numbers = [number(Side::A), number(Side::B)];
        let mut pair = Pair::new(|side, setup| {
            let (own, other) = match side {
                Side::A => (0, 1),
                Side::B => (1, 0),
            };
            setup.config.qp_num = Qpn::new(numbers[own]);
            setup.attr.dest_qp_num = numbers[other];
            setup.attr.sq_psn = psns[own];
            setup.attr.rq_psn = psns[other];
            // Nothing is sent again by itself.
            setup.attr.timeout = 0;
        });
        pair.set_network(|_| Delivery::Drop);
        let region = register(&pair, side, 4096);
        let place = Place {
            va: region.addr,
            rkey: region.rkey,
        };
        Self {
            side,
            pair,
            region,
            place,
            frames,
        }
    }

    /// Posts receives of 2 KiB.
    fn with_receives(mut self, count: u64) -> Self {
        for wr_id in 0..count {
            self.pair
                .recv(self.side, wr_id, &[self.region.part(0, 2048)]);
        }
        self
    }

    /// Runs the conversation and returns what the NIC and the QP have sent.
    fn run(&mut self) -> [Vec<String>; 2] {
        let mut of_nic = Vec::new();
        let mut posted: Option<Psn> = None;
        let frames = core::mem::take(&mut self.frames);
        for (index, frame) in frames.iter().enumerate() {
            if !is_of(frame, self.side) {
                self.pair.inject(self.side, &frame.packet(self.place));
                continue;
            }
            of_nic.push(text(&Packet::parse(&frame.packet(self.place)).unwrap()));
            let is_new = posted.is_none_or(|last| frame.bth.psn.diff(last) > 0);
            if frame.operation().is_request() && is_new {
                posted = Some(frame.bth.psn);
                self.post(frame, &frames[index + 1..]);
            }
        }
        let sent = self
            .pair
            .trace()
            .iter()
            .filter(|traced| traced.from == self.side);
        let of_qp = sent.map(|traced| text(&traced.packet())).collect();
        [of_nic, of_qp]
    }

    /// Posts the work request whose first packet is `frame`. `later` has the others.
    fn post(&mut self, frame: &Frame, later: &[Frame]) {
        let field = |name| frame.field(name).unwrap();
        let Place { va, rkey } = self.place;
        let other = va + ELSEWHERE;
        let imm = frame
            .field("imm")
            .map(|imm| u32::try_from(imm).unwrap().to_be_bytes());
        let (op, len, masked) = match frame.operation() {
            Operation::MaskedCmpSwap => {
                let word = |name| [field(name), 0, 0, 0];
                let op = MaskedOp::CmpSwap {
                    compare: word("compare"),
                    compare_mask: word("compare_mask"),
                    swap: word("swap"),
                    swap_mask: word("swap_mask"),
                };
                let va = va + field("va");
                (
                    SendOp::Masked {
                        va,
                        rkey,
                        log_size: 3,
                    },
                    8,
                    Some(op),
                )
            }
            Operation::CmpSwap => {
                let (compare, swap) = (field("compare"), field("swap"));
                (
                    SendOp::CmpSwap {
                        va: other,
                        rkey,
                        compare,
                        swap,
                    },
                    8,
                    None,
                )
            }
            Operation::ReadRequest => {
                let len = u32::try_from(field("len")).unwrap();
                (SendOp::Read { va: other, rkey }, len, None)
            }
            // Messages of two packets, the last one with immediate data.
            Operation::SendFirst => {
                let last = later
                    .iter()
                    .find(|frame| frame.operation() == Operation::SendLastImm);
                let len = 1024 + last.unwrap().payload().len();
                let imm = Some([0, 0, 0, 1]);
                (SendOp::Send { imm }, u32::try_from(len).unwrap(), None)
            }
            Operation::SendLastImm => return,
            _ => {
                let len = u32::try_from(frame.payload().len()).unwrap();
                (SendOp::Send { imm }, len, None)
            }
        };
        let wr = SendWr {
            wr_id: frame.bth.psn.get().into(),
            op,
            flags: SendFlags::SIGNALED,
            sges: &[self.region.part(1024, len)],
        };
        self.pair.try_send(self.side, &wr).unwrap();
        if let Some(op) = masked {
            let qp = &mut self.pair.node_mut(self.side).qp;
            qp.set_operands(Operands::Masked(op));
        }
        self.pair.drain_both();
    }
}

/// Returns what two devices must agree in: not credits, and no reserved bits.
fn text(packet: &Packet<'_>) -> String {
    let Headers {
        bth,
        aeth,
        atomic_ack,
        masked,
        atomic,
        reth,
        imm,
        ..
    } = packet.headers();
    let mut text = format!("{} psn={}", bth.opcode, bth.psn);
    if bth.ack_req {
        text += " A";
    }
    if !bth.migreq {
        text += " no MigReq";
    }
    if let Some(aeth) = aeth {
        let kind = match aeth.syndrome {
            Syndrome::Ack(_) => "ACK".to_string(),
            other => other.to_string(),
        };
        text += &format!(" {kind} msn={}", aeth.msn);
    }
    if let Some(ack) = atomic_ack {
        text += &format!(" original={:#x}", ack.original);
    }
    let place = masked.map(|eth| (eth.va, eth.rkey, 0, 0));
    let place = place.or_else(|| {
        let eth = (*atomic)?;
        Some((eth.va, eth.rkey, eth.swap_add, eth.compare))
    });
    let place = place.or_else(|| {
        let eth = (*reth)?;
        Some((eth.va, eth.rkey, eth.dma_len.into(), 0))
    });
    if place.is_some() || imm.is_some() {
        text += &format!(" {place:?} {imm:?}");
    }
    text += &format!(" len={}", packet.payload().len());
    if masked.is_some() {
        text += &format!(" {:02x?}", packet.payload());
    }
    text
}

const CAS: [u32; 2] = [0x90_9cac, 0x96_cb1e];
const RETRY: [u32; 2] = [0xb1_6838, 0xa8_b479];
const VLAN: [u32; 2] = [0xfe_dfed, 0xcf_7bf6];

//= HW-11 XAW-10 RC-RSP-11 type=test
#[test]
fn masked_compare_and_swaps_are_answered_as_by_hardware() {
    let mut replay = Replay::new("masked-cas", Side::B, CAS);
    let [nic, qp] = replay.run();
    assert_eq!(nic.len(), 5);
    assert_eq!(qp, nic);
    // The third one had an address that is no multiple of 8, and what follows gets no answer.
    assert!(qp[4].contains("NAK INVALID_REQUEST"), "{qp:?}");
    assert_eq!(replay.pair.node(Side::B).qp.state(), QpState::Err);
}

//= HW-11 XAW-10 HW-04 type=test
#[test]
fn masked_compare_and_swaps_are_sent_as_by_hardware() {
    let mut replay = Replay::new("masked-cas", Side::A, CAS);
    let [nic, qp] = replay.run();
    assert_eq!(nic.len(), 6);
    assert_eq!(qp, nic);
    let done = statuses(&replay.pair.take_completions(Side::A));
    let status = done.iter().map(|(_, status)| *status).collect::<Vec<_>>();
    let (refused, flushed) = (WcStatus::RemInvReqErr, WcStatus::WrFlushErr);
    assert_eq!(status, [OK, OK, OK, OK, refused, flushed]);
}

//= HW-08 type=test
#[test]
fn after_a_refusal_a_responder_is_silent() {
    let mut replay = Replay::new("masked-cas-retry", Side::B, RETRY);
    // The NIC's peer used a key without rights.
    replay.place.rkey = Rkey::new(1);
    let [nic, qp] = replay.run();
    assert_eq!(qp, nic);
    assert_eq!(qp.len(), 1);
    assert!(
        qp[0].contains("NAK REMOTE_ACCESS") && qp[0].contains("msn=0"),
        "{qp:?}"
    );
    assert_eq!(replay.pair.node(Side::B).qp.state(), QpState::Err);
}

/// The NIC repeats its two requests after the NAK, 13 times each. This QP ends with the NAK.
//= HW-08 type=test
#[test]
fn after_a_refusal_a_requester_repeats_nothing() {
    let mut replay = Replay::new("masked-cas-retry", Side::A, RETRY);
    let [nic, qp] = replay.run();
    assert_eq!(nic.len(), 28);
    assert_eq!(qp, nic[..2]);
    let done = statuses(&replay.pair.take_completions(Side::A));
    let (first, second) = (RETRY[0].into(), u64::from(RETRY[0]) + 1);
    let expected = [
        (first, WcStatus::RemAccessErr),
        (second, WcStatus::WrFlushErr),
    ];
    assert_eq!(done, expected);
}

//= HW-04 HW-07 type=test
#[test]
fn one_acknowledgement_ends_two_messages() {
    for takes_receive in [false, true] {
        let mut replay = Replay::new("send-ack-vlan", Side::B, VLAN).with_receives(1);
        if takes_receive {
            // The peer says that it has no flow control, and announces zero credits.
            replay.pair.node_mut(Side::B).qp.ignore_credits();
        }
        let region = replay.region;
        let op = if takes_receive {
            send()
        } else {
            write(&region)
        };
        for wr_id in 0..4 {
            replay.pair.send(Side::B, wr_id, op, &[region.part(0, 8)]);
        }
        replay.pair.drain_both();
        let [nic, qp] = replay.run();
        assert!(nic.is_empty(), "only one end was recorded");
        assert_eq!(qp.len(), 4 + 1, "{qp:?}");
        assert!(
            qp[4].starts_with("RC ACKNOWLEDGE psn=0xfedfed ACK msn=1"),
            "{qp:?}"
        );
        let done = statuses(&replay.pair.take_completions(Side::B));
        let received = (0, OK);
        let expected = [received, (0, OK), (1, OK), (2, OK), (3, OK)];
        assert_eq!(done, expected);
    }
}

/// In the NIC's place: its SEND, and its acknowledgements of the second and fourth message.
//= HW-07 type=test
#[test]
fn two_messages_get_one_acknowledgement() {
    let mut replay = Replay::new("send-ack-vlan", Side::A, VLAN);
    let (place, frames) = (replay.region, core::mem::take(&mut replay.frames));
    let [sent, acks @ ..] = frames.as_slice() else {
        panic!("no frames")
    };
    replay.post(sent, &[]);
    for index in 0..4u32 {
        let mut request = Request::new(Operation::WriteOnly, 0)
            .reth(place.addr, place.rkey, 1)
            .payload(&[1]);
        let bth = &mut request.headers.bth;
        (bth.dest_qp, bth.psn) = (Qpn::new(0x77), Psn::new(VLAN[1]).add(index));
        bth.ack_req = index % 2 == 1;
        replay.pair.inject(Side::A, &request.bytes());
    }
    let traced = replay
        .pair
        .trace()
        .iter()
        .map(|traced| text(&traced.packet()));
    let nic = [sent].into_iter().chain(acks);
    let nic = nic.map(|frame| text(&Packet::parse(&frame.packet(replay.place)).unwrap()));
    assert_eq!(traced.collect::<Vec<_>>(), nic.collect::<Vec<_>>());
}

//= HW-04 type=test
#[test]
fn an_acknowledgement_with_the_credits_of_hardware_counts() {
    for (conversation, psn) in [("ack-credits", 0xc71), ("vf-ack-cnp", 0x46_6f1e)] {
        let mut replay = Replay::new(conversation, Side::B, [0, psn]);
        let region = replay.region;
        replay
            .pair
            .send(Side::B, 5, write(&region), &[region.part(0, 8)]);
        replay.pair.drain_both();
        replay.run();
        let done = statuses(&replay.pair.take_completions(Side::B));
        assert_eq!(done, [(5, OK)], "{conversation}");
    }
}

/// Checks that a notification is recognized, and that the QP sends the same bytes.
//= HW-05 HW-01 type=test
#[test]
fn congestion_notifications() {
    for conversation in ["cnp", "vf-ack-cnp"] {
        let mut replay = Replay::new(conversation, Side::B, [0, 0]);
        let nic = replay.frames.last().unwrap().packet(replay.place);
        replay.run();
        let counters = replay.pair.node(Side::B).qp.counters();
        assert_eq!(counters.cnps_received, 1, "{conversation}");
        let own = Headers::cnp(
            Packet::parse(&nic).unwrap().bth().dest_qp,
            rocade_wire::Pkey::DEFAULT,
        );
        let mut bytes = vec![0; 28];
        own.emit(&mut bytes).unwrap();
        assert_eq!(bytes, nic[..28], "{conversation}");
    }
}

/// The NIC requests an acknowledgement of the very first packet too, and acknowledges one more
/// without a request for it, with the MSN from before the message.
//= HW-06 HW-07 type=test
#[test]
fn long_messages_are_sent_as_by_hardware() {
    let mut replay = Replay::new("send-imm", Side::B, [0, 0]).with_receives(4);
    let [nic, qp] = replay.run();
    let differ = nic.iter().zip(&qp).filter(|(nic, qp)| nic != qp);
    let differ: Vec<_> = differ.map(|(nic, _)| nic.as_str()).collect();
    assert_eq!((nic.len(), qp.len()), (68, 68));
    assert_eq!(differ, ["RC SEND_FIRST psn=0x000000 A len=1024"]);
    let done = statuses(&replay.pair.take_completions(Side::B));
    assert_eq!(done.len(), 34 + 1);
    assert!(done.iter().all(|(_, status)| *status == OK), "{done:?}");
}

//= HW-06 HW-07 type=test
#[test]
fn long_messages_are_acknowledged_as_by_hardware() {
    let mut replay = Replay::new("send-imm", Side::A, [0, 0]).with_receives(40);
    let [nic, qp] = replay.run();
    let only_nic: Vec<_> = nic.iter().filter(|text| !qp.contains(text)).collect();
    assert_eq!(only_nic, ["RC ACKNOWLEDGE psn=0x000040 ACK msn=32 len=0"]);
    let rest: Vec<_> = nic.iter().filter(|text| qp.contains(text)).collect();
    assert_eq!(rest, qp.iter().collect::<Vec<_>>());
    // The reserved bit of the requests made no difference.
    assert_eq!(replay.pair.take_completions(Side::A).len(), 34 + 1);
}

/// Returns a masked atomic in NVIDIA's format.
fn masked(operation: Operation, psn: u32, va: u64, rkey: Rkey, operands: &[u64]) -> Request {
    let operands: Vec<u8> = operands
        .iter()
        .flat_map(|word| word.to_be_bytes())
        .collect();
    let mut request = Request::new(operation, psn).payload(&operands);
    request.headers.masked = Some(rocade_wire::MaskedEth {
        va,
        rkey,
        log_size: 3,
        resv: [0; 3],
    });
    request
}

/// The addition is by analogy: no frame of it is known.
//= HW-12 type=test
#[test]
fn masked_additions_are_accepted() {
    let (mut pair, region) = target();
    pair.node(Side::B)
        .mem
        .fill(&region, 0, &u64::MAX.to_ne_bytes());
    let add = |psn, operands: &[u64]| {
        masked(
            Operation::MaskedFetchAdd,
            psn,
            region.addr,
            region.rkey,
            operands,
        )
    };
    let one = 0x0001_0001_0001_0001;
    add(0, &[one, one << 15]).inject(&mut pair);
    let answer = pair.trace().last().unwrap().packet().headers().atomic_ack;
    assert_eq!(answer.unwrap().original, u64::MAX);
    assert_eq!(pair.node(Side::B).mem.bytes(&region, 0..8), [0; 8]);
    // A repetition is answered again, and operands of another length are refused.
    add(0, &[one, one << 15]).inject(&mut pair);
    assert_eq!(answers(&mut pair), ["AtomicAcknowledge ACK psn=0 msn=1"; 2]);
    add(1, &[one]).inject(&mut pair);
    let refused = format!("{} psn=1 msn=1", Syndrome::Nak(NakCode::InvalidRequest));
    assert_eq!(answers(&mut pair), [refused]);
}

/// Posts one masked atomic of 8 bytes on a pair whose A is not known to have a Rocade as its peer.
fn post_masked(pair: &mut Pair, to: &Region, op: MaskedOp) {
    let result = register(pair, Side::A, 8);
    let (va, rkey) = (to.addr, to.rkey);
    let op_of = SendOp::Masked {
        va,
        rkey,
        log_size: 3,
    };
    pair.send(Side::A, 7, op_of, &[result.sge()]);
    pair.node_mut(Side::A).qp.set_operands(Operands::Masked(op));
    pair.run();
}

fn first_sent(pair: &Pair) -> u8 {
    pair.trace()
        .iter()
        .find(|traced| traced.from == Side::A)
        .unwrap()
        .bytes[0]
}

const SWAP: MaskedOp = MaskedOp::CmpSwap {
    compare: [0; 4],
    compare_mask: [0; 4],
    swap: [5, 0, 0, 0],
    swap_mask: [u64::MAX, 0, 0, 0],
};
const ADD: MaskedOp = MaskedOp::FetchAdd {
    add: [5, 0, 0, 0],
    boundary: [0; 4],
};

/// A compare-and-swap needs no probe, an addition only if its format was asked for.
//= XAW-10 HW-12 type=test
#[test]
fn which_masked_atomics_any_peer_gets() {
    for (op, asked, opcode) in [(SWAP, false, 0x18), (ADD, false, 0x64), (ADD, true, 0x19)] {
        let mut pair = Pair::default();
        pair.node_mut(Side::A).qp.set_short_fetch_add(asked);
        let there = register_filled(&pair, Side::B, 8, 0);
        post_masked(&mut pair, &there, op);
        assert_eq!(first_sent(&pair), opcode);
        assert_eq!(statuses(&pair.take_completions(Side::A)), [(7, OK)]);
    }
}

/// The kernel's rxe leaves MigReq clear. Some of its versions read out of bounds if they get an
/// unknown opcode.
//= HW-01 RXE-07 RXE-115 type=test
#[test]
fn a_peer_that_leaves_migreq_clear_is_asked_first() {
    for slow_path in [false, true] {
        let mut pair = Pair::default();
        if slow_path {
            pair.take_slow_path();
        }
        let there = register(&pair, Side::B, 8);
        let mut request = Request::new(Operation::SendOnly, 0);
        let own = register(&pair, Side::A, 8);
        pair.recv(Side::A, 1, &[own.sge()]);
        request.headers.bth.dest_qp = Qpn::new(0x11);
        request.headers.bth.migreq = false;
        pair.inject(Side::A, &request.bytes());
        assert_eq!(statuses(&pair.take_completions(Side::A)), [(1, OK)]);
        pair.clear_trace();
        post_masked(&mut pair, &there, SWAP);
        assert_eq!(first_sent(&pair), 0x64, "the probe");
        assert_eq!(statuses(&pair.take_completions(Side::A)), [(7, OK)]);
    }
}
