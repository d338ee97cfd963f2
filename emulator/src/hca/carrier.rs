//! The carrier of a network interface while a fault rule holds its port down, in a view whose
//! directory of the interface consists of links to the host's files.

use std::fs;
use std::io;
use std::path::Path;

use super::displaced::DisplacedLinks;

/// The files that tell of the carrier, and their contents without one.
const FILES: [(&str, &str); 2] = [("carrier", "0\n"), ("operstate", "down\n")];

/// An interface whose files say that it has no carrier.
#[derive(Debug)]
pub(super) struct LostCarrier {
    /// The replaced links.
    links: DisplacedLinks,
}

impl LostCarrier {
    /// Replaces the links of an interface. `hcas` is `sys/devices/rocade/hca` of the view. A view
    /// without such links stays as it is.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if another process is restoring them at present, or the
    /// [`io::Error`] of a file that cannot be written.
    pub(super) fn show(hcas: &Path, ifname: &str) -> io::Result<Self> {
        let links = DisplacedLinks::begin(hcas, &owner(ifname))?;
        for (file, text) in FILES {
            let name = Path::new("net").join(ifname).join(file);
            if links.take(&name).is_ok() {
                fs::write(hcas.join("../../../class").join(name), text)?;
            }
        }
        Ok(Self { links })
    }

    /// Restores the links.
    ///
    /// # Errors
    /// [`io::Error`] if a link cannot be made.
    pub(super) fn restore(self) -> io::Result<()> {
        self.links.restore()
    }

    /// Restores the links that a process has replaced which was then killed.
    ///
    /// # Errors
    /// As [`LostCarrier::restore`].
    pub(super) fn restore_abandoned(hcas: &Path, ifname: &str) -> io::Result<()> {
        match DisplacedLinks::abandoned(hcas, &owner(ifname))? {
            None => Ok(()),
            Some(links) => links.restore(),
        }
    }
}

/// The owner of the links of an interface, which is none of a device.
fn owner(ifname: &str) -> String {
    format!("net-{ifname}")
}
