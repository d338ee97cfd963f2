//! Drop-in `librdmacm.so.1`: the connection manager.
//!
//! It contains no emulator code: IDs and events are the engine's, which is in `libibverbs.so.1` and reached through a
//! private table (`engine`). What is here is what a program sees of them: the structures of `rdma_cma.h`, the
//! synchronous mode, and queue pairs that follow their connections.
//!
//! The exported symbols are listed in `exports.tsv`; those without a function (`rsocket` and its kind)
//! fail with `EOPNOTSUPP`.

// Test builds have no version script, so nothing is exported and most functions look unused.
#![cfg_attr(
    test,
    allow(dead_code, reason = "exported symbols are left out of test builds")
)]

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
            "rocade[{}]: {function}: not in Rocade's librdmacm yet\n",
            std::process::id()
        );
        // SAFETY: the buffer has that length. Not write(2) of the C library, which would be a
        // cancellation point.
        let _ = unsafe { libc::syscall(libc::SYS_write, 2, line.as_ptr(), line.len()) };
    }
    // SAFETY: the C library returns a valid pointer to the errno of this thread.
    unsafe { *libc::__errno_location() = libc::EOPNOTSUPP };
}

mod addrinfo;
mod connect;
mod devices;
mod engine;
mod ep;
mod event;
mod event_str;
mod ffi;
mod id;
mod library;
mod multicast;
mod qp;
