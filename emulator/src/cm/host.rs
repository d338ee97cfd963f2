//! The connection manager's part in the engine: incoming and outgoing datagrams, and timers.

use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::sync::{Mutex, MutexGuard, rank};
use rocade_transport::Time;
use rocade_transport::cm::{Cm, CmConfig, CmCounters, CmRoute, CmTransmit};
use rocade_wire::mad::{CommId, Mad};
use rocade_wire::{Guid, Psn};

use super::event::{ByKey, CmEventKind, CmParam, QueuedEvent};
use super::id::{IdCore, IdKey, IdState};
use super::io::CmIo;
use super::resolve_addr::AddressQuery;
use crate::error::VerbsError;
use crate::gsi::services::{Binding, Services};
use crate::hca::Hca;
use crate::journal::{AckJournal, ConnectionJournal};
use crate::steering::ProcessSlot;

/// Maximum number of queued datagrams. Senders retransmit those that find no room.
const MAX_WAITING: usize = 4_096;

/// A queued datagram to QP 1.
#[derive(Debug)]
struct ReceivedMad {
    route: CmRoute,
    mad: Box<[u8; Mad::LEN]>,
}

/// The connection manager and its queue.
#[derive(Debug, Default)]
pub(crate) struct CmHost {
    core: Mutex<Option<CmCore>, rank::Cm>,
    received: Mutex<Vec<ReceivedMad>>,
    /// There are queued datagrams.
    has_arrived: AtomicBool,
    /// Deadline of the next timer, in ns. 0 if there is none.
    due: AtomicU64,
}

/// The state that the lock protects.
#[derive(Debug)]
pub(crate) struct CmCore {
    pub(super) cm: Cm,
    pub(super) ids: ByKey<IdCore>,
    pub(super) by_conn: BTreeMap<CommId, IdKey>,
    /// The ports of this process. Without a broker, they are those of the host as well.
    pub(super) services: Services<IdKey>,
    /// The connections as the broker sees them, if there is one.
    conn_journal: Option<ConnectionJournal>,
    /// The IDs whose peers the system asks for.
    pub(super) queries: Vec<AddressQuery>,
    next_key: u64,
    psn: Psn,
}

impl CmCore {
    fn of(io: &dyn CmIo, slot: ProcessSlot) -> Self {
        let host = io.host();
        let seed = u64::from(host.random_word()) << 32 | u64::from(host.random_word());
        Self::new(host.node_guid(), slot, io.journal(), seed)
    }

    fn new(guid: Guid, slot: ProcessSlot, ack_journal: Option<Arc<AckJournal>>, seed: u64) -> Self {
        let config = CmConfig {
            guid,
            prefix: slot.get(),
            seed,
        };
        Self {
            cm: Cm::new(config),
            ids: BTreeMap::new(),
            by_conn: BTreeMap::new(),
            services: Services::default(),
            conn_journal: ack_journal.and_then(ConnectionJournal::new),
            queries: Vec::new(),
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

    /// Returns the flow label of the connection that a message belongs to.
    fn flow_label_of(&self, transmit: &CmTransmit) -> Option<u32> {
        // Every message of a connection begins with the sender's ID.
        let sender = transmit.mad[Mad::HEADER_LEN..].first_chunk()?;
        let conn = CommId::new(u32::from_be_bytes(*sender));
        let id = self.ids.get(self.by_conn.get(&conn)?)?;
        (!id.is_datagram()).then(|| id.path_flow_label())
    }

    pub(super) fn id(&mut self, key: IdKey) -> Result<&mut IdCore, VerbsError> {
        self.ids
            .get_mut(&key)
            .ok_or(VerbsError::InvalidArgument("no such ID"))
    }
}

impl CmCore {
    /// Queues an event on the channel of an ID that the application knows.
    pub(super) fn queue_event(
        &mut self,
        key: IdKey,
        kind: CmEventKind,
        status: i32,
        param: CmParam,
    ) {
        let Some(id) = self.ids.get(&key) else {
            return;
        };
        if id.cookie.is_some() {
            id.channel.events.push(QueuedEvent {
                id: key,
                kind,
                status,
                new_id: None,
                param,
            });
        }
    }

    /// Counts an event that the application gets, and returns the cookie.
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

    /// Stops listening, and restores the previous `binding`.
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

    /// Destroys an ID.
    //= CM-ST-10
    pub(super) fn end(&mut self, key: IdKey, now: Time) -> (u64, Option<Binding>) {
        let Some(id) = self.ids.remove(&key) else {
            return (0, None);
        };
        let of_this = |event: &QueuedEvent| event.id == key || event.new_id == Some(key);
        let forgotten = id.channel.events.extract(of_this);
        // Requests that the application has not taken.
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
    /// Passes each ID that has a device or listens on all to `each`: the line of a report without
    /// its end.
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
            // Writing to a string cannot fail.
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

    /// The deadline of the next timer.
    pub(crate) fn next_timeout(&self) -> Option<Time> {
        match self.due.load(Ordering::SeqCst) {
            0 => None,
            ns => Some(Time::from_ns(ns)),
        }
    }

    /// Queues a datagram to QP 1.
    pub(crate) fn put(&self, local: IpAddr, remote: IpAddr, mad: &[u8; Mad::LEN]) {
        let mut received = self.received.lock();
        if received.len() < MAX_WAITING {
            received.push(ReceivedMad {
                route: CmRoute { local, remote },
                mad: Box::new(*mad),
            });
            self.has_arrived.store(true, Ordering::Release);
        }
    }

    /// Returns true if there are queued datagrams.
    pub(crate) fn has_arrived(&self) -> bool {
        self.has_arrived.load(Ordering::Acquire)
    }

    /// The counters of the connection manager.
    pub(crate) fn counters(&self) -> CmCounters {
        let core = self.core.lock();
        core.as_ref()
            .map_or_else(CmCounters::default, |core| *core.cm.counters())
    }
}

impl CmHost {
    /// Runs `f` on the connection manager of a process with this slot, and then handles its events
    /// and messages.
    pub(super) fn run<R>(
        &self,
        io: &dyn CmIo,
        slot: ProcessSlot,
        f: impl FnOnce(&mut CmCore, Time) -> R,
    ) -> R {
        let mut core = self.lock();
        let core = core.get_or_insert_with(|| CmCore::of(io, slot));
        let now = io.host().now();
        let result = f(core, now);
        self.follow_up(io, core, now);
        result
    }

    /// Runs `f` on the connection manager without handling events or messages. `f` must not cause
    /// any.
    pub(super) fn inspect<R>(
        &self,
        f: impl FnOnce(&mut CmCore) -> Result<R, VerbsError>,
    ) -> Result<R, VerbsError> {
        match &mut *self.lock() {
            Some(core) => f(core),
            // The first ID makes the connection manager.
            None => Err(VerbsError::InvalidArgument("no such ID")),
        }
    }

    /// Handles queued datagrams and expired timers. The caller holds no lock.
    pub(crate) fn serve(&self, io: &dyn CmIo) {
        let timeout = self.next_timeout();
        let has_arrived = self.has_arrived();
        // Reading the clock takes a tenth of a poll.
        if timeout.is_none() && !has_arrived {
            return;
        }
        let now = io.host().now();
        if has_arrived || timeout.is_some_and(|at| at <= now) {
            self.serve_now(io, now);
        }
    }

    #[cold]
    fn serve_now(&self, io: &dyn CmIo, now: Time) {
        let Some(slot) = io.slot() else {
            return;
        };
        if self.has_arrived() {
            // A peer sends its DREQ after the ACKs of what it received. They may be in shared
            // memory, which the DREQ must not overtake.
            io.receive_rings();
        }
        let mut core = self.lock();
        let core = core.get_or_insert_with(|| CmCore::of(io, slot));
        self.has_arrived.store(false, Ordering::Release);
        let received = std::mem::take(&mut *self.received.lock());
        for ReceivedMad { route, mad } in received {
            core.cm.handle_mad(now, route, &mad[..]);
            self.follow_up(io, core, now);
        }
        core.cm.handle_timeout(now);
        core.look_at_queries(now);
        self.follow_up(io, core, now);
    }

    /// Disconnects from all peers when the process exits, like the kernel.
    //= CM-ST-10
    pub(crate) fn end_connections_at_exit(&self, io: &dyn CmIo) {
        const PATIENCE: Duration = Duration::from_millis(5);
        let Some(mut core) = self.core.try_lock_for(PATIENCE) else {
            return;
        };
        let Some(core) = &mut *core else { return };
        let now = io.host().now();
        let all: Vec<IdKey> = core.ids.keys().copied().collect();
        for key in all {
            core.end(key, now);
        }
        self.follow_up(io, core, now);
    }

    /// Handles events, and sends the pending messages.
    pub(super) fn follow_up(&self, io: &dyn CmIo, core: &mut CmCore, now: Time) {
        while let Some(event) = core.cm.poll_event() {
            core.react(io.host(), now, event);
        }
        while let Some(unanswered) = core.cm.poll_unanswered() {
            core.announce_wait(unanswered);
        }
        // Recorded before the peer gets the message.
        while let Some((id, conn_record)) = core.cm.poll_conn_record() {
            if let Some(conn_journal) = &mut core.conn_journal {
                conn_journal.write(id, conn_record);
            }
        }
        while let Some(transmit) = core.cm.poll_transmit() {
            let psn = core.psn;
            core.psn = Psn::new(psn.get().wrapping_add(1));
            let flow = core.flow_label_of(&transmit);
            io.send_mad(psn, &transmit, flow);
        }
        let next = [core.cm.next_timeout(), core.next_query()];
        let next = next.into_iter().flatten().min();
        let due = next.map_or(0, |at| at.as_ns().max(1));
        // The thread that stored the same value has woken the background thread. No other thread
        // stores concurrently, because the lock is held.
        if self.due.load(Ordering::SeqCst) == due {
            return;
        }
        self.due.store(due, Ordering::SeqCst);
        if let Some(at) = next {
            io.wake_by(at);
        }
    }
}
