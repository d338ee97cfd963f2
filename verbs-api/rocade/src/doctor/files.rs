//! `rocade doctor FILE|DIR`: files that would not use Rocade, in directories and wheels.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};

use super::wheel::{self, Wheel};
use super::{Check, Status};
use crate::elf::Elf;
use crate::error::CliError;
use crate::loading::{self, Way};
use crate::program::PRELOAD_ADVICE;
use crate::search::{self, VERBS};

/// The maximum size in bytes of a file whose content is read. Of larger ones, only the header.
const MAX_CONTENT: u64 = 512 << 20;

const ELF_MAGIC: [u8; 4] = *b"\x7fELF";

/// Examines files, directories and wheels. Files that use no verbs are left out.
///
/// # Errors
/// An error that names a path that cannot be read.
pub(super) fn examine(paths: &[PathBuf]) -> Result<Vec<Check>, CliError> {
    let mut checks = Vec::new();
    for path in paths {
        let mut seen = 0;
        let before = checks.len();
        for file in files_below(path)? {
            seen += 1;
            checks.extend(checks_of(&file));
        }
        if checks.len() == before {
            let name = path.display().to_string();
            checks.push(Check::ok(&name, format!("uses no verbs ({seen} files)")));
        }
    }
    Ok(checks)
}

/// Returns a file itself, or all files below a directory. Follows no links to directories.
fn files_below(path: &Path) -> Result<Vec<PathBuf>, CliError> {
    let failed =
        |path: &Path, error: std::io::Error| CliError::new(format!("{}: {error}", path.display()));
    let meta = fs::metadata(path).map_err(|error| failed(path, error))?;
    if !meta.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut dirs = vec![path.to_owned()];
    let mut files = Vec::new();
    while let Some(dir) = dirs.pop() {
        let entries = fs::read_dir(&dir).map_err(|error| failed(&dir, error))?;
        for entry in entries.flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => dirs.push(entry.path()),
                Ok(kind) if kind.is_file() => files.push(entry.path()),
                _ => {}
            }
        }
    }
    files.sort();
    Ok(files)
}

fn checks_of(file: &Path) -> Vec<Check> {
    let name = file.display().to_string();
    if wheel::is_wheel(file) {
        return checks_of_wheel(file, &name);
    }
    let mut magic = [0; 4];
    let opened = File::open(file).and_then(|mut file| file.read_exact(&mut magic));
    if opened.is_err() || magic != ELF_MAGIC {
        return Vec::new();
    }
    let Some(elf) = Elf::read(file) else {
        return Vec::new();
    };
    let is_small = fs::metadata(file).is_ok_and(|meta| meta.len() <= MAX_CONTENT);
    let content = if is_small {
        fs::read(file).unwrap_or_default()
    } else {
        Vec::new()
    };
    let ways = loading::ways(&file_name(&name), &elf, &content);
    judge(&name, &ways, Some(file)).into_iter().collect()
}

fn checks_of_wheel(file: &Path, name: &str) -> Vec<Check> {
    let wheel = match Wheel::open(file) {
        Ok(wheel) => wheel,
        Err(error) => {
            let finding = format!("cannot be read: {error}");
            return vec![Check::new(name, Status::Warning, finding)];
        }
    };
    let mut checks = Vec::new();
    for member in wheel.members() {
        let shown = format!("{name}: {}", member.name);
        match wheel.read(member, &ELF_MAGIC) {
            Ok(Some(content)) => {
                let elf = Elf::parse(&content).unwrap_or_default();
                let ways = loading::ways(&file_name(&member.name), &elf, &content);
                checks.extend(judge(&shown, &ways, None));
            }
            Ok(None) => {}
            Err(error) => {
                let finding = format!("cannot be read: {error}");
                checks.push(Check::new(shown, Status::Warning, finding));
            }
        }
    }
    checks
}

fn file_name(name: &str) -> String {
    name.rsplit('/').next().unwrap_or(name).to_owned()
}

/// Returns a check for the ways of a file, the worst first. `file` is its path outside of a wheel.
fn judge(name: &str, ways: &BTreeSet<Way>, file: Option<&Path>) -> Option<Check> {
    let mut found: Vec<(Status, String, String)> = ways
        .iter()
        .filter_map(|way| opinion(name, way, ways, file))
        .collect();
    found.sort_by_key(|one| std::cmp::Reverse(one.0));
    let status = found.first()?.0;
    let worst = found.iter().filter(|one| one.0 == status);
    let (mut findings, mut advice) = (Vec::new(), BTreeSet::new());
    for (_, finding, remedy) in worst {
        findings.push(finding.clone());
        advice.extend(remedy.lines().map(str::to_owned));
    }
    let advice: Vec<String> = advice.into_iter().collect();
    Some(Check::new(name, status, findings.join(", ")).advise(advice.join("\n")))
}

/// Returns the status, the finding and the remedy of one of the ways of a file.
fn opinion(
    name: &str,
    way: &Way,
    ways: &BTreeSet<Way>,
    file: Option<&Path>,
) -> Option<(Status, String, String)> {
    let warning = |finding: String, advice: String| Some((Status::Warning, finding, advice));
    match way {
        Way::Static => Some((
            Status::Problem,
            "is statically linked, with a libibverbs inside".to_owned(),
            "link it dynamically".to_owned(),
        )),
        Way::Inside => Some((
            Status::Problem,
            "has a libibverbs inside and loads no other".to_owned(),
            "use a build that is linked with libibverbs.so.1".to_owned(),
        )),
        Way::Copy => {
            let library = loading::library_of_copy(name).unwrap_or("libibverbs");
            let dir = file.and_then(Path::parent).map(Path::to_owned);
            warning(format!("is another {library}"), replacing(dir.as_deref()))
        }
        // The line of the copy says it.
        Way::NeedsCopy(_) if ways.contains(&Way::Copy) => None,
        Way::NeedsCopy(copy) => {
            let dir = directories(ways, file).find(|dir| dir.join(copy).is_file());
            let finding = format!("is linked with its own copy, {copy}");
            warning(finding, replacing(dir.as_deref()))
        }
        Way::NeedsPath(path) => {
            warning(format!("is linked with {path}"), PRELOAD_ADVICE.to_owned())
        }
        Way::Rpath(_) => {
            let found = library_in(ways, file)?;
            let finding = format!("searches {} before Rocade's (DT_RPATH)", found.display());
            warning(finding, replacing(Some(&found)))
        }
        Way::Opens(path) => warning(
            format!("opens {path}"),
            format!(
                "`rocade run` puts Rocade's in its place (view by mounts)\n\
                 without mounts: {PRELOAD_ADVICE}"
            ),
        ),
        Way::Namespace => warning(
            "loads libibverbs by dlmopen, which makes a second Rocade in the process".to_owned(),
            "use dlopen, or pass no object of verbs from one to the other".to_owned(),
        ),
        Way::Runpath(_) => {
            let found = library_in(ways, file)?;
            let finding = format!("searches {} after Rocade's (DT_RUNPATH)", found.display());
            Some((Status::Ok, finding, String::new()))
        }
        Way::Usual => Some((Status::Ok, "loads it by its name".to_owned(), String::new())),
    }
}

/// Returns the remedy for a library that a view by mounts replaces, in this directory.
fn replacing(dir: Option<&Path>) -> String {
    let begin = dir.map_or_else(
        || "`rocade run -- python3 ...`".to_owned(),
        |dir| format!("LD_LIBRARY_PATH={} rocade run -- CMD...", dir.display()),
    );
    format!("{begin} puts Rocade's in its place (view by mounts)\nwithout mounts: {PRELOAD_ADVICE}")
}

/// Returns the directories that a file searches by its own entry. Those of a file in a wheel are
/// unknown.
fn directories(ways: &BTreeSet<Way>, file: Option<&Path>) -> impl Iterator<Item = PathBuf> {
    let file = file.and_then(|file| fs::canonicalize(file).ok());
    let entries = ways.iter().filter_map(|way| match way {
        Way::Rpath(dirs) | Way::Runpath(dirs) => Some(dirs),
        _ => None,
    });
    let found = file.map(|file| {
        entries
            .flat_map(|dirs| search::expand(dirs, &file))
            .collect()
    });
    let found: Vec<PathBuf> = found.unwrap_or_default();
    found.into_iter()
}

/// Returns the first of these directories with a libibverbs that is not Rocade's.
fn library_in(ways: &BTreeSet<Way>, file: Option<&Path>) -> Option<PathBuf> {
    let mut found = directories(ways, file).filter(|dir| dir.join(VERBS).is_file());
    found.find(|dir| !search::is_rocade(&dir.join(VERBS)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(ways: &[Way]) -> (Status, String, String) {
        let ways = ways.iter().cloned().collect();
        let check = judge("x", &ways, None).unwrap();
        (check.status, check.finding, check.advice)
    }

    #[test]
    fn the_worst_way_decides() {
        let (status, finding, _) = judged(&[Way::Usual, Way::Opens("/a/libibverbs.so".into())]);
        assert_eq!(status, Status::Warning);
        assert_eq!(finding, "opens /a/libibverbs.so");
        let (status, ..) = judged(&[Way::Static, Way::Copy]);
        assert_eq!(status, Status::Problem);
        assert_eq!(judged(&[Way::Usual]).0, Status::Ok);
        assert!(judge("x", &BTreeSet::new(), None).is_none());
    }

    #[test]
    fn a_search_path_matters_if_it_finds_a_library() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("prog");
        fs::write(&file, "").unwrap();
        let ways = BTreeSet::from([Way::Rpath("$ORIGIN".to_owned()), Way::Usual]);
        let check = judge("prog", &ways, Some(&file)).unwrap();
        assert_eq!(check.status, Status::Ok);
        fs::write(dir.path().join(VERBS), "").unwrap();
        let check = judge("prog", &ways, Some(&file)).unwrap();
        assert_eq!(check.status, Status::Warning);
        assert!(check.advice.contains("LD_LIBRARY_PATH="), "{check:?}");
        // That of Rocade is no other.
        fs::write(dir.path().join(crate::libdir::PRELOAD_LIBRARY), "").unwrap();
        let check = judge("prog", &ways, Some(&file)).unwrap();
        assert_eq!(check.status, Status::Ok);
    }
}
