//! Delayed packets.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rocade_transport::Time;

/// Most delayed packets at a time: with packets of 4 KB about 70 MB.
const MAX_DELAYED: usize = 16_384;

/// Delayed items, each released at a time or overtaken_by others, at the earlier of the two.
#[derive(Debug)]
pub struct DelayQueue<T> {
    /// Items for which only the time counts.
    timed: BinaryHeap<Reverse<Timed<T>>>,
    /// Items that others may overtake.
    overtaken: Vec<Overtaken<T>>,
    /// Number of items so far.
    added: u64,
}

/// An item, ordered by its time, then by its number.
#[derive(Debug)]
struct Timed<T> {
    due: Time,
    number: u64,
    item: T,
}

#[derive(Debug)]
struct Overtaken<T> {
    due: Time,
    number: u64,
    /// Number of packets that have to pass first.
    by: u32,
    item: T,
}

impl<T> Timed<T> {
    const fn key(&self) -> (Time, u64) {
        (self.due, self.number)
    }
}

impl<T> PartialEq for Timed<T> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl<T> Eq for Timed<T> {}

impl<T> PartialOrd for Timed<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Timed<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

impl<T> Default for DelayQueue<T> {
    fn default() -> Self {
        Self {
            timed: BinaryHeap::new(),
            overtaken: Vec::new(),
            added: 0,
        }
    }
}

impl<T> DelayQueue<T> {
    /// Delays an item until `due`, or until `overtaken_by` (unless 0) others have passed.
    ///
    /// # Errors
    /// Returns the item if too many are delayed already.
    pub fn hold(&mut self, due: Time, overtaken_by: u32, item: T) -> Result<(), T> {
        if self.timed.len() + self.overtaken.len() >= MAX_DELAYED {
            return Err(item);
        }
        let number = self.added;
        self.added += 1;
        if overtaken_by > 0 {
            self.overtaken.push(Overtaken {
                due,
                number,
                by: overtaken_by,
                item,
            });
        } else {
            self.timed.push(Reverse(Timed { due, number, item }));
        }
        Ok(())
    }

    /// Notes that another packet passes. Call [`DelayQueue::take`] afterwards.
    pub fn pass(&mut self) {
        for overtaken in &mut self.overtaken {
            overtaken.by = overtaken.by.saturating_sub(1);
        }
    }

    /// Takes the next item that is ready: the earliest, and among equals the first one added.
    pub fn take(&mut self, now: Time) -> Option<T> {
        let timed = self.timed.peek().map(|Reverse(timed)| timed.key());
        let timed = timed.filter(|(due, _)| *due <= now);
        let ready = |overtaken: &Overtaken<T>| overtaken.by == 0 || overtaken.due <= now;
        let overtaken = self.overtaken.iter().enumerate();
        let overtaken = overtaken
            .filter(|(_, overtaken)| ready(overtaken))
            .map(|(index, overtaken)| ((overtaken.due, overtaken.number), index))
            .min();
        match (timed, overtaken) {
            (Some(timed), Some((key, index))) if key < timed => Some(self.overtake(index)),
            (None, Some((_, index))) => Some(self.overtake(index)),
            (Some(_), _) => self.timed.pop().map(|Reverse(timed)| timed.item),
            (None, None) => None,
        }
    }

    fn overtake(&mut self, index: usize) -> T {
        self.overtaken.remove(index).item
    }

    /// Returns the time at which the next item becomes ready at the latest.
    #[must_use]
    pub fn next_due(&self) -> Option<Time> {
        let timed = self.timed.peek().map(|Reverse(timed)| timed.due);
        let overtaken = self.overtaken.iter().map(|overtaken| overtaken.due).min();
        timed.into_iter().chain(overtaken).min()
    }
}
