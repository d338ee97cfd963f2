//! Drop-in `libefa.so.1`, which programs link with for EFA devices. Rocade has no such device, so
//! every function fails with `EOPNOTSUPP`.
//!
//! The exported symbols are listed in `exports.tsv`.

#[cfg(not(test))]
mod exports {
    include!(concat!(env!("OUT_DIR"), "/exports.rs"));
}

/// Sets `errno` without a diagnostic, because programs call these functions to test for a feature.
#[cfg(not(test))]
pub(crate) fn unsupported(_function: &str) {
    // SAFETY: the C library returns a valid pointer to the errno of this thread.
    unsafe { *libc::__errno_location() = libc::EOPNOTSUPP };
}
