//! From responses to completions.

use rocade_wire::{Aeth, CreditCode, Headers, Msn, NakCode, Operation, Psn, Syndrome};

use super::maybe_psn::MaybePsn;
use super::{Requester, SendWqe};
use crate::completion::WcStatus;
use crate::counters::DropReason;
use crate::cx::Cx;
use crate::masked;
use crate::memory::{AccessError, Memory};
use crate::outputs::Fatal;
use crate::peer::Peer;
use crate::wr::{Operands, SendOp};

/// Result of processing an ACK.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reached {
    /// The ACK is complete: all that it covers is acknowledged.
    All,
    /// The ACK skips a READ or atomic whose response is missing.
    MissingResponse,
}

impl Requester {
    /// Handles a response packet whose service, addresses and keys are those of the connection.
    pub(crate) fn handle_response<H: Memory>(
        &mut self,
        cx: &mut Cx<'_, H>,
        headers: &Headers,
        payload: &[u8],
    ) -> Result<(), Fatal> {
        let psn = headers.bth.psn;
        //= RC-REQ-01
        if psn.diff(self.next_new) >= 0 {
            cx.out.counters.drop_packet(DropReason::FutureResponse);
            return Ok(());
        }
        //= RC-REQ-02
        if psn.diff(self.una) < 0 {
            if !self.take_update(headers) {
                cx.out.counters.drop_packet(DropReason::GhostResponse);
            }
            return Ok(());
        }
        let Some(operation) = headers.bth.opcode.operation() else {
            cx.out.counters.drop_packet(DropReason::Reserved);
            return Ok(());
        };
        let syndrome = headers.aeth.map(|aeth| aeth.syndrome);
        if let Some(Aeth {
            syndrome: Syndrome::Ack(credits),
            msn,
        }) = headers.aeth
        {
            self.note_credits(credits, msn);
        }
        match (operation, syndrome) {
            (Operation::Acknowledge, Some(Syndrome::Ack(_))) => self.handle_ack(cx, psn),
            (Operation::Acknowledge, Some(Syndrome::RnrNak(timer))) => {
                match self.acknowledge_before(cx, psn) {
                    Reached::All => self.receiver_not_ready(cx, timer),
                    Reached::MissingResponse => self.sequence_error(cx),
                }
            }
            (Operation::Acknowledge, Some(Syndrome::Nak(code))) => self.handle_nak(cx, psn, code),
            (Operation::ReadResponseMiddle, None)
            | (
                Operation::ReadResponseFirst
                | Operation::ReadResponseLast
                | Operation::ReadResponseOnly,
                Some(Syndrome::Ack(_)),
            ) => self.handle_read_response(cx, headers, operation, payload),
            (Operation::AtomicAcknowledge, Some(Syndrome::Ack(_))) => {
                self.handle_atomic_ack(cx, headers, &[])
            }
            (Operation::WideAtomicAcknowledge, Some(Syndrome::Ack(_))) => {
                self.handle_atomic_ack(cx, headers, payload)
            }
            //= RC-REQ-15
            (Operation::Acknowledge, _) | (_, Some(Syndrome::Reserved(_))) => {
                cx.out.counters.drop_packet(DropReason::Reserved);
                Ok(())
            }
            //= RC-REQ-10
            _ => match self.skip_to(cx, psn) {
                //= WCS-07
                Reached::All => Err(self.fail_front(cx, WcStatus::BadRespErr)),
                Reached::MissingResponse => self.sequence_error(cx),
            },
        }
    }

    /// Handles a response that acknowledges no packet. It may be a repetition of the last ACK with
    /// new credits. Returns true if it is.
    #[cold]
    fn take_update(&mut self, headers: &Headers) -> bool {
        let is_last = headers.bth.psn == self.una.sub(1);
        match (headers.bth.opcode.operation(), headers.aeth) {
            (
                Some(Operation::Acknowledge),
                Some(Aeth {
                    syndrome: Syndrome::Ack(credits),
                    msn,
                }),
            ) if is_last => self.note_update(credits, msn),
            _ => false,
        }
    }

    /// Handles a positive ACK. `None` if its PSN is not in flight: then nothing has changed.
    #[inline]
    pub(crate) fn take_ack<H>(
        &mut self,
        cx: &mut Cx<'_, H>,
        psn: Psn,
        (credits, msn): (CreditCode, Msn),
    ) -> Option<Result<(), Fatal>> {
        //= RC-REQ-01
        //= RC-REQ-02
        if psn.diff(self.next_new) >= 0 || psn.diff(self.una) < 0 {
            return None;
        }
        self.note_credits(credits, msn);
        let result = self.handle_ack(cx, psn);
        Some(result.and_then(|()| self.check_failed(cx)))
    }

    fn handle_ack<H>(&mut self, cx: &mut Cx<'_, H>, psn: Psn) -> Result<(), Fatal> {
        //= RC-REQ-03
        self.on_positive_ack();
        match self.acknowledge_before(cx, psn.next()) {
            Reached::All => Ok(()),
            Reached::MissingResponse => self.sequence_error(cx),
        }
    }

    fn handle_nak<H>(&mut self, cx: &mut Cx<'_, H>, psn: Psn, code: NakCode) -> Result<(), Fatal> {
        let status = match code {
            NakCode::PsnSequence => None,
            //= RC-REQ-07
            //= WCS-09
            NakCode::InvalidRequest => Some(WcStatus::RemInvReqErr),
            //= RC-REQ-08
            //= WCS-10
            NakCode::RemoteAccess => Some(WcStatus::RemAccessErr),
            //= RC-REQ-09
            //= WCS-11
            NakCode::RemoteOperational => Some(WcStatus::RemOpErr),
            //= RC-REQ-15
            NakCode::InvalidRdRequest | NakCode::Reserved(_) => {
                cx.out.counters.drop_packet(DropReason::Reserved);
                return Ok(());
            }
        };
        let reached = match status {
            // A fatal NAK of a READ that fails midway names a PSN inside the READ. The WQE that
            // contains the PSN is the one that fails.
            Some(_) => self.skip_to(cx, psn),
            None => self.acknowledge_before(cx, psn),
        };
        match (reached, status) {
            (Reached::All, Some(status)) => Err(self.fail_front(cx, status)),
            //= RC-REQ-05
            (Reached::All, None) => {
                self.note_explicit_nak();
                self.sequence_error(cx)
            }
            (Reached::MissingResponse, _) => self.sequence_error(cx),
        }
    }

    /// Acknowledges everything before `target`, which lies in `una..=next_new`. Whole messages
    /// complete. A message that contains `target` does not.
    #[inline(never)]
    fn acknowledge_before<H>(&mut self, cx: &mut Cx<'_, H>, target: Psn) -> Reached {
        let cost_before = self.una_cost();
        let una_before = self.una;
        let mut reached = Reached::All;
        while self.una != target {
            let Some(front) = self.sq.wqes.front() else {
                break;
            };
            if front.op.needs_response_data() {
                //= RC-REQ-04
                reached = Reached::MissingResponse;
                self.note_executed(target);
                break;
            }
            if front.offset_of(target) >= front.packets {
                self.complete_one(cx);
            } else {
                //= RC-ACK-08
                self.set_una(target);
            }
        }
        self.complete_executed(cx);
        if self.una != una_before {
            self.on_progress(cx.now, cost_before);
        }
        reached
    }

    /// Notes that the peer has executed everything before `target`, although a response is missing.
    #[cold]
    fn note_executed(&mut self, target: Psn) {
        let before = self.executed_before.get();
        if before.is_none_or(|before| target.diff(before) > 0) {
            self.executed_before = MaybePsn::new(target);
        }
    }

    /// Acknowledges what the peer is known to have executed behind a response that was missing. The
    /// ACK is not repeated if the peer has ended since, or its queue pair has failed.
    #[cold]
    fn acknowledge_executed<H>(&mut self, cx: &mut Cx<'_, H>, target: Psn) {
        self.executed_before = MaybePsn::NONE;
        if target.diff(self.una) > 0 {
            // If another response is missing, this notes `target` again.
            self.acknowledge_before(cx, target);
        }
    }

    /// Acknowledges whole messages until the oldest one contains `psn`.
    fn skip_to<H>(&mut self, cx: &mut Cx<'_, H>, psn: Psn) -> Reached {
        let cost_before = self.una_cost();
        let una_before = self.una;
        let mut reached = Reached::All;
        while let Some(front) = self.sq.wqes.front() {
            if front.contains(psn) {
                break;
            }
            if front.op.needs_response_data() {
                reached = Reached::MissingResponse;
                break;
            }
            self.complete_front(cx);
        }
        if self.una != una_before {
            self.on_progress(cx.now, cost_before);
        }
        reached
    }

    fn handle_read_response<H: Memory>(
        &mut self,
        cx: &mut Cx<'_, H>,
        headers: &Headers,
        operation: Operation,
        payload: &[u8],
    ) -> Result<(), Fatal> {
        let psn = headers.bth.psn;
        if self.skip_to(cx, psn) == Reached::MissingResponse {
            return self.sequence_error(cx);
        }
        let Some(front) = self.sq.wqes.front() else {
            return Ok(());
        };
        if let SendOp::AtomicWrite { .. } | SendOp::Flush { .. } = front.op {
            //= ETH-12 ETH-13
            if operation != Operation::ReadResponseOnly || !payload.is_empty() {
                return Err(self.fail_front(cx, WcStatus::BadRespErr));
            }
            cx.out.counters.traffic().rx_packets += 1;
            self.response_taken(cx, psn);
            return Ok(());
        }
        if !matches!(front.op, SendOp::Read { .. }) {
            //= RC-REQ-10
            return Err(self.fail_front(cx, WcStatus::BadRespErr));
        }
        if psn != self.una {
            //= RC-REQ-12
            return self.sequence_error(cx);
        }
        let offset = front.offset_of(psn) * cx.peer.pmtu_bytes();
        if !read_response_len_ok(cx.peer, front, operation, offset, payload.len()) {
            //= RC-REQ-11
            return Err(self.fail_front(cx, WcStatus::LocLenErr));
        }
        let placed = if front.operands.is_some() {
            self.reduce(cx, psn, payload)
        } else if payload.is_empty() {
            Ok(())
        } else {
            front.data.scatter(cx.memory(), offset, payload)
        };
        if placed.is_err() {
            //= RC-REQ-13
            return Err(self.fail_front(cx, WcStatus::LocProtErr));
        }
        cx.out.counters.traffic().rx_packets += 1;
        self.response_taken(cx, psn);
        Ok(())
    }

    /// Adds the elements of a response to the calculation of the oldest WQE, a READ that computes.
    ///
    /// A response has whole elements, and each arrives once. After the last response, the result is
    /// written to the buffers.
    //= XCC-01
    #[cold]
    fn reduce<H: Memory>(
        &mut self,
        cx: &Cx<'_, H>,
        psn: Psn,
        payload: &[u8],
    ) -> Result<(), AccessError> {
        let Some(front) = self.sq.wqes.front_mut() else {
            return Ok(());
        };
        let Some(Operands::Reduce(reduction)) = front.operands.as_deref_mut() else {
            return Err(AccessError::OutOfRange);
        };
        reduction.add(payload);
        let (len, result) = (reduction.element_len(), reduction.result());
        if front.end_psn() != psn.next() {
            return Ok(());
        }
        front.len = u32::try_from(len).unwrap_or(0);
        front.data.scatter(cx.memory(), 0, &result[..len])
    }

    fn handle_atomic_ack<H: Memory>(
        &mut self,
        cx: &mut Cx<'_, H>,
        headers: &Headers,
        payload: &[u8],
    ) -> Result<(), Fatal> {
        let psn = headers.bth.psn;
        if self.skip_to(cx, psn) == Reached::MissingResponse {
            return self.sequence_error(cx);
        }
        let Some(front) = self.sq.wqes.front() else {
            return Ok(());
        };
        //= XAW-06
        let mut result = [0; 32];
        let big_endian = self.big_endian_results;
        let len = match (front.op.atomic_log_size(), headers.atomic_ack) {
            (Some(log_size), Some(ack)) if log_size <= 3 => {
                masked::to_memory(&[ack.original, 0, 0, 0], log_size, big_endian, &mut result)
            }
            (Some(log_size), None)
                if log_size > 3 && payload.len() == masked::wire_len(log_size) =>
            {
                let words = masked::get_words(log_size, payload);
                masked::to_memory(&words, log_size, big_endian, &mut result)
            }
            //= RC-REQ-10
            _ => return Err(self.fail_front(cx, WcStatus::BadRespErr)),
        };
        //= RC-WQE-10
        //= ATM-02
        if front.data.scatter(cx.memory(), 0, &result[..len]).is_err() {
            return Err(self.fail_front(cx, WcStatus::LocProtErr));
        }
        cx.out.counters.traffic().rx_packets += 1;
        self.response_taken(cx, psn);
        Ok(())
    }

    /// Notes that the response with PSN `una` was stored.
    fn response_taken<H>(&mut self, cx: &mut Cx<'_, H>, psn: Psn) {
        let cost_before = self.una_cost();
        self.on_positive_ack();
        let done = self
            .sq
            .wqes
            .front()
            .is_some_and(|front| front.end_psn() == psn.next());
        if done {
            self.complete_front(cx);
        } else {
            self.set_una(psn.next());
        }
        self.on_progress(cx.now, cost_before);
        if let Some(target) = self.executed_before.get() {
            self.acknowledge_executed(cx, target);
        }
    }

    #[inline]
    fn set_una(&mut self, una: Psn) {
        self.una = una;
        if self.cursor.diff(una) < 0 {
            // The response to a packet that was to be sent again has arrived.
            self.cursor = una;
            self.current = 0;
            self.failed = None;
        }
        while self
            .rd_pending
            .front()
            .is_some_and(|end| end.diff(una) <= 0)
        {
            self.rd_pending.pop_front();
        }
    }

    /// Completes the oldest WQE, and executed WQEs directly behind it.
    #[inline(never)]
    fn complete_front<H>(&mut self, cx: &mut Cx<'_, H>) {
        self.complete_one(cx);
        self.complete_executed(cx);
    }

    /// Removes the oldest WQE, with a completion if one is requested.
    #[inline(always)]
    pub(super) fn complete_one<H>(&mut self, cx: &mut Cx<'_, H>) {
        // Read in place: moving the WQE first takes longer than everything else.
        let Some(wqe) = self.sq.wqes.front() else {
            return;
        };
        let end = wqe.end_psn();
        self.started -= 1;
        self.current = self.current.saturating_sub(1);
        self.rd_wqes -= u32::from(wqe.op.needs_response_data());
        cx.out.counters.traffic().tx_messages += 1;
        cx.out.op_counters.add_sent(&wqe.op, wqe.len);
        let (flags, of, len) = (wqe.flags, (wqe.wr_id, wqe.wc_opcode()), wqe.len);
        self.sq.account.complete(cx, flags, of, len);
        drop(self.sq.wqes.pop_front());
        self.set_una(end);
    }
}

/// Returns true if the payload length of a READ response is correct: a full PMTU except for the
/// last response of its request.
fn read_response_len_ok(
    peer: &Peer,
    wqe: &SendWqe,
    operation: Operation,
    offset: u32,
    payload_len: usize,
) -> bool {
    let left = wqe.read_chunk_end(offset) - offset;
    let ends = matches!(
        operation,
        Operation::ReadResponseLast | Operation::ReadResponseOnly
    );
    payload_len == left.min(peer.pmtu_bytes()) as usize && ends == (left <= peer.pmtu_bytes())
}
