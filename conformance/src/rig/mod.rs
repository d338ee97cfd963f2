//! A raw packet endpoint, which acts like a NIC on the wire.
//!
//! The rig records every packet of the peer. It checks what applies to any packet of a requester or
//! responder: ICRC, reserved bits, pad and lengths.

mod capture;
mod hygiene;
mod sys;
mod transcript;

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, HashMap, VecDeque},
    io,
    net::{IpAddr, SocketAddr, UdpSocket},
    time::{Duration, Instant},
};

use rocade_wire::{
    Headers, Packet, Qpn, ROCE_UDP_PORT, Service,
    icrc::{IcrcCheck, IcrcFlow},
};

use crate::{
    PacketBuilder,
    case::{CaseError, CaseResult, fail},
};
pub use capture::capture;
use transcript::Transcript;
pub use transcript::{Frame, Origin, Step};

/// The largest UDP payload.
const MAX_DATAGRAM: usize = 65_536;

/// A packet of the peer.
#[derive(Clone, Debug)]
pub struct Received {
    /// The headers.
    pub headers: Headers,
    /// The payload without pad.
    pub payload: Vec<u8>,
    /// The source UDP port.
    pub source_port: u16,
    /// The time at which the packet was read from the socket.
    pub at: Instant,
}

/// The socket that sends a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Via {
    /// Port 4791, with a UDP checksum.
    #[default]
    Main,
    /// Another port.
    OtherPort,
    /// Another port, with UDP checksum 0.
    NoChecksum,
    /// Another source address than that of the connection.
    ThirdHost,
}

#[derive(Debug)]
struct Sender {
    socket: UdpSocket,
    local: SocketAddr,
    flow: IcrcFlow,
}

impl Sender {
    fn bind(local: SocketAddr, peer: IpAddr) -> io::Result<Self> {
        let socket = UdpSocket::bind(local)?;
        sys::prepare(&socket)?;
        let local = socket.local_addr()?;
        let flow =
            IcrcFlow::new(local.ip(), peer, local.port()).ok_or(io::ErrorKind::InvalidInput)?;
        Ok(Self {
            socket,
            local,
            flow,
        })
    }
}

/// One end of connections, at its own address.
#[derive(Debug)]
pub struct Rig {
    local: IpAddr,
    peer: IpAddr,
    main: Sender,
    other_port: Sender,
    no_checksum: Sender,
    third_host: Option<Sender>,
    next_qpn: Cell<u32>,
    services: RefCell<HashMap<Qpn, Service>>,
    inbox: RefCell<BTreeMap<u32, VecDeque<Received>>>,
    transcript: RefCell<Transcript>,
}

/// Returns true if a packet to a group failed because the interface has no route to it.
fn is_without_route(packet: &PacketBuilder, error: &io::Error) -> bool {
    packet.group.is_some() && error.raw_os_error() == Some(libc::ENETUNREACH)
}

impl Rig {
    /// The first QP number of the rig.
    const FIRST_QPN: u32 = 0x00a5_0100;

    /// Binds port 4791 of `local` to communicate with `peer`. `third_host` is another local
    /// address, for packets from a wrong source address.
    ///
    /// # Errors
    /// The error of binding: the address is not local, the port is in use, or the families differ.
    pub fn bind(local: IpAddr, peer: IpAddr, third_host: Option<IpAddr>) -> io::Result<Self> {
        let no_checksum = Sender::bind((local, 0).into(), peer)?;
        sys::omit_checksum(&no_checksum.socket)?;
        Ok(Self {
            local,
            peer,
            main: Sender::bind((local, ROCE_UDP_PORT).into(), peer)?,
            other_port: Sender::bind((local, 0).into(), peer)?,
            no_checksum,
            third_host: third_host
                .map(|address| Sender::bind((address, 0).into(), peer))
                .transpose()?,
            next_qpn: Cell::new(Self::FIRST_QPN),
            services: RefCell::default(),
            inbox: RefCell::default(),
            transcript: RefCell::new(Transcript::new(Instant::now())),
        })
    }

    /// Returns the address.
    #[must_use]
    pub const fn local(&self) -> IpAddr {
        self.local
    }

    /// Returns the other address, if there is one.
    #[must_use]
    pub fn third_host(&self) -> Option<IpAddr> {
        self.third_host.as_ref().map(|sender| sender.local.ip())
    }

    /// Returns an unused QP number.
    pub fn new_qpn(&self) -> Qpn {
        let qpn = self.next_qpn.get();
        self.next_qpn.set(qpn + 1);
        Qpn::new(qpn)
    }

    /// Registers a QP number with its service. Packets for other numbers are of service RC.
    pub(crate) fn expect(&self, qpn: Qpn, service: Service) {
        self.services.borrow_mut().insert(qpn, service);
    }

    /// Sends a packet.
    ///
    /// # Errors
    /// Fails if the system refuses to send. Skips the case if the rig lacks the socket.
    pub fn send(&self, packet: &PacketBuilder) -> CaseResult {
        let sender = match packet.via {
            Via::Main => &self.main,
            Via::OtherPort => &self.other_port,
            Via::NoChecksum => &self.no_checksum,
            Via::ThirdHost => self.third_host.as_ref().ok_or_else(|| {
                CaseError::Skipped("the rig has only one address here".to_owned())
            })?,
        };
        let (flow, host) = match packet.group {
            Some(group) => (self.flow_to(group)?, group),
            None => (sender.flow.clone(), self.peer),
        };
        let bytes = packet.emit(&flow);
        let mut transcript = self.transcript.borrow_mut();
        if let Some(remark) = packet.remark() {
            transcript.note(remark);
        }
        let to = SocketAddr::new(host, ROCE_UDP_PORT);
        transcript.sent(sender.local, to, &bytes);
        match sender.socket.send_to(&bytes, to) {
            Ok(_) => Ok(()),
            Err(error) if error.raw_os_error() == Some(libc::EMSGSIZE) => Err(CaseError::Skipped(
                "the packet is longer than the network takes".to_owned(),
            )),
            Err(error) if is_without_route(packet, &error) => Err(CaseError::Skipped(format!(
                "the interface of {} has no route to groups of IPv6, as lo",
                self.local
            ))),
            Err(error) => fail(format!("failed to send: {error}")),
        }
    }

    /// Returns the part of the ICRC that depends on the addresses of a packet to a group.
    fn flow_to(&self, group: IpAddr) -> CaseResult<IcrcFlow> {
        let flow = IcrcFlow::new(self.local, group, ROCE_UDP_PORT);
        flow.ok_or_else(|| {
            CaseError::Skipped("the rig has no address of the group's IP version".to_owned())
        })
    }

    /// Returns the next packet for a queue pair of the rig, or `None` at the deadline.
    ///
    /// # Errors
    /// [`CaseError::Failed`] if the peer sent an invalid packet.
    pub fn receive(&self, qpn: Qpn, deadline: Instant) -> CaseResult<Option<Received>> {
        loop {
            if let Some(packet) = self.take(qpn) {
                return Ok(Some(packet));
            }
            if !self.receive_one(deadline)? {
                return Ok(None);
            }
        }
    }

    /// Reads the datagrams in the socket, without waiting.
    ///
    /// # Errors
    /// As for [`Rig::receive`].
    pub fn drain(&self) -> CaseResult {
        while self.receive_one(Instant::now())? {}
        Ok(())
    }

    fn take(&self, qpn: Qpn) -> Option<Received> {
        self.inbox.borrow_mut().get_mut(&qpn.get())?.pop_front()
    }

    /// Receives one datagram. Returns false at the deadline.
    fn receive_one(&self, deadline: Instant) -> CaseResult<bool> {
        // A timeout of zero is an error.
        let left = deadline
            .saturating_duration_since(Instant::now())
            .max(Duration::from_micros(1));
        let mut bytes = vec![0; MAX_DATAGRAM];
        let socket = &self.main.socket;
        let received = socket
            .set_read_timeout(Some(left))
            .and_then(|()| socket.recv_from(&mut bytes));
        let (len, source) = match received {
            Ok(received) => received,
            Err(error) => {
                return match error.kind() {
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                        Ok(Instant::now() < deadline)
                    }
                    io::ErrorKind::Interrupted => Ok(true),
                    _ => fail(format!("failed to receive: {error}")),
                };
            }
        };
        self.accept(&bytes[..len], source).map(|()| true)
    }

    fn accept(&self, bytes: &[u8], source: SocketAddr) -> CaseResult {
        if source.ip().to_canonical() != self.peer {
            let note = format!("{} bytes from {source}, ignored", bytes.len());
            self.note(note);
            return Ok(());
        }
        let source = SocketAddr::new(source.ip().to_canonical(), source.port());
        let here = self.main.local;
        self.transcript.borrow_mut().received(source, here, bytes);
        let packet = Packet::parse(bytes)
            .map_err(|error| CaseError::Failed(format!("the peer sent no packet: {error}")))?;
        //= ICRC-02
        let flow = IcrcFlow::new(self.peer, self.local, source.port())
            .ok_or_else(|| CaseError::Failed("addresses of different families".to_owned()))?;
        if flow.check(0, packet.covered(), packet.icrc_bytes()) == IcrcCheck::Bad {
            return fail("ICRC-02: the peer's ICRC is wrong");
        }
        let qpn = packet.bth().dest_qp;
        let service = self.services.borrow().get(&qpn).copied();
        let service = service.unwrap_or(Service::Rc);
        if let Err(what) = hygiene::check(&packet, service) {
            return fail(what);
        }
        let is_ours = (Self::FIRST_QPN..self.next_qpn.get()).contains(&qpn.get());
        // QP 1 exists only in cases that use it.
        let is_gsi = qpn == Qpn::GSI && self.services.borrow().contains_key(&qpn);
        if !is_ours && !is_gsi {
            return fail(format!(
                "BTH-10: a packet for QP {qpn}, which never existed"
            ));
        }
        self.inbox
            .borrow_mut()
            .entry(qpn.get())
            .or_default()
            .push_back(Received {
                headers: *packet.headers(),
                payload: packet.payload().to_vec(),
                source_port: source.port(),
                at: Instant::now(),
            });
        Ok(())
    }

    /// Writes a line into the transcript.
    pub fn note(&self, text: String) {
        self.transcript.borrow_mut().note(text);
    }

    /// Starts a new transcript and discards unread packets.
    pub fn clear(&self) {
        self.inbox.borrow_mut().clear();
        *self.transcript.borrow_mut() = Transcript::new(Instant::now());
    }

    /// Returns the packets and notes since [`Rig::clear`].
    #[must_use]
    pub fn transcript(&self) -> Vec<Step> {
        self.transcript.borrow().steps()
    }

    /// Returns the packets since [`Rig::clear`] as they were on the wire.
    #[must_use]
    pub fn frames(&self) -> Vec<Frame> {
        self.transcript.borrow().frames()
    }
}
