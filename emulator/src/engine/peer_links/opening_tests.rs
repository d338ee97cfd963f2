//! Links that only one of the two processes receives from.

use std::net::IpAddr;
use std::ops::ControlFlow;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rocade_transport::{SendOp, WcStatus};

use super::wiring::{engine_with_link, was_woken};
use crate::config::EngineConfig;
use crate::engine::pending::common::datagrams::{address, send_to, ud, wr};
use crate::engine::pending::common::{self, Side};
use crate::link::LocalAddr;
use crate::link::peer_link::{AnyPeerLink, PeerLink as _, PeerLinkOffer, PeerReceiver as _};
use crate::link::shm::create;
use crate::steering::ProcessSlot;

/// Returns both ends of a link, as the broker offers it to two processes.
fn link_between(sides: [&Side; 2], addresses: [&str; 2]) -> [Arc<AnyPeerLink>; 2] {
    let memory = create().expect("memory");
    let (one, other) = UnixStream::pair().expect("sockets");
    let addresses = addresses.map(|ip| LocalAddr::from(ip.parse::<IpAddr>().expect("an IP")));
    let end = |from: usize, liveness_socket: UnixStream| {
        let wake = sides[1 - from].engine.inner.scheduler.peer_wake_fd.as_fd();
        let offer = PeerLinkOffer {
            local: addresses[from],
            peer: addresses[1 - from],
            slot: ProcessSlot::EMBEDDED,
            asked: from == 0,
            memory: memory.try_clone().expect("a copy"),
            liveness_socket: liveness_socket.into(),
            wake: wake.try_clone_to_owned().expect("a copy"),
        };
        Arc::new(AnyPeerLink::open(offer).expect("a link"))
    };
    [end(0, one), end(1, other)]
}

/// Makes the process of a side receive from a link, as it does with one that the broker has made.
fn add(side: &Side, link: &Arc<AnyPeerLink>) {
    let nic = &side.engine.inner;
    nic.links
        .change_peer_links(|links| links.push(Arc::clone(link)));
    nic.open_peer_links(vec![Arc::clone(link)]);
}

fn write(from: &Side, to: &Side) {
    let (va, rkey) = (to.addr(0), to.mr.rkey());
    let op = SendOp::Write {
        va,
        rkey,
        imm: None,
    };
    from.send(1, op, &[from.sge(0, 8)]);
    assert_eq!(from.completion().status, WcStatus::Success);
}

/// A thread of the peer that has made a link may get no processor before its process receives from
/// it. Packets in the link would wait for that thread, until the sender runs out of retries.
#[test]
fn queue_pairs_use_udp_until_the_peer_receives_from_the_link() {
    let addresses = ["127.4.0.73", "127.4.0.74"];
    let (a, b) = common::pair(addresses[0], addresses[1], 64);
    let [near, far] = link_between([&a, &b], addresses);
    let shared = || a.engine.counters().tx_shared;

    add(&a, &near);
    write(&a, &b);
    assert_eq!(shared(), 0, "the peer does not receive from the link");

    add(&b, &far);
    let deadline = Instant::now() + Duration::from_secs(60);
    while a.qp.inner().lock().tx.uses_socket() {
        assert!(Instant::now() < deadline, "the open link is not used");
        std::thread::yield_now();
    }
    write(&a, &b);
    assert_eq!(shared(), 1);
}

/// The first packets through a link must not overtake those that were sent over UDP. If an
/// acknowledgement comes before older responses, the sender repeats requests, perhaps to a process
/// that has ended meanwhile.
#[test]
fn the_first_packets_through_a_link_come_after_those_over_udp() {
    let addresses = ["127.4.0.77", "127.4.0.78"];
    let (a, b) = common::pair(addresses[0], addresses[1], 64);
    let [near, far] = link_between([&a, &b], addresses);
    let (early, late) = (ud(&a), ud(&a));
    let ah = a.pd.create_ah(&address(b.gid())).expect("a handle");
    // The destination accepts no datagrams.
    let send = |from: &_| {
        send_to(from, &ah, &b.qp, &wr(1, &[])).expect("posted");
        assert_eq!(a.completion().status, WcStatus::Success);
    };
    let next_is_after_udp = || {
        let mut receiver = far.receiver();
        let is_after_udp = receiver.is_after_udp();
        let mut batches = 0;
        receiver.receive(1, true, |_| {
            batches += 1;
            ControlFlow::Continue(())
        });
        assert_eq!(batches, 1);
        is_after_udp
    };

    add(&a, &near);
    send(&early);
    // The peer process is this test.
    far.open();
    a.engine.inner.use_opened_links();
    send(&early);
    assert!(next_is_after_udp());
    send(&early);
    assert!(!next_is_after_udp(), "not the first");
    send(&late);
    assert!(!next_is_after_udp(), "nothing was sent over UDP");
}

/// The thread that takes the wake-up of a peer need not be the background thread, which may sleep
/// on.
#[test]
fn whoever_takes_the_wake_up_uses_the_opened_link() {
    let (engine, [near, far]) = engine_with_link(EngineConfig::simulated(1));
    let nic = &engine.inner;
    let unopened = || nic.links.unopened.len();
    nic.open_peer_links(vec![Arc::clone(&near)]);
    nic.clear_peer_wake();
    assert_eq!(unopened(), 1);
    far.open();
    nic.clear_peer_wake();
    assert_eq!(unopened(), 0);
    assert!(!was_woken(&nic.scheduler.peer_wake_fd), "it was taken");

    nic.open_peer_links(vec![Arc::clone(&near)]);
    assert_eq!(unopened(), 0, "the peer's end is open already");
}

/// A link that has ended before its peer opened it is forgotten.
#[test]
fn links_that_end_unopened_are_forgotten() {
    let (engine, [near, _]) = engine_with_link(EngineConfig::simulated(1));
    let nic = &engine.inner;
    nic.open_peer_links(vec![Arc::clone(&near)]);
    assert_eq!(nic.links.unopened.len(), 1);
    near.end();
    nic.use_opened_links();
    assert_eq!(nic.links.unopened.len(), 0);
}
