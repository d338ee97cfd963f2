//! The synchronisation primitives that the loom models replace.
//!
//! Modelled code takes its atomics and locks from this module: memory keys, completion queues,
//! shared receive queues, the driver arbiter (the hand-over between application and background
//! thread), and the service queue.

#[cfg(not(loom))]
pub(crate) mod atomic {
    pub(crate) use std::sync::atomic::{
        AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
    };
}

#[cfg(loom)]
pub(crate) mod atomic {
    pub(crate) use loom::sync::atomic::{
        AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
    };
}

#[cfg(loom)]
pub(crate) use loom::sync::{MutexGuard, RwLockReadGuard};
#[cfg(not(loom))]
pub(crate) use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard};

#[cfg(loom)]
const WHOLE: &str = "no model panics while it holds a lock";

/// A lock with the interface of parking_lot's.
#[cfg(loom)]
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

#[cfg(loom)]
impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().expect(WHOLE)
    }

    /// Like `try_lock`, because a model has no time.
    pub(crate) fn try_lock_for(&self, _: std::time::Duration) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock().ok()
    }
}

/// A read-write lock with the interface of parking_lot's.
#[cfg(loom)]
#[derive(Debug)]
pub(crate) struct RwLock<T>(loom::sync::RwLock<T>);

#[cfg(loom)]
impl<T: Default> Default for RwLock<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

#[cfg(loom)]
impl<T> RwLock<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(loom::sync::RwLock::new(value))
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().expect(WHOLE)
    }

    /// Like `read`, because no model reads recursively.
    pub(crate) fn read_recursive(&self) -> RwLockReadGuard<'_, T> {
        self.read()
    }

    pub(crate) fn try_read_for(&self, _: std::time::Duration) -> Option<RwLockReadGuard<'_, T>> {
        self.0.try_read().ok()
    }

    pub(crate) fn write(&self) -> loom::sync::RwLockWriteGuard<'_, T> {
        self.0.write().expect(WHOLE)
    }
}
