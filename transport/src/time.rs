//! Time as an argument.

use core::fmt;
use core::num::NonZeroU64;
use core::time::Duration;

/// A point in time: nanoseconds since an origin that the caller chose, 584 years at most.
///
/// The transport only compares times and adds to them. It never reads a clock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(
    /// Nanoseconds plus one, so that `Option<Time>` takes no more space: a QP has several.
    NonZeroU64,
);

impl Time {
    /// The origin.
    pub const ZERO: Self = Self::from_ns(0);

    /// Returns the time `ns` nanoseconds after the origin.
    #[inline]
    #[must_use]
    pub const fn from_ns(ns: u64) -> Self {
        Self(NonZeroU64::MIN.saturating_add(ns))
    }

    /// Returns the nanoseconds since the origin.
    #[inline]
    #[must_use]
    pub const fn as_ns(self) -> u64 {
        self.0.get() - 1
    }

    /// Returns this time plus `ns` nanoseconds, saturating at the largest time.
    #[inline]
    #[must_use]
    pub const fn plus_ns(self, ns: u64) -> Self {
        Self(self.0.saturating_add(ns))
    }

    /// Returns this time plus `wait`, saturating at the largest time.
    #[must_use]
    pub fn plus(self, wait: Duration) -> Self {
        self.plus_ns(u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX))
    }

    /// Returns the time from `earlier` to this time, or none if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.ns_since(earlier))
    }

    /// Returns the nanoseconds from `earlier` to this time, or 0 if `earlier` is later.
    #[inline]
    #[must_use]
    pub const fn ns_since(self, earlier: Self) -> u64 {
        self.0.get().saturating_sub(earlier.0.get())
    }
}

impl Default for Time {
    fn default() -> Self {
        Self::ZERO
    }
}

impl fmt::Debug for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Time").field(&self.as_ns()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_has_an_end_and_does_not_wrap() {
        assert_eq!((Time::ZERO, Time::ZERO.as_ns()), (Time::default(), 0));
        assert_eq!(Time::from_ns(7).plus_ns(5).as_ns(), 12);
        assert_eq!(Time::from_ns(12).ns_since(Time::from_ns(7)), 5);
        assert_eq!(Time::from_ns(7).ns_since(Time::from_ns(12)), 0);
        let wait = Duration::from_nanos(5);
        assert_eq!(Time::from_ns(7).plus(wait).since(Time::from_ns(7)), wait);
        assert_eq!(Time::from_ns(7).since(Time::from_ns(12)), Duration::ZERO);
        let end = Time::from_ns(u64::MAX);
        assert_eq!(end.plus(Duration::MAX), end);
        assert_eq!(end.plus_ns(1), end);
        assert!(Time::from_ns(u64::MAX - 2) < end);
        assert_eq!(size_of::<Option<Time>>(), size_of::<u64>());
    }
}
