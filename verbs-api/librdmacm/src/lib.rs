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

/// Fails with `EOPNOTSUPP`, and says so once per process.
#[cfg(not(test))]
pub(crate) fn unsupported(function: &str) {
    use std::sync::atomic::{AtomicBool, Ordering};

    static SAID: AtomicBool = AtomicBool::new(false);
    let off = |value: String| value.trim().eq_ignore_ascii_case("off");
    let silenced = || std::env::var("ROCADE_LOG").is_ok_and(off);
    if !SAID.swap(true, Ordering::Relaxed) && !silenced() {
        let line = format!(
            "rocade[{}]: {function}: Rocade has no connection manager (librdmacm) yet\n  \
             use the program's own way to exchange addresses: perftest without -R, for example\n",
            std::process::id()
        );
        // SAFETY: the buffer has that length. Not write(2) of the C library, which would be a
        // cancellation point.
        let _ = unsafe { libc::syscall(libc::SYS_write, 2, line.as_ptr(), line.len()) };
    }
    // SAFETY: the C library returns a valid pointer to the errno of this thread.
    unsafe { *libc::__errno_location() = libc::EOPNOTSUPP };
}

mod devices;
mod event_str;
