//! perftest's raw Ethernet programs, between two network namespaces and on one interface.

use std::{ffi::OsString, process::Stdio, thread, time::Instant};

use rocade_tests::{
    harness::{Device, Network, Process, Rig},
    or_skip, skip,
    skip::Reason,
};

use crate::{LIMIT, PERFTEST};

const SERVER_MAC: &str = "02:00:00:00:00:02";
const CLIENT_MAC: &str = "02:00:00:00:00:01";

/// Runs `ip`, and returns true if it succeeded.
pub(super) fn ip(network: &Network, words: &str) -> bool {
    let words: Vec<OsString> = words.split(' ').map(OsString::from).collect();
    let mut command = network.command(&words);
    let done = command.stdin(Stdio::null()).stderr(Stdio::null()).status();
    done.is_ok_and(|status| status.success())
}

/// Connects the network of a rig to another one by a veth pair: x0 here, x1 there.
fn connect(rig: &Rig, other: &Network) -> Result<(), Reason> {
    let refused = || Reason::Machine("cannot make a veth pair".to_owned());
    let here = rig.network();
    let pid = other.pid().filter(|_| here.is_isolated());
    let pid = pid.ok_or_else(refused)?;
    let made = ip(here, "ip link add x0 type veth peer name x1")
        && ip(here, &format!("ip link set x1 netns {pid}"))
        && ip(here, &format!("ip link set x0 address {CLIENT_MAC} up"))
        && ip(other, &format!("ip link set x1 address {SERVER_MAC} up"))
        && ip(here, "ip addr add 192.0.2.1/24 dev x0")
        && ip(other, "ip addr add 192.0.2.2/24 dev x1");
    if !made {
        return Err(refused());
    }
    wait_for_carrier([(here, "x0"), (other, "x1")]);
    Ok(())
}

/// Waits until both ends have a carrier, which takes some time.
pub(super) fn wait_for_carrier(ends: [(&Network, &str); 2]) {
    let until = Instant::now() + LIMIT;
    for (network, interface) in ends {
        while !shown(network, interface).contains("LOWER_UP") {
            assert!(Instant::now() < until, "the veth pair does not come up");
            thread::yield_now();
        }
    }
}

/// Returns what `ip` prints about an interface.
fn shown(network: &Network, interface: &str) -> String {
    let words = ["ip", "link", "show", interface].map(OsString::from);
    let output = network.command(&words).output().expect("ip runs");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Returns the command line of one side.
fn words<'a>(program: &'a str, server: bool, arguments: &[&'a str]) -> Vec<&'a str> {
    let (side, own, peer) = if server {
        ("--server", SERVER_MAC, CLIENT_MAC)
    } else {
        ("--client", CLIENT_MAC, SERVER_MAC)
    };
    let mut words = vec!["stdbuf", "-oL", program, "-d", "rocade0", "-F", side];
    words.extend(["-B", own, "-E", peer]);
    words.extend(arguments);
    words
}

/// Waits until the server has posted its receives and printed the head of its table.
fn wait_ready(server: &mut Process) {
    server.wait_until("the table", LIMIT, |server| {
        server.output().contains("#bytes").then_some(())
    });
}

/// Runs both sides of a program, each in a namespace of its own.
fn between_namespaces(program: &str, arguments: &[&str]) -> Result<[String; 2], Reason> {
    let rig = Rig::loopback(PERFTEST)?;
    let other = Network::isolated();
    connect(&rig, &other)?;
    let (there, here) = (Device::on("x1"), Device::on("x0"));
    let of_server = words(program, true, arguments);
    let mut server = rig.start_in(&other, "server", &there, &of_server);
    wait_ready(&mut server);
    let of_client = words(program, false, arguments);
    let client = rig.start("client", &here, &of_client).finish(LIMIT);
    let server = server.finish(LIMIT);
    for side in [&server, &client] {
        assert!(side.status.success(), "{}: {}", side.name, side.output);
    }
    Ok([server.output, client.output])
}

/// Returns the second number of the last line of numbers, which is the iteration count.
fn iterations(output: &str) -> Option<u64> {
    let mut figures = output.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let first: Option<f64> = words.next()?.parse().ok();
        first.and_then(|_| words.next())?.parse().ok()
    });
    figures.next_back()
}

macro_rules! programs {
    ($($name:ident: $program:literal $arguments:expr;)*) => {$(
        #[test]
        fn $name() {
            for output in or_skip!(between_namespaces($program, &$arguments)) {
                assert!(output.contains("#bytes"), "{output}");
                assert_eq!(iterations(&output), Some(1000), "{output}");
            }
        }
    )*};
}

programs! {
    // As many receives as frames, so that no frame is lost.
    bw: "raw_ethernet_bw" ["-s", "1024", "-n", "1000", "-r", "1024"];
    bw_udp: "raw_ethernet_bw" ["-s", "512", "-n", "1000", "-r", "1024", "-j", "192.0.2.1", "-J", "192.0.2.2",
        "-k", "7000", "-K", "7001"];
    bw_tcp: "raw_ethernet_bw" ["-s", "512", "-n", "1000", "-r", "1024", "-j", "192.0.2.1", "-J", "192.0.2.2",
        "-k", "7000", "-K", "7001", "--tcp"];
    bw_vlan: "raw_ethernet_bw" ["-s", "512", "-n", "1000", "-r", "1024", "--vlan_en"];
    bw_old_posts: "raw_ethernet_bw" ["-s", "512", "-n", "1000", "-r", "1024", "--use_old_post_send"];
    bw_srq: "raw_ethernet_bw" ["-s", "512", "-n", "1000", "-r", "1024", "--use-srq"];
    bw_promiscuous: "raw_ethernet_bw" ["-s", "512", "-n", "1000", "-r", "1024", "--promiscuous"];
    lat: "raw_ethernet_lat" ["-s", "64", "-n", "1000"];
    lat_inline: "raw_ethernet_lat" ["-s", "64", "-n", "1000", "-I", "64"];
}

// `raw_ethernet_burst_lat` of perftest 4.5 requires a rate limit, but refuses each kind of rate
// limit. With `-e` the raw Ethernet programs wait for an event before they have requested one.

/// Creates and destroys flows, and sends no frames.
#[test]
fn fs_rate() {
    let rig = or_skip!(Rig::loopback(PERFTEST));
    if !rig.network().is_isolated() {
        skip!("cannot make a network namespace");
    }
    let words = words("raw_ethernet_fs_rate", true, &["-n", "1000"]);
    let done = rig
        .start("fs_rate", &Device::on("lo"), &words)
        .finish(LIMIT);
    assert!(done.status.success(), "{}", done.output);
    assert!(done.output.contains("#flows"), "{}", done.output);
}

/// Runs both sides on one interface of one host.
#[test]
fn in_one_host() {
    let rig = or_skip!(Rig::loopback(PERFTEST));
    if !rig.network().is_isolated() {
        skip!("cannot make a network namespace");
    }
    let device = Device::on("lo");
    let arguments = ["-s", "1024", "-n", "1000", "-r", "1024"];
    let of_server = words("raw_ethernet_bw", true, &arguments);
    let mut server = rig.start("server", &device, &of_server);
    wait_ready(&mut server);
    let of_client = words("raw_ethernet_bw", false, &arguments);
    let client = rig.start("client", &device, &of_client).finish(LIMIT);
    for side in [server.finish(LIMIT), client] {
        assert!(side.status.success(), "{}: {}", side.name, side.output);
        assert_eq!(iterations(&side.output), Some(1000), "{}", side.output);
    }
}

/// Checks the diagnostic for a user without the privilege to open a packet socket.
#[test]
fn without_the_right_to() {
    let needs = [("setpriv", "util-linux"), ("raw_ethernet_bw", "perftest")];
    let rig = or_skip!(Rig::loopback(&needs));
    if !rig.network().is_isolated() {
        skip!("cannot make a network namespace");
    }
    let mut all = vec!["setpriv", "--inh-caps=-net_raw", "--bounding-set=-net_raw"];
    all.extend(words("raw_ethernet_bw", false, &["-n", "10"]));
    let done = rig.start("client", &Device::on("lo"), &all).finish(LIMIT);
    assert!(!done.status.success(), "{}", done.output);
    assert!(done.output.contains("CAP_NET_RAW"), "{}", done.output);
}
