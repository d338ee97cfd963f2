//! Delayed ACKs, which wait for a reply of the application.
//!
//! An ACK costs as much as a message: a system call on each host, and perhaps a wakeup. If the
//! application replies to each message with one of its own, the ACK can share a datagram with the
//! reply. The specification allows to delay an ACK.
//!
//! Each QP learns: after some messages in a row with an immediate reply, the next ACK is delayed. A
//! delayed ACK that had to be sent alone ends the prediction.

use rocade_wire::Psn;

use super::{AckPlacement, DELAYED_ACK_NS, NEVER, TransmitTrigger};
use crate::time::Time;

/// The longest time between a message and a message of the application that counts as its reply.
pub const RESPONSE_WINDOW_NS: u64 = 60_000;
/// Least number of replies in a row before ACKs are delayed.
const MIN_REPLY_STREAK: u8 = 8;
/// Upper bound of the number of replies in a row before ACKs are delayed.
const MAX_REPLY_STREAK: u8 = 64;
/// Time without a delayed ACK after which a QP is no longer checked for one.
const FORGET_NS: u64 = 40 * DELAYED_ACK_NS;

/// Prediction of the application's replies.
#[derive(Clone, Copy, Debug)]
pub(super) struct DelayedAck {
    /// Time of the ACK of the message that waits for its reply. [`NEVER`] for none.
    acked_at: Time,
    /// Start of the current ACK delay. [`NEVER`] for none.
    held_since: Time,
    /// Start of the last ACK delay. [`NEVER`] if there was none recently.
    last_held: Time,
    /// PSN of the delayed ACK.
    held: Psn,
    /// Messages in a row with an immediate reply.
    reply_streak: u8,
    /// Number of replies in a row before ACKs are delayed. Each wrong prediction raises it.
    required_streak: u8,
}

impl Default for DelayedAck {
    fn default() -> Self {
        Self {
            acked_at: NEVER,
            held_since: NEVER,
            last_held: NEVER,
            held: Psn::new(0),
            reply_streak: 0,
            required_streak: MIN_REPLY_STREAK,
        }
    }
}

impl DelayedAck {
    /// Returns true if a reply to the received message is expected.
    pub(super) const fn expects_reply(&self) -> bool {
        self.reply_streak >= self.required_streak
    }

    /// Returns when an ACK without other responses is sent.
    pub(super) const fn placement(&self, trigger: TransmitTrigger, may_hold: bool) -> AckPlacement {
        match trigger {
            TransmitTrigger::Received if self.expects_reply() && may_hold => AckPlacement::Defer,
            // The peer waits for the reply: the reply has to arrive before the peer's own message
            // completes.
            TransmitTrigger::Posted if self.reply_streak > 0 => AckPlacement::AfterLast,
            TransmitTrigger::Posted => AckPlacement::AfterFirst,
            TransmitTrigger::Received | TransmitTrigger::ReceivedPart | TransmitTrigger::Other => {
                AckPlacement::First
            }
        }
    }

    /// Updates the prediction after the QP has transmitted. `acked` is true if an ACK was sent.
    /// `waiting` is the PSN of a delayed ACK.
    pub(super) fn transmitted(
        &mut self,
        trigger: TransmitTrigger,
        now: Time,
        acked: bool,
        waiting: Option<Psn>,
    ) {
        let was_held = (self.held_since != NEVER).then_some(self.held);
        match waiting {
            None => self.held_since = NEVER,
            Some(psn) => {
                self.held = psn;
                self.held_since = self.held_since.min(now);
            }
        }
        match (trigger, was_held, waiting) {
            (TransmitTrigger::Received, None, Some(_)) => self.last_held = now,
            // A second message before the reply to the first: replies do not follow messages.
            (TransmitTrigger::Received, Some(held), Some(psn)) if held != psn => self.note_miss(),
            (TransmitTrigger::Received, None, None) if acked => {
                let unanswered = self.acked_at != NEVER;
                self.acked_at = now;
                self.reply_streak = if unanswered { 0 } else { self.reply_streak };
            }
            (TransmitTrigger::Posted, Some(_), None) => {
                self.note_reply();
                self.required_streak = self.required_streak.max(MIN_REPLY_STREAK + 1) - 1;
            }
            (TransmitTrigger::Posted, None, None) => {
                // A fast reply may carry the ACK before the receiving thread gets to send it.
                let acked_at = if acked {
                    self.acked_at.min(now)
                } else {
                    self.acked_at
                };
                self.acked_at = NEVER;
                if acked_at != NEVER {
                    if now.ns_since(acked_at) <= RESPONSE_WINDOW_NS {
                        self.note_reply();
                    } else {
                        self.reply_streak = 0;
                    }
                }
            }
            (TransmitTrigger::Other | TransmitTrigger::ReceivedPart, Some(_), _) => {
                self.note_miss()
            }
            _ => {}
        }
    }

    fn note_reply(&mut self) {
        self.reply_streak = self.reply_streak.saturating_add(1).min(MAX_REPLY_STREAK);
    }

    /// Notes a wrong prediction. A long series survives one: the application, or its peer, may have
    /// been interrupted.
    fn note_miss(&mut self) {
        self.reply_streak /= 4;
        if self.reply_streak < self.required_streak {
            self.required_streak = self.required_streak.saturating_mul(2).min(MAX_REPLY_STREAK);
        }
    }

    /// Returns when the delayed ACK was first delayed.
    pub(super) fn held_since(&self) -> Option<Time> {
        (self.held_since != NEVER).then_some(self.held_since)
    }

    /// Returns true if no ACK was delayed for so long that the QP need not be checked any more.
    pub(super) fn forget(&mut self, now: Time) -> bool {
        let idle = self.held_since == NEVER
            && (self.last_held == NEVER || now.ns_since(self.last_held) >= FORGET_NS);
        if idle {
            self.last_held = NEVER;
        }
        idle
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(us: u64) -> Time {
        Time::from_ns(us * 1_000)
    }

    fn holds_for(hold: &DelayedAck, ns: u64, now: Time) -> bool {
        hold.held_since()
            .is_some_and(|since| now.ns_since(since) >= ns)
    }

    /// Receives a message at a time in µs. Returns true if its ACK was delayed.
    fn message(hold: &mut DelayedAck, psn: u32, us: u64) -> bool {
        let held = hold.placement(TransmitTrigger::Received, true) == AckPlacement::Defer;
        hold.transmitted(
            TransmitTrigger::Received,
            at(us),
            !held,
            held.then(|| Psn::new(psn)),
        );
        held
    }

    fn answer(hold: &mut DelayedAck, us: u64) {
        assert_ne!(
            hold.placement(TransmitTrigger::Posted, true),
            AckPlacement::First
        );
        hold.transmitted(TransmitTrigger::Posted, at(us), true, None);
    }

    /// Exchanges some messages and replies, 10 µs apart. Returns how many ACKs were delayed.
    fn converse(hold: &mut DelayedAck, from_us: u64, count: u64) -> u64 {
        let mut held = 0;
        for index in 0..count {
            let us = from_us + 10 * index;
            held += u64::from(message(hold, 0, us));
            answer(hold, us + 2);
        }
        held
    }

    #[test]
    fn only_replies_in_a_row_delay_acknowledgements() {
        let mut hold = DelayedAck::default();
        assert_eq!(converse(&mut hold, 0, 20), 12, "all after eight replies");
        let mut hold = DelayedAck::default();
        for index in 0..100 {
            assert!(!message(&mut hold, 0, index), "no replies");
        }
        for index in 0..100 {
            assert!(!message(&mut hold, 0, index * 200));
            answer(&mut hold, index * 200 + 100);
        }
        assert!(!message(&mut hold, 0, 30_000), "the replies came late");
        let mut hold = DelayedAck::default();
        converse(&mut hold, 0, 8);
        assert_eq!(
            hold.placement(TransmitTrigger::Received, false),
            AckPlacement::First
        );
    }

    #[test]
    fn a_reply_that_carries_the_acknowledgement_counts() {
        let mut hold = DelayedAck::default();
        for index in 0..8 {
            // The posting thread was faster than the receiving thread.
            hold.transmitted(TransmitTrigger::Posted, at(10 * index), true, None);
            hold.transmitted(TransmitTrigger::Received, at(10 * index + 1), false, None);
        }
        assert!(message(&mut hold, 0, 100));
    }

    #[test]
    fn long_messages_are_acknowledged_on_the_way() {
        let mut hold = DelayedAck::default();
        converse(&mut hold, 0, 8);
        for us in 100..110 {
            assert_eq!(
                hold.placement(TransmitTrigger::ReceivedPart, true),
                AckPlacement::First
            );
            hold.transmitted(TransmitTrigger::ReceivedPart, at(us), true, None);
        }
        assert!(message(&mut hold, 0, 110), "the last ACK is delayed");
        assert_eq!(
            hold.placement(TransmitTrigger::Posted, true),
            AckPlacement::AfterLast
        );
        hold.transmitted(TransmitTrigger::ReceivedPart, at(111), true, None);
        assert!(!message(&mut hold, 1, 120), "a message before the reply");
    }

    //= RXE-111 type=test
    #[test]
    fn a_hold_that_ends_without_a_reply_lowers_the_streak() {
        let mut hold = DelayedAck::default();
        converse(&mut hold, 0, 8);
        assert!(message(&mut hold, 0, 100));
        assert!(!holds_for(&hold, DELAYED_ACK_NS, at(300)));
        assert!(holds_for(&hold, DELAYED_ACK_NS, at(350)));
        assert_eq!(
            hold.placement(TransmitTrigger::Other, true),
            AckPlacement::First
        );
        hold.transmitted(TransmitTrigger::Other, at(350), true, None);
        assert!(!holds_for(&hold, 0, at(350)));
        assert_eq!(
            converse(&mut hold, 400, 14),
            0,
            "two of the sixteen replies needed"
        );
        assert_eq!(converse(&mut hold, 600, 10), 10);
    }

    #[test]
    fn a_long_reply_streak_survives_interruptions() {
        let mut hold = DelayedAck::default();
        assert_eq!(converse(&mut hold, 0, 100), 92);
        for us in [1_100, 1_500] {
            assert!(message(&mut hold, 0, us));
            hold.transmitted(TransmitTrigger::Other, at(us + 300), true, None);
        }
        assert!(!message(&mut hold, 0, 2_000));
    }

    #[test]
    fn a_stream_without_replies_is_not_delayed() {
        let mut hold = DelayedAck::default();
        converse(&mut hold, 0, 8);
        assert!(message(&mut hold, 1, 100));
        assert!(
            message(&mut hold, 2, 101),
            "the second message ends the prediction"
        );
        assert!(!message(&mut hold, 3, 102));
        assert!(!holds_for(&hold, 0, at(102)), "sent with the third");
    }

    #[test]
    fn a_qp_is_checked_as_long_as_needed() {
        let mut hold = DelayedAck::default();
        assert!(hold.forget(at(0)), "no ACK was delayed");
        converse(&mut hold, 0, 8);
        let psn = Some(Psn::new(0));
        hold.transmitted(TransmitTrigger::Received, at(100), false, psn);
        assert!(!hold.forget(at(100)));
        answer(&mut hold, 101);
        hold.transmitted(TransmitTrigger::Received, at(110), false, psn);
        answer(&mut hold, 111);
        assert!(!hold.forget(at(200)));
        assert!(hold.forget(at(110 + FORGET_NS / 1_000)));
        hold.transmitted(TransmitTrigger::Received, at(50_000), false, psn);
        assert!(!hold.forget(at(1_000_000)), "while an ACK is delayed");
    }
}
