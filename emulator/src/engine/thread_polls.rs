//! The polls of one thread: since when they have found nothing.
//!
//! Each thread has its own state, because one that waits in vain shall sleep on busy processors
//! though another is busy. A thread without completions for long counts as idle while others have
//! some, also if its polls receive the packets of others.

use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::cell::Cell;

use super::Nic;
use super::idle_policy::Sleeps;
use crate::tuning::{CLOCK_READ_INTERVAL, OWN_WORK_NS};

/// Counts that the polling threads of an engine share.
#[derive(Debug, Default)]
pub(super) struct Polls {
    /// Number of times that the background thread has received packets. It may have written memory
    /// that any thread waits for.
    pub(super) received: AtomicU64,
    /// The thread that has had the last completions: the address of its state.
    completed_by: AtomicUsize,
    /// Time at which that was seen, in ns.
    completed_at: AtomicU64,
    /// Polls of shared memory, weighted. They decide when the sockets are polled.
    pub(super) shared: AtomicU64,
}

/// The polls of a thread. They are those of one engine, and begin anew with another one.
#[derive(Debug)]
pub(super) struct ThreadPolls {
    /// Address of the engine.
    engine: Cell<usize>,
    empty_polls: Cell<u64>,
    /// Time of the first empty poll since the thread has last found anything, in ns.
    idle_since: Cell<u64>,
    /// The last value of [`Polls::received`].
    received: Cell<u64>,
    /// A poll has received packets since the last look at the clock.
    has_received: Cell<bool>,
    /// A poll has returned completions since the last look at the clock.
    has_completed: Cell<bool>,
    /// Time of the last look before which a poll has returned completions, in ns.
    completed_at: Cell<u64>,
    pub(super) sleeps: Cell<Sleeps>,
}

thread_local! {
    static OWN: ThreadPolls = const {
        ThreadPolls {
            engine: Cell::new(0),
            empty_polls: Cell::new(0),
            idle_since: Cell::new(0),
            received: Cell::new(0),
            has_received: Cell::new(false),
            has_completed: Cell::new(false),
            completed_at: Cell::new(0),
            sleeps: Cell::new(Sleeps::NONE),
        }
    };
}

impl ThreadPolls {
    /// Calls `f` with the polls of the calling thread.
    #[inline]
    pub(super) fn with<T>(f: impl FnOnce(&Self) -> T) -> T {
        OWN.with(f)
    }

    /// Records that a poll has received packets.
    #[inline]
    pub(super) fn note_packets() {
        OWN.with(|own| own.has_received.set(true));
    }

    /// Counts an empty poll. Returns true if it should look at the clock.
    #[inline]
    pub(super) fn count_empty_poll(&self) -> bool {
        let polls = self.empty_polls.get();
        self.empty_polls.set(polls.wrapping_add(1));
        polls.is_multiple_of(CLOCK_READ_INTERVAL)
    }

    /// Returns for how long the thread has found nothing, in ns, or `None` if that begins now.
    pub(super) fn idle_ns(&self, engine: &Nic, now_ns: u64) -> Option<u64> {
        let polls = &engine.scheduler.polls;
        let is_new = self.engine.replace(engine.address()) != engine.address();
        let received = polls.received.load(Ordering::Relaxed);
        let by_background = self.received.replace(received) != received;
        let has_completed = self.has_completed.take();
        if has_completed {
            self.completed_at.set(now_ns);
            polls.completed_by.store(self.address(), Ordering::Relaxed);
            polls.completed_at.store(now_ns, Ordering::Relaxed);
        }
        let by_itself = self.has_received.take() && !self.leaves_to_others(polls, now_ns);
        if is_new || has_completed || by_background || by_itself {
            self.idle_since.set(now_ns);
            return None;
        }
        Some(now_ns.saturating_sub(self.idle_since.get()))
    }

    /// Returns true if other threads have had completions lately, and this one has not. They
    /// receive, for this thread as well.
    pub(super) fn leaves_to_others(&self, polls: &Polls, now_ns: u64) -> bool {
        let is_recent = |at: u64| at > 0 && now_ns.saturating_sub(at) < OWN_WORK_NS;
        is_recent(polls.completed_at.load(Ordering::Relaxed))
            && polls.completed_by.load(Ordering::Relaxed) != self.address()
            && !is_recent(self.completed_at.get())
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Returns true if the background thread has received packets since the last look.
    pub(super) fn is_outdated(&self, polls: &Polls) -> bool {
        self.received.get() != polls.received.load(Ordering::Relaxed)
    }

    /// Forgets what was received so far, as after polls in vain for long.
    #[cfg(all(test, not(loom)))]
    pub(super) fn begin_idle(engine: &Nic) {
        OWN.with(|own| {
            own.engine.set(engine.address());
            own.received
                .set(engine.scheduler.polls.received.load(Ordering::Relaxed));
            own.idle_since.set(1);
        });
    }
}

/// Records that a poll of the calling thread has returned completions.
#[inline]
pub(crate) fn note_completions() {
    OWN.with(|own| own.has_completed.set(true));
}

impl Nic {
    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::thread;

    use super::*;
    use crate::config::EngineConfig;
    use crate::engine::Engine;

    fn idle_ns(engine: &Engine, now_ns: u64) -> Option<u64> {
        ThreadPolls::with(|own| own.idle_ns(engine.inner(), now_ns))
    }

    /// Runs `f` in a thread without earlier polls.
    fn in_thread(f: impl FnOnce(&Engine) + Send) {
        let engine = Engine::new(EngineConfig::simulated(1)).expect("an engine");
        thread::scope(|scope| {
            let ran = scope.spawn(|| f(&engine)).join();
            ran.expect("no failure");
        });
    }

    #[test]
    fn completions_packets_and_the_background_thread_end_the_idle_time() {
        in_thread(|engine| {
            assert_eq!(idle_ns(engine, 10), None);
            assert_eq!(idle_ns(engine, 30), Some(20));
            note_completions();
            assert_eq!(idle_ns(engine, 40), None);
            assert_eq!(idle_ns(engine, 45), Some(5));
            ThreadPolls::note_packets();
            assert_eq!(idle_ns(engine, 50), None);
            engine
                .inner()
                .scheduler
                .polls
                .received
                .fetch_add(1, Ordering::Relaxed);
            assert!(ThreadPolls::with(
                |own| own.is_outdated(&engine.inner().scheduler.polls)
            ));
            assert_eq!(idle_ns(engine, 60), None);
            assert_eq!(idle_ns(engine, 70), Some(10));
        });
    }

    /// A thread receives for a program that waits for its memory, but not for ever for threads that
    /// poll themselves.
    #[test]
    fn packets_of_busy_threads_do_not_keep_an_idle_thread_awake() {
        in_thread(|engine| {
            let leaves = |now_ns| {
                ThreadPolls::with(|own| {
                    own.leaves_to_others(&engine.inner().scheduler.polls, now_ns)
                })
            };
            let late = 10 * OWN_WORK_NS;
            assert_eq!(idle_ns(engine, 10), None);
            ThreadPolls::note_packets();
            assert_eq!(
                idle_ns(engine, late),
                None,
                "no other thread has completions"
            );
            assert!(!leaves(late));
            thread::scope(|scope| {
                let busy = || {
                    note_completions();
                    idle_ns(engine, late)
                };
                assert_eq!(scope.spawn(busy).join().expect("no failure"), None);
            });
            ThreadPolls::note_packets();
            assert_eq!(idle_ns(engine, late + 5), Some(5));
            assert!(leaves(late + 5));
            note_completions();
            assert_eq!(idle_ns(engine, late + 10), None);
            ThreadPolls::note_packets();
            assert_eq!(idle_ns(engine, late + 20), None, "it has completions too");
            assert!(!leaves(late + 20));
            let later = late + 20 + 2 * OWN_WORK_NS;
            ThreadPolls::note_packets();
            assert_eq!(idle_ns(engine, later), None, "no other thread has any");
        });
    }
}
