//! Rocade and the Linux kernel's rdma_rxe: one side runs in a QEMU guest (`interop/rxe-vm`), the
//! other on Rocade.
//!
//! The tests need root and the packages named in `interop/rxe-vm/README.md`, and are otherwise
//! skipped with a reason. Emulation is slow (15 MB/s, 0.4 ms per direction), so the limits are wide
//! and the counts small.

#[path = "interop_rxe/cm.rs"]
mod cm;
#[path = "interop_rxe/conformance.rs"]
mod conformance;
#[path = "interop_rxe/data.rs"]
mod data;
#[path = "interop_rxe/dma_buf.rs"]
mod dma_buf;
#[path = "interop_rxe/flush.rs"]
mod flush;

use std::{
    ffi::OsString,
    time::{Duration, Instant},
};

use rocade_tests::{
    harness::{
        Capture, Device, IcrcCounters, Network, Perftest, Pingpong, Process, Rig, RxeGuest,
        devinfo_gids, free_port, has_result, tshark,
    },
    or_skip,
    skip::Reason,
};

/// Enough for 2 GiB at the speed of an emulated processor, which take a few minutes.
const LONG: Duration = Duration::from_secs(600);
const SHORT: Duration = Duration::from_secs(120);

const NEEDS: &[(&str, &str)] = &[
    ("ib_write_bw", "perftest"),
    ("ibv_rc_pingpong", "ibverbs-utils"),
];

/// Returns the guest, and a rig in its namespace, with Rocade's device on the bridge.
fn rig() -> Result<(Rig, &'static RxeGuest), Reason> {
    let guest = RxeGuest::get()?;
    Ok((Rig::in_namespace(guest.namespace(), NEEDS)?, guest))
}

/// Like [`rig`], but with the guest whose kernel supports FLUSH and ATOMIC WRITE.
fn newer_rig() -> Result<(Rig, &'static RxeGuest), Reason> {
    let guest = RxeGuest::get_newer()?;
    Ok((Rig::in_namespace(guest.namespace(), NEEDS)?, guest))
}

/// Compares the guest's counters before and after a test.
struct Watch {
    guest: &'static RxeGuest,
    before: IcrcCounters,
}

impl Watch {
    fn new(guest: &'static RxeGuest) -> Self {
        Self {
            guest,
            before: guest.icrc(),
        }
    }

    /// Checks that the guest received packets, dropped none because of its ICRC, and exhausted no
    /// retries.
    fn check(&self) {
        let after = self.guest.icrc();
        assert_eq!(
            after.rejected, self.before.rejected,
            "the guest dropped packets for their ICRC"
        );
        assert!(
            after.accepted > self.before.accepted,
            "the guest received nothing"
        );
        let statistics = self.guest.statistics();
        for name in ["retry_exceeded_err", "retry_rnr_exceeded_err", "send_err"] {
            assert_eq!(statistics.get(name), Some(&0), "{name} in {statistics:?}");
        }
    }
}

fn strs(words: &[String]) -> Vec<&str> {
    words.iter().map(String::as_str).collect()
}

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

/// Checks the counter on which the other tests rely: a packet with a wrong ICRC is counted.
#[test]
fn the_guest_notices_a_wrong_icrc() {
    let (_rig, guest) = or_skip!(rig());
    let before = guest.icrc();
    // A UD SEND Only to QP 1 with its Q_Key and a payload of 256 zero bytes.
    let script = "import socket\n\
        s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n\
        s.bind(('192.168.77.1', 0))\n\
        bth = bytes.fromhex('6400ffff' '00000001' '00000000'); deth = bytes.fromhex('80010000' '00000001')\n\
        s.sendto(bth + deth + bytes(256) + b'wong', ('192.168.77.2', 4791))\n";
    let network = Network::named(guest.namespace());
    let command: [OsString; 3] = ["python3".into(), "-c".into(), script.into()];
    assert!(network.command(&command).status().unwrap().success());
    let until = Instant::now() + SHORT;
    while guest.icrc().rejected != before.rejected + 1 {
        let now = guest.icrc();
        assert!(Instant::now() < until, "{before:?}, then {now:?}");
    }
}

/// Runs pingpong with the server in the guest and the client on Rocade.
fn pingpong_to_guest(rig: &Rig, guest: &RxeGuest, gids: [u8; 2], arguments: &str) {
    program_to_guest(rig, guest, "ibv_rc_pingpong", gids, arguments);
}

fn program_to_guest(
    rig: &Rig,
    guest: &RxeGuest,
    program: &'static str,
    gids: [u8; 2],
    arguments: &str,
) {
    let port = free_port();
    let server = words(&format!(
        "{program} -d rxe0 -g {} -p {port} {arguments}",
        gids[0]
    ));
    guest.spawn("pingpong", Some(port), &strs(&server));
    let mut pair = Pingpong::of(program, &strs(&words(arguments)));
    pair.gid_index[1] = gids[1];
    pair.devices[1] = Device::on(RxeGuest::BRIDGE);
    let client = pair.start_client(rig, RxeGuest::ADDRESS, port);
    finish(client, guest, "pingpong", LONG);
}

/// Runs pingpong with the server on Rocade and the client in the guest.
fn pingpong_from_guest(rig: &Rig, guest: &RxeGuest, gids: [u8; 2], arguments: &str) {
    program_from_guest(rig, guest, "ibv_rc_pingpong", gids, arguments);
}

fn program_from_guest(
    rig: &Rig,
    guest: &RxeGuest,
    program: &'static str,
    gids: [u8; 2],
    arguments: &str,
) {
    let port = free_port();
    let mut pair = Pingpong::of(program, &strs(&words(arguments)));
    pair.gid_index[0] = gids[0];
    pair.devices[0] = Device::on(RxeGuest::BRIDGE);
    let server = pair.start_server(rig, port);
    let client = words(&format!(
        "{program} -d rxe0 -g {} -p {port} {arguments} 192.168.77.1",
        gids[1]
    ));
    guest.spawn("pingpong", None, &strs(&client));
    finish(server, guest, "pingpong", LONG);
}

/// Waits for both sides, and returns the outputs. If one side fails, the message shows both
/// outputs.
fn finish(ours: Process, guest: &RxeGuest, job: &str, limit: Duration) -> [String; 2] {
    let ours = ours.finish(limit);
    let theirs = if ours.status.success() {
        guest.wait(job, SHORT)
    } else {
        guest.wait(job, Duration::from_secs(5))
    };
    assert!(
        ours.status.success() && theirs.status.success(),
        "{}: {}\n{}\n{}: {}\n{}\n{:?}\n{:?}",
        ours.name,
        ours.status,
        ours.output,
        theirs.name,
        theirs.status,
        theirs.output,
        guest.icrc(),
        guest.statistics()
    );
    for output in [&ours.output, &theirs.output] {
        assert!(!output.contains("invalid data"), "{output}");
    }
    [ours.output, theirs.output]
}

/// Returns the index of the GID `wanted` of the device on the bridge.
fn gid_index(rig: &Rig, wanted: &str) -> u8 {
    let devinfo = rig.start(
        "ibv_devinfo",
        &Device::on(RxeGuest::BRIDGE),
        &["ibv_devinfo", "-v"],
    );
    let output = devinfo.finish(SHORT).expect_success();
    let index = devinfo_gids(&output).iter().position(|gid| gid == wanted);
    index
        .and_then(|n| u8::try_from(n).ok())
        .unwrap_or_else(|| panic!("no GID {wanted} in\n{output}"))
}

#[test]
fn small_pingpong_both_ways() {
    let (rig, guest) = or_skip!(rig());
    let watch = Watch::new(guest);
    let ours = gid_index(&rig, "::ffff:192.168.77.1");
    pingpong_to_guest(&rig, guest, [1, ours], "-n 100 -c");
    pingpong_from_guest(&rig, guest, [ours, 1], "-n 100 -c");
    pingpong_to_guest(&rig, guest, [1, ours], "-n 100 -c -e -s 5001 -r 1");
    watch.check();
}

/// Runs UC and UD, and compares the data.
#[test]
fn uc_and_ud_pingpong_both_ways() {
    let (rig, guest) = or_skip!(rig());
    let watch = Watch::new(guest);
    let ours = gid_index(&rig, "::ffff:192.168.77.1");
    for (program, arguments) in [
        ("ibv_ud_pingpong", "-n 100 -c -s 1024"),
        ("ibv_ud_pingpong", "-n 100 -c -e -s 1"),
        ("ibv_uc_pingpong", "-n 100 -c -s 5001 -m 1024"),
    ] {
        program_to_guest(&rig, guest, program, [1, ours], arguments);
        program_from_guest(&rig, guest, program, [ours, 1], arguments);
    }
    let ours = gid_index(&rig, "fd77::1");
    program_to_guest(
        &rig,
        guest,
        "ibv_ud_pingpong",
        [2, ours],
        "-n 100 -c -s 1000",
    );
    program_from_guest(
        &rig,
        guest,
        "ibv_ud_pingpong",
        [ours, 2],
        "-n 100 -c -s 1000",
    );
    watch.check();
}

#[test]
fn small_pingpong_over_ipv6() {
    let (rig, guest) = or_skip!(rig());
    let watch = Watch::new(guest);
    let ours = gid_index(&rig, "fd77::1");
    pingpong_to_guest(&rig, guest, [2, ours], "-n 100 -c -s 65536");
    pingpong_from_guest(&rig, guest, [ours, 2], "-n 100 -c -s 65536");
    watch.check();
}

/// Returns the arguments for long messages. `ROCADE_RXE_MESSAGES=1000` sends a thousand of them,
/// which takes minutes.
fn large_messages() -> String {
    let count = std::env::var("ROCADE_RXE_MESSAGES").unwrap_or_else(|_| "100".to_owned());
    format!("-s 1048576 -m 1024 -n {count} -c")
}

#[test]
fn large_messages_with_the_server_in_the_guest() {
    let (rig, guest) = or_skip!(rig());
    let watch = Watch::new(guest);
    let ours = gid_index(&rig, "::ffff:192.168.77.1");
    pingpong_to_guest(&rig, guest, [1, ours], &large_messages());
    watch.check();
}

#[test]
fn large_messages_with_the_server_on_rocade() {
    let (rig, guest) = or_skip!(rig());
    let watch = Watch::new(guest);
    let ours = gid_index(&rig, "::ffff:192.168.77.1");
    pingpong_from_guest(&rig, guest, [ours, 1], &large_messages());
    watch.check();
}

/// Runs one of perftest's programs with the server in the guest, then on Rocade. The QP timeout is
/// long because the guest is slow.
///
/// READ and atomics need `-o 16`. By default perftest requests as many outstanding operations on
/// its own QP as the peer's device supports (rxe: 128). `ibv_modify_qp` refuses a value above the
/// own limit.
fn perftest_both_ways(rig: &Rig, guest: &RxeGuest, program: &str, arguments: &str) {
    let arguments = format!("{arguments} -u 18 -m 1024");
    let ours = gid_index(rig, "::ffff:192.168.77.1");
    let mut pair = Perftest::new(program, &strs(&words(&arguments)));
    pair.gid_index = [ours, ours];
    pair.devices = [Device::on(RxeGuest::BRIDGE), Device::on(RxeGuest::BRIDGE)];
    let in_guest = |port: u16| words(&format!("{program} -d rxe0 -F -x 1 -p {port} {arguments}"));

    let port = free_port();
    guest.spawn(program, Some(port), &strs(&in_guest(port)));
    let client = pair.start_client(rig, RxeGuest::ADDRESS, port);
    let [output, _] = finish(client, guest, program, SHORT);
    assert!(has_result(&output), "{output}");

    let port = free_port();
    let server = pair.start_server(rig, port);
    let mut client = in_guest(port);
    client.push("192.168.77.1".to_owned());
    guest.spawn(program, None, &strs(&client));
    let [_, output] = finish(server, guest, program, SHORT);
    assert!(has_result(&output), "{output}");
}

macro_rules! perftest {
    ($($name:ident: $program:literal $arguments:literal;)*) => {$(
        #[test]
        fn $name() {
            let (rig, guest) = or_skip!(rig());
            let watch = Watch::new(guest);
            perftest_both_ways(&rig, guest, $program, $arguments);
            watch.check();
        }
    )*};
}

perftest! {
    write_bw: "ib_write_bw" "-s 65536 -n 100";
    write_lat: "ib_write_lat" "-s 4096 -n 100";
    read_bw: "ib_read_bw" "-s 65536 -n 100 -o 16";
    read_lat: "ib_read_lat" "-s 4096 -n 100 -o 16";
    send_bw: "ib_send_bw" "-s 65536 -n 100";
    send_lat: "ib_send_lat" "-s 4096 -n 100";
    fetch_and_add_bw: "ib_atomic_bw" "-n 200 -A FETCH_AND_ADD -o 16";
    uc_write_bw: "ib_write_bw" "-c UC -s 65536 -n 100";
    uc_send_lat: "ib_send_lat" "-c UC -s 4096 -n 100";
    ud_send_bw: "ib_send_bw" "-c UD -s 1024 -n 100";
    ud_send_lat: "ib_send_lat" "-c UD -s 64 -n 100";
    compare_and_swap_lat: "ib_atomic_lat" "-n 100 -A CMP_AND_SWAP -o 16";
}

/// Checks that only RC opcodes that rxe supports reach it, and that tshark reports no malformed
/// packet.
//= RXE-02 RXE-115 type=test
#[test]
fn what_reaches_the_guest_is_plain_rc() {
    let (rig, guest) = or_skip!(rig());
    if let Some(reason) =
        rocade_tests::skip::missing_command(&[("tcpdump", "tcpdump"), ("tshark", "tshark")])
    {
        rocade_tests::skip!(reason);
    }
    let capture = Capture::start(&rig, RxeGuest::TAP);
    perftest_both_ways(&rig, guest, "ib_send_bw", "-s 20000 -n 20");
    perftest_both_ways(&rig, guest, "ib_read_bw", "-s 20000 -n 20 -o 16");
    perftest_both_ways(&rig, guest, "ib_atomic_bw", "-n 20 -o 16");
    let file = capture.stop();
    let malformed = tshark(&file, "_ws.malformed || !infiniband", &["frame.number"]);
    assert!(malformed.is_empty(), "frames {malformed:?}");
    let opcodes = tshark(&file, "ip.src == 192.168.77.1", &["infiniband.bth.opcode"]);
    assert!(opcodes.len() > 100, "{} packets", opcodes.len());
    for opcode in opcodes {
        let opcode: u8 = opcode
            .parse()
            .unwrap_or_else(|_| panic!("opcode {opcode:?}"));
        let known = opcode <= 0x14 || opcode == 0x16 || opcode == 0x17;
        assert!(known, "opcode {opcode:#04x} was sent to rxe");
    }
}
