//! What a thread remembers of its records, so that the next ones have only fields that differ.

use std::array;
use std::cell::Cell;
use std::iter;

use super::record::{self, Kind, MAX_FIELDS, Order};
use super::ring::Ring;
use crate::sys;

thread_local! {
    static WRITER: Writer = const { Writer::new() };
}

/// The records of a thread.
struct Writer {
    /// The number of forks, and so the ring, for which the rest holds.
    forks: Cell<usize>,
    /// The ID of the thread.
    thread: Cell<u32>,
    /// A record is being written. A signal handler may write another one meanwhile.
    is_writing: Cell<bool>,
    kinds: [OfKind; Kind::ALL.len()],
}

/// The records of a thread and a kind.
struct OfKind {
    is_begun: Cell<bool>,
    last: [Cell<u64>; MAX_FIELDS],
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
        content.write_to(ring, Order::Alone, sys::thread_id(), &NOTHING);
    }
}

const NOTHING: [Cell<u64>; MAX_FIELDS] = [const { Cell::new(0) }; MAX_FIELDS];

impl Writer {
    const fn new() -> Self {
        Self {
            forks: Cell::new(usize::MAX),
            thread: Cell::new(0),
            is_writing: Cell::new(false),
            kinds: [const {
                OfKind {
                    is_begun: Cell::new(false),
                    last: NOTHING,
                }
            }; Kind::ALL.len()],
        }
    }

    fn write(&self, ring: &Ring, forks: usize, content: &Content<'_>) {
        if self.forks.get() != forks {
            self.begin(forks);
        }
        let thread = self.thread.get();
        let of_kind = self.kinds.get(content.kind.index()).expect("one per kind");
        if self.is_writing.replace(true) {
            content.write_to(ring, Order::Alone, thread, &NOTHING);
            return;
        }
        let order = if of_kind.is_begun.get() {
            Order::Next
        } else {
            Order::First
        };
        if content.write_to(ring, order, thread, &of_kind.last) {
            of_kind.is_begun.set(true);
            for (last, field) in of_kind.last.iter().zip(content.padded()) {
                last.set(field);
            }
        }
        self.is_writing.set(false);
    }

    /// Begins the records of this thread in a ring.
    #[cold]
    fn begin(&self, forks: usize) {
        self.thread.set(sys::thread_id());
        self.is_writing.set(false);
        for kind in &self.kinds {
            kind.is_begun.set(false);
            kind.last.iter().for_each(|field| field.set(0));
        }
        self.forks.set(forks);
    }
}

impl Content<'_> {
    /// Returns the fields, with zeroes behind.
    fn padded(&self) -> [u64; MAX_FIELDS] {
        let mut fields = self.fields.iter().copied().chain(iter::repeat(0));
        array::from_fn(|_| fields.next().unwrap_or(0))
    }

    /// Writes the fields that differ from the last ones. Returns false if there is no room.
    fn write_to(
        &self,
        ring: &Ring,
        order: Order,
        thread: u32,
        last: &[Cell<u64>; MAX_FIELDS],
    ) -> bool {
        debug_assert!(self.fields.len() <= MAX_FIELDS);
        let text = self.text.get(..record::MAX_TEXT).unwrap_or(self.text);
        let (mut mask, mut count, mut present) = (0, 0, [0; MAX_FIELDS]);
        for (index, (field, last)) in (0..).zip(self.padded().into_iter().zip(last)) {
            let differs = field != last.get();
            if let Some(place) = present.get_mut(count) {
                *place = field;
            }
            count += usize::from(differs);
            mask |= u8::from(differs) << index;
        }
        let fields = present.get(..count).unwrap_or_default();
        let head = record::head((self.kind, order), thread, mask, text.len());
        let words = record::words(mask, text.len());
        let rest = iter::once(self.time_ns).chain(fields.iter().copied());
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
            (Kind::PostSend, vec![1, 2, 3, 0, 0, 6, 7, 8], 6),
            (Kind::PostEnd, vec![0, 2, 3], 2),
            (Kind::PostSend, vec![1, 2, 3, 0, 0, 6, 7, 8], 0),
            (Kind::PostSend, vec![1, 2, 0, 4], 5),
            (Kind::PostEnd, vec![9, 2, 3], 1),
            (Kind::PostEnd, vec![], 3),
        ];
        for (kind, fields, present) in rounds {
            let before = reader.end().expect("readable");
            put(&writer, (&ring, 0), kind, &fields);
            let words = reader.end().expect("readable") - before;
            assert_eq!(words, record::HEAD as u64 + present, "{fields:?}");
            let records = read(&mut reader);
            let mut expected = fields;
            expected.resize(MAX_FIELDS, 0);
            let [one] = records.as_slice() else {
                panic!("{records:?}");
            };
            assert_eq!((one.kind, &one.fields[..]), (kind, &expected[..]));
        }
    }

    #[test]
    fn a_signal_handler_may_write_while_its_thread_does() {
        let (ring, mut reader) = pair();
        let writer = Writer::new();
        put(&writer, (&ring, 0), Kind::Qp, &[1, 2]);
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
