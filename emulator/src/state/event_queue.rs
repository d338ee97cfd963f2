//! A queue of events behind a file descriptor that applications may poll, epoll or make
//! non-blocking.

use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

use super::event_waiter::EventWaiter;
use crate::error::VerbsError;
use crate::sync::modelled::{Mutex, per_thread};
use crate::sync::rank;
use crate::sys::{self, Epoll, EventSemaphore};
use crate::tuning::EXPECTED_WAIT_NS;

/// A queue of events with a file descriptor and a semaphore.
///
/// An event is announced when it is added: the eventfd is readable while the queue is not empty,
/// and each event triggers an edge-triggered epoll. Threads that wait in a verb wait at the
/// `semaphore`.
///
/// An event that a thread receives in order to take it itself is *reserved* instead, because the
/// announcement would be two system calls for nothing ([`EventQueue::reserving`]). That thread
/// takes the event or announces it. Another thread that looks meanwhile may take it. A thread that
/// holds locks reserves the event too, and announces it without them (`wake_later.rs`).
#[derive(Debug)]
pub(crate) struct EventQueue<T> {
    fd: OwnedFd,
    /// The descriptor that the program waits for, if that is not the eventfd. The eventfd is a
    /// member, and others may be (`engine/event_loop.rs`).
    outer: Option<Arc<Epoll>>,
    /// Its count is the number of announced events, less those that a thread is about to take. It
    /// may be greater after several threads tried to take the same event: each of them then wakes
    /// once for nothing.
    semaphore: EventSemaphore,
    /// No further event comes, and none has to be waited for.
    ended: AtomicBool,
    /// Time at which a call for an event last began to wait, in ns. 0 for never.
    waited_at: AtomicU64,
    /// The program has called for an event.
    was_asked: AtomicBool,
    queue: Mutex<Queue<T>, rank::Events>,
}

#[derive(Debug)]
struct Queue<T> {
    events: VecDeque<T>,
    /// The queue has one event, which is not announced.
    is_reserved: bool,
}

per_thread! {
    /// Address of the queue whose next event this thread takes itself, or 0.
    static TAKES_FROM: Cell<usize> = Cell::new(0);
}

/// Marks this thread as one that takes the next event of a queue itself, until this is dropped.
struct Taking<'q, T> {
    queue: &'q EventQueue<T>,
    before: usize,
}

impl<'q, T> Taking<'q, T> {
    fn begin(queue: &'q EventQueue<T>) -> Self {
        let before = TAKES_FROM.with(|at| at.replace(queue.address()));
        Self { queue, before }
    }
}

impl<T> Drop for Taking<'_, T> {
    fn drop(&mut self) {
        TAKES_FROM.with(|at| at.set(self.before));
        if std::thread::panicking() {
            self.queue.announce_reserved();
        }
    }
}

impl<T> EventQueue<T> {
    pub(crate) fn new() -> io::Result<Self> {
        Self::with_fd(sys::eventfd()?)
    }

    /// Makes a queue whose descriptor is non-blocking.
    pub(crate) fn nonblocking() -> io::Result<Self> {
        Self::with_fd(sys::eventfd_nonblocking()?)
    }

    /// Makes a queue whose descriptor may get further members. The program may make it
    /// non-blocking.
    pub(crate) fn with_members() -> io::Result<Self> {
        let outer = Epoll::new()?;
        let queue = Self::nonblocking()?;
        if !outer.add(queue.fd()) {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            outer: Some(Arc::new(outer)),
            ..queue
        })
    }

    fn with_fd(fd: OwnedFd) -> io::Result<Self> {
        Ok(Self {
            fd,
            outer: None,
            semaphore: EventSemaphore::new()?,
            ended: AtomicBool::new(false),
            waited_at: AtomicU64::new(0),
            was_asked: AtomicBool::new(false),
            queue: Mutex::new(Queue {
                events: VecDeque::new(),
                is_reserved: false,
            }),
        })
    }

    /// The descriptor that the program waits for.
    pub(crate) fn raw_fd(&self) -> RawFd {
        let outer = self.outer.as_ref().map(|outer| outer.raw_fd());
        outer.unwrap_or_else(|| self.event_fd())
    }

    /// The eventfd.
    pub(crate) fn event_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// The descriptor that may get further members.
    pub(crate) const fn outer(&self) -> Option<&Arc<Epoll>> {
        self.outer.as_ref()
    }

    /// Returns true if the program has set `O_NONBLOCK`.
    pub(crate) fn is_nonblocking(&self) -> bool {
        sys::is_nonblocking(self.raw_fd())
    }

    /// Returns true if the program waits for the descriptor in an event loop: it has set
    /// `O_NONBLOCK`, and has called for an event before. A program that is still being set up may
    /// not be ready for a descriptor that is readable without an event.
    pub(crate) fn is_in_loop(&self) -> bool {
        self.was_asked.load(Ordering::Relaxed) && self.is_nonblocking()
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Ends the queue. All who wait return, and the descriptor stays readable.
    pub(crate) fn end(&self) {
        let _queue = self.queue.lock();
        self.ended.store(true, Ordering::Release);
        sys::eventfd_set(self.fd());
        self.semaphore.open();
    }

    /// Returns true if the queue has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Makes the descriptor unreadable, if an event can come. The queue is empty, and locked.
    fn clear(&self) {
        if !self.has_ended() {
            sys::eventfd_clear(self.fd());
        }
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Adds an event. It is reserved if this thread takes the next event itself, and announced
    /// otherwise.
    pub(crate) fn push(&self, event: T) {
        self.push_with(event, TAKES_FROM.with(Cell::get) == self.address());
    }

    /// Like [`EventQueue::push`], but leaves the announcement to the caller if this returns true.
    /// The next step is [`EventQueue::announce_reserved`].
    pub(crate) fn push_unannounced(&self, event: T) -> bool {
        self.push_with(event, true)
    }

    /// Returns true if the event is reserved, which only the first one in the queue can be.
    fn push_with(&self, event: T, may_reserve: bool) -> bool {
        let mut queue = self.queue.lock();
        if may_reserve && queue.events.is_empty() && !self.has_ended() {
            queue.is_reserved = true;
            queue.events.push_back(event);
            return true;
        }
        // A reserved event is the only one, so that the announcements are those of all or none.
        let first = usize::from(self.announce(&mut queue));
        queue.events.push_back(event);
        //= CQ-14
        sys::eventfd_set(self.fd());
        drop(queue);
        // The woken thread may run at once, and takes the lock.
        for _ in 0..=first {
            self.semaphore.open();
        }
        false
    }

    /// Calls `receive`. An event that this adds to the queue is reserved for the calling thread,
    /// which then calls [`EventQueue::try_pop`] or [`EventQueue::announce_reserved`].
    pub(crate) fn reserving<R>(&self, receive: impl FnOnce() -> R) -> R {
        let _taking = Taking::begin(self);
        receive()
    }

    /// Announces the event, if one is reserved, because the thread that has it reserved does not
    /// take it.
    pub(crate) fn announce_reserved(&self) {
        let mut queue = self.queue.lock();
        let was_reserved = self.announce(&mut queue);
        drop(queue);
        if was_reserved {
            self.semaphore.open();
        }
    }

    /// Makes the descriptor readable for a reserved event. Returns true if there was one. The
    /// caller opens the semaphore when it has unlocked the queue.
    fn announce(&self, queue: &mut Queue<T>) -> bool {
        let was_reserved = std::mem::take(&mut queue.is_reserved);
        if was_reserved {
            sys::eventfd_set(self.fd());
        }
        was_reserved
    }

    /// Takes the oldest event. `on_take` runs under the queue's lock, so that a concurrent
    /// [`EventQueue::retain`] sees either the event or the effect of `on_take`.
    pub(crate) fn try_pop(&self, on_take: impl FnOnce(&T)) -> Option<T> {
        let mut queue = self.queue.lock();
        let Some(event) = queue.events.pop_front() else {
            // A thread that passed `semaphore` while another took the event has left a count
            // behind.
            while self.semaphore.close() {}
            if self.has_ended() {
                self.semaphore.open();
            }
            return None;
        };
        on_take(&event);
        if std::mem::take(&mut queue.is_reserved) {
            return Some(event);
        }
        self.semaphore.close();
        if queue.events.is_empty() {
            self.clear();
        }
        Some(event)
    }

    /// Takes the oldest event. Returns `None` if the caller has to wait, because the descriptor is
    /// blocking.
    pub(crate) fn pop(&self, on_take: impl FnOnce(&T)) -> Result<Option<T>, VerbsError> {
        match self.try_pop(on_take) {
            None if self.is_nonblocking() => Err(VerbsError::WouldBlock),
            event => Ok(event),
        }
    }

    /// Like [`EventQueue::pop`]. If there is no event, and `is_receiver` returns true of the
    /// descriptor that may have further members, calls `receive` and looks again.
    pub(crate) fn pop_in_loop(
        &self,
        on_take: impl Fn(&T),
        is_receiver: impl FnOnce(&Arc<Epoll>) -> bool,
        receive: impl FnOnce(),
    ) -> Result<Option<T>, VerbsError> {
        self.was_asked.store(true, Ordering::Relaxed);
        if let Some(event) = self.try_pop(&on_take) {
            return Ok(Some(event));
        }
        if self.outer.as_ref().is_some_and(is_receiver) {
            self.reserving(receive);
        }
        self.pop(on_take)
    }

    /// Records that a call for an event waits from now on.
    pub(crate) fn note_wait(&self, now_ns: u64) {
        self.waited_at.store(now_ns, Ordering::Relaxed);
    }

    /// Returns true if a call for an event has waited lately. Then the program probably waits for
    /// the next one in a call again, and not for the descriptor. `now_ns` is asked for if needed.
    pub(crate) fn expects_wait(&self, now_ns: impl FnOnce() -> u64) -> bool {
        let at = self.waited_at.load(Ordering::Relaxed);
        at > 0 && now_ns().saturating_sub(at) < EXPECTED_WAIT_NS
    }

    /// Number of queued events.
    pub(crate) fn len(&self) -> usize {
        self.queue.lock().events.len()
    }

    /// Returns a handle to wait for events.
    pub(crate) fn waiter(&self) -> EventWaiter {
        EventWaiter {
            semaphore: self.semaphore.clone(),
            receiver: None,
        }
    }

    /// Removes and returns the events that `take` selects, in their order.
    pub(crate) fn extract(&self, mut take: impl FnMut(&T) -> bool) -> Vec<T> {
        let mut queue = self.queue.lock();
        let (taken, kept): (Vec<T>, Vec<T>) = queue.events.drain(..).partition(|event| take(event));
        queue.events.extend(kept);
        self.forget(&mut queue, taken.len());
        taken
    }

    /// Drops the events that `keep` rejects.
    pub(crate) fn retain(&self, keep: impl FnMut(&T) -> bool) {
        let mut queue = self.queue.lock();
        let before = queue.events.len();
        queue.events.retain(keep);
        let removed = before - queue.events.len();
        self.forget(&mut queue, removed);
    }

    /// Removes all events. They are dropped when the queue is not locked any more.
    pub(crate) fn drain(&self) -> VecDeque<T> {
        let mut queue = self.queue.lock();
        let events = std::mem::take(&mut queue.events);
        self.forget(&mut queue, events.len());
        events
    }

    /// Takes back the announcement of this number of removed events.
    fn forget(&self, queue: &mut Queue<T>, removed: usize) {
        if removed == 0 || std::mem::take(&mut queue.is_reserved) {
            return;
        }
        for _ in 0..removed {
            self.semaphore.close();
        }
        if queue.events.is_empty() {
            self.clear();
        }
    }
}

#[cfg(all(test, loom))]
pub(super) mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;
