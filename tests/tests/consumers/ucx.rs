//! UCX's own benchmark: tagged messages, one-sided and atomic operations, over RC (connected by UD)
//! and over UD alone.

use rocade_tests::{
    harness::{Device, Rig, free_port},
    or_skip,
};

use crate::{LIMIT, LINKS};

const NEEDS: &[(&str, &str)] = &[("ucx_perftest", "ucx-utils"), ("env", "coreutils")];

/// Runs server and client with the settings in `environment`. The client's arguments select the
/// test.
fn exchange(rig: &Rig, environment: &[&str], test: &[&str]) {
    let port = free_port().to_string();
    let words = [&["env"], environment, &["ucx_perftest", "-p", &port]].concat();
    let mut server = rig.start("ucx_perftest server", &Device::on("lo"), &words);
    server.wait_listening(port.parse().expect("a port"), LIMIT);
    let short = ["127.0.0.1", "-n", "500", "-w", "50"];
    let client = [&words[..], &short, test].concat();
    let output = rig
        .start("ucx_perftest client", &Device::on("lo"), &client)
        .finish(LIMIT)
        .expect_success();
    assert!(
        output.contains("Final:"),
        "{environment:?} {test:?} reports nothing:\n{output}"
    );
    drop(server.finish_or_kill(LIMIT));
}

/// Uses the API of applications (UCP).
#[test]
fn ucx_uses_rc_and_ud() {
    for link in LINKS {
        let rig = or_skip!(Rig::loopback(NEEDS)).with_link(link);
        for transports in ["UCX_TLS=rc_verbs,ud_verbs", "UCX_TLS=ud_verbs"] {
            for (test, size) in [
                ("tag_lat", "64"),
                ("tag_bw", "65536"),
                ("ucp_put_bw", "4096"),
                ("ucp_get", "4096"),
                ("ucp_am_lat", "64"),
                ("ucp_am_bw", "4096"),
                ("ucp_fadd", "8"),
            ] {
                let environment = [transports, "UCX_NET_DEVICES=rocade0:1"];
                exchange(&rig, &environment, &["-t", test, "-s", size]);
            }
        }
    }
}

/// Uses the transports directly (UCT). Over `ud_verbs` UCX only has active messages. Over
/// `rc_verbs` this version uses atomics only on devices with `IBV_ATOMIC_HCA`, but not on those
/// with `IBV_ATOMIC_GLOB`.
#[test]
fn the_transports_of_ucx_by_themselves() {
    for link in LINKS {
        let rig = or_skip!(Rig::loopback(NEEDS)).with_link(link);
        for (transport, test, layout, size) in [
            ("rc_verbs", "am_lat", "short", "8"),
            ("rc_verbs", "am_lat", "bcopy", "2048"),
            ("rc_verbs", "am_lat", "zcopy", "2048"),
            ("rc_verbs", "put_bw", "zcopy", "65536"),
            ("rc_verbs", "get", "zcopy", "4096"),
            ("ud_verbs", "am_lat", "short", "8"),
            ("ud_verbs", "am_lat", "bcopy", "2048"),
            ("ud_verbs", "am_lat", "zcopy", "2048"),
        ] {
            let device = ["-x", transport, "-d", "rocade0:1"];
            let test = ["-t", test, "-D", layout, "-s", size];
            exchange(&rig, &[], &[&device[..], &test].concat());
        }
    }
}
