//! The context of a call.

use rocade_wire::Qpn;

use crate::completion::{CompleteTo, Completion, ImmOrInv, WcFlags, WcOpcode, WcStatus};
use crate::memory::Accessor;
use crate::outputs::Outputs;
use crate::peer::Peer;
use crate::queue::Srqn;
use crate::time::Time;

/// The context that functions of the requester and the responder share: time, peer, memory, and
/// where results go.
#[derive(Debug)]
pub(crate) struct Cx<'a, H> {
    pub(crate) now: Time,
    pub(crate) peer: &'a Peer,
    /// The accessor as which the QP accesses memory, except for receive buffers of a shared queue.
    pub(crate) who: Accessor,
    /// A [`Memory`](crate::Memory), or `()` if no memory is accessed.
    pub(crate) host: &'a H,
    pub(crate) out: &'a mut Outputs,
}

impl<'a, H> Cx<'a, H> {
    /// Returns the memory and its accessor.
    #[inline]
    pub(crate) const fn memory(&self) -> (&'a H, Accessor) {
        (self.host, self.who)
    }

    /// Creates a completion with the common fields. The caller adds those that depend on the queue
    /// and the service.
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
            freed_wqes: 1,
            timestamp_ns: self.now.as_ns(),
        }
    }
}
