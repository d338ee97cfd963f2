//! Processes that are killed while a child of theirs lives, which has copies of all descriptors.

use rocade_emulator::broker;
use rocade_emulator::{
    Connection, Gid, LinkMode, QpCap, QpInitAttr, QpType, SendFlags, SendOp, SendWr, WcStatus,
};
use rocade_wire::Qpn;

use crate::common::{ALL_ACCESS, Side, connect};
use crate::node::{MEMORY, Site, assert_success};
use crate::processes::{broker_config, wait_until};

/// Length of a message.
const LEN: usize = 64 << 10;
/// Number of messages that no ring has room for.
const MESSAGES: u64 = 64;

/// The last user of an address is killed, and the broker ends. The child has neither the address
/// nor its sockets.
#[test]
fn an_address_is_free_while_the_child_of_its_last_user_lives() {
    let site = Site::new();
    let mut node = site.node();
    {
        let peer = Side::on(site.engine(LinkMode::Auto), MEMORY);
        node.connect(&peer, 0);
    }
    assert_eq!(node.ask("leave"), "leaving");
    wait_until(|| node.has_ended());
    broker::stop(&broker_config(site.dir.path())).unwrap();
    let (one, other) = (
        Side::on(site.engine(LinkMode::Auto), MEMORY),
        Side::on(site.engine(LinkMode::Auto), MEMORY),
    );
    connect(&one, &other);
    other.qp.recv_queue().push(1, &[other.sge(0, 8)]).unwrap();
    one.send(2, SendOp::Send { imm: None }, &[one.sge(0, 8)]);
    assert_success(&one, 2);
    assert_success(&other, 1);
    // The child ends with its input.
    drop(node);
}

#[test]
fn a_sender_does_not_wait_for_the_child_of_a_killed_process() {
    let site = Site::new();
    let side = Side::on(site.engine(LinkMode::Auto), MEMORY);
    let mut node = site.node();
    let remote = node.connect(&side, 0);
    let init = QpInitAttr {
        send_cq: side.cq.clone(),
        recv_cq: side.cq.clone(),
        srq: None,
        cap: QpCap {
            max_send_wr: 4,
            max_recv_wr: 1,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        },
        qp_type: QpType::Uc,
        sq_sig_all: false,
        cookie: 0,
    };
    let qp = side.pd.create_qp(init).unwrap();
    // Without a queue pair there. What counts is its way through shared memory.
    let connection = Connection::to(Gid::from_ip(node.address), Qpn::new(remote.qpn + 1));
    qp.connect(ALL_ACCESS, &connection).unwrap();
    let shared_before = side.engine.counters().tx_shared;
    let send = |wr_id| {
        let sges = [side.sge(0, LEN)];
        let wr = SendWr {
            wr_id,
            op: SendOp::Send { imm: None },
            flags: SendFlags::SIGNALED,
            sges: &sges,
        };
        qp.post_sends(|queue| queue.push(&wr)).unwrap();
        let wc = side.completion();
        assert_eq!((wc.wr_id, wc.status), (wr_id, WcStatus::Success));
    };
    send(0);
    assert!(side.engine.counters().tx_shared > shared_before);
    assert_eq!(node.ask("leave"), "leaving");
    // The child lives on. Its parent's slot is free all the same.
    site.wait_for_clients(1);
    (1..=MESSAGES).for_each(send);
    let shared = || side.engine.counters().tx_shared;
    wait_until(|| {
        let before = shared();
        send(0);
        shared() == before
    });
}
