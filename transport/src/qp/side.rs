//! The two sides of a queue pair: which machine sends, and which receives. Both are fixed when the queue
//! pair is created.

use rocade_wire::{Msn, Psn};

use crate::cx::Cx;
use crate::error::PostError;
use crate::memory::Memory;
use crate::outputs::{Fatal, Outputs};
use crate::queue::RecvSource;
use crate::requester::{Requester, RequesterAttr};
use crate::responder::{Responder, ResponderAttr};
use crate::time::Time;
use crate::transmit::TxBuffer;
use crate::wr::{SendWr, Sge};

/// What sends.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "nearly every queue pair is the large one, and one pointer less is followed for each packet"
)]
pub(super) enum SendSide {
    /// Nothing: the queue pair is about to go.
    None,
    /// Acknowledged and repeated.
    Reliable(Requester),
}

/// What receives.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "as for the send side")]
pub(super) enum RecvSide {
    /// Nothing: the queue pair is about to go.
    None,
    /// Acknowledges, and answers.
    Reliable(Responder),
}

impl SendSide {
    /// Work requests that are not complete.
    pub(super) fn queued(&self) -> usize {
        match self {
            Self::Reliable(requester) => requester.queued(),
            Self::None => 0,
        }
    }

    /// Everything started has ended.
    pub(super) const fn is_drained(&self) -> bool {
        match self {
            Self::Reliable(requester) => requester.is_drained(),
            Self::None => true,
        }
    }

    /// Is there anything to start, to send again or to report?
    #[inline]
    pub(super) fn has_work(&self) -> bool {
        match self {
            Self::Reliable(requester) => requester.has_work(),
            Self::None => false,
        }
    }

    #[inline]
    pub(super) fn post(&mut self, wr: &SendWr<'_>, inline: Option<&[u8]>) -> Result<(), PostError> {
        match self {
            Self::Reliable(requester) => requester.post(wr, inline),
            Self::None => Err(PostError::InvalidState),
        }
    }

    pub(super) fn unpost(&mut self, count: usize) {
        if let Self::Reliable(requester) = self {
            requester.unpost(count);
        }
    }

    pub(super) const fn unflush(&mut self, slots: u32) {
        if let Self::Reliable(requester) = self {
            requester.unflush(slots);
        }
    }

    pub(super) const fn free_slots(&mut self, slots: u32) {
        if let Self::Reliable(requester) = self {
            requester.free_slots(slots);
        }
    }

    /// RTR to RTS.
    pub(super) fn start(&mut self, sq_psn: Psn) {
        if let Self::Reliable(requester) = self {
            requester.start(sq_psn);
        }
    }

    pub(super) fn set_attr(&mut self, attr: RequesterAttr) {
        if let Self::Reliable(requester) = self {
            requester.set_attr(attr);
        }
    }

    pub(super) const fn set_draining(&mut self, draining: bool) {
        if let Self::Reliable(requester) = self {
            requester.set_draining(draining);
        }
    }

    pub(super) fn next_timeout(&self) -> Option<Time> {
        match self {
            Self::Reliable(requester) => requester.next_timeout(),
            Self::None => None,
        }
    }

    pub(super) fn handle_timeout<H>(&mut self, cx: &mut Cx<'_, H>) -> Result<(), Fatal> {
        match self {
            Self::Reliable(requester) => requester.handle_timeout(cx),
            Self::None => Ok(()),
        }
    }

    /// Appends requests, and reports what has failed meanwhile.
    #[inline]
    pub(super) fn poll_transmit<H: Memory>(
        &mut self,
        cx: &mut Cx<'_, H>,
        tx: &mut TxBuffer,
    ) -> Result<(), Fatal> {
        match self {
            Self::Reliable(requester) => {
                requester.poll_transmit(cx, tx);
                requester.check_failed(cx)
            }
            Self::None => Ok(()),
        }
    }

    /// The payload of the request with this PSN cannot be read any more.
    pub(super) fn fail_request<H>(&mut self, cx: &mut Cx<'_, H>, psn: Psn) -> Result<(), Fatal> {
        match self {
            Self::Reliable(requester) => {
                requester.fail_request(cx.now, psn);
                requester.check_failed(cx)
            }
            Self::None => Ok(()),
        }
    }

    /// Completes everything with `WR_FLUSH_ERR` (RC-STA-01).
    pub(super) fn flush<H>(&mut self, cx: &mut Cx<'_, H>) {
        if let Self::Reliable(requester) = self {
            requester.flush(cx);
        }
    }

    /// Forgets everything without completions (RC-STA-04).
    pub(super) fn reset(&mut self) {
        if let Self::Reliable(requester) = self {
            requester.reset();
        }
    }
}

impl RecvSide {
    /// Receives that are not complete.
    pub(super) fn queued(&self) -> usize {
        match self {
            Self::Reliable(responder) => responder.queued(),
            Self::None => 0,
        }
    }

    /// Where receives come from; `None` where there are none.
    pub(super) const fn receives(&self) -> Option<&RecvSource> {
        match self {
            Self::Reliable(responder) => Some(responder.receives()),
            Self::None => None,
        }
    }

    /// Has a part of a message come, and not all of it?
    pub(super) const fn is_in_message(&self) -> bool {
        match self {
            Self::Reliable(responder) => responder.is_in_message(),
            Self::None => false,
        }
    }

    #[inline]
    pub(super) fn post(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        match self {
            Self::Reliable(responder) => responder.receives_mut().post(wr_id, sges),
            Self::None => Err(PostError::InvalidState),
        }
    }

    pub(super) const fn free_slots(&mut self, slots: u32) {
        if let Self::Reliable(responder) = self {
            responder.receives_mut().free_slots(slots);
        }
    }

    /// INIT to RTR.
    pub(super) const fn start(&mut self, rq_psn: Psn) {
        if let Self::Reliable(responder) = self {
            responder.start(rq_psn);
        }
    }

    pub(super) const fn set_attr(&mut self, attr: ResponderAttr) {
        if let Self::Reliable(responder) = self {
            responder.set_attr(attr);
        }
    }

    /// Appends responses.
    #[inline]
    pub(super) fn poll_transmit<H: Memory>(
        &mut self,
        cx: &mut Cx<'_, H>,
        tx: &mut TxBuffer,
    ) -> Result<(), Fatal> {
        match self {
            Self::Reliable(responder) => responder.poll_transmit(cx, tx),
            Self::None => Ok(()),
        }
    }

    #[inline]
    pub(super) fn has_responses(&self) -> bool {
        match self {
            Self::Reliable(responder) => responder.has_responses(),
            Self::None => false,
        }
    }

    #[inline]
    pub(super) fn lone_ack(&self) -> Option<Psn> {
        match self {
            Self::Reliable(responder) => responder.lone_ack(),
            Self::None => None,
        }
    }

    #[inline]
    pub(super) fn owed_ack(&self) -> Option<(Psn, Msn)> {
        match self {
            Self::Reliable(responder) => responder.owed_ack(),
            Self::None => None,
        }
    }

    /// The payload of a READ response cannot be read any more.
    pub(super) fn fail_response(
        &mut self,
        psn: Psn,
        replay: bool,
        out: &mut Outputs,
    ) -> Result<(), Fatal> {
        match self {
            Self::Reliable(responder) => responder.fail_response(psn, replay, out),
            Self::None => Ok(()),
        }
    }

    pub(super) fn discard_responses(&mut self) {
        if let Self::Reliable(responder) = self {
            responder.discard_responses();
        }
    }

    pub(super) fn discard_unreported(&mut self, seen: usize) {
        if let Self::Reliable(responder) = self {
            responder.discard_unreported(seen);
        }
    }

    pub(super) fn note_handed_out(&mut self) {
        if let Self::Reliable(responder) = self {
            responder.note_handed_out();
        }
    }

    #[inline]
    pub(super) fn note_reported(&mut self) {
        if let Self::Reliable(responder) = self {
            responder.note_reported();
        }
    }

    /// Completes everything with `WR_FLUSH_ERR` (RC-STA-01).
    pub(super) fn flush<H>(&mut self, cx: &mut Cx<'_, H>) {
        if let Self::Reliable(responder) = self {
            responder.flush(cx);
        }
    }

    /// Forgets everything without completions (RC-STA-04).
    pub(super) fn reset(&mut self) {
        if let Self::Reliable(responder) = self {
            responder.reset();
        }
    }
}
