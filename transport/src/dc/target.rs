//! The DC target: sessions of many initiators, one access key, one shared receive queue.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::IpAddr;

use rocade_wire::{
    CreditCode, DcEth, DcRespEth, Headers, Msn, Mtu, NakCode, Operation, Packet, Psn, Qpn,
    RocadeProbe, Service, Syndrome,
};

use super::session::{ChannelId, Session, SessionOutcome};
use super::{DctStatus, MAX_SESSIONS, ResponseRoute, SESSION_MEMORY_NS};
use crate::counters::DropReason;
use crate::cx::Cx;
use crate::event::QpEvent;
use crate::memory::{Memory, PdTag};
use crate::outputs::{Fatal, Outputs};
use crate::peer::{PacketMeta, Peer, SessionTag};
use crate::queue::SharedReceives;
use crate::responder::{Responder, ResponderAttr, push_ack};
use crate::rocade_probe::{probe_of, push_probe};
use crate::time::Time;
use crate::transmit::TxBuffer;
use crate::wr::RouteTag;

#[cfg(debug_assertions)]
mod invariants;

/// Most answers outside of sessions that wait to be sent. Further ones are dropped.
const MAX_STATELESS_REPLIES: usize = 64;
/// Time after which a silent session that still has work is looked at again.
const RECHECK_NS: u64 = SESSION_MEMORY_NS / 4;

/// Layout of a [`RouteTag`]: the highest bit marks a route to an initiator, the next one a route of
/// an answer outside of sessions.
const ANSWER: u64 = 1 << 63;
const STATELESS: u64 = 1 << 62;
const INDEX_BITS: u32 = 20;

/// An answer outside of sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReplyKind {
    Probe,
    Ack { psn: Psn, msn: Msn },
    Nak { psn: Psn, code: NakCode },
}

#[derive(Debug)]
struct StatelessReply {
    serial: u64,
    peer: Peer,
    kind: ReplyKind,
}

/// State of the event for the next wrong access key.
//= DCK-04
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ViolationEvent {
    Off,
    Armed,
    Fired,
}

#[derive(Debug)]
pub(crate) struct Target {
    receives: Arc<dyn SharedReceives>,
    /// The protection domain of its buffers and keys.
    pd: PdTag,
    attr: ResponderAttr,
    key: u64,
    violations: u32,
    violation_event: ViolationEvent,
    is_draining: bool,
    /// Sessions by index. The index of a session never changes.
    sessions: Vec<Option<Box<Session>>>,
    by_channel: BTreeMap<ChannelId, usize>,
    /// Sessions by [`Session::due`]. A packet does not move its session: the time is looked at
    /// when it has come.
    by_age: BTreeSet<(Time, usize)>,
    free: Vec<usize>,
    /// Sessions with packets to send.
    ready: VecDeque<usize>,
    /// Sessions whose messages have completed, in the order of the completions that were not handed
    /// out.
    unreported: VecDeque<usize>,
    replies: VecDeque<StatelessReply>,
    /// The answer outside of sessions that is in the caller's buffer.
    reply_in_buffer: Option<StatelessReply>,
    /// The session whose responses are in the caller's buffer.
    last: usize,
    serial: u64,
}

impl Target {
    pub(crate) fn new(receives: Arc<dyn SharedReceives>, pd: PdTag, max_rd_atomic: u8) -> Self {
        Self {
            receives,
            pd,
            attr: ResponderAttr {
                max_dest_rd_atomic: max_rd_atomic,
                ..ResponderAttr::NONE
            },
            key: 0,
            violations: 0,
            violation_event: ViolationEvent::Off,
            is_draining: false,
            sessions: Vec::new(),
            by_channel: BTreeMap::new(),
            by_age: BTreeSet::new(),
            free: Vec::new(),
            ready: VecDeque::new(),
            unreported: VecDeque::new(),
            replies: VecDeque::new(),
            reply_in_buffer: None,
            last: 0,
            serial: 0,
        }
    }

    pub(crate) const fn set_key(&mut self, key: u64) {
        self.key = key;
    }

    pub(crate) const fn set_attr(&mut self, attr: ResponderAttr) {
        self.attr.access = attr.access;
        self.attr.min_rnr_timer = attr.min_rnr_timer;
    }

    /// Requests one event for the next wrong access key.
    //= DCK-04 DCK-05
    pub(crate) const fn arm(&mut self) {
        self.violation_event = ViolationEvent::Armed;
    }

    /// Accepts no new sessions from now on.
    //= DCT-09 DCW-16
    pub(crate) const fn drain(&mut self) {
        self.is_draining = true;
    }

    //= DCT-07
    pub(crate) fn status(&self) -> DctStatus {
        let open = self
            .sessions
            .iter()
            .flatten()
            .filter(|session| session.is_open());
        DctStatus {
            key: self.key,
            key_violations: self.violations,
            sessions: open.count(),
            is_draining: self.is_draining,
        }
    }

    /// Returns how often the times of all sessions were read.
    #[cfg(test)]
    pub(crate) fn visits(&self) -> u32 {
        let sessions = self.sessions.iter().flatten();
        sessions.map(|session| session.visits()).sum()
    }

    /// Returns the destination of packets that take this route.
    pub(crate) fn response_route(&self, route: RouteTag) -> Option<ResponseRoute> {
        if route.0 & ANSWER == 0 {
            return None;
        }
        let peer = if route.0 & STATELESS != 0 {
            let is_it = |reply: &&StatelessReply| reply.route() == route;
            &self.reply_in_buffer.as_ref().filter(is_it)?.peer
        } else {
            let index = usize::try_from(route.0 & ((1 << INDEX_BITS) - 1)).ok()?;
            let session = self.sessions.get(index)?.as_ref()?;
            &session.peer
        };
        Some(ResponseRoute {
            local: peer.local,
            remote: peer.remote,
            dest: peer.qpn,
        })
    }

    /// Handles a packet to the target. The order of checks is service, P_Key, address, access key,
    /// session.
    //= DCW-17
    pub(crate) fn handle<H: Memory>(
        &mut self,
        cx: &mut Cx<'_, H>,
        meta: &PacketMeta,
        packet: &Packet<'_>,
    ) {
        let headers = packet.headers();
        if let Some(reason) = self.reject_reason(cx, meta, headers) {
            cx.out.counters.drop_packet(reason);
            return;
        }
        if headers.bth.opcode.service() == Service::Ud {
            self.handle_probe(cx, meta, packet);
            return;
        }
        let (Some(eth), Some(operation)) = (headers.dceth, headers.bth.opcode.operation()) else {
            cx.out.counters.drop_packet(DropReason::Reserved);
            return;
        };
        //= DCK-01
        if eth.key != self.key {
            self.note_violation(cx.out);
            return;
        }
        let channel_id = ChannelId {
            source: meta.source,
            dci: eth.dci,
            channel: eth.stream_channel,
        };
        let found = self.by_channel.get(&channel_id).copied();
        let known = found.and_then(|index| self.sessions[index].as_ref());
        let index = match (found, known) {
            (Some(index), Some(session)) if session.id == eth.session => index,
            //= DCW-09
            (Some(_), Some(session)) if is_before(eth.session, session.id) => {
                cx.out.counters.drop_packet(DropReason::NoSession);
                return;
            }
            _ => match self.begin(cx, channel_id, eth, headers, operation) {
                Some(index) => index,
                None => return,
            },
        };
        self.deliver(cx, index, headers, packet.payload());
    }

    fn reject_reason<H>(
        &self,
        cx: &Cx<'_, H>,
        meta: &PacketMeta,
        headers: &Headers,
    ) -> Option<DropReason> {
        let bth = &headers.bth;
        let is_probe = bth.opcode.service() == Service::Ud;
        //= BTH-15 BTH-06
        if !is_probe && !cx.peer.framing.owns(bth.opcode) {
            Some(DropReason::WrongService)
        } else if !bth.pkey.matches(cx.peer.pkey) {
            Some(DropReason::BadPkey)
        } else if meta.destination != cx.peer.local {
            //= DCT-04
            Some(DropReason::WrongAddress)
        } else {
            None
        }
    }

    #[cold]
    fn note_violation(&mut self, out: &mut Outputs) {
        //= DCK-03
        out.counters.drop_packet(DropReason::BadDcKey);
        //= DCK-07 DCT-08
        self.violations = self.violations.saturating_add(1);
        //= DCK-04
        if self.violation_event == ViolationEvent::Armed {
            self.violation_event = ViolationEvent::Fired;
            out.events.push(QpEvent::DctKeyViolation);
        }
    }

    //= DCW-18
    fn handle_probe<H>(&mut self, cx: &mut Cx<'_, H>, meta: &PacketMeta, packet: &Packet<'_>) {
        if let Some((RocadeProbe::Request, from)) = probe_of(packet) {
            self.queue_stateless_reply(
                Self::peer_without_session(cx, meta.source, from, None),
                ReplyKind::Probe,
            );
        } else {
            cx.out.counters.drop_packet(DropReason::WrongService);
        }
    }

    /// Returns a peer without a session.
    fn peer_without_session<H>(
        cx: &Cx<'_, H>,
        remote: IpAddr,
        dci: Qpn,
        session: Option<u32>,
    ) -> Peer {
        let tag = |id| {
            Box::new(SessionTag {
                id,
                key: 0,
                dci,
                stream_channel: 0,
                start: None,
            })
        };
        Peer {
            qpn: dci,
            remote,
            session: session.map(tag),
            ..cx.peer.clone()
        }
    }

    fn queue_stateless_reply(&mut self, peer: Peer, kind: ReplyKind) {
        if self.replies.len() < MAX_STATELESS_REPLIES {
            self.serial += 1;
            self.replies.push_back(StatelessReply {
                serial: self.serial,
                peer,
                kind,
            });
        }
    }

    /// Handles a packet of an unknown session, or of a newer one than the known one: begins the
    /// session, or answers with a NAK.
    //= DCW-09
    fn begin<H: Memory>(
        &mut self,
        cx: &mut Cx<'_, H>,
        channel_id: ChannelId,
        eth: DcEth,
        headers: &Headers,
        operation: Operation,
    ) -> Option<usize> {
        let psn = headers.bth.psn;
        let refuse = |target: &mut Self, cx: &mut Cx<'_, H>, code| {
            let peer = Self::peer_without_session(
                cx,
                channel_id.source,
                channel_id.dci,
                Some(eth.session),
            );
            target.queue_stateless_reply(peer, ReplyKind::Nak { psn, code });
        };
        if operation == Operation::Disconnect {
            cx.out.counters.drop_packet(DropReason::NoSession);
            return None;
        }
        //= DCW-16
        if self.is_draining {
            cx.out.counters.drop_packet(DropReason::State);
            return None;
        }
        if !eth.start {
            cx.out.counters.drop_packet(DropReason::NoSession);
            let code = NakCode::Reserved(DcRespEth::NAK_NO_SESSION);
            refuse(self, cx, code);
            return None;
        }
        //= DCT-05
        let pmtu = Mtu::from_code(eth.pmtu).filter(|mtu| mtu.bytes() <= cx.peer.pmtu_bytes());
        let Some(pmtu) = pmtu else {
            cx.out.counters.rare().fatal_naks_sent += 1;
            refuse(self, cx, NakCode::InvalidRequest);
            return None;
        };
        let Some(index) = self.place_for(cx, channel_id) else {
            //= DCW-11
            refuse(self, cx, NakCode::Reserved(DcRespEth::NAK_NO_RESOURCES));
            return None;
        };
        let peer = Peer {
            pmtu,
            ..cx.peer.clone()
        };
        let mut session = Session::new(
            channel_id,
            peer,
            (&self.receives, self.pd),
            self.attr,
            headers,
        );
        self.serial += 1;
        session.serial = self.serial;
        session.is_listed = self.ready.contains(&index);
        let due = cx.now.plus_ns(SESSION_MEMORY_NS);
        session.set_due(due);
        self.by_age.insert((due, index));
        self.sessions[index] = Some(Box::new(session));
        self.by_channel.insert(channel_id, index);
        Some(index)
    }

    /// Returns the index for the next session of an initiator: that of its previous session, or a
    /// free one.
    fn place_for<H: Memory>(&mut self, cx: &mut Cx<'_, H>, channel_id: ChannelId) -> Option<usize> {
        if let Some(&index) = self.by_channel.get(&channel_id) {
            self.forget(cx, index);
            return Some(index);
        }
        self.drop_silent(cx);
        if self.by_channel.len() >= MAX_SESSIONS {
            return None;
        }
        if let Some(index) = self.free.pop() {
            return Some(index);
        }
        self.sessions.push(None);
        Some(self.sessions.len() - 1)
    }

    /// Drops sessions without traffic for a long time.
    //= DCW-14 DCW-15
    fn drop_silent<H: Memory>(&mut self, cx: &mut Cx<'_, H>) {
        while let Some(&(due, index)) = self.by_age.first()
            && due <= cx.now
        {
            self.by_age.pop_first();
            let Some(session) = self.sessions[index].as_mut() else {
                continue;
            };
            let silent_at = session.silent_at();
            let is_busy = session.is_listed || self.unreported.contains(&index);
            if silent_at <= cx.now && !is_busy {
                self.forget(cx, index);
                self.free.push(index);
                continue;
            }
            let due = silent_at.max(cx.now.plus_ns(RECHECK_NS));
            session.set_due(due);
            self.by_age.insert((due, index));
        }
    }

    /// Drops a session that expects no more packets, so that its index can be used again.
    fn forget<H>(&mut self, cx: &mut Cx<'_, H>, index: usize) {
        if let Some(mut session) = self.sessions[index].take() {
            session.with(cx, Responder::flush);
            self.by_channel.remove(&session.channel_id);
            self.by_age.remove(&(session.due(), index));
        }
        // The order of completions stays the same. Only the session they belong to is forgotten.
        if self.unreported.contains(&index) {
            for of in &mut self.unreported {
                if *of == index {
                    *of = usize::MAX;
                }
            }
        }
    }

    fn deliver<H: Memory>(
        &mut self,
        cx: &mut Cx<'_, H>,
        index: usize,
        headers: &Headers,
        payload: &[u8],
    ) {
        let Some(session) = &mut self.sessions[index] else {
            return;
        };
        let before = session.responder.unreported();
        let outcome = session.handle(cx, headers, payload);
        let messages = session.responder.unreported().saturating_sub(before);
        for _ in 0..messages {
            self.unreported.push_back(index);
        }
        if session.responder.has_responses() && !session.is_listed {
            session.is_listed = true;
            self.ready.push_back(index);
        }
        if outcome == SessionOutcome::Acknowledge {
            let (psn, msn) = session.last_ack();
            let peer = session.peer.clone();
            self.queue_stateless_reply(peer, ReplyKind::Ack { psn, msn });
        }
    }

    pub(crate) fn has_responses(&self) -> bool {
        !self.ready.is_empty() || !self.replies.is_empty()
    }

    /// Returns the last positive ACK that waits to be sent to one of the initiators.
    pub(crate) fn newest_ack(&self) -> Option<(Psn, Msn)> {
        let sessions = self.ready.iter().rev();
        let mut sessions = sessions.filter_map(|index| self.sessions[*index].as_ref());
        sessions.find_map(|session| session.responder.newest_ack())
    }

    /// Appends answers to one initiator.
    pub(crate) fn poll_transmit<H: Memory>(&mut self, cx: &mut Cx<'_, H>, tx: &mut TxBuffer) {
        while let Some(reply) = self.replies.front() {
            let route = reply.route();
            if !tx.accepts_route(route) || !reply.push(cx.out.qp_num, tx) {
                return;
            }
            tx.set_route(route);
            cx.out.counters.traffic().tx_packets += 1;
            self.reply_in_buffer = self.replies.pop_front();
        }
        while let Some(&index) = self.ready.front() {
            let Some(session) = &mut self.sessions[index] else {
                self.ready.pop_front();
                continue;
            };
            let route = session.route(index);
            if !tx.accepts_route(route) {
                return;
            }
            let before = tx.segments();
            if session.with(cx, |responder, cx| responder.poll_transmit(cx, tx)) == Err(Fatal) {
                // Sends the NAK in place of the response.
                session.fail(cx);
                let sent = session.with(cx, |responder, cx| responder.poll_transmit(cx, tx));
                debug_assert!(sent.is_ok());
            }
            if tx.segments() > before {
                tx.set_route(route);
                self.last = index;
            }
            if session.responder.has_responses() {
                return;
            }
            session.is_listed = false;
            self.ready.pop_front();
            if !tx.is_empty() {
                return;
            }
        }
    }

    /// Handles the failure to read the payload of a response in the last buffer.
    pub(crate) fn fail_response<H>(&mut self, cx: &mut Cx<'_, H>, psn: Psn, replay: bool) {
        let index = self.last;
        let Some(session) = self.sessions.get_mut(index).and_then(Option::as_mut) else {
            return;
        };
        let has_failed = !session.is_open();
        let failed = session.with(cx, |responder, cx| {
            responder.fail_response(psn, (replay, has_failed), cx.out)
        });
        if failed == Err(Fatal) {
            session.fail(cx);
        }
        if session.responder.has_responses() && !session.is_listed {
            session.is_listed = true;
            self.ready.push_back(index);
        }
    }

    /// Notes that the completion of the oldest message was handed out.
    pub(crate) fn note_handed_out(&mut self) {
        let index = self.unreported.pop_front();
        let session = index.and_then(|index| self.sessions.get_mut(index)?.as_mut());
        if let Some(session) = session {
            session.responder.note_handed_out();
        }
    }

    /// Notes that the completions of all messages so far were handed out.
    pub(crate) fn note_reported(&mut self) {
        for index in self.unreported.drain(..) {
            if let Some(session) = self.sessions.get_mut(index).and_then(Option::as_mut) {
                session.responder.note_reported();
            }
        }
    }

    /// Keeps the first `seen` messages whose completions wait to be handed out. Later ones are
    /// never acknowledged.
    //= RC-ERR-G
    pub(crate) fn discard_unreported(&mut self, seen: usize) {
        for (index, session) in self.sessions.iter_mut().enumerate() {
            if let Some(session) = session {
                let told = self.unreported.iter().take(seen);
                let own = told.filter(|of| **of == index).count();
                session.responder.discard_unreported(own);
            }
        }
    }

    pub(crate) fn discard_responses(&mut self) {
        for session in self.sessions.iter_mut().flatten() {
            session.responder.discard_responses();
        }
    }

    /// Ends all sessions. Receives that were consumed and not completed complete in error.
    pub(crate) fn flush<H>(&mut self, cx: &mut Cx<'_, H>) {
        for session in self.sessions.iter_mut().flatten() {
            session.fail(cx);
        }
    }

    /// Drops all state without completions.
    pub(crate) fn reset(&mut self) {
        for session in self.sessions.iter_mut().flatten() {
            session.responder.reset();
        }
        self.sessions.clear();
        self.by_channel.clear();
        self.by_age.clear();
        self.free.clear();
        self.ready.clear();
        self.unreported.clear();
        self.replies.clear();
        self.is_draining = false;
    }
}

impl Session {
    /// Returns the route to the initiator of a session.
    fn route(&self, index: usize) -> RouteTag {
        RouteTag(ANSWER | (self.serial << INDEX_BITS) & (STATELESS - 1) | index as u64)
    }
}

impl StatelessReply {
    const fn route(&self) -> RouteTag {
        RouteTag(ANSWER | STATELESS | self.serial)
    }

    fn push(&self, from: Qpn, tx: &mut TxBuffer) -> bool {
        match self.kind {
            ReplyKind::Probe => push_probe(&self.peer, from, RocadeProbe::Reply, tx),
            ReplyKind::Ack { psn, msn } => {
                let syndrome = Syndrome::Ack(CreditCode::INVALID);
                push_ack(&self.peer, psn, msn, syndrome, tx)
            }
            ReplyKind::Nak { psn, code } => {
                push_ack(&self.peer, psn, Msn::new(0), Syndrome::Nak(code), tx)
            }
        }
    }
}

/// Returns true if a session ID is older than another, modulo 2^32.
//= DCW-07
const fn is_before(id: u32, other: u32) -> bool {
    id.wrapping_sub(other) > u32::MAX / 2
}
