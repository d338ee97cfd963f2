//! Where the broker's files are.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::{BrokerConfig, BrokerError, effective_uid};
use crate::steering::Slot;

/// Permission bits that nobody but the owner may have.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// The files of the broker of this user and network namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Paths {
    dir: PathBuf,
    netns: u64,
}

impl Paths {
    /// The paths for the calling thread's network namespace. Creates nothing.
    pub(super) fn new(config: &BrokerConfig) -> Self {
        let dir = config.runtime_dir.clone().unwrap_or_else(default_dir);
        // Without /proc there is no telling; all namespaces then share one broker.
        let netns = fs::metadata("/proc/thread-self/ns/net").map_or(0, |data| data.ino());
        Self { dir, netns }
    }

    /// Creates the directory unless it is there, and checks that it is ours alone.
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
        check_dir(&self.dir).map_err(failed)
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The socket on which the broker listens.
    pub(super) fn socket(&self) -> PathBuf {
        self.file("broker.sock")
    }

    /// Locked by the broker as long as it runs.
    pub(super) fn broker_lock(&self) -> PathBuf {
        self.file("broker.lock")
    }

    /// Locked by the client that is starting a broker.
    pub(super) fn start_lock(&self) -> PathBuf {
        self.file("start.lock")
    }

    /// Locked by the client that has this slot as long as it runs.
    pub(super) fn slot_lock(&self, slot: Slot) -> PathBuf {
        self.file(&format!("slot-{slot}.lock"))
    }

    /// What the broker writes to its standard output and error.
    pub(super) fn log(&self) -> PathBuf {
        self.file("broker.log")
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.join(format!("net-{}.{name}", self.netns))
    }
}

/// Opens a lock file, creating it if need be.
pub(super) fn open_lock(path: &Path) -> io::Result<File> {
    File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
}

/// `$XDG_RUNTIME_DIR/rocade` if that directory is ours, else `/tmp/rocade-UID`.
fn default_dir() -> PathBuf {
    let uid = effective_uid();
    std::env::var_os("XDG_RUNTIME_DIR")
        .filter(|dir: &OsString| !dir.is_empty())
        .map(PathBuf::from)
        // Under sudo the variable may still be that of the calling user.
        .filter(|dir| fs::metadata(dir).is_ok_and(|data| data.is_dir() && data.uid() == uid))
        .map_or_else(
            || PathBuf::from(format!("/tmp/rocade-{uid}")),
            |dir| dir.join("rocade"),
        )
}

fn check_dir(dir: &Path) -> Result<(), String> {
    // Not following links: /tmp/rocade-UID may have been put there by somebody else.
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
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};

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
}
