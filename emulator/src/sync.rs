//! The synchronisation primitives that the loom models replace.
//!
//! What is shared between threads and modelled (the completion ring with its arming, the
//! hand-over between inline and background progress) takes its atomics and locks from here.

#[cfg(not(loom))]
pub(crate) mod atomic {
    pub(crate) use std::sync::atomic::{AtomicU64, Ordering, fence};
}

#[cfg(loom)]
pub(crate) mod atomic {
    pub(crate) use loom::sync::atomic::{AtomicU64, Ordering, fence};
}
