//! The tables of `cargo xtask debian`, and their place in docs/debian.md.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use super::{
    Results, SHOWN,
    battery::Verdict,
    python::{self, IDENTITIES, Outcome},
};
use crate::{
    dist::{at, write},
    tally::Tally,
};

const DOCUMENT: &str = "docs/debian.md";
const BEGIN: &str = "<!-- begin debian -->\n";
const END: &str = "<!-- end debian -->\n";

/// Prints the tables, and writes them to the document if `document` is set.
pub(super) fn publish(root: &Path, all: &[Results], document: bool) -> Result<Tally, String> {
    let text = format!("{}\n{}\n{}", programs(all), tests(all), reasons(all));
    println!("{text}");
    if document {
        let file = root.join(DOCUMENT);
        let old = fs::read_to_string(&file).map_err(at(&file))?;
        let parts = old.split_once(BEGIN).and_then(|(head, rest)| {
            let (_, tail) = rest.split_once(END)?;
            Some((head, tail))
        });
        let (head, tail) = parts.ok_or_else(|| format!("{DOCUMENT} has no {}", BEGIN.trim()))?;
        write(&file, format!("{head}{BEGIN}{text}{END}{tail}"))?;
    }
    let sums = all.iter().map(tally);
    Ok(sums.fold(Tally::default(), |sum, one| sum + one))
}

/// Each program and each test counts. A reason without an explanation is a failure.
fn tally(results: &Results) -> Tally {
    let mut sum = Tally::default();
    for case in &results.battery {
        sum = sum
            + match case.verdict {
                Verdict::Good => Tally::PASS,
                Verdict::Failed(_) => Tally::FAIL,
                Verdict::Absent => Tally::SKIP,
            };
    }
    for outcome in &results.tests {
        let failed = u32::try_from(outcome.failed.len()).unwrap_or(u32::MAX);
        sum = sum
            + Tally {
                passed: outcome.passed,
                failed,
                skipped: outcome.skipped,
            };
        for reason in outcome.reasons.keys() {
            if python::explanation(reason).is_none() {
                eprintln!("xtask: {}: unexplained: skipped {reason:?}", results.name);
                sum = sum + Tally::FAIL;
            }
        }
    }
    sum
}

fn head(first: &str, all: &[Results]) -> String {
    let names: String = all.iter().map(|one| format!(" {} |", one.name)).collect();
    format!("| {first} |{names}\n|---|{}\n", "---|".repeat(all.len()))
}

/// The table of programs: a row for each package and each case.
fn programs(all: &[Results]) -> String {
    let mut text = head("program", all);
    for (index, package) in SHOWN.iter().enumerate() {
        let versions: String = all
            .iter()
            .map(|one| format!(" {} |", one.versions[index]))
            .collect();
        text.push_str(&format!("| package {package} |{versions}\n"));
    }
    let mut seen = BTreeSet::new();
    let names = all
        .iter()
        .flat_map(|one| &one.battery)
        .map(|case| &case.name);
    for name in names.filter(|name| seen.insert(*name)) {
        let cells: String = all
            .iter()
            .map(|one| format!(" {} |", cell(one, name)))
            .collect();
        text.push_str(&format!("| `{name}` |{cells}\n"));
    }
    text
}

fn cell(results: &Results, name: &str) -> &'static str {
    let case = results.battery.iter().find(|case| case.name == name);
    match case.map(|case| &case.verdict) {
        Some(Verdict::Good) => "runs",
        Some(Verdict::Failed(_)) => "FAILED",
        Some(Verdict::Absent) | None => "not there",
    }
}

/// The table of rdma-core's tests: a row for each identity.
fn tests(all: &[Results]) -> String {
    let mut text = head("tests: passed, failed, skipped", all);
    for (index, identity) in IDENTITIES.iter().enumerate() {
        let numbers =
            |one: &Outcome| format!(" {}, {}, {} |", one.passed, one.failed.len(), one.skipped);
        let cells: String = all.iter().map(|one| numbers(&one.tests[index])).collect();
        text.push_str(&format!("| {} |{cells}\n", identity.name));
    }
    text
}

/// The table of reasons: the numbers of skipped tests of each release, one for each identity.
fn reasons(all: &[Results]) -> String {
    let mut rows: BTreeMap<&str, Vec<Vec<String>>> = BTreeMap::new();
    for (release, results) in all.iter().enumerate() {
        for (identity, outcome) in results.tests.iter().enumerate() {
            for (reason, modules) in &outcome.reasons {
                let none = || vec![vec!["-".to_owned(); IDENTITIES.len()]; all.len()];
                let row = rows.entry(reason).or_insert_with(none);
                row[release][identity] = modules.len().to_string();
            }
        }
    }
    let names: String = all.iter().map(|one| format!(" {} |", one.name)).collect();
    let mut text = format!(
        "| skipped with each identity |{names} why |\n|---|{}---|\n",
        "---|".repeat(all.len())
    );
    for (reason, row) in rows {
        let why = python::explanation(reason).unwrap_or("UNEXPLAINED");
        let cells: String = row
            .iter()
            .map(|cell| format!(" {} |", cell.join(", ")))
            .collect();
        text.push_str(&format!("| {} |{cells} {why} |\n", short(reason)));
    }
    text
}

/// The reason without characters that a table would misread, and without its end if it is long.
fn short(reason: &str) -> String {
    let plain = reason.replace('|', "/").replace(['<', '>', '[', ']'], "");
    plain.chars().take(80).collect()
}

#[cfg(test)]
mod tests {
    use super::{super::battery::Case, *};

    fn results(verdict: Verdict, reason: &str) -> Results {
        let outcome = Outcome {
            passed: 2,
            skipped: 1,
            failed: Vec::new(),
            reasons: BTreeMap::from([(reason.to_owned(), vec!["test_cq".to_owned()])]),
        };
        Results {
            name: "unstable",
            versions: SHOWN.map(|_| "1.0".to_owned()).to_vec(),
            battery: vec![Case {
                name: "rping".to_owned(),
                verdict,
            }],
            tests: vec![outcome; IDENTITIES.len()],
        }
    }

    #[test]
    fn a_new_reason_and_a_failed_program_are_failures() {
        let known = "No PHC or failed to open";
        let good = tally(&results(Verdict::Good, known));
        assert_eq!((good.passed, good.failed, good.skipped), (9, 0, 4));
        let failed = tally(&results(Verdict::Failed(String::new()), known));
        assert_eq!(failed.failed, 1);
        let new = tally(&results(Verdict::Absent, "RC is not supported"));
        assert_eq!((new.failed, new.skipped), (4, 5));
    }

    #[test]
    fn tables_have_a_cell_for_each_release() {
        let all = [results(Verdict::Good, "No PHC or failed to open")];
        assert!(programs(&all).contains("| `rping` | runs |\n"));
        assert!(tests(&all).contains("| default | 2, 0, 1 |\n"));
        let row = "| No PHC or failed to open | 1, 1, 1, 1 | a clock of a PCI device |\n";
        assert!(reasons(&all).contains(row), "{}", reasons(&all));
    }

    #[test]
    fn reasons_of_every_release_are_listed() {
        let (first, last) = ("DevX general command is not supported", "No PHC or failed");
        let all = [first, last].map(|reason| results(Verdict::Good, reason));
        let text = reasons(&all);
        let row = format!("| {first} | 1, 1, 1, 1 | -, -, -, - |");
        assert!(text.contains(&row), "{text}");
        let row = format!("| {last} | -, -, -, - | 1, 1, 1, 1 |");
        assert!(text.contains(&row), "{text}");
    }
}
