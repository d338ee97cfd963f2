//! The engine's time: the system's clock, or simulated time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rocade_transport::Time;

use crate::sync::turn;
use crate::sys;

/// Clock value at the origin: one second, which is less than every real timestamp.
const ORIGIN_NS: u64 = 1_000_000_000;

/// A pair of readings counts as simultaneous within this time.
const CALIBRATION_NS: u64 = 200;
/// Most attempts at a simultaneous pair. The best one counts.
const CALIBRATIONS: u32 = 16;

/// The time at which something began. It is virtual for a thread of a simulated host.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch {
    begin_ns: u64,
}

impl Stopwatch {
    /// Starts measuring.
    #[must_use]
    pub fn start() -> Self {
        Self { begin_ns: now_ns() }
    }

    /// Returns the time since the start.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        Duration::from_nanos(now_ns().saturating_sub(self.begin_ns))
    }
}

/// Returns the time of the calling thread.
fn now_ns() -> u64 {
    #[cfg(all(any(test, feature = "simulated-host"), not(loom)))]
    if let Some(time) = turn::time() {
        return time.load(Ordering::Relaxed);
    }
    sys::monotonic_ns()
}

/// A monotonic clock in nanoseconds since the engine was created.
///
/// It also tells the time of day. The offset between both is measured once, so that both have the
/// same order and the same distances. A NIC has one clock, too: it does not notice either that the
/// time of day is set.
#[derive(Clone, Debug)]
pub(crate) struct Clock {
    origin_ns: u64,
    /// The time of day at time 0 of this clock, in nanoseconds since 1970.
    unix_origin_ns: u64,
    /// The simulated time, if there is one.
    simulated: Option<Arc<AtomicU64>>,
}

impl Clock {
    pub(crate) fn new() -> Self {
        #[cfg(all(any(test, feature = "simulated-host"), not(loom)))]
        if let Some(time) = turn::time() {
            return Self::simulated(time);
        }
        let (origin_ns, unix_ns) = simultaneous();
        Self {
            origin_ns,
            unix_origin_ns: unix_ns.saturating_sub(ORIGIN_NS),
            simulated: None,
        }
    }

    /// Creates a clock that shows the time `time`.
    pub(crate) fn simulated(time: Arc<AtomicU64>) -> Self {
        let now = time.load(Ordering::Relaxed);
        Self {
            origin_ns: 0,
            unix_origin_ns: sys::realtime_ns().saturating_sub(now),
            simulated: Some(time),
        }
    }

    /// Returns the time. Reads plain nanoseconds, not an `Instant`, because this runs for each
    /// batch of packets.
    #[inline]
    pub(crate) fn now(&self) -> Time {
        if let Some(time) = &self.simulated {
            let tick = turn::tick_ns();
            return Time::from_ns(time.fetch_add(tick, Ordering::Relaxed) + tick);
        }
        let since = sys::monotonic_ns().saturating_sub(self.origin_ns);
        Time::from_ns(since + ORIGIN_NS)
    }

    /// Converts a time of this clock to nanoseconds of the system's monotonic clock.
    pub(crate) const fn monotonic_ns(&self, time: Time) -> u64 {
        let since = time.as_ns().saturating_sub(ORIGIN_NS);
        self.origin_ns.saturating_add(since)
    }

    /// Converts a time of this clock to nanoseconds since 1970.
    pub(crate) const fn unix_ns(&self, time_ns: u64) -> u64 {
        self.unix_origin_ns.saturating_add(time_ns)
    }
}

/// Returns the monotonic clock and the time of day at one moment, in nanoseconds. A thread that is
/// interrupted between both readings reads again.
fn simultaneous() -> (u64, u64) {
    let (mut best, mut shortest) = ((0, 0), u64::MAX);
    for _ in 0..CALIBRATIONS {
        let before = sys::monotonic_ns();
        let unix = sys::realtime_ns();
        let took = sys::monotonic_ns().saturating_sub(before);
        if took < shortest {
            (best, shortest) = ((before + took / 2, unix), took);
        }
        if shortest <= CALIBRATION_NS {
            break;
        }
    }
    best
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_day_has_the_order_of_the_clock() {
        let clock = Clock::new();
        let first = clock.now().as_ns();
        let unix = clock.unix_ns(first);
        assert_eq!(clock.unix_ns(first), unix);
        assert_eq!(clock.unix_ns(first + 1), unix + 1);
        // A minute of slack, because an administrator may set the clock.
        assert!(sys::realtime_ns().abs_diff(unix) < 60_000_000_000);
    }
}
