//! Who runs a program: what the system allows differs.

use std::{
    ffi::OsStr,
    fs::{self, Permissions},
    os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink},
    path::{Path, PathBuf},
    process::Command,
};

use tempfile::TempDir;

use super::{Process, Rig};
use crate::skip::Reason;

/// `nobody`, of the group `nogroup`.
const NOBODY_UID: u32 = 65_534;

/// Somebody without privileges over the machine, for whom user namespaces are switched off.
const CONFINED: &str = "echo 0 > /proc/sys/user/max_user_namespaces && \
                        exec setpriv --bounding-set=-all --inh-caps=-all -- \"$@\"";

/// Who runs a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum User {
    /// Root with all its capabilities.
    Root,
    /// An ordinary user, who may make user namespaces.
    Ordinary,
    /// A user without capabilities, who may make none: as in a container.
    Confined,
}

/// The command and its libraries, and other files, as copies where the user could not read them else; with a runtime
/// directory of that user.
#[derive(Debug)]
pub struct Installation {
    dir: TempDir,
    user: User,
}

impl Installation {
    /// For this user.
    ///
    /// # Errors
    /// The reason to skip: this process cannot act as that user.
    ///
    /// # Panics
    /// Where the files cannot be copied.
    pub fn new(rig: &Rig, user: User, files: &[&Path]) -> Result<Self, Reason> {
        let dir = tempfile::Builder::new().prefix("rocade-").tempdir();
        let dir = dir.expect("a temporary directory");
        let me = fs::metadata("/proc/self").expect("/proc is there").uid();
        let as_other = me == 0 && user == User::Ordinary;
        if me != 0 && user == User::Root {
            return Err(Reason::Machine("only root can act as root".to_owned()));
        }
        let open = |path: &Path| fs::set_permissions(path, Permissions::from_mode(0o755));
        open(dir.path()).expect("it is ours");
        let release = rig.rocade_path().parent().expect("a file in a directory");
        let built = fs::read_dir(release).expect("the command is there");
        let built = built.map(|entry| entry.expect("it can be listed").path());
        let wanted = |path: &PathBuf| {
            path.file_name() == Some(OsStr::new("rocade"))
                || path.extension() == Some(OsStr::new("so"))
        };
        let files = files.iter().map(|path| path.to_path_buf());
        for path in built.filter(wanted).chain(files) {
            let place = dir.path().join(path.file_name().expect("a file"));
            if as_other {
                fs::copy(&path, &place).expect("room for a copy");
                open(&place).expect("it is ours");
            } else {
                symlink(&path, &place).expect("it is ours");
            }
        }
        let run = dir.path().join("run");
        fs::create_dir(&run).expect("it is ours");
        fs::set_permissions(&run, Permissions::from_mode(0o700)).expect("it is ours");
        if as_other {
            chown(&run, Some(NOBODY_UID), Some(NOBODY_UID)).expect("root may");
        }
        let installation = Self { dir, user };
        let mut probe: Vec<String> = installation.prefix();
        probe.push("true".to_owned());
        let probed = Command::new(&probe[0]).args(&probe[1..]).output();
        match probed {
            Ok(output) if output.status.success() => Ok(installation),
            other => Err(Reason::Machine(format!(
                "cannot act as {user:?}: {other:?}"
            ))),
        }
    }

    /// Who runs it.
    #[must_use]
    pub fn user(&self) -> User {
        self.user
    }

    /// The path of a file in it.
    #[must_use]
    pub fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_string_lossy().into_owned()
    }

    /// The command that makes somebody else of root, or less of anybody.
    fn prefix(&self) -> Vec<String> {
        let me = fs::metadata("/proc/self").map_or(NOBODY_UID, |data| data.uid());
        let words: &[&str] = match self.user {
            User::Root => &["env"],
            User::Ordinary if me != 0 => &["env"],
            User::Ordinary => &[
                "setpriv",
                "--reuid=65534",
                "--regid=65534",
                "--clear-groups",
                "--",
            ],
            User::Confined => &[
                "unshare",
                "--user",
                "--map-root-user",
                "--",
                "sh",
                "-c",
                CONFINED,
                "sh",
            ],
        };
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    /// Starts `words` as this user under `rocade run` with these options.
    ///
    /// # Panics
    /// Where it cannot be started.
    pub fn start(&self, rig: &Rig, name: &str, options: &[&str], words: &[&str]) -> Process {
        let mut all = self.prefix();
        // Its broker ends soon after the test.
        all.extend(["env", "ROCADE_BROKER_IDLE_MS=1000"].map(str::to_owned));
        all.push(format!("ROCADE_RUNTIME_DIR={}", self.path("run")));
        all.extend([self.path("rocade"), "run".to_owned()]);
        all.extend(
            options
                .iter()
                .chain(&["--"])
                .chain(words)
                .map(|word| (*word).to_owned()),
        );
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        rig.start_plain(name, &all)
    }
}
