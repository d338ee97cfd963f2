//! The files of a device that a fault rule has removed, which programs do not find meanwhile.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::displaced::{DisplacedLinks, unless};

/// The classes with links to a device, below the root of the view.
const CLASSES: [&str; 3] = ["infiniband", "infiniband_verbs", "infiniband_mad"];

/// A device whose files are hidden.
#[derive(Debug)]
pub(super) struct HiddenDevice {
    /// The directory of the device, and its name while it is hidden.
    dir: (PathBuf, PathBuf),
    /// The links to the directory.
    links: DisplacedLinks,
}

impl HiddenDevice {
    /// Hides a device with a directory in `hcas`, which is `sys/devices/rocade/hca` of the view:
    /// the links in `sys/class` go, and the directory gets another name. Whatever another process
    /// has hidden stays hidden.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if another process is showing the device at present, or the
    /// [`io::Error`] of the directory or of a link.
    pub(super) fn hide(hcas: &Path, name: &str) -> io::Result<Self> {
        let links = DisplacedLinks::begin(hcas, name)?;
        for class in CLASSES {
            let all = fs::read_dir(hcas.join("../../../class").join(class));
            for entry in all.into_iter().flatten() {
                let entry = entry?;
                let leads_here = |to: PathBuf| {
                    let mut parts = to.iter().skip_while(|part| *part != "hca");
                    parts.nth(1) == Some(name.as_ref())
                };
                if fs::read_link(entry.path()).is_ok_and(leads_here) {
                    let link = Path::new(class).join(entry.file_name());
                    unless(io::ErrorKind::NotFound, links.take(&link))?;
                }
            }
        }
        let hidden = Self {
            dir: dirs(hcas, name),
            links,
        };
        unless(
            io::ErrorKind::NotFound,
            fs::rename(&hidden.dir.0, &hidden.dir.1),
        )?;
        Ok(hidden)
    }

    /// Shows the device again.
    ///
    /// # Errors
    /// [`io::Error`] if the directory or a link cannot be changed.
    pub(super) fn show(self) -> io::Result<()> {
        unless(
            io::ErrorKind::NotFound,
            fs::rename(&self.dir.1, &self.dir.0),
        )?;
        self.links.restore()
    }

    /// Shows a device that a process has hidden which was then killed. A device that a living
    /// process hides stays hidden.
    ///
    /// # Errors
    /// As [`HiddenDevice::show`].
    pub(super) fn show_abandoned(hcas: &Path, name: &str) -> io::Result<()> {
        match DisplacedLinks::abandoned(hcas, name)? {
            None => Ok(()),
            Some(links) => {
                let dir = dirs(hcas, name);
                Self { dir, links }.show()
            }
        }
    }
}

/// The directory of a device, and its name while it is hidden.
fn dirs(hcas: &Path, name: &str) -> (PathBuf, PathBuf) {
    (hcas.join(name), hcas.join(format!(".{name}-removed")))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// A view of the devices `a` and `aa`.
    struct View {
        root: tempfile::TempDir,
        hcas: PathBuf,
    }

    impl View {
        fn new() -> Self {
            let root = tempfile::tempdir().expect("a temporary directory");
            let hcas = root.path().join("sys/devices/rocade/hca");
            for device in ["a", "aa"] {
                fs::create_dir_all(hcas.join(device).join("infiniband")).expect("writable");
                for (class, link) in CLASSES.into_iter().zip([device, "uverbs", "umad"]) {
                    let class = root.path().join("sys/class").join(class);
                    fs::create_dir_all(&class).expect("writable");
                    let link = class.join(format!("{link}{device}"));
                    symlink(format!("../../devices/rocade/hca/{device}/x"), link)
                        .expect("writable");
                }
            }
            Self { root, hcas }
        }

        /// The names that programs find, and those that begin with a dot.
        fn all(&self) -> (Vec<String>, Vec<String>) {
            let mut names = Vec::new();
            let class = |class| self.root.path().join("sys/class").join(class);
            for dir in CLASSES.map(class).iter().chain([&self.hcas]) {
                for entry in fs::read_dir(dir).expect("readable") {
                    let name = entry.expect("readable").file_name();
                    names.push(name.to_string_lossy().into_owned());
                }
            }
            names.sort();
            names.into_iter().partition(|name| !name.starts_with('.'))
        }
    }

    const OTHERS: [&str; 4] = ["aa", "aaaa", "umadaa", "uverbsaa"];

    #[test]
    fn a_device_goes_with_its_links_and_comes_back() {
        let view = View::new();
        let before = view.all().0;
        assert_eq!(before.len(), 8);
        let hidden = HiddenDevice::hide(&view.hcas, "a").expect("hidden");
        assert_eq!(view.all().0, OTHERS);
        assert_eq!(view.all().1, [".a-links", ".a-removed"]);
        // Another process of the same view does the same.
        let again = HiddenDevice::hide(&view.hcas, "a").expect("hidden already");
        assert_eq!(view.all().0, OTHERS);
        hidden.show().expect("shown");
        assert_eq!(view.all().0, before);
        again.show().expect("shown already");
        assert_eq!(view.all().0, before);
    }

    #[test]
    fn a_device_that_a_killed_process_has_hidden_comes_back() {
        let view = View::new();
        let before = view.all().0;
        HiddenDevice::show_abandoned(&view.hcas, "a").expect("nothing is hidden");
        let hidden = HiddenDevice::hide(&view.hcas, "a").expect("hidden");
        HiddenDevice::show_abandoned(&view.hcas, "a").expect("readable");
        assert_eq!(view.all().0, OTHERS, "a living process hides it");
        // The system closes the files of a killed process, and so releases its locks.
        drop(hidden);
        assert_eq!(view.all().0, OTHERS);
        HiddenDevice::show_abandoned(&view.hcas, "a").expect("shown");
        assert_eq!(view.all().0, before);
    }
}
