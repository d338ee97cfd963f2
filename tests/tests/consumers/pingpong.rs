//! `ibv_rc_pingpong`, `ibv_srq_pingpong` and `ibv_xsrq_pingpong` with their options.

use rocade_tests::{
    harness::{Device, Pingpong, Rig, free_port},
    or_skip,
};
use rocade_wire::crc::Backend;

use crate::{LIMIT, LINKS, UTILS};

/// Runs a pair, checks that both sides report all iterations, and returns their outputs.
fn exchange(rig: &Rig, arguments: &[&str]) -> [String; 2] {
    report(&Pingpong::new(arguments), rig)
}

fn report(pair: &Pingpong, rig: &Rig) -> [String; 2] {
    let arguments = &pair.arguments;
    let outputs = pair.run(rig, LIMIT);
    let count = arguments
        .iter()
        .position(|word| word == "-n")
        .and_then(|at| arguments.get(at + 1));
    let report = format!("{} iters in ", count.map_or("1000", String::as_str));
    for output in &outputs {
        assert!(output.contains(&report), "no {report:?} in\n{output}");
        // With -c the server verifies the buffer, but a mismatch does not change its exit status,
        // nor does a failure of -P.
        assert!(!output.contains("invalid data"), "{output}");
        assert!(!output.contains("Couldn't"), "{output}");
    }
    outputs
}

macro_rules! variants {
    ($($(#[$doc:meta])* $name:ident: $arguments:expr;)*) => {$(
        $(#[$doc])*
        #[test]
        fn $name() {
            let rig = or_skip!(Rig::loopback(UTILS));
            exchange(&rig, &$arguments);
        }
    )*

    /// All variants over UDP.
    mod udp {
        use super::*;

        $(
            #[test]
            fn $name() {
                let rig = or_skip!(Rig::loopback(UTILS)).with_link("udp");
                exchange(&rig, &$arguments);
            }
        )*
    }};
}

variants! {
    default: [];
    checked: ["-c"];
    events: ["-e"];
    events_checked: ["-e", "-c"];
    large_messages: ["-s", "1048576", "-n", "200"];
    large_messages_checked: ["-s", "1048576", "-n", "200", "-c", "-m", "4096"];
    large_messages_with_events: ["-s", "1048576", "-n", "200", "-e"];
    mtu_4096: ["-m", "4096"];
    mtu_256: ["-m", "256", "-c"];
    /// One receive is posted at a time, so that the peer may send too early and get RNR NAKs.
    one_receive_at_a_time: ["-r", "1"];
    one_receive_at_a_time_with_events: ["-r", "1", "-e", "-n", "200"];
    new_post_send: ["-N"];
    new_post_send_checked: ["-N", "-c", "-e"];
    on_demand_paging: ["-o", "-c"];
    on_demand_paging_with_prefetch: ["-o", "-P", "-c"];
    implicit_on_demand_paging: ["-O", "-c"];
    device_memory: ["-j", "-c"];
    one_byte: ["-s", "1", "-c"];
    odd_size: ["-s", "4097", "-c"];
}

/// Many QPs that take their receives from a shared receive queue.
#[test]
fn shared_receive_queue() {
    for link in LINKS {
        let rig = or_skip!(Rig::loopback(UTILS)).with_link(link);
        for arguments in [
            &["-q", "16"][..],
            &["-q", "16", "-e"],
            &["-q", "16", "-c", "-e"],
            &["-q", "16", "-c", "-s", "4097"],
            &["-q", "4", "-r", "8", "-c"],
            &["-q", "1", "-s", "1", "-n", "200"],
        ] {
            report(&Pingpong::of("ibv_srq_pingpong", arguments), &rig);
        }
    }
}

/// XRC in both directions with one client, which shares an XRC domain with the server on this host.
#[test]
fn xrc() {
    for link in LINKS {
        let rig = or_skip!(Rig::loopback(UTILS)).with_link(link);
        for arguments in [&[][..], &["-e"], &["-s", "9001", "-n", "300"]] {
            Pingpong::of("ibv_xsrq_pingpong", arguments).run(&rig, LIMIT);
        }
    }
}

/// XRC with several clients, which share one XRC domain with the server, because all of them open
/// the same file.
#[test]
fn xrc_with_four_clients() {
    for link in LINKS {
        let rig = or_skip!(Rig::loopback(UTILS)).with_link(link);
        let pair = Pingpong::of("ibv_xsrq_pingpong", &["-c", "4"]);
        let port = free_port();
        let server = pair.start_server(&rig, port);
        let words = format!("ibv_xsrq_pingpong -d rocade0 -g 0 -p {port} -c 4 127.0.0.1");
        let words: Vec<&str> = words.split(' ').collect();
        let clients: Vec<_> = (0..4)
            .map(|client| rig.start(&format!("client {client}"), &Device::on("lo"), &words))
            .collect();
        for side in clients.into_iter().chain([server]) {
            let output = side.finish(LIMIT).expect_success();
            assert!(output.contains("success"), "{output}");
        }
    }
}

/// UC and UD, which lose no packets while the receive buffers have room.
#[test]
fn unreliable_services() {
    for link in LINKS {
        let rig = or_skip!(Rig::loopback(UTILS)).with_link(link);
        for arguments in [&[][..], &["-e"], &["-c"], &["-e", "-c", "-s", "1"]] {
            report(&Pingpong::of("ibv_ud_pingpong", arguments), &rig);
            report(&Pingpong::of("ibv_uc_pingpong", arguments), &rig);
        }
        let large = ["-s", "100001", "-n", "200", "-c", "-m", "4096"];
        report(&Pingpong::of("ibv_uc_pingpong", &large), &rig);
        report(
            &Pingpong::of("ibv_ud_pingpong", &["-s", "4096", "-c"]),
            &rig,
        );
    }
}

#[test]
fn completion_timestamps() {
    for link in LINKS {
        let rig = or_skip!(Rig::loopback(UTILS)).with_link(link);
        for output in exchange(&rig, &["-t"]) {
            assert!(
                output.contains("completion clock"),
                "no statistics of timestamps in\n{output}"
            );
        }
    }
}

/// Checks that a client with any ICRC backend that the CPU supports works with a server that uses
/// the best one. A backend for another CPU must be reported as an error.
#[test]
fn every_way_to_compute_the_icrc() {
    let rig = or_skip!(Rig::loopback(UTILS)).with_link("udp");
    let pair = Pingpong::new(&["-m", "4096", "-s", "10001", "-n", "100", "-c"]);
    let client = |backend: &str, port: u16| {
        let words = format!(
            "env ROCADE_ICRC={backend} ibv_rc_pingpong -d rocade0 -g 0 -p {port} -m 4096 -s 10001 -n 100 -c 127.0.0.1"
        );
        let words: Vec<&str> = words.split(' ').collect();
        rig.start(backend, &Device::on("lo"), &words)
    };
    let available: Vec<&str> = Backend::available().map(Backend::name).collect();
    assert!(available.contains(&"table"), "{available:?}");
    for backend in &available {
        let port = free_port();
        let server = pair.start_server(&rig, port);
        for side in [client(backend, port), server] {
            let output = side.finish(LIMIT).expect_success();
            assert!(output.contains("100 iters in "), "{backend}: {output}");
            assert!(!output.contains("invalid data"), "{backend}: {output}");
        }
    }
    for backend in Backend::names().filter(|backend| !available.contains(backend)) {
        let output = client(backend, free_port()).finish(LIMIT).expect_failure();
        assert!(
            output.contains(&format!("ROCADE_ICRC = {backend:?}")),
            "{output}"
        );
    }
}

/// Runs the same pair several times, so that the broker and its process slots are reused.
#[test]
fn again_and_again_on_one_broker() {
    let rig = or_skip!(Rig::loopback(UTILS));
    for _ in 0..5 {
        exchange(&rig, &["-n", "100", "-c"]);
    }
}

/// Checks that a program that ends at once after its last message has acknowledged it. Otherwise
/// its peer gets `IBV_WC_RETRY_EXC_ERR`. The race takes microseconds, hence many repetitions.
#[test]
fn the_last_acknowledgement_is_sent_before_the_program_ends() {
    for link in LINKS {
        let rig = or_skip!(Rig::loopback(UTILS)).with_link(link);
        for _ in 0..50 {
            exchange(&rig, &["-n", "20"]);
        }
    }
}
