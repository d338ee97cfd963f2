use std::fs::File;
use std::net::IpAddr;
use std::time::Duration;

use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::{PcapNgBlock as _, PcapNgWriter};
use pcap_file::{DataLink, Endianness};
use rocade_wire::icrc::IcrcFlow;
use rocade_wire::ip::Datagram;
use rocade_wire::{Opcode, Operation, Service};

use super::pair::{Conversation, conversations};
use super::read::read;
use super::*;

const A: [u8; 4] = [10, 0, 0, 1];
const B: [u8; 4] = [10, 0, 0, 2];
/// The QP numbers of the two ends.
const QP_A: u32 = 0x11;
const QP_B: u32 = 0x22;
const PORT: u16 = 0xC000;

/// Returns an IPv4 datagram with an RC packet. `more` follows the BTH.
fn packet(from_a: bool, operation: Operation, psn: u32, more: &[u8]) -> Vec<u8> {
    let (source, destination, qpn) = if from_a { (A, B, QP_B) } else { (B, A, QP_A) };
    let (src, dst): (IpAddr, IpAddr) = (source.into(), destination.into());
    let mut payload = vec![
        Opcode::of(Service::Rc, operation).unwrap().get(),
        0,
        0xff,
        0xff,
    ];
    payload.extend(qpn.to_be_bytes());
    payload.extend(psn.to_be_bytes());
    payload.extend(more);
    let icrc = IcrcFlow::new(src, dst, PORT).unwrap().compute(0, &payload);
    payload.extend(icrc.to_le_bytes());
    let datagram = Datagram {
        src,
        dst,
        ip_id: 0,
        dont_fragment: true,
        flow_label: 0,
        tos: 0,
        ttl: 64,
        src_port: PORT,
        dst_port: 4791,
        udp_checksum: 0,
        udp_payload: &payload,
    };
    let mut bytes = vec![0; datagram.len()];
    datagram.emit(&mut bytes).unwrap();
    bytes
}

/// Returns a RETH with this length.
fn reth(len: u32) -> Vec<u8> {
    [&[0; 12][..], &len.to_be_bytes()].concat()
}

/// Returns a READ of five packets, the third of which is lost, and the READ for the rest. Each
/// packet has a time in µs, and whether it is lost.
fn story() -> Vec<(u64, Vec<u8>, bool)> {
    let aeth = [0x1f, 0, 0, 1];
    let with_aeth = |len: usize| [&aeth[..], &vec![7; len]].concat();
    let middle = Operation::ReadResponseMiddle;
    vec![
        (
            0,
            packet(true, Operation::ReadRequest, 100, &reth(5000)),
            false,
        ),
        (
            10,
            packet(false, Operation::ReadResponseFirst, 100, &with_aeth(1024)),
            false,
        ),
        (11, packet(false, middle, 101, &[7; 1024]), false),
        (12, packet(false, middle, 102, &[7; 1024]), true),
        (13, packet(false, middle, 103, &[7; 1024]), false),
        (
            14,
            packet(false, Operation::ReadResponseLast, 104, &with_aeth(904)),
            false,
        ),
        (
            67_000,
            packet(true, Operation::ReadRequest, 102, &reth(2952)),
            false,
        ),
        (
            67_010,
            packet(false, Operation::ReadResponseFirst, 102, &with_aeth(1024)),
            false,
        ),
        (67_011, packet(false, middle, 103, &[7; 1024]), false),
        (
            67_012,
            packet(false, Operation::ReadResponseLast, 104, &with_aeth(904)),
            false,
        ),
        (
            67_020,
            packet(true, Operation::SendOnly, 105, &[1; 8]),
            false,
        ),
        (
            67_030,
            packet(false, Operation::Acknowledge, 105, &[0x60, 0, 0, 2]),
            false,
        ),
    ]
}

/// Writes the story like a capture at both ends, or like tcpdump.
fn write_story(path: &Path, both_ends: bool) {
    let file = File::create(path).unwrap();
    if !both_ends {
        let header = PcapHeader {
            datalink: DataLink::RAW,
            ..PcapHeader::default()
        };
        let mut writer = PcapWriter::with_header(file, header).unwrap();
        for (us, ip, lost) in story() {
            if !lost {
                let len = u32::try_from(ip.len()).unwrap();
                let packet = PcapPacket::new(Duration::from_micros(us), len, &ip);
                writer.write_packet(&packet).unwrap();
            }
        }
        return;
    }
    let mut writer = PcapNgWriter::with_endianness(file, Endianness::Big).unwrap();
    let interface = InterfaceDescriptionBlock {
        linktype: DataLink::ETHERNET,
        snaplen: 0,
        options: vec![InterfaceDescriptionOption::IfTsResol(9)],
    };
    writer.write_block(&interface.into_block()).unwrap();
    for (us, ip, lost) in story() {
        let frame = [&[2; 12][..], &[8, 0], &ip].concat();
        for (flags, later) in [(2, 0), (1, 3)] {
            if lost && flags == 1 {
                continue;
            }
            let mut options = vec![EnhancedPacketOption::Flags(flags)];
            if lost {
                options.push(EnhancedPacketOption::Comment("lost (drop <nth=3>)".into()));
            }
            let block = EnhancedPacketBlock {
                interface_id: 0,
                timestamp: Duration::from_micros(us + later),
                original_len: u32::try_from(frame.len()).unwrap(),
                data: frame.clone().into(),
                options,
            };
            writer.write_block(&block.into_block()).unwrap();
        }
    }
}

fn only_conversation(path: &Path) -> Conversation {
    let mut all = conversations(read(path).unwrap().packets, true);
    assert_eq!(all.len(), 1);
    all.remove(0)
}

#[test]
fn both_ends_make_one_conversation() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.pcapng");
    write_story(&path, true);
    let conversation = only_conversation(&path);
    let ends = conversation
        .ends
        .each_ref()
        .map(|end| (end.address, end.qpn));
    assert_eq!(ends, [(A.into(), Some(QP_A)), (B.into(), Some(QP_B))]);
    assert_eq!(conversation.arrows.len(), story().len());
    let psns = |is_so: fn(Marks) -> bool| -> Vec<u32> {
        let hit = conversation
            .arrows
            .iter()
            .filter(|arrow| is_so(arrow.marks));
        hit.map(|arrow| arrow.seen.headers.bth.psn.get()).collect()
    };
    assert_eq!(psns(|marks| marks.lost), [102]);
    assert_eq!(psns(|marks| marks.again), [102, 102, 103, 104]);
    assert_eq!(psns(|marks| marks.nak), [105]);
    assert_eq!(psns(|marks| marks.damaged), [0; 0]);
    for arrow in &conversation.arrows {
        let flight = arrow.arrived.map(|at| at - arrow.left.unwrap());
        let expected = (!arrow.marks.lost).then_some(Duration::from_micros(3));
        assert_eq!(flight, expected);
    }
    let lines = conversation.incident_lines();
    assert_eq!(
        lines,
        [
            "12.0 µs: READ_RESPONSE_MIDDLE  psn 102  1024 B — lost (drop <nth=3>), sent again 67.00 ms later",
            "67.03 ms: NAK: PSN sequence error  psn 105  msn 2",
        ]
    );
}

/// Packets that the capture dropped do not count as lost.
#[test]
fn gaps_of_the_capture_are_no_losses() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.pcapng");
    write_story(&path, true);
    let arrivals = |mut packets: Vec<read::Seen>| {
        packets.retain(|seen| {
            seen.direction != read::PacketDirection::Received || seen.headers.bth.psn.get() != 101
        });
        packets
    };
    for (is_whole, lost) in [(true, 2), (false, 1)] {
        let all = conversations(arrivals(read(&path).unwrap().packets), is_whole);
        assert_eq!(all[0].count(|marks| marks.lost), lost);
    }
}

#[test]
fn a_capture_of_tcpdump_has_no_arrivals_and_is_understood() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.pcap");
    write_story(&path, false);
    let conversation = only_conversation(&path);
    assert_eq!(conversation.count(|marks| marks.lost), 0);
    assert_eq!(
        conversation.count(|marks| marks.again),
        3,
        "102 was never seen before"
    );
    // A file that is still being written.
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() - 5]).unwrap();
    let capture = read(&path).unwrap();
    assert!(capture.cut.is_some());
    assert_eq!(capture.packets.len(), story().len() - 2);
}

#[test]
fn drawings_stand_alone_and_are_well_formed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a&b.pcapng");
    write_story(&path, true);
    let capture = read(&path).unwrap();
    let facts = Facts::of(&path, &capture);
    let all = conversations(capture.packets, true);
    for text in [svg(&all, false), html(&facts, &all, 1, false)] {
        for part in [
            "psn 102",
            "LOST",
            "sent again",
            "NAK: PSN sequence error",
            "QP 0x000011",
            "of silence",
        ] {
            assert!(text.contains(part), "{part} is missing");
        }
        assert!(!text.contains("<nth"), "text is escaped");
        assert!(
            !text.contains("http://") || text.matches("http").count() == 1,
            "only the name space"
        );
        for tag in ["g", "svg", "title", "text", "tspan", "ul", "li", "section"] {
            let opened = text.matches(&format!("<{tag}>")).count()
                + text.matches(&format!("<{tag} ")).count();
            assert_eq!(opened, text.matches(&format!("</{tag}>")).count(), "{tag}");
        }
        let after = text.split('&').skip(1);
        let entities = ["amp;", "lt;", "gt;", "quot;", "#10;"];
        for rest in after {
            assert!(
                entities.iter().any(|entity| rest.starts_with(entity)),
                "{rest:.20}"
            );
        }
    }
}

#[test]
fn a_long_capture_is_drawn_where_something_happens() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.pcap");
    let header = PcapHeader {
        datalink: DataLink::RAW,
        ..PcapHeader::default()
    };
    let mut writer = PcapWriter::with_header(File::create(&path).unwrap(), header).unwrap();
    for n in 0..20_000_u32 {
        let ip = match (n % 2, n) {
            (0, _) => packet(true, Operation::SendOnly, n / 2, &[1; 8]),
            (_, 10_001) => packet(false, Operation::Acknowledge, n / 2, &[0x20, 0, 0, 2]),
            _ => packet(false, Operation::Acknowledge, n / 2, &[0x1f, 0, 0, 2]),
        };
        let len = u32::try_from(ip.len()).unwrap();
        let time = Duration::from_micros(u64::from(n) * 10);
        writer
            .write_packet(&PcapPacket::new(time, len, &ip))
            .unwrap();
    }
    drop(writer);
    let conversation = only_conversation(&path);
    assert_eq!(conversation.count(|marks| marks.rnr), 1);
    let (drawing, _) = conversation.draw(0, false);
    assert!(drawing.contains("RNR NAK"));
    assert_eq!(drawing.matches("packets without incident").count(), 2);
    let arrows = drawing.matches("<title>").count();
    assert!((40..60).contains(&arrows), "{arrows}");
    let (drawing, _) = conversation.draw(0, true);
    assert_eq!(drawing.matches("<title>").count(), 20_000);
}

#[test]
fn what_is_no_capture_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x");
    for bytes in [
        &b""[..],
        b"hello, world, this is no capture",
        b"\x0a\x0d\x0d\x0a",
    ] {
        std::fs::write(&path, bytes).unwrap();
        let error = read(&path).expect_err("no capture").to_string();
        assert!(error.contains("rocade run --capture"), "{error}");
    }
}
