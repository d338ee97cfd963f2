//! Programs that connect by `librdmacm`: rdmacm-utils, perftest with `-R`, qperf.

use std::{thread, time::Duration};

use rocade_tests::{
    harness::{Device, Process, Rig},
    or_skip,
};

use crate::{LIMIT, LINKS, PERFTEST, RDMACM, groups::two_hosts};

/// The port spaces, as in service IDs.
const TCP: u16 = 0x0106;
const UDP: u16 = 0x0111;

/// The time that a server may take to come up.
const START: Duration = Duration::from_secs(30);

const PLACE: &str = "lo";
const IP: &str = "127.0.0.1";

pub(super) fn start(rig: &Rig, words: &str) -> Process {
    let words: Vec<&str> = ["stdbuf", "-oL"]
        .into_iter()
        .chain(words.split(' '))
        .collect();
    rig.start(words[2], &Device::on(PLACE), &words)
}

/// Starts a server and waits until it listens.
pub(super) fn serve(rig: &Rig, words: &str, port: u16) -> Process {
    let mut server = start(rig, words);
    rig.wait_service(&mut server, TCP, port, START);
    server
}

/// Runs server and client to their end. Both must succeed without diagnostics from Rocade. Returns
/// their outputs.
pub(super) fn pair(rig: &Rig, server: &str, port: u16, client: &str) -> [String; 2] {
    let server = serve(rig, server, port);
    let client = start(rig, client).finish(LIMIT).expect_success();
    let server = server.finish(LIMIT).expect_success();
    for output in [&client, &server] {
        let has_warning = output.lines().any(|line| line.starts_with("rocade"));
        assert!(!has_warning, "{output}");
    }
    [server, client]
}

/// Like [`pair`], but over all links, and passes the outputs to `check`.
fn on_all_links(server: &str, port: u16, client: &str, check: impl Fn(&[String; 2])) {
    for link in LINKS {
        let rig = or_skip!(Rig::loopback(RDMACM)).with_link(link);
        check(&pair(&rig, server, port, client));
    }
}

/// With `-v` rping prints the data, which the server reads with READ and returns with WRITE.
#[test]
fn rping() {
    let (server, client) = (
        "rping -s -a 127.0.0.1 -C 10 -v -V",
        "rping -c -a 127.0.0.1 -C 10 -v -V",
    );
    on_all_links(server, 7174, client, |outputs| {
        for output in outputs {
            assert!(output.contains("ping data: rdma-ping-9: "), "{output}");
            assert!(!output.contains("data mismatch"), "{output}");
        }
    });
}

/// With `-q` the program creates its own QPs: `rdma_init_qp_attr`, `rdma_establish`.
#[test]
fn rping_with_its_own_queue_pairs() {
    let (server, client) = (
        "rping -s -q -a 127.0.0.1 -C 10 -v -V",
        "rping -c -q -a 127.0.0.1 -C 10 -v -V",
    );
    on_all_links(server, 7174, client, |outputs| {
        assert!(outputs[0].contains("rdma-ping-9: "), "{}", outputs[0]);
    });
}

#[test]
fn rping_over_ipv6() {
    let rig = or_skip!(Rig::loopback(RDMACM));
    pair(
        &rig,
        "rping -s -a ::1 -C 3 -v",
        7174,
        "rping -c -a ::1 -C 3 -v",
    );
}

/// Connects several clients one after the other, because the server mixes up simultaneous ones.
#[test]
fn rping_to_a_persistent_server() {
    for link in LINKS {
        let rig = or_skip!(Rig::loopback(RDMACM)).with_link(link);
        let mut server = serve(&rig, "rping -s -P -a 127.0.0.1 -v", 7174);
        for _ in 0..4 {
            let client = start(&rig, "rping -c -a 127.0.0.1 -C 10 -v -V");
            let output = client.finish(LIMIT).expect_success();
            assert!(output.contains("rdma-ping-9: "), "{output}");
        }
        server.kill();
    }
}

/// Checks that the client gets a REJ at once if no server listens.
#[test]
fn rping_without_a_server() {
    let rig = or_skip!(Rig::loopback(RDMACM));
    let mut other = serve(&rig, "rping -s -P -a 127.0.0.1 -p 7100", 7100);
    let client = start(&rig, "rping -c -a 127.0.0.1 -C 1 -p 7101");
    let output = client.finish(LIMIT).expect_failure();
    assert!(
        output.contains("RDMA_CM_EVENT_REJECTED, error 8"),
        "{output}"
    );
    other.kill();
}

#[test]
fn ucmatose() {
    for arguments in [
        "-C 10",
        "-c 32 -C 10",
        "-m -c 32 -C 10",
        "-t 96 -a 15 -S 4096",
    ] {
        let server = format!("ucmatose -b 127.0.0.1 {arguments}");
        let client = format!("ucmatose -s 127.0.0.1 {arguments}");
        on_all_links(&server, 7471, &client, |outputs| {
            for output in outputs {
                assert!(output.contains("return status 0"), "{output}");
            }
        });
    }
}

/// Tests `rdma_getaddrinfo`, `rdma_create_ep` and `rdma_get_request`, which are synchronous calls.
#[test]
fn endpoints() {
    on_all_links(
        "rdma_server -s 127.0.0.1",
        7471,
        "rdma_client -s 127.0.0.1",
        |outputs| {
            assert!(outputs[0].contains("rdma_server: end 0"), "{}", outputs[0]);
            assert!(outputs[1].contains("rdma_client: end 0"), "{}", outputs[1]);
        },
    );
    on_all_links(
        "rdma_xserver -c r",
        7471,
        "rdma_xclient -s 127.0.0.1 -c r",
        |outputs| assert!(outputs[1].contains("rdma_xclient: end 0"), "{}", outputs[1]),
    );
}

/// Connects an XRC target and an initiator. The REP carries the number of the shared receive queue.
//= XRC-15 type=test
#[test]
fn endpoints_of_xrc() {
    const IB: u16 = 0x013f;
    for link in LINKS {
        let rig = or_skip!(Rig::loopback(RDMACM)).with_link(link);
        let mut server = start(&rig, "rdma_xserver -c x");
        rig.wait_service(&mut server, IB, 7471, START);
        let client = start(&rig, "rdma_xclient -s 127.0.0.1 -c x");
        for (side, name) in [(client, "rdma_xclient"), (server, "rdma_xserver")] {
            let output = side.finish(LIMIT).expect_success();
            assert!(output.contains(&format!("{name}: end 0")), "{output}");
        }
    }
}

/// Tests UD services: SIDR_REQ and SIDR_REP exchange the QP number, and `rdma_create_qp` moves the
/// QP to RTS.
#[test]
fn udaddy() {
    for (link, ip) in [("", IP), ("udp", IP), ("", "::1")] {
        let rig = or_skip!(Rig::loopback(RDMACM)).with_link(link);
        let mut server = start(&rig, &format!("udaddy -b {ip} -c 4"));
        rig.wait_service(&mut server, UDP, 7174, START);
        let client = start(&rig, &format!("udaddy -s {ip} -c 4"));
        for side in [client, server] {
            let output = side.finish(LIMIT).expect_success();
            assert!(output.contains("return status 0"), "{output}");
        }
    }
}

/// Opens a hundred connections at a time. The server never ends.
#[test]
fn cmtime() {
    let rig = or_skip!(Rig::loopback(RDMACM));
    let mut server = serve(&rig, "cmtime -b 127.0.0.1 -c 100", 7471);
    for _ in 0..2 {
        let output = start(&rig, "cmtime -s 127.0.0.1 -c 100")
            .finish(LIMIT)
            .expect_success();
        assert!(output.contains("disconnect"), "{output}");
    }
    server.kill();
}

/// With `-R` the first connection transmits the parameters of the second, for which the server
/// listens again. With `-z` the connection only exchanges the parameters of QPs that are connected
/// without the connection manager.
#[test]
fn perftest_by_the_connection_manager() {
    for link in LINKS {
        let rig = or_skip!(Rig::loopback(PERFTEST)).with_link(link);
        for (program, arguments) in [
            ("ib_send_bw", "-R -s 65536 -n 1000"),
            ("ib_write_bw", "-R -s 65536 -n 1000 -q 4"),
            ("ib_write_bw", "-R -s 4096 -n 500 -b"),
            ("ib_send_lat", "-R -s 64 -n 200 -e"),
            ("ib_send_bw", "-R -s 4096 -n 500 --use-srq -q 2"),
            ("ib_send_bw", "-R -c UD -s 1024 -n 500"),
            ("ib_read_lat", "-R -s 64 -n 1000"),
            ("ib_atomic_lat", "-R -n 1000"),
            ("ib_send_lat", "-R -s 64 -n 1000 -T 96"),
            ("ib_send_bw", "-z -s 65536 -n 1000"),
            ("ib_send_bw", "-z -c UD -s 1024 -n 100"),
            ("ib_write_lat", "-z -c UC -s 64 -n 1000"),
            ("ib_read_bw", "-z -s 65536 -n 1000 -q 4"),
        ] {
            let server = format!("{program} -F {arguments} -p 18600");
            let client = format!("{server} {IP}");
            let [_, output] = pair(&rig, &server, 18600, &client);
            assert!(output.contains("#bytes"), "{output}");
        }
    }
}

/// Checks that the port of a killed listener becomes free.
#[test]
fn a_listener_that_is_killed_leaves_its_port() {
    let rig = or_skip!(Rig::loopback(RDMACM));
    for _ in 0..3 {
        let mut server = serve(&rig, "ucmatose -b 127.0.0.1", 7471);
        server.kill();
        let status = || rig.rocade(&["broker", "status"]).output;
        while status().contains("port 7471") {
            thread::sleep(Duration::from_millis(10));
        }
    }
    pair(&rig, "ucmatose -b 127.0.0.1", 7471, "ucmatose -s 127.0.0.1");
}

/// Replaces the broker while a server listens, and connects afterwards.
#[test]
fn a_broker_that_is_killed_is_no_loss() {
    let rig = or_skip!(Rig::loopback(RDMACM));
    let mut server = serve(&rig, "rping -s -P -a 127.0.0.1", 7174);
    replace_broker(&rig, &mut server);
    let output = start(&rig, "rping -c -a 127.0.0.1 -C 5 -v")
        .finish(LIMIT)
        .expect_success();
    assert!(output.contains("rdma-ping-4: "), "{output}");
    server.kill();
}

/// Kills the broker of a server that listens on port 7174, and waits for the next broker.
fn replace_broker(rig: &Rig, server: &mut Process) {
    let status = rig.rocade(&["broker", "status"]).output;
    let pid = status
        .split("pid ")
        .nth(1)
        .and_then(|rest| rest.split(',').next());
    let pid = pid.unwrap_or_else(|| panic!("{status}")).to_owned();
    let killed = rig.start_plain("kill", &["kill", "-KILL", &pid]);
    killed.finish(LIMIT).expect_success();
    rig.wait_service(server, TCP, 7174, START);
    let status = rig.rocade(&["broker", "status"]).output;
    assert!(!status.contains(&format!("pid {pid},")), "{status}");
}

/// Checks that the broker disconnects the peer of a killed process at once, even if this broker was
/// started after the connection. Otherwise the peer would only see exhausted retries.
#[test]
fn the_next_broker_knows_the_connections() {
    for link in LINKS {
        let rig = or_skip!(Rig::loopback(RDMACM)).with_link(link);
        // The server ends when its client has disconnected, and prints the event.
        let mut server = serve(&rig, "rping -s -a 127.0.0.1", 7174);
        let mut client = start(&rig, "env ROCADE_LOG=info rping -c -a 127.0.0.1 -d");
        client.wait_until("a round", START, |client| {
            client.output().contains("recv completion").then_some(())
        });
        replace_broker(&rig, &mut server);
        client.wait_until("its return to a broker", START, |client| {
            let output = client.output();
            output.contains("resumed with a new broker").then_some(())
        });
        client.kill();
        let output = server.finish(LIMIT).output;
        assert!(output.contains("DISCONNECT EVENT"), "{output}");
    }
}

/// Checks that the broker of a killed process's host sends a DREQ to a peer on another host, for
/// the server and for the client.
#[test]
fn a_killed_process_on_another_host_is_missed() {
    for victim in 0..2 {
        let (rig, other) = or_skip!(two_hosts(RDMACM));
        let words = |line| ["stdbuf", "-oL"].into_iter().chain(str::split(line, ' '));
        let line: Vec<&str> = words("rping -s -a 192.0.2.1").collect();
        let mut server = rig.start("server", &Device::on("x0"), &line);
        rig.wait_service(&mut server, TCP, 7174, START);
        let line: Vec<&str> = words("rping -c -a 192.0.2.1 -d").collect();
        let mut client = rig.start_in(&other, "client", &Device::on("x1"), &line);
        client.wait_until("a round", START, |client| {
            client.output().contains("recv completion").then_some(())
        });
        let mut both = [server, client];
        both[victim].kill();
        let [server, client] = both;
        let survivor = if victim == 0 { client } else { server };
        let output = survivor.finish(LIMIT).output;
        assert!(output.contains("DISCONNECT EVENT"), "{output}");
    }
}

/// qperf connects its QPs by address only with `-cm1`.
#[test]
fn qperf() {
    let needs = &[("qperf", "qperf"), ("ip", "iproute2")];
    for link in LINKS {
        let rig = or_skip!(Rig::loopback(needs)).with_link(link);
        let mut server = start(&rig, "qperf -lp 19765");
        server.wait_listening(19765, START);
        let tests = "rc_lat rc_bw rc_rdma_write_lat rc_rdma_read_bw";
        let client = format!("qperf -lp 19765 -cm1 -t 1 {IP} {tests}");
        let output = start(&rig, &client).finish(LIMIT).expect_success();
        for test in tests.split(' ') {
            assert!(output.contains(&format!("{test}:")), "{output}");
        }
        assert!(!output.contains("failed"), "{output}");
        server.kill();
    }
}

#[test]
fn a_port_that_is_taken_is_said_so() {
    let rig = or_skip!(Rig::loopback(RDMACM));
    let mut server = serve(&rig, "rping -s -P -a 127.0.0.1", 7174);
    let output = start(&rig, "rping -s -a 127.0.0.1")
        .finish(LIMIT)
        .expect_failure();
    assert!(output.contains("Address already in use"), "{output}");
    server.kill();
}
