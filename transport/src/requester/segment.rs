//! From work requests to request packets.

use rocade_wire::{AtomicEth, Bth, Feth, MaskedEth, Operation, Psn, Reth, Rkey, XrcEth};

use super::peer_probe::ProbeState;
use super::rewind::RESEND_BYTES;
use super::{Requester, SendWqe};
use crate::completion::{ImmOrInv, WcStatus};
use crate::cx::Cx;
use crate::masked::MaskedOp;
use crate::memory::{AccessError, Accessor, Extent, LocalAccess, Memory};
use crate::peer::Peer;
use crate::segment::data_operation;
use crate::time::Time;
use crate::transmit::{Head, Source, TxBuffer, segment_len};
use crate::wr::{Operands, SendFlags, SendOp, Sge};

/// Position of a packet in a SEND or WRITE.
#[derive(Clone, Copy)]
struct Part {
    psn: Psn,
    payload_len: u32,
    first: bool,
    last: bool,
}

/// The next request packet.
struct RequestStep {
    head: Head,
    /// Offset of the payload in the message, and its length.
    offset: u32,
    payload_len: u32,
    /// Number of PSNs that it uses: more than one for a READ.
    psns: u32,
    cost: u64,
}

impl Requester {
    /// Appends request packets to `tx` while they fit, the window is open and there is work.
    pub(crate) fn poll_transmit<H: Memory>(&mut self, cx: &mut Cx<'_, H>, tx: &mut TxBuffer) {
        if self.rnr_until.is_some() || self.limit.is_none() && self.send_all_short(cx, tx) {
            return;
        }
        let full_packet = Self::packet_cost(cx.peer, cx.peer.pmtu_bytes(), 1);
        let interval = self.window.ack_req_interval(full_packet);
        let full_packet = u64::from(full_packet);
        let una_cost = self.una_cost();
        let limit = if self.rewound.is_some() {
            RESEND_BYTES
        } else {
            self.window.limit(self.in_flight(una_cost), tx.max_bytes())
        };
        let begin = tx.bytes().len();
        let budget = match &mut self.limit {
            None => usize::MAX,
            Some(limit) => {
                limit.waits_until = None;
                limit.budget(cx.now)
            }
        };
        let mut uncredited = self.first_uncredited();
        while self.failed.is_none() && tx.bytes().len() - begin < budget {
            while self.current < self.started && self.cursor == self.sq.wqes[self.current].end_psn()
            {
                self.current += 1;
            }
            if self.current == self.started {
                let space = budget.saturating_sub(tx.bytes().len() - begin);
                if self.send_shorts(cx, una_cost, space, tx) || self.run_local(cx) {
                    continue;
                }
                if !self.start_next(cx) {
                    break;
                }
                uncredited = self.first_uncredited();
            }
            if self.is_held(uncredited) {
                break;
            }
            if self.send_bulk(cx, una_cost, (limit, interval), tx) {
                continue;
            }
            let wqe = &self.sq.wqes[self.current];
            let Some(mut step) = self.next_step(cx.peer, wqe) else {
                break;
            };
            let in_flight = wqe.cost_at(self.cursor) - una_cost;
            // If the window has shrunk, the last packet may not have requested an ACK.
            if in_flight > 0 && in_flight + step.cost > limit && self.packets_since_ack_req == 0 {
                break;
            }
            if !tx.fits(step.head.segment_len(step.payload_len as usize)) {
                break;
            }
            let last_in_window = in_flight + step.cost + full_packet > limit;
            // An ACK of the first packet makes a retry fail only if that packet is lost.
            let repeats_oldest = self.cursor == self.una && self.cursor != self.next_new;
            //= RC-ACK-05
            //= RC-CRD-04
            let asks = last_in_window || repeats_oldest || self.credits.is_exceeded();
            if asks || self.packets_since_ack_req + 1 >= interval {
                step.head.bth.ack_req = true;
            }
            if Self::push(cx.memory(), wqe, &step, tx).is_err() {
                //= RC-REQ-14
                //= WCS-04
                self.failed = Some(WcStatus::LocProtErr);
                break;
            }
            self.sent(cx, &step, una_cost);
        }
        if self.probe == ProbeState::Due {
            self.send_probe(cx, tx);
        }
        if budget != usize::MAX {
            self.note_spent(cx.now, tx.bytes().len() - begin, budget);
        }
    }

    /// Sends WQEs on the fast path if everything started has been sent. Returns true if no WQEs are
    /// left.
    #[inline]
    fn send_all_short<H: Memory>(&mut self, cx: &mut Cx<'_, H>, tx: &mut TxBuffer) -> bool {
        if self.failed.is_some() || self.cursor != self.next_new || self.current != self.started {
            return false;
        }
        let una_cost = self.una_cost();
        self.send_shorts(cx, una_cost, usize::MAX, tx);
        self.started == self.sq.wqes.len()
    }

    /// Sends WQEs on the fast path, until one needs the slow path or `space` bytes are used.
    /// Returns true if any was sent.
    ///
    /// Call it only when everything started has been sent.
    #[inline(never)]
    fn send_shorts<H: Memory>(
        &mut self,
        cx: &mut Cx<'_, H>,
        una_cost: u64,
        space: usize,
        tx: &mut TxBuffer,
    ) -> bool {
        if self.draining || self.cross_channel.is_some() {
            return false;
        }
        let begin = tx.bytes().len();
        let started = self.started;
        while self.send_short(cx, una_cost, tx) && tx.bytes().len() - begin < space {}
        self.started != started
    }

    /// Counts sent bytes against the rate limit, if there is one.
    #[cold]
    fn note_spent(&mut self, now: Time, bytes: usize, budget: usize) {
        let waits = bytes >= budget && self.has_work();
        let Some(limit) = &mut self.limit else { return };
        limit.spend(now, bytes);
        if waits {
            limit.waits_until = Some(limit.ready_at().max(now.plus_ns(1)));
        }
        self.limit.take_if(|limit| limit.is_idle());
    }

    /// Returns the bytes in flight, in the units of the window.
    pub(super) fn in_flight(&self, una_cost: u64) -> u64 {
        let next = match self.sq.wqes.get(self.current) {
            Some(wqe) if self.current < self.started => wqe.cost_at(self.cursor),
            _ => self.next_cost,
        };
        next - una_cost
    }

    /// Appends the packet. Its payload is copied, or deferred to the caller.
    #[inline]
    fn push(
        (mem, who): (&impl Memory, Accessor),
        wqe: &SendWqe,
        step: &RequestStep,
        tx: &mut TxBuffer,
    ) -> Result<(), AccessError> {
        let payload_len = step.payload_len as usize;
        if let Some(op) = masked_op(wqe) {
            let mut operands = [0; 128];
            let len = op.to_wire(masked_size(wqe), &mut operands);
            return tx.push(&step.head, payload_len, |payload| {
                payload.copy_from_slice(&operands[..len]);
                Ok(())
            });
        }
        if tx.defers(payload_len)
            && let Some((lkey, addr)) = wqe.data.in_one(step.offset, payload_len)
        {
            let len = step.payload_len;
            let access = LocalAccess::Read;
            if mem.check_local(who, lkey, addr, u64::from(len), access)? == Extent::One {
                tx.push_deferred(&step.head, Source::Local(Sge { addr, len, lkey }));
                return Ok(());
            }
        }
        tx.push(&step.head, payload_len, |payload| {
            if payload.is_empty() {
                Ok(())
            } else {
                wqe.data.gather((mem, who), step.offset, payload)
            }
        })
    }

    /// Starts and sends the next WQE on the fast path: a SEND or WRITE of one packet that need not
    /// wait. Small messages come in long runs.
    ///
    /// Returns false, without any change, if there is none or the slow path has to handle it. Call
    /// it only when everything started has been sent.
    #[inline(always)]
    fn send_short<H: Memory>(
        &mut self,
        cx: &mut Cx<'_, H>,
        una_cost: u64,
        tx: &mut TxBuffer,
    ) -> bool {
        debug_assert_eq!(self.cursor, self.next_new);
        let Some(wqe) = self.sq.wqes.get_mut(self.started) else {
            return false;
        };
        let (reth, imm) = if let SendOp::Send { imm } = wqe.op {
            (None, imm)
        } else if let SendOp::Write { va, rkey, imm } = wqe.op {
            let dma_len = wqe.len;
            (Some(Reth { va, rkey, dma_len }), imm)
        } else {
            return false;
        };
        let takes_receive = reth.is_none() || imm.is_some();
        if takes_receive && !self.credits.has_space() {
            return false;
        }
        let cost = Self::packet_cost(cx.peer, wqe.len, 1);
        let fenced = wqe.flags.contains(SendFlags::FENCE) && self.rd_wqes > 0;
        let full = self.next_cost - una_cost + u64::from(cost) > self.window.bytes();
        let deferred = tx.defers(wqe.len as usize);
        if wqe.len > cx.peer.pmtu_bytes() || fenced || full || deferred {
            return false;
        }
        let len = wqe.len as usize;
        let data = &wqe.data;
        let fill = |payload: &mut [u8]| match data.in_one(0, payload.len()) {
            _ if payload.is_empty() => Ok(()),
            Some((lkey, addr)) => cx.host.read_local(cx.who, lkey, addr, payload),
            None => data.gather(cx.memory(), 0, payload),
        };
        let pushed = if imm.is_none() && cx.peer.adds_nothing() {
            let (operation, ext) = match &reth {
                None => (Operation::SendOnly, &[][..]),
                Some(reth) => (Operation::WriteOnly, &reth.to_bytes()[..]),
            };
            let bth = Bth {
                //= RC-WQE-08
                solicited: reth.is_none() && wqe.flags.contains(SendFlags::SOLICITED),
                //= RXE-110
                ack_req: true,
                ..cx.peer.bth(operation, self.next_new, len)
            };
            tx.fits(segment_len(ext, len)) && tx.push_parts((&bth, ext), len, fill).is_ok()
        } else {
            let whole = Part {
                psn: self.next_new,
                payload_len: wqe.len,
                first: true,
                last: true,
            };
            let head = data_head(cx.peer, wqe, whole, ImmOrInv::of(imm), reth);
            tx.fits(head.segment_len(len)) && tx.push(&head, len, fill).is_ok()
        };
        if !pushed {
            return false;
        }
        wqe.first_psn = self.next_new;
        wqe.packets = 1;
        wqe.cost_base = self.next_cost;
        wqe.packet_cost = cost;
        self.next_cost += u64::from(cost);
        self.credits.note_started(1, takes_receive);
        self.started += 1;
        self.current = self.started;
        self.time(cx.now, self.next_new, una_cost);
        self.next_new = self.next_new.next();
        self.cursor = self.next_new;
        cx.out.counters.traffic().tx_packets += 1;
        self.packets_since_ack_req = 0;
        self.arm_ack_timer(cx.now);
        true
    }

    /// Assigns PSNs to the next WQE. Returns false if none may start now.
    fn start_next<H: Memory>(&mut self, cx: &mut Cx<'_, H>) -> bool {
        if !self.may_start() {
            return false;
        }
        let Some(wqe) = self.sq.wqes.get(self.started) else {
            return false;
        };
        let needs_data = wqe.op.needs_response_data();
        let takes_receive = wqe.takes_receive();
        if wqe.op.is_local() {
            return false;
        }
        //= RC-WQE-04
        if wqe.flags.contains(SendFlags::FENCE) && self.rd_wqes > 0 {
            return false;
        }
        //= XAW-08 RXE-115
        if self.may_confuse_peer(cx.peer, wqe) {
            self.want_probe();
            return false;
        }
        //= RC-CRD-03
        if takes_receive && !self.credits.has_space() && !self.may_exceed(cx.now) {
            return false;
        }
        let Some(wqe) = self.sq.wqes.get_mut(self.started) else {
            return false;
        };
        let computed = wqe.compute(cx);
        wqe.first_psn = self.next_new;
        wqe.packets = cx.peer.packets(wqe.len);
        wqe.cost_base = self.next_cost;
        wqe.packet_cost = Self::packet_cost(cx.peer, wqe.len, wqe.packets);
        wqe.read_chunk = self.window.read_chunk();
        let error = if wqe.too_long {
            //= WCS-01
            Some(WcStatus::LocLenErr)
        } else if computed.is_err() {
            //= RC-REQ-14
            Some(WcStatus::LocProtErr)
        } else if matches!(wqe.op, SendOp::Masked { .. }) && wqe.operands.is_none() {
            Some(WcStatus::LocQpOpErr)
        } else if needs_data && self.attr.max_rd_atomic == 0 {
            //= RC-LIM-02
            Some(WcStatus::LocQpOpErr)
        } else if wqe.op.has_result() && !result_buffers_ok(wqe, cx.memory()) {
            //= RC-REQ-13
            Some(WcStatus::LocProtErr)
        } else {
            None
        };
        if error.is_some() {
            // Not started: it uses no PSN. `check_failed` reports it once the earlier WQEs are
            // complete.
            self.failed = error;
            return false;
        }
        self.next_cost = wqe.end_cost();
        self.credits.note_started(wqe.requests(), takes_receive);
        self.started += 1;
        self.rd_wqes += u32::from(needs_data);
        true
    }

    /// Returns the packet at `cursor`. `None` if `max_rd_atomic` does not allow it.
    #[inline]
    fn next_step(&self, peer: &Peer, wqe: &SendWqe) -> Option<RequestStep> {
        let index = wqe.offset_of(self.cursor);
        //= RC-LIM-01 RXE-113
        if wqe.op.needs_response_data()
            && self.rd_pending.len() >= usize::from(self.attr.max_rd_atomic)
        {
            return None;
        }
        Some(match wqe.op {
            SendOp::Send { imm } => self.data_step(peer, wqe, index, ImmOrInv::of(imm), None),
            SendOp::SendInv { rkey } => self.data_step(peer, wqe, index, ImmOrInv::Inv(rkey), None),
            SendOp::Write { va, rkey, imm } => {
                let reth = Reth {
                    va,
                    rkey,
                    dma_len: wqe.len,
                };
                self.data_step(peer, wqe, index, ImmOrInv::of(imm), Some(reth))
            }
            SendOp::Read { va, rkey } => {
                let offset = index * peer.pmtu_bytes();
                let len = wqe.read_chunk_end(offset) - offset;
                let mut head = request_head(peer, wqe, Operation::ReadRequest, self.cursor, 0);
                head.bth.ack_req = true;
                let reth = Reth {
                    va: va.wrapping_add(u64::from(offset)),
                    rkey,
                    dma_len: len,
                };
                head.push(&reth.to_bytes());
                let psns = peer.packets(len);
                let cost = u64::from(psns) * u64::from(wqe.packet_cost);
                RequestStep {
                    head,
                    offset,
                    payload_len: 0,
                    psns,
                    cost,
                }
            }
            SendOp::CmpSwap {
                va,
                rkey,
                compare,
                swap,
            } => {
                let eth = AtomicEth {
                    va,
                    rkey,
                    swap_add: swap,
                    compare,
                };
                self.atomic_step(peer, wqe, Operation::CmpSwap, eth)
            }
            SendOp::FetchAdd { va, rkey, add } => {
                let eth = AtomicEth {
                    va,
                    rkey,
                    swap_add: add,
                    compare: 0,
                };
                self.atomic_step(peer, wqe, Operation::FetchAdd, eth)
            }
            SendOp::AtomicWrite { va, rkey } => {
                let reth = Reth {
                    va,
                    rkey,
                    dma_len: 8,
                };
                self.single_step(peer, wqe, Operation::AtomicWrite, None, reth)
            }
            SendOp::Flush {
                va,
                rkey,
                len,
                feth,
            } => {
                let reth = Reth {
                    va,
                    rkey,
                    dma_len: len,
                };
                self.single_step(peer, wqe, Operation::Flush, Some(feth), reth)
            }
            SendOp::Masked { va, rkey, log_size } => {
                return self.masked_step(peer, wqe, (va, rkey, log_size));
            }
            SendOp::Bind(_)
            | SendOp::Invalidate { .. }
            | SendOp::Fill
            | SendOp::Nop
            | SendOp::Wait
            | SendOp::Enable => return None,
        })
    }

    /// Returns the packet of an ATOMIC WRITE, or with a `feth` of a FLUSH.
    //= OPC-25 OPC-26 OPC-35
    fn single_step(
        &self,
        peer: &Peer,
        wqe: &SendWqe,
        operation: Operation,
        feth: Option<Feth>,
        reth: Reth,
    ) -> RequestStep {
        let payload_len = wqe.len;
        let mut head = request_head(peer, wqe, operation, self.cursor, payload_len);
        head.bth.ack_req = true;
        if let Some(feth) = feth {
            head.push(&feth.to_bytes());
        }
        head.push(&reth.to_bytes());
        RequestStep {
            head,
            offset: 0,
            payload_len,
            psns: 1,
            cost: u64::from(wqe.packet_cost),
        }
    }

    /// Returns the packet of a masked atomic. Its operands are the payload, which [`Self::push`]
    /// generates.
    //= XAW-02
    //= XAW-03
    fn masked_step(
        &self,
        peer: &Peer,
        wqe: &SendWqe,
        (va, rkey, log_size): (u64, Rkey, u8),
    ) -> Option<RequestStep> {
        let op = masked_op(wqe)?;
        let payload_len = op.to_wire(log_size, &mut [0; 128]);
        let swaps = matches!(op, MaskedOp::CmpSwap { .. });
        let is_short = self.uses_short_masked(peer, wqe);
        let operation = match (peer.framing.names_srq() && !is_short, swaps) {
            (false, true) => Operation::MaskedCmpSwap,
            (false, false) => Operation::MaskedFetchAdd,
            (true, true) => Operation::XrcMaskedCmpSwap,
            (true, false) => Operation::XrcMaskedFetchAdd,
        };
        let mut head = request_head(peer, wqe, operation, self.cursor, 0);
        if !is_short {
            head.bth.opcode = peer.framing.extension_opcode(operation)?;
        }
        head.bth.ack_req = true;
        let eth = MaskedEth {
            va,
            rkey,
            log_size,
            resv: [0; 3],
        };
        if is_short {
            head.push(&eth.to_short());
        } else {
            head.push(&eth.to_bytes());
        }
        Some(RequestStep {
            head,
            offset: 0,
            payload_len: len_u32(payload_len),
            psns: 1,
            cost: u64::from(wqe.packet_cost),
        })
    }

    /// Returns true if a work request is a masked atomic that is sent in NVIDIA's format, which is
    /// that of 8 bytes in RC. XRC's is by analogy, as is that of FetchAdd, which has to be enabled.
    //= XAW-10 HW-11 HW-12
    fn uses_short_masked(&self, peer: &Peer, wqe: &SendWqe) -> bool {
        let is_enabled = match masked_op(wqe) {
            Some(MaskedOp::CmpSwap { .. }) => true,
            Some(MaskedOp::FetchAdd { .. }) => self.short_fetch_add,
            None => false,
        };
        is_enabled && masked_size(wqe) == MaskedEth::SHORT_LOG_SIZE && peer.session.is_none()
    }

    /// Returns true if a work request must not be sent before the peer has proved to be Rocade.
    /// These are masked atomics that no NIC knows, and all for a peer that may be the kernel's rxe.
    fn may_confuse_peer(&self, peer: &Peer, wqe: &SendWqe) -> bool {
        matches!(wqe.op, SendOp::Masked { .. })
            && !self.vendor_ops
            && (self.clears_migreq || !self.uses_short_masked(peer, wqe))
    }

    fn atomic_step(
        &self,
        peer: &Peer,
        wqe: &SendWqe,
        operation: Operation,
        eth: AtomicEth,
    ) -> RequestStep {
        let mut head = request_head(peer, wqe, operation, self.cursor, 0);
        head.bth.ack_req = true;
        head.push(&eth.to_bytes());
        RequestStep {
            head,
            offset: 0,
            payload_len: 0,
            psns: 1,
            cost: u64::from(wqe.packet_cost),
        }
    }

    /// Returns one packet of a SEND (`reth` is `None`) or WRITE.
    #[inline]
    fn data_step(
        &self,
        peer: &Peer,
        wqe: &SendWqe,
        index: u32,
        tail: ImmOrInv,
        reth: Option<Reth>,
    ) -> RequestStep {
        let offset = index * peer.pmtu_bytes();
        let payload_len = (wqe.len - offset).min(peer.pmtu_bytes());
        let part = Part {
            psn: self.cursor,
            payload_len,
            first: index == 0,
            last: index + 1 == wqe.packets,
        };
        let head = data_head(peer, wqe, part, tail, reth);
        RequestStep {
            head,
            offset,
            payload_len,
            psns: 1,
            cost: u64::from(wqe.packet_cost),
        }
    }

    fn sent<H>(&mut self, cx: &mut Cx<'_, H>, step: &RequestStep, una_cost: u64) {
        cx.out.counters.traffic().tx_packets += 1;
        let repeated = self.cursor != self.next_new;
        //= RC-PSN-05 RC-SEG-04
        self.cursor = self.cursor.add(step.psns);
        if repeated {
            cx.out.counters.rare().retransmitted_packets += 1;
            self.forget_time();
        } else if step.head.bth.ack_req {
            self.time(cx.now, self.cursor.sub(1), una_cost);
        }
        if self.cursor.diff(self.next_new) > 0 {
            self.next_new = self.cursor;
        }
        if self.sq.wqes[self.current].op.needs_response_data() {
            self.rd_pending.push_back(self.cursor);
        }
        if step.head.bth.ack_req {
            self.packets_since_ack_req = 0;
            self.arm_ack_timer(cx.now);
        } else {
            self.packets_since_ack_req += 1;
        }
    }
}

/// Returns the operation of a masked atomic.
#[inline]
fn masked_op(wqe: &SendWqe) -> Option<&MaskedOp> {
    match wqe.operands.as_deref() {
        Some(Operands::Masked(op)) => Some(op),
        _ => None,
    }
}

const fn masked_size(wqe: &SendWqe) -> u8 {
    let SendOp::Masked { log_size, .. } = wqe.op else {
        return 0;
    };
    log_size
}

fn len_u32(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

/// Returns true if the result buffers of a READ or atomic are writable when the work request
/// starts.
fn result_buffers_ok(wqe: &SendWqe, (mem, who): (&impl Memory, Accessor)) -> bool {
    let mut left = u64::from(wqe.len);
    for sge in wqe.data.sges() {
        let len = u64::from(sge.len).min(left);
        if len > 0
            && mem
                .check_local(who, sge.lkey, sge.addr, len, LocalAccess::Write)
                .is_err()
        {
            return false;
        }
        left -= len;
    }
    true
}

/// Returns the head of a request. The caller adds further extension headers.
#[inline]
pub(super) fn request_head(
    peer: &Peer,
    wqe: &SendWqe,
    operation: Operation,
    psn: Psn,
    payload_len: u32,
) -> Head {
    let mut head = peer.head(operation, psn, payload_len as usize);
    //= XRC-03
    if peer.framing.names_srq() {
        let eth = XrcEth {
            resv: 0,
            srqn: wqe.srqn.get(),
        };
        head.push(&eth.to_bytes());
    }
    head
}

/// Returns the head of one packet of a SEND (`reth` is `None`) or WRITE. Inlined, so that constant
/// arguments remove most branches.
#[inline(always)]
fn data_head(peer: &Peer, wqe: &SendWqe, part: Part, tail: ImmOrInv, reth: Option<Reth>) -> Head {
    let operation = data_operation(reth.is_some(), part.first, part.last, tail);
    let mut head = request_head(peer, wqe, operation, part.psn, part.payload_len);
    //= RC-SEG-03
    if part.first
        && let Some(reth) = reth
    {
        head.push(&reth.to_bytes());
    }
    if part.last {
        match tail {
            ImmOrInv::None | ImmOrInv::FlowTag(_) => {}
            ImmOrInv::Imm(imm) => head.push(&imm),
            ImmOrInv::Inv(rkey) => head.push(&rkey.get().to_be_bytes()),
        }
        //= RXE-110
        head.bth.ack_req = true;
        //= RC-WQE-08
        head.bth.solicited =
            wqe.flags.contains(SendFlags::SOLICITED) && (reth.is_none() || tail != ImmOrInv::None);
    }
    head
}
