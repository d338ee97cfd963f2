//! The responder: from request packets to memory, receive completions and responses.

mod ack_policy;
mod execute;
mod fast_path;
#[cfg(debug_assertions)]
mod invariants;
mod resources;
mod sequence;
mod snapshot;

use alloc::collections::VecDeque;

use rocade_wire::{Msn, Psn, Rkey, RnrTimer};

use crate::completion::{CompleteTo, Completion, ImmOrInv, WcOpcode, WcStatus};
use crate::cx::Cx;
use crate::queue::{LazyDeque, RecvSource, RecvWqe, Srqn};
use crate::wr::AccessFlags;

use ack_policy::Response;
pub(crate) use ack_policy::{push_ack, push_without_payload};
use resources::Saved;
pub use snapshot::{ReplayEntry, ResponderSnapshot};

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

/// Message fields for the completion of a receive.
#[derive(Clone, Copy, Debug)]
struct RecvDetail {
    opcode: WcOpcode,
    byte_len: u32,
    imm_or_inv: ImmOrInv,
    solicited: bool,
}

/// Completes a receive.
#[inline]
fn complete_recv<H>(cx: &mut Cx<'_, H>, wqe: &RecvWqe, detail: RecvDetail) {
    let RecvDetail {
        opcode,
        byte_len,
        imm_or_inv,
        solicited,
    } = detail;
    let completion = Completion {
        byte_len,
        imm_or_inv,
        wc_flags: imm_or_inv.flags(),
        solicited,
        srqn: wqe.srqn,
        ..cx.completion(complete_to(wqe), wqe.wr_id, WcStatus::Success, opcode)
    };
    cx.out.completions.push_back(completion);
}

/// Completes a receive in error. Only the status counts.
fn fail_recv<H>(cx: &mut Cx<'_, H>, wqe: &RecvWqe, status: WcStatus) {
    let completion = Completion {
        srqn: wqe.srqn,
        ..cx.completion(complete_to(wqe), wqe.wr_id, status, WcOpcode::Recv)
    };
    cx.out.completions.push_back(completion);
}

//= XRC-05
const fn complete_to(wqe: &RecvWqe) -> CompleteTo {
    match wqe.srqn {
        Srqn::NONE => CompleteTo::RecvCq,
        _ => CompleteTo::SrqCq,
    }
}

/// Attributes of the responder.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResponderAttr {
    pub(crate) access: AccessFlags,
    pub(crate) max_dest_rd_atomic: u8,
    pub(crate) min_rnr_timer: RnrTimer,
}

impl ResponderAttr {
    pub(crate) const NONE: Self = Self {
        access: AccessFlags::empty(),
        max_dest_rd_atomic: 0,
        min_rnr_timer: RnrTimer::LONGEST,
    };
}

#[derive(Debug)]
pub(crate) struct Responder {
    attr: ResponderAttr,
    /// Largest `max_dest_rd_atomic` so far. What was executed under it is still repeated after the
    /// application has lowered it.
    most_resources: u8,
    receives: RecvSource,
    /// Expected PSN of the next new request.
    epsn: Psn,
    msn: Msn,
    /// A NAK for `epsn` was sent. No other is sent until a request with that PSN arrives.
    nak_outstanding: bool,
    /// Requests that need a receive find none, although there may be some.
    withholds_receives: bool,
    /// Number of requests that found no receive for that reason.
    withheld: u32,
    /// The last response announced zero credits.
    announced_zero: bool,
    /// The next ACK announces that there are receives again.
    has_unsent_credits: bool,
    current: InProgress,
    /// READs and atomics that can be replayed.
    saved: LazyDeque<Saved>,
    /// Responses not sent yet, in order.
    queue: VecDeque<Response>,
    /// PSN and MSN of an ACK for the messages whose completions were handed out.
    reported: Option<(Psn, Msn)>,
    /// PSN and MSN of an ACK for each message whose receive completion was not handed out yet.
    received: LazyDeque<(Psn, Msn)>,
}

impl Responder {
    pub(crate) const fn new(receives: RecvSource) -> Self {
        Self {
            attr: ResponderAttr::NONE,
            most_resources: 0,
            receives,
            epsn: Psn::new(0),
            msn: Msn::new(0),
            nak_outstanding: false,
            withholds_receives: false,
            withheld: 0,
            announced_zero: false,
            has_unsent_credits: false,
            current: InProgress::None,
            saved: LazyDeque::new(),
            queue: VecDeque::new(),
            reported: None,
            received: LazyDeque::new(),
        }
    }

    /// Starts receiving, on the transition from INIT to RTR. The first request expected has
    /// `rq_psn`.
    //= RC-PSN-04
    pub(crate) const fn start(&mut self, rq_psn: Psn) {
        self.epsn = rq_psn;
    }

    pub(crate) fn set_attr(&mut self, attr: ResponderAttr) {
        self.most_resources = self.most_resources.max(attr.max_dest_rd_atomic);
        self.attr = attr;
    }

    pub(crate) const fn withhold_receives(&mut self, withhold: bool) {
        self.withholds_receives = withhold;
    }

    /// Takes the number of requests that have found no receive because those were withheld.
    pub(crate) const fn take_withheld(&mut self) -> u32 {
        core::mem::replace(&mut self.withheld, 0)
    }

    /// Returns the number of incomplete receives, including the one in progress.
    pub(crate) fn queued(&self) -> usize {
        self.receives.len() + usize::from(matches!(self.current, InProgress::Send { .. }))
    }

    pub(crate) const fn is_in_message(&self) -> bool {
        !matches!(self.current, InProgress::None)
    }

    /// Notes that receives were posted: schedules an ACK if the peer was told "zero credits".
    //= RC-ACK-06
    #[inline]
    pub(crate) fn note_posted(&mut self) {
        if self.announced_zero && self.receives.has_some() {
            self.announced_zero = false;
            self.has_unsent_credits = true;
            self.schedule_ack(self.epsn.sub(1));
        }
    }

    /// Returns true if an ACK that announces new receives is queued.
    #[inline]
    pub(crate) const fn has_unsent_credits(&self) -> bool {
        self.has_unsent_credits
    }

    /// Returns PSN and MSN of an ACK for everything received.
    pub(crate) const fn last_ack(&self) -> (Psn, Msn) {
        (self.epsn.sub(1), self.msn)
    }

    /// Returns the expected PSN of the next new request.
    pub(crate) const fn epsn(&self) -> Psn {
        self.epsn
    }

    /// Returns the number of messages that have consumed a receive, and whose completions were not
    /// handed out.
    pub(crate) fn unreported(&self) -> usize {
        self.received.len()
    }

    /// Returns the source of receives.
    pub(crate) const fn receives(&self) -> &RecvSource {
        &self.receives
    }

    pub(crate) const fn receives_mut(&mut self) -> &mut RecvSource {
        &mut self.receives
    }

    /// Completes the receive in progress and all queued ones with `WR_FLUSH_ERR`.
    //= RC-STA-01 WCS-05
    pub(crate) fn flush<H>(&mut self, cx: &mut Cx<'_, H>) {
        let mut flush = |wqe: RecvWqe| {
            fail_recv(cx, &wqe, WcStatus::WrFlushErr);
        };
        if let InProgress::Send { wqe, .. } =
            core::mem::replace(&mut self.current, InProgress::None)
        {
            flush(wqe);
        }
        while let Some(wqe) = self.receives.take_own() {
            flush(wqe);
        }
    }

    /// Drops responses that were not sent, when the application has moved the QP to ERR. The ACK of
    /// messages whose completions it may have polled is kept.
    pub(crate) fn discard_responses(&mut self) {
        let pending = self.ack_to_keep();
        self.queue.clear();
        self.queue
            .extend(pending.map(|(psn, msn)| Response::Ack { psn, msn }));
        self.saved.clear();
    }

    /// Drops responses that were not sent, when only the first `seen` receive completions will
    /// still be handed out.
    ///
    /// The messages of the other completions must not be acknowledged.
    //= RC-ERR-G RC-ACK-20
    pub(crate) fn discard_unreported(&mut self, seen: usize) {
        let last_seen = seen.checked_sub(1).and_then(|last| self.received.get(last));
        let seen = last_seen.copied().or(self.reported);
        let pending = self.ack_to_keep();
        self.queue.clear();
        self.saved.clear();
        if let (Some(pending), Some(seen)) = (pending, seen) {
            // The ACK must not cover a response that is queued behind it.
            let (psn, msn) = if seen.0.diff(pending.0) < 0 {
                seen
            } else {
                pending
            };
            self.queue.push_back(Response::Ack { psn, msn });
        }
    }

    /// Notes that a message that consumed a receive is complete.
    #[inline]
    fn note_received(&mut self, psn: Psn) {
        self.received.push_back((psn, self.msn));
    }

    /// Notes that the completion of the oldest such message was handed out.
    pub(crate) fn note_handed_out(&mut self) {
        if let Some(handed_out) = self.received.pop_front() {
            self.reported = Some(handed_out);
        }
    }

    /// Notes that the completions of all messages so far were handed out.
    pub(crate) fn note_reported(&mut self) {
        self.received.clear();
        if let Some(pending) = self.ack_to_keep() {
            self.reported = Some(pending);
        }
    }

    /// Drops everything without completions.
    pub(crate) fn reset(&mut self) {
        if let InProgress::Send { wqe, .. } = &self.current {
            self.receives.forget(wqe.srqn);
        }
        self.receives.reset();
        self.attr = ResponderAttr::NONE;
        self.most_resources = 0;
        self.epsn = Psn::new(0);
        self.msn = Msn::new(0);
        self.nak_outstanding = false;
        self.announced_zero = false;
        self.has_unsent_credits = false;
        self.current = InProgress::None;
        self.saved = LazyDeque::new();
        self.queue = VecDeque::new();
        self.reported = None;
        self.received = LazyDeque::new();
    }
}
