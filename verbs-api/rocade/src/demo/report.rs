//! The progress, the table of results, and the suggestions.

use std::time::Duration;

use comfy_table::{CellAlignment, Table};
use rocade_verbs::EngineCounters;

use crate::error::CliError;
use crate::output;
use crate::table;

const NEXT: &str = "\
What next:
  cargo build --release                                  the libraries for unmodified programs
  target/release/rocade devices                          the devices that a program sees
  target/release/rocade run -- ibv_devinfo               any verbs program (in package ibverbs-utils)
  target/release/rocade run -- ib_write_bw &             a benchmark (in package perftest)
  target/release/rocade run -- ib_write_bw 127.0.0.1
  ROCADE_LINK=udp target/release/rocade demo             over UDP, visible to tcpdump:
  sudo tcpdump -i lo udp port 4791                       the packets, called RRoCE in Wireshark
  target/release/rocade --help                           everything else";

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
        output::line(format_args!(
            "\n{}\n\nAll data arrived correctly, in {:.1} s, {}.\n\n{NEXT}",
            self.table(),
            took.as_secs_f64(),
            way(counters)
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
}
