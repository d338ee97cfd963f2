//! A session as seen by its target.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::net::IpAddr;
#[cfg(test)]
use core::sync::atomic::{AtomicU32, Ordering};

use rocade_wire::{Headers, Msn, Operation, Psn, Qpn};

use super::SESSION_MEMORY_NS;
use crate::counters::DropReason;
use crate::cx::Cx;
use crate::memory::{Memory, PdTag};
use crate::outputs::Fatal;
use crate::peer::{Peer, SessionTag};
use crate::queue::{RecvSource, SharedReceives};
use crate::responder::{Responder, ResponderAttr};
use crate::time::Time;

/// The identity of an initiator's channel: its sessions follow each other.
//= DCW-09
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ChannelId {
    pub(super) source: IpAddr,
    pub(super) dci: Qpn,
    pub(super) channel: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SessionState {
    Open,
    /// A request was refused: no further request is accepted.
    Failed,
    /// The initiator has ended the session with the packet of this PSN. Late packets are
    /// acknowledged and not executed.
    Over(Psn),
}

/// Work that is left after a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SessionOutcome {
    None,
    /// The session has ended: its DISCONNECT has to be acknowledged, for the first time or again.
    Acknowledge,
}

#[derive(Debug)]
pub(super) struct Session {
    pub(super) channel_id: ChannelId,
    pub(super) id: u32,
    pub(super) peer: Peer,
    pub(super) responder: Responder,
    state: SessionState,
    /// Time of the last received packet. [`Session::silent_at`] reads it.
    last: Time,
    /// Time at which the target looks whether the session is silent.
    due: Time,
    /// The session is queued to send.
    pub(super) is_listed: bool,
    /// Part of the [`RouteTag`](crate::wr::RouteTag) of the route to the initiator.
    pub(super) serial: u64,
    /// Number of times that the target has read these times.
    #[cfg(test)]
    visits: AtomicU32,
}

impl Session {
    /// Returns the time at which the target may forget the session, unless packets arrive.
    //= DCW-14 DCW-15
    pub(super) fn silent_at(&self) -> Time {
        #[cfg(test)]
        self.visits.fetch_add(1, Ordering::Relaxed);
        self.last.plus_ns(SESSION_MEMORY_NS)
    }

    /// Returns the time at which the target looks whether the session is silent.
    pub(super) fn due(&self) -> Time {
        #[cfg(test)]
        self.visits.fetch_add(1, Ordering::Relaxed);
        self.due
    }

    pub(super) const fn set_due(&mut self, due: Time) {
        self.due = due;
    }

    /// Returns how often the times of the session were read.
    #[cfg(test)]
    pub(super) fn visits(&self) -> u32 {
        self.visits.load(Ordering::Relaxed)
    }

    /// Returns PSN and MSN for an ACK of everything received.
    pub(super) fn last_ack(&self) -> (Psn, Msn) {
        let (psn, msn) = self.responder.last_ack();
        match self.state {
            SessionState::Over(end) => (end, msn),
            SessionState::Open | SessionState::Failed => (psn, msn),
        }
    }

    /// Creates a session that begins with a packet of this peer.
    pub(super) fn new(
        channel_id: ChannelId,
        peer: Peer,
        receives: (&Arc<dyn SharedReceives>, PdTag),
        attr: ResponderAttr,
        headers: &Headers,
    ) -> Self {
        let (srq, pd) = receives;
        let mut responder = Responder::new(RecvSource::OfTarget(Arc::clone(srq), pd));
        //= DC-13 DC-14
        responder.set_attr(attr);
        responder.start(headers.bth.psn);
        let id = headers.dceth.map_or(0, |eth| eth.session);
        let tag = SessionTag {
            id,
            key: 0,
            dci: channel_id.dci,
            stream_channel: channel_id.channel,
            start: None,
        };
        Self {
            channel_id,
            id,
            peer: Peer {
                qpn: channel_id.dci,
                remote: channel_id.source,
                session: Some(Box::new(tag)),
                ..peer
            },
            responder,
            state: SessionState::Open,
            last: Time::ZERO,
            due: Time::ZERO,
            is_listed: false,
            serial: 0,
            #[cfg(test)]
            visits: AtomicU32::new(0),
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.state == SessionState::Open
    }

    /// Calls `f` with the responder and a context with the initiator as peer.
    pub(super) fn with<H, R>(
        &mut self,
        cx: &mut Cx<'_, H>,
        f: impl FnOnce(&mut Responder, &mut Cx<'_, H>) -> R,
    ) -> R {
        let mut cx = Cx {
            now: cx.now,
            peer: &self.peer,
            who: cx.who,
            host: cx.host,
            out: &mut *cx.out,
        };
        let before = cx.out.completions.len();
        let result = f(&mut self.responder, &mut cx);
        for completion in cx.out.completions.iter_mut().skip(before) {
            //= DC-11
            completion.src_qp = self.channel_id.dci;
        }
        result
    }

    /// Refuses all further requests. A message in progress completes in error.
    pub(super) fn fail<H>(&mut self, cx: &mut Cx<'_, H>) {
        self.state = SessionState::Failed;
        self.with(cx, Responder::flush);
    }

    /// Handles a request of the session, or its DISCONNECT.
    pub(super) fn handle<H: Memory>(
        &mut self,
        cx: &mut Cx<'_, H>,
        headers: &Headers,
        payload: &[u8],
    ) -> SessionOutcome {
        self.last = cx.now;
        let psn = headers.bth.psn;
        let is_old = psn.diff(self.responder.epsn()) < 0;
        let is_end = headers.bth.opcode.operation() == Some(Operation::Disconnect);
        match (self.state, is_end) {
            //= DCW-12
            (SessionState::Open | SessionState::Failed, true) if !is_old => {
                self.state = SessionState::Over(psn);
                self.with(cx, Responder::flush);
                self.responder.discard_responses();
                cx.out.counters.traffic().rx_packets += 1;
                return SessionOutcome::Acknowledge;
            }
            (SessionState::Open, false) => {
                let result = self.with(cx, |responder, cx| {
                    responder.handle_request(cx, headers, payload)
                });
                if result == Err(Fatal) {
                    self.fail(cx);
                }
            }
            //= DCW-14
            (SessionState::Over(end), _) if is_old || is_end && psn == end => {
                cx.out.counters.rare().duplicate_requests += 1;
                return SessionOutcome::Acknowledge;
            }
            (SessionState::Failed, _) => cx.out.counters.drop_packet(DropReason::State),
            _ => cx.out.counters.drop_packet(DropReason::Duplicate),
        }
        SessionOutcome::None
    }
}
