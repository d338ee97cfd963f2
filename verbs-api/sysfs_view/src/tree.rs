//! The files of the devices, as data.
//!
//! ```text
//! /dev/infiniband/{uverbs0,umad0,rdma_cm}
//! /sys/class/infiniband/rocade0          -> ../../devices/rocade/hca/rocade0/infiniband/rocade0
//! /sys/class/infiniband_verbs/uverbs0    -> ../../devices/rocade/hca/rocade0/infiniband_verbs/uverbs0
//! /sys/class/infiniband_mad/umad0        -> ../../devices/rocade/hca/rocade0/infiniband_mad/umad0
//! /sys/class/net/eth0/device             -> the device below
//! /sys/devices/rocade/hca/rocade0/       vendor, device, class, numa_node, net/eth0, ...
//!     infiniband/rocade0/                node_guid, ports/1/{state,gids/0,counters/...}, ...
//! ```
//! The links are relative as in a real `/sys`, so that the tree works below any directory.

use std::collections::BTreeMap;

use rocade_emulator::{DeviceFacts, Guid, PortFacts, statistics};

use crate::host::{HostFiles, Locality};

/// The ABI version of `uverbsN` in rdma-core.
const VERBS_ABI: u32 = 6;
/// The ABI version of `umadN` in rdma-core.
const MAD_ABI: u32 = 5;
/// The PCI class of an Ethernet controller.
const PCI_CLASS: &str = "0x020000";
/// `CM_SUP | IP_BASED_GIDS` of `ibv_port_cap_flags`.
const CAP_MASK: u32 = 1 << 16 | 1 << 26;

/// The counters that a driver has for an Ethernet port, in `ports/N/counters`.
pub const COUNTERS: [&str; 21] = [
    "VL15_dropped",
    "excessive_buffer_overrun_errors",
    "link_downed",
    "link_error_recovery",
    "local_link_integrity_errors",
    "multicast_rcv_packets",
    "multicast_xmit_packets",
    "port_rcv_constraint_errors",
    "port_rcv_data",
    "port_rcv_errors",
    "port_rcv_packets",
    "port_rcv_remote_physical_errors",
    "port_rcv_switch_relay_errors",
    "port_xmit_constraint_errors",
    "port_xmit_data",
    "port_xmit_discards",
    "port_xmit_packets",
    "port_xmit_wait",
    "symbol_error",
    "unicast_rcv_packets",
    "unicast_xmit_packets",
];

/// The counters of a Rocade device itself, in `ports/N/hw_counters`. Those of its queue pairs
/// ([`statistics::hw_counters`]) are there, too.
pub const HW_COUNTERS: [&str; 4] = [
    "rx_icrc_encapsulated",
    "rcvd_pkts",
    "sent_pkts",
    "shared_memory_pkts",
];

/// The kind and content of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node {
    /// A directory that may be empty.
    Dir,
    /// A file with this text.
    File(String),
    /// A file with a number that changes, initially 0.
    Counter,
    /// A symbolic link.
    Link(String),
    /// A character device that can be opened.
    Char,
}

/// A path and its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeEntry {
    /// The path relative to the root of the file system, without the leading `/`.
    pub path: String,
    /// The file at the path.
    pub node: Node,
}

/// The names of a device's character devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CharDevices {
    /// `uverbsN`.
    pub verbs: String,
    /// `umadN`.
    pub mad: String,
}

impl CharDevices {
    /// Returns the names for the device at `index` of the list, if the first device has the number
    /// `first`.
    #[must_use]
    pub fn numbered(first: u32, index: u32) -> Self {
        let number = first.saturating_add(index);
        Self {
            verbs: format!("uverbs{number}"),
            mad: format!("umad{number}"),
        }
    }
}

/// The files of all devices.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    entries: Vec<TreeEntry>,
    /// Network interfaces, each with the name of its first device.
    interfaces: BTreeMap<String, String>,
}

impl Tree {
    /// Builds the tree of these devices on this host. `first` is the number of the first `uverbsN`.
    #[must_use]
    pub fn new(devices: &[DeviceFacts], host: &HostFiles, first: u32) -> Self {
        let mut tree = Self::default();
        tree.classes();
        for device in devices {
            tree.device(device, host, first);
        }
        tree
    }

    /// Builds the part of the tree that is equal on every host, and suffices for queries of
    /// attributes.
    #[must_use]
    pub fn of_attributes(devices: &[DeviceFacts], first: u32) -> Self {
        let unknown = Locality::anywhere(1);
        let host = HostFiles {
            near: BTreeMap::new(),
            anywhere: unknown,
            char_device: String::new(),
            first_free: first,
        };
        let mut tree = Self::new(devices, &host, first);
        let of_the_host = ["/numa_node", "/local_cpus", "/local_cpulist", "/dev"];
        tree.entries.retain(|entry| {
            let is_file = matches!(entry.node, Node::File(_));
            !(is_file && of_the_host.iter().any(|name| entry.path.ends_with(name)))
        });
        tree
    }

    /// Returns the entries. The parent directories of entries may be missing.
    #[must_use]
    pub fn entries(&self) -> &[TreeEntry] {
        &self.entries
    }

    /// Returns the network interfaces that carry devices, each with the name of its first device.
    #[must_use]
    pub const fn interfaces(&self) -> &BTreeMap<String, String> {
        &self.interfaces
    }

    /// Returns the entry at an absolute path without `.`, `..` or double slashes, and follows links
    /// on the way. Returns `None` for directories, missing files and paths outside of the tree.
    #[must_use]
    pub fn find(&self, path: &str) -> Option<&Node> {
        let mut parts: Vec<&str> = Vec::new();
        let mut left: Vec<&str> = path.split('/').rev().collect();
        // The target of each link has no links but the last component, so no loop is possible. The
        // bound is a safeguard.
        for _ in 0..256 {
            match left.pop() {
                None => break,
                Some("" | ".") => continue,
                Some("..") => {
                    parts.pop();
                    continue;
                }
                Some(part) => parts.push(part),
            }
            if let Some(Node::Link(target)) = self.at(&parts.join("/")) {
                parts.pop();
                left.extend(target.split('/').rev());
            }
        }
        if left.is_empty() {
            self.at(&parts.join("/"))
        } else {
            None
        }
    }

    fn at(&self, path: &str) -> Option<&Node> {
        let found = self.entries.iter().find(|entry| entry.path == path);
        found.map(|entry| &entry.node)
    }

    fn add(&mut self, path: String, node: Node) {
        self.entries.push(TreeEntry { path, node });
    }

    fn file(&mut self, path: String, text: impl std::fmt::Display) {
        self.add(path, Node::File(format!("{text}\n")));
    }

    fn link(&mut self, path: String, target: impl Into<String>) {
        self.add(path, Node::Link(target.into()));
    }

    /// Adds the files that exist only once.
    fn classes(&mut self) {
        self.add("dev/infiniband/rdma_cm".to_owned(), Node::Char);
        self.add("sys/class/infiniband".to_owned(), Node::Dir);
        for (class, abi) in [("infiniband_verbs", VERBS_ABI), ("infiniband_mad", MAD_ABI)] {
            self.file(format!("sys/class/{class}/abi_version"), abi);
        }
        self.add("sys/devices/rocade/drivers/rocade".to_owned(), Node::Dir);
    }

    fn device(&mut self, device: &DeviceFacts, host: &HostFiles, first: u32) {
        let info = &device.info;
        let chars = CharDevices::numbered(first, info.index);
        self.parent(device, host);
        self.ib_device(device);
        for (number, port) in (1..).zip(&device.ports) {
            self.port(device, number, port);
        }
        self.character_devices(&info.name, &chars, &host.char_device);
        let Some(ifname) = &info.ifname else { return };
        if let Some(owner) = self.interfaces.get(ifname) {
            // Programs that go from the interface to its devices find all of them at the first
            // device.
            let path = format!("sys/devices/rocade/hca/{owner}/infiniband/{}", info.name);
            self.link(path, format!("../../{0}/infiniband/{0}", info.name));
        } else {
            let _ = self.interfaces.insert(ifname.clone(), info.name.clone());
        }
    }

    /// Adds the directory that stands for the PCI function.
    fn parent(&mut self, device: &DeviceFacts, host: &HostFiles) {
        let name = &device.info.name;
        let base = format!("sys/devices/rocade/hca/{name}");
        let ids = [
            ("vendor", device.attr.vendor_id),
            ("device", device.attr.vendor_part_id),
            ("subsystem_vendor", device.attr.vendor_id),
            ("subsystem_device", device.attr.vendor_part_id),
        ];
        for (file, id) in ids {
            self.file(format!("{base}/{file}"), format_args!("{id:#06x}"));
        }
        self.file(format!("{base}/class"), PCI_CLASS);
        let hw_ver = device.attr.hw_ver;
        self.file(format!("{base}/revision"), format_args!("{hw_ver:#04x}"));
        self.file(format!("{base}/uevent"), "DRIVER=rocade");
        let near = device.info.ifname.as_ref();
        let near = near.and_then(|ifname| host.near.get(ifname));
        let near = near.unwrap_or(&host.anywhere);
        self.file(format!("{base}/numa_node"), &near.numa_node);
        self.file(format!("{base}/local_cpus"), &near.local_cpus);
        self.file(format!("{base}/local_cpulist"), &near.local_cpulist);
        self.link(format!("{base}/driver"), "../../drivers/rocade");
        let driver = format!("sys/devices/rocade/drivers/rocade/{name}");
        self.link(driver, format!("../../hca/{name}"));
        if let Some(ifname) = &device.info.ifname {
            let target = format!("../../../../../class/net/{ifname}");
            self.link(format!("{base}/net/{ifname}"), target);
        }
    }

    fn ib_device(&mut self, device: &DeviceFacts) {
        let name = &device.info.name;
        let base = format!("sys/devices/rocade/hca/{name}/infiniband/{name}");
        for (file, text) in attributes(device) {
            self.file(format!("{base}/{file}"), text);
        }
        self.file(format!("{base}/uevent"), format_args!("NAME={name}"));
        self.links_up(&base, name, "infiniband");
        let target = format!("../../devices/rocade/hca/{name}/infiniband/{name}");
        self.link(format!("sys/class/infiniband/{name}"), target);
    }

    /// Links a class device three levels below `hca` to its parent and its class.
    fn links_up(&mut self, base: &str, name: &str, class: &str) {
        self.link(format!("{base}/device"), format!("../../../{name}"));
        let subsystem = format!("../../../../../../class/{class}");
        self.link(format!("{base}/subsystem"), subsystem);
    }

    fn port(&mut self, device: &DeviceFacts, number: u8, port: &PortFacts) {
        let name = &device.info.name;
        let base = format!("sys/devices/rocade/hca/{name}/infiniband/{name}/ports/{number}");
        let cap_mask = format!("{CAP_MASK:#010x}");
        for (file, text) in [
            ("link_layer", "Ethernet"),
            ("lid", "0x0"),
            ("lid_mask_count", "0"),
            ("sm_lid", "0x0"),
            ("sm_sl", "0"),
            ("cap_mask", &cap_mask),
        ] {
            self.file(format!("{base}/{file}"), text);
        }
        // The engine writes these files again when the network interface changes.
        for (file, text) in port.changing_files() {
            self.add(format!("{base}/{file}"), Node::File(text));
        }
        for (index, pkey) in device.pkeys.iter().enumerate() {
            let key = pkey.get();
            self.file(format!("{base}/pkeys/{index}"), format_args!("{key:#06x}"));
        }
        for counter in COUNTERS {
            self.add(format!("{base}/counters/{counter}"), Node::Counter);
        }
        let sums = statistics::hw_counters().map(|(_, name)| name);
        for counter in HW_COUNTERS.into_iter().chain(sums) {
            self.add(format!("{base}/hw_counters/{counter}"), Node::Counter);
        }
    }

    fn character_devices(&mut self, name: &str, chars: &CharDevices, number: &str) {
        let hca = format!("sys/devices/rocade/hca/{name}");
        for (class, device) in [
            ("infiniband_verbs", &chars.verbs),
            ("infiniband_mad", &chars.mad),
        ] {
            let base = format!("{hca}/{class}/{device}");
            self.file(format!("{base}/ibdev"), name);
            self.file(format!("{base}/dev"), number);
            self.file(
                format!("{base}/uevent"),
                format_args!("DEVNAME=infiniband/{device}"),
            );
            self.links_up(&base, name, class);
            let target = format!("../../devices/rocade/hca/{name}/{class}/{device}");
            self.link(format!("sys/class/{class}/{device}"), target);
            self.add(format!("dev/infiniband/{device}"), Node::Char);
        }
        self.file(
            format!("{hca}/infiniband_verbs/{}/abi_version", chars.verbs),
            1,
        );
        self.file(format!("{hca}/infiniband_mad/{}/port", chars.mad), 1);
    }
}

/// Returns the files in the directory of a device itself.
fn attributes(device: &DeviceFacts) -> Vec<(&'static str, String)> {
    let like = device.info.like;
    let mut files = vec![
        ("fw_ver", device.attr.fw_ver.to_owned()),
        ("node_desc", device.info.name.clone()),
        ("node_guid", guid_text(device.attr.node_guid)),
        ("node_type", "1: CA".to_owned()),
        ("sys_image_guid", guid_text(device.attr.sys_image_guid)),
    ];
    if let Some(board) = like.board_id() {
        files.push(("board_id", board.to_owned()));
    }
    if let Some(hca_type) = like.hca_type() {
        files.push(("hca_type", hca_type.to_owned()));
        files.push(("hw_rev", device.attr.hw_ver.to_string()));
    }
    files
}

/// Formats a GUID as four groups of four digits.
fn guid_text(guid: Guid) -> String {
    let bytes = guid.get().to_be_bytes();
    let pairs = bytes.chunks(2);
    let groups: Vec<String> = pairs
        .map(|pair| pair.iter().map(|byte| format!("{byte:02x}")).collect())
        .collect();
    groups.join(":")
}

#[cfg(test)]
mod tests;
