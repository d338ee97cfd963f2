//! What peers of a process that was killed are told: that their connections have ended.
//!
//! Each process keeps a ledger of its connections (`will/ledger.rs`), which the broker reads when the process is gone. Then the
//! broker says what the process would have said, a DREQ or a REJ, again and again until the peer has answered, but not for ever.
//! Who has no broker is not told of either: such peers notice by their retries.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use rocade_transport::cm::{Bond, BondKind};
use rocade_wire::mad::{CmMessage, CommId, Drep, Dreq, Rej, RejReason, Rejected, TransactionId};

/// When a farewell is said again, unless the peer has answered it.
const AGAIN: [Duration; 3] = [
    Duration::from_millis(50),
    Duration::from_millis(200),
    Duration::from_millis(800),
];

/// A peer, and what it calls the connection.
type PeerEnd = (IpAddr, CommId);

/// A process is gone, and its peer does not know yet.
#[derive(Debug)]
struct Farewell {
    bond: Bond,
    due: Instant,
    /// How often it was said.
    said: usize,
}

/// The farewells of an address.
#[derive(Debug, Default)]
pub(super) struct Farewells(BTreeMap<PeerEnd, Farewell>);

impl Farewells {
    /// A process is gone that had this bond.
    pub(super) fn add(&mut self, bond: Bond, now: Instant) {
        let wait = match bond.kind {
            BondKind::Asked | BondKind::Made => Duration::ZERO,
            // It was told already, and may be about to answer.
            BondKind::Parting => AGAIN[0],
        };
        let farewell = Farewell {
            bond,
            due: now + wait,
            said: 0,
        };
        self.0.insert((bond.route.remote, bond.peer_id), farewell);
    }

    /// A message has come for who is gone.
    pub(super) fn hear(&mut self, peer: IpAddr, message: &CmMessage) {
        match message {
            CmMessage::Dreq(Dreq { local_id, .. })
            | CmMessage::Rej(Rej { local_id, .. })
            | CmMessage::Drep(Drep { local_id, .. }) => {
                self.0.remove(&(peer, *local_id));
            }
            _ => {}
        }
    }

    /// What is to be said now, and to whom; `all` of it where it is the last occasion.
    pub(super) fn say(
        &mut self,
        now: Instant,
        all: bool,
    ) -> Vec<(IpAddr, TransactionId, CmMessage)> {
        let mut messages = Vec::new();
        self.0.retain(|&(peer, _), farewell| {
            if farewell.due > now && !all {
                return true;
            }
            let message = farewell.message();
            let tid = TransactionId::new(farewell.bond.own_id.get().into());
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
        self.0.values().map(|farewell| farewell.due).min()
    }
}

impl Farewell {
    /// The end of a connection, or of a request for one.
    //= CM-ST-10
    fn message(&self) -> CmMessage {
        let Bond {
            own_id,
            peer_id,
            peer_qpn,
            kind,
            ..
        } = self.bond;
        if kind != BondKind::Asked {
            return CmMessage::Dreq(Dreq {
                local_id: own_id,
                remote_id: peer_id,
                remote_qpn: peer_qpn,
                private_data: [0; Dreq::PRIVATE_LEN],
            });
        }
        CmMessage::Rej(Rej {
            local_id: own_id,
            remote_id: peer_id,
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
    use rocade_transport::cm::CmRoute;
    use rocade_wire::Qpn;

    use super::*;

    const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));

    fn bond(own: u32, peer: u32, qpn: u32, kind: BondKind) -> Bond {
        Bond {
            route: CmRoute {
                local: [10, 0, 0, 1].into(),
                remote: PEER,
            },
            own_id: CommId::new(own),
            peer_id: CommId::new(peer),
            peer_qpn: Qpn::new(qpn),
            kind,
        }
    }

    fn drep(local: u32) -> CmMessage {
        CmMessage::Drep(Drep {
            local_id: CommId::new(local),
            remote_id: CommId::new(0),
            private_data: [0; Drep::PRIVATE_LEN],
        })
    }

    /// DREQs as (own ID, peer's ID, queue pair), REJs as (own ID, peer's ID, reason).
    fn said(farewells: &mut Farewells, now: Instant, all: bool) -> Vec<(u32, u32, u32)> {
        let all = farewells.say(now, all).into_iter();
        let all = all.map(|(peer, _, message)| {
            assert_eq!(peer, PEER);
            match message {
                CmMessage::Dreq(m) => (m.local_id.get(), m.remote_id.get(), m.remote_qpn.get()),
                CmMessage::Rej(m) => {
                    assert_eq!(m.rejected, Rejected::Req);
                    let reason = u32::from(m.reason.code());
                    (m.local_id.get(), m.remote_id.get(), reason)
                }
                other => panic!("{other:?}"),
            }
        });
        all.collect()
    }

    #[test]
    fn connections_and_requests_are_ended() {
        let (mut farewells, now) = (Farewells::default(), Instant::now());
        farewells.add(bond(0x31, 1, 0x11, BondKind::Made), now);
        farewells.add(bond(0x32, 2, 0x12, BondKind::Made), now);
        farewells.add(bond(0x33, 3, 0x13, BondKind::Asked), now);
        farewells.add(bond(0x34, 4, 0x14, BondKind::Parting), now);
        let first = [(0x31, 1, 0x11), (0x32, 2, 0x12), (0x33, 3, 28)];
        assert_eq!(said(&mut farewells, now, false), first);
        assert_eq!(said(&mut farewells, now, false), []);
        let soon = now + AGAIN[0];
        assert_eq!(farewells.deadline(), Some(soon));
        farewells.hear(PEER, &drep(2));
        farewells.hear(PEER, &drep(9));
        farewells.hear([10, 0, 0, 3].into(), &drep(1));
        let again = [(0x31, 1, 0x11), (0x33, 3, 28), (0x34, 4, 0x14)];
        assert_eq!(said(&mut farewells, soon, false), again);
        farewells.hear(PEER, &drep(3));
        farewells.hear(PEER, &drep(4));
        // In the end nobody cares.
        let mut times = 0;
        while let Some(due) = farewells.deadline() {
            assert_eq!(said(&mut farewells, due, false), [(0x31, 1, 0x11)]);
            times += 1;
        }
        assert_eq!(times, 2);
        farewells.add(bond(0x35, 5, 0x15, BondKind::Parting), soon);
        assert_eq!(said(&mut farewells, soon, true), [(0x35, 5, 0x15)]);
        assert_eq!(farewells.deadline(), None);
    }
}
