//! The engine's time: the system's clock, or simulated time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rocade_transport::Time;

use crate::sys;

/// Clock value at the origin: one second, which is less than every real timestamp.
const ORIGIN_NS: u64 = 1_000_000_000;

/// A monotonic clock in nanoseconds since the engine was created.
#[derive(Clone, Debug)]
pub(crate) struct Clock {
    origin_ns: u64,
    /// The simulated time, if there is one.
    simulated: Option<Arc<AtomicU64>>,
}

impl Clock {
    pub(crate) fn new() -> Self {
        Self {
            origin_ns: sys::monotonic_ns(),
            simulated: None,
        }
    }

    /// Creates a clock that shows the time `time`.
    pub(crate) const fn simulated(time: Arc<AtomicU64>) -> Self {
        Self {
            origin_ns: 0,
            simulated: Some(time),
        }
    }

    /// Returns the time. Reads plain nanoseconds, not an `Instant`, because this runs for each
    /// batch of packets.
    #[inline]
    pub(crate) fn now(&self) -> Time {
        if let Some(time) = &self.simulated {
            return Time::from_ns(time.load(Ordering::Relaxed));
        }
        let since = sys::monotonic_ns().saturating_sub(self.origin_ns);
        Time::from_ns(since + ORIGIN_NS)
    }
}
