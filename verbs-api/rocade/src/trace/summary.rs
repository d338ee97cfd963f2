//! The table of `rocade trace -c`: calls, failures and latencies.

use std::collections::BTreeMap;

use comfy_table::{CellAlignment, Table};
use hdrhistogram::Histogram;

use super::event::{Event, Request, Timing, What};
use super::names;

/// The longest duration that is told apart, in nanoseconds.
const LONGEST: u64 = 3_600_000_000_000;

#[derive(Debug)]
struct Row {
    failures: u64,
    durations: Histogram<u64>,
    total_ns: u64,
}

/// Counts of calls and work requests.
#[derive(Debug, Default)]
pub(super) struct Summary {
    calls: BTreeMap<String, Row>,
    requests: BTreeMap<String, Row>,
}

impl Row {
    fn new() -> Self {
        Self {
            failures: 0,
            durations: Histogram::new_with_bounds(1, LONGEST, 3).expect("these bounds are valid"),
            total_ns: 0,
        }
    }

    fn add(&mut self, ns: u64, failed: bool) {
        self.failures += u64::from(failed);
        self.durations.saturating_record(ns.max(1));
        self.total_ns += ns;
    }
}

impl Summary {
    /// Counts an event.
    pub(super) fn add(&mut self, event: &Event) {
        match &event.what {
            What::Call(call) | What::Post { call, .. } => {
                let row = self.calls.entry(call.name.clone());
                row.or_insert_with(Row::new).add(call.took(), call.failed);
            }
            What::Completion(completion) => {
                for (request, timing) in &completion.unsignaled {
                    self.request(request, timing, false);
                }
                if let Some((request, timing)) = &completion.request {
                    self.request(request, timing, completion.status != 0);
                }
            }
            _ => {}
        }
    }

    fn request(&mut self, request: &Request, timing: &Timing, failed: bool) {
        let name = request.opcode.map_or("receive", names::operation);
        let row = self.requests.entry(name.to_owned());
        row.or_insert_with(Row::new).add(timing.total, failed);
    }

    /// Returns the tables as text.
    pub(super) fn text(&self) -> String {
        let calls = table("call", &self.calls);
        if self.requests.is_empty() {
            return calls;
        }
        let requests = table("work request", &self.requests);
        format!("{calls}\n\n{requests}")
    }
}

fn table(first: &str, rows: &BTreeMap<String, Row>) -> String {
    let mut table = Table::new();
    table.load_preset(comfy_table::presets::NOTHING);
    let heads = ["total", "p50", "p90", "p99", "max"];
    let heads = [first, "count", "failed"].into_iter().chain(heads);
    table.set_header(heads);
    let mut sorted: Vec<_> = rows.iter().collect();
    sorted.sort_by_key(|(_, row)| std::cmp::Reverse(row.total_ns));
    for (name, row) in sorted {
        let at = |quantile| names::duration(row.durations.value_at_quantile(quantile));
        table.add_row([
            name.clone(),
            row.durations.len().to_string(),
            row.failures.to_string(),
            names::duration(row.total_ns),
            at(0.5),
            at(0.9),
            at(0.99),
            names::duration(row.durations.max()),
        ]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let text = table.to_string();
    let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    lines.join("\n")
}
