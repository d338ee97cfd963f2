//! The rings of all traced processes, merged by time.
//!
//! While the program is busy, its records stay where they are, which takes no time. When too many
//! wait there, they are moved to a file. They are decoded when the program becomes quiet or ends.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};

use rocade_emulator::trace::{Kind, Record, RingListener, RingReader, now_ns};

/// A record and the process that has written it.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) pid: u32,
    pub(super) record: Record,
}

/// A record may become visible this much later than its time, which is that of the begin of a call,
/// if its thread gets no processor meanwhile. Records wait as long, so that such take their place
/// before them.
const SETTLE_NS: u64 = 100_000_000;

/// A round with more words comes from a program that is busy: some hundred records.
const BUSY_WORDS: u64 = 4 * 1024;
/// Most words that wait in memory: 256 MiB.
const MOST_WAITING_WORDS: u64 = 32 * 1024 * 1024;

/// Results of a look at the rings.
#[derive(Debug)]
struct Round {
    /// The time before the look.
    at_ns: u64,
    /// The ends of the records of each ring.
    ends: Vec<u64>,
}

/// The ring of a process.
#[derive(Debug)]
struct Traced {
    pid: u32,
    ring: RingReader,
    /// The end of the records at the last look.
    end: u64,
}

/// The rings of all processes.
#[derive(Debug)]
pub(super) struct Source {
    listener: RingListener,
    rings: Vec<Traced>,
    rounds: VecDeque<Round>,
    waiting: Vec<Entry>,
    /// The directory for records that do not fit into memory, unless it is full.
    spool_dir: Option<PathBuf>,
}

impl Source {
    /// Waits for rings at a socket in a directory. `spool_dir` is for records that do not fit into
    /// memory.
    ///
    /// # Errors
    /// Those of making the socket.
    pub(super) fn new(dir: &Path, spool_dir: PathBuf) -> io::Result<Self> {
        Ok(Self {
            listener: RingListener::bind(dir)?,
            rings: Vec::new(),
            rounds: VecDeque::new(),
            waiting: Vec::new(),
            spool_dir: Some(spool_dir),
        })
    }

    /// Looks for new records. Returns true if decoding them should wait, because the program is
    /// busy and may need the processor.
    ///
    /// # Errors
    /// Those of reading the files.
    pub(super) fn collect(&mut self) -> io::Result<bool> {
        let new = self.listener.take().into_iter();
        let new = new.map(|(pid, ring)| Traced { pid, ring, end: 0 });
        self.rings.extend(new);
        let at_ns = now_ns();
        let (mut found, mut ends) = (0, Vec::new());
        for Traced { ring, end, .. } in &mut self.rings {
            let before = std::mem::replace(end, ring.end()?);
            found += *end - before;
            ends.push(*end);
        }
        self.rounds.push_back(Round { at_ns, ends });
        let is_busy = found > BUSY_WORDS;
        if is_busy && self.is_full() {
            self.put_aside();
        }
        Ok(is_busy && !self.is_full())
    }

    /// Returns true if so many words wait in memory that decoding them comes before looking for
    /// more.
    pub(super) fn is_full(&self) -> bool {
        let all = self.rings.iter();
        let waiting: u64 = all.map(|one| one.ring.in_ring(one.end)).sum();
        let is_short = |one: &Traced| one.ring.is_short_of_space(one.end);
        waiting >= MOST_WAITING_WORDS || self.rings.iter().any(is_short)
    }

    /// Returns the bytes of records that wait.
    pub(super) fn waiting_bytes(&self) -> u64 {
        let all = self.rings.iter();
        all.map(|one| one.ring.waiting(one.end) * 8).sum()
    }

    /// Moves the records in memory to files. If that fails, they are decoded.
    fn put_aside(&mut self) {
        let Some(dir) = &self.spool_dir else {
            return;
        };
        let mut all = self.rings.iter_mut();
        let moved = all.try_for_each(|Traced { ring, end, .. }| {
            ring.put_aside(*end, || tempfile::tempfile_in(dir))
        });
        if moved.is_err() {
            self.spool_dir = None;
        }
    }

    /// Decodes the oldest round. Returns records in the order of time, or `None` without a round.
    /// With `all`, also those that could still get predecessors.
    ///
    /// # Errors
    /// Those of reading the files.
    pub(super) fn next(&mut self, all: bool) -> io::Result<Option<Vec<Entry>>> {
        let Some(round) = self.rounds.pop_front() else {
            return Ok(None);
        };
        for (Traced { pid, ring, .. }, end) in self.rings.iter_mut().zip(round.ends) {
            let entry = |record| Entry { pid: *pid, record };
            loop {
                let before = self.waiting.len();
                self.waiting.extend(ring.read(end)?.map(entry));
                if self.waiting.len() == before {
                    break;
                }
            }
        }
        let until = if all && self.rounds.is_empty() {
            u64::MAX
        } else {
            round.at_ns.saturating_sub(SETTLE_NS)
        };
        sort(&mut self.waiting);
        let ready = self
            .waiting
            .partition_point(|entry| entry.record.time_ns <= until);
        Ok(Some(self.waiting.drain(..ready).collect()))
    }

    /// Returns the processes that have lost records, and how many.
    pub(super) fn lost(&self) -> Vec<(u32, u64)> {
        let all = self.rings.iter();
        let lost = all.map(|one| (one.pid, one.ring.lost().unwrap_or(0)));
        let mut lost: Vec<_> = lost.filter(|(_, count)| *count > 0).collect();
        lost.sort_unstable();
        lost
    }
}

/// Puts records in the order of time. A post is recorded at its end, with the time of its begin, so
/// it comes before others of that time.
fn sort(entries: &mut [Entry]) {
    entries.sort_by_key(|Entry { record, .. }| {
        let is_post = matches!(record.kind, Kind::PostSend | Kind::PostRecv);
        (record.time_ns, !is_post)
    });
}

#[cfg(test)]
mod tests {
    use rocade_emulator::trace::MAX_FIELDS;

    use super::*;

    #[test]
    fn a_post_comes_before_its_packets_also_if_the_clock_is_coarse() {
        let entry = |time_ns, kind| Entry {
            pid: 1,
            record: Record {
                kind,
                time_ns,
                thread: 1,
                fields: [0; MAX_FIELDS],
                text: String::new(),
            },
        };
        let kinds = [Kind::Completion, Kind::Sent, Kind::PostSend, Kind::PostEnd];
        let mut entries: Vec<_> = kinds.into_iter().map(|kind| entry(5, kind)).collect();
        entries.push(entry(4, Kind::Exit));
        sort(&mut entries);
        let sorted: Vec<_> = entries.iter().map(|entry| entry.record.kind).collect();
        let expected = [
            Kind::Exit,
            Kind::PostSend,
            Kind::Completion,
            Kind::Sent,
            Kind::PostEnd,
        ];
        assert_eq!(sorted, expected);
    }
}
