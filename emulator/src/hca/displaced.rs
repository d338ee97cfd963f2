//! Links of the view that a process takes away while a fault rule applies, with a record by which
//! another process puts them back if this one is killed meanwhile.

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// The links of a device or of an interface that processes have taken away. Each process holds a
/// lock meanwhile, which the system releases when the process ends.
#[derive(Debug)]
pub(super) struct DisplacedLinks {
    record: Record,
    _lock: File,
}

/// The directory with copies of the links. It is never removed, because it is also the lock.
#[derive(Debug)]
struct Record {
    dir: PathBuf,
    /// The directory of the classes, below which the links belong.
    classes: PathBuf,
}

impl DisplacedLinks {
    /// Prepares to take links away. `hcas` is `sys/devices/rocade/hca` of the view, and `owner`
    /// names the device or the interface.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if another process is putting links back at present, or the
    /// [`io::Error`] of the record.
    pub(super) fn begin(hcas: &Path, owner: &str) -> io::Result<Self> {
        let record = Record::of(hcas, owner);
        fs::create_dir_all(&record.dir)?;
        let lock = File::open(&record.dir)?;
        lock.try_lock_shared().map_err(io::Error::from)?;
        Ok(Self {
            record,
            _lock: lock,
        })
    }

    /// Takes the link `name` away, a path below the directory of the classes.
    ///
    /// # Errors
    /// [`io::Error`] if there is no such link, or it cannot be copied or removed.
    pub(super) fn take(&self, name: &Path) -> io::Result<()> {
        let link = self.record.classes.join(name);
        let copy = self.record.dir.join(name);
        let to = fs::read_link(&link)?;
        if let Some(dir) = copy.parent() {
            fs::create_dir_all(dir)?;
        }
        unless(io::ErrorKind::AlreadyExists, symlink(to, copy))?;
        unless(io::ErrorKind::NotFound, fs::remove_file(link))
    }

    /// Puts all links back, also those that other processes have taken away.
    ///
    /// # Errors
    /// [`io::Error`] if a link cannot be made.
    pub(super) fn restore(self) -> io::Result<()> {
        self.record.restore()
    }

    /// Returns the links that are not taken away any more by any process. The caller puts them
    /// back, and no process takes them away meanwhile.
    ///
    /// # Errors
    /// [`io::Error`] if the record cannot be read.
    pub(super) fn abandoned(hcas: &Path, owner: &str) -> io::Result<Option<Self>> {
        let record = Record::of(hcas, owner);
        let lock = match File::open(&record.dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        if record.names()?.is_empty() {
            return Ok(None);
        }
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        Ok(Some(Self {
            record,
            _lock: lock,
        }))
    }
}

impl Record {
    fn of(hcas: &Path, owner: &str) -> Self {
        Self {
            dir: hcas.join(format!(".{owner}-links")),
            classes: hcas.join("../../../class"),
        }
    }

    /// Returns the names of all links, which are paths below the directory of the classes.
    fn names(&self) -> io::Result<Vec<PathBuf>> {
        let mut names = Vec::new();
        let mut parts = vec![PathBuf::new()];
        while let Some(part) = parts.pop() {
            for entry in fs::read_dir(self.dir.join(&part))? {
                let entry = entry?;
                let name = part.join(entry.file_name());
                let list = match entry.file_type()?.is_dir() {
                    true => &mut parts,
                    false => &mut names,
                };
                list.push(name);
            }
        }
        Ok(names)
    }

    /// Puts all links back.
    fn restore(&self) -> io::Result<()> {
        for name in self.names()? {
            let copy = self.dir.join(&name);
            if let Ok(to) = fs::read_link(&copy) {
                put(&to, &self.classes.join(&name))?;
                unless(io::ErrorKind::NotFound, fs::remove_file(copy))?;
            }
        }
        Ok(())
    }
}

/// Makes a link in the place of whatever is there.
fn put(to: &Path, link: &Path) -> io::Result<()> {
    match symlink(to, link) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            unless(io::ErrorKind::NotFound, fs::remove_file(link))?;
            unless(io::ErrorKind::AlreadyExists, symlink(to, link))
        }
        made => made,
    }
}

/// Ignores an error that says that another process was faster.
pub(super) fn unless(kind: io::ErrorKind, result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == kind => Ok(()),
        result => result,
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// A view with the link `class/NAME`, and the directory of its devices.
    fn view(name: &str) -> (tempfile::TempDir, PathBuf, PathBuf) {
        let root = tempfile::tempdir().expect("a temporary directory");
        let hcas = root.path().join("sys/devices/rocade/hca");
        fs::create_dir_all(&hcas).expect("writable");
        let link = root.path().join("sys/class").join(name);
        fs::create_dir_all(link.parent().expect("a class")).expect("writable");
        symlink("../there", &link).expect("writable");
        (root, hcas, link)
    }

    #[test]
    fn links_of_a_killed_process_come_back() {
        let (_root, hcas, link) = view("net/v0/carrier");
        let name = Path::new("net/v0/carrier");
        let one = DisplacedLinks::begin(&hcas, "v0").expect("a record");
        let other = DisplacedLinks::begin(&hcas, "v0").expect("a second process");
        one.take(name).expect("taken");
        assert!(other.take(name).is_err(), "it is gone already");
        fs::write(&link, "0\n").expect("writable");

        // The system releases the lock of a process that ends.
        drop(one);
        let found = DisplacedLinks::abandoned(&hcas, "v0").expect("readable");
        assert!(
            found.is_none(),
            "the other process still wants it to be gone"
        );
        drop(other);
        let found = DisplacedLinks::abandoned(&hcas, "v0").expect("readable");
        let found = found.expect("left behind");
        let busy = DisplacedLinks::begin(&hcas, "v0").expect_err("it is being put back");
        assert_eq!(busy.kind(), io::ErrorKind::WouldBlock);
        found.restore().expect("restored");
        assert_eq!(fs::read_link(&link).expect("a link"), Path::new("../there"));
        let found = DisplacedLinks::abandoned(&hcas, "v0").expect("readable");
        assert!(found.is_none(), "nothing is left to be done");
    }

    #[test]
    fn the_last_process_puts_back_what_a_killed_one_took() {
        let (_root, hcas, link) = view("infiniband/a");
        let one = DisplacedLinks::begin(&hcas, "a").expect("a record");
        let other = DisplacedLinks::begin(&hcas, "a").expect("a second process");
        one.take(Path::new("infiniband/a")).expect("taken");
        drop(one);
        other.restore().expect("restored");
        assert_eq!(fs::read_link(&link).expect("a link"), Path::new("../there"));
    }
}
