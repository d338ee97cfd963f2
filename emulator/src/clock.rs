//! The engine's time: that of the system, or of a simulation.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rocade_transport::Time;

use crate::sys;

/// One second at the origin stays below every real time stamp.
const ORIGIN_NS: u64 = 1_000_000_000;

/// Nanoseconds since the engine was made, monotonic.
#[derive(Clone, Debug)]
pub(crate) struct Clock {
    origin_ns: u64,
    /// The time itself, where it is simulated.
    simulated: Option<Arc<AtomicU64>>,
}

impl Clock {
    pub(crate) fn new() -> Self {
        Self {
            origin_ns: sys::monotonic_ns(),
            simulated: None,
        }
    }

    /// One that shows what somebody else says.
    pub(crate) const fn simulated(time: Arc<AtomicU64>) -> Self {
        Self {
            origin_ns: 0,
            simulated: Some(time),
        }
    }

    /// Read for each batch of packets: hence in plain nanoseconds, not as an `Instant`.
    #[inline]
    pub(crate) fn now(&self) -> Time {
        if let Some(time) = &self.simulated {
            return Time::from_ns(time.load(Ordering::Relaxed));
        }
        let since = sys::monotonic_ns().saturating_sub(self.origin_ns);
        Time::from_ns(since + ORIGIN_NS)
    }
}
