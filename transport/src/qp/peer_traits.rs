//! Properties of the peer that the owner of a queue pair, or a packet, tells.

use super::Qp;
use super::side::SendSide;

impl Qp {
    /// Sets whether the peer is known to support the extensions of Rocade. If not, the QP probes
    /// the peer before the first masked atomic.
    pub const fn set_vendor_ops(&mut self, vendor_ops: bool) {
        if let SendSide::Reliable(requester) = &mut self.send {
            requester.set_vendor_ops(vendor_ops);
        }
    }

    /// Sets whether masked FetchAdds of 8 bytes are sent in the format that NVIDIA's NICs have for
    /// CmpSwap, to any peer. No capture of such a packet is known.
    pub const fn set_short_fetch_add(&mut self, short_fetch_add: bool) {
        if let SendSide::Reliable(requester) = &mut self.send {
            requester.set_short_fetch_add(short_fetch_add);
        }
    }

    /// Makes the QP ignore the peer's credits, because it has no end-to-end flow control. They
    /// count again once the peer announces some without being asked.
    pub const fn ignore_credits(&mut self) {
        if let SendSide::Reliable(requester) = &mut self.send {
            requester.ignore_credits();
        }
    }

    /// Notes that the peer has sent a packet without MigReq, which no peer but the kernel's rxe
    /// does if it does not migrate. From now on the QP probes the peer before any masked atomic.
    #[cold]
    pub const fn note_clear_migreq(&mut self) {
        if let SendSide::Reliable(requester) = &mut self.send {
            requester.note_clear_migreq();
        }
    }
}
