//! One sequence of sessions of an initiator.

use alloc::boxed::Box;
use alloc::collections::VecDeque;

use rocade_wire::Psn;

use super::SESSION_IDLE_NS;
use crate::peer::{Peer, SessionTag};
use crate::queue::SendLimits;
use crate::requester::{Requester, SendWqe};
use crate::time::Time;
use crate::wr::{DcDestination, RouteTag};

/// A work request that waits for an earlier session to end.
#[derive(Debug)]
pub(super) struct HeldRequest {
    pub(super) wqe: SendWqe,
    /// `None` for a local operation.
    pub(super) to: Option<DcDestination>,
}

/// The connection to the current target.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) to: DcDestination,
    pub(super) peer: Peer,
}

impl Session {
    pub(super) fn tag(&self) -> Option<&SessionTag> {
        self.peer.session.as_deref()
    }

    pub(super) fn is(&self, id: u32) -> bool {
        self.tag().is_some_and(|tag| tag.id == id)
    }

    /// Notes the oldest unacknowledged PSN. The START flag is dropped once the first packet is
    /// acknowledged.
    pub(super) fn note_una(&mut self, una: Psn) {
        if let Some(tag) = &mut self.peer.session {
            tag.start.take_if(|start| *start != una);
        }
    }
}

/// A probe whether an address runs Rocade, which has to be answered before any request is sent
/// there.
#[derive(Debug)]
pub(super) struct PendingProbe {
    pub(super) to: DcDestination,
    pub(super) peer: Peer,
    /// The probe has to be sent now.
    pub(super) is_due: bool,
    pub(super) again_at: Option<Time>,
    pub(super) tries_left: u8,
}

/// The DISCONNECT packet of a session. The initiator does not wait for its ACK: if it is lost, the
/// target drops the session after a timeout.
//= DCW-12 DCW-13
#[derive(Debug)]
pub(super) struct PendingDisconnect {
    pub(super) route: RouteTag,
    pub(super) peer: Peer,
    pub(super) psn: Psn,
}

//= DC-03
/// A sequence of sessions. An initiator with streams has several channels, which work concurrently.
#[derive(Debug)]
pub(super) struct StreamChannel {
    pub(super) requester: Requester,
    /// Work requests whose target differs from that of the requests before them.
    pub(super) held: VecDeque<HeldRequest>,
    pub(super) session: Option<Session>,
    pub(super) probe: Option<PendingProbe>,
    /// Time at which the session ends if no more work is posted.
    pub(super) idle_at: Option<Time>,
}

impl StreamChannel {
    pub(super) fn new(limits: SendLimits) -> Self {
        let mut requester = Requester::new(limits);
        // Whatever answers a session has proved to be Rocade.
        requester.set_vendor_ops(true);
        Self {
            requester,
            held: VecDeque::new(),
            session: None,
            probe: None,
            idle_at: None,
        }
    }

    /// Returns true if a request to `to` can follow the earlier ones without a new session.
    //= DC-07
    pub(super) fn goes_on(&self, to: Option<DcDestination>) -> bool {
        let in_session = |to| {
            self.session
                .as_ref()
                .is_some_and(|session| session.to == to)
        };
        to.is_none_or(in_session)
    }

    /// Returns true if every started work request has completed.
    //= DC-06
    pub(super) fn is_idle(&self) -> bool {
        self.requester.queued() == 0
    }

    /// Schedules the end of the session if the channel is idle.
    pub(super) fn note_idle(&mut self, now: Time) {
        if self.is_idle() && self.held.is_empty() && self.session.is_some() {
            self.idle_at
                .get_or_insert_with(|| now.plus_ns(SESSION_IDLE_NS));
        }
    }

    /// Returns true if the channel holds a released work request and may start it.
    pub(super) fn may_switch(&self, is_released: bool) -> bool {
        let Some(next) = self.held.front().filter(|_| is_released) else {
            return false;
        };
        self.probe.is_none() && (self.is_idle() || self.goes_on(next.to))
    }

    pub(super) fn has_work(&self, is_released: bool) -> bool {
        self.requester.has_work()
            || self.may_switch(is_released)
            || self.probe.as_ref().is_some_and(|probe| probe.is_due)
    }

    pub(super) fn next_timeout(&self) -> Option<Time> {
        let probe = self.probe.as_ref().and_then(|probe| probe.again_at);
        let all = [self.requester.next_timeout(), probe, self.idle_at];
        all.into_iter().flatten().min()
    }

    /// Returns the routes of what is not complete.
    pub(super) fn routes(&self) -> impl Iterator<Item = RouteTag> {
        let held = self.held.iter().filter_map(|held| held.to);
        let session = self.session.iter().map(|session| session.to);
        let probe = self.probe.iter().map(|probe| probe.to);
        held.chain(session).chain(probe).map(|to| to.route)
    }

    /// Ends the session, if there is one. All its requests are complete.
    pub(super) fn end_session(&mut self) -> Option<PendingDisconnect> {
        self.idle_at = None;
        let Session { to, peer } = self.session.take()?;
        let psn = self.requester.next_psn();
        self.requester.skip_psn();
        Some(PendingDisconnect {
            route: to.route,
            peer,
            psn,
        })
    }

    /// Begins a session. `like` provides the fields that all peers have in common.
    //= DCW-05 DCW-08
    pub(super) fn open(&mut self, to: DcDestination, like: &Peer, tag: SessionTag) {
        let start = Some(self.requester.next_psn());
        let session = Some(Box::new(SessionTag { start, ..tag }));
        self.session = Some(Session {
            to,
            peer: Peer {
                session,
                ..peer_at(to, like)
            },
        });
    }
}

/// Returns the peer for packets to a target outside of sessions.
pub(super) fn peer_at(to: DcDestination, like: &Peer) -> Peer {
    Peer {
        qpn: to.dct,
        local: to.local,
        remote: to.remote,
        ..like.clone()
    }
}
