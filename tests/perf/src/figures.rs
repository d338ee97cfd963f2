//! Numbers with their units, medians and bounds.

use std::fmt;

/// The unit of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// 10^9 bits of payload per second.
    Gbps,
    /// 10^6 messages or datagrams per second.
    Mps,
    /// 10^3 connections, binds and the like per second.
    Kps,
    /// Microseconds, for half of a round trip unless stated otherwise.
    Micros,
    /// 1024 bytes.
    Kib,
    /// Events per message.
    PerMessage,
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gbps => "Gbit/s",
            Self::Mps => "M/s",
            Self::Kps => "k/s",
            Self::Micros => "µs",
            Self::Kib => "KiB",
            Self::PerMessage => "per message",
        })
    }
}

/// The bound on a ratio, or on the figure itself if there is no floor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Bound {
    AtLeast(f64),
    AtMost(f64),
    /// The figure is only reported.
    None,
}

impl Bound {
    /// Returns whether `value` is within the bound, or `None` if there is no bound.
    pub(crate) fn holds(self, value: f64) -> Option<bool> {
        match self {
            Self::AtLeast(least) => Some(value >= least),
            Self::AtMost(most) => Some(value <= most),
            Self::None => None,
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtLeast(least) => write!(f, "≥ {least}"),
            Self::AtMost(most) => write!(f, "≤ {most}"),
            Self::None => f.write_str("-"),
        }
    }
}

/// The figures of several runs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Runs(pub(crate) Vec<f64>);

impl Runs {
    /// Returns the median, or `None` without a run.
    pub(crate) fn median(&self) -> Option<f64> {
        let mut sorted = self.0.clone();
        median(&mut sorted)
    }

    fn range(&self) -> (f64, f64) {
        let least = self.0.iter().copied().fold(f64::INFINITY, f64::min);
        let most = self.0.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        (least, most)
    }

    /// Returns the largest figure divided by the smallest, or 1 without a run.
    pub(crate) fn spread(&self) -> f64 {
        if self.0.is_empty() {
            return 1.0;
        }
        let (least, most) = self.range();
        most / least
    }
}

impl fmt::Display for Runs {
    /// Prints median and range.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(median) = self.median() else {
            return f.write_str("-");
        };
        let (least, most) = self.range();
        write!(f, "{} ({}–{})", short(median), short(least), short(most))
    }
}

/// Formats a value with about three significant digits.
pub(crate) fn short(value: f64) -> String {
    let digits = match value.abs() {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        _ => 2,
    };
    format!("{value:.digits$}")
}

/// Sorts `values` and returns their median, or `None` if there are none.
pub(crate) fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let upper = *values.get(middle)?;
    if values.len() % 2 == 1 {
        return Some(upper);
    }
    Some(f64::midpoint(*values.get(middle - 1)?, upper))
}

/// Converts a count to a floating-point number (exact up to 2^53).
#[expect(
    clippy::cast_precision_loss,
    reason = "measured figures are not exact to 53 bits"
)]
pub(crate) const fn float(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_odd_even_and_no_values() {
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&mut [4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(&mut []), None);
    }

    #[test]
    fn spread_is_a_factor() {
        let runs = Runs(vec![2.0, 1.0, 3.0]);
        assert!((runs.spread() - 3.0).abs() < 1e-12);
        assert!((Runs::default().spread() - 1.0).abs() < 1e-12);
        assert_eq!(runs.to_string(), "2.00 (1.00–3.00)");
    }

    #[test]
    fn bounds_include_their_limit() {
        assert_eq!(Bound::AtLeast(0.6).holds(0.6), Some(true));
        assert_eq!(Bound::AtLeast(0.6).holds(0.59), Some(false));
        assert_eq!(Bound::AtMost(1.4).holds(1.4), Some(true));
        assert_eq!(Bound::AtMost(1.4).holds(1.41), Some(false));
        assert_eq!(Bound::None.holds(0.0), None);
    }
}
