//! Measures rows and prints them.

use std::fmt::Write as _;

use comfy_table::{ContentArrangement, Table, presets};

use crate::{
    child::Failure,
    figures::{Bound, Runs, short},
    rig::Rig,
    rows::Row,
};

const HEADINGS: [&str; 7] = [
    "what",
    "against",
    "Rocade, median (range)",
    "floor, median (range)",
    "ratio",
    "required",
    "",
];

/// Characters per line.
const WIDTH: u16 = 150;

/// Floors that differ by more than this factor say that something else was running.
const NOISE: f64 = 1.5;

/// A row with its figures.
#[derive(Debug)]
pub(crate) struct Measured {
    row: Row,
    ours: Runs,
    floor: Runs,
    failure: Option<Failure>,
}

impl Measured {
    /// Measures floor and ours in turn, `runs` times, so that what else the machine does hits both.
    pub(crate) fn new(rig: &Rig, row: Row, runs: u32) -> Self {
        let mut measured = Self {
            row,
            ours: Runs::default(),
            floor: Runs::default(),
            failure: None,
        };
        for run in 1..=runs {
            eprint!("\r{:<20} run {run} of {runs} ", row.name);
            if let Err(failure) = measured.run(rig) {
                measured.failure = Some(failure);
                break;
            }
        }
        eprintln!(
            "{} {}",
            measured.verdict(),
            measured.failure.as_deref().unwrap_or_default()
        );
        measured
    }

    fn run(&mut self, rig: &Rig) -> Result<(), Failure> {
        if let Some(floor) = &self.row.floor {
            self.floor.0.push(floor.measure(rig)?);
        }
        self.ours.0.push(self.row.ours.measure(rig)?);
        Ok(())
    }

    /// What the bound is on: the ratio of the medians, or the figure itself.
    fn value(&self) -> Option<f64> {
        if self.failure.is_some() {
            return None;
        }
        let ours = self.ours.median()?;
        match self.row.floor {
            Some(_) => Some(ours / self.floor.median()?),
            None => Some(ours),
        }
    }

    /// Whether Rocade is better than what the machine can do: then the floor was measured wrong, for example because
    /// something else ran at that time, and the ratio says nothing.
    fn beats_limit(&self) -> bool {
        let beaten = |ratio: f64| match self.row.bound {
            Bound::AtLeast(_) => ratio > 1.0,
            Bound::AtMost(_) => ratio < 1.0,
            Bound::None => false,
        };
        self.row.limit && self.value().is_some_and(beaten)
    }

    /// Whether it was measured and falls short of what is asked, or its figures prove nothing.
    pub(crate) fn is_short(&self) -> bool {
        self.beats_limit()
            || self.value().and_then(|value| self.row.bound.holds(value)) == Some(false)
    }

    fn verdict(&self) -> String {
        if self.failure.is_some() {
            return "not measured".to_owned();
        }
        if self.beats_limit() {
            return "disturbed".to_owned();
        }
        let holds = self.value().and_then(|value| self.row.bound.holds(value));
        let verdict = match holds {
            Some(true) => "pass",
            Some(false) => "short",
            None => "-",
        };
        if self.floor.spread() > NOISE {
            return format!("{verdict} (noisy)");
        }
        verdict.to_owned()
    }

    fn cells(&self) -> [String; 7] {
        let unit = self.row.unit;
        let with_unit = |runs: &Runs| match runs.median() {
            Some(_) => format!("{runs} {unit}"),
            None => "-".to_owned(),
        };
        let ratio = self.row.floor.and_then(|_| self.value());
        let ratio = ratio.map_or_else(|| "-".to_owned(), short);
        let bound = match self.row.floor {
            Some(_) => self.row.bound.to_string(),
            None => format!("{} {unit}", self.row.bound),
        };
        [
            self.row.what.to_owned(),
            self.row.against.to_owned(),
            with_unit(&self.ours),
            with_unit(&self.floor),
            ratio,
            bound,
            self.verdict(),
        ]
    }
}

/// The table for a terminal.
pub(crate) fn terminal(rows: &[Measured]) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_content_arrangement(ContentArrangement::Dynamic);
    table.set_width(WIDTH);
    table.set_header(HEADINGS);
    for row in rows {
        table.add_row(row.cells());
    }
    let mut text = table.to_string();
    text.push('\n');
    text + &reasons(rows)
}

/// Why rows were not measured.
fn reasons(rows: &[Measured]) -> String {
    let mut text = String::new();
    for row in rows {
        if let Some(failure) = &row.failure {
            let _ = writeln!(text, "\nNot measured: {}. {failure}", row.row.what);
        }
    }
    for row in rows.iter().filter(|row| row.beats_limit()) {
        let _ = writeln!(
            text,
            "\nDisturbed: {}. Its floor cannot be that low; measure again.",
            row.row.what
        );
    }
    text
}

/// The table for documentation.
pub(crate) fn markdown(rows: &[Measured]) -> String {
    let mut text = format!("| {} |\n|{}\n", HEADINGS.join(" | "), "---|".repeat(7));
    for row in rows {
        let cells = row.cells().map(|cell| cell.replace('|', "\\|"));
        let _ = writeln!(text, "| {} |", cells.join(" | "));
    }
    text + &reasons(rows)
}
