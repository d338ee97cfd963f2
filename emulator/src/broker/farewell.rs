//! Who is connected to whom, as far as the datagrams to QP 1 tell; so that the peers of a process that is killed
//! learn of it.
//!
//! All such datagrams pass through the broker. A REQ or REP brings the peer's name for the connection and the number of its
//! queue pair, a REP or RTU the own name: that is what a DREQ needs. What was not heard of (another broker
//! was there then, a message was lost) is not told of either: such peers notice by their retries, as all do without a broker.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use rocade_wire::Qpn;
use rocade_wire::mad::{
    CmMessage, CommId, Dreq, Rej, RejReason, Rejected, TransactionId, TransportType,
};

use crate::steering::Slot;

/// Connections remembered at most.
const MOST: usize = 1 << 16;
/// After so long a request that nothing has come of is forgotten where there is no room.
const STALE: Duration = Duration::from_secs(120);
/// When a farewell is said again, unless the peer has answered it.
const AGAIN: [Duration; 3] = [
    Duration::from_millis(50),
    Duration::from_millis(200),
    Duration::from_millis(800),
];

/// A peer, and what it calls the connection.
type PeerEnd = (IpAddr, CommId);

/// What is known of a connection.
#[derive(Clone, Copy, Debug)]
struct Known {
    slot: Slot,
    /// What the process calls it; 0 while unknown.
    own: CommId,
    /// The peer's.
    qpn: Qpn,
    since: Instant,
    /// An XRC target, which may live on with others: a connection once made ends without a word.
    is_target: bool,
}

impl Known {
    const fn new(slot: Slot, own: CommId, qpn: Qpn, since: Instant) -> Self {
        Self {
            slot,
            own,
            qpn,
            since,
            is_target: false,
        }
    }
}

/// A process is gone, and its peer does not know yet.
#[derive(Debug)]
struct Farewell {
    known: Known,
    due: Instant,
    /// How often it was said.
    said: usize,
}

/// The connections of an address.
#[derive(Debug, Default)]
pub(super) struct Connections {
    known: BTreeMap<PeerEnd, Known>,
    farewells: BTreeMap<PeerEnd, Farewell>,
}

impl Connections {
    /// A message of a peer is passed on to a process.
    pub(super) fn observe(
        &mut self,
        peer: IpAddr,
        message: &CmMessage,
        to: Option<Slot>,
        now: Instant,
    ) {
        match message {
            CmMessage::Req(req) => {
                let Some(slot) = to else { return };
                let known = Known {
                    is_target: req.transport == TransportType::Xrc,
                    ..Known::new(slot, CommId::new(0), req.qpn, now)
                };
                self.remember((peer, req.local_id), known, now);
            }
            CmMessage::Rep(rep) => {
                let Some(slot) = to else { return };
                let qpn = if rep.qpn.get() == 0 {
                    rep.eecn
                } else {
                    rep.qpn
                };
                let known = Known::new(slot, rep.remote_id, qpn, now);
                self.remember((peer, rep.local_id), known, now);
            }
            CmMessage::Rtu(rtu) => {
                let end = (peer, rtu.local_id);
                let farewell = self.farewells.get(&end).map(|farewell| &farewell.known);
                let known = self.known.get(&end).or(farewell);
                //= CM-ST-10
                if known.is_some_and(|known| known.is_target) {
                    return self.forget(end);
                }
                if let Some(known) = self.known.get_mut(&end) {
                    known.own = rtu.remote_id;
                }
                if let Some(farewell) = self.farewells.get_mut(&end) {
                    farewell.known.own = rtu.remote_id;
                    farewell.due = now;
                }
            }
            CmMessage::Dreq(Dreq { local_id, .. }) | CmMessage::Rej(Rej { local_id, .. }) => {
                self.forget((peer, *local_id));
            }
            CmMessage::Drep(drep) => self.forget((peer, drep.local_id)),
            _ => {}
        }
    }

    fn remember(&mut self, end: PeerEnd, new: Known, now: Instant) {
        if self.known.len() >= MOST {
            let lives = |known: &Known| known.own.get() != 0 || now < known.since + STALE;
            self.known.retain(|_, known| lives(known));
        }
        if self.known.len() < MOST {
            self.known.insert(end, new);
        }
    }

    fn forget(&mut self, end: PeerEnd) {
        self.known.remove(&end);
        self.farewells.remove(&end);
    }

    /// A process is gone.
    pub(super) fn died(&mut self, slot: Slot, now: Instant) {
        self.known.retain(|end, known| {
            if known.slot != slot {
                return true;
            }
            // Where it has just accepted, the peer's RTU is on its way, and names the connection.
            let wait = if known.own.get() == 0 {
                AGAIN[0]
            } else {
                Duration::ZERO
            };
            let farewell = Farewell {
                known: *known,
                due: now + wait,
                said: 0,
            };
            self.farewells.insert(*end, farewell);
            false
        });
    }

    /// What is to be said now, and to whom; `all` of it where it is the last occasion.
    pub(super) fn say(
        &mut self,
        now: Instant,
        all: bool,
    ) -> Vec<(IpAddr, TransactionId, CmMessage)> {
        let mut messages = Vec::new();
        self.farewells.retain(|&(peer, peers_id), farewell| {
            if farewell.due > now && !all {
                return true;
            }
            let message = farewell.message(peers_id);
            let tid = TransactionId::new(farewell.known.own.get().into());
            messages.push((peer, tid, message));
            let next = AGAIN.get(farewell.said);
            farewell.said += 1;
            next.is_some_and(|wait| {
                farewell.due = now + *wait;
                !all
            })
        });
        messages
    }

    /// When something is to be said next.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.farewells.values().map(|farewell| farewell.due).min()
    }
}

impl Farewell {
    /// The end of a connection, or of a request for one.
    //= CM-ST-10
    fn message(&self, peers_id: CommId) -> CmMessage {
        let Known { own, qpn, .. } = self.known;
        if own.get() != 0 {
            return CmMessage::Dreq(Dreq {
                local_id: own,
                remote_id: peers_id,
                remote_qpn: qpn,
                private_data: [0; Dreq::PRIVATE_LEN],
            });
        }
        CmMessage::Rej(Rej {
            local_id: own,
            remote_id: peers_id,
            rejected: Rejected::Req,
            reason: RejReason::Consumer,
            info_len: 0,
            info: [0; Rej::INFO_LEN],
            private_data: [0; Rej::PRIVATE_LEN],
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use rocade_wire::mad::{Drep, Mad, Rtu};

    use super::*;

    const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));

    /// A message all of whose fields are 0 but IDs and the number of the queue pair.
    fn message(attribute: u8, local: u8, remote: u8, qpn: u8) -> CmMessage {
        let mut mad = [0; Mad::LEN];
        mad[..4].copy_from_slice(&[1, 7, 2, 3]);
        mad[17] = attribute;
        mad[27] = local;
        mad[31] = remote;
        // REQ: local QPN; REP: local QPN.
        let at = if attribute == 0x10 { 24 + 34 } else { 24 + 14 };
        mad[at] = qpn;
        if attribute == 0x10 {
            mad[31] = 0;
        }
        Mad::parse(&mad).expect("a message").message
    }

    fn req(local: u8, qpn: u8) -> CmMessage {
        message(0x10, local, 0, qpn)
    }

    fn rep(local: u8, remote: u8, qpn: u8) -> CmMessage {
        message(0x13, local, remote, qpn)
    }

    fn rtu(local: u8, remote: u8) -> CmMessage {
        CmMessage::Rtu(Rtu {
            local_id: CommId::new(local.into()),
            remote_id: CommId::new(remote.into()),
            private_data: [0; Rtu::PRIVATE_LEN],
        })
    }

    fn drep(local: u8, remote: u8) -> CmMessage {
        CmMessage::Drep(Drep {
            local_id: CommId::new(local.into()),
            remote_id: CommId::new(remote.into()),
            private_data: [0; Drep::PRIVATE_LEN],
        })
    }

    /// DREQs as (own ID, peer's ID, queue pair), REJs as (0, peer's ID, reason).
    fn said(connections: &mut Connections, now: Instant, all: bool) -> Vec<(u32, u32, u32)> {
        let all = connections.say(now, all).into_iter();
        let all = all.map(|(peer, _, message)| {
            assert_eq!(peer, PEER);
            match message {
                CmMessage::Dreq(m) => (m.local_id.get(), m.remote_id.get(), m.remote_qpn.get()),
                CmMessage::Rej(m) => {
                    assert_eq!((m.local_id.get(), m.rejected), (0, Rejected::Req));
                    (0, m.remote_id.get(), m.reason.code().into())
                }
                other => panic!("{other:?}"),
            }
        });
        all.collect()
    }

    #[test]
    fn connections_of_both_sides_are_ended() {
        let (mut connections, now) = (Connections::default(), Instant::now());
        let (ours, other) = (Slot::new(3), Slot::new(4));
        let mut hear = |message, slot| connections.observe(PEER, &message, Some(slot), now);
        hear(req(1, 0x11), ours);
        hear(rtu(1, 0x31), ours);
        hear(rep(2, 0x32, 0x12), ours);
        hear(req(3, 0x13), ours);
        hear(req(4, 0x14), other);
        hear(rtu(9, 0x39), ours);
        // One that has ended is not ended again.
        hear(rep(5, 0x35, 0x15), ours);
        hear(drep(5, 0x35), ours);
        connections.died(ours, now);
        let both = [(0x31, 1, 0x11), (0x32, 2, 0x12)];
        assert_eq!(said(&mut connections, now, false), both);
        assert_eq!(said(&mut connections, now, false), []);
        // Who was asked and has not answered rejects, unless it had.
        let soon = now + AGAIN[0];
        assert_eq!(connections.deadline(), Some(soon));
        connections.observe(PEER, &drep(2, 0x32), None, soon);
        assert_eq!(
            said(&mut connections, soon, false),
            [(0x31, 1, 0x11), (0, 3, 28)]
        );
        connections.observe(PEER, &rtu(3, 0x33), None, soon);
        assert_eq!(said(&mut connections, soon, false), [(0x33, 3, 0x13)]);
        connections.observe(PEER, &drep(3, 0x33), None, soon);
        // In the end nobody cares.
        let mut times = 0;
        while let Some(due) = connections.deadline() {
            assert_eq!(said(&mut connections, due, false), [(0x31, 1, 0x11)]);
            times += 1;
        }
        assert_eq!(times, 2);
        connections.died(ours, soon);
        assert_eq!(connections.deadline(), None);
        connections.died(other, soon);
        assert_eq!(said(&mut connections, soon, true), [(0, 4, 28)]);
        assert_eq!(connections.deadline(), None);
    }

    #[test]
    fn there_is_an_end_to_what_is_remembered() {
        let (mut connections, now) = (Connections::default(), Instant::now());
        let slot = Slot::new(3);
        for id in 0..=u32::try_from(MOST).unwrap() {
            let end = (PEER, CommId::new(id));
            let known = Known::new(slot, CommId::new(0), Qpn::new(1), now);
            connections.remember(end, known, now);
        }
        assert_eq!(connections.known.len(), MOST);
        let late = now + STALE;
        connections.observe(PEER, &rep(1, 2, 3), Some(slot), late);
        assert_eq!(connections.known.len(), 1);
    }
}
