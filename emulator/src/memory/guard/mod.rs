//! Accesses to memory that may be gone: a fault is an error, not the end of the process.
//!
//! An application may unmap memory that is registered, protect it or truncate the file behind it. What
//! a NIC has pinned stays; we meet a SIGSEGV or SIGBUS. Two ways to come out of that alive:
//!
//! * [`Way::Section`]: the access runs inside a section ([`section`]), and a signal handler of ours
//!   ([`signals`]) ends the section where it faults. It costs a few nanoseconds.
//! * [`Way::Kernel`]: the kernel copies, and says `EFAULT` ([`kernel`]). It costs a microsecond, and is for
//!   threads in which the handler would not be called: the program has put its own in its place, or blocks
//!   the signals.
//!
//! Which way a thread has to go is looked up now and then, because looking is a system call.

pub(super) mod kernel;
pub(super) mod section;
mod signals;

#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::time::{Duration, Instant};

use rocade_transport::Time;

pub(super) use signals::install;

/// The memory is not there, or not with these rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault;

/// How a thread accesses memory that may be gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Itself; our signal handler catches faults.
    Section,
    /// The kernel does it.
    Kernel,
}

/// For so long at least a look at the signal handlers counts: a program that replaces them and unmaps
/// memory within this time is not noticed.
const LOOK_NS: u64 = 20_000;
/// And at most, see [`counts_for`].
const LOOK_MAX_NS: u64 = 2_000_000;
/// Looking takes one part in so many of a thread's time, where system calls are slow (an emulated or a
/// traced processor).
const LOOK_SHARE: u64 = 100;
/// Signal mask and SIGBUS change together with SIGSEGV as a rule; in a thread that is busy they are looked
/// at once in so many times.
const THOROUGH_TURN: u32 = 8;
/// A thread was not busy that has not looked for so long.
const IDLE_NS: u64 = 200_000;

#[derive(Clone, Copy)]
struct Looked {
    way: Option<Way>,
    at_ns: u64,
    for_ns: u64,
    count: u32,
}

thread_local! {
    static LOOKED: Cell<Looked> = const {
        Cell::new(Looked {
            way: None,
            at_ns: 0,
            for_ns: LOOK_NS,
            count: 0,
        })
    };
}

/// The way for the calling thread.
#[inline]
pub(super) fn way(now: Time) -> Way {
    let looked = LOOKED.get();
    let age = now.as_ns().wrapping_sub(looked.at_ns);
    match looked.way {
        Some(way) if age < looked.for_ns => way,
        _ => look(now, looked, age),
    }
}

#[cold]
fn look(now: Time, before: Looked, age: u64) -> Way {
    let thorough = before.way != Some(Way::Section)
        || age > IDLE_NS
        || before.count.is_multiple_of(THOROUGH_TURN);
    let begin = Instant::now();
    let way = if signals::reach_us(thorough) {
        Way::Section
    } else {
        Way::Kernel
    };
    LOOKED.set(Looked {
        way: Some(way),
        at_ns: now.as_ns(),
        for_ns: counts_for(begin.elapsed()),
        count: before.count.wrapping_add(1),
    });
    way
}

/// For how many ns a look counts that took so long.
fn counts_for(took: Duration) -> u64 {
    let took_ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
    took_ns
        .saturating_mul(LOOK_SHARE)
        .clamp(LOOK_NS, LOOK_MAX_NS)
}
