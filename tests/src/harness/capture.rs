//! Packet captures of a rig, and what tshark says about them.

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

use super::{Process, Rig};

/// A running `tcpdump` of RoCEv2.
#[derive(Debug)]
pub struct Capture {
    tcpdump: Process,
    file: PathBuf,
    /// How often the kernel counts a packet: loopback sends and receives each, of which tcpdump keeps one.
    copies: u64,
}

/// No packet is longer: 4096 bytes and all headers. It bounds the size of a slot in tcpdump's ring.
const SNAP_LEN: &str = "5000";

impl Capture {
    /// Starts to capture UDP port 4791 on an interface of the rig.
    ///
    /// From now on the interface takes single packets only: what the kernel hands over in one piece (GSO) is cut
    /// before tcpdump sees it, so that the capture shows what a wire would.
    ///
    /// # Panics
    /// Where tcpdump does not begin to listen.
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

    /// Ends the capture and gives its file (pcap), which the rig owns.
    ///
    /// # Panics
    /// Where tcpdump does not end, or the kernel dropped a packet for want of space.
    #[must_use]
    pub fn stop(mut self) -> PathBuf {
        // tcpdump forgets what is still in its ring when it is interrupted, so ask first whether it has caught up.
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

/// The numbers of tcpdump's newest answer to SIGUSR1: packets captured, packets received by filter.
fn counts(output: &str) -> Option<(u64, u64)> {
    let line = output
        .lines()
        .rfind(|line| line.contains(" packets captured, "))?;
    let mut numbers = line.split_whitespace().filter_map(|word| word.parse().ok());
    Some((numbers.next()?, numbers.next()?))
}

const ETHERNET_HEADER_LEN: usize = 14;

/// The datagrams of a capture on Ethernet or loopback, from their IP headers on.
///
/// # Panics
/// Where the file is not a whole capture with Ethernet headers.
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
        datagrams.push(
            packet
                .data
                .get(ETHERNET_HEADER_LEN..)
                .unwrap_or_default()
                .to_vec(),
        );
    }
    datagrams
}

/// The datagrams of a capture that Rocade has made, from their IP headers on, and their comments.
///
/// # Panics
/// Where the file is no whole capture.
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

/// What tshark guesses the payload of an InfiniBand packet to be. All are switched off: one of them takes a payload of a
/// single byte for a malformed RPC over RDMA.
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

/// Runs tshark over a capture with a display filter; gives these fields of each packet that matches, tab-separated.
///
/// # Panics
/// Where tshark fails.
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
