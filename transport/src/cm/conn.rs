//! One connection, or request for a service.

use alloc::boxed::Box;
use core::net::IpAddr;

use rocade_wire::mad::{CommId, Mad, Rep, ServiceId, TransactionId};
use rocade_wire::{Guid, Qpn};

use super::{CmRoute, Named, Stage, Timers};
use crate::time::Time;

/// States, by the names of the standard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// There is no connection any more, and nothing to do but to forget it.
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
    /// The answer is kept for a while, should the question come again.
    SidrReplied,
}

impl State {
    /// Is something sent again and again until it is answered?
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

/// What is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// A queue pair that sends and receives.
    Both,
    /// An XRC initiator.
    XrcInitiator,
    /// An XRC target, which may outlive its connection.
    XrcTarget,
}

impl End {
    /// Whose queue pair a REP names.
    pub(super) const fn qpn_in(self, rep: &Rep) -> Qpn {
        match self {
            Self::Both => rep.qpn,
            //= CM-FLD-09
            Self::XrcInitiator | Self::XrcTarget => rep.eecn,
        }
    }
}

/// A connection.
#[derive(Debug)]
pub(super) struct Conn {
    pub(super) end: End,
    pub(super) state: State,
    pub(super) route: CmRoute,
    /// What the peer calls it; 0 while unknown.
    pub(super) remote_id: CommId,
    pub(super) remote_guid: Guid,
    pub(super) remote_qpn: Qpn,
    pub(super) local_qpn: Qpn,
    /// The transaction of what made it: answers carry it.
    pub(super) tid: TransactionId,
    /// Which service a peer's request is for.
    pub(super) service: ServiceId,
    /// The message to send again.
    pub(super) resend: Option<Box<[u8; Mad::LEN]>>,
    pub(super) interval_ns: u64,
    pub(super) max_retries: u8,
    pub(super) tries_left: u8,
    pub(super) timewait_ns: u64,
    pub(super) deadline: Option<Time>,
    /// How far a peer's request is, for who decides which of them get a place.
    pub(super) stage: Stage,
    /// The fingerprint of the request.
    pub(super) print: u64,
    /// The peer has asked more than once.
    pub(super) asked_again: bool,
    /// Its owner wants to hear nothing more.
    pub(super) is_abandoned: bool,
    /// The peer was sent a DREQ, for which nobody waits any more, and has not answered.
    pub(super) is_parting: bool,
}

impl Conn {
    pub(super) fn new(state: State, route: CmRoute, tid: TransactionId) -> Self {
        Self {
            end: End::Both,
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
            stage: Stage::Settled,
            print: 0,
            asked_again: false,
            is_abandoned: false,
            is_parting: false,
        }
    }

    /// What the peer calls it.
    pub(super) const fn remote_name(&self) -> Named<CommId> {
        (self.remote_id, self.remote_guid.get(), self.route.remote)
    }

    /// What the peer calls it, where it is a request for a service.
    pub(super) const fn request_name(&self) -> (CommId, IpAddr) {
        (self.remote_id, self.route.remote)
    }

    /// The peer's QP.
    pub(super) const fn remote_qp(&self) -> Named<Qpn> {
        (self.remote_qpn, self.remote_guid.get(), self.route.remote)
    }

    /// Something is due at `at`, and nothing before.
    pub(super) fn arm(&mut self, timers: &mut Timers, id: CommId, at: Time) {
        if let Some(old) = self.deadline.replace(at) {
            timers.remove(&(old, id));
        }
        timers.insert((at, id));
    }
}
