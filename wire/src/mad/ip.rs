//! The header that `rdma_cm` puts before the private data of a REQ and SIDR_REQ: the addresses of
//! both ends.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The reason why private data does not begin with such a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpCmError {
    /// Too short.
    Truncated,
    /// A version other than 0.
    Version(u8),
    /// Neither IPv4 nor IPv6.
    IpVersion(u8),
}

impl fmt::Display for IpCmError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated => f.write_str("too short for the header of rdma_cm"),
            Self::Version(version) => write!(f, "rdma_cm header version {version:#04x}"),
            Self::IpVersion(version) => write!(f, "IP version {version}"),
        }
    }
}

impl core::error::Error for IpCmError {}

/// The header: source and destination address, and the source port. The destination port is in the
/// service ID.
//= CMA-02
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpCmHeader {
    /// Port of the active side.
    pub src_port: u16,
    /// Address of the active side.
    pub src: IpAddr,
    /// Address of the passive side, of the same IP version.
    pub dst: IpAddr,
}

impl IpCmHeader {
    /// Bytes of the header.
    pub const LEN: usize = 36;

    /// The active side's address and port.
    #[must_use]
    pub const fn source(&self) -> SocketAddr {
        SocketAddr::new(self.src, self.src_port)
    }

    /// Parses the beginning of private data.
    ///
    /// # Errors
    /// [`IpCmError`].
    //= CMA-04
    pub fn parse(private_data: &[u8]) -> Result<Self, IpCmError> {
        let (b, _) = private_data
            .split_first_chunk::<{ Self::LEN }>()
            .ok_or(IpCmError::Truncated)?;
        if b[0] != 0 {
            return Err(IpCmError::Version(b[0]));
        }
        let version = b[1] >> 4;
        let address = |at: usize| {
            let bytes: [u8; 16] = core::array::from_fn(|index| b[at + index]);
            match version {
                4 => {
                    let [.., a, b, c, d] = bytes;
                    Some(IpAddr::V4(Ipv4Addr::new(a, b, c, d)))
                }
                6 => Some(IpAddr::V6(Ipv6Addr::from(bytes))),
                _ => None,
            }
        };
        let unknown = IpCmError::IpVersion(version);
        Ok(Self {
            src_port: u16::from_be_bytes([b[2], b[3]]),
            src: address(4).ok_or(unknown)?,
            dst: address(20).ok_or(unknown)?,
        })
    }

    /// The bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        b[1] = if self.src.is_ipv4() { 4 << 4 } else { 6 << 4 };
        b[2..4].copy_from_slice(&self.src_port.to_be_bytes());
        for (at, ip) in [(4, self.src), (20, self.dst)] {
            match ip {
                IpAddr::V4(ip) => b[at + 12..at + 16].copy_from_slice(&ip.octets()),
                IpAddr::V6(ip) => b[at..at + 16].copy_from_slice(&ip.octets()),
            }
        }
        b
    }
}
