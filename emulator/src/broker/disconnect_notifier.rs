//! Disconnect notices to the peers of a process that was killed.
//!
//! Each process keeps a journal of its connections (`journal/connections.rs`), which the broker
//! reads after the end of the process. The broker then sends the DREQ or REJ that the process would
//! have sent. It repeats each a few times until the peer answers. Without a broker there are no
//! notices, and the peers notice by exceeded retries.

#![deny(clippy::disallowed_methods)]

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use rocade_transport::Time;
use rocade_transport::cm::{ConnRecord, ConnRecordKind};
use rocade_wire::mad::{CmMessage, CommId, Drep, Dreq, Rej, RejReason, Rejected, TransactionId};

/// Delays between the repetitions of a notice, unless the peer has answered it.
const RETRY_AFTER: [Duration; 3] = [
    Duration::from_millis(50),
    Duration::from_millis(200),
    Duration::from_millis(800),
];

/// A peer, and the peer's communication ID of the connection.
type PeerEnd = (IpAddr, CommId);

/// A notice to a peer whose process is gone.
#[derive(Debug)]
struct PendingDisconnect {
    conn_record: ConnRecord,
    due: Time,
    /// Number of times it was sent.
    attempts: usize,
}

/// The disconnect notices of an address.
#[derive(Debug, Default)]
pub(super) struct DisconnectNotifier(BTreeMap<PeerEnd, PendingDisconnect>);

impl DisconnectNotifier {
    /// Adds a notice for a connection of a process that is gone.
    pub(super) fn add(&mut self, conn_record: ConnRecord, now: Time) {
        let wait = match conn_record.kind {
            ConnRecordKind::Requested | ConnRecordKind::Established => Duration::ZERO,
            // The process sent a DREQ itself, and the peer may be about to answer.
            ConnRecordKind::Disconnecting => RETRY_AFTER[0],
        };
        let pending = PendingDisconnect {
            conn_record,
            due: now.plus(wait),
            attempts: 0,
        };
        self.0
            .insert((conn_record.route.remote, conn_record.peer_id), pending);
    }

    /// Handles a message to a process that is gone: removes the notice that it answers.
    pub(super) fn on_reply(&mut self, peer: IpAddr, message: &CmMessage) {
        match message {
            CmMessage::Dreq(Dreq { local_id, .. })
            | CmMessage::Rej(Rej { local_id, .. })
            | CmMessage::Drep(Drep { local_id, .. }) => {
                self.0.remove(&(peer, *local_id));
            }
            _ => {}
        }
    }

    /// Returns the notices to send now, with their destinations. With `all`, every notice one last
    /// time.
    pub(super) fn take_due(
        &mut self,
        now: Time,
        all: bool,
    ) -> Vec<(IpAddr, TransactionId, CmMessage)> {
        let mut messages = Vec::new();
        self.0.retain(|&(peer, _), pending| {
            if pending.due > now && !all {
                return true;
            }
            let message = pending.message();
            let tid = TransactionId::new(pending.conn_record.own_id.get().into());
            messages.push((peer, tid, message));
            let next = RETRY_AFTER.get(pending.attempts);
            pending.attempts += 1;
            next.is_some_and(|wait| {
                pending.due = now.plus(*wait);
                !all
            })
        });
        messages
    }

    /// Returns the time of the next notice.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.0.values().map(|pending| pending.due).min()
    }
}

impl PendingDisconnect {
    /// Returns the message that ends a connection, or that rejects a request for one.
    //= CM-ST-10
    fn message(&self) -> CmMessage {
        let ConnRecord {
            own_id,
            peer_id,
            peer_qpn,
            kind,
            ..
        } = self.conn_record;
        if kind != ConnRecordKind::Requested {
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

    fn conn_record(own: u32, peer: u32, qpn: u32, kind: ConnRecordKind) -> ConnRecord {
        ConnRecord {
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

    /// Returns DREQs as (own ID, peer's ID, queue pair), and REJs as (own ID, peer's ID, reason).
    fn taken(notifier: &mut DisconnectNotifier, now: Time, all: bool) -> Vec<(u32, u32, u32)> {
        let all = notifier.take_due(now, all).into_iter();
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
    fn connections_and_requests_get_dreq_or_rej() {
        let (mut notifier, now) = (DisconnectNotifier::default(), Time::from_ns(1));
        notifier.add(conn_record(0x31, 1, 0x11, ConnRecordKind::Established), now);
        notifier.add(conn_record(0x32, 2, 0x12, ConnRecordKind::Established), now);
        notifier.add(conn_record(0x33, 3, 0x13, ConnRecordKind::Requested), now);
        notifier.add(
            conn_record(0x34, 4, 0x14, ConnRecordKind::Disconnecting),
            now,
        );
        let first = [(0x31, 1, 0x11), (0x32, 2, 0x12), (0x33, 3, 28)];
        assert_eq!(taken(&mut notifier, now, false), first);
        assert_eq!(taken(&mut notifier, now, false), []);
        let soon = now.plus(RETRY_AFTER[0]);
        assert_eq!(notifier.deadline(), Some(soon));
        notifier.on_reply(PEER, &drep(2));
        notifier.on_reply(PEER, &drep(9));
        notifier.on_reply([10, 0, 0, 3].into(), &drep(1));
        let again = [(0x31, 1, 0x11), (0x33, 3, 28), (0x34, 4, 0x14)];
        assert_eq!(taken(&mut notifier, soon, false), again);
        notifier.on_reply(PEER, &drep(3));
        notifier.on_reply(PEER, &drep(4));
        // After the last repetition, the notice is dropped.
        let mut times = 0;
        while let Some(due) = notifier.deadline() {
            assert_eq!(taken(&mut notifier, due, false), [(0x31, 1, 0x11)]);
            times += 1;
        }
        assert_eq!(times, 2);
        notifier.add(
            conn_record(0x35, 5, 0x15, ConnRecordKind::Disconnecting),
            soon,
        );
        assert_eq!(taken(&mut notifier, soon, true), [(0x35, 5, 0x15)]);
        assert_eq!(notifier.deadline(), None);
    }
}
