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

/// A work request that waits for the session before its own to end.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) wqe: SendWqe,
    /// `None` of what concerns this side alone.
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

    /// Something at or behind `una` is the oldest packet that is not acknowledged.
    pub(super) fn note_una(&mut self, una: Psn) {
        if let Some(tag) = &mut self.peer.session {
            tag.start.take_if(|start| *start != una);
        }
    }
}

/// The question whether there is a Rocade at an address, which has to be answered before anything else goes there.
#[derive(Debug)]
pub(super) struct Hello {
    pub(super) to: DcDestination,
    pub(super) peer: Peer,
    /// It is to be sent now.
    pub(super) is_due: bool,
    pub(super) again_at: Option<Time>,
    pub(super) tries_left: u8,
}

/// The last packet of a session. Nobody waits for its acknowledgement: where it is lost, the target forgets the
/// session in its own time.
//= DCW-12 DCW-13
#[derive(Debug)]
pub(super) struct Farewell {
    pub(super) route: RouteTag,
    pub(super) peer: Peer,
    pub(super) psn: Psn,
}

//= DC-03
/// One sequence of sessions: where an initiator has streams, several go on at a time.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) requester: Requester,
    /// What goes to other targets than the requests before it.
    pub(super) held: VecDeque<Held>,
    pub(super) session: Option<Session>,
    pub(super) hello: Option<Hello>,
    /// When the session ends if nothing else is posted.
    pub(super) idle_at: Option<Time>,
}

impl Lane {
    pub(super) fn new(limits: SendLimits) -> Self {
        let mut requester = Requester::new(limits);
        // Who answers a session has shown that it is Rocade.
        requester.set_extended(true);
        Self {
            requester,
            held: VecDeque::new(),
            session: None,
            hello: None,
            idle_at: None,
        }
    }

    /// Does a request to `to` follow those before it at once?
    //= DC-07
    pub(super) fn goes_on(&self, to: Option<DcDestination>) -> bool {
        let in_session = |to| {
            self.session
                .as_ref()
                .is_some_and(|session| session.to == to)
        };
        to.is_none_or(in_session)
    }

    /// Has everything that was started ended?
    //= DC-06
    pub(super) fn is_quiet(&self) -> bool {
        self.requester.queued() == 0
    }

    /// If there is nothing more to do: the session ends before long.
    pub(super) fn note_idle(&mut self, now: Time) {
        if self.is_quiet() && self.held.is_empty() && self.session.is_some() {
            self.idle_at
                .get_or_insert_with(|| now.plus_ns(SESSION_IDLE_NS));
        }
    }

    /// Has something to do that it holds, which is released, or not?
    pub(super) fn may_switch(&self, is_released: bool) -> bool {
        let Some(next) = self.held.front().filter(|_| is_released) else {
            return false;
        };
        self.hello.is_none() && (self.is_quiet() || self.goes_on(next.to))
    }

    pub(super) fn has_work(&self, is_released: bool) -> bool {
        self.requester.has_work()
            || self.may_switch(is_released)
            || self.hello.as_ref().is_some_and(|hello| hello.is_due)
    }

    pub(super) fn next_timeout(&self) -> Option<Time> {
        let hello = self.hello.as_ref().and_then(|hello| hello.again_at);
        let all = [self.requester.next_timeout(), hello, self.idle_at];
        all.into_iter().flatten().min()
    }

    /// The ways of what is not complete.
    pub(super) fn routes(&self) -> impl Iterator<Item = RouteTag> {
        let held = self.held.iter().filter_map(|held| held.to);
        let session = self.session.iter().map(|session| session.to);
        let hello = self.hello.iter().map(|hello| hello.to);
        held.chain(session).chain(hello).map(|to| to.route)
    }

    /// Ends the session, if there is one; everything of it is complete.
    pub(super) fn part(&mut self) -> Option<Farewell> {
        self.idle_at = None;
        let Session { to, peer } = self.session.take()?;
        let psn = self.requester.next_psn();
        self.requester.skip_psn();
        Some(Farewell {
            route: to.route,
            peer,
            psn,
        })
    }

    /// Begins a session. `like` tells what all peers have in common.
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

/// Who packets to a target go to, outside of sessions.
pub(super) fn peer_at(to: DcDestination, like: &Peer) -> Peer {
    Peer {
        qpn: to.dct,
        local: to.local,
        remote: to.remote,
        ..like.clone()
    }
}
