//! The statistics of a process in its journal file, as words whose meaning this module does not
//! know.
//!
//! The first word is odd while the words change, and the second is their number. One thread writes
//! at a time, and readers repeat what has changed under them.

use crate::sync::atomic::{AtomicU64, Ordering, fence};
use std::os::fd::{AsFd, BorrowedFd};

use super::ack::AckJournal;
use super::{STATISTICS_AT, shm_words};

/// Words of a page.
pub(crate) const STATISTICS_WORDS: usize = 50 * 1024;
/// Words before the page.
const HEAD_WORDS: usize = 2;
/// Length in bytes.
pub(super) const LEN: usize = (HEAD_WORDS + STATISTICS_WORDS) * size_of::<u64>();
/// Most attempts of a reader. A process that was killed as it wrote leaves what it had written.
const ATTEMPTS: usize = 100;

impl AckJournal {
    fn statistics_words(&self) -> Option<(&AtomicU64, &AtomicU64, &[AtomicU64])> {
        let words = self.shared.words();
        let words = words.get(STATISTICS_AT / size_of::<u64>()..)?;
        match words.get(..HEAD_WORDS + STATISTICS_WORDS)? {
            [sequence, len, page @ ..] => Some((sequence, len, page)),
            _ => None,
        }
    }

    /// Returns true if there is a page. There is none where the process may only create small
    /// files.
    pub(crate) fn has_statistics(&self) -> bool {
        self.statistics_words().is_some()
    }

    /// Replaces the page by two lists of words. Only one thread at a time calls this.
    pub(crate) fn put_statistics(&self, [head, rest]: [&[u64]; 2]) {
        let Some((sequence, len, page)) = self.statistics_words() else {
            return;
        };
        let count = (head.len() + rest.len()).min(page.len());
        // A killed process of the same journal may have left an odd number.
        let odd = sequence.load(Ordering::Relaxed) | 1;
        sequence.store(odd, Ordering::Relaxed);
        fence(Ordering::Release);
        len.store(count as u64, Ordering::Relaxed);
        for (place, word) in page.iter().zip(head.iter().chain(rest)) {
            place.store(*word, Ordering::Relaxed);
        }
        sequence.store(odd.wrapping_add(1), Ordering::Release);
    }
}

/// Returns the page of a process. The process may write anything to the file.
pub(crate) fn read(file: impl AsFd) -> Vec<u64> {
    let mut words = Vec::new();
    for _ in 0..ATTEMPTS {
        let [before, len] = *words_at(file.as_fd(), 0, HEAD_WORDS) else {
            return Vec::new();
        };
        let len = usize::try_from(len).unwrap_or(0).min(STATISTICS_WORDS);
        words = words_at(file.as_fd(), HEAD_WORDS, len);
        let after = words_at(file.as_fd(), 0, 1);
        if before % 2 == 0 && after == [before] {
            break;
        }
        std::thread::yield_now();
    }
    words
}

/// Returns the words from `at` on, fewer than `count` if the file ends.
fn words_at(file: BorrowedFd<'_>, at: usize, count: usize) -> Vec<u64> {
    let mut bytes = vec![0; count * size_of::<u64>()];
    let at = STATISTICS_AT + at * size_of::<u64>();
    let len = shm_words::read_at(file, &mut bytes, at).unwrap_or(0);
    let (words, _) = bytes[..len].as_chunks::<{ size_of::<u64>() }>();
    words.iter().map(|word| u64::from_ne_bytes(*word)).collect()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_read_whole() {
        let journal = AckJournal::new().unwrap();
        assert!(journal.has_statistics());
        assert_eq!(read(journal.fd()), []);
        journal.put_statistics([&[1], &[2, 3]]);
        assert_eq!(read(journal.fd()), [1, 2, 3]);
        journal.put_statistics([&[4], &[]]);
        assert_eq!(read(journal.fd()), [4]);
        let long = vec![7; STATISTICS_WORDS + 1];
        journal.put_statistics([&long, &[]]);
        assert_eq!(read(journal.fd()), long[1..]);
    }

    #[test]
    fn readers_never_see_half_a_page() {
        let journal = AckJournal::new().unwrap();
        journal.put_statistics([&[0; 300], &[]]);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for value in 1..2000 {
                    journal.put_statistics([&[value; 150], &[value; 150]]);
                }
            });
            while !writer.is_finished() {
                let words = read(journal.fd());
                assert!(words.iter().all(|word| *word == words[0]), "{words:?}");
            }
        });
    }

    #[test]
    fn other_files_have_no_page() {
        let file = tempfile::tempfile().unwrap();
        assert_eq!(read(&file), []);
        file.set_len((STATISTICS_AT + 3) as u64).unwrap();
        assert_eq!(read(&file), []);
    }
}
