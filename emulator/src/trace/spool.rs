//! Records that were moved from a ring to a file, because the ring has no space for them.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

/// The bytes of a word.
const WORD: u64 = 8;

/// Words of a ring, from a position on.
#[derive(Debug)]
pub(super) struct Spool {
    file: File,
    /// The position of the first word in the file.
    start: u64,
    /// The position behind the last word.
    end: u64,
}

impl Spool {
    /// Takes an empty file for the words from a position on.
    pub(super) const fn new(file: File, start: u64) -> Self {
        let end = start;
        Self { file, start, end }
    }

    pub(super) const fn end(&self) -> u64 {
        self.end
    }

    /// Appends words.
    ///
    /// # Errors
    /// Those of writing. The words before stay.
    pub(super) fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, self.offset_of(self.end))?;
        self.end += bytes.len() as u64 / WORD;
        Ok(())
    }

    /// Reads words from a position on.
    ///
    /// # Errors
    /// Those of reading.
    pub(super) fn read(&self, position: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(bytes, self.offset_of(position))
    }

    /// Continues at a position, before which all was read. Without any words, gives the storage
    /// back.
    pub(super) fn release(&mut self, position: u64) {
        if position < self.end {
            return;
        }
        if self.end > self.start {
            // If that fails, the storage is used again.
            let _ = self.file.set_len(0);
        }
        (self.start, self.end) = (position, position);
    }

    #[cfg(test)]
    pub(super) fn into_file(self) -> File {
        self.file
    }

    const fn offset_of(&self, position: u64) -> u64 {
        (position - self.start) * WORD
    }
}
