//! The statistics of a process in its journal file, as words whose meaning this module does not
//! know.
//!
//! There are two pages, and the first word counts those that were written. The writer fills the
//! older one and then counts it, so a process that is killed as it writes leaves the page before.
//! One thread writes at a time, and readers repeat what was replaced under them.

use crate::sync::atomic::{AtomicU64, Ordering, fence};
use std::os::fd::{AsFd, BorrowedFd};

use super::ack::AckJournal;
use super::{STATISTICS_AT, shm_words};

/// Words of a page.
pub(crate) const STATISTICS_WORDS: usize = 50 * 1024;
/// Words of a page with its length before it.
const PAGE_WORDS: usize = 1 + STATISTICS_WORDS;
/// Words before the pages.
const HEAD_WORDS: usize = 1;
const PAGES: usize = 2;
/// Length in bytes.
pub(super) const LEN: usize = (HEAD_WORDS + PAGES * PAGE_WORDS) * size_of::<u64>();
/// Most attempts of a reader. The next page is written long after this one, unless the reader gets
/// no processor.
const ATTEMPTS: usize = 100;

/// Returns the place of a page among the words, given the number of pages up to it.
fn place_of(number: u64) -> usize {
    HEAD_WORDS
        + if number.is_multiple_of(2) {
            0
        } else {
            PAGE_WORDS
        }
}

impl AckJournal {
    fn statistics_words(&self) -> Option<&[AtomicU64]> {
        let words = self.shared.words();
        let words = words.get(STATISTICS_AT / size_of::<u64>()..)?;
        words.get(..HEAD_WORDS + PAGES * PAGE_WORDS)
    }

    /// Returns true if there is a page. There is none where the process may only create small
    /// files.
    pub(crate) fn has_statistics(&self) -> bool {
        self.statistics_words().is_some()
    }

    /// Replaces the page by two lists of words. Only one thread at a time calls this.
    pub(crate) fn put_statistics(&self, [head, rest]: [&[u64]; 2]) {
        let Some(words) = self.statistics_words() else {
            return;
        };
        let number = words[0].load(Ordering::Relaxed).wrapping_add(1);
        let [len, page @ ..] = &words[place_of(number)..][..PAGE_WORDS] else {
            return;
        };
        // A reader of the page before the last one, which this replaces, sees the last one counted.
        fence(Ordering::Release);
        let count = (head.len() + rest.len()).min(page.len());
        len.store(count as u64, Ordering::Relaxed);
        for (place, word) in page.iter().zip(head.iter().chain(rest)) {
            place.store(*word, Ordering::Relaxed);
        }
        words[0].store(number, Ordering::Release);
    }
}

/// Returns the page of a process, or nothing if it has none. The process may write anything to the
/// file.
pub(crate) fn read(file: impl AsFd) -> Vec<u64> {
    for _ in 0..ATTEMPTS {
        let [number] = *words_at(file.as_fd(), 0, HEAD_WORDS) else {
            break;
        };
        fence(Ordering::Acquire);
        let at = place_of(number);
        let len = words_at(file.as_fd(), at, 1).first().copied().unwrap_or(0);
        let len = usize::try_from(len).unwrap_or(0).min(STATISTICS_WORDS);
        let words = words_at(file.as_fd(), at + 1, len);
        fence(Ordering::Acquire);
        if words_at(file.as_fd(), 0, HEAD_WORDS) == [number] {
            return words;
        }
        std::thread::yield_now();
    }
    Vec::new()
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
    use std::collections::BTreeSet;

    use super::*;
    use crate::sync::atomic::AtomicBool;

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

    /// The writer makes a pause when a reader has seen nothing whole, as the statistics do.
    #[test]
    fn readers_never_see_half_a_page() {
        let journal = AckJournal::new().unwrap();
        journal.put_statistics([&[1; 150], &[1; 150]]);
        let (is_over, may_write) = (AtomicBool::new(false), AtomicBool::new(true));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut value = 1;
                while !is_over.load(Ordering::Relaxed) {
                    if may_write.load(Ordering::Relaxed) {
                        value += 1;
                        journal.put_statistics([&[value; 150], &[value; 150]]);
                    }
                    std::thread::yield_now();
                }
            });
            let mut values = BTreeSet::new();
            while values.len() < 100 {
                let words = read(journal.fd());
                may_write.store(!words.is_empty(), Ordering::Relaxed);
                if let Some(first) = words.first() {
                    assert_eq!(words, [*first; 300]);
                    values.insert(*first);
                }
            }
            is_over.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn a_writer_that_is_killed_leaves_the_page_before() {
        let journal = AckJournal::new().unwrap();
        journal.put_statistics([&[1, 2], &[]]);
        journal.put_statistics([&[3, 4], &[]]);
        // It has begun the next one, and counts it last.
        let words = journal.statistics_words().unwrap();
        words[place_of(3)].store(7, Ordering::Relaxed);
        words[place_of(3) + 1].store(5, Ordering::Relaxed);
        assert_eq!(read(journal.fd()), [3, 4]);
        journal.put_statistics([&[5, 6], &[]]);
        assert_eq!(read(journal.fd()), [5, 6]);
    }

    #[test]
    fn other_files_have_no_page() {
        let file = tempfile::tempfile().unwrap();
        assert_eq!(read(&file), []);
        file.set_len((STATISTICS_AT + 3) as u64).unwrap();
        assert_eq!(read(&file), []);
    }
}
