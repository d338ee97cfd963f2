//! A queue pair: entry points only.

mod attributes;
mod config;
mod counts;
mod dynamic;
mod ecn;
mod fast_path;
mod frames;
mod inject;
mod invariants;
mod migrate;
mod modify;
mod op_count;
mod partial_batch;
mod peer_traits;
mod pkeys;
mod side;
mod snapshot;
mod state;
mod transmit;

use alloc::boxed::Box;
use core::net::IpAddr;

use rocade_wire::{Headers, Operation, Packet, Pkey, Qpn, Service};

use attributes::Attributes;
pub use config::{AlternateContext, ModifyContext, QpConfig, QpLimits};
use ecn::PendingNotices;
use side::{RecvSide, SendSide};
pub use state::{TransitionRule, experimental_rule, transition_rule};
pub use transmit::AckTerms;

use crate::attr::{QpAttr, QpAttrMask, QpState, QpType};
use crate::coalesce::Coalescer;
use crate::completion::{Completion, WcStatus};
use crate::counters::DropReason;
use crate::cross_channel::{CrossChannelQueue, Managed};
use crate::cx::Cx;
use crate::dc::Initiator;
use crate::error::{ModifyError, PostError};
use crate::event::QpEvent;
use crate::failure::Failure;
use crate::memory::Memory;
use crate::outputs::{Fatal, Outputs};
use crate::peer::{Framing, PacketMeta, Peer};
use crate::queue::{Receives, RecvLimits, RecvSource, SendLimits, Srqn};
use crate::rate::CongestionControl;
use crate::time::Time;
use crate::unreliable::Sender;
use crate::wr::{Destination, Operands, RouteTag, SendWr, Sge};

/// A queue pair. See the crate documentation for the order of calls.
#[derive(Debug)]
pub struct Qp {
    config: QpConfig,
    attr: Attributes,
    state: QpState,
    peer: Peer,
    send: SendSide,
    recv: RecvSide,
    comm_est_raised: bool,
    /// The QP has migrated, and [`Qp::take_migrated`] was not called yet.
    has_migrated: bool,
    pending_notices: PendingNotices,
    /// Set while congestion control is on: marks are answered, and notifications reduce the rate.
    control: Option<Box<CongestionControl>>,
    out: Outputs,
    coalescer: Coalescer,
}

impl Qp {
    /// Creates a QP in RESET. An XRC target takes its receives from a domain, and no other type
    /// does.
    ///
    /// `None` if this crate has no state machine for the type, or if `receives` does not fit the
    /// type.
    #[must_use]
    pub fn new(config: QpConfig, receives: Receives) -> Option<Self> {
        let framing = Framing::of(config.qp_type);
        let is_target = config.qp_type == QpType::DcTarget;
        //= XRC-01
        let of_domain = matches!(receives, Receives::Domain(_));
        if of_domain != (config.qp_type == QpType::XrcRecv) {
            return None;
        }
        let send_limits = SendLimits {
            max_wr: config.cap.max_send_wr,
            max_sge: config.cap.max_send_sge,
            max_inline: config.cap.max_inline_data,
            sig_all: config.sq_sig_all,
        };
        let recv_limits = RecvLimits {
            max_wr: config.cap.max_recv_wr,
            max_sge: config.cap.max_recv_sge,
        };
        Some(Self {
            config,
            attr: Attributes::default(),
            state: QpState::Reset,
            peer: Peer::unknown(framing),
            send: SendSide::of(config.qp_type, send_limits)?,
            recv: RecvSide::of(
                &config,
                match receives {
                    Receives::Shared(srq) if is_target => RecvSource::OfTarget(srq, config.pd),
                    Receives::Own | Receives::Shared(_) | Receives::Domain(_) => {
                        RecvSource::new(receives, config.pd, recv_limits)
                    }
                },
            )?,
            comm_est_raised: false,
            has_migrated: false,
            pending_notices: PendingNotices::NONE,
            control: None,
            out: Outputs::new(config.qp_num),
            coalescer: Coalescer::default(),
        })
    }

    /// Enables cross-channel operations of the queues. Call it before anything is posted.
    ///
    /// UD queues, shared receive queues and initiators with streams do not support them.
    //= XCH-02
    pub fn manage(&mut self, managed: Managed) {
        let cross_channel = CrossChannelQueue {
            gate: managed.send,
            counts_wqes: !managed.sends_untaken,
        };
        match &mut self.send {
            SendSide::Reliable(requester) => requester.set_cross_channel(cross_channel),
            SendSide::Dynamic(initiator) => initiator.set_cross_channel(cross_channel),
            SendSide::Unreliable(sender) => sender.set_cross_channel(cross_channel),
            SendSide::Frames(_) | SendSide::None => {}
        }
        if let Some(RecvSource::Own(queue)) = self.recv.receives_mut() {
            queue.set_cross_channel(CrossChannelQueue {
                gate: managed.recv,
                counts_wqes: !managed.receives_untaken,
            });
        }
    }

    /// Returns the QP number.
    #[must_use]
    pub const fn qp_num(&self) -> Qpn {
        self.config.qp_num
    }

    /// Returns the QP number of the peer, valid from RTR on.
    #[must_use]
    pub const fn dest_qp(&self) -> Qpn {
        self.peer.qpn
    }

    /// Returns the state.
    #[must_use]
    pub const fn state(&self) -> QpState {
        self.state
    }

    /// Returns the source address of packets, valid from RTR on.
    #[must_use]
    pub const fn local(&self) -> IpAddr {
        self.peer.local
    }

    /// Returns the destination address of packets, valid from RTR on.
    #[must_use]
    pub const fn remote(&self) -> IpAddr {
        self.peer.remote
    }

    /// Returns the P_Key of packets, valid from INIT on.
    #[must_use]
    pub const fn pkey(&self) -> Pkey {
        self.peer.pkey
    }

    /// Returns the IPv4 TOS or IPv6 traffic class of packets.
    #[must_use]
    pub const fn traffic_class(&self) -> u8 {
        self.attr.ah_attr.traffic_class
    }

    /// Returns true if received requests are acknowledged: RC, XRC target and DC.
    #[inline]
    #[must_use]
    pub const fn is_reliable(&self) -> bool {
        matches!(self.recv, RecvSide::Reliable(_)) || self.config.qp_type.is_dynamic()
    }

    /// Returns the configuration that the QP was created with.
    #[must_use]
    pub const fn config(&self) -> &QpConfig {
        &self.config
    }

    /// Returns the port number, from 1. Valid from INIT on.
    #[must_use]
    pub const fn port_num(&self) -> u8 {
        self.attr.port_num
    }

    /// Returns the number of incomplete send work requests.
    #[must_use]
    pub fn send_queue_len(&self) -> usize {
        self.send.queued()
    }

    /// Returns the bytes of RC and XRC that are sent and not acknowledged, and the bytes that may
    /// be. Both are 0 if nothing is in flight. A short packet counts as a longer one.
    #[must_use]
    pub fn flight(&self) -> (u64, u64) {
        self.send.flight()
    }

    /// Returns the number of incomplete receive work requests.
    #[must_use]
    pub fn recv_queue_len(&self) -> usize {
        self.recv.queued()
    }

    /// Returns all current attributes.
    #[must_use]
    pub fn query(&self) -> QpAttr {
        let draining = self.state == QpState::Sqd && !self.send.is_drained();
        QpAttr {
            qp_state: self.state.code(),
            cur_qp_state: self.state.code(),
            sq_draining: draining,
            ..self.attr.all(self.config.cap)
        }
    }

    /// Changes attributes and state, all or nothing.
    ///
    /// # Errors
    /// [`ModifyError`] (EINVAL) if the state allows no such transition, or an attribute is missing,
    /// unexpected or invalid. Nothing has changed.
    pub fn modify(
        &mut self,
        now: Time,
        attr: &QpAttr,
        mask: QpAttrMask,
        context: &ModifyContext,
    ) -> Result<(), ModifyError> {
        let result = modify::modify(self, now, attr, mask, context);
        self.check_invariants();
        result
    }

    /// Sets the rate of requests in kbit/s. 0 is unlimited. [`Qp::query`] returns it.
    ///
    /// The rate applies to RC and XRC requests only, not to responses.
    ///
    /// # Errors
    /// [`ModifyError::NoTransition`] unless the QP is connected (RTR, RTS or SQD).
    //= QPS-05
    pub fn set_rate_limit(&mut self, kbps: u32) -> Result<(), ModifyError> {
        match self.state {
            QpState::Rtr | QpState::Rts | QpState::Sqd => {
                self.attr.rate_limit = kbps;
                if let SendSide::Reliable(requester) = &mut self.send {
                    requester.set_rate(kbps);
                }
                Ok(())
            }
            QpState::Reset | QpState::Init | QpState::Sqe | QpState::Err => {
                Err(ModifyError::NoTransition)
            }
        }
    }

    /// Queues a send work request. `inline` is its data if the caller has copied it.
    ///
    /// # Errors
    /// [`PostError`] if the state or the queue accepts no request, or the request is invalid. The
    /// request is not queued.
    pub fn post_send(
        &mut self,
        now: Time,
        wr: &SendWr<'_>,
        inline: Option<&[u8]>,
    ) -> Result<(), PostError> {
        self.may_post()?;
        match &mut self.send {
            SendSide::Reliable(requester) => requester.post(wr, inline)?,
            send @ (SendSide::Dynamic(_)
            | SendSide::Unreliable(_)
            | SendSide::Frames(_)
            | SendSide::None) => send.post(wr, None, inline)?,
        }
        self.flush_posted(now);
        self.check_invariants();
        Ok(())
    }

    /// Queues a send work request for a datagram.
    ///
    /// # Errors
    /// [`PostError`] if the state or the queue accepts no request, or the request is invalid. The
    /// request is not queued.
    pub fn post_datagram(
        &mut self,
        now: Time,
        wr: &SendWr<'_>,
        to: Destination,
        inline: Option<&[u8]>,
    ) -> Result<(), PostError> {
        self.may_post()?;
        self.send.post(wr, Some(to), inline)?;
        self.flush_posted(now);
        self.check_invariants();
        Ok(())
    }

    /// Returns the routes of the datagrams and DC requests that are not complete.
    pub fn queued_routes(&self) -> impl Iterator<Item = RouteTag> {
        let (sender, initiator) = match &self.send {
            SendSide::Unreliable(sender) => (Some(sender), None),
            SendSide::Dynamic(initiator) => (None, Some(&**initiator)),
            SendSide::Reliable(_) | SendSide::Frames(_) | SendSide::None => (None, None),
        };
        let of_datagrams = sender.into_iter().flat_map(Sender::routes);
        of_datagrams.chain(initiator.into_iter().flat_map(Initiator::routes))
    }

    #[inline]
    const fn may_post(&self) -> Result<(), PostError> {
        match self.state {
            //= PST-01 PST-02 PST-03
            QpState::Reset | QpState::Init | QpState::Rtr => Err(PostError::InvalidState),
            //= PST-04 PST-05
            //= PST-06 PST-07
            QpState::Rts | QpState::Sqd | QpState::Sqe | QpState::Err => Ok(()),
        }
    }

    #[inline]
    fn flush_posted(&mut self, now: Time) {
        if matches!(self.state, QpState::Err | QpState::Sqe) {
            //= RC-STA-02
            let (send, _, mut cx) = self.sides(now, &());
            send.flush(&mut cx);
        }
    }

    /// Returns true if every WQE of the send queue is in use. Other than for RC and XRC, only
    /// posting finds that out.
    #[inline]
    #[must_use]
    pub const fn is_send_full(&self) -> bool {
        let SendSide::Reliable(requester) = &self.send else {
            return false;
        };
        requester.is_full()
    }

    /// Returns true if every WQE of its own receive queue is in use.
    #[inline]
    #[must_use]
    pub const fn is_recv_full(&self) -> bool {
        // RC first: one comparison in the most frequent case.
        let receives = match &self.recv {
            RecvSide::Reliable(responder) => Some(responder.receives()),
            other @ (RecvSide::None
            | RecvSide::Connected(_)
            | RecvSide::Datagrams(_)
            | RecvSide::Frames(_)
            | RecvSide::Target(_)) => other.receives(),
        };
        match receives {
            Some(RecvSource::Own(queue)) => queue.is_full(),
            _ => false,
        }
    }

    /// Sets the byte order of the original values that atomics return: big-endian unit by unit, or
    /// host byte order.
    ///
    /// That is `IBV_EXP_QP_CREATE_ATOMIC_BE_REPLY`. Call it before anything is posted.
    //= XAT-05
    pub fn set_big_endian_results(&mut self, on: bool) {
        match &mut self.send {
            SendSide::Reliable(requester) => requester.set_big_endian_results(on),
            SendSide::Dynamic(initiator) => initiator.set_big_endian_results(on),
            SendSide::Unreliable(_) | SendSide::Frames(_) | SendSide::None => {}
        }
    }

    /// Sets the operands of the newest send work request, whose operation needs them. Call it
    /// directly after posting.
    pub fn set_operands(&mut self, operands: Operands) {
        match &mut self.send {
            SendSide::Reliable(requester) => requester.set_operands(operands),
            SendSide::Dynamic(initiator) => initiator.set_operands(operands),
            SendSide::Unreliable(sender) => sender.set_operands(operands),
            SendSide::Frames(_) | SendSide::None => {}
        }
    }

    /// Sets the XRC SRQ of the peer that the newest send work request goes to. Call it directly
    /// after posting.
    ///
    /// An XRC initiator names an SRQ with each request.
    pub fn set_remote_srqn(&mut self, srqn: Srqn) {
        if let SendSide::Reliable(requester) = &mut self.send {
            requester.set_remote_srqn(srqn);
        }
    }

    /// Returns WQEs to the send or receive queue after the application has polled completions.
    ///
    /// `freed_wqes` is the sum of their [`Completion::freed_wqes`], and so many more work requests
    /// fit in.
    //= RC-WQE-03
    pub fn free_wqes(&mut self, is_send: bool, freed_wqes: u32) {
        if is_send {
            self.send.free_wqes(freed_wqes);
        } else {
            self.recv.free_wqes(freed_wqes);
        }
    }

    /// Removes the newest `count` send work requests. No other call has happened since they were
    /// posted.
    ///
    /// If they were flushed at once, their completions are removed, too.
    pub fn unpost_send(&mut self, count: usize) {
        if matches!(self.state, QpState::Err | QpState::Sqe) {
            for _ in 0..count {
                if let Some(completion) = self.out.completions.pop_back() {
                    debug_assert!(completion.is_send());
                    self.send.unflush(completion.freed_wqes);
                }
            }
        } else {
            self.send.unpost(count);
        }
        self.check_invariants();
    }

    /// Returns true if posted requests of `bytes` bytes are delayed for batching. If not, transmit
    /// everything. Unreliable packets count as in flight, because no ACK tells when they are not.
    #[inline]
    pub fn should_batch(&mut self, now: Time, bytes: u32) -> bool {
        let in_flight = self.state == QpState::Rts
            && self.out.completions.is_empty()
            && (self.requests_in_flight() || self.sends_unreliably());
        self.coalescer.post(now, bytes, in_flight)
    }

    /// Returns the coalescing state.
    #[inline]
    #[must_use]
    pub const fn coalescer(&self) -> &Coalescer {
        &self.coalescer
    }

    /// Returns the coalescing state, for updates.
    #[inline]
    pub const fn coalescer_mut(&mut self) -> &mut Coalescer {
        &mut self.coalescer
    }

    /// Queues a receive work request.
    ///
    /// # Errors
    /// [`PostError`] if the QP is in RESET or takes its receives from a shared queue, or its queue
    /// is full. The request is not queued.
    #[inline]
    pub fn post_recv(&mut self, now: Time, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        if self.state == QpState::Reset {
            return Err(PostError::InvalidState);
        }
        self.recv.post(wr_id, sges)?;
        if self.state == QpState::Err {
            //= RC-STA-02
            let (_, recv, mut cx) = self.sides(now, &());
            recv.flush(&mut cx);
        } else if let RecvSide::Reliable(responder) = &mut self.recv {
            responder.note_posted();
        }
        self.check_invariants();
        Ok(())
    }

    /// Returns true if a receive was posted whose credit has to be sent to the peer. Then transmit.
    #[inline]
    #[must_use]
    pub const fn has_unsent_credits(&self) -> bool {
        let RecvSide::Reliable(responder) = &self.recv else {
            return false;
        };
        responder.has_unsent_credits()
    }

    /// Notes that the peer sends credits. Until the first credits arrive, only one message may be
    /// in flight.
    ///
    /// Call it before the first message is posted.
    pub const fn expect_credits(&mut self) {
        if let (SendSide::Reliable(requester), QpType::Rc) = (&mut self.send, self.config.qp_type) {
            requester.expect_credits();
        }
    }

    /// Returns true if a message has been received in part.
    #[must_use]
    pub fn receives_message(&self) -> bool {
        self.recv.is_in_message()
    }

    /// Handles a packet whose DestQP is this QP and whose ICRC is correct.
    ///
    /// Any packet is accepted: it is executed, NAKed, or counted and dropped.
    pub fn handle_packet(
        &mut self,
        now: Time,
        meta: &PacketMeta,
        packet: &Packet<'_>,
        mem: &impl Memory,
    ) {
        let service = packet.bth().opcode.service();
        if service == Service::Cnp {
            self.handle_cnp(now, meta, packet);
            return;
        }
        if service == Service::Ud && self.handle_probe(meta, packet) {
            return;
        }
        if let Some(reason) = self.reject_reason(meta, packet) {
            self.out.counters.drop_packet(reason);
            return;
        }
        if meta.is_marked() && !packet.payload().is_empty() {
            self.on_ce_mark(now);
        }
        if !packet.bth().migreq && self.peer.is_migrated {
            self.note_clear_migreq();
        }
        if self.config.qp_type.is_dynamic() {
            self.handle_dynamic(now, meta, packet, mem);
            return;
        }
        let headers = packet.headers();
        let operation = headers.bth.opcode.operation();
        if operation.is_some_and(Operation::is_response) {
            self.handle_response(now, headers, packet.payload(), mem);
            return;
        }
        if let RecvSide::None | RecvSide::Frames(_) = self.recv {
            // An XRC initiator receives no requests, and raw packets use another entry point.
            self.out.counters.drop_packet(DropReason::WrongService);
            return;
        }
        self.note_comm_est();
        let (_, recv, mut cx) = self.sides(now, mem);
        let result = match recv {
            RecvSide::Reliable(responder) => {
                responder.handle_request(&mut cx, headers, packet.payload())
            }
            RecvSide::Connected(receiver) => receiver.handle(&mut cx, headers, packet.payload()),
            RecvSide::Datagrams(receiver) => receiver.handle(&mut cx, meta, packet),
            RecvSide::Target(_) | RecvSide::Frames(_) | RecvSide::None => Ok(()),
        };
        self.conclude(now, result);
    }

    fn handle_response(&mut self, now: Time, headers: &Headers, payload: &[u8], mem: &impl Memory) {
        if !matches!(self.state, QpState::Rts | QpState::Sqd) {
            self.out.counters.drop_packet(DropReason::State);
            return;
        }
        let (SendSide::Reliable(requester), _, mut cx) = self.sides(now, mem) else {
            // No other service defines responses, and an XRC target has sent no requests.
            self.out.counters.drop_packet(DropReason::Reserved);
            return;
        };
        let result = requester
            .handle_response(&mut cx, headers, payload)
            .and_then(|()| requester.check_failed(&mut cx));
        self.conclude(now, result);
        self.note_drained();
    }

    /// Performs the checks before a packet has any effect.
    fn reject_reason(&mut self, meta: &PacketMeta, packet: &Packet<'_>) -> Option<DropReason> {
        if !self.state.receives() {
            //= RC-RSP-01
            return Some(DropReason::State);
        }
        if self.config.qp_type.is_dynamic() {
            // Each session has a peer of its own.
            return None;
        }
        if let RecvSide::Datagrams(_) = self.recv {
            return self.peer.reject_datagram(meta, packet.bth());
        }
        if self.peer.changes_migration_state(packet.bth()) {
            return self.handle_migreq(meta, packet.bth());
        }
        self.peer.reject_reason(meta, packet.bth())
    }

    //= UC-12
    //= RC-STA-07
    fn note_comm_est(&mut self) {
        let connected = || !matches!(self.recv, RecvSide::Datagrams(_));
        if self.state == QpState::Rtr && !self.comm_est_raised && connected() {
            self.comm_est_raised = true;
            //= AEV-04
            self.out.events.push(QpEvent::CommEst);
        }
    }

    //= RC-STA-06
    fn note_drained(&mut self) {
        if self.state == QpState::Sqd && self.attr.en_sqd_async_notify && self.send.is_drained() {
            self.attr.en_sqd_async_notify = false;
            //= AEV-05
            self.out.events.push(QpEvent::SqDrained);
        }
    }

    /// Fires the timers that are due.
    pub fn handle_timeout(&mut self, now: Time) {
        if let Some(control) = &mut self.control {
            let waits = &mut control.responses.waits_until;
            waits.take_if(|until| *until <= now);
        }
        let (send, _, mut cx) = self.sides(now, &());
        let result = send.handle_timeout(&mut cx);
        self.conclude_send(now, result);
    }

    /// Returns when [`Qp::handle_timeout`] has to be called next. `None` if no timer is set.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Time> {
        let timer = self.send.next_timeout();
        match self
            .control
            .as_ref()
            .and_then(|it| it.responses.waits_until)
        {
            None => timer,
            Some(until) => Some(timer.map_or(until, |timer| timer.min(until))),
        }
    }

    /// Returns true if a started request is not acknowledged yet.
    #[must_use]
    pub fn awaits_acknowledgements(&self) -> bool {
        !self.send.is_drained()
    }

    /// Returns the number of pending completions.
    #[inline]
    #[must_use]
    pub fn completions_waiting(&self) -> usize {
        self.out.completions.len()
    }

    /// Returns the completions that [`Qp::poll_completion`] will return, in order.
    #[inline]
    pub fn pending_completions(&mut self) -> &[Completion] {
        self.out.completions.make_contiguous()
    }

    /// Removes the completions that [`Qp::pending_completions`] has returned, after they were
    /// handed out.
    pub fn forget_completions(&mut self) {
        self.out.completions.clear();
        self.recv.note_reported();
    }

    /// Returns the next completion, in order.
    pub fn poll_completion(&mut self) -> Option<Completion> {
        let completion = self.out.completions.pop_front();
        self.out.op_counters.add_completions(completion.iter());
        if completion.as_ref().is_some_and(is_received) {
            self.recv.note_handed_out();
        }
        if self.out.completions.is_empty() {
            self.recv.note_reported();
        }
        self.check_invariants();
        completion
    }

    /// Returns the next asynchronous event.
    pub fn poll_event(&mut self) -> Option<QpEvent> {
        self.out.events.pop()
    }

    /// Returns the first failure since the last RESET, once.
    #[inline]
    pub fn take_failure(&mut self) -> Option<Box<Failure>> {
        self.out.events.take_failure()
    }

    /// Moves the QP to ERR, with an event, because a completion could not be reported.
    ///
    /// Of the pending completions, the first `seen` will still be handed out. Only their messages
    /// are acknowledged.
    //= RC-STA-10 AEV-01
    pub fn set_fatal(&mut self, now: Time, seen: usize) {
        let seen = self.out.completions.iter().take(seen);
        let messages = seen.filter(|completion| is_received(completion)).count();
        self.recv.discard_unreported(messages);
        if self.state != QpState::Err {
            self.out.events.push(QpEvent::Fatal);
            self.conclude(now, Err(Fatal));
        }
    }

    /// Drops all state and completions, and detaches counters, before the QP is destroyed.
    pub fn abandon(&mut self) {
        modify::reset(self);
        self.out.op_counters.clear();
        self.send = SendSide::None;
        self.recv = RecvSide::None;
        self.state = QpState::Reset;
    }

    fn conclude(&mut self, now: Time, result: Result<(), Fatal>) {
        if result.is_err() {
            if core::mem::take(&mut self.out.path_failed) {
                self.migrate(true);
            } else {
                self.enter_error(now);
            }
        }
        self.check_invariants();
    }

    /// A local error of an unreliable send queue moves the QP to SQE only.
    //= UC-11 UD-12 RC-STA-05
    fn conclude_send(&mut self, now: Time, result: Result<(), Fatal>) {
        if let SendSide::Unreliable(_) | SendSide::Frames(_) = self.send
            && result.is_err()
        {
            self.state = QpState::Sqe;
            let (send, _, mut cx) = self.sides(now, &());
            send.flush(&mut cx);
            self.check_invariants();
        } else {
            self.conclude(now, result);
        }
    }

    /// Moves the QP to ERR. Responses queued before the error are still sent, including the NAK
    /// that caused it.
    //= RC-STA-03
    //= XRC-09
    fn enter_error(&mut self, now: Time) {
        self.state = QpState::Err;
        let (send, recv, mut cx) = self.sides(now, &());
        send.flush(&mut cx);
        recv.flush(&mut cx);
        //= AEV-10
        //= RC-STA-08
        if recv.receives().is_some_and(RecvSource::is_shared) {
            self.out.events.push(QpEvent::LastWqeReached);
        }
    }

    /// Returns both sides and the context of a call.
    #[inline]
    const fn sides<'a, H>(
        &'a mut self,
        now: Time,
        host: &'a H,
    ) -> (&'a mut SendSide, &'a mut RecvSide, Cx<'a, H>) {
        let cx = Cx {
            now,
            peer: &self.peer,
            who: self.config.accessor(),
            host,
            out: &mut self.out,
        };
        (&mut self.send, &mut self.recv, cx)
    }
}

/// Returns true for a successful receive completion.
fn is_received(completion: &Completion) -> bool {
    !completion.is_send() && completion.status == WcStatus::Success
}
