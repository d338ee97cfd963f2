//! Tests of the responder with hand-made requests.

use alloc::string::String;
use alloc::vec::Vec;

use rocade_wire::{Opcode, Operation, Packet, Psn};

use super::{ALL, PMTU, PSN, Request, answer_text, answers, pattern, register_filled, statuses};
use crate::testing::{Pair, Region, Setup, Side, TestMemory};
use crate::{
    AckPlacement, DropReason, PacketMeta, QpAttr, QpAttrMask, QpEvent, QpState, Time, TxBuffer,
    WcStatus,
};

use Operation::{
    CmpSwap, FetchAdd, ReadRequest, SendFirst, SendLast, SendMiddle, SendOnly, WriteFirst,
    WriteLast, WriteMiddle, WriteOnly,
};

/// Creates a pair of which only B matters, and 10 KiB of B's memory.
pub(super) fn target() -> (Pair, Region) {
    target_with(|_| {})
}

pub(super) fn target_with(adapt: impl Fn(&mut Setup)) -> (Pair, Region) {
    let pair = Pair::new(|side, setup| {
        if side == Side::B {
            adapt(setup);
        }
    });
    let region = register_filled(&pair, Side::B, 10 * PMTU, 1);
    (pair, region)
}

pub(super) fn write_only(psn: u32, to: &Region, byte: u8) -> Request {
    Request::new(WriteOnly, psn)
        .reth(to.addr, to.rkey, 1)
        .payload(&[byte])
}

pub(super) fn read(psn: u32, from: &Region, offset: u64, len: u32) -> Request {
    Request::new(ReadRequest, psn).reth(from.addr + offset, from.rkey, len)
}

pub(super) fn fetch_add(psn: u32, to: &Region, add: u64) -> Request {
    Request::new(FetchAdd, psn).atomic(to.addr, to.rkey, add, 0)
}

pub(super) fn answer(pair: &mut Pair, request: &Request) -> Vec<String> {
    request.inject(pair);
    answers(pair)
}

/// The PSN before `psn`, counted from [`PSN`].
const BEFORE_FIRST: u32 = 0x00ff_ffff;

//= RC-RSP-20, RC-RSP-23, RC-DUP-08 type=test
#[test]
fn there_is_one_sequence_nak_at_a_time() {
    let (mut pair, region) = target();
    assert_eq!(
        answer(&mut pair, &write_only(2, &region, 2)),
        ["NAK PSN_SEQUENCE psn=0 msn=0"]
    );
    assert_eq!(answer(&mut pair, &write_only(3, &region, 3)), [""; 0]);
    assert_eq!(
        answer(&mut pair, &write_only(BEFORE_FIRST, &region, 9)),
        ["ACK psn=-1 msn=0"]
    );
    assert_eq!(answer(&mut pair, &write_only(2, &region, 2)), [""; 0]);
    assert_eq!(
        answer(&mut pair, &write_only(0, &region, 7)),
        ["ACK psn=0 msn=1"]
    );
    assert_eq!(
        answer(&mut pair, &write_only(2, &region, 2)),
        ["NAK PSN_SEQUENCE psn=1 msn=1"]
    );
    let node = pair.node(Side::B);
    assert_eq!(node.mem.writes(), 1);
    assert_eq!(node.qp.counters().dropped(DropReason::OutOfSequence), 2);
    assert_eq!(node.qp.state(), QpState::Rts);
}

//= RC-PSN-02 type=test
//= RC-RSP-02 type=test
#[test]
fn the_sequence_space_has_two_halves() {
    let (mut pair, region) = target();
    let ahead = write_only((1 << 23) - 1, &region, 1);
    assert_eq!(answer(&mut pair, &ahead), ["NAK PSN_SEQUENCE psn=0 msn=0"]);
    assert_eq!(
        answer(&mut pair, &write_only(1 << 23, &region, 1)),
        ["ACK psn=-1 msn=0"]
    );
}

//= RC-RSP-06, RC-RSP-21, RC-ERR-B type=test
#[test]
fn a_missing_receive_is_reported_and_nothing_else_happens() {
    let (mut pair, region) = target();
    let send = Request::new(SendOnly, 0).payload(b"abc");
    let rnr = ["RNR_NAK timer=640us psn=0 msn=0"];
    assert_eq!(answer(&mut pair, &send), rnr);
    assert_eq!(answer(&mut pair, &write_only(1, &region, 1)), [""; 0]);
    assert_eq!(answer(&mut pair, &send), rnr);
    pair.recv(Side::B, 5, &[region.sge()]);
    assert_eq!(answer(&mut pair, &send), ["ACK psn=0 msn=1"]);
    assert_eq!(
        statuses(&pair.take_completions(Side::B)),
        [(5, WcStatus::Success)]
    );
    // WRITE with immediate: only the packet with the immediate needs a receive.
    let first = Request::new(WriteFirst, 1).reth(region.addr, region.rkey, PMTU + 1);
    let first = first.payload(&[1; PMTU as usize]);
    assert_eq!(answer(&mut pair, &first), ["ACK psn=1 msn=1"]);
    let writes = pair.node(Side::B).mem.writes();
    let last = Request::new(Operation::WriteLastImm, 2)
        .imm([1; 4])
        .payload(&[2]);
    assert_eq!(
        answer(&mut pair, &last),
        ["RNR_NAK timer=640us psn=2 msn=1"]
    );
    assert_eq!(pair.node(Side::B).mem.writes(), writes);
    pair.recv(Side::B, 6, &[]);
    assert_eq!(answer(&mut pair, &last), ["ACK psn=2 msn=2"]);
    assert_eq!(pair.take_completions(Side::B)[0].byte_len, PMTU + 1);
}

//= RC-DUP-01 type=test
#[test]
fn duplicates_of_sends_and_writes_are_acknowledged_only() {
    let (mut pair, region) = target();
    pair.recv(Side::B, 1, &[region.sge()]);
    pair.recv(Side::B, 2, &[region.sge()]);
    let send = Request::new(SendOnly, 0).payload(b"abc");
    let first = Request::new(SendFirst, 1).payload(&[1; PMTU as usize]);
    for request in [&send, &first] {
        request.inject(&mut pair);
    }
    assert_eq!(answers(&mut pair), ["ACK psn=0 msn=1", "ACK psn=1 msn=1"]);
    assert_eq!(answer(&mut pair, &send), ["ACK psn=1 msn=1"]);
    // Neither the opcode sequence nor the key is checked.
    let nonsense = Request::new(WriteMiddle, 0).payload(&[1]);
    assert_eq!(answer(&mut pair, &nonsense), ["ACK psn=1 msn=1"]);
    assert_eq!(pair.take_completions(Side::B).len(), 1);
    assert_eq!(pair.node(Side::B).qp.recv_queue_len(), 1);
    let last = Request::new(SendLast, 2).payload(&[1]);
    assert_eq!(answer(&mut pair, &last), ["ACK psn=2 msn=2"]);
    assert_eq!(pair.take_completions(Side::B)[0].byte_len, PMTU + 1);
}

//= RC-DUP-02 type=test
#[test]
fn a_duplicate_is_not_acknowledged_past_a_read() {
    let (mut pair, region) = target();
    for request in [
        write_only(0, &region, 1),
        read(1, &region, 0, 1),
        write_only(2, &region, 1),
    ] {
        request.inject(&mut pair);
    }
    answers(&mut pair);
    assert_eq!(
        answer(&mut pair, &write_only(0, &region, 1)),
        ["ACK psn=0 msn=3"]
    );
    assert_eq!(
        answer(&mut pair, &write_only(2, &region, 1)),
        ["ACK psn=2 msn=3"]
    );
}

//= RC-DUP-03 type=test
//= RC-ERR-D type=test
#[test]
fn a_duplicate_read_must_be_the_end_of_a_saved_one() {
    let (mut pair, region) = target();
    let pmtu = u64::from(PMTU);
    let last = "ReadResponseLast ACK psn=2 msn=1";
    let middle = "ReadResponseMiddle psn=1";
    let first = "ReadResponseFirst ACK psn=0 msn=1";
    let whole = read(0, &region, 0, 3 * PMTU);
    assert_eq!(answer(&mut pair, &whole), [first, middle, last]);
    assert_eq!(answer(&mut pair, &whole), [first, middle, last]);
    assert_eq!(
        answer(&mut pair, &read(1, &region, pmtu, 2 * PMTU)),
        ["ReadResponseFirst ACK psn=1 msn=1", last]
    );
    let tail = read(2, &region, 2 * pmtu, PMTU);
    assert_eq!(
        answer(&mut pair, &tail),
        ["ReadResponseOnly ACK psn=2 msn=1"]
    );
    let other = register_filled(&pair, Side::B, 10 * PMTU, 2);
    let refused = [
        read(0, &region, 0, 2 * PMTU),
        read(1, &region, 0, 2 * PMTU),
        read(1, &region, pmtu, PMTU),
        read(1, &region, pmtu + 1, 2 * PMTU),
        read(1, &region, pmtu, 2 * PMTU + 1),
        read(1, &other, pmtu, 2 * PMTU),
        read(BEFORE_FIRST, &region, 0, 3 * PMTU),
    ];
    let count = refused.len() as u64;
    for request in refused {
        assert_eq!(
            answer(&mut pair, &request),
            [""; 0],
            "{:?}",
            request.headers
        );
    }
    assert_eq!(
        pair.node(Side::B)
            .qp
            .counters()
            .dropped(DropReason::Duplicate),
        count
    );
    //= RC-DUP-06 type=test
    pair.node(Side::B).mem.deregister(&region);
    assert_eq!(answer(&mut pair, &whole), [""; 0]);
    assert_eq!(pair.node(Side::B).qp.state(), QpState::Rts);
}

//= RC-DUP-04, RC-DUP-05 type=test
#[test]
fn a_duplicate_atomic_gets_the_saved_value() {
    let (mut pair, region) = target_with(|setup| setup.attr.max_dest_rd_atomic = 2);
    let counter = pair.node(Side::B).mem.register(8, ALL);
    let value = |pair: &Pair| {
        pair.trace()
            .last()
            .map(|t| t.packet().headers().atomic_ack.unwrap().original)
    };
    for (psn, original) in [(0, 0), (1, 10), (0, 0), (1, 10)] {
        fetch_add(psn, &counter, 10).inject(&mut pair);
        assert_eq!(value(&pair), Some(original));
    }
    let compare = Request::new(CmpSwap, 1).atomic(counter.addr, counter.rkey, 1, 1);
    answers(&mut pair);
    assert_eq!(answer(&mut pair, &compare), [""; 0], "another opcode");
    read(2, &region, 0, 1).inject(&mut pair);
    answers(&mut pair);
    assert_eq!(
        answer(&mut pair, &fetch_add(0, &counter, 10)),
        [""; 0],
        "evicted"
    );
    assert_eq!(
        answer(&mut pair, &fetch_add(1, &counter, 10)),
        ["AtomicAcknowledge ACK psn=1 msn=3"]
    );
    assert_eq!(pair.node(Side::B).mem.atomics(), 2);
}

/// Lowers the number of READs and atomics while the answer to one may still be repeated.
//= RC-DUP-04, RC-DUP-05 type=test
#[test]
fn an_atomic_is_repeated_after_the_limit_was_lowered() {
    let (mut pair, region) = target_with(|setup| setup.attr.max_dest_rd_atomic = 2);
    let add = fetch_add(0, &region, 1);
    let result = ["AtomicAcknowledge ACK psn=0 msn=1"];
    assert_eq!(answer(&mut pair, &add), result);
    let none = QpAttr {
        max_dest_rd_atomic: 0,
        ..QpAttr::default()
    };
    pair.modify(Side::B, QpState::Sqd, QpAttrMask::empty(), &none);
    pair.modify(Side::B, QpState::Sqd, QpAttrMask::MAX_DEST_RD_ATOMIC, &none);
    assert_eq!(answer(&mut pair, &add), result);
    assert_eq!(pair.node(Side::B).mem.atomics(), 1);
}

/// Returns a packet of this kind that is valid by itself.
pub(super) fn example(operation: Operation, psn: u32, region: &Region) -> Request {
    let request = Request::new(operation, psn);
    let full = [1; PMTU as usize];
    let request = match operation {
        WriteFirst => request
            .reth(region.addr, region.rkey, 2 * PMTU)
            .payload(&full),
        WriteOnly | Operation::WriteOnlyImm => {
            request.reth(region.addr, region.rkey, PMTU).payload(&full)
        }
        ReadRequest => request.reth(region.addr, region.rkey, PMTU),
        CmpSwap | FetchAdd => request.atomic(region.addr, region.rkey, 0, 0),
        _ => request.payload(&full),
    };
    if operation.has_imm() {
        request.imm([0; 4])
    } else {
        request
    }
}

//= RC-SEQ-01, RC-SEQ-02, RC-SEQ-03 type=test
//= RC-RSP-03 type=test
#[test]
fn opcodes_must_continue_what_was_begun() {
    use Operation::{SendLastImm, SendOnlyImm, WriteLastImm, WriteOnlyImm};
    let starts = [
        SendFirst,
        SendOnly,
        SendOnlyImm,
        WriteFirst,
        WriteOnly,
        WriteOnlyImm,
        ReadRequest,
        CmpSwap,
        FetchAdd,
    ];
    let sends = [SendMiddle, SendLast, SendLastImm];
    let writes = [WriteMiddle, WriteLast, WriteLastImm];
    let cases: [(&[Operation], &[Operation]); 9] = [
        (&[], &starts),
        (&[SendOnly], &starts),
        (&[ReadRequest], &starts),
        (&[FetchAdd], &starts),
        (&[SendFirst], &sends),
        (&[SendFirst, SendMiddle], &sends),
        (&[SendFirst, SendLast], &starts),
        (&[WriteFirst], &writes),
        (&[WriteFirst, WriteLast], &starts),
    ];
    for (before, allowed) in cases {
        for next in starts.iter().chain(&sends).chain(&writes) {
            let (mut pair, region) = target();
            for id in 0..3 {
                pair.recv(Side::B, id, &[region.sge()]);
            }
            let mut psn = 0;
            for operation in before {
                example(*operation, psn, &region).inject(&mut pair);
                psn += 1;
            }
            answers(&mut pair);
            let answer = answer(&mut pair, &example(*next, psn, &region));
            // A WRITE of two packets: a Middle is one too many.
            let overrun = before == [WriteFirst] && *next == WriteMiddle;
            if allowed.contains(next) && !overrun {
                assert!(
                    answer.iter().all(|a| a.contains("ACK psn=")),
                    "{before:?} {next:?} {answer:?}"
                );
                assert_eq!(pair.node(Side::B).qp.state(), QpState::Rts);
            } else {
                assert!(
                    answer[0].starts_with("NAK INVALID_REQUEST psn="),
                    "{before:?} {next:?} {answer:?}"
                );
                assert_eq!(pair.node(Side::B).qp.state(), QpState::Err);
            }
        }
    }
}

/// Delivers all requests to B before it may answer.
pub(super) fn batch(pair: &mut Pair, requests: &[Request]) -> Vec<String> {
    let now = pair.now();
    for request in requests {
        let bytes = request.bytes();
        let packet = Packet::parse(&bytes).unwrap();
        let node = pair.node_mut(Side::B);
        let meta = PacketMeta {
            source: node.qp.remote(),
            destination: node.qp.local(),
            traffic_class: 0,
            hop_limit: 64,
        };
        node.qp.handle_packet(now, &meta, &packet, &node.mem);
    }
    pair.drain_both();
    answers(pair)
}

//= RC-RSP-25 RC-ACK-02 RC-ACK-03 type=test
//= RC-ACK-04 type=test
//= RC-PSN-07 type=test
#[test]
fn responses_leave_in_order_and_acknowledgements_are_merged() {
    let (mut pair, region) = target();
    let requests = [
        write_only(0, &region, 1),
        write_only(1, &region, 2),
        read(2, &region, 0, PMTU + 1),
        write_only(4, &region, 3),
        fetch_add(5, &region, 1),
        write_only(6, &region, 4),
        write_only(7, &region, 5),
        write_only(9, &region, 6),
    ];
    assert_eq!(
        batch(&mut pair, &requests),
        [
            "ACK psn=1 msn=2",
            "ReadResponseFirst ACK psn=2 msn=3",
            "ReadResponseLast ACK psn=3 msn=3",
            "ACK psn=4 msn=4",
            "AtomicAcknowledge ACK psn=5 msn=5",
            "ACK psn=7 msn=7",
            "NAK PSN_SEQUENCE psn=8 msn=7",
        ]
    );
}

//= RC-ACK-01 type=test
#[test]
fn nothing_is_acknowledged_unasked() {
    let (mut pair, region) = target();
    let mut request = write_only(0, &region, 1);
    request.headers.bth.ack_req = false;
    assert_eq!(answer(&mut pair, &request), [""; 0]);
    assert_eq!(pair.node(Side::B).mem.writes(), 1);
}

//= RC-ACK-07, BTH-03 type=test
//= RC-CRD-05 type=test
#[test]
fn responses_have_plain_headers() {
    let (mut pair, region) = target();
    let mut request = read(0, &region, 0, 5);
    request.headers.bth.solicited = true;
    request.headers.bth.migreq = false;
    request.inject(&mut pair);
    let sent = pair.trace().last().unwrap().packet();
    let bth = sent.bth();
    assert_eq!(
        (bth.solicited, bth.ack_req, bth.migreq, bth.pad_count),
        (false, false, true, 3)
    );
    assert_eq!((bth.dest_qp.get(), bth.pkey.get()), (0x11, 0xffff));
    assert_eq!(sent.payload(), &pattern(10 * PMTU, 1)[..5]);
}

//= RC-RSP-22, MR-14 type=test
#[test]
fn a_read_that_fails_midway_names_the_missing_response() {
    let mem = TestMemory::new();
    let region = mem.register(4 * PMTU, ALL);
    let peer = core::net::IpAddr::from([10, 0, 0, 1]);
    let own = core::net::IpAddr::from([10, 0, 0, 2]);
    let mut qp = Setup::new(0x22, own, 0x11, peer).build(QpState::Rts);
    let bytes = read(0, &region, 0, 4 * PMTU).bytes();
    let meta = PacketMeta {
        source: peer,
        destination: own,
        traffic_class: 0,
        hop_limit: 64,
    };
    qp.handle_packet(Time::ZERO, &meta, &Packet::parse(&bytes).unwrap(), &mem);
    let mut tx = TxBuffer::new(9000, 1);
    qp.poll_transmit(Time::ZERO, &mem, AckPlacement::First, &mut tx);
    assert_eq!(
        answer_text(&Packet::parse(tx.bytes()).unwrap()),
        "ReadResponseFirst ACK psn=0 msn=1"
    );
    tx.clear();
    mem.deregister(&region);
    qp.poll_transmit(Time::ZERO, &mem, AckPlacement::First, &mut tx);
    assert_eq!(
        answer_text(&Packet::parse(tx.bytes()).unwrap()),
        "NAK REMOTE_ACCESS psn=1 msn=1"
    );
    assert_eq!(
        (qp.state(), qp.poll_event()),
        (QpState::Err, Some(QpEvent::AccessErr))
    );
    tx.clear();
    qp.poll_transmit(Time::ZERO, &mem, AckPlacement::First, &mut tx);
    assert!(tx.is_empty());
}

//= BTH-06 BTH-14 BTH-15 type=test
//= RC-LIM-05 type=test
#[test]
fn packets_from_elsewhere_are_dropped() {
    let (mut pair, region) = target();
    let mut wrong_pkey = write_only(0, &region, 1);
    wrong_pkey.headers.bth.pkey = rocade_wire::Pkey::new(0x8001);
    assert_eq!(answer(&mut pair, &wrong_pkey), [""; 0]);
    let mut limited = write_only(0, &region, 1);
    limited.headers.bth.pkey = rocade_wire::Pkey::new(0x7fff);
    let mut uc = write_only(0, &region, 1);
    uc.headers.bth.opcode = Opcode::new(0x2a);
    assert_eq!(answer(&mut pair, &uc), [""; 0]);
    let bytes = write_only(0, &region, 1).bytes();
    let packet = Packet::parse(&bytes).unwrap();
    let now = pair.now();
    let node = pair.node_mut(Side::B);
    let third_host = core::net::IpAddr::from([10, 0, 0, 3]);
    let right = PacketMeta {
        source: node.qp.remote(),
        destination: node.qp.local(),
        traffic_class: 0,
        hop_limit: 64,
    };
    for meta in [
        PacketMeta {
            source: third_host,
            ..right
        },
        PacketMeta {
            destination: third_host,
            ..right
        },
    ] {
        node.qp.handle_packet(now, &meta, &packet, &node.mem);
    }
    let counters = node.qp.counters();
    assert_eq!(counters.dropped(DropReason::BadPkey), 1);
    assert_eq!(counters.dropped(DropReason::WrongService), 1);
    assert_eq!(counters.dropped(DropReason::WrongAddress), 2);
    assert_eq!(node.mem.writes(), 0);
    assert_eq!(answer(&mut pair, &limited), ["ACK psn=0 msn=1"]);
}

/// Checks that the first PSN of the tests and that of the packets agree.
#[test]
fn requests_count_from_the_first_psn() {
    assert_eq!(
        Request::new(SendOnly, BEFORE_FIRST).headers.bth.psn,
        Psn::new(PSN - 1)
    );
}

//= RC-DUP-02, RC-ACK-02 type=test
#[test]
fn a_duplicate_does_not_take_back_an_acknowledgement() {
    let (mut pair, region) = target();
    write_only(0, &region, 1).inject(&mut pair);
    answers(&mut pair);
    let requests = [
        read(1, &region, 0, 1),
        write_only(2, &region, 1),
        write_only(0, &region, 1),
    ];
    let expected = ["ReadResponseOnly ACK psn=1 msn=2", "ACK psn=2 msn=3"];
    assert_eq!(batch(&mut pair, &requests), expected);
}

/// Checks that replayed responses do not count as outstanding READs and atomics.
//= RC-DUP-04, RC-RSP-05 type=test
#[test]
fn a_repeated_answer_is_no_new_request() {
    let (mut pair, region) = target_with(|setup| setup.attr.max_dest_rd_atomic = 1);
    let add = fetch_add(0, &region, 1);
    let result = ["AtomicAcknowledge ACK psn=0 msn=1"];
    assert_eq!(answer(&mut pair, &add), result);
    let answers = batch(&mut pair, &[add, read(1, &region, 0, 8)]);
    assert_eq!(answers[0], result[0]);
    assert_eq!(answers[1..], ["ReadResponseOnly ACK psn=1 msn=2"]);
}
