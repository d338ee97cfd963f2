//! Is the peer Rocade? What is not of the standard is sent to nobody who has not shown it: kernels of some versions read out of
//! bounds when they get an opcode that they do not know (RXE-02).
//!
//! A request with such an opcode, when its turn comes, waits until everything before it is acknowledged. Then the peer is asked by the
//! same datagram as a DC target (docs/dc.md), which any other device drops. The question is repeated like a request; where nobody answers,
//! the work request fails as one does whose packets are lost.

use rocade_wire::DcHello;

use super::Requester;
use crate::cx::Cx;
use crate::greeting::push_hello;
use crate::transmit::TxBuffer;

/// Is the peer being asked?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asks {
    No,
    /// It is to be asked now.
    Due,
    /// It was asked, and the ACK timer runs.
    Sent,
}

impl Requester {
    /// The peer understands what is not of the standard, or is not known to (XAW-08).
    pub(crate) const fn set_extended(&mut self, extended: bool) {
        self.extended = extended;
    }

    /// The next request needs a peer that is Rocade.
    #[cold]
    pub(super) fn want_to_ask(&mut self) {
        if self.started == 0 && self.asks == Asks::No {
            self.asks = Asks::Due;
        }
    }

    /// Nobody has answered in time.
    pub(super) const fn ask_again(&mut self) {
        self.asks = Asks::Due;
    }

    //= XAW-08
    #[cold]
    pub(super) fn ask<H>(&mut self, cx: &mut Cx<'_, H>, tx: &mut TxBuffer) {
        if push_hello(cx.peer, cx.who.qpn, DcHello::Ask, tx) {
            cx.out.counters.tx_packets += 1;
            self.asks = Asks::Sent;
            self.arm_ack_timer(cx.now);
        }
    }

    /// The peer has shown that it is Rocade; false where nobody has asked it.
    pub(crate) fn met(&mut self) -> bool {
        if self.asks == Asks::No {
            return false;
        }
        self.asks = Asks::No;
        self.extended = true;
        self.ack_deadline = None;
        self.timeouts_in_a_row = 0;
        self.retry_left = self.attr.retry_cnt;
        true
    }
}
