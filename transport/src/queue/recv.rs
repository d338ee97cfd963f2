//! Receive work requests.

use alloc::boxed::Box;
use alloc::collections::VecDeque;

use super::srq::Srqn;
use crate::cross_channel::{CrossChannelQueue, Gate};
use crate::error::PostError;
use crate::memory::{AccessError, Accessor, Memory, PdTag};
use crate::wr::{LocalData, Sge};

/// A receive work request, queued or being filled by a message.
#[derive(Debug)]
pub struct RecvWqe {
    pub(crate) wr_id: u64,
    /// The protection domain of its buffers: that of the queue it was posted to.
    pub(crate) pd: PdTag,
    /// The XRC SRQ that it was taken from. [`Srqn::NONE`] for any other queue.
    pub(crate) srqn: Srqn,
    pub(crate) data: LocalData,
}

impl RecvWqe {
    /// Copies a whole message to the buffers. Returns false if it does not fit or the buffers
    /// cannot be written.
    //= RC-RSP-10
    //= RC-RSP-12
    //= RC-WQE-12
    #[inline(always)]
    pub(crate) fn fill(&self, (mem, who): (&impl Memory, Accessor), message: &[u8]) -> bool {
        if let Some((lkey, addr)) = self.data.in_one(0, message.len()) {
            let who = Accessor { pd: self.pd, ..who };
            return message.is_empty() || mem.write_local(who, lkey, addr, message).is_ok();
        }
        self.fill_sges((mem, who), message)
    }

    /// Copies a whole message to any number of buffers.
    fn fill_sges(&self, (mem, who): (&impl Memory, Accessor), message: &[u8]) -> bool {
        let has_space = message.len() as u64 <= self.data.len();
        has_space && (message.is_empty() || self.scatter((mem, who), 0, message).is_ok())
    }

    /// Copies a part of a message to offset `offset` of the buffers. Their keys are checked against
    /// the protection domain of the queue, not that of the QP.
    //= RC-WQE-12
    #[inline]
    pub(crate) fn scatter(
        &self,
        (mem, who): (&impl Memory, Accessor),
        offset: u32,
        payload: &[u8],
    ) -> Result<(), AccessError> {
        let who = Accessor { pd: self.pd, ..who };
        self.data.scatter((mem, who), offset, payload)
    }
}

/// Limits of a receive queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecvLimits {
    pub(crate) max_wr: u32,
    pub(crate) max_sge: u32,
}

/// Receives in the order in which messages consume them.
#[derive(Debug)]
pub(crate) struct RecvQueue {
    pd: PdTag,
    limits: RecvLimits,
    wqes: VecDeque<RecvWqe>,
    /// WQEs in use: those of `wqes`, those consumed by messages, and those whose completion the
    /// application has not polled.
    used: u32,
    cross_channel: Option<Box<CrossChannelQueue>>,
}

impl RecvQueue {
    pub(crate) const fn new(pd: PdTag, limits: RecvLimits) -> Self {
        Self {
            pd,
            limits,
            wqes: VecDeque::new(),
            used: 0,
            cross_channel: None,
        }
    }

    /// Returns the number of receives that no message has consumed.
    pub(crate) fn len(&self) -> usize {
        self.wqes.len()
    }

    pub(crate) const fn limits(&self) -> RecvLimits {
        self.limits
    }

    /// Changes the size. The WQEs in use must fit.
    pub(crate) const fn resize(&mut self, max_wr: u32) {
        self.limits.max_wr = max_wr;
    }

    /// Returns the number of WQEs in use.
    pub(crate) const fn used(&self) -> u32 {
        self.used
    }

    /// Returns true if all WQEs are in use.
    #[inline]
    pub(crate) const fn is_full(&self) -> bool {
        self.used >= self.limits.max_wr
    }

    /// Queues a receive.
    #[inline(always)]
    pub(crate) fn post(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        if sges.len() > self.limits.max_sge as usize {
            return Err(PostError::TooManySges);
        }
        //= RC-WQE-03
        if self.used >= self.limits.max_wr {
            //= XCH-06
            let counts = self
                .cross_channel
                .as_ref()
                .is_none_or(|cross_channel| cross_channel.counts_wqes);
            if counts || self.wqes.len() >= self.limits.max_wr as usize {
                return Err(PostError::QueueFull);
            }
        }
        if let Some(gate) = self.gate() {
            gate.note_posted();
        }
        self.used += 1;
        // Filled in place, see `Requester::post`.
        self.wqes.push_back(RecvWqe {
            wr_id,
            pd: self.pd,
            srqn: Srqn::NONE,
            data: LocalData::EMPTY,
        });
        if let Some(wqe) = self.wqes.back_mut() {
            wqe.data.set_sges(sges);
        }
        Ok(())
    }

    /// Frees WQEs whose completions the application has polled.
    pub(crate) const fn free_wqes(&mut self, freed_wqes: u32) {
        self.used = self.used.saturating_sub(freed_wqes);
    }

    /// Returns the receive that the next message will consume.
    #[inline]
    pub(crate) fn front(&self) -> Option<&RecvWqe> {
        self.wqes.front().filter(|_| self.is_open())
    }

    /// Returns the receive that the message after `skipped` others will consume. Returns `None` if
    /// it depends on more than the order.
    pub(crate) fn nth(&self, skipped: usize) -> Option<&RecvWqe> {
        self.wqes.get(skipped).filter(|_| self.gate().is_none())
    }

    /// Takes that receive. Its WQE stays in use.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<RecvWqe> {
        if self.is_open() {
            self.take_any()
        } else {
            None
        }
    }

    /// Takes the oldest receive, even if it is not released to messages.
    #[inline]
    pub(crate) fn take_any(&mut self) -> Option<RecvWqe> {
        self.wqes.pop_front()
    }

    /// Returns true if a message may consume the next receive.
    //= XCE-05
    #[inline]
    fn is_open(&self) -> bool {
        self.gate().is_none_or(|gate| gate.is_open(self.wqes.len()))
    }

    #[inline]
    fn gate(&self) -> Option<&Gate> {
        self.cross_channel.as_ref()?.gate.as_deref()
    }

    /// Returns true if cross-channel operations are enabled.
    #[inline]
    pub(crate) const fn is_managed(&self) -> bool {
        self.cross_channel.is_some()
    }

    /// Enables cross-channel operations.
    pub(crate) fn set_cross_channel(&mut self, cross_channel: CrossChannelQueue) {
        self.cross_channel = Some(Box::new(cross_channel));
    }

    /// Asserts that every WQE of the queue is counted, and no more than there may be.
    #[cfg(debug_assertions)]
    pub(crate) fn check_invariants(&self) {
        assert!(self.wqes.len() <= self.used as usize, "uncounted receives");
        let counts_wqes = self.cross_channel.is_none();
        if counts_wqes {
            assert!(self.used <= self.limits.max_wr, "{} in use", self.used);
        }
    }

    /// Drops all receives.
    pub(crate) fn reset(&mut self) {
        self.wqes = VecDeque::new();
        self.used = 0;
        if let Some(gate) = self.gate() {
            gate.reset();
        }
    }
}
