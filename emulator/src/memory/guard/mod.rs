//! Accesses to memory that may be unmapped: a fault is an error, not the end of the process.
//!
//! An application may unmap registered memory, protect it or truncate the file behind it. Memory
//! that a NIC has pinned stays accessible, but Rocade gets a SIGSEGV or SIGBUS. Two methods survive
//! that:
//!
//! * [`CopyMethod::Section`]: the access runs inside a section ([`section`]), and Rocade's signal
//!   handler ([`signals`]) ends the section at the fault. A section costs a few nanoseconds.
//! * [`CopyMethod::Kernel`]: the kernel copies, and returns `EFAULT` ([`kernel`]). Each copy costs
//!   a microsecond. It is for threads in which Rocade's handler would not be called: the
//!   application has installed its own handler, or blocks the signals.
//!
//! The method of a thread is checked at intervals only, because the check is a system call.

pub(super) mod kernel;
pub(super) mod section;
mod signals;

#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::time::{Duration, Instant};

use rocade_transport::Time;

pub(crate) use signals::are_blocked;
pub(super) use signals::install;

/// The error of an access to memory that is unmapped or has other rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault;

/// The method by which a thread accesses memory that may be unmapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyMethod {
    /// The thread accesses it, and Rocade's signal handler catches faults.
    Section,
    /// The kernel copies.
    Kernel,
}

/// Shortest time for which a check of the signal handlers is valid. An application that replaces
/// the handlers and unmaps memory within this time is not noticed.
const CACHE_NS: u64 = 20_000;
/// Longest time, see [`cache_time`].
const CACHE_MAX_NS: u64 = 2_000_000;
/// Reciprocal of the share of a thread's time that checks may take, where system calls are slow (an
/// emulated or a traced processor).
const DETECT_SHARE: u64 = 100;
/// Signal mask and SIGBUS handler usually change together with the SIGSEGV handler. A busy thread
/// checks them only every so many times.
const THOROUGH_TURN: u32 = 8;
/// A thread that has not checked for this time was not busy.
const IDLE_NS: u64 = 200_000;

#[derive(Clone, Copy)]
struct CachedMethod {
    method: Option<CopyMethod>,
    at_ns: u64,
    for_ns: u64,
    count: u32,
}

thread_local! {
    static CACHED_METHOD: Cell<CachedMethod> = const {
        Cell::new(CachedMethod {
            method: None,
            at_ns: 0,
            for_ns: CACHE_NS,
            count: 0,
        })
    };
}

/// Returns the method for the calling thread.
#[inline]
pub(super) fn copy_method(now: Time) -> CopyMethod {
    let cached = CACHED_METHOD.get();
    let age = now.as_ns().wrapping_sub(cached.at_ns);
    match cached.method {
        Some(method) if age < cached.for_ns => method,
        _ => detect(now, cached, age),
    }
}

#[cold]
fn detect(now: Time, before: CachedMethod, age: u64) -> CopyMethod {
    let thorough = before.method != Some(CopyMethod::Section)
        || age > IDLE_NS
        || before.count.is_multiple_of(THOROUGH_TURN);
    let begin = Instant::now();
    let method = if signals::are_handled_here(thorough) {
        CopyMethod::Section
    } else {
        CopyMethod::Kernel
    };
    CACHED_METHOD.set(CachedMethod {
        method: Some(method),
        at_ns: now.as_ns(),
        for_ns: cache_time(begin.elapsed()),
        count: before.count.wrapping_add(1),
    });
    method
}

/// Returns for how many ns a check is valid that took this long.
fn cache_time(took: Duration) -> u64 {
    let took_ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
    took_ns
        .saturating_mul(DETECT_SHARE)
        .clamp(CACHE_NS, CACHE_MAX_NS)
}
