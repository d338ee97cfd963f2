//! The communication manager: makes and ends connections by datagrams between the QPs 1 of two
//! ports.
//!
//! A [`Cm`] holds the connections of one process. Like [`Qp`](crate::Qp) it does no I/O and knows no clock:
//! commands and datagrams go in, datagrams ([`Cm::poll_transmit`]) and events ([`Cm::poll_event`]) come out, and
//! [`Cm::next_timeout`] says when [`Cm::handle_timeout`] is due.
//!
//! ```text
//! active   connect ─ ReqSent ── REP ─ RepRcvd ── ready ──┐
//!                    (MRA: MraReqRcvd)  (MraRepSent)     Established ─ disconnect ─ DreqSent ─ DREP ─┐
//! passive  REQ ───── ReqRcvd ── reply ─ RepSent ── RTU ──┘     └─ DREQ ─ DreqRcvd ─ answer ───────── TimeWait ─ Idle
//!                    (MraReqSent)       (MraRepRcvd)
//! datagram service   SidrReqSent ─ SIDR_REP ─ Idle;   SIDR_REQ ─ SidrReqRcvd ─ reply ─ SidrReplied
//! ```
//!
//! Datagrams are lost and come twice: each is sent again until it is answered, and each receiver may get it
//! again (MAD-07). What fits no connection, or not its state, is counted and changes nothing.

mod admission;
mod bond;
mod commands;
mod conn;
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

pub use admission::PLACES;
use admission::{Admission, Stage};
pub use bond::{Bond, BondKind};
pub use commands::{private_data, refusal};

use crate::time::Time;
use conn::{Conn, State};
use refused::Refused;

/// What a process is to the managers of others.
#[derive(Clone, Copy, Debug)]
pub struct CmConfig {
    /// GUID of the adapter.
    pub guid: Guid,
    /// Upper 8 bits of all communication IDs: they tell whose process the connection is. Not 0.
    pub prefix: u8,
    /// Where IDs and transactions begin: random, so that those of an earlier process do not come again.
    pub seed: u64,
}

impl CmConfig {
    /// The transaction of a message that a connection starts.
    //= MAD-05
    const fn tid(&self, id: CommId) -> TransactionId {
        TransactionId::new((self.seed >> 32) << 32 | id.get() as u64)
    }
}

/// The two ports that a datagram goes between.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CmRoute {
    /// Own address.
    pub local: IpAddr,
    /// Address of the peer.
    pub remote: IpAddr,
}

/// A datagram to send, from QP 1 to QP 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CmTransmit {
    /// From where to where.
    pub route: CmRoute,
    /// The peer's communication ID, 0 if it has none yet.
    pub to: CommId,
    /// Its payload.
    pub mad: Box<[u8; Mad::LEN]>,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CmEvent {
    /// A peer asks for a connection, which has this ID from now on.
    Request {
        /// New.
        id: CommId,
        /// Where it came from.
        route: CmRoute,
        /// What it says.
        req: Box<Req>,
    },
    /// The peer accepts.
    Reply {
        /// Which connection.
        id: CommId,
        /// What it says.
        rep: Box<Rep>,
    },
    /// The connection is made, as the passive side learns.
    Ready {
        /// Which.
        id: CommId,
    },
    /// The REQ was not answered.
    RequestTimeout {
        /// Which connection.
        id: CommId,
    },
    /// The REP was not answered.
    ReplyTimeout {
        /// Which connection.
        id: CommId,
    },
    /// The peer rejects.
    Rejected {
        /// Which connection.
        id: CommId,
        /// What it says.
        rej: Box<Rej>,
    },
    /// The peer wants to disconnect; it waits for the answer.
    Disconnect {
        /// Which connection.
        id: CommId,
    },
    /// The peer has answered our DREQ.
    Disconnected {
        /// Which connection.
        id: CommId,
    },
    /// The peer has not answered our DREQ.
    DisconnectTimeout {
        /// Which connection.
        id: CommId,
    },
    /// Packets of the connection are no longer on their way.
    TimewaitExit {
        /// Which connection.
        id: CommId,
    },
    /// A peer asks for the QP of a service.
    ServiceRequest {
        /// New.
        id: CommId,
        /// Where it came from.
        route: CmRoute,
        /// What it says.
        req: Box<SidrReq>,
    },
    /// The answer to a request for the QP of a service, whatever it is.
    ServiceReply {
        /// Which request.
        id: CommId,
        /// What it says.
        rep: Box<SidrRep>,
    },
    /// There is none.
    ServiceTimeout {
        /// Which request.
        id: CommId,
    },
}

/// Why a command is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CmError {
    /// There is no such connection.
    UnknownId,
    /// Its state does not allow it.
    WrongState,
}

/// What was received and done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CmCounters {
    /// Messages received.
    pub rx_messages: u64,
    /// Datagrams that are no messages of the communication manager.
    pub rx_malformed: u64,
    /// Messages that fit no connection, not its state, or came from somebody else than its peer.
    pub rx_unsolicited: u64,
    /// Messages that had come before.
    pub rx_duplicates: u64,
    /// Requests that were refused at once: no such service, or a connection that has not ended.
    pub rx_refused: u64,
    /// Requests that were dropped without a word, because too many are held; their senders ask again.
    pub rx_dropped: u64,
    /// Half-open connections that were given up, because others waited for their place.
    pub evicted: u64,
    /// Messages sent.
    pub tx_messages: u64,
    /// Those of them that were sent again for want of an answer.
    pub tx_retries: u64,
}

/// A peer's name for something: its number of it, adapter and address. The number comes first, because that is what tells one
/// name from another at a glance.
type Named<T> = (T, u64, IpAddr);
/// What is due when.
type Timers = BTreeSet<(Time, CommId)>;

/// The communication manager of a process.
#[derive(Debug)]
pub struct Cm {
    config: CmConfig,
    next_id: u32,
    conns: BTreeMap<CommId, Conn>,
    /// By what peers call them; for duplicates, and rejections by who gave up.
    by_remote_id: BTreeMap<Named<CommId>, CommId>,
    /// By the peer's QP, for those that have not ended.
    by_remote_qp: BTreeMap<Named<Qpn>, CommId>,
    /// Requests for services, by what peers call them.
    by_request: BTreeMap<(CommId, IpAddr), CommId>,
    /// By the services that somebody listens for.
    admissions: BTreeMap<ServiceId, Admission>,
    /// Services with requests that wait for a place.
    pressed: BTreeSet<ServiceId>,
    refused: Refused,
    /// Answered requests for services, the oldest first.
    replied: VecDeque<CommId>,
    timers: Timers,
    /// Those in another state than `poll_bond` has told.
    moved: BTreeSet<CommId>,
    out: VecDeque<CmTransmit>,
    events: VecDeque<CmEvent>,
    counters: CmCounters,
}

impl Cm {
    /// A manager without connections.
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
            pressed: BTreeSet::new(),
            refused: Refused::new(config.seed),
            replied: VecDeque::new(),
            timers: BTreeSet::new(),
            moved: BTreeSet::new(),
            out: VecDeque::new(),
            events: VecDeque::new(),
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

    /// Requests for this service come as events from now on.
    pub fn listen(&mut self, service: ServiceId) {
        self.admissions.entry(service).or_default();
    }

    /// They are refused from now on.
    pub fn unlisten(&mut self, service: ServiceId) {
        self.close_admission(service);
    }

    /// What was received and done.
    #[must_use]
    pub const fn counters(&self) -> &CmCounters {
        &self.counters
    }

    /// How many connections and requests there are, those included that are about to be forgotten.
    #[must_use]
    pub fn len(&self) -> usize {
        self.conns.len()
    }

    /// There are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.conns.is_empty()
    }

    /// The next datagram to send.
    pub fn poll_transmit(&mut self) -> Option<CmTransmit> {
        self.out.pop_front()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<CmEvent> {
        if self.events.is_empty() {
            self.offer_held();
        }
        self.events.pop_front()
    }

    /// When [`Cm::handle_timeout`] is due.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Time> {
        let timer = self.timers.first().map(|(at, _)| *at);
        timer.into_iter().chain(self.next_eviction()).min()
    }

    /// Sends again what was not answered in time, and gives up what was not answered at all.
    pub fn handle_timeout(&mut self, now: Time) {
        while let Some(&(at, id)) = self.timers.first()
            && at <= now
        {
            self.timers.pop_first();
            self.expire(now, id);
        }
        self.evict(now);
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
            return self.send_again(id);
        }
        let (state, event) = match conn.state {
            //= CM-ST-07
            State::ReqSent | State::MraReqRcvd => {
                (State::Idle, Some(CmEvent::RequestTimeout { id }))
            }
            //= CM-ST-07
            State::RepSent | State::MraRepRcvd => (State::Idle, Some(CmEvent::ReplyTimeout { id })),
            //= CM-ST-07
            State::DreqSent => (State::TimeWait, Some(CmEvent::DisconnectTimeout { id })),
            //= CM-ST-03
            State::TimeWait => (State::Idle, Some(CmEvent::TimewaitExit { id })),
            State::SidrReqSent => (State::Idle, Some(CmEvent::ServiceTimeout { id })),
            State::SidrReplied => (State::Idle, None),
            _ => return,
        };
        self.events.extend(event.filter(|_| !conn.is_abandoned));
        self.enter(now, id, state);
    }

    /// Changes the state of a connection, and does what belongs to the new one.
    fn enter(&mut self, now: Time, id: CommId, state: State) {
        let Some(conn) = self.conns.get_mut(&id) else {
            return;
        };
        conn.state = state;
        self.moved.insert(id);
        if let Some(at) = conn.deadline.take() {
            self.timers.remove(&(at, id));
        }
        let stage = Self::stage_in(now, conn, state);
        self.set_stage(id, stage);
        let Some(conn) = self.conns.get_mut(&id) else {
            return;
        };
        match state {
            State::TimeWait => {
                // Nothing of it is sent again.
                conn.resend = None;
                conn.arm(&mut self.timers, id, now.plus_ns(conn.timewait_ns));
            }
            State::Idle => {
                conn.resend = None;
                // What the peer calls it, and its QP, mean nothing any more.
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

    /// A new connection, with an ID that no other has.
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
        self.moved.insert(id);
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

    /// Sends a message of a connection, which is kept to be sent again.
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

    /// Sends a message of a connection again and again until it is answered.
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

    /// Sends what was kept.
    fn send_again(&mut self, id: CommId) {
        if let Some(conn) = self.conns.get(&id)
            && let Some(mad) = conn.resend.clone()
        {
            let route = conn.route;
            let to = Mad::parse(&mad[..]).map_or(CommId::new(0), |mad| mad.message.receiver_id());
            self.put_out(route, to, mad);
        }
    }

    /// Counts something.
    fn count(&mut self, which: impl FnOnce(&mut CmCounters) -> &mut u64) {
        *which(&mut self.counters) += 1;
    }
}

/// A name means nothing any more, if it is that of this connection.
fn forget<N: Ord>(names: &mut BTreeMap<N, CommId>, name: N, id: CommId) {
    if let Entry::Occupied(named) = names.entry(name)
        && *named.get() == id
    {
        named.remove();
    }
}
