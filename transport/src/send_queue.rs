//! Send queues of all services: their WQEs, and the account of those that are in use.

use alloc::collections::VecDeque;

use crate::completion::{CompleteTo, Completion, WcOpcode, WcStatus};
use crate::cross_channel::CrossChannelQueue;
use crate::cx::Cx;
use crate::error::PostError;
use crate::queue::SendLimits;
use crate::wr::{SendFlags, SendWr};

/// The account of the WQEs of a send queue.
#[derive(Debug)]
pub(crate) struct SendAccount {
    pub(crate) limits: SendLimits,
    /// WQEs in use: those that are queued, and those whose completion the application has not
    /// polled.
    used: u32,
    /// Work requests completed without a completion since the last one.
    pub(crate) unsignaled_done: u32,
}

impl SendAccount {
    pub(crate) const fn new(limits: SendLimits) -> Self {
        Self {
            limits,
            used: 0,
            unsignaled_done: 0,
        }
    }

    /// Returns true if all WQEs are in use.
    pub(crate) const fn is_full(&self) -> bool {
        self.used >= self.limits.max_wr
    }

    /// Returns the number of WQEs in use, of which `queued` are incomplete, for the check of a
    /// post. A managed queue may count the incomplete ones only.
    //= XCH-06
    #[inline]
    pub(crate) fn used(&self, queued: usize, cross_channel: Option<&CrossChannelQueue>) -> u32 {
        match cross_channel {
            Some(cross_channel) if !cross_channel.counts_wqes => {
                u32::try_from(queued).unwrap_or(u32::MAX)
            }
            _ => self.used,
        }
    }

    /// Counts a work request that is queued.
    pub(crate) const fn note_posted(&mut self) {
        self.used += 1;
    }

    /// Undoes `count` posts.
    pub(crate) const fn note_unposted(&mut self, count: u32) {
        self.used -= count;
    }

    /// Undoes the posting of the newest work request, which was flushed when it was posted, and its
    /// completion.
    pub(crate) const fn unflush(&mut self, freed_wqes: u32) {
        self.used -= 1;
        self.unsignaled_done = freed_wqes - 1;
    }

    /// Frees WQEs whose completions the application has polled.
    pub(crate) const fn free_wqes(&mut self, freed_wqes: u32) {
        self.used = self.used.saturating_sub(freed_wqes);
    }

    /// Completes a work request with success, without a completion if none is requested.
    //= RC-WQE-02
    #[inline(always)]
    pub(crate) fn complete<H>(
        &mut self,
        cx: &mut Cx<'_, H>,
        flags: SendFlags,
        of: (u64, WcOpcode),
        byte_len: u32,
    ) {
        if self.limits.sig_all || flags.contains(SendFlags::SIGNALED) {
            self.report(cx, of, WcStatus::Success, byte_len);
        } else {
            self.unsignaled_done += 1;
        }
    }

    /// Reports the completion of a work request, which also frees the WQEs before it that had none.
    #[inline]
    pub(crate) fn report<H>(
        &mut self,
        cx: &mut Cx<'_, H>,
        (wr_id, opcode): (u64, WcOpcode),
        status: WcStatus,
        byte_len: u32,
    ) {
        let freed_wqes = self.unsignaled_done + 1;
        self.unsignaled_done = 0;
        let completion = Completion {
            byte_len,
            freed_wqes,
            ..cx.completion(CompleteTo::SendCq, wr_id, status, opcode)
        };
        cx.out.completions.push_back(completion);
    }

    /// Asserts that the `queued` WQEs are counted.
    #[cfg(debug_assertions)]
    pub(crate) fn check(&self, queued: usize) {
        let used = self.used as usize;
        assert!(queued <= used, "{queued} are queued, and {used} in use");
        assert!(self.used <= self.limits.max_wr, "{used} are in use");
        assert!(
            self.unsignaled_done as usize <= used - queued,
            "they are in use until their completion is polled: {self:?}"
        );
    }
}

/// A send queue with WQEs of type `W`, the oldest first.
#[derive(Debug)]
pub(crate) struct SendQueue<W> {
    pub(crate) account: SendAccount,
    pub(crate) wqes: VecDeque<W>,
}

impl<W> SendQueue<W> {
    pub(crate) const fn new(limits: SendLimits) -> Self {
        Self {
            account: SendAccount::new(limits),
            wqes: VecDeque::new(),
        }
    }

    /// Checks whether a work request can be queued, and returns its length in bytes.
    #[inline]
    pub(crate) fn admit(
        &self,
        wr: &SendWr<'_>,
        inline: Option<&[u8]>,
        cross_channel: Option<&CrossChannelQueue>,
    ) -> Result<u64, PostError> {
        let used = self.account.used(self.wqes.len(), cross_channel);
        self.account.limits.admit(wr, inline, used)
    }

    /// Queues a WQE.
    #[inline(always)]
    pub(crate) fn push(&mut self, wqe: W) {
        self.account.note_posted();
        self.wqes.push_back(wqe);
    }

    /// Removes the newest `count` WQEs, but none of the first `started`. Returns how many.
    pub(crate) fn unpost(&mut self, count: usize, started: usize) -> u32 {
        let keep = self.wqes.len().saturating_sub(count).max(started);
        let gone = u32::try_from(self.wqes.len() - keep).unwrap_or(self.account.used);
        self.account.note_unposted(gone);
        self.wqes.truncate(keep);
        gone
    }
}
