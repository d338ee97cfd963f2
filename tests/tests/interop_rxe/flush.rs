//! FLUSH with the kernel as requester, which libibverbs of that age cannot post. The program
//! `tests/interop/data/rxe-flush.c` writes it into the send queue of rxe.

use std::collections::BTreeMap;

use rocade_tests::{
    harness::{Capture, Device, RxeGuest, datagrams, free_port},
    or_skip,
    skip::missing_command,
};
use rocade_wire::{
    Operation, Packet,
    icrc::{IcrcCheck, IcrcFlow},
    ip::Datagram,
};

use super::{SHORT, data, finish, gid_index, newer_rig};

const NAME: &str = "rxe-flush";

/// Checks that a FLUSH of this kernel is dropped for its ICRC, so that its retries exhaust. If this
/// test fails, the kernel has been fixed.
//= RXE-17 type=test
#[test]
fn a_flush_of_the_newer_kernel_is_dropped_for_its_icrc() {
    let (rig, guest) = or_skip!(newer_rig());
    if let Some(reason) = missing_command(&[("tcpdump", "tcpdump")]) {
        rocade_tests::skip!(reason);
    }
    let program = or_skip!(data::program(rig.dir(), NAME));
    guest.put(&program);
    let capture = Capture::start(&rig, RxeGuest::TAP);

    let gid = gid_index(&rig, "::ffff:192.168.77.1").to_string();
    let port = free_port();
    let mut ours = rig.start(
        NAME,
        &Device::on(RxeGuest::BRIDGE),
        &[
            &program.to_string_lossy(),
            "rocade0",
            &gid,
            &port.to_string(),
        ],
    );
    ours.wait_listening(port, SHORT);
    let theirs = format!("/share/{NAME}");
    let port = port.to_string();
    guest.spawn(NAME, None, &[&theirs, "rxe0", "1", &port, "192.168.77.1"]);
    let [ours, theirs] = finish(ours, guest, NAME, SHORT);

    for kind in [
        "type 1, level 0",
        "type 1, level 1",
        "type 2, level 0",
        "type 2, level 1",
    ] {
        let line = format!("FLUSH of {kind}: transport retry counter exceeded");
        assert!(theirs.contains(&line), "{theirs}");
    }
    let flushes = flushes(&datagrams(&capture.stop()));
    let sent: usize = flushes.values().sum();
    let dropped = format!("dropped for their ICRC: {sent}\n");
    assert!(ours.contains(&dropped), "{sent}: {ours}");
    let kinds: Vec<_> = flushes.into_keys().collect();
    // The type in the lowest bits, the level four bits above.
    assert_eq!(kinds, [0x01, 0x02, 0x11, 0x12]);
}

/// Counts the FLUSHes by the raw kind in their header, and checks that Rocade's ICRC differs.
#[expect(
    clippy::unwrap_used,
    reason = "the helpers of a test, too, fail by panicking"
)]
fn flushes(datagrams: &[Vec<u8>]) -> BTreeMap<u32, usize> {
    let mut counts = BTreeMap::new();
    for bytes in datagrams {
        let datagram = Datagram::parse(bytes).unwrap();
        let packet = Packet::parse(datagram.udp_payload).unwrap();
        if packet.bth().opcode.operation() != Some(Operation::Flush) {
            continue;
        }
        let flow = IcrcFlow::new(datagram.src, datagram.dst, datagram.src_port).unwrap();
        let check = flow.check(datagram.ip_id, packet.covered(), packet.icrc_bytes());
        assert_eq!(check, IcrcCheck::Bad, "{datagram}");
        let feth = packet.headers().feth.unwrap();
        *counts.entry(feth.raw()).or_default() += 1;
    }
    counts
}
