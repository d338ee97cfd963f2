//! The carrier of a network interface while a fault rule holds its port down, in a view whose
//! directory of the interface consists of links to the host's files.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// The files that tell of the carrier, and their contents without one.
const FILES: [(&str, &str); 2] = [("carrier", "0\n"), ("operstate", "down\n")];

/// An interface whose files say that it has no carrier.
#[derive(Debug)]
pub(super) struct LostCarrier {
    /// The replaced links, and what they contain.
    links: Vec<(PathBuf, PathBuf)>,
}

impl LostCarrier {
    /// Replaces the links of an interface. `hcas` is `sys/devices/rocade/hca` of the view. A view
    /// without such links stays as it is.
    ///
    /// # Errors
    /// [`io::Error`] if a file cannot be written.
    pub(super) fn show(hcas: &Path, ifname: &str) -> io::Result<Self> {
        let dir = hcas.join("../../../class/net").join(ifname);
        let mut links = Vec::new();
        for (file, text) in FILES {
            let path = dir.join(file);
            let Ok(to) = fs::read_link(&path) else {
                continue;
            };
            fs::remove_file(&path)?;
            fs::write(&path, text)?;
            links.push((path, to));
        }
        Ok(Self { links })
    }

    /// Restores the links.
    ///
    /// # Errors
    /// As [`LostCarrier::show`].
    pub(super) fn restore(self) -> io::Result<()> {
        for (path, to) in self.links {
            fs::remove_file(&path)?;
            symlink(to, path)?;
        }
        Ok(())
    }
}
