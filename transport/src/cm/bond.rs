//! Connection records: which peers have to be notified when the process exits without closing its
//! connections.
//!
//! A process that outlives this one keeps the records and sends the notifications.

use rocade_wire::Qpn;
use rocade_wire::mad::CommId;

use super::conn::{Conn, End, State};
use super::{Cm, CmRoute};

/// State of a connection that decides which message its peer needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BondKind {
    /// The peer has requested a connection and waits for the answer. A REJ ends the wait.
    Asked,
    /// The connection is established, or about to be. A DREQ ends it.
    Made,
    /// The peer was sent a DREQ, and has not answered.
    Parting,
}

/// A connection whose peer would have to be notified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bond {
    /// The ports of the connection.
    pub route: CmRoute,
    /// The local communication ID.
    pub own_id: CommId,
    /// The peer's communication ID.
    pub peer_id: CommId,
    /// The peer's queue pair.
    pub peer_qpn: Qpn,
    /// The message that the peer needs.
    pub kind: BondKind,
}

impl Conn {
    const fn bond_kind(&self) -> Option<BondKind> {
        match self.state {
            State::ReqRcvd | State::MraReqSent => Some(BondKind::Asked),
            //= CM-ST-10
            State::Established if matches!(self.end, End::XrcTarget) => None,
            State::RepRcvd
            | State::MraRepSent
            | State::RepSent
            | State::MraRepRcvd
            | State::Established
            | State::DreqRcvd => Some(BondKind::Made),
            State::DreqSent => Some(BondKind::Parting),
            State::TimeWait if self.is_parting => Some(BondKind::Parting),
            _ => None,
        }
    }
}

impl Cm {
    /// Returns the next connection whose state has changed since the last call, with its record if
    /// it has one now.
    pub fn poll_bond(&mut self) -> Option<(CommId, Option<Bond>)> {
        let own_id = self.moved.pop_first()?;
        let bond = self.conns.get(&own_id).and_then(|conn| {
            Some(Bond {
                route: conn.route,
                own_id,
                peer_id: conn.remote_id,
                peer_qpn: conn.remote_qpn,
                kind: conn.bond_kind()?,
            })
        });
        Some((own_id, bond))
    }
}
