//! Writes the packets of a case as a file in pcapng format.

use std::{
    borrow::Cow,
    io,
    time::{Duration, UNIX_EPOCH},
};

use pcap_file::{
    DataLink, Endianness, PcapError,
    pcapng::{
        PcapNgBlock as _, PcapNgWriter,
        blocks::{
            enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption},
            interface_description::{InterfaceDescriptionBlock, InterfaceDescriptionOption},
            section_header::{SectionHeaderBlock, SectionHeaderOption},
        },
    },
};
use rocade_wire::ip::Datagram;

use super::Frame;

/// `if_tsresol`: timestamps are in nanoseconds.
const NANOSECONDS: u8 = 9;
/// `epb_flags` of a received and of a sent packet.
const INBOUND: u32 = 1;
const OUTBOUND: u32 = 2;

/// Returns the contents of a pcapng file with these packets. The text becomes the comment of the
/// file. The IP headers are reconstructed, because the socket does not show them.
///
/// # Errors
/// Those of the encoder: a packet is too long.
pub fn capture(frames: &[Frame], text: &str) -> io::Result<Vec<u8>> {
    section(frames, text).map_err(io::Error::other)
}

fn section(frames: &[Frame], text: &str) -> Result<Vec<u8>, PcapError> {
    let application = concat!("rocade-conformance ", env!("CARGO_PKG_VERSION"));
    let header = SectionHeaderBlock {
        endianness: Endianness::Little,
        options: vec![
            SectionHeaderOption::Comment(Cow::Owned(text.to_owned())),
            SectionHeaderOption::UserApplication(Cow::Borrowed(application)),
        ],
        ..SectionHeaderBlock::default()
    };
    let mut writer = PcapNgWriter::with_section_header(Vec::new(), header)?;
    let interface = InterfaceDescriptionBlock {
        linktype: DataLink::RAW,
        snaplen: 0,
        options: vec![
            InterfaceDescriptionOption::IfName(Cow::Borrowed("rig")),
            InterfaceDescriptionOption::IfTsResol(NANOSECONDS),
        ],
    };
    writer.write_block(&interface.into_block())?;
    for frame in frames {
        writer.write_block(&packet(frame)?.into_block())?;
    }
    Ok(writer.into_inner())
}

fn packet(frame: &Frame) -> Result<EnhancedPacketBlock<'_>, PcapError> {
    let data = datagram(frame).map_err(|error| PcapError::IoError(io::Error::other(error)))?;
    let direction = if frame.is_sent { OUTBOUND } else { INBOUND };
    let mut options = vec![EnhancedPacketOption::Flags(direction)];
    if !frame.comment.is_empty() {
        options.push(EnhancedPacketOption::Comment(Cow::Borrowed(&frame.comment)));
    }
    let since_epoch = frame.at.duration_since(UNIX_EPOCH);
    Ok(EnhancedPacketBlock {
        interface_id: 0,
        timestamp: since_epoch.unwrap_or(Duration::ZERO),
        original_len: u32::try_from(data.len()).unwrap_or(u32::MAX),
        data: Cow::Owned(data),
        options,
    })
}

/// Returns the packet with IP and UDP headers.
fn datagram(frame: &Frame) -> Result<Vec<u8>, String> {
    let mut datagram = Datagram {
        src: frame.from.ip(),
        dst: frame.to.ip(),
        ip_id: 0,
        dont_fragment: true,
        flow_label: 0,
        tos: 0,
        ttl: 64,
        src_port: frame.from.port(),
        dst_port: frame.to.port(),
        udp_checksum: 0,
        udp_payload: &frame.bytes,
    };
    datagram.udp_checksum = datagram.compute_udp_checksum();
    let mut bytes = vec![0; datagram.len()];
    let len = datagram
        .emit(&mut bytes)
        .map_err(|error| error.to_string())?;
    bytes.truncate(len);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::{net::SocketAddr, time::SystemTime};

    use pcap_file::pcapng::{Block, PcapNgReader};

    use super::*;

    #[test]
    fn a_file_has_each_packet_with_its_comment() {
        let [rig, peer] = ["[fd00::1]:4791", "[fd00::2]:4791"].map(|at| at.parse().unwrap());
        let frame = |from: SocketAddr, to, is_sent, comment: &str| Frame {
            at: SystemTime::now(),
            from,
            to,
            is_sent,
            bytes: vec![0x11; 20],
            comment: comment.to_owned(),
        };
        let frames = [
            frame(rig, peer, true, "next packet: wrong ICRC"),
            frame(peer, rig, false, ""),
        ];
        let file = capture(&frames, "A-1/x: failed").unwrap();
        let mut reader = PcapNgReader::new(&*file).unwrap();
        let comment = SectionHeaderOption::Comment("A-1/x: failed".into());
        assert_eq!(reader.section().options[0], comment);
        let mut sources = Vec::new();
        while let Some(block) = reader.next_block() {
            let Block::EnhancedPacket(packet) = block.unwrap() else {
                continue;
            };
            let datagram = Datagram::parse(&packet.data).unwrap();
            assert!(datagram.udp_checksum_is_valid());
            assert_eq!(datagram.udp_payload, [0x11; 20]);
            sources.push((datagram.src, packet.options.len()));
        }
        assert_eq!(sources, [(rig.ip(), 2), (peer.ip(), 1)]);
    }
}
