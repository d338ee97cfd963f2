//! The requester: from posted work requests to request packets, and from responses to completions.
//!
//! The send queue is one deque. WQEs `0..started` have PSNs and wait for an ACK, and the rest have
//! not been started. `una <= cursor <= next_new` (modular): `una` is the oldest unacknowledged PSN,
//! `cursor` the next to transmit, `next_new` the next never sent before.
//!
//! Retransmission moves `cursor` back and changes nothing else. After an ACK timeout that may have
//! been spurious, `cursor` moves forward again (`rewind`).

mod ack;
mod bulk;
mod credits;
#[cfg(debug_assertions)]
mod invariants;
mod local;
mod maybe_psn;
mod peer_probe;
mod retry;
mod rewind;
mod segment;

use alloc::boxed::Box;

use rocade_wire::{AckTimeout, Psn};

use crate::completion::{WcOpcode, WcStatus};
use crate::congestion::{MIN_PACKET_COST, Window};
use crate::cross_channel::{self, CrossChannelQueue};
use crate::cx::Cx;
use crate::error::PostError;
use crate::failure::{FailedSend, Failure};
use crate::masked::{self, MaskedOp};
use crate::memory::{AccessError, Memory};
use crate::outputs::Fatal;
use crate::peer::Peer;
use crate::queue::{LazyDeque, SendLimits, Srqn};
use crate::rate::RateLimit;
use crate::segment::MAX_MESSAGE_LEN;
use crate::send_queue::SendQueue;
use crate::time::Time;
use crate::wr::{LocalData, Operands, SendFlags, SendOp, SendWr};

use credits::{Credits, UncreditedSend};
use maybe_psn::MaybePsn;
use peer_probe::ProbeState;
use rewind::Rewound;

/// Least local ACK timeout. Shorter ones are rounded up, because a thread cannot be scheduled
/// faster and a spurious timeout costs a retry.
///
/// The specification allows up to four times the value of the attribute.
pub const MIN_ACK_TIMEOUT_NS: u64 = 1_000_000;

#[derive(Debug)]
pub(crate) struct SendWqe {
    wr_id: u64,
    op: SendOp,
    flags: SendFlags,
    data: LocalData,
    len: u32,
    too_long: bool,
    /// The shared receive queue that it goes to (XRC). [`Srqn::NONE`] for any other service.
    srqn: Srqn,
    first_psn: Psn,
    packets: u32,
    /// Cost of everything before this WQE, and of each of its packets.
    cost_base: u64,
    packet_cost: u32,
    /// Length of each READ request that a READ is split into. Fixed when the READ starts, so that a
    /// repeated request ends where the first did.
    read_chunk: u32,
    /// Additional operands of the operation. Rarely used.
    operands: Option<Box<Operands>>,
}

impl SendWqe {
    const EMPTY: Self = Self {
        wr_id: 0,
        op: SendOp::Send { imm: None },
        flags: SendFlags::empty(),
        data: LocalData::EMPTY,
        len: 0,
        too_long: false,
        srqn: Srqn::NONE,
        first_psn: Psn::new(0),
        packets: 0,
        cost_base: 0,
        packet_cost: 0,
        read_chunk: 0,
        operands: None,
    };

    /// Replaces the data and length by the result of the calculation, if the WQE has one.
    fn compute<H: Memory>(&mut self, cx: &Cx<'_, H>) -> Result<(), AccessError> {
        cross_channel::compute(
            &mut self.operands,
            (&mut self.data, &mut self.len),
            cx.memory(),
        )
    }

    /// Sets the operands.
    pub(crate) fn set_operands(&mut self, operands: Operands) {
        self.operands = Some(Box::new(operands));
    }

    /// Returns the number of packets between the start of this WQE and `psn`, modulo 2^24.
    const fn offset_of(&self, psn: Psn) -> u32 {
        psn.sub(self.first_psn.get()).get()
    }

    const fn end_psn(&self) -> Psn {
        self.first_psn.add(self.packets)
    }

    const fn contains(&self, psn: Psn) -> bool {
        self.offset_of(psn) < self.packets
    }

    fn cost_at(&self, psn: Psn) -> u64 {
        self.cost_base + u64::from(self.offset_of(psn)) * u64::from(self.packet_cost)
    }

    fn end_cost(&self) -> u64 {
        self.cost_base + u64::from(self.packets) * u64::from(self.packet_cost)
    }

    /// Returns the end of the READ request that covers `offset`.
    fn read_chunk_end(&self, offset: u32) -> u32 {
        let next = (u64::from(offset / self.read_chunk) + 1) * u64::from(self.read_chunk);
        u32::try_from(next).map_or(self.len, |next| next.min(self.len))
    }

    fn wc_opcode(&self) -> WcOpcode {
        match (self.op.completion(), self.operands.as_deref()) {
            //= XAT-24
            (WcOpcode::MaskedCompSwap, Some(Operands::Masked(MaskedOp::FetchAdd { .. }))) => {
                WcOpcode::MaskedFetchAdd
            }
            (opcode, _) => opcode,
        }
    }
}

/// Attributes of the requester.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequesterAttr {
    pub(crate) max_rd_atomic: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) timeout: AckTimeout,
}

impl RequesterAttr {
    pub(crate) const NONE: Self = Self {
        max_rd_atomic: 0,
        retry_cnt: 0,
        rnr_retry: 0,
        timeout: AckTimeout::DISABLED,
    };

    /// Returns the ACK timeout. `None` waits forever.
    pub(crate) fn ack_timeout_ns(&self) -> Option<u64> {
        self.timeout.as_ns().map(|ns| ns.max(MIN_ACK_TIMEOUT_NS))
    }
}

/// A packet whose round-trip time is measured. It was sent only once so far.
#[derive(Clone, Copy, Debug)]
struct Timed {
    psn: Psn,
    at: Time,
    /// Cost position of `una` at that time.
    una_cost: u64,
}

#[derive(Debug)]
pub(crate) struct Requester {
    attr: RequesterAttr,
    sq: SendQueue<SendWqe>,
    started: usize,
    /// Index of the WQE that contains `cursor`. Equal to `started` if `cursor` is at the end. While
    /// a rate limit delays packets, a WQE whose packets are all sent may stay current.
    current: usize,
    una: Psn,
    cursor: Psn,
    next_new: Psn,
    /// Cost position of the next WQE to start.
    next_cost: u64,
    /// Ends of the READ and atomic requests in flight.
    rd_pending: LazyDeque<Psn>,
    /// Started READ/atomic WQEs that are not complete.
    rd_wqes: u32,
    packets_since_ack_req: u32,
    credits: Credits,
    uncredited_send: UncreditedSend,
    retry_left: u8,
    rnr_left: u8,
    ack_deadline: Option<Time>,
    /// Expiries of the ACK timer since a packet that was sent only once was acknowledged.
    timeouts_in_a_row: u8,
    rnr_until: Option<Time>,
    /// The PSN at which the last sequence NAK, real or implied, moved transmission back. One loss
    /// is handled once.
    went_back_at: MaybePsn,
    /// The PSN up to which the peer has executed everything, as an ACK has told that came before
    /// the response to an older READ or atomic.
    executed_before: MaybePsn,
    /// The packets that had been sent before the ACK timeout that moved transmission back.
    rewound: Option<Box<Rewound>>,
    /// The packet whose round-trip time is measured.
    timed: Option<Timed>,
    /// A local error that stops transmission at `cursor`. Reported once all earlier work requests
    /// are complete.
    failed: Option<WcStatus>,
    /// SQD: finish what was started, start nothing.
    draining: bool,
    cross_channel: Option<Box<CrossChannelQueue>>,
    /// The peer supports the extensions of Rocade.
    vendor_ops: bool,
    /// The peer has sent packets without MigReq, as only the kernel's rxe does.
    clears_migreq: bool,
    /// Masked FetchAdds of 8 bytes are sent in NVIDIA's format.
    short_fetch_add: bool,
    /// Credits do not count until the peer announces some without being asked.
    ignores_credits: bool,
    /// State of the probe.
    probe: ProbeState,
    /// Results of atomics are big-endian.
    big_endian_results: bool,
    window: Window,
    /// The rate limit, if there is one.
    limit: Option<Box<RateLimit>>,
}

impl Requester {
    pub(crate) fn new(limits: SendLimits) -> Self {
        Self {
            attr: RequesterAttr::NONE,
            sq: SendQueue::new(limits),
            started: 0,
            current: 0,
            una: Psn::new(0),
            cursor: Psn::new(0),
            next_new: Psn::new(0),
            next_cost: 0,
            rd_pending: LazyDeque::new(),
            rd_wqes: 0,
            packets_since_ack_req: 0,
            credits: Credits::new(),
            uncredited_send: UncreditedSend::Unknown,
            retry_left: 0,
            rnr_left: 0,
            ack_deadline: None,
            timeouts_in_a_row: 0,
            rnr_until: None,
            went_back_at: MaybePsn::NONE,
            executed_before: MaybePsn::NONE,
            rewound: None,
            timed: None,
            failed: None,
            draining: false,
            cross_channel: None,
            vendor_ops: false,
            clears_migreq: false,
            short_fetch_add: false,
            ignores_credits: false,
            probe: ProbeState::Idle,
            big_endian_results: false,
            window: Window::new(),
            limit: None,
        }
    }

    /// Starts sending, on the transition from RTR to RTS. The first request has `sq_psn`.
    //= RC-PSN-04
    pub(crate) fn start(&mut self, sq_psn: Psn) {
        self.una = sq_psn;
        self.cursor = sq_psn;
        self.next_new = sq_psn;
    }

    /// Sets the attributes, and resets the retry counters.
    pub(crate) fn set_attr(&mut self, attr: RequesterAttr) {
        self.attr = attr;
        self.retry_left = attr.retry_cnt;
        self.rnr_left = attr.rnr_retry;
        self.window.set_timeout(attr.ack_timeout_ns());
    }

    /// Sets the rate in kbit/s. 0 is unlimited.
    pub(crate) fn set_rate(&mut self, kbps: u32) {
        self.change_limit(|limit| limit.set_fixed(kbps));
    }

    /// Handles a congestion notification.
    pub(crate) fn on_cnp(&mut self, now: Time) {
        let bps = self.window.bps();
        self.change_limit(|limit| limit.on_cnp(now, bps));
    }

    /// Sets the time until which packets wait for the rate limit, if any do.
    fn wait_for_rate(&mut self, until: Option<Time>) {
        if let Some(limit) = &mut self.limit {
            limit.waits_until = until;
        }
    }

    fn change_limit(&mut self, change: impl FnOnce(&mut RateLimit)) {
        let limit = self.limit.get_or_insert_with(|| Box::new(RateLimit::new()));
        change(limit);
        self.limit.take_if(|limit| limit.is_idle());
    }

    /// Sets whether results of atomics are big-endian in memory, or in host byte order.
    pub(crate) const fn set_big_endian_results(&mut self, on: bool) {
        self.big_endian_results = on;
    }

    pub(crate) const fn set_draining(&mut self, draining: bool) {
        self.draining = draining;
    }

    /// Enables cross-channel operations.
    pub(crate) fn set_cross_channel(&mut self, cross_channel: CrossChannelQueue) {
        self.cross_channel = Some(Box::new(cross_channel));
    }

    /// Returns true if neither SQD nor the gate prevents the next WQE from starting.
    fn may_start(&self) -> bool {
        let waiting = self.sq.wqes.len() - self.started;
        let gate = self
            .cross_channel
            .as_ref()
            .and_then(|cross_channel| cross_channel.gate.as_ref());
        //= XCE-05
        !self.draining && gate.is_none_or(|gate| gate.is_open(waiting))
    }

    /// Returns true if every started work request has completed.
    pub(crate) const fn is_drained(&self) -> bool {
        self.started == 0
    }

    /// Returns true if all WQEs are in use.
    pub(crate) const fn is_full(&self) -> bool {
        self.sq.account.is_full()
    }

    /// Returns true if there is anything to start, to retransmit or to report.
    #[inline]
    pub(crate) fn has_work(&self) -> bool {
        if self.started == self.sq.wqes.len() && self.current == self.started {
            return self.failed.is_some();
        }
        self.has_unsent()
    }

    /// Returns the result of `has_work` if packets may be left to send.
    fn has_unsent(&self) -> bool {
        if self.started < self.sq.wqes.len() && (self.draining || self.may_start()) {
            return true;
        }
        let all_sent = match self
            .started
            .checked_sub(1)
            .and_then(|last| self.sq.wqes.get(last))
        {
            Some(last) => self.cursor == last.end_psn(),
            None => true,
        };
        !all_sent || self.failed.is_some()
    }

    /// Returns the number of incomplete WQEs.
    pub(crate) fn queued(&self) -> usize {
        self.sq.wqes.len()
    }

    /// Returns the bytes in flight and the window. Both are 0 if nothing is in flight.
    pub(crate) fn flight(&self) -> (u64, u64) {
        match self.in_flight(self.una_cost()) {
            0 => (0, 0),
            in_flight => (in_flight, self.window.bytes()),
        }
    }

    /// Removes the newest `count` WQEs, none of which has been started.
    pub(crate) fn unpost(&mut self, count: usize) {
        debug_assert!(self.sq.wqes.len() - self.started >= count);
        let gone = self.sq.unpost(count, self.started);
        if let Some(gate) = self
            .cross_channel
            .as_ref()
            .and_then(|cross_channel| cross_channel.gate.as_ref())
        {
            gate.note_unposted(gone);
        }
    }

    /// Undoes the posting of the newest WQE, which was flushed when it was posted, and its
    /// completion.
    pub(crate) const fn unflush(&mut self, freed_wqes: u32) {
        self.sq.account.unflush(freed_wqes);
    }

    /// Frees WQEs whose completions the application has polled.
    pub(crate) const fn free_wqes(&mut self, freed_wqes: u32) {
        self.sq.account.free_wqes(freed_wqes);
    }

    /// Queues a work request. `inline` is its data if it was copied at post time.
    #[inline(always)]
    pub(crate) fn post(&mut self, wr: &SendWr<'_>, inline: Option<&[u8]>) -> Result<(), PostError> {
        let is_common = wr.op.is_common();
        if !is_common
            && let SendOp::Masked { log_size, .. } = wr.op
            && !masked::is_size(log_size)
        {
            return Err(PostError::UnsupportedOpcode);
        }
        let total = self.sq.admit(wr, inline, self.cross_channel.as_deref())?;
        if let Some(gate) = self
            .cross_channel
            .as_ref()
            .and_then(|cross_channel| cross_channel.gate.as_ref())
        {
            gate.note_posted();
        }
        let total_len = || u32::try_from(total).unwrap_or(u32::MAX);
        let atomic_len = if is_common { None } else { wr.op.atomic_len() };
        let len = atomic_len.unwrap_or_else(total_len);
        // Filled in place: building it elsewhere and moving it takes longer than everything else.
        self.sq.push(SendWqe::EMPTY);
        if let Some(wqe) = self.sq.wqes.back_mut() {
            wqe.wr_id = wr.wr_id;
            wqe.op = wr.op;
            wqe.flags = wr.flags;
            match inline {
                None if is_common => wqe.data.set_sges(wr.sges),
                _ => wqe.data.set(wr, inline),
            }
            wqe.len = len;
            wqe.too_long = total > u64::from(MAX_MESSAGE_LEN);
        }
        Ok(())
    }

    /// Sets the shared receive queue of the peer that the newest work request goes to.
    pub(crate) fn set_remote_srqn(&mut self, srqn: Srqn) {
        if let Some(wqe) = self.sq.wqes.back_mut() {
            wqe.srqn = srqn;
        }
    }

    /// Removes the newest work request, which was just posted, and returns it.
    pub(crate) fn take_newest(&mut self) -> Option<SendWqe> {
        if self.sq.wqes.len() > self.started {
            self.sq.wqes.pop_back()
        } else {
            None
        }
    }

    /// Queues a removed work request.
    pub(crate) fn put(&mut self, wqe: SendWqe) {
        self.sq.wqes.push_back(wqe);
    }

    /// Returns the next PSN that was never sent.
    pub(crate) const fn next_psn(&self) -> Psn {
        self.next_new
    }

    /// Skips a PSN, which a DISCONNECT packet uses. Everything is acknowledged.
    pub(crate) fn skip_psn(&mut self) {
        debug_assert_eq!(self.started, 0);
        self.start(self.next_new.next());
    }

    /// Returns the oldest unacknowledged PSN.
    pub(crate) const fn una(&self) -> Psn {
        self.una
    }

    /// Returns true if a packet with this PSN was sent and is not acknowledged.
    pub(crate) const fn awaits(&self, psn: Psn) -> bool {
        psn.diff(self.next_new) < 0 && psn.diff(self.una) >= 0
    }

    /// Returns the count of work requests completed without a completion since the last one.
    /// Requesters that share a queue share this count.
    pub(crate) const fn unsignaled_done_mut(&mut self) -> &mut u32 {
        &mut self.sq.account.unsignaled_done
    }

    /// Fails the oldest work request.
    pub(crate) fn fail<H>(&mut self, cx: &mut Cx<'_, H>, status: WcStatus) -> Fatal {
        self.fail_front(cx, status)
    }

    /// Sets the operands of the newest work request.
    pub(crate) fn set_operands(&mut self, operands: Operands) {
        if let Some(wqe) = self.sq.wqes.back_mut() {
            wqe.set_operands(operands);
        }
    }

    /// Returns when [`Requester::handle_timeout`] is due.
    pub(crate) fn next_timeout(&self) -> Option<Time> {
        let timer = self.rnr_until.or(self.ack_deadline);
        match self.limit.as_ref().and_then(|limit| limit.waits_until) {
            None => timer,
            Some(until) => Some(timer.map_or(until, |timer| timer.min(until))),
        }
    }

    /// Completes every WQE with `WR_FLUSH_ERR`, including unsignaled ones.
    //= RC-STA-01 WCS-05
    pub(crate) fn flush<H>(&mut self, cx: &mut Cx<'_, H>) {
        while let Some(wqe) = self.sq.wqes.pop_front() {
            self.sq
                .account
                .report(cx, (wqe.wr_id, wqe.wc_opcode()), WcStatus::WrFlushErr, 0);
        }
        self.stop();
    }

    /// Drops everything without completions.
    pub(crate) fn reset(&mut self) {
        let cross_channel = self.cross_channel.take();
        *self = Self {
            big_endian_results: self.big_endian_results,
            ..Self::new(self.sq.account.limits)
        };
        if let Some(cross_channel) = cross_channel {
            if let Some(gate) = &cross_channel.gate {
                gate.reset();
            }
            self.cross_channel = Some(cross_channel);
        }
    }

    fn stop(&mut self) {
        self.started = 0;
        self.current = 0;
        self.rd_pending.clear();
        self.rd_wqes = 0;
        self.ack_deadline = None;
        self.rnr_until = None;
        self.rewound = None;
        self.timed = None;
        self.failed = None;
        self.probe = ProbeState::Idle;
        self.wait_for_rate(None);
        self.una = self.next_new;
        self.cursor = self.next_new;
    }

    /// Completes the oldest WQE in error. The QP goes to ERR.
    fn fail_front<H>(&mut self, cx: &mut Cx<'_, H>, status: WcStatus) -> Fatal {
        if let Some(wqe) = self.sq.wqes.pop_front() {
            self.sq
                .account
                .report(cx, (wqe.wr_id, wqe.wc_opcode()), status, 0);
            let length = (wqe.len, wqe.too_long);
            cx.out
                .events
                .explain(|| Failure::Send(FailedSend::new(status, wqe.op, length, &wqe.data)));
        }
        Fatal
    }

    /// Reports a local error once all earlier work requests are complete.
    //= RC-WQE-01
    pub(crate) fn check_failed<H>(&mut self, cx: &mut Cx<'_, H>) -> Result<(), Fatal> {
        match self.failed {
            Some(status) if self.current == 0 => Err(self.fail_front(cx, status)),
            _ => Ok(()),
        }
    }

    fn una_cost(&self) -> u64 {
        match self.sq.wqes.front() {
            Some(wqe) if self.started > 0 => wqe.cost_at(self.una),
            _ => self.next_cost,
        }
    }

    fn packet_cost(peer: &Peer, len: u32, packets: u32) -> u32 {
        if packets == 1 { len } else { peer.pmtu_bytes() }.max(MIN_PACKET_COST)
    }
}
