//! The properties of the host that the view depends on.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rocade_emulator::DeviceFacts;

use crate::CHAR_DEVICE;

/// The contents of the files of these names, which tell near which processors a device is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Locality {
    /// The NUMA node, or -1.
    pub numa_node: String,
    /// The mask of processors, in groups of 32 bits.
    pub local_cpus: String,
    /// The list of processors.
    pub local_cpulist: String,
}

impl Locality {
    /// Returns the locality of a device that is equally near to all processors `0..cpus`.
    #[must_use]
    pub fn anywhere(cpus: usize) -> Self {
        let cpus = cpus.max(1);
        let mut words = Vec::new();
        for first in (0..cpus).step_by(32) {
            let bits = (cpus - first).min(32);
            words.push(format!("{:08x}", u32::MAX >> (32 - bits)));
        }
        words.reverse();
        let list = match cpus {
            1 => "0".to_owned(),
            _ => format!("0-{}", cpus - 1),
        };
        Self {
            numa_node: "-1".to_owned(),
            local_cpus: words.join(","),
            local_cpulist: list,
        }
    }
}

/// The properties of the host.
#[derive(Clone, Debug)]
pub struct HostFiles {
    /// The locality by network interface, if it is known.
    pub near: BTreeMap<String, Locality>,
    /// The locality of all other devices.
    pub anywhere: Locality,
    /// `MAJOR:MINOR` of [`CHAR_DEVICE`].
    pub char_device: String,
    /// The first number that no `uverbsN` or `umadN` of the host has.
    pub first_free: u32,
}

impl HostFiles {
    /// Reads the properties of the host, and of the interfaces of these devices.
    #[must_use]
    pub fn look(devices: &[DeviceFacts]) -> Self {
        let sys = Path::new("/sys");
        let near = devices
            .iter()
            .filter_map(|device| device.info.ifname.clone())
            .filter_map(|ifname| Some((locality(sys, &ifname)?, ifname)))
            .map(|(near, ifname)| (ifname, near))
            .collect();
        let rdev = fs::metadata(CHAR_DEVICE).map_or(0, |data| data.rdev());
        Self {
            near,
            anywhere: Locality::anywhere(processors(sys)),
            char_device: format!("{}:{}", libc::major(rdev), libc::minor(rdev)),
            first_free: first_free(Path::new("/")),
        }
    }
}

fn read(path: impl AsRef<Path>) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

/// Returns the locality of the device of an interface, or `None` for a virtual interface.
fn locality(sys: &Path, ifname: &str) -> Option<Locality> {
    let device = sys.join("class/net").join(ifname).join("device");
    Some(Locality {
        numa_node: read(device.join("numa_node"))?,
        local_cpus: read(device.join("local_cpus"))?,
        local_cpulist: read(device.join("local_cpulist"))?,
    })
}

/// Returns the highest number of a present processor, plus one.
fn processors(sys: &Path) -> usize {
    let list = read(sys.join("devices/system/cpu/present"));
    let last = list.and_then(|list| list.rsplit([',', '-']).next()?.parse::<usize>().ok());
    last.map_or_else(
        || std::thread::available_parallelism().map_or(1, usize::from),
        |last| last + 1,
    )
}

fn first_free(root: &Path) -> u32 {
    let mut first = 0;
    for dir in [
        "dev/infiniband",
        "sys/class/infiniband_verbs",
        "sys/class/infiniband_mad",
    ] {
        for entry in fs::read_dir(root.join(dir)).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let number = ["uverbs", "umad"]
                .iter()
                .find_map(|kind| name.strip_prefix(kind)?.parse::<u32>().ok());
            first = first.max(number.map_or(0, |number| number.saturating_add(1)));
        }
    }
    first
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_of_processors() {
        for (cpus, mask, list) in [
            (1, "00000001", "0"),
            (4, "0000000f", "0-3"),
            (32, "ffffffff", "0-31"),
            (33, "00000001,ffffffff", "0-32"),
        ] {
            let found = Locality::anywhere(cpus);
            assert_eq!((&*found.local_cpus, &*found.local_cpulist), (mask, list));
        }
    }

    #[test]
    fn numbers_of_the_host_are_left_alone() {
        let root = tempfile::tempdir().expect("a temporary directory");
        assert_eq!(first_free(root.path()), 0);
        let dir = root.path().join("sys/class/infiniband_verbs");
        fs::create_dir_all(dir.join("uverbs1")).expect("writable");
        fs::write(dir.join("abi_version"), "6\n").expect("writable");
        assert_eq!(first_free(root.path()), 2);
    }
}
