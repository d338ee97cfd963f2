//! UCX's own benchmark: tagged messages, one-sided and atomic operations, over RC (which it connects with
//! datagrams) and over UD alone.

use rocade_tests::{
    harness::{Device, Rig, free_port},
    or_skip,
};

use crate::{LIMIT, LINKS};

const NEEDS: &[(&str, &str)] = &[("ucx_perftest", "ucx-utils"), ("env", "coreutils")];

fn exchange(rig: &Rig, transports: &str, test: &str, size: &str) {
    let port = free_port().to_string();
    let tls = format!("UCX_TLS={transports}");
    let words = [
        "env",
        &tls,
        "UCX_NET_DEVICES=rocade0:1",
        "ucx_perftest",
        "-p",
        &port,
    ];
    let mut server = rig.start("ucx_perftest server", &Device::on("lo"), &words);
    server.wait_listening(port.parse().expect("a port"), LIMIT);
    let client = [
        &words[..],
        &["127.0.0.1", "-t", test, "-n", "500", "-w", "50", "-s", size],
    ]
    .concat();
    let output = rig
        .start("ucx_perftest client", &Device::on("lo"), &client)
        .finish(LIMIT)
        .expect_success();
    assert!(
        output.contains("Final:"),
        "{transports} {test} reports nothing:\n{output}"
    );
    drop(server.finish_or_kill(LIMIT));
}

#[test]
fn ucx_uses_rc_and_ud() {
    for link in LINKS {
        let rig = or_skip!(Rig::loopback(NEEDS)).with_link(link);
        for transports in ["rc_verbs,ud_verbs", "ud_verbs"] {
            for (test, size) in [
                ("tag_lat", "64"),
                ("tag_bw", "65536"),
                ("ucp_put_bw", "4096"),
                ("ucp_get", "4096"),
                ("ucp_am_bw", "4096"),
                ("ucp_fadd", "8"),
            ] {
                exchange(&rig, transports, test, size);
            }
        }
    }
}
