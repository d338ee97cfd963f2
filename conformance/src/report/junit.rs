//! JUnit XML, which CI systems show.

use std::{collections::BTreeMap, time::Duration};

use quick_junit::{NonSuccessKind, TestCase, TestCaseStatus, TestSuite};

use super::{CaseResultEntry, Report, Verdict};
use crate::{rules, suite};

/// Returns the report with a test suite for each area. A known failure counts as skipped, so that
/// only unexpected results fail.
pub(super) fn junit(report: &Report) -> Result<String, String> {
    let mut areas: BTreeMap<&str, TestSuite> = BTreeMap::new();
    for entry in &report.entries {
        let area = suite::area_of(&entry.case);
        let name = format!("{} {area}", report.peer);
        let suite = areas.entry(area).or_insert_with(|| TestSuite::new(name));
        suite.add_test_case(test_case(report, entry));
    }
    let mut junit = quick_junit::Report::new(format!("RoCEv2 conformance of {}", report.title()));
    junit.add_test_suites(areas.into_values());
    junit.to_string().map_err(|error| error.to_string())
}

fn test_case(report: &Report, entry: &CaseResultEntry) -> TestCase {
    let reason = entry.explanation();
    let mut status = match entry.verdict {
        Verdict::Pass => TestCaseStatus::success(),
        Verdict::Skip | Verdict::KnownFailure => TestCaseStatus::skipped(),
        Verdict::Lost => TestCaseStatus::non_success(NonSuccessKind::Error),
        _ => TestCaseStatus::non_success(NonSuccessKind::Failure),
    };
    if entry.verdict != Verdict::Pass {
        let word = entry.verdict.word();
        status.set_message(format!("{word}: {reason}"));
        status.set_type(entry.level.to_string());
    }
    if entry.verdict.is_unexpected() {
        status.set_description(description(entry));
    }
    let mut case = TestCase::new(&*entry.case, status);
    case.set_classname(format!("{}.{}", report.peer, suite::area_of(&entry.case)));
    case.set_time(Duration::from_millis(entry.duration_ms));
    case
}

fn description(entry: &CaseResultEntry) -> String {
    let rules = entry.rules().filter_map(rules::find);
    let rules = rules.map(|rule| format!("{}: {}\n", rule.id, rule.statement));
    let steps = entry.transcript.iter().map(ToString::to_string);
    rules.chain(steps).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Case, Outcome, case::CaseRun, expectations::Expected};

    #[test]
    fn only_what_is_unexpected_fails() {
        let failed = Outcome::Failed {
            reason: "a < b".to_owned(),
            transcript: Vec::new(),
        };
        let known = Expected::Fail("old firmware".to_owned());
        let mut report = Report::new("device");
        for (slug, outcome, expected) in [
            ("send-of-full-packets", Outcome::Passed, &Expected::Pass),
            ("write-of-full-packets", failed.clone(), &Expected::Pass),
            ("send-of-three-packets", failed, &known),
        ] {
            let run = CaseRun {
                case: Case::responder("RC-SEG-01", slug, |_| Ok(())),
                outcome,
                duration: Duration::from_millis(1500),
                frames: Vec::new(),
                is_lost: false,
            };
            report.push(CaseResultEntry::new(run, expected));
        }
        let xml = junit(&report).unwrap();
        let counts = r#"tests="3" skipped="1" errors="0" failures="1""#;
        assert!(xml.contains(counts), "{xml}");
        let name = r#"<testcase name="RC-SEG-01/send-of-full-packets" classname="device.messages" time="1.500""#;
        assert!(xml.contains(name), "{xml}");
        assert!(xml.contains("FAIL: a &lt; b"), "{xml}");
        assert!(xml.contains("RC-SEG-01: A message is Only"), "{xml}");
    }
}
