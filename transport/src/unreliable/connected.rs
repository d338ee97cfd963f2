//! The receive side of UC: a message is received in whole, or dropped.

use rocade_wire::{Headers, Operation, Psn, Reth, Rkey};

use crate::completion::{CompleteTo, Completion, ImmOrInv, WcOpcode, WcStatus};
use crate::counters::DropReason;
use crate::cx::Cx;
use crate::failure::{Failure, ReceiveBuffers};
use crate::memory::{Memory, RemoteAccess};
use crate::outputs::Fatal;
use crate::queue::{RecvSource, RecvWqe};
use crate::segment::{MAX_MESSAGE_LEN, length_ok};
use crate::wr::AccessFlags;

/// The message in progress: its first packet was accepted and its last was not.
#[derive(Debug)]
enum InProgress {
    None,
    Send {
        wqe: RecvWqe,
        received: u32,
    },
    Write {
        rkey: Rkey,
        va: u64,
        len: u32,
        received: u32,
    },
}

/// The reason why a packet is not accepted.
enum UcRefusal {
    /// The packet and its message are dropped.
    Drop(DropReason),
    /// A receive was completed in error.
    Fatal,
}

#[derive(Debug)]
pub(crate) struct Connected {
    receives: RecvSource,
    /// A receive whose message was dropped. The next SEND uses it.
    spare: Option<RecvWqe>,
    access: AccessFlags,
    epsn: Psn,
    current: InProgress,
}

impl Connected {
    pub(crate) const fn new(receives: RecvSource) -> Self {
        Self {
            receives,
            spare: None,
            access: AccessFlags::empty(),
            epsn: Psn::new(0),
            current: InProgress::None,
        }
    }

    /// Starts receiving, on the transition from INIT to RTR. The first packet expected has
    /// `rq_psn`.
    pub(crate) const fn start(&mut self, rq_psn: Psn) {
        self.epsn = rq_psn;
    }

    pub(crate) const fn set_access(&mut self, access: AccessFlags) {
        self.access = access;
    }

    /// Returns the number of incomplete receives.
    pub(crate) fn queued(&self) -> usize {
        let in_use = matches!(self.current, InProgress::Send { .. });
        self.receives.len() + usize::from(in_use) + usize::from(self.spare.is_some())
    }

    pub(crate) const fn is_in_message(&self) -> bool {
        !matches!(self.current, InProgress::None)
    }

    /// Returns the source of receives.
    pub(crate) const fn receives(&self) -> &RecvSource {
        &self.receives
    }

    pub(crate) const fn receives_mut(&mut self) -> &mut RecvSource {
        &mut self.receives
    }

    /// Handles a packet of the peer, or drops it and its message. The peer is not notified.
    pub(crate) fn handle<H: Memory>(
        &mut self,
        cx: &mut Cx<'_, H>,
        headers: &Headers,
        payload: &[u8],
    ) -> Result<(), Fatal> {
        let psn = headers.bth.psn;
        //= UC-03
        //= UC-04
        if psn != self.epsn {
            self.abandon();
        }
        self.epsn = psn.next();
        match self.take(cx, headers, payload) {
            Ok(()) => {
                cx.out.counters.traffic().rx_packets += 1;
                let operation = headers.bth.opcode.operation();
                let ends = operation.is_some_and(|one| one.is_last() || one.is_only());
                cx.out.counters.traffic().rx_messages += u64::from(ends);
                Ok(())
            }
            Err(UcRefusal::Drop(reason)) => {
                self.abandon();
                cx.out.counters.drop_packet(reason);
                Ok(())
            }
            Err(UcRefusal::Fatal) => Err(Fatal),
        }
    }

    /// Drops the message in progress. Its receive is used for the next one.
    //= UC-06
    fn abandon(&mut self) {
        if let InProgress::Send { wqe, .. } =
            core::mem::replace(&mut self.current, InProgress::None)
        {
            self.spare = Some(wqe);
        }
    }

    fn take_receive(&mut self) -> Result<RecvWqe, UcRefusal> {
        //= UC-07
        let wqe = self.spare.take().or_else(|| self.receives.take());
        wqe.ok_or(UcRefusal::Drop(DropReason::NoReceive))
    }

    fn take<H: Memory>(
        &mut self,
        cx: &mut Cx<'_, H>,
        headers: &Headers,
        payload: &[u8],
    ) -> Result<(), UcRefusal> {
        //= UC-01
        let known = |operation: &Operation| {
            (operation.is_send() || operation.is_write()) && !operation.has_inv()
        };
        let operation = headers.bth.opcode.operation().filter(known);
        let operation = operation.ok_or(UcRefusal::Drop(DropReason::Reserved))?;
        //= UC-05
        let continues = operation.is_middle() || operation.is_last();
        let fits = match self.current {
            InProgress::None => false,
            InProgress::Send { .. } => operation.is_send(),
            InProgress::Write { .. } => operation.is_write(),
        };
        if !continues || !fits {
            self.abandon();
        }
        if continues && !fits {
            return Err(UcRefusal::Drop(DropReason::OutOfSequence));
        }
        //= UC-13
        if !length_ok(cx.peer, operation, headers, payload) {
            return Err(UcRefusal::Drop(DropReason::Malformed));
        }
        if operation.is_send() {
            self.take_send(cx, operation, headers, payload)
        } else {
            self.take_write(cx, operation, headers, payload)
        }
    }

    fn take_send<H: Memory>(
        &mut self,
        cx: &mut Cx<'_, H>,
        operation: Operation,
        headers: &Headers,
        payload: &[u8],
    ) -> Result<(), UcRefusal> {
        let (wqe, received) = match core::mem::replace(&mut self.current, InProgress::None) {
            InProgress::Send { wqe, received } => (wqe, received),
            InProgress::None | InProgress::Write { .. } => (self.take_receive()?, 0),
        };
        let len = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        let total = u64::from(received) + u64::from(len);
        if total > wqe.data.len().min(u64::from(MAX_MESSAGE_LEN)) {
            //= UC-09
            self.spare = Some(wqe);
            return Err(UcRefusal::Drop(DropReason::TooLong));
        }
        if len > 0 && wqe.scatter(cx.memory(), received, payload).is_err() {
            //= UC-10
            let status = WcStatus::LocProtErr;
            let completion = cx.completion(CompleteTo::RecvCq, wqe.wr_id, status, WcOpcode::Recv);
            cx.out.completions.push_back(completion);
            let buffers = ReceiveBuffers::of(&wqe, cx.who);
            cx.out.events.explain(|| Failure::Receive(buffers));
            return Err(UcRefusal::Fatal);
        }
        let received = received + len;
        if operation.is_last() || operation.is_only() {
            complete(cx, &wqe, (WcOpcode::Recv, received), headers);
        } else {
            self.current = InProgress::Send { wqe, received };
        }
        Ok(())
    }

    fn take_write<H: Memory>(
        &mut self,
        cx: &mut Cx<'_, H>,
        operation: Operation,
        headers: &Headers,
        payload: &[u8],
    ) -> Result<(), UcRefusal> {
        const REFUSED: UcRefusal = UcRefusal::Drop(DropReason::Access);
        //= UC-08
        if !self.access.contains(AccessFlags::REMOTE_WRITE) {
            return Err(REFUSED);
        }
        let (rkey, va, total, received) = match (headers.reth, &self.current) {
            (Some(Reth { va, rkey, dma_len }), _) => {
                let len = u64::from(dma_len);
                let write = RemoteAccess::Write;
                if len > 0 && cx.host.check_remote(cx.who, rkey, va, len, write).is_err() {
                    return Err(REFUSED);
                }
                (rkey, va, dma_len, 0)
            }
            (
                None,
                &InProgress::Write {
                    rkey,
                    va,
                    len,
                    received,
                },
            ) => (rkey, va, len, received),
            _ => return Err(UcRefusal::Drop(DropReason::OutOfSequence)),
        };
        let len = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        let ends = operation.is_last() || operation.is_only();
        let after = u64::from(received) + u64::from(len);
        if after > u64::from(total) || ends != (after == u64::from(total)) {
            return Err(UcRefusal::Drop(DropReason::Malformed));
        }
        let wqe = if headers.imm.is_some() {
            Some(self.take_receive()?)
        } else {
            None
        };
        let at = va.wrapping_add(u64::from(received));
        if len > 0 && cx.host.write_remote(cx.who, rkey, at, payload).is_err() {
            self.spare = self.spare.take().or(wqe);
            return Err(REFUSED);
        }
        self.current = InProgress::None;
        if ends {
            cx.out.op_counters.add_remote_write(total);
        }
        if let Some(wqe) = wqe {
            //= RC-WQE-07
            complete(cx, &wqe, (WcOpcode::RecvRdmaWithImm, total), headers);
        } else if !ends {
            self.current = InProgress::Write {
                rkey,
                va,
                len: total,
                received: received + len,
            };
        }
        Ok(())
    }

    /// Completes the receive in progress and all queued ones with `WR_FLUSH_ERR`.
    pub(crate) fn flush<H>(&mut self, cx: &mut Cx<'_, H>) {
        self.abandon();
        while let Some(wqe) = self.spare.take().or_else(|| self.receives.take_own()) {
            let status = WcStatus::WrFlushErr;
            let completion = cx.completion(CompleteTo::RecvCq, wqe.wr_id, status, WcOpcode::Recv);
            cx.out.completions.push_back(completion);
        }
    }

    /// Drops everything without completions.
    pub(crate) fn reset(&mut self) {
        self.abandon();
        if let Some(wqe) = self.spare.take() {
            self.receives.forget(wqe.srqn);
        }
        self.receives.reset();
        self.access = AccessFlags::empty();
        self.epsn = Psn::new(0);
    }
}

/// Completes a receive with the fields of its message.
fn complete<H>(
    cx: &mut Cx<'_, H>,
    wqe: &RecvWqe,
    (opcode, byte_len): (WcOpcode, u32),
    headers: &Headers,
) {
    let imm_or_inv = headers
        .imm
        .map_or(ImmOrInv::None, |imm| ImmOrInv::Imm(imm.0));
    let completion = Completion {
        byte_len,
        imm_or_inv,
        wc_flags: imm_or_inv.flags(),
        solicited: headers.bth.solicited,
        ..cx.completion(CompleteTo::RecvCq, wqe.wr_id, WcStatus::Success, opcode)
    };
    cx.out.completions.push_back(completion);
}
