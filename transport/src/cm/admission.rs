//! Admission control of a listener: which requests are offered to the program, which are held, and
//! which are dropped.
//!
//! A connection is *half open* until the peer confirms its REP. It costs its program a queue pair
//! and descriptors. A peer that never confirms, or a flood of requests, must not exhaust either. So
//! a service has a backlog of [`BACKLOG`] entries, for requests that the program has not fetched
//! and for half-open connections:
//!
//! ```text
//! REQ ── Offered (an event) ── Taken by the program ── HalfOpen (REP sent) ── confirmed: no longer
//! counted
//! └─── Held while the backlog is full ──┘ └─ evicted after its grace, while others are held
//!   └─── dropped and remembered where too many are held
//! ```
//!
//! A peer that repeats its request has priority, and backlog entries of its own. A client repeats
//! its request, a flood does not.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use core::net::IpAddr;

use rocade_wire::mad::{CommId, Req, ServiceId};

use super::conn::{Conn, ConnState};
use super::refused::{RequestHistory, is_repetition};
use super::{Cm, CmEvent, CmRoute};
use crate::time::Time;

/// Backlog of a service: the most requests that the program has not fetched, plus half-open
/// connections.
pub const BACKLOG: usize = 256;
/// Backlog entries that first requests may use. The others are for repeated requests.
const FIRST_REQUEST_BACKLOG: usize = 224;
/// Of these, the entries for addresses that have none.
const NEW_ADDRESS_BACKLOG: usize = 16;
/// An address may use so many times the entries that are still free for any address. One address
/// alone gets 192, two get 99 each, thirty get 6 or 7.
const SHARE_OF_FREE: usize = 12;
/// Backlog entries from which on requests are taken to wait for half-open connections.
const CROWDED: usize = 192;
/// Most requests that are held.
const MAX_HELD: usize = 1_024;
/// Most requests that the program has fetched and not answered.
const MAX_TAKEN: usize = 8_192;
/// Held requests that are examined for one from another address, when the address of the oldest has
/// used its share.
const LOOK_AHEAD: usize = 16;
/// Limits of the grace period. A half-open connection may be evicted after its peer was silent for
/// the peer's own response time, clamped to this range.
const GRACE_NS: core::ops::RangeInclusive<u64> = 1_000_000_000..=4_096_000_000;
/// Such periods more for a peer that confirms most of its connections. A message of it may be lost,
/// and is repeated only after the first.
const MORE_GRACES: u64 = 4;
/// Most addresses whose confirmed connections are counted.
const MAX_CONFIRMED: usize = 1_024;

/// Progress of a request to a listener.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum AdmissionStage {
    /// The connection is no request, or does not count any more.
    #[default]
    Settled,
    /// The backlog has no room yet. The program has not been notified.
    Held,
    /// The event of the request is queued for the program.
    Offered,
    /// The program has fetched the event, and has not answered.
    Taken,
    /// The REP was sent. From this time on, an unconfirmed connection may be evicted.
    HalfOpen(Time),
}

/// A held request.
#[derive(Debug)]
struct Held {
    since: Time,
    route: CmRoute,
    req: Box<Req>,
}

/// The requests to one service.
#[derive(Debug, Default)]
pub(super) struct Admission {
    /// First requests, oldest first.
    held: BTreeMap<CommId, Held>,
    /// Repeated requests, oldest first.
    held_again: BTreeMap<CommId, Held>,
    offered: BTreeSet<CommId>,
    taken: BTreeSet<CommId>,
    half_open: BTreeSet<(Time, CommId)>,
    /// Number of offered and half-open connections by address.
    by_peer: BTreeMap<IpAddr, usize>,
    /// Number of connections that were confirmed by address. A flood confirms none.
    confirmed: BTreeMap<IpAddr, usize>,
}

/// Returns how long a peer may be silent while others wait, in ns.
fn grace_ns(conn: &Conn) -> u64 {
    conn.interval_ns.clamp(*GRACE_NS.start(), *GRACE_NS.end())
}

impl Admission {
    fn is_free(&self, peer: IpAddr, is_repeated: bool) -> bool {
        let used = self.offered.len() + self.half_open.len();
        let of_peer = self.by_peer.get(&peer).copied().unwrap_or(0);
        let free = FIRST_REQUEST_BACKLOG.saturating_sub(used);
        let share = match of_peer {
            0 => free,
            _ => free.saturating_sub(NEW_ADDRESS_BACKLOG) * SHARE_OF_FREE,
        };
        self.taken.len() < MAX_TAKEN && used < BACKLOG && (is_repeated || of_peer < share)
    }

    fn note_confirmed(&mut self, peer: IpAddr) {
        let is_new = !self.confirmed.contains_key(&peer);
        if is_new && self.confirmed.len() >= MAX_CONFIRMED {
            self.confirmed.clear();
        }
        *self.confirmed.entry(peer).or_default() += 1;
    }

    /// Returns true if a peer has confirmed more connections than it has entries.
    fn confirms_most(&self, peer: IpAddr) -> bool {
        let [confirmed, used] = [&self.confirmed, &self.by_peer].map(|all| all.get(&peer));
        confirmed.copied().unwrap_or(0) > used.copied().unwrap_or(0)
    }

    /// Asserts the conditions that hold between any two calls of the manager.
    #[cfg(debug_assertions)]
    pub(super) fn check_invariants(&self) {
        let used = self.offered.len() + self.half_open.len();
        let counted: usize = self.by_peer.values().sum();
        assert_eq!(counted, used, "each is counted for its address: {self:?}");
        assert!(used <= BACKLOG, "{used} of {BACKLOG} are used");
        assert!(
            self.taken.len() <= MAX_TAKEN + BACKLOG,
            "too many are taken"
        );
        // A repeated request is held in place of a first one.
        assert!(self.held() <= MAX_HELD, "{} are held", self.held());
        if let Some(id) = self.offered.first() {
            assert!(!self.taken.contains(id), "{id:?} is in two stages");
            assert!(!self.held.contains_key(id), "{id:?} is in two stages");
        }
    }

    fn held(&self) -> usize {
        self.held.len() + self.held_again.len()
    }

    /// Returns the number of requests that wait because of half-open connections.
    fn waiting(&self) -> usize {
        let is_full = self.offered.len() + self.half_open.len() >= CROWDED;
        self.held() + if is_full { self.taken.len() } else { 0 }
    }

    fn remove(&mut self, id: CommId, stage: AdmissionStage, peer: IpAddr) {
        let counted = match stage {
            AdmissionStage::Settled => false,
            AdmissionStage::Held => {
                self.held.remove(&id);
                self.held_again.remove(&id);
                false
            }
            AdmissionStage::Taken => {
                self.taken.remove(&id);
                false
            }
            AdmissionStage::Offered => self.offered.remove(&id),
            AdmissionStage::HalfOpen(due) => self.half_open.remove(&(due, id)),
        };
        if counted && let Some(count) = self.by_peer.get_mut(&peer) {
            *count -= 1;
            if *count == 0 {
                self.by_peer.remove(&peer);
            }
        }
    }

    fn insert(&mut self, id: CommId, stage: AdmissionStage, peer: IpAddr) {
        let counted = match stage {
            AdmissionStage::Settled | AdmissionStage::Held => false,
            AdmissionStage::Taken => {
                self.taken.insert(id);
                false
            }
            AdmissionStage::Offered => self.offered.insert(id),
            AdmissionStage::HalfOpen(due) => self.half_open.insert((due, id)),
        };
        if counted {
            *self.by_peer.entry(peer).or_default() += 1;
        }
    }

    /// Returns the next held request for which the backlog has room.
    fn next(&self, peer_of: impl Fn(CommId) -> Option<IpAddr>) -> Option<CommId> {
        let free = |id: &CommId, again| peer_of(*id).is_some_and(|peer| self.is_free(peer, again));
        let again = self.held_again.keys().next().filter(|id| free(id, true));
        let first = || {
            let mut some = self.held.keys().take(LOOK_AHEAD);
            some.find(|id| free(id, false))
        };
        again.or_else(first).copied()
    }
}

impl Cm {
    /// Returns true if a new request can be accepted, as an event or held. A repeated request may
    /// displace a held first request.
    pub(super) fn has_space(
        &mut self,
        now: Time,
        service: ServiceId,
        peer: IpAddr,
        history: RequestHistory,
    ) -> bool {
        let again = history == RequestHistory::Repeated;
        let Some(admission) = self.admissions.get(&service) else {
            return false;
        };
        if admission.is_free(peer, again) || admission.held() < MAX_HELD {
            return true;
        }
        // A peer that repeats its request has priority over one that may never do so.
        let victim = admission.held.keys().next().copied().filter(|_| again);
        if let Some(victim) = victim {
            self.drop_held(now, victim);
        }
        victim.is_some()
    }

    /// Offers a new request to its program, or holds it.
    pub(super) fn admit_or_hold(&mut self, since: Time, id: CommId, route: CmRoute, req: Box<Req>) {
        let Some(conn) = self.conns.get(&id) else {
            return;
        };
        let (service, again) = (conn.service, conn.is_repeated);
        let Some(admission) = self.admissions.get_mut(&service) else {
            return;
        };
        let request = Held { since, route, req };
        if admission.is_free(route.remote, again) {
            return self.offer(id, request);
        }
        let held = if again {
            &mut admission.held_again
        } else {
            &mut admission.held
        };
        held.insert(id, request);
        self.set_stage(id, AdmissionStage::Held);
    }

    fn offer(&mut self, id: CommId, held: Held) {
        self.set_stage(id, AdmissionStage::Offered);
        let Held { route, req, .. } = held;
        self.events.push_back(CmEvent::Request { id, route, req });
    }

    /// Offers the next held request that the backlog has room for. Returns false if there is none.
    pub(super) fn offer_held(&mut self) -> bool {
        let next = self.backlogged.iter().find_map(|service| {
            let peer = |id| Some(self.conns.get(&id)?.route.remote);
            Some((*service, self.admissions.get(service)?.next(peer)?))
        });
        let Some((service, id)) = next else {
            return false;
        };
        let held = self.admissions.get_mut(&service).and_then(|admission| {
            let again = admission.held_again.remove(&id);
            again.or_else(|| admission.held.remove(&id))
        });
        if let Some(held) = held {
            self.offer(id, held);
        }
        true
    }

    /// Notes that the peer has repeated its request. Returns false if the request is held and came
    /// again so soon that no client has repeated it.
    pub(super) fn on_repeated_request(&mut self, now: Time, id: CommId) -> bool {
        let Some(conn) = self.conns.get_mut(&id) else {
            return false;
        };
        if conn.stage == AdmissionStage::Held
            && let Some(admission) = self.admissions.get_mut(&conn.service)
            && let Some(held) = admission.held.get(&id)
        {
            if !is_repetition(held.since, now) {
                return false;
            }
            // A peer that did not confirm its connection before has no priority.
            if self.refused.history(now, conn.fingerprint) == RequestHistory::Unconfirmed {
                return true;
            }
            if let Some(held) = admission.held.remove(&id) {
                admission.held_again.insert(id, held);
            }
        }
        conn.is_repeated = true;
        true
    }

    /// Drops a held request without an answer, before the program has seen it. Its peer will
    /// repeat it.
    fn drop_held(&mut self, now: Time, id: CommId) {
        if let Some(conn) = self.conns.get_mut(&id) {
            self.refused.note(now, conn.fingerprint, false);
            self.counters.rx_dropped += 1;
            self.enter(now, id, ConnState::Idle);
        }
    }

    /// Changes the stage of a request.
    pub(super) fn set_stage(&mut self, id: CommId, stage: AdmissionStage) {
        let Some(conn) = self.conns.get_mut(&id) else {
            return;
        };
        let was = core::mem::replace(&mut conn.stage, stage);
        if was == stage && stage == AdmissionStage::Settled {
            return;
        }
        if was == AdmissionStage::Held && stage == AdmissionStage::Settled {
            // The program was never notified of the connection.
            conn.is_abandoned = true;
        }
        let (service, peer) = (conn.service, conn.route.remote);
        let Some(admission) = self.admissions.get_mut(&service) else {
            return;
        };
        admission.remove(id, was, peer);
        admission.insert(id, stage, peer);
        if admission.waiting() > 0 || stage == AdmissionStage::Held {
            self.backlogged.insert(service);
        } else {
            self.backlogged.remove(&service);
        }
    }

    /// Notes that the peer has confirmed a connection.
    pub(super) fn note_confirmed(&mut self, id: CommId) {
        let Some(conn) = self.conns.get(&id) else {
            return;
        };
        if let Some(admission) = self.admissions.get_mut(&conn.service) {
            admission.note_confirmed(conn.route.remote);
        }
    }

    /// Gives a half-open connection more time if its peer confirms most of them. Returns false if
    /// it does not, or for the second time.
    fn extend_grace(&mut self, now: Time, id: CommId) -> bool {
        let Some(conn) = self.conns.get_mut(&id) else {
            return false;
        };
        let admission = self.admissions.get(&conn.service);
        let confirms = admission.is_some_and(|one| one.confirms_most(conn.route.remote));
        if !confirms || core::mem::replace(&mut conn.had_more_grace, true) {
            return false;
        }
        let more_ns = MORE_GRACES * grace_ns(conn);
        self.set_stage(id, AdmissionStage::HalfOpen(now.plus_ns(more_ns)));
        true
    }

    /// Returns the stage of a connection in a new state.
    pub(super) fn stage_in(now: Time, conn: &Conn, state: ConnState) -> AdmissionStage {
        match (state, conn.stage) {
            (ConnState::ReqRcvd | ConnState::MraReqSent, stage) => stage,
            (ConnState::RepSent, AdmissionStage::Offered | AdmissionStage::Taken) => {
                AdmissionStage::HalfOpen(now.plus_ns(grace_ns(conn)))
            }
            _ => AdmissionStage::Settled,
        }
    }

    /// Notes that the program has fetched the event of a request.
    pub fn taken(&mut self, id: CommId) {
        if self.conns.get(&id).map(|conn| conn.stage) == Some(AdmissionStage::Offered) {
            self.set_stage(id, AdmissionStage::Taken);
        }
    }

    /// Returns true if requests are held. Some may be offered after [`Cm::taken`].
    #[must_use]
    pub fn holds_requests(&self) -> bool {
        !self.backlogged.is_empty()
    }

    /// Returns when the next half-open connection that keeps requests waiting may be evicted.
    pub(super) fn next_eviction(&self) -> Option<Time> {
        let of = |service| {
            let (due, _) = self.admissions.get(service)?.half_open.first()?;
            Some(*due)
        };
        self.backlogged.iter().filter_map(of).min()
    }

    /// Evicts the oldest overdue half-open connections, as many as there are requests waiting.
    //= CM-ST-07
    pub(super) fn evict(&mut self, now: Time) {
        let overdue = |admission: &Admission| {
            let half_open = admission.half_open.iter();
            let overdue = half_open.take_while(|(due, _)| *due <= now);
            let ids = overdue.map(|(_, id)| *id);
            (admission.waiting(), ids.collect::<alloc::vec::Vec<_>>())
        };
        let backlogged = self.backlogged.iter();
        let admissions = backlogged.filter_map(|service| self.admissions.get(service));
        let overdue: alloc::vec::Vec<_> = admissions.map(overdue).collect();
        for (waiting, ids) in overdue {
            let mut left = waiting;
            for id in ids {
                if left == 0 {
                    break;
                }
                if !self.extend_grace(now, id) {
                    self.evict_one(now, id);
                    left -= 1;
                }
            }
        }
    }

    fn evict_one(&mut self, now: Time, id: CommId) {
        let Some(conn) = self.conns.get(&id) else {
            return;
        };
        self.refused.note(now, conn.fingerprint, true);
        self.counters.evicted += 1;
        if !conn.is_abandoned {
            self.events.push_back(CmEvent::ReplyTimeout { id });
        }
        self.enter(now, id, ConnState::Idle);
    }

    /// Drops the held requests of a service that has no listener any more. The peers repeat them
    /// and are then refused.
    pub(super) fn close_admission(&mut self, service: ServiceId) {
        let held: alloc::vec::Vec<CommId> = match self.admissions.get(&service) {
            Some(found) => found
                .held
                .keys()
                .chain(found.held_again.keys())
                .copied()
                .collect(),
            None => return,
        };
        for id in held {
            self.enter(Time::ZERO, id, ConnState::Idle);
        }
        self.admissions.remove(&service);
        self.backlogged.remove(&service);
    }
}
