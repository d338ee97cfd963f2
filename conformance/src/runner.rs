//! Selects and runs cases.

use std::{
    any::Any,
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    time::{Duration, Instant},
};

use crate::{
    Bench, Case, CaseError, Expectations, Outcome, Report,
    case::CaseRun,
    expectations::Expected,
    report::{CaseResultEntry, Verdict},
    rig::Frame,
};

/// A selection of cases: those with one of the names or prefixes, or all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    prefixes: Vec<String>,
    names: Vec<String>,
}

impl Selection {
    /// Selects the cases whose names (`RULE/slug`) start with one of these prefixes. No prefixes
    /// select all cases.
    #[must_use]
    pub fn new<S: Into<String>>(prefixes: impl IntoIterator<Item = S>) -> Self {
        Self {
            prefixes: prefixes.into_iter().map(Into::into).collect(),
            names: Vec::new(),
        }
    }

    /// Selects the cases with these names as well.
    #[must_use]
    pub fn named<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> Self {
        self.names.extend(names.into_iter().map(Into::into));
        self
    }

    /// Parses prefixes joined by commas.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        Self::new(
            text.split(',')
                .map(str::trim)
                .filter(|word| !word.is_empty()),
        )
    }

    /// Returns true if the case is selected.
    #[must_use]
    pub fn matches(&self, case: &Case) -> bool {
        let name = case.name();
        self.prefixes.is_empty() && self.names.is_empty()
            || self.prefixes.iter().any(|prefix| name.starts_with(prefix))
            || self.names.contains(&name)
    }
}

/// The result of a case, with its packets.
#[derive(Debug)]
pub struct Finished {
    /// The result.
    pub entry: CaseResultEntry,
    /// The packets of the reported run.
    pub frames: Vec<Frame>,
}

/// Runs the selected cases one after the other. Ends early if the peer is lost.
pub fn run(
    bench: &Bench<'_>,
    cases: &[Case],
    selection: &Selection,
    expectations: &Expectations,
) -> Report {
    let mut report = Report::new(bench.peer().name());
    report.device = bench.peer().device();
    for case in cases.iter().filter(|case| selection.matches(case)) {
        report.push(run_one(bench, case, expectations, 1).entry);
        report.lost = bench.peer().lost();
        if report.lost.is_some() {
            break;
        }
    }
    report
}

/// Runs a case `repeat` times, and reports the worst run. The repetitions end if the peer is lost.
pub fn run_one(
    bench: &Bench<'_>,
    case: &Case,
    expectations: &Expectations,
    repeat: u32,
) -> Finished {
    let expected = expectations.of(case);
    if let Expected::Skip(reason) = &expected {
        let run = CaseRun {
            case: *case,
            outcome: Outcome::Skipped(reason.clone()),
            duration: Duration::ZERO,
            frames: Vec::new(),
            is_lost: false,
        };
        let entry = CaseResultEntry::new(run, &expected);
        return Finished {
            entry,
            frames: Vec::new(),
        };
    }
    let mut finished = finish(run_case(bench, case), &expected);
    for _ in 1..repeat {
        if finished.entry.verdict == Verdict::Lost {
            break;
        }
        let next = finish(run_case(bench, case), &expected);
        if next.entry.verdict > finished.entry.verdict {
            finished.frames = next.frames;
        }
        finished.entry = finished.entry.and(next.entry);
    }
    finished
}

fn finish(mut run: CaseRun, expected: &Expected) -> Finished {
    Finished {
        frames: mem::take(&mut run.frames),
        entry: CaseResultEntry::new(run, expected),
    }
}

fn run_case(bench: &Bench<'_>, case: &Case) -> CaseRun {
    bench.start_case();
    let start = Instant::now();
    let result = match case.needs.filter(|&feature| !bench.peer().can(feature)) {
        Some(feature) => Ok(Err(CaseError::Skipped(format!(
            "the peer does not have: {}",
            feature.name()
        )))),
        None => catch_unwind(AssertUnwindSafe(|| (case.run)(bench))),
    };
    let failed = |reason| Outcome::Failed {
        reason,
        transcript: bench.rig().transcript(),
    };
    let lost = bench.peer().lost();
    let is_lost = lost.is_some();
    let outcome = match (lost, result) {
        (Some(why), _) => failed(why),
        (None, Ok(Ok(()))) => Outcome::Passed,
        (None, Ok(Err(CaseError::Skipped(reason)))) => Outcome::Skipped(reason),
        (None, Ok(Err(CaseError::Failed(reason)))) => failed(reason),
        (None, Err(panic)) => failed(format!("panic: {}", panic_text(&*panic))),
    };
    CaseRun {
        case: *case,
        outcome,
        duration: start.elapsed(),
        frames: bench.rig().frames(),
        is_lost,
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without a message")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selection_is_by_prefix() {
        let case = Case::responder("RC-RSP-20", "one-nak", |_| Ok(()));
        assert!(Selection::default().matches(&case));
        assert!(Selection::parse("RC-RSP, X").matches(&case));
        assert!(Selection::parse("RC-RSP-20/one").matches(&case));
        assert!(!Selection::parse("RC-RSP-21").matches(&case));
        let named = |name: &str| Selection::default().named([name.to_owned()]);
        assert!(named("RC-RSP-20/one-nak").matches(&case));
        assert!(!named("RC-RSP-20/one").matches(&case));
    }
}
