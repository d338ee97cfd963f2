//! The contents of the tree that packages are made of: its files, their sizes, and the libraries
//! that they need.

use std::{collections::BTreeSet, fs, path::Path, process::Command};

use super::{Plan, at, files_below, output, tree::binaries};

/// The files of the tree, a line each.
const FILES: &str = include_str!("files.txt");

/// The length that libibverbs stays below, in bytes.
const MAX_LIBRARY: u64 = 4_000_000;

/// The length that an image stays below, in bytes.
pub(super) const MAX_IMAGE: u64 = 30_000_000;

/// The libraries of the C library and of the compiler, which every system has. Others would have to
/// be installed first.
const OF_THE_SYSTEM: [&str; 8] = [
    "ld-linux-aarch64.so.1",
    "ld-linux-x86-64.so.2",
    "libc.so.6",
    "libdl.so.2",
    "libgcc_s.so.1",
    "libm.so.6",
    "libpthread.so.0",
    "librt.so.1",
];

/// Checks the tree.
///
/// # Errors
/// The files that are missing or unexpected, or a file that needs a library of another project.
pub(super) fn check(plan: &Plan) -> Result<(), String> {
    let tree = plan.tree();
    compare(&files_below(&tree)?)?;
    for file in binaries(&tree)? {
        let text = output(
            Command::new("readelf")
                .args(["--dynamic", "--wide"])
                .arg(&file),
        )?;
        if let Some(library) = foreign(&text) {
            return Err(format!(
                "{} needs {library}, which a system may lack",
                file.display()
            ));
        }
    }
    Ok(())
}

/// Returns an error if libibverbs is too large. That of a build in CI is, because it is optimised
/// less.
pub(super) fn check_length(plan: &Plan) -> Result<(), String> {
    below(&plan.tree().join("lib/rocade/libibverbs.so.1"), MAX_LIBRARY)
}

/// Returns an error unless the file is shorter than `max` bytes.
pub(super) fn below(file: &Path, max: u64) -> Result<(), String> {
    let len = fs::metadata(file).map_err(at(file))?.len();
    if len < max {
        return Ok(());
    }
    Err(format!(
        "{} has {len} bytes, and its limit is {max}",
        file.display()
    ))
}

/// Compares names of files with the list.
fn compare(found: &[String]) -> Result<(), String> {
    let found: BTreeSet<&str> = found.iter().map(String::as_str).collect();
    let listed: BTreeSet<&str> = FILES.lines().collect();
    let missing = listed
        .difference(&found)
        .map(|file| format!("lacks {file}"));
    let other = found
        .difference(&listed)
        .map(|file| format!("has {file}, which is not in tests/xtask/src/dist/files.txt"));
    let all: Vec<String> = missing.chain(other).collect();
    match all.is_empty() {
        true => Ok(()),
        false => Err(format!("the tree {}", all.join("; it "))),
    }
}

/// Returns the first library in the output of readelf that is neither of the system nor listed.
fn foreign(text: &str) -> Option<&str> {
    let needed = text.lines().filter(|line| line.contains("(NEEDED)"));
    let mut names = needed.filter_map(|line| line.split_once('[')?.1.split(']').next());
    names.find(|name| !OF_THE_SYSTEM.contains(name) && !is_own(name))
}

fn is_own(name: &str) -> bool {
    let file = format!("lib/rocade/{name}");
    FILES.lines().any(|line| line == file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_sorted_and_differences_are_named() {
        let mut files: Vec<String> = FILES.lines().map(str::to_owned).collect();
        assert!(files.is_sorted());
        assert!(compare(&files).is_ok());
        let first = files.remove(0);
        files.push("lib/rocade/libother.so.1".to_owned());
        let error = compare(&files).unwrap_err();
        assert!(error.contains(&format!("lacks {first}")), "{error}");
        assert!(error.contains("libother.so.1"), "{error}");
    }

    #[test]
    fn a_library_of_another_project_is_found() {
        let line = |name: &str| format!(" 0x1 (NEEDED)             Shared library: [{name}]\n");
        let good = line("libc.so.6") + &line("libibverbs.so.1") + " 0xe (SONAME) [libother.so]\n";
        assert_eq!(foreign(&good), None);
        assert_eq!(
            foreign(&(good + &line("libnl-3.so.200"))),
            Some("libnl-3.so.200")
        );
    }

    #[test]
    fn a_file_has_a_limit() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, [0; 100]).unwrap();
        assert!(below(&file, 101).is_ok());
        let error = below(&file, 100).unwrap_err();
        assert!(error.contains("100 bytes"), "{error}");
    }
}
