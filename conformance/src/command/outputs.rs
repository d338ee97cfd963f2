//! The files that a run writes.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use rocade_conformance::{
    Report,
    report::{CaseResultEntry, Journal, html},
    rig::capture,
    rules,
    runner::Finished,
};

use super::{Failure, RunArguments};

/// The files that were requested.
#[derive(Debug)]
pub(super) struct Outputs {
    json: Option<PathBuf>,
    junit: Option<PathBuf>,
    html: Option<PathBuf>,
    packets: Option<PathBuf>,
    journal: Option<Journal>,
}

impl Outputs {
    /// Creates the file of results. With `--resume`, its results are added to the report.
    pub(super) fn open(arguments: &RunArguments, report: &mut Report) -> Result<Self, Failure> {
        let out = arguments.out.as_deref();
        let file = |own: &Option<PathBuf>, name: &str| {
            own.clone().or_else(|| out.map(|out| out.join(name)))
        };
        let json = file(&arguments.json, "results.json");
        let packets = file(&arguments.packets, "packets");
        for directory in [out, packets.as_deref()].into_iter().flatten() {
            fs::create_dir_all(directory).map_err(|error| in_file(directory, &error))?;
        }
        if arguments.resume {
            let Some(json) = &json else {
                return Err("--resume needs --json or --out".into());
            };
            resume(json, report)?;
        }
        let journal = json.as_deref().map(|json| Journal::create(json, report));
        Ok(Self {
            journal: journal.transpose()?,
            junit: file(&arguments.junit, "junit.xml"),
            html: file(&arguments.html, "report.html"),
            packets,
            json,
        })
    }

    /// Saves the result of a case.
    pub(super) fn add(&mut self, finished: &Finished) -> Result<(), Failure> {
        if let Some(journal) = &mut self.journal {
            journal.append(&finished.entry)?;
        }
        let Some(directory) = &self.packets else {
            return Ok(());
        };
        if !finished.frames.is_empty() {
            let name = finished.entry.case.replace('/', "-");
            let path = directory.join(format!("{name}.pcapng"));
            let bytes = capture(&finished.frames, &comment(&finished.entry))?;
            write(&path, &bytes)?;
        }
        Ok(())
    }

    /// Saves the reason why the run ended before its last case.
    pub(super) fn end_early(&mut self, why: &str) -> io::Result<()> {
        self.journal
            .as_mut()
            .map_or(Ok(()), |journal| journal.end_early(why))
    }

    /// Writes the files that contain all results.
    pub(super) fn finish(&self, report: &Report) -> Result<(), Failure> {
        if let Some(path) = &self.junit {
            write(path, report.to_junit()?.as_bytes())?;
        }
        if let Some(path) = &self.html {
            write(path, html(std::slice::from_ref(report)).as_bytes())?;
            eprintln!("the report is in {}", path.display());
        }
        Ok(())
    }

    /// Returns the file with which `--resume` can go on.
    pub(super) fn resumable(&self) -> Option<&Path> {
        self.json.as_deref()
    }
}

/// Adds the results in a file to the report. A file that does not exist has none.
fn resume(json: &Path, report: &mut Report) -> Result<(), Failure> {
    let text = match fs::read_to_string(json) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        text => text.map_err(|error| in_file(json, &error))?,
    };
    let before =
        Report::from_json(&text).map_err(|error| format!("{}: {error}", json.display()))?;
    if before.title() != report.title() {
        return Err(format!(
            "{}: the results are of {}, not of {}",
            json.display(),
            before.title(),
            report.title()
        )
        .into());
    }
    eprintln!("{} results are there", before.entries.len());
    report.merge(before);
    Ok(())
}

/// Returns the comment of a capture: the verdict, the reason and the rules.
fn comment(entry: &CaseResultEntry) -> String {
    let mut lines = vec![format!(
        "{}: {:?} {}",
        entry.case,
        entry.verdict,
        entry.explanation()
    )];
    let rules = entry.rules().filter_map(rules::find);
    lines.extend(rules.map(|rule| format!("{}: {}", rule.id, rule.statement)));
    lines.join("\n")
}

pub(super) fn write(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    fs::write(path, bytes).map_err(|error| in_file(path, &error).into())
}

fn in_file(path: &Path, error: &io::Error) -> String {
    format!("{}: {error}", path.display())
}
