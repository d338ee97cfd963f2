//! The sending and the receiving state machine of a queue pair, both fixed at creation.

use alloc::boxed::Box;

use rocade_wire::{Msn, Psn, Qkey};

use super::QpConfig;
use crate::attr::QpType;
use crate::cx::Cx;
use crate::dc::{Initiator, Target};
use crate::error::PostError;
use crate::memory::Memory;
use crate::outputs::{Fatal, Outputs};
use crate::peer::Peer;
use crate::queue::{RecvSource, SendLimits};
use crate::raw::{FrameReceiver, FrameSender, Tso};
use crate::requester::{Requester, RequesterAttr};
use crate::responder::{Responder, ResponderAttr};
use crate::time::Time;
use crate::transmit::{ACK_LEN, TxBuffer};
use crate::unreliable::{Connected, Datagrams, Sender};
use crate::wr::{Destination, SendWr, Sge};

/// The sending state machine.
#[derive(Debug)]
pub(super) enum SendSide {
    /// No sender: an XRC target, or a QP that is being destroyed.
    None,
    /// Acknowledged and retransmitted: RC and XRC.
    Reliable(Requester),
    /// Acknowledged and retransmitted, to one target after another: DC.
    Dynamic(Box<Initiator>),
    /// Sent once: UC and UD.
    Unreliable(Sender),
    /// Unmodified frames: raw packets.
    Frames(FrameSender),
}

/// The receiving state machine.
#[derive(Debug)]
pub(super) enum RecvSide {
    /// No receiver: an XRC or DC initiator, or a QP that is being destroyed.
    None,
    /// Acknowledges and responds to one peer: RC and XRC.
    Reliable(Responder),
    /// Accepts whole messages of its peer: UC.
    Connected(Connected),
    /// Accepts datagrams from any source: UD.
    Datagrams(Datagrams),
    /// Accepts unmodified frames: raw packets.
    Frames(FrameReceiver),
    /// Acknowledges and responds to any initiator with the access key: DC.
    Target(Box<Target>),
}

impl SendSide {
    /// Creates the sender of a QP type. `None` if this crate has no state machine for it.
    pub(super) fn of(qp_type: QpType, limits: SendLimits) -> Option<Self> {
        match qp_type {
            //= XRC-13
            QpType::Rc | QpType::XrcSend => Some(Self::Reliable(Requester::new(limits))),
            QpType::Uc | QpType::Ud => Some(Self::Unreliable(Sender::new(limits, qp_type))),
            //= XRC-01
            QpType::XrcRecv => Some(Self::None),
            QpType::RawPacket => Some(Self::Frames(FrameSender::new(limits))),
            //= DC-01
            QpType::DcInitiator => Some(Self::Dynamic(Box::new(Initiator::new(limits)))),
            QpType::DcTarget => Some(Self::None),
        }
    }

    /// Returns the number of incomplete work requests.
    pub(super) fn queued(&self) -> usize {
        match self {
            Self::Reliable(requester) => requester.queued(),
            Self::Dynamic(initiator) => initiator.queued(),
            Self::Unreliable(sender) => sender.queued(),
            Self::Frames(sender) => sender.queued(),
            Self::None => 0,
        }
    }

    /// Returns the bytes in flight and the window, zeroes for a service without one.
    pub(super) fn flight(&self) -> (u64, u64) {
        match self {
            Self::Reliable(requester) => requester.flight(),
            Self::None | Self::Dynamic(_) | Self::Unreliable(_) | Self::Frames(_) => (0, 0),
        }
    }

    /// Returns true if every started work request has completed.
    pub(super) fn is_drained(&self) -> bool {
        match self {
            Self::Reliable(requester) => requester.is_drained(),
            Self::Dynamic(initiator) => initiator.is_drained(),
            Self::Unreliable(sender) => sender.is_drained(),
            Self::Frames(sender) => sender.is_drained(),
            Self::None => true,
        }
    }

    /// Returns true if its packets are never acknowledged.
    #[inline]
    pub(super) const fn is_unreliable(&self) -> bool {
        match self {
            Self::Unreliable(_) | Self::Frames(_) => true,
            Self::Reliable(_) | Self::Dynamic(_) | Self::None => false,
        }
    }

    /// Returns true if there is anything to start, to retransmit or to report.
    #[inline(always)]
    pub(super) fn has_work(&self) -> bool {
        match self {
            Self::Reliable(requester) => requester.has_work(),
            Self::Dynamic(initiator) => initiator.has_work(),
            Self::Unreliable(sender) => sender.has_work(),
            // Its frames are fetched by [`Qp::next_frame`].
            Self::Frames(_) | Self::None => false,
        }
    }

    pub(super) fn post(
        &mut self,
        wr: &SendWr<'_>,
        to: Option<Destination>,
        inline: Option<&[u8]>,
    ) -> Result<(), PostError> {
        match self {
            Self::Reliable(requester) if to.is_none() => requester.post(wr, inline),
            Self::Reliable(_) => Err(PostError::NoDestination),
            Self::Dynamic(_) if to.is_some() => Err(PostError::NoDestination),
            Self::Dynamic(initiator) => initiator.post(wr, None, inline),
            Self::Unreliable(sender) => sender.post(wr, to, inline),
            Self::Frames(sender) => sender.post(wr, to, None, inline),
            Self::None => Err(PostError::InvalidState),
        }
    }

    /// Queues a request that is cut into segments. Only raw packets support it.
    pub(super) fn post_tso(
        &mut self,
        wr: &SendWr<'_>,
        tso: Tso<'_>,
        inline: Option<&[u8]>,
    ) -> Result<(), PostError> {
        match self {
            Self::Frames(sender) => sender.post(wr, None, Some(tso), inline),
            Self::Reliable(_) | Self::Dynamic(_) | Self::Unreliable(_) | Self::None => {
                Err(PostError::UnsupportedOpcode)
            }
        }
    }

    pub(super) fn unpost(&mut self, count: usize) {
        match self {
            Self::Reliable(requester) => requester.unpost(count),
            Self::Dynamic(initiator) => initiator.unpost(count),
            Self::Unreliable(sender) => sender.unpost(count),
            Self::Frames(sender) => sender.unpost(count),
            Self::None => {}
        }
    }

    pub(super) const fn unflush(&mut self, freed_wqes: u32) {
        match self {
            Self::Reliable(requester) => requester.unflush(freed_wqes),
            Self::Dynamic(initiator) => initiator.unflush(freed_wqes),
            Self::Unreliable(sender) => sender.unflush(freed_wqes),
            Self::Frames(sender) => sender.unflush(freed_wqes),
            Self::None => {}
        }
    }

    pub(super) const fn free_wqes(&mut self, freed_wqes: u32) {
        match self {
            Self::Reliable(requester) => requester.free_wqes(freed_wqes),
            Self::Dynamic(initiator) => initiator.free_wqes(freed_wqes),
            Self::Unreliable(sender) => sender.free_wqes(freed_wqes),
            Self::Frames(sender) => sender.free_wqes(freed_wqes),
            Self::None => {}
        }
    }

    /// Starts sending, on the transition from RTR to RTS.
    pub(super) fn start(&mut self, sq_psn: Psn) {
        match self {
            Self::Reliable(requester) => requester.start(sq_psn),
            Self::Dynamic(initiator) => initiator.start(sq_psn),
            Self::Unreliable(sender) => sender.start(sq_psn),
            Self::Frames(_) | Self::None => {}
        }
    }

    pub(super) fn set_attr(&mut self, attr: RequesterAttr) {
        match self {
            Self::Reliable(requester) => requester.set_attr(attr),
            Self::Dynamic(initiator) => initiator.set_attr(attr),
            Self::Unreliable(_) | Self::Frames(_) | Self::None => {}
        }
    }

    /// Changes the path of later packets. `failed` is true if the old path has failed.
    ///
    /// Unreliable services learn nothing about a path, so only RC has state to change.
    //= RC-APM-11
    pub(super) fn change_path(&mut self, failed: bool) {
        if let Self::Reliable(requester) = self {
            requester.change_path(failed);
        }
    }

    pub(super) const fn set_qkey(&mut self, qkey: Qkey) {
        if let Self::Unreliable(sender) = self {
            sender.set_qkey(qkey);
        }
    }

    pub(super) const fn set_draining(&mut self, draining: bool) {
        match self {
            Self::Reliable(requester) => requester.set_draining(draining),
            Self::Unreliable(sender) => sender.set_draining(draining),
            Self::Frames(sender) => sender.set_draining(draining),
            //= DCS-08
            Self::Dynamic(_) | Self::None => {}
        }
    }

    pub(super) fn next_timeout(&self) -> Option<Time> {
        match self {
            Self::Reliable(requester) => requester.next_timeout(),
            Self::Dynamic(initiator) => initiator.next_timeout(),
            Self::Unreliable(sender) => sender.next_timeout(),
            Self::Frames(_) | Self::None => None,
        }
    }

    pub(super) fn handle_timeout<H>(&mut self, cx: &mut Cx<'_, H>) -> Result<(), Fatal> {
        match self {
            Self::Reliable(requester) => requester.handle_timeout(cx),
            Self::Dynamic(initiator) => initiator.handle_timeout(cx),
            Self::Unreliable(sender) => {
                sender.handle_timeout(cx.now);
                Ok(())
            }
            Self::Frames(_) | Self::None => Ok(()),
        }
    }

    /// Appends requests, and reports requests that have failed.
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
            Self::Dynamic(initiator) => initiator.poll_transmit(cx, tx),
            Self::Unreliable(sender) => sender.poll_transmit(cx, tx),
            Self::Frames(_) | Self::None => Ok(()),
        }
    }

    /// Handles the failure to read the payload of the request with this PSN.
    pub(super) fn fail_request<H>(&mut self, cx: &mut Cx<'_, H>, psn: Psn) -> Result<(), Fatal> {
        match self {
            Self::Reliable(requester) => {
                requester.fail_request(cx.now, psn);
                requester.check_failed(cx)
            }
            Self::Dynamic(initiator) => initiator.fail_request(cx, psn),
            Self::Unreliable(sender) => sender.fail_request(cx, psn),
            Self::Frames(_) | Self::None => Ok(()),
        }
    }

    /// Completes everything with `WR_FLUSH_ERR`.
    pub(super) fn flush<H>(&mut self, cx: &mut Cx<'_, H>) {
        match self {
            Self::Reliable(requester) => requester.flush(cx),
            Self::Dynamic(initiator) => initiator.flush(cx),
            Self::Unreliable(sender) => sender.flush(cx),
            Self::Frames(sender) => sender.flush(cx),
            Self::None => {}
        }
    }

    /// Drops everything without completions.
    pub(super) fn reset(&mut self) {
        match self {
            Self::Reliable(requester) => requester.reset(),
            Self::Dynamic(initiator) => initiator.reset(),
            Self::Unreliable(sender) => sender.reset(),
            Self::Frames(sender) => sender.reset(),
            Self::None => {}
        }
    }
}

impl RecvSide {
    /// Creates the receiver of a QP type. `None` if this crate has no state machine for it.
    pub(super) fn of(config: &QpConfig, receives: RecvSource) -> Option<Self> {
        match config.qp_type {
            QpType::Rc | QpType::XrcRecv => Some(Self::Reliable(Responder::new(receives))),
            //= XRC-12
            QpType::XrcSend => Some(Self::None),
            //= DC-05
            QpType::DcInitiator => Some(Self::None),
            //= DC-01
            QpType::DcTarget => match receives {
                RecvSource::OfTarget(srq, pd) => {
                    let max_rd_atomic = config.limits.max_qp_rd_atom;
                    Some(Self::Target(Box::new(Target::new(srq, pd, max_rd_atomic))))
                }
                RecvSource::Own(_) | RecvSource::Shared(_) | RecvSource::ByHeader(_) => None,
            },
            QpType::Uc => Some(Self::Connected(Connected::new(receives))),
            QpType::Ud => Some(Self::Datagrams(Datagrams::new(receives))),
            QpType::RawPacket => Some(Self::Frames(FrameReceiver::new(receives))),
        }
    }

    /// Returns the number of incomplete receives.
    pub(super) fn queued(&self) -> usize {
        match self {
            Self::Reliable(responder) => responder.queued(),
            Self::Connected(receiver) => receiver.queued(),
            Self::Datagrams(receiver) => receiver.queued(),
            Self::Frames(receiver) => receiver.queued(),
            Self::Target(_) | Self::None => 0,
        }
    }

    /// Returns the source of receives. `None` if there is none.
    pub(super) const fn receives(&self) -> Option<&RecvSource> {
        match self {
            Self::Reliable(responder) => Some(responder.receives()),
            Self::Connected(receiver) => Some(receiver.receives()),
            Self::Datagrams(receiver) => Some(receiver.receives()),
            Self::Frames(receiver) => Some(receiver.receives()),
            Self::Target(_) | Self::None => None,
        }
    }

    /// Returns true if a message has been received in part.
    pub(super) const fn is_in_message(&self) -> bool {
        match self {
            Self::Reliable(responder) => responder.is_in_message(),
            Self::Connected(receiver) => receiver.is_in_message(),
            Self::Datagrams(_) | Self::Target(_) | Self::Frames(_) | Self::None => false,
        }
    }

    #[inline]
    pub(super) const fn receives_mut(&mut self) -> Option<&mut RecvSource> {
        Some(match self {
            Self::Reliable(responder) => responder.receives_mut(),
            Self::Connected(receiver) => receiver.receives_mut(),
            Self::Datagrams(receiver) => receiver.receives_mut(),
            Self::Frames(receiver) => receiver.receives_mut(),
            Self::Target(_) | Self::None => return None,
        })
    }

    #[inline]
    pub(super) fn post(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        // RC first: one comparison in the most frequent case.
        if let Self::Reliable(responder) = self {
            return responder.receives_mut().post(wr_id, sges);
        }
        self.post_other(wr_id, sges)
    }

    fn post_other(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        match self.receives_mut() {
            Some(receives) => receives.post(wr_id, sges),
            None => Err(PostError::InvalidState),
        }
    }

    pub(super) const fn free_wqes(&mut self, freed_wqes: u32) {
        if let Some(receives) = self.receives_mut() {
            receives.free_wqes(freed_wqes);
        }
    }

    /// Starts receiving, on the transition from INIT to RTR.
    pub(super) const fn start(&mut self, rq_psn: Psn) {
        match self {
            Self::Reliable(responder) => responder.start(rq_psn),
            Self::Connected(receiver) => receiver.start(rq_psn),
            Self::Datagrams(_) | Self::Target(_) | Self::Frames(_) | Self::None => {}
        }
    }

    pub(super) fn set_attr(&mut self, attr: ResponderAttr) {
        match self {
            Self::Reliable(responder) => responder.set_attr(attr),
            Self::Connected(receiver) => receiver.set_access(attr.access),
            Self::Target(target) => target.set_attr(attr),
            Self::Datagrams(_) | Self::Frames(_) | Self::None => {}
        }
    }

    pub(super) const fn set_qkey(&mut self, qkey: Qkey) {
        if let Self::Datagrams(receiver) = self {
            receiver.set_qkey(qkey);
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
            Self::Target(target) => {
                target.poll_transmit(cx, tx);
                Ok(())
            }
            Self::None | Self::Connected(_) | Self::Datagrams(_) | Self::Frames(_) => Ok(()),
        }
    }

    #[inline]
    pub(super) fn has_responses(&self) -> bool {
        match self {
            Self::Reliable(responder) => responder.has_responses(),
            Self::Target(target) => target.has_responses(),
            Self::None | Self::Connected(_) | Self::Datagrams(_) | Self::Frames(_) => false,
        }
    }

    /// Returns true if the next response is that of a READ.
    pub(super) fn is_reading(&self) -> bool {
        match self {
            Self::Reliable(responder) => responder.is_reading(),
            Self::None
            | Self::Connected(_)
            | Self::Datagrams(_)
            | Self::Frames(_)
            | Self::Target(_) => false,
        }
    }

    #[inline]
    pub(super) fn lone_ack(&self) -> Option<Psn> {
        match self {
            Self::Reliable(responder) => responder.lone_ack(),
            Self::None
            | Self::Connected(_)
            | Self::Datagrams(_)
            | Self::Frames(_)
            | Self::Target(_) => None,
        }
    }

    #[inline]
    pub(super) fn take_lone_ack(
        &mut self,
        peer: &Peer,
        out: &mut Outputs,
    ) -> Option<[u8; ACK_LEN]> {
        match self {
            Self::Reliable(responder) => responder.take_lone_ack(peer, out),
            Self::None
            | Self::Connected(_)
            | Self::Datagrams(_)
            | Self::Frames(_)
            | Self::Target(_) => None,
        }
    }

    #[inline]
    pub(super) fn pending_ack(&self) -> Option<(Psn, Msn)> {
        match self {
            Self::Reliable(responder) => responder.pending_ack(),
            Self::None
            | Self::Connected(_)
            | Self::Datagrams(_)
            | Self::Frames(_)
            | Self::Target(_) => None,
        }
    }

    pub(super) fn newest_ack(&self) -> Option<(Psn, Msn)> {
        match self {
            Self::Reliable(responder) => responder.newest_ack(),
            Self::Target(target) => target.newest_ack(),
            Self::None | Self::Connected(_) | Self::Datagrams(_) | Self::Frames(_) => None,
        }
    }

    /// Schedules an ACK of all that was received. Only a path of RC can be lost.
    pub(super) fn repeat_ack(&mut self) {
        match self {
            Self::Reliable(responder) => responder.repeat_ack(),
            Self::None
            | Self::Connected(_)
            | Self::Datagrams(_)
            | Self::Frames(_)
            | Self::Target(_) => {}
        }
    }

    /// Handles the failure to read the payload of a READ response.
    pub(super) fn fail_response<H>(
        &mut self,
        cx: &mut Cx<'_, H>,
        psn: Psn,
        (replay, has_failed): (bool, bool),
    ) -> Result<(), Fatal> {
        match self {
            Self::Reliable(responder) => responder.fail_response(psn, (replay, has_failed), cx.out),
            Self::Target(target) => {
                target.fail_response(cx, psn, replay);
                Ok(())
            }
            Self::None | Self::Connected(_) | Self::Datagrams(_) | Self::Frames(_) => Ok(()),
        }
    }

    pub(super) fn discard_responses(&mut self) {
        match self {
            Self::Reliable(responder) => responder.discard_responses(),
            Self::Target(target) => target.discard_responses(),
            Self::None | Self::Connected(_) | Self::Datagrams(_) | Self::Frames(_) => {}
        }
    }

    pub(super) fn discard_unreported(&mut self, seen: usize) {
        match self {
            Self::Reliable(responder) => responder.discard_unreported(seen),
            Self::Target(target) => target.discard_unreported(seen),
            Self::None | Self::Connected(_) | Self::Datagrams(_) | Self::Frames(_) => {}
        }
    }

    pub(super) fn note_handed_out(&mut self) {
        match self {
            Self::Reliable(responder) => responder.note_handed_out(),
            Self::Target(target) => target.note_handed_out(),
            Self::None | Self::Connected(_) | Self::Datagrams(_) | Self::Frames(_) => {}
        }
    }

    #[inline]
    pub(super) fn note_reported(&mut self) {
        match self {
            Self::Reliable(responder) => responder.note_reported(),
            Self::Target(target) => target.note_reported(),
            Self::None | Self::Connected(_) | Self::Datagrams(_) | Self::Frames(_) => {}
        }
    }

    /// Completes everything with `WR_FLUSH_ERR`.
    pub(super) fn flush<H>(&mut self, cx: &mut Cx<'_, H>) {
        match self {
            Self::Reliable(responder) => responder.flush(cx),
            Self::Connected(receiver) => receiver.flush(cx),
            Self::Datagrams(receiver) => receiver.flush(cx),
            Self::Frames(receiver) => receiver.flush(cx),
            Self::Target(target) => target.flush(cx),
            Self::None => {}
        }
    }

    /// Drops everything without completions.
    pub(super) fn reset(&mut self) {
        match self {
            Self::Reliable(responder) => responder.reset(),
            Self::Connected(receiver) => receiver.reset(),
            Self::Datagrams(receiver) => receiver.reset(),
            Self::Frames(receiver) => receiver.reset(),
            Self::Target(target) => target.reset(),
            Self::None => {}
        }
    }
}
