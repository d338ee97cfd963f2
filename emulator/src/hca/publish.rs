//! The counters that programs read as files (`/sys/class/infiniband/DEV/ports/1/counters`).
//!
//! The files hold the sum over all processes that use them: each adds what has come since it did so
//! last, under a lock that the system takes back from a process that ends. That is the background
//! thread's work, a few times a second while packets go, and nobody's else: who sends or receives only
//! looks at one word, and calls the thread for the first packets after a pause.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rocade_transport::Time;

use super::{COUNTER_FILES, Hca};

/// How far the files may be behind.
const INTERVAL_NS: u64 = 200_000_000;
/// How soon to try again when another process is writing.
const RETRY_NS: u64 = 5_000_000;
/// How often to try at the exit.
const TRIES_AT_EXIT: usize = 50;

/// Nobody reads.
const OFF: u8 = 0;
/// The files are up to date.
const CLEAN: u8 = 1;
/// They are not.
const DIRTY: u8 = 2;

/// Which files, and what is in them already.
#[derive(Debug, Default)]
pub(crate) struct Publisher {
    state: AtomicU8,
    /// When to write, in ns.
    at: AtomicU64,
    files: Mutex<Option<Files>>,
}

#[derive(Debug)]
struct Files {
    dir: PathBuf,
    /// A forked child has a copy of the counters, which are not its own.
    process: u32,
    /// What this process has added so far, by device.
    added: Vec<[u64; COUNTER_FILES.len()]>,
}

impl Publisher {
    /// Are the files up to date, so that they will be behind with the next packet?
    #[inline]
    pub(crate) fn is_clean(&self) -> bool {
        self.state.load(Ordering::Relaxed) == CLEAN
    }

    /// Packets have gone: until when do the files have to be written? `None` where that is known.
    #[cold]
    pub(crate) fn is_behind(&self) -> Option<Time> {
        let changed =
            self.state
                .compare_exchange(CLEAN, DIRTY, Ordering::AcqRel, Ordering::Relaxed);
        changed.ok().and_then(|_| self.due())
    }

    pub(crate) fn start(&self, dir: PathBuf, hcas: &[Arc<Hca>]) {
        let added = vec![[0; COUNTER_FILES.len()]; hcas.len()];
        *self.files.lock() = Some(Files {
            dir,
            process: std::process::id(),
            added,
        });
        self.state.store(DIRTY, Ordering::Release);
    }

    /// When the background thread has to write the files.
    pub(crate) fn due(&self) -> Option<Time> {
        let dirty = self.state.load(Ordering::Acquire) == DIRTY;
        dirty.then(|| Time::from_ns(self.at.load(Ordering::Relaxed)))
    }

    /// Writes the files if it is time.
    pub(crate) fn publish(&self, now: Time, hcas: &[Arc<Hca>]) {
        if self.due().is_none_or(|at| at > now) {
            return;
        }
        // Before the counters are read: what comes from here on makes the files be behind again.
        self.state.store(CLEAN, Ordering::SeqCst);
        let done = self.add_to_files(hcas);
        if !done {
            self.state.store(DIRTY, Ordering::Release);
        }
        let wait_ns = if done { INTERVAL_NS } else { RETRY_NS };
        let due = now.plus_ns(wait_ns).as_ns();
        self.at.store(due, Ordering::Relaxed);
    }

    /// The process exits.
    pub(crate) fn publish_at_exit(&self, hcas: &[Arc<Hca>]) {
        if self.state.load(Ordering::Acquire) == OFF {
            return;
        }
        for _ in 0..TRIES_AT_EXIT {
            if self.add_to_files(hcas) {
                return;
            }
            std::thread::sleep(Duration::from_nanos(RETRY_NS / 10));
        }
    }

    /// False where another process, or thread, is at it.
    fn add_to_files(&self, hcas: &[Arc<Hca>]) -> bool {
        let Some(mut files) = self.files.try_lock() else {
            return false;
        };
        let Some(Files {
            dir,
            process,
            added,
        }) = &mut *files
        else {
            return true;
        };
        if *process != std::process::id() {
            return true;
        }
        let mut done = true;
        for (hca, added) in hcas.iter().zip(added) {
            let port = port_dir(dir, hca);
            match add(&port, &hca.traffic.values(), added) {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => done = false,
                // The program has gone where it does not see them, or may not write to them.
                Err(TryLockError::Error(error)) => {
                    tracing::debug!(dir = %port.display(), %error, "no counters");
                }
            }
        }
        done
    }
}

fn port_dir(dir: &Path, hca: &Hca) -> PathBuf {
    let name = &hca.config.name;
    dir.join(name).join("infiniband").join(name).join("ports/1")
}

/// Adds to the files of a port what has come since `added`.
fn add(
    port: &Path,
    values: &[u64; COUNTER_FILES.len()],
    added: &mut [u64; COUNTER_FILES.len()],
) -> Result<(), TryLockError> {
    if values == added {
        return Ok(());
    }
    let lock = File::open(port).map_err(TryLockError::Error)?;
    lock.try_lock()?;
    for ((file, value), added) in COUNTER_FILES.iter().zip(values).zip(added) {
        let more = value.saturating_sub(*added);
        if more > 0 {
            add_one(&port.join(file), more).map_err(TryLockError::Error)?;
            *added = *value;
        }
    }
    Ok(())
}

/// Sums only grow, and so does their text: writing over the old one never leaves a rest of it.
fn add_one(path: &Path, more: u64) -> io::Result<()> {
    let sum: u64 = fs::read_to_string(path)?.trim().parse().unwrap_or(0);
    let text = format!("{}\n", sum.saturating_add(more));
    File::options()
        .write(true)
        .open(path)?
        .write_all(text.as_bytes())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn processes_add_up() {
        let port = tempfile::tempdir().expect("a temporary directory");
        for dir in ["counters", "hw_counters"] {
            fs::create_dir(port.path().join(dir)).expect("writable");
        }
        for file in COUNTER_FILES {
            fs::write(port.path().join(file), "0\n").expect("writable");
        }
        let read = |file: &str| fs::read_to_string(port.path().join(file)).expect("there");
        let (mut first, mut second) = ([0; COUNTER_FILES.len()], [0; COUNTER_FILES.len()]);
        add(port.path(), &[7; COUNTER_FILES.len()], &mut first).expect("no error");
        add(port.path(), &[5; COUNTER_FILES.len()], &mut second).expect("no error");
        add(port.path(), &[9; COUNTER_FILES.len()], &mut first).expect("no error");
        assert_eq!(read("counters/port_xmit_data"), "14\n");
        assert_eq!(first, [9; COUNTER_FILES.len()]);

        let other = File::open(port.path()).expect("there");
        other.lock().expect("nobody has it");
        let busy = add(port.path(), &[10; COUNTER_FILES.len()], &mut first);
        assert!(matches!(busy, Err(TryLockError::WouldBlock)), "{busy:?}");
        assert_eq!(first, [9; COUNTER_FILES.len()]);
    }
}
