//! Works with results that are there.

use std::{
    fs,
    path::{Path, PathBuf},
};

use rocade_conformance::{
    Report,
    report::{diff, html},
};

use super::{Failure, arguments::ReportArguments, outputs::write};

fn read(path: &Path) -> Result<Report, Failure> {
    let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let report = Report::from_json(&text);
    report.map_err(|error| format!("{}: {error}", path.display()).into())
}

/// Prints results, or writes them to the requested files. Returns true if all were as expected.
pub(super) fn report(arguments: &ReportArguments) -> Result<bool, Failure> {
    let reports = arguments.results.iter().map(|path| read(path));
    let reports = reports.collect::<Result<Vec<_>, _>>()?;
    if let Some(path) = &arguments.junit {
        let [report] = &reports[..] else {
            return Err("JUnit XML is about one peer".into());
        };
        write(path, report.to_junit()?.as_bytes())?;
    }
    if let Some(path) = &arguments.html {
        write(path, html(&reports).as_bytes())?;
    }
    if arguments.html.is_none() && arguments.junit.is_none() {
        for report in &reports {
            println!("{report}");
        }
    }
    Ok(reports
        .iter()
        .all(|report| report.unexpected().count() == 0))
}

/// Prints the cases with different verdicts. Returns true if there are none.
pub(super) fn compare(files: &[PathBuf]) -> Result<bool, Failure> {
    let [before, after] = files else {
        return Err("two files are compared".into());
    };
    let (before, after) = (read(before)?, read(after)?);
    let differences = diff(&before, &after);
    for difference in &differences {
        println!("{difference}");
    }
    println!(
        "{} of {} and {} of {}: {} cases differ",
        before.title(),
        before.entries.len(),
        after.title(),
        after.entries.len(),
        differences.len()
    );
    Ok(differences.is_empty())
}
