//! Links: send and receive RoCEv2 packets.
//!
//! [`UdpLink`] is one local IP address on UDP port 4791. It transfers UDP payloads (BTH to ICRC) in
//! batches and does not know queue pairs. The sender computes the ICRC, which covers fields of the
//! IP header. For IPv4 the link therefore guarantees DF, and Identification 0 for a single
//! datagram, or 0, 1, 2, … for the segments of one call.

use core::fmt;
use std::error::Error;
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::BorrowedFd;

use rocade_wire::{FastPathPacket, Packet, PacketError, Qpn};

use crate::failure;
use crate::steering::ProcessSlot;
use crate::trace::FirstBytes;

pub(crate) mod address_lock;
pub mod capture;
pub mod fault;
pub(crate) mod forward;
mod gso_default;
mod mcast_tunnel;
pub(crate) mod neighbour;
mod pacer;
pub(crate) mod packet_hooks;
pub(crate) mod peer_link;
#[cfg(all(test, not(loom)))]
pub(crate) mod pipe;
mod receiver_queue;
mod rx;
pub(crate) mod shm;
pub(crate) mod sim;
pub(crate) mod socket;
pub(crate) mod socket_owner;
pub(crate) mod sys;
mod udp;

pub use forward::{Arrival, ForwardKey};
pub(crate) use pacer::Pacer;
pub(crate) use receiver_queue::{Leave, ReceiverQueue};
pub use rx::{RxBatch, RxBuffer, Segments};
pub use sim::Simulation;
pub use socket_owner::SocketOwner;
pub use udp::{MAX_SEGMENTS, MAX_SEND_LEN, SharedSocket, UdpLink, UdpTxHandle};

/// The UDP destination port of every RoCEv2 packet.
//= ENC-02
pub const ROCE_PORT: u16 = 4791;

/// The default TTL/hop limit of the kernel, for which 0 stands.
pub(crate) const DEFAULT_HOP_LIMIT: u8 = 64;

/// A local address, and the means to send to others.
///
/// Datagrams may be lost, repeated, late or out of order, as on any network. Every host that
/// reaches the address can send one, so that a received one may have any content. Runs of one call
/// stay together and in order until the network. Threads may send at the same time, and one thread
/// at a time receives.
pub(crate) trait Link: fmt::Debug + Send + Sync {
    /// Returns the address with its interface, if it needs one.
    fn local_addr(&self) -> LocalAddr;

    /// Returns the address.
    fn local(&self) -> IpAddr {
        self.local_addr().ip()
    }

    /// Returns the slot of this process, if the address is shared.
    fn slot(&self) -> Option<ProcessSlot> {
        None
    }

    /// Returns the fd that becomes readable when there is something to receive, if there is such an
    /// fd.
    fn rx_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Receives a batch, see [`UdpLink::recv`].
    ///
    /// # Errors
    /// Errors of the system.
    fn recv<'b>(&self, buf: &'b mut RxBuffer) -> io::Result<Option<RxBatch<'b>>>;

    /// Returns true if runs are segmented by the kernel, see [`UdpLink::gso`].
    fn gso(&self) -> bool;

    /// Returns a path to a QP, see [`UdpLink::tx_handle`].
    ///
    /// # Errors
    /// Errors of opening a socket.
    fn tx_handle(&self, dest: Qpn, hop_limit: u8) -> io::Result<UdpTxHandle>;

    /// Returns a path to a QP with a source port, see [`UdpLink::tx_handle_from`].
    ///
    /// # Errors
    /// Errors of [`Link::tx_handle`].
    fn tx_handle_from(&self, _port: u16, dest: Qpn, hop_limit: u8) -> io::Result<UdpTxHandle> {
        self.tx_handle(dest, hop_limit)
    }

    /// Opens all sockets for a hop limit, see [`UdpLink::open_paths`].
    ///
    /// # Errors
    /// Errors of [`Link::tx_handle`].
    fn open_paths(&self, _hop_limit: u8) -> io::Result<()> {
        Ok(())
    }

    /// Prepares sending to groups, see [`UdpLink::prepare_multicast`].
    ///
    /// # Errors
    /// `Unsupported` if the link has no groups.
    fn prepare_multicast(&self, _interface: u32) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Returns a path to groups, see [`UdpLink::group_tx_handle`].
    ///
    /// # Errors
    /// See [`Link::prepare_multicast`].
    fn group_tx_handle(&self, _hop_limit: u8) -> io::Result<UdpTxHandle> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Enables reporting of IP header fields, see [`UdpLink::report_headers`].
    ///
    /// # Errors
    /// Errors of the system.
    fn report_headers(&self) -> io::Result<()> {
        Ok(())
    }

    /// Sends a run, see [`UdpLink::send`].
    ///
    /// # Errors
    /// `WouldBlock` if there is no room, other errors if the packets cannot reach the destination.
    fn send(
        &self,
        handle: UdpTxHandle,
        to: IpAddr,
        traffic_class: u8,
        data: &[u8],
        segment_len: usize,
    ) -> io::Result<()>;

    /// Returns the kind of a received datagram, see [`UdpLink::arrival`].
    fn arrival<'s>(&self, _segment: &'s [u8]) -> Arrival<'s> {
        Arrival::Direct
    }

    /// Redirects a packet to the owner of its QP, see [`UdpLink::redirect`]. Returns false if that
    /// fails.
    fn redirect(&self, _to: ProcessSlot, _source: SocketAddr, _hops: u8, _segment: &[u8]) -> bool {
        false
    }

    /// Forwards a misrouted packet, see [`UdpLink::forward`]. Returns false if the packet cannot be
    /// forwarded.
    fn forward(&self, _to: ProcessSlot, _source: SocketAddr, _segment: &[u8]) -> bool {
        false
    }
}

impl Link for UdpLink {
    fn local_addr(&self) -> LocalAddr {
        Self::local_addr(self)
    }

    fn slot(&self) -> Option<ProcessSlot> {
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

    fn tx_handle(&self, dest: Qpn, hop_limit: u8) -> io::Result<UdpTxHandle> {
        Self::tx_handle(self, dest, hop_limit)
    }

    fn tx_handle_from(&self, port: u16, dest: Qpn, hop_limit: u8) -> io::Result<UdpTxHandle> {
        Self::tx_handle_from(self, port, dest, hop_limit)
    }

    fn open_paths(&self, hop_limit: u8) -> io::Result<()> {
        Self::open_paths(self, hop_limit)
    }

    fn prepare_multicast(&self, interface: u32) -> io::Result<()> {
        Self::prepare_multicast(self, interface)
    }

    fn group_tx_handle(&self, hop_limit: u8) -> io::Result<UdpTxHandle> {
        Self::group_tx_handle(self, hop_limit)
    }

    fn report_headers(&self) -> io::Result<()> {
        Self::report_headers(self)
    }

    fn send(
        &self,
        handle: UdpTxHandle,
        to: IpAddr,
        traffic_class: u8,
        data: &[u8],
        segment_len: usize,
    ) -> io::Result<()> {
        Self::send(self, handle, to, traffic_class, data, segment_len)
    }

    fn arrival<'s>(&self, segment: &'s [u8]) -> Arrival<'s> {
        Self::arrival(self, segment)
    }

    fn redirect(&self, to: ProcessSlot, source: SocketAddr, hops: u8, segment: &[u8]) -> bool {
        Self::redirect(self, to, source, hops, segment).is_ok()
    }

    fn forward(&self, to: ProcessSlot, source: SocketAddr, segment: &[u8]) -> bool {
        self.slot().is_some_and(|own| own != to) && Self::forward(self, to, source, segment).is_ok()
    }
}

/// A link of any kind.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "nearly all are sockets")]
pub(crate) enum AnyLink {
    /// Sockets.
    Udp(UdpLink),
    /// A simulated network.
    Sim(sim::SimLink),
}

impl From<UdpLink> for AnyLink {
    fn from(link: UdpLink) -> Self {
        Self::Udp(link)
    }
}

/// Evaluates an expression on the link of any kind.
macro_rules! of_each {
    ($value:expr, $link:ident => $result:expr) => {
        match $value {
            AnyLink::Udp($link) => $result,
            AnyLink::Sim($link) => $result,
        }
    };
}

impl Link for AnyLink {
    #[inline]
    fn local_addr(&self) -> LocalAddr {
        of_each!(self, link => Link::local_addr(link))
    }

    #[inline]
    fn local(&self) -> IpAddr {
        of_each!(self, link => Link::local(link))
    }

    #[inline]
    fn slot(&self) -> Option<ProcessSlot> {
        of_each!(self, link => Link::slot(link))
    }

    #[inline]
    fn rx_fd(&self) -> Option<BorrowedFd<'_>> {
        of_each!(self, link => Link::rx_fd(link))
    }

    #[inline]
    fn recv<'b>(&self, buf: &'b mut RxBuffer) -> io::Result<Option<RxBatch<'b>>> {
        of_each!(self, link => Link::recv(link, buf))
    }

    #[inline]
    fn gso(&self) -> bool {
        of_each!(self, link => Link::gso(link))
    }

    #[inline]
    fn tx_handle(&self, dest: Qpn, hop_limit: u8) -> io::Result<UdpTxHandle> {
        of_each!(self, link => Link::tx_handle(link, dest, hop_limit))
    }

    #[inline]
    fn tx_handle_from(&self, port: u16, dest: Qpn, hop_limit: u8) -> io::Result<UdpTxHandle> {
        of_each!(self, link => Link::tx_handle_from(link, port, dest, hop_limit))
    }

    #[inline]
    fn open_paths(&self, hop_limit: u8) -> io::Result<()> {
        of_each!(self, link => Link::open_paths(link, hop_limit))
    }

    #[inline]
    fn prepare_multicast(&self, interface: u32) -> io::Result<()> {
        of_each!(self, link => Link::prepare_multicast(link, interface))
    }

    #[inline]
    fn group_tx_handle(&self, hop_limit: u8) -> io::Result<UdpTxHandle> {
        of_each!(self, link => Link::group_tx_handle(link, hop_limit))
    }

    #[inline]
    fn report_headers(&self) -> io::Result<()> {
        of_each!(self, link => Link::report_headers(link))
    }

    #[inline]
    fn send(
        &self,
        handle: UdpTxHandle,
        to: IpAddr,
        traffic_class: u8,
        data: &[u8],
        segment_len: usize,
    ) -> io::Result<()> {
        of_each!(self, link => Link::send(link, handle, to, traffic_class, data, segment_len))
    }

    #[inline]
    fn arrival<'s>(&self, segment: &'s [u8]) -> Arrival<'s> {
        of_each!(self, link => Link::arrival(link, segment))
    }

    #[inline]
    fn redirect(&self, to: ProcessSlot, source: SocketAddr, hops: u8, segment: &[u8]) -> bool {
        of_each!(self, link => Link::redirect(link, to, source, hops, segment))
    }

    #[inline]
    fn forward(&self, to: ProcessSlot, source: SocketAddr, segment: &[u8]) -> bool {
        of_each!(self, link => Link::forward(link, to, source, segment))
    }
}

/// A received UDP payload: BTH to ICRC of a potential packet.
pub(crate) trait Inbound<'p>: Copy {
    /// Returns the length in bytes.
    fn len(self) -> usize;

    /// Returns the first bytes. `None` for a packet that is shorter than any.
    fn first_bytes(self) -> Option<FirstBytes>;

    /// Parses the packet on the fast path, if that is possible.
    fn fast_path(self) -> Option<FastPathPacket<'p>>;

    /// Returns a copy.
    fn copied(self) -> Vec<u8>;

    /// Parses the packet completely.
    ///
    /// # Errors
    /// [`PacketError`] if it is not a valid packet.
    fn whole(self) -> Result<Packet<'p>, PacketError>;
}

impl<'p> Inbound<'p> for &'p [u8] {
    #[inline]
    fn len(self) -> usize {
        <[u8]>::len(self)
    }

    #[inline]
    fn first_bytes(self) -> Option<FirstBytes> {
        self.first_chunk().copied()
    }

    #[inline]
    fn fast_path(self) -> Option<FastPathPacket<'p>> {
        FastPathPacket::parse(self)
    }

    fn copied(self) -> Vec<u8> {
        self.to_vec()
    }

    #[inline]
    fn whole(self) -> Result<Packet<'p>, PacketError> {
        Packet::parse(self)
    }
}

/// A local IP address, with its interface if the address requires one (link-local IPv6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LocalAddr {
    ip: IpAddr,
    scope_id: u32,
}

impl LocalAddr {
    /// Returns an address with the index of its interface. Drops the index unless the address is
    /// link-local IPv6. Converts an IPv4-mapped IPv6 address to IPv4.
    #[must_use]
    pub fn new(ip: IpAddr, scope_id: u32) -> Self {
        let ip = ip.to_canonical();
        Self {
            ip,
            scope_id: if is_link_local(ip) { scope_id } else { 0 },
        }
    }

    /// Returns the IP address.
    #[must_use]
    pub const fn ip(self) -> IpAddr {
        self.ip
    }

    /// Returns the interface index, or 0 if it is not needed.
    #[must_use]
    pub const fn scope_id(self) -> u32 {
        self.scope_id
    }

    /// Returns the socket address with this port.
    #[must_use]
    pub fn with_port(self, port: u16) -> SocketAddr {
        match self.ip {
            IpAddr::V4(ip) => SocketAddrV4::new(ip, port).into(),
            IpAddr::V6(ip) => SocketAddrV6::new(ip, port, 0, self.scope_id).into(),
        }
    }

    /// Returns the RoCEv2 port of a peer, or `None` if the peer is of the other IP version.
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
    /// Takes the address and the scope, and drops the port.
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

/// Returns true for `fe80::/10`.
fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(_) => false,
        IpAddr::V6(ip) => ip.segments()[0] & 0xFFC0 == 0xFE80,
    }
}

/// Reasons why a link cannot be opened.
#[derive(Debug)]
pub enum LinkError {
    /// Another process has port 4791 of the address.
    InUse {
        /// The address.
        local: LocalAddr,
        /// The owner.
        owner: SocketOwner,
    },
    /// The address is not local to this machine or network namespace.
    NotLocal {
        /// The address.
        local: LocalAddr,
    },
    /// The address cannot be the address of a port: multicast or unspecified, or link-local without
    /// an interface.
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
        /// The failure, as "failed to ...".
        failure: &'static str,
        /// The error of the operating system.
        source: io::Error,
    },
}

impl LinkError {
    /// Returns what the user can do about the error, or an empty text. The text of
    /// [`LinkError::InUse`] contains it already.
    #[must_use]
    pub fn remedy(&self) -> String {
        let text = match self {
            Self::NotLocal { .. } => "`rocade devices` shows the addresses that can be used",
            Self::NoSourcePort { .. } => {
                "other programs have the ports: `ss -aun` shows them. Use another address"
            }
            Self::System {
                failure, source, ..
            } => failure::remedy_of(failure, source),
            Self::InUse { .. } | Self::Unusable { .. } => "",
        };
        text.to_owned()
    }
}

impl fmt::Display for LinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InUse { local, owner } => {
                write!(
                    f,
                    "UDP port {ROCE_PORT} of {local} is taken by {owner}. {}",
                    owner.remedy(*local)
                )
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
                failure,
                source,
            } => write!(f, "{failure} on {local}: {source}"),
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
