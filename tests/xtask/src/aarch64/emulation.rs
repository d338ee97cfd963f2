//! A namespace in which the kernel runs programs of AArch64 by QEMU.
//!
//! A user namespace has its own list of interpreters (binfmt_misc, since Linux 6.7), so neither
//! root nor a change of the system is needed. All programs that a test starts run in the same way,
//! native ones among them.

use std::{
    env,
    ffi::OsString,
    path::{Path, PathBuf},
    process::Command,
};

use crate::step;

/// Registers the rule `$RULE`, and runs the command.
const SCRIPT: &str = "mount -t binfmt_misc none /proc/sys/fs/binfmt_misc && \
                      printf %s \"$RULE\" > /proc/sys/fs/binfmt_misc/register && \
                      ip link set lo up && exec \"$@\"";

/// The rule for executables and libraries of AArch64, without the interpreter: the header of an ELF
/// file, and its bits that count.
const RULE: &str = concat!(
    ":rocade-aarch64:M::",
    r"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00:",
    r"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff:",
);

/// The command line in front of the script.
const UNSHARE: [&str; 8] = [
    "unshare",
    "--user",
    "--map-root-user",
    "--mount",
    "--net",
    "sh",
    "-c",
    SCRIPT,
];

/// A way to run programs of AArch64.
#[derive(Debug)]
pub(super) struct Emulation {
    /// The directory with the loader and the libraries.
    root: PathBuf,
    /// The rule that names the emulator.
    rule: OsString,
    /// The search path for programs.
    path: OsString,
}

impl Emulation {
    /// Finds the emulator, and tries it on a program of `root`.
    ///
    /// # Errors
    /// The reason why programs do not run.
    pub(super) fn find(root: &Path) -> Result<Self, String> {
        let before = env::var_os("PATH").unwrap_or_default();
        let qemu = find_program(QEMU)?;
        let path = [root.join("usr/bin"), root.join("usr/sbin")];
        let path = path.into_iter().chain(env::split_paths(&before));
        let mut rule = OsString::from(RULE);
        rule.push(qemu);
        // It stays open, whatever a program's view of the files is.
        rule.push(":F");
        let emulation = Self {
            root: root.to_owned(),
            rule,
            path: env::join_paths(path).map_err(|error| error.to_string())?,
        };
        // The loader itself: it needs nothing else.
        let mut probe = emulation.command(&root.join("lib/ld-linux-aarch64.so.1"));
        if step::succeeds(probe.arg("--version")) {
            Ok(emulation)
        } else {
            Err("the kernel runs no such program in a user namespace (binfmt_misc)".to_owned())
        }
    }

    /// A command for a program of AArch64, in a network of its own.
    pub(super) fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(UNSHARE[0]);
        command
            .args(&UNSHARE[1..])
            .arg("sh")
            .arg(program)
            .env("RULE", &self.rule)
            .env("QEMU_LD_PREFIX", &self.root)
            .env("PATH", &self.path);
        command
    }
}

/// The emulator.
pub(super) const QEMU: &str = "qemu-aarch64-static";

/// Returns the path of a program of the search path.
///
/// # Errors
/// A reason with its name if there is none.
pub(super) fn find_program(name: &str) -> Result<PathBuf, String> {
    let path = env::var_os("PATH").unwrap_or_default();
    let mut files = env::split_paths(&path).map(|dir| dir.join(name));
    let found = files.find(|file| file.is_file());
    found.ok_or_else(|| format!("no {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_without_programs_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let reason = Emulation::find(dir.path()).expect_err("nothing there");
        assert!(reason.contains("qemu-aarch64-static") || reason.contains("binfmt_misc"));
    }
}
