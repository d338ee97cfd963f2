//! Reads RoCEv2 packets from captures of Rocade, tcpdump and Wireshark.

use std::fs::File;
use std::io::{BufReader, Read};
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use pcap_file::pcap::PcapReader;
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::blocks::section_header::{SectionHeaderBlock, SectionHeaderOption};
use pcap_file::pcapng::{Block, PcapNgReader};
use pcap_file::{DataLink, PcapError};
use rocade_wire::ip::Datagram;
use rocade_wire::mad::{CmMessage, Mad};
use rocade_wire::{Headers, ICRC_LEN, Packet, Qpn, icrc};

use crate::error::CliError;

/// The file size from which on reading shows its progress.
const LARGE: u64 = 16 << 20;
/// The first bytes of a pcapng file.
const PCAPNG: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];

/// The direction of a packet, if the capture has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum PacketDirection {
    #[default]
    Unknown,
    Received,
    Sent,
}

/// A packet in a capture.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    /// The time since 1970.
    pub(super) time: Duration,
    pub(super) source: IpAddr,
    pub(super) destination: IpAddr,
    pub(super) direction: PacketDirection,
    /// The process that captured the packet, in Rocade's captures.
    pub(super) process: Option<Arc<str>>,
    pub(super) headers: Headers,
    pub(super) payload_len: usize,
    /// The connection manager's message, if the packet is a datagram to QP 1.
    pub(super) message: Option<Box<CmMessage>>,
    /// A hash from BTH to ICRC, which is equal for copies of a packet.
    pub(super) fingerprint: u64,
    pub(super) bad_icrc: bool,
    pub(super) marked: bool,
    /// The comment in the capture.
    pub(super) note: String,
}

/// A whole capture.
#[derive(Debug, Default)]
pub(super) struct Capture {
    pub(super) packets: Vec<Seen>,
    /// The number of packets that are not RoCEv2.
    pub(super) others: u64,
    /// The number of packets that the capturing program dropped.
    pub(super) left_out: u64,
    /// The reason why the rest of the file could not be read.
    pub(super) cut: Option<String>,
}

/// Reads a capture. The packets are in the order of time.
pub(super) fn read(path: &Path) -> Result<Capture, CliError> {
    let explain = |reason: &dyn std::fmt::Display| {
        CliError::new(format!("{}: {reason}", path.display())).hint(
            "a capture is a file that `rocade run --capture`, tcpdump or Wireshark has written",
        )
    };
    let mut file = File::open(path).map_err(|error| explain(&error))?;
    let mut begin = Vec::new();
    file.by_ref()
        .take(PCAPNG.len() as u64)
        .read_to_end(&mut begin)
        .map_err(|error| explain(&error))?;
    let len = file.metadata().map_or(0, |file| file.len());
    let progress = if len >= LARGE {
        let style = ProgressStyle::with_template("{msg} {wide_bar} {bytes}/{total_bytes}");
        let bar = ProgressBar::new(len).with_message("reading");
        style.map_or_else(|_| bar.clone(), |style| bar.clone().with_style(style))
    } else {
        ProgressBar::hidden()
    };
    let reader = begin.chain(progress.wrap_read(BufReader::new(file)));
    let mut capture = Capture::default();
    let result = if begin == PCAPNG {
        read_pcapng(reader, &mut capture)
    } else {
        read_pcap(reader, &mut capture)
    };
    progress.finish_and_clear();
    match result {
        Ok(()) => {}
        // The packets so far are valid, because a program may still be writing the file.
        Err(error) if !capture.packets.is_empty() => capture.cut = Some(error.to_string()),
        Err(error) => return Err(explain(&error)),
    }
    capture.packets.sort_by_key(|packet| packet.time);
    Ok(capture)
}

fn read_pcap(reader: impl Read, capture: &mut Capture) -> Result<(), PcapError> {
    let mut reader = PcapReader::new(reader)?;
    let link = reader.header().datalink;
    while let Some(packet) = reader.next_packet() {
        let packet = packet?;
        let metadata = PacketMetadata::default();
        capture.add(link, packet.timestamp, &packet.data, metadata);
    }
    Ok(())
}

fn read_pcapng(reader: impl Read, capture: &mut Capture) -> Result<(), PcapError> {
    let mut reader = PcapNgReader::new(reader)?;
    let mut interfaces: Vec<Interface> = Vec::new();
    let mut is_own = false;
    let (mut before, mut left_out) = (0, 0);
    while let Some(block) = reader.next_block() {
        match block? {
            Block::SectionHeader(section) => {
                interfaces.clear();
                is_own = is_of_rocade(&section);
            }
            Block::InterfaceDescription(interface) => {
                let mut of = Interface::new(&interface);
                if !is_own {
                    of.process = None;
                }
                interfaces.push(of);
            }
            Block::EnhancedPacket(packet) => {
                let index = usize::try_from(packet.interface_id).unwrap_or(usize::MAX);
                let Some(interface) = interfaces.get(index) else {
                    continue;
                };
                let mut metadata = PacketMetadata {
                    process: interface.process.clone(),
                    ..PacketMetadata::default()
                };
                for option in &packet.options {
                    match option {
                        EnhancedPacketOption::Flags(flags) => {
                            metadata.direction = match flags & 3 {
                                1 => PacketDirection::Received,
                                2 => PacketDirection::Sent,
                                _ => PacketDirection::Unknown,
                            }
                        }
                        EnhancedPacketOption::Comment(text) => metadata.note = text,
                        _ => {}
                    }
                }
                // The reader reports ticks as nanoseconds.
                let time = ticks(packet.timestamp, interface.tick_ns);
                capture.add(interface.link, time, &packet.data, metadata);
            }
            Block::InterfaceStatistics(statistics) => {
                use pcap_file::pcapng::blocks::interface_statistics::InterfaceStatisticsOption as Option;
                for option in &statistics.options {
                    if let Option::IsbIfDrop(count) = option {
                        // The counts of a process accumulate from section to section.
                        if *count < before {
                            left_out += before;
                        }
                        before = *count;
                    }
                }
            }
            _ => {}
        }
    }
    capture.left_out = left_out + before;
    Ok(())
}

/// Returns true if Rocade wrote the section. Its interfaces then name the process.
fn is_of_rocade(section: &SectionHeaderBlock<'_>) -> bool {
    section.options.iter().any(|option| match option {
        SectionHeaderOption::UserApplication(name) => name.starts_with("Rocade "),
        _ => false,
    })
}

/// An interface of a section.
struct Interface {
    link: DataLink,
    /// The length of a clock tick in nanoseconds.
    tick_ns: f64,
    process: Option<Arc<str>>,
}

impl Interface {
    fn new(block: &InterfaceDescriptionBlock<'_>) -> Self {
        let (mut resolution, mut process) = (6, None);
        for option in &block.options {
            match option {
                InterfaceDescriptionOption::IfTsResol(value) => resolution = *value,
                InterfaceDescriptionOption::IfDescription(text) => process = Some(&**text),
                _ => {}
            }
        }
        Self {
            link: block.linktype,
            tick_ns: tick_ns(resolution),
            process: process.map(Arc::from),
        }
    }
}

/// The metadata of a packet in a capture.
#[derive(Default)]
struct PacketMetadata<'a> {
    direction: PacketDirection,
    process: Option<Arc<str>>,
    note: &'a str,
}

fn ticks(timestamp: Duration, tick_ns: f64) -> Duration {
    if tick_ns == 1.0 {
        return timestamp;
    }
    let ticks = timestamp.as_nanos();
    if tick_ns >= 1.0 {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a power of ten, at least 1"
        )]
        let factor = tick_ns as u128;
        return Duration::from_nanos(u64::try_from(ticks * factor).unwrap_or(u64::MAX));
    }
    Duration::from_secs_f64(timestamp.as_secs_f64() * tick_ns)
}

/// Converts `if_tsresol` to the length of a tick in nanoseconds.
fn tick_ns(resolution: u8) -> f64 {
    let exponent = i32::from(resolution & 0x7f);
    let base: f64 = if resolution & 0x80 == 0 { 10.0 } else { 2.0 };
    1e9 / base.powi(exponent)
}

impl Capture {
    fn add(&mut self, link: DataLink, time: Duration, frame: &[u8], metadata: PacketMetadata<'_>) {
        match ip_of(link, frame).and_then(|ip| seen(time, ip, metadata)) {
            Some(seen) => self.packets.push(seen),
            None => self.others += 1,
        }
    }
}

fn seen(time: Duration, ip: &[u8], metadata: PacketMetadata<'_>) -> Option<Seen> {
    let datagram = Datagram::parse(ip).ok()?;
    if !datagram.is_roce() {
        return None;
    }
    let packet = Packet::parse(datagram.udp_payload).ok()?;
    let computed = icrc::datagram(ip).map(u32::to_le_bytes);
    let payload = datagram.udp_payload;
    let fingerprint = payload[..payload.len() - ICRC_LEN]
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
    let is_mad = packet.headers().bth.dest_qp == Qpn::GSI;
    let mad = is_mad.then(|| Mad::parse(packet.payload()).ok()).flatten();
    let message = mad.map(|mad| Box::new(mad.message));
    Some(Seen {
        time,
        source: datagram.src,
        destination: datagram.dst,
        direction: metadata.direction,
        process: metadata.process,
        headers: *packet.headers(),
        payload_len: packet.payload().len(),
        message,
        fingerprint,
        bad_icrc: computed != Some(packet.icrc_bytes()),
        marked: datagram.tos & 3 == 3,
        note: metadata.note.to_owned(),
    })
}

/// Returns the IP datagram in a frame.
fn ip_of(link: DataLink, frame: &[u8]) -> Option<&[u8]> {
    const IPV4: [u8; 2] = [0x08, 0x00];
    const IPV6: [u8; 2] = [0x86, 0xdd];
    const VLAN: [u8; 2] = [0x81, 0x00];
    let is_ip = |kind: &[u8]| kind == IPV4 || kind == IPV6;
    // Link types without a name in the crate have their number in the registry of pcap.
    match u32::from(link) {
        // Ethernet
        1 => match frame.get(12..14)? {
            kind if is_ip(kind) => frame.get(14..),
            kind if kind == VLAN && is_ip(frame.get(16..18)?) => frame.get(18..),
            _ => None,
        },
        // Raw IP
        12 | 14 | 101 | 228 | 229 => Some(frame),
        // BSD loopback
        0 | 108 => frame.get(4..),
        // Linux cooked, both versions
        113 => is_ip(frame.get(14..16)?).then(|| frame.get(16..))?,
        276 => is_ip(frame.get(..2)?).then(|| frame.get(20..))?,
        _ => None,
    }
}
