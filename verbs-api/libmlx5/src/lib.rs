//! Drop-in `libmlx5.so.1`: programs link with it for what only mlx5 devices can do.
//! `mlx5dv_is_supported` says yes to devices that were given the identity of one (`identity` in the configuration), so that
//! nobody takes another for one whose queues may be written directly. Dynamic connections and indirect memory keys are offered; every other function fails
//! with `EOPNOTSUPP`.
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

/// Fails quietly: programs call these functions to find out whether the device has them.
pub(crate) fn unsupported(_function: &str) {
    // SAFETY: the C library returns a valid pointer to the errno of this thread.
    unsafe { *libc::__errno_location() = libc::EOPNOTSUPP };
}
