//! The atomics and locks that the loom models and the simulated host replace.
//!
//! Only this crate's own tests replace them. A program with models of its own is compiled with the
//! same flag, but this crate works in it as always.

#[cfg(all(not(test), any(loom, not(feature = "simulated-host"))))]
pub(crate) mod atomic {
    pub(crate) use std::sync::atomic::{
        AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
    };
}

#[cfg(all(any(test, feature = "simulated-host"), not(loom)))]
pub(crate) mod atomic {
    pub(crate) use crate::sync::stepped::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};
    pub(crate) use std::sync::atomic::{Ordering, fence};
}

#[cfg(all(test, loom))]
pub(crate) mod atomic {
    pub(crate) use loom::sync::atomic::{
        AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
    };
}

/// Declares a value of each thread, with a constant initial value.
macro_rules! per_thread {
    ($(#[$attribute:meta])* static $name:ident: $type:ty = $initial:expr;) => {
        #[cfg(not(all(test, loom)))]
        std::thread_local! {
            $(#[$attribute])*
            static $name: $type = const { $initial };
        }
        #[cfg(all(test, loom))]
        loom::thread_local! {
            $(#[$attribute])*
            static $name: $type = $initial;
        }
    };
}
pub(crate) use per_thread;

#[cfg(not(all(test, loom)))]
pub(crate) use super::{Mutex, MutexGuard, RwLock, RwLockReadGuard};
#[cfg(all(test, loom))]
pub(crate) use in_models::{Mutex, RwLock};
#[cfg(all(test, loom))]
pub(crate) use loom::sync::{MutexGuard, RwLockReadGuard};

/// Locks with the interface of the ranked ones. Their ranks are not checked.
#[cfg(all(test, loom))]
mod in_models {
    use std::marker::PhantomData;
    use std::time::Duration;

    use loom::sync::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};

    use crate::sync::rank;

    const WHOLE: &str = "no model panics while it holds a lock";

    #[derive(Debug)]
    pub(crate) struct Mutex<T, R = rank::Leaf>(loom::sync::Mutex<T>, PhantomData<fn() -> R>);

    impl<T, R> Mutex<T, R> {
        pub(crate) fn new(value: T) -> Self {
            Self(loom::sync::Mutex::new(value), PhantomData)
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().expect(WHOLE)
        }

        /// Like `try_lock`, because a model has no time.
        pub(crate) fn try_lock_for(&self, _: Duration) -> Option<MutexGuard<'_, T>> {
            self.0.try_lock().ok()
        }
    }

    impl<T: Default, R> Default for Mutex<T, R> {
        fn default() -> Self {
            Self::new(T::default())
        }
    }

    #[derive(Debug)]
    pub(crate) struct RwLock<T, R = rank::Leaf>(loom::sync::RwLock<T>, PhantomData<fn() -> R>);

    impl<T: Default, R> Default for RwLock<T, R> {
        fn default() -> Self {
            Self::new(T::default())
        }
    }

    impl<T, R> RwLock<T, R> {
        pub(crate) fn new(value: T) -> Self {
            Self(loom::sync::RwLock::new(value), PhantomData)
        }

        pub(crate) fn read(&self) -> RwLockReadGuard<'_, T> {
            self.0.read().expect(WHOLE)
        }

        /// Like `read`, because no model reads recursively.
        pub(crate) fn read_recursive(&self) -> RwLockReadGuard<'_, T> {
            self.read()
        }

        pub(crate) fn try_read_for(&self, _: Duration) -> Option<RwLockReadGuard<'_, T>> {
            self.0.try_read().ok()
        }

        pub(crate) fn write(&self) -> RwLockWriteGuard<'_, T> {
            self.0.write().expect(WHOLE)
        }
    }
}
