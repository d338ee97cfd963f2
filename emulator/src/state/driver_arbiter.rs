//! Arbitrates which thread drives the links: the application's polling thread or the background
//! thread.
//!
//! While the application polls, its own thread receives every packet. A background thread that woke
//! up for each packet would only take CPU time away, above all on the same CPU. But an application
//! may also wait for an RDMA WRITE by reading its memory, without any call. The background thread
//! therefore decides by the counters of this module who drives (`duty`). An application that goes
//! to sleep itself (`req_notify_cq`, `get_cq_event`) wakes the background thread at once.

use crossbeam::utils::CachePadded;

use crate::sync::modelled::atomic::{AtomicU64, Ordering, fence};
use crate::tuning::FRESH_NS;

/// The thread that drives the links at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Caller {
    /// The application's thread.
    Application,
    /// The background thread. Packets that it sends do not count as the application's activity.
    Background,
}

/// The counters and flags that the application and the background thread exchange. Counters are
/// approximate: concurrent increments may be lost, but a count never goes back for good.
#[derive(Debug)]
pub(crate) struct DriverArbiter {
    /// Number of the application's polls.
    polls: CachePadded<AtomicU64>,
    /// Number of packet runs that any thread of the application has sent.
    sends: CachePadded<AtomicU64>,
    /// Time of the application's last empty poll, in ns.
    empty_poll_at: AtomicU64,
    /// Number of times that the application stopped polling to sleep.
    sleep_epoch: AtomicU64,
    /// The value of `polls` when the application last stopped.
    slept_at: AtomicU64,
    /// 1 while the background thread has yielded and must be woken.
    yielded: AtomicU64,
}

/// A snapshot of the application's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Activity {
    polls: u64,
    sends: u64,
    /// The application is polling, or was preempted while polling.
    polling: bool,
}

impl DriverArbiter {
    pub(crate) fn new() -> Self {
        Self {
            polls: CachePadded::new(AtomicU64::new(0)),
            sends: CachePadded::new(AtomicU64::new(0)),
            empty_poll_at: AtomicU64::new(0),
            sleep_epoch: AtomicU64::new(0),
            slept_at: AtomicU64::new(u64::MAX),
            yielded: AtomicU64::new(0),
        }
    }

    /// Records a poll of the application.
    #[inline]
    pub(crate) fn note_poll(&self) {
        count_one(&self.polls);
    }

    /// Records that the application has sent.
    #[inline]
    pub(crate) fn note_send(&self) {
        count_one(&self.sends);
    }

    /// Records an empty poll of the application.
    #[inline]
    pub(crate) fn note_empty_poll(&self, now_ns: u64) {
        self.empty_poll_at.store(now_ns, Ordering::Relaxed);
    }

    /// Returns true if the application is polling, or was preempted while polling.
    pub(crate) fn is_polling(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.empty_poll_at.load(Ordering::Relaxed)) < FRESH_NS
    }

    /// Returns a snapshot. `receiving`: a thread of the application is receiving packets at the
    /// moment.
    pub(crate) fn activity(&self, now_ns: u64, receiving: bool) -> Activity {
        Activity {
            polls: self.polls.load(Ordering::Relaxed),
            sends: self.sends.load(Ordering::Relaxed),
            polling: receiving || self.is_polling(now_ns),
        }
    }

    /// Returns true if the application has gone to sleep and not polled since.
    pub(crate) fn is_asleep(&self) -> bool {
        self.slept_at.load(Ordering::Relaxed) == self.polls.load(Ordering::Relaxed)
    }

    /// Records that the application stops polling. Returns true if the background thread has to be
    /// woken.
    pub(crate) fn note_app_sleep(&self) -> bool {
        self.slept_at
            .store(self.polls.load(Ordering::Relaxed), Ordering::Relaxed);
        self.sleep_epoch.fetch_add(1, Ordering::Relaxed);
        // Store, fence, load on both sides: at least one sees what the other stored.
        fence(Ordering::SeqCst);
        self.yielded.load(Ordering::Relaxed) == 1
    }

    /// The current sleep count. The background thread reads it before it receives, for
    /// [`DriverArbiter::yield_to_app`].
    pub(crate) fn sleep_epoch(&self) -> u64 {
        self.sleep_epoch.load(Ordering::Relaxed)
    }

    /// Lets the background thread yield to the application. Returns false if it must not, because
    /// the application has stopped polling since `sleep_epoch` was read.
    pub(crate) fn yield_to_app(&self, sleep_epoch: u64) -> bool {
        self.yielded.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.sleep_epoch.load(Ordering::Relaxed) == sleep_epoch
    }

    /// Records that the background thread is awake again.
    pub(crate) fn resume(&self) {
        self.yielded.store(0, Ordering::Relaxed);
    }
}

#[inline]
fn count_one(counter: &AtomicU64) {
    let count = counter.load(Ordering::Relaxed);
    counter.store(count.wrapping_add(1), Ordering::Relaxed);
}

impl Activity {
    /// Makes a snapshot for tests.
    #[cfg(all(test, not(loom)))]
    pub(crate) const fn of(polls: u64, sends: u64, polling: bool) -> Self {
        Self {
            polls,
            sends,
            polling,
        }
    }

    /// Returns this snapshot with one more poll.
    #[cfg(all(test, not(loom)))]
    pub(crate) const fn after_a_poll(self) -> Self {
        Self {
            polls: self.polls + 1,
            ..self
        }
    }

    /// Returns true if the application was polling, or was preempted while polling.
    pub(crate) const fn polling(self) -> bool {
        self.polling
    }

    /// Returns true if the application has polled between this snapshot and `after`.
    pub(crate) const fn has_polled(self, after: Self) -> bool {
        self.polls != after.polls
    }

    /// Returns true if the application has sent between this snapshot and `after`.
    pub(crate) const fn has_sent(self, after: Self) -> bool {
        self.sends != after.sends
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_sleeping_application_wakes_the_thread() {
        let arbiter = DriverArbiter::new();
        assert!(!arbiter.is_asleep());
        arbiter.note_poll();
        let sleep_epoch = arbiter.sleep_epoch();
        assert!(arbiter.yield_to_app(sleep_epoch));
        assert!(arbiter.note_app_sleep(), "the thread has yielded: wake it");
        assert!(arbiter.is_asleep());
        assert!(
            !arbiter.yield_to_app(sleep_epoch),
            "the thread must not yield any more"
        );
        arbiter.resume();
        assert!(!arbiter.note_app_sleep(), "awake: no wake-up needed");
        let before = arbiter.activity(10_000, false);
        arbiter.note_poll();
        assert!(!arbiter.is_asleep());
        assert_ne!(arbiter.activity(10_000, false), before);
        arbiter.note_empty_poll(10_000);
        assert!(arbiter.activity(11_000, false).polling);
        assert!(!arbiter.activity(20_000, false).polling);
        assert!(arbiter.activity(20_000, true).polling);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;

    /// In every interleaving, an application that stops polling and a background thread that yields
    /// cannot both rely on the other. Either the application wakes the thread, or the thread sees
    /// the stop.
    #[test]
    fn loom_no_packet_is_left_unhandled() {
        loom::model(|| {
            let arbiter = Arc::new(DriverArbiter::new());
            let sleep_epoch = arbiter.sleep_epoch();
            let application = {
                let arbiter = Arc::clone(&arbiter);
                loom::thread::spawn(move || arbiter.note_app_sleep())
            };
            let yields = arbiter.yield_to_app(sleep_epoch);
            let called = application.join().unwrap();
            assert!(!yields || called, "the thread sleeps and is not woken");
        });
    }
}
