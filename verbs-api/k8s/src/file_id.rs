//! The identity of files whose names stay, while the files behind them change.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// The identity of a file, and the time of its last change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileId {
    device: u64,
    inode: u64,
    /// Seconds and nanoseconds. An inode may be used again.
    changed: (i64, i64),
}

impl FileId {
    /// Returns the identity of the file that has this name now, or `None` if there is none.
    ///
    /// # Errors
    /// The error of the file system.
    pub(crate) fn of(path: &Path) -> io::Result<Option<Self>> {
        match fs::symlink_metadata(path) {
            Ok(data) => Ok(Some(Self {
                device: data.dev(),
                inode: data.ino(),
                changed: (data.ctime(), data.ctime_nsec()),
            })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns true for the same file, whether or not its mode or label has changed.
    pub(crate) fn is_same_file(self, other: Self) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_file_of_a_name_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        assert_eq!(FileId::of(&path).unwrap(), None);
        fs::write(&path, "").unwrap();
        let first = FileId::of(&path).unwrap().unwrap();
        fs::write(dir.path().join("y"), "").unwrap();
        fs::rename(dir.path().join("y"), &path).unwrap();
        let second = FileId::of(&path).unwrap().unwrap();
        assert!(first != second && !first.is_same_file(second));
        fs::hard_link(&path, dir.path().join("z")).unwrap();
        assert!(second.is_same_file(FileId::of(&path).unwrap().unwrap()));
    }
}
