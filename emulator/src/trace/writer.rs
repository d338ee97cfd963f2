//! Records of threads, which remember their last ones, so that the next have only what differs.

use std::cell::{Cell, OnceCell};
use std::sync::atomic::{AtomicU32, Ordering};

use super::record::{self, Kind, MAX_FIELDS, Origin};
use super::ring::Ring;
use crate::sys;

thread_local! {
    static WRITER: Writer = const { Writer::new() };
}

/// The records of a thread.
struct Writer {
    /// The number of forks, and so the ring, for which the rest holds.
    forks: Cell<usize>,
    origin: Cell<Origin>,
    /// A record is being written. A signal handler may write another one meanwhile.
    is_writing: Cell<bool>,
    /// Not in the thread-local memory itself, of which a library that is loaded later gets little.
    kinds: OnceCell<Box<Kinds>>,
}

/// The last records of a thread.
type Kinds = [OfKind; Kind::ALL.len()];

/// The last record of a thread and a kind.
struct OfKind {
    fields: [Cell<u64>; MAX_FIELDS],
}

/// The content of a record.
pub(super) struct Content<'c> {
    pub(super) time_ns: u64,
    pub(super) kind: Kind,
    pub(super) fields: &'c [u64],
    pub(super) text: &'c [u8],
}

/// Writes a record of the calling thread into a ring, if there is room.
pub(super) fn write(ring: &Ring, forks: usize, content: &Content<'_>) {
    let with_writer = WRITER.try_with(|writer| writer.write(ring, forks, content));
    if with_writer.is_err() {
        content.write_to(ring, None, &OfKind::new());
    }
}

/// Returns the time of the last record of the calling thread. 0 without any.
pub(super) fn last_ns() -> u64 {
    let last = WRITER.try_with(|writer| writer.origin.get().last_ns);
    last.unwrap_or(0)
}

impl OfKind {
    const fn new() -> Self {
        Self {
            fields: [const { Cell::new(0) }; MAX_FIELDS],
        }
    }
}

impl Writer {
    const fn new() -> Self {
        Self {
            forks: Cell::new(usize::MAX),
            origin: Cell::new(Origin {
                thread: 0,
                writer: 0,
                last_ns: 0,
            }),
            is_writing: Cell::new(false),
            kinds: OnceCell::new(),
        }
    }

    fn write(&self, ring: &Ring, forks: usize, content: &Content<'_>) {
        if self.is_writing.replace(true) {
            content.write_to(ring, None, &OfKind::new());
            return;
        }
        if self.forks.get() == forks || self.begin(ring, forks, content.time_ns) {
            self.write_next(ring, content);
        }
        self.is_writing.set(false);
    }

    fn write_next(&self, ring: &Ring, content: &Content<'_>) -> bool {
        let origin = self.origin.get();
        let last = self.kinds().get(content.kind.index());
        let last = last.expect("one per kind");
        let is_written = content.write_to(ring, Some(origin), last);
        if is_written {
            let last_ns = content.time_ns;
            self.origin.set(Origin { last_ns, ..origin });
            for (last, field) in last.fields.iter().zip(content.fields) {
                last.set(*field);
            }
        }
        is_written
    }

    fn kinds(&self) -> &Kinds {
        let new = || Box::new([const { OfKind::new() }; Kind::ALL.len()]);
        self.kinds.get_or_init(new)
    }

    /// Begins the records of this thread in a ring. Returns false if there is no room.
    #[cold]
    fn begin(&self, ring: &Ring, forks: usize, time_ns: u64) -> bool {
        static WRITERS: AtomicU32 = AtomicU32::new(0);
        let origin = Origin {
            thread: sys::thread_id(),
            writer: WRITERS.fetch_add(1, Ordering::Relaxed),
            // The first record is long.
            last_ns: u64::MAX / 2,
        };
        self.origin.set(origin);
        for kind in self.kinds() {
            kind.fields.iter().for_each(|field| field.set(0));
        }
        let content = Content {
            time_ns,
            kind: Kind::Writer,
            fields: &[u64::from(origin.writer)],
            text: b"",
        };
        let is_begun = self.write_next(ring, &content);
        if is_begun {
            self.forks.set(forks);
        }
        is_begun
    }
}

impl Content<'_> {
    /// Writes what differs from the last record of this kind, which had as many fields. Returns
    /// false if there is no room.
    fn write_to(&self, ring: &Ring, origin: Option<Origin>, last: &OfKind) -> bool {
        debug_assert!(self.fields.len() <= MAX_FIELDS);
        let text = self.text.get(..record::MAX_TEXT).unwrap_or(self.text);
        let (mut mask, mut count, mut present) = (0, 0, [0; MAX_FIELDS]);
        for (index, (field, last)) in (0..).zip(self.fields.iter().zip(&last.fields)) {
            let differs = *field != last.get();
            if let Some(place) = present.get_mut(count) {
                *place = *field;
            }
            count += usize::from(differs);
            mask |= u8::from(differs) << index;
        }
        let fields = present.get(..count).unwrap_or_default();
        let (head, time) = record::head(origin, (self.kind, self.time_ns), mask, text.len());
        let words = record::words_of(head).unwrap_or(0);
        let rest = time.into_iter().chain(fields.iter().copied());
        if text.is_empty() {
            return ring.push(head, rest, words);
        }
        ring.push(head, rest.chain(text.chunks(8).map(word_of)), words)
    }
}

/// Returns bytes as a word.
pub(super) fn word_of(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    for (to, byte) in word.iter_mut().zip(bytes) {
        *to = *byte;
    }
    u64::from_ne_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::super::record::Record;
    use super::super::ring::RingReader;
    use super::*;

    fn pair() -> (Ring, RingReader) {
        let (ring, file) = Ring::create().expect("a ring");
        (ring, RingReader::open(file).expect("a ring"))
    }

    fn read(reader: &mut RingReader) -> Vec<Record> {
        let end = reader.end().expect("readable");
        reader.read(end).expect("readable").collect()
    }

    fn put(writer: &Writer, (ring, forks): (&Ring, usize), kind: Kind, fields: &[u64]) {
        let content = Content {
            time_ns: 1,
            kind,
            fields,
            text: b"",
        };
        writer.write(ring, forks, &content);
    }

    #[test]
    fn fields_that_repeat_take_no_room_and_are_read_again() {
        let (ring, mut reader) = pair();
        let writer = Writer::new();
        let rounds = [
            // The first record also begins the writer.
            (Kind::PostSend, [1, 2, 3, 0, 0, 6, 7, 8], 3 + 1 + 6),
            (Kind::PostEnd, [0, 2, 3, 0, 0, 0, 0, 0], 1 + 2),
            (Kind::PostSend, [1, 2, 3, 0, 0, 6, 7, 8], 1),
            (Kind::PostSend, [1, 2, 0, 4, 0, 0, 7, 8], 1 + 3),
            (Kind::PostEnd, [9, 2, 3, 0, 0, 0, 0, 0], 1 + 1),
        ];
        for (kind, fields, words) in rounds {
            let before = reader.end().expect("readable");
            put(&writer, (&ring, 0), kind, &fields);
            let taken = reader.end().expect("readable") - before;
            assert_eq!(taken, words, "{fields:?}");
            let records = read(&mut reader);
            let read: Vec<_> = records.iter().map(|one| (one.kind, one.fields)).collect();
            assert_eq!(read, [(kind, fields)]);
        }
    }

    #[test]
    fn times_are_exact_near_and_far_from_the_last() {
        let (ring, mut reader) = pair();
        let writer = Writer::new();
        let times = [
            5_000_000_000,
            5_000_000_001,
            5_002_097_152,
            5_000_000_000,
            5_002_097_153,
            5_002_097_152,
            0,
            u64::MAX / 3,
            u64::MAX / 3 - 2_097_152,
            u64::MAX / 3 - 4_194_305,
        ];
        for time_ns in times {
            let content = Content {
                time_ns,
                kind: Kind::Timeout,
                fields: &[],
                text: b"",
            };
            writer.write(&ring, 0, &content);
        }
        let read: Vec<u64> = read(&mut reader).iter().map(|one| one.time_ns).collect();
        assert_eq!(read, times);
    }

    #[test]
    fn threads_beyond_the_numbers_of_writers_have_long_records() {
        let (ring, mut reader) = pair();
        let writer = Writer::new();
        put(&writer, (&ring, 0), Kind::Timeout, &[1]);
        let origin = writer.origin.get();
        let writer_number = 5000;
        writer.origin.set(Origin {
            writer: writer_number,
            ..origin
        });
        put(&writer, (&ring, 0), Kind::Timeout, &[1]);
        put(&writer, (&ring, 0), Kind::Timeout, &[2]);
        let read: Vec<_> = read(&mut reader)
            .iter()
            .map(|one| (one.thread, one.field(0)))
            .collect();
        let thread = sys::thread_id();
        assert_eq!(read, [(thread, 1), (thread, 1), (thread, 2)]);
        assert_eq!(reader.end().expect("readable"), 3 + 2 + 2 + 3);
    }

    #[test]
    fn a_signal_handler_may_write_while_its_thread_does() {
        let (ring, mut reader) = pair();
        let writer = Writer::new();
        put(&writer, (&ring, 0), Kind::Qp, &[1, 2, 0]);
        writer.is_writing.set(true);
        put(&writer, (&ring, 0), Kind::Qp, &[3, 0, 4]);
        writer.is_writing.set(false);
        put(&writer, (&ring, 0), Kind::Qp, &[1, 2, 5]);
        let records = read(&mut reader);
        let fields: Vec<_> = records.iter().map(|one| &one.fields[..3]).collect();
        assert_eq!(fields, [[1, 2, 0], [3, 0, 4], [1, 2, 5]]);
    }

    #[test]
    fn a_child_and_a_thread_with_a_used_id_begin_anew() {
        let (ring, mut reader) = pair();
        put(&Writer::new(), (&ring, 0), Kind::Qp, &[1, 2]);
        let writer = Writer::new();
        put(&writer, (&ring, 0), Kind::Qp, &[0, 2]);
        let (child_ring, mut child_reader) = pair();
        put(&writer, (&child_ring, 1), Kind::Qp, &[0, 2]);
        for reader in [&mut reader, &mut child_reader] {
            let records = read(reader);
            let last = records.last().expect("a record");
            assert_eq!(&last.fields[..3], &[0, 2, 0]);
        }
    }
}
