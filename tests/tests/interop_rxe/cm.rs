//! Connections by `librdmacm` between Rocade and the kernel's `rdma_cm`, in both roles.

use std::{os::unix::process::ExitStatusExt, process::ExitStatus, time::Duration};

use rocade_tests::{
    harness::{Device, Finished, Rig, RxeGuest},
    or_skip,
};

use super::{SHORT, Watch, rig, strs, words};

/// The port spaces, as in service IDs.
const TCP: u16 = 0x0106;
const UDP: u16 = 0x0111;

/// The addresses of the guest and of Rocade on the bridge.
const IPV4: [&str; 2] = ["192.168.77.2", "192.168.77.1"];
const IPV6: [&str; 2] = ["fd77::2", "fd77::1"];

/// Waits until the guest's `rdma_cm` listens on a port.
fn wait_for_listener(guest: &RxeGuest, port: u16) {
    guest.wait_until("a listener", "rdma resource show cm_id", |ids| {
        ids.lines()
            .any(|line| line.contains("LISTEN") && line.contains(&format!(":{port} ")))
    });
}

/// Runs the server in the guest and the client on Rocade. Returns the outputs of server and client.
fn to_guest(rig: &Rig, guest: &RxeGuest, port: u16, server: &str, client: &str) -> [String; 2] {
    let (theirs, ours) = try_to_guest(rig, guest, port, server, client);
    [theirs.expect_success(), ours]
}

/// Like [`to_guest`], but returns how the server in the guest ended.
fn try_to_guest(
    rig: &Rig,
    guest: &RxeGuest,
    port: u16,
    server: &str,
    client: &str,
) -> (Finished, String) {
    guest.spawn("cm-server", None, &strs(&words(server)));
    wait_for_listener(guest, port);
    let client = rig.start(
        "client",
        &Device::on(RxeGuest::BRIDGE),
        &strs(&words(client)),
    );
    let client = client.finish(SHORT).expect_success();
    (guest.wait("cm-server", SHORT), client)
}

/// Runs the server on Rocade and the client in the guest. Returns the outputs of server and client.
fn from_guest(
    rig: &Rig,
    guest: &RxeGuest,
    (port_space, port): (u16, u16),
    server: &str,
    client: &str,
) -> [String; 2] {
    let (ours, theirs) = try_from_guest(rig, guest, (port_space, port), server, client);
    let client = theirs.expect_success();
    [ours.expect_success(), client]
}

/// Like [`from_guest`], but returns how both sides ended.
fn try_from_guest(
    rig: &Rig,
    guest: &RxeGuest,
    (port_space, port): (u16, u16),
    server: &str,
    client: &str,
) -> (Finished, Finished) {
    let mut server = rig.start(
        "server",
        &Device::on(RxeGuest::BRIDGE),
        &strs(&words(server)),
    );
    rig.wait_service(&mut server, port_space, port, SHORT);
    guest.spawn("cm-client", None, &strs(&words(client)));
    let theirs = guest.wait("cm-client", SHORT);
    // A server whose client failed may wait for another one.
    let limit = if theirs.status.success() || lost_its_race(&theirs) {
        SHORT
    } else {
        Duration::from_secs(5)
    };
    (server.finish_or_kill(limit), theirs)
}

/// The iterations of rping, each of which it prints.
const PINGS: usize = 5;

/// Returns true if rping in the guest has done all its work, and then failed only because of a race
/// between its own threads.
///
/// At its end the main thread closes the event channel, while the other one may be between two
/// calls of `rdma_get_cm_event`. The next call then fails with EBADF, and rping exits with -1. This
/// is a matter of microseconds, except on an emulated processor. With Rocade's library such a call
/// waits, so that rping on Rocade's side has to succeed.
fn lost_its_race(rping: &Finished) -> bool {
    const RACE: &str = "rdma_get_cm_event: Bad file descriptor";
    // What rping prints in any case.
    let is_usual = |line: &str| {
        line.contains("ping data: rdma-ping-")
            || line.ends_with(" DISCONNECT EVENT...")
            || line.starts_with("wait for RDMA_READ_ADV state ")
    };
    let unusual: Vec<_> = rping
        .output
        .lines()
        .filter(|line| !is_usual(line))
        .collect();
    rping.status.code() == Some(255) && has_pinged(&rping.output) && unusual == [RACE]
}

fn has_pinged(output: &str) -> bool {
    (0..PINGS).all(|n| output.contains(&format!("ping data: rdma-ping-{n}: ")))
}

/// With `-V` rping compares the data, too.
#[test]
fn rping_in_both_roles() {
    let (rig, guest) = or_skip!(rig());
    let watch = Watch::new(guest);
    for [theirs, ours] in [IPV4, IPV6] {
        let server = |ip| format!("rping -s -a {ip} -C {PINGS} -v -V");
        let client = |ip| format!("rping -c -a {ip} -C {PINGS} -v -V");
        let (their_server, our_client) =
            try_to_guest(&rig, guest, 7174, &server(theirs), &client(theirs));
        let (our_server, their_client) =
            try_from_guest(&rig, guest, (TCP, 7174), &server(ours), &client(ours));
        for theirs in [their_server, their_client] {
            if !lost_its_race(&theirs) {
                let output = theirs.expect_success();
                assert!(has_pinged(&output), "{output}");
            }
        }
        for ours in [our_client, our_server.expect_success()] {
            assert!(has_pinged(&ours), "{ours}");
        }
    }
    watch.check();
}

/// Only the end of a run that is complete is forgiven.
#[test]
fn only_the_known_race_of_rping_is_forgiven() {
    let ended = |code: i32, output: &str| Finished {
        name: "rping".to_owned(),
        status: ExitStatus::from_raw(code << 8),
        output: output.to_owned(),
    };
    let pings: String = (0..PINGS)
        .map(|n| format!("ping data: rdma-ping-{n}: ABC\n"))
        .collect();
    let race = "rdma_get_cm_event: Bad file descriptor\n";
    let whole = format!("{pings}client DISCONNECT EVENT...\n{race}");
    assert!(lost_its_race(&ended(255, &whole)));
    assert!(!lost_its_race(&ended(1, &whole)));
    assert!(!lost_its_race(&ended(255, race)), "before its work is done");
    let other = format!("{pings}data mismatch!\n{race}");
    assert!(!lost_its_race(&ended(255, &other)));
    assert!(!lost_its_race(&ended(255, &pings)));
}

#[test]
fn ucmatose_in_both_roles() {
    let (rig, guest) = or_skip!(rig());
    let watch = Watch::new(guest);
    let [theirs, ours] = IPV4;
    let server = |ip| format!("ucmatose -b {ip} -c 8 -C 5");
    let client = |ip| format!("ucmatose -s {ip} -c 8 -C 5");
    let outputs = to_guest(&rig, guest, 7471, &server(theirs), &client(theirs));
    let more = from_guest(&rig, guest, (TCP, 7471), &server(ours), &client(ours));
    for output in outputs.iter().chain(&more) {
        assert!(output.contains("return status 0"), "{output}");
    }
    watch.check();
}

/// Runs UD services over both IP versions.
#[test]
fn udaddy_in_both_roles() {
    let (rig, guest) = or_skip!(rig());
    let watch = Watch::new(guest);
    for [theirs, ours] in [IPV4, IPV6] {
        let server = |ip| format!("udaddy -b {ip} -c 2 -C 5");
        let client = |ip| format!("udaddy -s {ip} -c 2 -C 5");
        let outputs = to_guest(&rig, guest, 7174, &server(theirs), &client(theirs));
        let more = from_guest(&rig, guest, (UDP, 7174), &server(ours), &client(ours));
        for output in outputs.iter().chain(&more) {
            assert!(output.contains("return status 0"), "{output}");
        }
    }
    watch.check();
}

fn check_mckey(outputs: &[String; 2]) {
    for output in outputs {
        assert!(output.contains("return status 0"), "{output}");
        assert!(output.contains("data transfers complete"), "{output}");
    }
}

/// Runs a multicast receiver in the guest, then one on Rocade. On RoCE the kernel joins IPv4 groups
/// only.
//= MC-05 type=test
//= MC-06 type=test
//= CMA-14 type=test
#[test]
fn mckey_in_both_roles() {
    let (rig, guest) = or_skip!(rig());
    let watch = Watch::new(guest);
    let [theirs, ours] = IPV4;
    let of = |ip| format!("mckey -m 239.7.7.7 -b {ip} -C 5");
    let device = Device::on(RxeGuest::BRIDGE);

    guest.spawn("mckey", None, &strs(&words(&of(theirs))));
    // The Ethernet multicast address that the kernel receives for an attached QP.
    guest.wait_until("a member", "cat /proc/net/dev_mcast", |addresses| {
        addresses.contains("3333ef070707")
    });
    let sender = rig.start(
        "sender",
        &device,
        &strs(&words(&format!("{} -s", of(ours)))),
    );
    let sender = sender.finish(SHORT).expect_success();
    check_mckey(&[sender, guest.wait("mckey", SHORT).expect_success()]);

    let line = format!("stdbuf -oL {}", of(ours));
    let mut receiver = rig.start("receiver", &device, &strs(&words(&line)));
    receiver.wait_until("its joining", SHORT, |process| {
        process.output().contains("joined dgid").then_some(())
    });
    guest.spawn("mckey", None, &strs(&words(&format!("{} -s", of(theirs)))));
    let sender = guest.wait("mckey", SHORT).expect_success();
    check_mckey(&[sender, receiver.finish(SHORT).expect_success()]);
    watch.check();
}

/// Runs rsockets between both implementations, with sizes up to several buffers and all ways to
/// wait. rstream verifies every byte. Asynchronous mode runs on Rocade's side only. In that mode
/// rstream fails if the disconnect message arrives together with the last bytes, which happens with
/// the slow guest.
#[test]
fn rstream_in_both_roles() {
    let (rig, guest) = or_skip!(rig());
    let watch = Watch::new(guest);
    let small = ("", "-S 64 -C 20 -I 20");
    for ([theirs, ours], (way, sizes)) in [
        (IPV4, small),
        (IPV6, small),
        (IPV4, ("-T a", "-S 5000 -C 10 -I 10")),
        (IPV4, ("-T n", "-S 400000 -C 2 -I 4")),
    ] {
        let here = |role, ip| format!("rstream {role} {ip} -T v {way} {sizes}");
        let way = if way == "-T a" { "-T b" } else { way };
        let there = |role, ip| format!("rstream {role} {ip} -T v {way} {sizes}");
        let outputs = to_guest(&rig, guest, 7471, &there("-b", theirs), &here("-s", theirs));
        let more = from_guest(
            &rig,
            guest,
            (TCP, 7471),
            &here("-b", ours),
            &there("-s", ours),
        );
        for output in outputs.iter().chain(&more) {
            assert!(output.contains("custom"), "{output}");
            assert!(!output.contains("data verification failed"), "{output}");
        }
    }
    watch.check();
}

/// Connects to a port without a listener in the guest, and on Rocade. Each side must understand the
/// other's REJ.
#[test]
fn rejections_in_both_directions() {
    let (rig, guest) = or_skip!(rig());
    let client = |ip| format!("rping -c -a {ip} -C 1 -p 7999");
    let device = Device::on(RxeGuest::BRIDGE);
    let ours = rig.start("client", &device, &strs(&words(&client(IPV4[0]))));
    let output = ours.finish(SHORT).expect_failure();
    assert!(
        output.contains("RDMA_CM_EVENT_REJECTED, error 8"),
        "{output}"
    );

    let mut server = rig.start(
        "server",
        &device,
        &strs(&words("rping -s -P -a 192.168.77.1")),
    );
    rig.wait_service(&mut server, TCP, 7174, SHORT);
    guest.spawn("cm-client", None, &strs(&words(&client(IPV4[1]))));
    let output = guest.wait("cm-client", SHORT).expect_failure();
    assert!(
        output.contains("RDMA_CM_EVENT_REJECTED, error 8"),
        "{output}"
    );
    server.kill();
}
