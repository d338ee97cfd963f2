//! Compares two results.

use std::fmt;

use super::{CaseResultEntry, Report, Verdict};

/// A case with different verdicts in two reports. `None` means that a report lacks the case.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference<'a> {
    /// The name of the case.
    pub case: &'a str,
    /// The result in the first report.
    pub before: Option<&'a CaseResultEntry>,
    /// The result in the second report.
    pub after: Option<&'a CaseResultEntry>,
}

/// Returns the cases whose verdicts differ, in the order of the first report and then of the
/// second.
#[must_use]
pub fn diff<'a>(before: &'a Report, after: &'a Report) -> Vec<Difference<'a>> {
    let names = before.entries.iter().chain(&after.entries);
    let mut differences: Vec<Difference<'a>> = Vec::new();
    for case in names.map(|entry| &*entry.case) {
        let [first, second] = [before, after].map(|report| report.find(case));
        let is_listed = differences.iter().any(|difference| difference.case == case);
        if !is_listed && first.map(|e| e.verdict) != second.map(|e| e.verdict) {
            differences.push(Difference {
                case,
                before: first,
                after: second,
            });
        }
    }
    differences
}

impl fmt::Display for Difference<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = |entry: Option<&CaseResultEntry>| {
            entry.map_or("not run", |entry| Verdict::word(entry.verdict))
        };
        let [before, after] = [self.before, self.after].map(word);
        write!(f, "{}: {before} -> {after}", self.case)?;
        let mut reasons = [self.after, self.before]
            .into_iter()
            .flatten()
            .map(CaseResultEntry::explanation);
        match reasons.find(|reason| !reason.is_empty()) {
            Some(reason) => write!(f, " ({reason})"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{Case, Outcome, case::CaseRun, expectations::Expected};

    fn report(cases: &[(&'static str, Outcome)]) -> Report {
        let mut report = Report::new("device");
        for (slug, outcome) in cases {
            let run = CaseRun {
                case: Case::responder("A-1", slug, |_| Ok(())),
                outcome: outcome.clone(),
                duration: Duration::ZERO,
                frames: Vec::new(),
                is_lost: false,
            };
            report.push(CaseResultEntry::new(run, &Expected::PassOrSkip));
        }
        report
    }

    #[test]
    fn only_other_verdicts_are_listed() {
        let failed = Outcome::Failed {
            reason: "no ACK".to_owned(),
            transcript: Vec::new(),
        };
        let skipped = Outcome::Skipped("no FLUSH".to_owned());
        let before = report(&[
            ("same", Outcome::Passed),
            ("worse", Outcome::Passed),
            ("gone", skipped),
        ]);
        let after = report(&[
            ("worse", failed.clone()),
            ("same", Outcome::Passed),
            ("new", Outcome::Passed),
        ]);
        let lines: Vec<_> = diff(&before, &after)
            .iter()
            .map(ToString::to_string)
            .collect();
        let expected = [
            "A-1/worse: pass -> FAIL (no ACK)",
            "A-1/gone: skip -> not run (no FLUSH)",
            "A-1/new: not run -> pass",
        ];
        assert_eq!(lines, expected);
        assert!(diff(&after, &after).is_empty());
    }
}
