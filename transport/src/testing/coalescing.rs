//! Coalescing in a pair, as by an engine.

use super::packet_event::Side;
use super::pair::Pair;
use crate::coalesce::{BATCH_DELAY_NS, TransmitTrigger};
use crate::time::Time;

/// State of coalescing: both QPs delay what their [`Coalescer`](crate::Coalescer) decides.
#[derive(Clone, Copy, Debug)]
pub(super) struct Coalescing {
    /// The longest delay of an ACK.
    hold_ns: u64,
    /// The trigger of each side's next transmission, if there is one.
    triggers: [Option<TransmitTrigger>; 2],
    pub(super) coalesce_counts: CoalesceCounts,
}

/// Statistics of delays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoalesceCounts {
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
    pub const fn set_coalescing(&mut self, hold_ns: u64) {
        self.coalescing = Some(Coalescing {
            hold_ns,
            triggers: [None; 2],
            coalesce_counts: CoalesceCounts {
                acks: 0,
                lone_acks: 0,
                posts: 0,
            },
        });
    }

    /// Returns the statistics since [`Pair::set_coalescing`].
    #[must_use]
    pub fn coalesce_counts(&self) -> CoalesceCounts {
        self.coalescing
            .map_or_else(CoalesceCounts::default, |coalescing| {
                coalescing.coalesce_counts
            })
    }

    /// Notes that a side has to transmit, with its trigger.
    pub(super) fn note(&mut self, side: Side, trigger: TransmitTrigger) {
        if let Some(coalescing) = &mut self.coalescing {
            let noted = &mut coalescing.triggers[side as usize];
            *noted = Some(match (*noted, trigger) {
                (Some(TransmitTrigger::Other), _) => TransmitTrigger::Other,
                _ => trigger,
            });
        }
    }

    /// Returns when the delayed ACK is sent.
    pub(super) fn ack_release(&self, side: Side) -> Option<Time> {
        let coalescing = self.coalescing?;
        let since = self.node(side).qp.coalescer().held_since()?;
        Some(since.plus_ns(coalescing.hold_ns))
    }

    /// Returns when the delayed posts are sent.
    pub(super) fn post_release(&self, side: Side) -> Option<Time> {
        self.coalescing?;
        let since = self.node(side).qp.coalescer().batched_since()?;
        Some(since.plus_ns(BATCH_DELAY_NS))
    }

    /// Sends what has been delayed for the longest time.
    pub(super) fn release(&mut self, side: Side) {
        let now = self.now;
        if self.post_release(side).is_some_and(|due| due <= now) {
            let coalescer = self.nodes[side as usize].qp.coalescer_mut();
            assert!(coalescer.batch_is_overdue(now));
            self.note(side, TransmitTrigger::Posted);
            self.drain(side);
        }
        if self.ack_release(side).is_some_and(|due| due <= now) {
            if let Some(coalescing) = &mut self.coalescing {
                coalescing.coalesce_counts.lone_acks += 1;
            }
            self.note(side, TransmitTrigger::Other);
            self.drain(side);
        }
    }

    /// Transmits as an engine does: delayed packets stay, unless there is a trigger.
    pub(super) fn drain_coalesced(&mut self, side: Side) {
        let Some(coalescing) = &mut self.coalescing else {
            return;
        };
        let Some(trigger) = coalescing.triggers[side as usize].take() else {
            return;
        };
        let qp = &mut self.nodes[side as usize].qp;
        qp.coalescer_mut().flush_batch();
        let acks_before = qp.acks_sent();
        let acks = qp.coalescer().ack_placement(trigger, true);
        self.drain_with(side, acks);
        let qp = &mut self.nodes[side as usize].qp;
        let (acked, waiting) = (qp.acks_sent() != acks_before, qp.lone_ack());
        let held_before = qp.coalescer().held_since().is_some();
        qp.coalescer_mut()
            .transmitted(trigger, self.now, acked, waiting);
        if let Some(coalescing) = &mut self.coalescing {
            coalescing.coalesce_counts.acks += u64::from(waiting.is_some() && !held_before);
        }
    }
}
