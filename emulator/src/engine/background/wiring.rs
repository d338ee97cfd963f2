//! The waits of the background thread, and the threads that it wakes, in engines without threads.

use rocade_transport::SendOp;
use rocade_wire::Qpn;

use super::super::peer_links::wiring::engine_with_link;
use super::super::pending::common::{self, Side};
use super::*;
use crate::config::EngineConfig;
use crate::engine::Engine;
use crate::state::Sleeper;

fn engine() -> Engine {
    engine_with_link(EngineConfig::simulated(1)).0
}

fn is_woken(sleeper: &Sleeper) -> bool {
    let mut set = sys::PollSet::default();
    let entry = set.add(sleeper.wake_fd());
    set.wait_uncancelled(Some(Duration::ZERO)).expect("polled");
    set.is_ready(entry)
}

/// The background thread never ends the watch of a poller, which would then sleep without anybody
/// who waits for packets.
#[test]
fn the_watch_of_a_poller_is_left_to_it() {
    let engine = engine();
    let inner = engine.inner();
    let sleepers = inner.scheduler.service_queue.sleepers();
    let poller = sleepers.begin().expect("a descriptor");
    assert!(poller.watches());
    sleepers.leave_background();
    assert!(sleepers.has_watching_poller());
    assert!(!inner.stop_watching());
    assert!(sleepers.has_watching_poller());
    assert!(!sleepers.watch_in_background());
    assert!(sleepers.end(poller));
    assert!(sleepers.watch_in_background());
    inner.stop_watching();
    assert!(!sleepers.is_watched_in_background());
}

/// The thread wakes for a delayed packet, whatever else it waits for.
#[test]
fn the_thread_sleeps_until_a_delayed_packet_is_due() {
    let config = EngineConfig::simulated(1);
    let config = config.with_faults("delay by=3ms opcode=SEND_ONLY");
    let engine = Engine::new(config.expect("a rule")).expect("an engine");
    let [a, b] = ["a", "b"].map(|name| Side::on_device(engine.clone(), name, 64));
    common::connect(&a, &b);
    let inner = engine.inner();
    let now = inner.host.now();
    a.send(1, SendOp::Send { imm: None }, &[a.sge(0, 8)]);
    let timer = inner
        .scheduler
        .service_queue
        .next_timer()
        .expect("an ACK is awaited");
    let due = now.plus_ns(3_000_000);
    assert!(timer > due);
    assert_eq!(inner.sleep_until(), Some(due));
    assert_eq!(
        inner.wait_set(WaitMode::Sleep, false).timeout,
        Some(Duration::from_millis(3))
    );
}

/// Each mode of waiting has its own descriptors and its own time.
#[test]
fn each_mode_waits_for_its_own() {
    let engine = engine();
    let inner = engine.inner();
    let address: std::net::IpAddr = [10, 0, 0, 1].into();
    inner.endpoint_for(address.into()).expect("an address");
    let sleeping = inner.wait_set(WaitMode::Sleep, false);
    assert!(sleeping.peers.is_some(), "the thread is the watcher");
    assert_eq!((sleeping.endpoints.len(), sleeping.timeout), (1, None));
    let polling = inner.wait_set(WaitMode::Poll, false);
    assert!(polling.peers.is_none(), "another thread may be");
    assert_eq!(
        (polling.endpoints.len(), polling.timeout),
        (1, Some(Duration::ZERO))
    );
    // While it has yielded to the application, it ignores packets.
    let blind = WaitMode::BackOff(1_000_000);
    let yielded = inner.wait_set(blind, false);
    assert!(yielded.peers.is_none() && yielded.endpoints.is_empty());
    assert_eq!(yielded.timeout, Some(Duration::from_millis(1)));
    // But not that there is room again, nor that an ACK is late.
    let (queue, qpn) = (&inner.scheduler.service_queue, Qpn::new(9));
    queue.enqueue(qpn, ServiceReason::TxBlocked, inner.host.now());
    assert!(inner.wait_set(blind, false).peers.is_some());
    queue.enqueue(qpn, ServiceReason::DelayedAck, inner.host.now());
    let delay = Duration::from_nanos(DELAYED_ACK_NS);
    assert_eq!(inner.wait_set(blind, true).timeout, Some(delay));
    assert_eq!(inner.wait_set(blind, false).timeout, Some(2 * delay));
}

/// A thread that yields to the application wakes the pollers that rely on it. It does not yield to
/// an application that has gone to sleep, and does not watch beside a poller.
#[test]
fn a_thread_that_yields_wakes_who_relies_on_it() {
    let engine = engine();
    let inner = engine.inner();
    let sleepers = inner.scheduler.service_queue.sleepers();
    let mut policy = PollPolicy::default();
    let blind = PollStep::BackOff { blind_ns: 1_000 };
    assert!(sleepers.watch_in_background());
    let poller = sleepers.begin().expect("a descriptor");
    assert!(!poller.watches());
    inner.stop_watching();
    let epoch = inner.scheduler.arbiter.sleep_epoch();
    let mode = inner.scheduler.wait_mode_after(blind, epoch, &mut policy);
    assert!(matches!(mode, WaitMode::BackOff(1_000)));
    assert!(is_woken(&poller), "the pollers receive the packets");
    assert!(sleepers.end(poller));

    let watcher = sleepers.begin().expect("a descriptor");
    let mode = inner.scheduler.wait_mode_after(blind, epoch, &mut policy);
    assert!(matches!(mode, WaitMode::BackOff(1_000)));
    assert!(!is_woken(&watcher), "it waits for the packets itself");
    let mode = inner
        .scheduler
        .wait_mode_after(PollStep::Sleep, epoch, &mut policy);
    assert!(matches!(mode, WaitMode::Poll), "there is one watcher");
    assert!(sleepers.end(watcher));

    inner.scheduler.arbiter.note_app_sleep();
    let mode = inner.scheduler.wait_mode_after(blind, epoch, &mut policy);
    assert!(matches!(mode, WaitMode::Sleep));
    assert!(sleepers.is_watched_in_background());
}

/// Peers that woke the background thread may have meant a poller that sleeps.
#[test]
fn a_wake_up_by_peers_is_passed_on() {
    let engine = engine();
    let inner = engine.inner();
    let sleepers = inner.scheduler.service_queue.sleepers();
    let poller = sleepers.begin().expect("a descriptor");
    let mut thread_state = ThreadState::default();
    inner.step(&mut thread_state, Woken::default());
    assert!(!is_woken(&poller));
    let by_peers = Woken {
        by_peers: true,
        ..Woken::default()
    };
    inner.step(&mut thread_state, by_peers);
    assert!(is_woken(&poller));
    assert!(sleepers.end(poller));
}
