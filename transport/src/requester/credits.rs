//! End-to-end credits: how many messages the peer has receives for (RC-CRD-*).
//!
//! A message that takes a receive of the peer starts while there is room for it. Beyond that the requester may try: with the first
//! packet of one message, when all before it is acknowledged. It does so at once where the peer says nothing of its own
//! accord. A peer that acknowledges again when it has receives is waited for, so that it need not answer with
//! an RNR NAK; in the end, as that acknowledgement may be lost, the packet is sent all the same.

use rocade_wire::{CreditCode, Msn};

use super::{Requester, SendWqe};
use crate::time::Time;
use crate::wr::SendOp;

/// Room where the peer sets no limit. What a queue holds cannot use it up before the next acknowledgement.
const UNLIMITED: i32 = i32::MAX;
/// The same while the peer has said nothing.
const UNTOLD: i32 = i32::MAX / 2;
/// More than this is [`UNLIMITED`], less what was sent since.
const LEAST_UNLIMITED: i32 = UNTOLD + UNTOLD / 2;
/// More than this is at least [`UNTOLD`]; no code stands for so many.
const LEAST_UNTOLD: i32 = UNTOLD / 2;

/// How long to wait for a peer to say that it has receives: as long as for a lost acknowledgement, but no longer than this.
const LONGEST_WAIT_NS: u64 = 50_000_000;

/// What to do about a message that the peer is not known to have a receive for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Beyond {
    /// Try: nobody knows whether the peer will say more.
    First,
    /// Try: the peer has not said that it had receives when it had.
    Try,
    /// Wait for the peer to say so.
    Wait,
    /// The wait has begun.
    Waiting,
    /// It is over.
    Waited,
}

#[derive(Debug)]
pub(super) struct Credits {
    /// Messages that may start and take a receive; below 0 so many have started beyond that.
    room: i32,
    /// Requests started, as the peer counts them (SSN).
    ssn: Msn,
}

impl Credits {
    pub(super) const fn new() -> Self {
        Self {
            room: UNTOLD,
            ssn: Msn::new(0),
        }
    }

    /// May one more message start that takes a receive?
    #[inline]
    pub(super) const fn has_room(&self) -> bool {
        self.room > 0
    }

    /// Has a message started that the peer is not known to have a receive for?
    #[inline]
    pub(super) const fn is_exceeded(&self) -> bool {
        self.room < 0
    }

    /// So many requests start, and take a receive or not.
    //= RC-CRD-02 RC-CRD-03
    #[inline]
    pub(super) const fn note_started(&mut self, requests: u32, takes_receive: bool) {
        self.ssn = Msn::new(self.ssn.get().wrapping_add(requests));
        if takes_receive {
            self.room -= 1;
        }
    }

    /// The peer has completed `msn` messages and has so many receives.
    #[inline]
    fn told(&mut self, code: CreditCode, msn: Msn) {
        //= RC-CRD-05
        if self.room > LEAST_UNLIMITED {
            self.room = UNLIMITED;
        } else {
            self.set(code, msn);
        }
    }

    //= RC-CRD-02
    fn set(&mut self, code: CreditCode, msn: Msn) {
        let Some(credits) = code.credits() else {
            self.room = UNLIMITED;
            return;
        };
        // A peer may be wrong about how much it was sent.
        let incomplete = self.ssn.diff(msn).max(0);
        let room = i32::try_from(credits).unwrap_or(0) - incomplete;
        self.room = if self.room > LEAST_UNTOLD {
            room
        } else {
            self.room.max(room)
        };
    }
}

impl SendOp {
    /// Does the message take a receive of the peer?
    #[inline]
    const fn takes_receive(&self) -> bool {
        matches!(
            self,
            Self::Send { .. } | Self::SendInv { .. } | Self::Write { imm: Some(_), .. }
        )
    }
}

impl SendWqe {
    #[inline]
    pub(super) const fn takes_receive(&self) -> bool {
        self.op.takes_receive()
    }

    /// Requests that the peer counts: one, but of a READ that is asked for in parts.
    pub(super) fn requests(&self) -> u32 {
        match self.op {
            SendOp::Read { .. } if self.read_chunk > 0 => self.len.div_ceil(self.read_chunk).max(1),
            _ => 1,
        }
    }
}

impl Requester {
    /// The peer will give credits: none before it has.
    //= RC-CRD-02
    pub(crate) const fn expect_credits(&mut self) {
        self.credits.room = 0;
    }

    /// An acknowledgement that is not older than the last says this.
    #[inline]
    pub(super) fn note_credits(&mut self, code: CreditCode, msn: Msn) {
        self.credits.told(code, msn);
    }

    /// An acknowledgement of nothing new says this; true if that is news (RC-REQ-02).
    //= RC-ACK-06 RC-REQ-02
    pub(super) fn note_update(&mut self, code: CreditCode, msn: Msn) -> bool {
        let before = self.credits.room;
        if before > LEAST_UNTOLD {
            return false;
        }
        self.credits.told(code, msn);
        let is_news = self.credits.room > before;
        if is_news {
            if self.beyond == Beyond::Waiting {
                self.rnr_until = None;
            }
            self.beyond = Beyond::Wait;
        }
        is_news
    }

    /// The oldest message has got its receive, or none was missing.
    #[inline]
    pub(super) fn note_taken(&mut self) {
        match self.beyond {
            Beyond::First => self.beyond = Beyond::Wait,
            // There was a receive, and the peer did not say so.
            Beyond::Waited => self.beyond = Beyond::Try,
            Beyond::Try | Beyond::Wait | Beyond::Waiting => {}
        }
    }

    /// There was none.
    pub(super) fn note_not_taken(&mut self) {
        if self.beyond == Beyond::Waited {
            self.beyond = Beyond::Wait;
        }
    }

    /// The wait for anything that the peer has to have for a message is over.
    pub(super) fn note_waited(&mut self) {
        if self.beyond == Beyond::Waiting {
            self.beyond = Beyond::Waited;
        }
    }

    /// May the next message start, which takes a receive that the peer is not known to have?
    //= RC-CRD-04
    #[cold]
    pub(super) fn may_exceed(&mut self, now: Time) -> bool {
        if self.started > 0 {
            return false;
        }
        match self.beyond {
            Beyond::First | Beyond::Try | Beyond::Waited => {
                self.credits.room = 0;
                true
            }
            Beyond::Wait => {
                let timeout_ns = self.attr.ack_timeout_ns().unwrap_or(LONGEST_WAIT_NS);
                self.rnr_until = Some(now.plus_ns(timeout_ns.min(LONGEST_WAIT_NS)));
                self.beyond = Beyond::Waiting;
                false
            }
            Beyond::Waiting => false,
        }
    }

    /// Index of the first started message that the peer is not known to have a receive for.
    #[inline]
    pub(super) fn first_beyond(&self) -> usize {
        if self.credits.is_exceeded() {
            self.find_beyond()
        } else {
            usize::MAX
        }
    }

    #[cold]
    fn find_beyond(&self) -> usize {
        let started = self.sq.iter().take(self.started).enumerate().rev();
        let beyond = self.credits.room.unsigned_abs() as usize;
        let messages = started.filter(|(_, wqe)| wqe.takes_receive()).take(beyond);
        messages.last().map_or(usize::MAX, |(index, _)| index)
    }

    /// Has the current packet to wait, where the message at `beyond` is the first such one? Only the first packet of that may leave
    /// until it is acknowledged, and when all before it is.
    //= RC-CRD-04
    #[inline]
    pub(super) fn is_held(&self, beyond: usize) -> bool {
        self.current >= beyond && !self.may_try(beyond)
    }

    #[cold]
    fn may_try(&self, beyond: usize) -> bool {
        let first = self.sq[beyond].first_psn;
        let is_next = self.current == beyond && self.una.diff(first) >= 0;
        is_next && (self.cursor == first || self.una != first)
    }
}
