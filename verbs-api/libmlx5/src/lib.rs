//! Drop-in `libmlx5.so.1`: programs link with it for what only mlx5 devices can do.
//! `mlx5dv_is_supported` answers false, so that nobody takes an emulated device for one whose
//! queues may be written directly; every other function fails with `EOPNOTSUPP`.
//!
//! The exported symbols are listed in `exports.tsv`.

#[cfg(not(test))]
mod exports {
    include!(concat!(env!("OUT_DIR"), "/exports.rs"));
}

/// Fails quietly: programs call these functions to find out whether the device has them.
#[cfg(not(test))]
pub(crate) fn unsupported(_function: &str) {
    // SAFETY: the C library returns a valid pointer to the errno of this thread.
    unsafe { *libc::__errno_location() = libc::EOPNOTSUPP };
}
