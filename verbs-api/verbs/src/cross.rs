//! Queue pairs that wait for each other without the program (cross-channel).

use rocade_emulator::SendFlags;
pub use rocade_emulator::{Calc, CalcOp, CrossChannel};

use crate::completion::CompletionQueue;
use crate::error::Result;
use crate::queue_pair::{QueuePair, QueuePairBuilder};
use crate::request::SendRequest;

/// A queue of a queue pair that executes only what is released to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ManagedQueue {
    /// The send queue of one built with [`CrossChannel::managed_send`].
    Send,
    /// The receive queue of one built with [`CrossChannel::managed_recv`].
    Recv,
}

/// Which of a group of counts: they go from a base, 0 at first, that the last one of a group moves by the greatest of
/// the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InGroup {
    /// Others of the group follow.
    More,
    /// The next counts start behind this group.
    Last,
}

impl CompletionQueue {
    /// Lets requests wait for its completions.
    #[doc(alias = "IBV_EXP_CQ_CREATE_CROSS_CHANNEL")]
    pub fn allow_waits(&self) {
        self.raw().allow_waits();
    }

    /// From now on a completion that finds no room takes that of the oldest: for a queue that only waits consume.
    #[doc(alias = "IBV_EXP_CQ_IGNORE_OVERRUN")]
    pub fn ignore_overrun(&self) {
        self.raw().ignore_overrun();
    }
}

impl QueuePairBuilder<'_> {
    /// Makes it one that takes part in cross-channel operations, as `how` says. RC, UC and XRC initiators can.
    #[doc(alias = "IBV_EXP_QP_CREATE_CROSS_CHANNEL")]
    pub const fn cross_channel(mut self, how: CrossChannel) -> Self {
        self.cross = Some(how);
        self
    }
}

impl QueuePair {
    /// Posts a request that holds up what is posted later until `cq` has had `count` completions, polled or not. It
    /// completes with `wr_id`.
    ///
    /// # Errors
    /// [`Error::Verbs`](crate::Error::Verbs) unless this is a master, `cq` [allows it](CompletionQueue::allow_waits), and
    /// the send queue has room.
    #[doc(alias = "IBV_EXP_WR_CQE_WAIT")]
    pub fn post_wait(
        &self,
        wr_id: u64,
        cq: &CompletionQueue,
        count: u32,
        group: InGroup,
    ) -> Result<()> {
        let last = group == InGroup::Last;
        let mut queue = self.raw().send_queue();
        Ok(queue.push_wait((wr_id, SendFlags::SIGNALED), cq.raw(), count, last)?)
    }

    /// Posts a request that releases work requests of another queue, `count` of them, or for 0 all that are there now. It
    /// has no completion.
    ///
    /// # Errors
    /// [`Error::Verbs`](crate::Error::Verbs) unless this is a master, the queue is managed and has so many, and the send
    /// queue has room.
    #[doc(alias = "IBV_EXP_WR_SEND_ENABLE")]
    #[doc(alias = "IBV_EXP_WR_RECV_ENABLE")]
    pub fn post_enable(
        &self,
        of: &Self,
        which: ManagedQueue,
        count: u32,
        group: InGroup,
    ) -> Result<()> {
        let target = (of.raw(), which == ManagedQueue::Recv);
        let last = group == InGroup::Last;
        let mut queue = self.raw().send_queue();
        Ok(queue.push_enable((0, SendFlags::empty()), target, count, last)?)
    }

    /// Posts a SEND or WRITE of what is computed, when its turn comes, of the elements that it names: 8 bytes each,
    /// big-endian, as is the result. Or a READ of as many elements as its buffers have room for, which writes what is computed of them to
    /// their beginning, and nothing else.
    ///
    /// # Errors
    /// [`Error::Verbs`](crate::Error::Verbs) unless this is a master, the request is one of these without immediate data,
    /// and its elements are whole.
    #[doc(alias = "IBV_EXP_SEND_WITH_CALC")]
    pub fn post_calc(&self, request: &SendRequest<'_>, calc: Calc) -> Result<()> {
        let (wr, data) = request.parts();
        Ok(self.raw().send_queue().push_calc(&wr, None, calc, data)?)
    }
}
