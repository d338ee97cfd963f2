//! Probes whether the peer is Rocade before a non-standard opcode is sent. Some kernel versions
//! read out of bounds when they receive an unknown opcode.
//!
//! The masked compare-and-swap of NVIDIA's NICs needs no probe, unless the peer clears MigReq in
//! its packets. NICs set it, as the standard says, but the kernel's rxe does not.
//!
//! A request with such an opcode waits until everything before it is acknowledged. Then the
//! requester sends the same probe datagram as a DC initiator (docs/dc.md), which any other device
//! drops. The probe is repeated like a request. Without an answer, the work request fails like one
//! whose packets are lost.

use rocade_wire::RocadeProbe;

use super::Requester;
use crate::cx::Cx;
use crate::rocade_probe::push_probe;
use crate::transmit::TxBuffer;

/// State of the probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProbeState {
    Idle,
    /// The probe has to be sent now.
    Due,
    /// The probe was sent, and the ACK timer runs.
    Sent,
}

impl Requester {
    /// Sets whether the peer is known to support the extensions of Rocade.
    pub(crate) const fn set_vendor_ops(&mut self, vendor_ops: bool) {
        self.vendor_ops = vendor_ops;
    }

    /// Notes a packet of the peer without MigReq although neither end migrates.
    //= HW-01 RXE-07
    #[cold]
    pub(crate) const fn note_clear_migreq(&mut self) {
        self.clears_migreq = true;
    }

    /// Sets whether masked FetchAdds of 8 bytes are sent in NVIDIA's format.
    pub(crate) const fn set_short_fetch_add(&mut self, short_fetch_add: bool) {
        self.short_fetch_add = short_fetch_add;
    }

    /// Schedules a probe, because the next request needs a peer that is Rocade.
    #[cold]
    pub(super) fn want_probe(&mut self) {
        if self.started == 0 && self.probe == ProbeState::Idle {
            self.probe = ProbeState::Due;
        }
    }

    /// Schedules the probe again after a timeout.
    pub(super) const fn repeat_probe(&mut self) {
        self.probe = ProbeState::Due;
    }

    //= XAW-08
    #[cold]
    pub(super) fn send_probe<H>(&mut self, cx: &mut Cx<'_, H>, tx: &mut TxBuffer) {
        if push_probe(cx.peer, cx.who.qpn, RocadeProbe::Request, tx) {
            cx.out.counters.traffic().tx_packets += 1;
            self.probe = ProbeState::Sent;
            self.arm_ack_timer(cx.now);
        }
    }

    /// Notes that the peer has proved to be Rocade. Returns false if it was not probed.
    pub(crate) fn on_probe_reply(&mut self) -> bool {
        if self.probe == ProbeState::Idle {
            return false;
        }
        self.probe = ProbeState::Idle;
        self.vendor_ops = true;
        self.ack_deadline = None;
        self.timeouts_in_a_row = 0;
        self.retry_left = self.attr.retry_cnt;
        true
    }
}
