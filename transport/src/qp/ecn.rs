//! Notifications besides requests and responses: congestion notifications, and probes for Rocade.

use alloc::boxed::Box;

use rocade_wire::{Packet, RocadeProbe};

use super::Qp;
use super::side::{RecvSide, SendSide};
use crate::counters::DropReason;
use crate::peer::PacketMeta;
use crate::responder::push_without_payload;
use crate::rocade_probe::{probe_of, push_probe};
use crate::time::Time;
use crate::transmit::TxBuffer;

/// Pending notifications.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PendingNotices {
    /// The peer has probed whether this is Rocade.
    probe: bool,
    /// Packets of the peer were marked, and there are no responses that could carry BECN.
    cnp: bool,
}

impl PendingNotices {
    pub(super) const NONE: Self = Self {
        probe: false,
        cnp: false,
    };

    #[inline]
    pub(super) fn is_any(self) -> bool {
        self != Self::NONE
    }
}

impl Qp {
    /// Turns congestion control (DCQCN) on or off for RC, XRC and UC. Datagrams and dynamic
    /// connections are not affected.
    ///
    /// Marked packets are answered with CNPs, and CNPs of the peer slow down requests and READ
    /// responses. Both are counted in any case.
    pub fn control_congestion(&mut self, on: bool) {
        self.control = on.then(Box::default);
    }

    //= ENC-10
    pub(super) fn on_ce_mark(&mut self, now: Time) {
        self.out.counters.rare().marked_packets += 1;
        let knows_peer = match self.recv {
            RecvSide::Reliable(_) | RecvSide::Connected(_) => true,
            // An XRC initiator receives responses to its requests.
            RecvSide::None => true,
            RecvSide::Datagrams(_) | RecvSide::Frames(_) | RecvSide::Target(_) => false,
        };
        let Some(control) = &mut self.control else {
            return;
        };
        if !knows_peer || self.config.qp_type.is_dynamic() || !control.watch.marked(now) {
            return;
        }
        match &mut self.recv {
            RecvSide::Reliable(responder) => responder.queue_cnp(),
            RecvSide::None
            | RecvSide::Connected(_)
            | RecvSide::Datagrams(_)
            | RecvSide::Frames(_)
            | RecvSide::Target(_) => self.pending_notices.cnp = true,
        }
    }

    /// Handles a probe of the peer, or the answer to one. Returns false for any other packet.
    ///
    /// A probe from any other sender is not answered.
    //= XAW-08
    #[cold]
    pub(super) fn handle_probe(&mut self, meta: &PacketMeta, packet: &Packet<'_>) -> bool {
        let Some((probe, from)) = probe_of(packet) else {
            return false;
        };
        let peer = &self.peer;
        let is_peer = meta.source == peer.remote
            && meta.destination == peer.local
            && from == peer.qpn
            && packet.bth().pkey.matches(peer.pkey);
        if !is_peer || !self.state.receives() {
            return false;
        }
        match (probe, &mut self.send, &self.recv) {
            (RocadeProbe::Request, _, RecvSide::Reliable(_)) => {
                self.pending_notices.probe = true;
                true
            }
            (RocadeProbe::Reply, SendSide::Reliable(requester), _) => requester.on_probe_reply(),
            _ => false,
        }
    }

    #[cold]
    pub(super) fn send_pending_notices(&mut self, tx: &mut TxBuffer) {
        if self.pending_notices.probe
            && push_probe(&self.peer, self.config.qp_num, RocadeProbe::Reply, tx)
        {
            self.out.counters.traffic().tx_packets += 1;
            self.pending_notices.probe = false;
        }
        //= CNP-01
        if self.pending_notices.cnp && push_without_payload(&self.peer.cnp(), tx) {
            self.out.counters.traffic().tx_packets += 1;
            self.out.counters.rare().cnps_sent += 1;
            self.pending_notices.cnp = false;
        }
    }

    //= CNP-03
    pub(super) fn handle_cnp(&mut self, now: Time, meta: &PacketMeta, packet: &Packet<'_>) {
        let reason = if self.state.receives() {
            self.peer.reject_cnp(meta, packet.bth())
        } else {
            Some(DropReason::State)
        };
        if let Some(reason) = reason {
            self.out.counters.drop_packet(reason);
            return;
        }
        self.out.counters.rare().cnps_received += 1;
        let Some(control) = &mut self.control else {
            return;
        };
        // Requests and responses use the same path.
        if let RecvSide::Reliable(_) = self.recv {
            control.responses.on_cnp(now, None);
        }
        match &mut self.send {
            SendSide::Reliable(requester) => requester.on_cnp(now),
            SendSide::Unreliable(sender) => sender.on_cnp(now),
            SendSide::Dynamic(_) | SendSide::Frames(_) | SendSide::None => {}
        }
    }
}
