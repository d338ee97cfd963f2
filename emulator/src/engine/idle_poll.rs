//! A thread whose polls find nothing: it yields its processor, or sleeps until something arrives
//! ([`IdlePolicy`]).
//!
//! A sleep ends with a packet, with a completion in any CQ of the process, with a signal, or after
//! one millisecond at most. The limit is there because the application may also wait for something
//! outside Rocade.

use crate::sync::atomic::{AtomicU64, Ordering, fence};
use std::os::fd::AsRawFd as _;
use std::time::Duration;

use crate::link::Link as _;
use crate::sync::{Mutex, turn};
use rocade_transport::Time;

use super::idle_policy::{IdlePolicy, IdleStep};
use super::pending::ServiceContext;
use super::thread_polls::ThreadPolls;
use super::{Nic, Scheduler};
use crate::cpu_idle::CpuIdle;
use crate::state::{Caller, CqInner, ServiceReason, Sleeper};
use crate::sys;
use crate::tuning::{CONTENDED_IDLE_POLL_NS, IDLE_POLL_NS, ROOM_SLEEP_NS};

/// The shared state of threads whose polls find nothing.
#[derive(Debug)]
pub(super) struct IdlePolls {
    /// Time for which such a thread polls before it yields or sleeps.
    idle_poll_ns: AtomicU64,
    policy: Mutex<(IdlePolicy, CpuIdle)>,
}

impl Default for IdlePolls {
    fn default() -> Self {
        Self {
            idle_poll_ns: AtomicU64::new(IDLE_POLL_NS),
            policy: Mutex::default(),
        }
    }
}

impl IdlePolls {
    /// Time for which a thread polls without result before it calls
    /// [`Nic::yield_or_sleep`].
    #[inline]
    pub(super) fn idle_poll_ns(&self) -> u64 {
        self.idle_poll_ns.load(Ordering::Relaxed)
    }

    /// Returns true if a thread polls for less time than a few polls may take.
    #[inline]
    pub(super) fn are_short(&self) -> bool {
        self.idle_poll_ns() < IDLE_POLL_NS
    }

    /// Returns the step at `now`. A thread that arrives while another decides yields.
    fn next(&self, now: Time) -> IdleStep {
        let Some(mut policy) = self.policy.try_lock() else {
            return IdleStep::Yield;
        };
        let (policy, cpu_idle) = &mut *policy;
        let mut sleeps = ThreadPolls::with(|own| own.sleeps.get());
        let step = policy.next(now, &mut sleeps, || cpu_idle.has_idle_processors(now));
        ThreadPolls::with(|own| own.sleeps.set(sleeps));
        self.publish(policy);
        step
    }

    fn learn(&self, learn: impl FnOnce(&mut IdlePolicy)) {
        let mut policy = self.policy.lock();
        learn(&mut policy.0);
        self.publish(&policy.0);
    }

    fn publish(&self, policy: &IdlePolicy) {
        let idle_poll_ns = if policy.is_contended() {
            CONTENDED_IDLE_POLL_NS
        } else {
            IDLE_POLL_NS
        };
        self.idle_poll_ns.store(idle_poll_ns, Ordering::Relaxed);
    }
}

impl Scheduler {
    /// Wakes the sleepers after the background thread has received packets.
    pub(super) fn wake_sleepers(&self) {
        self.polls.received.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.service_queue.sleepers().wake();
    }
}

impl Nic {
    /// Yields or sleeps after a thread has polled `cq` without result for `idle_ns`, until `now`.
    /// Returns true if there was something to receive afterwards.
    #[cold]
    #[inline(never)]
    pub(super) fn yield_or_sleep(&self, cq: Option<&CqInner>, idle_ns: u64, now: Time) -> bool {
        match (self.scheduler.idle_polls.next(now), cq) {
            (IdleStep::Sleep { limit_ns }, Some(cq)) => {
                self.serve(ServiceContext::IdlePoll(0));
                self.sleep(cq, limit_ns)
            }
            _ => {
                if idle_ns >= IDLE_POLL_NS {
                    self.serve(ServiceContext::IdlePoll(IDLE_POLL_NS));
                    self.yield_processor();
                }
                false
            }
        }
    }

    /// Yields the processor, which another thread may need to send the awaited packet.
    fn yield_processor(&self) {
        let begin = self.host.now();
        turn::yield_now();
        let end = self.host.now();
        let took_ns = end.ns_since(begin);
        self.scheduler
            .idle_polls
            .learn(|policy| policy.yielded(end, took_ns));
    }

    /// Sleeps until there is something to receive, or a completion. Returns true if something was
    /// received.
    fn sleep(&self, cq: &CqInner, limit_ns: u64) -> bool {
        let now_ns = self.host.now().as_ns();
        let may_watch =
            !ThreadPolls::with(|own| own.leaves_to_others(&self.scheduler.polls, now_ns));
        let Some(sleeper) = self
            .scheduler
            .service_queue
            .sleepers()
            .begin_poll(cq.key(), may_watch)
        else {
            // No descriptor is available.
            self.yield_processor();
            return false;
        };
        let limit_ns = self.limit_of_sleep(limit_ns);
        let begin = self.host.now();
        let is_idle = self.may_sleep(cq, &sleeper);
        if is_idle {
            self.wait_for_packets(&sleeper, Duration::from_nanos(limit_ns));
        }
        if sleeper.watches() {
            self.links.announce_awake();
        }
        if !self.scheduler.service_queue.sleepers().end(sleeper) {
            // The background thread has taken over, and announces its sleep again.
            self.scheduler.service_queue.wake_thread();
        }
        let took_ns = self.host.now().ns_since(begin);
        let received = self.receive_unlocked(Caller::Application, 0);
        self.resume_loop();
        if is_idle {
            let found = received || !cq.is_empty();
            ThreadPolls::with(|own| {
                own.sleeps
                    .set(own.sleeps.get().slept(limit_ns, took_ns, found));
            });
        }
        received
    }

    /// Makes the peers announce space for blocked packets. Limits the sleep too, because not every
    /// link can announce space.
    fn limit_of_sleep(&self, limit_ns: u64) -> u64 {
        let mut limit_ns = limit_ns;
        if self.scheduler.service_queue.count(ServiceReason::TxBlocked) > 0 {
            self.retry_backlogs(Caller::Background);
            if self.scheduler.service_queue.count(ServiceReason::TxBlocked) > 0 {
                limit_ns = limit_ns.min(ROOM_SLEEP_NS);
            }
        }
        let due = [self.links.hooks.next_due(), self.faults.plan.next_due()];
        match due.into_iter().flatten().min() {
            Some(due) => limit_ns.min(due.ns_since(self.host.now())),
            None => limit_ns,
        }
    }

    /// Checks once more after the sleep was announced. Returns false if anything has arrived.
    fn may_sleep(&self, cq: &CqInner, sleeper: &Sleeper) -> bool {
        // The background thread counts what it has received, then checks for sleepers.
        fence(Ordering::SeqCst);
        let has_work = ThreadPolls::with(|own| own.is_outdated(&self.scheduler.polls))
            || self.scheduler.service_queue.woken() > 0
            || cq.has_any();
        !has_work && (!sleeper.watches() || self.links.announce_sleep())
    }

    fn wait_for_packets(&self, sleeper: &Sleeper, limit: Duration) {
        let mut set = sys::PollSet::default();
        set.add(sleeper.wake_fd());
        if !sleeper.watches() {
            // A signal ends the sleep as well, because the application may wait for it.
            let _ = set.wait_uncancelled(Some(limit));
            return;
        }
        let by_peer = set.add(self.scheduler.peer_wake_fd.as_raw_fd());
        // The sockets stay open as long as this thread waits for them.
        let endpoints = self.links.endpoints.read().clone();
        for socket in endpoints
            .iter()
            .filter_map(|endpoint| endpoint.link.rx_fd())
        {
            set.add(socket.as_raw_fd());
        }
        let frames = self.links.frames.receivers();
        for socket in &frames {
            set.add(socket.fd());
        }
        if set.wait_uncancelled(Some(limit)).is_ok() && set.is_ready(by_peer) {
            self.clear_peer_wake();
        }
    }
}

#[cfg(all(test, not(loom)))]
#[path = "idle_poll/tests.rs"]
mod wiring;
#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::thread;
    use std::time::Instant;

    use rocade_transport::{QpAttr, QpAttrMask, QpState, SendOp, WcStatus};

    use super::super::link_sides;
    use super::super::pending::common::{self, Side};
    use super::*;
    use crate::tuning::CONTENDED_YIELD_NS;

    /// Far longer than anything here takes: no thread has woken a sleep that lasts so long.
    const LIMIT_NS: u64 = 60_000_000_000;
    const LIMIT: Duration = Duration::from_nanos(LIMIT_NS);

    fn post_receive(side: &Side) {
        let sges = [side.sge(0, 8)];
        side.qp.recv_queue().push(7, &sges).expect("space");
    }

    fn send(side: &Side) {
        side.send(1, SendOp::Send { imm: None }, &[side.sge(0, 8)]);
    }

    /// Sleeps like a poller of the CQ until there is a completion. Another thread calls `wake` when
    /// the poller sleeps, with true if the poller is the watcher.
    fn sleep_until_completion(side: &Side, wake: impl FnOnce(bool) + Send) {
        let (engine, cq) = (&side.engine.inner, side.cq.inner());
        let sleepers = engine.scheduler.service_queue.sleepers();
        let begin = Instant::now();
        thread::scope(|scope| {
            scope.spawn(|| {
                while !sleepers.has_registered() {
                    assert!(begin.elapsed() < LIMIT / 2, "no poller sleeps");
                    thread::yield_now();
                }
                wake(sleepers.has_watching_poller());
            });
            while cq.is_empty() {
                // It has polled without result for long.
                ThreadPolls::begin_idle(engine);
                engine.sleep(cq, LIMIT_NS);
                assert!(begin.elapsed() < LIMIT / 2, "the poller was not woken");
            }
        });
    }

    #[test]
    fn a_packet_of_a_socket_wakes_a_poller() {
        let (a, b) = common::pair("127.4.0.31", "127.4.0.32", 64);
        let (begin, mut rounds, mut watched) = (Instant::now(), 0, 0);
        // The background thread soon leaves the packets to the poller.
        while rounds < 100 || watched <= 10 {
            assert!(begin.elapsed() < LIMIT, "{watched} of {rounds}");
            rounds += 1;
            post_receive(&a);
            sleep_until_completion(&a, |watches| {
                watched += u32::from(watches);
                send(&b);
            });
            assert_eq!(a.completion().wr_id, 7);
            assert_eq!(b.completion().wr_id, 1);
        }
        assert!(
            !a.engine.inner.scheduler.service_queue.sleepers().has_any(),
            "all are awake"
        );
    }

    #[test]
    fn a_packet_over_shm_wakes_a_poller() {
        let (a, b) = link_sides::unconnected(["127.4.0.33", "127.4.0.34"]);
        common::connect(&a, &b);
        link_sides::use_shm(&a);
        for _ in 0..100 {
            post_receive(&a);
            sleep_until_completion(&a, |_| send(&b));
            assert_eq!(a.completion().wr_id, 7);
            assert_eq!(b.completion().wr_id, 1);
        }
        assert!(a.engine.counters().rx_shared >= 200);
    }

    #[test]
    fn a_completion_without_a_packet_wakes_a_poller() {
        let (a, _b) = common::pair("127.4.0.35", "127.4.0.36", 64);
        post_receive(&a);
        sleep_until_completion(&a, |_| {
            let err = QpAttr {
                qp_state: QpState::Err.code(),
                ..QpAttr::default()
            };
            a.qp.modify(&err, QpAttrMask::STATE).unwrap();
        });
        assert_eq!(a.completion().status, WcStatus::WrFlushErr);
    }

    /// One poller watches and receives, and wakes the other one.
    #[test]
    fn all_pollers_wake_for_what_one_of_them_receives() {
        let (a, b) = common::pair("127.4.0.37", "127.4.0.38", 64);
        post_receive(&a);
        let (engine, cq) = (&a.engine.inner, a.cq.inner());
        thread::scope(|scope| {
            scope.spawn(|| {
                while cq.is_empty() {
                    ThreadPolls::begin_idle(engine);
                    engine.sleep(cq, LIMIT_NS);
                }
            });
            sleep_until_completion(&a, |_| send(&b));
        });
        assert_eq!(a.completion().wr_id, 7);
    }

    /// A poller that is registered as the watcher and does not run, as if a debugger had stopped
    /// it, keeps no packet from its process. Later packets do not wait for it either.
    #[test]
    fn a_watcher_that_does_not_run_keeps_nothing_from_its_process() {
        let (a, b) = common::pair("127.4.0.45", "127.4.0.46", 64);
        let sleepers = a.engine.inner.scheduler.service_queue.sleepers();
        let begin = Instant::now();
        let stopped = loop {
            let sleeper = sleepers.begin().expect("a descriptor");
            if sleeper.watches() {
                break sleeper;
            }
            assert!(sleepers.end(sleeper));
            assert!(begin.elapsed() < LIMIT / 2);
            // The background thread watches, until it is woken.
            a.engine.inner.scheduler.wake_background();
        };
        for _ in 0..100 {
            post_receive(&a);
            send(&b);
            while a.cq.is_empty() {
                assert!(begin.elapsed() < LIMIT / 2, "nobody receives");
                thread::yield_now();
            }
            assert_eq!(a.completion().wr_id, 7);
            assert_eq!(b.completion().wr_id, 1);
        }
        assert!(!sleepers.end(stopped), "another thread watches");
    }

    /// More threads than processors are runnable: a thread whose polls find nothing does not yield
    /// for ever.
    #[test]
    fn a_poller_beside_busy_threads_sleeps_and_gets_its_packet() {
        let (a, b) = common::pair("127.4.0.41", "127.4.0.42", 64);
        post_receive(&a);
        let processors = thread::available_parallelism().unwrap().get();
        let (begin, is_over) = (Instant::now(), AtomicBool::new(false));
        thread::scope(|scope| {
            for _ in 0..2 * processors {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            let poller = scope.spawn(|| {
                loop {
                    if let Some(completion) = a.cq.poll_one() {
                        break completion.wr_id;
                    }
                    if begin.elapsed() > LIMIT {
                        break 0;
                    }
                }
            });
            let sleepers = a.engine.inner.scheduler.service_queue.sleepers();
            while !sleepers.has_registered() && begin.elapsed() < LIMIT / 2 {
                thread::sleep(Duration::from_micros(50));
            }
            let slept = begin.elapsed() < LIMIT / 2;
            send(&b);
            let received = poller.join();
            is_over.store(true, Ordering::Relaxed);
            assert!(slept, "the poller only yields");
            assert_eq!(received.unwrap(), 7);
        });
    }

    /// On busy processors a thread that polls in vain sleeps, although another one is busy.
    #[test]
    fn an_idle_thread_sleeps_beside_a_busy_one() {
        let (a, b) = common::pair("127.4.0.67", "127.4.0.68", 64);
        let idle = a.context.create_cq(4, None, 0, 0).expect("a CQ");
        let (engine, is_over) = (&a.engine.inner, AtomicBool::new(false));
        let sleepers = engine.scheduler.service_queue.sleepers();
        let (begin, mut slept) = (Instant::now(), 0);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    assert!(idle.poll_one().is_none());
                }
            });
            while slept < 50 && begin.elapsed() < LIMIT {
                // The processors stay busy.
                let now = engine.host.now();
                engine
                    .scheduler
                    .idle_polls
                    .learn(|policy| policy.yielded(now, CONTENDED_YIELD_NS));
                post_receive(&a);
                send(&b);
                while a.cq.poll_one().is_none() {}
                assert_eq!(b.completion().wr_id, 1);
                slept += u32::from(sleepers.has_registered());
            }
            is_over.store(true, Ordering::Relaxed);
        });
        assert_eq!(slept, 50, "it never sleeps");
    }

    /// A poller does not sleep if there is a completion already.
    #[test]
    fn no_poller_sleeps_on_a_queue_that_is_not_empty() {
        let (a, b) = common::pair("127.4.0.39", "127.4.0.40", 64);
        post_receive(&a);
        send(&b);
        // The application does not poll: the background thread receives.
        let begin = Instant::now();
        while a.cq.is_empty() {
            assert!(begin.elapsed() < LIMIT / 2);
            thread::yield_now();
        }
        ThreadPolls::begin_idle(&a.engine.inner);
        assert!(!a.engine.inner.sleep(a.cq.inner(), LIMIT_NS));
        assert!(begin.elapsed() < LIMIT / 2);
    }
}
