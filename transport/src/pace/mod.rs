//! The pace of a queue pair: what leaves later than it could, so that it need not leave alone.
//!
//! Acknowledgements wait for the answer that the application is about to give ([`acks`]), posts for more
//! posts ([`posts`]). Both are guesses from what the application did before. Whoever drives the QP has to see to
//! it that what waits leaves in time: [`Pace::held_since`] and [`Pace::posts_wait_since`] say since when, and
//! [`HOLD_NS`] and [`WAIT_NS`] how long is long enough.

mod acks;
mod posts;

use rocade_wire::Psn;

use crate::time::Time;
pub use acks::ANSWER_NS;
use acks::Answers;
use posts::Burst;

/// How long an acknowledgement is held before it leaves alone. Well below the shortest ACK timeout that a
/// requester of ours has.
//= RXE-111
pub const HOLD_NS: u64 = 250_000;
/// How long posts wait at most, or nearly.
pub const WAIT_NS: u64 = 1_000_000;

/// Later than everything: what is `NEVER` has not happened.
const NEVER: Time = Time::from_ns(u64::MAX);

/// When positive acknowledgements leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckTiming {
    /// With this call, before everything else.
    Now,
    /// With this call. A lone ACK leaves behind the first requests, in one run with them where the
    /// lengths allow it: the peer's application waits for the requests (RC-ACK-01).
    Behind,
    /// With this call, or a later one: a lone ACK leaves behind all requests that can be sent now, in one
    /// run with the last of them.
    Last,
    /// As [`AckTiming::Behind`] where there are requests to send; else a lone ACK stays, for a later
    /// call.
    Later,
}

/// What makes a QP transmit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Packets were received, up to the end of a message.
    Received,
    /// Packets were received, up to the middle of a message.
    ReceivedPart,
    /// The application has posted sends.
    Posted,
    /// Anything else: a timer, a change of state, the end of a hold.
    Other,
}

/// What a QP holds back, and what it has learned about when to do so.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pace {
    answers: Answers,
    burst: Burst,
}

impl Pace {
    /// Is an answer expected to the message that was received? Then its acknowledgement should be held.
    #[inline]
    #[must_use]
    pub const fn expects_answer(&self) -> bool {
        self.answers.expects_answer()
    }

    /// When a lone acknowledgement leaves, with this cause to transmit. `may_hold`: somebody will look after it.
    #[inline]
    #[must_use]
    pub const fn ack_timing(&self, cause: Cause, may_hold: bool) -> AckTiming {
        self.answers.timing(cause, may_hold)
    }

    /// The QP has transmitted. `acked` tells whether an acknowledgement has left, `waiting` is the
    /// lone one that was held back.
    #[inline]
    pub fn transmitted(&mut self, cause: Cause, now: Time, acked: bool, waiting: Option<Psn>) {
        self.answers.transmitted(cause, now, acked, waiting);
    }

    /// Since when an acknowledgement has been held back.
    #[must_use]
    pub fn held_since(&self) -> Option<Time> {
        self.answers.held_since()
    }

    /// The cause to transmit when there are receives again that the peer is to hear of: if it gets an answer soon, that will
    /// do.
    #[must_use]
    pub fn cause_of_credit(&self) -> Cause {
        match self.held_since() {
            Some(_) => Cause::Received,
            None => Cause::Other,
        }
    }

    /// Nothing was held for so long that nobody has to look after the acknowledgements of the QP, until it holds
    /// one again.
    #[must_use]
    pub fn forget(&mut self, now: Time) -> bool {
        self.answers.forget(now)
    }

    /// A post of `bytes` bytes: does it wait? `in_flight`: packets of the QP are on their way, and so somebody
    /// will come by.
    #[inline]
    pub(crate) fn post(&mut self, now: Time, bytes: u32, in_flight: bool) -> bool {
        self.burst.may_wait(now, bytes, in_flight)
    }

    /// The QP transmits all that it may: no post waits any more.
    #[inline]
    pub const fn release_posts(&mut self) {
        self.burst.rung();
    }

    /// Does a post wait?
    #[must_use]
    pub const fn posts_wait(&self) -> bool {
        self.burst.waits()
    }

    /// Since when the first of the posts has waited that do.
    #[must_use]
    pub fn posts_wait_since(&self) -> Option<Time> {
        self.burst.waits_since()
    }

    /// Has a post waited until its time is up? Then the application does not keep posting, and it is believed
    /// less.
    #[must_use]
    pub fn posts_are_overdue(&mut self, now: Time) -> bool {
        self.burst.is_overdue(now)
    }

    /// Each post may wait from now on, however long after the one before it comes.
    #[cfg(any(test, feature = "test-utils"))]
    pub const fn do_not_hurry(&mut self) {
        self.burst.do_not_hurry();
    }

    /// The QP was reset: what it held is gone, and so is what it knew of the answers.
    pub(crate) fn reset(&mut self) {
        self.answers = Answers::default();
        self.burst.rung();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::requester::MIN_ACK_TIMEOUT_NS;

    #[test]
    fn what_is_held_arrives_in_time() {
        // The one who looks may have just looked: twice as long.
        const { assert!(2 * HOLD_NS < MIN_ACK_TIMEOUT_NS) };
    }

    #[test]
    fn an_idle_queue_pair_pays_little_for_it() {
        assert!(size_of::<Pace>() <= 64);
    }
}
