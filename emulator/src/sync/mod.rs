//! Locks with ranks, and the primitives that the loom models replace.
//!
//! Every lock of the emulator has a [`Rank`]. A thread waits for a lock only while each lock that
//! it holds has a lower rank, so that no two threads wait for each other. Debug builds check it,
//! hence also the tests, the simulations and the fuzzers, and panic at the first violation with
//! both places. Release builds contain no trace of the ranks. docs/locks.md explains the order.
//!
//! Modelled code takes its atomics and locks from [`modelled`]: memory keys, completion queues,
//! shared receive queues, the driver arbiter (the hand-over between application and background
//! thread), and the service queue. In a simulated host, threads may hand over at each access.

mod held;
pub(crate) mod modelled;
pub(crate) mod rank;
#[cfg(all(any(test, feature = "simulated-host"), not(loom)))]
mod stepped;
pub(crate) mod turn;

/// The atomics of code without a loom model, and of memory that processes share. In a simulated
/// host threads may hand over at each access, too.
pub(crate) mod atomic {
    #[cfg(all(any(test, feature = "simulated-host"), not(loom)))]
    pub(crate) use super::stepped::{AtomicBool, AtomicU64, AtomicUsize};
    #[cfg(not(all(any(test, feature = "simulated-host"), not(loom))))]
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
    pub(crate) use std::sync::atomic::{Ordering, fence};
}

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use held::Held;
#[cfg(all(any(test, feature = "simulated-host"), not(loom)))]
pub(crate) use held::held_locks;
pub(crate) use rank::{Rank, Ranked};

/// A mutual exclusion lock of rank `R`.
pub(crate) struct Mutex<T: ?Sized, R = rank::Leaf> {
    rank: PhantomData<fn() -> R>,
    inner: parking_lot::Mutex<T>,
}

impl<T, R: Ranked> Mutex<T, R> {
    pub(crate) const fn new(value: T) -> Self {
        Self {
            rank: PhantomData,
            inner: parking_lot::Mutex::new(value),
        }
    }

    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        turn::point();
        let held = Held::wait(R::RANK, held::Use::Alone);
        turn::until_free(|| self.inner.is_locked());
        MutexGuard {
            inner: self.inner.lock(),
            held,
        }
    }

    /// Locks if that is possible at once. Any rank may be tried, because nothing waits.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        turn::point();
        let inner = self.inner.try_lock()?;
        let held = Held::take(R::RANK, held::Use::Alone);
        Some(MutexGuard { inner, held })
    }

    /// Waits for the lock, but no longer than `patience`. Any rank may be tried, because the wait
    /// ends.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn try_lock_for(&self, patience: Duration) -> Option<MutexGuard<'_, T>> {
        turn::until(Some(patience), || !self.inner.is_locked());
        let inner = self.inner.try_lock_for(patience)?;
        let held = Held::take(R::RANK, held::Use::Alone);
        Some(MutexGuard { inner, held })
    }

    pub(crate) fn is_locked(&self) -> bool {
        self.inner.is_locked()
    }

    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut()
    }
}

impl<T: Default, R: Ranked> Default for Mutex<T, R> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T: fmt::Debug, R> fmt::Debug for Mutex<T, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// A held [`Mutex`]. Dropping it unlocks.
#[derive(Debug)]
pub(crate) struct MutexGuard<'a, T> {
    inner: parking_lot::MutexGuard<'a, T>,
    held: Held,
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

/// A condition that threads wait for under a [`Mutex`].
#[derive(Debug, Default)]
pub(crate) struct Condvar(parking_lot::Condvar);

impl Condvar {
    /// Unlocks, waits for a notice, and locks again.
    pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        guard.held.assert_last();
        self.0.wait(&mut guard.inner);
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// A lock of rank `R` that several readers hold at once, or one writer alone.
pub(crate) struct RwLock<T: ?Sized, R = rank::Leaf> {
    rank: PhantomData<fn() -> R>,
    inner: parking_lot::RwLock<T>,
}

impl<T, R: Ranked> RwLock<T, R> {
    pub(crate) const fn new(value: T) -> Self {
        Self {
            rank: PhantomData,
            inner: parking_lot::RwLock::new(value),
        }
    }

    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, T> {
        turn::point();
        let held = Held::wait(R::RANK, held::Use::Shared);
        turn::until_free(|| self.inner.is_locked_exclusive());
        RwLockReadGuard {
            inner: self.inner.read(),
            _held: held,
        }
    }

    /// Like `read`, for threads that may be reading this lock, or others of its rank, already.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn read_recursive(&self) -> RwLockReadGuard<'_, T> {
        turn::point();
        let held = Held::wait(R::RANK, held::Use::SharedAgain);
        turn::until_free(|| self.inner.is_locked_exclusive());
        RwLockReadGuard {
            inner: self.inner.read_recursive(),
            _held: held,
        }
    }

    /// Locks for reading if that is possible at once.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        let inner = self.inner.try_read()?;
        let _held = Held::take(R::RANK, held::Use::Shared);
        Some(RwLockReadGuard { inner, _held })
    }

    /// Waits for the lock, but no longer than `patience`.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn try_read_for(&self, patience: Duration) -> Option<RwLockReadGuard<'_, T>> {
        turn::until(Some(patience), || !self.inner.is_locked_exclusive());
        let inner = self.inner.try_read_for(patience)?;
        let _held = Held::take(R::RANK, held::Use::Shared);
        Some(RwLockReadGuard { inner, _held })
    }

    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, T> {
        turn::point();
        let held = Held::wait(R::RANK, held::Use::Alone);
        turn::until_free(|| self.inner.is_locked());
        RwLockWriteGuard {
            inner: self.inner.write(),
            _held: held,
        }
    }

    /// Locks for writing if that is possible at once.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        let inner = self.inner.try_write()?;
        let _held = Held::take(R::RANK, held::Use::Alone);
        Some(RwLockWriteGuard { inner, _held })
    }
}

impl<T: Default, R: Ranked> Default for RwLock<T, R> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T: fmt::Debug, R> fmt::Debug for RwLock<T, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// An [`RwLock`] held for reading. Dropping it unlocks.
#[derive(Debug)]
pub(crate) struct RwLockReadGuard<'a, T> {
    inner: parking_lot::RwLockReadGuard<'a, T>,
    _held: Held,
}

impl<T> Deref for RwLockReadGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.inner
    }
}

/// An [`RwLock`] held for writing. Dropping it unlocks.
#[derive(Debug)]
pub(crate) struct RwLockWriteGuard<'a, T> {
    inner: parking_lot::RwLockWriteGuard<'a, T>,
    _held: Held,
}

impl<T> Deref for RwLockWriteGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> DerefMut for RwLockWriteGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}
