//! Where a queue pair takes its receives from.

use alloc::sync::Arc;

use super::recv::{RecvQueue, RecvWqe};
use super::srq::SharedReceives;
use crate::error::PostError;
use crate::wr::Sge;

/// Where a queue pair takes its receives from; fixed when it is created.
#[derive(Debug)]
pub(crate) enum RecvSource {
    /// A queue of its own.
    Own(RecvQueue),
    /// One that others take from too.
    Shared(Arc<dyn SharedReceives>),
}

impl RecvSource {
    /// Receives of its own that no message has taken.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Own(queue) => queue.len(),
            Self::Shared(_) => 0,
        }
    }

    /// Is it one that others take from too?
    pub(crate) const fn is_shared(&self) -> bool {
        matches!(self, Self::Shared(_))
    }

    /// Queues a receive.
    #[inline]
    pub(crate) fn post(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        match self {
            Self::Own(queue) => queue.post(wr_id, sges),
            //= PST-08
            Self::Shared(_) => Err(PostError::SharedReceives),
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
        }
    }

    /// The next of the receives that are to be flushed when the queue pair ends: those of its own.
    //= RC-STA-09
    pub(crate) fn take_own(&mut self) -> Option<RecvWqe> {
        match self {
            Self::Own(queue) => queue.take(),
            Self::Shared(_) => None,
        }
    }

    /// Forgets all receives of its own, and so many that were taken and will not complete.
    pub(crate) fn reset(&mut self, taken: usize) {
        match self {
            Self::Own(queue) => *queue = queue.emptied(),
            Self::Shared(srq) => (0..taken).for_each(|_| srq.forget()),
        }
    }
}
