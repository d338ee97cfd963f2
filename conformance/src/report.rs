//! Results as text and as JSON.

use std::{collections::BTreeMap, fmt};

use serde::Serialize;

use crate::{Level, Outcome, Role, case::CaseRun, expectations::Expected};

/// A result compared with the expectation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Passed.
    Pass,
    /// Not run, as expected.
    Skip,
    /// Failed, as expected.
    KnownFailure,
    /// Passed although a failure was expected: the expectation is outdated.
    UnexpectedPass,
    /// Skipped although that was not expected: the rule is not checked.
    UnexpectedSkip,
    /// Failed.
    Fail,
}

impl Verdict {
    /// Returns true if the result differs from the expectation.
    #[must_use]
    pub const fn is_unexpected(self) -> bool {
        matches!(
            self,
            Self::UnexpectedPass | Self::UnexpectedSkip | Self::Fail
        )
    }

    const fn word(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Skip => "skip",
            Self::KnownFailure => "known",
            Self::UnexpectedPass => "unexpected pass",
            Self::UnexpectedSkip => "UNEXPECTED SKIP",
            Self::Fail => "FAIL",
        }
    }
}

/// The result of a case.
#[derive(Clone, Debug, Serialize)]
pub struct CaseResultEntry {
    /// The ID of the rule.
    pub rule: String,
    /// `RULE/slug`.
    pub case: String,
    /// The level of the rule.
    pub level: Level,
    /// The half of the peer that was tested.
    pub role: Role,
    /// The result compared with the expectation.
    pub verdict: Verdict,
    /// The reason of a failure, a skip or an expected failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The packets of a case that failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transcript: Option<String>,
    /// The duration in milliseconds.
    pub duration_ms: u128,
}

impl CaseResultEntry {
    /// Creates the entry of a run.
    #[must_use]
    pub fn new(run: CaseRun, expected: &Expected) -> Self {
        let (verdict, reason, transcript) = match (run.outcome, expected) {
            (Outcome::Passed, Expected::Fail(why)) => {
                (Verdict::UnexpectedPass, Some(why.clone()), None)
            }
            (Outcome::Passed, _) => (Verdict::Pass, None, None),
            (Outcome::Skipped(why), Expected::Skip(_) | Expected::PassOrSkip) => {
                (Verdict::Skip, Some(why), None)
            }
            (Outcome::Skipped(why), _) => (Verdict::UnexpectedSkip, Some(why), None),
            (Outcome::Failed { reason, transcript }, Expected::Fail(why)) => (
                Verdict::KnownFailure,
                Some(format!("{why} ({reason})")),
                Some(transcript),
            ),
            (Outcome::Failed { reason, transcript }, _) => {
                (Verdict::Fail, Some(reason), Some(transcript))
            }
        };
        Self {
            rule: run.case.rule.to_owned(),
            case: run.case.name(),
            level: run.case.level,
            role: run.case.role,
            verdict,
            reason,
            transcript,
            duration_ms: run.duration.as_millis(),
        }
    }
}

/// The results of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The peer's name.
    pub peer: String,
    /// The cases, in the order in which they were run.
    pub entries: Vec<CaseResultEntry>,
}

impl Report {
    /// Creates an empty report.
    #[must_use]
    pub fn new(peer: &str) -> Self {
        Self {
            peer: peer.to_owned(),
            entries: Vec::new(),
        }
    }

    /// Adds a result.
    pub fn push(&mut self, entry: CaseResultEntry) {
        self.entries.push(entry);
    }

    /// Adds the results of another run.
    pub fn merge(&mut self, other: Self) {
        self.entries.extend(other.entries);
    }

    /// Returns the results that differ from the expectations.
    pub fn unexpected(&self) -> impl Iterator<Item = &CaseResultEntry> {
        self.entries
            .iter()
            .filter(|entry| entry.verdict.is_unexpected())
    }

    /// Returns the number of results with this verdict.
    #[must_use]
    pub fn count(&self, verdict: Verdict) -> usize {
        self.entries
            .iter()
            .filter(|entry| entry.verdict == verdict)
            .count()
    }

    /// Returns the number of cases that were not skipped.
    #[must_use]
    pub fn run_count(&self) -> usize {
        let skipped = self.count(Verdict::Skip) + self.count(Verdict::UnexpectedSkip);
        self.entries.len() - skipped
    }

    /// Returns the report as JSON.
    ///
    /// # Errors
    /// Those of the serializer, which do not occur in practice.
    pub fn to_json(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(self)
    }
}

/// Prints one line per rule, then the reasons and transcripts of cases that did not pass.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rules: BTreeMap<&str, Vec<&CaseResultEntry>> = BTreeMap::new();
        for entry in &self.entries {
            rules.entry(&entry.rule).or_default().push(entry);
        }
        writeln!(f, "{:<12} {:<6} {:>5}  result", "rule", "level", "cases")?;
        for (rule, entries) in &rules {
            let worst = entries
                .iter()
                .map(|e| e.verdict)
                .max()
                .unwrap_or(Verdict::Skip);
            let must = entries.iter().any(|e| e.level == Level::Must);
            let level = if must { Level::Must } else { Level::Should };
            writeln!(
                f,
                "{rule:<12} {level:<6} {:>5}  {}",
                entries.len(),
                worst.word()
            )?;
        }
        for entry in self.entries.iter().filter(|e| e.verdict != Verdict::Pass) {
            let reason = entry.reason.as_deref().unwrap_or("");
            writeln!(
                f,
                "\n{}: {} ({}): {reason}",
                entry.verdict.word(),
                entry.case,
                entry.level
            )?;
            if let (Verdict::Fail, Some(transcript)) = (entry.verdict, &entry.transcript) {
                f.write_str(transcript)?;
            }
        }
        let unexpected = self.unexpected().count();
        writeln!(
            f,
            "\n{}: {} cases, {} passed, {} known to fail, {} skipped, {unexpected} unexpected",
            self.peer,
            self.entries.len(),
            self.count(Verdict::Pass),
            self.count(Verdict::KnownFailure),
            self.entries.len() - self.run_count(),
        )
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::Case;

    fn entry(outcome: Outcome, expected: &Expected) -> CaseResultEntry {
        let case = Case::responder("A-1", "x", |_| Ok(()));
        let duration = Duration::from_millis(3);
        CaseResultEntry::new(
            CaseRun {
                case,
                outcome,
                duration,
            },
            expected,
        )
    }

    fn failed() -> Outcome {
        Outcome::Failed {
            reason: "no ACK".to_owned(),
            transcript: "ladder\n".to_owned(),
        }
    }

    fn skipped() -> Outcome {
        Outcome::Skipped("no address".to_owned())
    }

    #[test]
    fn expectations_decide_the_verdict() {
        let known = Expected::Fail("old firmware".to_owned());
        let never = Expected::Skip("crashes it".to_owned());
        for (outcome, expected, verdict) in [
            (Outcome::Passed, &Expected::Pass, Verdict::Pass),
            (Outcome::Passed, &known, Verdict::UnexpectedPass),
            (failed(), &Expected::Pass, Verdict::Fail),
            (failed(), &known, Verdict::KnownFailure),
            (skipped(), &Expected::Pass, Verdict::UnexpectedSkip),
            (skipped(), &known, Verdict::UnexpectedSkip),
            (skipped(), &never, Verdict::Skip),
            (skipped(), &Expected::PassOrSkip, Verdict::Skip),
            (failed(), &Expected::PassOrSkip, Verdict::Fail),
        ] {
            assert_eq!(entry(outcome, expected).verdict, verdict);
        }
    }

    #[test]
    fn what_is_skipped_was_not_run() {
        let never = Expected::Skip("crashes it".to_owned());
        let mut report = Report::new("device");
        report.push(entry(skipped(), &never));
        report.push(entry(Outcome::Passed, &Expected::Pass));
        report.push(entry(failed(), &Expected::Pass));
        report.push(entry(skipped(), &Expected::Pass));
        assert_eq!(report.run_count(), 2);
        assert_eq!(report.unexpected().count(), 2);
        let text = report.to_string();
        assert!(text.ends_with("4 cases, 1 passed, 0 known to fail, 2 skipped, 2 unexpected\n"));
    }

    #[test]
    fn text_and_json_tell_what_failed() {
        let mut report = Report::new("device");
        report.push(entry(Outcome::Passed, &Expected::Pass));
        report.push(entry(failed(), &Expected::Pass));
        let text = report.to_string();
        assert!(text.contains("A-1          MUST       2  FAIL"), "{text}");
        assert!(
            text.contains("FAIL: A-1/x (MUST): no ACK\nladder\n"),
            "{text}"
        );
        assert!(text.ends_with("2 cases, 1 passed, 0 known to fail, 0 skipped, 1 unexpected\n"));
        let json: serde_json::Value = serde_json::from_str(&report.to_json().unwrap()).unwrap();
        assert_eq!(json["entries"][1]["verdict"], "fail");
        assert_eq!(json["entries"][0]["level"], "must");
    }
}
