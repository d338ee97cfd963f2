//! Links: how RoCEv2 packets leave and reach this process.
//!
//! [`UdpLink`] is one local IP address on UDP port 4791. It moves UDP payloads (BTH to ICRC) in
//! batches and knows nothing of queue pairs. What the invariant CRC covers of the IP header must
//! be known to the sender, so the link promises (IPv4): DF set, and Identification 0 for a single
//! datagram, 0, 1, 2, … for the segments of one call.

use core::fmt;
use std::error::Error;
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::BorrowedFd;

use rocade_wire::{Packet, PacketError, Qpn, ShortPacket};

use crate::steering::Slot;

pub mod capture;
mod carried;
pub(crate) mod claim;
pub mod fault;
pub(crate) mod forward;
mod habit;
pub(crate) mod holder;
mod port_speed;
mod rx;
pub(crate) mod shm;
pub(crate) mod sim;
pub(crate) mod socket;
pub(crate) mod sys;
pub(crate) mod tap;
mod udp;

pub use forward::{Arrival, ForwardKey};
pub use holder::Holder;
pub(crate) use port_speed::PortSpeed;
pub use rx::{RxBatch, RxBuffer, Segments};
pub use sim::Simulation;
pub use udp::{MAX_SEGMENTS, MAX_SEND_LEN, SharedSocket, TxPath, UdpLink};

/// The UDP destination port of every RoCEv2 packet.
//= ENC-02
pub const ROCE_PORT: u16 = 4791;

/// What the kernel uses as TTL/hop limit unless told otherwise, and 0 stands for.
pub(crate) const DEFAULT_HOP_LIMIT: u8 = 64;

/// A local address, and the way from there to others.
pub(crate) trait Link: fmt::Debug + Send + Sync {
    /// The address with its interface, where it needs one.
    fn local_addr(&self) -> LocalAddr;

    /// The address.
    fn local(&self) -> IpAddr {
        self.local_addr().ip()
    }

    /// The slot of this process, where others have the address too.
    fn slot(&self) -> Option<Slot> {
        None
    }

    /// What becomes readable when there is something to receive, where anything does.
    fn rx_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// As [`UdpLink::recv`].
    ///
    /// # Errors
    /// Those of the system.
    fn recv<'b>(&self, buf: &'b mut RxBuffer) -> io::Result<Option<RxBatch<'b>>>;

    /// As [`UdpLink::gso`].
    fn gso(&self) -> bool;

    /// As [`UdpLink::tx_path`].
    ///
    /// # Errors
    /// Those of opening a socket.
    fn tx_path(&self, dest: Qpn, hop_limit: u8) -> io::Result<TxPath>;

    /// As [`UdpLink::open_paths`].
    ///
    /// # Errors
    /// Those of [`Link::tx_path`].
    fn open_paths(&self, _hop_limit: u8) -> io::Result<()> {
        Ok(())
    }

    /// As [`UdpLink::prepare_multicast`].
    ///
    /// # Errors
    /// `Unsupported` where there are no groups.
    fn prepare_multicast(&self, _interface: u32) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// As [`UdpLink::group_path`].
    ///
    /// # Errors
    /// As [`Link::prepare_multicast`].
    fn group_path(&self, _hop_limit: u8) -> io::Result<TxPath> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// As [`UdpLink::report_headers`].
    ///
    /// # Errors
    /// Those of the system.
    fn report_headers(&self) -> io::Result<()> {
        Ok(())
    }

    /// As [`UdpLink::send`].
    ///
    /// # Errors
    /// `WouldBlock` where there is no room, others where it will not get there.
    fn send(
        &self,
        path: TxPath,
        to: IpAddr,
        traffic_class: u8,
        data: &[u8],
        segment_len: usize,
    ) -> io::Result<()>;

    /// As [`UdpLink::arrival`].
    fn arrival<'s>(&self, _segment: &'s [u8]) -> Arrival<'s> {
        Arrival::Direct
    }

    /// As [`UdpLink::hand_over`]; false where that cannot be.
    fn hand_over(&self, _to: Slot, _source: SocketAddr, _hops: u8, _segment: &[u8]) -> bool {
        false
    }

    /// As [`UdpLink::forward`]; false where the packet is for nobody.
    fn forward(&self, _to: Slot, _source: SocketAddr, _segment: &[u8]) -> bool {
        false
    }
}

impl Link for UdpLink {
    fn local_addr(&self) -> LocalAddr {
        Self::local_addr(self)
    }

    fn slot(&self) -> Option<Slot> {
        Self::slot(self)
    }

    fn rx_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(Self::rx_fd(self))
    }

    fn recv<'b>(&self, buf: &'b mut RxBuffer) -> io::Result<Option<RxBatch<'b>>> {
        Self::recv(self, buf)
    }

    fn gso(&self) -> bool {
        Self::gso(self)
    }

    fn tx_path(&self, dest: Qpn, hop_limit: u8) -> io::Result<TxPath> {
        Self::tx_path(self, dest, hop_limit)
    }

    fn open_paths(&self, hop_limit: u8) -> io::Result<()> {
        Self::open_paths(self, hop_limit)
    }

    fn prepare_multicast(&self, interface: u32) -> io::Result<()> {
        Self::prepare_multicast(self, interface)
    }

    fn group_path(&self, hop_limit: u8) -> io::Result<TxPath> {
        Self::group_path(self, hop_limit)
    }

    fn report_headers(&self) -> io::Result<()> {
        Self::report_headers(self)
    }

    fn send(
        &self,
        path: TxPath,
        to: IpAddr,
        traffic_class: u8,
        data: &[u8],
        segment_len: usize,
    ) -> io::Result<()> {
        Self::send(self, path, to, traffic_class, data, segment_len)
    }

    fn arrival<'s>(&self, segment: &'s [u8]) -> Arrival<'s> {
        Self::arrival(self, segment)
    }

    fn hand_over(&self, to: Slot, source: SocketAddr, hops: u8, segment: &[u8]) -> bool {
        Self::hand_over(self, to, source, hops, segment).is_ok()
    }

    fn forward(&self, to: Slot, source: SocketAddr, segment: &[u8]) -> bool {
        self.slot().is_some_and(|own| own != to) && Self::forward(self, to, source, segment).is_ok()
    }
}

/// What a link brings: BTH to ICRC of what should be a packet.
pub(crate) trait Inbound<'p>: Copy {
    /// Length in bytes.
    fn len(self) -> usize;

    /// Read the short way, where that is possible.
    fn short(self) -> Option<ShortPacket<'p>>;

    /// A copy of it.
    fn copied(self) -> Vec<u8>;

    /// Read as a whole.
    ///
    /// # Errors
    /// [`PacketError`] where it is no packet.
    fn whole(self) -> Result<Packet<'p>, PacketError>;
}

impl<'p> Inbound<'p> for &'p [u8] {
    #[inline]
    fn len(self) -> usize {
        <[u8]>::len(self)
    }

    #[inline]
    fn short(self) -> Option<ShortPacket<'p>> {
        ShortPacket::parse(self)
    }

    fn copied(self) -> Vec<u8> {
        self.to_vec()
    }

    #[inline]
    fn whole(self) -> Result<Packet<'p>, PacketError> {
        Packet::parse(self)
    }
}

/// A local IP address, with the interface it is on where the address alone does not say
/// (link-local IPv6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LocalAddr {
    ip: IpAddr,
    scope_id: u32,
}

impl LocalAddr {
    /// An address with the index of its interface. The index is dropped where it has no meaning
    /// (anything but link-local IPv6); an IPv4-mapped IPv6 address becomes IPv4.
    #[must_use]
    pub fn new(ip: IpAddr, scope_id: u32) -> Self {
        let ip = ip.to_canonical();
        Self {
            ip,
            scope_id: if is_link_local(ip) { scope_id } else { 0 },
        }
    }

    /// The address.
    #[must_use]
    pub const fn ip(self) -> IpAddr {
        self.ip
    }

    /// Interface index, or 0 where it is not needed.
    #[must_use]
    pub const fn scope_id(self) -> u32 {
        self.scope_id
    }

    /// This address with a port.
    #[must_use]
    pub fn with_port(self, port: u16) -> SocketAddr {
        match self.ip {
            IpAddr::V4(ip) => SocketAddrV4::new(ip, port).into(),
            IpAddr::V6(ip) => SocketAddrV6::new(ip, port, 0, self.scope_id).into(),
        }
    }

    /// The RoCEv2 port of a peer that this address talks to, or `None` if it is of the other IP
    /// version.
    #[inline]
    pub(crate) fn peer(self, ip: IpAddr) -> Option<SocketAddr> {
        match (self.ip, ip.to_canonical()) {
            (IpAddr::V4(_), IpAddr::V4(ip)) => Some(SocketAddrV4::new(ip, ROCE_PORT).into()),
            (IpAddr::V6(_), IpAddr::V6(ip)) => {
                let scope_id = if is_link_local(ip.into()) {
                    self.scope_id
                } else {
                    0
                };
                Some(SocketAddrV6::new(ip, ROCE_PORT, 0, scope_id).into())
            }
            _ => None,
        }
    }
}

impl From<IpAddr> for LocalAddr {
    fn from(ip: IpAddr) -> Self {
        Self::new(ip, 0)
    }
}

impl From<SocketAddr> for LocalAddr {
    /// Takes the address and the scope; the port is dropped.
    fn from(addr: SocketAddr) -> Self {
        match addr {
            SocketAddr::V4(addr) => Self::new((*addr.ip()).into(), 0),
            SocketAddr::V6(addr) => Self::new((*addr.ip()).into(), addr.scope_id()),
        }
    }
}

impl fmt::Display for LocalAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.ip, f)?;
        if self.scope_id != 0 {
            write!(f, "%{}", self.scope_id)?;
        }
        Ok(())
    }
}

/// Unicast `fe80::/10`.
fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(_) => false,
        IpAddr::V6(ip) => ip.segments()[0] & 0xFFC0 == 0xFE80,
    }
}

/// Why a link cannot be opened.
#[derive(Debug)]
pub enum LinkError {
    /// Somebody else has the address's port 4791.
    InUse {
        /// The address.
        local: LocalAddr,
        /// Who has it.
        holder: Holder,
    },
    /// The address is not one of this machine (or of this network namespace).
    NotLocal {
        /// The address.
        local: LocalAddr,
    },
    /// The address cannot be that of a port: multicast or unspecified, or link-local without an
    /// interface.
    Unusable {
        /// The address.
        local: LocalAddr,
    },
    /// No free UDP source port in 0xC000–0xFFFF.
    NoSourcePort {
        /// The address.
        local: LocalAddr,
    },
    /// A system call failed.
    System {
        /// The address.
        local: LocalAddr,
        /// What was being done.
        doing: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

impl fmt::Display for LinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InUse { local, holder } => {
                write!(f, "UDP port {ROCE_PORT} of {local} is taken: {holder}")
            }
            Self::NotLocal { local } => {
                write!(f, "{local} is not an address of this machine")
            }
            Self::Unusable { local } => {
                write!(f, "{local} cannot be the address of an RDMA port")
            }
            Self::NoSourcePort { local } => {
                write!(f, "no free UDP source port in 49152..=65535 on {local}")
            }
            Self::System {
                local,
                doing,
                source,
            } => write!(f, "{doing} on {local}: {source}"),
        }
    }
}

impl Error for LinkError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::System { source, .. } => Some(source),
            _ => None,
        }
    }
}

impl From<LinkError> for io::Error {
    /// Keeps the kind, so that callers that map to errno get the right one.
    fn from(error: LinkError) -> Self {
        let kind = match &error {
            LinkError::InUse { .. } | LinkError::NoSourcePort { .. } => io::ErrorKind::AddrInUse,
            LinkError::NotLocal { .. } => io::ErrorKind::AddrNotAvailable,
            LinkError::Unusable { .. } => io::ErrorKind::InvalidInput,
            LinkError::System { source, .. } => source.kind(),
        };
        Self::new(kind, error)
    }
}

#[cfg(test)]
mod tests;
