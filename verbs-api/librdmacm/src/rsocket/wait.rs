//! Waiting: who sleeps until something becomes of a socket, and who wakes them.
//!
//! A thread sleeps in ppoll(2) on the descriptors of what it waits for and one of its own. Another thread that takes
//! completions for it, or makes its socket ready, writes to that.

use std::{
    cell::RefCell,
    os::fd::{AsRawFd, OwnedFd, RawFd},
    sync::Arc,
};

use super::sys;
use crate::{engine::generation, ffi::Errno};

/// There is something to read, or to accept, or the end.
pub(super) const IN: u8 = 1;
/// There is room to write, or the connection is made.
pub(super) const OUT: u8 = 2;
/// Everything else; who waits for anything is woken.
pub(super) const END: u8 = 4;
/// What was sent has arrived.
pub(super) const SENT: u8 = 8;

/// Wakes one thread.
pub(super) struct Waker {
    fd: OwnedFd,
    generation: u32,
}

thread_local! {
    static WAKER: RefCell<Option<Arc<Waker>>> = const { RefCell::new(None) };
}

impl Waker {
    /// That of this thread.
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

/// Who waits for a socket.
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

    /// Takes away one entry of that thread.
    pub(super) fn remove(&mut self, waker: &Arc<Waker>) {
        if let Some(at) = self.all.iter().position(|(w, _)| Arc::ptr_eq(w, waker)) {
            self.all.swap_remove(at);
        }
    }

    /// Wakes those who wait for something that is so.
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
