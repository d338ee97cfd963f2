//! Packets and completions tied to work requests.

use rocade_wire::Operation;

use super::event::Request;
use super::qp::{Finished, Qp};

const ACK: u32 = 0x1f00_0000;
const RNR_NAK: u32 = 0x2100_0000;
const SEQUENCE_NAK: u32 = 0x6000_0000;

fn send(wr_id: u64, opcode: u32, len: u32) -> Request {
    Request {
        wr_id,
        opcode: Some(opcode),
        len,
        flags: 2,
        text: String::new(),
    }
}

/// Completes a send without unsignaled ones before it.
fn complete(qp: &mut Qp, time_ns: u64, wr_id: u64) -> Finished {
    let (before, own) = qp.complete_send(time_ns, wr_id, true).expect("posted");
    assert_eq!(before.len(), 0);
    own
}

#[test]
fn an_answer_completes_all_requests_up_to_its_psn() {
    let mut qp = Qp::default();
    qp.set_mtu(3);
    qp.post_send(100, send(1, 2, 3000));
    qp.post_send(110, send(2, 4, 3000));
    qp.post_send(120, send(3, 0, 10));
    // A SEND of three packets, a READ with three responses, a WRITE. The PSN wraps.
    assert_eq!(qp.sent(200, 0xff_fffe, Operation::SendFirst), None);
    assert_eq!(qp.sent(230, 0, Operation::SendLast), None);
    assert_eq!(qp.sent(240, 1, Operation::ReadRequest), None);
    assert_eq!(qp.sent(250, 4, Operation::WriteOnly), None);
    assert_eq!(qp.window(), 7);
    assert_eq!(qp.answered(300, 0, Operation::Acknowledge, ACK), None);
    assert_eq!(qp.answered(310, 1, Operation::ReadResponseFirst, 0), None);
    assert_eq!(qp.answered(320, 3, Operation::ReadResponseLast, 0), None);
    assert_eq!(qp.answered(330, 4, Operation::Acknowledge, ACK), None);
    assert_eq!(qp.window(), 0);
    let (_, timing) = complete(&mut qp, 400, 1);
    assert_eq!((timing.queue, timing.send), (100, 30));
    assert_eq!((timing.answer, timing.poll, timing.total), (70, 100, 300));
    // The completion of the last one is that of all before it.
    let (_, timing) = complete(&mut qp, 400, 3);
    assert_eq!((timing.answer, timing.poll), (80, 70));
    assert!(qp.complete_send(400, 2, true).is_none());
}

#[test]
fn waits_for_a_receive_and_for_lost_packets_are_told_apart() {
    let mut qp = Qp::default();
    qp.post_send(0, send(1, 2, 10));
    qp.post_send(0, send(2, 2, 10));
    qp.sent(100, 7, Operation::SendOnly);
    qp.sent(110, 8, Operation::SendOnly);
    let told = qp.answered(200, 7, Operation::Acknowledge, RNR_NAK);
    assert!(told.expect("told").contains("no receive"));
    let told = qp.sent(1_200, 7, Operation::SendOnly);
    assert!(told.expect("told").contains("after the RNR NAK"));
    // The next packet of the same pass is no incident of its own.
    assert_eq!(qp.sent(1_210, 8, Operation::SendOnly), None);
    assert_eq!(qp.answered(1_300, 7, Operation::Acknowledge, ACK), None);
    let told = qp.answered(1_400, 8, Operation::Acknowledge, SEQUENCE_NAK);
    assert_eq!(told.as_deref(), Some("NAK: PSN sequence error"));
    let told = qp.sent(1_500, 8, Operation::SendOnly);
    assert!(told.expect("told").contains("after the NAK"));
    let told = qp.timed_out(9_400);
    assert_eq!(told, "timeout: no answer to PSN 0x8 for 7.9 us");
    let told = qp.sent(9_500, 8, Operation::SendOnly);
    assert!(told.expect("told").contains("no answer for 8.0 us"));
    assert_eq!(qp.unanswered, 1);
    let told = qp.timed_out(9_550);
    assert_eq!(
        told,
        "timeout: no answer to PSN 0x8 for 0.1 us (2 in a row)"
    );
    qp.answered(9_600, 8, Operation::Acknowledge, ACK);
    let (_, first) = complete(&mut qp, 9_700, 1);
    assert_eq!(
        (first.rnr, first.rnr_naks, first.retransmissions),
        (1_000, 1, 0)
    );
    let (_, second) = complete(&mut qp, 9_700, 2);
    assert_eq!((second.rnr, second.retransmissions), (1_000, 2));
    assert_eq!(second.retransmission, 300 + 8_000);
    assert_eq!(qp.unanswered, 0);
}

#[test]
fn the_connection_of_a_dc_initiator_is_no_request() {
    let mut qp = Qp::default();
    for (psn, begin) in [(0, 0), (5, 1_000)] {
        qp.post_send(begin, send(1, 0, 10));
        // The first one is not known to be of an initiator yet.
        if qp.is_of_request(true) {
            assert_eq!(qp.sent(begin + 10, 0, Operation::SendOnly), None);
        }
        assert!(qp.is_of_request(false));
        assert_eq!(qp.sent(begin + 100, psn, Operation::WriteOnly), None);
        qp.answered(begin + 150, psn, Operation::Acknowledge, ACK);
        let (_, timing) = complete(&mut qp, begin + 160, 1);
        assert_eq!((timing.queue, timing.answer), (100, 50));
        assert_eq!(timing.retransmissions, 0);
    }
}

#[test]
fn a_refused_or_repeated_message_has_not_arrived() {
    let mut qp = Qp::default();
    qp.arrived(100, 5);
    qp.arrived(110, 6);
    assert!(qp.answers(6, RNR_NAK).is_some());
    qp.arrived(150, 5);
    assert_eq!(qp.unpolled_arrivals(), Some((100, 1)));
    qp.arrived(200, 6);
    assert_eq!(qp.unpolled_arrivals(), Some((100, 2)));
    let told: Vec<bool> = (0..20).map(|_| qp.answers(7, RNR_NAK).is_some()).collect();
    assert_eq!(told.iter().filter(|told| **told).count(), 5, "{told:?}");
}

#[test]
fn a_failed_post_leaves_the_accepted_requests() {
    let mut qp = Qp::default();
    for wr_id in 0..3 {
        qp.post_send(0, send(wr_id, 2, 1));
    }
    qp.withdraw(true, 2);
    assert!(qp.complete_send(1, 1, true).is_none());
    assert!(qp.complete_send(1, 0, true).is_some());
}
