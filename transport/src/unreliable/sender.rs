//! The send side of UC and UD: a work request is complete once its packets were sent.
//!
//! The send queue is one deque. The caller's buffer holds all packets of the first [`Sender::sent`]
//! work requests, and the first `packets` packets of the next one. The former are complete as soon
//! as the caller returns with an empty buffer, because then it has sent or dropped the content.

use alloc::boxed::Box;

use rocade_wire::{Deth, Psn, Qkey, Qpn, Reth};

use crate::attr::QpType;
use crate::completion::{ImmOrInv, WcStatus};
use crate::cross_channel::{self, CrossChannelQueue, Gate};
use crate::cx::Cx;
use crate::error::PostError;
use crate::failure::{FailedSend, Failure};
use crate::memory::{AccessError, Accessor, Extent, LocalAccess, Memory};
use crate::outputs::Fatal;
use crate::peer::Peer;
use crate::queue::SendLimits;
use crate::rate::RateLimit;
use crate::segment::{MAX_MESSAGE_LEN, data_operation, execute_local};
use crate::send_queue::SendQueue;
use crate::time::Time;
use crate::transmit::{Head, Source, TxBuffer};
use crate::wr::{Destination, LocalData, Operands, RouteTag, SendFlags, SendOp, SendWr, Sge};

#[cfg(debug_assertions)]
mod invariants;

/// The bit of a Q_Key that selects the QP's own Q_Key.
const CONTROLLED: u32 = 1 << 31;

#[derive(Debug)]
struct Wqe {
    wr_id: u64,
    op: SendOp,
    flags: SendFlags,
    data: LocalData,
    len: u32,
    too_long: bool,
    first_psn: Psn,
    packets: u32,
    /// Destination of a datagram.
    to: Option<Destination>,
    /// Additional operands of the operation. Rarely used.
    operands: Option<Box<Operands>>,
}

impl Wqe {
    const EMPTY: Self = Self {
        wr_id: 0,
        op: SendOp::Send { imm: None },
        flags: SendFlags::empty(),
        data: LocalData::EMPTY,
        len: 0,
        too_long: false,
        first_psn: Psn::new(0),
        packets: 0,
        to: None,
        operands: None,
    };

    /// Replaces the data by the result of the calculation, if the work request has one.
    fn compute<H: Memory>(&mut self, cx: &Cx<'_, H>) -> Result<(), AccessError> {
        cross_channel::compute(
            &mut self.operands,
            (&mut self.data, &mut self.len),
            cx.memory(),
        )
    }

    /// Returns the route of its packets.
    fn route(&self) -> RouteTag {
        self.to.map_or(RouteTag::OWN, |to| to.route)
    }

    const fn contains(&self, psn: Psn) -> bool {
        psn.sub(self.first_psn.get()).get() < self.packets
    }
}

/// One packet of a message.
#[derive(Clone, Copy)]
struct Part {
    psn: Psn,
    offset: u32,
    len: u32,
    first: bool,
    last: bool,
}

#[derive(Debug)]
pub(crate) struct Sender {
    /// The QP is UD: single packets, each with its own destination.
    qp_type: QpType,
    datagrams: bool,
    sq: SendQueue<Wqe>,
    /// Work requests whose packets are all in the caller's buffer.
    sent: usize,
    /// Packets of the next work request that are in the buffer, or were sent before.
    packets: u32,
    /// PSN of the next packet.
    psn: Psn,
    /// Its own Q_Key.
    qkey: Qkey,
    /// SQD: finish what was started, start nothing.
    draining: bool,
    cross_channel: Option<Box<CrossChannelQueue>>,
    /// The rate limit, if there is one.
    limit: Option<Box<RateLimit>>,
}

impl Sender {
    pub(crate) fn new(limits: SendLimits, qp_type: QpType) -> Self {
        Self {
            qp_type,
            datagrams: qp_type.traits().is_datagram,
            sq: SendQueue::new(limits),
            sent: 0,
            packets: 0,
            psn: Psn::new(0),
            qkey: Qkey::new(0),
            draining: false,
            cross_channel: None,
            limit: None,
        }
    }

    /// Handles a congestion notification.
    pub(crate) fn on_cnp(&mut self, now: Time) {
        let limit = self.limit.get_or_insert_with(|| Box::new(RateLimit::new()));
        limit.on_cnp(now, None);
    }

    /// Returns when [`Sender::handle_timeout`] is due.
    pub(crate) fn next_timeout(&self) -> Option<Time> {
        self.limit.as_ref()?.waits_until
    }

    /// Ends the wait for the rate limit, if it is due.
    pub(crate) fn handle_timeout(&mut self, now: Time) {
        if let Some(limit) = &mut self.limit {
            limit.waits_until.take_if(|until| *until <= now);
        }
    }

    /// Enables cross-channel operations.
    pub(crate) fn set_cross_channel(&mut self, cross_channel: CrossChannelQueue) {
        self.cross_channel = Some(Box::new(cross_channel));
    }

    fn gate(&self) -> Option<&Gate> {
        self.cross_channel.as_ref()?.gate.as_deref()
    }

    /// Returns true if neither SQD nor the gate prevents the next work request from starting.
    fn may_start(&self) -> bool {
        let waiting = self.sq.wqes.len() - self.sent;
        //= XCE-05
        !self.draining && self.gate().is_none_or(|gate| gate.is_open(waiting))
    }

    /// Sets the operands of the newest work request.
    pub(crate) fn set_operands(&mut self, operands: Operands) {
        if let Some(wqe) = self.sq.wqes.back_mut() {
            wqe.operands = Some(Box::new(operands));
        }
    }

    /// Starts sending, on the transition from RTR to RTS. The first packet has `sq_psn`.
    pub(crate) const fn start(&mut self, sq_psn: Psn) {
        self.psn = sq_psn;
    }

    pub(crate) const fn set_qkey(&mut self, qkey: Qkey) {
        self.qkey = qkey;
    }

    pub(crate) const fn set_draining(&mut self, draining: bool) {
        self.draining = draining;
    }

    /// Returns true if every started work request has completed.
    pub(crate) const fn is_drained(&self) -> bool {
        self.sent == 0 && self.packets == 0
    }

    /// Returns true if there is anything to send, or to complete.
    pub(crate) fn has_work(&self) -> bool {
        let may_start = self.sent < self.sq.wqes.len() && (self.packets > 0 || self.may_start());
        self.sent > 0 || may_start
    }

    /// Returns the number of incomplete work requests.
    pub(crate) fn queued(&self) -> usize {
        self.sq.wqes.len()
    }

    /// Returns the routes of the incomplete work requests.
    pub(crate) fn routes(&self) -> impl Iterator<Item = RouteTag> {
        self.sq.wqes.iter().map(Wqe::route)
    }

    /// Removes the newest `count` work requests, none of which has been started.
    pub(crate) fn unpost(&mut self, count: usize) {
        let started = self.sent + usize::from(self.packets > 0);
        let gone = self.sq.unpost(count, started);
        if let Some(gate) = self.gate() {
            gate.note_unposted(gone);
        }
    }

    /// Undoes the posting of the newest work request, which was flushed when it was posted, and its
    /// completion.
    pub(crate) const fn unflush(&mut self, freed_wqes: u32) {
        self.sq.account.unflush(freed_wqes);
    }

    /// Frees WQEs whose completions the application has polled.
    pub(crate) const fn free_wqes(&mut self, freed_wqes: u32) {
        self.sq.account.free_wqes(freed_wqes);
    }

    /// Queues a work request. `inline` is its data if it was copied at post time.
    pub(crate) fn post(
        &mut self,
        wr: &SendWr<'_>,
        to: Option<Destination>,
        inline: Option<&[u8]>,
    ) -> Result<(), PostError> {
        //= UC-01
        //= UD-01
        if !wr.op.is_defined_for(self.qp_type) {
            return Err(PostError::UnsupportedOpcode);
        }
        //= UD-03
        if to.is_some() != self.datagrams {
            return Err(PostError::NoDestination);
        }
        let total = self.sq.admit(wr, inline, self.cross_channel.as_deref())?;
        if let Some(gate) = self.gate() {
            gate.note_posted();
        }
        self.sq.push(Wqe::EMPTY);
        if let Some(wqe) = self.sq.wqes.back_mut() {
            wqe.wr_id = wr.wr_id;
            wqe.op = wr.op;
            wqe.flags = wr.flags;
            wqe.data.set(wr, inline);
            wqe.len = u32::try_from(total).unwrap_or(u32::MAX);
            wqe.too_long = total > u64::from(MAX_MESSAGE_LEN);
            wqe.to = to;
        }
        Ok(())
    }

    /// Appends packets to `tx` while they fit and have the same route. A local error fails the send
    /// queue.
    ///
    /// If the buffer is empty, its previous content was sent, and the work requests are complete.
    pub(crate) fn poll_transmit<H: Memory>(
        &mut self,
        cx: &mut Cx<'_, H>,
        tx: &mut TxBuffer,
    ) -> Result<(), Fatal> {
        if tx.is_empty() {
            self.complete_sent(cx);
        }
        match &mut self.limit {
            None => self.append(cx, tx, usize::MAX),
            Some(limit) => {
                limit.waits_until = None;
                let budget = limit.budget(cx.now);
                let begin = tx.bytes().len();
                let result = self.append(cx, tx, budget);
                self.note_spent(cx.now, tx.bytes().len() - begin, budget);
                result
            }
        }
    }

    /// Counts sent bytes against the rate limit, if there is one.
    #[cold]
    fn note_spent(&mut self, now: Time, bytes: usize, budget: usize) {
        let waits = bytes >= budget && self.sent < self.sq.wqes.len();
        let Some(limit) = &mut self.limit else { return };
        limit.spend(now, bytes);
        if waits {
            limit.waits_until = Some(limit.ready_at().max(now.plus_ns(1)));
        }
        self.limit.take_if(|limit| limit.is_idle());
    }

    /// Appends packets until they use `budget` bytes.
    fn append<H: Memory>(
        &mut self,
        cx: &mut Cx<'_, H>,
        tx: &mut TxBuffer,
        budget: usize,
    ) -> Result<(), Fatal> {
        let begin = tx.bytes().len();
        while self.sent < self.sq.wqes.len() && tx.bytes().len() - begin < budget {
            let may_start = self.packets > 0 || self.may_start();
            let Some(wqe) = self.sq.wqes.get_mut(self.sent).filter(|_| may_start) else {
                break;
            };
            if self.packets == 0 {
                if wqe.op.is_local() {
                    let waits = match (wqe.op, wqe.operands.as_deref()) {
                        //= RC-WQE-05
                        (SendOp::Invalidate { .. }, _) => self.sent > 0,
                        //= XCW-01
                        (SendOp::Wait, Some(Operands::Wait(condition))) => {
                            !condition.holds_for(cx.out.qp_num)
                        }
                        _ => false,
                    };
                    if waits {
                        break;
                    }
                    match execute_local(cx, wqe.op, &mut wqe.operands) {
                        Ok(()) => self.sent += 1,
                        Err(status) => return self.fail(cx, status, tx),
                    }
                    continue;
                }
                //= UD-02
                //= WCS-01
                let longest = if self.datagrams {
                    cx.peer.pmtu_bytes()
                } else {
                    u32::MAX
                };
                if wqe.too_long || wqe.len > longest {
                    return self.fail(cx, WcStatus::LocLenErr, tx);
                }
                //= XCC-01
                if wqe.compute(cx).is_err() {
                    return self.fail(cx, WcStatus::LocProtErr, tx);
                }
                wqe.first_psn = self.psn;
                wqe.packets = cx.peer.packets(wqe.len);
            }
            let offset = self.packets * cx.peer.pmtu_bytes();
            let part = Part {
                psn: self.psn,
                offset,
                len: (wqe.len - offset).min(cx.peer.pmtu_bytes()),
                first: self.packets == 0,
                last: self.packets + 1 == wqe.packets,
            };
            let head = head(cx.peer, wqe, part, (self.qkey, cx.out.qp_num));
            if !tx.accepts_route(wqe.route()) || !tx.fits(head.segment_len(part.len as usize)) {
                break;
            }
            if push(cx.memory(), wqe, &head, part, tx).is_err() {
                return self.fail(cx, WcStatus::LocProtErr, tx);
            }
            tx.set_route(wqe.route());
            cx.out.counters.traffic().tx_packets += 1;
            //= UD-11
            self.psn = self.psn.next();
            self.packets += 1;
            if part.last {
                self.packets = 0;
                self.sent += 1;
            }
        }
        if tx.is_empty() {
            // Completes work requests without packets.
            self.complete_sent(cx);
        }
        Ok(())
    }

    /// Handles the failure to read the payload of a packet in the caller's buffer. The packets
    /// before it have been sent.
    pub(crate) fn fail_request<H>(&mut self, cx: &mut Cx<'_, H>, psn: Psn) -> Result<(), Fatal> {
        let started = self.sent + usize::from(self.packets > 0);
        let Some(lost) = self
            .sq
            .wqes
            .iter()
            .take(started)
            .position(|wqe| wqe.contains(psn))
        else {
            // It was flushed meanwhile.
            return Ok(());
        };
        self.sent = lost;
        self.complete_sent(cx);
        self.fail_front(cx, WcStatus::LocProtErr)
    }

    /// Reports a local error of the next work request. Packets before it in the buffer are sent
    /// first.
    fn fail<H>(
        &mut self,
        cx: &mut Cx<'_, H>,
        status: WcStatus,
        tx: &TxBuffer,
    ) -> Result<(), Fatal> {
        if !tx.is_empty() {
            return Ok(());
        }
        self.fail_front(cx, status)
    }

    fn fail_front<H>(&mut self, cx: &mut Cx<'_, H>, status: WcStatus) -> Result<(), Fatal> {
        self.packets = 0;
        if let Some(wqe) = self.sq.wqes.pop_front() {
            self.report(cx, &wqe, status);
            let length = (wqe.len, wqe.too_long);
            cx.out
                .events
                .explain(|| Failure::Send(FailedSend::new(status, wqe.op, length, &wqe.data)));
        }
        Err(Fatal)
    }

    //= UC-02
    //= UD-12
    fn complete_sent<H>(&mut self, cx: &mut Cx<'_, H>) {
        for _ in 0..core::mem::take(&mut self.sent) {
            let Some(wqe) = self.sq.wqes.pop_front() else {
                return;
            };
            cx.out.counters.traffic().tx_messages += 1;
            cx.out.op_counters.add_sent(&wqe.op, wqe.len);
            let of = (wqe.wr_id, wqe.op.completion());
            self.sq.account.complete(cx, wqe.flags, of, 0);
        }
    }

    fn report<H>(&mut self, cx: &mut Cx<'_, H>, wqe: &Wqe, status: WcStatus) {
        let of = (wqe.wr_id, wqe.op.completion());
        self.sq.account.report(cx, of, status, 0);
    }

    /// Completes what was sent, and the rest with `WR_FLUSH_ERR`, including unsignaled ones.
    pub(crate) fn flush<H>(&mut self, cx: &mut Cx<'_, H>) {
        self.complete_sent(cx);
        self.packets = 0;
        if let Some(limit) = &mut self.limit {
            limit.waits_until = None;
        }
        while let Some(wqe) = self.sq.wqes.pop_front() {
            self.report(cx, &wqe, WcStatus::WrFlushErr);
        }
    }

    /// Drops everything without completions.
    pub(crate) fn reset(&mut self) {
        let cross_channel = self.cross_channel.take();
        if let Some(gate) = cross_channel
            .as_ref()
            .and_then(|cross_channel| cross_channel.gate.as_ref())
        {
            gate.reset();
        }
        *self = Self {
            cross_channel,
            sq: SendQueue::new(self.sq.account.limits),
            sent: 0,
            packets: 0,
            psn: Psn::new(0),
            qkey: Qkey::new(0),
            draining: false,
            limit: None,
            ..*self
        };
    }
}

/// Returns the head of one packet. `own` is the sender's Q_Key and QP number, which a datagram
/// carries.
fn head(peer: &Peer, wqe: &Wqe, part: Part, own: (Qkey, Qpn)) -> Head {
    let (reth, imm) = if let SendOp::Write { va, rkey, imm } = wqe.op {
        let dma_len = wqe.len;
        (Some(Reth { va, rkey, dma_len }), imm)
    } else if let SendOp::Send { imm } = wqe.op {
        (None, imm)
    } else {
        (None, None)
    };
    let operation = data_operation(reth.is_some(), part.first, part.last, ImmOrInv::of(imm));
    let mut head = peer.head(operation, part.psn, part.len as usize);
    if let Some(to) = wqe.to {
        let (own_qkey, src_qp) = own;
        head.bth.dest_qp = to.dest_qp;
        //= UD-04
        let controlled = to.qkey.get() & CONTROLLED != 0;
        let qkey = if controlled { own_qkey } else { to.qkey };
        //= UD-07
        let deth = Deth {
            qkey,
            resv: 0,
            src_qp,
        };
        head.push(&deth.to_bytes());
    }
    //= RC-SEG-03
    if part.first
        && let Some(reth) = reth
    {
        head.push(&reth.to_bytes());
    }
    if part.last {
        if let Some(imm) = imm {
            head.push(&imm);
        }
        //= RC-WQE-08
        head.bth.solicited =
            wqe.flags.contains(SendFlags::SOLICITED) && (reth.is_none() || imm.is_some());
    }
    head
}

/// Appends a packet. Its payload is copied, or deferred to the caller.
fn push(
    (mem, who): (&impl Memory, Accessor),
    wqe: &Wqe,
    head: &Head,
    part: Part,
    tx: &mut TxBuffer,
) -> Result<(), AccessError> {
    let len = part.len as usize;
    if tx.defers(len)
        && let Some((lkey, addr)) = wqe.data.in_one(part.offset, len)
    {
        let access = LocalAccess::Read;
        if mem.check_local(who, lkey, addr, u64::from(part.len), access)? == Extent::One {
            let len = part.len;
            tx.push_deferred(head, Source::Local(Sge { addr, len, lkey }));
            return Ok(());
        }
    }
    tx.push(head, len, |payload| {
        if payload.is_empty() {
            Ok(())
        } else {
            wqe.data.gather((mem, who), part.offset, payload)
        }
    })
}
