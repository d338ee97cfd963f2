//! Mooncake's transfer engine from PyPI. It examines sysfs before it uses verbs, and falls back to
//! TCP if it finds no suitable device.

use std::path::Path;

use rocade_tests::{
    harness::{Process, Rig},
    or_skip,
};

use crate::{LIMIT, PYTHON, pypi};

const PACKAGE: &str = "mooncake-0.3.13.post1";
const NEEDS: &[(&str, &str)] = &[("setpriv", "util-linux"), ("ip", "iproute2")];

/// Runs the script after `prefix`, with these environment variables.
fn start(rig: &Rig, package: &Path, prefix: &[&str], variables: &[&str]) -> Process {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("interop/mooncake/run");
    let paths =
        [&script, rig.rocade_path(), package].map(|path| path.to_string_lossy().into_owned());
    let words = [
        prefix,
        &["env"],
        variables,
        &[&*paths[0], &*paths[1], &*paths[2], PYTHON],
    ]
    .concat();
    rig.start_plain("mooncake", &words)
}

fn assert_moved(process: Process) {
    let output = process.finish(2 * LIMIT).expect_success();
    for line in [
        "target has verified",
        "initiator has verified",
        "both sides have used RDMA",
    ] {
        assert!(output.contains(line), "no {line:?} in {output}");
    }
}

#[test]
fn moves_data_on_one_host() {
    for link in crate::LINKS {
        let rig = or_skip!(Rig::loopback(NEEDS)).with_link(link);
        let package = or_skip!(pypi(PACKAGE));
        assert_moved(start(&rig, &package, &[], &[]));
    }
}

#[test]
fn moves_data_with_the_preload_library() {
    let rig = or_skip!(Rig::loopback(NEEDS));
    let package = or_skip!(pypi(PACKAGE));
    assert_moved(start(&rig, &package, &[], &["OPTIONS=--view preload"]));
}

/// Runs without capabilities and user namespaces, as in a container.
#[test]
fn moves_data_without_namespaces() {
    let rig = or_skip!(Rig::loopback(NEEDS));
    let package = or_skip!(pypi(PACKAGE));
    let confined = "echo 0 > /proc/sys/user/max_user_namespaces && exec setpriv --bounding-set=-all --inh-caps=-all -- \"$@\"";
    let prefix = [
        "unshare",
        "--user",
        "--map-root-user",
        "--",
        "sh",
        "-c",
        confined,
        "sh",
    ];
    let probe = rig.start_plain("probe", &[&prefix[..], &["true"]].concat());
    if !probe.finish(LIMIT).status.success() {
        rocade_tests::skip!("cannot make a user namespace");
    }
    assert_moved(start(&rig, &package, &prefix, &[]));
}

#[test]
fn moves_data_between_two_hosts() {
    let rig = or_skip!(Rig::loopback(NEEDS));
    let package = or_skip!(pypi(PACKAGE));
    if !rig.network().is_isolated() {
        rocade_tests::skip!("cannot make a network namespace");
    }
    // The second host is a namespace within the rig's, which lives as long as `sleep`.
    let script = "ip link add vt0 type veth peer name vt1 && ip addr add 192.0.2.1/24 dev vt0 && ip link set vt0 up && \
        { unshare --net sleep 120 & other=$!; } && trap 'kill $other' EXIT && \
        until [ \"$(readlink /proc/$other/ns/net)\" != \"$(readlink /proc/self/ns/net)\" ]; do :; done && \
        ip link set vt1 netns $other && enter=\"nsenter --net=/proc/$other/ns/net\" && \
        $enter ip addr add 192.0.2.2/24 dev vt1 && $enter ip link set vt1 up && $enter ip link set lo up && \
        TARGET_IP=192.0.2.1 TARGET_DEV=vt0 INITIATOR=$enter INITIATOR_IP=192.0.2.2 INITIATOR_DEV=vt1 \"$@\"";
    assert_moved(start(&rig, &package, &["bash", "-c", script, "bash"], &[]));
}
