//! The engine's time.

use rocade_transport::Time;

use super::sys;

/// One second at the origin stays below every real time stamp.
const ORIGIN_NS: u64 = 1_000_000_000;

/// Nanoseconds since the engine was made, monotonic.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    origin_ns: u64,
}

impl Clock {
    pub(crate) fn new() -> Self {
        Self {
            origin_ns: sys::monotonic_ns(),
        }
    }

    /// Read for each batch of packets: hence in plain nanoseconds, not as an `Instant`.
    #[inline]
    pub(crate) fn now(&self) -> Time {
        let since = sys::monotonic_ns().saturating_sub(self.origin_ns);
        Time::from_ns(since + ORIGIN_NS)
    }
}
