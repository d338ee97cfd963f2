//! The rings of all traced processes, merged by time.
//!
//! While the program is busy, its records are only copied, which takes little time. They are
//! decoded when it becomes quiet or ends, or when too many wait.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::{Path, PathBuf};

use rocade_emulator::trace::{Record, RingReader, now_ns, records};

/// A record and the process that has written it.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) pid: u32,
    pub(super) record: Record,
}

/// A record may become visible this much later than its time. Records wait as long, so that those
/// of other processes take their place before them.
const SETTLE_NS: u64 = 20_000_000;

/// A round with more words comes from a program that is busy: some hundred records.
const BUSY_WORDS: usize = 4 * 1024;
/// Most words that wait: 256 MiB.
const MOST_HELD_WORDS: usize = 32 * 1024 * 1024;

/// The words that a look at the rings has found.
#[derive(Debug)]
struct Round {
    /// The time before the look.
    at_ns: u64,
    /// The words of each process.
    words: Vec<(u32, Vec<u64>)>,
}

/// The rings in a directory, and what was copied out of them.
#[derive(Debug)]
pub(super) struct Source {
    dir: PathBuf,
    rings: BTreeMap<PathBuf, (u32, RingReader)>,
    rounds: VecDeque<Round>,
    held_words: usize,
    waiting: Vec<Entry>,
}

impl Source {
    pub(super) fn new(dir: &Path) -> Self {
        Self {
            dir: dir.to_owned(),
            rings: BTreeMap::new(),
            rounds: VecDeque::new(),
            held_words: 0,
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

    /// Copies new records out of the rings. Returns true if decoding them should wait, because the
    /// program is busy and may need the processor.
    ///
    /// # Errors
    /// Those of reading the files.
    pub(super) fn collect(&mut self) -> io::Result<bool> {
        self.find()?;
        let mut round = Round {
            at_ns: now_ns(),
            words: Vec::new(),
        };
        let mut found = 0;
        for (pid, ring) in self.rings.values_mut() {
            let mut words = Vec::new();
            ring.read(&mut words)?;
            found += words.len();
            if !words.is_empty() {
                round.words.push((*pid, words));
            }
        }
        self.held_words += found;
        self.rounds.push_back(round);
        Ok(found > BUSY_WORDS && !self.is_full())
    }

    /// Returns true if so many words wait that decoding them comes before looking for more.
    pub(super) const fn is_full(&self) -> bool {
        self.held_words >= MOST_HELD_WORDS
    }

    /// Decodes the oldest round. Returns records in the order of time, or `None` without a round.
    /// With `all`, also those that could still get predecessors.
    pub(super) fn next(&mut self, all: bool) -> Option<Vec<Entry>> {
        let round = self.rounds.pop_front()?;
        for (pid, words) in &round.words {
            self.held_words -= words.len();
            let entry = |record| Entry { pid: *pid, record };
            self.waiting.extend(records(words).map(entry));
        }
        let until = if all && self.rounds.is_empty() {
            u64::MAX
        } else {
            round.at_ns.saturating_sub(SETTLE_NS)
        };
        self.waiting.sort_by_key(|entry| entry.record.time_ns);
        let ready = self
            .waiting
            .partition_point(|entry| entry.record.time_ns <= until);
        Some(self.waiting.drain(..ready).collect())
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
