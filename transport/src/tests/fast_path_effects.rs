//! Side effects of the fast path, which are those of the slow path.

use alloc::vec::Vec;

use rocade_wire::{Lkey, Operation};

use super::responder::{answer, target};
use super::{PMTU, Request, pattern, statuses};
use crate::testing::{Pair, Region, Side};
use crate::{Sge, WcStatus};

use Operation::{SendFirst, SendMiddle, SendOnly, WriteOnly};

fn fast_path_packets(pair: &Pair) -> u64 {
    pair.node(Side::B).qp.counters().fast_path_packets
}

fn only(operation: Operation, psn: u32, to: &Region, len: u32) -> Request {
    let request = Request::new(operation, psn).payload(&pattern(len, 5));
    match operation {
        WriteOnly => request.reth(to.addr, to.rkey, len),
        _ => request,
    }
}

//= RC-RSP-07 type=test
#[test]
fn a_packet_of_the_path_mtu_is_one_of_the_usual() {
    for operation in [SendOnly, WriteOnly] {
        let (mut pair, region) = target();
        for wr_id in [1, 2] {
            pair.recv(Side::B, wr_id, &[region.sge()]);
        }
        let full = only(operation, 0, &region, PMTU);
        assert_eq!(answer(&mut pair, &full), ["ACK psn=0 msn=1"]);
        assert_eq!(fast_path_packets(&pair), 1, "{operation:?}");
        let written = pair.node(Side::B).mem.bytes(&region, 0..PMTU as usize);
        assert_eq!(written, pattern(PMTU, 5), "{operation:?}");
        let beyond = only(operation, 1, &region, PMTU + 4);
        let refusal = ["NAK INVALID_REQUEST psn=1 msn=1"];
        assert_eq!(answer(&mut pair, &beyond), refusal);
        assert_eq!(fast_path_packets(&pair), 1, "{operation:?}");
    }
}

/// Checks that the missing packet ends the suppression of sequence NAKs: the next gap is NAKed
/// again.
//= RC-RSP-20, RC-RSP-23 type=test
#[test]
fn a_gap_that_a_fast_path_packet_closes_may_be_followed_by_another() {
    for operation in [SendOnly, WriteOnly] {
        let (mut pair, region) = target();
        for wr_id in 0..3 {
            pair.recv(Side::B, wr_id, &[region.sge()]);
        }
        let early = only(operation, 1, &region, 8);
        let nak = ["NAK PSN_SEQUENCE psn=0 msn=0"];
        assert_eq!(answer(&mut pair, &early), nak);
        assert_eq!(answer(&mut pair, &early), [""; 0]);
        let missing = only(operation, 0, &region, 8);
        assert_eq!(answer(&mut pair, &missing), ["ACK psn=0 msn=1"]);
        assert_eq!(fast_path_packets(&pair), 1, "{operation:?}");
        let early = only(operation, 2, &region, 8);
        let nak = ["NAK PSN_SEQUENCE psn=1 msn=1"];
        assert_eq!(answer(&mut pair, &early), nak, "{operation:?}");
    }
}

/// Begins a SEND for a receive with these buffers, and continues it. Returns the answers to the
/// second and the third packet.
fn middles(pair: &mut Pair, sges: &[Sge]) -> [Vec<alloc::string::String>; 2] {
    pair.recv(Side::B, 7, sges);
    let part =
        |operation, psn| Request::new(operation, psn).payload(&pattern(PMTU, psn.wrapping_add(1)));
    assert_eq!(answer(pair, &part(SendFirst, 0)), ["ACK psn=0 msn=0"]);
    [1, 2].map(|psn| answer(pair, &part(SendMiddle, psn)))
}

//= RC-RSP-10 type=test
#[test]
fn a_message_ends_where_its_receive_ends() {
    let (mut pair, region) = target();
    let after = pair.node(Side::B).mem.all(&region)[2 * PMTU as usize..].to_vec();
    let answers = middles(&mut pair, &[region.part(0, 2 * PMTU)]);
    assert_eq!(answers[0], ["ACK psn=1 msn=0"], "there is just room");
    assert_eq!(fast_path_packets(&pair), 1, "the middle that has room");
    assert_eq!(answers[1], ["NAK INVALID_REQUEST psn=2 msn=0"]);
    let done = pair.take_completions(Side::B);
    assert_eq!(statuses(&done), [(7, WcStatus::LocLenErr)]);
    let mem = &pair.node(Side::B).mem;
    assert_eq!(mem.all(&region)[2 * PMTU as usize..], after);
}

//= RC-RSP-12 type=test
#[test]
fn the_middle_of_a_message_needs_a_buffer_that_can_be_written() {
    let (mut pair, region) = target();
    let gone = Sge {
        lkey: Lkey::new(!region.lkey.get()),
        ..region.part(u64::from(PMTU), 2 * PMTU)
    };
    let answers = middles(&mut pair, &[region.part(0, PMTU), gone]);
    assert_eq!(answers[0], ["NAK REMOTE_OPERATIONAL psn=1 msn=0"]);
    assert_eq!(answers[1], [""; 0]);
    let done = pair.take_completions(Side::B);
    assert_eq!(statuses(&done), [(7, WcStatus::LocProtErr)]);
}

/// Checks that a message is spread over the buffers of its receive. It is refused if it does not
/// fit, or the memory cannot be written.
//= RC-RSP-10, RC-RSP-12, RC-WQE-12 type=test
#[test]
fn a_message_of_one_packet_may_need_several_buffers() {
    let begin = |len, adapt: &dyn Fn(&mut Sge)| {
        let (mut pair, region) = target();
        let mut sges = [region.part(0, 8), region.part(100, 8)];
        adapt(&mut sges[1]);
        pair.recv(Side::B, 7, &sges);
        let answers = answer(&mut pair, &only(SendOnly, 0, &region, len));
        let done = statuses(&pair.take_completions(Side::B));
        let mem = &pair.node(Side::B).mem;
        let parts = [mem.bytes(&region, 0..8), mem.bytes(&region, 100..108)].concat();
        (answers, done, parts)
    };
    for len in [12, 16] {
        let (answers, done, parts) = begin(len, &|_| {});
        assert_eq!(answers, ["ACK psn=0 msn=1"]);
        assert_eq!(done, [(7, WcStatus::Success)]);
        assert_eq!(parts[..len as usize], pattern(len, 5));
    }
    let (answers, done, _) = begin(20, &|_| {});
    assert_eq!(answers, ["NAK INVALID_REQUEST psn=0 msn=0"]);
    assert_eq!(done, [(7, WcStatus::LocLenErr)]);
    let (answers, done, _) = begin(12, &|sge| sge.lkey = Lkey::new(!sge.lkey.get()));
    assert_eq!(answers, ["NAK REMOTE_OPERATIONAL psn=0 msn=0"]);
    assert_eq!(done, [(7, WcStatus::LocProtErr)]);
}
