//! Ethernet frames: header parsing for flows, checksums, and segmentation.

use std::ops::Range;

/// Length of an Ethernet header without tags.
const ETH_LEN: usize = 14;
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
/// EtherTypes of a VLAN tag, and of an outer VLAN tag (802.1ad).
const TAGGED: [u16; 2] = [0x8100, 0x88a8];
const TAG_LEN: usize = 4;
const IPV6_LEN: usize = 40;
const UDP_LEN: usize = 8;
pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
/// TCP flags that only the first segment (CWR) or the last one (PSH, FIN) keeps.
const TCP_CWR: u8 = 0x80;
const TCP_PSH_FIN: u8 = 0x09;

/// The network header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NetworkHeader {
    /// IPv4, with the length of its header in bytes.
    V4(usize),
    /// IPv6, without extension headers.
    V6,
}

/// The positions of a frame's headers. An incomplete header counts as absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// The EtherType after all tags.
    pub(crate) ether_type: u16,
    /// The outermost VLAN tag.
    pub(crate) vlan: Option<u16>,
    /// Type and offset of the network header.
    pub(crate) network: Option<(NetworkHeader, usize)>,
    /// Protocol and offset of the TCP or UDP header, absent in later fragments.
    pub(crate) transport: Option<(u8, usize)>,
}

pub(crate) fn be16(bytes: &[u8], at: usize) -> u16 {
    bytes
        .get(at..at + 2)
        .and_then(|two| two.try_into().ok())
        .map_or(0, u16::from_be_bytes)
}

fn put16(bytes: &mut [u8], at: usize, value: u16) {
    if let Some(place) = bytes.get_mut(at..at + 2) {
        place.copy_from_slice(&value.to_be_bytes());
    }
}

impl Layout {
    /// Parses a frame. Returns `None` if the Ethernet header is incomplete.
    pub(crate) fn of(frame: &[u8]) -> Option<Self> {
        if frame.len() < ETH_LEN {
            return None;
        }
        let (mut at, mut vlan) = (ETH_LEN, None);
        let mut ether_type = be16(frame, at - 2);
        while TAGGED.contains(&ether_type) && frame.len() >= at + TAG_LEN {
            vlan = vlan.or_else(|| Some(be16(frame, at)));
            at += TAG_LEN;
            ether_type = be16(frame, at - 2);
        }
        let network = network(frame, ether_type, at).map(|kind| (kind, at));
        let mut layout = Self {
            ether_type,
            vlan,
            network,
            transport: None,
        };
        layout.transport = layout.find_transport(frame);
        Some(layout)
    }

    fn find_transport(&self, frame: &[u8]) -> Option<(u8, usize)> {
        let (kind, at) = self.network?;
        let (protocol, behind) = match kind {
            NetworkHeader::V4(_) if be16(frame, at + 6) & 0x1fff != 0 => return None,
            NetworkHeader::V4(len) => (*frame.get(at + 9)?, at + len),
            NetworkHeader::V6 => (*frame.get(at + 6)?, at + IPV6_LEN),
        };
        let len = match protocol {
            UDP => UDP_LEN,
            TCP => usize::from(*frame.get(behind + 12)? >> 4) * 4,
            _ => return None,
        };
        let whole = len >= UDP_LEN && frame.len() >= behind + len;
        (whole && (protocol == UDP || len >= 20)).then_some((protocol, behind))
    }

    /// Returns the offset of the data behind the last header.
    fn data_at(&self, frame: &[u8]) -> Option<usize> {
        let (protocol, at) = self.transport?;
        Some(match protocol {
            UDP => at + UDP_LEN,
            _ => at + usize::from(*frame.get(at + 12)? >> 4) * 4,
        })
    }

    /// Returns the bytes that the transport checksum covers, by the length in the network header.
    fn covered(&self, frame: &[u8]) -> Option<Range<usize>> {
        let (kind, at) = self.network?;
        let (_, from) = self.transport?;
        let end = match kind {
            NetworkHeader::V4(_) => at + usize::from(be16(frame, at + 2)),
            NetworkHeader::V6 => at + IPV6_LEN + usize::from(be16(frame, at + 4)),
        };
        (from..=frame.len()).contains(&end).then_some(from..end)
    }

    /// Returns the sum of the pseudo header.
    fn pseudo_sum(&self, frame: &[u8], len: usize) -> Option<u64> {
        let (kind, at) = self.network?;
        let (protocol, _) = self.transport?;
        let addresses = match kind {
            NetworkHeader::V4(_) => at + 12..at + 20,
            NetworkHeader::V6 => at + 8..at + 40,
        };
        Some(sum(frame.get(addresses)?) + len as u64 + u64::from(protocol))
    }
}

fn network(frame: &[u8], ether_type: u16, at: usize) -> Option<NetworkHeader> {
    let first = *frame.get(at)?;
    match (ether_type, first >> 4) {
        (IPV4, 4) => {
            let len = usize::from(first & 0xf) * 4;
            (len >= 20 && frame.len() >= at + len).then_some(NetworkHeader::V4(len))
        }
        (IPV6, 6) => (frame.len() >= at + IPV6_LEN).then_some(NetworkHeader::V6),
        _ => None,
    }
}

/// Returns the unfolded sum of 16-bit words. An odd byte is the upper half of a word.
fn sum(bytes: &[u8]) -> u64 {
    let (words, last) = bytes.as_chunks::<2>();
    let sum: u64 = words
        .iter()
        .map(|word| u64::from(u16::from_be_bytes(*word)))
        .sum();
    sum + last.first().map_or(0, |byte| u64::from(*byte) << 8)
}

/// Returns the ones' complement of a sum, in 16 bits.
#[expect(clippy::cast_possible_truncation, reason = "16 bits are left")]
const fn folded(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Returns true for TCP or UDP over IPv4 with two valid checksums.
pub(crate) fn has_right_checksums(frame: &[u8], layout: &Layout) -> bool {
    let Some((NetworkHeader::V4(len), at)) = layout.network else {
        return false;
    };
    let right = || {
        let header_ok = folded(sum(frame.get(at..at + len)?)) == 0;
        let (protocol, from) = layout.transport?;
        let covered = layout.covered(frame)?;
        if protocol == UDP && be16(frame, from + 6) == 0 {
            return Some(header_ok);
        }
        let pseudo = layout.pseudo_sum(frame, covered.len())?;
        Some(header_ok && folded(pseudo + sum(frame.get(covered)?)) == 0)
    };
    right().unwrap_or(false)
}

/// Computes the checksums of IPv4, TCP and UDP.
pub(crate) fn fill_checksums(frame: &mut [u8]) {
    let Some(layout) = Layout::of(frame) else {
        return;
    };
    if let Some((NetworkHeader::V4(len), at)) = layout.network {
        put16(frame, at + 10, 0);
        let header = frame.get(at..at + len).map_or(0, sum);
        put16(frame, at + 10, folded(header));
    }
    let Some((protocol, from)) = layout.transport else {
        return;
    };
    let field = from + if protocol == UDP { 6 } else { 16 };
    put16(frame, field, 0);
    let checksum = || {
        let covered = layout.covered(frame)?;
        let pseudo = layout.pseudo_sum(frame, covered.len())?;
        Some(folded(pseudo + sum(frame.get(covered)?)))
    };
    if let Some(checksum) = checksum() {
        // The value 0 means that there is no checksum.
        let none = protocol == UDP && checksum == 0;
        put16(frame, field, if none { 0xffff } else { checksum });
    }
}

/// Completes a checksum that the sender left to the device. It covers the bytes from `start` on.
/// Its field, at `offset` from there, contains the sum of the pseudo header.
pub(crate) fn complete_checksum(frame: &mut [u8], start: usize, offset: usize) {
    let field = start + offset;
    if field + 2 <= frame.len() {
        let checksum = folded(sum(&frame[start..]));
        let none = checksum == 0 && offset == 6;
        put16(frame, field, if none { 0xffff } else { checksum });
    }
}

/// Returns the length of the headers of a frame to be segmented, or `None` if the frame cannot be
/// segmented.
pub(crate) fn header_len(frame: &[u8]) -> Option<usize> {
    Layout::of(frame)?.data_at(frame)
}

/// Segments the data behind the first `header_len` bytes into segments of `mss` bytes. Appends
/// these to `out`, each with its own header and checksums. Appends the end of each to `ends`.
pub(crate) fn segment(
    frame: &[u8],
    header_len: usize,
    mss: usize,
    out: &mut Vec<u8>,
    ends: &mut Vec<usize>,
) {
    let (header, data) = frame.split_at(header_len.min(frame.len()));
    let layout = Layout::of(header);
    let mut offset = 0;
    for (index, part) in (0u16..).zip(data.chunks(mss.max(1))) {
        let start = out.len();
        out.extend_from_slice(header);
        out.extend_from_slice(part);
        let is_last = offset + part.len() == data.len();
        if let Some(layout) = &layout {
            number(&mut out[start..], layout, (index, offset, is_last));
        }
        fill_checksums(&mut out[start..]);
        ends.push(out.len());
        offset += part.len();
    }
    if data.is_empty() {
        out.extend_from_slice(header);
        ends.push(out.len());
    }
}

/// Sets the fields that differ between the headers of segments: lengths, numbers, flags.
fn number(segment: &mut [u8], layout: &Layout, (index, offset, is_last): (u16, usize, bool)) {
    let len = |from: usize| u16::try_from(segment.len() - from).unwrap_or(u16::MAX);
    let Some((kind, at)) = layout.network else {
        return;
    };
    match kind {
        NetworkHeader::V4(_) => {
            let total = len(at);
            put16(segment, at + 2, total);
            let id = be16(segment, at + 4);
            put16(segment, at + 4, id.wrapping_add(index));
        }
        NetworkHeader::V6 => {
            let payload = len(at + IPV6_LEN);
            put16(segment, at + 4, payload);
        }
    }
    match layout.transport {
        Some((TCP, at)) => {
            let first = segment[at + 4..at + 8].try_into().map(u32::from_be_bytes);
            let behind = u32::try_from(offset).unwrap_or(0);
            let number = first.unwrap_or(0).wrapping_add(behind);
            segment[at + 4..at + 8].copy_from_slice(&number.to_be_bytes());
            if !is_last {
                segment[at + 13] &= !TCP_PSH_FIN;
            }
            if index > 0 {
                segment[at + 13] &= !TCP_CWR;
            }
        }
        Some((_, at)) => {
            let length = u16::try_from(segment.len() - at).unwrap_or(u16::MAX);
            put16(segment, at + 4, length);
        }
        None => {}
    }
}

#[cfg(all(test, not(loom)))]
pub(crate) mod tests {
    use proptest::prelude::{any, prop_assert, prop_assert_eq};
    use rocade_wire::Qpn;

    use super::*;

    /// Returns a TCP or UDP frame over IPv4 or IPv6, with valid checksums.
    pub(crate) fn frame(v6: bool, protocol: u8, tag: Option<u16>, data: &[u8]) -> Vec<u8> {
        let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
        if let Some(tag) = tag {
            bytes.extend([0x81, 0]);
            bytes.extend(tag.to_be_bytes());
        }
        let header = if protocol == UDP { 8 } else { 20 };
        let len = u16::try_from(header + data.len()).expect("short");
        if v6 {
            bytes.extend([0x86, 0xdd, 0x61, 0x23, 0x45, 0x67]);
            bytes.extend(len.to_be_bytes());
            bytes.extend([protocol, 9]);
            bytes.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
            bytes.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
        } else {
            bytes.extend([8, 0, 0x45, 0x20]);
            bytes.extend((len + 20).to_be_bytes());
            bytes.extend([0x12, 0x34, 0x40, 0, 7, protocol, 0, 0]);
            bytes.extend([192, 0, 2, 1, 192, 0, 2, 2]);
        }
        bytes.extend(1000u16.to_be_bytes());
        bytes.extend(2000u16.to_be_bytes());
        if protocol == UDP {
            bytes.extend(len.to_be_bytes());
            bytes.extend([0, 0]);
        } else {
            bytes.extend([0, 0, 1, 0, 0, 0, 0, 9, 0x50, 0x99, 0x10, 0, 0, 0, 0, 0]);
        }
        bytes.extend_from_slice(data);
        fill_checksums(&mut bytes);
        bytes
    }

    /// Returns true if all checksums of a frame are valid, by etherparse.
    fn oracle(frame: &[u8]) -> bool {
        use etherparse::{NetSlice, SlicedPacket, TransportSlice};
        let packet = SlicedPacket::from_ethernet(frame).expect("a frame");
        match (packet.net.expect("IP"), packet.transport.expect("TCP, UDP")) {
            (NetSlice::Ipv4(ip), TransportSlice::Udp(udp)) => {
                let header = ip.header().to_header();
                let own = udp.to_header().calc_checksum_ipv4(&header, udp.payload());
                header.calc_header_checksum() == header.header_checksum && own == Ok(udp.checksum())
            }
            (NetSlice::Ipv4(ip), TransportSlice::Tcp(tcp)) => {
                let header = ip.header().to_header();
                let own = tcp.to_header().calc_checksum_ipv4(&header, tcp.payload());
                header.calc_header_checksum() == header.header_checksum && own == Ok(tcp.checksum())
            }
            (NetSlice::Ipv6(ip), TransportSlice::Udp(udp)) => {
                let header = ip.header().to_header();
                let own = udp.to_header().calc_checksum_ipv6(&header, udp.payload());
                own == Ok(udp.checksum())
            }
            (NetSlice::Ipv6(ip), TransportSlice::Tcp(tcp)) => {
                let header = ip.header().to_header();
                let own = tcp.to_header().calc_checksum_ipv6(&header, tcp.payload());
                own == Ok(tcp.checksum())
            }
            _ => false,
        }
    }

    #[test]
    fn checksums_are_those_that_another_parser_expects() {
        for (v6, protocol) in [(false, UDP), (false, TCP), (true, UDP), (true, TCP)] {
            for len in [0usize, 1, 2, 63, 1001] {
                let data: Vec<u8> = (0..len).map(|n| u8::try_from(n % 251).unwrap()).collect();
                let mut bytes = frame(v6, protocol, None, &data);
                assert!(oracle(&bytes), "v6 {v6}, {protocol}, {len}");
                let layout = Layout::of(&bytes).unwrap();
                assert_eq!(has_right_checksums(&bytes, &layout), !v6);
                // Padding of a short frame is ignored.
                bytes.extend([7; 5]);
                assert_eq!(has_right_checksums(&bytes, &layout), !v6);
                for at in 14..bytes.len() - 5 {
                    bytes[at] ^= 0x40;
                    let layout = Layout::of(&bytes).unwrap();
                    let ignored = protocol == UDP && be16(&bytes, 40) == 0;
                    assert!(ignored || !has_right_checksums(&bytes, &layout), "{at}");
                    bytes[at] ^= 0x40;
                }
            }
        }
    }

    #[test]
    fn udp_without_a_checksum_counts_as_right_and_a_sum_of_zero_is_sent_as_ones() {
        let mut bytes = frame(false, UDP, None, b"abc");
        let at = Layout::of(&bytes).unwrap().transport.unwrap().1;
        put16(&mut bytes, at + 6, 0);
        assert!(has_right_checksums(&bytes, &Layout::of(&bytes).unwrap()));
        fill_checksums(&mut bytes);
        let last = bytes.len() - 1;
        // Changes the data so that the sum becomes 0.
        let checksum = be16(&bytes, at + 6);
        bytes[last - 2..].copy_from_slice(b"abc");
        let first = be16(&bytes, at + 8);
        put16(&mut bytes, at + 8, first.wrapping_add(checksum));
        if first.checked_add(checksum).is_none() {
            let once_more = be16(&bytes, at + 8) + 1;
            put16(&mut bytes, at + 8, once_more);
        }
        fill_checksums(&mut bytes);
        assert_eq!(be16(&bytes, at + 6), 0xffff);
        assert!(has_right_checksums(&bytes, &Layout::of(&bytes).unwrap()));
    }

    #[test]
    fn a_checksum_that_was_left_to_the_device_is_completed() {
        for protocol in [UDP, TCP] {
            let right = frame(false, protocol, None, b"some data");
            let mut bytes = right.clone();
            let layout = Layout::of(&bytes).unwrap();
            let at = layout.transport.unwrap().1;
            let offset = if protocol == UDP { 6 } else { 16 };
            let covered = layout.covered(&bytes).unwrap();
            let pseudo = layout.pseudo_sum(&bytes, covered.len()).unwrap();
            put16(&mut bytes, at + offset, !folded(pseudo));
            complete_checksum(&mut bytes, at, offset);
            assert_eq!(bytes, right);
            complete_checksum(&mut bytes, 10_000, 6);
            complete_checksum(&mut bytes, right.len() - 1, 0);
        }
    }

    #[test]
    fn headers_are_found_behind_tags() {
        let plain = Layout::of(&frame(false, TCP, None, b"x")).unwrap();
        assert_eq!((plain.vlan, plain.ether_type), (None, IPV4));
        assert_eq!(plain.network, Some((NetworkHeader::V4(20), 14)));
        assert_eq!(plain.transport, Some((TCP, 34)));
        let tagged = Layout::of(&frame(true, UDP, Some(0x2005), b"x")).unwrap();
        assert_eq!((tagged.vlan, tagged.ether_type), (Some(0x2005), IPV6));
        assert_eq!(tagged.network, Some((NetworkHeader::V6, 18)));
        assert_eq!(tagged.transport, Some((UDP, 58)));
        let mut fragment = frame(false, UDP, None, b"x");
        fragment[21] = 1;
        let fragment = Layout::of(&fragment).unwrap();
        assert!(fragment.network.is_some() && fragment.transport.is_none());
    }

    #[test]
    fn whatever_is_cut_short_is_not_there() {
        for (v6, protocol) in [(false, UDP), (false, TCP), (true, UDP), (true, TCP)] {
            let whole = frame(v6, protocol, Some(1), b"data");
            for len in 0..whole.len() {
                let mut part = whole[..len].to_vec();
                let layout = Layout::of(&part);
                assert_eq!(layout.is_some(), len >= ETH_LEN);
                if let Some(layout) = layout {
                    assert!(!has_right_checksums(&part, &layout));
                }
                fill_checksums(&mut part);
                let (mut out, mut ends) = (Vec::new(), Vec::new());
                segment(&part, len / 2, 3, &mut out, &mut ends);
                assert_eq!(ends.last(), Some(&out.len()));
            }
        }
    }

    #[test]
    fn segments_are_numbered_and_add_up() {
        for v6 in [false, true] {
            let data: Vec<u8> = (0..=255).cycle().take(2500).collect();
            let mut long = frame(v6, TCP, None, &data);
            let layout = Layout::of(&long).unwrap();
            let at = layout.transport.unwrap().1;
            // Sets CWR, PSH and FIN.
            long[at + 13] |= 0x89;
            let header = header_len(&long).unwrap();
            assert_eq!(header, at + 20);
            let (mut out, mut ends) = (Vec::new(), Vec::new());
            segment(&long, header, 1000, &mut out, &mut ends);
            let mut start = 0;
            let mut joined = Vec::new();
            for (index, end) in ends.iter().enumerate() {
                let segment = &out[start..*end];
                assert!(oracle(segment), "{index}");
                let number = u32::from_be_bytes(segment[at + 4..at + 8].try_into().unwrap());
                assert_eq!(number as usize, 0x100 + joined.len());
                let flags = segment[at + 13];
                let expected = [0x90, 0x10, 0x19][index];
                assert_eq!(flags, expected, "segment {index}");
                if !v6 {
                    assert_eq!(usize::from(be16(segment, 18)), 0x1234 + index);
                }
                joined.extend_from_slice(&segment[header..]);
                start = *end;
            }
            assert_eq!((ends.len(), joined), (3, data));
        }
        let mut udp = (Vec::new(), Vec::new());
        segment(
            &frame(false, UDP, None, &[1; 10]),
            42,
            4,
            &mut udp.0,
            &mut udp.1,
        );
        assert_eq!(udp.1, [46, 92, 136]);
        assert!(oracle(&udp.0[92..]) && be16(&udp.0[92..], 38) == 10);
    }

    proptest::proptest! {
        /// Any frame, from the network or from a program, is parsed as far as possible, and
        /// segmentation loses no data.
        #[test]
        fn any_frame_is_taken(
            (v6, is_tcp, tag) in (any::<bool>(), any::<bool>(), any::<Option<u16>>()),
            data in proptest::collection::vec(any::<u8>(), 0..200),
            changes in proptest::collection::vec((0usize..90, any::<u8>()), 0..6),
            (left, header, mss) in (0usize..300, 0usize..120, 0usize..80),
            (start, offset) in (0usize..400, 0usize..400),
        ) {
            let protocol = if is_tcp { TCP } else { UDP };
            let mut bytes = frame(v6, protocol, tag, &data);
            for (at, value) in changes {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = value;
                }
            }
            bytes.truncate(left);
            if let Some(layout) = Layout::of(&bytes) {
                has_right_checksums(&bytes, &layout);
                let rss_table = super::super::rss::RssTable::new(vec![Qpn::new(1), Qpn::new(2)], [7; 40], u32::MAX);
                prop_assert!(rss_table.queue_of(&bytes).is_some());
            }
            if let Some(len) = header_len(&bytes) {
                prop_assert!(len <= bytes.len());
            }
            let mut filled = bytes.clone();
            fill_checksums(&mut filled);
            complete_checksum(&mut filled, start, offset);
            prop_assert_eq!(filled.len(), bytes.len());
            let (mut out, mut ends) = (Vec::new(), Vec::new());
            segment(&bytes, header, mss, &mut out, &mut ends);
            let header = header.min(bytes.len());
            let mut begin = 0;
            let mut found = Vec::new();
            for end in ends {
                prop_assert!((header..=header + mss.max(1)).contains(&(end - begin)));
                found.extend_from_slice(&out[begin + header..end]);
                begin = end;
            }
            prop_assert_eq!(begin, out.len());
            prop_assert_eq!(found.len(), bytes.len() - header);
            // Segmentation only changes checksums in the headers.
            if header_len(&bytes).is_some_and(|len| header >= len) {
                prop_assert_eq!(&found[..], &bytes[header..]);
            }
        }
    }
}
