//! Who drives the links: the application by polling, or the background thread.
//!
//! While the application polls an empty CQ in a loop, every packet it waits for is received by
//! that loop; a background thread that woke up for each would only take the CPU away. So polling
//! leaves a time stamp, and the background thread, woken by a packet, first looks at it: recent,
//! and it steps back for a while instead of receiving. A poll that succeeds erases the stamp: what
//! comes next may be waited for by looking at memory. An application that goes to sleep
//! (`req_notify_cq`, `get_cq_event`) erases the stamp and calls the thread back at once; one that
//! just stops polling is noticed when the stamp no longer moves.

use crate::sync::atomic::{AtomicU64, Ordering, fence};

/// Polling counts as recent for this long.
const RECENT_NS: u64 = 10_000;
/// How long the background thread steps back at first, and at most.
const FIRST_STEP_BACK_NS: u64 = 10_000;
const LONGEST_STEP_BACK_NS: u64 = 320_000;

/// The stamp while nobody polls.
const NOBODY: u64 = 0;

/// The hand-over between inline and background progress.
#[derive(Debug)]
pub(crate) struct Handover {
    /// When the application last polled in vain, or [`NOBODY`].
    polled_at: AtomicU64,
    /// 1 while the background thread has stepped back and must be called.
    stepped_back: AtomicU64,
}

impl Handover {
    pub(crate) fn new() -> Self {
        Self { polled_at: AtomicU64::new(NOBODY), stepped_back: AtomicU64::new(0) }
    }

    /// The application polls and finds nothing.
    pub(crate) fn polling(&self, now_ns: u64) {
        self.polled_at.store(now_ns, Ordering::Relaxed);
    }

    /// The application has found what it polled for, and may now do something else for a while,
    /// such as waiting for an RDMA WRITE by looking at its memory.
    pub(crate) fn satisfied(&self) {
        self.polled_at.store(NOBODY, Ordering::Relaxed);
    }

    /// The application stops polling. True where the background thread has to be called.
    pub(crate) fn stopped_polling(&self) -> bool {
        if self.polled_at.load(Ordering::Relaxed) != NOBODY {
            self.polled_at.store(NOBODY, Ordering::Relaxed);
        }
        // Store, fence, load on both sides: at least one sees what the other stored.
        fence(Ordering::SeqCst);
        self.stepped_back.load(Ordering::Relaxed) == 1
    }

    /// How long the background thread, woken by a packet, should step back; `None` if it is to
    /// receive. `previous` is the last answer since it was woken. After a `Some` it has to
    /// look once more with [`Handover::still_polling`] and to end with [`Handover::step_forward`].
    pub(crate) fn step_back(&self, now_ns: u64, previous: Option<u64>) -> Option<u64> {
        let stamp = self.polled_at.load(Ordering::Relaxed);
        let window = previous.unwrap_or(RECENT_NS).max(RECENT_NS);
        if stamp == NOBODY || now_ns.saturating_sub(stamp) > window {
            return None;
        }
        self.stepped_back.store(1, Ordering::Relaxed);
        Some(previous.map_or(FIRST_STEP_BACK_NS, |ns| (ns * 2).min(LONGEST_STEP_BACK_NS)))
    }

    /// To be asked after [`Handover::step_back`] said `Some`, before sleeping: whoever stopped
    /// polling in between did not know that it had to call.
    pub(crate) fn still_polling(&self) -> bool {
        fence(Ordering::SeqCst);
        self.polled_at.load(Ordering::Relaxed) != NOBODY
    }

    /// The background thread is awake again.
    pub(crate) fn step_forward(&self) {
        self.stepped_back.store(0, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn steps_back_while_polling_goes_on() {
        let handover = Handover::new();
        assert_eq!(handover.step_back(10, None), None, "nobody polls");
        handover.polling(1_000_000);
        let first = handover.step_back(1_001_000, None);
        assert_eq!(first, Some(FIRST_STEP_BACK_NS));
        handover.polling(1_010_000);
        let second = handover.step_back(1_011_000, first);
        assert_eq!(second, Some(2 * FIRST_STEP_BACK_NS));
        // No poll since: the application does something else.
        assert_eq!(handover.step_back(1_010_000 + 21_000, second), None);
        handover.polling(2_000_000);
        handover.satisfied();
        assert_eq!(handover.step_back(2_000_500, None), None, "it got what it wanted");
    }

    #[test]
    fn sleeping_application_calls_the_thread() {
        let handover = Handover::new();
        handover.polling(1_000);
        assert!(handover.step_back(1_500, None).is_some());
        assert!(handover.still_polling());
        assert!(handover.stopped_polling(), "it has stepped back: call it");
        assert!(!handover.still_polling());
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
            handover.polling(1_000);
            let application = {
                let handover = Arc::clone(&handover);
                loom::thread::spawn(move || handover.stopped_polling())
            };
            let sleeps = handover.step_back(1_500, None).is_some() && handover.still_polling();
            let called = application.join().unwrap();
            assert!(!sleeps || called, "the thread sleeps and nobody calls it");
        });
    }
}
