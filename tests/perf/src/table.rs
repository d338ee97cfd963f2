//! Measures rows and prints them.

use std::fmt::Write as _;

use comfy_table::{ContentArrangement, Table, presets};

use crate::{
    child::Failure,
    distance::Distance,
    figures::{Bound, Runs, median, short},
    rig::Rig,
    rows::Row,
};

const HEADINGS: [&str; COLUMNS] = [
    "what",
    "against",
    "Rocade, median (range)",
    "floor, median (range)",
    "ratio",
    "required",
    "",
    "processors",
];

const COLUMNS: usize = 8;

/// The characters per line.
const WIDTH: u16 = 180;

/// The spread of floors above which another program must have been running.
const NOISE: f64 = 1.5;

/// The number of times that a pair is measured again after the processors have moved.
const REPEATS: u32 = 3;

/// The figures of floor and Rocade, measured one after the other with the processors at the same
/// places.
#[derive(Clone, Copy, Debug)]
struct Pair {
    floor: Option<f64>,
    ours: f64,
    distance: Option<Distance>,
}

/// A row with its figures.
#[derive(Debug)]
pub(crate) struct Measured {
    row: Row,
    pairs: Vec<Pair>,
    /// The number of pairs that were dropped because the processors moved.
    dropped: u32,
    failure: Option<Failure>,
}

impl Measured {
    /// Measures floor and Rocade alternately, `runs` times, so that other load on the machine
    /// affects both.
    pub(crate) fn new(rig: &Rig, row: Row, runs: u32) -> Self {
        let mut measured = Self {
            row,
            pairs: Vec::new(),
            dropped: 0,
            failure: None,
        };
        for run in 1..=runs {
            eprint!("\r{:<24} run {run} of {runs} ", row.name);
            if let Err(failure) = measured.run(rig) {
                measured.failure = Some(failure);
                break;
            }
        }
        if measured.pairs.is_empty() && measured.failure.is_none() {
            measured.failure = Some("the processors never stayed at their places".to_owned());
        }
        eprintln!(
            "{} {}",
            measured.verdict(),
            measured.failure.as_deref().unwrap_or_default()
        );
        measured
    }

    fn run(&mut self, rig: &Rig) -> Result<(), Failure> {
        for _ in 0..=REPEATS {
            let (pair, stayed) = measure_pair(&self.row, rig)?;
            if stayed {
                self.pairs.push(pair);
                break;
            }
            self.dropped += 1;
        }
        Ok(())
    }

    fn ours(&self) -> Runs {
        Runs(self.pairs.iter().map(|pair| pair.ours).collect())
    }

    fn floor(&self) -> Runs {
        Runs(self.pairs.iter().filter_map(|pair| pair.floor).collect())
    }

    /// Returns the value to which the bound applies: the median of the pairs' ratios, or of the
    /// figure itself. Returns `None` if no pair counts.
    fn value(&self) -> Option<f64> {
        if self.failure.is_some() {
            return None;
        }
        let counts = |pair: &&Pair| {
            let near = pair.distance.is_none_or(Distance::is_near);
            near || !self.row.shared_cache
        };
        let value = |pair: &Pair| pair.floor.map_or(pair.ours, |floor| pair.ours / floor);
        let mut values: Vec<f64> = self.pairs.iter().filter(counts).map(value).collect();
        median(&mut values)
    }

    /// Groups the pairs by the places of the processors.
    fn places(&self) -> Vec<Vec<Pair>> {
        let mut places: Vec<Vec<Pair>> = Vec::new();
        for pair in &self.pairs {
            let same = |place: &&mut Vec<Pair>| {
                let first = place.first().and_then(|first| first.distance);
                are_alike(first, pair.distance)
            };
            match places.iter_mut().find(same) {
                Some(place) => place.push(*pair),
                None => places.push(vec![*pair]),
            }
        }
        places
    }

    /// Returns the spread of the floors measured with the processors at the same places.
    fn floor_spread(&self) -> f64 {
        let spread =
            |place: &Vec<Pair>| Runs(place.iter().filter_map(|pair| pair.floor).collect()).spread();
        self.places().iter().map(spread).fold(1.0, f64::max)
    }

    /// Describes the places of the processors, and the number of dropped pairs.
    fn processors(&self) -> String {
        let place = |place: &Vec<Pair>| match place.first().and_then(|first| first.distance) {
            Some(distance) => format!("{} × {distance}", place.len()),
            None => format!("{} × one processor", place.len()),
        };
        let mut parts: Vec<String> = self.places().iter().map(place).collect();
        if self.dropped > 0 {
            parts.push(format!("{} dropped", self.dropped));
        }
        parts.join(", ")
    }

    /// Returns true if Rocade is better than the limit of the machine. The floor was then measured
    /// wrong, for example because of another program, and the ratio is meaningless.
    fn beats_limit(&self) -> bool {
        let beaten = |ratio: f64| match self.row.bound {
            Bound::AtLeast(_) => ratio > 1.0,
            Bound::AtMost(_) => ratio < 1.0,
            Bound::None => false,
        };
        self.row.limit && self.value().is_some_and(beaten)
    }

    /// Returns true if the row was measured and is not within its bound, or its figures are
    /// meaningless.
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
        if self.floor_spread() > NOISE {
            return format!("{verdict} (noisy)");
        }
        verdict.to_owned()
    }

    fn cells(&self) -> [String; COLUMNS] {
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
            with_unit(&self.ours()),
            with_unit(&self.floor()),
            ratio,
            bound,
            self.verdict(),
            self.processors(),
        ]
    }
}

/// Measures a pair. Returns true with it if the processors have not moved.
fn measure_pair(row: &Row, rig: &Rig) -> Result<(Pair, bool), Failure> {
    let distance = Distance::measure();
    let floor = row.floor.map(|floor| floor.measure(rig)).transpose()?;
    let between = Distance::measure();
    let ours = row.ours.measure(rig)?;
    let stayed = are_alike(distance, between) && are_alike(between, Distance::measure());
    let pair = Pair {
        floor,
        ours,
        distance,
    };
    Ok((pair, stayed))
}

fn are_alike(a: Option<Distance>, b: Option<Distance>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => a.is_like(b),
        (None, None) => true,
        _ => false,
    }
}

/// Formats the table for a terminal.
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

/// Lists the reasons why rows were not measured.
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

/// Formats the table for the documentation.
pub(crate) fn markdown(rows: &[Measured]) -> String {
    let mut text = format!(
        "| {} |\n|{}\n",
        HEADINGS.join(" | "),
        "---|".repeat(COLUMNS)
    );
    for row in rows {
        let cells = row.cells().map(|cell| cell.replace('|', "\\|"));
        let _ = writeln!(text, "| {} |", cells.join(" | "));
    }
    text + &reasons(rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows;

    fn pair(floor: f64, ours: f64, nanos: f64) -> Pair {
        Pair {
            floor: Some(floor),
            ours,
            distance: Some(Distance::of(nanos)),
        }
    }

    /// Two floors that differ by a factor of four, each with its figures.
    #[test]
    fn pairs_are_compared_within_themselves() {
        let row = *rows::all()
            .find(|row| row.name == "shm_write_bw_ring")
            .expect("a row");
        let measured = Measured {
            row,
            pairs: vec![
                pair(200.0, 160.0, 40.0),
                pair(50.0, 36.0, 190.0),
                pair(220.0, 165.0, 45.0),
                pair(55.0, 41.0, 200.0),
            ],
            dropped: 2,
            failure: None,
        };
        let value = measured.value().expect("pairs");
        assert!((0.745..0.75).contains(&value), "{value}");
        assert!(measured.floor_spread() < 1.11);
        assert_eq!(
            measured.processors(),
            "2 × one cache (40.0 ns), 2 × apart (190 ns), 2 dropped"
        );
        assert_eq!(measured.verdict(), "pass");

        let mut near_only = Measured {
            row: Row {
                shared_cache: true,
                ..row
            },
            ..measured
        };
        let value = near_only.value().expect("pairs with one cache");
        assert!((0.77..0.78).contains(&value), "{value}");
        near_only.pairs.retain(|pair| pair.ours < 50.0);
        assert_eq!(near_only.value(), None);
        assert_eq!(near_only.verdict(), "-");
    }
}
