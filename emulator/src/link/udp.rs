//! The UDP link: one local address on port 4791.

use core::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::sync::{Mutex, rank};
use rocade_wire::Qpn;
use rocade_wire::icrc::IcrcFlow;
use socket2::SockRef;

use super::address_lock::{AddressLock, AddressLockError};
use super::forward::{self, Arrival, ForwardKey};
use super::gso_default::DefaultSegmentSize;
use super::mcast_tunnel::{self, Tunnel};
use super::socket::{self, ReceiveKind, Sharing};
use super::sys::{self, SendOptions};
use super::{DEFAULT_HOP_LIMIT, LinkError, LocalAddr, RxBatch, RxBuffer, socket_owner};
use crate::steering::{ProcessSlot, slot_of};

/// Most segments of one [`UdpLink::send`].
pub const MAX_SEGMENTS: usize = 64;
/// Most bytes of one [`UdpLink::send`].
pub const MAX_SEND_LEN: usize = 65_000;

/// Number of send sockets for each hop limit. Destinations with the same slot bits always share
/// one.
const SEND_SOCKETS: u8 = 8;
/// Number of hop limits with sockets of their own: the kernel's default, and the first other one in
/// use.
const HOP_LIMITS: u8 = 2;
/// Number of send sockets with a source port that the connection determines. Two connections whose
/// ports have the same remainder do not have one each.
const PORT_SOCKETS: u8 = 128;
/// Lowest source port.
const FIRST_PORT: u16 = 0xC000;
/// Number of source ports: 0xC000 to 0xFFFF.
const PORTS: u16 = 0x4000;
/// Length of the ICRC at the end of each packet, in bytes.
const ICRC_LEN: usize = 4;

/// The send socket and header fields for packets to a destination QP. Constant for the life of a
/// QP, which keeps its packets in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpTxHandle {
    /// The UDP source port, 0xC000 to 0xFFFF. The ICRC covers it.
    pub source_port: u16,
    /// Hop limit to set with each send, because it differs from the socket's. That takes 0.1 µs.
    hop_limit: Option<u8>,
    socket: u8,
    /// True for a group that uses the multicast tunnel.
    is_tunneled: bool,
}

impl UdpTxHandle {
    /// Returns a path without a socket.
    pub(super) const fn simulated(source_port: u16) -> Self {
        Self {
            source_port,
            hop_limit: None,
            socket: 0,
            is_tunneled: false,
        }
    }
}

struct SendSocket {
    fd: OwnedFd,
    port: u16,
    default_segment: DefaultSegmentSize,
}

/// A local IP address that sends and receives RoCEv2. Every method takes `&self`. Threads may send
/// and receive at the same time.
///
/// The link either has its address exclusively ([`UdpLink::bind`]), or shares it with other
/// processes through the broker ([`UdpLink::from_broker`]).
pub struct UdpLink {
    local: LocalAddr,
    /// Slot and key on a shared address.
    place: Option<(ProcessSlot, ForwardKey)>,
    /// The lock of an address that is not shared.
    _address_lock: Option<AddressLock>,
    rx: OwnedFd,
    tx: [OnceLock<SendSocket>; (HOP_LIMITS * SEND_SOCKETS) as usize],
    /// Send sockets with the source ports of connections, if there are some.
    port_tx: OnceLock<Box<[OnceLock<SendSocket>; PORT_SOCKETS as usize]>>,
    /// The hop limit of the second half of `tx`.
    other_hop_limit: OnceLock<u8>,
    opening: Mutex<(), rank::SendSocket>,
    gso: AtomicBool,
    /// The multicast tunnel for sending, opened on first use.
    tunnel: OnceLock<Tunnel>,
    /// True if the link receives from the multicast tunnel.
    is_tunneled: bool,
}

/// This process's receive socket on a shared address, for [`UdpLink::from_broker`].
#[derive(Debug)]
pub struct SharedSocket {
    pub(crate) fd: OwnedFd,
    pub(crate) key: ForwardKey,
}

impl UdpLink {
    /// Opens the address for this process alone, without a broker.
    ///
    /// # Errors
    /// [`LinkError::InUse`] names the owner of the port if it is taken, else see [`LinkError`].
    pub fn bind(local: impl Into<LocalAddr>) -> Result<Self, LinkError> {
        let local = local.into();
        let in_use = |owner| LinkError::InUse { local, owner };
        let address_lock = match AddressLock::acquire(local) {
            Ok(address_lock) => Some(address_lock),
            Err(AddressLockError::Held(mut competitor)) => {
                let owner = competitor.wait_for_owner();
                return Err(in_use(owner.unwrap_or_else(|| {
                    socket_owner::find_or_process(local, competitor.pid())
                })));
            }
            Err(AddressLockError::System(error)) => {
                // Binding the port decides.
                tracing::debug!(%local, %error, "failed to lock an address: binding the port decides");
                None
            }
        };
        let rx = socket::open_receive(local, Sharing::Exclusive)?;
        Ok(Self::new(local, None, address_lock, rx.into()))
    }

    /// Uses the receive socket of `slot` that the broker created for this address.
    ///
    /// # Errors
    /// [`LinkError::System`] if `rx` is not such a socket.
    pub fn from_broker(
        local: impl Into<LocalAddr>,
        slot: ProcessSlot,
        rx: SharedSocket,
    ) -> Result<Self, LinkError> {
        let local = local.into();
        let SharedSocket { fd, key } = rx;
        let unusable = |source| LinkError::System {
            local,
            failure: "failed to set up the broker's socket",
            source,
        };
        match socket::kind_of(fd.as_fd(), local).map_err(unusable)? {
            None | Some(ReceiveKind::Alone) => Err(unusable(io::ErrorKind::InvalidInput.into())),
            Some(ReceiveKind::Group | ReceiveKind::Relayed(_)) => {
                socket::configure_receive(fd.as_fd(), local);
                Ok(Self::new(local, Some((slot, key)), None, fd))
            }
        }
    }

    /// Joins a multicast group on the interface that has the address `own` and the index
    /// `interface` (0 if unknown). The address of this link is the group's. The link only receives.
    ///
    /// # Errors
    /// Errors of opening the socket.
    //= MC-06
    pub fn join(group: LocalAddr, own: IpAddr, interface: u32) -> Result<Self, LinkError> {
        if let IpAddr::V6(ip) = group.ip()
            && mcast_tunnel::is_tunneled(group.ip(), own, interface)
        {
            return Ok(Self {
                is_tunneled: true,
                ..Self::new(group, None, None, mcast_tunnel::open_group(ip)?)
            });
        }
        let rx = socket::open_group(group, own, interface)?;
        Ok(Self::new(group, None, None, rx.into()))
    }

    fn new(
        local: LocalAddr,
        place: Option<(ProcessSlot, ForwardKey)>,
        address_lock: Option<AddressLock>,
        rx: OwnedFd,
    ) -> Self {
        Self {
            local,
            place,
            _address_lock: address_lock,
            rx,
            tx: [const { OnceLock::new() }; (HOP_LIMITS * SEND_SOCKETS) as usize],
            port_tx: OnceLock::new(),
            other_hop_limit: OnceLock::new(),
            opening: Mutex::new(()),
            gso: AtomicBool::new(true),
            tunnel: OnceLock::new(),
            is_tunneled: false,
        }
    }

    /// Returns the address.
    #[must_use]
    pub const fn local(&self) -> IpAddr {
        self.local.ip()
    }

    /// Returns the address with its interface, if it needs one.
    #[must_use]
    pub const fn local_addr(&self) -> LocalAddr {
        self.local
    }

    /// Returns this process's slot on a shared address, or `None` if the address is not shared.
    #[must_use]
    pub fn slot(&self) -> Option<ProcessSlot> {
        self.place.map(|(slot, _)| slot)
    }

    /// Returns the receive socket, to wait until it is readable.
    #[must_use]
    pub fn rx_fd(&self) -> BorrowedFd<'_> {
        self.rx.as_fd()
    }

    /// Receives up to 64 KiB of datagrams of one sender without blocking. Returns `None` if there
    /// are none.
    ///
    /// # Errors
    /// Errors of recvmsg(2), except EAGAIN and EINTR.
    #[inline]
    pub fn recv<'b>(&self, buf: &'b mut RxBuffer) -> io::Result<Option<RxBatch<'b>>> {
        let bytes = buf.as_mut_slice();
        let received = loop {
            match sys::receive(self.rx.as_fd(), bytes) {
                // A datagram longer than IP can carry does not exist. A truncated one would be
                // useless.
                Ok(received) if received.truncated => {}
                Ok(received) => break received,
                // Compares the raw error, because most polls end here.
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        };
        Ok(Some(RxBatch {
            data: &bytes[..received.len],
            segment_len: received.segment_len.unwrap_or(received.len).max(1),
            source: received.source,
            tos: received.tos,
            hop_limit: received.hop_limit,
        }))
    }

    /// Returns the number of datagrams that the kernel dropped because the receive buffer was full.
    /// Wraps at 2^32.
    ///
    /// # Errors
    /// Errors of getsockopt(2).
    pub fn receive_overflows(&self) -> io::Result<u32> {
        sys::receive_drops(self.rx.as_fd())
    }

    /// Enables or disables [`RxBatch::tos`]. Costs 0.1 µs per receive.
    ///
    /// # Errors
    /// Errors of setsockopt(2).
    pub fn set_receive_tos(&self, on: bool) -> io::Result<()> {
        socket::set_receive_tos(self.rx.as_fd(), self.local, on)
    }

    /// Enables [`RxBatch::tos`] and [`RxBatch::hop_limit`]. Costs 0.2 µs per receive.
    ///
    /// # Errors
    /// Errors of setsockopt(2).
    pub fn report_headers(&self) -> io::Result<()> {
        socket::report_headers(self.rx.as_fd(), self.local)
    }

    /// Returns the size of the kernel's receive buffer in bytes, overhead included. A datagram
    /// takes at least 768 bytes of it.
    ///
    /// # Errors
    /// Errors of getsockopt(2).
    pub fn receive_buffer(&self) -> io::Result<usize> {
        SockRef::from(&self.rx).recv_buffer_size()
    }

    /// Limits the kernel's receive buffer (the kernel doubles the value), for experiments with
    /// small buffers.
    ///
    /// # Errors
    /// Errors of setsockopt(2).
    pub fn set_receive_buffer(&self, bytes: usize) -> io::Result<()> {
        SockRef::from(&self.rx).set_recv_buffer_size(bytes)
    }

    /// Returns the path of packets to this QP. The send socket depends on the hop limit and the
    /// slot bits of the QP number only. The receiver's GRO then merges packets of one process.
    ///
    /// `hop_limit` is the IPv4 TTL or IPv6 hop limit. 0 stands for the default of 64. The ICRC does
    /// not cover it.
    ///
    /// # Errors
    /// Errors of opening a socket. `AddrInUse` if no source port is free.
    //= ENC-03
    pub fn tx_handle(&self, dest: Qpn, hop_limit: u8) -> io::Result<UdpTxHandle> {
        self.tx_handle_to_slot(slot_of(dest), hop_limit)
    }

    /// Returns the path of packets to this QP whose source port is `port`. It is the one of
    /// [`Self::tx_handle`] if the port is in use, or another connection has its socket.
    ///
    /// # Errors
    /// Errors of opening a socket.
    //= ENC-04 HW-03
    pub fn tx_handle_from(&self, port: u16, dest: Qpn, hop_limit: u8) -> io::Result<UdpTxHandle> {
        let cells = self
            .port_tx
            .get_or_init(|| Box::new([const { OnceLock::new() }; PORT_SOCKETS as usize]));
        let [place, _] = (port % u16::from(PORT_SOCKETS)).to_le_bytes();
        let cell = &cells[usize::from(place)];
        let only_one = self.opening.lock();
        if cell.get().is_none() {
            match socket::open_send(self.local, port, None) {
                Ok(socket) => {
                    cell.get_or_init(|| SendSocket {
                        fd: socket.into(),
                        port,
                        default_segment: DefaultSegmentSize::default(),
                    });
                }
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                Err(error) => return Err(error),
            }
        }
        drop(only_one);
        if cell.get().is_none_or(|socket| socket.port != port) {
            return self.tx_handle(dest, hop_limit);
        }
        Ok(UdpTxHandle {
            source_port: port,
            hop_limit: (hop_limit != 0 && hop_limit != DEFAULT_HOP_LIMIT).then_some(hop_limit),
            socket: HOP_LIMITS * SEND_SOCKETS + place,
            is_tunneled: false,
        })
    }

    /// Opens all sockets that paths with this hop limit may need. Later calls of
    /// [`Self::tx_handle`] with it need no system call.
    ///
    /// # Errors
    /// Errors of [`Self::tx_handle`].
    pub fn open_paths(&self, hop_limit: u8) -> io::Result<()> {
        for slot in 0..SEND_SOCKETS {
            self.tx_handle_to_slot(ProcessSlot::new(slot), hop_limit)?;
        }
        Ok(())
    }

    /// Sets the interface for sending to multicast groups (for IPv6, 0 if unknown).
    ///
    /// # Errors
    /// Errors of socket(2) and setsockopt(2).
    pub fn prepare_multicast(&self, interface: u32) -> io::Result<()> {
        let own = self.local.ip();
        if own.is_ipv6() && mcast_tunnel::is_tunneled(own, own, interface) {
            let _only_one = self.opening.lock();
            if self.tunnel.get().is_none() {
                // Cannot fail, because only one thread holds the lock.
                let _ = self.tunnel.set(Tunnel::open()?);
            }
            return Ok(());
        }
        let handle = self.tx_handle_to_slot(slot_of(Qpn::MULTICAST), 0)?;
        socket::set_multicast(self.tx_fd(handle)?, self.local, interface)
    }

    /// Returns the path of packets to multicast groups, after [`Self::prepare_multicast`]. See
    /// [`Self::tx_handle`].
    ///
    /// # Errors
    /// Errors of opening a socket.
    //= MC-04
    pub fn group_tx_handle(&self, hop_limit: u8) -> io::Result<UdpTxHandle> {
        let handle = self.tx_handle_to_slot(slot_of(Qpn::MULTICAST), 0)?;
        let hop_limit = match hop_limit {
            0 => DEFAULT_HOP_LIMIT,
            limit => limit,
        };
        // The hop limit of the socket does not apply to groups.
        Ok(UdpTxHandle {
            hop_limit: Some(hop_limit),
            is_tunneled: self.tunnel.get().is_some(),
            ..handle
        })
    }

    fn tx_handle_to_slot(&self, slot: ProcessSlot, hop_limit: u8) -> io::Result<UdpTxHandle> {
        let index = slot.get() % SEND_SOCKETS;
        let (socket, hop_limit) = match hop_limit {
            0 | DEFAULT_HOP_LIMIT => (index, None),
            _ if *self.other_hop_limit.get_or_init(|| hop_limit) == hop_limit => {
                (index + SEND_SOCKETS, None)
            }
            _ => (index, Some(hop_limit)),
        };
        let source_port = self.send_socket(socket)?.port;
        Ok(UdpTxHandle {
            source_port,
            hop_limit,
            socket,
            is_tunneled: false,
        })
    }

    /// Returns the socket of a path, to wait until it is writable after `WouldBlock`.
    ///
    /// # Errors
    /// Errors of opening a socket, if the path is not of this link.
    pub fn tx_fd(&self, handle: UdpTxHandle) -> io::Result<BorrowedFd<'_>> {
        Ok(self.send_socket(handle.socket)?.fd.as_fd())
    }

    #[inline]
    fn send_socket(&self, index: u8) -> io::Result<&SendSocket> {
        let index = usize::from(index);
        match self.tx.get(index).and_then(OnceLock::get) {
            Some(socket) => Ok(socket),
            None => self.other_send_socket(index),
        }
    }

    /// Returns a socket with the source port of a connection, or opens one of the others.
    #[inline(never)]
    fn other_send_socket(&self, index: usize) -> io::Result<&SendSocket> {
        let Some(place) = index.checked_sub(self.tx.len()) else {
            return self.open_send_socket(index);
        };
        let cells = self.port_tx.get();
        let socket = cells.and_then(|cells| cells.get(place)?.get());
        socket.ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    #[cold]
    fn open_send_socket(&self, index: usize) -> io::Result<&SendSocket> {
        let cell = &self.tx[index];
        let of_other = index >= usize::from(SEND_SOCKETS);
        let hop_limit = self.other_hop_limit.get().filter(|_| of_other);
        let _only_one = self.opening.lock();
        if let Some(socket) = cell.get() {
            return Ok(socket);
        }
        // Processes start at different ports, so that they rarely try the same ones.
        let [low, high, ..] = std::process::id().wrapping_mul(0x9E37_79B1).to_be_bytes();
        let start = u16::from_be_bytes([low, high]);
        for attempt in 0..PORTS {
            let port = FIRST_PORT + start.wrapping_add(attempt) % PORTS;
            match socket::open_send(self.local, port, hop_limit.copied()) {
                Ok(socket) => {
                    let socket = SendSocket {
                        fd: socket.into(),
                        port,
                        default_segment: DefaultSegmentSize::default(),
                    };
                    return Ok(cell.get_or_init(|| socket));
                }
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                Err(error) => return Err(error),
            }
        }
        Err(LinkError::NoSourcePort { local: self.local }.into())
    }

    /// Sends `data` to port 4791 of `to`, without blocking. If `data` is longer than `segment_len`,
    /// sends a batch of datagrams of `segment_len` bytes (the last may be shorter) with IPv4
    /// Identification 0, 1, 2, ….
    ///
    /// At most [`MAX_SEGMENTS`] and [`MAX_SEND_LEN`]. If the system refuses GSO, the segments are
    /// sent one by one with Identification 0 and corrected ICRCs, and [`Self::gso`] is false from
    /// then on.
    ///
    /// # Errors
    /// Errors of sendmsg(2): `WouldBlock` if the socket's buffer is full (nothing was sent),
    /// EMSGSIZE if a segment exceeds the path's MTU, and so on. `InvalidInput` if `to` is of the
    /// other IP version.
    #[inline]
    pub fn send(
        &self,
        handle: UdpTxHandle,
        to: IpAddr,
        traffic_class: u8,
        data: &[u8],
        segment_len: usize,
    ) -> io::Result<()> {
        let socket = self.send_socket(handle.socket)?;
        if handle.is_tunneled {
            return self.send_tunneled(handle, to, traffic_class, data, segment_len);
        }
        let to = self.local.peer(to).ok_or(io::ErrorKind::InvalidInput)?;
        let options = SendOptions {
            tos: (traffic_class != 0).then_some(traffic_class),
            hop_limit: handle.hop_limit,
            segment_len: None,
        };
        if data.len() <= segment_len {
            return self.send_cut(socket, &to, data, options, None);
        }
        if segment_len == 0
            || data.len() > MAX_SEND_LEN
            || data.len().div_ceil(segment_len) > MAX_SEGMENTS
        {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        if self.gso()
            && let Ok(at) = u16::try_from(segment_len)
        {
            match self.send_cut(socket, &to, data, options, Some(at)) {
                Err(error) if is_gso_refused(&error) => {}
                result => return result,
            }
        }
        self.send_segments(socket, &to, data, segment_len, options)
    }

    /// Sends to a group through the multicast tunnel.
    #[cold]
    fn send_tunneled(
        &self,
        handle: UdpTxHandle,
        to: IpAddr,
        traffic_class: u8,
        data: &[u8],
        segment_len: usize,
    ) -> io::Result<()> {
        let (IpAddr::V6(own), IpAddr::V6(group)) = (self.local.ip(), to) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let tunnel = self.tunnel.get().ok_or(io::ErrorKind::NotConnected)?;
        let hop_limit = handle.hop_limit.unwrap_or(DEFAULT_HOP_LIMIT);
        let (source, ip) = ((own, handle.source_port), (traffic_class, hop_limit));
        tunnel.send(source, group, ip, data, segment_len)
    }

    /// Sends data as one datagram, or segmented into datagrams of `at` bytes.
    #[inline]
    fn send_cut(
        &self,
        socket: &SendSocket,
        to: &SocketAddr,
        data: &[u8],
        mut options: SendOptions,
        at: Option<u16>,
    ) -> io::Result<()> {
        let (fd, default_segment) = (socket.fd.as_fd(), &socket.default_segment);
        if default_segment.segment_len() == 0 {
            let pinned = default_segment.pin();
            if default_segment.segment_len() == 0 {
                options.segment_len = at;
                let sent = send_all(fd, to, data, options);
                drop(pinned);
                if let (Ok(()), Some(at)) = (&sent, at) {
                    default_segment.note_batch(fd, data.len(), at);
                }
                return sent;
            }
        }
        let default_len = default_segment.segment_len();
        let as_usual = match at {
            Some(at) => at == default_len,
            None => self.gso() && data.len() <= usize::from(default_len),
        };
        if as_usual {
            match send_all(fd, to, data, options) {
                Err(error) if at.is_none() && is_gso_refused(&error) => {}
                result => return result,
            }
        }
        // 0 disables segmentation.
        options.segment_len = Some(at.unwrap_or(0));
        send_all(fd, to, data, options)
    }

    /// Sends a batch of segments one by one.
    #[cold]
    fn send_segments(
        &self,
        socket: &SendSocket,
        to: &SocketAddr,
        data: &[u8],
        segment_len: usize,
        options: SendOptions,
    ) -> io::Result<()> {
        let mut data = data.to_vec();
        let flow = match to.ip() {
            IpAddr::V4(ip) => IcrcFlow::new(self.local.ip(), ip.into(), socket.port),
            // IPv6 has no Identification.
            IpAddr::V6(_) => None,
        };
        for (index, segment) in data.chunks_mut(segment_len).enumerate() {
            if let Some(flow) = &flow {
                renumber(flow, u16::try_from(index).unwrap_or(0), segment);
            }
            let sent = self.send_cut(socket, to, segment, options, None);
            match sent {
                Ok(()) if index == 0 && self.gso.swap(false, Ordering::Relaxed) => {
                    tracing::info!(local = %self.local, "the system refuses UDP GSO: sending segments one by one");
                }
                Ok(()) => {}
                Err(error) if index == 0 => return Err(error),
                // The head of the batch was sent. The rest counts as lost packets.
                Err(_) => break,
            }
        }
        Ok(())
    }

    #[cfg(test)]
    pub(super) fn default_segment_len(&self, handle: UdpTxHandle) -> u16 {
        self.send_socket(handle.socket)
            .map_or(0, |socket| socket.default_segment.segment_len())
    }

    /// Returns true if the kernel segments batches (GSO), with Identification 0, 1, 2, …. False
    /// after the system refused. Then send one segment per call, with Identification 0.
    #[inline]
    #[must_use]
    pub fn gso(&self) -> bool {
        self.gso.load(Ordering::Relaxed)
    }

    /// Sets whether the kernel segments batches (GSO).
    pub fn set_gso(&self, on: bool) {
        self.gso.store(on, Ordering::Relaxed);
    }

    /// Forwards a packet of another slot to its process. `segment` must be as received from the
    /// network. Packets that [`Self::arrival`] reports as forwarded are never forwarded again.
    ///
    /// # Errors
    /// `InvalidInput` if the address is not shared, or if the packet is for this process, not for
    /// `to_slot`, or forwarded already. Otherwise the errors of sending. On any error drop the
    /// packet.
    pub fn forward(
        &self,
        to_slot: ProcessSlot,
        source: SocketAddr,
        segment: &[u8],
    ) -> io::Result<()> {
        let is_there = |slot| slot == to_slot || segment.get(5..8) == Some(&[0, 0, 1]);
        if !ProcessSlot::of_packet(segment).is_some_and(is_there) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.redirect(to_slot, source, 0, segment)
    }

    /// Redirects a packet to the process that owns its QP now, which may differ from the slot in
    /// the QP number (XRC targets). It was forwarded `hops` times before.
    ///
    /// # Errors
    /// As [`Self::forward`], except that the packet may be for any slot.
    pub fn redirect(
        &self,
        to_slot: ProcessSlot,
        source: SocketAddr,
        hops: u8,
        segment: &[u8],
    ) -> io::Result<()> {
        let wrong = || io::Error::from(io::ErrorKind::InvalidInput);
        let (own, key) = self.place.ok_or_else(wrong)?;
        if own == to_slot {
            return Err(wrong());
        }
        let header = forward::header(&key, to_slot, source, hops, segment).ok_or_else(wrong)?;
        let handle = self.tx_handle_to_slot(to_slot, 0)?;
        let datagram = [&header, segment].concat();
        self.send(handle, self.local.ip(), 0, &datagram, datagram.len())
    }

    /// Returns the kind of a received datagram: a packet, one that another process of this host
    /// forwarded, or a forged one.
    #[inline]
    #[must_use]
    pub fn arrival<'s>(&self, segment: &'s [u8]) -> Arrival<'s> {
        if self.is_tunneled {
            return mcast_tunnel::unwrap(self.local.ip(), segment);
        }
        if segment.first() != Some(&0xFF) {
            return Arrival::Direct;
        }
        self.unwrap_forwarded(segment)
    }

    #[cold]
    fn unwrap_forwarded<'s>(&self, segment: &'s [u8]) -> Arrival<'s> {
        if !forward::is_wrapped(segment) {
            return Arrival::Direct;
        }
        self.place
            .and_then(|(slot, key)| forward::unwrap(&key, slot, segment))
            .map_or(Arrival::Forged, |(source, packet, hops)| {
                Arrival::Forwarded(source, packet, hops)
            })
    }
}

impl fmt::Debug for UdpLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UdpLink")
            .field("local", &self.local)
            .field("slot", &self.slot())
            .field("rx", &self.rx)
            .field("gso", &self.gso())
            .finish_non_exhaustive()
    }
}

#[inline]
fn send_all(
    fd: BorrowedFd<'_>,
    to: &SocketAddr,
    data: &[u8],
    options: SendOptions,
) -> io::Result<()> {
    loop {
        match sys::send(fd, to, data, options) {
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Returns true for errors with which kernels and drivers refuse `UDP_SEGMENT`. Some have other
/// causes as well. Then sending one by one fails, too.
fn is_gso_refused(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EIO | libc::EINVAL | libc::EMSGSIZE | libc::EOPNOTSUPP | libc::ENOPROTOOPT)
    )
}

/// Converts a valid ICRC for Identification `index` into one for Identification 0. Leaves an
/// invalid one unchanged, because it is invalid on purpose.
fn renumber(flow: &IcrcFlow, index: u16, segment: &mut [u8]) {
    let Some(at) = segment.len().checked_sub(ICRC_LEN).filter(|&len| len >= 12) else {
        return;
    };
    let (covered, icrc) = segment.split_at_mut(at);
    if icrc == flow.compute(index, covered).to_le_bytes() {
        icrc.copy_from_slice(&flow.compute(0, covered).to_le_bytes());
    }
}
