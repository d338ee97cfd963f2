//! Probes whether the peer is Rocade before a non-standard opcode is sent. Some kernel versions
//! read out of bounds when they receive an unknown opcode.
//!
//! A request with such an opcode waits until everything before it is acknowledged. Then the
//! requester sends the same probe datagram as a DC initiator (docs/dc.md), which any other device
//! drops. The probe is repeated like a request. Without an answer, the work request fails like one
//! whose packets are lost.

use rocade_wire::DcHello;

use super::Requester;
use crate::cx::Cx;
use crate::greeting::push_hello;
use crate::transmit::TxBuffer;

/// State of the probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asks {
    No,
    /// The probe has to be sent now.
    Due,
    /// The probe was sent, and the ACK timer runs.
    Sent,
}

impl Requester {
    /// Sets whether the peer is known to support the extensions of Rocade.
    pub(crate) const fn set_extended(&mut self, extended: bool) {
        self.extended = extended;
    }

    /// Schedules a probe, because the next request needs a peer that is Rocade.
    #[cold]
    pub(super) fn want_to_ask(&mut self) {
        if self.started == 0 && self.asks == Asks::No {
            self.asks = Asks::Due;
        }
    }

    /// Schedules the probe again after a timeout.
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

    /// Notes that the peer has proved to be Rocade. Returns false if it was not probed.
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
