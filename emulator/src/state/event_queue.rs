//! A queue of events behind a file descriptor that applications may poll, epoll or make
//! non-blocking.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::sync::{Mutex, rank};

use super::event_waiter::EventWaiter;
use crate::error::VerbsError;
use crate::sys::{self, Epoll, EventSemaphore};

/// A queue of events with a file descriptor and a semaphore.
///
/// The eventfd is readable exactly while the queue is not empty, and each event triggers an
/// edge-triggered epoll. Threads that wait in a verb wait at the `semaphore`.
#[derive(Debug)]
pub(crate) struct EventQueue<T> {
    fd: OwnedFd,
    /// The descriptor that the program waits for, if that is not the eventfd. The eventfd is a
    /// member, and others may be (`engine/event_loop.rs`).
    outer: Option<Arc<Epoll>>,
    /// Its count is the number of events, less those that a thread is about to take. It may be
    /// greater after several threads tried to take the same event: each of them then wakes once for
    /// nothing.
    semaphore: EventSemaphore,
    /// No further event comes, and none has to be waited for.
    ended: AtomicBool,
    queue: Mutex<VecDeque<T>, rank::Events>,
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
            queue: Mutex::new(VecDeque::new()),
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

    pub(crate) fn push(&self, event: T) {
        let mut queue = self.queue.lock();
        queue.push_back(event);
        //= CQ-14
        sys::eventfd_set(self.fd());
        self.semaphore.open();
    }

    /// Takes the oldest event. `on_take` runs under the queue's lock, so that a concurrent
    /// [`EventQueue::retain`] sees either the event or the effect of `on_take`.
    pub(crate) fn try_pop(&self, on_take: impl FnOnce(&T)) -> Option<T> {
        let mut queue = self.queue.lock();
        let Some(event) = queue.pop_front() else {
            // A thread that passed `semaphore` while another took the event has left a count
            // behind.
            while self.semaphore.close() {}
            if self.has_ended() {
                self.semaphore.open();
            }
            return None;
        };
        on_take(&event);
        self.semaphore.close();
        if queue.is_empty() {
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

    /// Like [`EventQueue::pop`]. If there is no event, the descriptor is non-blocking and it may
    /// have further members, calls `receive` and looks again.
    pub(crate) fn pop_in_loop(
        &self,
        on_take: impl Fn(&T),
        receive: impl FnOnce(&Arc<Epoll>),
    ) -> Result<Option<T>, VerbsError> {
        match (self.pop(&on_take), &self.outer) {
            (Err(VerbsError::WouldBlock), Some(outer)) => {
                receive(outer);
                let taken = self.try_pop(&on_take);
                taken.map(Some).ok_or(VerbsError::WouldBlock)
            }
            (taken, _) => taken,
        }
    }

    /// Number of queued events.
    pub(crate) fn len(&self) -> usize {
        self.queue.lock().len()
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
        let (taken, kept): (Vec<T>, Vec<T>) = queue.drain(..).partition(|event| take(event));
        queue.extend(kept);
        for _ in &taken {
            self.semaphore.close();
        }
        if !taken.is_empty() && queue.is_empty() {
            self.clear();
        }
        taken
    }

    /// Drops the events that `keep` rejects.
    pub(crate) fn retain(&self, keep: impl FnMut(&T) -> bool) {
        let mut queue = self.queue.lock();
        let before = queue.len();
        queue.retain(keep);
        for _ in queue.len()..before {
            self.semaphore.close();
        }
        if before > 0 && queue.is_empty() {
            self.clear();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::sys::PollSet;

    fn readable(queue: &EventQueue<u32>) -> bool {
        let mut set = PollSet::default();
        let fd = set.add(queue.raw_fd());
        let waited = set.wait(Some(Duration::ZERO));
        waited.is_ok() && set.is_ready(fd)
    }

    //= CQ-14 type=test
    #[test]
    fn the_gate_and_the_descriptor_follow_the_events() {
        let queue = EventQueue::new().unwrap();
        for event in 0..5 {
            queue.push(event);
        }
        queue.retain(|event| event % 2 == 0);
        for event in [0, 2, 4] {
            assert!(readable(&queue));
            queue.waiter().wait().unwrap();
            assert_eq!(queue.pop(|_| ()).unwrap(), Some(event));
        }
        assert!(!readable(&queue) && !queue.semaphore.close());
        queue.push(5);
        queue.retain(|_| false);
        assert!(!readable(&queue) && !queue.semaphore.close());
        // The state after several threads tried to take the same event.
        queue.semaphore.open();
        assert_eq!(queue.pop(|_| ()).unwrap(), None);
        assert!(!queue.semaphore.close());
    }

    #[test]
    fn a_thread_that_waits_is_let_through() {
        let queue = EventQueue::new().unwrap();
        let (events, seen) = mpsc::channel();
        thread::scope(|scope| {
            for _ in 0..3 {
                let events = events.clone();
                let queue = &queue;
                scope.spawn(move || {
                    loop {
                        match queue.pop(|_| ()).unwrap() {
                            Some(0) => break,
                            Some(event) => events.send(event).unwrap(),
                            None => queue.waiter().wait().unwrap(),
                        }
                    }
                });
            }
            for event in 1..=1_000 {
                queue.push(event);
            }
            let mut all: Vec<u32> = seen.iter().take(1_000).collect();
            all.sort_unstable();
            assert_eq!(all, (1..=1_000).collect::<Vec<_>>());
            for _ in 0..3 {
                queue.push(0);
            }
        });
        assert!(!readable(&queue));
    }
}
