//! Paths of the broker's files.

#![deny(clippy::disallowed_methods)]

use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::sys::effective_uid;
use super::{BrokerConfig, BrokerError};
use crate::random;
use crate::steering::ProcessSlot;

/// Permission bits that only the owner may have.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// Parent of the fallback directory.
const TEMPORARY: &str = "/tmp";
/// Longest abstract socket name, including the leading zero byte.
const MAX_NAME_LEN: usize = 108;

/// Longest directory in bytes, so that the path of the socket fits into a socket address.
pub(super) const LONGEST_DIR: usize = MAX_NAME_LEN - "/net-4294967295.broker.sock\0".len();

/// The files of the broker of this user and network namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Paths {
    dir: PathBuf,
    netns: u64,
}

impl Paths {
    /// Returns the paths for the calling thread's network namespace. Creates nothing.
    pub(super) fn new(config: &BrokerConfig) -> Self {
        let dir = config.runtime_dir.clone().unwrap_or_else(default_dir);
        // The broker runs in another directory, and the program may change its own.
        let dir = std::path::absolute(&dir).unwrap_or(dir);
        // Without /proc the namespaces are indistinguishable, and all of them share one broker.
        let netns = fs::metadata("/proc/thread-self/ns/net").map_or(0, |data| data.ino());
        Self { dir, netns }
    }

    /// Creates the directory unless it exists, and checks that only this user can write to it.
    pub(super) fn prepare(&self) -> Result<(), BrokerError> {
        let failed = |reason: String| BrokerError::RuntimeDir {
            path: self.dir.clone(),
            reason,
        };
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.dir)
            .map_err(|error| failed(error.to_string()))?;
        check_dir(&self.dir).map_err(&failed)?;
        let mode = fs::symlink_metadata(&self.dir).map(|data| data.mode());
        if mode.is_ok_and(|mode| mode & 0o700 != 0o700) {
            // The umask of this program has taken the rights. Where they cannot be changed, opening
            // a file reports it.
            let _ = fs::set_permissions(&self.dir, Permissions::from_mode(0o700));
        }
        Ok(())
    }

    /// Returns the broker's second address, a name in the network namespace's abstract socket
    /// namespace. Clients find the broker there if its socket file was deleted. All default
    /// directories share one name, because the environment decides which of them is used.
    pub(super) fn abstract_name(&self) -> Vec<u8> {
        let uid = effective_uid();
        let mut name = format!("\0rocade/broker/{uid}").into_bytes();
        if !is_default(&self.dir) {
            name.push(b':');
            name.extend(self.dir.as_os_str().as_bytes());
        }
        // A longer path does not fit into a socket address either.
        name.truncate(MAX_NAME_LEN);
        name
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the error of a runtime directory that cannot be used.
    pub(super) fn unusable(&self, reason: impl Into<String>) -> BrokerError {
        BrokerError::RuntimeDir {
            path: self.dir.clone(),
            reason: reason.into(),
        }
    }

    /// Returns the error of a path that does not fit into a socket address.
    pub(super) fn too_long(&self) -> BrokerError {
        let len = self.dir.as_os_str().len();
        self.unusable(format!(
            "its name is too long for a unix socket ({len} bytes, and at most {LONGEST_DIR})"
        ))
    }

    /// Returns the path of the socket on which the broker listens.
    pub(super) fn socket(&self) -> PathBuf {
        self.file("broker.sock")
    }

    /// Returns the path of the lock file that the broker locks while it runs.
    pub(super) fn broker_lock(&self) -> PathBuf {
        self.file("broker.lock")
    }

    /// Returns the path of the lock file that a client locks while it starts a broker.
    pub(super) fn start_lock(&self) -> PathBuf {
        self.file("start.lock")
    }

    /// Returns the path of the lock file that the client with this slot locks while it runs.
    pub(super) fn slot_lock(&self, slot: ProcessSlot) -> PathBuf {
        self.file(&format!("slot-{slot}.lock"))
    }

    /// Returns the path of the broker's standard output and error.
    pub(super) fn log(&self) -> PathBuf {
        self.file("broker.log")
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.join(format!("net-{}.{name}", self.netns))
    }
}

/// Opens a lock file, and creates it if necessary.
pub(super) fn open_lock(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false);
    open_own(&options, path)
}

/// Opens a file that the user's other programs open as well. The umask of this program has no
/// effect on it.
pub(super) fn open_own(options: &OpenOptions, path: &Path) -> io::Result<File> {
    const MODE: u32 = 0o600;
    let file = options.clone().mode(MODE).open(path)?;
    if file.metadata()?.mode() & MODE != MODE {
        // Some sandboxes refuse it. Then the next program reports that it cannot open the file.
        let _ = file.set_permissions(Permissions::from_mode(MODE));
    }
    Ok(file)
}

/// Returns `$XDG_RUNTIME_DIR/rocade` if this user owns that directory, else one in /tmp.
fn default_dir() -> PathBuf {
    xdg_dir().unwrap_or_else(|| temporary_dir(Path::new(TEMPORARY)))
}

fn xdg_dir() -> Option<PathBuf> {
    let uid = effective_uid();
    let dir = std::env::var_os("XDG_RUNTIME_DIR").filter(|dir: &OsString| !dir.is_empty())?;
    let dir = PathBuf::from(dir);
    // Under sudo the variable may still be that of the calling user.
    let ours = fs::metadata(&dir).is_ok_and(|data| data.is_dir() && data.uid() == uid);
    ours.then(|| dir.join("rocade"))
}

/// Returns `rocade-UID` unless another user has created that. In that case returns the first
/// `rocade-UID-*` of this user, or a new one with an unguessable suffix.
fn temporary_dir(parent: &Path) -> PathBuf {
    let name = temporary_name();
    let usual = parent.join(&name);
    let absent = fs::symlink_metadata(&usual).is_err();
    if absent || check_dir(&usual).is_ok() {
        return usual;
    }
    let prefix = format!("{name}-");
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    let ours = entries
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix))
        .map(|entry| entry.path())
        .filter(|path| check_dir(path).is_ok())
        .min();
    ours.unwrap_or_else(|| {
        let random = u64::from_ne_bytes(random::bytes());
        parent.join(format!("{prefix}{random:016x}"))
    })
}

fn temporary_name() -> String {
    format!("rocade-{}", effective_uid())
}

/// Returns true if this could be the default directory in some environment.
fn is_default(dir: &Path) -> bool {
    let name = temporary_name();
    let in_temporary = dir.parent() == Some(Path::new(TEMPORARY))
        && dir.file_name().and_then(OsStr::to_str).is_some_and(|last| {
            let rest = last.strip_prefix(&name);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
        });
    in_temporary || xdg_dir().as_deref() == Some(dir)
}

fn check_dir(dir: &Path) -> Result<(), String> {
    // Does not follow links, because another user may have created /tmp/rocade-UID.
    let data = fs::symlink_metadata(dir).map_err(|error| error.to_string())?;
    let uid = effective_uid();
    if !data.is_dir() {
        return Err("it is not a directory".to_owned());
    }
    if data.uid() != uid {
        return Err(format!("it belongs to user {}, not {uid}", data.uid()));
    }
    if data.mode() & WRITABLE_BY_OTHERS != 0 {
        return Err("others can write to it".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn paths(dir: &Path) -> Paths {
        let config = BrokerConfig {
            runtime_dir: Some(dir.to_owned()),
            ..BrokerConfig::default()
        };
        Paths::new(&config)
    }

    #[test]
    fn the_directory_is_made_for_us_alone() {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("a/b");
        let paths = paths(&dir);
        paths.prepare().unwrap();
        assert_eq!(fs::metadata(&dir).unwrap().mode() & 0o7777, 0o700);
        paths.prepare().unwrap();
    }

    #[test]
    fn names_tell_network_namespaces_apart() {
        let dir = tempfile::tempdir().unwrap();
        let netns = fs::metadata("/proc/self/ns/net").unwrap().ino();
        let expected = dir.path().join(format!("net-{netns}.broker.sock"));
        assert_eq!(paths(dir.path()).socket(), expected);
    }

    #[test]
    fn a_directory_that_others_control_is_refused() {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("open");
        fs::create_dir(&dir).unwrap();
        fs::set_permissions(&dir, Permissions::from_mode(0o777)).unwrap();
        let error = paths(&dir).prepare().unwrap_err();
        assert!(error.to_string().contains("others can write"), "{error}");

        let link = parent.path().join("link");
        symlink(parent.path(), &link).unwrap();
        let error = paths(&link).prepare().unwrap_err();
        assert!(error.to_string().contains("not a directory"), "{error}");

        let file = parent.path().join("file");
        File::create(&file).unwrap();
        assert!(matches!(
            paths(&file).prepare(),
            Err(BrokerError::RuntimeDir { .. })
        ));
    }

    fn make(dir: &Path, mode: u32) {
        fs::create_dir(dir).unwrap();
        fs::set_permissions(dir, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_name_that_others_have_taken_is_passed_over() {
        let parent = tempfile::tempdir().unwrap();
        let usual = parent.path().join(temporary_name());
        assert_eq!(temporary_dir(parent.path()), usual);
        make(&usual, 0o700);
        assert_eq!(temporary_dir(parent.path()), usual);
        // A directory that others could write to may be manipulated.
        fs::set_permissions(&usual, Permissions::from_mode(0o777)).unwrap();
        let other = temporary_dir(parent.path());
        let name = other.file_name().unwrap().to_str().unwrap().to_owned();
        assert!(
            name.starts_with(&format!("{}-", temporary_name())),
            "{name}"
        );
        assert_ne!(temporary_dir(parent.path()), other, "it is unguessable");
        // From then on that directory is used, even if others create more.
        make(&other, 0o700);
        make(&parent.path().join(format!("{}-", temporary_name())), 0o777);
        symlink(
            &usual,
            parent.path().join(format!("{}-0", temporary_name())),
        )
        .unwrap();
        assert_eq!(temporary_dir(parent.path()), other);
    }

    #[test]
    fn directories_that_are_the_default_somewhere_share_a_name() {
        let name = |dir: &str| paths(Path::new(dir)).abstract_name();
        let usual = format!("/tmp/{}", temporary_name());
        let default = name(&usual);
        assert_eq!(default[0], 0);
        assert_eq!(name(&format!("{usual}-0123")), default);
        for other in ["/tmp/a", &format!("{usual}0"), &format!("/var{usual}")] {
            assert_ne!(name(other), default, "{other}");
        }
        assert_ne!(name("/tmp/a"), name("/tmp/b"));
        assert!(name(&format!("/{}", "x".repeat(200))).len() <= MAX_NAME_LEN);
    }
}
