//! Threads that wait for an event of a real engine.

use std::thread;
use std::time::{Duration, Instant};

use rocade_transport::SendOp;

use super::super::link_sides;
use super::super::pending::common::{self, Side};
use super::*;

const LIMIT: Duration = Duration::from_secs(60);

fn post_receive(side: &Side) {
    let sges = [side.sge(0, 8)];
    side.qp.recv_queue().push(7, &sges).expect("space");
}

fn send(side: &Side) {
    side.send(1, SendOp::Send { imm: None }, &[side.sge(0, 8)]);
}

/// Waits for the event of a receive. Another thread sends when `is_ready`.
fn exchange(a: &Side, b: &Side, is_ready: impl Fn() -> bool + Send + Sync) {
    post_receive(a);
    a.cq.req_notify(false).expect("a channel");
    let begin = Instant::now();
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_ready() && begin.elapsed() < LIMIT {
                thread::yield_now();
            }
            send(b);
        });
        assert_eq!(a.channel.get_event().expect("an event"), 7);
    });
    assert!(begin.elapsed() < LIMIT, "the thread does not wait");
    a.cq.ack_events(1);
    assert_eq!(a.completion().wr_id, 7);
    assert_eq!(b.completion().wr_id, 1);
}

/// The thread that waits is the one that packets wake.
//= CQ-14 type=test
#[test]
fn a_waiting_thread_receives_by_itself() {
    let (a, b) = common::pair("127.4.0.51", "127.4.0.52", 64);
    let sleepers = a.engine.inner().scheduler.service_queue.sleepers();
    let (begin, watched) = (Instant::now(), AtomicU64::new(0));
    while watched.load(Ordering::Relaxed) < 20 {
        assert!(begin.elapsed() < LIMIT, "the thread does not watch");
        exchange(&a, &b, || {
            // After some milliseconds the background thread watches.
            let watches = sleepers.has_watching_poller();
            watched.fetch_add(u64::from(watches), Ordering::Relaxed);
            watches || sleepers.has_registered()
        });
    }
    assert!(!sleepers.has_registered());
}

#[test]
fn a_waiting_thread_receives_from_shared_memory() {
    let (a, b) = link_sides::unconnected(["127.4.0.53", "127.4.0.54"]);
    common::connect(&a, &b);
    link_sides::use_shm(&a);
    for _ in 0..100 {
        exchange(&a, &b, || true);
    }
    assert!(a.engine.counters().rx_shared >= 200);
}

/// A program may wait in verbs, then for the descriptor, which is readable with the event.
//= CQ-14 type=test
#[test]
fn a_program_may_wait_in_a_verb_or_for_the_descriptor() {
    let (a, b) = common::pair("127.4.0.71", "127.4.0.72", 64);
    let begin = Instant::now();
    for round in 0..40 {
        if round % 8 < 4 {
            exchange(&a, &b, || true);
            continue;
        }
        post_receive(&a);
        a.cq.req_notify(false).expect("a channel");
        send(&b);
        let mut set = PollSet::default();
        set.add(a.channel.fd());
        while !set.is_ready(0) {
            assert!(begin.elapsed() < LIMIT, "there is no event");
            set.wait_uncancelled(Some(LIMIT)).expect("polled");
        }
        assert_eq!(a.channel.get_event().expect("an event"), 7);
        a.cq.ack_events(1);
        assert_eq!(a.completion().wr_id, 7);
        assert_eq!(b.completion().wr_id, 1);
    }
}

/// A thread that is woken while another one receives sleeps on, instead of trying again and
/// again. The other one may need its processor.
#[test]
fn a_waiting_thread_does_not_try_on_while_another_one_receives() {
    let (a, b) = common::pair("127.4.0.69", "127.4.0.70", 64);
    let inner = a.engine.inner();
    let sleepers = inner.scheduler.service_queue.sleepers();
    let activity = || inner.scheduler.arbiter.activity(0, false);
    let (begin, mut woken) = (Instant::now(), 0);
    while woken < 5 {
        assert!(begin.elapsed() < LIMIT, "{woken} times only");
        post_receive(&a);
        a.cq.req_notify(false).expect("a channel");
        thread::scope(|scope| {
            let waiter = scope.spawn(|| a.channel.get_event());
            while !sleepers.has_registered() && begin.elapsed() < LIMIT {
                thread::yield_now();
            }
            let endpoints = inner.links.endpoints.read();
            let receiving: Vec<_> = endpoints.iter().map(|at| at.rx.lock()).collect();
            let was_watching = sleepers.has_watching_poller();
            scope.spawn(|| send(&b)).join().expect("sent");
            while sleepers.has_watching_poller() && begin.elapsed() < LIMIT {
                thread::yield_now();
            }
            let (mut tries, mut last, since) = (0, activity(), Instant::now());
            while since.elapsed() < Duration::from_millis(10) {
                let now = activity();
                tries += u32::from(last.has_polled(now));
                last = now;
            }
            assert!(tries < 20, "{tries}");
            woken += u32::from(was_watching);
            drop(receiving);
            drop(endpoints);
            assert_eq!(waiter.join().unwrap().expect("an event"), 7);
        });
        a.cq.ack_events(1);
        assert_eq!(a.completion().wr_id, 7);
        assert_eq!(b.completion().wr_id, 1);
    }
}

/// After some milliseconds without packets, the background thread watches as well, so that an
/// idle process does not wake. The event comes all the same.
#[test]
fn a_thread_that_waits_for_long_gets_its_event() {
    let (a, b) = common::pair("127.4.0.55", "127.4.0.56", 64);
    let sleepers = a.engine.inner().scheduler.service_queue.sleepers();
    for _ in 0..20 {
        exchange(&a, &b, || {
            sleepers.has_registered() && sleepers.is_watched_in_background()
        });
    }
}

/// A thread that waits, for a connection event for example, does not wake for the packets of a
/// thread that polls.
#[test]
fn a_waiting_thread_leaves_the_packets_to_a_poller() {
    let (a, b) = common::pair("127.4.0.57", "127.4.0.58", 64);
    let sleepers = a.engine.inner().scheduler.service_queue.sleepers();
    let begin = Instant::now();
    thread::scope(|scope| {
        // Its CQ is not armed yet.
        let waiter = scope.spawn(|| a.channel.get_event());
        let mut rounds = 0;
        // The thread sleeps on its semaphore in the end, or has done so from the beginning.
        while (rounds < 200 || sleepers.has_waiter()) && begin.elapsed() < LIMIT {
            rounds += 1;
            post_receive(&a);
            send(&b);
            assert_eq!(a.completion().wr_id, 7);
            assert_eq!(b.completion().wr_id, 1);
        }
        post_receive(&a);
        a.cq.req_notify(false).expect("a channel");
        send(&b);
        assert_eq!(waiter.join().unwrap().expect("an event"), 7);
    });
    assert!(begin.elapsed() < LIMIT, "the thread still watches");
    a.cq.ack_events(1);
}
