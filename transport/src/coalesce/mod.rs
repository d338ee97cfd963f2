//! Coalescing: delays ACKs until the application's reply, and small posts until the next one, so
//! that they share a datagram.
//!
//! [`delayed_ack`] delays ACKs and [`post_batcher`] delays posts. Both predict from what the
//! application did before. The thread that drives the QP has to send in time what was delayed.
//! [`Coalescer::held_since`] and [`Coalescer::batched_since`] return since when, and
//! [`DELAYED_ACK_NS`] and [`BATCH_DELAY_NS`] are the limits.

mod delayed_ack;
mod post_batcher;

use rocade_wire::Psn;

use crate::time::Time;
use delayed_ack::DelayedAck;
pub use delayed_ack::RESPONSE_WINDOW_NS;
use post_batcher::PostBatcher;

/// The longest delay of an ACK. Well below the shortest ACK timeout of a Rocade requester.
//= RXE-111
pub const DELAYED_ACK_NS: u64 = 250_000;
/// The longest delay of posts, approximately.
pub const BATCH_DELAY_NS: u64 = 1_000_000;

/// A time later than all others: the event has not happened.
const NEVER: Time = Time::from_ns(u64::MAX);

/// Position of positive ACKs among the packets to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckPlacement {
    /// In this call, before all other packets.
    First,
    /// In this call. An ACK without other responses follows the first requests, in one run with
    /// them if the lengths allow it. The peer's application waits for the requests.
    AfterFirst,
    /// In this call or a later one. An ACK without other responses follows all requests that can be
    /// sent now, in one run with the last of them.
    AfterLast,
    /// Like [`AckPlacement::AfterFirst`] if there are requests to send. Else an ACK without other
    /// responses is deferred to a later call.
    Defer,
}

/// The reason why a QP transmits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransmitTrigger {
    /// Packets were received, up to the end of a message.
    Received,
    /// Packets were received, up to the middle of a message.
    ReceivedPart,
    /// The application has posted send work requests.
    Posted,
    /// All other reasons: a timer, a change of state, the end of an ACK delay.
    Other,
}

/// The delayed ACK and posts of a QP, and the predictions that delay them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Coalescer {
    delayed_ack: DelayedAck,
    batcher: PostBatcher,
}

impl Coalescer {
    /// Returns true if a reply to the received message is expected. Then its ACK should be delayed.
    #[inline]
    #[must_use]
    pub const fn expects_reply(&self) -> bool {
        self.delayed_ack.expects_reply()
    }

    /// Returns when an ACK without other responses is sent. `may_hold` is true if a thread will
    /// check the QP for a delayed ACK.
    #[inline]
    #[must_use]
    pub const fn ack_placement(&self, trigger: TransmitTrigger, may_hold: bool) -> AckPlacement {
        self.delayed_ack.placement(trigger, may_hold)
    }

    /// Updates the prediction after the QP has transmitted. `acked` is true if an ACK was sent.
    /// `waiting` is the PSN of a delayed ACK.
    #[inline]
    pub fn transmitted(
        &mut self,
        trigger: TransmitTrigger,
        now: Time,
        acked: bool,
        waiting: Option<Psn>,
    ) {
        self.delayed_ack.transmitted(trigger, now, acked, waiting);
    }

    /// Returns when the delayed ACK was first delayed.
    #[must_use]
    pub fn held_since(&self) -> Option<Time> {
        self.delayed_ack.held_since()
    }

    /// Returns the trigger for announcing new credits to the peer. A delayed ACK carries them, so
    /// no packet of their own is needed.
    #[must_use]
    pub fn credit_trigger(&self) -> TransmitTrigger {
        match self.held_since() {
            Some(_) => TransmitTrigger::Received,
            None => TransmitTrigger::Other,
        }
    }

    /// Returns true if no ACK was delayed for so long that the QP need not be checked until it
    /// delays one again.
    #[must_use]
    pub fn forget(&mut self, now: Time) -> bool {
        self.delayed_ack.forget(now)
    }

    /// Returns true if a post of `bytes` bytes is delayed. `in_flight` is true if packets of the QP
    /// are in flight, whose ACKs will cause a transmission.
    #[inline]
    pub(crate) fn post(&mut self, now: Time, bytes: u32, in_flight: bool) -> bool {
        self.batcher.should_batch(now, bytes, in_flight)
    }

    /// Notes that the QP transmits all that it may: no post is delayed any more.
    #[inline]
    pub const fn flush_batch(&mut self) {
        self.batcher.flush();
    }

    /// Returns true if a post is delayed.
    #[must_use]
    pub const fn has_batched_posts(&self) -> bool {
        self.batcher.waits()
    }

    /// Returns when the oldest delayed post was posted.
    #[must_use]
    pub fn batched_since(&self) -> Option<Time> {
        self.batcher.waits_since()
    }

    /// Returns true if a post was delayed too long. Then the application has stopped posting, and
    /// the next burst has to be longer before posts are delayed.
    #[must_use]
    pub fn batch_is_overdue(&mut self, now: Time) -> bool {
        self.batcher.is_overdue(now)
    }

    /// Allows each post to be delayed from now on, even the first of a burst.
    #[cfg(any(test, feature = "test-utils"))]
    pub const fn batch_every_post(&mut self) {
        self.batcher.batch_every_post();
    }

    /// Drops what was delayed, and the prediction of replies, when the QP is reset.
    pub(crate) fn reset(&mut self) {
        self.delayed_ack = DelayedAck::default();
        self.batcher.flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::requester::MIN_ACK_TIMEOUT_NS;

    #[test]
    fn what_is_held_arrives_in_time() {
        // The background thread may have checked just before, so the delay can be twice as long.
        const { assert!(2 * DELAYED_ACK_NS < MIN_ACK_TIMEOUT_NS) };
    }

    #[test]
    fn an_idle_queue_pair_pays_little_for_it() {
        assert!(size_of::<Coalescer>() <= 64);
    }
}
