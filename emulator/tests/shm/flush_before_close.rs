//! A message whose completion the application has seen is acknowledged, whatever ends its queue
//! pair or process. This includes ACKs that were delayed for a response.

use rocade_emulator::{Gid, LinkMode, QpAttr, QpAttrMask, QpState, SendOp, WcStatus};

use crate::common::Side;
use crate::node::{Node, Site};

/// Number of conversations for each way to end.
const TRIES: usize = 200;
/// Enough messages to make the peer expect responses.
const MESSAGES: u64 = 24;
/// Length of a side's memory in bytes.
const ROOM: usize = 64;

/// Exchanges messages with queue pair `index` of a node, which ends the conversation in the given
/// way after the last message. Returns the status of that message, and whether it was acknowledged
/// without a timeout.
fn converse(side: &Side, node: &mut Node, index: usize, ending: &str) -> (WcStatus, bool) {
    let remote = node.new_qp_with(ROOM, index);
    side.to_rts(remote.qpn, Gid::from_ip(node.address));
    node.connect_back(side, remote);
    let request = format!("converse {index} {MESSAGES} {ending}");
    assert_eq!(node.ask(&request), "listening");
    for message in 1..MESSAGES {
        side.qp.recv_queue().push(0, &[side.sge(0, 8)]).unwrap();
        side.send(message, SendOp::Send { imm: None }, &[side.sge(8, 8)]);
        // The response and the ACK, in any order.
        for _ in 0..2 {
            assert_eq!(side.completion().status, WcStatus::Success, "{message}");
        }
    }
    let before = side.qp.counters().timeouts;
    side.send(MESSAGES, SendOp::Send { imm: None }, &[side.sge(8, 8)]);
    let status = side.completion().status;
    (status, side.qp.counters().timeouts == before)
}

fn nothing_is_lost(link: &str, ending: &str, one_process: bool) {
    let site = Site::new();
    let engine = site.engine(LinkMode::Auto);
    let mut nodes = Vec::new();
    let mut late = 0;
    for attempt in 0..TRIES {
        let side = Side::on(engine.clone(), ROOM);
        if !one_process || nodes.is_empty() {
            nodes.clear();
            nodes.push(site.node_at(site.address, link));
        }
        let index = if one_process { attempt } else { 0 };
        let (status, in_time) = converse(&side, &mut nodes[0], index, ending);
        late += usize::from(!in_time);
        assert_eq!(status, WcStatus::Success, "{ending} over {link}, {attempt}");
        if one_process {
            assert_eq!(nodes[0].answer(), "heard");
        } else {
            nodes[0].child.wait().unwrap();
        }
    }
    if ending == "stay" {
        // Delayed ACKs are sent before the peer repeats its message, except on a machine that is
        // busy for long.
        assert!(late < TRIES / 2, "{late} came late over {link}");
    }
    let counters = engine.counters();
    assert_eq!(counters.tx_shared > 0, link != "udp", "{counters:?}");
}

/// Requests that were acknowledged before the sender destroys its queue pair have succeeded, even
/// if the sender has not polled.
fn the_sender_ends_after_it(link: &str) {
    let site = Site::new();
    let engine = site.engine(LinkMode::Auto);
    let mut node = site.node_at(site.address, link);
    for index in 0..TRIES {
        let side = Side::on(engine.clone(), ROOM);
        let remote = node.new_qp_with(ROOM, index);
        side.to_rts(remote.qpn, Gid::from_ip(node.address));
        node.connect_back(&side, remote);
        assert_eq!(node.ask(&format!("converse {index} 1 error")), "listening");
        side.send(1, SendOp::Send { imm: None }, &[side.sge(8, 8)]);
        assert_eq!(node.answer(), "heard");
        let attr = QpAttr {
            qp_state: QpState::Err.code(),
            ..QpAttr::default()
        };
        side.qp.modify(&attr, QpAttrMask::STATE).unwrap();
        let status = side.completion().status;
        assert_eq!(status, WcStatus::Success, "over {link}, {index}");
    }
}

#[test]
fn the_sender_ends_after_it_over_udp() {
    the_sender_ends_after_it("udp");
}

#[test]
fn the_sender_ends_after_it_in_shared_memory() {
    the_sender_ends_after_it("auto");
}

macro_rules! endings {
    ($($name:ident: $ending:literal, $one_process:literal;)*) => {
        mod udp {
            $(
                #[test]
                fn $name() {
                    super::nothing_is_lost("udp", $ending, $one_process);
                }
            )*
        }
        mod shm {
            $(
                #[test]
                fn $name() {
                    super::nothing_is_lost("auto", $ending, $one_process);
                }
            )*
        }
    };
}

endings! {
    qp_to_error: "error", true;
    qp_to_reset: "reset", true;
    qp_destroyed: "destroy", true;
    qp_stays: "stay", true;
    exit: "exit", false;
    immediate_exit: "_exit", false;
    exec: "exec", false;
    abort: "abort", false;
    sigterm: "term", false;
    sigkill: "kill", false;
    child_lives_on: "orphan", false;
}
