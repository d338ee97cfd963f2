//! Places where a thread of a simulated host hands over to its schedule (`hostsim`).
//!
//! A simulated process has real threads, of which one runs at a time. Each hands over where it
//! would wait, and now and then where it takes a lock. Programs have none of this: outside of this
//! crate's tests every function here is empty.

#[cfg(not(all(any(test, feature = "simulated-host"), not(loom))))]
mod nothing {
    use std::time::Duration;

    /// Hands over now and then.
    #[inline(always)]
    pub(crate) const fn point() {}

    /// Hands over now and then, after a datagram was sent.
    #[inline(always)]
    pub(crate) const fn sent() {}

    /// Waits until a lock is free.
    #[inline(always)]
    pub(crate) fn until_free(_: impl Fn() -> bool) {}

    /// Waits until `is_done` or for this time. Returns `None` outside of a simulation.
    #[inline(always)]
    pub(crate) fn until(_: Option<Duration>, _: impl FnMut() -> bool) -> Option<bool> {
        None
    }

    /// Returns the time for which a system call has to wait for the descriptors.
    #[inline(always)]
    pub(crate) const fn wait_for(_: &[libc::pollfd], time: Option<Duration>) -> Option<Duration> {
        time
    }

    /// Returns the time after which a timer has to expire.
    #[inline(always)]
    pub(crate) const fn alarm(_: std::os::fd::RawFd, time: Option<Duration>) -> Option<Duration> {
        time
    }

    /// Returns the time that a reading of a simulated clock takes, in ns.
    #[inline(always)]
    pub(crate) const fn tick_ns() -> u64 {
        0
    }

    /// Returns true in a simulated process.
    #[inline(always)]
    pub(crate) const fn is_simulated() -> bool {
        false
    }

    /// Yields the processor.
    #[inline]
    pub(crate) fn yield_now() {
        std::thread::yield_now();
    }

    /// Sleeps.
    #[inline]
    pub(crate) fn sleep(time: Duration) {
        std::thread::sleep(time);
    }

    /// Returns true if the process was killed, so that nothing of it may leave any more.
    #[inline(always)]
    pub(crate) const fn is_dead() -> bool {
        false
    }
}

#[cfg(not(all(any(test, feature = "simulated-host"), not(loom))))]
pub(crate) use nothing::*;

#[cfg(all(any(test, feature = "simulated-host"), not(loom)))]
mod simulated {
    use std::cell::RefCell;
    use std::os::fd::RawFd;
    use std::panic::Location;
    use std::rc::Rc;
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;
    use std::time::Duration;

    /// A reason to hand over.
    #[derive(Debug)]
    pub(crate) enum Pause {
        /// Others may run.
        Turn,
        /// The thread has found nothing to do, and looks again.
        Idle,
        /// A lock that others hold. The thread has done nothing since its last pause if it waits
        /// `again`.
        Lock { again: bool },
        /// Something that others change, such as a semaphore, until this time if any. `again` is as
        /// above.
        Change { time: Option<Duration>, again: bool },
        /// Descriptors, until this time if any.
        Ready {
            fds: Vec<libc::pollfd>,
            time: Option<Duration>,
        },
    }

    impl Pause {
        /// Returns true if the thread may have changed something since its last pause.
        pub(crate) const fn may_follow_a_change(&self) -> bool {
            !matches!(
                self,
                Self::Lock { again: true } | Self::Change { again: true, .. }
            )
        }
    }

    /// A place in the code at which threads hand over.
    pub(crate) type Place = &'static Location<'static>;

    /// The schedule of a host, seen by one of its threads.
    pub(crate) trait Schedule {
        /// Notes the place at which the thread hands over next.
        fn set_place(&self, place: Place);

        /// Hands over, and returns when the thread runs again. Unwinds if its process was killed.
        fn pause(&self, pause: Pause);

        /// Hands over now and then, rarely unless it is a lock.
        fn point(&self, is_lock: bool);

        /// Notes that a datagram was sent, and hands over now and then.
        fn sent(&self);

        /// Returns the time, which all processes of the host share.
        fn time(&self) -> &Arc<AtomicU64>;

        /// Returns random bits of the seed.
        fn random(&self) -> u64;

        /// Returns true if the process was killed.
        fn is_dead(&self) -> bool;

        /// Returns true if another thread of the host holds a lock.
        fn others_hold_locks(&self) -> bool;

        /// Starts a thread of the same process.
        fn spawn(&self, name: &str, run: Box<dyn FnOnce() + Send>);

        /// Ends the process, as if it were killed.
        fn end_process(&self);

        /// Notes memory that the process shares with others.
        fn note_mapping(&self, start: usize, len: usize);

        /// Notes the time after which a timer has to expire, or that it must not.
        fn set_alarm(&self, timer: RawFd, time: Option<Duration>);

        /// Forgets memory that is unmapped.
        fn forget_mapping(&self, start: usize);
    }

    thread_local! {
        static OWN: RefCell<Option<Rc<dyn Schedule>>> = const { RefCell::new(None) };
    }

    /// Makes the calling thread one of a schedule.
    pub(crate) fn join(schedule: Rc<dyn Schedule>) {
        OWN.set(Some(schedule));
    }

    /// Returns the schedule of the calling thread, if it has one.
    pub(crate) fn own() -> Option<Rc<dyn Schedule>> {
        OWN.try_with(|own| own.try_borrow().ok()?.clone()).ok()?
    }

    /// Returns the schedule of the calling thread, which hands over here.
    #[track_caller]
    fn own_here() -> Option<Rc<dyn Schedule>> {
        let own = own()?;
        own.set_place(Location::caller());
        Some(own)
    }

    /// Hands over now and then.
    #[track_caller]
    pub(crate) fn point() {
        if let Some(own) = own_here() {
            own.point(true);
        }
    }

    /// Hands over rarely, before an access to an atomic.
    #[track_caller]
    pub(crate) fn step() {
        if let Some(own) = own_here() {
            own.point(false);
        }
    }

    /// Hands over now and then, after a datagram was sent.
    #[track_caller]
    pub(crate) fn sent() {
        if let Some(own) = own_here() {
            own.sent();
        }
    }

    /// Hands over until a lock is free.
    #[track_caller]
    pub(crate) fn until_free(is_locked: impl Fn() -> bool) {
        let mut again = false;
        while is_locked() {
            let Some(own) = own_here() else { return };
            if own.others_hold_locks() {
                own.pause(Pause::Lock { again });
                again = true;
            } else {
                // A test beside this one has it.
                std::thread::yield_now();
            }
        }
    }

    /// Hands over until `is_done`, or for this time. Returns if it is done, or `None` outside of a
    /// simulation.
    #[track_caller]
    pub(crate) fn until(time: Option<Duration>, mut is_done: impl FnMut() -> bool) -> Option<bool> {
        let own = own_here()?;
        let here = Location::caller();
        let now = || own.time().load(std::sync::atomic::Ordering::Relaxed);
        let end = time.map(|time| now().saturating_add(ns(time)));
        own.point(true);
        let mut again = false;
        while !is_done() {
            let left = end.map(|end| Duration::from_nanos(end.saturating_sub(now())));
            if left.is_some_and(|left| left.is_zero()) {
                return Some(false);
            }
            own.set_place(here);
            own.pause(Pause::Change { time: left, again });
            again = true;
            // One that unwinds does not hand over here, so that no time would pass.
            if time.is_some() && own.is_dead() {
                return Some(false);
            }
        }
        Some(true)
    }

    /// Hands over until a descriptor is ready. Returns the time for which a system call still has
    /// to wait for the descriptors.
    #[track_caller]
    pub(crate) fn wait_for(fds: &[libc::pollfd], time: Option<Duration>) -> Option<Duration> {
        let Some(own) = own_here() else { return time };
        if time.is_none_or(|time| !time.is_zero()) {
            let fds = fds.to_vec();
            own.pause(Pause::Ready { fds, time });
        } else {
            own.point(true);
        }
        Some(Duration::ZERO)
    }

    /// Returns the time after which the system has to let a timer expire: that of a simulation is
    /// up to its schedule.
    pub(crate) fn alarm(timer: RawFd, time: Option<Duration>) -> Option<Duration> {
        let Some(own) = own() else { return time };
        own.set_alarm(timer, time);
        None
    }

    /// Returns true in a simulated process.
    pub(crate) fn is_simulated() -> bool {
        own().is_some()
    }

    /// Returns the time that a reading of a simulated clock takes, in ns.
    pub(crate) fn tick_ns() -> u64 {
        own().map_or(0, |_| 100)
    }

    /// Yields the processor.
    #[track_caller]
    pub(crate) fn yield_now() {
        match own_here() {
            Some(own) => own.pause(Pause::Idle),
            None => std::thread::yield_now(),
        }
    }

    /// Sleeps.
    #[track_caller]
    pub(crate) fn sleep(time: Duration) {
        if until(Some(time), || false).is_none() {
            std::thread::sleep(time);
        }
    }

    /// Returns true if the process was killed, so that nothing of it may leave any more.
    pub(crate) fn is_dead() -> bool {
        own().is_some_and(|own| own.is_dead())
    }

    /// Returns the simulated time, if the thread has one.
    pub(crate) fn time() -> Option<Arc<AtomicU64>> {
        own().map(|own| Arc::clone(own.time()))
    }

    fn ns(time: Duration) -> u64 {
        u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
    }
}

#[cfg(all(any(test, feature = "simulated-host"), not(loom)))]
pub(crate) use simulated::*;
