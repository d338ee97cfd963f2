//! Delayed packets.

use rocade_transport::Time;

/// Most delayed packets at a time.
const MAX_HELD: usize = 4_096;

/// Delayed items, each released at a time or behind others, at the earlier of the two.
#[derive(Debug)]
pub struct Held<T> {
    waiting: Vec<Waiting<T>>,
}

#[derive(Debug)]
struct Waiting<T> {
    due: Time,
    /// Number of packets that have to pass first. `None` if only the time counts.
    behind: Option<u32>,
    item: T,
}

impl<T> Default for Held<T> {
    fn default() -> Self {
        Self {
            waiting: Vec::new(),
        }
    }
}

impl<T> Held<T> {
    /// Delays an item until `due`, or until `behind` (unless 0) others have passed.
    ///
    /// # Errors
    /// Returns the item if too many are delayed already.
    pub fn hold(&mut self, due: Time, behind: u32, item: T) -> Result<(), T> {
        if self.waiting.len() >= MAX_HELD {
            return Err(item);
        }
        let behind = (behind > 0).then_some(behind);
        self.waiting.push(Waiting { due, behind, item });
        Ok(())
    }

    /// Notes that another packet passes. Call [`Held::take`] afterwards.
    pub fn pass(&mut self) {
        for waiting in &mut self.waiting {
            if let Some(behind) = &mut waiting.behind {
                *behind = behind.saturating_sub(1);
            }
        }
    }

    /// Takes the next item that is ready: the earliest, and among equals the first one added.
    pub fn take(&mut self, now: Time) -> Option<T> {
        let ready = |waiting: &Waiting<T>| waiting.behind == Some(0) || waiting.due <= now;
        let ready = self.waiting.iter().enumerate().filter(|(_, w)| ready(w));
        let (first, _) = ready.min_by_key(|(_, waiting)| waiting.due)?;
        Some(self.waiting.remove(first).item)
    }

    /// Returns the time at which the next item becomes ready at the latest.
    #[must_use]
    pub fn next_due(&self) -> Option<Time> {
        self.waiting.iter().map(|waiting| waiting.due).min()
    }
}
