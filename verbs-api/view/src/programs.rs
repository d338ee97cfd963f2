//! Programs that talk to the kernel about RDMA devices by netlink: iproute2's `rdma`.
//!
//! Files can be mounted, netlink cannot. So in a mount namespace a script is mounted over each
//! program called `rdma`, which starts it with the preload library that answers `NETLINK_RDMA`. All
//! other programs run as ever: they have nothing of that library.

use std::collections::BTreeSet;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::namespace::Covered;
use crate::stage::make_dirs;
use crate::sys;
use crate::{ENV_COUNTERS, HCA_DIR};

/// What the programs are called.
const NAME: &str = "rdma";
/// Where they are found besides the search path.
const USUAL_DIRS: [&str; 6] = [
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
];
/// The programs themselves, each in a directory of its own, beside its script.
const PLACE: &str = "/sys/devices/rocade/programs";

/// The programs that the view shows in place of those of the system.
#[derive(Clone, Debug, Default)]
pub struct Programs {
    files: BTreeSet<PathBuf>,
    preload: PathBuf,
}

impl Programs {
    /// Looks for the programs in `dirs` and the usual places; `started` is the program of the run,
    /// which may be one of them. `preload` is the library.
    pub fn look(dirs: impl IntoIterator<Item = PathBuf>, started: &Path, preload: PathBuf) -> Self {
        let usual = USUAL_DIRS.map(PathBuf::from);
        let places = dirs.into_iter().chain(usual).map(|dir| dir.join(NAME));
        let started = Some(started.to_owned()).filter(|path| path.ends_with(NAME));
        let files = places
            .chain(started)
            .filter_map(|path| fs::canonicalize(path).ok())
            .filter(|path| path.is_file())
            .collect();
        Self { files, preload }
    }
}

/// Mounts a script over each program. `around` is what a view around this one has in
/// `/sys/devices/rocade`, with the programs behind its scripts.
///
/// # Errors
/// What the system says; then some of the programs may be as they were.
pub(crate) fn show(programs: &Programs, around: Option<&Covered>) -> io::Result<()> {
    if programs.files.is_empty() {
        return Ok(());
    }
    let place = Path::new(PLACE);
    make_dirs(place)?;
    sys::mount_tmpfs_with_programs(place)?;
    for (number, file) in programs.files.iter().enumerate() {
        let dir = place.join(number.to_string());
        make_dirs(&dir)?;
        let (program, script) = (dir.join(NAME), dir.join("start"));
        File::create(&program)?;
        let kept = around.and_then(|around| behind(&around.path().join("programs"), file));
        sys::bind(kept.as_deref().unwrap_or(file), &program)?;
        fs::write(dir.join("path"), file.as_os_str().as_encoded_bytes())?;
        fs::write(&script, start(&program, &programs.preload))?;
        fs::set_permissions(&script, Permissions::from_mode(0o755))?;
        sys::bind(&script, file)?;
    }
    Ok(())
}

/// The program at `file` behind the script of a view whose programs are in `place`.
fn behind(place: &Path, file: &Path) -> Option<PathBuf> {
    let dirs = fs::read_dir(place).ok()?.flatten();
    let mut dirs = dirs.map(|entry| entry.path());
    let is_its = |dir: &PathBuf| {
        fs::read(dir.join("path")).is_ok_and(|path| path == file.as_os_str().as_encoded_bytes())
    };
    Some(dirs.find(is_its)?.join(NAME))
}

/// The script that starts `program` with `preload`.
fn start(program: &Path, preload: &Path) -> String {
    let (program, preload) = (program.display(), quoted(preload));
    format!(
        "#!/bin/sh\n\
         LD_PRELOAD={preload}${{LD_PRELOAD:+:$LD_PRELOAD}}\n\
         {ENV_COUNTERS}={HCA_DIR}\n\
         export LD_PRELOAD {ENV_COUNTERS}\n\
         exec {program} \"$@\"\n"
    )
}

/// A word of a shell.
fn quoted(path: &Path) -> String {
    format!("'{}'", path.to_string_lossy().replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_once() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let (first, second) = (dir.path().join("1"), dir.path().join("2"));
        for dir in [&first, &second] {
            fs::create_dir(dir).expect("writable");
        }
        fs::write(first.join("rdma"), "").expect("writable");
        std::os::unix::fs::symlink(first.join("rdma"), second.join("rdma")).expect("writable");
        let other = second.join("other");
        fs::write(&other, "").expect("writable");
        let real = fs::canonicalize(first.join("rdma")).expect("there");
        let ours = |programs: Programs| -> Vec<PathBuf> {
            let below = |file: &PathBuf| file.starts_with(fs::canonicalize(dir.path()).unwrap());
            programs.files.into_iter().filter(below).collect()
        };
        let both = [first.clone(), second.clone()];
        assert_eq!(
            ours(Programs::look(both, &other, PathBuf::new())),
            std::slice::from_ref(&real)
        );
        let started = first.join("rdma");
        assert_eq!(ours(Programs::look([], &started, PathBuf::new())), [real]);
        assert!(ours(Programs::look([], &other, PathBuf::new())).is_empty());
    }

    #[test]
    fn a_shell_reads_the_script() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let program = dir.path().join("program");
        fs::write(
            &program,
            "#!/bin/sh\necho \"$ROCADE_VIEW_COUNTERS|$1|$2\"\n",
        )
        .expect("writable");
        fs::set_permissions(&program, Permissions::from_mode(0o755)).expect("its owner");
        let script = dir.path().join("start");
        let preload = Path::new("/no/such/it's.so");
        fs::write(&script, start(&program, preload)).expect("writable");
        let output = std::process::Command::new("sh")
            .arg(&script)
            .args(["a b", "c"])
            .output()
            .expect("sh is there");
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(said, "/sys/devices/rocade/hca|a b|c\n");
    }
}
