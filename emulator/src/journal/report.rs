//! Fault counters in the journal file of a process: how many packets each fault rule has hit.
//!
//! The counters are pairs of rule number and count. The word before them holds the generation of
//! the rule list, or 0 while the list changes.

use crate::sync::atomic::{AtomicU64, Ordering};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;

use super::ack::AckJournal;
use super::{REPORT_AT, shm_words};
use crate::faults::HitCounter;

/// Most rules that have a counter.
pub(crate) const MAX_COUNTED: usize = 64;
/// The generation, then number and count of each rule.
const WORDS: usize = 1 + 2 * MAX_COUNTED;
/// Length in bytes.
pub(super) const LEN: usize = WORDS * size_of::<u64>();

/// The counts of a process by rule number, and the generation of the rule list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Report {
    pub(crate) generation: u32,
    pub(crate) hits: Vec<(u32, u64)>,
}

/// Counts the hits of a rule list in the journal file.
#[derive(Debug)]
pub(crate) struct HitTally {
    journal: Arc<AckJournal>,
    generation: u32,
    /// The numbers of the rules.
    ids: Vec<u32>,
}

impl HitTally {
    pub(crate) fn new(journal: Arc<AckJournal>, generation: u32, ids: Vec<u32>) -> Box<Self> {
        Box::new(Self {
            journal,
            generation,
            ids,
        })
    }
}

impl HitCounter for HitTally {
    fn begin(&self, hits: &mut dyn Iterator<Item = u64>) {
        let hits = self.ids.iter().copied().zip(hits);
        self.journal.count_anew(self.generation, hits);
    }

    fn count(&self, index: usize, hits: u64) {
        self.journal.count(index, hits);
    }
}

impl AckJournal {
    fn report(&self) -> &[AtomicU64] {
        &self.shared.words()[REPORT_AT / size_of::<u64>()..][..WORDS]
    }

    /// Starts counting for a new rule list.
    fn count_anew(&self, generation: u32, hits: impl Iterator<Item = (u32, u64)>) {
        let words = self.report();
        words[0].store(0, Ordering::SeqCst);
        let mut hits = hits.take(MAX_COUNTED);
        for pair in words[1..].chunks_exact(2) {
            let (id, count) = hits.next().unwrap_or((0, 0));
            pair[0].store(id.into(), Ordering::Relaxed);
            pair[1].store(count, Ordering::Relaxed);
        }
        words[0].store(generation.into(), Ordering::SeqCst);
    }

    /// Stores the hits of the rule at `index` in the list.
    fn count(&self, index: usize, hits: u64) {
        if let Some(word) = self.report().get(2 + 2 * index) {
            word.store(hits, Ordering::Relaxed);
        }
    }
}

/// Returns the counts of a client. Skips invalid words, because the client may write anything to
/// the file.
pub(crate) fn read(file: &OwnedFd) -> Report {
    let mut bytes = [0; REPORT_AT + LEN];
    let Ok(len) = shm_words::read(file.as_fd(), &mut bytes) else {
        return Report::default();
    };
    let (words, _) = bytes[..len].as_chunks::<{ size_of::<u64>() }>();
    let words = words.get(REPORT_AT / size_of::<u64>()..).unwrap_or(&[]);
    let mut words = words.iter().map(|word| u64::from_ne_bytes(*word));
    let generation = words.next().and_then(|word| u32::try_from(word).ok());
    let mut hits = Vec::new();
    while let (Some(id), Some(count)) = (words.next(), words.next()) {
        if let Ok(id @ 1..) = u32::try_from(id) {
            hits.push((id, count));
        }
    }
    Report {
        generation: generation.unwrap_or(0),
        hits,
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn counts_can_be_read_with_the_list_that_they_are_of() {
        let journal = AckJournal::new().unwrap();
        let file = journal.fd().try_clone_to_owned().unwrap();
        assert_eq!(read(&file), Report::default());
        journal.count_anew(7, [(3, 0), (5, 9)].into_iter());
        journal.count(0, 2);
        journal.count(MAX_COUNTED, 2);
        let report = read(&file);
        assert_eq!(
            (report.generation, &*report.hits),
            (7, &[(3, 2), (5, 9)][..])
        );
        journal.count_anew(8, (1..).map(|id| (id, u64::from(id))));
        journal.count(MAX_COUNTED - 1, 1);
        let report = read(&file);
        assert_eq!((report.generation, report.hits.len()), (8, MAX_COUNTED));
        assert_eq!(report.hits.last(), Some(&(64, 1)));
        assert_eq!(super::super::read_acks(&file), [], "no ACK is pending");
    }

    #[test]
    fn other_files_have_no_counts() {
        let file = tempfile::tempfile().unwrap();
        assert_eq!(read(&file.into()), Report::default());
        let mut file = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut file, &[1; REPORT_AT + 3]).unwrap();
        assert_eq!(read(&file.into()), Report::default());
    }
}
