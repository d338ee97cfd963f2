//! The DC initiator: schedules its channels and their targets.

use alloc::boxed::Box;
use alloc::collections::{BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::net::IpAddr;

use rocade_wire::{
    DcRespEth, Headers, NakCode, Operation, Packet, Psn, RnrTimer, RocadeProbe, Syndrome,
};

use super::DciStreams;
use super::stream_channel::{PendingDisconnect, PendingProbe, StreamChannel, peer_at};
use crate::attr::QpType;
use crate::completion::WcStatus;
use crate::counters::DropReason;
use crate::cross_channel::{CrossChannelQueue, Gate};
use crate::cx::Cx;
use crate::error::PostError;
use crate::memory::Memory;
use crate::outputs::Fatal;
use crate::peer::{PacketMeta, SessionTag};
use crate::queue::SendLimits;
use crate::requester::{Requester, RequesterAttr};
use crate::responder::push_without_payload;
use crate::rocade_probe::{probe_of, push_probe};
use crate::send_queue::SendAccount;
use crate::time::Time;
use crate::transmit::TxBuffer;
use crate::wr::{DcDestination, Operands, RouteTag, SendWr};

/// Timer code of a NAK for lack of resources: 1.28 ms.
//= DCW-11
const NO_RESOURCES_CODE: u8 = 14;
/// Most DISCONNECT packets that wait for room. Where there are more, the oldest are dropped.
const MAX_PENDING_DISCONNECTS: usize = 64;
/// Most addresses that are remembered as running Rocade.
const MAX_ROCADE_PEERS: usize = 4096;

#[derive(Debug)]
pub(crate) struct Initiator {
    /// The account of the WQEs of all channels.
    account: SendAccount,
    attr: RequesterAttr,
    channels: Vec<StreamChannel>,
    /// The channel that is polled next.
    turn: usize,
    /// The channel whose packets are in the caller's buffer.
    last: usize,
    /// With several channels: the channel of each work request posted since the last state change.
    recent: Vec<usize>,
    pending_disconnects: VecDeque<PendingDisconnect>,
    /// Addresses that have proved to run Rocade.
    rocade_peers: BTreeSet<IpAddr>,
    /// Streams in error, and how many of them move the initiator to ERR. Without streams the
    /// maximum is 0, and a single error does.
    errored: BTreeSet<u16>,
    max_errored: usize,
    next_session: u32,
    cross_channel: Option<Box<CrossChannelQueue>>,
    big_endian_results: bool,
}

impl Initiator {
    pub(crate) fn new(limits: SendLimits) -> Self {
        Self {
            account: SendAccount::new(limits),
            attr: RequesterAttr::NONE,
            channels: Vec::from([StreamChannel::new(limits.unbounded())]),
            turn: 0,
            last: 0,
            recent: Vec::new(),
            pending_disconnects: VecDeque::new(),
            rocade_peers: BTreeSet::new(),
            errored: BTreeSet::new(),
            max_errored: 0,
            next_session: 0,
            cross_channel: None,
            big_endian_results: false,
        }
    }

    /// Asserts in debug builds what holds between any two calls.
    #[cfg(debug_assertions)]
    pub(crate) fn check_invariants(&self) {
        let mut queued = 0;
        for channel in &self.channels {
            channel.requester.check_invariants();
            queued += channel.requester.queued() + channel.held.len();
            if channel.session.is_none() {
                assert!(
                    channel.requester.is_drained(),
                    "in flight without a session"
                );
            }
        }
        // A managed queue may count its incomplete requests only.
        if self.cross_channel.is_none() {
            self.account.check(queued);
        }
        assert!(self.turn <= self.channels.len() && self.last <= self.channels.len());
        assert!(self.errored.len() <= self.channels.len(), "{self:?}");
        assert!(self.pending_disconnects.len() <= MAX_PENDING_DISCONNECTS);
        assert!(self.rocade_peers.len() <= MAX_ROCADE_PEERS);
    }

    /// Enables cross-channel operations. An initiator with streams supports none, because streams
    /// have no common order.
    //= XCH-02
    pub(crate) fn set_cross_channel(&mut self, cross_channel: CrossChannelQueue) {
        debug_assert!(!self.has_streams());
        self.cross_channel = Some(Box::new(cross_channel));
        self.prepare_channels();
    }

    pub(crate) fn set_big_endian_results(&mut self, on: bool) {
        self.big_endian_results = on;
        self.prepare_channels();
    }

    /// Configures the requesters of the channels. Work requests wait for their release in the
    /// initiator, not in a requester.
    fn prepare_channels(&mut self) {
        for StreamChannel { requester, .. } in &mut self.channels {
            requester.set_big_endian_results(self.big_endian_results);
            if self.cross_channel.is_some() {
                requester.set_cross_channel(CrossChannelQueue {
                    gate: None,
                    counts_wqes: true,
                });
            }
        }
    }

    fn gate(&self) -> Option<&Gate> {
        self.cross_channel.as_ref()?.gate.as_deref()
    }

    /// Returns true if the gate allows to start the oldest work request that a channel holds.
    //= XCE-05
    fn is_released(&self, channel: &StreamChannel) -> bool {
        self.gate()
            .is_none_or(|gate| gate.is_open(channel.held.len()))
    }

    /// Sets the number of the first session and the streams, before first use.
    ///
    /// The number must differ from those of an earlier initiator with the same QP number.
    //= DCW-07
    pub(crate) fn set_up(&mut self, first_session: u32, streams: Option<DciStreams>) {
        self.next_session = first_session;
        if let Some(streams) = streams {
            let channels = 1 << streams.log_concurrent;
            self.channels.resize_with(channels, || {
                StreamChannel::new(self.account.limits.unbounded())
            });
            self.prepare_channels();
            self.max_errored = 1 << streams.log_errored;
        }
    }

    /// Returns true if the initiator has streams.
    pub(crate) const fn has_streams(&self) -> bool {
        self.max_errored > 0
    }

    /// Resets a stream in error, which accepts requests again. Returns false if it was not in
    /// error.
    //= DC-40
    pub(crate) fn reset_stream(&mut self, stream: u16) -> bool {
        self.errored.remove(&stream)
    }

    fn channel_of(&self, to: Option<DcDestination>) -> usize {
        to.map_or(0, |to| usize::from(to.stream) % self.channels.len())
    }

    pub(crate) fn queued(&self) -> usize {
        let queued = |channel: &StreamChannel| channel.requester.queued() + channel.held.len();
        self.channels.iter().map(queued).sum()
    }

    pub(crate) fn is_drained(&self) -> bool {
        self.channels
            .iter()
            .all(|channel| channel.requester.is_drained())
    }

    pub(crate) fn has_work(&self) -> bool {
        let has_work = |channel: &StreamChannel| channel.has_work(self.is_released(channel));
        !self.pending_disconnects.is_empty() || self.channels.iter().any(has_work)
    }

    /// Returns the routes of everything that is not complete.
    pub(crate) fn routes(&self) -> impl Iterator<Item = RouteTag> {
        let pending_disconnects = self
            .pending_disconnects
            .iter()
            .map(|pending_disconnect| pending_disconnect.route);
        self.channels
            .iter()
            .flat_map(StreamChannel::routes)
            .chain(pending_disconnects)
    }

    /// Queues a work request. Only a local operation may have no destination.
    pub(crate) fn post(
        &mut self,
        wr: &SendWr<'_>,
        to: Option<DcDestination>,
        inline: Option<&[u8]>,
    ) -> Result<(), PostError> {
        //= DCU-06 DCU-07
        if to.is_none() && !wr.op.is_local() {
            return Err(PostError::NoDestination);
        }
        if !wr.op.is_defined_for(QpType::DcInitiator) {
            return Err(PostError::UnsupportedOpcode);
        }
        let to = to.map(|to| DcDestination {
            stream: if self.has_streams() { to.stream } else { 0 },
            ..to
        });
        let cross_channel = self.cross_channel.as_deref();
        if self.account.used(self.queued(), cross_channel) >= self.account.limits.max_wr {
            return Err(PostError::QueueFull);
        }
        let index = self.channel_of(to);
        let channel = &mut self.channels[index];
        //= DC-04 DC-10 PST-11
        channel.requester.post(wr, inline)?;
        // WQEs are counted here, for all channels.
        channel.requester.free_wqes(1);
        self.account.note_posted();
        channel.idle_at = None;
        let is_managed =
            self.cross_channel
                .as_ref()
                .is_some_and(|cross_channel| match &cross_channel.gate {
                    Some(gate) => {
                        gate.note_posted();
                        true
                    }
                    None => false,
                });
        let is_dead = to.is_some_and(|to| self.errored.contains(&to.stream));
        //= DC-06
        if (is_dead || is_managed || !channel.held.is_empty() || !channel.goes_on(to))
            && let Some(wqe) = channel.requester.take_newest()
        {
            channel
                .held
                .push_back(super::stream_channel::HeldRequest { wqe, to });
        }
        if self.channels.len() > 1 {
            self.recent.push(index);
        }
        Ok(())
    }

    /// Sets the operands of the newest work request.
    pub(crate) fn set_operands(&mut self, operands: Operands) {
        let channel = &mut self.channels[self.recent.last().copied().unwrap_or(0)];
        match channel.held.back_mut() {
            Some(held) => held.wqe.set_operands(operands),
            None => channel.requester.set_operands(operands),
        }
    }

    /// Removes the newest `count` work requests. No other call has happened since they were posted.
    pub(crate) fn unpost(&mut self, count: usize) {
        for _ in 0..count {
            let channel = &mut self.channels[self.recent.pop().unwrap_or(0)];
            let wqe = channel.held.pop_back().map(|held| held.wqe);
            if wqe.or_else(|| channel.requester.take_newest()).is_some() {
                self.account.note_unposted(1);
                if let Some(gate) = self.gate() {
                    gate.note_unposted(1);
                }
            }
        }
    }

    /// Undoes the posting of the newest work request, which was flushed when it was posted, and its
    /// completion.
    pub(crate) const fn unflush(&mut self, freed_wqes: u32) {
        self.account.unflush(freed_wqes);
    }

    pub(crate) const fn free_wqes(&mut self, freed_wqes: u32) {
        self.account.free_wqes(freed_wqes);
    }

    pub(crate) fn start(&mut self, sq_psn: Psn) {
        for channel in &mut self.channels {
            channel.requester.start(sq_psn);
        }
    }

    pub(crate) fn set_attr(&mut self, attr: RequesterAttr) {
        self.attr = attr;
        for channel in &mut self.channels {
            channel.requester.set_attr(attr);
        }
    }

    /// Calls `f` with the requester of a channel and a context with the peer of the channel.
    fn with_channel<H, R>(
        &mut self,
        cx: &mut Cx<'_, H>,
        index: usize,
        f: impl FnOnce(&mut Requester, &mut Cx<'_, H>) -> R,
    ) -> R {
        let channel = &mut self.channels[index];
        let peer = channel
            .session
            .as_ref()
            .map_or(cx.peer, |session| &session.peer);
        let mut cx = Cx {
            now: cx.now,
            peer,
            who: cx.who,
            host: cx.host,
            out: &mut *cx.out,
        };
        *channel.requester.unsignaled_done_mut() = self.account.unsignaled_done;
        let result = f(&mut channel.requester, &mut cx);
        self.account.unsignaled_done = *channel.requester.unsignaled_done_mut();
        *channel.requester.unsignaled_done_mut() = 0;
        result
    }

    /// Ends the session of a channel.
    fn end_session(&mut self, index: usize) {
        if let Some(pending_disconnect) = self.channels[index].end_session() {
            if self.pending_disconnects.len() >= MAX_PENDING_DISCONNECTS {
                self.pending_disconnects.pop_front();
            }
            self.pending_disconnects.push_back(pending_disconnect);
        }
    }

    /// Handles the failure of a channel by reporting the error.
    ///
    /// Without streams, the initiator moves to ERR. With streams, only the stream does, until too
    /// many streams are in error.
    //= DC-09 DC-40
    fn fail_channel<H>(&mut self, cx: &mut Cx<'_, H>, index: usize) -> Result<(), Fatal> {
        let channel = &self.channels[index];
        let session = channel.session.as_ref().map(|session| session.to);
        let probe = channel.probe.as_ref().map(|probe| probe.to);
        let Some(to) = session.or(probe).filter(|_| self.has_streams()) else {
            return Err(Fatal);
        };
        self.errored.insert(to.stream);
        if self.errored.len() >= self.max_errored {
            return Err(Fatal);
        }
        self.with_channel(cx, index, Requester::flush);
        self.end_session(index);
        self.channels[index].probe = None;
        Ok(())
    }

    /// Lets a channel proceed to the next target once it has completed everything for the last one.
    fn advance<H>(&mut self, cx: &mut Cx<'_, H>, index: usize) {
        loop {
            if !self.is_released(&self.channels[index]) {
                return;
            }
            let channel = &mut self.channels[index];
            let Some(to) = channel.held.front().map(|held| held.to) else {
                return;
            };
            let is_dead = to.is_some_and(|to| self.errored.contains(&to.stream));
            if !is_dead && channel.goes_on(to) {
                if let Some(held) = channel.held.pop_front() {
                    channel.requester.put(held.wqe);
                }
                continue;
            }
            //= DC-06
            let (Some(to), true) = (to, channel.is_idle()) else {
                return;
            };
            if is_dead {
                //= DC-40
                if let Some(held) = channel.held.pop_front() {
                    channel.requester.put(held.wqe);
                }
                self.with_channel(cx, index, Requester::flush);
                continue;
            }
            self.end_session(index);
            //= RXE-115
            if !self.rocade_peers.contains(&to.remote) {
                self.ask(cx, index, to);
                return;
            }
            self.channels[index].probe = None;
            self.open(cx, index, to);
        }
    }

    fn ask<H>(&mut self, cx: &Cx<'_, H>, index: usize, to: DcDestination) {
        let channel = &mut self.channels[index];
        let asks = channel.probe.as_ref().is_some_and(|probe| probe.to == to);
        if !asks {
            channel.probe = Some(PendingProbe {
                to,
                peer: peer_at(to, cx.peer),
                is_due: true,
                again_at: None,
                tries_left: self.attr.retry_cnt,
            });
        }
    }

    fn open<H>(&mut self, cx: &Cx<'_, H>, index: usize, to: DcDestination) {
        let id = self.next_session;
        self.next_session = id.wrapping_add(1);
        let tag = SessionTag {
            id,
            key: to.key,
            dci: cx.who.qpn,
            stream_channel: u8::try_from(index).unwrap_or(0),
            start: None,
        };
        let channel = &mut self.channels[index];
        channel.requester.set_attr(self.attr);
        channel.open(to, cx.peer, tag);
    }

    /// Appends requests of one channel, and reports requests that have failed.
    pub(crate) fn poll_transmit<H: Memory>(
        &mut self,
        cx: &mut Cx<'_, H>,
        tx: &mut TxBuffer,
    ) -> Result<(), Fatal> {
        self.recent.clear();
        if !self.send_disconnects(tx) {
            return Ok(());
        }
        let count = self.channels.len();
        for offset in 0..count {
            let index = (self.turn + offset) % count;
            if self.poll_streams(cx, index, tx)? {
                self.turn = (index + 1) % count;
                return Ok(());
            }
        }
        // A stream that has failed without a packet leaves a DISCONNECT. The caller takes an empty
        // buffer for the end, so that it goes out now or never.
        self.send_disconnects(tx);
        Ok(())
    }

    /// Appends requests of one channel. If its stream fails before it sends anything, the channel
    /// goes on with its other streams: no event would call for their requests later.
    ///
    /// Returns true if packets were appended, or if no more can be.
    //= DC-40
    fn poll_streams<H: Memory>(
        &mut self,
        cx: &mut Cx<'_, H>,
        index: usize,
        tx: &mut TxBuffer,
    ) -> Result<bool, Fatal> {
        loop {
            let sent = self.poll_channel(cx, index, tx);
            let failed = self.with_channel(cx, index, Requester::check_failed);
            if failed.is_ok() {
                return Ok(sent);
            }
            self.fail_channel(cx, index)?;
            if sent {
                return Ok(true);
            }
        }
    }

    /// Returns true if packets were appended, or if no more can be.
    fn poll_channel<H: Memory>(
        &mut self,
        cx: &mut Cx<'_, H>,
        index: usize,
        tx: &mut TxBuffer,
    ) -> bool {
        loop {
            self.advance(cx, index);
            let channel = &mut self.channels[index];
            if let Some(probe) = channel.probe.as_mut().filter(|probe| probe.is_due) {
                if !tx.accepts_route(probe.to.route)
                    || !push_probe(&probe.peer, cx.who.qpn, RocadeProbe::Request, tx)
                {
                    return true;
                }
                tx.set_route(probe.to.route);
                probe.is_due = false;
                let wait_ns = self.attr.ack_timeout_ns();
                probe.again_at = wait_ns.map(|ns| cx.now.plus_ns(ns));
                return true;
            }
            let route = channel.session.as_ref().map(|session| session.to.route);
            if route.is_some_and(|route| !tx.accepts_route(route)) {
                return true;
            }
            let before = tx.segments();
            self.with_channel(cx, index, |requester, cx| requester.poll_transmit(cx, tx));
            if let Some(route) = route.filter(|_| tx.segments() > before) {
                tx.set_route(route);
                self.last = index;
                return true;
            }
            // A local operation may have completed.
            let is_released = self.is_released(&self.channels[index]);
            let channel = &mut self.channels[index];
            if !channel.may_switch(is_released) {
                channel.note_idle(cx.now);
                return false;
            }
        }
    }

    /// Appends pending DISCONNECT packets. Returns false if some are left.
    //= DCW-12
    pub(crate) fn send_disconnects(&mut self, tx: &mut TxBuffer) -> bool {
        while let Some(PendingDisconnect { route, peer, psn }) = self.pending_disconnects.front() {
            let mut head = peer.head(Operation::Disconnect, *psn, 0);
            head.bth.ack_req = true;
            if !tx.accepts_route(*route) || !push_without_payload(&head, tx) {
                return false;
            }
            tx.set_route(*route);
            self.pending_disconnects.pop_front();
        }
        true
    }

    /// Handles a packet to the initiator that is a response.
    pub(crate) fn handle_response<H: Memory>(
        &mut self,
        cx: &mut Cx<'_, H>,
        meta: &PacketMeta,
        headers: &Headers,
        payload: &[u8],
    ) -> Result<(), Fatal> {
        let id = headers.dcreth.map(|eth| eth.session);
        let of_session = |channel: &StreamChannel| {
            let session = channel.session.as_ref();
            session.is_some_and(|session| id.is_some_and(|id| session.is(id)))
        };
        let Some(index) = self.channels.iter().position(of_session) else {
            cx.out.counters.drop_packet(DropReason::NoSession);
            return Ok(());
        };
        //= DCW-06
        let channel = &self.channels[index];
        let peer = channel
            .session
            .as_ref()
            .map_or(cx.peer, |session| &session.peer);
        if let Some(reason) = peer.reject_reason(meta, &headers.bth) {
            cx.out.counters.drop_packet(reason);
            return Ok(());
        }
        let result = self.with_channel(cx, index, |requester, cx| {
            take_response(requester, cx, headers, payload).and_then(|()| requester.check_failed(cx))
        });
        let channel = &mut self.channels[index];
        let una = channel.requester.una();
        if let Some(session) = &mut channel.session {
            session.note_una(una);
        }
        channel.note_idle(cx.now);
        result.or_else(|Fatal| self.fail_channel(cx, index))
    }

    /// Handles a datagram to the initiator that shows that its sender runs Rocade.
    //= DCW-18
    pub(crate) fn handle_datagram<H>(
        &mut self,
        cx: &mut Cx<'_, H>,
        meta: &PacketMeta,
        packet: &Packet<'_>,
    ) {
        let (who, local) = (meta.source, meta.destination);
        let awaited = |probe: &mut PendingProbe| probe.to.remote == who && probe.to.local == local;
        let is_reply = matches!(probe_of(packet), Some((RocadeProbe::Reply, _)));
        let is_ours = packet.bth().pkey.matches(cx.peer.pkey);
        let mut was_awaited = false;
        if is_reply && is_ours {
            for channel in &mut self.channels {
                was_awaited |= channel.probe.take_if(awaited).is_some();
            }
        }
        if !was_awaited {
            cx.out.counters.drop_packet(DropReason::WrongService);
            return;
        }
        if self.rocade_peers.len() >= MAX_ROCADE_PEERS {
            self.rocade_peers.clear();
        }
        self.rocade_peers.insert(who);
    }

    pub(crate) fn next_timeout(&self) -> Option<Time> {
        self.channels
            .iter()
            .filter_map(StreamChannel::next_timeout)
            .min()
    }

    pub(crate) fn handle_timeout<H>(&mut self, cx: &mut Cx<'_, H>) -> Result<(), Fatal> {
        for index in 0..self.channels.len() {
            let result = self
                .with_channel(cx, index, Requester::handle_timeout)
                .and_then(|()| self.repeat_probe(cx, index));
            if result.is_err() {
                // Another implementation may have this address by now.
                let session = self.channels[index].session.as_ref();
                if let Some(remote) = session.map(|session| session.to.remote) {
                    self.rocade_peers.remove(&remote);
                }
                self.fail_channel(cx, index)?;
            }
            let channel = &mut self.channels[index];
            if channel.idle_at.take_if(|at| *at <= cx.now).is_some() {
                self.end_session(index);
            }
        }
        Ok(())
    }

    fn repeat_probe<H>(&mut self, cx: &mut Cx<'_, H>, index: usize) -> Result<(), Fatal> {
        let channel = &mut self.channels[index];
        let Some(probe) = &mut channel.probe else {
            return Ok(());
        };
        if probe.again_at.is_none_or(|at| at > cx.now) {
            return Ok(());
        }
        if channel.held.is_empty() {
            channel.probe = None;
            return Ok(());
        }
        cx.out.counters.rare().timeouts += 1;
        probe.again_at = None;
        if probe.tries_left > 0 {
            probe.tries_left -= 1;
            probe.is_due = true;
            return Ok(());
        }
        //= DC-09
        if let Some(held) = channel.held.pop_front() {
            channel.requester.put(held.wqe);
        }
        Err(self.with_channel(cx, index, |requester, cx| {
            requester.fail(cx, WcStatus::RetryExcErr)
        }))
    }

    /// Handles the failure to read the payload of a request in the last buffer.
    pub(crate) fn fail_request<H>(&mut self, cx: &mut Cx<'_, H>, psn: Psn) -> Result<(), Fatal> {
        let index = self.last;
        self.with_channel(cx, index, |requester, cx| {
            requester.fail_request(cx.now, psn);
            requester.check_failed(cx)
        })
        .or_else(|Fatal| self.fail_channel(cx, index))
    }

    /// Ends all sessions, including those with packets in flight.
    //= DCW-12
    pub(crate) fn flush<H>(&mut self, cx: &mut Cx<'_, H>) {
        for index in 0..self.channels.len() {
            let channel = &mut self.channels[index];
            channel.probe = None;
            for held in channel.held.drain(..) {
                channel.requester.put(held.wqe);
            }
            self.with_channel(cx, index, Requester::flush);
            self.end_session(index);
        }
    }

    /// Ends the sessions without packets in flight, before the initiator is reset.
    pub(crate) fn end_idle_sessions(&mut self) {
        for index in 0..self.channels.len() {
            if self.channels[index].is_idle() {
                self.end_session(index);
            }
        }
    }

    pub(crate) fn reset(&mut self) {
        for channel in &mut self.channels {
            *channel = StreamChannel::new(self.account.limits.unbounded());
        }
        self.prepare_channels();
        if let Some(gate) = self.gate() {
            gate.reset();
        }
        self.account = SendAccount::new(self.account.limits);
        self.recent.clear();
        self.pending_disconnects.clear();
        self.errored.clear();
        self.attr = RequesterAttr::NONE;
    }
}

/// Handles a response within its session.
fn take_response<H: Memory>(
    requester: &mut Requester,
    cx: &mut Cx<'_, H>,
    headers: &Headers,
    payload: &[u8],
) -> Result<(), Fatal> {
    let code = match (headers.bth.opcode.operation(), headers.aeth) {
        (Some(Operation::Acknowledge), Some(aeth)) => match aeth.syndrome {
            Syndrome::Nak(NakCode::Reserved(code)) => Some(code),
            Syndrome::Ack(_) | Syndrome::RnrNak(_) | Syndrome::Nak(_) | Syndrome::Reserved(_) => {
                None
            }
        },
        _ => None,
    };
    if code.is_some() && !requester.awaits(headers.bth.psn) {
        cx.out.counters.drop_packet(DropReason::GhostResponse);
        return Ok(());
    }
    match code {
        //= DCW-10
        // If the START is acknowledged, the NAK may be a late one from before. If not, the target
        // has lost its state, and the retries end in an error.
        Some(DcRespEth::NAK_NO_SESSION) => requester.sequence_error(cx),
        //= DCW-11
        Some(DcRespEth::NAK_NO_RESOURCES) => {
            let timer = RnrTimer::new(NO_RESOURCES_CODE).unwrap_or(RnrTimer::LONGEST);
            requester.receiver_not_ready(cx, timer)
        }
        _ => requester.handle_response(cx, headers, payload),
    }
}
