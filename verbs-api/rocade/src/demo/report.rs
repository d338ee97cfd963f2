//! The progress, the table of results, and the suggestions.

use std::time::Duration;

use comfy_table::{CellAlignment, Table};
use rocade_verbs::EngineCounters;

use crate::error::CliError;
use crate::libdir;
use crate::output;
use crate::table;

/// Commands to try after the demo, as arguments of `rocade`, each with what it shows.
const NEXT: [(&str, &str); 7] = [
    ("devices", "the devices that a program sees"),
    (
        "run -- ibv_devinfo",
        "any verbs program (in package ibverbs-utils)",
    ),
    ("run -- ib_write_bw &", "a benchmark (in package perftest)"),
    ("run -- ib_write_bw 127.0.0.1", "its client"),
    ("run --capture x.pcapng -- CMD", "a record of all packets,"),
    ("ladder x.pcapng", "as a drawing"),
    ("--help", "everything else"),
];

/// Returns the hints for what to do next. `command` is what the user typed for `rocade`. If the
/// libraries for other programs are missing, the first hint is how to build them.
fn next(command: &str, has_libraries: bool) -> String {
    let build = (
        "cargo build --release".to_owned(),
        "the libraries for unmodified programs",
    );
    let build = (!has_libraries).then_some(build);
    let hints = NEXT.map(|(arguments, shows)| (format!("{command} {arguments}"), shows));
    let hints: Vec<_> = build.into_iter().chain(hints).collect();
    let width = hints.iter().map(|(command, _)| command.len()).max();
    let width = width.unwrap_or_default();
    let lines = hints
        .iter()
        .map(|(command, shows)| format!("\n  {command:<width$}   {shows}"));
    format!("What next:{}", lines.collect::<String>())
}

/// The result of one part of the demo.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Row {
    size: String,
    count: u64,
    result: String,
    checked: &'static str,
}

impl Row {
    /// Returns the row of `count` sequential operations of `size` bytes, which took `took` in
    /// total.
    pub(super) fn latency(size: usize, count: u64, took: Duration, checked: &'static str) -> Self {
        let each = took.as_secs_f64() / precise(count.max(1));
        Self {
            size: bytes(size),
            count,
            result: format!("{:.1} µs", each * 1e6),
            checked,
        }
    }

    /// Returns the row of `count` concurrent messages of `size` bytes, which took `took` in total.
    pub(super) fn bulk(size: usize, count: u64, took: Duration, checked: &'static str) -> Self {
        let bits = precise(count) * precise(size as u64) * 8.0;
        let result = format!("{:.1} Gbit/s", bits / took.as_secs_f64().max(1e-9) / 1e9);
        Self {
            size: bytes(size),
            count,
            result,
            checked,
        }
    }
}

/// The rows so far.
#[derive(Debug, Default)]
pub(super) struct Report {
    rows: Vec<(&'static str, Row)>,
}

impl Report {
    /// Runs one part, and shows its name during the run.
    pub(super) fn part(
        &mut self,
        name: &'static str,
        part: impl FnOnce() -> Result<Row, CliError>,
    ) -> Result<(), CliError> {
        output::print(format_args!("  {name:<18}"))?;
        match part() {
            Ok(row) => {
                output::line(&row.result)?;
                self.rows.push((name, row));
                Ok(())
            }
            Err(error) => {
                output::line("failed")?;
                Err(error)
            }
        }
    }

    pub(super) fn print(&self, took: Duration, counters: &EngineCounters) -> Result<(), CliError> {
        let command = std::env::args().next();
        let command = command.as_deref().unwrap_or("rocade");
        output::line(format_args!(
            "\n{}\n\nAll data arrived correctly, in {:.1} s, {}.\n\n{}",
            self.table(),
            took.as_secs_f64(),
            way(counters),
            next(command, libdir::find().is_ok())
        ))
    }

    fn table(&self) -> Table {
        let mut table = table::plain();
        table.set_header(["operation", "size", "count", "result", "verified"]);
        for (name, row) in &self.rows {
            table.add_row([
                *name,
                &row.size,
                &row.count.to_string(),
                &row.result,
                row.checked,
            ]);
        }
        for column in table.column_iter_mut().skip(1).take(3) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        table
    }
}

/// Returns the transport of the packets.
fn way(counters: &EngineCounters) -> String {
    let (sent, shared) = (counters.tx_packets, counters.tx_shared);
    match shared {
        0 => "over UDP port 4791".to_owned(),
        _ if shared == sent => "through shared memory".to_owned(),
        _ => format!("{shared} of {sent} packets through shared memory, the others over UDP"),
    }
}

fn bytes(count: usize) -> String {
    match count {
        count if count >= 1024 && count.is_multiple_of(1024) => format!("{} KiB", count / 1024),
        count => format!("{count} B"),
    }
}

/// Converts a count, which is far below 2^53 here.
#[expect(clippy::cast_precision_loss, reason = "a rate for people to read")]
fn precise(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_their_unit() {
        let second = Duration::from_secs(1);
        assert_eq!(Row::latency(64, 1_000_000, second, "").result, "1.0 µs");
        let row = Row::bulk(64 << 10, 1_000_000, second, "");
        assert_eq!(
            (row.size.as_str(), row.result.as_str()),
            ("64 KiB", "524.3 Gbit/s")
        );
        assert_eq!(Row::latency(8, 0, second, "").size, "8 B");
    }

    #[test]
    fn hints_can_be_typed_as_they_are() {
        let hints = next("target/release/rocade", true);
        assert!(
            hints.contains("\n  target/release/rocade devices "),
            "{hints}"
        );
        assert!(!hints.contains("cargo build"), "{hints}");
        let hints = next("rocade", false);
        assert!(
            hints.starts_with("What next:\n  cargo build --release "),
            "{hints}"
        );
        let columns = hints.lines().skip(1).map(|line| line.rfind("   "));
        let columns: std::collections::BTreeSet<_> = columns.collect();
        assert_eq!(columns.len(), 1, "{hints}");
    }
}
