//! The rings of all traced processes, merged by time.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use rocade_emulator::trace::{Record, RingReader, now_ns};

/// A record and the process that has written it.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) pid: u32,
    pub(super) record: Record,
}

/// A record may become visible this much later than its time. Records wait as long, so that those
/// of other processes take their place before them.
const SETTLE_NS: u64 = 20_000_000;

/// The rings in a directory.
#[derive(Debug)]
pub(super) struct Source {
    dir: PathBuf,
    rings: BTreeMap<PathBuf, (u32, RingReader)>,
    waiting: Vec<Entry>,
}

impl Source {
    pub(super) fn new(dir: &Path) -> Self {
        Self {
            dir: dir.to_owned(),
            rings: BTreeMap::new(),
            waiting: Vec::new(),
        }
    }

    /// Opens the rings of new processes.
    fn find(&mut self) -> io::Result<()> {
        for entry in std::fs::read_dir(&self.dir)? {
            let path = entry?.path();
            if self.rings.contains_key(&path) {
                continue;
            }
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let pid = name.split('-').next().and_then(|pid| pid.parse().ok());
            // A ring in the making is found again by the next call.
            if let (Some(pid), Ok(ring)) = (pid, RingReader::open(&path)) {
                self.rings.insert(path, (pid, ring));
            }
        }
        Ok(())
    }

    /// Returns new records in the order of time. With `all`, also those that could still get
    /// predecessors.
    ///
    /// # Errors
    /// Those of reading the files.
    pub(super) fn next(&mut self, all: bool) -> io::Result<Vec<Entry>> {
        self.find()?;
        let until = if all {
            u64::MAX
        } else {
            now_ns().saturating_sub(SETTLE_NS)
        };
        let mut records = Vec::new();
        for (pid, ring) in self.rings.values_mut() {
            ring.read(&mut records)?;
            let pid = *pid;
            let entries = records.drain(..).map(|record| Entry { pid, record });
            self.waiting.extend(entries);
        }
        self.waiting.sort_by_key(|entry| entry.record.time_ns);
        let ready = self
            .waiting
            .partition_point(|entry| entry.record.time_ns <= until);
        Ok(self.waiting.drain(..ready).collect())
    }

    /// Returns the processes that have lost records, and how many.
    pub(super) fn lost(&self) -> Vec<(u32, u64)> {
        let all = self.rings.values();
        let lost = all.map(|(pid, ring)| (*pid, ring.lost().unwrap_or(0)));
        let mut lost: Vec<_> = lost.filter(|(_, count)| *count > 0).collect();
        lost.sort_unstable();
        lost
    }
}
