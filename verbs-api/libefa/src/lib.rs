//! Drop-in `libefa.so.1`, which programs link with for EFA devices.
//!
//! Completion counters in memory of the program work on every device of Rocade. Rocade has no EFA
//! device, so every other function fails with `EOPNOTSUPP`.
//!
//! The engine is in `libibverbs.so.1`. The exported symbols are listed in `exports.tsv`.

// Test builds have no version script, so nothing is exported and the functions look unused.
#![cfg_attr(
    test,
    allow(dead_code, reason = "exported symbols are left out of test builds")
)]

mod forward;
#[path = "../../librdmacm/src/library.rs"]
mod library;

#[cfg(not(test))]
mod exports {
    include!(concat!(env!("OUT_DIR"), "/exports.rs"));
}

/// Sets `errno` without a diagnostic, because programs call these functions to test for a feature.
pub(crate) fn unsupported(function: &str) {
    forward::trace_unsupported(function);
    // SAFETY: the C library returns a valid pointer to the errno of this thread.
    unsafe { *libc::__errno_location() = libc::EOPNOTSUPP };
}
