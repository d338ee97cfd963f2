//! A ring of records in a memory file. All `unsafe` code of traces is in this file.
//!
//! The traced process maps the file, and its tracer, which gets it through a socket (`rings.rs`),
//! reads it by pread(2). The first words are the control words. Positions count all words since the
//! begin, and the word of a position is at its remainder. The process reserves words by moving
//! `HEAD`, and stores the first word of a record last.
//!
//! The file has storage for the words up to `LIMIT` only, in whole blocks. The tracer moves it
//! ahead of the process, and frees blocks that it has read. Words of a new block are 0. So records
//! wait in the ring until the tracer has time to decode them, without being copied.

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::atomic::{self, AtomicU64, Ordering};

use super::record::{self, Kind, Record};
use crate::sys::{check_file_size, memory_file};

/// The words of a ring, 256 MiB.
const CAPACITY: usize = 1 << 25;
/// The words of a block, 2 MiB.
const BLOCK: usize = 1 << 18;
/// The words that a process has room for, 8 MiB, unless it is faster than its tracer.
const AHEAD: u64 = 4 * BLOCK as u64;
/// The words whose pages become present at once, 64 KiB. It divides a block, and is a multiple of
/// all sizes of pages.
const STEP: usize = 1 << 13;
/// The control words, a multiple of all sizes of pages.
const CONTROL: usize = 1 << 13;
const LEN: usize = (CONTROL + CAPACITY) * 8;
const HEAD: usize = 0;
const LOST: usize = 1;
const MAGIC: usize = 2;
/// On a cache line of its own.
const LIMIT: usize = 32;
/// Identifies a ring of this format.
const FORMAT: u64 = 0x726f_6361_6465_0003;
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

thread_local! {
    /// The number of forks and the ID of this thread.
    static THREAD: Cell<(usize, u32)> = const { Cell::new((usize::MAX, 0)) };
}

/// Returns the ID of the calling thread.
fn thread_id(forks: usize) -> u32 {
    let cached = THREAD.try_with(Cell::get).unwrap_or((usize::MAX, 0));
    if cached.0 == forks {
        return cached.1;
    }
    // SAFETY: takes no arguments.
    let id = u32::try_from(unsafe { libc::syscall(libc::SYS_gettid) }).unwrap_or(0);
    let _ = THREAD.try_with(|thread| thread.set((forks, id)));
    id
}

impl Ring {
    /// Creates a ring. Returns its file for the tracer, too.
    pub(super) fn create() -> io::Result<(Self, File)> {
        check_file_size(LEN as u64)?;
        let file = File::from(memory_file(c"rocade-trace")?);
        file.set_len(LEN as u64)?;
        // Words that a process may write have storage, so that a lack of memory does not end it.
        allocate(&file, 0, CONTROL * 8)?;
        for block in 0..AHEAD / BLOCK as u64 {
            allocate(&file, offset_of(block * BLOCK as u64), BLOCK * 8)?;
        }
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
        ring.word(LIMIT).store(AHEAD, Ordering::Relaxed);
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
            let end = at + words;
            if end > self.word(LIMIT).load(Ordering::Acquire) {
                self.word(LOST).fetch_add(1, Ordering::Relaxed);
                return None;
            }
            match head.compare_exchange_weak(at, end, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => {
                    self.populate(at..end);
                    return Some(at);
                }
                Err(now) => at = now,
            }
        }
    }

    /// Makes the pages of a step present, if one begins within these positions. One call takes less
    /// time than the page faults. Without it, they come.
    fn populate(&self, positions: Range<u64>) {
        let step = positions.start.next_multiple_of(STEP as u64);
        if !positions.contains(&step) {
            return;
        }
        let index = usize::try_from(step).unwrap_or(0) % CAPACITY;
        let words = self.words().get(CONTROL + index..).unwrap_or_default();
        let words = words.get(..STEP).unwrap_or_default();
        let start: *const AtomicU64 = words.as_ptr();
        // SAFETY: these are whole pages of the mapping, and their content stays.
        unsafe {
            libc::madvise(
                start.cast_mut().cast(),
                size_of_val(words),
                libc::MADV_POPULATE_WRITE,
            );
        }
    }

    /// Writes a record of a time, if there is room.
    pub(super) fn push(
        &self,
        time_ns: u64,
        forks: usize,
        (kind, fields, text): (Kind, &[u64], &[u8]),
    ) {
        let text = text.get(..record::MAX_TEXT).unwrap_or(text);
        let words = record::words(fields.len(), text.len());
        let Some(at) = self.reserve(words as u64) else {
            return;
        };
        let rest = fields.iter().copied().chain(text.chunks(8).map(|bytes| {
            let mut word = [0; 8];
            word.iter_mut()
                .zip(bytes)
                .for_each(|(to, byte)| *to = *byte);
            u64::from_ne_bytes(word)
        }));
        let index = usize::try_from(at).unwrap_or(0) % CAPACITY;
        let (before, from) = self.words().split_at(CONTROL + index);
        let begin = before.get(CONTROL..).unwrap_or_default();
        let mut places = from.iter().chain(begin);
        let first = places.next().expect("the index is in the ring");
        for (place, word) in places.zip([time_ns].into_iter().chain(rest)) {
            place.store(word, Ordering::Relaxed);
        }
        let head = record::head(kind, thread_id(forks), fields.len(), text.len());
        first.store(head, Ordering::Release);
    }
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
    /// The position before which there is storage.
    limit: u64,
    /// Words that were read at once.
    buffer: Vec<u64>,
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
            limit: AHEAD,
            buffer: Vec::new(),
        };
        if reader.file.metadata()?.len() < LEN as u64 || reader.control(MAGIC)? != FORMAT {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(reader)
    }

    /// Returns the position of the end of all records so far, and makes room for later ones.
    ///
    /// # Errors
    /// Those of reading and writing the file.
    pub fn look(&mut self) -> io::Result<u64> {
        let head = self.control(HEAD)?;
        self.extend(head)?;
        Ok(head)
    }

    /// Returns true if the process has less room than it may need, so that reading its records
    /// comes before looking for more.
    #[must_use]
    pub const fn is_short_of_room(&self, head: u64) -> bool {
        self.limit < head + AHEAD
    }

    /// Returns the number of words between the next record and a position.
    #[must_use]
    pub const fn waiting(&self, end: u64) -> u64 {
        end.saturating_sub(self.tail)
    }

    /// Reads complete records, of those before a position. Without any, there are none.
    ///
    /// # Errors
    /// Those of reading and writing the file.
    pub fn read(&mut self, end: u64) -> io::Result<impl Iterator<Item = Record>> {
        let waiting = usize::try_from(self.waiting(end)).unwrap_or(usize::MAX);
        let mut words = std::mem::take(&mut self.buffer);
        words.resize(waiting.min(CHUNK), 0);
        self.copy(&mut words)?;
        let count = complete(&words).map(<[u64]>::len).sum();
        words.truncate(count);
        if cfg!(not(target_arch = "x86_64")) {
            // A first word may have been read after the others, so they are read again.
            atomic::fence(Ordering::Acquire);
            self.copy(&mut words)?;
        }
        self.buffer = words;
        self.tail += count as u64;
        self.free_blocks()?;
        Ok(complete(&self.buffer).filter_map(record::parse))
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

    /// Reads words from the tail on.
    fn copy(&self, words: &mut [u64]) -> io::Result<()> {
        let mut bytes = bytes_of(words);
        for (offset, len) in parts(self.tail, bytes.len() / 8) {
            let (part, rest) = bytes.split_at_mut(len);
            self.file.read_exact_at(part, offset)?;
            bytes = rest;
        }
        Ok(())
    }

    /// Allocates the blocks that a process may need soon. Without memory, or space in the ring, it
    /// gets fewer.
    fn extend(&mut self, head: u64) -> io::Result<()> {
        let before = self.limit;
        while self.limit < head + AHEAD
            && self.limit + BLOCK as u64 <= self.freed + CAPACITY as u64
            && allocate(&self.file, offset_of(self.limit), BLOCK * 8).is_ok()
        {
            self.limit += BLOCK as u64;
        }
        if self.limit == before {
            return Ok(());
        }
        let word = self.limit.to_ne_bytes();
        self.file.write_all_at(&word, LIMIT as u64 * 8)
    }

    /// Frees the blocks that were read.
    fn free_blocks(&mut self) -> io::Result<()> {
        while self.freed + BLOCK as u64 <= self.tail {
            let offset = offset_of(self.freed);
            free(&self.file, offset, BLOCK * 8)?;
            self.freed += BLOCK as u64;
        }
        Ok(())
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
    use super::*;

    fn pair() -> (Ring, RingReader) {
        let (ring, file) = Ring::create().expect("a ring");
        (ring, RingReader::open(file).expect("a ring"))
    }

    fn read_all(reader: &mut RingReader) -> Vec<Record> {
        let (mut all, end) = (Vec::new(), reader.look().expect("readable"));
        while reader.waiting(end) > 0 {
            all.extend(reader.read(end).expect("readable"));
        }
        reader.look().expect("room is made");
        all
    }

    #[test]
    fn records_are_read_as_they_were_written_also_around_the_end() {
        let (ring, mut reader) = pair();
        // A record crosses the end.
        let (fields, text) = ([1, u64::MAX], "nine char".repeat(400));
        let words = record::words(fields.len(), text.len());
        assert_ne!(CAPACITY % words, 0);
        let count = 2 * BLOCK / words;
        for round in 0..=2 * CAPACITY / (count * words) {
            for _ in 0..count {
                ring.push(1, 0, (Kind::Enter, &fields, text.as_bytes()));
            }
            let records = read_all(&mut reader);
            assert_eq!(records.len(), count, "round {round}");
            let is_right = |one: &Record| one.fields == fields && one.text == text;
            assert!(records.iter().all(is_right));
        }
        assert!(reader.tail > 2 * CAPACITY as u64);
        assert_eq!(reader.lost().expect("readable"), 0);
    }

    #[test]
    fn a_full_ring_loses_and_counts_and_goes_on() {
        let (ring, mut reader) = pair();
        let fit = 4 * BLOCK / 3;
        for _ in 0..fit + 10 {
            ring.push(1, 0, (Kind::ReqNotify, &[7], b""));
        }
        assert_eq!(reader.lost().expect("readable"), 10);
        assert_eq!(read_all(&mut reader).len(), fit);
        ring.push(1, 0, (Kind::ReqNotify, &[8], b""));
        let records = read_all(&mut reader);
        assert_eq!(records.first().map(|one| one.field(0)), Some(8));
    }

    #[test]
    fn threads_write_side_by_side() {
        let (ring, mut reader) = pair();
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let ring = &ring;
                scope.spawn(move || {
                    for number in 0..5_000 {
                        ring.push(1, 0, (Kind::Exit, &[thread, number], b"text"));
                    }
                });
            }
        });
        let records = read_all(&mut reader);
        for thread in 0..4 {
            let of_thread = records.iter().filter(|one| one.field(0) == thread);
            let numbers: Vec<u64> = of_thread.map(|one| one.field(1)).collect();
            assert_eq!(numbers, (0..5_000).collect::<Vec<_>>());
        }
    }
}
