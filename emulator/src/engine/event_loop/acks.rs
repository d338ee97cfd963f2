//! ACKs of a program that requests the next event before it answers the last message.

use std::thread;
use std::time::{Duration, Instant};

use rocade_transport::SendOp;

use super::super::link_sides;
use super::super::pending::common::Side;
use super::tests::send_until_readable;
use crate::sys;

const LIMIT: Duration = Duration::from_secs(60);

/// The program, with a non-blocking channel, and its peer. They communicate through shared memory.
/// No QP has an ACK timeout, so that only an ACK completes what was sent.
fn program_and_peer(addresses: [&str; 2]) -> (Side, Side) {
    let (a, b) = link_sides::unconnected(addresses);
    let (to_a, to_b) = (a.qp.qp_num().get(), b.qp.qp_num().get());
    a.to_rts_with_timeout(to_b, b.gid(), 0);
    b.to_rts_with_timeout(to_a, a.gid(), 0);
    link_sides::use_shm(&a);
    sys::set_nonblocking(a.channel.fd());
    (a, b)
}

fn answer(a: &Side) {
    a.send(2, SendOp::Send { imm: None }, &[a.sge(0, 8)]);
}

fn is_held(a: &Side) -> bool {
    a.qp.inner().lock().qp.coalescer().held_since().is_some()
}

/// The peer sends, and the program takes the event. It answers at once, until an answer is
/// expected: then it only requests the next event, and this returns true if that has not sent the
/// delayed ACK.
fn exchange(a: &Side, b: &Side) -> Option<bool> {
    let begin = Instant::now();
    b.qp.recv_queue().push(8, &[b.sge(0, 8)]).expect("space");
    let is_expected = a.qp.inner().lock().qp.coalescer().expects_reply();
    send_until_readable(a, b);
    while a.channel.get_event().is_err() {
        assert!(begin.elapsed() < LIMIT, "there is no event");
    }
    a.cq.ack_events(1);
    if !is_expected {
        answer(a);
        return None;
    }
    let was_held = is_held(a);
    a.cq.req_notify(false).expect("a channel");
    // The background thread sends it after a while, if this one does not run.
    Some(was_held && is_held(a))
}

/// Takes the completions of an answered message, and the events that they may have caused.
fn finish(a: &Side, b: &Side) {
    let mut ids = [a, a, b, b].map(|side| side.completion().wr_id);
    ids.sort_unstable();
    assert_eq!(ids, [1, 2, 7, 8]);
    while a.channel.try_event().is_some() {
        a.cq.ack_events(1);
    }
}

/// The answer carries the ACK.
#[test]
fn a_request_for_an_event_does_not_send_the_delayed_ack() {
    let (a, b) = program_and_peer(["127.4.0.75", "127.4.0.76"]);
    let (begin, mut held) = (Instant::now(), 0);
    while held < 20 {
        assert!(begin.elapsed() < LIMIT, "{held} times only");
        if let Some(is_held) = exchange(&a, &b) {
            held += u32::from(is_held);
            answer(&a);
        }
        finish(&a, &b);
    }
}

/// The ACK leaves although the program neither answers nor calls anything, and although no timeout
/// makes the peer ask for it.
#[test]
fn a_delayed_ack_leaves_without_the_program() {
    let (a, b) = program_and_peer(["127.4.0.77", "127.4.0.78"]);
    let (begin, mut held) = (Instant::now(), 0);
    while held < 5 {
        assert!(begin.elapsed() < LIMIT, "{held} times only");
        if let Some(was_held) = exchange(&a, &b) {
            // No poll, because that would send it.
            while b.cq.is_empty() {
                assert!(begin.elapsed() < LIMIT, "the ACK is not sent");
                thread::yield_now();
            }
            held += u32::from(was_held);
            answer(&a);
        }
        finish(&a, &b);
    }
}
