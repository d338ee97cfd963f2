//! Receive work requests.

use alloc::collections::VecDeque;

use crate::error::PostError;
use crate::wr::{LocalData, Sge};

/// A receive work request, as it waits for a message or is filled by one.
#[derive(Debug)]
pub(crate) struct RecvWqe {
    pub(crate) wr_id: u64,
    pub(crate) data: LocalData,
}

impl RecvWqe {
    const EMPTY: Self = Self {
        wr_id: 0,
        data: LocalData::EMPTY,
    };
}

/// Limits of a receive queue, fixed at creation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecvLimits {
    pub(crate) max_wr: u32,
    pub(crate) max_sge: u32,
}

/// Receives in the order in which messages take them.
#[derive(Debug)]
pub(crate) struct RecvQueue {
    limits: RecvLimits,
    wqes: VecDeque<RecvWqe>,
    /// Slots in use: those of `wqes`, those that were taken, and those whose completion the application has not
    /// seen.
    used: u32,
}

impl RecvQueue {
    pub(crate) const fn new(limits: RecvLimits) -> Self {
        Self {
            limits,
            wqes: VecDeque::new(),
            used: 0,
        }
    }

    /// Receives that no message has taken.
    pub(crate) fn len(&self) -> usize {
        self.wqes.len()
    }

    /// Queues a receive (PST-09).
    pub(crate) fn post(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        if sges.len() > self.limits.max_sge as usize {
            return Err(PostError::TooManySges);
        }
        //= RC-WQE-03
        if self.used >= self.limits.max_wr {
            return Err(PostError::QueueFull);
        }
        self.used += 1;
        // Filled in where it stays, see `Requester::post`.
        self.wqes.push_back(RecvWqe::EMPTY);
        if let Some(wqe) = self.wqes.back_mut() {
            wqe.wr_id = wr_id;
            wqe.data.set_sges(sges);
        }
        Ok(())
    }

    /// The application has taken the completions of so many slots.
    pub(crate) const fn free_slots(&mut self, slots: u32) {
        self.used = self.used.saturating_sub(slots);
    }

    /// The receive that the next message takes.
    #[inline]
    pub(crate) fn front(&self) -> Option<&RecvWqe> {
        self.wqes.front()
    }

    /// Takes it; its slot stays in use.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<RecvWqe> {
        self.wqes.pop_front()
    }

    /// One like this, without receives.
    pub(crate) const fn emptied(&self) -> Self {
        Self::new(self.limits)
    }
}
