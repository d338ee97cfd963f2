//! XRC targets that several processes serve in turn.
//!
//! A message is taken by the process whose queue it names. The target is in one process at a time; there the ordinary
//! code runs. A packet for a queue of another process is put aside ([`Dispatch`](super::dispatch::Dispatch) says
//! so); the background thread hands the target over when the message before is done and answered, and the packet after it.
//! Packets that come for a target that is elsewhere are passed on to whoever holds it, as strays are
//! (`link/forward.rs`).
//!
//! They arrive at the process whose slot is in the number, or when that is gone at the broker, which passes them on
//! too (`broker/server/xrc.rs`).

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use rocade_transport::{
    AlternateContext, Cause, ModifyContext, PacketMeta, PdTag, QpAttr, QpAttrMask, QpCap, QpConfig,
    QpEvent, QpState, QpType, Receives, transition_rule,
};
use rocade_wire::icrc::IcrcFlow;
use rocade_wire::{Gid, ICRC_LEN, Mtu, Packet, Pkey, Qpn};

use super::EngineInner;
use super::handover::Driver;
use crate::broker::{BrokerLink, Cell, DomainMemory, TargetNews};
use crate::cells::{
    AsyncEvents, Domain, Hold, Path, QpCore, QpInner, QpParts, TargetParts, Travel, Uplink,
    XrcdInitAttr,
};
use crate::error::VerbsError;
use crate::hca::{Hca, Port};
use crate::memory::MemGuard;
use crate::steering::Slot;

/// Packets that wait for the background thread at most: what comes then is lost on the way.
const MAX_KEPT: usize = 1024;
/// How often a packet is looked at again when its target has just gone elsewhere.
const TRIES: usize = 4;
/// For how long a target is waited for that another process holds.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often its holder is asked.
const ASK_AGAIN: Duration = Duration::from_millis(20);
const LOOK_AGAIN: Duration = Duration::from_micros(200);
/// The port that packets of a channel have come from, as it were.
const NO_PORT: u16 = 0xC000;

/// What the background thread has to do about targets.
#[derive(Debug, Default)]
pub(super) struct Travels {
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

/// A packet that [`EngineInner::keep`] may keep.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stray<'p> {
    pub(super) source: SocketAddr,
    pub(super) destination: IpAddr,
    pub(super) bytes: &'p [u8],
    /// How often it was passed on.
    pub(super) hops: u8,
    /// It came over UDP.
    pub(super) is_sealed: bool,
}

impl Stray<'_> {
    fn dest(&self) -> Option<Qpn> {
        let [slot, high, low] = *self.bytes.get(5..8)?.first_chunk()?;
        Some(Qpn::new(u32::from_be_bytes([0, slot, high, low])))
    }
}

/// What becomes of a packet of a target.
enum Course {
    /// It was taken, or is for nobody.
    Done,
    /// It is for this process.
    To(Slot),
    /// The target has just gone elsewhere.
    Again,
}

impl EngineInner {
    /// Opens an XRC domain; that of a file is known to all processes of the broker.
    pub(crate) fn open_domain(
        self: &Arc<Self>,
        events: &Arc<AsyncEvents>,
        init: XrcdInitAttr,
    ) -> Result<Arc<Domain>, VerbsError> {
        let domain = self.domains.open(events, init, |key| {
            let Some(broker) = self.with_attachment(|attachment| attachment.broker.clone())? else {
                return Ok(None);
            };
            let opened = broker
                .client()
                .open_domain(key, init.create, init.exclusive)?;
            let memory = opened.map_err(|exists| {
                if exists {
                    VerbsError::InvalidArgument("the file has an XRC domain already")
                } else {
                    VerbsError::WouldBlock
                }
            })?;
            Ok(Some((DomainMemory::of(memory)?, broker.slot())))
        })?;
        if domain.shared().is_some()
            && let Err(error) = self.listen_on(events.hca())
        {
            self.close_domain(&domain);
            return Err(error);
        }
        Ok(domain)
    }

    /// Packets may come to any address of a device: opens all that can be. One will do.
    pub(crate) fn listen_on(&self, hca: &Hca) -> Result<(), VerbsError> {
        let mut opened = Err(VerbsError::NoData);
        let gids: Vec<_> = hca.ports().map(Port::gids).collect();
        let gids = gids.iter().flat_map(|gids| gids.iter());
        for entry in gids.filter(|entry| !entry.gid.is_zero()) {
            match self.uplink_for(hca.local_addr(entry.gid.to_ip())) {
                Ok(_) => opened = Ok(()),
                Err(error) => {
                    tracing::warn!(gid = %entry.gid, %error, "packets to this address will not arrive");
                    if opened.is_err() {
                        opened = Err(error);
                    }
                }
            }
        }
        opened
    }

    /// An opening of a domain ends.
    pub(crate) fn close_domain(&self, domain: &Arc<Domain>) {
        let (lingers, ends) = (|| self.lingers(domain), || self.end_domain(domain));
        self.domains.close(domain, lingers, ends);
    }

    /// Are there targets of this process that others have open? Their packets come here.
    fn lingers(&self, domain: &Arc<Domain>) -> bool {
        let is_own = |qp: &Arc<QpInner>| {
            let slot = qp.travel().map(Travel::slot);
            slot == Some(Slot::of(qp.qp_num()))
                && qp.domain().is_some_and(|other| Arc::ptr_eq(other, domain))
        };
        self.qps.read().iter().any(is_own)
    }

    /// Nobody in this process has a domain open any more.
    fn end_domain(&self, domain: &Arc<Domain>) {
        let Some(shared) = domain.shared() else {
            return;
        };
        let of_domain =
            |qp: &&Arc<QpInner>| qp.domain().is_some_and(|other| Arc::ptr_eq(other, domain));
        let targets: Vec<_> = self.qps.read().iter().filter(of_domain).cloned().collect();
        for target in targets {
            self.end_target(&target);
        }
        if let Some(broker) = self.broker_link()
            && let Err(error) = broker.client().close_domain(shared.key)
        {
            tracing::info!(%error, "closing an XRC domain");
        }
    }

    /// A new target of a domain; `None` where that is no other process's concern.
    pub(crate) fn share_target(
        &self,
        domain: &Arc<Domain>,
        qpn: Qpn,
    ) -> Result<Option<Travel>, VerbsError> {
        let Some(shared) = domain.shared() else {
            return Ok(None);
        };
        let full = VerbsError::NoMemory("targets of the XRC domain");
        let broker = self.broker_link().ok_or(VerbsError::NoData)?;
        if !broker.client().new_target(shared.key, qpn)? {
            return Err(full);
        }
        let cell = shared.memory.find(qpn).ok_or(full)?;
        Ok(Some(Travel::new(cell, shared.slot, true)))
    }

    /// Other processes may go on with a target that is new.
    pub(crate) fn publish_target(&self, inner: &QpInner) {
        if let Some(travel) = inner.travel() {
            travel.write_down(&inner.lock().qp);
        }
    }

    /// A target of this number in the domain, held by one more.
    //= XRC-11
    pub(crate) fn open_target(
        &self,
        domain: &Arc<Domain>,
        qpn: Qpn,
        hold: &Arc<Hold>,
    ) -> Result<Arc<QpInner>, VerbsError> {
        let unknown = || VerbsError::InvalidArgument("qp_num");
        let Some(shared) = domain.shared() else {
            let found = self.qp(qpn).filter(|inner| inner.open_as(domain, hold));
            return found.ok_or_else(unknown);
        };
        let _turn = self.travels.opening.lock();
        let cell = shared.memory.find(qpn).ok_or_else(unknown)?;
        let inner = match self.qp(qpn) {
            Some(inner) => inner,
            None => self.adopt_target(domain, qpn, cell).ok_or_else(unknown)?,
        };
        let was_open = inner.is_open();
        if !inner.open_as(domain, hold) {
            return Err(unknown());
        }
        if !was_open {
            let broker = self.broker_link().ok_or(VerbsError::NoData)?;
            let opened = broker.client().open_target(shared.key, qpn);
            if !matches!(opened, Ok(true)) {
                inner.let_go(hold);
            }
            if !opened? {
                return Err(unknown());
            }
        }
        Ok(inner)
    }

    /// One of those that have a shared target open lets go of it. `None` where it had let go before.
    //= XRC-11
    pub(crate) fn close_target(&self, inner: &Arc<QpInner>, hold: &Arc<Hold>) -> Option<()> {
        let _turn = self.travels.opening.lock();
        let was_last = inner.let_go(hold)?;
        let shared = inner.domain().and_then(|domain| domain.shared());
        if let Some(shared) = shared.filter(|_| was_last) {
            let closed = self.broker_link().map_or(Ok(true), |broker| {
                broker.client().close_target(shared.key, inner.qp_num())
            });
            match closed {
                Ok(true) => self.end_target(inner),
                Ok(false) => {}
                Err(error) => {
                    tracing::info!(%error, "letting go of an XRC target");
                    self.end_target(inner);
                }
            }
        }
        Some(())
    }

    /// A target is gone.
    fn end_target(&self, inner: &Arc<QpInner>) {
        if !inner.dies() {
            return;
        }
        let qpn = inner.qp_num();
        self.remove_qp(qpn);
        self.say_farewell(inner);
        inner.abandon();
        self.regions().free_windows_of(qpn);
        self.release_qp_num(qpn);
        inner.detach();
    }

    /// Makes a QP for a target of another process.
    fn adopt_target(&self, domain: &Arc<Domain>, qpn: Qpn, cell: Cell) -> Option<Arc<QpInner>> {
        let shared = domain.shared()?;
        if Slot::of(qpn) == shared.slot {
            // It was ours once, and others have kept it.
            return None;
        }
        let events = {
            let openers = shared.openers.lock();
            openers.iter().find_map(std::sync::Weak::upgrade)?
        };
        let config = QpConfig {
            qp_num: qpn,
            qp_type: QpType::XrcRecv,
            pd: PdTag(0),
            cap: QpCap::default(),
            sq_sig_all: false,
            limits: events.hca().qp_limits(),
        };
        let receives = Receives::Domain(Arc::clone(domain) as _);
        let mut qp = rocade_transport::Qp::new(config, receives)?;
        qp.control_congestion(self.controls_congestion());
        let parts = QpParts {
            target: Some(TargetParts {
                domain: Arc::clone(domain),
                hold: None,
                travel: Some(Travel::new(cell, shared.slot, false)),
            }),
            ..QpParts::default()
        };
        let inner = QpInner::new(events, qp, 0, parts);
        inner.lock().tx.set_deaf(true);
        self.qps.write().insert_foreign(Arc::clone(&inner));
        Some(inner)
    }

    /// Keeps a packet that came for a target that may be elsewhere, or passes it on. False where it is not for one.
    #[cold]
    pub(super) fn keep(&self, stray: Stray<'_>) -> bool {
        let Some(dest) = stray.dest() else {
            return false;
        };
        let mut kept = self.travels.kept.lock();
        if !self.travels.is_busy.load(Ordering::Acquire)
            && stray.is_sealed
            && let Some(qp) = self.qps.try_read().and_then(|qps| qps.get(dest).cloned())
            && let Some(travel) = qp.travel()
            && let Some(holder) = travel.cell().control().holder
            && holder != travel.slot()
        {
            // The common case, in order: nothing waits.
            drop(kept);
            self.hand_over(&stray, holder);
            return true;
        }
        if kept.len() >= MAX_KEPT {
            self.count(|counters| &counters.rx_unknown_qp);
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
        let is_first = !self.travels.is_busy.swap(true, Ordering::AcqRel);
        drop(kept);
        if is_first {
            self.call_background();
        }
        true
    }

    /// May a packet to a QP that is unknown be for a target of another process?
    pub(super) fn may_be_shared(&self, dest: Qpn) -> bool {
        self.broker_slot().is_some_and(|own| Slot::of(dest) != own)
    }

    fn hand_over(&self, stray: &Stray<'_>, to: Slot) {
        let uplinks = self.uplinks.read_recursive();
        let mut uplinks = uplinks.iter();
        let here = uplinks.find(|uplink| uplink.link.local() == stray.destination);
        let passed = here.is_some_and(|uplink| {
            let link = &uplink.link;
            link.hand_over(to, stray.source, stray.hops, stray.bytes)
        });
        if passed {
            self.count(|counters| &counters.forwarded);
        } else {
            self.count(|counters| &counters.rx_unknown_qp);
        }
    }

    /// What has happened to targets, for the background thread: to be called without locks.
    pub(super) fn serve_travels(&self) {
        if !self.travels.is_busy.load(Ordering::Acquire) {
            return;
        }
        let raised = std::mem::take(&mut *self.travels.raised.lock());
        for (qpn, event) in raised {
            self.tell_of(qpn, event);
        }
        let mut touched: Vec<Arc<QpInner>> = Vec::new();
        loop {
            let kept = {
                let mut kept = self.travels.kept.lock();
                if kept.is_empty() {
                    self.travels.is_busy.store(false, Ordering::Release);
                    break;
                }
                std::mem::take(&mut *kept)
            };
            for packet in kept {
                self.place(packet, &mut touched);
            }
            // What comes from now on is not behind anything that waits, but for what has come just now.
            for inner in touched.drain(..) {
                let mut core = inner.lock();
                if inner.travel().is_some_and(Travel::is_here) {
                    core.tx.set_deaf(false);
                }
            }
        }
        if !self.travels.raised.lock().is_empty() {
            self.travels.is_busy.store(true, Ordering::Release);
            self.call_background();
        }
    }

    /// News of the broker.
    pub(super) fn take_target_news(&self, broker: &BrokerLink) {
        for (qpn, news) in broker.client().take_target_news() {
            let Some(inner) = self.qp(qpn).filter(|inner| inner.travel().is_some()) else {
                continue;
            };
            match news {
                TargetNews::Wanted => self.yield_target(&inner),
                TargetNews::Gone => {
                    self.end_target(&inner);
                    if let Some(domain) = inner.domain() {
                        let (lingers, ends) = (|| self.lingers(domain), || self.end_domain(domain));
                        self.domains.reconsider(domain, lingers, ends);
                    }
                }
                TargetNews::Failed => {
                    inner.raise(QpEvent::Fatal);
                    inner.raise(QpEvent::LastWqeReached);
                }
                TargetNews::Event(code) => {
                    if let Some(event) = event_of(code) {
                        inner.raise(event);
                    }
                }
            }
        }
    }

    /// An event of a target goes to all processes that have it open.
    //= XRC-11 XRC-16
    #[cold]
    pub(super) fn raise_elsewhere(&self, qpn: Qpn, event: QpEvent) {
        self.travels.raised.lock().push((qpn, event));
        self.travels.is_busy.store(true, Ordering::Release);
        self.call_background();
    }

    fn tell_of(&self, qpn: Qpn, event: QpEvent) {
        let Some(inner) = self.qp(qpn) else { return };
        let shared = inner.domain().and_then(|domain| domain.shared());
        if let (Some(shared), Some(broker)) = (shared, self.broker_link())
            && let Some(code) = code_of(event)
            && let Err(error) = broker.client().raise_of_target(shared.key, qpn, code)
        {
            tracing::info!(%error, ?qpn, ?event, "telling other processes");
        }
    }

    /// Finds out whose a packet is, and lets it have it.
    fn place(&self, packet: Kept, touched: &mut Vec<Arc<QpInner>>) {
        let found = self.qp(packet.dest).or_else(|| {
            let (domain, cell) = self.domains.find_target(packet.dest)?;
            let _turn = self.travels.opening.lock();
            // Another thread may have been faster.
            let known = self.qp(packet.dest);
            known.or_else(|| self.adopt_target(&domain, packet.dest, cell))
        });
        let Some(inner) = found.filter(|inner| inner.travel().is_some()) else {
            self.count(|counters| &counters.rx_unknown_qp);
            return;
        };
        if !touched.iter().any(|other| Arc::ptr_eq(other, &inner)) {
            touched.push(Arc::clone(&inner));
        }
        for _ in 0..TRIES {
            match self.try_place(&packet, &inner) {
                Course::Done => return,
                Course::To(slot) => return self.send_on(packet, slot),
                Course::Again => {}
            }
        }
        self.count(|counters| &counters.rx_unknown_qp);
    }

    fn send_on(&self, mut packet: Kept, slot: Slot) {
        if !packet.is_sealed && !seal(&mut packet) {
            return;
        }
        let stray = Stray {
            source: packet.source,
            destination: packet.destination,
            bytes: &packet.bytes,
            hops: packet.hops,
            is_sealed: true,
        };
        self.hand_over(&stray, slot);
    }

    fn try_place(&self, packet: &Kept, inner: &Arc<QpInner>) -> Course {
        let Some(travel) = inner.travel() else {
            return Course::Done;
        };
        if !travel.is_here() {
            let holder = travel.cell().control().holder;
            if let Some(holder) = holder.filter(|holder| *holder != travel.slot()) {
                return Course::To(holder);
            }
            return match self.take_target(inner) {
                Ok(_) => Course::Again,
                Err(error) => {
                    tracing::warn!(%error, qp_num = ?inner.qp_num(), "going on with an XRC target");
                    Course::Done
                }
            };
        }
        let Ok(whole) = Packet::parse(&packet.bytes) else {
            return Course::Done;
        };
        let meta = PacketMeta {
            source: packet.source.ip(),
            destination: packet.destination,
            traffic_class: 0,
            hop_limit: 64,
        };
        let (now, driver) = (self.now(), Driver::Background);
        let mem = self.regions().read(now);
        let mut core = inner.lock();
        if !travel.is_here() {
            return Course::Again;
        }
        travel.begin();
        core.qp.handle_packet(now, &meta, &whole, &mem);
        let is_stray = core.qp.take_stray();
        self.drain(inner, &mut core, &mem, Cause::Other, now, driver);
        if !is_stray {
            return Course::Done;
        }
        let srqn = whole.headers().xrceth.map(|eth| Qpn::new(eth.srqn));
        let to = srqn.map(Slot::of);
        match to {
            // Else it is lost on the way: the peer sends it again.
            Some(to) if self.release(inner, &mut core, Some(to)) => Course::To(to),
            _ => Course::Done,
        }
    }

    /// Gives a target that is here to another process, or to whoever needs it first. False where it has something to
    /// send still.
    fn release(&self, inner: &QpInner, core: &mut QpCore, to: Option<Slot>) -> bool {
        let Some(travel) = inner.travel() else {
            return false;
        };
        if core.tx.is_blocked() || !travel.hand_to(&core.qp, to) {
            return false;
        }
        core.tx.announce_quiet_ack();
        core.tx.set_deaf(true);
        true
    }

    /// Somebody wants a target.
    fn yield_target(&self, inner: &QpInner) {
        let Some(travel) = inner.travel() else { return };
        let Some((slot, at_once)) = travel
            .cell()
            .wanted()
            .filter(|(slot, _)| *slot != travel.slot())
        else {
            return;
        };
        let (now, driver) = (self.now(), Driver::Background);
        let mem = self.regions().read(now);
        let mut core = inner.lock();
        if !travel.is_here() {
            drop(core);
            let Some(_turn) = self.travels.taking.try_lock() else {
                return;
            };
            let control = travel.cell().control();
            if !travel.is_here() && control.holder == Some(travel.slot()) && control.is_whole {
                // It was given to us, and no packet has come.
                travel.cell().hand_to(Some(slot));
            }
            return;
        }
        travel.begin();
        self.drain(inner, &mut core, &mem, Cause::Other, now, driver);
        if core.qp.progress().is_none() && at_once {
            // In the middle of a message that will not go on.
            let step = QpAttr {
                qp_state: QpState::Err.code(),
                ..QpAttr::default()
            };
            let context = context_of(inner, &step);
            // From any state.
            let _ = core.qp.modify(now, &step, QpAttrMask::STATE, &context);
            self.drain(inner, &mut core, &mem, Cause::Other, now, driver);
        }
        self.release(inner, &mut core, Some(slot));
    }

    /// Waits until a target is here, which another process may hold: it is asked for it, and to give up the message that
    /// it is at if that must be `at_once`.
    pub(crate) fn bring_here(&self, inner: &QpInner, at_once: bool) -> Result<(), VerbsError> {
        let Some(travel) = inner.travel() else {
            return Ok(());
        };
        let begin = Instant::now();
        let mut asked: Option<Instant> = None;
        while !travel.is_here() {
            if self.take_target(inner)? {
                inner.lock().tx.set_deaf(false);
                return Ok(());
            }
            if begin.elapsed() > PATIENCE {
                return Err(VerbsError::Busy(
                    "XRC target: another process is at a message",
                ));
            }
            if asked.is_none_or(|at| at.elapsed() > ASK_AGAIN) {
                travel.cell().want(travel.slot(), at_once);
                let shared = inner.domain().and_then(|domain| domain.shared());
                if let (Some(shared), Some(broker)) = (shared, self.broker_link()) {
                    broker.client().want_target(shared.key, inner.qp_num())?;
                }
                asked = Some(Instant::now());
            }
            thread::sleep(LOOK_AGAIN);
        }
        Ok(())
    }

    /// Takes a target, if it is this process's turn or nobody's. False where another one holds it.
    fn take_target(&self, inner: &QpInner) -> Result<bool, VerbsError> {
        let Some(travel) = inner.travel() else {
            return Ok(true);
        };
        if !travel.cell().is_of(inner.qp_num()) {
            return Err(VerbsError::InvalidArgument("the XRC target is gone"));
        }
        // Opening the way may take a while, so the QP is not locked. Who else takes it meanwhile has to wait.
        let _turn = self.travels.taking.lock();
        let (attr, has_failed) = {
            let _core = inner.lock();
            if travel.is_here() {
                return Ok(true);
            }
            let Some(taken) = travel.take() else {
                return Ok(false);
            };
            taken
        };
        let route = attr
            .map(|attr| self.route_of_target(inner, &attr))
            .transpose();
        let route = match route {
            Ok(route) => route.flatten(),
            Err(error) => {
                travel.forget_attr();
                travel.cell().hand_to(None);
                return Err(error);
            }
        };
        let now = self.now();
        let mem = self.regions().read(now);
        let mut core = inner.lock();
        if travel.is_here() {
            return Ok(true);
        }
        if let Some(attr) = attr {
            core.tx.reset();
            become_like(self, inner, &mut core, &attr)?;
            if let Some((uplink, path)) = route {
                core.tx.set_path(uplink, path);
                core.tx.set_deaf(true);
            }
        }
        travel.arrive(&mut core.qp);
        if has_failed {
            core.qp.set_fatal(now, 0);
        }
        // Everybody has been told.
        while core.qp.poll_event().is_some() {}
        self.settle(inner, &mut core, &mem);
        Ok(true)
    }

    /// Writes down what a target is at that has just come.
    fn settle(&self, inner: &QpInner, core: &mut MutexGuard<'_, QpCore>, mem: &MemGuard<'_>) {
        let (now, driver) = (self.now(), Driver::Background);
        self.drain(inner, core, mem, Cause::Other, now, driver);
    }

    fn route_of_target(
        &self,
        inner: &QpInner,
        attr: &QpAttr,
    ) -> Result<Option<(Arc<Uplink>, Path)>, VerbsError> {
        let is_connected = matches!(
            QpState::from_code(attr.qp_state),
            Some(QpState::Rtr | QpState::Rts | QpState::Sqd)
        );
        let hca = inner.hca();
        let Some(sgid) = sgid_of(hca, attr).filter(|_| is_connected) else {
            return Ok(None);
        };
        let to = attr.ah_attr.dgid.to_ip();
        if !self.peers().allow(to) {
            return Err(VerbsError::PeerRefused(to));
        }
        let dest = Qpn::new(attr.dest_qp_num);
        self.open_route(hca, sgid, &attr.ah_attr, dest).map(Some)
    }

    fn broker_slot(&self) -> Option<Slot> {
        self.uplinks
            .read_recursive()
            .first()
            .and_then(|uplink| uplink.link.slot())
    }
}

/// What the transport has to know of the device. Another process has checked the attributes.
fn context_of(inner: &QpInner, attr: &QpAttr) -> ModifyContext {
    let hca = inner.hca();
    let port = hca.port(attr.port_num);
    let active_mtu = port.map_or(Mtu::Mtu4096, Port::active_mtu);
    let pkey = hca.pkey(attr.pkey_index).unwrap_or(Pkey::DEFAULT);
    ModifyContext {
        sgid: sgid_of(hca, attr),
        pkey,
        active_mtu,
        alternate: AlternateContext {
            sgid: None,
            pkey,
            active_mtu,
        },
        experimental: false,
    }
}

fn sgid_of(hca: &Hca, attr: &QpAttr) -> Option<Gid> {
    hca.port(attr.ah_attr.port_num)?
        .gid(attr.ah_attr.sgid_index)
}

/// Brings a QP to the state and attributes that another process has given its target.
fn become_like(
    engine: &EngineInner,
    inner: &QpInner,
    core: &mut QpCore,
    attr: &QpAttr,
) -> Result<(), VerbsError> {
    let Some(state) = QpState::from_code(attr.qp_state) else {
        return Err(VerbsError::InvalidArgument("qp_state"));
    };
    let context = context_of(inner, attr);
    let all = [
        QpState::Reset,
        QpState::Init,
        QpState::Rtr,
        QpState::Rts,
        QpState::Sqd,
    ];
    let steps = match state {
        QpState::Reset => &all[..1],
        QpState::Init => &all[..2],
        QpState::Rtr => &all[..3],
        QpState::Rts => &all[..4],
        QpState::Sqd => &all,
        // From RESET there is no way to ERR.
        QpState::Sqe | QpState::Err if attr.port_num == 0 => &all[..1],
        QpState::Sqe | QpState::Err => &[QpState::Reset, QpState::Init, QpState::Err],
    };
    for step in steps {
        if core.qp.state() == *step {
            continue;
        }
        let rule = transition_rule(QpType::XrcRecv, core.qp.state(), *step);
        let required = rule.map_or(QpAttrMask::empty(), |rule| rule.required);
        let next = QpAttr {
            qp_state: step.code(),
            ..*attr
        };
        let mask = QpAttrMask::STATE | required;
        core.qp.modify(engine.now(), &next, mask, &context)?;
    }
    if state == QpState::Err {
        core.qp.set_fatal(engine.now(), 0);
    }
    Ok(())
}

/// Gives a packet that came through a channel the ICRC that nobody has filled in there.
fn seal(packet: &mut Kept) -> bool {
    let Some(flow) = IcrcFlow::new(packet.source.ip(), packet.destination, packet.source.port())
    else {
        return false;
    };
    let Some((covered, icrc)) = packet.bytes.split_last_chunk_mut::<ICRC_LEN>() else {
        return false;
    };
    *icrc = flow.compute(0, covered).to_le_bytes();
    true
}

/// Where a packet comes from that a channel has brought.
pub(super) const fn source_of(ip: IpAddr) -> SocketAddr {
    SocketAddr::new(ip, NO_PORT)
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
