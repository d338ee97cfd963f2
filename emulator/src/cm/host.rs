//! The manager's place in the engine: datagrams in and out, timers.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use rocade_transport::Time;
use rocade_transport::cm::{Cm, CmConfig, CmCounters, CmRoute};
use rocade_wire::mad::{CommId, Mad};
use rocade_wire::{Guid, Psn};

use super::event::{ByKey, CmEventKind, CmParam, Waiting};
use super::id::{IdCore, IdKey, IdState};
use super::services::{Binding, Services};
use crate::broker::{Ledger, Will};
use crate::engine::EngineInner;
use crate::error::VerbsError;
use crate::hca::Hca;
use crate::random;
use crate::steering::Slot;

/// Datagrams that wait at most: a sender sends again what finds no room.
const MAX_WAITING: usize = 4_096;

/// A datagram to QP 1 that nobody has looked at yet.
#[derive(Debug)]
struct Arrived {
    route: CmRoute,
    mad: Box<[u8; Mad::LEN]>,
}

/// The manager, and what waits for it.
#[derive(Debug, Default)]
pub(crate) struct CmHost {
    core: Mutex<Option<CmCore>>,
    arrived: Mutex<Vec<Arrived>>,
    /// Something has arrived.
    has_arrived: AtomicBool,
    /// When the next timer is due, in ns; 0 for never.
    due: AtomicU64,
}

/// What the lock protects.
#[derive(Debug)]
pub(crate) struct CmCore {
    pub(super) cm: Cm,
    pub(super) ids: ByKey<IdCore>,
    pub(super) by_conn: BTreeMap<CommId, IdKey>,
    /// Ports of this process; of the host as well where there is no broker.
    pub(super) services: Services<IdKey>,
    /// What the broker knows of the connections, where there is one.
    ledger: Option<Ledger>,
    next_key: u64,
    psn: Psn,
}

impl CmCore {
    fn new(guid: Guid, slot: Slot, will: Option<Arc<Will>>) -> Self {
        let config = CmConfig {
            guid,
            prefix: slot.get(),
            seed: u64::from_ne_bytes(random::bytes()),
        };
        Self {
            cm: Cm::new(config),
            ids: BTreeMap::new(),
            by_conn: BTreeMap::new(),
            services: Services::default(),
            ledger: will.and_then(Ledger::new),
            next_key: 1,
            psn: Psn::new(0),
        }
    }

    pub(super) fn add(&mut self, id: IdCore) -> IdKey {
        let key = IdKey(self.next_key);
        self.next_key += 1;
        self.ids.insert(key, id);
        key
    }

    pub(super) fn id(&mut self, key: IdKey) -> Result<&mut IdCore, VerbsError> {
        self.ids
            .get_mut(&key)
            .ok_or(VerbsError::InvalidArgument("no such ID"))
    }
}

impl CmCore {
    /// Puts an event on the channel of an ID whose program knows it.
    pub(super) fn tell(&mut self, key: IdKey, kind: CmEventKind, status: i32, param: CmParam) {
        let Some(id) = self.ids.get(&key) else {
            return;
        };
        if id.cookie.is_some() {
            id.channel.events.push(Waiting {
                id: key,
                kind,
                status,
                new_id: None,
                param,
            });
        }
    }

    /// An event is handed to the program: counts it, and tells the cookie.
    pub(super) fn reported(&mut self, key: IdKey, new_id: Option<IdKey>) -> u64 {
        if let Some(new) = new_id
            && let Some(conn) = self.ids.get(&new).and_then(|id| id.conn)
        {
            self.cm.taken(conn);
        }
        let Some(id) = self.ids.get_mut(&key) else {
            return 0;
        };
        id.reported += 1;
        if new_id.is_some() {
            id.pending = id.pending.saturating_sub(1);
        }
        id.cookie.unwrap_or(0)
    }

    /// Takes back that an ID listens, as `binding` was before.
    pub(super) fn stop_listening(&mut self, key: IdKey, binding: Binding) {
        let Some(id) = self.ids.get_mut(&key) else {
            return;
        };
        id.state = IdState::AddrBound;
        id.binding = Some(binding);
        self.services.unlisten(key, binding);
        if !self.services.has_listener(binding.service) {
            self.cm.unlisten(binding.service);
        }
    }

    /// Ends an ID.
    //= CM-ST-10
    pub(super) fn end(&mut self, key: IdKey, now: Time) -> (u64, Option<Binding>) {
        let Some(id) = self.ids.remove(&key) else {
            return (0, None);
        };
        let of_this = |event: &Waiting| event.id == key || event.new_id == Some(key);
        let forgotten = id.channel.events.extract(of_this);
        // Requests that nobody has taken.
        for new in forgotten.into_iter().filter_map(|event| event.new_id) {
            self.end(new, now);
        }
        if let Some(conn) = id.conn {
            self.by_conn.remove(&conn);
            self.cm.destroy(now, conn);
        }
        if let Some(binding) = id.binding {
            self.services.release(key, binding);
            if !self.services.has_listener(binding.service) {
                self.cm.unlisten(binding.service);
            }
        }
        (id.reported, id.binding)
    }
}

impl CmHost {
    /// Hands each ID that has a device to `each`, or listens on all: a line of a report without its end.
    pub(crate) fn report(&self, mut each: impl FnMut(Option<&Hca>, &str)) {
        let core = self.core.lock();
        for (key, id) in core.iter().flat_map(|core| &core.ids) {
            if id.hca.is_none() && id.state != IdState::Listen {
                continue;
            }
            let mut line = format!(
                "cm_id port=1 cm_idn={} ps={} state={}",
                key.0,
                id.port_space as u16,
                id.state.code()
            );
            let qpn = id.local_qpn.get();
            // Writing to a string does not fail.
            if qpn != 0 {
                let _ = write!(line, " lqpn={qpn} type={}", id.qp_type as u8);
            }
            for (name, address) in [("src", id.src), ("dst", id.dst)] {
                if let Some(address) = address {
                    let _ = write!(line, " {name}={address}");
                }
            }
            each(id.hca.as_deref(), &line);
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Option<CmCore>> {
        self.core.lock()
    }

    /// When the next timer is due.
    pub(crate) fn next_timeout(&self) -> Option<Time> {
        match self.due.load(Ordering::SeqCst) {
            0 => None,
            ns => Some(Time::from_ns(ns)),
        }
    }

    /// A datagram has come to QP 1.
    pub(crate) fn put(&self, local: IpAddr, remote: IpAddr, mad: &[u8; Mad::LEN]) {
        let mut arrived = self.arrived.lock();
        if arrived.len() < MAX_WAITING {
            arrived.push(Arrived {
                route: CmRoute { local, remote },
                mad: Box::new(*mad),
            });
            self.has_arrived.store(true, Ordering::Release);
        }
    }

    /// What the manager has counted.
    pub(crate) fn counters(&self) -> CmCounters {
        let core = self.core.lock();
        core.as_ref()
            .map_or_else(CmCounters::default, |core| *core.cm.counters())
    }
}

impl EngineInner {
    /// Does something with the manager, then what follows from it.
    pub(super) fn with_cm<R>(
        self: &Arc<Self>,
        f: impl FnOnce(&mut CmCore, Time) -> R,
    ) -> Result<R, VerbsError> {
        let slot = self.attached_slot()?;
        let mut core = self.cm().lock();
        let core = core.get_or_insert_with(|| CmCore::new(self.node_guid(), slot, self.will()));
        let now = self.now();
        let result = f(core, now);
        self.follow_up(core, now);
        Ok(result)
    }

    /// Looks at what the manager keeps, or changes what is nobody's business but the program's: nothing follows from it.
    pub(super) fn in_cm<R>(
        &self,
        f: impl FnOnce(&mut CmCore) -> Result<R, VerbsError>,
    ) -> Result<R, VerbsError> {
        match &mut *self.cm().lock() {
            Some(core) => f(core),
            // With the first ID there is one.
            None => Err(VerbsError::InvalidArgument("no such ID")),
        }
    }

    /// Looks at what has arrived, and at the timers. Called without any lock but that of a link.
    pub(crate) fn serve_cm(&self) {
        let host = self.cm();
        let timeout = host.next_timeout();
        let has_arrived = host.has_arrived.load(Ordering::Acquire);
        // Reading the clock takes a tenth of a poll.
        if timeout.is_none() && !has_arrived {
            return;
        }
        let now = self.now();
        if has_arrived || timeout.is_some_and(|at| at <= now) {
            self.serve_cm_now(now);
        }
    }

    #[cold]
    fn serve_cm_now(&self, now: Time) {
        let Some(slot) = self.slot() else { return };
        let host = self.cm();
        let mut core = host.lock();
        let core = core.get_or_insert_with(|| CmCore::new(self.node_guid(), slot, self.will()));
        host.has_arrived.store(false, Ordering::Release);
        let arrived = std::mem::take(&mut *host.arrived.lock());
        for Arrived { route, mad } in arrived {
            core.cm.handle_mad(now, route, &mad[..]);
            self.follow_up(core, now);
        }
        core.cm.handle_timeout(now);
        self.follow_up(core, now);
    }

    /// The process exits: its peers are told, as a kernel would tell them.
    //= CM-ST-10
    pub(crate) fn end_connections_at_exit(&self) {
        const PATIENCE: Duration = Duration::from_millis(5);
        let Some(mut core) = self.cm().core.try_lock_for(PATIENCE) else {
            return;
        };
        let Some(core) = &mut *core else { return };
        let now = self.now();
        let all: Vec<IdKey> = core.ids.keys().copied().collect();
        for key in all {
            core.end(key, now);
        }
        self.follow_up(core, now);
    }

    /// Handles events, and sends what is to be sent.
    pub(super) fn follow_up(&self, core: &mut CmCore, now: Time) {
        while let Some(event) = core.cm.poll_event() {
            core.react(self, now, event);
        }
        // Before the peer learns of it.
        while let Some((id, bond)) = core.cm.poll_bond() {
            if let Some(ledger) = &mut core.ledger {
                ledger.write(id, bond);
            }
        }
        while let Some(transmit) = core.cm.poll_transmit() {
            let psn = core.psn;
            core.psn = Psn::new(psn.get().wrapping_add(1));
            // Recursive: who receives holds the lock already.
            let uplinks = self.uplinks().read_recursive();
            let mut uplinks = uplinks.iter();
            let uplink = uplinks.find(|uplink| uplink.link.local() == transmit.route.local);
            if let Some(uplink) = uplink
                && let Err(error) = self.send_mad(uplink, psn, &transmit)
            {
                tracing::debug!(%error, route = ?transmit.route, "sending a MAD");
            }
        }
        let next = core.cm.next_timeout();
        let due = next.map_or(0, |at| at.as_ns().max(1));
        // Whoever stored it last has called the background thread. Nobody else stores: the lock is held.
        if self.cm().due.load(Ordering::SeqCst) == due {
            return;
        }
        self.cm().due.store(due, Ordering::SeqCst);
        if let Some(at) = next {
            self.call_background_before(at);
        }
    }
}
