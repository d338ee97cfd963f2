//! Waiting for socket events.
//!
//! A thread sleeps in ppoll(2) on the descriptors of the sockets and on an eventfd of its own. If
//! another thread polls their completions or makes a socket ready, it writes to that eventfd.

use std::{
    cell::RefCell,
    os::fd::{AsRawFd, OwnedFd, RawFd},
    sync::Arc,
};

use super::sys;
use crate::{engine::generation, ffi::Errno};

/// Data, a connection to accept, or the end of the stream can be read.
pub(super) const IN: u8 = 1;
/// Data can be written, or the connection is established.
pub(super) const OUT: u8 = 2;
/// The connection has ended. Every waiting thread is woken.
pub(super) const END: u8 = 4;
/// All data sent so far have arrived.
pub(super) const SENT: u8 = 8;

/// The eventfd that wakes one thread.
pub(super) struct Waker {
    fd: OwnedFd,
    generation: u32,
}

thread_local! {
    static WAKER: RefCell<Option<Arc<Waker>>> = const { RefCell::new(None) };
}

impl Waker {
    /// Returns the waker of this thread.
    pub(super) fn current() -> Result<Arc<Self>, Errno> {
        let generation = generation()?;
        WAKER.with_borrow_mut(|waker| {
            if let Some(waker) = waker
                && waker.generation == generation
            {
                return Ok(Arc::clone(waker));
            }
            let new = Arc::new(Self {
                fd: sys::eventfd()?,
                generation,
            });
            *waker = Some(Arc::clone(&new));
            Ok(new)
        })
    }

    pub(super) fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    pub(super) fn wake(&self) {
        sys::set_event(&self.fd);
    }

    pub(super) fn clear(&self) {
        sys::clear_event(&self.fd);
    }
}

/// A thread that waits for a socket.
struct Waiter {
    waker: Arc<Waker>,
    interest: u8,
    /// The activity of the socket that the thread knows of. It waits for more, if this is given.
    known: Option<u64>,
}

/// The threads that wait for a socket.
#[derive(Default)]
pub(super) struct Waiters {
    all: Vec<Waiter>,
    /// Number of arrivals and changes of the socket, approximately.
    activity: u64,
}

impl Waiters {
    pub(super) const fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Number of arrivals and changes of the socket, approximately. It changes with each of them.
    pub(super) const fn activity(&self) -> u64 {
        self.activity
    }

    pub(super) const fn note_activity(&mut self) {
        self.activity = self.activity.wrapping_add(1);
    }

    pub(super) fn add(&mut self, waker: &Arc<Waker>, interest: u8) {
        self.add_edge(waker, interest, None);
    }

    /// Adds a thread that knows the state of the socket as of `known`, if given.
    pub(super) fn add_edge(&mut self, waker: &Arc<Waker>, interest: u8, known: Option<u64>) {
        self.all.push(Waiter {
            waker: Arc::clone(waker),
            interest: interest | END,
            known,
        });
    }

    /// Removes one entry of a thread.
    pub(super) fn remove(&mut self, waker: &Arc<Waker>) {
        let is_it = |waiter: &Waiter| Arc::ptr_eq(&waiter.waker, waker);
        if let Some(at) = self.all.iter().position(is_it) {
            self.all.swap_remove(at);
        }
    }

    /// Wakes the threads that wait for one of these events.
    pub(super) fn wake(&self, ready: u8) {
        if ready == 0 {
            return;
        }
        for waiter in &self.all {
            if waiter.interest & ready != 0 && waiter.known != Some(self.activity) {
                waiter.waker.wake();
            }
        }
    }
}
