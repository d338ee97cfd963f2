//! Who drives the links: the application by polling, or the background thread.
//!
//! While the application polls, every packet it waits for is received by its own thread; a
//! background thread that woke up for each would only take the CPU away, most of all where it is
//! the CPU of that thread. But an application may also wait for an RDMA WRITE by looking at its memory,
//! and call nothing. So the thread finds out which it is (`duty`), from what is counted here. An application that
//! goes to sleep itself (`req_notify_cq`, `get_cq_event`) calls it back at once, and is not waited for.

use crossbeam::utils::CachePadded;

use crate::figures::FRESH_NS;
use crate::sync::atomic::{AtomicU64, Ordering, fence};

/// Whose thread drives the links at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Driver {
    /// The application's.
    Application,
    /// The background thread: what it sends is not the application's activity.
    Background,
}

/// What the application and the background thread know of each other. Counters are approximate:
/// threads may overwrite each other's steps, but not undo them for good.
#[derive(Debug)]
pub(crate) struct Handover {
    /// How often the application has polled.
    polls: CachePadded<AtomicU64>,
    /// How often it has sent a run of packets. Another thread of it may do that.
    sends: CachePadded<AtomicU64>,
    /// When it last polled in vain.
    vain_at: AtomicU64,
    /// How often the application stopped polling to sleep.
    stops: AtomicU64,
    /// `polls` when it last did.
    stopped_at: AtomicU64,
    /// 1 while the background thread has stepped back and must be called.
    stepped_back: AtomicU64,
}

/// What the application has done up to some moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Activity {
    polls: u64,
    sends: u64,
    /// It polls right now, or has been interrupted in it.
    polling: bool,
}

impl Handover {
    pub(crate) fn new() -> Self {
        Self {
            polls: CachePadded::new(AtomicU64::new(0)),
            sends: CachePadded::new(AtomicU64::new(0)),
            vain_at: AtomicU64::new(0),
            stops: AtomicU64::new(0),
            stopped_at: AtomicU64::new(u64::MAX),
            stepped_back: AtomicU64::new(0),
        }
    }

    /// The application polls.
    #[inline]
    pub(crate) fn polled(&self) {
        step(&self.polls);
    }

    /// The application sends.
    #[inline]
    pub(crate) fn sent(&self) {
        step(&self.sends);
    }

    /// The application has polled and found nothing.
    #[inline]
    pub(crate) fn polled_in_vain(&self, now_ns: u64) {
        self.vain_at.store(now_ns, Ordering::Relaxed);
    }

    /// Does the application poll just now, or has it been interrupted in it?
    pub(crate) fn is_polling(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.vain_at.load(Ordering::Relaxed)) < FRESH_NS
    }

    /// `receiving`: an application's thread is receiving packets at the moment.
    pub(crate) fn activity(&self, now_ns: u64, receiving: bool) -> Activity {
        Activity {
            polls: self.polls.load(Ordering::Relaxed),
            sends: self.sends.load(Ordering::Relaxed),
            polling: receiving || self.is_polling(now_ns),
        }
    }

    /// Has the application gone to sleep, and not polled since?
    pub(crate) fn is_asleep(&self) -> bool {
        self.stopped_at.load(Ordering::Relaxed) == self.polls.load(Ordering::Relaxed)
    }

    /// The application stops polling. True where the background thread has to be called.
    pub(crate) fn stopped_polling(&self) -> bool {
        self.stopped_at
            .store(self.polls.load(Ordering::Relaxed), Ordering::Relaxed);
        self.stops.fetch_add(1, Ordering::Relaxed);
        // Store, fence, load on both sides: at least one sees what the other stored.
        fence(Ordering::SeqCst);
        self.stepped_back.load(Ordering::Relaxed) == 1
    }

    /// To be remembered by the thread before it receives, for [`Handover::step_back`].
    pub(crate) fn stops(&self) -> u64 {
        self.stops.load(Ordering::Relaxed)
    }

    /// The thread steps back; false where it must not, because the application has stopped polling
    /// since `stops` was read.
    pub(crate) fn step_back(&self, stops: u64) -> bool {
        self.stepped_back.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.stops.load(Ordering::Relaxed) == stops
    }

    /// The thread is awake again.
    pub(crate) fn step_forward(&self) {
        self.stepped_back.store(0, Ordering::Relaxed);
    }
}

#[inline]
fn step(counter: &AtomicU64) {
    let count = counter.load(Ordering::Relaxed);
    counter.store(count.wrapping_add(1), Ordering::Relaxed);
}

impl Activity {
    /// So many polls and sends; does it poll right now?
    #[cfg(all(test, not(loom)))]
    pub(crate) const fn of(polls: u64, sends: u64, polling: bool) -> Self {
        Self {
            polls,
            sends,
            polling,
        }
    }

    /// The same, and a poll.
    #[cfg(all(test, not(loom)))]
    pub(crate) const fn after_a_poll(self) -> Self {
        Self {
            polls: self.polls + 1,
            ..self
        }
    }

    /// It polls right now, or has been interrupted in it.
    pub(crate) const fn polling(self) -> bool {
        self.polling
    }

    /// Has it polled between this and `after`?
    pub(crate) const fn has_polled(self, after: Self) -> bool {
        self.polls != after.polls
    }

    /// Has it sent between this and `after`?
    pub(crate) const fn has_sent(self, after: Self) -> bool {
        self.sends != after.sends
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_sleeping_application_calls_the_thread() {
        let handover = Handover::new();
        assert!(!handover.is_asleep());
        handover.polled();
        let stops = handover.stops();
        assert!(handover.step_back(stops));
        assert!(handover.stopped_polling(), "it has stepped back: call it");
        assert!(handover.is_asleep());
        assert!(!handover.step_back(stops), "it must not step back any more");
        handover.step_forward();
        assert!(!handover.stopped_polling(), "awake: no call needed");
        let before = handover.activity(10_000, false);
        handover.polled();
        assert!(!handover.is_asleep());
        assert_ne!(handover.activity(10_000, false), before);
        handover.polled_in_vain(10_000);
        assert!(handover.activity(11_000, false).polling);
        assert!(!handover.activity(20_000, false).polling);
        assert!(handover.activity(20_000, true).polling);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;

    /// Whatever the interleaving, an application that stops polling and a thread that steps back
    /// cannot both rely on the other: either the application calls, or the thread sees it.
    #[test]
    fn loom_no_packet_is_left_to_nobody() {
        loom::model(|| {
            let handover = Arc::new(Handover::new());
            let stops = handover.stops();
            let application = {
                let handover = Arc::clone(&handover);
                loom::thread::spawn(move || handover.stopped_polling())
            };
            let steps_back = handover.step_back(stops);
            let called = application.join().unwrap();
            assert!(
                !steps_back || called,
                "the thread sleeps and nobody calls it"
            );
        });
    }
}
