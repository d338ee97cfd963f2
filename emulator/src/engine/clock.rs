//! The engine's time.

use std::time::Instant;

use rocade_transport::Time;

/// Nanoseconds since the engine was made, monotonic.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    origin: Instant,
}

impl Clock {
    pub(crate) fn new() -> Self {
        Self {
            origin: Instant::now(),
        }
    }

    pub(crate) fn now(&self) -> Time {
        let ns = self.origin.elapsed().as_nanos();
        // One second at the origin stays below every real time stamp.
        Time::from_ns(
            u64::try_from(ns)
                .unwrap_or(u64::MAX)
                .saturating_add(1_000_000_000),
        )
    }
}
