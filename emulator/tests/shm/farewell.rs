//! Whatever ends a queue pair or its process: a message whose completion the application has seen is
//! acknowledged, also where the acknowledgement was waiting for an answer to leave with it.

use rocade_emulator::{Gid, LinkMode, SendOp, WcStatus};

use crate::common::Side;
use crate::node::{Node, Site};

/// Conversations for each way to end.
const TRIES: usize = 200;
/// Enough for the peer to count on answers.
const MESSAGES: u64 = 24;
/// A side's memory in bytes.
const ROOM: usize = 64;

/// Talks with queue pair `index` of a node, which ends the conversation in its way on the last message.
/// The status of that message.
fn converse(side: &Side, node: &mut Node, index: usize, ending: &str) -> WcStatus {
    let remote = node.new_qp_with(ROOM, index);
    side.to_rts(remote.qpn, Gid::from_ip(node.address));
    node.connect_back(side, remote);
    let request = format!("converse {index} {MESSAGES} {ending}");
    assert_eq!(node.ask(&request), "listening");
    for message in 1..MESSAGES {
        side.qp.recv_queue().push(0, &[side.sge(0, 8)]).unwrap();
        side.send(message, SendOp::Send { imm: None }, &[side.sge(8, 8)]);
        // The answer and the acknowledgement, in any order.
        for _ in 0..2 {
            assert_eq!(side.completion().status, WcStatus::Success, "{message}");
        }
    }
    side.send(MESSAGES, SendOp::Send { imm: None }, &[side.sge(8, 8)]);
    side.completion().status
}

fn nothing_is_lost(link: &str, ending: &str, one_process: bool) {
    let site = Site::new();
    let engine = site.engine(LinkMode::Auto);
    let mut nodes = Vec::new();
    for attempt in 0..TRIES {
        let side = Side::on(engine.clone(), ROOM);
        if !one_process || nodes.is_empty() {
            nodes.clear();
            nodes.push(site.node_at(site.address, link));
        }
        let index = if one_process { attempt } else { 0 };
        let status = converse(&side, &mut nodes[0], index, ending);
        assert_eq!(status, WcStatus::Success, "{ending} over {link}, {attempt}");
        if one_process {
            assert_eq!(nodes[0].answer(), "heard");
        } else {
            nodes[0].child.wait().unwrap();
        }
    }
    let counters = engine.counters();
    assert_eq!(counters.tx_shared > 0, link != "udp", "{counters:?}");
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
