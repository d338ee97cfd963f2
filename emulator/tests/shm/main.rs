//! Two and more processes that communicate through shared memory. This test program starts itself
//! again as the peer. The engine's counters tell which link the packets used.

#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "tests: a failure may panic, sizes are small"
)]

mod children;
#[path = "../common/mod.rs"]
mod common;
mod faults;
mod flush_before_close;
mod forged;
mod gone;
mod node;
mod own;
mod peers;
#[path = "../common/processes.rs"]
mod processes;
#[path = "../common/sandbox.rs"]
mod sandbox;
mod trouble;

use std::env;
use std::fs;
use std::thread;
use std::time::Duration;

use common::{Side, pattern};
use rocade_emulator::broker::{self, BrokerConfig};
use rocade_emulator::{Gid, ImmOrInv, LinkMode, SendOp, WcOpcode, WcStatus};

use node::*;
use processes::{ROLE, wait_until};

/// The entry point of the processes that the tests start. It is no test itself.
#[test]
fn child_process() {
    if env::var_os(ROLE).is_some() {
        processes::limit_life();
    }
    match env::var(ROLE).as_deref() {
        Ok("broker") => broker::serve(&BrokerConfig::from_env()).unwrap(),
        Ok("node") => run_node(),
        _ => {}
    }
}

#[test]
fn all_operations_and_sizes() {
    let site = Site::new();
    let side = Side::on(site.engine(LinkMode::Auto), MEMORY);
    let mut node = site.node();
    let remote = node.connect(&side, 0);
    for (wr_id, len) in (0..).zip([0, 1, 3, 8, 63, 64, 65, 1023, 1024, 1025, 70_000, 1 << 20]) {
        side.fill(0, &pattern(len, len));
        node.ask(&format!("recv 0 {wr_id} 0 {}", len.max(1)));
        side.send(wr_id, SendOp::Send { imm: None }, &[side.sge(0, len)]);
        assert_eq!(node.ask("poll 0"), format!("{wr_id} Success {len}"));
        assert_eq!(node.ask(&format!("check 0 0 {len} {len}")), "true");
        assert_success(&side, wr_id);

        write(&side, remote, wr_id, 0, 1 << 20, len);
        assert_success(&side, wr_id);
        assert_eq!(
            node.ask(&format!("check 0 {} {len} {len}", 1 << 20)),
            "true"
        );

        let op = SendOp::Read {
            va: remote.addr + (1 << 20),
            rkey: remote.rkey,
        };
        side.send(wr_id, op, &[side.sge(2 << 20, len)]);
        let read = side.completion();
        assert_eq!(
            (read.status, read.opcode),
            (WcStatus::Success, WcOpcode::RdmaRead)
        );
        assert_eq!(side.bytes(2 << 20, len), pattern(len, len));
    }
    node.ask("recv 0 77 0 8");
    let op = SendOp::Write {
        va: remote.addr + 16,
        rkey: remote.rkey,
        imm: Some([1, 2, 3, 4]),
    };
    side.fill(0, &41u64.to_ne_bytes());
    side.send(1, op, &[side.sge(0, 8)]);
    assert_eq!(node.ask("poll 0"), "77 Success 8");
    assert_success(&side, 1);
    let (va, rkey) = (remote.addr + 16, remote.rkey);
    side.send(2, SendOp::FetchAdd { va, rkey, add: 1 }, &[side.sge(8, 8)]);
    assert_success(&side, 2);
    assert_eq!(side.bytes(8, 8), 41u64.to_ne_bytes());
    side.send(
        3,
        SendOp::CmpSwap {
            va,
            rkey,
            compare: 42,
            swap: 9,
        },
        &[side.sge(8, 8)],
    );
    assert_success(&side, 3);
    assert_eq!(side.bytes(8, 8), 42u64.to_ne_bytes());
    // The other direction.
    side.qp
        .recv_queue()
        .push(5, &[side.sge(0, 1 << 20)])
        .unwrap();
    node.ask(&format!("fill 0 0 {} 3", 1 << 20));
    node.ask(&format!("send 0 6 0 {}", 1 << 20));
    let received = side.completion();
    assert_eq!((received.wr_id, received.byte_len), (5, 1 << 20));
    assert_eq!(received.imm_or_inv, ImmOrInv::None);
    assert_eq!(side.bytes(0, 1 << 20), pattern(1 << 20, 3));
    assert_eq!(node.ask("poll 0"), format!("6 Success {}", 1 << 20));
    assert_all_shared(&side.engine, &mut node);
    let counters = side.qp.counters();
    assert!(
        counters.fast_path_packets > 500,
        "middles and ACKs: {counters:?}"
    );
}

#[test]
fn a_sleeping_peer_is_woken_by_each_message() {
    let site = Site::new();
    let side = Side::on(site.engine(LinkMode::Auto), MEMORY);
    let mut node = site.node();
    node.connect(&side, 0);
    for wr_id in 0..20 {
        node.ask(&format!("recv 0 {wr_id} 0 100"));
        assert_eq!(node.ask("sleep 0"), "asleep");
        side.send(wr_id, SendOp::Send { imm: None }, &[side.sge(0, 64)]);
        assert_eq!(node.answer(), format!("{wr_id} Success 64"));
        // This side sleeps too, until the ACK arrives.
        side.cq.req_notify(false).unwrap();
        if side.cq.poll_one().is_none() {
            side.channel.get_event().unwrap();
            side.cq.ack_events(1);
            assert_success(&side, wr_id);
        }
    }
    assert_all_shared(&side.engine, &mut node);
}

#[test]
fn the_variable_and_the_peer_decide_which_way() {
    for (ours, theirs) in [
        (LinkMode::Udp, "auto"),
        (LinkMode::Auto, "udp"),
        (LinkMode::Udp, "udp"),
    ] {
        let site = Site::new();
        let side = Side::on(site.engine(ours), MEMORY);
        let mut node = site.node_at(site.address, theirs);
        let remote = node.connect(&side, 0);
        write(&side, remote, 1, 0, 0, 100_000);
        assert_success(&side, 1);
        assert_eq!(
            (side.engine.counters().tx_shared, node.counters()[1]),
            (0, 0)
        );
    }
    let site = Site::new();
    let side = Side::on(site.engine(LinkMode::Shm), MEMORY);
    let mut node = site.node_at(site.address, "shm");
    let remote = node.connect(&side, 0);
    write(&side, remote, 1, 0, 0, 100_000);
    assert_success(&side, 1);
    assert_all_shared(&side.engine, &mut node);
}

#[test]
fn shm_only_does_not_reach_a_peer_without() {
    let site = Site::new();
    let side = Side::on(site.engine(LinkMode::Shm), MEMORY);
    let mut node = site.node_at(site.address, "udp");
    let remote = node.connect(&side, 0);
    write(&side, remote, 1, 0, 0, 8);
    assert_eq!(side.completion().status, WcStatus::RetryExcErr);
}

/// The peer's address is unused before it connects. The first side to connect therefore has no
/// shared memory link yet.
#[test]
fn a_queue_pair_moves_to_the_channel_that_its_peer_asks_for() {
    let site = Site::new();
    let side = Side::on(site.engine(LinkMode::Auto), MEMORY);
    let mut node = site.node_at(own_address(), "auto");
    let remote = node.new_qp(0);
    side.to_rts(remote.qpn, Gid::from_ip(node.address));
    node.connect_back(&side, remote);
    node.ask("recv 0 1 0 100");
    side.qp.recv_queue().push(1, &[side.sge(0, 100)]).unwrap();
    // The other side has its link, and the background thread of this side soon attaches it.
    node.ask("send 0 2 0 100");
    assert_eq!(side.completion().wr_id, 1);
    assert_eq!(node.ask("poll 0"), "2 Success 100");
    wait_until(|| {
        let before = side.engine.counters().tx_shared;
        write(&side, remote, 3, 0, 0, 8);
        assert_success(&side, 3);
        side.engine.counters().tx_shared > before
    });
}

/// The queue pairs move while requests and responses of both sides are in flight.
#[test]
fn queue_pairs_move_in_mid_stream_without_loss() {
    const LEN: usize = 70_000;
    let site = Site::new();
    let engine = site.engine(LinkMode::Auto);
    let mut moved = 0;
    for _ in 0..20 {
        let side = Side::on(engine.clone(), MEMORY);
        let mut node = site.node_at(own_address(), "auto");
        let remote = node.new_qp(0);
        side.to_rts(remote.qpn, Gid::from_ip(node.address));
        side.fill(0, &pattern(LEN, 1));
        node.ask(&format!("fill 0 {} {LEN} 2", 1 << 20));
        let before = engine.counters();
        node.connect_back(&side, remote);
        for wr_id in 0..120 {
            // Streams of WRITEs with READs in between.
            if wr_id % 24 != 23 {
                write(&side, remote, wr_id, 0, 0, LEN);
                continue;
            }
            let op = SendOp::Read {
                va: remote.addr + (1 << 20),
                rkey: remote.rkey,
            };
            side.send(wr_id, op, &[side.sge(1 << 20, LEN)]);
        }
        for wr_id in 0..120 {
            assert_success(&side, wr_id);
        }
        assert_eq!(side.bytes(1 << 20, LEN), pattern(LEN, 2));
        assert_eq!(node.ask(&format!("check 0 0 {LEN} 1")), "true");
        let after = engine.counters();
        let sent = after.tx_packets - before.tx_packets;
        let shared = after.tx_shared - before.tx_shared;
        moved += u32::from(0 < shared && shared < sent);
        println!("{:?} shared {shared} of {sent}", side.qp.counters());
    }
    println!("{moved} queue pairs moved in mid-stream");
}

/// Returns the CPU time of a process's threads in nanoseconds. This is the exact run time, not the
/// kernel's estimate by clock ticks, which depends on other processes.
fn cpu_time_ns(pid: u32) -> u64 {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let time_of = |thread: &fs::DirEntry| {
        let text = fs::read_to_string(thread.path().join("schedstat")).unwrap();
        text.split(' ').next().unwrap().parse::<u64>().unwrap()
    };
    threads.map(|thread| time_of(&thread.unwrap())).sum()
}

/// Connected, and after traffic.
#[test]
fn a_waiting_process_with_a_channel_uses_no_processor_time() {
    let site = Site::new();
    let mut node = site.node();
    let side = Side::on(site.engine(LinkMode::Auto), MEMORY);
    let remote = node.connect(&side, 0);
    for wr_id in 0..20 {
        write(&side, remote, wr_id, 0, 0, 1 << 20);
    }
    for wr_id in 0..20 {
        assert_success(&side, wr_id);
    }
    assert_all_shared(&side.engine, &mut node);
    // On a busy machine the process may still have to handle the last packets.
    let mut before = cpu_time_ns(node.child.id());
    wait_until(|| {
        thread::sleep(Duration::from_millis(100));
        let last = std::mem::replace(&mut before, cpu_time_ns(node.child.id()));
        before == last
    });
    thread::sleep(Duration::from_secs(2));
    let used = cpu_time_ns(node.child.id()) - before;
    assert!(used <= 1_000_000, "{used} ns");
}

#[test]
fn peers_with_and_without_shared_memory_at_a_time() {
    let site = Site::new();
    let engine = site.engine(LinkMode::Auto);
    let (a, b) = (
        Side::on(engine.clone(), MEMORY),
        Side::on(engine.clone(), MEMORY),
    );
    let (mut shared, mut udp) = (site.node(), site.node_at(site.address, "udp"));
    let (remote_a, remote_b) = (shared.connect(&a, 0), udp.connect(&b, 0));
    a.fill(0, &pattern(1 << 20, 1));
    b.fill(0, &pattern(1 << 20, 2));
    for wr_id in 0..8 {
        write(&a, remote_a, wr_id, 0, 0, 1 << 20);
        write(&b, remote_b, wr_id, 0, 0, 1 << 20);
    }
    // Polling one CQ receives for the other one as well.
    for wr_id in 0..8 {
        assert_success(&a, wr_id);
        assert_success(&b, wr_id);
    }
    assert_eq!(shared.ask(&format!("check 0 0 {} 1", 1 << 20)), "true");
    assert_eq!(udp.ask(&format!("check 0 0 {} 2", 1 << 20)), "true");
    let c = engine.counters();
    assert!(0 < c.tx_shared && c.tx_shared < c.tx_packets, "{c:?}");
}

/// The peer acknowledges the message and is killed before this side polls. The request has
/// succeeded.
#[test]
fn the_last_acknowledgement_of_a_dying_peer_counts() {
    let site = Site::new();
    let engine = site.engine(LinkMode::Auto);
    for _ in 0..20 {
        let side = Side::on(engine.clone(), MEMORY);
        let mut node = site.node();
        node.connect(&side, 0);
        node.ask("recv 0 1 0 8");
        side.send(1, SendOp::Send { imm: None }, &[side.sge(0, 8)]);
        assert_eq!(node.ask("poll 0"), "1 Success 8");
        // The completion at the peer comes first, then the ACK.
        while node.counters()[0] == 0 {}
        drop(node);
        assert_success(&side, 1);
    }
}

/// Sends `count` messages to a node that answers all but the last. Returns after the last one was
/// sent.
fn converse(side: &Side, node: &mut Node, count: u64, ending: &str) {
    assert_eq!(
        node.ask(&format!("converse 0 {count} {ending}")),
        "listening"
    );
    for message in 1..=count {
        if message < count {
            side.qp.recv_queue().push(0, &[side.sge(0, 8)]).unwrap();
        }
        side.send(message, SendOp::Send { imm: None }, &[side.sge(8, 8)]);
        // The response and the ACK, in any order.
        for _ in 0..if message < count { 2 } else { 1 } {
            assert_eq!(side.completion().status, WcStatus::Success, "{message}");
        }
    }
    let counters = side.qp.counters();
    assert_eq!(counters.retransmitted_packets, 0, "{ending}: {counters:?}");
}

/// In a conversation ACKs are sent together with the responses. An ACK without a response is sent
/// after a short delay, and before the process exits.
#[test]
fn the_last_acknowledgement_of_a_conversation_leaves() {
    for link in ["udp", "auto"] {
        let site = Site::new();
        let engine = site.engine(LinkMode::Auto);
        for ending in ["exit", "stay", "destroy"] {
            for _ in 0..10 {
                let side = Side::on(engine.clone(), MEMORY);
                let mut node = site.node_at(site.address, link);
                let remote = node.new_qp(0);
                // Seventeen seconds: even on a slow machine, no acknowledged request is
                // retransmitted.
                side.to_rts_with_timeout(remote.qpn, Gid::from_ip(node.address), 22);
                node.connect_back(&side, remote);
                converse(&side, &mut node, 50, ending);
                if ending == "exit" {
                    assert!(node.child.wait().unwrap().success());
                } else {
                    assert_eq!(node.answer(), "heard");
                }
            }
        }
    }
}

#[test]
fn a_killed_peer_is_detected_and_its_slot_is_reused() {
    let site = Site::new();
    let engine = site.engine(LinkMode::Auto);
    let side = Side::on(engine.clone(), MEMORY);
    let mut node = site.node();
    let remote = node.connect(&side, 0);
    for wr_id in 0..100 {
        write(&side, remote, wr_id, 0, 0, 1 << 20);
    }
    assert_success(&side, 0);
    node.signal(libc::SIGKILL);
    let mut next = 1;
    let failed = loop {
        let wc = side.completion();
        assert_eq!(wc.wr_id, next);
        if wc.status != WcStatus::Success {
            break wc;
        }
        // Some requests are always in flight, however long the signal takes.
        write(&side, remote, 99 + next, 0, 0, 1 << 20);
        next += 1;
    };
    assert_eq!(failed.status, WcStatus::RetryExcErr);
    assert_eq!(side.completion().status, WcStatus::WrFlushErr);
    drop(node);
    site.wait_for_clients(1);

    let before = engine.counters();
    let mut second = site.node();
    let side = Side::on(engine.clone(), MEMORY);
    let again = second.connect(&side, 0);
    assert_eq!(again.qpn >> 16, remote.qpn >> 16, "the same slot");
    write(&side, again, 1, 0, 0, 1 << 20);
    assert_success(&side, 1);
    let c = engine.counters();
    assert_eq!(
        c.tx_packets - before.tx_packets,
        c.tx_shared - before.tx_shared
    );
    wait_until(|| {
        let [tx, tx_shared, rx, rx_shared] = second.counters();
        (tx_shared, rx_shared) == (tx, rx)
    });
}

/// Queue pairs whose peer reads no packets fill the ring. `when_there_is_space` then lets them
/// continue.
fn fill_the_ring(when_there_is_space: impl FnOnce(&[Side], &mut Node)) {
    const QPS: usize = 16;
    let site = Site::new();
    let engine = site.engine(LinkMode::Auto);
    let mut node = site.node();
    let sides: Vec<_> = (0..QPS).map(|_| Side::on(engine.clone(), MEMORY)).collect();
    let remotes: Vec<_> = sides
        .iter()
        .enumerate()
        .map(|(index, side)| {
            let remote = node.new_qp(index);
            // Without a timeout, so that no retransmission hides a missed announcement of room.
            side.to_rts_with_timeout(remote.qpn, Gid::from_ip(site.address), 0);
            node.connect_back(side, remote);
            remote
        })
        .collect();
    for (index, side) in sides.iter().enumerate() {
        side.fill(0, &pattern(1 << 20, index));
    }
    let stopped = node.stop();
    for (side, remote) in sides.iter().zip(&remotes) {
        write(side, *remote, 1, 0, 0, 1 << 20);
        assert!(side.cq.poll_one().is_none());
    }
    // The ring has room for some 1000 packets, and each queue pair had 128 packets to send. Packets
    // that wait for room count as sent.
    let c = engine.counters();
    assert!((900..2000).contains(&c.tx_shared), "{c:?}");
    drop(stopped);
    when_there_is_space(&sides, &mut node);
    for index in 0..QPS {
        assert!(has_arrived(&mut node, index));
    }
}

fn has_arrived(node: &mut Node, index: usize) -> bool {
    node.ask(&format!("check {index} 0 {} {index}", 1 << 20)) == "true"
}

#[test]
fn a_poller_goes_on_when_a_full_ring_has_space() {
    fill_the_ring(|sides, _| sides.iter().for_each(|side| assert_success(side, 1)));
}

#[test]
fn a_sleeper_goes_on_when_a_full_ring_has_space() {
    fill_the_ring(|sides, _| {
        for side in sides {
            side.cq.req_notify(false).unwrap();
            if let Some(wc) = side.cq.poll_one() {
                assert_eq!(wc.status, WcStatus::Success);
                continue;
            }
            side.channel.get_event().unwrap();
            side.cq.ack_events(1);
            assert_success(side, 1);
        }
    });
}

#[test]
fn an_application_that_calls_nothing_resumes_when_a_full_ring_has_space() {
    fill_the_ring(|sides, node| {
        for index in 0..sides.len() {
            wait_until(|| has_arrived(node, index));
        }
    });
}

#[test]
fn channels_survive_the_broker() {
    let site = Site::new();
    let engine = site.engine(LinkMode::Auto);
    let side = Side::on(engine.clone(), MEMORY);
    let mut node = site.node();
    let remote = node.connect(&side, 0);
    site.kill_broker();
    for wr_id in 0..10 {
        write(&side, remote, wr_id, 0, 0, 1 << 20);
        assert_success(&side, wr_id);
    }
    // Both find or start a new broker. QPs to a peer with a shared memory link do not need it, and
    // a new peer gets its link from the new broker.
    site.wait_for_clients(2);
    let second = Side::on(engine.clone(), MEMORY);
    let remote = node.connect(&second, 1);
    write(&second, remote, 1, 0, 0, 100_000);
    assert_success(&second, 1);
    let mut other = site.node();
    let third = Side::on(engine.clone(), MEMORY);
    let remote = other.connect(&third, 0);
    write(&third, remote, 1, 0, 0, 100_000);
    assert_success(&third, 1);
    assert_all_shared(&engine, &mut node);
    assert_all_shared(&engine, &mut other);
}

#[test]
fn one_peer_in_both_directions_at_once_with_a_sleeping_one_beside() {
    let site = Site::new();
    let engine = site.engine(LinkMode::Auto);
    let (a, b) = (
        Side::on(engine.clone(), MEMORY),
        Side::on(engine.clone(), MEMORY),
    );
    let (mut busy, mut quiet) = (site.node(), site.node());
    let remote = busy.connect(&a, 0);
    quiet.connect(&b, 0);
    quiet.ask("recv 0 9 0 8");
    assert_eq!(quiet.ask("sleep 0"), "asleep");
    for wr_id in 0..16 {
        a.qp.recv_queue()
            .push(100 + wr_id, &[a.sge(1 << 20, 1 << 20)])
            .unwrap();
        busy.ask(&format!("send 0 {wr_id} {} {}", 1 << 20, 1 << 20));
        write(&a, remote, wr_id, 0, 0, 1 << 20);
    }
    b.send(1, SendOp::Send { imm: None }, &[b.sge(0, 8)]);
    assert_eq!(quiet.answer(), "9 Success 8");
    assert_success(&b, 1);
    let mut ids: Vec<_> = (0..32)
        .map(|_| {
            let wc = a.completion();
            assert_eq!(wc.status, WcStatus::Success);
            wc.wr_id
        })
        .collect();
    ids.sort_unstable();
    assert!(ids.into_iter().eq((0..16).chain(100..116)));
    for wr_id in 0..16 {
        assert_eq!(busy.ask("poll 0"), format!("{wr_id} Success {}", 1 << 20));
    }
}
