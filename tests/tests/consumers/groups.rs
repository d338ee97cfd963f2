//! Multicast groups, and UD between two network namespaces: mckey, udaddy, perftest's `-g`,
//! `ibv_ud_pingpong`.

use std::{thread, time::Instant};

use rocade_tests::{
    harness::{Device, Network, Perftest, Process, Rig, free_port, has_result},
    or_skip,
    skip::Reason,
};

use crate::{
    LIMIT, PERFTEST, RDMACM,
    raw_ethernet::{ip, wait_for_carrier},
};

/// The port space of UDP, as in service IDs.
const TCP: u16 = 0x0106;
const UDP: u16 = 0x0111;

/// By default perftest's multicast group is an IPv6 group, and requires a GID of the same IP
/// version, which is ::1 on the loopback interface.
#[test]
fn perftest() {
    let v4 = "0:0:0:0:0:0:0:0:0:0:255:255:239:1:1:9";
    let own_choice: &[&str] = &[];
    for link in ["udp", "shm"] {
        let rig = or_skip!(Rig::loopback(PERFTEST)).with_link(link);
        for (gid, mgid) in [(1, own_choice), (0, &["-M", v4])] {
            for (program, size) in [("ib_send_bw", "1024"), ("ib_send_lat", "64")] {
                let arguments = [&["-c", "UD", "-g", "-s", size, "-n", "500"], mgid].concat();
                let mut pair = Perftest::new(program, &arguments);
                pair.gid_index = [gid, gid];
                pair.run(&rig, LIMIT);
            }
        }
    }
}

fn wait_for(process: &mut Process, text: &str) {
    process.wait_until(text, LIMIT, |process| {
        process.output().contains(text).then_some(())
    });
}

fn words(line: &str) -> Vec<&str> {
    ["stdbuf", "-oL"]
        .into_iter()
        .chain(line.split(' '))
        .collect()
}

/// Starts a receiver and waits until it has joined.
fn receiver(rig: &Rig, place: &str, arguments: &str) -> Process {
    let line = format!("mckey {arguments}");
    let mut receiver = rig.start("receiver", &Device::on(place), &words(&line));
    wait_for(&mut receiver, "joined dgid");
    receiver
}

fn check_mckey(sides: impl IntoIterator<Item = Process>) {
    for side in sides {
        let output = side.finish(LIMIT).expect_success();
        assert!(output.contains("return status 0"), "{output}");
        assert!(output.contains("data transfers complete"), "{output}");
    }
}

/// Returns the arguments of three pairs of mckey, each for a group of its own below the IPv4 or
/// IPv6 prefix `group`.
fn pairs_of_mckey(group: &str, address: &str) -> [(String, String); 3] {
    [(1, "-s"), (2, "-s -o"), (3, "-s -l")].map(|(n, sender)| {
        let both = format!("-m {group}{n} -b {address} -C 20");
        let sender = format!("mckey {both} {sender}");
        (both, sender)
    })
}

/// Joins groups of both IP versions: as full member, as send-only member, and with loopback of own
/// packets disabled. All pairs run at once, because each mckey sleeps for three seconds.
//= CMA-14 type=test
//= CMA-15 type=test
#[test]
fn mckey() {
    for link in ["", "shm"] {
        let rig = or_skip!(Rig::loopback(RDMACM)).with_link(link);
        let v4 = pairs_of_mckey("239.1.1.", "127.0.0.1");
        let v6 = pairs_of_mckey("ff1e::239:", "::1");
        let pairs = [v4, v6].concat();
        let receivers: Vec<_> = pairs
            .iter()
            .map(|(arguments, _)| receiver(&rig, "lo", arguments))
            .collect();
        let senders = pairs
            .iter()
            .map(|(_, line)| rig.start("sender", &Device::on("lo"), &words(line)));
        check_mckey(senders.collect::<Vec<_>>().into_iter().chain(receivers));
    }
}

/// Checks that a killed process leaves its group, and that the other members are not affected.
//= MC-06 type=test
//= MC-08 type=test
#[test]
fn a_member_that_is_killed() {
    let rig = or_skip!(Rig::loopback(RDMACM));
    let arguments = "-m 239.1.1.2 -b 127.0.0.1 -C 20";
    let mut doomed = receiver(&rig, "lo", arguments);
    let other = receiver(&rig, "lo", arguments);
    let is_joined = || {
        let shown = rig.start_plain("cat", &["cat", "/proc/net/igmp"]);
        shown.finish(LIMIT).expect_success().contains("020101EF")
    };
    assert!(is_joined());
    doomed.kill();
    let line = format!("mckey {arguments} -s");
    let sender = rig.start("sender", &Device::on("lo"), &words(&line));
    check_mckey([sender, other]);
    let until = Instant::now() + LIMIT;
    while is_joined() {
        assert!(Instant::now() < until, "the group has a member still");
        thread::yield_now();
    }
}

/// Creates two hosts: x0 in the rig's network and x1 in another one, with an address of each IP
/// version.
pub(super) fn two_hosts(needs: &[(&str, &str)]) -> Result<(Rig, Network), Reason> {
    let rig = Rig::loopback(needs)?;
    let (here, other) = (rig.network(), Network::isolated());
    let refused = || Reason::Machine("cannot make a veth pair".to_owned());
    let pid = other.pid().filter(|_| here.is_isolated());
    let pid = pid.ok_or_else(refused)?;
    let made = ip(here, "ip link add x0 type veth peer name x1")
        && ip(here, &format!("ip link set x1 netns {pid}"))
        && [(here, "x0", 1), (&other, "x1", 2)]
            .iter()
            .all(|(host, name, n)| {
                ip(host, &format!("ip addr add 192.0.2.{n}/24 dev {name}"))
                    && ip(host, &format!("ip addr add fd77::{n}/64 dev {name} nodad"))
                    && ip(host, &format!("ip link set {name} up"))
            });
    if !made {
        return Err(refused());
    }
    wait_for_carrier([(here, "x0"), (&other, "x1")]);
    Ok((rig, other))
}

fn client(rig: &Rig, other: &Network, line: &str) -> Process {
    rig.start_in(other, "client", &Device::on("x1"), &words(line))
}

#[test]
fn mckey_between_hosts() {
    let (rig, other) = or_skip!(two_hosts(RDMACM));
    let groups = [
        ("239.1.1.3", "192.0.2.1", "192.0.2.2"),
        ("ff1e::239:3", "fd77::1", "fd77::2"),
    ];
    let receivers =
        groups.map(|(group, here, _)| receiver(&rig, "x0", &format!("-m {group} -b {here} -C 20")));
    let senders = groups.map(|(group, _, there)| {
        let line = format!("mckey -m {group} -b {there} -C 20 -s");
        client(&rig, &other, &line)
    });
    check_mckey(senders.into_iter().chain(receivers));
}

/// perftest's default group has a scope that is not transmitted on a network, so the test sets
/// another group.
#[test]
fn perftest_between_hosts() {
    let (rig, other) = or_skip!(two_hosts(PERFTEST));
    let group = "-g -M 255:30:0:0:0:0:0:0:0:0:0:0:0:0:0:7";
    for (program, arguments) in [
        ("ib_send_bw", "-s 1024 -n 500"),
        ("ib_send_lat", "-s 64 -n 500"),
        ("ib_send_bw", &format!("-s 1024 -n 500 {group}")),
        ("ib_send_lat", &format!("-s 64 -n 500 {group}")),
    ] {
        let port = free_port();
        let line = format!("{program} -d rocade0 -F -x 1 -c UD -p {port} {arguments}");
        let mut server = rig.start("server", &Device::on("x0"), &words(&line));
        server.wait_listening(port, LIMIT);
        let client = client(&rig, &other, &format!("{line} 192.0.2.1"));
        let output = client.finish(LIMIT).expect_success();
        assert!(has_result(&output), "{output}");
        server.finish(LIMIT).expect_success();
    }
}

#[test]
fn pingpong_over_ipv6_between_hosts() {
    let needs = &[("ibv_ud_pingpong", "ibverbs-utils"), ("ip", "iproute2")];
    let (rig, other) = or_skip!(two_hosts(needs));
    for arguments in ["-c", "-c -e -s 1", "-c -s 1000"] {
        let port = free_port();
        let line = format!("ibv_ud_pingpong -d rocade0 -g 1 -n 500 -p {port} {arguments}");
        let mut server = rig.start("server", &Device::on("x0"), &words(&line));
        server.wait_listening(port, LIMIT);
        let client = client(&rig, &other, &format!("{line} 192.0.2.1"));
        for side in [client, server] {
            let output = side.finish(LIMIT).expect_success();
            assert!(output.contains("500 iters in "), "{output}");
            assert!(!output.contains("invalid data"), "{output}");
        }
    }
}

/// Runs connections and UD services on IPv6 addresses, on loopback and between hosts.
#[test]
fn connections_over_ipv6() {
    let programs = [
        (
            TCP,
            7174,
            "rping -s -a IP -C 10 -v -V",
            "rping -c -a IP -C 10 -v -V",
        ),
        (
            TCP,
            7174,
            "rping -s -q -a IP -C 10 -v -V",
            "rping -c -q -a IP -C 10 -v -V",
        ),
        (TCP, 7471, "ucmatose -b IP -C 10", "ucmatose -s IP -C 10"),
        (
            TCP,
            7471,
            "ucmatose -b IP -m -c 32 -C 10",
            "ucmatose -s IP -m -c 32 -C 10",
        ),
        (
            TCP,
            7471,
            "ucmatose -b IP -t 96 -a 15",
            "ucmatose -s IP -t 96 -a 15",
        ),
        (
            UDP,
            7174,
            "udaddy -b IP -c 4 -C 10 -S 512 -t 96",
            "udaddy -s IP -c 4 -C 10 -S 512 -t 96",
        ),
    ];
    let (rig, other) = or_skip!(two_hosts(RDMACM));
    for (port_space, port, server, client_line) in programs {
        for (place, address) in [("lo", "::1"), ("x0", "fd77::1")] {
            let line = server.replace("IP", address);
            let mut server = rig.start("server", &Device::on(place), &words(&line));
            rig.wait_service(&mut server, port_space, port, LIMIT);
            let line = client_line.replace("IP", address);
            let client = if place == "lo" {
                rig.start("client", &Device::on(place), &words(&line))
            } else {
                client(&rig, &other, &line)
            };
            for side in [client, server] {
                let output = side.finish(LIMIT).expect_success();
                if line.starts_with("rping") {
                    assert!(output.contains("rdma-ping-9: "), "{output}");
                    assert!(!output.contains("data mismatch"), "{output}");
                } else {
                    assert!(output.contains("return status 0"), "{output}");
                }
            }
        }
    }
    // A server for several clients, which never ends.
    let mut server = rig.start(
        "server",
        &Device::on("x0"),
        &words("rping -s -P -a fd77::1"),
    );
    rig.wait_service(&mut server, TCP, 7174, LIMIT);
    for _ in 0..3 {
        let line = "rping -c -a fd77::1 -C 10 -v -V";
        client(&rig, &other, line).finish(LIMIT).expect_success();
    }
    server.kill();
}
