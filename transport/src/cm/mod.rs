//! The communication manager: establishes and ends connections by datagrams between the QPs 1 of
//! two ports.
//!
//! A [`Cm`] holds the connections of one process. Like [`Qp`](crate::Qp) it does no I/O and reads
//! no clock. Its input is commands and datagrams. Its output is datagrams ([`Cm::poll_transmit`])
//! and events ([`Cm::poll_event`]). [`Cm::next_timeout`] returns when [`Cm::handle_timeout`] is
//! due.
//!
//! ```text
//! active   connect ─ ReqSent ── REP ─ RepRcvd ── ready ──┐
//!                    (MRA: MraReqRcvd)  (MraRepSent)     Established ─ disconnect ─ DreqSent ─ DREP ─┐
//! passive  REQ ───── ReqRcvd ── reply ─ RepSent ── RTU ──┘     └─ DREQ ─ DreqRcvd ─ answer ───────── TimeWait ─ Idle
//!                    (MraReqSent)       (MraRepRcvd)
//! datagram service   SidrReqSent ─ SIDR_REP ─ Idle;   SIDR_REQ ─ SidrReqRcvd ─ reply ─ SidrReplied
//! ```
//!
//! Datagrams are lost and duplicated. The sender repeats each until it is answered, and each
//! receiver tolerates repetitions. A datagram that matches no connection, or not its state, is
//! counted and has no effect.

mod admission;
mod commands;
mod conn;
mod conn_record;
mod invariants;
mod limits;
mod receive;
mod refused;
#[cfg(test)]
mod tests;

use alloc::boxed::Box;
use alloc::collections::btree_map::Entry;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use core::net::IpAddr;

use rocade_wire::mad::{
    CmMessage, CommId, Mad, Rej, Rep, Req, ServiceId, SidrRep, SidrReq, TransactionId,
};
use rocade_wire::{Guid, Qpn};

pub use admission::BACKLOG;
use admission::{Admission, AdmissionStage};
pub use commands::{private_data, refusal};
pub use conn_record::{ConnRecord, ConnRecordKind};

use crate::time::Time;
use conn::{Conn, ConnState};
use refused::Refused;

/// Configuration of a communication manager.
#[derive(Clone, Copy, Debug)]
pub struct CmConfig {
    /// GUID of the adapter.
    pub guid: Guid,
    /// Upper 8 bits of all communication IDs. They identify the process that owns the connection.
    /// Not 0.
    pub prefix: u8,
    /// Start of IDs and transactions: random, so that those of an earlier process are not reused.
    pub seed: u64,
}

impl CmConfig {
    /// Returns the ID of a transaction that a connection starts.
    //= MAD-05
    const fn tid(&self, id: CommId) -> TransactionId {
        TransactionId::new((self.seed >> 32) << 32 | id.get() as u64)
    }
}

/// The two ports that a datagram is exchanged between.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CmRoute {
    /// Local address.
    pub local: IpAddr,
    /// Address of the peer.
    pub remote: IpAddr,
}

/// A datagram to send, from QP 1 to QP 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CmTransmit {
    /// Source and destination.
    pub route: CmRoute,
    /// The peer's communication ID, 0 if unknown.
    pub to: CommId,
    /// The payload.
    pub mad: Box<[u8; Mad::LEN]>,
}

/// An event of the communication manager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CmEvent {
    /// A peer requests a connection, which has this ID from now on.
    Request {
        /// ID of the new connection.
        id: CommId,
        /// The ports of the request.
        route: CmRoute,
        /// The message.
        req: Box<Req>,
    },
    /// The peer accepts.
    Reply {
        /// The connection.
        id: CommId,
        /// The message.
        rep: Box<Rep>,
    },
    /// The connection is established. Reported on the passive side.
    Ready {
        /// The connection.
        id: CommId,
    },
    /// The REQ was not answered.
    RequestTimeout {
        /// The connection.
        id: CommId,
    },
    /// The REP was not answered.
    ReplyTimeout {
        /// The connection.
        id: CommId,
    },
    /// The peer rejects.
    Rejected {
        /// The connection.
        id: CommId,
        /// The message.
        rej: Box<Rej>,
    },
    /// The peer disconnects, and waits for the answer.
    Disconnect {
        /// The connection.
        id: CommId,
    },
    /// The peer has answered the DREQ of this side.
    Disconnected {
        /// The connection.
        id: CommId,
    },
    /// The peer has not answered the DREQ of this side.
    DisconnectTimeout {
        /// The connection.
        id: CommId,
    },
    /// TimeWait has ended: no packets of the connection are on the wire any more.
    TimewaitExit {
        /// The connection.
        id: CommId,
    },
    /// A peer requests the QP of a service.
    ServiceRequest {
        /// ID of the new request.
        id: CommId,
        /// The ports of the request.
        route: CmRoute,
        /// The message.
        req: Box<SidrReq>,
    },
    /// The answer to a request for the QP of a service, positive or negative.
    ServiceReply {
        /// The request.
        id: CommId,
        /// The message.
        rep: Box<SidrRep>,
    },
    /// A request for the QP of a service was not answered.
    ServiceTimeout {
        /// The request.
        id: CommId,
    },
}

/// The reason why a command is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CmError {
    /// There is no such connection.
    UnknownId,
    /// The state of the connection does not allow the command.
    WrongState,
}

/// Counters of a communication manager.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CmCounters {
    /// Messages received.
    pub rx_messages: u64,
    /// Datagrams that are no messages of the communication manager.
    pub rx_malformed: u64,
    /// Messages that match no connection, do not fit its state, or came from another address than
    /// its peer's.
    pub rx_unsolicited: u64,
    /// Messages received before.
    pub rx_duplicates: u64,
    /// Requests that were refused at once: unknown service, or a connection that has not ended.
    pub rx_refused: u64,
    /// Requests that were dropped without an answer, because too many are held. Their senders
    /// repeat them.
    pub rx_dropped: u64,
    /// Half-open connections that were evicted in favour of held requests.
    pub evicted: u64,
    /// Messages sent.
    pub tx_messages: u64,
    /// Messages that were sent again because no answer came, included in `tx_messages`.
    pub tx_retries: u64,
}

/// Key under which a peer knows an object: its number for the object, its adapter and its address.
/// The number comes first, because it differs most often and so decides most comparisons.
type Named<T> = (T, u64, IpAddr);
/// Deadlines in order.
type Timers = BTreeSet<(Time, CommId)>;

/// The communication manager of a process.
#[derive(Debug)]
pub struct Cm {
    config: CmConfig,
    next_id: u32,
    conns: BTreeMap<CommId, Conn>,
    /// Connections by the peer's communication ID, to detect duplicates and to match a REJ after a
    /// timeout.
    by_remote_id: BTreeMap<Named<CommId>, CommId>,
    /// Connections that have not ended, by the peer's QP.
    by_remote_qp: BTreeMap<Named<Qpn>, CommId>,
    /// Requests for services, by the peer's request ID.
    by_request: BTreeMap<(CommId, IpAddr), CommId>,
    /// Admission state by service, for services that have a listener.
    admissions: BTreeMap<ServiceId, Admission>,
    /// Services with requests that wait for room in the backlog.
    backlogged: BTreeSet<ServiceId>,
    refused: Refused,
    /// Answered requests for services, oldest first.
    replied: VecDeque<CommId>,
    timers: Timers,
    /// Connections whose state has changed since `poll_conn_record` returned them.
    changed: BTreeSet<CommId>,
    out: VecDeque<CmTransmit>,
    events: VecDeque<CmEvent>,
    unanswered: VecDeque<Unanswered>,
    counters: CmCounters,
}

/// A request for a connection that the peer has not answered in time, and that is sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unanswered {
    /// The connection.
    pub id: CommId,
    /// Time until the manager gives up, in nanoseconds.
    pub left_ns: u64,
}

impl Cm {
    /// Creates a manager without connections.
    #[must_use]
    pub const fn new(config: CmConfig) -> Self {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the low bits of a random number"
        )]
        let next_id = config.seed as u32;
        Self {
            config,
            next_id,
            conns: BTreeMap::new(),
            by_remote_id: BTreeMap::new(),
            by_remote_qp: BTreeMap::new(),
            by_request: BTreeMap::new(),
            admissions: BTreeMap::new(),
            backlogged: BTreeSet::new(),
            refused: Refused::new(config.seed),
            replied: VecDeque::new(),
            timers: BTreeSet::new(),
            changed: BTreeSet::new(),
            out: VecDeque::new(),
            events: VecDeque::new(),
            unanswered: VecDeque::new(),
            counters: CmCounters {
                rx_messages: 0,
                rx_malformed: 0,
                rx_unsolicited: 0,
                rx_duplicates: 0,
                rx_refused: 0,
                rx_dropped: 0,
                evicted: 0,
                tx_messages: 0,
                tx_retries: 0,
            },
        }
    }

    /// Accepts requests for this service from now on, as events.
    pub fn listen(&mut self, service: ServiceId) {
        self.admissions.entry(service).or_default();
    }

    /// Refuses requests for this service from now on.
    pub fn unlisten(&mut self, service: ServiceId) {
        self.close_admission(service);
    }

    /// Returns the counters.
    #[must_use]
    pub const fn counters(&self) -> &CmCounters {
        &self.counters
    }

    /// Returns the number of connections and requests, including those that are about to be
    /// removed.
    #[must_use]
    pub fn len(&self) -> usize {
        self.conns.len()
    }

    /// Returns true if there are no connections and no requests.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.conns.is_empty()
    }

    /// Returns the next datagram to send.
    pub fn poll_transmit(&mut self) -> Option<CmTransmit> {
        self.out.pop_front()
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<CmEvent> {
        if self.events.is_empty() {
            self.offer_held();
        }
        self.events.pop_front()
    }

    /// Returns the next request that is sent again for the first time, for a message to the user.
    pub fn poll_unanswered(&mut self) -> Option<Unanswered> {
        self.unanswered.pop_front()
    }

    /// Returns when [`Cm::handle_timeout`] is due.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Time> {
        let timer = self.timers.first().map(|(at, _)| *at);
        timer.into_iter().chain(self.next_eviction()).min()
    }

    /// Repeats messages that were not answered in time, and gives up those that were repeated often
    /// enough.
    pub fn handle_timeout(&mut self, now: Time) {
        while let Some(&(at, id)) = self.timers.first()
            && at <= now
        {
            self.timers.pop_first();
            self.expire(now, id);
        }
        self.evict(now);
        self.check_invariants();
    }

    fn expire(&mut self, now: Time, id: CommId) {
        let Some(conn) = self.conns.get_mut(&id) else {
            return;
        };
        conn.deadline = None;
        if conn.state.resends()
            && let Some(left) = conn.tries_left.checked_sub(1)
        {
            conn.tries_left = left;
            conn.arm(&mut self.timers, id, now.plus_ns(conn.interval_ns));
            self.counters.tx_retries += 1;
            if conn.state == ConnState::ReqSent && left + 1 == conn.max_retries {
                let left_ns = conn.interval_ns.saturating_mul(u64::from(conn.max_retries));
                self.unanswered.push_back(Unanswered { id, left_ns });
            }
            return self.send_again(id);
        }
        let (state, event) = match conn.state {
            //= CM-ST-07
            ConnState::ReqSent | ConnState::MraReqRcvd => {
                (ConnState::Idle, Some(CmEvent::RequestTimeout { id }))
            }
            //= CM-ST-07
            ConnState::RepSent | ConnState::MraRepRcvd => {
                (ConnState::Idle, Some(CmEvent::ReplyTimeout { id }))
            }
            //= CM-ST-07
            ConnState::DreqSent => (ConnState::TimeWait, Some(CmEvent::DisconnectTimeout { id })),
            //= CM-ST-03
            ConnState::TimeWait => (ConnState::Idle, Some(CmEvent::TimewaitExit { id })),
            ConnState::SidrReqSent => (ConnState::Idle, Some(CmEvent::ServiceTimeout { id })),
            ConnState::SidrReplied => (ConnState::Idle, None),
            _ => return,
        };
        self.events.extend(event.filter(|_| !conn.is_abandoned));
        self.enter(now, id, state);
    }

    /// Changes the state of a connection, and sets timers and indices accordingly.
    fn enter(&mut self, now: Time, id: CommId, state: ConnState) {
        let Some(conn) = self.conns.get_mut(&id) else {
            return;
        };
        conn.state = state;
        self.changed.insert(id);
        if let Some(at) = conn.deadline.take() {
            self.timers.remove(&(at, id));
        }
        let stage = Self::stage_in(now, conn, state);
        self.set_stage(id, stage);
        let Some(conn) = self.conns.get_mut(&id) else {
            return;
        };
        match state {
            ConnState::TimeWait => {
                // No message is repeated in TimeWait.
                conn.resend = None;
                // The peer may connect its QP again at once. Its request has another ID.
                forget(&mut self.by_remote_qp, conn.remote_qp(), id);
                conn.arm(&mut self.timers, id, now.plus_ns(conn.timewait_ns));
            }
            ConnState::Idle => {
                conn.resend = None;
                // The peer's ID and QP number are no longer valid.
                forget(&mut self.by_remote_id, conn.remote_name(), id);
                forget(&mut self.by_remote_qp, conn.remote_qp(), id);
                forget(&mut self.by_request, conn.request_name(), id);
                if conn.is_abandoned {
                    self.conns.remove(&id);
                }
            }
            _ => {}
        }
    }

    fn arm(&mut self, id: CommId, at: Time) {
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.arm(&mut self.timers, id, at);
        }
    }

    /// Adds a connection with an ID that no other connection has.
    fn add(&mut self, make: impl Fn(CommId) -> Conn) -> CommId {
        let prefix = u32::from(self.config.prefix) << 24;
        let id = loop {
            self.next_id = self.next_id.wrapping_add(1);
            let id = CommId::new(prefix | self.next_id & 0x00ff_ffff);
            //= CM-FLD-01
            if id.get() != 0
                && let Entry::Vacant(place) = self.conns.entry(id)
            {
                place.insert(make(id));
                break id;
            }
        };
        self.changed.insert(id);
        id
    }

    /// Sends a message.
    fn send(&mut self, route: CmRoute, tid: TransactionId, message: CmMessage) {
        let to = message.receiver_id();
        let mad = Box::new(Mad::new(tid, message).to_bytes());
        self.put_out(route, to, mad);
    }

    fn put_out(&mut self, route: CmRoute, to: CommId, mad: Box<[u8; Mad::LEN]>) {
        self.counters.tx_messages += 1;
        self.out.push_back(CmTransmit { route, to, mad });
    }

    /// Sends a message of a connection, and keeps it for repetition.
    fn send_and_keep(&mut self, id: CommId, tid: TransactionId, message: CmMessage) {
        let Some(conn) = self.conns.get_mut(&id) else {
            return;
        };
        let to = message.receiver_id();
        let mad = Box::new(Mad::new(tid, message).to_bytes());
        conn.resend = Some(mad.clone());
        let route = conn.route;
        self.put_out(route, to, mad);
    }

    /// Sends a message of a connection, and repeats it until it is answered.
    fn send_until_answered(
        &mut self,
        now: Time,
        id: CommId,
        tid: TransactionId,
        message: CmMessage,
    ) {
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.tries_left = conn.max_retries;
            conn.arm(&mut self.timers, id, now.plus_ns(conn.interval_ns));
        }
        self.send_and_keep(id, tid, message);
    }

    /// Repeats the kept message.
    fn send_again(&mut self, id: CommId) {
        if let Some(conn) = self.conns.get(&id)
            && let Some(mad) = conn.resend.clone()
        {
            let route = conn.route;
            let to = Mad::parse(&mad[..]).map_or(CommId::new(0), |mad| mad.message.receiver_id());
            self.put_out(route, to, mad);
        }
    }

    /// Increments a counter.
    fn count(&mut self, which: impl FnOnce(&mut CmCounters) -> &mut u64) {
        *which(&mut self.counters) += 1;
    }
}

/// Removes a key from an index if the key belongs to this connection.
fn forget<N: Ord>(names: &mut BTreeMap<N, CommId>, name: N, id: CommId) {
    if let Entry::Occupied(named) = names.entry(name)
        && *named.get() == id
    {
        named.remove();
    }
}
