//! Results, as text, JSON, JUnit XML and HTML.

mod diff;
mod html;
mod journal;
mod junit;
mod text;

use serde::{Deserialize, Serialize};

use crate::{Level, Outcome, Role, case::CaseRun, expectations::Expected, rig::Step};

pub use diff::{Difference, diff};
pub use html::html;
pub use journal::Journal;

/// A result compared with the expectation.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord, Serialize)]
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
    /// The agent or the device was lost during the case.
    Lost,
}

impl Verdict {
    /// Returns true if the result differs from the expectation.
    #[must_use]
    pub const fn is_unexpected(self) -> bool {
        matches!(
            self,
            Self::UnexpectedPass | Self::UnexpectedSkip | Self::Fail | Self::Lost
        )
    }

    /// Returns true if the case was not run.
    #[must_use]
    pub const fn is_skip(self) -> bool {
        matches!(self, Self::Skip | Self::UnexpectedSkip)
    }

    const fn word(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Skip => "skip",
            Self::KnownFailure => "known",
            Self::UnexpectedPass => "unexpected pass",
            Self::UnexpectedSkip => "UNEXPECTED SKIP",
            Self::Fail => "FAIL",
            Self::Lost => "LOST",
        }
    }
}

/// The result of a case.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct CaseResultEntry {
    /// The ID of the rule.
    pub rule: String,
    /// The IDs of further rules that demand a status of the case.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<String>,
    /// `RULE/slug`.
    pub case: String,
    /// The level of the rule.
    pub level: Level,
    /// The half of the peer that was tested.
    pub role: Role,
    /// The result compared with the expectation.
    pub verdict: Verdict,
    /// The reason of a failure, a skip or an expected failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The packets of a case that failed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub transcript: Vec<Step>,
    /// The duration in milliseconds.
    pub duration_ms: u64,
    /// The number of times that the case was run.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub runs: u32,
    /// The number of runs whose verdict was worse than a pass.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub bad_runs: u32,
}

const fn one() -> u32 {
    1
}

const fn is_one(value: &u32) -> bool {
    *value == 1
}

const fn is_zero(value: &u32) -> bool {
    *value == 0
}

impl CaseResultEntry {
    /// Creates the entry of a run.
    #[must_use]
    pub fn new(run: CaseRun, expected: &Expected) -> Self {
        let (verdict, reason, transcript) = match (run.outcome, expected) {
            (Outcome::Failed { reason, transcript }, _) if run.is_lost => {
                (Verdict::Lost, Some(reason), transcript)
            }
            (Outcome::Passed, Expected::Fail(why)) => {
                (Verdict::UnexpectedPass, Some(why.clone()), Vec::new())
            }
            (Outcome::Passed, _) => (Verdict::Pass, None, Vec::new()),
            (Outcome::Skipped(why), Expected::Skip(_) | Expected::PassOrSkip) => {
                (Verdict::Skip, Some(why), Vec::new())
            }
            (Outcome::Skipped(why), _) => (Verdict::UnexpectedSkip, Some(why), Vec::new()),
            (Outcome::Failed { reason, transcript }, Expected::Fail(why)) => (
                Verdict::KnownFailure,
                Some(format!("{why} ({reason})")),
                transcript,
            ),
            (Outcome::Failed { reason, transcript }, _) => {
                (Verdict::Fail, Some(reason), transcript)
            }
        };
        let duration_ms = u64::try_from(run.duration.as_millis()).unwrap_or(u64::MAX);
        Self {
            rule: run.case.rule.to_owned(),
            also: run.case.also.iter().map(ToString::to_string).collect(),
            case: run.case.name(),
            level: run.case.level,
            role: run.case.role,
            verdict,
            reason,
            transcript,
            duration_ms,
            runs: 1,
            bad_runs: u32::from(verdict > Verdict::Skip),
        }
    }

    /// Adds a repetition of the same case. The worse result remains.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let runs = self.runs + other.runs;
        let bad_runs = self.bad_runs + other.bad_runs;
        let duration_ms = self.duration_ms + other.duration_ms;
        let worse = if other.verdict > self.verdict {
            other
        } else {
            self
        };
        Self {
            runs,
            bad_runs,
            duration_ms,
            ..worse
        }
    }

    /// Returns the IDs of all rules of the case.
    pub fn rules(&self) -> impl Iterator<Item = &str> {
        let also = self.also.iter().map(String::as_str);
        std::iter::once(&*self.rule).chain(also)
    }

    /// Returns the reason, with the number of bad runs if the case was repeated.
    #[must_use]
    pub fn explanation(&self) -> String {
        let reason = self.reason.as_deref().unwrap_or_default();
        if self.runs == 1 || self.bad_runs == 0 {
            return reason.to_owned();
        }
        format!("{} of {} runs: {reason}", self.bad_runs, self.runs)
    }
}

/// Facts about the device.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct Device {
    /// The address.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub address: String,
    /// The name of its driver in the kernel, such as `rxe`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub driver: String,
    /// The version of its kernel.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub kernel: String,
    /// The version of the suite.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub suite: String,
}

/// The results of a run.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Report {
    /// The peer's name.
    pub peer: String,
    /// Facts about the device.
    #[serde(default)]
    pub device: Device,
    /// The cases, in the order in which they were run.
    pub entries: Vec<CaseResultEntry>,
    /// The reason why the run ended before its last case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<String>,
}

impl Report {
    /// Creates an empty report.
    #[must_use]
    pub fn new(peer: &str) -> Self {
        Self {
            peer: peer.to_owned(),
            device: Device::default(),
            entries: Vec::new(),
            lost: None,
        }
    }

    /// Returns the peer's name with its driver and kernel.
    #[must_use]
    pub fn title(&self) -> String {
        let Device { driver, kernel, .. } = &self.device;
        match (driver.is_empty(), kernel.is_empty()) {
            (true, true) => self.peer.clone(),
            (true, false) => format!("{} (Linux {kernel})", self.peer),
            (false, true) => format!("{} ({driver})", self.peer),
            (false, false) => format!("{} ({driver}, Linux {kernel})", self.peer),
        }
    }

    /// Returns the result of the case with this name.
    #[must_use]
    pub fn find(&self, case: &str) -> Option<&CaseResultEntry> {
        self.entries.iter().find(|entry| entry.case == case)
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
        let was_run = |entry: &&CaseResultEntry| !entry.verdict.is_skip();
        self.entries.iter().filter(was_run).count()
    }

    /// Returns the report as JSON.
    ///
    /// # Errors
    /// Those of the serializer, which do not occur in practice.
    pub fn to_json(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(self)
    }

    /// Reads a report from JSON.
    ///
    /// # Errors
    /// The text is no report.
    pub fn from_json(text: &str) -> serde_json::Result<Self> {
        serde_json::from_str(text)
    }

    /// Returns the report as JUnit XML.
    ///
    /// # Errors
    /// Those of the serializer, which do not occur in practice.
    pub fn to_junit(&self) -> Result<String, String> {
        junit::junit(self)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{Case, rig::Origin};

    fn entry(outcome: Outcome, expected: &Expected) -> CaseResultEntry {
        let case = Case::responder("A-1", "x", |_| Ok(()));
        let duration = Duration::from_millis(3);
        CaseResultEntry::new(
            CaseRun {
                case,
                outcome,
                duration,
                frames: Vec::new(),
                is_lost: false,
            },
            expected,
        )
    }

    fn failed() -> Outcome {
        Outcome::Failed {
            reason: "no ACK".to_owned(),
            transcript: vec![Step {
                ms: 0.5,
                from: Origin::Note,
                text: "ladder".to_owned(),
            }],
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
            text.contains("FAIL: A-1/x (MUST): no ACK\n    0.500 ms    ladder\n"),
            "{text}"
        );
        assert!(text.ends_with("2 cases, 1 passed, 0 known to fail, 0 skipped, 1 unexpected\n"));
        let json: serde_json::Value = serde_json::from_str(&report.to_json().unwrap()).unwrap();
        assert_eq!(json["entries"][1]["verdict"], "fail");
        assert_eq!(json["entries"][0]["level"], "must");
    }

    #[test]
    fn the_worse_of_two_runs_remains() {
        let passed = entry(Outcome::Passed, &Expected::Pass);
        let both = passed.clone().and(entry(failed(), &Expected::Pass));
        let all = both.and(passed);
        assert_eq!((all.verdict, all.runs, all.bad_runs), (Verdict::Fail, 3, 1));
        assert_eq!(all.explanation(), "1 of 3 runs: no ACK");
    }

    #[test]
    fn json_is_read_back() {
        let mut report = Report::new("device");
        report.device.kernel = "6.12.9".to_owned();
        report.push(entry(failed(), &Expected::Pass));
        report.push(entry(skipped(), &Expected::PassOrSkip));
        let json = report.to_json().unwrap();
        assert_eq!(Report::from_json(&json).unwrap(), report);
        assert_eq!(report.title(), "device (Linux 6.12.9)");
    }
}
