//! A local address in use: its UDP link and the flows of its peers.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::sync::{Mutex, MutexGuard, rank, turn};
use rocade_transport::{AddressVector, Time};
use rocade_wire::Qpn;
use rocade_wire::icrc::{IcrcCheck, IcrcFlow, IcrcOfLen};
use rocade_wire::ip::source_port_of_flow_label;

use super::groups::Group;
use crate::hca::{Hca, Traffic};
use crate::link::peer_link::{AnyPeerLink, Fragment, PeerLink as _, SendOutcome, Sending};
use crate::link::{
    AnyLink, DEFAULT_HOP_LIMIT, Leave, Link as _, Pacer, ReceiverQueue, RxBuffer, Segments,
    UdpTxHandle,
};
use crate::memory::Fault;
use crate::steering::ProcessSlot;
use crate::tuning::STALLED_NS;

/// Number of peers whose flow is remembered. A further one replaces the oldest.
const FLOWS: usize = 16;

/// Returns true if a packet is of an RDMA WRITE, and has no immediate data.
fn is_plain_write(packet: &[u8]) -> bool {
    packet
        .first()
        .is_some_and(|opcode| matches!(opcode & 0x1f, 0x06..=0x08 | 0x0a))
}

/// Number of receivers that are remembered before all are forgotten.
const RECEIVERS: usize = 64;

/// A local address in use.
#[derive(Debug)]
pub(crate) struct LocalEndpoint {
    pub(crate) link: AnyLink,
    pub(crate) rx: Mutex<RxState, rank::SocketReceive>,
    /// The receive state that is used while a thread holds `rx` and does not run.
    spare_rx: OnceLock<Box<Mutex<RxState, rank::SocketReceive>>>,
    /// `spare_rx` is in use.
    is_stalled: AtomicBool,
    /// Paces packets that are not acknowledged.
    pub(crate) pacer: Pacer,
    /// The addresses that such packets were sent to.
    receivers: Mutex<HashMap<IpAddr, Arc<ReceiverQueue>>>,
    /// The device with this address.
    pub(crate) hca: Option<Arc<Hca>>,
    /// The multicast group whose address it has.
    pub(crate) group: Option<Group>,
}

/// The receive state of a link. One thread at a time receives.
#[derive(Debug)]
pub(crate) struct RxState {
    pub(crate) buffer: RxBuffer,
    pub(crate) flows: Flows,
    /// QPs that have received packets and whose outputs were not flushed yet.
    pub(crate) deferred_qps: Vec<Qpn>,
}

impl RxState {
    fn new() -> Self {
        Self {
            buffer: RxBuffer::new(),
            flows: Flows::default(),
            deferred_qps: Vec::new(),
        }
    }
}

/// The route of the packets of a QP.
#[derive(Clone, Debug)]
pub(crate) struct TxRoute {
    pub(crate) tx: UdpTxHandle,
    pub(crate) icrc: Icrcs,
    pub(crate) to: IpAddr,
    pub(crate) traffic_class: u8,
    /// The value in the packets, never 0.
    pub(crate) hop_limit: u8,
    /// The slot of the destination QP.
    pub(crate) slot: ProcessSlot,
    /// The shared memory link to that process.
    pub(crate) peer_link: Option<Arc<AnyPeerLink>>,
    /// The next batch is the first one through the shared memory link, and there may have been
    /// packets over UDP before. The peer has to receive those first.
    pub(super) first_shm_send: bool,
}

impl TxRoute {
    /// The UDP source port that is used without a shared memory link.
    pub(crate) const fn source_port(&self) -> u16 {
        self.tx.source_port
    }

    /// The shared memory link to the destination process, if there is one.
    pub(crate) const fn peer_link(&self) -> Option<&Arc<AnyPeerLink>> {
        self.peer_link.as_ref()
    }

    /// Uses a shared memory link that matches the path, unless there is one already.
    pub(super) fn attach_peer_link(
        &mut self,
        endpoint: &LocalEndpoint,
        peer_link: &Arc<AnyPeerLink>,
    ) {
        let matches = peer_link.connects(endpoint.link.local_addr(), self.to, self.slot);
        if self.peer_link.is_none() && matches {
            self.peer_link = Some(Arc::clone(peer_link));
            self.first_shm_send = true;
        }
    }

    /// Sends a batch through the shared memory link. Returns false if there is no space. Without a
    /// link, the batch is lost.
    ///
    /// # Errors
    /// [`Fault`]: memory that was to be sent has vanished.
    #[inline]
    pub(crate) fn send_shared<'a>(
        &mut self,
        batch: impl Iterator<Item = Fragment<'a>>,
        sending: Sending,
    ) -> Result<bool, Fault> {
        let Some(peer_link) = &self.peer_link else {
            return Ok(true);
        };
        let after_udp = self.first_shm_send;
        let sent = peer_link.send(
            batch,
            Sending {
                after_udp,
                ..sending
            },
        );
        self.first_shm_send &= matches!(sent, SendOutcome::Full | SendOutcome::Fault);
        match sent {
            SendOutcome::Fault => Err(Fault),
            SendOutcome::Full => Ok(false),
            SendOutcome::Sent | SendOutcome::Ended => Ok(true),
        }
    }

    /// The shared memory link, unless it has ended.
    #[inline]
    pub(crate) fn live_peer_link(&self) -> Option<&AnyPeerLink> {
        let peer_link = self.peer_link.as_deref();
        peer_link.filter(|peer_link| !peer_link.has_ended())
    }
}

impl LocalEndpoint {
    pub(crate) fn new(link: AnyLink, hca: Option<Arc<Hca>>) -> Self {
        Self {
            link,
            rx: Mutex::new(RxState::new()),
            spare_rx: OnceLock::new(),
            is_stalled: AtomicBool::new(false),
            pacer: Pacer::default(),
            receivers: Mutex::default(),
            hca,
            group: None,
        }
    }

    /// Tells whether a batch that is not acknowledged may leave through the socket of a route.
    /// [`Leave::Unknown`]: it may, and is paced by the speed of the port.
    ///
    /// Packets that take receives are always paced so. A full socket does not tell how many
    /// receives there are, and without one they are lost.
    pub(crate) fn may_leave(
        &self,
        route: &TxRoute,
        now: Time,
        (bytes, segment_len): (&[u8], usize),
    ) -> Leave {
        let (len, mut packets) = (bytes.len(), Segments::new(bytes, segment_len));
        let segments = packets.len();
        let is_real = matches!(self.link, AnyLink::Udp(_)) && !turn::is_simulated();
        let known = if is_real && !route.to.is_multicast() && packets.all(is_plain_write) {
            self.receiver_at(route.to).may_leave(now, len, segments)
        } else {
            Leave::Unknown
        };
        match known {
            Leave::Unknown if !self.pacer.try_acquire(now, len) => Leave::Later,
            known => known,
        }
    }

    /// Returns the sockets of an address.
    fn receiver_at(&self, address: IpAddr) -> Arc<ReceiverQueue> {
        let mut receivers = self.receivers.lock();
        if receivers.len() >= RECEIVERS && !receivers.contains_key(&address) {
            receivers.clear();
        }
        let new = || Arc::new(ReceiverQueue::new(address));
        Arc::clone(receivers.entry(address).or_insert_with(new))
    }

    /// Locks the receive state. A thread that holds it and does not go on for 16 ms is stopped, or
    /// gets no processor. The caller then gets a second state of the same link. Packets that the
    /// other thread has read and not handled count as reordered by the network.
    pub(crate) fn lock_rx(&self) -> MutexGuard<'_, RxState> {
        let patience = if self.is_stalled.load(Ordering::Relaxed) {
            Duration::ZERO
        } else {
            Duration::from_nanos(STALLED_NS)
        };
        let locked = self.rx.try_lock_for(patience);
        self.is_stalled.store(locked.is_none(), Ordering::Relaxed);
        locked.unwrap_or_else(|| self.spare_rx().lock())
    }

    /// Locks the receive state if no other thread has it, or if that thread has not gone on for
    /// `stalled_ns`, as in [`Self::lock_rx`].
    pub(crate) fn try_lock_rx(&self, stalled_ns: u64) -> Option<MutexGuard<'_, RxState>> {
        match self.rx.try_lock() {
            None if stalled_ns >= STALLED_NS => {
                self.is_stalled.store(true, Ordering::Relaxed);
                self.spare_rx().try_lock()
            }
            locked => locked,
        }
    }

    fn spare_rx(&self) -> &Mutex<RxState, rank::SocketReceive> {
        self.spare_rx
            .get_or_init(|| Box::new(Mutex::new(RxState::new())))
    }

    /// Makes the endpoint of a multicast group.
    pub(crate) fn of_group(link: AnyLink, hca: Arc<Hca>, group: Group) -> Self {
        Self {
            group: Some(group),
            ..Self::new(link, Some(hca))
        }
    }

    pub(crate) fn count(&self, count: impl FnOnce(&Traffic)) {
        if let Some(hca) = &self.hca {
            count(&hca.traffic);
        }
    }

    /// Makes the route to a QP of a peer. `flow` is the flow label of the connection, if there is
    /// one.
    ///
    /// # Errors
    /// Those of opening a send socket.
    pub(crate) fn tx_route_to(
        &self,
        dest: Qpn,
        to: IpAddr,
        (av, flow): (&AddressVector, Option<u32>),
        peer_link: Option<Arc<AnyPeerLink>>,
    ) -> io::Result<TxRoute> {
        let like = self.hca.as_ref().map(|hca| hca.like()).unwrap_or_default();
        let flow = flow.filter(|_| like.has_port_per_connection());
        let tx = match flow {
            _ if to.is_multicast() => self.link.group_tx_handle(av.hop_limit)?,
            Some(flow) => {
                let port = source_port_of_flow_label(flow);
                self.link.tx_handle_from(port, dest, av.hop_limit)?
            }
            None => self.link.tx_handle(dest, av.hop_limit)?,
        };
        let icrc = IcrcFlow::new(self.link.local(), to, tx.source_port)
            .ok_or(io::ErrorKind::InvalidInput)?;
        let slot = ProcessSlot::of(dest);
        Ok(TxRoute {
            tx,
            icrc: Icrcs::new(icrc),
            to,
            traffic_class: like.traffic_class(av.traffic_class),
            //= ENC-08
            hop_limit: match av.hop_limit {
                0 => DEFAULT_HOP_LIMIT,
                limit => limit,
            },
            slot,
            first_shm_send: peer_link.is_some(),
            peer_link,
        })
    }
}

/// The ICRC states of a flow, prepared for the last two packet lengths: usually those of the
/// messages and of the ACKs.
#[derive(Clone, Debug)]
pub(crate) struct Icrcs {
    flow: IcrcFlow,
    of_len: [IcrcOfLen; 2],
    /// Index of the one that was used last.
    latest: bool,
}

impl Icrcs {
    fn new(flow: IcrcFlow) -> Self {
        Self {
            of_len: [flow.of_len(0); 2],
            flow,
            latest: false,
        }
    }

    /// Returns the state for packets with `covered_len` bytes before the ICRC.
    #[inline(always)]
    pub(crate) fn of_len(&mut self, covered_len: usize) -> &IcrcOfLen {
        if self.of_len[usize::from(self.latest)].covered_len() != covered_len {
            self.switch_len(covered_len);
        }
        &self.of_len[usize::from(self.latest)]
    }

    /// Switches to the other state, which is recomputed if its length differs.
    fn switch_len(&mut self, covered_len: usize) {
        self.latest = !self.latest;
        let of_len = &mut self.of_len[usize::from(self.latest)];
        if of_len.covered_len() != covered_len {
            *of_len = self.flow.of_len(covered_len);
        }
    }
}

/// The latest flows, and the IPv4 Identification that each is expected to use next. A Rocade peer
/// starts every send at 0, the kernel's rxe counts.
#[derive(Debug, Default)]
pub(crate) struct Flows {
    flows: Vec<Flow>,
    oldest: usize,
}

#[derive(Clone, Debug)]
pub(crate) struct Flow {
    source: SocketAddr,
    icrc: Icrcs,
    next_id: u16,
}

impl Flow {
    /// Returns true if the ICRC of a packet is right, whatever its Identification.
    //= ICRC-11
    #[inline]
    pub(crate) fn check(&mut self, covered: &[u8], icrc: [u8; 4]) -> bool {
        let of_len = self.icrc.of_len(covered.len());
        match of_len.check(self.next_id, covered, icrc) {
            IcrcCheck::Ok { ip_id } => {
                self.next_id = ip_id.wrapping_add(1);
                true
            }
            IcrcCheck::Bad => false,
        }
    }

    /// UDP source port and Identification of the last packet that was checked.
    pub(crate) const fn last(&self) -> (u16, u16) {
        (self.source.port(), self.next_id.wrapping_sub(1))
    }

    /// Ends a batch of `count` segments. If its numbers started at 0, the peer is expected to start
    /// each send at 0.
    pub(crate) const fn finish(&mut self, count: u16) {
        if self.next_id == count {
            self.next_id = 0;
        }
    }
}

impl Flows {
    /// Returns the position of the flow from `source`, valid until the next call. Returns `None` if
    /// the two addresses are of different families.
    pub(crate) fn find(&mut self, local: IpAddr, source: SocketAddr) -> Option<usize> {
        match self.flows.iter().position(|flow| flow.source == source) {
            Some(index) => Some(index),
            None => self.add(local, source),
        }
    }

    /// Returns the flow at a position that [`Flows::find`] has returned.
    #[inline]
    pub(crate) fn at(&mut self, index: Option<usize>) -> Option<&mut Flow> {
        self.flows.get_mut(index?)
    }

    fn add(&mut self, local: IpAddr, source: SocketAddr) -> Option<usize> {
        let icrc = IcrcFlow::new(source.ip(), local, source.port())?;
        let flow = Flow {
            source,
            icrc: Icrcs::new(icrc),
            next_id: 0,
        };
        if self.flows.len() < FLOWS {
            self.flows.push(flow);
            return Some(self.flows.len() - 1);
        }
        let index = self.oldest;
        self.oldest = (index + 1) % FLOWS;
        self.flows[index] = flow;
        Some(index)
    }
}
