//! Transmission of a queue pair: the order of responses, delayed ACKs and requests.

use rocade_wire::{CreditCode, Msn, Opcode, Operation, Psn};

use super::Qp;
use crate::attr::QpState;
use crate::coalesce::AckPlacement;
use crate::memory::Memory;
use crate::peer::Migration;
use crate::queue::RecvSource;
use crate::time::Time;
use crate::transmit::{ACK_LEN, TxBuffer};

/// Fields of an ACK besides PSN and MSN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckTerms {
    /// The ACK opcode of the service.
    pub opcode: Opcode,
    /// The migration bit.
    pub migreq: bool,
    /// Credits: the number of messages that there are receives for.
    pub credits: CreditCode,
}

impl Qp {
    /// Returns true if its requests are never acknowledged: UD, UC and raw packets.
    #[must_use]
    #[inline]
    pub const fn sends_unreliably(&self) -> bool {
        self.send.is_unreliable()
    }

    /// Appends packets to `tx`, responses first except as [`AckPlacement`] specifies. All have the
    /// same destination.
    ///
    /// Call it with an empty buffer until the buffer stays empty, with [`AckPlacement::AfterFirst`]
    /// at most once.
    pub fn poll_transmit(
        &mut self,
        now: Time,
        mem: &impl Memory,
        acks: AckPlacement,
        tx: &mut TxBuffer,
    ) {
        if self.pending_notices.is_any() {
            self.send_pending_notices(tx);
        }
        let acks = self.timing(acks);
        let behind = acks != AckPlacement::First && self.recv.lone_ack().is_some();
        if !behind {
            self.transmit_responses(now, mem, tx);
        }
        // The last request and the ACK share a run.
        tx.stay_open(behind && acks == AckPlacement::AfterLast);
        self.transmit_requests(now, mem, tx);
        tx.stay_open(false);
        let its_turn = match acks {
            AckPlacement::First | AckPlacement::AfterFirst => true,
            AckPlacement::AfterLast => tx.is_empty() || !self.send.has_work(),
            AckPlacement::Defer => !tx.is_empty(),
        };
        if behind && its_turn {
            self.transmit_responses(now, mem, tx);
        }
    }

    /// Returns true if [`Qp::poll_transmit`] may have something to send. If false, it need not be
    /// called.
    #[must_use]
    #[inline]
    pub fn has_work_to_send(&self, acks: AckPlacement) -> bool {
        let holds = || {
            acks == AckPlacement::Defer
                && self.timing(acks) == AckPlacement::Defer
                && self.recv.lone_ack().is_some()
        };
        self.send.has_work()
            || (self.recv.has_responses() && !holds())
            || self.pending_notices.is_any()
    }

    /// In ERR there will be no requests for an ACK to follow. While paths migrate, an ACK must not
    /// be delayed from one path to the other.
    fn timing(&self, acks: AckPlacement) -> AckPlacement {
        if self.state == QpState::Err || self.peer.migration != Migration::Migrated {
            AckPlacement::First
        } else {
            acks
        }
    }

    fn transmit_responses(&mut self, now: Time, mem: &impl Memory, tx: &mut TxBuffer) {
        if let Some(control) = &self.control
            && !control.responses.is_idle()
        {
            self.pace_responses(now, mem, tx);
        } else {
            self.transmit_all_responses(now, mem, tx);
        }
    }

    /// Sends as many responses as the rate allows, under congestion. Only READ responses are
    /// delayed, and the responses after them.
    //= ENC-10
    #[cold]
    fn pace_responses(&mut self, now: Time, mem: &impl Memory, tx: &mut TxBuffer) {
        let Some(control) = &mut self.control else {
            return;
        };
        let limit = &mut control.responses;
        limit.waits_until = None;
        let budget = limit.budget(now);
        let begin = tx.bytes().len();
        if budget > 0 || !self.recv.is_reading() {
            let space = tx.limit(begin + budget);
            self.transmit_all_responses(now, mem, tx);
            tx.set_limit(space);
        }
        let reads = self.recv.is_reading();
        let Some(control) = &mut self.control else {
            return;
        };
        let limit = &mut control.responses;
        let spent = tx.bytes().len() - begin;
        limit.spend(now, spent);
        if reads && (budget == 0 || limit.budget(now) == 0) {
            limit.waits_until = Some(limit.ready_at().max(now.plus_ns(1)));
        }
    }

    fn transmit_all_responses(&mut self, now: Time, mem: &impl Memory, tx: &mut TxBuffer) {
        let (_, recv, mut cx) = self.sides(now, mem);
        let result = recv.poll_transmit(&mut cx, tx);
        if result.is_err() {
            self.conclude(now, result);
            // The NAK in place of the response: nothing else is sent.
            let (_, recv, mut cx) = self.sides(now, mem);
            let result = recv.poll_transmit(&mut cx, tx);
            debug_assert!(result.is_ok());
        }
    }

    fn transmit_requests(&mut self, now: Time, mem: &impl Memory, tx: &mut TxBuffer) {
        if !matches!(self.state, QpState::Rts | QpState::Sqd) {
            self.send_disconnects(tx);
            return;
        }
        let (send, _, mut cx) = self.sides(now, mem);
        let result = send.poll_transmit(&mut cx, tx);
        self.conclude_send(now, result);
        self.note_drained();
    }

    /// Returns true if a request was sent that is not acknowledged yet.
    #[must_use]
    pub fn requests_in_flight(&self) -> bool {
        !self.send.is_drained()
    }

    /// Returns the PSN of the ACK if it is the only packet left to send, after
    /// [`AckPlacement::Defer`].
    #[must_use]
    pub fn lone_ack(&self) -> Option<Psn> {
        self.recv.lone_ack()
    }

    /// Returns the packet of [`Qp::lone_ack`], which the caller sends at once. Its ICRC field has
    /// no defined value.
    pub fn take_lone_ack(&mut self) -> Option<[u8; ACK_LEN]> {
        self.recv.take_lone_ack(&self.peer, &mut self.out)
    }

    /// Returns PSN and MSN of the ACK, if that is the next response.
    ///
    /// The ACK covers messages whose completions the application may have polled, so it has to be
    /// sent before the QP is reset.
    #[must_use]
    pub fn pending_ack(&self) -> Option<(Psn, Msn)> {
        self.recv.pending_ack()
    }

    /// Returns PSN and MSN of the last ACK among the responses that wait to be sent.
    #[must_use]
    pub fn newest_ack(&self) -> Option<(Psn, Msn)> {
        self.recv.newest_ack()
    }

    /// Schedules the last ACK again, after the caller has dropped it together with its path. The
    /// application may have polled the completions of the messages that it covers.
    pub fn repeat_ack(&mut self) {
        self.recv.repeat_ack();
    }

    /// Returns the other fields of the ACK, for the case that another process has to send it.
    //= RC-APM-02 RC-CRD-01
    #[must_use]
    pub fn ack_terms(&self) -> AckTerms {
        let receives = self.recv.receives();
        AckTerms {
            opcode: self.peer.framing.opcode(Operation::Acknowledge),
            migreq: self.peer.is_migrated,
            credits: receives.map_or(CreditCode::INVALID, RecvSource::credits),
        }
    }
}
