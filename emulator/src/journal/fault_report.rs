//! The report of the fault rules in the journal file of a process, which outlives the process.
//!
//! Each rule has a line of [`LINE_WORDS`] words: the counts and times, the text, and the objects.
//! The first word is the length of the text plus 1, written last, so that a death never leaves a
//! partial line. Times are stored plus 1, because 0 is no time. The head has the end of the process
//! and the number of lines.

use crate::sync::atomic::{AtomicU64, Ordering};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;

use super::ack::AckJournal;
use super::{FAULT_REPORT_AT, shm_words};
use crate::faults::{MAX_OBJECTS, ReportKeeper, ReportedRule, RuleSummary};

/// Most rules of a report. Later ones are left out.
const MAX_LINES: usize = 64;
/// Words before the lines.
const HEAD_WORDS: usize = 8;
/// The length of the text plus 1, hits, first and last time, hits of other objects.
const COUNT_WORDS: usize = 8;
/// Words of the text of a rule.
const TEXT_WORDS: usize = 50;
/// Words of the text of an object, after its number of hits.
const OBJECT_TEXT_WORDS: usize = 8;
const OBJECT_WORDS: usize = 1 + OBJECT_TEXT_WORDS;
const OBJECTS_AT: usize = COUNT_WORDS + TEXT_WORDS;
const LINE_WORDS: usize = OBJECTS_AT + MAX_OBJECTS * OBJECT_WORDS;
const WORDS: usize = HEAD_WORDS + MAX_LINES * LINE_WORDS;
/// Length in bytes.
pub(super) const LEN: usize = WORDS * size_of::<u64>();

/// The head of a process that has ended by exit(3).
const EXITED: u64 = 1;

/// Keeps the report of a process in its journal.
#[derive(Debug)]
pub(crate) struct FaultJournal {
    journal: Arc<AckJournal>,
}

/// The report of a process as its journal has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct JournalledReport {
    /// The process has run its exit handlers.
    pub(crate) has_exited: bool,
    pub(crate) rules: Vec<RuleSummary>,
}

impl FaultJournal {
    /// Returns `None` where the process may only create small files.
    pub(crate) fn new(journal: Arc<AckJournal>) -> Option<Box<Self>> {
        journal.fault_words()?;
        Some(Box::new(Self { journal }))
    }

    fn line(&self, index: usize) -> Option<&[AtomicU64]> {
        let lines = self.journal.fault_words()?.get(HEAD_WORDS..)?;
        lines.get(index * LINE_WORDS..)?.get(..LINE_WORDS)
    }
}

impl ReportKeeper for FaultJournal {
    fn add(&self, index: usize, rule: &ReportedRule) {
        let Some(line) = self.line(index) else { return };
        if let Some(words) = self.journal.fault_words() {
            words[1].fetch_max(index as u64 + 1, Ordering::Relaxed);
        }
        line[0].store(0, Ordering::Release);
        let len = write_text(&line[COUNT_WORDS..OBJECTS_AT], &rule.text);
        for object in 0..rule.objects.len() {
            write_object(line, rule, object);
        }
        write_counts(line, rule);
        line[0].store(len + 1, Ordering::Release);
    }

    fn update(&self, index: usize, rule: &ReportedRule, object: Option<usize>) {
        let Some(line) = self.line(index) else { return };
        match object {
            Some(object) if rule.objects.get(object).is_some_and(|(_, hits)| *hits > 1) => {
                line[OBJECTS_AT + object * OBJECT_WORDS].fetch_add(1, Ordering::Relaxed);
            }
            Some(object) => write_object(line, rule, object),
            None => {}
        }
        write_counts(line, rule);
    }
}

impl AckJournal {
    fn fault_words(&self) -> Option<&[AtomicU64]> {
        let words = self
            .shared
            .words()
            .get(FAULT_REPORT_AT / size_of::<u64>()..)?;
        words.get(..WORDS)
    }

    /// Notes that the process ends by exit(3).
    pub(crate) fn note_exit(&self) {
        if let Some(words) = self.fault_words() {
            words[0].store(EXITED, Ordering::Relaxed);
        }
    }
}

fn write_counts(line: &[AtomicU64], rule: &ReportedRule) {
    let time = |ns: Option<u64>| ns.map_or(0, |ns| ns.saturating_add(1));
    let (first, last) = (time(rule.first_ns), time(rule.last_ns));
    for (word, value) in line[1..]
        .iter()
        .zip([rule.hits, first, last, rule.other_hits])
    {
        word.store(value, Ordering::Relaxed);
    }
}

fn write_object(line: &[AtomicU64], rule: &ReportedRule, object: usize) {
    let Some((subject, hits)) = rule.objects.get(object) else {
        return;
    };
    let words = &line[OBJECTS_AT + object * OBJECT_WORDS..][..OBJECT_WORDS];
    write_text(&words[1..], &subject.to_string());
    words[0].store(*hits, Ordering::Release);
}

/// Writes as much of the text as there is room for, and zeros behind it. Returns its length.
fn write_text(words: &[AtomicU64], text: &str) -> u64 {
    let most = size_of_val(words).min(text.len());
    let len = (0..=most).rev().find(|at| text.is_char_boundary(*at));
    let text = &text.as_bytes()[..len.unwrap_or(0)];
    let mut chunks = text.chunks(size_of::<u64>());
    for word in words {
        let mut bytes = [0; size_of::<u64>()];
        for (byte, value) in bytes.iter_mut().zip(chunks.next().unwrap_or(&[])) {
            *byte = *value;
        }
        word.store(u64::from_ne_bytes(bytes), Ordering::Relaxed);
    }
    text.len() as u64
}

/// Returns the report of a client. Skips invalid lines, because the client may write anything to
/// the file.
pub(crate) fn read(file: &OwnedFd) -> JournalledReport {
    let head = read_words(file, 0, HEAD_WORDS);
    let [end, lines, ..] = *head else {
        return JournalledReport::default();
    };
    let lines = usize::try_from(lines).map_or(MAX_LINES, |lines| lines.min(MAX_LINES));
    let words = read_words(file, HEAD_WORDS, lines * LINE_WORDS);
    JournalledReport {
        has_exited: end == EXITED,
        rules: words
            .chunks_exact(LINE_WORDS)
            .filter_map(read_line)
            .collect(),
    }
}

/// Returns the words from `at` on, fewer than `count` if the file ends.
fn read_words(file: &OwnedFd, at: usize, count: usize) -> Vec<u64> {
    let mut bytes = vec![0; count * size_of::<u64>()];
    let at = FAULT_REPORT_AT + at * size_of::<u64>();
    let len = shm_words::read_at(file.as_fd(), &mut bytes, at).unwrap_or(0);
    let (words, _) = bytes[..len].as_chunks::<{ size_of::<u64>() }>();
    words.iter().map(|word| u64::from_ne_bytes(*word)).collect()
}

fn read_line(line: &[u64]) -> Option<RuleSummary> {
    let [len, hits, first, last, other_hits] = *line.first_chunk()?;
    let len = usize::try_from(len.checked_sub(1)?).ok()?;
    let text = read_text(&line[COUNT_WORDS..OBJECTS_AT])?;
    let objects = line[OBJECTS_AT..].chunks_exact(OBJECT_WORDS);
    let objects = objects.filter_map(|object| {
        let (hits, text) = object.split_first()?;
        (*hits > 0).then_some((read_text(text)?, *hits))
    });
    (text.len() == len).then(|| RuleSummary {
        text,
        hits,
        first_ns: first.checked_sub(1),
        last_ns: last.checked_sub(1),
        objects: objects.collect(),
        other_hits,
    })
}

/// Returns the text up to the first zero, or `None` if it is none that a terminal may get.
fn read_text(words: &[u64]) -> Option<String> {
    let mut bytes: Vec<_> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    if let Some(end) = bytes.iter().position(|byte| *byte == 0) {
        bytes.truncate(end);
    }
    let text = String::from_utf8(bytes).ok()?;
    (!text.contains(char::is_control)).then_some(text)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use rocade_wire::Qpn;

    use super::*;
    use crate::faults::Subject;

    fn rule(text: &str, objects: &[(u32, u64)]) -> ReportedRule {
        let subject = |(qpn, hits): &(u32, u64)| (Subject::Qp(Qpn::new(*qpn)), *hits);
        ReportedRule {
            text: text.to_owned(),
            hits: objects.iter().map(|(_, hits)| hits).sum(),
            first_ns: (!objects.is_empty()).then_some(0),
            last_ns: (!objects.is_empty()).then_some(7),
            objects: objects.iter().map(subject).collect(),
            other_hits: 0,
        }
    }

    #[test]
    fn a_report_is_read_as_it_was_written() {
        let journal = Arc::new(AckJournal::new().unwrap());
        let file = journal.fd().try_clone_to_owned().unwrap();
        assert_eq!(read(&file), JournalledReport::default());
        let keeper = FaultJournal::new(Arc::clone(&journal)).unwrap();
        let mut first = rule("drop nth=3", &[(1, 2)]);
        let long = rule(&format!("fail verb={}", "ä".repeat(300)), &[]);
        keeper.add(0, &first);
        keeper.add(1, &long);
        keeper.add(MAX_LINES, &first);
        first.hits = 4;
        first.objects[0].1 = 3;
        first.objects.push((Subject::Other("x".repeat(200)), 1));
        first.other_hits = 5;
        first.last_ns = Some(9);
        keeper.update(0, &first, Some(0));
        keeper.update(0, &first, Some(1));
        keeper.update(MAX_LINES, &first, None);
        let report = read(&file);
        let [one, two] = &*report.rules else {
            panic!("two rules instead of {report:?}");
        };
        let mut expected = RuleSummary::from(&first);
        expected.objects[1].0.truncate(OBJECT_TEXT_WORDS * 8);
        assert_eq!(one, &expected);
        assert_eq!(one.objects[0], ("QP 0x000001".to_owned(), 3));
        assert!(long.text.starts_with(&two.text), "{two:?}");
        assert!((399..=400).contains(&two.text.len()), "{two:?}");
        assert!(!report.has_exited);
        journal.note_exit();
        assert!(read(&file).has_exited);
        assert_eq!(super::super::read_acks(&file), [], "no ACK is pending");
    }

    #[test]
    fn nonsense_is_skipped() {
        let journal = Arc::new(AckJournal::new().unwrap());
        let file = journal.fd().try_clone_to_owned().unwrap();
        for word in journal.fault_words().unwrap() {
            word.store(u64::MAX, Ordering::Relaxed);
        }
        assert_eq!(read(&file), JournalledReport::default());
        let keeper = FaultJournal::new(journal).unwrap();
        keeper.add(0, &rule("drop \u{1b}[2J", &[]));
        assert_eq!(read(&file).rules, []);
        let other = tempfile::tempfile().unwrap();
        assert_eq!(read(&other.into()), JournalledReport::default());
    }
}
