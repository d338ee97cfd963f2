//! Programs that send netlink requests about RDMA devices to the kernel: iproute2's `rdma`.
//!
//! Files can be mounted, but netlink replies cannot. So a script is mounted over each program
//! called `rdma` in the mount namespace. The script starts the program with the preload library,
//! which answers `NETLINK_RDMA`. Other programs run without that library.

use std::collections::BTreeSet;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::namespace::Covered;
use crate::staging_dir::make_dirs;
use crate::sys;
use crate::{ENV_COUNTERS, HCA_DIR};

/// The name of the programs.
const NAME: &str = "rdma";
/// The directories that are searched in addition to the search path.
const USUAL_DIRS: [&str; 6] = [
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
];
/// The original programs, each with its script in a directory of its own.
const PLACE: &str = "/sys/devices/rocade/programs";

/// The programs of the system that the view replaces.
#[derive(Clone, Debug, Default)]
pub struct Programs {
    files: BTreeSet<PathBuf>,
    preload: PathBuf,
}

impl Programs {
    /// Finds the programs in `dirs` and the usual directories. `started` is the program of the run,
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

/// Mounts a script over each program. `around` is the directory `/sys/devices/rocade` of an outer
/// view, with the programs behind its scripts.
///
/// # Errors
/// The error of the system call. Some programs may be without a script then.
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

/// Returns the original program of a script at `file`, for a view with its programs in `place`.
fn behind(place: &Path, file: &Path) -> Option<PathBuf> {
    let dirs = fs::read_dir(place).ok()?.flatten();
    let mut dirs = dirs.map(|entry| entry.path());
    let is_its = |dir: &PathBuf| {
        fs::read(dir.join("path")).is_ok_and(|path| path == file.as_os_str().as_encoded_bytes())
    };
    Some(dirs.find(is_its)?.join(NAME))
}

/// Returns the script that starts `program` with `preload`.
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

/// Quotes a path for the shell.
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
