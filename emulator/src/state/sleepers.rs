//! Threads that sleep while they poll or wait for an event, and the one thread that waits for
//! packets.
//!
//! A thread that polls an empty CQ sleeps if the processors are busy (`engine/idle_poll.rs`). It is
//! woken
//!
//! * by packets, if it is the *watcher*: the only thread of the process that waits for sockets and
//!   shared memory links,
//! * by any thread that adds a completion to a CQ of the process, or otherwise calls
//!   [`Sleepers::wake`].
//!
//! A thread that waits for an event (`engine/event_wait.rs`) is here only as the watcher.
//! Completions do not wake it, because its event has a descriptor. A thread that waits for
//! descriptors (`engine/poll_wait.rs`) may also be a *follower*. It sleeps while another thread
//! watches, and watches instead when that thread leaves ([`Sleepers::hand_over`]).
//!
//! The watcher is one of these threads or the background thread. There is only one, because the
//! peer of a shared memory link wakes a process once. A second thread that woke for the same packet
//! would also only take the processor from the first. The background thread ignores packets while a
//! poller watches. A poller sleeps until it is woken if the background thread watches.
//!
//! A program may wait for a descriptor in an event loop of its own (`engine/event_loop.rs`). That
//! loop is the watcher as long as no thread sleeps here.
//!
//! A watcher that gets no processor, or that a debugger has stopped, must not keep packets from the
//! process. The background thread then displaces it ([`Sleepers::displace`]) and watches instead.

use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use crossbeam::utils::CachePadded;

use crate::sync::modelled::Mutex;
use crate::sync::modelled::atomic::{AtomicUsize, Ordering};
use crate::sys;

/// The thread that waits for packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Watcher {
    #[default]
    Nobody,
    Background,
    /// The event loop of the program.
    Loop,
    /// The poller with this descriptor.
    Poller(RawFd),
}

impl Watcher {
    const fn is_poller(self) -> bool {
        matches!(self, Self::Poller(_))
    }
}

/// The pollers of an engine that sleep.
#[derive(Debug, Default)]
pub(crate) struct Sleepers {
    /// Number of sleeping pollers that were not woken yet. Threads that add completions read it.
    unwoken: CachePadded<AtomicUsize>,
    /// Number of threads that wait for an event and were not woken yet, 0 or 1.
    unwoken_waiters: AtomicUsize,
    /// Number of followers.
    followers: AtomicUsize,
    state: Mutex<SleeperState>,
}

#[derive(Debug, Default)]
struct SleeperState {
    watcher: Watcher,
    /// The event loop of the program has the sockets, and was not displaced.
    has_loop: bool,
    asleep: Vec<Asleep>,
    /// The followers that were not woken yet.
    followers: Vec<Arc<OwnedFd>>,
    /// Unused descriptors.
    spare: Vec<Arc<OwnedFd>>,
}

/// The event or completion that ends a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WaitsFor {
    /// A completion of the CQ with this key. Key 0 stands for any CQ.
    Completion(usize),
    /// An event, which has a descriptor. Completions do not wake the thread.
    Event,
}

impl WaitsFor {
    const fn is_completion(self) -> bool {
        matches!(self, Self::Completion(_))
    }
}

/// A poller that sleeps, or that was woken and does not run yet.
#[derive(Debug)]
struct Asleep {
    wake_fd: Arc<OwnedFd>,
    waits_for: WaitsFor,
    is_woken: bool,
    /// Set if the thread has left packets unread for too long.
    is_displaced: bool,
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

/// A follower that is about to sleep. The caller has to hand it back to
/// [`Sleepers::end_following`].
#[derive(Debug)]
#[must_use]
pub(crate) struct Follower(Arc<OwnedFd>);

impl Follower {
    /// The descriptor that becomes readable when the thread shall watch.
    pub(crate) fn wake_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// The place of a thread that waits for descriptors.
#[derive(Debug)]
#[must_use]
pub(crate) enum Place {
    /// The only thread that waits for packets. With the flag, the background thread has watched so
    /// far. The caller wakes it, so that it leaves the packets to the caller and looks after it.
    Watcher(Sleeper, bool),
    Follower(Follower),
}

impl Sleepers {
    /// Registers a poller that is going to sleep. From here on completions of the CQ with this key
    /// wake it. The caller checks the CQ, under its lock, after this call and before it sleeps.
    ///
    /// The poller becomes the watcher if there is none and it `may_watch`. Returns `None` if no
    /// descriptor can be made.
    pub(crate) fn begin_poll(&self, cq: usize, may_watch: bool) -> Option<Sleeper> {
        let waits_for = WaitsFor::Completion(cq);
        self.register(&mut self.state.lock(), waits_for, may_watch)
    }

    /// Registers a poller of any CQ.
    #[cfg(test)]
    pub(crate) fn begin(&self) -> Option<Sleeper> {
        self.begin_poll(0, true)
    }

    fn register(
        &self,
        state: &mut SleeperState,
        waits_for: WaitsFor,
        may_watch: bool,
    ) -> Option<Sleeper> {
        let wake_fd = state.spare_fd()?;
        let watches = may_watch && matches!(state.watcher, Watcher::Nobody | Watcher::Loop);
        if watches {
            state.watcher = Watcher::Poller(wake_fd.as_raw_fd());
        }
        state.asleep.push(Asleep {
            wake_fd: Arc::clone(&wake_fd),
            waits_for,
            is_woken: false,
            is_displaced: false,
        });
        self.publish(state);
        Some(Sleeper { wake_fd, watches })
    }

    /// Registers a thread that is going to wait for an event, as the watcher. Returns `None` if a
    /// poller watches already, or if no descriptor can be made.
    ///
    /// The flag tells that the background thread has watched so far. The caller wakes it, so that
    /// it leaves the packets to the caller and looks after it.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn begin_watch(&self) -> Option<(Sleeper, bool)> {
        self.try_watch(&mut self.state.lock())
    }

    /// Registers a thread that is going to wait for descriptors, as the watcher or a follower.
    /// Returns `None` if no descriptor can be made.
    pub(crate) fn begin_watch_or_follow(&self) -> Option<Place> {
        let mut state = self.state.lock();
        if !state.watcher.is_poller() {
            let (sleeper, from_background) = self.try_watch(&mut state)?;
            return Some(Place::Watcher(sleeper, from_background));
        }
        let wake_fd = state.spare_fd()?;
        state.followers.push(Arc::clone(&wake_fd));
        self.publish(&state);
        Some(Place::Follower(Follower(wake_fd)))
    }

    fn try_watch(&self, state: &mut SleeperState) -> Option<(Sleeper, bool)> {
        let before = state.watcher;
        if before.is_poller() {
            return None;
        }
        state.watcher = Watcher::Nobody;
        let sleeper = self.register(state, WaitsFor::Event, true);
        if sleeper.is_none() {
            state.watcher = before;
        }
        Some((sleeper?, before == Watcher::Background))
    }

    /// Ends the sleep of a poller. If it was the watcher, it goes on to receive, and watches again
    /// with its next sleep. Other pollers do not wake: each sleeps for one millisecond at most, and
    /// watches afterwards if no thread does.
    ///
    /// Returns false if the watcher was displaced. The caller may have withdrawn the announcement
    /// of the thread that watches now, and has to wake it.
    #[must_use]
    pub(crate) fn end(&self, sleeper: Sleeper) -> bool {
        let mut state = self.state.lock();
        let is_own = |asleep: &Asleep| Arc::ptr_eq(&asleep.wake_fd, &sleeper.wake_fd);
        if let Some(index) = state.asleep.iter().position(is_own) {
            let ended = state.asleep.swap_remove(index);
            if ended.is_woken {
                sys::eventfd_clear(sleeper.wake_fd.as_fd());
            }
        }
        let still_watches = state.watcher == Watcher::Poller(sleeper.wake_fd.as_raw_fd());
        if still_watches {
            state.watcher = state.default_watcher();
        }
        state.spare.push(sleeper.wake_fd);
        self.publish(&state);
        still_watches || !sleeper.watches
    }

    /// Makes the event loop of the program the watcher, unless a poller is. Returns true if the
    /// background thread has watched so far. The caller wakes it, as with [`Place::Watcher`].
    pub(crate) fn begin_loop(&self) -> bool {
        let mut state = self.state.lock();
        state.has_loop = true;
        let before = state.watcher;
        if !before.is_poller() {
            state.watcher = Watcher::Loop;
        }
        before == Watcher::Background
    }

    /// Ends the watch of the event loop. The caller wakes the background thread afterwards.
    pub(crate) fn end_loop(&self) {
        let mut state = self.state.lock();
        state.has_loop = false;
        if state.watcher == Watcher::Loop {
            state.watcher = Watcher::Nobody;
        }
    }

    /// Returns true if the event loop of the program is the watcher.
    pub(crate) fn is_watched_by_loop(&self) -> bool {
        self.state.lock().watcher == Watcher::Loop
    }

    /// Returns true if the event loop of the program is the watcher while no poller is.
    pub(crate) fn has_loop(&self) -> bool {
        self.state.lock().has_loop
    }

    /// Ends the sleep of a follower. Returns true if it was woken to watch.
    pub(crate) fn end_following(&self, follower: Follower) -> bool {
        let mut state = self.state.lock();
        let is_own = |fd: &Arc<OwnedFd>| Arc::ptr_eq(fd, &follower.0);
        let at = state.followers.iter().position(is_own);
        match at {
            Some(at) => drop(state.followers.swap_remove(at)),
            None => sys::eventfd_clear(follower.0.as_fd()),
        }
        state.spare.push(follower.0);
        self.publish(&state);
        at.is_none()
    }

    /// Wakes a follower if no thread watches. A thread that has waited for descriptors calls this
    /// before it returns to the application, which may not come back for long.
    pub(crate) fn hand_over(&self) {
        // A follower registers while another thread is the watcher, under the lock under which that
        // thread has ended its watch. So the watcher that leaves sees it.
        if self.followers.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut state = self.state.lock();
        if matches!(state.watcher, Watcher::Nobody | Watcher::Loop)
            && let Some(next) = state.followers.pop()
        {
            sys::eventfd_set(next.as_fd());
            self.publish(&state);
        }
    }

    /// Ends the watch of a poller or event loop, and expects nothing of the pollers that sleep now:
    /// they have left packets unread.
    pub(crate) fn displace(&self) {
        let mut state = self.state.lock();
        state.has_loop = false;
        if state.watcher != Watcher::Background {
            state.watcher = Watcher::Nobody;
        }
        for asleep in &mut state.asleep {
            asleep.is_displaced = true;
        }
    }

    /// Wakes all pollers that sleep. Takes a few nanoseconds if there are none. The caller may hold
    /// any lock.
    #[inline]
    pub(crate) fn wake(&self) {
        if self.unwoken.load(Ordering::Relaxed) > 0 {
            self.wake_some(WaitsFor::is_completion);
        }
    }

    /// Returns true if a poller sleeps that was not woken yet.
    #[inline]
    pub(crate) fn has_unwoken(&self) -> bool {
        self.unwoken.load(Ordering::Relaxed) > 0
    }

    /// Wakes the pollers of the CQ with this key, as [`Sleepers::wake`] does.
    #[inline]
    pub(crate) fn wake_pollers_of(&self, cq: usize) {
        if self.unwoken.load(Ordering::Relaxed) > 0 {
            let any = WaitsFor::Completion(0);
            self.wake_some(|waits| waits == WaitsFor::Completion(cq) || waits == any);
        }
    }

    /// Wakes all pollers that sleep, and the thread that waits for an event, because something
    /// other than a completion needs a thread. The caller may hold any lock.
    pub(crate) fn wake_all(&self) {
        let waiters = self.unwoken_waiters.load(Ordering::Relaxed);
        if self.unwoken.load(Ordering::Relaxed) + waiters > 0 {
            self.wake_some(|_| true);
        }
    }

    #[cold]
    fn wake_some(&self, is_meant: impl Fn(WaitsFor) -> bool) {
        let mut state = self.state.lock();
        state.wake(is_meant);
        self.publish(&state);
    }

    /// Makes the background thread the watcher. Returns false if a poller or event loop is.
    pub(crate) fn watch_in_background(&self) -> bool {
        let mut state = self.state.lock();
        let may_watch = matches!(state.watcher, Watcher::Nobody | Watcher::Background);
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

    /// Returns true if a poller, or the event loop of the program, is the watcher.
    pub(crate) fn is_watched_by_program(&self) -> bool {
        matches!(
            self.state.lock().watcher,
            Watcher::Poller(_) | Watcher::Loop
        )
    }

    /// Returns true if a poller is the watcher.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn has_watching_poller(&self) -> bool {
        self.state.lock().watcher.is_poller()
    }

    /// Returns true if any poller sleeps, or was woken and does not run yet, and was not displaced.
    pub(crate) fn has_any(&self) -> bool {
        let state = self.state.lock();
        let mut asleep = state.asleep.iter();
        asleep.any(|asleep| !asleep.is_displaced && asleep.waits_for.is_completion())
    }

    /// Returns true if any poller sleeps, or was woken and does not run yet, displaced or not.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn has_registered(&self) -> bool {
        !self.state.lock().asleep.is_empty()
    }

    /// Returns true if a thread that waits for an event is registered.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn has_waiter(&self) -> bool {
        let state = self.state.lock();
        let mut asleep = state.asleep.iter();
        asleep.any(|asleep| !asleep.waits_for.is_completion())
    }

    /// Returns true if a follower sleeps.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn has_follower(&self) -> bool {
        self.followers.load(Ordering::Relaxed) > 0
    }

    #[cfg(all(test, loom))]
    pub(super) fn is_woken(&self, sleeper: &Sleeper) -> bool {
        let state = self.state.lock();
        let mut asleep = state.asleep.iter();
        asleep.any(|asleep| asleep.is_woken && Arc::ptr_eq(&asleep.wake_fd, &sleeper.wake_fd))
    }

    fn publish(&self, state: &SleeperState) {
        let unwoken = |waiters: bool| {
            let asleep = state.asleep.iter().filter(|asleep| !asleep.is_woken);
            asleep
                .filter(|asleep| asleep.waits_for.is_completion() != waiters)
                .count()
        };
        self.unwoken.store(unwoken(false), Ordering::Relaxed);
        self.unwoken_waiters.store(unwoken(true), Ordering::Relaxed);
        let followers = state.followers.len();
        self.followers.store(followers, Ordering::Relaxed);
    }
}

impl SleeperState {
    /// The watcher when the last one ends.
    const fn default_watcher(&self) -> Watcher {
        if self.has_loop {
            Watcher::Loop
        } else {
            Watcher::Nobody
        }
    }

    fn spare_fd(&mut self) -> Option<Arc<OwnedFd>> {
        match self.spare.pop() {
            Some(fd) => Some(fd),
            None => Some(Arc::new(sys::eventfd_nonblocking().ok()?)),
        }
    }

    fn wake(&mut self, is_meant: impl Fn(WaitsFor) -> bool) {
        for asleep in &mut self.asleep {
            if !asleep.is_woken && is_meant(asleep.waits_for) {
                asleep.is_woken = true;
                sys::eventfd_set(asleep.wake_fd.as_fd());
            }
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;
