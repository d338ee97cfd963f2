//! The rings of all traced processes, merged by time.
//!
//! While the program is busy, its records are only copied, which takes little time. They are
//! decoded when it becomes quiet or ends, or when too many wait.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::{Path, PathBuf};

use rocade_emulator::trace::{Record, RingReader, buffer, is_full, now_ns, records};

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
    /// Processes, and how many words of each are next in the buffers.
    words: Vec<(u32, usize)>,
}

/// Words that wait, in buffers.
#[derive(Debug, Default)]
struct Held {
    buffers: VecDeque<Vec<u64>>,
    /// The words of the first buffer that were taken.
    taken: usize,
    /// The words that wait.
    count: usize,
}

impl Held {
    /// Copies words out of a ring. Returns their number.
    fn copy(&mut self, ring: &mut RingReader) -> io::Result<usize> {
        if self.buffers.back().is_none_or(is_full) {
            self.buffers.push_back(buffer());
        }
        let Some(last) = self.buffers.back_mut() else {
            return Ok(0);
        };
        let count = ring.read(last)?;
        self.count += count;
        Ok(count)
    }

    /// Takes the oldest words, as many as were copied at once.
    fn take(&mut self, count: usize) -> &[u64] {
        if self
            .buffers
            .front()
            .is_some_and(|one| one.len() == self.taken)
        {
            self.buffers.pop_front();
            self.taken = 0;
        }
        let start = self.taken;
        self.taken += count;
        self.count -= count;
        let first = self.buffers.front();
        first.map_or(&[], |one| one.get(start..self.taken).unwrap_or_default())
    }

    /// Uses the space of words again, if all were taken.
    fn reuse(&mut self) {
        if self.count == 0 {
            self.buffers.truncate(1);
            self.buffers.iter_mut().for_each(Vec::clear);
            self.taken = 0;
        }
    }
}

/// The rings in a directory, and what was copied out of them.
#[derive(Debug)]
pub(super) struct Source {
    dir: PathBuf,
    rings: BTreeMap<PathBuf, (u32, RingReader)>,
    rounds: VecDeque<Round>,
    held: Held,
    waiting: Vec<Entry>,
}

impl Source {
    pub(super) fn new(dir: &Path) -> Self {
        Self {
            dir: dir.to_owned(),
            rings: BTreeMap::new(),
            rounds: VecDeque::new(),
            held: Held::default(),
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
            loop {
                let count = self.held.copy(ring)?;
                if count == 0 {
                    break;
                }
                found += count;
                round.words.push((*pid, count));
            }
        }
        self.rounds.push_back(round);
        Ok(found > BUSY_WORDS && !self.is_full())
    }

    /// Returns true if so many words wait that decoding them comes before looking for more.
    pub(super) const fn is_full(&self) -> bool {
        self.held.count >= MOST_HELD_WORDS
    }

    /// Decodes the oldest round. Returns records in the order of time, or `None` without a round.
    /// With `all`, also those that could still get predecessors.
    pub(super) fn next(&mut self, all: bool) -> Option<Vec<Entry>> {
        let round = self.rounds.pop_front()?;
        for (pid, count) in round.words {
            let entry = |record| Entry { pid, record };
            let words = self.held.take(count);
            self.waiting.extend(records(words).map(entry));
        }
        self.held.reuse();
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
