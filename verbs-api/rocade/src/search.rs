//! Finds the libraries that a program would load in place of Rocade's.
//!
//! The dynamic linker searches `DT_RPATH`, then `LD_LIBRARY_PATH` with Rocade's directory, then
//! `DT_RUNPATH`, then the directories of the system. A program that drops or replaces the variable,
//! or that loads an absolute path, gets a library of the other places.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use rocade_sysfs_view::Replacement;

use crate::elf::Elf;
use crate::libdir::{self, LIBRARIES, PRELOAD_LIBRARY};
use crate::loading::library_of_copy;

/// The library that Rocade replaces.
pub(crate) const VERBS: &str = "libibverbs.so.1";

/// The maximum number of libraries of a program that are examined.
const MAX_OBJECTS: usize = 256;

/// The C library of programs that can load Rocade.
const LIBC: &str = "libc.so.6";

/// A directory that a program or one of its libraries searches by its own entry.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct OwnDirectory {
    /// The directory.
    pub(crate) dir: PathBuf,
    /// The program or library with the entry.
    pub(crate) of: PathBuf,
    /// True for `DT_RPATH`, which precedes `LD_LIBRARY_PATH`.
    pub(crate) is_first: bool,
    /// True if the file is linked with a library that Rocade replaces.
    pub(crate) needs_verbs: bool,
}

/// Returns the directories of a program and of the libraries that it is linked with.
pub(crate) fn own_directories(program: &Path) -> BTreeSet<OwnDirectory> {
    let system = system_directories();
    let variable = search_path("LD_LIBRARY_PATH");
    let mut found = BTreeSet::new();
    let mut known: BTreeSet<PathBuf> = BTreeSet::new();
    let mut queue = VecDeque::from([program.to_owned()]);
    while let Some(file) = queue.pop_front().filter(|_| known.len() < MAX_OBJECTS) {
        let Ok(file) = fs::canonicalize(file) else {
            continue;
        };
        if !known.insert(file.clone()) {
            continue;
        }
        let Some(elf) = Elf::read(&file) else {
            continue;
        };
        let needs_verbs = elf.needed.iter().any(|name| is_verbs(name));
        let (entry, is_first) = match (&elf.runpath, &elf.rpath) {
            (Some(runpath), _) => (Some(runpath), false),
            (None, rpath) => (rpath.as_ref(), true),
        };
        let dirs = entry.map_or_else(Vec::new, |entry| expand(entry, &file));
        for name in &elf.needed {
            let places = dirs.iter().chain(&variable).chain(&system);
            let mut places = places.map(|dir| dir.join(name));
            queue.extend(places.find(|path| path.is_file()));
        }
        found.extend(dirs.into_iter().map(|dir| OwnDirectory {
            dir,
            of: file.clone(),
            is_first,
            needs_verbs,
        }));
    }
    found
}

/// Returns true for a name of a library that Rocade replaces.
pub(crate) fn is_ours(name: &str) -> bool {
    let file = name.rsplit('/').next().unwrap_or(name);
    LIBRARIES
        .iter()
        .any(|library| libdir::names(library).iter().any(|own| own == file))
}

/// Returns true for a library that Rocade replaces, also under the name that a wheel gives it.
pub(crate) fn is_verbs(name: &str) -> bool {
    is_ours(name) || library_of_copy(name).is_some()
}

/// Returns the directories of an entry of this file.
pub(crate) fn expand(entry: &str, file: &Path) -> Vec<PathBuf> {
    let origin = file.parent().unwrap_or_else(|| Path::new("/"));
    let origin = origin.to_string_lossy();
    entry
        .split(':')
        .map(|dir| {
            dir.replace("${ORIGIN}", &origin)
                .replace("$ORIGIN", &origin)
        })
        .filter(|dir| dir.starts_with('/'))
        .map(PathBuf::from)
        .collect()
}

/// Returns the files with other implementations of Rocade's libraries. Searches `own` (the
/// directories of programs), those of `LD_LIBRARY_PATH` and of the system, and `lib` beside each
/// directory of `PATH`. `ours` is Rocade's directory.
pub(crate) fn other_libraries(
    ours: &Path,
    own: impl IntoIterator<Item = PathBuf>,
) -> Vec<Replacement> {
    let mut bundles: Vec<PathBuf> = own.into_iter().collect();
    bundles.extend(search_path("LD_LIBRARY_PATH"));
    let mut dirs = Vec::new();
    dirs.extend(bundles.iter().cloned());
    dirs.extend(system_directories());
    for dir in search_path("PATH") {
        let libraries = ["../lib", "../lib64"].map(|lib| dir.join(lib));
        dirs.extend(libraries.into_iter().flat_map(with_triplet));
    }
    let mut files: BTreeMap<PathBuf, &str> = BTreeMap::new();
    for library in LIBRARIES {
        let names = libdir::names(library);
        for (dir, name) in dirs
            .iter()
            .flat_map(|dir| names.iter().map(move |n| (dir, n)))
        {
            files.extend(
                fs::canonicalize(dir.join(name))
                    .ok()
                    .map(|file| (file, library)),
            );
        }
    }
    for dir in &bundles {
        files.extend(bundled(dir));
    }
    let Some(own) = Elf::read(Path::new("/proc/self/exe")) else {
        return Vec::new();
    };
    let replacement = |(file, library): (PathBuf, &str)| {
        let elf = Elf::read(&file)?;
        let fits = (elf.bits, elf.machine) == (own.bits, own.machine)
            && elf.needed.iter().any(|name| name == LIBC);
        let by = fs::canonicalize(ours.join(format!("{library}.so.1"))).ok()?;
        (fits && !is_rocade(&file)).then_some(Replacement { file, by })
    };
    files.into_iter().filter_map(replacement).collect()
}

/// Returns true for a library of this or another build of Rocade.
pub(crate) fn is_rocade(library: &Path) -> bool {
    library.with_file_name(PRELOAD_LIBRARY).is_file()
}

/// Returns the files of Rocade's libraries in a directory. In Python's wheels their names have a
/// checksum: `libibverbs-0a1b2c3d.so.1.14.44.0`.
pub(crate) fn bundled(dir: &Path) -> Vec<(PathBuf, &'static str)> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let found = entries.filter_map(|entry| {
        let name = entry.file_name();
        let name = name.to_str()?;
        let has_version = |library: &&&str| {
            let rest = name.strip_prefix(**library);
            rest.is_some_and(|rest| rest.starts_with(".so"))
        };
        let library = ["libibverbs", "librdmacm"].iter().find(has_version);
        let library = library.copied().or_else(|| library_of_copy(name))?;
        Some((fs::canonicalize(entry.path()).ok()?, library))
    });
    found.collect()
}

/// Returns the directories of packages with a libibverbs of their own, among those that a Python
/// interpreter imports from. `programs` are its paths, as it is called and without links.
pub(crate) fn wheel_directories(programs: &[&Path]) -> BTreeSet<PathBuf> {
    let mut places: BTreeSet<PathBuf> = search_path("PYTHONPATH").into_iter().collect();
    let prefixes = programs
        .iter()
        .filter_map(|program| program.parent()?.parent());
    let home = std::env::var_os("HOME").map(|home| Path::new(&home).join(".local"));
    let mut prefixes: BTreeSet<PathBuf> = prefixes.map(Path::to_owned).chain(home).collect();
    if prefixes.contains(Path::new("/usr")) {
        prefixes.insert("/usr/local".into());
    }
    for lib in prefixes
        .iter()
        .flat_map(|prefix| ["lib", "lib64"].map(|lib| prefix.join(lib)))
    {
        let versions = fs::read_dir(lib).into_iter().flatten().flatten();
        let is_python = |name: &OsStr| name.to_string_lossy().starts_with("python3");
        let versions = versions.filter(|entry| is_python(&entry.file_name()));
        let packages = ["site-packages", "dist-packages"];
        places.extend(versions.flat_map(|entry| packages.map(|name| entry.path().join(name))));
    }
    let entries = places.iter().filter_map(|place| fs::read_dir(place).ok());
    let dirs = entries.flatten().flatten().map(|entry| entry.path());
    let libs = dirs.filter(|dir| dir.extension() == Some(OsStr::new("libs")));
    libs.filter(|dir| !copies(dir).is_empty()).collect()
}

/// Returns the files in a directory that are a libibverbs with a checksum in the name.
pub(crate) fn copies(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let is_copy = |path: &PathBuf| {
        let name = path.file_name().and_then(OsStr::to_str);
        name.is_some_and(|name| library_of_copy(name) == Some("libibverbs"))
    };
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_copy).collect();
    found.sort();
    found
}

/// Returns the directories that the dynamic linker searches last.
fn system_directories() -> Vec<PathBuf> {
    let usual = ["/lib", "/lib64", "/usr/lib", "/usr/lib64"].map(PathBuf::from);
    let local = ["/usr/local/lib", "/usr/local/lib64"].map(PathBuf::from);
    let mut dirs: Vec<PathBuf> = usual
        .into_iter()
        .chain(local)
        .flat_map(with_triplet)
        .collect();
    let files = fs::read_dir("/etc/ld.so.conf.d").into_iter().flatten();
    let files = files.flatten().map(|entry| entry.path());
    for file in files.chain(["/etc/ld.so.conf".into()]) {
        let text = fs::read_to_string(file).unwrap_or_default();
        let lines = text.lines().map(str::trim);
        dirs.extend(
            lines
                .filter(|line| line.starts_with('/'))
                .map(PathBuf::from),
        );
    }
    dirs
}

/// Returns a directory of libraries, and that for this processor in it.
fn with_triplet(dir: PathBuf) -> [PathBuf; 2] {
    let triplet = dir.join(format!("{}-linux-gnu", std::env::consts::ARCH));
    [triplet, dir]
}

/// Returns the absolute directories of a variable.
fn search_path(name: &str) -> Vec<PathBuf> {
    let value = std::env::var_os(name).unwrap_or_default();
    std::env::split_paths(&value)
        .filter(|dir| dir.is_absolute())
        .collect()
}

/// Returns the file that a shell would execute for this word.
pub(crate) fn in_path(word: &OsStr) -> Option<PathBuf> {
    let path = Path::new(word);
    if path.components().count() > 1 || path.is_absolute() {
        return Some(path.to_owned());
    }
    search_path("PATH")
        .into_iter()
        .map(|dir| dir.join(path))
        .find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_relative_to_their_file() {
        let file = Path::new("/opt/x/bin/prog");
        assert_eq!(
            expand("$ORIGIN/../lib:${ORIGIN}:/a::relative", file),
            ["/opt/x/bin/../lib", "/opt/x/bin", "/a"].map(PathBuf::from)
        );
    }

    #[test]
    fn libraries_of_other_machines_and_of_rocade_stay() {
        let dir = tempfile::tempdir().unwrap();
        let (ours, theirs) = (dir.path().join("ours"), dir.path().join("theirs"));
        for place in [&ours, &theirs] {
            fs::create_dir(place).unwrap();
        }
        fs::write(ours.join(VERBS), "").unwrap();
        let found = || {
            let all = other_libraries(&ours, [theirs.clone()]);
            let in_theirs = |one: &Replacement| one.file.starts_with(&theirs);
            all.into_iter().filter(in_theirs).count()
        };
        fs::write(theirs.join(VERBS), "no library").unwrap();
        assert_eq!(found(), 0);
        let own = fs::read(std::env::current_exe().unwrap()).unwrap();
        fs::write(theirs.join(VERBS), &own).unwrap();
        assert_eq!(found(), 1, "a file of this machine for its C library");
        let mut foreign = own;
        foreign[18] = 40;
        fs::write(theirs.join(VERBS), &foreign).unwrap();
        assert_eq!(found(), 0, "for another processor");
    }

    #[test]
    fn wheels_have_names_with_a_checksum() {
        let dir = tempfile::tempdir().unwrap();
        for name in [
            "libibverbs-0a1b.so.1.14.44.0",
            "libmlx5-rdmav34.so",
            "libibverbsx.so.1",
            "libibverbs-notes.txt",
        ] {
            fs::write(dir.path().join(name), "").unwrap();
        }
        let found = bundled(dir.path());
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].1, "libibverbs");
        assert_eq!(copies(dir.path()).len(), 1);
    }

    #[test]
    fn packages_of_an_interpreter_are_found_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let python = dir.path().join("bin/python3");
        let packages = dir.path().join("lib/python3.11/site-packages");
        let with = packages.join("engine.libs");
        for place in [
            &with,
            &packages.join("numpy.libs"),
            &packages.join("engine"),
        ] {
            fs::create_dir_all(place).unwrap();
        }
        let ours = |found: BTreeSet<PathBuf>| {
            let is_here = |one: &PathBuf| one.starts_with(dir.path());
            found.into_iter().filter(is_here).collect::<Vec<_>>()
        };
        assert!(ours(wheel_directories(&[&python])).is_empty());
        fs::write(with.join("libibverbs-0a1b2c3d.so.1.14.44.0"), "").unwrap();
        assert_eq!(ours(wheel_directories(&[&python])), [with]);
    }
}
