//! A queue of events behind a file descriptor that programs may poll, epoll or make
//! non-blocking.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use parking_lot::{Condvar, Mutex};

use crate::engine::sys;
use crate::error::VerbsError;

/// The descriptor is readable exactly while the queue is not empty.
#[derive(Debug)]
pub(super) struct EventQueue<T> {
    fd: OwnedFd,
    queue: Mutex<VecDeque<T>>,
}

impl<T> EventQueue<T> {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            fd: sys::eventfd()?,
            queue: Mutex::new(VecDeque::new()),
        })
    }

    pub(super) fn raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(super) fn push(&self, event: T) {
        let mut queue = self.queue.lock();
        if queue.is_empty() {
            sys::eventfd_set(self.fd());
        }
        queue.push_back(event);
    }

    /// Takes the oldest event; `on_take` runs under the queue's lock, so that a concurrent
    /// [`EventQueue::retain`] either sees the event or its effect.
    fn try_pop(&self, on_take: impl FnOnce(&T)) -> Option<T> {
        let mut queue = self.queue.lock();
        let event = queue.pop_front()?;
        on_take(&event);
        if queue.is_empty() {
            sys::eventfd_clear(self.fd());
        }
        Some(event)
    }

    /// Takes the oldest event; waits for one unless the descriptor is non-blocking.
    pub(super) fn pop(&self, mut on_take: impl FnMut(&T)) -> Result<T, VerbsError> {
        loop {
            if let Some(event) = self.try_pop(&mut on_take) {
                return Ok(event);
            }
            if sys::is_nonblocking(self.fd()) {
                return Err(VerbsError::WouldBlock);
            }
            sys::wait_readable(self.fd())?;
        }
    }

    /// Drops the events that `keep` refuses.
    pub(super) fn retain(&self, keep: impl FnMut(&T) -> bool) {
        let mut queue = self.queue.lock();
        let had_events = !queue.is_empty();
        queue.retain(keep);
        if had_events && queue.is_empty() {
            sys::eventfd_clear(self.fd());
        }
    }
}

/// Events of one object that were handed to the application, and how many it acknowledged:
/// destroying the object waits until the figures agree (CQ-08, AEV-12).
#[derive(Debug, Default)]
pub(super) struct AckCounter {
    unacked: Mutex<u64>,
    all_acked: Condvar,
}

impl AckCounter {
    pub(super) fn delivered(&self) {
        *self.unacked.lock() += 1;
    }

    pub(super) fn ack(&self, count: u64) {
        let mut unacked = self.unacked.lock();
        *unacked = unacked.saturating_sub(count);
        if *unacked == 0 {
            self.all_acked.notify_all();
        }
    }

    pub(super) fn wait(&self) {
        let mut unacked = self.unacked.lock();
        while *unacked > 0 {
            self.all_acked.wait(&mut unacked);
        }
    }
}
