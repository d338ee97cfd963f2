//! Packets that are late.

use rocade_transport::Time;

/// Most packets that wait at a time.
const MAX_HELD: usize = 4_096;

/// Things that go on at a time, or behind others, whichever comes first.
#[derive(Debug)]
pub struct Held<T> {
    waiting: Vec<Waiting<T>>,
}

#[derive(Debug)]
struct Waiting<T> {
    due: Time,
    /// So many have to pass first; `None` where only time counts.
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
    /// Keeps something until `due`, or until `behind` (unless 0) others have passed.
    ///
    /// # Errors
    /// Gives it back where too many wait already.
    pub fn hold(&mut self, due: Time, behind: u32, item: T) -> Result<(), T> {
        if self.waiting.len() >= MAX_HELD {
            return Err(item);
        }
        let behind = (behind > 0).then_some(behind);
        self.waiting.push(Waiting { due, behind, item });
        Ok(())
    }

    /// Another one passes. Call [`Held::take`] after it has.
    pub fn pass(&mut self) {
        for waiting in &mut self.waiting {
            if let Some(behind) = &mut waiting.behind {
                *behind = behind.saturating_sub(1);
            }
        }
    }

    /// Takes the next one that may go on: the earliest, and of those that are due together the one that came
    /// first.
    pub fn take(&mut self, now: Time) -> Option<T> {
        let ready = |waiting: &Waiting<T>| waiting.behind == Some(0) || waiting.due <= now;
        let ready = self.waiting.iter().enumerate().filter(|(_, w)| ready(w));
        let (first, _) = ready.min_by_key(|(_, waiting)| waiting.due)?;
        Some(self.waiting.remove(first).item)
    }

    /// When the next one goes on at the latest.
    #[must_use]
    pub fn next_due(&self) -> Option<Time> {
        self.waiting.iter().map(|waiting| waiting.due).min()
    }
}
