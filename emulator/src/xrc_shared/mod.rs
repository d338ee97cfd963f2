//! XRC targets that several processes serve in turn.
//!
//! The process that has the destination SRQ receives a message. One process at a time owns the
//! target, and serves it with the code of ordinary QPs. A packet for an SRQ of another process is
//! queued ([`SharedTargets::queue_or_redirect`]). The background thread hands the target over when
//! the previous message is complete and acknowledged, and then forwards the packet
//! ([`SharedTargets::serve`]). Packets for a target that another process owns are forwarded to that
//! process like other misrouted packets (`link/forward.rs`).
//!
//! Packets arrive at the process whose slot is in the target's QP number. If that process is gone,
//! they arrive at the broker, which forwards them as well (`broker/server/xrc.rs`).
//!
//! This module does not depend on the engine: a [`Host`] provides what it needs.

#![deny(clippy::disallowed_methods)]

mod announcer;
mod handoff;
mod restore;
mod targets;

pub(crate) use targets::share_target;

use crate::sync::atomic::{AtomicBool, Ordering};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use crate::link::Link as _;
use crate::sync::{Mutex, RwLock, rank};
use rocade_transport::{AddressVector, QpEvent, Time};
use rocade_wire::icrc::IcrcFlow;
use rocade_wire::{Gid, ICRC_LEN, Qpn};

use announcer::Announcer;

use crate::broker::BrokerLink;
use crate::error::VerbsError;
use crate::hca::Hca;
use crate::memory::{MemGuard, MrTable};
use crate::state::{Domains, LocalEndpoint, QpCore, QpInner, QpTable, TargetOwnership, TxRoute};
use crate::steering::ProcessSlot;

/// Maximum number of packets that wait for the background thread. Further ones are dropped.
const MAX_QUEUED: usize = 1024;
/// The UDP source port that packets of a shared memory link are given.
const NO_PORT: u16 = 0xC000;

/// The shared domains and targets of a process.
#[derive(Debug, Default)]
pub(crate) struct SharedTargets {
    domains: Domains,
    queued: Mutex<Vec<QueuedPacket>>,
    /// Events of targets, for other processes.
    raised: Mutex<Vec<(Qpn, QpEvent)>>,
    announcer: Arc<Announcer>,
    /// Packets or events are queued, or the background thread is handling them.
    is_busy: AtomicBool,
    /// Serializes opening and closing of targets.
    opening: Mutex<(), rank::TargetOpening>,
    /// Serializes the acquisition of targets.
    acquiring: Mutex<(), rank::TargetAcquiring>,
}

/// The services of the process that this module needs.
pub(crate) trait Host {
    fn now(&self) -> Time;

    /// Lets other processes run for a while, because this one waits for them.
    fn pause(&self, wait: Duration);

    fn regions(&self) -> &MrTable;

    fn qps(&self) -> &RwLock<QpTable, rank::Qps>;

    fn endpoints(&self) -> &RwLock<Vec<Arc<LocalEndpoint>>, rank::Endpoints>;

    /// The broker, if the process has joined one.
    fn broker(&self) -> Option<Arc<BrokerLink>>;

    fn controls_congestion(&self) -> bool;

    /// Opens all addresses of a device. One is enough to succeed.
    fn listen_on(&self, hca: &Hca) -> Result<(), VerbsError>;

    /// Returns the route to a QP of a peer, if communication with that peer is allowed.
    fn open_peer_route(
        &self,
        hca: &Hca,
        sgid: Gid,
        av: &AddressVector,
        dest: Qpn,
    ) -> Result<(Arc<LocalEndpoint>, TxRoute), VerbsError>;

    /// Flushes the outputs of a QP on behalf of the background thread.
    fn flush_outputs(&self, inner: &QpInner, core: &mut QpCore, mem: &MemGuard<'_>, now: Time);

    /// Removes a QP that was alive.
    fn end_qp(&self, inner: &QpInner);

    /// Wakes the background thread for [`SharedTargets::serve`].
    fn wake_background(&self);

    /// Counts a misrouted packet that was forwarded to another process or dropped.
    fn count_misrouted(&self, passed_on: bool);
}

fn qp(host: &dyn Host, qpn: Qpn) -> Option<Arc<QpInner>> {
    host.qps().read().get(qpn).cloned()
}

/// A queued packet for a target that another process owns or will own soon.
#[derive(Debug)]
struct QueuedPacket {
    source: SocketAddr,
    destination: IpAddr,
    dest: Qpn,
    bytes: Vec<u8>,
    /// Number of times that it was forwarded.
    hops: u8,
    /// Its ICRC is filled in.
    is_sealed: bool,
}

/// A packet that [`SharedTargets::queue_or_redirect`] may queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Misrouted<'p> {
    pub(crate) source: SocketAddr,
    pub(crate) destination: IpAddr,
    pub(crate) bytes: &'p [u8],
    /// Number of times that it was forwarded.
    pub(crate) hops: u8,
    /// The packet came over UDP.
    pub(crate) is_sealed: bool,
}

impl Misrouted<'_> {
    fn dest(&self) -> Option<Qpn> {
        let [slot, high, low] = *self.bytes.get(5..8)?.first_chunk()?;
        Some(Qpn::new(u32::from_be_bytes([0, slot, high, low])))
    }
}

impl QueuedPacket {
    /// Fills in the ICRC of a packet that came through a shared memory link, where packets have
    /// none. Returns false if that is impossible.
    fn seal(&mut self) -> bool {
        if self.is_sealed {
            return true;
        }
        let (from, to) = (self.source, self.destination);
        let flow = IcrcFlow::new(from.ip(), to, from.port());
        let parts = self.bytes.split_last_chunk_mut::<ICRC_LEN>();
        let (Some(flow), Some((covered, icrc))) = (flow, parts) else {
            return false;
        };
        *icrc = flow.compute(0, covered).to_le_bytes();
        self.is_sealed = true;
        true
    }
}

/// The source address of a packet that came through a shared memory link.
pub(crate) const fn source_of(ip: IpAddr) -> SocketAddr {
    SocketAddr::new(ip, NO_PORT)
}

impl SharedTargets {
    /// Queues a packet for a target that another process may own, or forwards it. Returns false if
    /// its destination is no such target.
    #[cold]
    pub(crate) fn queue_or_redirect(&self, host: &dyn Host, misrouted: Misrouted<'_>) -> bool {
        let Some(dest) = misrouted.dest() else {
            return false;
        };
        let mut queued = self.queued.lock();
        if !self.is_busy.load(Ordering::Acquire)
            && misrouted.is_sealed
            && let Some(qp) = host.qps().try_read().and_then(|qps| qps.get(dest).cloned())
            && let Some(owner) = qp.ownership().and_then(TargetOwnership::other_owner)
        {
            // In the common case no packet waits, and forwarding at once keeps the order.
            drop(queued);
            redirect(host, &misrouted, owner);
            return true;
        }
        if queued.len() >= MAX_QUEUED {
            host.count_misrouted(false);
            return true;
        }
        queued.push(QueuedPacket {
            source: misrouted.source,
            destination: misrouted.destination,
            dest,
            bytes: misrouted.bytes.to_vec(),
            hops: misrouted.hops,
            is_sealed: misrouted.is_sealed,
        });
        let is_first = !self.is_busy.swap(true, Ordering::AcqRel);
        drop(queued);
        if is_first {
            host.wake_background();
        }
        true
    }

    /// Queues an event of a target for all processes that have it open.
    //= XRC-11 XRC-16
    #[cold]
    pub(crate) fn raise(&self, host: &dyn Host, qpn: Qpn, event: QpEvent) {
        self.raised.lock().push((qpn, event));
        self.is_busy.store(true, Ordering::Release);
        host.wake_background();
    }
}

/// Forwards a packet to the process that owns its target.
fn redirect(host: &dyn Host, misrouted: &Misrouted<'_>, to: ProcessSlot) {
    let endpoints = host.endpoints().read_recursive();
    let mut endpoints = endpoints.iter();
    let here = endpoints.find(|endpoint| endpoint.link.local() == misrouted.destination);
    let passed = here.is_some_and(|endpoint| {
        let link = &endpoint.link;
        link.redirect(to, misrouted.source, misrouted.hops, misrouted.bytes)
    });
    host.count_misrouted(passed);
}

/// The events of a target. Their positions are the codes that processes exchange.
const EVENTS: [QpEvent; 8] = [
    QpEvent::CommEst,
    QpEvent::SqDrained,
    QpEvent::ReqErr,
    QpEvent::AccessErr,
    QpEvent::LastWqeReached,
    QpEvent::Fatal,
    QpEvent::PathMig,
    QpEvent::PathMigErr,
];

fn event_code(event: QpEvent) -> Option<u8> {
    let at = EVENTS.iter().position(|other| *other == event)?;
    u8::try_from(at).ok()
}

fn event_from_code(code: u8) -> Option<QpEvent> {
    EVENTS.get(usize::from(code)).copied()
}
