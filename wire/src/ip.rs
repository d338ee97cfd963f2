//! The parts of IPv4, IPv6 and UDP that RoCEv2 needs.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::{Qpn, ROCE_UDP_PORT, Truncated};

/// Bytes of an IPv4 header without options.
pub const IPV4_HEADER_LEN: usize = 20;
/// Bytes of an IPv6 header.
pub const IPV6_HEADER_LEN: usize = 40;
/// Bytes of a UDP header.
pub const UDP_HEADER_LEN: usize = 8;
/// Bytes at the start of a UD receive buffer that hold the network header.
//= GRH-01
pub const GRH_LEN: usize = 40;

pub(crate) const IPV4_HEADER_LEN_U16: u16 = 20;
const UDP_HEADER_LEN_U16: u16 = 8;
pub(crate) const PROTOCOL_UDP: u8 = 17;

const DONT_FRAGMENT: u16 = 0x4000;

/// The reason why bytes are no datagram that could carry RoCEv2.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum IpError {
    /// Shorter than its headers or than its own length field.
    Truncated,
    /// Neither version 4 nor 6.
    Version(u8),
    /// IPv4 options.
    //= ENC-07
    Options,
    /// A fragment, or the reserved flag is set.
    //= ENC-07
    Fragment,
    /// Wrong checksum of the IPv4 header.
    HeaderChecksum,
    /// Not UDP. For IPv6 that includes extension headers.
    //= ENC-09
    Protocol(u8),
    /// The length fields of IP and UDP disagree.
    UdpLength,
}

impl fmt::Display for IpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated => f.write_str("IP datagram truncated"),
            Self::Version(version) => write!(f, "IP version {version}"),
            Self::Options => f.write_str("IPv4 options"),
            Self::Fragment => f.write_str("IPv4 fragment"),
            Self::HeaderChecksum => f.write_str("IPv4 header checksum wrong"),
            Self::Protocol(protocol) => write!(f, "IP protocol {protocol}, not UDP"),
            Self::UdpLength => f.write_str("UDP length disagrees with IP length"),
        }
    }
}

impl core::error::Error for IpError {}

/// A UDP datagram with its IP header: a view of the payload, and the values of the header fields.
///
/// `parse` and [`Datagram::emit`] are inverse, for the bytes that the IP length covers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
//= ENC-01
pub struct Datagram<'a> {
    /// Source address.
    pub src: IpAddr,
    /// Destination address, of the same family.
    pub dst: IpAddr,
    /// IPv4 Identification. 0 for IPv6.
    pub ip_id: u16,
    /// IPv4 DF flag. True for IPv6.
    pub dont_fragment: bool,
    /// IPv6 flow label, 20 bits. 0 for IPv4.
    pub flow_label: u32,
    /// IPv4 TOS or IPv6 traffic class: DSCP in bits 7:2, ECN in bits 1:0.
    //= ENC-08
    pub tos: u8,
    /// IPv4 TTL or IPv6 hop limit.
    pub ttl: u8,
    /// UDP source port.
    pub src_port: u16,
    /// UDP destination port.
    pub dst_port: u16,
    /// UDP checksum as on the wire, 0 = none. Not verified by `parse`, see
    /// [`Datagram::udp_checksum_is_valid`].
    pub udp_checksum: u16,
    /// Payload of UDP.
    pub udp_payload: &'a [u8],
}

impl<'a> Datagram<'a> {
    /// Reads a datagram that begins with its IP header. Bytes after the IP length (Ethernet
    /// padding) are ignored.
    ///
    /// # Errors
    /// [`IpError`]: the reason why it cannot be RoCEv2.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, IpError> {
        match bytes.first().ok_or(IpError::Truncated)? >> 4 {
            4 => Self::parse_ipv4(bytes),
            6 => Self::parse_ipv6(bytes),
            version => Err(IpError::Version(version)),
        }
    }

    fn parse_ipv4(bytes: &'a [u8]) -> Result<Self, IpError> {
        let header = bytes
            .first_chunk::<IPV4_HEADER_LEN>()
            .ok_or(IpError::Truncated)?;
        //= ENC-07
        if header[0] != 0x45 {
            return Err(IpError::Options);
        }
        if checksum(header) != 0 {
            return Err(IpError::HeaderChecksum);
        }
        if header[9] != PROTOCOL_UDP {
            return Err(IpError::Protocol(header[9]));
        }
        let flags = be16(header, 6);
        if flags & !DONT_FRAGMENT != 0 {
            return Err(IpError::Fragment);
        }
        let total_len = usize::from(be16(header, 2));
        let udp = bytes
            .get(IPV4_HEADER_LEN..total_len)
            .ok_or(IpError::Truncated)?;
        let [
            _,
            _,
            _,
            _,
            _,
            _,
            _,
            _,
            _,
            _,
            _,
            _,
            s0,
            s1,
            s2,
            s3,
            d0,
            d1,
            d2,
            d3,
        ] = *header;
        Self {
            src: Ipv4Addr::new(s0, s1, s2, s3).into(),
            dst: Ipv4Addr::new(d0, d1, d2, d3).into(),
            ip_id: be16(header, 4),
            dont_fragment: flags & DONT_FRAGMENT != 0,
            flow_label: 0,
            tos: header[1],
            ttl: header[8],
            src_port: 0,
            dst_port: 0,
            udp_checksum: 0,
            udp_payload: &[],
        }
        .with_udp(udp)
    }

    fn parse_ipv6(bytes: &'a [u8]) -> Result<Self, IpError> {
        let header = bytes
            .first_chunk::<IPV6_HEADER_LEN>()
            .ok_or(IpError::Truncated)?;
        //= ENC-09
        if header[6] != PROTOCOL_UDP {
            return Err(IpError::Protocol(header[6]));
        }
        let payload_len = usize::from(be16(header, 4));
        let udp = bytes
            .get(IPV6_HEADER_LEN..)
            .and_then(|rest| rest.get(..payload_len));
        let [tc_high, tc_low] = [header[0] & 0x0f, header[1] >> 4];
        Self {
            src: ipv6_at(header, 8).into(),
            dst: ipv6_at(header, 24).into(),
            ip_id: 0,
            dont_fragment: true,
            flow_label: u32::from_be_bytes([0, header[1] & 0x0f, header[2], header[3]]),
            tos: tc_high << 4 | tc_low,
            ttl: header[7],
            src_port: 0,
            dst_port: 0,
            udp_checksum: 0,
            udp_payload: &[],
        }
        .with_udp(udp.ok_or(IpError::Truncated)?)
    }

    fn with_udp(mut self, udp: &'a [u8]) -> Result<Self, IpError> {
        let (header, payload) = udp
            .split_first_chunk::<UDP_HEADER_LEN>()
            .ok_or(IpError::Truncated)?;
        //= ENC-06
        if usize::from(be16(header, 4)) != udp.len() {
            return Err(IpError::UdpLength);
        }
        self.src_port = be16(header, 0);
        self.dst_port = be16(header, 2);
        self.udp_checksum = be16(header, 6);
        self.udp_payload = payload;
        Ok(self)
    }

    /// Returns true if the destination port is that of RoCEv2.
    #[must_use]
    pub const fn is_roce(&self) -> bool {
        //= ENC-02
        self.dst_port == ROCE_UDP_PORT
    }

    /// Returns the length of the whole datagram.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.ip_header_len() + UDP_HEADER_LEN + self.udp_payload.len()
    }

    /// Returns true if the UDP payload is empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.udp_payload.is_empty()
    }

    const fn ip_header_len(&self) -> usize {
        match self.src {
            IpAddr::V4(_) => IPV4_HEADER_LEN,
            IpAddr::V6(_) => IPV6_HEADER_LEN,
        }
    }

    /// Returns the UDP length field. A payload that is too long for a datagram saturates it, and
    /// `emit` refuses it.
    fn udp_len(&self) -> u16 {
        u16::try_from(self.udp_payload.len())
            .unwrap_or(u16::MAX)
            .saturating_add(UDP_HEADER_LEN_U16)
    }

    /// Writes the datagram to the start of `out` and returns its length.
    ///
    /// The IPv4 header checksum is computed. The UDP checksum is that of the field.
    ///
    /// # Errors
    /// [`EmitError`] if `out` is too short, the addresses are of different families, or the payload
    /// does not fit a datagram.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, EmitError> {
        let (needed_len, actual_len) = (self.len(), out.len());
        if needed_len - self.ip_header_len() > usize::from(u16::MAX)
            || matches!(self.src, IpAddr::V4(_)) && needed_len > usize::from(u16::MAX)
        {
            return Err(EmitError::TooLong);
        }
        let Some(out) = out.get_mut(..needed_len) else {
            return Err(EmitError::Truncated(Truncated {
                needed_len,
                actual_len,
            }));
        };
        let (ip, rest) = out.split_at_mut(self.ip_header_len());
        match (self.src, self.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                ip.copy_from_slice(&self.ipv4_header(src, dst));
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                ip.copy_from_slice(&self.ipv6_header(src, dst));
            }
            _ => return Err(EmitError::MixedFamilies),
        }
        let (udp, payload) = rest.split_at_mut(UDP_HEADER_LEN);
        udp.copy_from_slice(&self.udp_header(self.udp_checksum));
        payload.copy_from_slice(self.udp_payload);
        Ok(needed_len)
    }

    fn ipv4_header(&self, src: Ipv4Addr, dst: Ipv4Addr) -> [u8; IPV4_HEADER_LEN] {
        let mut header = [0; IPV4_HEADER_LEN];
        let total_len = self.udp_len().saturating_add(IPV4_HEADER_LEN_U16);
        let flags = if self.dont_fragment { DONT_FRAGMENT } else { 0 };
        header[0] = 0x45;
        header[1] = self.tos;
        header[2..4].copy_from_slice(&total_len.to_be_bytes());
        header[4..6].copy_from_slice(&self.ip_id.to_be_bytes());
        header[6..8].copy_from_slice(&flags.to_be_bytes());
        header[8] = self.ttl;
        header[9] = PROTOCOL_UDP;
        header[12..16].copy_from_slice(&src.octets());
        header[16..].copy_from_slice(&dst.octets());
        let sum = checksum(&header);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        header
    }

    fn ipv6_header(&self, src: Ipv6Addr, dst: Ipv6Addr) -> [u8; IPV6_HEADER_LEN] {
        let mut header = [0; IPV6_HEADER_LEN];
        let word = 6 << 28 | u32::from(self.tos) << 20 | self.flow_label & 0x000f_ffff;
        header[..4].copy_from_slice(&word.to_be_bytes());
        header[4..6].copy_from_slice(&self.udp_len().to_be_bytes());
        header[6] = PROTOCOL_UDP;
        header[7] = self.ttl;
        header[8..24].copy_from_slice(&src.octets());
        header[24..].copy_from_slice(&dst.octets());
        header
    }

    fn udp_header(&self, checksum: u16) -> [u8; UDP_HEADER_LEN] {
        let [s0, s1] = self.src_port.to_be_bytes();
        let [d0, d1] = self.dst_port.to_be_bytes();
        let [l0, l1] = self.udp_len().to_be_bytes();
        let [c0, c1] = checksum.to_be_bytes();
        [s0, s1, d0, d1, l0, l1, c0, c1]
    }

    /// Computes the UDP checksum of this datagram, never 0. Returns 0 if the addresses are of
    /// different families.
    #[must_use]
    pub fn compute_udp_checksum(&self) -> u16 {
        let mut sum = u64::from(self.udp_len()) + u64::from(PROTOCOL_UDP);
        match (self.src, self.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                sum += sum_be16(&src.octets()) + sum_be16(&dst.octets());
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                sum += sum_be16(&src.octets()) + sum_be16(&dst.octets());
            }
            _ => return 0,
        }
        sum += sum_be16(&self.udp_header(0)) + sum_be16(self.udp_payload);
        match !fold(sum) {
            0 => u16::MAX,
            checksum => checksum,
        }
    }

    /// Returns true if the UDP checksum is absent or correct.
    #[must_use]
    pub fn udp_checksum_is_valid(&self) -> bool {
        //= ENC-06
        self.udp_checksum == 0 || self.udp_checksum == self.compute_udp_checksum()
    }

    /// Returns the 40 bytes that a UD queue pair puts before the received payload.
    ///
    /// They are zeros and the IPv4 header, or the IPv6 header. All are zero if the addresses are of
    /// different families.
    #[must_use]
    //= GRH-04
    pub fn grh(&self) -> [u8; GRH_LEN] {
        match (self.src, self.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                //= GRH-02 GRH-05
                let mut grh = [0; GRH_LEN];
                grh[GRH_LEN - IPV4_HEADER_LEN..].copy_from_slice(&self.ipv4_header(src, dst));
                grh
            }
            //= GRH-03
            (IpAddr::V6(src), IpAddr::V6(dst)) => self.ipv6_header(src, dst),
            _ => [0; GRH_LEN],
        }
    }
}

/// The reason why a datagram cannot be written.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum EmitError {
    /// The buffer is too short.
    Truncated(Truncated),
    /// Source and destination address are of different families.
    //= ENC-12
    MixedFamilies,
    /// The payload is too long for a datagram.
    TooLong,
}

impl fmt::Display for EmitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated(truncated) => truncated.fmt(f),
            Self::MixedFamilies => f.write_str("source and destination are of different families"),
            Self::TooLong => f.write_str("payload too long for a datagram"),
        }
    }
}

impl core::error::Error for EmitError {}

/// The UDP source port that Linux derives from a flow label of 20 bits.
#[must_use]
pub const fn source_port_of_flow_label(flow_label: u32) -> u16 {
    //= ENC-04
    let label = flow_label & 0x000f_ffff;
    let [low, high, ..] = ((label & 0x3fff) ^ (label >> 14)).to_le_bytes();
    0xc000 | u16::from_le_bytes([low, high])
}

/// The flow label that Linux assigns to a connection without one. It is the same in both
/// directions.
#[must_use]
pub const fn flow_label_of_qpns(one: Qpn, other: Qpn) -> u32 {
    //= ENC-05
    let mut hash = one.get() as u64 * other.get() as u64;
    hash ^= hash >> 20;
    hash ^= hash >> 40;
    let [b0, b1, b2, ..] = hash.to_le_bytes();
    u32::from_le_bytes([b0, b1, b2 & 0x0f, 0])
}

/// Computes the internet checksum.
///
/// For a header with its checksum field zero, that is the value of the field. For a header with its
/// checksum, it is 0.
#[must_use]
pub fn checksum(bytes: &[u8]) -> u16 {
    !fold(sum_be16(bytes))
}

/// Sum of big-endian words, the last one padded with a zero byte.
fn sum_be16(bytes: &[u8]) -> u64 {
    let (words, odd) = bytes.as_chunks::<2>();
    let sum: u64 = words
        .iter()
        .map(|&word| u64::from(u16::from_be_bytes(word)))
        .sum();
    sum + odd.first().map_or(0, |&byte| u64::from(byte) << 8)
}

/// One's complement sum in 16 bits.
fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::try_from(sum).unwrap_or(u16::MAX)
}

fn be16(header: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([header[at], header[at + 1]])
}

fn ipv6_at(header: &[u8; IPV6_HEADER_LEN], at: usize) -> Ipv6Addr {
    let mut octets = [0; 16];
    octets.copy_from_slice(&header[at..at + 16]);
    octets.into()
}

#[cfg(test)]
mod tests;
