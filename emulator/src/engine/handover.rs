//! Who drives the links: the application by polling, or the background thread.
//!
//! While the application polls an empty CQ in a loop, every packet it waits for is received by
//! that loop; a background thread that woke up for each would only take the CPU away, most of all
//! where it is the CPU of that loop. So a poll in vain leaves a time stamp, a poll that succeeds
//! erases it (what comes next may be waited for by looking at memory), and the thread watches how
//! useful it is. Woken by packets while the stamp is fresh, or twice in a row by packets that are
//! gone when it looks, it steps back: it sleeps blind for a moment, longer each time it proves
//! useless, less long each time it finds something to do. An application that goes to sleep itself
//! (`req_notify_cq`, `get_cq_event`) calls it back at once.

use crate::sync::atomic::{AtomicU64, Ordering, fence};

/// How long the thread steps back at first; doubles with each further useless awakening.
const STEP_BACK_NS: u64 = 10_000;
/// Doublings at most: 320 µs.
const MAX_DOUBLINGS: u32 = 5;
/// Useless awakenings before it steps back: one is normal for an application that waits for an
/// RDMA WRITE by looking at its memory and for its own completions by polling.
const USELESS_LIMIT: u32 = 2;

/// A poll this long ago goes on: the thread that woke up has interrupted it.
const FRESH_NS: u64 = 3_000;

/// The stamp while nobody polls.
const NOBODY: u64 = 0;

/// What the application and the background thread know of each other.
#[derive(Debug)]
pub(crate) struct Handover {
    /// When the application last polled in vain, or [`NOBODY`].
    polled_at: AtomicU64,
    /// How often the application polled in vain, roughly: pollers may overwrite each other.
    vain_polls: AtomicU64,
    /// How often the application stopped polling to sleep.
    stops: AtomicU64,
    /// 1 while the background thread has stepped back and must be called.
    stepped_back: AtomicU64,
}

impl Handover {
    pub(crate) fn new() -> Self {
        Self {
            polled_at: AtomicU64::new(NOBODY),
            vain_polls: AtomicU64::new(0),
            stops: AtomicU64::new(0),
            stepped_back: AtomicU64::new(0),
        }
    }

    /// The application has polled and found nothing.
    #[inline]
    pub(crate) fn polled_in_vain(&self, now_ns: u64) {
        self.polled_at.store(now_ns, Ordering::Relaxed);
        let polls = self.vain_polls.load(Ordering::Relaxed);
        self.vain_polls
            .store(polls.wrapping_add(1), Ordering::Relaxed);
    }

    /// Changes while the application polls in vain.
    pub(crate) fn vain_polls(&self) -> u64 {
        self.vain_polls.load(Ordering::Relaxed)
    }

    /// The application has found what it polled for.
    #[inline]
    pub(crate) fn satisfied(&self) {
        self.polled_at.store(NOBODY, Ordering::Relaxed);
    }

    /// Is the application polling just now?
    pub(crate) fn is_polling(&self, now_ns: u64) -> bool {
        let stamp = self.polled_at.load(Ordering::Relaxed);
        stamp != NOBODY && now_ns.saturating_sub(stamp) < FRESH_NS
    }

    /// The application stops polling. True where the background thread has to be called.
    pub(crate) fn stopped_polling(&self) -> bool {
        self.satisfied();
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

/// How useful the background thread has been lately; its own affair.
#[derive(Debug, Default)]
pub(crate) struct Usefulness {
    useless: u32,
}

impl Usefulness {
    /// Packets woke the thread while the application was polling for them: for how long to step
    /// back.
    pub(crate) fn in_the_way(&mut self) -> u64 {
        self.useless = (self.useless + 1).clamp(USELESS_LIMIT, USELESS_LIMIT + MAX_DOUBLINGS);
        STEP_BACK_NS << (self.useless - USELESS_LIMIT)
    }

    /// Packets woke the thread; `found` tells whether any were left for it. For how long to step
    /// back, if at all.
    pub(crate) fn judge(&mut self, found: bool) -> Option<u64> {
        if found {
            self.useless /= 2;
            return None;
        }
        self.useless = (self.useless + 1).min(USELESS_LIMIT + MAX_DOUBLINGS);
        let doublings = self.useless.checked_sub(USELESS_LIMIT)?;
        Some(STEP_BACK_NS << doublings)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_useless_thread_steps_back_longer_and_longer() {
        let mut usefulness = Usefulness::default();
        let mut answers = Vec::new();
        for _ in 0..10 {
            answers.push(usefulness.judge(false));
        }
        assert_eq!(answers[0], None, "once is nothing");
        assert_eq!(answers[1], Some(10_000));
        assert_eq!(answers[2], Some(20_000));
        assert_eq!(answers[9], Some(320_000));
        // The application has stopped polling: two packets later the thread is there at once.
        for _ in 0..3 {
            assert_eq!(usefulness.judge(true), None);
        }
        assert_eq!(usefulness.judge(false), None);
    }

    #[test]
    fn a_poller_is_not_disturbed() {
        let handover = Handover::new();
        assert!(!handover.is_polling(10_000), "nobody polls");
        handover.polled_in_vain(10_000);
        assert!(handover.is_polling(11_000));
        assert!(!handover.is_polling(20_000), "it does something else");
        handover.polled_in_vain(30_000);
        handover.satisfied();
        assert!(!handover.is_polling(30_500), "it has what it wanted");
        let mut usefulness = Usefulness::default();
        assert_eq!(usefulness.in_the_way(), 10_000, "at once");
        assert_eq!(usefulness.in_the_way(), 20_000);
    }

    #[test]
    fn alternating_work_keeps_it_awake() {
        let mut usefulness = Usefulness::default();
        for turn in 0..100 {
            assert_eq!(usefulness.judge(turn % 2 == 0), None);
        }
    }

    #[test]
    fn a_sleeping_application_calls_the_thread() {
        let handover = Handover::new();
        let stops = handover.stops();
        assert!(handover.step_back(stops));
        assert!(handover.stopped_polling(), "it has stepped back: call it");
        assert!(!handover.step_back(stops), "it must not step back any more");
        handover.step_forward();
        assert!(!handover.stopped_polling(), "awake: no call needed");
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
