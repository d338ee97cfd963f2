//! What surrounds a call.

use rocade_wire::Qpn;

use crate::completion::{CompleteTo, Completion, ImmOrInv, WcFlags, WcOpcode, WcStatus};
use crate::memory::Accessor;
use crate::outputs::Outputs;
use crate::peer::Peer;
use crate::queue::Srqn;
use crate::time::Time;

/// When something happens, with whom, with whose memory, and where its results go: whatever a function of
/// the requester or the responder may need besides its subject.
#[derive(Debug)]
pub(crate) struct Cx<'a, H> {
    pub(crate) now: Time,
    pub(crate) peer: &'a Peer,
    /// As whom the QP accesses memory, but for receive buffers that are not its own.
    pub(crate) who: Accessor,
    /// A [`Memory`](crate::Memory); `()` where no memory is reached.
    pub(crate) host: &'a H,
    pub(crate) out: &'a mut Outputs,
}

impl<'a, H> Cx<'a, H> {
    /// The memory, and as whom to access it.
    #[inline]
    pub(crate) const fn memory(&self) -> (&'a H, Accessor) {
        (self.host, self.who)
    }

    /// A completion with what all have in common, for the caller to add the rest: what it says is
    /// for the queue and the service to know.
    #[inline]
    //= CQ-11 CQ-12
    pub(crate) const fn completion(
        &self,
        to: CompleteTo,
        wr_id: u64,
        status: WcStatus,
        opcode: WcOpcode,
    ) -> Completion {
        Completion {
            wr_id,
            status,
            opcode,
            byte_len: 0,
            qp_num: self.out.qp_num,
            src_qp: Qpn::new(0),
            imm_or_inv: ImmOrInv::None,
            wc_flags: WcFlags::empty(),
            vendor_err: 0,
            sl: 0,
            to,
            solicited: false,
            srqn: Srqn::NONE,
            slots: 1,
            timestamp_ns: self.now.as_ns(),
        }
    }
}
