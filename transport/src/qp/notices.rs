//! What two queue pairs tell each other besides requests and responses: that the path is congested, and that this is
//! Rocade.

use alloc::boxed::Box;

use rocade_wire::{DcHello, Packet};

use super::Qp;
use super::side::{RecvSide, SendSide};
use crate::counters::DropReason;
use crate::greeting::{hello_of, push_hello};
use crate::peer::PacketMeta;
use crate::responder::push_plain;
use crate::time::Time;
use crate::transmit::TxBuffer;

/// What it has to say besides requests and responses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Owed {
    /// The peer has asked whether this is Rocade.
    hello: bool,
    /// Packets of the peer were marked, and there are no responses to tell it with.
    notification: bool,
}

impl Owed {
    pub(super) const NOTHING: Self = Self {
        hello: false,
        notification: false,
    };

    #[inline]
    pub(super) fn is_any(self) -> bool {
        self != Self::NOTHING
    }
}

impl Qp {
    /// Controls congestion (DCQCN) from now on, or not: marked packets are answered by notifications, and the
    /// peer's slow down requests and READ responses. They are counted in any case. Of RC, XRC and UC: datagrams and dynamic
    /// connections go on as before.
    pub fn control_congestion(&mut self, on: bool) {
        self.control = on.then(Box::default);
    }

    //= ENC-10
    pub(super) fn note_mark(&mut self, now: Time) {
        self.out.counters.rare().marked_packets += 1;
        let knows_peer = match self.recv {
            RecvSide::Reliable(_) | RecvSide::Connected(_) => true,
            // The responses that an XRC initiator has asked for.
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
            RecvSide::Reliable(responder) => responder.notify(),
            _ => self.owes.notification = true,
        }
    }

    /// Takes the question of the peer whether this is Rocade, or its answer; false where the packet is something else. Who else asks is
    /// told nothing.
    //= XAW-08
    #[cold]
    pub(super) fn heeds_hello(&mut self, meta: &PacketMeta, packet: &Packet<'_>) -> bool {
        let Some((hello, from)) = hello_of(packet) else {
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
        match (hello, &mut self.send, &self.recv) {
            (DcHello::Ask, _, RecvSide::Reliable(_)) => {
                self.owes.hello = true;
                true
            }
            (DcHello::Answer, SendSide::Reliable(requester), _) => requester.met(),
            _ => false,
        }
    }

    #[cold]
    pub(super) fn say_what_is_owed(&mut self, tx: &mut TxBuffer) {
        if self.owes.hello && push_hello(&self.peer, self.config.qp_num, DcHello::Answer, tx) {
            self.out.counters.tx_packets += 1;
            self.owes.hello = false;
        }
        //= CNP-01
        if self.owes.notification && push_plain(&self.peer.notification(), tx) {
            self.out.counters.tx_packets += 1;
            self.out.counters.rare().cnps_sent += 1;
            self.owes.notification = false;
        }
    }

    //= CNP-03
    pub(super) fn handle_notification(
        &mut self,
        now: Time,
        meta: &PacketMeta,
        packet: &Packet<'_>,
    ) {
        let reason = if self.state.receives() {
            self.peer.reject_notification(meta, packet.bth())
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
        // Both are on the same path.
        if let RecvSide::Reliable(_) = self.recv {
            control.responses.notified(now, None);
        }
        match &mut self.send {
            SendSide::Reliable(requester) => requester.notified(now),
            SendSide::Unreliable(sender) => sender.notified(now),
            SendSide::Dynamic(_) | SendSide::Frames(_) | SendSide::None => {}
        }
    }
}
