//! Checks whether a program will load Rocade, because `LD_LIBRARY_PATH` does not affect every
//! program.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::elf::Elf;

/// The mode bits set-user-ID and set-group-ID.
const SET_UID: u32 = 0o4000;
const SET_GID: u32 = 0o2000;

/// The number of nested scripts that the kernel follows: a script's interpreter may be a script.
const MAX_SCRIPTS: usize = 4;

/// The library that Rocade replaces.
const VERBS: &str = "libibverbs.so.1";

/// The reason why a program will not load Rocade, and the remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Obstacle {
    reason: String,
    advice: String,
}

impl Obstacle {
    fn new(reason: impl Into<String>, advice: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            advice: advice.into(),
        }
    }
}

/// Prints a warning if the program will not load Rocade. Returns true if the cause is that the
/// program gains privileges.
pub(crate) fn warn(program: &Path) -> bool {
    let Some(loaded) = loaded_file(program) else {
        return false;
    };
    for Obstacle { reason, advice } in obstacles(&loaded) {
        let mut shown = program.display().to_string();
        if loaded != program {
            shown = format!("{}, which runs {shown},", loaded.display());
        }
        eprintln!("rocade: warning: {shown} {reason}, so it will not use Rocade\n  {advice}");
    }
    privileged(&loaded).is_some()
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

/// Returns the reasons why a loaded program would not use Rocade's libraries.
fn obstacles(file: &Path) -> Vec<Obstacle> {
    let mut found = Vec::new();
    if let Some(elf) = Elf::read(file) {
        let own = Elf::read(Path::new("/proc/self/exe"));
        found.extend(own.and_then(|own| other_kind(&elf, &own)));
        if found.is_empty() {
            found.extend(own_directory(&elf, file));
        }
    }
    found.extend(privileged(file));
    found
}

/// Returns an obstacle if the program cannot load libraries like Rocade's at all.
fn other_kind(elf: &Elf, own: &Elf) -> Option<Obstacle> {
    let ours = format!("{} ({} bits)", machine_name(own.machine), own.bits);
    if (elf.bits, elf.machine) != (own.bits, own.machine) {
        return Some(Obstacle::new(
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
            "is statically linked and loads no libraries",
            "link it dynamically. Programs that it starts will use Rocade",
        ));
    };
    // A program in a directory of its own (Nix, Guix) has the same dynamic linker in another place.
    let name = |path: &str| path.rsplit('/').next().map(str::to_owned);
    let own_interpreter = own.interpreter.as_deref()?;
    (name(interpreter) != name(own_interpreter)).then(|| {
        Obstacle::new(
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

/// Returns an obstacle if the program has another libibverbs in a directory that is searched before
/// `LD_LIBRARY_PATH`.
fn own_directory(elf: &Elf, file: &Path) -> Option<Obstacle> {
    let advice = "put Rocade's first: rocade run -- env LD_PRELOAD=$(rocade libdir)/libibverbs.so.1 \
                  CMD...";
    let with_path = |name: &&String| name.contains('/') && name.ends_with(VERBS);
    if let Some(name) = elf.needed.iter().find(with_path) {
        return Some(Obstacle::new(format!("is linked with {name}"), advice));
    }
    if elf.runpath.is_some() {
        return None;
    }
    let origin = fs::canonicalize(file).ok()?;
    let origin = origin.parent()?.to_str()?.to_owned();
    let dirs = elf.rpath.as_deref()?.split(':');
    let mut dirs = dirs.map(|dir| {
        dir.replace("${ORIGIN}", &origin)
            .replace("$ORIGIN", &origin)
    });
    let dir = dirs.find(|dir| Path::new(dir).join(VERBS).is_file())?;
    Some(Obstacle::new(
        format!("searches {dir} first (DT_RPATH), which contains another {VERBS}"),
        advice,
    ))
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
            format!("is set-{which}-ID and ignores LD_LIBRARY_PATH"),
            advice,
        ));
    }
    let has_capabilities =
        rustix::fs::getxattr(file, "security.capability", &mut [0u8; 64]).is_ok();
    (has_capabilities && !user.is_root())
        .then(|| Obstacle::new("has file capabilities and ignores LD_LIBRARY_PATH", advice))
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
        assert_eq!(obstacles(&std::env::current_exe().unwrap()), []);
        assert_eq!(obstacles(Path::new("/bin/sh")), []);
        assert_eq!(obstacles(Path::new("/no/such/file")), []);
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
