//! The file of results, which is complete JSON after every case.

use std::{
    fs::{self, File},
    io::{self, Seek as _, SeekFrom, Write as _},
    path::{Path, PathBuf},
};

use serde_json::json;

use super::{CaseResultEntry, Report};

/// A file in JSON to which results are appended. Since each result overwrites the end of the
/// document and writes it anew, a run that is interrupted leaves a readable report.
#[derive(Debug)]
pub struct Journal {
    file: File,
    path: PathBuf,
    /// The position behind the last result.
    end: u64,
    is_empty: bool,
}

impl Journal {
    /// Creates or replaces the file, with the results in `report` so far.
    ///
    /// # Errors
    /// Those of the file system, with the path.
    pub fn create(path: &Path, report: &Report) -> io::Result<Self> {
        Self::replace(path, report).map_err(|error| at(path, &error))
    }

    fn replace(path: &Path, report: &Report) -> io::Result<Self> {
        // An older report stays until the new file is complete.
        let mut new = path.as_os_str().to_owned();
        new.push(".new");
        let head = json!({"peer": report.peer, "device": report.device});
        let head = head.to_string();
        let head = head.strip_suffix('}').unwrap_or(&head);
        let head = format!("{head},\n\"entries\":[");
        let mut journal = Self {
            file: File::create(&new)?,
            path: path.to_owned(),
            end: head.len() as u64,
            is_empty: true,
        };
        journal.file.write_all(head.as_bytes())?;
        journal.file.write_all(b"\n]}\n")?;
        for entry in &report.entries {
            journal.write(entry)?;
        }
        fs::rename(&new, path)?;
        Ok(journal)
    }

    /// Appends a result.
    ///
    /// # Errors
    /// Those of the file system, with the path.
    pub fn append(&mut self, entry: &CaseResultEntry) -> io::Result<()> {
        self.write(entry).map_err(|error| at(&self.path, &error))
    }

    fn write(&mut self, entry: &CaseResultEntry) -> io::Result<()> {
        let separator = if self.is_empty { "\n" } else { ",\n" };
        let entry = format!("{separator}{}", serde_json::to_string(entry)?);
        // One write, so that an interruption leaves the old or the new document.
        self.file.seek(SeekFrom::Start(self.end))?;
        self.file.write_all(format!("{entry}\n]}}\n").as_bytes())?;
        self.end += entry.len() as u64;
        self.is_empty = false;
        Ok(())
    }

    /// Adds the reason why the run ended before its last case.
    ///
    /// # Errors
    /// Those of the file system, with the path.
    pub fn end_early(&mut self, why: &str) -> io::Result<()> {
        let tail = format!("\n],\n\"lost\":{}}}\n", json!(why));
        let written = self.file.seek(SeekFrom::Start(self.end));
        let written = written.and_then(|_| self.file.write_all(tail.as_bytes()));
        written.map_err(|error| at(&self.path, &error))
    }
}

fn at(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{Case, Outcome, case::CaseRun, expectations::Expected};

    fn entry(slug: &'static str) -> CaseResultEntry {
        let run = CaseRun {
            case: Case::responder("A-1", slug, |_| Ok(())),
            outcome: Outcome::Passed,
            duration: Duration::from_millis(3),
            frames: Vec::new(),
            is_lost: false,
        };
        CaseResultEntry::new(run, &Expected::Pass)
    }

    #[test]
    fn the_file_is_a_report_after_each_step() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("results.json");
        let read = || Report::from_json(&fs::read_to_string(&path).unwrap()).unwrap();
        let mut report = Report::new("device");
        report.device.kernel = "6.1".to_owned();
        let mut journal = Journal::create(&path, &report).unwrap();
        assert_eq!(read(), report);
        for slug in ["x", "y"] {
            journal.append(&entry(slug)).unwrap();
            report.push(entry(slug));
            assert_eq!(read(), report);
        }
        journal.end_early("the agent \"ended\"").unwrap();
        report.lost = Some("the agent \"ended\"".to_owned());
        assert_eq!(read(), report);
        // A run that goes on begins with these results, and without the reason.
        report.lost = None;
        let mut journal = Journal::create(&path, &report).unwrap();
        journal.append(&entry("z")).unwrap();
        report.push(entry("z"));
        assert_eq!(read(), report);
    }

    #[test]
    fn an_error_names_the_file() {
        let path = Path::new("/proc/none/results.json");
        let error = Journal::create(path, &Report::new("device")).unwrap_err();
        assert!(error.to_string().starts_with("/proc/none/results.json: "));
    }
}
