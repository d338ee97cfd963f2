//! The choice of the occasions that a rule hits, by position and probability.

use crate::random::Random;

/// Counts occasions and selects those that a rule hits.
#[derive(Clone, Debug)]
pub struct Gate {
    nth: Option<(u64, u64)>,
    per_million: u32,
    random: Random,
    /// Number of occasions so far.
    seen: u64,
}

impl Gate {
    /// Creates a gate that is open for the occasions `nth`, counted from 1, with a probability in
    /// millionths. `None` selects all of them.
    #[must_use]
    pub fn new(nth: Option<(u64, u64)>, per_million: Option<u32>, seed: u64) -> Self {
        Self {
            nth,
            per_million: per_million.unwrap_or(1_000_000),
            random: Random(seed),
            seen: 0,
        }
    }

    /// Counts an occasion. Returns true if the rule hits it.
    pub fn admit(&mut self) -> bool {
        self.seen += 1;
        let seen = self.seen;
        self.nth
            .is_none_or(|(first, last)| (first..=last).contains(&seen))
            && self.random.chance(self.per_million)
    }
}
