//! The memory of ends: who writes where.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::simulated_host::schedule::lock;

/// Bytes of memory of each end of a connection.
const MEMORY: usize = 192 << 10;
/// Most messages of an end.
pub(super) const MOST_MESSAGES: u32 = 22;

/// Parts of the memory of an end. Messages are received at the beginning.
pub(super) const SENT: usize = 60 << 10;
/// Place of the messages that the peer writes.
const WRITTEN: usize = 80 << 10;
/// Place of messages to the keeper of the peer's target.
const TO_KEEPER: usize = 140 << 10;
/// Number of these messages at a time, at most.
const MOST_TO_KEEPER: u32 = 8;
/// Places of a stream: its receive buffer is at the beginning.
pub(super) const LISTS: usize = SENT;
pub(super) const HERE: usize = SENT + 1024;
pub(super) const STAGED: usize = WRITTEN;
/// Place of a number to which the peer adds.
pub(super) const COUNTER: usize = MEMORY - 1024;
/// Place of the mark that the peer writes.
pub(super) const MARKED: usize = MEMORY - 1016;
/// Place of the marks that this end writes to its peer.
pub(super) const OWN_MARKS: usize = MEMORY - 768;
/// Place of what the peer reads.
pub(super) const SOURCE: usize = MEMORY - 512;
/// Place of the results of atomics.
pub(super) const ADDED: usize = MEMORY - 256;
/// Place of what was read.
pub(super) const GOT: usize = MEMORY - 128;
/// Length of a READ.
pub(super) const READ_LEN: usize = 64;

/// Returns the place of a message that the peer writes.
pub(super) const fn written_at(number: u32, len: usize) -> usize {
    WRITTEN + (number % MOST_MESSAGES) as usize * len
}

/// Returns the place of a message to the keeper of the peer's target.
pub(super) fn to_keeper_at(number: u32, len: usize) -> usize {
    TO_KEEPER + place_in_turn(number.into(), MOST_TO_KEEPER, len)
}

/// Returns the offset of a message among `places` that are used in turn.
pub(super) fn place_in_turn(number: u64, places: u32, len: usize) -> usize {
    usize::try_from(number % u64::from(places)).unwrap_or(0) * len
}

/// Memory of processes that have ended, which others get.
static POOL: Mutex<Vec<&'static [AtomicU8]>> = Mutex::new(Vec::new());

/// Memory of an end, until this is dropped.
pub(super) struct Memory(pub(super) &'static [AtomicU8]);

impl Memory {
    pub(super) fn new() -> Self {
        let pooled = lock(&POOL).pop();
        let new = || -> &'static [AtomicU8] {
            Vec::leak((0..MEMORY).map(|_| AtomicU8::new(0)).collect::<Vec<_>>())
        };
        Self(pooled.unwrap_or_else(new))
    }

    pub(super) fn bytes(&self, at: usize, len: usize) -> Vec<u8> {
        let cells = self.0[at..at + len].iter();
        cells.map(|cell| cell.load(Ordering::Relaxed)).collect()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        lock(&POOL).push(self.0);
    }
}
