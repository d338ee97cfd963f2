//! The devices, read from the files of the view.

use std::fs;
use std::path::{Path, PathBuf};

use super::answer::Source;
use super::resources::{self, Resource};

/// The properties of a device in `rdma dev`.
#[derive(Clone, Debug, Default)]
pub(super) struct Device {
    pub(super) index: u32,
    pub(super) name: String,
    pub(super) fw_ver: String,
    pub(super) node_guid: u64,
    pub(super) sys_image_guid: u64,
    pub(super) node_type: u8,
    pub(super) ports: Vec<Port>,
}

/// The properties of a port in `rdma link`.
#[derive(Clone, Debug, Default)]
pub(super) struct Port {
    pub(super) number: u32,
    pub(super) state: u8,
    pub(super) phys_state: u8,
    /// The index and name of the network interface.
    pub(super) interface: Option<(u32, String)>,
    /// The directory of the port.
    pub(super) dir: PathBuf,
}

/// The directory of the devices: `/sys/devices/rocade/hca`, or its shadow path in a staging
/// directory.
pub(super) struct Files<'a> {
    pub(super) dir: &'a Path,
}

impl Source for Files<'_> {
    fn devices(&self) -> Vec<Device> {
        let mut devices: Vec<Device> = names(self.dir)
            .iter()
            // The engine writes temporary files next to the devices.
            .filter(|name| !name.starts_with('.'))
            .filter_map(|name| device(&self.dir.join(name), name))
            .collect();
        devices.sort_by_key(|device| device.index);
        devices
    }

    fn resources(&self) -> Vec<Resource> {
        resources::all()
    }

    /// Leaves out the files of `counters`, as kernels do, because tools read these files themselves
    /// and know their units.
    fn counters(&self, _: &Device, port: &Port) -> Vec<(String, u64)> {
        let dir = port.dir.join("hw_counters");
        let mut names = names(&dir);
        names.sort();
        let values = names.into_iter().filter_map(|name| {
            let value = text(&dir.join(&name))?.parse().ok()?;
            Some((name, value))
        });
        values.collect()
    }
}

fn device(dir: &Path, name: &str) -> Option<Device> {
    let own = dir.join("infiniband").join(name);
    let verbs = names(&dir.join("infiniband_verbs"));
    let numbers = verbs.iter().filter_map(|name| name.strip_prefix("uverbs"));
    let mut ports: Vec<Port> = names(&own.join("ports"))
        .iter()
        .filter_map(|number| port(dir, &own.join("ports").join(number), number))
        .collect();
    ports.sort_by_key(|port| port.number);
    Some(Device {
        index: numbers.filter_map(|number| number.parse().ok()).next()?,
        name: name.to_owned(),
        fw_ver: text(&own.join("fw_ver")).unwrap_or_default(),
        node_guid: guid(&own.join("node_guid")),
        sys_image_guid: guid(&own.join("sys_image_guid")),
        node_type: leading_number(&own.join("node_type")),
        ports,
    })
}

fn port(device: &Path, dir: &Path, number: &str) -> Option<Port> {
    let of_gids = dir.join("gid_attrs/ndevs");
    let entries = names(&of_gids);
    let of_gid = entries.iter().find_map(|entry| text(&of_gids.join(entry)));
    // A port without an address has no GID.
    let interface = of_gid.or_else(|| names(&device.join("net")).into_iter().next());
    Some(Port {
        number: number.parse().ok()?,
        state: leading_number(&dir.join("state")),
        phys_state: leading_number(&dir.join("phys_state")),
        interface: interface.and_then(|name| Some((super::interface_index(&name)?, name))),
        dir: dir.to_owned(),
    })
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect()
}

fn text(path: &Path) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

/// Returns the number before the colon of `4: ACTIVE`, or 0 if there is none.
fn leading_number(path: &Path) -> u8 {
    let text = text(path).unwrap_or_default();
    let number = text.split(':').next();
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// Returns the GUID of four groups of four digits, or 0 if there is none.
fn guid(path: &Path) -> u64 {
    let digits = text(path).unwrap_or_default().replace(':', "");
    u64::from_str_radix(&digits, 16).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_are_the_hw_counters_as_in_kernels() {
        let name = format!("rocade-netlink-counters-{}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        for (path, value) in [
            ("counters/port_xmit_data", "5"),
            ("hw_counters/sent_pkts", "7\n"),
            ("hw_counters/rcvd_pkts", "6\n"),
            ("hw_counters/lifespan", "no number"),
        ] {
            let path = dir.join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
            fs::write(path, value).expect("a file");
        }
        let port = Port {
            dir: dir.clone(),
            ..Port::default()
        };
        let found = Files { dir: &dir }.counters(&Device::default(), &port);
        fs::remove_dir_all(&dir).expect("removed");
        let expected = [("rcvd_pkts", 6), ("sent_pkts", 7)];
        assert_eq!(
            found,
            expected.map(|(name, value)| (name.to_owned(), value))
        );
    }
}
