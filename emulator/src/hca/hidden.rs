//! The files of a device that a fault rule has removed, which programs do not find meanwhile.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// The classes with links to a device, below the root of the view.
const CLASSES: [&str; 3] = ["infiniband", "infiniband_verbs", "infiniband_mad"];

/// A device whose files are hidden.
#[derive(Debug)]
pub(super) struct HiddenDevice {
    /// The directory of the device, and its name while it is hidden.
    dir: (PathBuf, PathBuf),
    /// The links to the directory, and what they contain.
    links: Vec<(PathBuf, PathBuf)>,
}

impl HiddenDevice {
    /// Hides a device with a directory in `hcas`, which is `sys/devices/rocade/hca` of the view:
    /// the links in `sys/class` go, and the directory gets another name. Whatever another process
    /// has hidden stays hidden.
    ///
    /// # Errors
    /// [`io::Error`] if the directory or a link cannot be changed.
    pub(super) fn hide(hcas: &Path, name: &str) -> io::Result<Self> {
        let mut links = Vec::new();
        for class in CLASSES {
            let class = hcas.join("../../../class").join(class);
            for entry in fs::read_dir(class).into_iter().flatten() {
                let path = entry?.path();
                let leads_here = |to: &PathBuf| {
                    let mut parts = to.iter().skip_while(|part| *part != "hca");
                    parts.nth(1) == Some(name.as_ref())
                };
                if let Some(to) = fs::read_link(&path).ok().filter(leads_here) {
                    gone(fs::remove_file(&path))?;
                    links.push((path, to));
                }
            }
        }
        let dir = (hcas.join(name), hcas.join(format!(".{name}-removed")));
        gone(fs::rename(&dir.0, &dir.1))?;
        Ok(Self { dir, links })
    }

    /// Shows the device again.
    ///
    /// # Errors
    /// As [`HiddenDevice::hide`].
    pub(super) fn show(self) -> io::Result<()> {
        gone(fs::rename(&self.dir.1, &self.dir.0))?;
        for (path, to) in self.links {
            match symlink(to, path) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

/// Ignores that another process was faster.
fn gone(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_device_goes_with_its_links_and_comes_back() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let hcas = root.path().join("sys/devices/rocade/hca");
        for device in ["a", "aa"] {
            fs::create_dir_all(hcas.join(device).join("infiniband")).expect("writable");
            for (class, link) in CLASSES.into_iter().zip([device, "uverbs", "umad"]) {
                let class = root.path().join("sys/class").join(class);
                fs::create_dir_all(&class).expect("writable");
                let link = class.join(format!("{link}{device}"));
                symlink(format!("../../devices/rocade/hca/{device}/x"), link).expect("writable");
            }
        }
        let all = || {
            let mut names = Vec::new();
            let classes = CLASSES.map(|class| root.path().join("sys/class").join(class));
            for dir in classes.iter().chain([&hcas]) {
                for entry in fs::read_dir(dir).expect("readable") {
                    let name = entry.expect("readable").file_name();
                    names.push(name.to_string_lossy().into_owned());
                }
            }
            names.sort();
            names
        };
        let before = all();
        assert_eq!(before.len(), 8);
        let hidden = HiddenDevice::hide(&hcas, "a").expect("hidden");
        let others = [".a-removed", "aa", "aaaa", "umadaa", "uverbsaa"];
        assert_eq!(all(), others);
        // Another process of the same view does the same.
        let again = HiddenDevice::hide(&hcas, "a").expect("hidden already");
        assert_eq!(all(), others);
        hidden.show().expect("shown");
        assert_eq!(all(), before);
        again.show().expect("shown already");
        assert_eq!(all(), before);
    }
}
