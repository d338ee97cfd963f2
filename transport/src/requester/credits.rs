//! End-to-end credits: the number of messages that the peer has receives for.
//!
//! A message that consumes a receive of the peer starts while credits are left. Without credits the
//! requester may try: it sends the first packet of one message, once everything before it is
//! acknowledged.
//!
//! It tries at once if the peer never announces new credits. If the peer sends unsolicited ACKs
//! with new credits, the requester waits for one, so that the peer need not answer with an RNR NAK.
//! That ACK may be lost, so after a timeout the packet is sent all the same.
//!
//! A peer without flow control may announce zero credits all the time. They do not count until it
//! sends an unsolicited ACK with new ones.

use rocade_wire::{CreditCode, Msn};

use super::{Requester, SendWqe};
use crate::time::Time;
use crate::wr::SendOp;

/// Credits without a limit. No queue has enough entries to use them up before the next ACK.
const UNLIMITED: i32 = i32::MAX;
/// Credits before the peer has announced any: also unlimited in practice.
const UNKNOWN: i32 = i32::MAX / 2;
/// Any greater value is [`UNLIMITED`], less what was sent since.
const LEAST_UNLIMITED: i32 = UNKNOWN + UNKNOWN / 2;
/// Any greater value is at least [`UNKNOWN`]. No credit code encodes so many.
const LEAST_UNKNOWN: i32 = UNKNOWN / 2;

/// The longest wait for new credits. The ACK timeout applies if it is shorter.
const LONGEST_WAIT_NS: u64 = 50_000_000;

/// Policy for a message that the peer is not known to have a receive for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UncreditedSend {
    /// Send: it is unknown whether the peer announces new credits.
    Unknown,
    /// Send: the peer had receives and had not announced them.
    Send,
    /// Wait until the peer announces credits.
    Wait,
    /// The wait is in progress.
    Waiting,
    /// The wait has timed out.
    TimedOut,
}

#[derive(Debug)]
pub(super) struct Credits {
    /// Messages that may start and consume a receive. Negative if so many have started without
    /// credits.
    available: i32,
    /// Requests started, as the peer counts them (SSN).
    ssn: Msn,
}

impl Credits {
    pub(super) const fn new() -> Self {
        Self {
            available: UNKNOWN,
            ssn: Msn::new(0),
        }
    }

    /// Returns true if one more message that consumes a receive may start.
    #[inline]
    pub(super) const fn has_space(&self) -> bool {
        self.available > 0
    }

    /// Returns true if a message has started without a credit.
    #[inline]
    pub(super) const fn is_exceeded(&self) -> bool {
        self.available < 0
    }

    /// Counts started requests, and a credit if they consume a receive.
    //= RC-CRD-02 RC-CRD-03
    #[inline]
    pub(super) const fn note_started(&mut self, requests: u32, takes_receive: bool) {
        self.ssn = Msn::new(self.ssn.get().wrapping_add(requests));
        if takes_receive {
            self.available -= 1;
        }
    }

    /// Updates the credits: the peer has completed `msn` messages and has announced `code`.
    #[inline]
    fn update(&mut self, code: CreditCode, msn: Msn) {
        //= RC-CRD-05
        if self.available > LEAST_UNLIMITED {
            self.available = UNLIMITED;
        } else {
            self.set(code, msn);
        }
    }

    //= RC-CRD-02
    fn set(&mut self, code: CreditCode, msn: Msn) {
        let Some(credits) = code.credits() else {
            self.available = UNLIMITED;
            return;
        };
        // The MSN of a faulty peer may exceed what it was sent.
        let incomplete = self.ssn.diff(msn).max(0);
        let available = i32::try_from(credits).unwrap_or(0) - incomplete;
        self.available = if self.available > LEAST_UNKNOWN {
            available
        } else {
            self.available.max(available)
        };
    }
}

impl SendOp {
    /// Returns true if the message consumes a receive of the peer.
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

    /// Returns the number of requests that the peer counts: one, except for a READ that is split.
    pub(super) fn requests(&self) -> u32 {
        if let SendOp::Read { .. } = self.op
            && self.read_chunk > 0
        {
            return self.len.div_ceil(self.read_chunk).max(1);
        }
        1
    }
}

impl Requester {
    /// Sets the credits to zero until the peer announces some.
    //= RC-CRD-02
    pub(crate) const fn expect_credits(&mut self) {
        self.credits.available = 0;
    }

    /// Makes credits count no more: the peer has no flow control.
    //= HW-04
    pub(crate) const fn ignore_credits(&mut self) {
        self.ignores_credits = true;
        self.credits.available = UNKNOWN;
    }

    /// Handles the credits of an ACK that is not older than the last.
    #[inline]
    pub(super) fn note_credits(&mut self, code: CreditCode, msn: Msn) {
        if self.ignores_credits {
            self.credits.available = UNKNOWN;
        } else {
            self.credits.update(code, msn);
        }
    }

    /// Handles the credits of an ACK that acknowledges no new packet. Returns true if there are
    /// more credits than before.
    //= RC-ACK-06 RC-REQ-02
    pub(super) fn note_update(&mut self, code: CreditCode, msn: Msn) -> bool {
        let before = self.credits.available;
        if before > LEAST_UNKNOWN && !(self.ignores_credits && code.credits() > Some(0)) {
            return false;
        }
        if self.ignores_credits {
            self.ignores_credits = false;
            self.credits.update(code, msn);
            self.uncredited_send = UncreditedSend::Wait;
            return false;
        }
        self.credits.update(code, msn);
        let is_news = self.credits.available > before;
        if is_news {
            if self.uncredited_send == UncreditedSend::Waiting {
                self.rnr_until = None;
            }
            self.uncredited_send = UncreditedSend::Wait;
        }
        is_news
    }

    /// Notes that the oldest message has found a receive, or needs none.
    #[inline]
    pub(super) fn note_taken(&mut self) {
        match self.uncredited_send {
            UncreditedSend::Unknown => self.uncredited_send = UncreditedSend::Wait,
            // The peer had a receive, and had not announced it.
            UncreditedSend::TimedOut => self.uncredited_send = UncreditedSend::Send,
            UncreditedSend::Send | UncreditedSend::Wait | UncreditedSend::Waiting => {}
        }
    }

    /// Notes that the oldest message has found no receive.
    pub(super) fn note_not_taken(&mut self) {
        if self.uncredited_send == UncreditedSend::TimedOut {
            self.uncredited_send = UncreditedSend::Wait;
        }
    }

    /// Notes that the RNR timer has expired, which also ends the wait for credits.
    pub(super) fn note_waited(&mut self) {
        if self.uncredited_send == UncreditedSend::Waiting {
            self.uncredited_send = UncreditedSend::TimedOut;
        }
    }

    /// Returns true if the next message may start although it consumes a receive and there are no
    /// credits.
    //= RC-CRD-04
    #[cold]
    pub(super) fn may_exceed(&mut self, now: Time) -> bool {
        if self.started > 0 {
            return false;
        }
        match self.uncredited_send {
            UncreditedSend::Unknown | UncreditedSend::Send | UncreditedSend::TimedOut => {
                self.credits.available = 0;
                true
            }
            UncreditedSend::Wait => {
                let timeout_ns = self.attr.ack_timeout_ns().unwrap_or(LONGEST_WAIT_NS);
                self.rnr_until = Some(now.plus_ns(timeout_ns.min(LONGEST_WAIT_NS)));
                self.uncredited_send = UncreditedSend::Waiting;
                false
            }
            UncreditedSend::Waiting => false,
        }
    }

    /// Returns the index of the first started message without a credit.
    #[inline]
    pub(super) fn first_uncredited(&self) -> usize {
        if self.credits.is_exceeded() {
            self.find_uncredited()
        } else {
            usize::MAX
        }
    }

    #[cold]
    fn find_uncredited(&self) -> usize {
        let started = self.sq.wqes.iter().take(self.started).enumerate().rev();
        let uncredited = self.credits.available.unsigned_abs() as usize;
        let messages = started
            .filter(|(_, wqe)| wqe.takes_receive())
            .take(uncredited);
        messages.last().map_or(usize::MAX, |(index, _)| index)
    }

    /// Returns true if the current packet has to wait. `uncredited` is the index of the first
    /// message without a credit.
    ///
    /// Until that message is acknowledged, only its first packet may be sent, once everything
    /// before it is acknowledged.
    //= RC-CRD-04
    #[inline]
    pub(super) fn is_held(&self, uncredited: usize) -> bool {
        self.current >= uncredited && !self.may_try(uncredited)
    }

    #[cold]
    fn may_try(&self, uncredited: usize) -> bool {
        let first = self.sq.wqes[uncredited].first_psn;
        let is_next = self.current == uncredited && self.una.diff(first) >= 0;
        is_next && (self.cursor == first || self.una != first)
    }
}
