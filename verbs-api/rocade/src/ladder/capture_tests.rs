//! Tests with recorded files, and with captures that have one end only.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rocade_wire::mad::{CmMessage, CommId, Rtu, ServiceId};
use rocade_wire::{Qpn, Service};

use super::datagram_tests::{CLIENT, SERVER, mad, packet, rep, req, write};
use super::pair::{Conversation, conversations};
use super::read::{Capture, PacketDirection, Seen, read};
use super::{Facts, html};

fn recorded(name: &str) -> PathBuf {
    let captures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/captures/rocade");
    captures.join(name)
}

fn count(all: &[Conversation], is_so: fn(super::Marks) -> bool) -> usize {
    all.iter().map(|of| of.count(is_so)).sum()
}

/// tcpdump on `lo` and on one end of a veth pair sees runs of packets as one datagram each.
#[test]
fn joined_packets_are_cut() {
    for (name, datagrams, segments, packets) in [
        ("gso-lo-ipv4.pcap", 2, 10, 12),
        ("gso-veth-ipv6.pcap", 4, 8, 47),
    ] {
        let path = recorded(name);
        let capture = read(&path).unwrap();
        assert_eq!((capture.joined, capture.segments), (datagrams, segments));
        assert_eq!((capture.too_long, capture.others), (0, 0));
        let facts = Facts::of(&path, &capture);
        let all = conversations(capture.packets, true);
        let arrows: usize = all.iter().map(|of| of.arrows.len()).sum();
        assert_eq!(arrows, packets, "{name}");
        assert_eq!(count(&all, |marks| marks.is_incident()), 0, "{name}");
        let page = html(&facts, &all, all.len(), false);
        let words = format!("joined {segments} packets in {datagrams} datagrams (GSO, GRO)");
        assert!(page.contains(&words), "{name}");
    }
}

/// The server at the same address, which shares QP 1, was not captured.
#[test]
fn a_capture_of_the_client_invents_no_losses() {
    let path = recorded("cm-client-only.pcapng");
    let capture = read(&path).unwrap();
    let facts = Facts::of(&path, &capture);
    let all = conversations(capture.packets, true);
    assert_eq!(all.len(), 2);
    assert_eq!(count(&all, |marks| marks.lost), 0);
    let page = html(&facts, &all, 2, false);
    assert!(page.contains("arrived is unknown"), "{page}");
    assert!(!page.contains("LOST"));
}

/// Returns the records of a connection and of one more REQ with an RTU, of which only the departure
/// is in the capture.
fn records(last_service: ServiceId) -> Vec<Seen> {
    let service = ServiceId::of_port(0x0106, 7471);
    let rtu = |local_id| {
        CmMessage::Rtu(Rtu {
            local_id: CommId::new(local_id),
            remote_id: CommId::new(70),
            private_data: [0; Rtu::PRIVATE_LEN],
        })
    };
    let CmMessage::Rep(mut rep) = rep(7, 0x22) else {
        panic!("no REP");
    };
    rep.local_id = CommId::new(70);
    let cm = |n, message| packet(Service::Ud, n, 1, 1, &mad(n.into(), message));
    let packets = [
        (CLIENT, SERVER, cm(1, req(7, 0x11, service))),
        (SERVER, CLIENT, cm(2, CmMessage::Rep(rep))),
        (CLIENT, SERVER, cm(3, rtu(7))),
        (CLIENT, SERVER, packet(Service::Uc, 5, 0, 0x22, &[1; 8])),
        (CLIENT, SERVER, cm(4, req(8, 0x12, last_service))),
        (CLIENT, SERVER, cm(5, rtu(8))),
        (CLIENT, SERVER, packet(Service::Uc, 6, 0, 0x22, &[2; 8])),
    ];
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.pcapng");
    write(&path, &packets);
    let Capture { mut packets, .. } = read(&path).unwrap();
    let mut n = 0;
    packets.retain(|seen| {
        n += 1;
        n <= 8 || seen.direction == PacketDirection::Sent
    });
    assert_eq!(packets.len(), 11);
    packets
}

/// Appends a packet that the server receives this long after the last departure.
fn with_later_arrival(mut packets: Vec<Seen>, later: Duration) -> Vec<Seen> {
    let mut last = packets[7].clone();
    assert_eq!(last.headers.bth.dest_qp, Qpn::new(0x22));
    last.time = packets[10].time + later;
    last.fingerprint ^= 1;
    packets.push(last);
    packets
}

#[test]
fn only_a_captured_receiver_can_have_lost_a_packet() {
    let (ours, other) = (
        ServiceId::of_port(0x0106, 7471),
        ServiceId::of_port(0x0106, 7472),
    );
    let ms = Duration::from_millis;
    let lost = |packets| count(&conversations(packets, true), |marks| marks.lost);
    assert_eq!(lost(with_later_arrival(records(ours), ms(5))), 3);
    // No process that was captured listens there.
    assert_eq!(lost(with_later_arrival(records(other), ms(5))), 2);
    // The records of the server end before, as if it had been killed.
    assert_eq!(lost(records(ours)), 0);
    assert_eq!(lost(with_later_arrival(records(ours), ms(1))), 0);
    // The capturing program has dropped packets.
    let all = conversations(with_later_arrival(records(ours), ms(5)), false);
    assert_eq!(count(&all, |marks| marks.lost), 0);
}

/// Each captured member of a group records an arrival of one departure.
#[test]
fn a_multicast_arrives_at_each_member() {
    let mut packets = records(ServiceId::of_port(0x0106, 7471));
    packets.truncate(8);
    let mut seen: Vec<Seen> = packets.split_off(6);
    let mut other = seen[1].clone();
    other.process = Some("other (pid 3)".into());
    seen.push(other);
    for seen in &mut seen {
        seen.destination = "239.1.2.3".parse().unwrap();
        seen.headers.bth.dest_qp = Qpn::new(0x00ff_ffff);
    }
    let all = conversations(seen, true);
    assert_eq!(count(&all, |marks| marks.noted || marks.lost), 0);
}
