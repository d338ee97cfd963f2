//! Rocade's packets on the wire, as dissected by tshark, and their ICRCs.

use std::{collections::BTreeSet, path::Path};

use rocade_tests::{
    harness::{Capture, Perftest, Pingpong, Rig, datagrams, free_port, own_datagrams, tshark},
    or_skip,
};

use crate::{LIMIT, LINKS, PERFTEST};

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
        Perftest::new(
            program,
            &["-s", "20000", "-n", "20", "-m", "1024", "-u", "18"],
        )
        .run(&rig, LIMIT);
    }
    for kind in ["FETCH_AND_ADD", "CMP_AND_SWAP"] {
        Perftest::new("ib_atomic_bw", &["-n", "20", "-A", kind]).run(&rig, LIMIT);
    }
    let file = capture.stop();

    assert_icrcs(&datagrams(&file));
    let all = tshark(&file, "udp.port == 4791", &["frame.number"]);
    assert!(all.len() > 500, "{} packets", all.len());
    assert_dissected(&file);

    let seen: BTreeSet<u8> = tshark(&file, "infiniband", &["infiniband.bth.opcode"])
        .iter()
        .map(|opcode| {
            opcode
                .parse()
                .unwrap_or_else(|_| panic!("opcode {opcode:?}"))
        })
        .collect();
    // SEND First/Middle/Last/Only, WRITE First/Middle/Last, READ request and responses, ACK,
    // atomics.
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

/// Checks that tshark dissects every packet as InfiniBand, and none as malformed.
fn assert_dissected(file: &Path) {
    let undissected = tshark(file, "!infiniband", &["frame.number", "_ws.col.Info"]);
    assert!(undissected.is_empty(), "{undissected:#?}");
    let malformed = tshark(
        file,
        "_ws.malformed || _ws.expert.severity == error",
        &["frame.number", "_ws.col.Info"],
    );
    assert!(malformed.is_empty(), "{malformed:#?}");
}

/// Checks that `--capture` writes the packets that a capture on a wire would show, also through
/// shared memory, and records what `--fault` did. Both programs write into one file.
#[test]
fn tshark_reads_our_own_captures() {
    let needs = [PERFTEST, &[("tshark", "tshark")]].concat();
    for link in LINKS {
        let rig = or_skip!(Rig::loopback(&needs)).with_link(link);
        let file = rig.dir().join("own.pcapng");
        let path = file.to_string_lossy().into_owned();
        let rule = "drop opcode=READ_RESPONSE nth=3";
        let rig = rig.with_options(&["--capture", &path, "--fault", rule]);
        Perftest::new(
            "ib_read_bw",
            &["-s", "20000", "-n", "20", "-m", "1024", "-u", "18"],
        )
        .run(&rig, LIMIT);

        let all = own_datagrams(&file);
        assert!(all.len() > 500, "{link}: {} packets", all.len());
        assert_icrcs(&all.iter().map(|(ip, _)| ip.clone()).collect::<Vec<_>>());
        let notes: Vec<_> = all.iter().filter(|(_, note)| !note.is_empty()).collect();
        assert_eq!(notes.len(), 1, "{link}: {notes:?}");
        assert_eq!(notes[0].1, format!("lost ({rule})"));

        assert_dissected(&file);
        assert_eq!(
            tshark(&file, "infiniband", &["frame.number"]).len(),
            all.len()
        );
        let lost = "frame.comment contains \"lost\"";
        let opcode = tshark(
            &file,
            lost,
            &["infiniband.bth.opcode", "frame.interface_name"],
        );
        let interface = if link == "udp" {
            "rocade-udp"
        } else {
            "rocade-shm"
        };
        assert_eq!(opcode, [format!("14\t{interface}")]);
        // The file has each packet twice, from sender and receiver, except for the lost one.
        let way = |inbound| {
            tshark(
                &file,
                &format!("frame.packet_flags_direction == {inbound}"),
                &["frame.number"],
            )
            .len()
        };
        assert_eq!(way(1) + 1, way(2), "{link}");

        // A new run truncates the file.
        let none = rig.start_with("ibv_devinfo", &[], &["ibv_devinfo"]);
        none.finish(LIMIT).expect_success();
        assert_eq!(own_datagrams_or_empty(&file), 0);
    }
}

/// Checks that a program killed under traffic leaves a readable capture, in which only the last
/// packets may be missing.
#[test]
fn what_a_killed_program_has_captured_can_be_read() {
    let rig = or_skip!(Rig::loopback(PERFTEST));
    let file = rig.dir().join("killed.pcapng");
    let path = file.to_string_lossy().into_owned();
    let rig = rig.with_options(&["--capture", &path]);
    let words = ["-s", "64", "-t", "4", "-D", "1", "--run_infinitely"];
    let pair = Perftest::new("ib_send_bw", &words);
    let port = free_port();
    let mut server = pair.start_server(&rig, port);
    let mut client = pair.start_client(&rig, "127.0.0.1", port);
    client.wait_until("packets in the file", LIMIT, |_| {
        let len = std::fs::metadata(&file).map_or(0, |file| file.len());
        (len > 1 << 20).then_some(())
    });
    client.kill();
    server.kill();
    let drawn = rig.rocade(&["ladder", &path, "-o", "/dev/null"]);
    let words = drawn.expect_success();
    assert!(words.contains(" packets of 1 conversation"), "{words}");
}

/// Returns the number of packets in a capture, which is 0 for an empty file.
fn own_datagrams_or_empty(file: &Path) -> usize {
    let is_empty = std::fs::metadata(file).is_ok_and(|file| file.len() == 0);
    if is_empty {
        0
    } else {
        own_datagrams(file).len()
    }
}

/// Checks every ICRC against the IP header as sent, because the ICRC covers fields that the kernel
/// fills in.
fn assert_icrcs(datagrams: &[Vec<u8>]) {
    for (n, datagram) in datagrams.iter().enumerate() {
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
