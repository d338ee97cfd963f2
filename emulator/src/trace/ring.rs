//! A ring of records in a memory file. All `unsafe` code of traces is in this file.
//!
//! The traced process maps the file, and its tracer, which gets it through a socket (`rings.rs`),
//! reads it by pread(2). The first words are the control words. Positions count all words since the
//! begin, and the word of a position is at its remainder. The process reserves words by moving
//! `HEAD`, and stores the first word of a record last.
//!
//! The file has storage only for words that may be written or read. The process makes the pages of
//! the next step present, and moves `LIMIT` then, so that a lack of memory loses records, and does
//! not end it. The tracer frees the blocks that it has read, moves `FREED`, and does nothing else
//! meanwhile. Words of new pages are 0. So records wait in the ring until the tracer has time to
//! decode them, without being copied.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::atomic::{self, AtomicU64, Ordering};

use super::record::{self, Decoder, Record};
use super::spool::Spool;
use crate::sys::{check_file_size, memory_file};

/// The words of a ring, 256 MiB.
const CAPACITY: usize = 1 << 25;
/// The words whose storage is freed at once, 2 MiB.
const BLOCK: usize = 1 << 18;
/// The words whose pages become present at once, 64 KiB. It divides a block, and is a multiple of
/// all sizes of pages.
const STEP: usize = 1 << 13;
/// The words between two that are in different pages of the smallest size.
const PAGE: usize = 1 << 9;
/// The control words, a multiple of all sizes of pages.
const CONTROL: usize = 1 << 13;
const LEN: usize = (CONTROL + CAPACITY) * 8;
const HEAD: usize = 0;
const LOST: usize = 1;
const MAGIC: usize = 2;
/// On a cache line of its own, as the next one.
const LIMIT: usize = 32;
/// The position before which the tracer has freed all storage.
const FREED: usize = 64;
/// Identifies a ring of this format.
const FORMAT: u64 = 0x726f_6361_6465_0004;
/// The most words that a tracer reads at once.
const CHUNK: usize = 1 << 16;

/// The ring of this process.
#[derive(Debug)]
pub(super) struct Ring {
    start: NonNull<AtomicU64>,
}

// SAFETY: a mapping belongs to the process, not to a thread. Its words are atomics.
unsafe impl Send for Ring {}
// SAFETY: as above.
unsafe impl Sync for Ring {}

impl Ring {
    /// Creates a ring. Returns its file for the tracer, too.
    pub(super) fn create() -> io::Result<(Self, File)> {
        check_file_size(LEN as u64)?;
        let file = File::from(memory_file(c"rocade-trace")?);
        file.set_len(LEN as u64)?;
        allocate(&file, 0, CONTROL * 8)?;
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: without MAP_FIXED the kernel chooses unused addresses.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                LEN,
                rights,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let ring = Self { start };
        ring.word(MAGIC).store(FORMAT, Ordering::Release);
        Ok((ring, file))
    }

    const fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is aligned to pages, this long, and never unmapped. Only the tracer
        // changes the file, by system calls.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), CONTROL + CAPACITY) }
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        self.words().get(index).expect("the index is in the ring")
    }

    /// Reserves words, and returns the position of the first. `None` if there is no room.
    fn reserve(&self, words: u64) -> Option<u64> {
        let head = self.word(HEAD);
        let mut at = head.load(Ordering::Relaxed);
        loop {
            let (end, limit) = (at + words, self.word(LIMIT).load(Ordering::Acquire));
            if end > limit {
                if !self.extend(limit) {
                    self.word(LOST).fetch_add(1, Ordering::Relaxed);
                    return None;
                }
                at = head.load(Ordering::Relaxed);
                continue;
            }
            match head.compare_exchange_weak(at, end, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return Some(at),
                Err(now) => at = now,
            }
        }
    }

    /// Moves the limit by a step. Returns false without memory, or space in the ring. Several
    /// threads may do so at once, since none could wait for one that a signal has interrupted.
    #[cold]
    fn extend(&self, limit: u64) -> bool {
        let freed = self.word(FREED).load(Ordering::Acquire);
        if limit + STEP as u64 > freed + CAPACITY as u64 || !self.populate(limit) {
            return false;
        }
        let end = limit + STEP as u64;
        let place = self.word(LIMIT);
        // Another thread may have moved it.
        let _ = place.compare_exchange(limit, end, Ordering::AcqRel, Ordering::Relaxed);
        true
    }

    /// Makes the pages of the step at a position present. Returns false without memory.
    fn populate(&self, position: u64) -> bool {
        let index = CONTROL + usize::try_from(position).unwrap_or(0) % CAPACITY;
        let words = self.words().get(index..index + STEP).unwrap_or_default();
        let start: *const AtomicU64 = words.as_ptr();
        // SAFETY: these are whole pages of the mapping, and their content stays.
        let result = unsafe {
            libc::madvise(
                start.cast_mut().cast(),
                size_of_val(words),
                libc::MADV_POPULATE_WRITE,
            )
        };
        // Linux before 5.14 does not know this advice.
        let is_unknown = || io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL);
        result == 0 || is_unknown() && words.iter().step_by(PAGE).all(touch)
    }

    /// Writes a record: its first word, the others, and the number of all. Returns false if there
    /// is no room.
    pub(super) fn push(&self, head: u64, rest: impl Iterator<Item = u64>, words: usize) -> bool {
        let Some(at) = self.reserve(words as u64) else {
            return false;
        };
        let index = usize::try_from(at).unwrap_or(0) % CAPACITY;
        let (before, from) = self.words().split_at(CONTROL + index);
        let first = match from.get(..words) {
            Some(places) => fill(places.iter(), rest),
            None => fill(from.iter().chain(&before[CONTROL..]), rest),
        };
        first.store(head, Ordering::Release);
        true
    }
}

/// Stores all words of a record but the first, whose place it returns.
fn fill<'p>(
    mut places: impl Iterator<Item = &'p AtomicU64>,
    rest: impl Iterator<Item = u64>,
) -> &'p AtomicU64 {
    let first = places.next().expect("there is a place for each word");
    rest.zip(places)
        .for_each(|(word, place)| place.store(word, Ordering::Relaxed));
    first
}

/// Makes the page of a word present. Returns false without memory, where writing would end the
/// process. The word keeps its value.
fn touch(word: &AtomicU64) -> bool {
    const ADD_ZERO: libc::c_int = libc::FUTEX_OP_ADD << 28;
    let operation = libc::FUTEX_WAKE_OP | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the word lives, and adding nothing to its half by an atomic operation is no race.
    let result = unsafe { libc::syscall(libc::SYS_futex, word, operation, 0, 0, word, ADD_ZERO) };
    result >= 0
}

/// Allocates storage of a file.
fn allocate(file: &File, offset: u64, len: usize) -> io::Result<()> {
    let failed = range(offset, len).map(|(offset, len)| {
        // SAFETY: takes no pointers.
        unsafe { libc::posix_fallocate(file.as_raw_fd(), offset, len) }
    })?;
    match failed {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

/// Frees storage of a file, which then reads as zeroes.
fn free(file: &File, offset: u64, len: usize) -> io::Result<()> {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    let done = range(offset, len).map(|(offset, len)| {
        // SAFETY: takes no pointers.
        unsafe { libc::fallocate(file.as_raw_fd(), mode, offset, len) }
    })?;
    match done {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn range(offset: u64, len: usize) -> io::Result<(libc::off_t, libc::off_t)> {
    let offset = libc::off_t::try_from(offset);
    let len = libc::off_t::try_from(len);
    offset
        .and_then(|offset| Ok((offset, len?)))
        .map_err(|_| io::ErrorKind::InvalidInput.into())
}

/// The reading end of a ring, in the tracer.
#[derive(Debug)]
pub struct RingReader {
    file: File,
    /// The position of the next record.
    tail: u64,
    /// The position before which all storage was freed.
    freed: u64,
    /// Words that were read at once.
    buffer: Vec<u64>,
    decoder: Decoder,
    spool: Option<Spool>,
}

impl RingReader {
    /// Opens the ring in a file.
    ///
    /// # Errors
    /// Those of reading, or `InvalidData` if it is none.
    pub(super) fn open(file: File) -> io::Result<Self> {
        let reader = Self {
            file,
            tail: 0,
            freed: 0,
            buffer: Vec::new(),
            decoder: Decoder::default(),
            spool: None,
        };
        if reader.file.metadata()?.len() < LEN as u64 || reader.control(MAGIC)? != FORMAT {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(reader)
    }

    /// Returns the position of the end of all records so far.
    ///
    /// # Errors
    /// Those of reading the file.
    pub fn end(&self) -> io::Result<u64> {
        self.control(HEAD)
    }

    /// Returns the number of words between the next record and a position.
    #[must_use]
    pub const fn waiting(&self, end: u64) -> u64 {
        end.saturating_sub(self.tail)
    }

    /// Returns the number of words before a position that take space in the ring.
    #[must_use]
    pub fn in_ring(&self, end: u64) -> u64 {
        end.saturating_sub(self.moved())
    }

    /// Returns true if the process may soon run out of space.
    #[must_use]
    pub fn is_short_of_space(&self, end: u64) -> bool {
        self.in_ring(end) > CAPACITY as u64 / 4 * 3
    }

    /// Moves complete records before a position to a file, an empty one that `make` makes the first
    /// time. They are still read in their order.
    ///
    /// # Errors
    /// Those of making, reading and writing files. The other records stay in the ring.
    pub fn put_aside(
        &mut self,
        end: u64,
        make: impl FnOnce() -> io::Result<File>,
    ) -> io::Result<()> {
        let mut spool = match self.spool.take() {
            Some(spool) => spool,
            None => Spool::new(make()?, self.tail),
        };
        let moved = loop {
            let words = match self.take_words(spool.end(), end) {
                Ok([]) => break Ok(()),
                Ok(words) => words,
                Err(error) => break Err(error),
            };
            if let Err(error) = spool.append(bytes_of(words)) {
                break Err(error);
            }
        };
        self.spool = Some(spool);
        let freed = self.free_blocks();
        moved.and(freed)
    }

    /// Reads complete records, of those before a position. Without any, there are none.
    ///
    /// # Errors
    /// Those of reading and writing the files.
    pub fn read(&mut self, end: u64) -> io::Result<impl Iterator<Item = Record>> {
        let moved = self.moved();
        let end = if moved > self.tail {
            end.min(moved)
        } else {
            end
        };
        self.tail += self.take_words(self.tail, end)?.len() as u64;
        if let Some(spool) = &mut self.spool {
            spool.release(self.tail);
        }
        self.free_blocks()?;
        let decoder = &mut self.decoder;
        Ok(complete(&self.buffer).flat_map(|words| decoder.parse(words)))
    }

    /// Returns the position of the first word that was neither read nor moved.
    fn moved(&self) -> u64 {
        let spool = self.spool.as_ref();
        spool.map_or(self.tail, |spool| spool.end().max(self.tail))
    }

    /// Reads complete records between two positions into the buffer.
    fn take_words(&mut self, start: u64, end: u64) -> io::Result<&mut [u64]> {
        let mut words = std::mem::take(&mut self.buffer);
        let waiting = usize::try_from(end.saturating_sub(start)).unwrap_or(CHUNK);
        words.resize(waiting.min(CHUNK), 0);
        self.copy(start, &mut words)?;
        let count = complete(&words).map(<[u64]>::len).sum();
        words.truncate(count);
        if cfg!(not(target_arch = "x86_64")) {
            // A first word may have been read after the others, so they are read again.
            atomic::fence(Ordering::Acquire);
            self.copy(start, &mut words)?;
        }
        self.buffer = words;
        Ok(&mut self.buffer)
    }

    /// Returns the number of lost records.
    ///
    /// # Errors
    /// Those of reading the file.
    pub fn lost(&self) -> io::Result<u64> {
        self.control(LOST)
    }

    fn control(&self, index: usize) -> io::Result<u64> {
        let mut word = [0; 8];
        self.file.read_exact_at(&mut word, index as u64 * 8)?;
        Ok(u64::from_ne_bytes(word))
    }

    /// Reads words from a position on, which all are in the ring, or all in the file.
    fn copy(&self, start: u64, words: &mut [u64]) -> io::Result<()> {
        let mut bytes = bytes_of(words);
        if let Some(spool) = self.spool.as_ref().filter(|spool| start < spool.end()) {
            return spool.read(start, bytes);
        }
        for (offset, len) in parts(start, bytes.len() / 8) {
            let (part, rest) = bytes.split_at_mut(len);
            self.file.read_exact_at(part, offset)?;
            bytes = rest;
        }
        Ok(())
    }

    /// Frees the blocks that were read or moved.
    fn free_blocks(&mut self) -> io::Result<()> {
        let before = self.freed;
        while self.freed + BLOCK as u64 <= self.moved() {
            let offset = offset_of(self.freed);
            free(&self.file, offset, BLOCK * 8)?;
            self.freed += BLOCK as u64;
        }
        if self.freed == before {
            return Ok(());
        }
        let word = self.freed.to_ne_bytes();
        self.file.write_all_at(&word, FREED as u64 * 8)
    }
}

/// Returns the bytes of words.
const fn bytes_of(words: &mut [u64]) -> &mut [u8] {
    let len = size_of_val(words);
    // SAFETY: these are initialized bytes of this length, and any values are words.
    unsafe { slice::from_raw_parts_mut(words.as_mut_ptr().cast(), len) }
}

/// Returns the words of each record up to the first one that is not complete.
fn complete(mut words: &[u64]) -> impl Iterator<Item = &[u64]> {
    std::iter::from_fn(move || {
        let len = record::words_of(*words.first()?)?;
        let (one, rest) = words.split_at_checked(len)?;
        words = rest;
        Some(one)
    })
}

/// Returns the parts of the file, as offset and length, of words from a position on.
fn parts(start: u64, words: usize) -> impl Iterator<Item = (u64, usize)> {
    let start = usize::try_from(start).unwrap_or(0) % CAPACITY;
    let first = words.min(CAPACITY - start);
    let part = |from: usize, words: usize| (offset_of(from as u64), words * 8);
    let both = [part(start, first), part(0, words - first)];
    both.into_iter().filter(|(_, len)| *len > 0)
}

/// Returns the offset of a position in the file.
const fn offset_of(position: u64) -> u64 {
    (CONTROL as u64 + position % CAPACITY as u64) * 8
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::super::record::Kind;
    use super::super::writer;
    use super::*;

    fn pair() -> (Ring, RingReader) {
        let (ring, file) = Ring::create().expect("a ring");
        (ring, RingReader::open(file).expect("a ring"))
    }

    /// Returns the words of a record with a field and a text.
    fn words(text: &[u8]) -> usize {
        record::HEAD + 1 + text.len().div_ceil(8)
    }

    fn push(ring: &Ring, number: u64, text: &[u8]) {
        let (head, time) = record::head(None, (Kind::Enter, 1), 1, text.len());
        let words = words(text);
        let rest = time.into_iter().chain([number]);
        ring.push(head, rest.chain(text.chunks(8).map(writer::word_of)), words);
    }

    fn read_all(reader: &mut RingReader) -> Vec<Record> {
        let (mut all, end) = (Vec::new(), reader.end().expect("readable"));
        while reader.waiting(end) > 0 {
            all.extend(reader.read(end).expect("readable"));
        }
        all
    }

    #[test]
    fn records_are_read_as_they_were_written_also_around_the_end() {
        let (ring, mut reader) = pair();
        // A record crosses the end.
        let text = "nine char".repeat(400);
        let words = words(text.as_bytes());
        assert_ne!(CAPACITY % words, 0);
        let count = 2 * BLOCK / words;
        for round in 0..=2 * CAPACITY / (count * words) {
            for _ in 0..count {
                push(&ring, u64::MAX, text.as_bytes());
            }
            let records = read_all(&mut reader);
            assert_eq!(records.len(), count, "round {round}");
            let is_right = |one: &Record| one.field(0) == u64::MAX && one.text == text;
            assert!(records.iter().all(is_right));
        }
        assert!(reader.tail > 2 * CAPACITY as u64);
        assert_eq!(reader.lost().expect("readable"), 0);
    }

    #[test]
    fn a_full_ring_loses_and_counts_and_goes_on() {
        let (ring, mut reader) = pair();
        let text = "t".repeat(record::MAX_TEXT);
        let fit = CAPACITY / words(text.as_bytes());
        for _ in 0..fit + 10 {
            push(&ring, 7, text.as_bytes());
        }
        assert_eq!(reader.lost().expect("readable"), 10);
        assert_eq!(read_all(&mut reader).len(), fit);
        push(&ring, 8, text.as_bytes());
        let records = read_all(&mut reader);
        assert_eq!(records.first().map(|one| one.field(0)), Some(8));
    }

    #[test]
    fn records_that_were_put_aside_are_read_in_their_order() {
        let (ring, mut reader) = pair();
        let text = "t".repeat(1000);
        let mut numbers = 0..;
        let mut push = |count| {
            for number in numbers.by_ref().take(count) {
                push(&ring, number, text.as_bytes());
            }
        };
        let put_aside = |reader: &mut RingReader, count| {
            let end = reader.end().expect("readable");
            let limit = Cell::new(count);
            let make = || match limit.replace(0) {
                0 => Err(io::ErrorKind::StorageFull.into()),
                _ => tempfile::tempfile(),
            };
            reader.put_aside(end, make)
        };
        push(10_000);
        assert!(put_aside(&mut reader, 0).is_err(), "no file");
        put_aside(&mut reader, 1).expect("moved");
        let end = reader.end().expect("readable");
        assert_eq!((reader.in_ring(end), reader.waiting(end)), (0, end));
        assert_ne!(reader.freed, 0);
        push(3000);
        let mut all: Vec<_> = read_all(&mut reader)
            .iter()
            .map(|one| one.field(0))
            .collect();
        push(1000);
        put_aside(&mut reader, 0).expect("there is a file");
        push(1000);
        put_aside(&mut reader, 0).expect("there is a file");
        push(1);
        all.extend(read_all(&mut reader).iter().map(|one| one.field(0)));
        assert_eq!(all, (0..15_001).collect::<Vec<u64>>());
        let len = |spool: Spool| spool.into_file().metadata().expect("a file").len();
        assert_eq!(reader.spool.take().map(len), Some(0));
    }

    #[test]
    fn without_memory_records_are_lost() {
        let (ring, file) = Ring::create().expect("a ring");
        push(&ring, 7, b"");
        // Pages behind the end of a file cannot become present.
        let kept = (CONTROL + STEP) * 8;
        file.set_len(kept as u64).expect("truncated");
        let fit = STEP / words(b"");
        for _ in 0..fit + 10 {
            push(&ring, 8, b"");
        }
        assert_eq!(ring.word(LOST).load(Ordering::Relaxed), 11);
        assert!(touch(ring.word(CONTROL + STEP - PAGE)));
        assert!(!touch(ring.word(CONTROL + STEP)), "it is behind the end");
    }

    #[test]
    fn touched_words_keep_their_values() {
        let (ring, _file) = Ring::create().expect("a ring");
        for value in [0, 1, u64::MAX] {
            let word = ring.word(CONTROL + PAGE);
            word.store(value, Ordering::Relaxed);
            assert!(touch(word));
            assert_eq!(word.load(Ordering::Relaxed), value);
        }
    }

    #[test]
    fn threads_write_side_by_side() {
        let (ring, mut reader) = pair();
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let ring = &ring;
                scope.spawn(move || {
                    for number in 0..5_000 {
                        push(ring, thread << 32 | number, b"text");
                    }
                });
            }
        });
        let records = read_all(&mut reader);
        for thread in 0..4 {
            let of_thread = records
                .iter()
                .filter(|one| u64::from(one.high(0)) == thread);
            let numbers: Vec<u32> = of_thread.map(|one| one.low(0)).collect();
            assert_eq!(numbers, (0..5_000).collect::<Vec<_>>());
        }
    }
}
