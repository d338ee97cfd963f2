//! Delayed ACKs, which wait for a reply of the application.
//!
//! An ACK costs as much as a message: a system call on each host, and perhaps a wakeup. If the
//! application replies to each message with one of its own, the ACK can share a datagram with the
//! reply. The specification allows to delay an ACK.
//!
//! Each QP learns: after some messages in a row with an immediate reply, the next ACK is delayed. A
//! delayed ACK that had to be sent alone ends the prediction.

use rocade_wire::Psn;

use super::{AckTiming, Cause, HOLD_NS, NEVER};
use crate::time::Time;

/// The longest time between a message and a message of the application that counts as its reply.
pub const ANSWER_NS: u64 = 60_000;
/// Least number of replies in a row before ACKs are delayed.
const HABIT: u8 = 8;
/// Upper bound of the number of replies in a row before ACKs are delayed.
const FIRM_HABIT: u8 = 64;
/// Time without a delayed ACK after which a QP is no longer checked for one.
const FORGET_NS: u64 = 40 * HOLD_NS;

/// Prediction of the application's replies.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answers {
    /// Time of the ACK of the message that waits for its reply. [`NEVER`] for none.
    asked: Time,
    /// Start of the current ACK delay. [`NEVER`] for none.
    held_since: Time,
    /// Start of the last ACK delay. [`NEVER`] if there was none recently.
    last_held: Time,
    /// PSN of the delayed ACK.
    held: Psn,
    /// Messages in a row with an immediate reply.
    answered: u8,
    /// Number of replies in a row before ACKs are delayed. Each wrong prediction raises it.
    habit: u8,
}

impl Default for Answers {
    fn default() -> Self {
        Self {
            asked: NEVER,
            held_since: NEVER,
            last_held: NEVER,
            held: Psn::new(0),
            answered: 0,
            habit: HABIT,
        }
    }
}

impl Answers {
    /// Returns true if a reply to the received message is expected.
    pub(super) const fn expects_answer(&self) -> bool {
        self.answered >= self.habit
    }

    /// Returns when an ACK without other responses is sent.
    pub(super) const fn timing(&self, cause: Cause, may_hold: bool) -> AckTiming {
        match cause {
            Cause::Received if self.expects_answer() && may_hold => AckTiming::Later,
            // The peer waits for the reply: the reply has to arrive before the peer's own message
            // completes.
            Cause::Posted if self.answered > 0 => AckTiming::Last,
            Cause::Posted => AckTiming::Behind,
            Cause::Received | Cause::ReceivedPart | Cause::Other => AckTiming::Now,
        }
    }

    /// Updates the prediction after the QP has transmitted. `acked` is true if an ACK was sent.
    /// `waiting` is the PSN of a delayed ACK.
    pub(super) fn transmitted(
        &mut self,
        cause: Cause,
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
        match (cause, was_held, waiting) {
            (Cause::Received, None, Some(_)) => self.last_held = now,
            // A second message before the reply to the first: replies do not follow messages.
            (Cause::Received, Some(held), Some(psn)) if held != psn => self.disappoint(),
            (Cause::Received, None, None) if acked => {
                let unanswered = self.asked != NEVER;
                self.asked = now;
                self.answered = if unanswered { 0 } else { self.answered };
            }
            (Cause::Posted, Some(_), None) => {
                self.was_answered();
                self.habit = self.habit.max(HABIT + 1) - 1;
            }
            (Cause::Posted, None, None) => {
                // A fast reply may carry the ACK before the receiving thread gets to send it.
                let asked = if acked {
                    self.asked.min(now)
                } else {
                    self.asked
                };
                self.asked = NEVER;
                if asked != NEVER {
                    if now.ns_since(asked) <= ANSWER_NS {
                        self.was_answered();
                    } else {
                        self.answered = 0;
                    }
                }
            }
            (Cause::Other | Cause::ReceivedPart, Some(_), _) => self.disappoint(),
            _ => {}
        }
    }

    fn was_answered(&mut self) {
        self.answered = self.answered.saturating_add(1).min(FIRM_HABIT);
    }

    /// Notes a wrong prediction. A long series survives one: the application, or its peer, may have
    /// been interrupted.
    fn disappoint(&mut self) {
        self.answered /= 4;
        if self.answered < self.habit {
            self.habit = self.habit.saturating_mul(2).min(FIRM_HABIT);
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

    fn holds_for(hold: &Answers, ns: u64, now: Time) -> bool {
        hold.held_since()
            .is_some_and(|since| now.ns_since(since) >= ns)
    }

    /// Receives a message at a time in µs. Returns true if its ACK was delayed.
    fn message(hold: &mut Answers, psn: u32, us: u64) -> bool {
        let held = hold.timing(Cause::Received, true) == AckTiming::Later;
        hold.transmitted(Cause::Received, at(us), !held, held.then(|| Psn::new(psn)));
        held
    }

    fn answer(hold: &mut Answers, us: u64) {
        assert_ne!(hold.timing(Cause::Posted, true), AckTiming::Now);
        hold.transmitted(Cause::Posted, at(us), true, None);
    }

    /// Exchanges some messages and replies, 10 µs apart. Returns how many ACKs were delayed.
    fn converse(hold: &mut Answers, from_us: u64, count: u64) -> u64 {
        let mut held = 0;
        for index in 0..count {
            let us = from_us + 10 * index;
            held += u64::from(message(hold, 0, us));
            answer(hold, us + 2);
        }
        held
    }

    #[test]
    fn only_conversations_hold_acknowledgements() {
        let mut hold = Answers::default();
        assert_eq!(converse(&mut hold, 0, 20), 12, "all after eight replies");
        let mut hold = Answers::default();
        for index in 0..100 {
            assert!(!message(&mut hold, 0, index), "no replies");
        }
        for index in 0..100 {
            assert!(!message(&mut hold, 0, index * 200));
            answer(&mut hold, index * 200 + 100);
        }
        assert!(!message(&mut hold, 0, 30_000), "the replies came late");
        let mut hold = Answers::default();
        converse(&mut hold, 0, 8);
        assert_eq!(hold.timing(Cause::Received, false), AckTiming::Now);
    }

    #[test]
    fn an_answer_that_takes_the_acknowledgement_along_counts() {
        let mut hold = Answers::default();
        for index in 0..8 {
            // The posting thread was faster than the receiving thread.
            hold.transmitted(Cause::Posted, at(10 * index), true, None);
            hold.transmitted(Cause::Received, at(10 * index + 1), false, None);
        }
        assert!(message(&mut hold, 0, 100));
    }

    #[test]
    fn long_messages_are_acknowledged_on_the_way() {
        let mut hold = Answers::default();
        converse(&mut hold, 0, 8);
        for us in 100..110 {
            assert_eq!(hold.timing(Cause::ReceivedPart, true), AckTiming::Now);
            hold.transmitted(Cause::ReceivedPart, at(us), true, None);
        }
        assert!(message(&mut hold, 0, 110), "the last ACK is delayed");
        assert_eq!(hold.timing(Cause::Posted, true), AckTiming::Last);
        hold.transmitted(Cause::ReceivedPart, at(111), true, None);
        assert!(!message(&mut hold, 1, 120), "a message before the reply");
    }

    //= RXE-111 type=test
    #[test]
    fn a_hold_ends_and_is_a_disappointment() {
        let mut hold = Answers::default();
        converse(&mut hold, 0, 8);
        assert!(message(&mut hold, 0, 100));
        assert!(!holds_for(&hold, HOLD_NS, at(300)));
        assert!(holds_for(&hold, HOLD_NS, at(350)));
        assert_eq!(hold.timing(Cause::Other, true), AckTiming::Now);
        hold.transmitted(Cause::Other, at(350), true, None);
        assert!(!holds_for(&hold, 0, at(350)));
        assert_eq!(
            converse(&mut hold, 400, 14),
            0,
            "two of the sixteen replies needed"
        );
        assert_eq!(converse(&mut hold, 600, 10), 10);
    }

    #[test]
    fn a_firm_habit_survives_interruptions() {
        let mut hold = Answers::default();
        assert_eq!(converse(&mut hold, 0, 100), 92);
        for us in [1_100, 1_500] {
            assert!(message(&mut hold, 0, us));
            hold.transmitted(Cause::Other, at(us + 300), true, None);
        }
        assert!(!message(&mut hold, 0, 2_000));
    }

    #[test]
    fn a_stream_is_no_conversation() {
        let mut hold = Answers::default();
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
    fn somebody_looks_after_a_qp_as_long_as_needed() {
        let mut hold = Answers::default();
        assert!(hold.forget(at(0)), "no ACK was delayed");
        converse(&mut hold, 0, 8);
        let psn = Some(Psn::new(0));
        hold.transmitted(Cause::Received, at(100), false, psn);
        assert!(!hold.forget(at(100)));
        answer(&mut hold, 101);
        hold.transmitted(Cause::Received, at(110), false, psn);
        answer(&mut hold, 111);
        assert!(!hold.forget(at(200)));
        assert!(hold.forget(at(110 + FORGET_NS / 1_000)));
        hold.transmitted(Cause::Received, at(50_000), false, psn);
        assert!(!hold.forget(at(1_000_000)), "while an ACK is delayed");
    }
}
