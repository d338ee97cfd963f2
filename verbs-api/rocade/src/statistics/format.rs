//! Numbers for people.

use rocade_emulator::statistics::{Metric, Unit};

/// Returns the value of this name in the order of a table, 0 if there is none. Values with a reason
/// are added up.
pub(super) fn value<S>(table: &[Metric<S>], values: &[u64], name: &str) -> u64 {
    let named = table.iter().zip(values);
    let named = named.filter(|(metric, _)| metric.name == name);
    named.map(|(_, value)| *value).sum()
}

/// Returns a number with a prefix of the SI: `1.23 M`.
pub(super) fn short(value: f64) -> String {
    scaled(value, 1000.0, ["", " k", " M", " G", " T"])
}

/// Returns a number of bytes: `1.23 MiB`.
pub(super) fn bytes(value: f64) -> String {
    scaled(value, 1024.0, [" B", " KiB", " MiB", " GiB", " TiB"])
}

/// Returns a bit rate: `1.23 Gbit/s`.
pub(super) fn bits(bytes_per_second: f64) -> String {
    let units = [" bit/s", " kbit/s", " Mbit/s", " Gbit/s", " Tbit/s"];
    scaled(bytes_per_second * 8.0, 1000.0, units)
}

/// Returns a value in its unit.
pub(super) fn in_unit(value: u64, unit: Unit) -> String {
    match unit {
        Unit::Bytes => bytes(as_f64(value)),
        _ => value.to_string(),
    }
}

#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
pub(super) const fn as_f64(value: u64) -> f64 {
    value as f64
}

fn scaled(mut value: f64, step: f64, units: [&str; 5]) -> String {
    let mut units = units.into_iter().peekable();
    let mut unit = units.next().unwrap_or("");
    while value >= step
        && let Some(next) = units.next()
    {
        value /= step;
        unit = next;
    }
    match value {
        // Integers stay what they are.
        _ if value.fract() == 0.0 && value < 1000.0 => format!("{value:.0}{unit}"),
        _ if value < 9.995 => format!("{value:.2}{unit}"),
        _ if value < 99.95 => format!("{value:.1}{unit}"),
        _ => format!("{value:.0}{unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits() {
        assert_eq!(short(0.0), "0");
        assert_eq!(short(999.0), "999");
        assert_eq!(short(1234.0), "1.23 k");
        assert_eq!(short(12_345_678.0), "12.3 M");
        assert_eq!(bytes(1024.0), "1 KiB");
        assert_eq!(bytes(1e20), "90949470 TiB");
        assert_eq!(bits(1.25e9), "10 Gbit/s");
        assert_eq!(bits(0.125), "1 bit/s");
    }
}
