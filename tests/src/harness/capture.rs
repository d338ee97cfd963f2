//! Packet captures of a rig, and what tshark says about them.

use std::{
    fs::File,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use pcap_file::{DataLink, pcap::PcapReader};

use super::{Process, Rig};

/// A running `tcpdump` of RoCEv2.
#[derive(Debug)]
pub struct Capture {
    tcpdump: Process,
    file: PathBuf,
}

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
            "tcpdump", "-Z", "root", "-n", "-i", interface, "-B", "65536", "-w", &path, "udp",
            "port", "4791",
        ];
        let mut tcpdump = rig.start_plain("tcpdump", &words);
        tcpdump.wait_until(
            "first words of tcpdump",
            Duration::from_secs(20),
            |process| process.output().contains("listening on").then_some(()),
        );
        Self { tcpdump, file }
    }

    /// Ends the capture and gives its file (pcap), which the rig owns.
    ///
    /// # Panics
    /// Where tcpdump does not end, or the kernel dropped a packet for want of space.
    #[must_use]
    pub fn stop(self) -> PathBuf {
        // What was sent before this call is in tcpdump's ring; an interrupt makes it write and end.
        let script = format!("kill -s INT {}", self.tcpdump.id());
        let _ = Command::new("sh").args(["-c", &script]).status();
        let output = self
            .tcpdump
            .finish(Duration::from_secs(60))
            .expect_success();
        assert!(output.contains("\n0 packets dropped by kernel"), "{output}");
        self.file
    }
}

/// The datagrams of a capture on Ethernet or loopback, from their IP headers on.
///
/// # Panics
/// Where the file is not a whole capture with Ethernet headers.
#[must_use]
pub fn datagrams(file: &Path) -> Vec<Vec<u8>> {
    const ETHERNET_HEADER_LEN: usize = 14;
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
