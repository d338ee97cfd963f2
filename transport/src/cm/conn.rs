//! A single connection, or request for a service.

use alloc::boxed::Box;
use core::net::IpAddr;

use rocade_wire::mad::{CommId, Mad, Rep, ServiceId, TransactionId};
use rocade_wire::{Guid, Qpn};

use super::{AdmissionStage, CmRoute, Named, Timers};
use crate::time::Time;

/// States, by the names of the standard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnState {
    /// The connection has ended. It only remains to be removed.
    Idle,
    ReqSent,
    MraReqRcvd,
    RepRcvd,
    MraRepSent,
    ReqRcvd,
    MraReqSent,
    RepSent,
    MraRepRcvd,
    Established,
    DreqSent,
    DreqRcvd,
    TimeWait,
    SidrReqSent,
    SidrReqRcvd,
    /// The answer is kept for a while, in case the request is repeated.
    SidrReplied,
}

impl ConnState {
    /// Returns true in a state in which a message is repeated until it is answered.
    pub(super) const fn resends(self) -> bool {
        matches!(
            self,
            Self::ReqSent
                | Self::MraReqRcvd
                | Self::RepSent
                | Self::MraRepRcvd
                | Self::DreqSent
                | Self::SidrReqSent
        )
    }
}

/// Kind of the connected queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// A queue pair that sends and receives.
    Regular,
    /// An XRC initiator.
    XrcInitiator,
    /// An XRC target, which may outlive its connection.
    XrcTarget,
}

impl End {
    /// Returns the QP number in a REP: its `qpn`, or its `eecn` for XRC.
    pub(super) const fn qpn_in(self, rep: &Rep) -> Qpn {
        match self {
            Self::Regular => rep.qpn,
            //= CM-FLD-09
            Self::XrcInitiator | Self::XrcTarget => rep.eecn,
        }
    }
}

/// A connection.
#[derive(Debug)]
pub(super) struct Conn {
    pub(super) end: End,
    pub(super) state: ConnState,
    pub(super) route: CmRoute,
    /// The peer's communication ID. 0 while unknown.
    pub(super) remote_id: CommId,
    pub(super) remote_guid: Guid,
    pub(super) remote_qpn: Qpn,
    pub(super) local_qpn: Qpn,
    /// The transaction of the message that created the connection. Answers carry it.
    pub(super) tid: TransactionId,
    /// The service that the peer's request is for.
    pub(super) service: ServiceId,
    /// The message that is sent again.
    pub(super) resend: Option<Box<[u8; Mad::LEN]>>,
    pub(super) interval_ns: u64,
    pub(super) max_retries: u8,
    pub(super) tries_left: u8,
    pub(super) timewait_ns: u64,
    pub(super) deadline: Option<Time>,
    /// Progress of a peer's request, for admission control.
    pub(super) stage: AdmissionStage,
    /// True if it had more time to be confirmed, as its peer has confirmed most others.
    pub(super) had_more_grace: bool,
    /// The fingerprint of the request.
    pub(super) fingerprint: u64,
    /// The peer has repeated its request.
    pub(super) is_repeated: bool,
    /// Its owner has destroyed it: no more events are reported.
    pub(super) is_abandoned: bool,
    /// The peer was sent a DREQ whose answer the owner does not wait for, and has not answered.
    pub(super) is_disconnecting: bool,
    /// The transaction of a DREQ that came before the owner has confirmed the peer's REP.
    pub(super) early_dreq: Option<TransactionId>,
}

impl Conn {
    pub(super) fn new(state: ConnState, route: CmRoute, tid: TransactionId) -> Self {
        Self {
            end: End::Regular,
            state,
            route,
            remote_id: CommId::new(0),
            remote_guid: Guid::new(0),
            remote_qpn: Qpn::new(0),
            local_qpn: Qpn::new(0),
            tid,
            service: ServiceId::new(0),
            resend: None,
            interval_ns: 0,
            max_retries: 0,
            tries_left: 0,
            timewait_ns: 0,
            deadline: None,
            stage: AdmissionStage::Settled,
            had_more_grace: false,
            fingerprint: 0,
            is_repeated: false,
            is_abandoned: false,
            is_disconnecting: false,
            early_dreq: None,
        }
    }

    /// Returns the key under which the peer knows the connection.
    pub(super) const fn remote_name(&self) -> Named<CommId> {
        (self.remote_id, self.remote_guid.get(), self.route.remote)
    }

    /// Returns the key under which the peer knows its request for a service.
    pub(super) const fn request_name(&self) -> (CommId, IpAddr) {
        (self.remote_id, self.route.remote)
    }

    /// Returns the key of the peer's QP.
    pub(super) const fn remote_qp(&self) -> Named<Qpn> {
        (self.remote_qpn, self.remote_guid.get(), self.route.remote)
    }

    /// Sets the deadline of the connection, in place of an earlier one.
    pub(super) fn arm(&mut self, timers: &mut Timers, id: CommId, at: Time) {
        if let Some(old) = self.deadline.replace(at) {
            timers.remove(&(old, id));
        }
        timers.insert((at, id));
    }
}
