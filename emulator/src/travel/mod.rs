//! XRC targets that several processes serve in turn.
//!
//! A message is taken by the process whose queue it names. The target is in one process at a time; there the ordinary
//! code runs. A packet for a queue of another process is put aside ([`Travels::keep`]); the background thread hands the
//! target over when the message before is done and answered, and the packet after it ([`Travels::serve`]).
//! Packets that come for a target that is elsewhere are passed on to whoever holds it, as strays are
//! (`link/forward.rs`).
//!
//! They arrive at the process whose slot is in the number, or when that is gone at the broker, which passes them on
//! too (`broker/server/xrc.rs`).
//!
//! Nothing here knows the engine: what is needed of it a [`Host`] does.

mod like;
mod targets;
mod turn;

pub(crate) use targets::share_target;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, RwLock};
use rocade_transport::{AddressVector, QpEvent, Time};
use rocade_wire::icrc::IcrcFlow;
use rocade_wire::{Gid, ICRC_LEN, Qpn};

use crate::broker::BrokerLink;
use crate::cells::{Domains, Path, QpCore, QpInner, QpTable, Travel, Uplink};
use crate::error::VerbsError;
use crate::hca::Hca;
use crate::memory::{MemGuard, MrTable};
use crate::steering::Slot;

/// Packets that wait for the background thread at most: what comes then is lost on the way.
const MAX_KEPT: usize = 1024;
/// The port that packets of a channel have come from, as it were.
const NO_PORT: u16 = 0xC000;

/// The domains and targets of a process that others may have too.
#[derive(Debug, Default)]
pub(crate) struct Travels {
    domains: Domains,
    kept: Mutex<Vec<Kept>>,
    /// Events of targets, for other processes.
    raised: Mutex<Vec<(Qpn, QpEvent)>>,
    /// There is something, or the background thread is at it.
    is_busy: AtomicBool,
    /// Held while a target is opened or let go of.
    opening: Mutex<()>,
    /// Held while one is taken.
    taking: Mutex<()>,
}

/// What is needed of the process around.
pub(crate) trait Host {
    fn now(&self) -> Time;

    fn regions(&self) -> &MrTable;

    fn qps(&self) -> &RwLock<QpTable>;

    fn uplinks(&self) -> &RwLock<Vec<Arc<Uplink>>>;

    /// The broker, where the process has joined one.
    fn broker(&self) -> Option<Arc<BrokerLink>>;

    fn controls_congestion(&self) -> bool;

    /// Opens all addresses of a device. One will do.
    fn listen_on(&self, hca: &Hca) -> Result<(), VerbsError>;

    /// The way to a QP of a peer, if that may be talked to.
    fn open_way(
        &self,
        hca: &Hca,
        sgid: Gid,
        av: &AddressVector,
        dest: Qpn,
    ) -> Result<(Arc<Uplink>, Path), VerbsError>;

    /// Sends and reports what a QP has, on behalf of the background thread.
    fn drain(&self, inner: &QpInner, core: &mut QpCore, mem: &MemGuard<'_>, now: Time);

    /// A QP that was alive ends.
    fn end_qp(&self, inner: &QpInner);

    /// [`Travels::serve`] has something to do.
    fn call_background(&self);

    /// A packet was passed on to another process; else it is for nobody.
    fn count_stray(&self, passed_on: bool);
}

fn qp(host: &dyn Host, qpn: Qpn) -> Option<Arc<QpInner>> {
    host.qps().read().get(qpn).cloned()
}

/// A packet for a target that is not here, or not for long.
#[derive(Debug)]
struct Kept {
    source: SocketAddr,
    destination: IpAddr,
    dest: Qpn,
    bytes: Vec<u8>,
    /// How often it was passed on.
    hops: u8,
    /// It has an ICRC.
    is_sealed: bool,
}

/// A packet that [`Travels::keep`] may keep.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stray<'p> {
    pub(crate) source: SocketAddr,
    pub(crate) destination: IpAddr,
    pub(crate) bytes: &'p [u8],
    /// How often it was passed on.
    pub(crate) hops: u8,
    /// It came over UDP.
    pub(crate) is_sealed: bool,
}

impl Stray<'_> {
    fn dest(&self) -> Option<Qpn> {
        let [slot, high, low] = *self.bytes.get(5..8)?.first_chunk()?;
        Some(Qpn::new(u32::from_be_bytes([0, slot, high, low])))
    }
}

impl Kept {
    /// Gives a packet that came through a channel the ICRC that nobody has filled in there. False where that cannot be.
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

/// Where a packet comes from that a channel has brought.
pub(crate) const fn source_of(ip: IpAddr) -> SocketAddr {
    SocketAddr::new(ip, NO_PORT)
}

impl Travels {
    /// Keeps a packet that came for a target that may be elsewhere, or passes it on. False where it is not for one.
    #[cold]
    pub(crate) fn keep(&self, host: &dyn Host, stray: Stray<'_>) -> bool {
        let Some(dest) = stray.dest() else {
            return false;
        };
        let mut kept = self.kept.lock();
        if !self.is_busy.load(Ordering::Acquire)
            && stray.is_sealed
            && let Some(qp) = host.qps().try_read().and_then(|qps| qps.get(dest).cloned())
            && let Some(holder) = qp.travel().and_then(Travel::holder_elsewhere)
        {
            // The common case, in order: nothing waits.
            drop(kept);
            hand_over(host, &stray, holder);
            return true;
        }
        if kept.len() >= MAX_KEPT {
            host.count_stray(false);
            return true;
        }
        kept.push(Kept {
            source: stray.source,
            destination: stray.destination,
            dest,
            bytes: stray.bytes.to_vec(),
            hops: stray.hops,
            is_sealed: stray.is_sealed,
        });
        let is_first = !self.is_busy.swap(true, Ordering::AcqRel);
        drop(kept);
        if is_first {
            host.call_background();
        }
        true
    }

    /// An event of a target goes to all processes that have it open.
    //= XRC-11 XRC-16
    #[cold]
    pub(crate) fn raise(&self, host: &dyn Host, qpn: Qpn, event: QpEvent) {
        self.raised.lock().push((qpn, event));
        self.is_busy.store(true, Ordering::Release);
        host.call_background();
    }
}

/// Passes a packet on to the process that holds its target.
fn hand_over(host: &dyn Host, stray: &Stray<'_>, to: Slot) {
    let uplinks = host.uplinks().read_recursive();
    let mut uplinks = uplinks.iter();
    let here = uplinks.find(|uplink| uplink.link.local() == stray.destination);
    let passed = here.is_some_and(|uplink| {
        let link = &uplink.link;
        link.hand_over(to, stray.source, stray.hops, stray.bytes)
    });
    host.count_stray(passed);
}

/// The events of a target, by the codes that processes tell each other.
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

fn code_of(event: QpEvent) -> Option<u8> {
    let at = EVENTS.iter().position(|other| *other == event)?;
    u8::try_from(at).ok()
}

fn event_of(code: u8) -> Option<QpEvent> {
    EVENTS.get(usize::from(code)).copied()
}
