//! What Rocade puts on the wire, as tshark sees it, and its ICRCs.

use std::{collections::BTreeSet, path::Path};

use rocade_tests::{
    harness::{Capture, Perftest, Pingpong, Rig, datagrams, tshark},
    or_skip,
};

use crate::{LIMIT, PERFTEST};

#[test]
fn tshark_finds_nothing_malformed() {
    let needs = [PERFTEST, &[("tcpdump", "tcpdump"), ("tshark", "tshark")]].concat();
    let rig = or_skip!(Rig::loopback(&needs)).with_link("udp");
    if !rig.network().is_isolated() {
        rocade_tests::skip!("cannot make a network namespace, so cannot capture");
    }
    let capture = Capture::start(&rig, "lo");
    Pingpong::new(&["-c", "-s", "10001", "-n", "20"]).run(&rig, LIMIT);
    Pingpong::new(&["-r", "1", "-s", "1", "-n", "20", "-m", "256"]).run(&rig, LIMIT);
    for program in ["ib_write_bw", "ib_send_lat", "ib_read_bw"] {
        Perftest::new(program, &["-s", "20000", "-n", "20", "-m", "1024"]).run(&rig, LIMIT);
    }
    for kind in ["FETCH_AND_ADD", "CMP_AND_SWAP"] {
        Perftest::new("ib_atomic_bw", &["-n", "20", "-A", kind]).run(&rig, LIMIT);
    }
    let file = capture.stop();

    assert_icrcs(&file);
    let all = tshark(&file, "udp.port == 4791", &["frame.number"]);
    assert!(all.len() > 500, "{} packets", all.len());
    let undissected = tshark(&file, "!infiniband", &["frame.number", "_ws.col.Info"]);
    assert!(undissected.is_empty(), "{undissected:#?}");
    let malformed = tshark(
        &file,
        "_ws.malformed || _ws.expert.severity == error",
        &["frame.number", "_ws.col.Info"],
    );
    assert!(malformed.is_empty(), "{malformed:#?}");

    let seen: BTreeSet<u8> = tshark(&file, "infiniband", &["infiniband.bth.opcode"])
        .iter()
        .map(|opcode| {
            opcode
                .parse()
                .unwrap_or_else(|_| panic!("opcode {opcode:?}"))
        })
        .collect();
    // SEND first/middle/last/only, WRITE first/middle/last, READ request and its responses, ACK, atomics.
    let expected = [
        0x00, 0x01, 0x02, 0x04, 0x06, 0x07, 0x08, 0x0c, 0x0d, 0x0e, 0x0f, 0x11, 0x12, 0x13, 0x14,
    ];
    let missing: Vec<_> = expected
        .iter()
        .filter(|opcode| !seen.contains(opcode))
        .collect();
    assert!(
        missing.is_empty(),
        "opcodes {missing:02x?} are not among {seen:02x?}"
    );
}

/// The ICRC covers fields of the IP header that the kernel fills in: with the header that was sent it must be right.
fn assert_icrcs(file: &Path) {
    for (n, datagram) in datagrams(file).iter().enumerate() {
        let parsed = rocade_wire::ip::Datagram::parse(datagram)
            .unwrap_or_else(|e| panic!("packet {n}: {e:?}"));
        let packet = rocade_wire::Packet::parse(parsed.udp_payload)
            .unwrap_or_else(|e| panic!("packet {n}: {e:?}"));
        let expected = rocade_wire::icrc::datagram(datagram).map(u32::to_le_bytes);
        assert_eq!(
            Some(packet.icrc_bytes()),
            expected,
            "ICRC of packet {n}: {packet}"
        );
    }
}
