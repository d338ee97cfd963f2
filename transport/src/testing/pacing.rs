//! Coalescing in a pair, as by an engine.

use super::pair::Pair;
use super::transit::Side;
use crate::pace::{Cause, WAIT_NS};
use crate::time::Time;

/// State of coalescing: both QPs delay what their [`Pace`](crate::Pace) decides.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pacing {
    /// The longest delay of an ACK.
    hold_ns: u64,
    /// The trigger of each side's next transmission, if there is one.
    causes: [Option<Cause>; 2],
    pub(super) paced: Paced,
}

/// Statistics of delays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Paced {
    /// Delayed ACKs.
    pub acks: u64,
    /// Delayed ACKs that were sent alone.
    pub lone_acks: u64,
    /// Delayed posts.
    pub posts: u64,
}

impl Pair {
    /// Delays ACKs and posts from now on, as an engine does. An ACK without a reply is sent alone
    /// after `hold_ns`.
    pub const fn set_pacing(&mut self, hold_ns: u64) {
        self.pacing = Some(Pacing {
            hold_ns,
            causes: [None; 2],
            paced: Paced {
                acks: 0,
                lone_acks: 0,
                posts: 0,
            },
        });
    }

    /// Returns the statistics since [`Pair::set_pacing`].
    #[must_use]
    pub fn paced(&self) -> Paced {
        self.pacing
            .map_or_else(Paced::default, |pacing| pacing.paced)
    }

    /// Notes that a side has to transmit, with its trigger.
    pub(super) fn note(&mut self, side: Side, cause: Cause) {
        if let Some(pacing) = &mut self.pacing {
            let noted = &mut pacing.causes[side as usize];
            *noted = Some(match (*noted, cause) {
                (Some(Cause::Other), _) => Cause::Other,
                _ => cause,
            });
        }
    }

    /// Returns when the delayed ACK is sent.
    pub(super) fn ack_release(&self, side: Side) -> Option<Time> {
        let pacing = self.pacing?;
        let since = self.node(side).qp.pace().held_since()?;
        Some(since.plus_ns(pacing.hold_ns))
    }

    /// Returns when the delayed posts are sent.
    pub(super) fn post_release(&self, side: Side) -> Option<Time> {
        self.pacing?;
        let since = self.node(side).qp.pace().posts_wait_since()?;
        Some(since.plus_ns(WAIT_NS))
    }

    /// Sends what has been delayed for the longest time.
    pub(super) fn release(&mut self, side: Side) {
        let now = self.now;
        if self.post_release(side).is_some_and(|due| due <= now) {
            let pace = self.nodes[side as usize].qp.pace_mut();
            assert!(pace.posts_are_overdue(now));
            self.note(side, Cause::Posted);
            self.drain(side);
        }
        if self.ack_release(side).is_some_and(|due| due <= now) {
            if let Some(pacing) = &mut self.pacing {
                pacing.paced.lone_acks += 1;
            }
            self.note(side, Cause::Other);
            self.drain(side);
        }
    }

    /// Transmits as an engine does: delayed packets stay, unless there is a trigger.
    pub(super) fn drain_paced(&mut self, side: Side) {
        let Some(pacing) = &mut self.pacing else {
            return;
        };
        let Some(cause) = pacing.causes[side as usize].take() else {
            return;
        };
        let qp = &mut self.nodes[side as usize].qp;
        qp.pace_mut().release_posts();
        let acks_before = qp.acks_sent();
        let acks = qp.pace().ack_timing(cause, true);
        self.drain_with(side, acks);
        let qp = &mut self.nodes[side as usize].qp;
        let (acked, waiting) = (qp.acks_sent() != acks_before, qp.lone_ack());
        let held_before = qp.pace().held_since().is_some();
        qp.pace_mut().transmitted(cause, self.now, acked, waiting);
        if let Some(pacing) = &mut self.pacing {
            pacing.paced.acks += u64::from(waiting.is_some() && !held_before);
        }
    }
}
