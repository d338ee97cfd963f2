//! Users with different privileges, as which programs are run.

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

/// The user id of `nobody` and the group id of `nogroup`.
const NOBODY_UID: u32 = 65_534;

/// Runs a command in a user namespace, without capabilities and without the right to create further
/// user namespaces.
const CONFINED: &str = "echo 0 > /proc/sys/user/max_user_namespaces && \
                        exec setpriv --bounding-set=-all --inh-caps=-all -- \"$@\"";

/// The user that runs a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum User {
    /// Root with all capabilities.
    Root,
    /// An ordinary user, who may create user namespaces.
    Ordinary,
    /// A user without capabilities, who may not create user namespaces, as in a container.
    Confined,
}

/// The `rocade` command, its libraries and other files in a directory that the user can read,
/// beside a runtime directory of that user. The files are copied if the user could not read the
/// originals.
#[derive(Debug)]
pub struct Installation {
    dir: TempDir,
    user: User,
}

impl Installation {
    /// Installs the command and `files` for this user.
    ///
    /// # Errors
    /// The reason to skip the test, if this process cannot act as that user.
    ///
    /// # Panics
    /// If the files cannot be copied.
    pub fn new(rig: &Rig, user: User, files: &[&Path]) -> Result<Self, Reason> {
        let dir = tempfile::Builder::new().prefix("rocade-").tempdir();
        let dir = dir.expect("a temporary directory");
        let me = fs::metadata("/proc/self").expect("/proc is there").uid();
        let as_other = me == 0 && user == User::Ordinary;
        if me != 0 && user == User::Root {
            return Err(Reason::Machine("only root can act as root".to_owned()));
        }
        let open = |path: &Path| fs::set_permissions(path, Permissions::from_mode(0o755));
        open(dir.path()).expect("the mode can be set");
        let beside = rig.rocade_path().parent().expect("a file in a directory");
        let built = fs::read_dir(beside).expect("the command is there");
        let built = built.map(|entry| entry.expect("it can be listed").path());
        let wanted = |path: &PathBuf| {
            path.file_name() == Some(OsStr::new("rocade"))
                || path.extension() == Some(OsStr::new("so"))
        };
        let files = files.iter().map(|path| path.to_path_buf());
        for path in built.filter(wanted).chain(files) {
            let place = dir.path().join(path.file_name().expect("a file"));
            if as_other {
                fs::copy(&path, &place).expect("the file can be copied");
                open(&place).expect("the mode can be set");
            } else {
                symlink(&path, &place).expect("the link can be created");
            }
        }
        let run = dir.path().join("run");
        fs::create_dir(&run).expect("the directory can be created");
        fs::set_permissions(&run, Permissions::from_mode(0o700)).expect("the mode can be set");
        if as_other {
            chown(&run, Some(NOBODY_UID), Some(NOBODY_UID)).expect("root can change the owner");
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

    /// The user that runs the command.
    #[must_use]
    pub fn user(&self) -> User {
        self.user
    }

    /// The path of the installed file `name`.
    #[must_use]
    pub fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_string_lossy().into_owned()
    }

    /// The command line that runs its arguments as this user.
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
    /// If it cannot be started.
    pub fn start(&self, rig: &Rig, name: &str, options: &[&str], words: &[&str]) -> Process {
        let mut all = self.prefix();
        // The broker of this runtime directory exits soon after the test.
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
