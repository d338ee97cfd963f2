//! Datagram sockets: a UDP socket, and a UD queue pair for each local address.

use std::{
    collections::{BTreeMap, VecDeque},
    net::{IpAddr, SocketAddr},
    os::fd::{AsRawFd, OwnedFd, RawFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use libc::pollfd;
use parking_lot::Mutex;
use rocade_rsockets::datagram::{MAX_HEADER, MAX_LEN, UdpHeader, decode_source, encode_source};

use super::{
    address,
    endpoint::{AddressHandle, DatagramRoute, Endpoint},
    iov::{Source, Target},
    options::Options,
    process::Process,
    queue::Queue,
    sys,
    wait::{END, IN, OUT, Waiters, Waker},
};
use crate::{args::address_len, ffi::Errno};

/// The maximum number of known peers. When it is exceeded, all peers are resolved again.
const MOST_PEERS: usize = 4096;

/// A datagram socket.
pub(super) struct DatagramSocket {
    pub(super) domain: i32,
    udp: OwnedFd,
    pub(super) state: Mutex<DatagramState>,
    pub(super) nonblocking: AtomicBool,
}

/// The state of a datagram socket.
pub(super) struct DatagramState {
    closed: bool,
    /// Set if the service thread reads the UDP socket.
    watched: bool,
    peers: BTreeMap<SocketAddr, Peer>,
    endpoints: Vec<Endpoint>,
    connected: Option<SocketAddr>,
    inbox: VecDeque<(SocketAddr, Vec<u8>)>,
    pub(super) options: Options,
    waiters: Waiters,
}

/// A peer, and the route to it.
struct Peer {
    /// The index of the local endpoint for this peer.
    endpoint: usize,
    /// The route to the peer's queue pair, once the peer has sent its QP number.
    route: Option<(AddressHandle, DatagramRoute)>,
}

impl DatagramState {
    /// Returns the maximum number of received datagrams in the queue.
    fn inbox_limit(&self) -> usize {
        usize::from(self.options.recv_slots).max(1)
    }

    fn ready(&self) -> u8 {
        if self.closed {
            return IN | OUT | END;
        }
        let mut ready = 0;
        if !self.inbox.is_empty() {
            ready |= IN;
        }
        if self.endpoints.iter().all(Endpoint::can_send) {
            ready |= OUT;
        }
        if self.failure().is_some() {
            ready |= IN | OUT | END;
        }
        ready
    }

    /// Returns the error of a call that would wait for a device that is gone. As in rdma-core
    /// (`ds_get_cq_event`), one such device is enough.
    fn failure(&self) -> Option<Errno> {
        self.endpoints.iter().find_map(|end| end.queue.failure())
    }

    /// Polls the CQs, wakes the threads that wait for the result, and arms the CQs if threads still
    /// wait.
    fn turn(&mut self) {
        self.turn_with(Queue::arm);
    }

    /// Like [`Self::turn`], for a thread that is registered and going to sleep.
    fn turn_to_sleep(&mut self) {
        self.turn_with(Queue::arm_to_sleep);
    }

    fn turn_with(&mut self, arm: fn(&mut Queue)) {
        loop {
            let limit = self.inbox_limit();
            let inbox = &mut self.inbox;
            for endpoint in &mut self.endpoints {
                let taken = endpoint.progress(|bytes| {
                    let Some((source, data)) = decode_source(bytes) else {
                        return;
                    };
                    if inbox.len() < limit {
                        inbox.push_back((source, data.to_vec()));
                    }
                });
                if taken > 0 {
                    self.waiters.note_activity();
                }
            }
            self.waiters.wake(self.ready());
            if self.waiters.is_empty() {
                break;
            }
            let mut armed = false;
            for endpoint in &mut self.endpoints {
                if !endpoint.queue.is_armed() {
                    arm(&mut endpoint.queue);
                    armed |= endpoint.queue.is_armed();
                }
            }
            if !armed {
                break;
            }
        }
    }
}

impl DatagramSocket {
    pub(super) fn new(domain: i32, options: Options) -> Result<Self, Errno> {
        Ok(Self {
            domain,
            udp: sys::udp_socket(domain)?,
            state: Mutex::new(DatagramState {
                closed: false,
                watched: false,
                peers: BTreeMap::new(),
                endpoints: Vec::new(),
                connected: None,
                inbox: VecDeque::new(),
                options,
                waiters: Waiters::default(),
            }),
            nonblocking: AtomicBool::new(false),
        })
    }

    pub(super) fn udp_fd(&self) -> RawFd {
        self.udp.as_raw_fd()
    }

    /// Lets the service thread read the UDP socket.
    fn begin(self: &Arc<Self>, process: &'static Process) -> Result<(), Errno> {
        let first = !std::mem::replace(&mut self.state.lock().watched, true);
        if first {
            process.service()?.watch(self);
        }
        Ok(())
    }

    fn check_family(&self, addr: SocketAddr) -> Result<(), Errno> {
        let family = if addr.is_ipv4() {
            libc::AF_INET
        } else {
            libc::AF_INET6
        };
        if family == self.domain {
            Ok(())
        } else {
            Err(Errno(libc::EAFNOSUPPORT))
        }
    }

    pub(super) fn bind(
        self: &Arc<Self>,
        process: &'static Process,
        addr: SocketAddr,
    ) -> Result<(), Errno> {
        self.check_family(addr)?;
        let storage = address::to_storage(addr);
        let len = address_len(self.domain).ok_or(Errno::INVAL)?;
        sys::bind(&self.udp, &storage, len)?;
        self.begin(process)
    }

    /// Returns the local address. If the socket has no port yet, this binds it to one.
    fn bound(&self) -> Result<SocketAddr, Errno> {
        let name = || {
            let name = sys::name(&self.udp)?;
            address::from_storage(&name).ok_or(Errno::INVAL)
        };
        let addr = name()?;
        if addr.port() != 0 {
            return Ok(addr);
        }
        let len = address_len(self.domain).ok_or(Errno::INVAL)?;
        sys::bind(&self.udp, &address::to_storage(addr), len)?;
        name()
    }

    pub(super) fn connect(
        self: &Arc<Self>,
        process: &'static Process,
        addr: SocketAddr,
    ) -> Result<(), Errno> {
        self.check_family(addr)?;
        self.begin(process)?;
        self.bound()?;
        let storage = address::to_storage(addr);
        let len = address_len(self.domain).ok_or(Errno::INVAL)?;
        sys::connect(&self.udp, &storage, len)?;
        let mut state = self.state.lock();
        self.peer(&mut state, addr)?;
        state.connected = Some(addr);
        Ok(())
    }

    /// Adds a peer, with the endpoint of the local address that leads to it.
    fn peer(&self, state: &mut DatagramState, addr: SocketAddr) -> Result<(), Errno> {
        if state.peers.contains_key(&addr) {
            return Ok(());
        }
        let own = self.bound()?;
        let local = if own.ip().is_unspecified() {
            let source = sys::source_of(&address::to_storage(addr))?;
            address::from_storage(&source).ok_or(Errno::INVAL)?.ip()
        } else {
            own.ip()
        };
        let at = state.endpoints.iter().position(|end| end.local == local);
        let endpoint = match at {
            Some(at) => at,
            None => {
                state.endpoints.push(Endpoint::new(local, &state.options)?);
                state.endpoints.len() - 1
            }
        };
        if state.peers.len() >= MOST_PEERS {
            state.peers.clear();
        }
        let peer = Peer {
            endpoint,
            route: None,
        };
        state.peers.insert(addr, peer);
        Ok(())
    }

    /// `rsendto`: sends the whole datagram or nothing.
    pub(super) fn send(
        self: &Arc<Self>,
        process: &'static Process,
        from: &mut Source<'_>,
        to: Option<SocketAddr>,
    ) -> Result<usize, Errno> {
        self.begin(process)?;
        let own = self.bound()?;
        let mut state = self.state.lock();
        let state = &mut *state;
        let to = to.or(state.connected).ok_or(Errno(libc::EDESTADDRREQ))?;
        self.check_family(to)?;
        let mut bytes = [0; MAX_LEN];
        let len = from.left();
        if len > MAX_LEN - MAX_HEADER {
            return Err(Errno(libc::EMSGSIZE));
        }
        self.peer(state, to)?;
        state.turn();
        let peer = state.peers.get(&to).ok_or(Errno::INVAL)?;
        let endpoint = state.endpoints.get_mut(peer.endpoint).ok_or(Errno::INVAL)?;
        let mut header = [0; MAX_HEADER];
        let source = SocketAddr::new(endpoint.local, own.port());
        let header_len = encode_source(source, &mut header);
        match &peer.route {
            Some((handle, route)) if header_len + len <= route.most => {
                if !endpoint.can_send() {
                    let failure = endpoint.queue.failure();
                    return Err(failure.unwrap_or(Errno(libc::EAGAIN)));
                }
                bytes[..header_len].copy_from_slice(&header[..header_len]);
                from.copy(&mut bytes[header_len..header_len + len]);
                endpoint.send(handle, route, &bytes[..header_len + len])?;
            }
            _ => {
                let header = UdpHeader {
                    has_data: true,
                    qpn: endpoint.qpn(),
                    addr: endpoint.local,
                };
                from.copy(&mut bytes[MAX_HEADER..MAX_HEADER + len]);
                self.send_udp(header, &bytes[MAX_HEADER..MAX_HEADER + len], to)?;
            }
        }
        Ok(len)
    }

    fn send_udp(&self, header: UdpHeader, data: &[u8], to: SocketAddr) -> Result<(), Errno> {
        let mut bytes = [0; MAX_HEADER];
        let len = header.encode(&mut bytes);
        let whole = [&bytes[..len], data].concat();
        let addr = address::to_storage(to);
        let addr_len = address_len(self.domain).ok_or(Errno::INVAL)?;
        sys::send_to(&self.udp, &whole, &addr, addr_len)
    }

    /// `rrecvfrom`: returns the length of the datagram, truncated to the room, and its sender.
    pub(super) fn recv(
        &self,
        to: &mut Target<'_>,
        peek: bool,
    ) -> Result<(usize, SocketAddr), Errno> {
        let mut state = self.state.lock();
        state.turn();
        if state.closed {
            return Err(Errno(libc::EBADF));
        }
        let connected = state.connected;
        // A connected socket receives only datagrams of its peer.
        while let Some((source, _)) = state.inbox.front()
            && connected.is_some_and(|peer| !is_from(*source, peer))
        {
            state.inbox.pop_front();
        }
        let reason = state.failure().unwrap_or(Errno(libc::EAGAIN));
        let (source, data) = state.inbox.front().ok_or(reason)?;
        let source = *source;
        let len = data.len().min(to.left());
        to.fill(&data[..len]);
        if !peek {
            state.inbox.pop_front();
        }
        Ok((len, source))
    }

    /// Reads the UDP socket, which has become readable.
    pub(super) fn read_udp(self: &Arc<Self>) {
        /// The maximum number of datagrams in one turn, so that other sockets get theirs.
        const AT_ONCE: usize = 64;
        let mut bytes = [0; MAX_LEN];
        for _ in 0..AT_ONCE {
            let Ok((len, from)) = sys::recv_from(&self.udp, &mut bytes) else {
                return;
            };
            let Some(from) = address::from_storage(&from) else {
                continue;
            };
            if let Some((header, data)) = UdpHeader::decode(&bytes[..len])
                && header.addr.is_ipv4() == from.is_ipv4()
            {
                self.receive_datagram(header, data, from);
            }
        }
    }

    /// Handles a packet in which a peer sends its QP number, and possibly a datagram.
    fn receive_datagram(&self, header: UdpHeader, data: &[u8], from: SocketAddr) {
        let asked = {
            let mut state = self.state.lock();
            if state.closed || self.peer(&mut state, from).is_err() {
                return;
            }
            let state = &mut *state;
            let Some(peer) = state.peers.get(&from) else {
                return;
            };
            let Some(endpoint) = state.endpoints.get(peer.endpoint) else {
                return;
            };
            if header.has_data {
                let answer = UdpHeader {
                    has_data: false,
                    qpn: endpoint.qpn(),
                    addr: endpoint.local,
                };
                // If this packet is lost, the peer's next datagram causes another one.
                let _ = self.send_udp(answer, &[], from);
            }
            let is_known = peer
                .route
                .as_ref()
                .is_some_and(|(_, route)| route.qpn == header.qpn);
            (!is_known).then(|| (endpoint.local, endpoint.domain()))
        };
        // Resolving waits for events, and therefore runs without the lock.
        let found = asked.and_then(|(local, domain)| {
            let route = DatagramRoute::find(local, from.ip(), header.qpn).ok()?;
            let handle = AddressHandle::new(domain.ok()?, &route).ok()?;
            Some((handle, route))
        });
        let mut state = self.state.lock();
        if let Some(route) = found
            && let Some(peer) = state.peers.get_mut(&from)
        {
            peer.route = Some(route);
        }
        if header.has_data && state.inbox.len() < state.inbox_limit() {
            state.inbox.push_back((from, data.to_vec()));
        }
        state.turn();
    }

    pub(super) fn poll(&self, events: i16) -> i16 {
        use libc::{POLLERR, POLLIN, POLLNVAL, POLLOUT, POLLRDNORM, POLLWRNORM};
        let mut state = self.state.lock();
        state.turn();
        if state.closed {
            return POLLNVAL;
        }
        let ready = state.ready();
        let mut told = 0;
        if ready & IN != 0 {
            told |= POLLIN | POLLRDNORM;
        }
        if ready & OUT != 0 {
            told |= POLLOUT | POLLWRNORM;
        }
        told &= events;
        if state.failure().is_some() {
            told |= POLLERR;
        }
        told
    }

    /// Number of arrivals and completions, approximately.
    pub(super) fn activity(&self) -> u64 {
        self.state.lock().waiters.activity()
    }

    pub(super) fn prepare(
        &self,
        waker: &Arc<Waker>,
        (interest, known): (u8, Option<u64>),
        fds: &mut Vec<pollfd>,
    ) {
        let mut state = self.state.lock();
        state.waiters.add_edge(waker, interest, known);
        state.turn_to_sleep();
        let queues = state.endpoints.iter().map(|end| end.queue.fd_to_poll());
        fds.extend(queues.map(sys::readable));
    }

    pub(super) fn unprepare(&self, waker: &Arc<Waker>, fds: &[pollfd]) {
        let mut state = self.state.lock();
        state.waiters.remove(waker);
        let had_failed = state.failure().is_some();
        for (endpoint, fd) in state.endpoints.iter_mut().zip(fds) {
            if fd.revents != 0 {
                endpoint.queue.take_event();
            }
        }
        if state.failure().is_some() && !had_failed {
            state.waiters.note_activity();
        }
        state.turn();
    }

    pub(super) fn close(&self) {
        let (peers, endpoints) = {
            let mut state = self.state.lock();
            state.closed = true;
            state.waiters.wake(IN | OUT | END);
            let peers = std::mem::take(&mut state.peers);
            (peers, std::mem::take(&mut state.endpoints))
        };
        // The address handles must be destroyed before the endpoints.
        drop(peers);
        for mut endpoint in endpoints {
            endpoint.drain();
        }
    }

    pub(super) fn local(&self) -> Result<SocketAddr, Errno> {
        let name = sys::name(&self.udp)?;
        address::from_storage(&name).ok_or(Errno::INVAL)
    }

    pub(super) fn peer_name(&self) -> Result<SocketAddr, Errno> {
        self.state.lock().connected.ok_or(Errno(libc::ENOTCONN))
    }

    pub(super) fn is_nonblocking(&self) -> bool {
        self.nonblocking.load(Ordering::Relaxed)
    }

    /// Returns the UDP socket, for options that apply to it.
    pub(super) const fn udp(&self) -> &OwnedFd {
        &self.udp
    }
}

/// Returns true if address and port are equal, regardless of scope ID and flow label.
fn is_from(source: SocketAddr, peer: SocketAddr) -> bool {
    let ip = |addr: SocketAddr| -> IpAddr { address::unmapped(addr).ip() };
    ip(source) == ip(peer) && source.port() == peer.port()
}
