//! Who drives the links: the application by polling, or the background thread.
//!
//! While the application polls, every packet it waits for is received by its own thread; a
//! background thread that woke up for each would only take the CPU away, most of all where it is
//! the CPU of that thread. But an application may also wait for an RDMA WRITE by looking at its memory,
//! and call nothing. So the thread finds out which it is. Woken by packets, it steps back at first: it
//! sleeps blind for a moment. If the application has polled by then, it goes on sleeping blind,
//! longer and longer, as long as that is so. If the application has done nothing and the packets
//! are still there, the thread has been wrong: it receives them, and the next ones at once, for longer
//! the more often it was wrong ([`Trust`]), unless the application polls right now. An application that
//! goes to sleep itself (`req_notify_cq`, `get_cq_event`) calls it back at once, and is not waited for.

use crossbeam::utils::CachePadded;

use crate::sync::atomic::{AtomicU64, Ordering, fence};

/// How long the thread steps back at first; doubles each time that was right.
const STEP_BACK_NS: u64 = 10_000;
/// Doublings at most while the application is seen polling each time: 1.3 ms.
const MAX_DOUBLINGS: u32 = 7;
/// The same where it has polled, but perhaps does not get the processor all the time: 320 µs.
const DOUBLINGS_UNSEEN: u32 = 5;
/// Awakenings for which the application is not waited for, after it was in vain: at first, and at
/// most.
const FIRST_DOUBT: u32 = 16;
const MAX_DOUBT: u32 = 4_096;
/// A poll in vain this long ago goes on: the thread that woke up may have interrupted it.
const FRESH_NS: u64 = 3_000;
/// How often in a row the application may be waited for that sends, but does not poll.
const MAX_SENDING: u32 = 16;

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

/// How far the background thread trusts the application to receive; its own affair.
#[derive(Debug)]
pub(crate) struct Trust {
    /// Awakenings left for which the application is not waited for.
    doubt: u32,
    /// What `doubt` will be the next time the application was waited for in vain.
    next_doubt: u32,
    doublings: u32,
    /// How often in a row it has sent, but not polled.
    sending: u32,
}

impl Default for Trust {
    fn default() -> Self {
        Self {
            doubt: 0,
            next_doubt: FIRST_DOUBT,
            doublings: 0,
            sending: 0,
        }
    }
}

impl Trust {
    /// Packets have woken the thread: for how long to step back, if at all.
    pub(crate) fn step_back(&mut self, activity: Activity) -> Option<u64> {
        if self.doubt > 0 {
            self.doubt -= 1;
            return activity.polling.then_some(STEP_BACK_NS);
        }
        Some(STEP_BACK_NS << self.doublings)
    }

    /// The thread has been back, and the application has done that: for how long to stay back, if at
    /// all.
    pub(crate) fn stay_back(&mut self, before: Activity, after: Activity) -> Option<u64> {
        if self.doubt > 0 {
            self.doubt /= 2;
            return after.polling.then_some(STEP_BACK_NS);
        }
        // One poll may take longer than the step back, where many packets come.
        if before.polls != after.polls || after.polling {
            self.sending = 0;
            self.next_doubt = (self.next_doubt / 2).max(FIRST_DOUBT);
            let max = if after.polling {
                MAX_DOUBLINGS
            } else {
                DOUBLINGS_UNSEEN
            };
            self.doublings = (self.doublings + 1).min(max);
        } else if before.sends != after.sends && self.sending < MAX_SENDING {
            self.sending += 1;
            self.doublings = 0;
        } else {
            return None;
        }
        Some(STEP_BACK_NS << self.doublings)
    }

    /// The application had been waited for and did nothing, although there were packets.
    pub(crate) fn disappointed(&mut self) {
        if self.doubt > 0 {
            return;
        }
        self.doubt = self.next_doubt;
        self.next_doubt = (self.next_doubt * 2).min(MAX_DOUBT);
        self.doublings = 0;
        self.sending = 0;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const IDLE: Activity = Activity {
        polls: 7,
        sends: 7,
        polling: false,
    };
    const POLLED: Activity = Activity { polls: 8, ..IDLE };
    const SENT: Activity = Activity { sends: 8, ..IDLE };

    #[test]
    fn a_poller_is_left_alone_longer_and_longer() {
        let mut trust = Trust::default();
        assert_eq!(trust.step_back(IDLE), Some(10_000));
        assert_eq!(trust.stay_back(IDLE, POLLED), Some(20_000));
        for _ in 0..10 {
            trust.stay_back(IDLE, POLLED);
        }
        assert_eq!(trust.stay_back(IDLE, POLLED), Some(320_000));
        let in_one_poll = Activity {
            polling: true,
            ..IDLE
        };
        assert_eq!(trust.stay_back(IDLE, in_one_poll), Some(640_000));
        assert_eq!(trust.stay_back(IDLE, in_one_poll), Some(1_280_000));
        assert_eq!(trust.stay_back(IDLE, in_one_poll), Some(1_280_000));
        assert_eq!(trust.stay_back(IDLE, IDLE), None, "it does not poll now");
    }

    #[test]
    fn an_application_that_looks_at_memory_is_not_waited_for() {
        let mut trust = Trust::default();
        let mut waited = 0;
        for _ in 0..10_000 {
            if trust.step_back(IDLE).is_some() {
                waited += 1;
                assert_eq!(trust.stay_back(IDLE, IDLE), None);
                trust.disappointed();
            }
        }
        assert!(waited <= 11, "{waited}");
        // It begins to poll: that is noticed at once.
        let polling = Activity {
            polling: true,
            ..POLLED
        };
        assert!(trust.step_back(polling).is_some());
        assert!(trust.stay_back(IDLE, polling).is_some());
    }

    #[test]
    fn one_that_only_sends_is_not_waited_for_long() {
        let mut trust = Trust::default();
        let patience = (0..100).take_while(|_| trust.stay_back(IDLE, SENT).is_some());
        assert_eq!(patience.count(), MAX_SENDING as usize);
    }

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
