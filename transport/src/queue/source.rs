//! Where a queue pair takes its receives from.

use alloc::sync::Arc;

use rocade_wire::CreditCode;

use super::recv::{RecvLimits, RecvQueue, RecvWqe};
use super::srq::{ReceiveDomain, SharedReceives, Srqn};
use crate::error::PostError;
use crate::memory::PdTag;
use crate::wr::Sge;

/// Where a queue pair shall take its receives from.
#[derive(Clone, Debug)]
pub enum Receives {
    /// A queue of its own.
    Own,
    /// One that others take from too.
    Shared(Arc<dyn SharedReceives>),
    /// The one that each request names, of this domain (XRC).
    Domain(Arc<dyn ReceiveDomain>),
}

/// Where a queue pair takes its receives from; fixed when it is created.
#[derive(Debug)]
pub(crate) enum RecvSource {
    /// A queue of its own.
    Own(RecvQueue),
    /// One that others take from too.
    Shared(Arc<dyn SharedReceives>),
    /// The one that each request names.
    ByHeader(Named),
    /// One that others take from too, whose buffers are looked for in this domain (DC-12).
    OfTarget(Arc<dyn SharedReceives>, PdTag),
}

/// The shared receive queues of an XRC domain, and the one that the current message names.
#[derive(Debug)]
pub(crate) struct Named {
    domain: Arc<dyn ReceiveDomain>,
    srqn: Srqn,
    pd: PdTag,
    /// The queue itself, from the packet that takes a receive until that is taken.
    found: Option<Arc<dyn SharedReceives>>,
    /// The last packet was for a queue of another process, and nothing was done with it.
    is_stray: bool,
}

/// Why a request is not for any queue of the domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotNamed {
    /// There is none of that number in the domain, or it is gone (XRC-06).
    Unknown,
    /// It is not the one that the message began with (XRC-03).
    Changed,
    /// It is in another process, which has to take the message.
    Elsewhere,
}

impl Named {
    /// The queue that a packet names: sets it for the message that begins with the packet, or checks it against that of
    /// the message. Returns the domain of the keys in the packet.
    pub(crate) fn aim(&mut self, srqn: Srqn, begins: bool, takes: bool) -> Result<PdTag, NotNamed> {
        //= XRC-03
        if !begins && srqn != self.srqn {
            return Err(NotNamed::Changed);
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

    /// The domain of the keys in a packet that asks again for what it may have asked of another process.
    pub(crate) fn look_up(&mut self, srqn: Srqn) -> Result<PdTag, NotNamed> {
        match self.domain.find(srqn) {
            Some(srq) => Ok(srq.pd()),
            None => Err(self.not_here(srqn, true)),
        }
    }

    #[cold]
    fn not_here(&mut self, srqn: Srqn, may_move: bool) -> NotNamed {
        if may_move && self.domain.is_elsewhere(srqn) {
            self.is_stray = true;
            NotNamed::Elsewhere
        } else {
            //= XRC-06
            NotNamed::Unknown
        }
    }

    fn take(&mut self) -> Option<RecvWqe> {
        let mut wqe = self.found.take()?.take()?;
        wqe.srqn = self.srqn;
        Some(wqe)
    }
}

impl RecvSource {
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

    /// Was the last packet for a queue of another process? Tells it once.
    pub(crate) const fn take_stray(&mut self) -> bool {
        match self {
            Self::ByHeader(named) => core::mem::replace(&mut named.is_stray, false),
            Self::Own(_) | Self::Shared(_) | Self::OfTarget(..) => false,
        }
    }

    /// Receives of its own that no message has taken.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Own(queue) => queue.len(),
            Self::Shared(_) | Self::ByHeader(_) | Self::OfTarget(..) => 0,
        }
    }

    /// How many messages it has receives for, as the peer is told: nobody knows where others take from it too, or
    /// where the program decides when a receive may be taken.
    //= RC-CRD-01 XRC-08
    #[inline]
    pub(crate) fn credits(&self) -> CreditCode {
        match self {
            Self::Own(queue) if !queue.is_managed() => {
                CreditCode::from_credits(u32::try_from(queue.len()).unwrap_or(u32::MAX))
            }
            _ => CreditCode::INVALID,
        }
    }

    /// Has it receives of its own?
    #[inline]
    pub(crate) fn has_some(&self) -> bool {
        self.len() > 0
    }

    /// Do others take from it, too?
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

    /// So many slots of the own queue are free.
    pub(crate) const fn free_slots(&mut self, slots: u32) {
        if let Self::Own(queue) = self {
            queue.free_slots(slots);
        }
    }

    /// Takes the receive for a message that begins.
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

    /// The next of the receives that are to be flushed when the queue pair ends: those of its own.
    //= RC-STA-09
    pub(crate) fn take_own(&mut self) -> Option<RecvWqe> {
        match self {
            Self::Own(queue) => queue.take_any(),
            Self::Shared(_) | Self::ByHeader(_) | Self::OfTarget(..) => None,
        }
    }

    /// A receive that was taken, of the XRC SRQ `srqn` if it is one of these, will not complete.
    pub(crate) fn forget(&self, srqn: Srqn) {
        match self {
            Self::Own(_) => {}
            Self::Shared(srq) | Self::OfTarget(srq, _) => srq.forget(),
            Self::ByHeader(named) => named.domain.forget(srqn),
        }
    }

    /// Forgets all receives of its own.
    pub(crate) fn reset(&mut self) {
        if let Self::Own(queue) = self {
            queue.reset();
        }
    }
}
