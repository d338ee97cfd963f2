//! Headers of datagrams.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// Identifies packets of the protocol on the UDP socket.
const TAG: u32 = 0x5555_5555;
const OP_DATA: u8 = 0;
const OP_CONTROL: u8 = 7;

/// The maximum length of a datagram with its header, on the QP and on the UDP socket.
pub const MAX_LEN: usize = 2048;
/// The maximum length of either header.
pub const MAX_HEADER: usize = 28;

/// The header on the UDP socket. It tells the peer the sender's QP number, and precedes datagrams
/// while the sender does not have the peer's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UdpHeader {
    /// Set if a datagram follows. Otherwise the packet only has the sender's QP number.
    pub has_data: bool,
    /// The QP number of the sender, 24 bits.
    pub qpn: u32,
    /// The IP address of the sender.
    pub addr: IpAddr,
}

impl UdpHeader {
    /// Encodes the header, and returns its length.
    pub fn encode(&self, bytes: &mut [u8; MAX_HEADER]) -> usize {
        *bytes = [0; MAX_HEADER];
        bytes[..4].copy_from_slice(&TAG.to_be_bytes());
        bytes[5] = if self.has_data { OP_DATA } else { OP_CONTROL };
        bytes[8..12].copy_from_slice(&(self.qpn & 0x00ff_ffff).to_be_bytes());
        let len = match self.addr {
            IpAddr::V4(addr) => {
                bytes[4] = 4;
                bytes[12..16].copy_from_slice(&addr.octets());
                16
            }
            IpAddr::V6(addr) => {
                bytes[4] = 6;
                bytes[12..28].copy_from_slice(&addr.octets());
                28
            }
        };
        #[expect(clippy::cast_possible_truncation, reason = "16 or 28")]
        {
            bytes[6] = len as u8;
        }
        len
    }

    /// Decodes a header, and returns it with the datagram behind it. Returns `None` if there is no
    /// valid header.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (fixed, rest) = bytes.split_first_chunk::<12>()?;
        let [a, b, c, d, version, op, len, _, e, f, g, h] = *fixed;
        if u32::from_be_bytes([a, b, c, d]) != TAG {
            return None;
        }
        let has_data = match op {
            OP_DATA => true,
            OP_CONTROL => false,
            _ => return None,
        };
        let (addr, rest) = match (version, len) {
            (4, 16) => {
                let (addr, rest) = rest.split_first_chunk::<4>()?;
                (IpAddr::V4(Ipv4Addr::from(*addr)), rest)
            }
            (6, 28) => {
                let (addr, rest) = rest.split_first_chunk::<16>()?;
                (IpAddr::V6(Ipv6Addr::from(*addr)), rest)
            }
            _ => return None,
        };
        let header = Self {
            has_data,
            qpn: u32::from_be_bytes([e, f, g, h]) & 0x00ff_ffff,
            addr,
        };
        Some((header, rest))
    }
}

/// Encodes the header of a datagram between QPs, which is the socket address of the sender. Returns
/// its length.
#[must_use]
pub fn encode_source(source: SocketAddr, bytes: &mut [u8; MAX_HEADER]) -> usize {
    *bytes = [0; MAX_HEADER];
    bytes[2..4].copy_from_slice(&source.port().to_be_bytes());
    match source {
        SocketAddr::V4(source) => {
            bytes[..2].copy_from_slice(&[4, 8]);
            bytes[4..8].copy_from_slice(&source.ip().octets());
            8
        }
        SocketAddr::V6(source) => {
            bytes[..2].copy_from_slice(&[6, 24]);
            bytes[4..8].copy_from_slice(&source.flowinfo().to_be_bytes());
            bytes[8..24].copy_from_slice(&source.ip().octets());
            24
        }
    }
}

/// Decodes the header of a datagram between QPs, and returns it with the datagram. Returns `None`
/// if there is no valid header.
#[must_use]
pub fn decode_source(bytes: &[u8]) -> Option<(SocketAddr, &[u8])> {
    let (fixed, rest) = bytes.split_first_chunk::<4>()?;
    let [version, len, high, low] = *fixed;
    let port = u16::from_be_bytes([high, low]);
    match (version, len) {
        (4, 8) => {
            let (addr, rest) = rest.split_first_chunk::<4>()?;
            Some((SocketAddr::from((Ipv4Addr::from(*addr), port)), rest))
        }
        (6, 24) => {
            let (flow, rest) = rest.split_first_chunk::<4>()?;
            let (addr, rest) = rest.split_first_chunk::<16>()?;
            let flow = u32::from_be_bytes(*flow);
            let source = SocketAddrV6::new(Ipv6Addr::from(*addr), port, flow, 0);
            Some((source.into(), rest))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses() -> [SocketAddr; 2] {
        [
            "10.1.2.3:4660".parse().expect("an address"),
            SocketAddrV6::new("fd00::7".parse().expect("an address"), 4660, 0x1_2345, 0).into(),
        ]
    }

    #[test]
    fn udp_headers_have_the_layout_of_the_protocol() {
        let mut bytes = [0; MAX_HEADER];
        let header = UdpHeader {
            has_data: false,
            qpn: 0x01_0203,
            addr: "10.1.2.3".parse().expect("an address"),
        };
        let len = header.encode(&mut bytes);
        let expected = [0x55, 0x55, 0x55, 0x55, 4, 7, 16, 0, 0, 1, 2, 3, 10, 1, 2, 3];
        assert_eq!(bytes[..len], expected);
        for addr in addresses() {
            for has_data in [false, true] {
                let header = UdpHeader {
                    has_data,
                    qpn: 0x00ff_ffff,
                    addr: addr.ip(),
                };
                let len = header.encode(&mut bytes);
                assert_eq!(usize::from(bytes[6]), len);
                let whole = [&bytes[..len], b"data"].concat();
                assert_eq!(UdpHeader::decode(&whole), Some((header, &b"data"[..])));
                for cut in 0..len {
                    assert_eq!(UdpHeader::decode(&bytes[..cut]), None);
                }
            }
        }
    }

    #[test]
    fn udp_headers_that_are_none_are_refused() {
        let mut bytes = [0; MAX_HEADER];
        let header = UdpHeader {
            has_data: true,
            qpn: 5,
            addr: "10.1.2.3".parse().expect("an address"),
        };
        let len = header.encode(&mut bytes);
        for at in [0, 3, 4, 5, 6] {
            let mut other = bytes;
            other[at] ^= 1;
            assert_eq!(UdpHeader::decode(&other[..len]), None, "byte {at}");
        }
    }

    #[test]
    fn sources_have_the_layout_of_the_protocol() {
        let mut bytes = [0; MAX_HEADER];
        let [v4, v6] = addresses();
        assert_eq!(encode_source(v4, &mut bytes), 8);
        assert_eq!(bytes[..8], [4, 8, 0x12, 0x34, 10, 1, 2, 3]);
        assert_eq!(encode_source(v6, &mut bytes), 24);
        assert_eq!(bytes[..9], [6, 24, 0x12, 0x34, 0, 1, 0x23, 0x45, 0xfd]);
        for source in [v4, v6] {
            let len = encode_source(source, &mut bytes);
            let whole = [&bytes[..len], b"data"].concat();
            assert_eq!(decode_source(&whole), Some((source, &b"data"[..])));
            for cut in 0..len {
                assert_eq!(decode_source(&bytes[..cut]), None);
            }
            for at in [0, 1] {
                let mut other = bytes;
                other[at] ^= 1;
                assert_eq!(decode_source(&other), None);
            }
        }
    }
}
