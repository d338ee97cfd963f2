//! Quantities in the text of rules: times, sizes, data rates, error rates.

use std::fmt;

/// The error rate 1, in [`BitErrorRate`] units.
const UNITS: f64 = 1e15;

/// A data rate in bits per second, from 1 kbit to 1 Tbit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BitRate(u64);

impl BitRate {
    /// Reads a number with the unit `kbit`, `mbit` or `gbit`, as tc(8) does.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let text = text.to_ascii_lowercase();
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let unit: u64 = match &text[digits.len()..] {
            "kbit" => 1_000,
            "mbit" => 1_000_000,
            "gbit" => 1_000_000_000,
            _ => return None,
        };
        let rate = number(digits)?.checked_mul(unit)?;
        (1_000..=1_000_000_000_000)
            .contains(&rate)
            .then_some(Self(rate))
    }

    /// Returns how long `bytes` take at this rate, in nanoseconds, rounded up.
    pub(crate) fn duration_ns(self, bytes: u64) -> u64 {
        let bits = u128::from(bytes) * 8 * 1_000_000_000;
        u64::try_from(bits.div_ceil(u128::from(self.0))).unwrap_or(u64::MAX)
    }

    /// Returns the number of whole bytes that `ns` nanoseconds take at this rate.
    pub(super) fn bytes_in(self, ns: u64) -> u64 {
        let bits = u128::from(ns) * u128::from(self.0) / 1_000_000_000;
        u64::try_from(bits / 8).unwrap_or(u64::MAX)
    }
}

impl fmt::Display for BitRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (count, unit) = match self.0 {
            rate if rate % 1_000_000_000 == 0 => (rate / 1_000_000_000, "gbit"),
            rate if rate % 1_000_000 == 0 => (rate / 1_000_000, "mbit"),
            rate => (rate / 1_000, "kbit"),
        };
        write!(f, "{count}{unit}")
    }
}

/// The probability that a bit is wrong, from 1e-15 to 0.01.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BitErrorRate(u64);

impl BitErrorRate {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let units = (text.parse::<f64>().ok()? * UNITS).round();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "the range is checked"
        )]
        (1.0..=UNITS / 100.0)
            .contains(&units)
            .then_some(Self(units as u64))
    }

    /// Returns true if a packet of `bits` bits has an error, given 64 random bits.
    ///
    /// Only products and differences are computed, because their results are the same on every
    /// machine, which those of a power function are not.
    #[expect(
        clippy::cast_precision_loss,
        reason = "both numbers have 53 bits at most"
    )]
    pub(super) fn hits(self, mut bits: u64, random: u64) -> bool {
        let mut factor = 1.0 - self.0 as f64 / UNITS;
        let mut intact = 1.0;
        while bits > 0 {
            if bits & 1 == 1 {
                intact *= factor;
            }
            factor *= factor;
            bits >>= 1;
        }
        let draw = (random >> 11) as f64 / (1_u64 << 53) as f64;
        draw >= intact
    }
}

impl fmt::Display for BitErrorRate {
    #[expect(clippy::cast_precision_loss, reason = "at most 1e13, which is exact")]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:e}", self.0 as f64 / UNITS)
    }
}

/// Prints a time with the largest unit that needs no fraction.
pub(super) struct Duration(pub(super) u64);

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (count, unit) = match self.0 {
            ns if ns % 1_000_000_000 == 0 => (ns / 1_000_000_000, "s"),
            ns if ns % 1_000_000 == 0 => (ns / 1_000_000, "ms"),
            ns if ns % 1_000 == 0 => (ns / 1_000, "us"),
            ns => (ns, "ns"),
        };
        write!(f, "{count}{unit}")
    }
}

/// Prints a time with the largest unit that needs no fraction.
pub(crate) fn write_duration(f: &mut fmt::Formatter<'_>, ns: u64) -> fmt::Result {
    write!(f, "{}", Duration(ns))
}

/// Prints a number of bytes with the largest unit that needs no fraction.
pub(super) struct Bytes(pub(super) u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            bytes if bytes > 0 && bytes % (1 << 20) == 0 => write!(f, "{}M", bytes >> 20),
            bytes if bytes > 0 && bytes % (1 << 10) == 0 => write!(f, "{}K", bytes >> 10),
            bytes => write!(f, "{bytes}"),
        }
    }
}

/// Parses a decimal number, or a hexadecimal one with 0x.
pub(crate) fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(hex) if !hex.starts_with('+') => u64::from_str_radix(hex, 16).ok(),
        None if !text.starts_with('+') => text.parse().ok(),
        _ => None,
    }
}

/// Parses `N`, `FIRST..LAST` or `FIRST..`, whose bounds `number` parses.
pub(crate) fn range(text: &str, number: impl Fn(&str) -> Option<u64>) -> Option<(u64, u64)> {
    match text.split_once("..") {
        None => number(text).map(|n| (n, n)),
        Some((first, "")) => Some((number(first)?, u64::MAX)),
        Some((first, last)) => Some((number(first)?, number(last)?)),
    }
}

/// Parses a time, such as `5ms`, into nanoseconds.
pub(crate) fn duration_ns(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit_ns: u64 = match &text[digits.len()..] {
        "ns" => 1,
        "us" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        _ => return None,
    };
    number(digits)?.checked_mul(unit_ns)
}

/// Parses a number of bytes, such as `1500`, `64K` or `1M`. The units are powers of 1024.
pub(crate) fn bytes(text: &str) -> Option<u64> {
    let text = text.trim_end_matches('B');
    match text.strip_suffix('M') {
        Some(mega) => number(mega)?.checked_mul(1 << 20),
        None => match text.strip_suffix('K') {
            Some(kilo) => number(kilo)?.checked_mul(1 << 10),
            None => number(text),
        },
    }
}

/// Parses a probability. Returns it in millionths.
pub(crate) fn probability(text: &str) -> Option<u32> {
    let (digits, scale) = match text.strip_suffix('%') {
        Some(percent) => (percent, 1e4),
        None => (text, 1e6),
    };
    let value: f64 = digits.parse().ok()?;
    let per_million = (value * scale).round();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the range is checked"
    )]
    (1.0..=1e6)
        .contains(&per_million)
        .then_some(per_million as u32)
}
