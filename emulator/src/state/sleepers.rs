//! Threads that sleep while they poll, and the one thread that waits for packets.
//!
//! A thread that polls an empty CQ sleeps if the processors are busy (`engine/idle_poll.rs`). It is
//! woken
//!
//! * by packets, if it is the *watcher*: the only thread of the process that waits for sockets and
//!   shared memory links,
//! * by any thread that adds a completion to a CQ of the process, or otherwise calls
//!   [`Sleepers::wake`].
//!
//! The watcher is a poller or the background thread. There is only one, because the peer of a
//! shared memory link wakes a process once. A second thread that woke for the same packet would
//! also only take the processor from the first. The background thread ignores packets while a
//! poller watches. A poller sleeps until it is woken if the background thread watches.

use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use crossbeam::utils::CachePadded;

use crate::sync::Mutex;
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sys;

/// The thread that waits for packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Watcher {
    #[default]
    Nobody,
    Background,
    Poller,
}

/// The pollers of an engine that sleep.
#[derive(Debug, Default)]
pub(crate) struct Sleepers {
    /// Number of sleeping pollers that were not woken yet. Threads that add completions read it.
    unwoken: CachePadded<AtomicUsize>,
    state: Mutex<SleeperState>,
}

#[derive(Debug, Default)]
struct SleeperState {
    watcher: Watcher,
    /// The descriptor of each sleeping poller, and whether it was woken.
    asleep: Vec<(Arc<OwnedFd>, bool)>,
    /// Unused descriptors.
    spare: Vec<Arc<OwnedFd>>,
}

/// A poller that is about to sleep. The caller has to hand it back to [`Sleepers::end`].
#[derive(Debug)]
#[must_use]
pub(crate) struct Sleeper {
    wake_fd: Arc<OwnedFd>,
    watches: bool,
}

impl Sleeper {
    /// The descriptor that becomes readable when the poller is woken.
    pub(crate) fn wake_fd(&self) -> RawFd {
        self.wake_fd.as_raw_fd()
    }

    /// Returns true if this poller is the watcher.
    pub(crate) const fn watches(&self) -> bool {
        self.watches
    }
}

impl Sleepers {
    /// Registers a poller that is going to sleep. From here on completions wake it. The caller
    /// checks its CQ, under the lock of the CQ, after this call and before it sleeps. Returns
    /// `None` if no descriptor can be made.
    pub(crate) fn begin(&self) -> Option<Sleeper> {
        let mut state = self.state.lock();
        let wake_fd = match state.spare.pop() {
            Some(fd) => fd,
            None => Arc::new(sys::eventfd_nonblocking().ok()?),
        };
        let watches = state.watcher == Watcher::Nobody;
        if watches {
            state.watcher = Watcher::Poller;
        }
        state.asleep.push((Arc::clone(&wake_fd), false));
        self.publish(&state);
        Some(Sleeper { wake_fd, watches })
    }

    /// Ends the sleep of a poller. If it was the watcher, the others wake, and one of them becomes
    /// the watcher.
    pub(crate) fn end(&self, sleeper: Sleeper) {
        let mut state = self.state.lock();
        let is_own = |(fd, _): &(Arc<OwnedFd>, bool)| Arc::ptr_eq(fd, &sleeper.wake_fd);
        if let Some(index) = state.asleep.iter().position(is_own) {
            let (_, was_woken) = state.asleep.swap_remove(index);
            if was_woken {
                sys::eventfd_clear(sleeper.wake_fd.as_fd());
            }
        }
        state.spare.push(sleeper.wake_fd);
        if sleeper.watches {
            state.watcher = Watcher::Nobody;
            state.wake_all();
        }
        self.publish(&state);
    }

    /// Wakes all pollers that sleep. Takes a few nanoseconds if there are none. The caller may hold
    /// any lock.
    #[inline]
    pub(crate) fn wake(&self) {
        if self.unwoken.load(Ordering::Relaxed) > 0 {
            self.wake_some();
        }
    }

    #[cold]
    fn wake_some(&self) {
        let mut state = self.state.lock();
        state.wake_all();
        self.publish(&state);
    }

    /// Makes the background thread the watcher. Returns false if a poller is.
    pub(crate) fn watch_in_background(&self) -> bool {
        let mut state = self.state.lock();
        let may_watch = state.watcher != Watcher::Poller;
        if may_watch {
            state.watcher = Watcher::Background;
        }
        may_watch
    }

    /// Returns true if the background thread is the watcher.
    pub(crate) fn is_watched_in_background(&self) -> bool {
        self.state.lock().watcher == Watcher::Background
    }

    /// Ends the watch of the background thread, if it is the watcher.
    pub(crate) fn leave_background(&self) {
        let mut state = self.state.lock();
        if state.watcher == Watcher::Background {
            state.watcher = Watcher::Nobody;
        }
    }

    /// Returns true if a poller is the watcher.
    pub(crate) fn has_watching_poller(&self) -> bool {
        self.state.lock().watcher == Watcher::Poller
    }

    /// Returns true if any poller sleeps, or was woken and does not run yet.
    pub(crate) fn has_any(&self) -> bool {
        !self.state.lock().asleep.is_empty()
    }

    #[cfg(all(test, loom))]
    pub(super) fn is_woken(&self, sleeper: &Sleeper) -> bool {
        let state = self.state.lock();
        let mut asleep = state.asleep.iter();
        asleep.any(|(fd, woken)| *woken && Arc::ptr_eq(fd, &sleeper.wake_fd))
    }

    fn publish(&self, state: &SleeperState) {
        let unwoken = state.asleep.iter().filter(|(_, woken)| !woken).count();
        self.unwoken.store(unwoken, Ordering::Relaxed);
    }
}

impl SleeperState {
    fn wake_all(&mut self) {
        for (fd, woken) in &mut self.asleep {
            if !*woken {
                *woken = true;
                sys::eventfd_set(fd.as_fd());
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::Duration;

    use super::*;

    fn is_woken(sleeper: &Sleeper) -> bool {
        let mut set = sys::PollSet::default();
        let fd = set.add(sleeper.wake_fd());
        set.wait_uncancelled(Some(Duration::ZERO))
            .expect("descriptors");
        set.is_ready(fd)
    }

    #[test]
    fn one_thread_watches_and_the_next_one_takes_over() {
        let sleepers = Sleepers::default();
        let first = sleepers.begin().unwrap();
        let second = sleepers.begin().unwrap();
        assert!(first.watches() && !second.watches());
        assert!(!sleepers.watch_in_background(), "a poller watches");
        assert!(!is_woken(&second));
        sleepers.end(first);
        assert!(is_woken(&second), "there has to be another watcher");
        sleepers.end(second);
        assert!(!sleepers.has_any());

        assert!(sleepers.watch_in_background());
        let third = sleepers.begin().unwrap();
        assert!(!third.watches());
        assert!(
            !is_woken(&third),
            "a descriptor is used again, but not its news"
        );
        sleepers.leave_background();
        sleepers.wake();
        assert!(is_woken(&third));
        sleepers.wake();
        sleepers.end(third);
        let fourth = sleepers.begin().unwrap();
        assert!(fourth.watches() && !is_woken(&fourth));
        sleepers.end(fourth);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;

    /// In every interleaving there is one watcher. A poller that is not the watcher wakes when
    /// there is none.
    #[test]
    fn loom_packets_have_one_watcher_at_a_time() {
        loom::model(|| {
            let sleepers = loom::sync::Arc::new(Sleepers::default());
            let background = {
                let sleepers = loom::sync::Arc::clone(&sleepers);
                loom::thread::spawn(move || sleepers.watch_in_background())
            };
            let first = sleepers.begin().expect("a descriptor");
            let second = sleepers.begin().expect("a descriptor");
            let first_watches = first.watches();
            sleepers.end(first);
            let in_background = background.join().unwrap();
            assert!(!second.watches());
            if first_watches {
                assert!(sleepers.is_woken(&second), "there is no watcher");
            } else {
                assert!(in_background);
            }
            sleepers.end(second);
        });
    }
}
