//! The table of `cargo xtask dist --check`, and its place in docs/release.md.

use std::fs;

use super::{Plan, at, write};
use crate::tally::Tally;

const DOCUMENT: &str = "docs/release.md";
const BEGIN: &str = "<!-- begin dist -->\n";
const END: &str = "<!-- end dist -->\n";

/// One thing that was tried with a package.
#[derive(Debug)]
pub(super) enum Run {
    Good(String),
    Failed(String),
    /// A check that could not be tried here, and the reason.
    Skipped(String, String),
}

impl Run {
    /// Prints the error of a failed run.
    pub(super) fn of<T>(name: &str, result: &Result<T, String>) -> Self {
        match result {
            Ok(_) => Self::Good(name.to_owned()),
            Err(error) => {
                eprintln!("xtask: {name}: {error}");
                Self::Failed(name.to_owned())
            }
        }
    }

    /// Prints the reason, because the run counts as skipped.
    pub(super) fn skipped(name: &str, reason: &str) -> Self {
        eprintln!("SKIP: {name}: {reason}");
        Self::Skipped(name.to_owned(), reason.to_owned())
    }

    fn text(&self) -> String {
        match self {
            Self::Good(name) => name.clone(),
            Self::Failed(name) => format!("{name} FAILED"),
            Self::Skipped(name, reason) => format!("{name} skipped ({reason})"),
        }
    }
}

/// A line of the table.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) platform: String,
    pub(super) package: String,
    /// In bytes.
    pub(super) size: u64,
    /// From nothing to the end of the first `ib_write_bw`, or of the demo in an image.
    pub(super) seconds: Option<f64>,
    pub(super) runs: Vec<Run>,
    /// The files that stay after the removal, or `nothing`. `None` if the package was unpacked and
    /// not installed.
    pub(super) traces: Option<String>,
}

impl Row {
    /// A failed run or a trace fails the row. A row of which nothing ran is skipped.
    fn tally(&self) -> Tally {
        let failed = self.runs.iter().any(|run| matches!(run, Run::Failed(_)));
        let ran = self.runs.iter().any(|run| matches!(run, Run::Good(_)));
        let is_clean = self
            .traces
            .as_ref()
            .is_none_or(|traces| traces == "nothing");
        match (failed || !is_clean, ran) {
            (true, _) => Tally::FAIL,
            (false, true) => Tally::PASS,
            (false, false) => Tally::SKIP,
        }
    }
}

/// Prints the table and the words below it, and writes both to the document if `document` is set.
pub(super) fn publish(
    plan: &Plan,
    rows: &[Row],
    words: &str,
    document: bool,
) -> Result<Tally, String> {
    let text = table(rows);
    println!("{text}\n{words}");
    write(&plan.work.join("check.md"), &text)?;
    if document {
        let file = plan.root.join(DOCUMENT);
        let old = fs::read_to_string(&file).map_err(at(&file))?;
        let new = replaced(&old, &format!("{text}\n{words}\n"));
        let new = new.ok_or_else(|| format!("{DOCUMENT} has no {}", BEGIN.trim()))?;
        write(&file, new)?;
    }
    let tallies = rows.iter().map(Row::tally);
    Ok(tallies.fold(Tally::default(), |sum, one| sum + one))
}

fn table(rows: &[Row]) -> String {
    let mut text = String::from(
        "| platform | package | KB | s | run | left behind |\n|---|---|---|---|---|---|\n",
    );
    for row in rows {
        let seconds = row
            .seconds
            .map_or_else(|| "-".to_owned(), |time| format!("{time:.1}"));
        let runs: Vec<String> = row.runs.iter().map(Run::text).collect();
        let traces = row.traces.as_deref().unwrap_or("-");
        text.push_str(&format!(
            "| {} | `{}` | {} | {seconds} | {} | {traces} |\n",
            row.platform,
            row.package,
            row.size.div_ceil(1000),
            runs.join(", "),
        ));
    }
    text
}

/// The document with `text` between the marks.
fn replaced(document: &str, text: &str) -> Option<String> {
    let (head, rest) = document.split_once(BEGIN)?;
    let (_, tail) = rest.split_once(END)?;
    Some(format!("{head}{BEGIN}{text}{END}{tail}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(runs: Vec<Run>, traces: Option<&str>) -> Row {
        Row {
            platform: "Debian".to_owned(),
            package: "a.deb".to_owned(),
            size: 1001,
            seconds: Some(1.25),
            runs,
            traces: traces.map(str::to_owned),
        }
    }

    #[test]
    fn a_row_fails_by_a_run_or_by_a_trace() {
        let good = || Run::Good("demo".to_owned());
        let skipped = || Run::Skipped("umoci".to_owned(), "not installed".to_owned());
        assert_eq!(
            row(vec![good(), skipped()], Some("nothing")).tally(),
            Tally::PASS
        );
        assert_eq!(row(vec![good()], Some("2 files")).tally(), Tally::FAIL);
        assert_eq!(row(vec![skipped()], None).tally(), Tally::SKIP);
        let failed = Run::of::<()>("demo", &Err("status 1".to_owned()));
        assert_eq!(row(vec![good(), failed], None).tally(), Tally::FAIL);
    }

    #[test]
    fn the_table_replaces_the_old_one() {
        let runs = vec![
            Run::Good("demo".to_owned()),
            Run::Skipped("umoci".to_owned(), "not installed".to_owned()),
        ];
        let text = table(&[row(runs, None)]);
        let line = "| Debian | `a.deb` | 2 | 1.2 | demo, umoci skipped (not installed) | - |\n";
        assert!(text.ends_with(line), "{text}");
        let old = format!("head\n{BEGIN}old\n{END}tail\n");
        let new = replaced(&old, &text).unwrap();
        assert_eq!(new, format!("head\n{BEGIN}{text}{END}tail\n"));
        assert!(replaced("no marks", &text).is_none());
    }
}
