//! Durations and counts that the protocol encodes in a few bits.

use std::fmt;
use std::num::NonZeroU32;
use std::time::Duration;

use rocade_wire::{AckTimeout as AckCode, RnrTimer as RnrCode};

/// The time that a requester waits for an acknowledgement before it sends again.
///
/// The protocol has 31 values, 4.096 µs times a power of two: 8.192 µs to 2.4 hours.
///
/// ```
/// use std::time::Duration;
///
/// use rocade_verbs::AckTimeout;
///
/// let timeout = AckTimeout::at_least(Duration::from_millis(50));
/// assert_eq!(timeout.duration(), Some(Duration::from_nanos(67_108_864)));
/// assert_eq!(AckTimeout::NEVER.duration(), None);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct AckTimeout(AckCode);

impl AckTimeout {
    /// A timeout that never expires.
    pub const NEVER: Self = Self(AckCode::DISABLED);

    /// Returns the shortest timeout that is not below `duration`, or the longest timeout if there
    /// is none.
    #[must_use]
    pub fn at_least(duration: Duration) -> Self {
        let codes = (1..32).filter_map(AckCode::new);
        let fits = |code: &AckCode| at_least(code.as_ns(), duration);
        let longest = AckCode::new(31).unwrap_or(AckCode::DISABLED);
        Self(codes.into_iter().find(fits).unwrap_or(longest))
    }

    /// Returns the duration, or `None` for [`NEVER`](Self::NEVER).
    #[must_use]
    pub fn duration(self) -> Option<Duration> {
        self.0.as_ns().map(Duration::from_nanos)
    }

    pub(crate) fn from_code(code: u8) -> Self {
        Self(AckCode::new(code).unwrap_or(AckCode::DISABLED))
    }

    pub(crate) const fn code(self) -> u8 {
        self.0.code()
    }
}

impl Default for AckTimeout {
    /// Returns 67 ms, which suits peers on one machine or network.
    fn default() -> Self {
        Self::from_code(14)
    }
}

impl fmt::Debug for AckTimeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.duration() {
            Some(duration) => write!(f, "AckTimeout({duration:?})"),
            None => f.write_str("AckTimeout(never)"),
        }
    }
}

/// The time that a peer waits before it repeats a request for which no receive was posted.
///
/// The protocol has 32 values: 10 µs to 655.36 ms.
///
/// ```
/// use std::time::Duration;
///
/// use rocade_verbs::RnrTimer;
///
/// let timer = RnrTimer::at_least(Duration::from_micros(500));
/// assert_eq!(timer.duration(), Duration::from_micros(640));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RnrTimer(RnrCode);

impl RnrTimer {
    /// The longest time, 655.36 ms.
    pub const LONGEST: Self = Self(RnrCode::LONGEST);

    /// Returns the shortest time that is not below `duration`, or [`LONGEST`](Self::LONGEST) if
    /// there is none.
    #[must_use]
    pub fn at_least(duration: Duration) -> Self {
        let mut codes = (1..32).filter_map(RnrCode::new);
        let fits = |code: &RnrCode| at_least(Some(code.as_ns()), duration);
        Self(codes.find(fits).unwrap_or(RnrCode::LONGEST))
    }

    /// Returns the duration.
    #[must_use]
    pub const fn duration(self) -> Duration {
        Duration::from_nanos(self.0.as_ns())
    }

    pub(crate) fn from_code(code: u8) -> Self {
        Self(RnrCode::new(code).unwrap_or(RnrCode::LONGEST))
    }

    pub(crate) const fn code(self) -> u8 {
        self.0.code()
    }
}

impl Default for RnrTimer {
    /// Returns 0.64 ms.
    fn default() -> Self {
        Self::from_code(12)
    }
}

impl fmt::Debug for RnrTimer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RnrTimer({:?})", self.duration())
    }
}

fn at_least(ns: Option<u64>, duration: Duration) -> bool {
    ns.is_some_and(|ns| Duration::from_nanos(ns) >= duration)
}

/// The number of times that a requester repeats a request while the peer has no receive posted.
///
/// ```
/// use rocade_verbs::RnrRetry;
///
/// assert_eq!(RnrRetry::times(3), Some(RnrRetry::Times(3)));
/// assert_eq!(RnrRetry::times(7), None);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RnrRetry {
    /// A number of retries, 0 to 6. A larger number counts as 6.
    Times(u8),
    /// Retries without limit.
    #[default]
    Forever,
}

impl RnrRetry {
    /// Returns the limit, or `None` above 6.
    #[must_use]
    pub const fn times(count: u8) -> Option<Self> {
        if count < 7 {
            Some(Self::Times(count))
        } else {
            None
        }
    }

    pub(crate) const fn from_code(code: u8) -> Self {
        match code {
            0..7 => Self::Times(code),
            _ => Self::Forever,
        }
    }

    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Times(count) => count.min(6),
            Self::Forever => 7,
        }
    }
}

/// A rate of data on the wire.
///
/// ```
/// use rocade_verbs::Rate;
///
/// assert_eq!(Rate::from_mbps(80), Rate::from_kbps(80_000));
/// assert_eq!(Rate::from_kbps(0), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rate(NonZeroU32);

impl Rate {
    /// Returns a rate in kilobits per second, or `None` for 0.
    #[must_use]
    pub fn from_kbps(kbps: u32) -> Option<Self> {
        NonZeroU32::new(kbps).map(Self)
    }

    /// Returns a rate in megabits per second, or `None` for 0 and above 4,294,967.
    #[must_use]
    pub fn from_mbps(mbps: u32) -> Option<Self> {
        Self::from_kbps(mbps.checked_mul(1000)?)
    }

    /// Returns the rate in kilobits per second.
    #[must_use]
    pub const fn kbps(self) -> u32 {
        self.0.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_its_own_duration() {
        for code in 1..32 {
            let timeout = AckTimeout::from_code(code);
            assert_eq!(
                AckTimeout::at_least(timeout.duration().expect("the timeout is finite")),
                timeout
            );
        }
        for code in 0..32 {
            let timer = RnrTimer::from_code(code);
            assert_eq!(RnrTimer::at_least(timer.duration()), timer, "{code}");
        }
    }

    #[test]
    fn durations_round_up_and_stop_at_the_longest() {
        let ns = Duration::from_nanos;
        assert_eq!(AckTimeout::at_least(ns(0)).code(), 1);
        assert_eq!(AckTimeout::at_least(ns(8_193)).code(), 2);
        assert_eq!(AckTimeout::at_least(Duration::MAX).code(), 31);
        assert_eq!(RnrTimer::at_least(ns(0)).code(), 1);
        assert_eq!(RnrTimer::at_least(ns(10_001)).code(), 2);
        assert_eq!(RnrTimer::at_least(Duration::MAX), RnrTimer::LONGEST);
    }

    #[test]
    fn seven_retries_are_without_limit() {
        assert_eq!(RnrRetry::from_code(7), RnrRetry::Forever);
        assert_eq!(RnrRetry::Forever.code(), 7);
        assert_eq!(RnrRetry::Times(9).code(), 6);
    }
}
