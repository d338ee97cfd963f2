//! Captures and fault rules between the engine and its links, over UDP and through shared memory.

#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "tests: a failure may panic, sizes are small"
)]

mod common;

use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use common::{Side, connect, pattern};
use pcap_file::PcapError;
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
use pcap_file::pcapng::{Block, PcapNgReader};
use rocade_emulator::faults::FaultRule;
use rocade_emulator::{BrokerMode, Engine, EngineConfig, LinkMode, SendOp, WcStatus};
use rocade_wire::ip::Datagram;
use rocade_wire::{Packet, icrc};

const LEN: usize = 1 << 20;

/// Makes two connected devices of one engine.
fn pair(net: u8, link: LinkMode, faults: &str, capture: Option<&Path>) -> (Side, Side) {
    let (a, b) = unconnected(net, link, faults, capture);
    connect(&a, &b);
    (a, b)
}

fn unconnected(net: u8, link: LinkMode, faults: &str, capture: Option<&Path>) -> (Side, Side) {
    let specs = [format!("a=127.9.{net}.1"), format!("b=127.9.{net}.2")];
    let config = EngineConfig::from_specs(&specs, BrokerMode::Embedded).unwrap();
    let engine = Engine::new(EngineConfig {
        link,
        capture: capture.map(Path::to_owned),
        faults: FaultRule::parse_list(faults).unwrap(),
        ..config
    })
    .unwrap();
    let a = Side::on_device(engine.clone(), "a", LEN);
    let b = Side::on_device(engine, "b", LEN);
    (a, b)
}

/// Transfers WRITE, READ and SEND messages of several packets each, and compares every byte.
fn talk(a: &Side, b: &Side) {
    let len = 60_000;
    let rkey = b.mr.rkey();
    for round in 0..4 {
        let data = pattern(len, round);
        a.fill(0, &data);
        let va = b.addr(200_000);
        a.send(
            1,
            SendOp::Write {
                va,
                rkey,
                imm: None,
            },
            &[a.sge(0, len)],
        );
        assert_eq!(a.completion().status, WcStatus::Success);
        assert_eq!(b.bytes(200_000, len), data);
        a.send(2, SendOp::Read { va, rkey }, &[a.sge(400_000, len)]);
        assert_eq!(a.completion().status, WcStatus::Success);
        assert_eq!(a.bytes(400_000, len), data);
        b.qp.recv_queue().push(3, &[b.sge(600_000, len)]).unwrap();
        a.send(4, SendOp::Send { imm: None }, &[a.sge(0, len)]);
        assert_eq!(b.completion().status, WcStatus::Success);
        assert_eq!(a.completion().status, WcStatus::Success);
        assert_eq!(b.bytes(600_000, len), data);
    }
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < Duration::from_secs(20), "not yet: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

struct Frame {
    ip: Vec<u8>,
    came: bool,
    note: String,
    interface: u32,
}

fn frames(path: &Path) -> Vec<Frame> {
    frames_so_far(path).unwrap()
}

/// Fails if a block is being written.
fn frames_so_far(path: &Path) -> Result<Vec<Frame>, PcapError> {
    let mut reader = PcapNgReader::new(File::open(path).unwrap())?;
    let mut frames = Vec::new();
    while let Some(block) = reader.next_block() {
        let Block::EnhancedPacket(packet) = block? else {
            continue;
        };
        let mut frame = Frame {
            ip: packet.data[14..].to_vec(),
            came: false,
            note: String::new(),
            interface: packet.interface_id,
        };
        for option in &packet.options {
            match option {
                EnhancedPacketOption::Flags(flags) => frame.came = flags & 3 == 1,
                EnhancedPacketOption::Comment(text) => frame.note = text.to_string(),
                _ => {}
            }
        }
        frames.push(frame);
    }
    Ok(frames)
}

#[test]
fn everything_is_captured_with_a_right_icrc() {
    for (net, link, interface) in [(1, LinkMode::Udp, 0), (2, LinkMode::Shm, 1)] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.pcapng");
        let (a, b) = pair(net, link, "", Some(&path));
        talk(&a, &b);
        let sent = a.engine.counters().tx_packets;
        // The engine ends with its last handle, and writes the rest of the capture.
        drop((a, b));
        wait_until("the capture is whole", || {
            frames_so_far(&path).is_ok_and(|frames| {
                let came = |came| frames.iter().filter(|f| f.came == came).count() as u64;
                came(false) >= sent && came(true) >= sent
            })
        });
        let frames = frames(&path);
        assert_eq!(
            frames.iter().filter(|frame| !frame.came).count() as u64,
            sent
        );
        for frame in &frames {
            assert_eq!((frame.interface, &*frame.note), (interface, ""));
            let datagram = Datagram::parse(&frame.ip).unwrap();
            Packet::parse(datagram.udp_payload).unwrap();
            let icrc = u32::from_le_bytes(*datagram.udp_payload.last_chunk().unwrap());
            assert_eq!(icrc::datagram(&frame.ip), Some(icrc));
        }
        // The same packets are sent and received, once each.
        let payloads = |came| {
            let of = frames.iter().filter(|frame| frame.came == came);
            let mut all: Vec<_> = of
                .map(|frame| Datagram::parse(&frame.ip).unwrap().udp_payload[..12].to_vec())
                .collect();
            all.sort();
            all
        };
        assert_eq!(payloads(true), payloads(false));
    }
}

#[test]
fn the_third_response_is_lost_and_comes_again() {
    for (net, link) in [(3, LinkMode::Udp), (4, LinkMode::Shm)] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.pcapng");
        let rule = "drop opcode=READ_RESPONSE nth=3";
        let (a, b) = pair(net, link, rule, Some(&path));
        talk(&a, &b);
        assert!(a.qp.counters().retransmitted_packets > 0);
        drop((a, b));
        let noted = || {
            let frames = frames_so_far(&path).ok()?;
            frames.into_iter().find(|frame| !frame.note.is_empty())
        };
        wait_until("the capture contains the note", || noted().is_some());
        let lost = noted().unwrap();
        assert_eq!(lost.note, format!("lost ({rule})"));
        let datagram = Datagram::parse(&lost.ip).unwrap();
        let packet = Packet::parse(datagram.udp_payload).unwrap();
        assert_eq!(packet.bth().opcode.name(), "RC RDMA_READ_RESPONSE_MIDDLE");
    }
}

/// With any rules in either direction, all work completes, and every byte is right.
#[test]
fn faults_of_all_kinds_are_survived() {
    let rules = [
        "drop p=2% seed=1",
        "dup p=5% seed=2",
        "delay by=300us p=3% seed=3",
        "reorder by=3 p=3% seed=4; reorder opcode=ACK every=7",
        "corrupt p=2% seed=5",
        "ecn every=2",
        "drop p=1%; dup p=2%; delay by=100us p=1%; reorder by=2 p=1%; corrupt p=1%; ecn",
    ];
    let mut net = 10;
    for link in [LinkMode::Udp, LinkMode::Shm] {
        for rules in rules {
            for dir in ["tx", "rx"] {
                net += 1;
                let rules = rules.replace("p=", &format!("dir={dir} p="));
                let (a, b) = pair(net, link, &rules, None);
                talk(&a, &b);
                let bad = a.engine.counters().rx_bad_icrc;
                let damages = rules.contains("corrupt") && (dir == "rx" || link == LinkMode::Udp);
                assert_eq!(bad > 0, damages, "{link:?} {rules}: {bad}");
            }
        }
    }
}

/// Delayed packets are delivered even if no later packet follows.
#[test]
fn a_packet_that_is_late_arrives_when_nothing_follows() {
    for (net, link) in [(5, LinkMode::Udp), (6, LinkMode::Shm)] {
        for (step, dir) in [(0, "tx"), (2, "rx")] {
            let rules =
                format!("delay by=30ms dir={dir} opcode=SEND_ONLY; reorder by=9 opcode=ACK");
            let (a, b) = unconnected(net + step, link, &rules, None);
            // Seventeen seconds: even on a slow machine, no delayed packet is retransmitted.
            a.to_rts_with_timeout(b.qp.qp_num().get(), b.gid(), 22);
            b.to_rts(a.qp.qp_num().get(), a.gid());
            b.qp.recv_queue().push(3, &[b.sge(0, 8)]).unwrap();
            let begin = Instant::now();
            a.send(4, SendOp::Send { imm: None }, &[a.sge(0, 8)]);
            assert_eq!(b.completion().status, WcStatus::Success);
            assert!(begin.elapsed().as_millis() >= 30);
            assert_eq!(a.completion().status, WcStatus::Success);
            assert_eq!(a.qp.counters().retransmitted_packets, 0);
        }
    }
}
