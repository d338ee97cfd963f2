//! After an ACK timeout: was anything lost?
//!
//! The oldest packets are sent again, few ([`RESEND_BYTES`]), and no others before an acknowledgement. That may
//! be the answer to the first copies, from a peer that is only slow: to send everything again would make it
//! slower still. So the next to be sent again is the last request. Where something was lost before it, the
//! peer reports the gap, and transmission goes back there; else the acknowledgements of all the others are
//! on their way.

use alloc::boxed::Box;
use alloc::vec::Vec;

use rocade_wire::Psn;

use super::Requester;
use crate::congestion::MIN_PACKET_COST;

/// What is sent again at once, as the window counts it: but for longer packets, four of them.
pub(super) const RESEND_BYTES: u64 = 4 * MIN_PACKET_COST as u64;

/// What had been sent when the timer expired.
#[derive(Debug)]
pub(super) struct Rewound {
    /// The end of it.
    end: Psn,
    /// Ends of the READ and atomic requests in it.
    rd_ends: Vec<Psn>,
}

impl Requester {
    /// Goes back to the oldest packet after a timeout.
    pub(super) fn rewind(&mut self) {
        let mut rd_ends: Vec<Psn> = self.rd_pending.iter().copied().collect();
        // The second timeout in a row: most of it has not been sent again.
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

    /// Something is acknowledged after the timeout: goes on with the last request before it.
    pub(super) fn resume(&mut self) {
        let una = self.una;
        let Some(before) = self.rewound.take_if(|rewound| rewound.end.diff(una) > 0) else {
            return;
        };
        let last = self.index_of(before.end.sub(1));
        let Some(wqe) = self.sq.get(last).filter(|_| last < self.started) else {
            return;
        };
        let mut rd_ends = before.rd_ends;
        rd_ends.retain(|end| end.diff(una) > 0);
        // A READ as a whole, although its last packet would tell: there are responders that then know no more of it than
        // that packet, and keep silent when the rest turns out to be missing (RXE-53).
        let start = if wqe.op.needs_response_data() {
            rd_ends.pop();
            let end_before = rd_ends.last().copied().unwrap_or(una);
            later(later(wqe.first_psn, una), end_before)
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
        // It may leave although it exceeds the window: without it nobody might answer.
        self.packets_since_ack_req = 1;
        self.window.on_late_ack();
    }

    /// Index of the WQE that contains a PSN, or `started`.
    pub(super) fn index_of(&self, psn: Psn) -> usize {
        self.sq
            .iter()
            .take(self.started)
            .position(|wqe| wqe.contains(psn))
            .unwrap_or(self.started)
    }
}

const fn later(a: Psn, b: Psn) -> Psn {
    if a.diff(b) > 0 { a } else { b }
}
