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

/// The threads that wait for a socket.
#[derive(Default)]
pub(super) struct Waiters {
    all: Vec<(Arc<Waker>, u8)>,
}

impl Waiters {
    pub(super) const fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(super) fn add(&mut self, waker: &Arc<Waker>, interest: u8) {
        self.all.push((Arc::clone(waker), interest | END));
    }

    /// Removes one entry of a thread.
    pub(super) fn remove(&mut self, waker: &Arc<Waker>) {
        if let Some(at) = self.all.iter().position(|(w, _)| Arc::ptr_eq(w, waker)) {
            self.all.swap_remove(at);
        }
    }

    /// Wakes the threads that wait for one of these events.
    pub(super) fn wake(&self, ready: u8) {
        if ready == 0 {
            return;
        }
        for (waker, interest) in &self.all {
            if interest & ready != 0 {
                waker.wake();
            }
        }
    }
}
