//! Selects and runs cases.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    time::Instant,
};

use crate::{
    Bench, Case, CaseError, Expectations, Outcome, Report, case::CaseRun, expectations::Expected,
    report::CaseResultEntry,
};

/// A selection of cases: those whose names start with one of the prefixes, or all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    prefixes: Vec<String>,
}

impl Selection {
    /// Selects the cases whose names (`RULE/slug`) start with one of these prefixes. No prefixes
    /// select all cases.
    #[must_use]
    pub fn new<S: Into<String>>(prefixes: impl IntoIterator<Item = S>) -> Self {
        Self {
            prefixes: prefixes.into_iter().map(Into::into).collect(),
        }
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
        self.prefixes.is_empty() || self.prefixes.iter().any(|prefix| name.starts_with(prefix))
    }
}

/// Runs the selected cases one after the other.
pub fn run(
    bench: &Bench<'_>,
    cases: &[Case],
    selection: &Selection,
    expectations: &Expectations,
) -> Report {
    let mut report = Report::new(bench.peer().name());
    for case in cases.iter().filter(|case| selection.matches(case)) {
        let expected = expectations.of(case);
        let run = if let Expected::Skip(reason) = &expected {
            CaseRun {
                case: *case,
                outcome: Outcome::Skipped(reason.clone()),
                duration: std::time::Duration::ZERO,
            }
        } else {
            run_case(bench, case)
        };
        report.push(CaseResultEntry::new(run, &expected));
    }
    report
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
    let outcome = match result {
        Ok(Ok(())) => Outcome::Passed,
        Ok(Err(CaseError::Skipped(reason))) => Outcome::Skipped(reason),
        Ok(Err(CaseError::Failed(reason))) => failed(reason),
        Err(panic) => failed(format!("panic: {}", panic_text(&*panic))),
    };
    CaseRun {
        case: *case,
        outcome,
        duration: start.elapsed(),
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
    }
}
