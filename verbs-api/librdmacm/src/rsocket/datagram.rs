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
    endpoint::{AddressHandle, Endpoint, Way},
    iov::Cursor,
    options::Options,
    process::Process,
    sys,
    wait::{END, IN, OUT, Waiters, Waker},
};
use crate::{ffi::Errno, id::address_len};

/// Peers that are remembered; with more, all are asked again.
const MOST_PEERS: usize = 4096;

/// A datagram socket.
pub(super) struct DatagramSocket {
    pub(super) domain: i32,
    udp: OwnedFd,
    pub(super) state: Mutex<State>,
    pub(super) nonblocking: AtomicBool,
}

/// What becomes of it.
pub(super) struct State {
    closed: bool,
    /// The service reads the UDP socket.
    watched: bool,
    peers: BTreeMap<SocketAddr, Peer>,
    endpoints: Vec<Endpoint>,
    connected: Option<SocketAddr>,
    inbox: VecDeque<(SocketAddr, Vec<u8>)>,
    pub(super) options: Options,
    waiters: Waiters,
}

/// What is known of a peer.
struct Peer {
    /// Place of our endpoint for it.
    endpoint: usize,
    /// The way to its queue pair, once it has told.
    way: Option<(AddressHandle, Way)>,
}

impl State {
    /// Datagrams that may wait for the program.
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
        ready
    }

    /// Takes completions, and wakes who waits for them.
    fn turn(&mut self) {
        loop {
            let limit = self.inbox_limit();
            let inbox = &mut self.inbox;
            for endpoint in &mut self.endpoints {
                endpoint.progress(|bytes| {
                    let Some((source, data)) = decode_source(bytes) else {
                        return;
                    };
                    if inbox.len() < limit {
                        inbox.push_back((source, data.to_vec()));
                    }
                });
            }
            self.waiters.wake(self.ready());
            if self.waiters.is_empty() {
                break;
            }
            let mut armed = false;
            for endpoint in &mut self.endpoints {
                if !endpoint.queue.is_armed() {
                    endpoint.queue.arm();
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
            state: Mutex::new(State {
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

    /// The service reads the UDP socket from now on.
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

    /// Our address; with a port, which it gets now if it has none.
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

    /// Makes a peer known.
    fn peer(&self, state: &mut State, addr: SocketAddr) -> Result<(), Errno> {
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
            way: None,
        };
        state.peers.insert(addr, peer);
        Ok(())
    }

    /// `rsendto`: all of it or nothing.
    pub(super) fn send(
        self: &Arc<Self>,
        process: &'static Process,
        from: &mut Cursor,
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
        match &peer.way {
            Some((handle, way)) if header_len + len <= way.most => {
                if !endpoint.can_send() {
                    return Err(Errno(libc::EAGAIN));
                }
                bytes[..header_len].copy_from_slice(&header[..header_len]);
                from.copy(&mut bytes[header_len..header_len + len]);
                endpoint.send(handle, way, &bytes[..header_len + len])?;
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

    /// `rrecvfrom`: the length of a datagram, as much of it as there was room for, and its sender.
    pub(super) fn recv(&self, to: &mut Cursor, peek: bool) -> Result<(usize, SocketAddr), Errno> {
        let mut state = self.state.lock();
        state.turn();
        if state.closed {
            return Err(Errno(libc::EBADF));
        }
        let connected = state.connected;
        // Who is connected hears of its peer only.
        while let Some((source, _)) = state.inbox.front()
            && connected.is_some_and(|peer| !is_from(*source, peer))
        {
            state.inbox.pop_front();
        }
        let (source, data) = state.inbox.front().ok_or(Errno(libc::EAGAIN))?;
        let source = *source;
        let len = data.len().min(to.left());
        to.fill(&data[..len]);
        if !peek {
            state.inbox.pop_front();
        }
        Ok((len, source))
    }

    /// The UDP socket has something.
    pub(super) fn read_udp(self: &Arc<Self>) {
        /// Others want a turn too.
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
                self.hear(header, data, from);
            }
        }
    }

    /// A peer tells its queue pair, perhaps with a datagram.
    fn hear(&self, header: UdpHeader, data: &[u8], from: SocketAddr) {
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
                // Lost, it comes again with the next datagram.
                let _ = self.send_udp(answer, &[], from);
            }
            let is_known = peer
                .way
                .as_ref()
                .is_some_and(|(_, way)| way.qpn == header.qpn);
            (!is_known).then_some((endpoint.local, endpoint.domain()))
        };
        // Resolving waits for events: not under the lock.
        let found = asked.and_then(|(local, domain)| {
            let way = Way::find(local, from.ip(), header.qpn).ok()?;
            let handle = AddressHandle::new(domain, &way).ok()?;
            Some((handle, way))
        });
        let mut state = self.state.lock();
        if let Some(way) = found
            && let Some(peer) = state.peers.get_mut(&from)
        {
            peer.way = Some(way);
        }
        if header.has_data && state.inbox.len() < state.inbox_limit() {
            state.inbox.push_back((from, data.to_vec()));
        }
        state.turn();
    }

    pub(super) fn poll(&self, events: i16) -> i16 {
        use libc::{POLLIN, POLLNVAL, POLLOUT, POLLRDNORM, POLLWRNORM};
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
        told & events
    }

    pub(super) fn prepare(&self, waker: &Arc<Waker>, interest: u8, fds: &mut Vec<pollfd>) {
        let mut state = self.state.lock();
        state.waiters.add(waker, interest);
        state.turn();
        let queues = state.endpoints.iter().map(|end| end.queue.fd());
        fds.extend(queues.map(sys::readable));
    }

    pub(super) fn unprepare(&self, waker: &Arc<Waker>, fds: &[pollfd]) {
        let mut state = self.state.lock();
        state.waiters.remove(waker);
        for (endpoint, fd) in state.endpoints.iter_mut().zip(fds) {
            if fd.revents != 0 {
                endpoint.queue.take_event();
            }
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
        // Address handles first.
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

    /// The UDP socket, for options that are its.
    pub(super) const fn udp(&self) -> &OwnedFd {
        &self.udp
    }
}

/// The same address and port; scope and flow are nobody's business.
fn is_from(source: SocketAddr, peer: SocketAddr) -> bool {
    let ip = |addr: SocketAddr| -> IpAddr { address::unmapped(addr).ip() };
    ip(source) == ip(peer) && source.port() == peer.port()
}
