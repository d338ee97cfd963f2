//! libfabric's own benchmark over its verbs provider: connections and datagrams. The provider
//! ignores loopback interfaces, so these tests create another one.

use rocade_tests::{
    harness::{Device, Rig},
    or_skip,
    skip::Reason,
};

use crate::{LIMIT, LINKS, RDMACM};

const NEEDS: &[(&str, &str)] = &[("fi_pingpong", "libfabric-bin"), ("ip", "iproute2")];

/// The TCP port on which the server waits for its client.
const CONTROL_PORT: u16 = 47_592;

const IP: &str = "192.0.2.1";

/// Creates a rig with an interface besides loopback.
pub(crate) fn rig(needs: &[(&str, &str)], link: &'static str) -> Result<Rig, Reason> {
    let rig = Rig::loopback(needs)?.with_link(link);
    if !rig.network().is_isolated() {
        return Err(Reason::Machine(
            "cannot make a network namespace".to_owned(),
        ));
    }
    // The carrier takes some time to come up.
    let script = "ip link add vt0 type veth peer name vt1 && ip link set vt0 addrgenmode none && ip addr add 192.0.2.1/24 dev vt0 && \
        ip addr add fd92::1/64 dev vt0 nodad && ip link set vt0 up && ip link set vt1 up && \
        until ip -o link show vt0 | grep -q LOWER_UP; do sleep 0.01; done";
    let made = rig.start_plain("ip", &["sh", "-c", script]).finish(LIMIT);
    if !made.status.success() {
        let why = format!("cannot make a veth pair: {}", made.output.trim());
        return Err(Reason::Machine(why));
    }
    Ok(rig)
}

/// Runs the benchmark, which verifies every byte (`-c`), with sizes up to 1 MB, or up to the size
/// of a datagram.
fn exchange(provider: &str, endpoint: &str, sizes: &[&str]) {
    for link in LINKS {
        let rig = or_skip!(rig(NEEDS, link));
        let words = [
            "env",
            "FI_VERBS_GID_IDX=0",
            "stdbuf",
            "-oL",
            "fi_pingpong",
            "-c",
            "-p",
            provider,
            "-e",
            endpoint,
        ];
        let device = Device::on("vt0");
        let mut server = rig.start("fi_pingpong server", &device, &words);
        server.wait_listening(CONTROL_PORT, LIMIT);
        let words = [&words[..], &[IP]].concat();
        let client = rig.start("fi_pingpong client", &device, &words);
        for side in [client, server] {
            let output = side.finish(LIMIT).expect_success();
            for size in sizes {
                let line = |line: &str| line.starts_with(&format!("{size} "));
                assert!(output.lines().any(line), "{size} of {endpoint}: {output}");
            }
        }
    }
}

#[test]
fn fi_pingpong_over_connections() {
    exchange("verbs", "msg", &["64", "4k", "1m"]);
}

#[test]
fn fi_pingpong_over_messages_on_connections() {
    exchange("verbs;ofi_rxm", "rdm", &["64", "4k", "1m"]);
}

#[test]
fn fi_pingpong_over_datagrams() {
    exchange("verbs", "dgram", &["64", "256", "1k"]);
}

/// A loopback address that belongs to no device stands for all devices, as with the kernel.
/// Programs can bind to it (as libfabric does) and connect to it.
//= CMA-16 type=test
#[test]
fn loopback_is_this_host_where_no_device_has_it() {
    let rig = or_skip!(rig(RDMACM, ""));
    let start = |words: &str| {
        let words: Vec<&str> = words.split(' ').collect();
        rig.start("rping", &Device::on("vt0"), &words)
    };
    for address in ["127.0.0.1", "127.3.2.1", "::1"] {
        let mut server = start(&format!("rping -s -a {address} -C 3 -v"));
        rig.wait_service(&mut server, 0x0106, 7174, LIMIT);
        let client = start(&format!("rping -c -a {address} -C 3 -v"));
        for side in [client, server] {
            let output = side.finish(LIMIT).expect_success();
            assert!(output.contains("rdma-ping-2: "), "{output}");
        }
    }
}
