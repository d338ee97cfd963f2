//! Retransmission after an ACK timeout, which may have been spurious.
//!
//! First only the oldest packets are sent again, at most [`RESEND_BYTES`], until an ACK arrives.
//! That ACK may answer the first copies, from a peer that is only slow, and sending everything
//! again would slow it down further. So the next packet that is sent again is the last request. If
//! a packet before it was lost, the peer reports the gap, and transmission moves back there.
//! Otherwise the ACKs of all the others are in flight.

use alloc::boxed::Box;
use alloc::vec::Vec;

use rocade_wire::Psn;

use super::Requester;
use crate::congestion::MIN_PACKET_COST;

/// Bytes that are sent again at once, in the units of the window: four of the smallest packets.
pub(super) const RESEND_BYTES: u64 = 4 * MIN_PACKET_COST as u64;

/// The packets that had been sent when the timer expired.
#[derive(Debug)]
pub(super) struct Rewound {
    /// The PSN after the last of them.
    end: Psn,
    /// Ends of the READ and atomic requests among them.
    rd_ends: Vec<Psn>,
}

impl Requester {
    /// Moves transmission back to the oldest packet after a timeout.
    pub(super) fn rewind(&mut self) {
        let mut rd_ends: Vec<Psn> = self.rd_pending.iter().copied().collect();
        // The second timeout in a row: most packets have not been sent again.
        if let Some(before) = self.rewound.take() {
            let known = rd_ends.last().copied().unwrap_or(self.una);
            rd_ends.extend(before.rd_ends.iter().filter(|end| end.diff(known) > 0));
        }
        self.go_back(self.una);
        self.rewound = Some(Box::new(Rewound {
            end: self.next_new,
            rd_ends,
        }));
    }

    /// Continues with the last request before the timeout, once an ACK has arrived.
    pub(super) fn resume(&mut self) {
        let una = self.una;
        let Some(before) = self.rewound.take_if(|rewound| rewound.end.diff(una) > 0) else {
            return;
        };
        let last = self.index_of(before.end.sub(1));
        let Some(wqe) = self.sq.wqes.get(last).filter(|_| last < self.started) else {
            return;
        };
        let mut rd_ends = before.rd_ends;
        rd_ends.retain(|end| end.diff(una) > 0);
        // A READ is repeated as a whole, although its last packet would be enough to detect a loss.
        // Some responders then save only that packet, and do not answer when the rest turns out to
        // be missing.
        let start = if wqe.op.needs_response_data() {
            rd_ends.pop();
            let end_before = rd_ends.last().copied().unwrap_or(una);
            later_psn(later_psn(wqe.first_psn, una), end_before)
        } else {
            before.end.sub(1)
        };
        if start.diff(self.cursor) <= 0 {
            return;
        }
        self.cursor = start;
        self.current = last;
        self.rd_pending.clear();
        self.rd_pending.extend(rd_ends);
        // The packet may exceed the window: without it, no ACK might arrive.
        self.packets_since_ack_req = 1;
        self.window.on_late_ack();
    }

    /// Returns the index of the WQE that contains a PSN, or `started`.
    pub(super) fn index_of(&self, psn: Psn) -> usize {
        self.sq
            .wqes
            .iter()
            .take(self.started)
            .position(|wqe| wqe.contains(psn))
            .unwrap_or(self.started)
    }
}

const fn later_psn(a: Psn, b: Psn) -> Psn {
    if a.diff(b) > 0 { a } else { b }
}
