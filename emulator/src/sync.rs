//! The synchronisation primitives that the loom models replace.
//!
//! What is shared between threads and modelled (the completion ring with its arming, the
//! hand-over between inline and background progress, the agenda) takes its atomics and locks from here.

#[cfg(not(loom))]
pub(crate) mod atomic {
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
}

#[cfg(loom)]
pub(crate) mod atomic {
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
}

#[cfg(not(loom))]
pub(crate) use parking_lot::Mutex;

/// A lock as parking_lot's.
#[cfg(loom)]
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

#[cfg(loom)]
impl<T> Mutex<T> {
    pub(crate) fn lock(&self) -> loom::sync::MutexGuard<'_, T> {
        self.0
            .lock()
            .expect("no model panics while it holds a lock")
    }

    /// A model has no time.
    pub(crate) fn try_lock_for(
        &self,
        _: std::time::Duration,
    ) -> Option<loom::sync::MutexGuard<'_, T>> {
        self.0.try_lock().ok()
    }
}
