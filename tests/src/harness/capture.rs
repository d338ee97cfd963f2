//! Packet captures of a rig, and their dissection by tshark.

use std::{
    fs::File,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use pcap_file::{
    DataLink,
    pcap::PcapReader,
    pcapng::{Block, PcapNgReader, blocks::enhanced_packet::EnhancedPacketOption},
};

use rocade_wire::{ip::Datagram, segments::Segments};

use super::{Process, Rig};

/// A running `tcpdump` of RoCEv2.
#[derive(Debug)]
pub struct Capture {
    tcpdump: Process,
    file: PathBuf,
    /// The number of times that the kernel counts a packet: twice on loopback, which sends and
    /// receives each packet, while tcpdump keeps one.
    copies: u64,
}

/// The snapshot length: a payload of 4096 bytes and all headers fit. It also bounds the size of a
/// frame in tcpdump's ring.
const SNAP_LEN: &str = "5000";

impl Capture {
    /// Starts to capture UDP port 4791 on an interface of the rig.
    ///
    /// From now on the interface sends single packets only. The kernel splits GSO packets before
    /// tcpdump sees them, so that the capture shows the packets of a wire.
    ///
    /// # Panics
    /// If tcpdump does not begin to listen.
    pub fn start(rig: &Rig, interface: &str) -> Self {
        let single = ["ip", "link", "set", interface, "gso_max_segs", "1"];
        rig.start_plain("ip link", &single)
            .finish(Duration::from_secs(20))
            .expect_success();
        let file = rig.dir().join(format!("{interface}.pcap"));
        let path = file.to_string_lossy().into_owned();
        let words = [
            "tcpdump",
            "--immediate-mode",
            "-Z",
            "root",
            "-n",
            "-i",
            interface,
            "-B",
            "65536",
            "-s",
            SNAP_LEN,
            "-w",
            &path,
            "udp",
            "port",
            "4791",
        ];
        let mut tcpdump = rig.start_plain("tcpdump", &words);
        tcpdump.wait_until(
            "first words of tcpdump",
            Duration::from_secs(20),
            |process| process.output().contains("listening on").then_some(()),
        );
        let copies = if interface == "lo" { 2 } else { 1 };
        Self {
            tcpdump,
            file,
            copies,
        }
    }

    /// Ends the capture and returns the path of its pcap file, which the rig owns.
    ///
    /// # Panics
    /// If tcpdump does not end, or the kernel dropped a packet for lack of buffer space.
    #[must_use]
    pub fn stop(mut self) -> PathBuf {
        // An interrupted tcpdump drops the packets that are still in its ring. Its statistics show
        // when it has processed all of them.
        let copies = self.copies;
        self.tcpdump
            .wait_until("end of the packets", Duration::from_secs(60), |tcpdump| {
                signal(tcpdump, "USR1");
                let output = tcpdump.output();
                let (captured, received) = counts(&output)?;
                (captured * copies == received).then_some(())
            });
        signal(&self.tcpdump, "INT");
        let output = self
            .tcpdump
            .finish(Duration::from_secs(60))
            .expect_success();
        assert!(output.contains("\n0 packets dropped by kernel"), "{output}");
        self.file
    }
}

fn signal(process: &Process, name: &str) {
    let script = format!("kill -s {name} {}", process.id());
    let _ = Command::new("sh").args(["-c", &script]).status();
}

/// Returns the counts of tcpdump's last answer to SIGUSR1: packets captured, packets received by
/// filter.
fn counts(output: &str) -> Option<(u64, u64)> {
    let line = output
        .lines()
        .rfind(|line| line.contains(" packets captured, "))?;
    let mut numbers = line.split_whitespace().filter_map(|word| word.parse().ok());
    Some((numbers.next()?, numbers.next()?))
}

const ETHERNET_HEADER_LEN: usize = 14;

/// Returns the datagrams of a capture on Ethernet or loopback, from the IP header on. Those that
/// the kernel had joined (GSO) are cut into packets.
///
/// # Panics
/// If the file is not a complete capture with Ethernet headers.
#[must_use]
pub fn datagrams(file: &Path) -> Vec<Vec<u8>> {
    let bad = |reason: &dyn std::fmt::Display| -> ! { panic!("{}: {reason}", file.display()) };
    let opened = File::open(file).unwrap_or_else(|error| bad(&error));
    let mut reader = PcapReader::new(opened).unwrap_or_else(|error| bad(&error));
    if reader.header().datalink != DataLink::ETHERNET {
        bad(&"no Ethernet capture");
    }
    let mut datagrams = Vec::new();
    while let Some(packet) = reader.next_packet() {
        let packet = packet.unwrap_or_else(|error| bad(&error));
        if packet.data.len() != packet.orig_len as usize {
            bad(&"a packet was cut");
        }
        datagrams.extend(cut(packet
            .data
            .get(ETHERNET_HEADER_LEN..)
            .unwrap_or_default()));
    }
    datagrams
}

/// Returns a datagram, or those that the kernel would make of it.
fn cut(ip: &[u8]) -> Vec<Vec<u8>> {
    let whole = Datagram::parse(ip).ok();
    let Some((whole, segments)) = whole.and_then(|of| Some((of, Segments::of(&of)?))) else {
        return vec![ip.to_vec()];
    };
    segments
        .map(|segment| {
            let one = Datagram {
                ip_id: segment.ip_id,
                udp_payload: segment.udp_payload,
                ..whole
            };
            let mut bytes = vec![0; one.len()];
            one.emit(&mut bytes)
                .unwrap_or_else(|error| panic!("a part of a datagram: {error:?}"));
            bytes
        })
        .collect()
}

/// Returns the datagrams of a capture (pcapng) that Rocade made, from the IP header on, each with
/// its comment.
///
/// # Panics
/// If the file is not a complete capture.
#[must_use]
pub fn own_datagrams(file: &Path) -> Vec<(Vec<u8>, String)> {
    let bad = |reason: &dyn std::fmt::Display| -> ! { panic!("{}: {reason}", file.display()) };
    let opened = File::open(file).unwrap_or_else(|error| bad(&error));
    let mut reader = PcapNgReader::new(opened).unwrap_or_else(|error| bad(&error));
    let mut datagrams = Vec::new();
    while let Some(block) = reader.next_block() {
        let Block::EnhancedPacket(packet) = block.unwrap_or_else(|error| bad(&error)) else {
            continue;
        };
        let comment = packet.options.iter().find_map(|option| match option {
            EnhancedPacketOption::Comment(text) => Some(text.to_string()),
            _ => None,
        });
        let datagram = packet.data.get(ETHERNET_HEADER_LEN..).unwrap_or_default();
        datagrams.push((datagram.to_vec(), comment.unwrap_or_default()));
    }
    datagrams
}

/// The protocols that tshark's heuristics may find in the payload of an InfiniBand packet. All are
/// disabled: one of them reports a payload of one byte as malformed RPC over RDMA.
const PAYLOAD_GUESSES: &[&str] = &[
    "smc",
    "smb_direct",
    "rpcordma",
    "nvme-rdma",
    "lnet",
    "iser",
    "infiniband.eoib",
    "infiniband_sdp",
    "fcoib",
    "drbd",
];

/// Runs tshark over a capture with a display filter. Returns these fields of each matching packet,
/// separated by tabs.
///
/// # Panics
/// If tshark fails.
#[must_use]
pub fn tshark(file: &Path, filter: &str, fields: &[&str]) -> Vec<String> {
    let mut command = Command::new("tshark");
    command
        .arg("-n")
        .arg("-r")
        .arg(file)
        .args(["-Y", filter, "-T", "fields"])
        .stdin(Stdio::null());
    for field in fields {
        command.args(["-e", field]);
    }
    for guess in PAYLOAD_GUESSES {
        command.args(["--disable-protocol", guess]);
    }
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("cannot run tshark: {error}"));
    assert!(
        output.status.success(),
        "tshark: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joined_packets_have_icrcs_of_their_own() {
        let captures = Path::new(env!("CARGO_MANIFEST_DIR")).join("captures/rocade");
        for (name, count) in [("gso-lo-ipv4.pcap", 12), ("gso-veth-ipv6.pcap", 47)] {
            let all = datagrams(&captures.join(name));
            assert_eq!(all.len(), count, "{name}");
            for ip in all {
                let payload = Datagram::parse(&ip).unwrap().udp_payload;
                let icrc = rocade_wire::icrc::datagram(&ip).map(u32::to_le_bytes);
                assert_eq!(payload.last_chunk(), icrc.as_ref(), "{name}");
            }
        }
    }
}
