//! What peers have to be told where the process ends without a word: known to somebody who outlives it, as long as it lives.

use rocade_wire::Qpn;
use rocade_wire::mad::CommId;

use super::conn::{Conn, End, State};
use super::{Cm, CmRoute};

/// What a peer waits for, or relies on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BondKind {
    /// It has asked for a connection, and waits for the answer: a REJ ends that.
    Asked,
    /// It has the connection, or is about to have it: a DREQ ends that.
    Made,
    /// It was sent a DREQ, and has not answered.
    Parting,
}

/// A peer that would have to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bond {
    /// Between which ports.
    pub route: CmRoute,
    /// The own name of the connection.
    pub own_id: CommId,
    /// The peer's.
    pub peer_id: CommId,
    /// The peer's queue pair.
    pub peer_qpn: Qpn,
    /// What it waits for.
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
    /// The next connection that is in another state than when it was last asked about, and its bond, if it has one
    /// now.
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
