//! Tests with recorded frames of real NICs, and with frames that have the fields of others.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pcap_file::pcap::{PcapPacket, PcapWriter};

use super::{Basis, Finding, explain};
use crate::ladder::read::{Seen, read};

#[allow(dead_code, reason = "tests of other crates use the rest")]
#[path = "../../../../tests/captures/hardware/frames.rs"]
mod frames;

use frames::{CONVERSATIONS, Place};

fn recorded(name: &str) -> PathBuf {
    let captures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/captures");
    captures.join(name)
}

fn packets(path: &Path) -> Vec<Seen> {
    let capture = read(path).unwrap();
    assert_eq!(
        (capture.others, capture.shortened, capture.too_long),
        (0, 0, 0)
    );
    capture.packets
}

/// Writes frames into a capture and reads it.
fn through_a_file(frames: impl IntoIterator<Item = (f64, Vec<u8>)>) -> Vec<Seen> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.pcap");
    let mut writer = PcapWriter::new(File::create(&path).unwrap()).unwrap();
    for (ms, frame) in frames {
        let len = u32::try_from(frame.len()).unwrap();
        let time = Duration::from_secs_f64(1.0 + ms / 1e3);
        writer
            .write_packet(&PcapPacket::new(time, len, &frame))
            .unwrap();
    }
    drop(writer);
    packets(&path)
}

/// Returns the packets of a conversation of real NICs.
fn conversation(name: &str) -> Vec<Seen> {
    let frames = frames::frames(name).into_iter();
    through_a_file(frames.map(|frame| (frame.ms, frame.ethernet(Place::ANY))))
}

fn all_findings(packets: &[Seen]) -> Vec<Finding> {
    let (of_senders, _) = explain(packets);
    of_senders
        .into_values()
        .flat_map(BTreeMap::into_keys)
        .collect()
}

fn rules(findings: &[Finding]) -> BTreeSet<&'static str> {
    let rule = |finding: &Finding| match finding.basis {
        Basis::Rule(id) => Some(id),
        _ => None,
    };
    findings.iter().filter_map(rule).collect()
}

fn unknown(findings: &[Finding]) -> Vec<&str> {
    let unknown = findings
        .iter()
        .filter(|finding| finding.basis == Basis::Unknown);
    unknown.map(|finding| finding.text.as_str()).collect()
}

/// Every field of every frame of a real NIC is explained, and all rules occur but that for which
/// there is no sample.
//= HW-08 HW-09 HW-10 type=test
#[test]
fn frames_of_hardware_are_explained_in_whole() {
    let mut seen = BTreeSet::new();
    for (name, count) in CONVERSATIONS {
        let packets = conversation(name);
        assert_eq!(packets.len(), count, "{name}");
        let findings = all_findings(&packets);
        assert_eq!(unknown(&findings), [""; 0], "{name}");
        seen.extend(rules(&findings));
    }
    let expected = (1..=11).map(|number| format!("HW-{number:02}"));
    assert_eq!(
        seen.into_iter().collect::<Vec<_>>(),
        expected.collect::<Vec<_>>()
    );
}

#[test]
fn recorded_frames_are_explained_in_whole() {
    for (name, count, words) in [
        ("mellanox-ack-credits", 1, "ACK with credit code 13"),
        ("mellanox-cm-send-ack-vlan", 5, "802.1Q tag"),
    ] {
        let packets = packets(&recorded(&format!("hardware/{name}.pcap")));
        assert_eq!(packets.len(), count);
        let findings = all_findings(&packets);
        assert_eq!(unknown(&findings), [""; 0], "{name}");
        assert!(
            findings.iter().any(|finding| finding.text == words),
            "{findings:?}"
        );
    }
}

#[test]
fn sequences_are_recognized() {
    let has = |name: &str, id: &str, words: &str| {
        let findings = all_findings(&conversation(name));
        let found = findings
            .iter()
            .any(|finding| finding.basis.name() == id && finding.text.contains(words));
        assert!(found, "{name}: {words}: {findings:?}");
    };
    has(
        "masked-cas",
        "HW-03",
        "the same source ports in both directions",
    );
    has(
        "masked-cas",
        "HW-03",
        "IPv4 Identification counts all packets",
    );
    has(
        "masked-cas",
        "HW-04",
        "READ or atomic response with credit code 0",
    );
    has("masked-cas", "HW-11", "equal masks");
    has(
        "masked-cas-retry",
        "HW-08",
        "growing intervals: 3.6, 1.5, 3.1, 6.3",
    );
    has("send-ack-vlan", "HW-07", "one ACK for several messages");
    has("send-imm", "HW-07", "an ACK in the middle of a message");
    has(
        "send-imm",
        "HW-03",
        "the source port is the sender's QP number",
    );
    has("send-imm", "HW-06", "reserved bit 0x10");
}

/// A sample that would decide an open question is pointed out.
#[test]
fn what_no_sample_shows_is_pointed_out() {
    let frames = frames::frames("masked-cas").into_iter();
    let swaps = frames.filter(|frame| frame.bth.opcode.get() == 0x18);
    let mut bytes = swaps
        .map(|frame| frame.ethernet(Place::ANY))
        .next()
        .unwrap();
    // The last operand is a mask.
    let at = bytes.len() - 4 - 1;
    bytes[at] ^= 1;
    let text = unknown(&all_findings(&through_a_file([(0.0, bytes)]))).join(", ");
    assert_eq!(
        text,
        "masks that differ: 0x80 and 0x81, please report them, wrong ICRC"
    );
}

/// Packets of the kernel's rxe are known, too.
#[test]
fn frames_of_rxe_are_habits() {
    let packets = packets(&recorded("linux-6.1-mtu1500/rc-pingpong-ipv4.pcap"));
    let findings = all_findings(&packets);
    assert_eq!(unknown(&findings), [""; 0]);
    let texts: Vec<&str> = findings.iter().map(|finding| &*finding.text).collect();
    for words in [
        "MigReq 0, as rxe, or with path migration armed",
        "not ECN-capable, as rxe and Rocade",
        "credits without a limit, as rxe, or for a shared receive queue",
    ] {
        assert!(texts.contains(&words), "{words}: {texts:?}");
    }
}
