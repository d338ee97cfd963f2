//! Changes of a device's network interface are events of its port.
//!
//! Each test has its own network namespace, which needs root.

#![allow(clippy::unwrap_used, reason = "tests: a failure may panic")]

mod common;
#[path = "network/hosts.rs"]
mod hosts;
#[path = "network/paths.rs"]
mod paths;
#[path = "common/sandbox.rs"]
mod sandbox;
#[path = "common/two_paths.rs"]
mod two_paths;
#[path = "network/unreachable.rs"]
mod unreachable;

use std::process::Command;
use std::time::{Duration, Instant};

use rocade_emulator::AsyncEventKind::{DeviceFatal, GidChange, PortActive, PortErr};
use rocade_emulator::config::HostNetwork;
use rocade_emulator::{
    AsyncEventKind, BrokerMode, Context, Engine, EngineConfig, EventElement, QpAttr, QpAttrMask,
    QpCap, QpInitAttr, QpState, QpType,
};
use sandbox::own_network;

/// Changes the network of this thread with the commands of `ip -batch`.
#[track_caller]
fn ip(batch: &str) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, batch).unwrap();
    let done = Command::new("ip").arg("-batch").arg(file.path()).output();
    let done = done.unwrap();
    let stderr = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{batch}: {stderr}");
}

/// Link-local addresses would appear and disappear by themselves.
fn without_ipv6() {
    for which in ["all", "default"] {
        let path = format!("/proc/sys/net/ipv6/conf/{which}/disable_ipv6");
        if std::path::Path::new(&path).exists() {
            std::fs::write(path, "1").unwrap();
        }
    }
}

/// Makes interfaces `v0` and `v1` that are up. `v0` has only an IPv4 address.
fn wire() -> bool {
    if !own_network() {
        return false;
    }
    without_ipv6();
    ip("link set lo up\n\
        link add v0 type veth peer name v1\n\
        addr add 192.0.2.1/24 dev v0\n\
        link set v1 up\nlink set v0 up\n");
    // The flags of the interface follow its carrier up to a second late.
    let found = HostNetwork::discover().unwrap();
    assert!(found.by_name("v0").is_some(), "v0 has a carrier: {found:?}");
    true
}

fn open(spec: &str) -> (Engine, Context) {
    let config = EngineConfig::from_specs(&[spec], BrokerMode::Embedded).unwrap();
    let engine = Engine::new(config).unwrap();
    let context = engine.open_device("dev").unwrap();
    (engine, context)
}

/// Returns the next event.
#[track_caller]
fn next(context: &Context) -> AsyncEventKind {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(event) = context.take_async_event().unwrap() {
            let element = match event.kind {
                DeviceFatal => EventElement::Device,
                _ => EventElement::Port(1),
            };
            assert_eq!(event.element, element);
            context.ack_async_event(&event);
            return event.kind;
        }
        assert!(Instant::now() < deadline, "no event");
        std::thread::yield_now();
    }
}

fn gids(context: &Context) -> Vec<String> {
    let entries = context.gid_entries();
    let text = |entry: &rocade_emulator::GidEntry| {
        if entry.gid.is_zero() {
            "-".to_owned()
        } else {
            entry.gid.to_ip().to_string()
        }
    };
    entries.iter().map(text).collect()
}

fn is_active(context: &Context) -> bool {
    context.port_attr(1).unwrap().active
}

//= AEV-08 type=test
#[test]
fn an_interface_goes_down_and_up() {
    if !wire() {
        rocade_skip::skip!("cannot make a network namespace");
    }
    let (_engine, context) = open("dev=v0");
    let (_other_engine, other) = open("dev=127.0.0.1");
    assert!(is_active(&context));
    // Removes the carrier.
    ip("link set v1 down\n");
    assert_eq!(next(&context), PortErr);
    assert!(!is_active(&context));
    ip("link set v1 up\n");
    assert_eq!(next(&context), PortActive);
    assert!(is_active(&context));
    // Two fast changes cause two pairs of events.
    ip("link set v0 down\nlink set v0 up\nlink set v0 down\nlink set v0 up\n");
    for _ in 0..2 {
        assert_eq!(next(&context), PortErr);
        assert_eq!(next(&context), PortActive);
    }
    assert!(is_active(&context));
    assert!(other.take_async_event().unwrap().is_none());
    assert!(is_active(&other));
}

//= AEV-08 AEV-13 QPV-04 type=test
#[test]
fn addresses_come_and_go() {
    if !wire() {
        rocade_skip::skip!("cannot make a network namespace");
    }
    let (engine, context) = open("dev=v0");
    let second = engine.open_device("dev").unwrap();
    ip("addr add 192.0.2.2/24 dev v0\n");
    assert_eq!(next(&context), GidChange);
    assert_eq!(next(&second), GidChange, "all openers get the event");
    assert_eq!(gids(&context), ["192.0.2.1", "192.0.2.2"]);
    assert_eq!(context.port_attr(1).unwrap().gid_tbl_len, 2);
    // The others keep their places. (Deleting the first address would also delete the second one,
    // which is its secondary.)
    ip("addr del 192.0.2.2/24 dev v0\n");
    assert_eq!(next(&context), GidChange);
    assert_eq!(gids(&context), ["192.0.2.1", "-"]);
    assert!(!connects(&context, 1) && connects(&context, 0));
    ip("addr add 198.51.100.9/24 dev v0\n");
    assert_eq!(next(&context), GidChange);
    assert_eq!(gids(&context), ["192.0.2.1", "198.51.100.9"]);
    assert!(connects(&context, 1));
}

/// The port files follow the interface, too.
//= AEV-08 type=test
#[test]
fn files_say_what_the_port_is_now() {
    if !wire() {
        rocade_skip::skip!("cannot make a network namespace");
    }
    let dir = std::env::temp_dir().join(format!("rocade-ports-{}", std::process::id()));
    let port = dir.join("dev/infiniband/dev/ports/1");
    for inside in ["gids", "gid_attrs/types", "gid_attrs/ndevs", "counters"] {
        std::fs::create_dir_all(port.join(inside)).unwrap();
    }
    let config = EngineConfig::from_specs(&["dev=v0"], BrokerMode::Embedded).unwrap();
    let engine = Engine::new(config).unwrap();
    engine.publish_counters(dir.clone());
    // Changes before the device is opened count as well.
    ip("addr add 192.0.2.2/24 dev v0\n");
    let context = engine.open_device("dev").unwrap();
    let says = |file: &str, text: &str| {
        let deadline = Instant::now() + Duration::from_secs(20);
        let path = port.join(file);
        while std::fs::read_to_string(&path).ok().as_deref() != Some(text) {
            assert!(Instant::now() < deadline, "{file}: {text}");
            std::thread::yield_now();
        }
    };
    says("state", "4: ACTIVE\n");
    says("gids/1", "0000:0000:0000:0000:0000:ffff:c000:0202\n");
    ip("addr del 192.0.2.2/24 dev v0\n");
    says("gids/1", "0000:0000:0000:0000:0000:0000:0000:0000\n");
    ip("addr add 192.0.2.3/24 dev v0\nlink set v0 down\n");
    says("gids/1", "0000:0000:0000:0000:0000:ffff:c000:0203\n");
    says("gid_attrs/ndevs/1", "v0\n");
    says("state", "1: DOWN\n");
    says("phys_state", "3: Disabled\n");
    ip("link set v0 up\n");
    says("state", "4: ACTIVE\n");
    drop(context);
    // The engine may still be writing for the last time.
    let deadline = Instant::now() + Duration::from_secs(20);
    while std::fs::remove_dir_all(&dir).is_err() {
        assert!(Instant::now() < deadline, "{}", dir.display());
        std::thread::yield_now();
    }
}

/// Returns true if a queue pair can use this entry of the GID table.
fn connects(context: &Context, sgid_index: u8) -> bool {
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(1, None, 0, 0).unwrap();
    let cap = QpCap {
        max_send_wr: 1,
        max_recv_wr: 1,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_data: 0,
    };
    let qp = pd
        .create_qp(QpInitAttr {
            send_cq: cq.clone(),
            recv_cq: cq,
            srq: None,
            cap,
            qp_type: QpType::Rc,
            sq_sig_all: false,
            cookie: 0,
        })
        .unwrap();
    qp.to_init(rocade_emulator::AccessFlags::empty()).unwrap();
    let mut attr = QpAttr {
        qp_state: QpState::Rtr.code(),
        path_mtu: 1,
        dest_qp_num: qp.qp_num().get(),
        ..QpAttr::default()
    };
    attr.ah_attr.is_global = true;
    attr.ah_attr.port_num = 1;
    attr.ah_attr.sgid_index = sgid_index;
    attr.ah_attr.dgid = context.gid_entries()[0].gid;
    let mask = QpAttrMask::STATE
        | QpAttrMask::AV
        | QpAttrMask::PATH_MTU
        | QpAttrMask::DEST_QPN
        | QpAttrMask::RQ_PSN
        | QpAttrMask::MAX_DEST_RD_ATOMIC
        | QpAttrMask::MIN_RNR_TIMER;
    qp.modify(&attr, mask).is_ok()
}

//= AEV-07 type=test
#[test]
fn an_interface_that_is_deleted_is_fatal() {
    if !wire() {
        rocade_skip::skip!("cannot make a network namespace");
    }
    let (_engine, context) = open("dev=192.0.2.1");
    ip("link del v0\n");
    let mut kinds = vec![next(&context)];
    while !kinds.contains(&DeviceFatal) || !kinds.contains(&GidChange) {
        kinds.push(next(&context));
    }
    kinds.sort_by_key(|kind| kind.code());
    assert_eq!(kinds, [DeviceFatal, PortErr, GidChange]);
    assert!(!is_active(&context));
    assert_eq!(gids(&context), ["-"]);
}
