//! Delayed packets.

use rocade_transport::Time;

/// Most delayed packets at a time.
const MAX_DELAYED: usize = 4_096;

/// Delayed items, each released at a time or overtaken_by others, at the earlier of the two.
#[derive(Debug)]
pub struct DelayQueue<T> {
    delayed: Vec<Delayed<T>>,
}

#[derive(Debug)]
struct Delayed<T> {
    due: Time,
    /// Number of packets that have to pass first. `None` if only the time counts.
    overtaken_by: Option<u32>,
    item: T,
}

impl<T> Default for DelayQueue<T> {
    fn default() -> Self {
        Self {
            delayed: Vec::new(),
        }
    }
}

impl<T> DelayQueue<T> {
    /// Delays an item until `due`, or until `overtaken_by` (unless 0) others have passed.
    ///
    /// # Errors
    /// Returns the item if too many are delayed already.
    pub fn hold(&mut self, due: Time, overtaken_by: u32, item: T) -> Result<(), T> {
        if self.delayed.len() >= MAX_DELAYED {
            return Err(item);
        }
        let overtaken_by = (overtaken_by > 0).then_some(overtaken_by);
        self.delayed.push(Delayed {
            due,
            overtaken_by,
            item,
        });
        Ok(())
    }

    /// Notes that another packet passes. Call [`DelayQueue::take`] afterwards.
    pub fn pass(&mut self) {
        for delayed in &mut self.delayed {
            if let Some(overtaken_by) = &mut delayed.overtaken_by {
                *overtaken_by = overtaken_by.saturating_sub(1);
            }
        }
    }

    /// Takes the next item that is ready: the earliest, and among equals the first one added.
    pub fn take(&mut self, now: Time) -> Option<T> {
        let ready = |delayed: &Delayed<T>| delayed.overtaken_by == Some(0) || delayed.due <= now;
        let ready = self.delayed.iter().enumerate().filter(|(_, w)| ready(w));
        let (first, _) = ready.min_by_key(|(_, delayed)| delayed.due)?;
        Some(self.delayed.remove(first).item)
    }

    /// Returns the time at which the next item becomes ready at the latest.
    #[must_use]
    pub fn next_due(&self) -> Option<Time> {
        self.delayed.iter().map(|delayed| delayed.due).min()
    }
}
