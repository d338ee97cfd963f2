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
use rocade_wire::ip::{Datagram, IpError};
use rocade_wire::mad::{CmMessage, Mad};
use rocade_wire::segments::{MAX_PACKET_LEN, Segments};
use rocade_wire::{Headers, ICRC_LEN, Operation, Packet, Qpn, icrc};

use crate::error::CliError;

/// The file size from which on reading shows its progress.
const LARGE: u64 = 16 << 20;
/// The first bytes of a pcapng file.
const PCAPNG: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];

/// The direction of a packet, if the capture has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum PacketDirection {
    #[default]
    Unknown,
    Received,
    Sent,
}

/// The fields of a packet outside of its transport headers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outside {
    /// The tag of 802.1Q.
    pub(crate) vlan: Option<u16>,
    pub(crate) tos: u8,
    pub(crate) ttl: u8,
    /// IPv4 Identification, `None` for IPv6.
    pub(crate) ip_id: Option<u16>,
    pub(crate) dont_fragment: bool,
    pub(crate) src_port: u16,
    pub(crate) udp_checksum: u16,
    /// All bytes of the pad are zero.
    pub(crate) pad_is_zero: bool,
    /// Swap mask and compare mask of a masked compare-and-swap of 8 bytes.
    pub(crate) masks: Option<[u64; 2]>,
}

/// A packet in a capture.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    /// The time since 1970.
    pub(crate) time: Duration,
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    pub(crate) direction: PacketDirection,
    /// The process that captured the packet, in Rocade's captures.
    pub(crate) process: Option<Arc<str>>,
    pub(crate) headers: Headers,
    pub(crate) payload_len: usize,
    /// The connection manager's message, if the packet is a datagram to QP 1.
    pub(crate) message: Option<Box<CmMessage>>,
    /// A hash from BTH to ICRC, which is equal for copies of a packet.
    pub(crate) fingerprint: u64,
    pub(crate) bad_icrc: bool,
    pub(crate) marked: bool,
    pub(crate) outside: Outside,
    /// The comment in the capture.
    pub(crate) note: String,
}

/// A whole capture.
#[derive(Debug, Default)]
pub(crate) struct Capture {
    pub(crate) packets: Vec<Seen>,
    /// The number of packets that are not RoCEv2.
    pub(crate) others: u64,
    /// The number of datagrams that were cut into packets, and that of these packets.
    pub(crate) joined: u64,
    pub(crate) segments: u64,
    /// The number of datagrams that are longer than any packet and cannot be cut.
    pub(crate) too_long: u64,
    /// The number of packets of which the file has only the beginning.
    pub(crate) shortened: u64,
    /// Rocade wrote a part of the file.
    pub(crate) is_own: bool,
    /// The number of packets that the capturing program dropped.
    pub(crate) left_out: u64,
    /// The reason why the rest of the file could not be read.
    pub(crate) cut: Option<String>,
}

/// Reads a capture. The packets are in the order of time.
pub(crate) fn read(path: &Path) -> Result<Capture, CliError> {
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
    if begin.is_empty() {
        let message = format!("{}: the file is empty", path.display());
        return Err(CliError::new(message).hint(
            "`rocade run --capture` fills it once the program opens a device, tcpdump when it \
             ends (with -U, after each packet)",
        ));
    }
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
    match result.map_err(|error| words(&error)) {
        Ok(()) => {}
        // The packets so far are valid, because a program may still be writing the file.
        Err(words) if !capture.packets.is_empty() => capture.cut = Some(words),
        Err(words) => return Err(explain(&words)),
    }
    capture.packets.sort_by_key(|packet| packet.time);
    Ok(capture)
}

/// Returns the reason why a file cannot be read further.
fn words(error: &PcapError) -> String {
    match error {
        PcapError::IoError(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
            "the file ends within a record".to_owned()
        }
        PcapError::IoError(error) => error.to_string(),
        error => error.to_string(),
    }
}

fn read_pcap(reader: impl Read, capture: &mut Capture) -> Result<(), PcapError> {
    let mut reader = PcapReader::new(reader)?;
    let link = reader.header().datalink;
    while let Some(packet) = reader.next_packet() {
        let packet = packet?;
        let metadata = PacketMetadata::default();
        let is_whole = packet.data.len() >= usize_of(packet.orig_len);
        let frame = (&*packet.data, is_whole);
        capture.add(link, packet.timestamp, frame, &metadata);
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
                capture.is_own |= is_own;
            }
            Block::InterfaceDescription(interface) => {
                let mut of = Interface::new(&interface);
                if !is_own {
                    of.process = None;
                }
                interfaces.push(of);
            }
            Block::EnhancedPacket(packet) => {
                let Some(interface) = interfaces.get(usize_of(packet.interface_id)) else {
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
                let is_whole = packet.data.len() >= usize_of(packet.original_len);
                let frame = (&*packet.data, is_whole);
                capture.add(interface.link, time, frame, &metadata);
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

fn usize_of(value: u32) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

impl Capture {
    /// Adds the packets of a frame. The second part of `frame` tells whether it is whole.
    fn add(
        &mut self,
        link: DataLink,
        time: Duration,
        frame: (&[u8], bool),
        metadata: &PacketMetadata<'_>,
    ) {
        let Some((vlan, ip)) = ip_of(link, frame.0) else {
            self.others += 1;
            return;
        };
        let datagram = match Datagram::parse(ip) {
            Ok(datagram) if datagram.is_roce() => datagram,
            Err(IpError::Truncated) if !frame.1 => {
                self.shortened += 1;
                return;
            }
            _ => {
                self.others += 1;
                return;
            }
        };
        if let Some(segments) = Segments::of(&datagram) {
            self.joined += 1;
            for segment in segments {
                let payload = segment.udp_payload;
                let bad_icrc = !segment.icrc_is_right;
                let seen = seen(time, (&datagram, vlan), payload, bad_icrc, metadata);
                self.segments += 1;
                self.packets.extend(seen);
            }
            return;
        }
        let payload = datagram.udp_payload;
        self.too_long += u64::from(payload.len() > MAX_PACKET_LEN);
        let icrc = icrc::datagram(ip).map(u32::to_le_bytes);
        let bad_icrc = icrc.as_ref() != payload.last_chunk::<ICRC_LEN>();
        match seen(time, (&datagram, vlan), payload, bad_icrc, metadata) {
            Some(seen) => self.packets.push(seen),
            None => self.others += 1,
        }
    }
}

/// Reads a packet. `payload` is the datagram's or a part of it.
fn seen(
    time: Duration,
    (datagram, vlan): (&Datagram<'_>, Option<u16>),
    payload: &[u8],
    bad_icrc: bool,
    metadata: &PacketMetadata<'_>,
) -> Option<Seen> {
    let packet = Packet::parse(payload).ok()?;
    let fingerprint = payload[..payload.len() - ICRC_LEN]
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
    let is_mad = packet.headers().bth.dest_qp == Qpn::GSI;
    let mad = is_mad.then(|| Mad::parse(packet.payload()).ok()).flatten();
    let message = mad.map(|mad| Box::new(mad.message));
    let outside = Outside {
        vlan,
        tos: datagram.tos,
        ttl: datagram.ttl,
        ip_id: datagram.src.is_ipv4().then_some(datagram.ip_id),
        dont_fragment: datagram.dont_fragment,
        src_port: datagram.src_port,
        udp_checksum: datagram.udp_checksum,
        pad_is_zero: packet.pad().iter().all(|&byte| byte == 0),
        masks: masks(&packet),
    };
    Some(Seen {
        time,
        source: datagram.src,
        destination: datagram.dst,
        direction: metadata.direction,
        process: metadata.process.clone(),
        headers: *packet.headers(),
        payload_len: packet.payload().len(),
        message,
        fingerprint,
        bad_icrc,
        marked: datagram.tos & 3 == 3,
        outside,
        note: metadata.note.to_owned(),
    })
}

/// Returns the masks of a masked compare-and-swap of 8 bytes.
fn masks(packet: &Packet<'_>) -> Option<[u64; 2]> {
    let is_swap = packet.bth().opcode.operation() == Some(Operation::MaskedCmpSwap);
    let (words, []) = packet.payload().as_chunks::<8>() else {
        return None;
    };
    match words {
        [_, _, swap, compare] if is_swap => Some([swap, compare].map(|w| u64::from_be_bytes(*w))),
        _ => None,
    }
}

/// Returns the IP datagram in a frame, and the outermost VLAN tag.
//= HW-10
fn ip_of(link: DataLink, frame: &[u8]) -> Option<(Option<u16>, &[u8])> {
    // Link types without a name in the crate have their number in the registry of pcap.
    match u32::from(link) {
        // Ethernet
        1 => behind_tags(frame.get(12..14)?, frame.get(14..)?),
        // Raw IP
        12 | 14 | 101 | 228 | 229 => Some((None, frame)),
        // BSD loopback
        0 | 108 => Some((None, frame.get(4..)?)),
        // Linux cooked, both versions
        113 => behind_tags(frame.get(14..16)?, frame.get(16..)?),
        276 => behind_tags(frame.get(..2)?, frame.get(20..)?),
        _ => None,
    }
}

/// Returns the IP datagram behind up to two VLAN tags, and the outer tag. `kind` is the EtherType
/// before `rest`.
fn behind_tags<'f>(kind: &[u8], rest: &'f [u8]) -> Option<(Option<u16>, &'f [u8])> {
    const IP: [[u8; 2]; 2] = [[0x08, 0x00], [0x86, 0xdd]];
    const TAGS: [[u8; 2]; 2] = [[0x81, 0x00], [0x88, 0xa8]];
    let (mut kind, mut rest, mut outer) = (kind, rest, None);
    for _ in 0..3 {
        if IP.iter().any(|ip| ip == kind) {
            return Some((outer, rest));
        }
        if !TAGS.iter().any(|tag| tag == kind) {
            return None;
        }
        let (tag, behind) = rest.split_first_chunk::<2>()?;
        outer = outer.or_else(|| Some(u16::from_be_bytes(*tag)));
        (kind, rest) = behind.split_at_checked(2)?;
    }
    None
}
