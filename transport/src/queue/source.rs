//! Source of the receives of a queue pair.

use alloc::sync::Arc;

use rocade_wire::CreditCode;

use super::recv::{RecvLimits, RecvQueue, RecvWqe};
use super::srq::{ReceiveDomain, SharedReceives, Srqn};
use crate::error::PostError;
use crate::memory::PdTag;
use crate::wr::Sge;

/// Source of receives for a new queue pair.
#[derive(Clone, Debug)]
pub enum Receives {
    /// A queue of its own.
    Own,
    /// A shared receive queue.
    Shared(Arc<dyn SharedReceives>),
    /// The queue of this domain that each request names (XRC).
    Domain(Arc<dyn ReceiveDomain>),
}

/// Source of receives, fixed at creation.
#[derive(Debug)]
pub(crate) enum RecvSource {
    /// A queue of its own.
    Own(RecvQueue),
    /// A shared receive queue.
    Shared(Arc<dyn SharedReceives>),
    /// The queue that each request names.
    ByHeader(Named),
    /// A shared receive queue of a DC target, whose buffers are checked against this protection
    /// domain.
    OfTarget(Arc<dyn SharedReceives>, PdTag),
}

/// The shared receive queues of an XRC domain, and the one that the current message names.
#[derive(Debug)]
pub(crate) struct Named {
    domain: Arc<dyn ReceiveDomain>,
    srqn: Srqn,
    pd: PdTag,
    /// The queue itself, from the packet that needs a receive until the receive is taken.
    found: Option<Arc<dyn SharedReceives>>,
    /// The last packet was for a queue of another process, and had no effect.
    is_stray: bool,
}

/// The reason why a request is not for any queue of the domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SrqLookupError {
    /// The domain has no queue of that number.
    Unknown,
    /// The number differs from that in the first packet of the message.
    Changed,
    /// The queue belongs to another process, which has to handle the message.
    OtherProcess,
}

impl Named {
    /// Looks up the queue that a packet names, and returns the protection domain for the keys in
    /// the packet.
    ///
    /// The first packet of a message sets the queue, and later packets have to name the same.
    pub(crate) fn select_srq(
        &mut self,
        srqn: Srqn,
        begins: bool,
        takes: bool,
    ) -> Result<PdTag, SrqLookupError> {
        //= XRC-03
        if !begins && srqn != self.srqn {
            return Err(SrqLookupError::Changed);
        }
        if begins || takes {
            let Some(srq) = self.domain.find(srqn) else {
                return Err(self.not_here(srqn, begins));
            };
            (self.srqn, self.pd) = (srqn, srq.pd());
            self.found = takes.then_some(srq);
        }
        Ok(self.pd)
    }

    /// Returns the protection domain for the keys in a duplicate request, whose original may have
    /// been handled by another process.
    pub(crate) fn look_up(&mut self, srqn: Srqn) -> Result<PdTag, SrqLookupError> {
        match self.domain.find(srqn) {
            Some(srq) => Ok(srq.pd()),
            None => Err(self.not_here(srqn, true)),
        }
    }

    #[cold]
    fn not_here(&mut self, srqn: Srqn, may_move: bool) -> SrqLookupError {
        if may_move && self.domain.is_in_other_process(srqn) {
            self.is_stray = true;
            SrqLookupError::OtherProcess
        } else {
            //= XRC-06
            SrqLookupError::Unknown
        }
    }

    fn take(&mut self) -> Option<RecvWqe> {
        let mut wqe = self.found.take()?.take()?;
        wqe.srqn = self.srqn;
        Some(wqe)
    }
}

impl RecvSource {
    /// Asserts the conditions of an own queue. Shared ones are checked where they are locked.
    #[cfg(debug_assertions)]
    pub(crate) fn check_invariants(&self) {
        if let Self::Own(queue) = self {
            queue.check_invariants();
        }
    }

    pub(crate) fn new(receives: Receives, pd: PdTag, limits: RecvLimits) -> Self {
        match receives {
            Receives::Own => Self::Own(RecvQueue::new(pd, limits)),
            Receives::Shared(srq) => Self::Shared(srq),
            Receives::Domain(domain) => Self::ByHeader(Named {
                domain,
                srqn: Srqn::NONE,
                pd,
                found: None,
                is_stray: false,
            }),
        }
    }

    /// Returns true once if the last packet was for a queue of another process.
    pub(crate) const fn take_misrouted(&mut self) -> bool {
        match self {
            Self::ByHeader(named) => core::mem::replace(&mut named.is_stray, false),
            Self::Own(_) | Self::Shared(_) | Self::OfTarget(..) => false,
        }
    }

    /// Returns the number of receives in its own queue that no message has consumed.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Own(queue) => queue.len(),
            Self::Shared(_) | Self::ByHeader(_) | Self::OfTarget(..) => 0,
        }
    }

    /// Returns the credits to announce to the peer: the number of receives.
    ///
    /// [`CreditCode::INVALID`] for a shared queue, and for one where the program decides when a
    /// receive may be consumed.
    //= RC-CRD-01 XRC-08
    #[inline]
    pub(crate) fn credits(&self) -> CreditCode {
        match self {
            Self::Own(queue) if !queue.is_managed() => {
                CreditCode::from_credits(u32::try_from(queue.len()).unwrap_or(u32::MAX))
            }
            Self::Own(_) | Self::Shared(_) | Self::ByHeader(_) | Self::OfTarget(..) => {
                CreditCode::INVALID
            }
        }
    }

    /// Returns true if its own queue has receives.
    #[inline]
    pub(crate) fn has_some(&self) -> bool {
        self.len() > 0
    }

    /// Returns true if other queue pairs take from the source, too.
    pub(crate) const fn is_shared(&self) -> bool {
        !matches!(self, Self::Own(_))
    }

    /// Queues a receive.
    #[inline(always)]
    pub(crate) fn post(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        match self {
            Self::Own(queue) => queue.post(wr_id, sges),
            //= PST-08
            Self::Shared(_) | Self::ByHeader(_) | Self::OfTarget(..) => {
                Err(PostError::SharedReceives)
            }
        }
    }

    /// Frees WQEs of its own queue.
    pub(crate) const fn free_wqes(&mut self, freed_wqes: u32) {
        if let Self::Own(queue) = self {
            queue.free_wqes(freed_wqes);
        }
    }

    /// Takes the receive for a new message.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<RecvWqe> {
        match self {
            Self::Own(queue) => queue.take(),
            Self::Shared(srq) => srq.take(),
            Self::ByHeader(named) => named.take(),
            //= DC-12
            Self::OfTarget(srq, pd) => {
                let mut wqe = srq.take()?;
                wqe.pd = *pd;
                Some(wqe)
            }
        }
    }

    /// Takes the next receive that is flushed when the queue pair enters ERR. Only its own queue is
    /// flushed.
    //= RC-STA-09
    pub(crate) fn take_own(&mut self) -> Option<RecvWqe> {
        match self {
            Self::Own(queue) => queue.take_any(),
            Self::Shared(_) | Self::ByHeader(_) | Self::OfTarget(..) => None,
        }
    }

    /// Notes that a receive that was taken will not complete. `srqn` is its XRC SRQ, if it has one.
    pub(crate) fn forget(&self, srqn: Srqn) {
        match self {
            Self::Own(_) => {}
            Self::Shared(srq) | Self::OfTarget(srq, _) => srq.forget(),
            Self::ByHeader(named) => named.domain.forget(srqn),
        }
    }

    /// Drops all receives of its own queue.
    pub(crate) fn reset(&mut self) {
        if let Self::Own(queue) = self {
            queue.reset();
        }
    }
}
