//! TCP ports for the out-of-band exchange of the test programs.

use std::{
    net::TcpListener,
    process,
    sync::atomic::{AtomicU16, Ordering},
};

/// The ports lie below the range that the kernel uses for outgoing connections.
const FIRST: u16 = 12_000;
const COUNT: u16 = 18_000;

/// Returns a TCP port that is not in use, and that this function has not returned before in this
/// process.
///
/// # Panics
/// If no port is free.
#[must_use]
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Test programs that run at the same time begin at different ports.
    let base = u16::try_from(process::id() % u32::from(COUNT / 100)).unwrap_or(0) * 100;
    for _ in 0..COUNT {
        let offset = base.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % COUNT;
        let port = FIRST + offset;
        // Both address families on all addresses, as pingpong and perftest bind them.
        if TcpListener::bind(("0.0.0.0", port)).is_ok() && TcpListener::bind(("::", port)).is_ok() {
            return port;
        }
    }
    panic!("no free TCP port");
}
