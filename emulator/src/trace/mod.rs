//! Trace records of a process: calls, work requests, completions and packets, for `rocade trace`.
//!
//! The process writes into a ring in a memory file (`ring.rs`), which `rocade trace` gets
//! ([`RingListener`]) and reads meanwhile. A record that finds no room is lost and counted, because
//! a traced program must never wait for its tracer. Without a tracer, [`is_on`] reads one byte.

mod packet;
mod record;
mod ring;
mod rings;
mod spool;
mod writer;

use std::io;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use crate::sys;
pub use packet::fold;
pub(crate) use packet::{FirstBytes, is_middle, is_response, note, received, sent, timeout};
pub use record::{Kind, MAX_FIELDS, Record, flag, queue};
use ring::Ring;
pub use ring::RingReader;
pub use rings::RingListener;
use writer::Content;

/// The variable with the directory of a tracer's socket ([`RingListener`]).
pub const ENV_TRACE_DIR: &str = "ROCADE_TRACE_DIR";

const UNKNOWN: u8 = 0;
const OFF: u8 = 1;
const ON: u8 = 2;

/// The most processes in a row that `fork` makes of each other and that are traced.
const MAX_FORKS: usize = 64;

static STATE: AtomicU8 = AtomicU8::new(UNKNOWN);
static FORKS: AtomicUsize = AtomicUsize::new(0);
static RINGS: [OnceLock<Option<Ring>>; MAX_FORKS] = [const { OnceLock::new() }; MAX_FORKS];

/// Returns true if this process writes a trace.
#[inline]
#[must_use]
pub fn is_on() -> bool {
    STATE.load(Ordering::Relaxed) == ON
}

/// Returns true if neither [`start`] nor [`forgo`] was called in this process.
#[inline]
#[must_use]
pub fn is_undecided() -> bool {
    STATE.load(Ordering::Relaxed) == UNKNOWN
}

/// Decides that this process writes no trace.
pub fn forgo() {
    STATE.store(OFF, Ordering::Relaxed);
}

/// Starts the trace of this process, for the tracer that listens in a directory.
///
/// # Errors
/// Those of making the ring, and of connecting. The process writes no trace then.
pub fn start(dir: &Path) -> io::Result<()> {
    let mut failed = Ok(());
    if let Some(place) = RINGS.get(FORKS.load(Ordering::Relaxed)) {
        let ring = place.get_or_init(|| match rings::create(dir) {
            Ok(ring) => Some(ring),
            Err(error) => {
                failed = Err(error);
                None
            }
        });
        if ring.is_some() {
            STATE.store(ON, Ordering::Relaxed);
            let command = std::fs::read("/proc/self/cmdline").unwrap_or_default();
            let command = String::from_utf8_lossy(&command).replace('\0', " ");
            write(
                Kind::Process,
                &[u64::from(std::process::id())],
                command.trim_end(),
            );
            return Ok(());
        }
    }
    forgo();
    failed
}

/// Forgets the trace of the parent process, in a child that `fork` has made. Async-signal-safe.
pub fn forget_after_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    STATE.store(UNKNOWN, Ordering::Relaxed);
}

/// Writes a record of the present time, unless there is no room.
pub fn write(kind: Kind, fields: &[u64], text: &str) {
    write_at(now_ns(), kind, fields, text);
}

/// Writes a record of a time that has passed a moment ago. It takes as long to read the clock as to
/// write a record.
pub fn write_at(time_ns: u64, kind: Kind, fields: &[u64], text: &str) {
    let forks = FORKS.load(Ordering::Relaxed);
    if let Some(Some(ring)) = RINGS.get(forks).and_then(OnceLock::get) {
        let text = text.as_bytes();
        let content = Content {
            time_ns,
            kind,
            fields,
            text,
        };
        writer::write(ring, forks, &content);
    }
}

/// Returns the time of the last record of the calling thread. 0 without any.
#[must_use]
pub fn last_ns() -> u64 {
    writer::last_ns()
}

/// Returns the present time of records, in nanoseconds of the system's monotonic clock.
#[must_use]
pub fn now_ns() -> u64 {
    sys::monotonic_ns()
}
