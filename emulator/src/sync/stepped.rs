//! Atomics at whose accesses a thread of a simulated host may hand over (`turn::step`).
//!
//! Each access is one step: what another thread does may come before it, but not within it. Threads
//! of other tests do not notice the difference.

use std::sync::atomic::Ordering;

use super::turn;

macro_rules! stepped {
    ($($name:ident: $value:ty { $($operation:ident),* })+) => { $(
        #[derive(Debug, Default)]
        #[repr(transparent)]
        pub(crate) struct $name(std::sync::atomic::$name);

        #[allow(dead_code, reason = "each type has the operations of all")]
        impl $name {
            pub(crate) const fn new(value: $value) -> Self {
                Self(std::sync::atomic::$name::new(value))
            }

            #[track_caller]
            pub(crate) fn load(&self, order: Ordering) -> $value {
                turn::step();
                self.0.load(order)
            }

            #[track_caller]
            pub(crate) fn store(&self, value: $value, order: Ordering) {
                turn::step();
                self.0.store(value, order);
            }

            #[track_caller]
            pub(crate) fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                turn::step();
                self.0.compare_exchange(current, new, success, failure)
            }

            #[track_caller]
            pub(crate) fn compare_exchange_weak(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.compare_exchange(current, new, success, failure)
            }

            pub(crate) fn get_mut(&mut self) -> &mut $value {
                self.0.get_mut()
            }

            $(
                #[track_caller]
                pub(crate) fn $operation(&self, value: $value, order: Ordering) -> $value {
                    turn::step();
                    self.0.$operation(value, order)
                }
            )*
        }
    )+ };
}

stepped! {
    AtomicBool: bool { swap, fetch_and, fetch_or }
    AtomicU32: u32 { swap, fetch_add, fetch_sub, fetch_and, fetch_or, fetch_max, fetch_min }
    AtomicU64: u64 { swap, fetch_add, fetch_sub, fetch_and, fetch_or, fetch_max, fetch_min }
    AtomicUsize: usize { swap, fetch_add, fetch_sub, fetch_and, fetch_or, fetch_max, fetch_min }
}
