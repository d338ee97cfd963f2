//! `ibv_asyncwatch`, while the interface of its device changes.

use std::{ffi::OsString, process::Stdio, thread, time::Instant};

use rocade_tests::{
    harness::{Device, Rig},
    or_skip,
};

use crate::LIMIT;

/// Returns what `ip` prints about an interface.
fn shown(rig: &Rig, interface: &str) -> String {
    let words = ["ip", "link", "show", interface].map(OsString::from);
    let output = rig.network().command(&words).output().expect("ip runs");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn asyncwatch_sees_what_becomes_of_the_interface() {
    let needs = [("ibv_asyncwatch", "ibverbs-utils"), ("ip", "iproute2")];
    let rig = or_skip!(Rig::loopback(&needs));
    if !rig.network().is_isolated() {
        rocade_tests::skip!("cannot make a network namespace");
    }
    let ip = |words: &str| {
        let words: Vec<OsString> = words.split(' ').map(OsString::from).collect();
        let mut command = rig.network().command(&words);
        let done = command.stdin(Stdio::null()).status();
        assert!(done.is_ok_and(|status| status.success()), "{words:?}");
    };
    ip("ip link add x0 type veth peer name x1");
    ip("ip addr add 192.0.2.1/24 dev x0");
    ip("ip link set x1 up");
    ip("ip link set x0 up");
    // The carrier takes some time to come up.
    let until = Instant::now() + LIMIT;
    while !shown(&rig, "x0").contains("LOWER_UP") {
        assert!(Instant::now() < until, "x0 is not up");
        thread::yield_now();
    }
    let words = ["stdbuf", "-oL", "ibv_asyncwatch", "-d", "rocade0"];
    let mut watch = rig.start("ibv_asyncwatch", &Device::on("x0"), &words);
    let mut wait = |text: &str| {
        watch.wait_until(text, LIMIT, |watch| {
            watch.output().contains(text).then_some(())
        });
    };
    wait("rocade0: async event FD");
    ip("ip link set x0 down");
    wait("(10), port 1");
    ip("ip link set x0 up");
    wait("(9), port 1");
    ip("ip addr add 192.0.2.2/24 dev x0");
    wait("(18), port 1");
    ip("ip link del x0");
    wait("(8), port 0");
}
