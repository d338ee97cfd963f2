//! A ring of records in a file. All `unsafe` code of traces is in this file.
//!
//! The traced process maps the file, and its tracer reads and writes it by pread(2) and pwrite(2).
//! Words 0 to 63 are the control words. Positions count all words since the begin, and the word of
//! a position is at its remainder. The process reserves words by moving `HEAD`, and stores the
//! first word of a record last. The tracer clears what it has read, then moves `TAIL`.

use std::cell::Cell;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::atomic::{self, AtomicU64, Ordering};

use super::record::{self, Kind, Record};
use crate::sys::check_file_size;

/// The words of a ring, 8 MiB.
const CAPACITY: usize = 1 << 20;
/// The control words.
const CONTROL: usize = 64;
const LEN: usize = (CONTROL + CAPACITY) * 8;
const HEAD: usize = 0;
const LOST: usize = 1;
const MAGIC: usize = 2;
/// On a cache line of its own.
const TAIL: usize = 32;
/// Identifies a ring of this format.
const FORMAT: u64 = 0x726f_6361_6465_0002;
/// The most words that a tracer reads at once.
const CHUNK: usize = 1 << 16;
/// The words of a tracer's buffer, 8 MiB.
const BUFFER: usize = 1 << 20;
/// Zeroes, with which the tracer clears words.
static ZEROES: [u8; CHUNK * 8] = [0; CHUNK * 8];

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
    /// Creates a ring in a directory. The name is `PID-TIME.ring`.
    pub(super) fn create(dir: &Path) -> io::Result<Self> {
        check_file_size(LEN as u64)?;
        let name = format!("{}-{}.ring", std::process::id(), super::now_ns());
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(dir.join(name))?;
        let size = libc::off_t::try_from(LEN).map_err(|_| io::ErrorKind::InvalidInput)?;
        // All blocks are there, so that a full disk does not end the process.
        // SAFETY: takes no pointers.
        let failed = unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, size) };
        if failed != 0 {
            return Err(io::Error::from_raw_os_error(failed));
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
        ring.word(MAGIC).store(FORMAT, Ordering::Release);
        Ok(ring)
    }

    const fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is aligned to pages, this long, and never unmapped. Only the tracer
        // changes the file, by pwrite(2) of words.
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
            if end - self.word(TAIL).load(Ordering::Acquire) > CAPACITY as u64 {
                self.word(LOST).fetch_add(1, Ordering::Relaxed);
                return None;
            }
            match head.compare_exchange_weak(at, end, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return Some(at),
                Err(now) => at = now,
            }
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

/// The reading end of a ring, in the tracer.
#[derive(Debug)]
pub struct RingReader {
    file: File,
    tail: u64,
}

impl RingReader {
    /// Opens the ring of a process.
    ///
    /// # Errors
    /// Those of opening and reading. [`io::ErrorKind::WouldBlock`] if the process is still making
    /// it.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let reader = Self { file, tail: 0 };
        if file_len(&reader.file)? < LEN as u64 || reader.control(MAGIC)? != FORMAT {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(reader)
    }

    /// Appends the words of complete records to a buffer, makes room for as many, and returns their
    /// number. [`records`] gets the records from them. 0 means that there are none, or that the
    /// buffer [`is_full`].
    ///
    /// # Errors
    /// Those of reading and writing the file.
    pub fn read(&mut self, buffer: &mut Vec<u64>) -> io::Result<usize> {
        let waiting = self.control(HEAD)?.saturating_sub(self.tail);
        let waiting = usize::try_from(waiting).unwrap_or(usize::MAX).min(CHUNK);
        if is_full(buffer) {
            return Ok(0);
        }
        let start = buffer.len();
        buffer.resize(start + waiting, 0);
        let words = buffer.get_mut(start..).unwrap_or_default();
        self.copy(words)?;
        let complete = complete(words).map(<[u64]>::len).sum();
        buffer.truncate(start + complete);
        if complete > 0 {
            if cfg!(not(target_arch = "x86_64")) {
                // A first word may have been read after the others, so they are read again.
                atomic::fence(Ordering::Acquire);
                self.copy(buffer.get_mut(start..).unwrap_or_default())?;
            }
            self.release(complete)?;
        }
        Ok(complete)
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

    /// Clears words that were read, and gives them back.
    fn release(&mut self, words: usize) -> io::Result<()> {
        for (offset, len) in parts(self.tail, words) {
            let zeroes = ZEROES.get(..len).expect("not more than were read at once");
            self.file.write_all_at(zeroes, offset)?;
        }
        self.tail += words as u64;
        self.file
            .write_all_at(&self.tail.to_ne_bytes(), TAIL as u64 * 8)
    }
}

/// Returns an empty buffer for [`RingReader::read`].
#[must_use]
pub fn buffer() -> Vec<u64> {
    Vec::with_capacity(BUFFER)
}

/// Returns true if a buffer takes no more words.
#[must_use]
pub const fn is_full(buffer: &Vec<u64>) -> bool {
    buffer.capacity() - buffer.len() < CHUNK
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

/// Returns the records whose words [`RingReader::read`] has read.
pub fn records(words: &[u64]) -> impl Iterator<Item = Record> {
    complete(words).filter_map(record::parse)
}

/// Returns the parts of the file, as offset and length, of words from a position on.
fn parts(start: u64, words: usize) -> impl Iterator<Item = (u64, usize)> {
    let start = usize::try_from(start).unwrap_or(0) % CAPACITY;
    let first = words.min(CAPACITY - start);
    let part = |from: usize, words: usize| (((CONTROL + from) * 8) as u64, words * 8);
    let both = [part(start, first), part(0, words - first)];
    both.into_iter().filter(|(_, len)| *len > 0)
}

fn file_len(file: &File) -> io::Result<u64> {
    Ok(file.metadata()?.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (tempfile::TempDir, Ring, RingReader) {
        let dir = tempfile::tempdir().expect("a directory");
        let ring = Ring::create(dir.path()).expect("a ring");
        let entry = std::fs::read_dir(dir.path()).expect("readable").next();
        let path = entry.expect("a file").expect("readable").path();
        let reader = RingReader::open(&path).expect("a ring");
        (dir, ring, reader)
    }

    fn read_all(reader: &mut RingReader) -> Vec<Record> {
        let mut all = Vec::new();
        loop {
            let mut words = buffer();
            if reader.read(&mut words).expect("readable") == 0 {
                return all;
            }
            all.extend(records(&words));
        }
    }

    #[test]
    fn records_are_read_as_they_were_written_also_around_the_end() {
        let (_dir, ring, mut reader) = pair();
        // Six words each, so that records cross the end at several places.
        let (fields, text) = ([1, u64::MAX], "nine char");
        let mut read = 0u64;
        for round in 0..10 {
            for _ in 0..20_000 {
                ring.push(1, 0, (Kind::Enter, &fields, text.as_bytes()));
            }
            let records = read_all(&mut reader);
            assert_eq!(records.len(), 20_000, "round {round}");
            let is_right = |one: &Record| one.fields == fields && one.text == text;
            assert!(records.iter().all(is_right));
            read += 20_000 * 6;
        }
        assert!(read > CAPACITY as u64);
        assert_eq!(reader.lost().expect("readable"), 0);
    }

    #[test]
    fn a_full_ring_loses_and_counts_and_goes_on() {
        let (_dir, ring, mut reader) = pair();
        let fit = CAPACITY / 3;
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
        let (_dir, ring, mut reader) = pair();
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
