use std::collections::BTreeSet;

use rocade_emulator::config::PortConfig;
use rocade_emulator::{DeviceConfig, DeviceFacts, Guid};

use super::*;
use crate::host::Locality;

fn port(ifname: Option<&str>, addrs: &[&str]) -> PortConfig {
    let addrs = addrs.iter().map(|addr| addr.parse().expect("an address"));
    PortConfig {
        ifname: ifname.map(str::to_owned),
        ifindex: 1,
        addrs: addrs.collect(),
        follows: Vec::new(),
        netdev_mtu: 1500,
    }
}

fn device(name: &str, ifname: Option<&str>, addrs: &[&str]) -> DeviceConfig {
    DeviceConfig {
        name: name.to_owned(),
        port: port(ifname, addrs),
        second_port: None,
        guid: Guid::new(0x526f_0203_0405_0607),
        like: rocade_emulator::config::Likeness::default(),
        identity: rocade_emulator::config::DeviceIdentity::default(),
        pkeys: vec![rocade_emulator::Pkey::DEFAULT],
    }
}

fn host() -> HostFiles {
    let near = Locality {
        numa_node: "1".to_owned(),
        local_cpus: "0000000c".to_owned(),
        local_cpulist: "2-3".to_owned(),
    };
    HostFiles {
        near: [("eth0".to_owned(), near)].into(),
        anywhere: Locality::anywhere(4),
        char_device: "1:7".to_owned(),
        first_free: 0,
    }
}

fn tree(devices: &[DeviceConfig], first: u32) -> Tree {
    Tree::new(&DeviceFacts::of(devices), &host(), first)
}

#[track_caller]
fn assert_file(tree: &Tree, path: &str, text: &str) {
    assert_eq!(tree.find(path), Some(&Node::File(format!("{text}\n"))));
}

#[test]
fn attributes_by_way_of_the_class_directories() {
    let tree = tree(&[device("a", Some("eth0"), &["127.0.0.2", "fe80::1:2"])], 0);
    let dev = "/sys/class/infiniband/a";
    for (file, text) in [
        ("node_type", "1: CA"),
        ("node_guid", "526f:0203:0405:0607"),
        ("sys_image_guid", "526f:0203:0405:0607"),
        ("node_desc", "a"),
        ("device/vendor", "0x526f"),
        ("device/device", "0x0001"),
        ("device/numa_node", "1"),
        ("device/local_cpulist", "2-3"),
        ("ports/1/state", "4: ACTIVE"),
        ("ports/1/cap_mask", "0x04010000"),
        ("ports/1/gids/0", "0000:0000:0000:0000:0000:ffff:7f00:0002"),
        ("ports/1/gids/1", "fe80:0000:0000:0000:0000:0000:0001:0002"),
        ("ports/1/gid_attrs/types/1", "RoCE v2"),
        ("ports/1/gid_attrs/ndevs/1", "eth0"),
        ("ports/1/pkeys/0", "0xffff"),
    ] {
        assert_file(&tree, &format!("{dev}/{file}"), text);
    }
    // Mooncake looks up the NUMA node with this path.
    assert_file(&tree, &format!("{dev}/../../numa_node"), "1");
    assert_file(&tree, "/sys/class/infiniband_verbs/uverbs0/ibdev", "a");
    assert_file(&tree, "/sys/class/infiniband_verbs/uverbs0/dev", "1:7");
    assert_file(&tree, "/sys/class/infiniband_mad/umad0/port", "1");
    let counter = format!("{dev}/ports/1/counters/port_xmit_data");
    assert_eq!(tree.find(&counter), Some(&Node::Counter));
    assert_eq!(tree.find("/dev/infiniband/uverbs0"), Some(&Node::Char));
    assert_eq!(tree.find(&format!("{dev}/no_such_file")), None);
    assert_eq!(tree.find(&format!("{dev}/ports/1/gids/2")), None);
}

#[test]
fn a_second_port_has_its_own_directory() {
    let mut device = device("a", Some("eth0"), &["127.0.0.2"]);
    device.second_port = Some(port(Some("eth1"), &["127.0.0.3", "127.0.0.4"]));
    let tree = tree(&[device], 0);
    for (file, text) in [
        ("1/gids/0", "0000:0000:0000:0000:0000:ffff:7f00:0002"),
        ("1/gid_attrs/ndevs/0", "eth0"),
        ("2/gids/1", "0000:0000:0000:0000:0000:ffff:7f00:0004"),
        ("2/gid_attrs/ndevs/1", "eth1"),
        ("2/state", "4: ACTIVE"),
        ("2/pkeys/0", "0xffff"),
    ] {
        assert_file(
            &tree,
            &format!("/sys/class/infiniband/a/ports/{file}"),
            text,
        );
    }
    assert_eq!(tree.find("/sys/class/infiniband/a/ports/3/state"), None);
}

#[test]
fn every_link_leads_into_the_tree_or_to_an_interface() {
    let tree = tree(
        &[
            device("a", Some("lo"), &["127.0.0.2"]),
            device("b", Some("lo"), &["127.0.0.3"]),
        ],
        0,
    );
    let mut dirs = BTreeSet::new();
    for entry in tree.entries() {
        let mut at = entry.path.as_str();
        while let Some((dir, _)) = at.rsplit_once('/') {
            dirs.insert(dir);
            at = dir;
        }
    }
    let whole: BTreeSet<&str> = tree.entries().iter().map(|e| e.path.as_str()).collect();
    for entry in tree.entries() {
        let Node::Link(target) = &entry.node else {
            continue;
        };
        let mut parts: Vec<&str> = entry.path.split('/').collect();
        parts.pop();
        for part in target.split('/') {
            match part {
                ".." => assert!(parts.pop().is_some(), "{entry:?} leads above the root"),
                part => parts.push(part),
            }
        }
        let place = parts.join("/");
        assert!(
            dirs.contains(&*place) || whole.contains(&*place) || place == "sys/class/net/lo",
            "{entry:?} leads to {place}"
        );
    }
}

#[test]
fn devices_on_one_interface_are_found_from_it() {
    let tree = tree(
        &[
            device("a", Some("lo"), &["127.0.0.2"]),
            device("b", Some("lo"), &["127.0.0.3"]),
        ],
        0,
    );
    assert_eq!(tree.interfaces()["lo"], "a");
    let from_interface = "/sys/devices/rocade/hca/a/infiniband/b/node_desc";
    assert_file(&tree, from_interface, "b");
    assert_file(&tree, "/sys/class/infiniband/a/node_desc", "a");
}

#[test]
fn an_address_of_no_interface_has_no_netdev() {
    let tree = tree(&[device("a", None, &["192.0.2.1"])], 0);
    assert!(tree.interfaces().is_empty());
    let ndev = "/sys/class/infiniband/a/ports/1/gid_attrs/ndevs/0";
    assert_eq!(tree.find(ndev), None);
    assert_file(&tree, "/sys/class/infiniband/a/device/numa_node", "-1");
}

#[test]
fn numbers_start_behind_those_of_the_host() {
    let devices = [
        device("a", None, &["192.0.2.1"]),
        device("b", None, &["192.0.2.2"]),
    ];
    let tree = tree(&devices, 3);
    assert_file(&tree, "/sys/class/infiniband_verbs/uverbs4/ibdev", "b");
    assert_eq!(tree.find("/dev/infiniband/umad3"), Some(&Node::Char));
    assert_eq!(tree.find("/dev/infiniband/uverbs0"), None);
}

#[test]
fn no_path_is_there_twice() {
    let devices = [
        device("a", Some("lo"), &["127.0.0.2"]),
        device("b", Some("lo"), &["127.0.0.3"]),
        device("c", Some("eth0"), &["192.0.2.1"]),
    ];
    let tree = tree(&devices, 0);
    let paths: BTreeSet<&str> = tree.entries().iter().map(|e| e.path.as_str()).collect();
    assert_eq!(paths.len(), tree.entries().len());
}

/// Devices that imitate an adapter have the files of its driver.
#[test]
fn the_files_of_a_device_are_those_of_its_kind() {
    use rocade_emulator::config::Likeness;

    let of = |like: Likeness, name: &str| {
        let mut device = device(name, Some("eth0"), &["127.0.0.2"]);
        (device.like, device.identity) = (like, like.identity());
        tree(&[device], 0)
    };
    let mlx5 = of(Likeness::Mlx5, "mlx5_0");
    for (file, text) in [
        ("board_id", "MT_0000000008"),
        ("fw_ver", "16.35.4030"),
        ("hca_type", "MT4119"),
        ("hw_rev", "0"),
        ("node_type", "1: CA"),
    ] {
        assert_file(&mlx5, &format!("/sys/class/infiniband/mlx5_0/{file}"), text);
    }
    let rxe = of(Likeness::Rxe, "rxe0");
    assert_file(&rxe, "/sys/class/infiniband/rxe0/fw_ver", "0.0.0");
    for file in ["board_id", "hca_type", "hw_rev"] {
        let path = format!("/sys/class/infiniband/rxe0/{file}");
        assert_eq!(rxe.find(&path), None, "{file}");
    }
}
