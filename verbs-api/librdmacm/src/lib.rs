//! Drop-in `librdmacm.so.1`: the connection manager.
//!
//! It contains no emulator code. Connection management is not implemented yet: every function
//! that would need it fails with `EOPNOTSUPP`.
//!
//! The exported symbols are listed in `exports.tsv`.

#[cfg(not(test))]
mod exports {
    include!(concat!(env!("OUT_DIR"), "/exports.rs"));
}

/// Sets `errno` of the calling thread.
#[cfg(not(test))]
pub(crate) fn set_errno(code: libc::c_int) {
    // SAFETY: the C library returns a valid pointer to the errno of this thread.
    unsafe { *libc::__errno_location() = code };
}

mod devices;
mod event_str;
