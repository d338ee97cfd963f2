use std::fs::File;

use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
use pcap_file::pcapng::blocks::interface_statistics::InterfaceStatisticsOption;
use pcap_file::pcapng::{Block, PcapNgReader};
use rocade_wire::icrc;

use super::*;

/// Returns a SEND Only of 100 bytes without an ICRC.
fn payload() -> Vec<u8> {
    let mut bytes = vec![0; 12 + 100 + 4];
    bytes[0] = 4;
    bytes[2..4].copy_from_slice(&[0xff, 0xff]);
    bytes[5] = 7;
    bytes
}

fn seen(payload: &[u8], note: &'static str) -> CapturedPacket<'static> {
    CapturedPacket {
        medium: Medium::Shared,
        direction: PacketDirection::Tx,
        unix_ns: 1_700_000_000_123_456_789,
        source: [127, 0, 0, 2].into(),
        destination: [127, 0, 0, 3].into(),
        udp: None,
        tos: 0x0a,
        payload: payload.to_owned().leak(),
        note,
    }
}

/// A frame and its comment.
type Commented = (Vec<u8>, String);

/// Reads the frames, and the last counts of seen and lost packets.
fn read(path: &Path) -> (Vec<Commented>, (u64, u64)) {
    let mut reader = PcapNgReader::new(File::open(path).expect("there")).expect("pcapng");
    let (mut packets, mut counts) = (Vec::new(), (0, 0));
    while let Some(block) = reader.next_block() {
        match block.expect("a whole block") {
            Block::EnhancedPacket(packet) => {
                let comment = packet.options.iter().find_map(|option| match option {
                    EnhancedPacketOption::Comment(text) => Some(text.to_string()),
                    _ => None,
                });
                packets.push((packet.data.to_vec(), comment.unwrap_or_default()));
            }
            Block::InterfaceStatistics(statistics) => {
                for option in statistics.options {
                    match option {
                        InterfaceStatisticsOption::IsbIfRecv(n) => counts.0 = n,
                        InterfaceStatisticsOption::IsbIfDrop(n) => counts.1 = n,
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    (packets, counts)
}

#[test]
fn two_processes_write_into_one_file() {
    let _no_starts = crate::sys::STARTS.read();
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("c.pcapng");
    prepare(&path).expect("writable");
    let captures = [(); 2].map(|()| Capture::start(&path).expect("it starts"));
    for (capture, note) in captures.iter().zip(["one", "two"]) {
        capture.record(&seen(&payload(), note));
        capture.flush();
    }
    captures[0].record(&seen(&payload(), ""));
    // The file is in use, so its content stays.
    prepare(&path).expect("in use by this process");
    drop(captures);
    let (packets, counts) = read(&path);
    let notes: Vec<&str> = packets.iter().map(|(_, note)| &**note).collect();
    assert_eq!(notes, ["one", "two", ""]);
    assert_eq!(counts.1, 0);
    for (frame, _) in packets {
        let datagram = Datagram::parse(&frame[ETHERNET_LEN..]).expect("IP and UDP");
        assert_eq!((datagram.tos, datagram.dst_port), (0x0a, 4791));
        let icrc = datagram.udp_payload.last_chunk().copied().expect("an ICRC");
        let expected = icrc::datagram(&frame[ETHERNET_LEN..]);
        assert_eq!(expected, Some(u32::from_le_bytes(icrc)));
    }
    // The file is not in use any longer.
    prepare(&path).expect("not in use");
    assert_eq!(std::fs::metadata(&path).expect("there").len(), 0);
}

#[test]
fn what_there_is_no_room_for_is_counted() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("c.pcapng");
    let capture = Capture::start(&path).expect("it starts");
    // The writer has to wait for this lock.
    let file = capture.shared.file.lock();
    let packet = vec![0x11; 4096];
    let space = MAX_WAITING / (4096 + RECORD_LEN + 42);
    for _ in 0..space + 1000 {
        capture.record(&seen(&packet, ""));
    }
    let waiting = capture.shared.queue.lock().len();
    assert!(waiting <= MAX_WAITING, "{waiting}");
    drop(file);
    drop(capture);
    let (packets, (all, lost)) = read(&path);
    assert_eq!(all, space as u64 + 1000);
    assert_eq!(packets.len() as u64 + lost, all);
    assert!(lost > 500, "{lost}");
}

#[test]
fn other_files_stay_as_they_are() {
    let dir = tempfile::tempdir().expect("a directory");
    let text = dir.path().join("text");
    std::fs::write(&text, "my diary").expect("writable");
    let error = Capture::start(&text).expect_err("it is no capture");
    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    assert_eq!(std::fs::read(&text).expect("there"), b"my diary");
    let error = Capture::start(dir.path()).expect_err("a directory");
    assert_ne!(error.kind(), io::ErrorKind::InvalidData);
    assert!(Capture::start(Path::new("/dev/null")).is_err());
}

#[test]
fn ipv6_has_its_checksum_and_too_long_is_lost() {
    let mut frames = Vec::new();
    let ipv6 = CapturedPacket {
        medium: Medium::Udp,
        source: "::1".parse().expect("an address"),
        destination: "fe80::2".parse().expect("an address"),
        udp: Some((0xC123, 0)),
        ..seen(&payload(), "")
    };
    assert!(append_frame(&mut frames, &ipv6));
    let datagram = Datagram::parse(&frames[ETHERNET_LEN..]).expect("IPv6 and UDP");
    assert!(datagram.udp_checksum_is_valid() && datagram.udp_checksum != 0);
    assert_eq!(datagram.src_port, 0xC123);
    let len = frames.len();
    assert!(!append_frame(&mut frames, &seen(&vec![0; 70_000], "")));
    assert_eq!(frames.len(), len);
}
