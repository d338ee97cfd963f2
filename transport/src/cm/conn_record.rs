//! Connection records: which peers have to be notified when the process exits without closing its
//! connections.
//!
//! A process that outlives this one keeps the records and sends the notifications.

use rocade_wire::Qpn;
use rocade_wire::mad::CommId;

use super::conn::{Conn, ConnState, End};
use super::{Cm, CmRoute};

/// State of a connection that decides which message its peer needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnRecordKind {
    /// The peer has requested a connection and waits for the answer. A REJ ends the wait.
    Requested,
    /// The connection is established, or about to be. A DREQ ends it.
    Established,
    /// The peer was sent a DREQ, and has not answered.
    Disconnecting,
}

/// A connection whose peer would have to be notified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnRecord {
    /// The ports of the connection.
    pub route: CmRoute,
    /// The local communication ID.
    pub own_id: CommId,
    /// The peer's communication ID.
    pub peer_id: CommId,
    /// The peer's queue pair.
    pub peer_qpn: Qpn,
    /// The message that the peer needs.
    pub kind: ConnRecordKind,
}

impl Conn {
    const fn conn_record_kind(&self) -> Option<ConnRecordKind> {
        match self.state {
            ConnState::ReqRcvd | ConnState::MraReqSent => Some(ConnRecordKind::Requested),
            //= CM-ST-10
            ConnState::Established if matches!(self.end, End::XrcTarget) => None,
            ConnState::RepRcvd
            | ConnState::MraRepSent
            | ConnState::RepSent
            | ConnState::MraRepRcvd
            | ConnState::Established
            | ConnState::DreqRcvd => Some(ConnRecordKind::Established),
            ConnState::DreqSent => Some(ConnRecordKind::Disconnecting),
            ConnState::TimeWait if self.is_disconnecting => Some(ConnRecordKind::Disconnecting),
            _ => None,
        }
    }
}

impl Cm {
    /// Returns the next connection whose state has changed since the last call, with its record if
    /// it has one now.
    pub fn poll_conn_record(&mut self) -> Option<(CommId, Option<ConnRecord>)> {
        let own_id = self.changed.pop_first()?;
        let conn_record = self.conns.get(&own_id).and_then(|conn| {
            Some(ConnRecord {
                route: conn.route,
                own_id,
                peer_id: conn.remote_id,
                peer_qpn: conn.remote_qpn,
                kind: conn.conn_record_kind()?,
            })
        });
        Some((own_id, conn_record))
    }
}
