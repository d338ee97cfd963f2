//! A queue of events behind a file descriptor that programs may poll, epoll or make
//! non-blocking.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Arc, OnceLock};

use parking_lot::{Condvar, Mutex};

use crate::error::VerbsError;
use crate::sys::{self, Gate};

/// The descriptor is readable exactly while the queue is not empty, and each event is an edge to those
/// who wait for edges (CQ-14). Threads that wait in a verb wait at the gate.
#[derive(Debug)]
pub(crate) struct EventQueue<T> {
    fd: OwnedFd,
    /// Open for as many as there are events, less those that a thread is about to take. It may be open for
    /// more after several threads wanted the same event: then they look in vain once.
    gate: Gate,
    queue: Mutex<VecDeque<T>>,
}

impl<T> EventQueue<T> {
    pub(crate) fn new() -> io::Result<Self> {
        Self::with_fd(sys::eventfd()?)
    }

    /// One whose descriptor does not block.
    pub(crate) fn nonblocking() -> io::Result<Self> {
        Self::with_fd(sys::eventfd_nonblocking()?)
    }

    fn with_fd(fd: OwnedFd) -> io::Result<Self> {
        Ok(Self {
            fd,
            gate: Gate::new()?,
            queue: Mutex::new(VecDeque::new()),
        })
    }

    pub(crate) fn raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(crate) fn push(&self, event: T) {
        let mut queue = self.queue.lock();
        queue.push_back(event);
        //= CQ-14
        sys::eventfd_set(self.fd());
        self.gate.open();
    }

    /// Takes the oldest event; `on_take` runs under the queue's lock, so that a concurrent
    /// [`EventQueue::retain`] either sees the event or its effect.
    pub(crate) fn try_pop(&self, on_take: impl FnOnce(&T)) -> Option<T> {
        let mut queue = self.queue.lock();
        let Some(event) = queue.pop_front() else {
            // A thread that passed the gate while another took the event has left it open.
            while self.gate.close() {}
            return None;
        };
        on_take(&event);
        self.gate.close();
        if queue.is_empty() {
            sys::eventfd_clear(self.fd());
        }
        Some(event)
    }

    /// Takes the oldest event. `None` says to wait for one: the descriptor is not non-blocking.
    pub(crate) fn pop(&self, on_take: impl FnOnce(&T)) -> Result<Option<T>, VerbsError> {
        match self.try_pop(on_take) {
            None if sys::is_nonblocking(self.fd()) => Err(VerbsError::WouldBlock),
            event => Ok(event),
        }
    }

    /// Events that wait.
    pub(crate) fn len(&self) -> usize {
        self.queue.lock().len()
    }

    /// For waiting.
    pub(crate) fn waiter(&self) -> EventWaiter {
        EventWaiter {
            gate: self.gate.clone(),
        }
    }

    /// Takes the events that `take` wants, in their order.
    pub(crate) fn extract(&self, mut take: impl FnMut(&T) -> bool) -> Vec<T> {
        let mut queue = self.queue.lock();
        let (taken, kept): (Vec<T>, Vec<T>) = queue.drain(..).partition(|event| take(event));
        queue.extend(kept);
        for _ in &taken {
            self.gate.close();
        }
        if !taken.is_empty() && queue.is_empty() {
            sys::eventfd_clear(self.fd());
        }
        taken
    }

    /// Drops the events that `keep` refuses.
    pub(crate) fn retain(&self, keep: impl FnMut(&T) -> bool) {
        let mut queue = self.queue.lock();
        let before = queue.len();
        queue.retain(keep);
        for _ in queue.len()..before {
            self.gate.close();
        }
        if before > 0 && queue.is_empty() {
            sys::eventfd_clear(self.fd());
        }
    }
}

/// Waits for events of a queue.
#[derive(Debug)]
pub struct EventWaiter {
    gate: Gate,
}

impl EventWaiter {
    /// One that nobody wakes.
    ///
    /// # Errors
    /// [`VerbsError::Io`] of `sem_init`.
    pub fn never() -> Result<Self, VerbsError> {
        Ok(Self { gate: Gate::new()? })
    }

    /// Sleeps until there is an event, which another thread may take first.
    ///
    /// A thread may be cancelled in it (pthread_cancel(3)), which unwinds the stack: no frame of the
    /// caller may have anything to drop, this included, or catch panics.
    ///
    /// # Errors
    /// [`io::ErrorKind::Interrupted`] by a signal whose handler does not restart system calls.
    //= CQ-14
    pub fn wait(&self) -> io::Result<()> {
        self.gate.wait()
    }
}

/// Events of one object that were handed to the application, and how many it acknowledged:
/// destroying the object waits until the figures agree (CQ-08, AEV-12).
#[derive(Debug, Default)]
pub(crate) struct AckCounter {
    unacked: Mutex<u64>,
    all_acked: Condvar,
}

impl AckCounter {
    pub(crate) fn delivered(&self) {
        *self.unacked.lock() += 1;
    }

    pub(crate) fn ack(&self, count: u64) {
        let mut unacked = self.unacked.lock();
        *unacked = unacked.saturating_sub(count);
        if *unacked == 0 {
            self.all_acked.notify_all();
        }
    }

    pub(crate) fn wait(&self) {
        let mut unacked = self.unacked.lock();
        while *unacked > 0 {
            self.all_acked.wait(&mut unacked);
        }
    }
}

/// That of an object that seldom has events: made with the first of them.
#[derive(Debug, Default)]
pub(crate) struct LazyAcks(OnceLock<Arc<AckCounter>>);

impl LazyAcks {
    /// For an event.
    pub(crate) fn share(&self) -> Arc<AckCounter> {
        Arc::clone(self.0.get_or_init(Arc::default))
    }

    /// Where there were any.
    pub(crate) fn get(&self) -> Option<&Arc<AckCounter>> {
        self.0.get()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    fn readable(queue: &EventQueue<u32>) -> bool {
        let mut set = sys::PollSet::default();
        let fd = set.add(queue.raw_fd());
        let waited = set.wait(Some(std::time::Duration::ZERO));
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
        assert!(!readable(&queue) && !queue.gate.close());
        queue.push(5);
        queue.retain(|_| false);
        assert!(!readable(&queue) && !queue.gate.close());
        // As several threads leave it that wanted the same event.
        queue.gate.open();
        assert_eq!(queue.pop(|_| ()).unwrap(), None);
        assert!(!queue.gate.close());
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
