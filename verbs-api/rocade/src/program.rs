//! Checks whether a program will load Rocade, because `LD_LIBRARY_PATH` does not affect every
//! program.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::elf::Elf;
use crate::loading::{VERBS_CLASS, contains, names_inside};
use crate::search::{self, OwnDirectory, VERBS};
use crate::sysfs_view::Shown;

/// The mode bits set-user-ID and set-group-ID.
const SET_UID: u32 = 0o4000;
const SET_GID: u32 = 0o2000;

/// The number of nested scripts that the kernel follows: a script's interpreter may be a script.
const MAX_SCRIPTS: usize = 4;

/// The maximum number of words of the command line that are examined as programs.
const MAX_WORDS: usize = 64;

/// The maximum size in bytes of a statically linked program that is searched for [`VERBS_CLASS`].
const MAX_STATIC: u64 = 256 << 20;

/// The maximum size in bytes of a program that is searched for paths of libraries.
const MAX_SEARCHED: u64 = 16 << 20;

/// The remedy for a library in a place that Rocade's directory does not precede.
pub(crate) const PRELOAD_ADVICE: &str =
    "put Rocade's first: rocade run -- env LD_PRELOAD=$(rocade libdir)/libibverbs.so.1 CMD...";

/// The reason why a program will not load Rocade, and the remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Obstacle {
    kind: Kind,
    reason: String,
    advice: String,
}

/// The cause of an obstacle.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    /// The program loads this file, which is not Rocade's.
    Library(PathBuf),
    /// The program gains privileges.
    Privileged,
    /// The program is for another C library.
    OtherLibc,
    /// The program loads no library like Rocade's.
    Unable,
}

impl Obstacle {
    fn new(kind: Kind, reason: impl Into<String>, advice: impl Into<String>) -> Self {
        Self {
            kind,
            reason: reason.into(),
            advice: advice.into(),
        }
    }

    /// Returns true if the program uses Rocade despite the obstacle, because of the view.
    fn is_overcome(&self, view: &Shown) -> bool {
        match (&self.kind, view) {
            (Kind::Library(file), Shown::Mounts { replaced, .. }) => replaced.contains(file),
            // Without privileges to gain, the program loads libraries like any other.
            (Kind::Privileged, Shown::Mounts { replaced, as_root }) => {
                !as_root || !replaced.is_empty()
            }
            _ => false,
        }
    }
}

/// The properties of the programs of a command line that decide how they find Rocade.
#[derive(Debug)]
pub(crate) struct Findings {
    obstacles: Vec<(String, Obstacle)>,
    /// The directories that the programs search by their own entries.
    pub(crate) directories: BTreeSet<PathBuf>,
    /// The program itself gains privileges.
    pub(crate) is_privileged: bool,
    /// The program itself is for another C library, and fails to start if it has to load the
    /// preload library.
    pub(crate) is_for_other_libc: bool,
}

impl Findings {
    /// Prints a warning for each program that will not load Rocade with this view.
    pub(crate) fn warn(&self, view: &Shown) {
        for (shown, obstacle) in &self.obstacles {
            if !obstacle.is_overcome(view) {
                let Obstacle { reason, advice, .. } = obstacle;
                eprintln!(
                    "rocade: warning: {shown} {reason}, so it will not use Rocade\n  {advice}"
                );
            }
        }
    }
}

/// Examines a program, and the programs that its arguments name: `sh -c "exec prog"`,
/// `mpirun -n 2 prog`. Of those, programs that use no verbs are left out.
pub(crate) fn examine(program: &Path, arguments: &[OsString]) -> Findings {
    let mut findings = Findings {
        obstacles: Vec::new(),
        directories: BTreeSet::new(),
        is_privileged: false,
        is_for_other_libc: false,
    };
    let Some(loaded) = loaded_file(program) else {
        return findings;
    };
    let found = obstacles(&loaded, &mut findings.directories);
    findings.is_privileged = found.iter().any(|one| one.kind == Kind::Privileged);
    findings.is_for_other_libc = found.iter().any(|one| one.kind == Kind::OtherLibc);
    let mut shown = program.display().to_string();
    if loaded != program {
        shown = format!("{}, which runs {shown},", loaded.display());
    }
    let found = found.into_iter().map(|one| (shown.clone(), one));
    findings.obstacles.extend(found);
    for file in programs_of(arguments) {
        let found = obstacles(&file, &mut findings.directories);
        if file != loaded && uses_verbs(&file) {
            let shown = file.display().to_string();
            let found = found.into_iter().map(|one| (shown.clone(), one));
            findings.obstacles.extend(found);
        }
    }
    findings
}

/// Returns the programs that the arguments name. An argument may be a script for a shell.
fn programs_of(arguments: &[OsString]) -> BTreeSet<PathBuf> {
    let between = |byte: &u8| byte.is_ascii_whitespace() || b";&|()<>\"'`".contains(byte);
    let words = arguments
        .iter()
        .flat_map(|argument| argument.as_bytes().split(between));
    let is_name = |word: &&[u8]| !word.is_empty() && !word.starts_with(b"-");
    let files = words.filter(is_name).take(MAX_WORDS).filter_map(|word| {
        let file = search::in_path(OsStr::from_bytes(word))?;
        let meta = fs::metadata(&file).ok()?;
        (meta.is_file() && meta.mode() & 0o111 != 0).then_some(file)
    });
    files.filter_map(|file| loaded_file(&file)).collect()
}

/// Returns true if a program is linked with a library that Rocade replaces, or contains one.
fn uses_verbs(file: &Path) -> bool {
    let Some(elf) = Elf::read(file) else {
        return false;
    };
    if elf.interpreter.is_some() {
        return elf.needed.iter().any(|name| search::is_verbs(name)) || is_python(file);
    }
    let is_small = fs::metadata(file).is_ok_and(|meta| meta.len() <= MAX_STATIC);
    is_small && fs::read(file).is_ok_and(|bytes| contains(&bytes, VERBS_CLASS))
}

/// Returns true for an interpreter of Python.
fn is_python(file: &Path) -> bool {
    let name = file.file_name().and_then(OsStr::to_str);
    let version = name.and_then(|name| name.strip_prefix("python"));
    version.is_some_and(|version| {
        version
            .bytes()
            .all(|byte| byte == b'.' || byte.is_ascii_digit())
    })
}

/// Returns the file that the kernel loads: the program itself, or the interpreter of a script.
fn loaded_file(program: &Path) -> Option<PathBuf> {
    let mut file = program.to_owned();
    for _ in 0..MAX_SCRIPTS {
        match interpreter_of(&file) {
            Some(interpreter) => file = interpreter,
            None => return Some(file),
        }
    }
    None
}

/// Returns the interpreter in the first line of a script. In place of `env`, returns the program
/// that `env` would run.
fn interpreter_of(file: &Path) -> Option<PathBuf> {
    let mut head = [0; 256];
    let len = File::open(file).ok()?.read(&mut head).ok()?;
    let line = head.get(..len)?.strip_prefix(b"#!")?;
    let line = line.split(|byte| *byte == b'\n').next()?;
    let mut words = line
        .split(|byte| byte.is_ascii_whitespace())
        .filter(|word| !word.is_empty())
        .map(OsStr::from_bytes);
    let interpreter = PathBuf::from(words.next()?);
    if interpreter.file_name() != Some(OsStr::new("env")) {
        return Some(interpreter);
    }
    let is_name = |word: &&OsStr| {
        let bytes = word.as_bytes();
        !bytes.starts_with(b"-") && !bytes.contains(&b'=')
    };
    let name = words.find(is_name)?;
    let path = std::env::var_os("PATH")?;
    let found = std::env::split_paths(&path).map(|dir| dir.join(name));
    found.into_iter().find(|path| path.is_file())
}

/// Returns the reasons why a loaded program would not use Rocade's libraries. Adds the directories
/// that the program searches by its own entries.
fn obstacles(file: &Path, directories: &mut BTreeSet<PathBuf>) -> Vec<Obstacle> {
    let mut found = Vec::new();
    if let Some(elf) = Elf::read(file) {
        let own = Elf::read(Path::new("/proc/self/exe"));
        found.extend(own.and_then(|own| other_kind(&elf, &own)));
        if found.is_empty() {
            let own = search::own_directories(file);
            found.extend(other_library(&elf, file, &own));
            found.extend(opened_paths(&elf, file, directories));
            directories.extend(own.into_iter().map(|one| one.dir));
            if is_python(file) {
                found.extend(packages(file, directories));
            }
        }
    }
    match for_another_user(file) {
        Some(obstacle) => found.push(obstacle),
        None => found.extend(privileged(file)),
    }
    found
}

/// Programs that run another one with the rights of another user, and with an environment of their
/// own.
const FOR_ANOTHER_USER: [&str; 6] = ["sudo", "doas", "pkexec", "run0", "su", "sg"];

/// Returns an obstacle if the program runs another one as another user.
fn for_another_user(file: &Path) -> Option<Obstacle> {
    let name = file.file_name()?.to_str()?;
    // Root keeps its environment with su(1) and sg(1).
    let keeps = ["su", "sg"].contains(&name) && rustix::process::geteuid().is_root();
    (FOR_ANOTHER_USER.contains(&name) && !keeps).then(|| {
        Obstacle::new(
            privileged(file).map_or(Kind::Unable, |one| one.kind),
            "runs programs as another user, without LD_LIBRARY_PATH",
            match name {
                "su" | "sg" => format!("use it outside: {name} -c 'rocade run -- CMD...'"),
                _ => format!("put it in front: {name} rocade run -- CMD..."),
            },
        )
    })
}

/// Returns an obstacle if the program cannot load libraries like Rocade's at all.
fn other_kind(elf: &Elf, own: &Elf) -> Option<Obstacle> {
    let ours = format!("{} ({} bits)", machine_name(own.machine), own.bits);
    if (elf.bits, elf.machine) != (own.bits, own.machine) {
        return Some(Obstacle::new(
            Kind::Unable,
            format!(
                "is a program for {} ({} bits) and Rocade's libraries are for {ours}",
                machine_name(elf.machine),
                elf.bits
            ),
            format!(
                "use a build of the program for {}",
                machine_name(own.machine)
            ),
        ));
    }
    let Some(interpreter) = &elf.interpreter else {
        return Some(Obstacle::new(
            Kind::Unable,
            "is statically linked and loads no libraries",
            "link it dynamically. Programs that it starts will use Rocade",
        ));
    };
    // A program in a directory of its own (Nix, Guix) has the same dynamic linker in another place.
    let name = |path: &str| path.rsplit('/').next().map(str::to_owned);
    let own_interpreter = own.interpreter.as_deref()?;
    (name(interpreter) != name(own_interpreter)).then(|| {
        Obstacle::new(
            Kind::OtherLibc,
            format!("is for another C library ({interpreter}, and Rocade uses {own_interpreter})"),
            "use a build of the program for this system's C library",
        )
    })
}

fn machine_name(machine: u64) -> String {
    match machine {
        3 => "x86".to_owned(),
        40 => "ARM".to_owned(),
        62 => "x86-64".to_owned(),
        183 => "AArch64".to_owned(),
        243 => "RISC-V".to_owned(),
        other => format!("processor type {other}"),
    }
}

/// Returns an obstacle if the program, or a library of it, has another libibverbs in a directory
/// that is searched before `LD_LIBRARY_PATH`.
fn other_library(elf: &Elf, file: &Path, own: &BTreeSet<OwnDirectory>) -> Option<Obstacle> {
    let real = |path: PathBuf| fs::canonicalize(&path).unwrap_or(path);
    let with_path = |name: &&String| name.contains('/') && name.ends_with(VERBS);
    if let Some(name) = elf.needed.iter().find(with_path) {
        let kind = Kind::Library(real(name.into()));
        return Some(Obstacle::new(
            kind,
            format!("is linked with {name}"),
            PRELOAD_ADVICE,
        ));
    }
    let file = real(file.to_owned());
    let copies = own.iter().filter(|one| one.needs_verbs);
    let mut copies = copies.flat_map(|one| search::copies(&one.dir));
    if let Some(copy) = copies.next() {
        let reason = format!("is linked with its own libibverbs ({})", copy.display());
        let kind = Kind::Library(real(copy));
        return Some(Obstacle::new(kind, reason, PRELOAD_ADVICE));
    }
    let mut first = own.iter().filter(|one| one.is_first);
    let found =
        first.find(|one| (one.of == file || one.needs_verbs) && one.dir.join(VERBS).is_file())?;
    let kind = Kind::Library(real(found.dir.join(VERBS)));
    let dir = found.dir.display();
    let searches = format!("searches {dir} first (DT_RPATH), which contains another {VERBS}");
    let reason = if found.of == file {
        searches
    } else {
        format!("loads {}, which {searches}", found.of.display())
    };
    Some(Obstacle::new(kind, reason, PRELOAD_ADVICE))
}

/// Returns an obstacle for each libibverbs that the program opens by its path, unless it also opens
/// the usual name. Adds the directories of these libraries.
fn opened_paths(elf: &Elf, file: &Path, directories: &mut BTreeSet<PathBuf>) -> Vec<Obstacle> {
    let is_small = fs::metadata(file).is_ok_and(|meta| meta.len() <= MAX_SEARCHED);
    if !is_small || !(elf.opens || elf.opens_namespaces) {
        return Vec::new();
    }
    let (paths, has_name) = names_inside(&fs::read(file).unwrap_or_default());
    let paths = paths.into_iter().map(PathBuf::from);
    let there: Vec<PathBuf> = paths.filter(|path| path.is_file()).collect();
    directories.extend(
        there
            .iter()
            .filter_map(|path| path.parent().map(Path::to_owned)),
    );
    if has_name {
        return Vec::new();
    }
    let obstacle = |path: PathBuf| {
        let reason = format!("opens {}", path.display());
        let kind = Kind::Library(fs::canonicalize(&path).unwrap_or(path));
        Obstacle::new(kind, reason, PRELOAD_ADVICE)
    };
    there.into_iter().map(obstacle).collect()
}

/// Returns an obstacle for each package of an interpreter that has its own libibverbs. Adds the
/// directories of these packages.
fn packages(file: &Path, directories: &mut BTreeSet<PathBuf>) -> Vec<Obstacle> {
    let real = fs::canonicalize(file).unwrap_or_else(|_| file.to_owned());
    let found = search::wheel_directories(&[file, &real]);
    let copies: Vec<PathBuf> = found.iter().flat_map(|dir| search::copies(dir)).collect();
    directories.extend(found);
    let obstacle = |copy: PathBuf| {
        let reason = format!("has a package with its own libibverbs ({})", copy.display());
        let kind = Kind::Library(fs::canonicalize(&copy).unwrap_or(copy));
        Obstacle::new(kind, reason, PRELOAD_ADVICE)
    };
    copies.into_iter().map(obstacle).collect()
}

/// Returns an obstacle if the program gains privileges: the dynamic linker ignores the caller's
/// variables then.
fn privileged(file: &Path) -> Option<Obstacle> {
    let meta = fs::metadata(file).ok()?;
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    let gains_user = meta.mode() & SET_UID != 0 && meta.uid() != user.as_raw();
    let gains_group = meta.mode() & SET_GID != 0 && meta.gid() != group.as_raw();
    let advice = "run a copy without these privileges (made by cp), because Rocade needs none";
    if gains_user || gains_group {
        let which = if gains_user { "user" } else { "group" };
        return Some(Obstacle::new(
            Kind::Privileged,
            format!("is set-{which}-ID and ignores LD_LIBRARY_PATH"),
            advice,
        ));
    }
    let has_capabilities =
        rustix::fs::getxattr(file, "security.capability", &mut [0u8; 64]).is_ok();
    (has_capabilities && !user.is_root()).then(|| {
        Obstacle::new(
            Kind::Privileged,
            "has file capabilities and ignores LD_LIBRARY_PATH",
            advice,
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_lead_to_their_interpreter() {
        let dir = tempfile::tempdir().unwrap();
        let script = dir.path().join("script");
        let interpreter = |line: &str| {
            fs::write(&script, line).unwrap();
            loaded_file(&script)
        };
        assert_eq!(interpreter("#!/bin/sh\n"), Some("/bin/sh".into()));
        assert_eq!(interpreter("#! /bin/sh -e"), Some("/bin/sh".into()));
        for line in ["#!/usr/bin/env sh\n", "#!/usr/bin/env -S A=1 sh -e\n"] {
            assert!(interpreter(line).unwrap().ends_with("sh"), "{line}");
        }
        assert_eq!(interpreter("echo"), Some(script.clone()));
        // A script that is its own interpreter.
        let own = format!("#!{}\n", script.display());
        assert_eq!(interpreter(&own), None);
    }

    #[test]
    fn ordinary_programs_see_rocade() {
        let obstacles = |file: &Path| obstacles(file, &mut BTreeSet::new());
        assert_eq!(obstacles(&std::env::current_exe().unwrap()), []);
        assert_eq!(obstacles(Path::new("/bin/sh")), []);
        assert_eq!(obstacles(Path::new("/no/such/file")), []);
    }

    #[test]
    fn arguments_name_programs() {
        let programs = |words: &[&str]| {
            let words: Vec<OsString> = words.iter().map(OsString::from).collect();
            programs_of(&words)
        };
        let found = programs(&["-c", "exec /bin/cat </dev/null; (sh -c x)"]);
        let has = |name: &str| found.iter().any(|file| file.ends_with(name));
        assert!(has("cat") && has("sh") && found.len() == 2, "{found:?}");
        assert!(programs(&["-n", "2", "no-such-program", "", "/tmp"]).is_empty());
        assert!(programs(&["--x=/bin/cat"]).is_empty());
    }

    #[test]
    fn an_obstacle_may_be_overcome_by_mounts() {
        let library = PathBuf::from("/opt/libibverbs.so.1");
        let mounts = |as_root, replaced: &[&PathBuf]| Shown::Mounts {
            replaced: replaced.iter().copied().cloned().collect(),
            as_root,
        };
        let overcome = |kind: Kind, view: &Shown| Obstacle::new(kind, "", "").is_overcome(view);
        let other = Kind::Library(library.clone());
        assert!(overcome(other.clone(), &mounts(true, &[&library])));
        assert!(!overcome(other.clone(), &mounts(true, &[])));
        assert!(!overcome(other, &Shown::Preload));
        assert!(overcome(Kind::Privileged, &mounts(true, &[&library])));
        assert!(overcome(Kind::Privileged, &mounts(false, &[])));
        assert!(!overcome(Kind::Privileged, &mounts(true, &[])));
        assert!(!overcome(Kind::Privileged, &Shown::Nothing));
        assert!(!overcome(Kind::Unable, &mounts(true, &[&library])));
    }

    #[test]
    fn a_static_program_with_verbs_is_told_by_its_text() {
        assert!(contains(b"/sys/class/infiniband_verbs\0", VERBS_CLASS));
        assert!(contains(b"iinfiniband_verbs", VERBS_CLASS));
        assert!(!contains(b"infiniband_verb", VERBS_CLASS));
        assert!(!contains(b"", VERBS_CLASS));
    }

    #[test]
    fn another_c_library_is_none_of_ours() {
        let own = Elf::read(&std::env::current_exe().unwrap()).unwrap();
        assert_eq!(other_kind(&own, &own), None);
        let with = |path: &str| Elf {
            interpreter: Some(path.to_owned()),
            ..own.clone()
        };
        let name = own
            .interpreter
            .as_deref()
            .unwrap()
            .rsplit('/')
            .next()
            .unwrap();
        assert_eq!(
            other_kind(&with(&format!("/gnu/store/x/{name}")), &own),
            None
        );
        let musl = other_kind(&with("/lib/ld-musl-x86_64.so.1"), &own).unwrap();
        assert!(musl.reason.contains("ld-musl"), "{musl:?}");
    }
}
