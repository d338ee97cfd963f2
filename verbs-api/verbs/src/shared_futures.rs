//! Futures of the receives of a shared receive queue.
//!
//! The completion of such a receive arrives in the completion queue of the queue pair that has
//! taken it, so a future watches the queues of all queue pairs.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::task::{self, Poll, Waker};

use rocade_emulator::{Qp, QpAttr, QpAttrMask, QpState, Qpn};

use crate::completion::{Completion, CompletionQueue};
use crate::error::{OperationError, Result, VerbsError};
use crate::operation::Operation;
use crate::routing::{Router, lock};
use crate::shared_receives::SharedReceiveQueue;
use crate::slice::Slices;
use crate::slots::{Slots, new_tag};

/// The number of receives in flight, which the depth of the queue limits further.
const LIMIT: u32 = 1 << 24;

/// The receives of a shared receive queue that futures wait for.
pub(crate) struct SharedReceives {
    tag: u64,
    state: Mutex<State>,
    /// The completion queues of the queue pairs.
    queues: Mutex<Vec<Weak<Router>>>,
}

struct State {
    slots: Slots,
    is_closed: bool,
}

impl SharedReceives {
    pub(crate) fn new() -> Arc<Self> {
        let tag = new_tag();
        Arc::new(Self {
            tag,
            state: Mutex::new(State {
                slots: Slots::tagged(tag),
                is_closed: false,
            }),
            queues: Mutex::default(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    pub(crate) const fn tag(&self) -> u64 {
        self.tag
    }

    /// Returns true if a receive of a future has not completed.
    pub(crate) fn is_awaited(&self) -> bool {
        self.state().slots.in_flight() > 0
    }

    /// Watches the completion queue of a queue pair that takes its receives from here.
    pub(crate) fn attach(self: &Arc<Self>, cq: &CompletionQueue) -> Result<(), VerbsError> {
        let router = cq.router();
        router.add_shared(self);
        let mut queues = lock(&self.queues);
        queues.retain(|known| known.strong_count() > 0);
        let new = Arc::downgrade(router);
        if !queues.iter().any(|known| known.ptr_eq(&new)) {
            queues.push(new);
        }
        drop(queues);
        // Futures that wait already have not seen this queue.
        if self.is_awaited() {
            router.note_futures();
            router.go_on()?;
        }
        Ok(())
    }

    fn queues(&self) -> Vec<Arc<Router>> {
        let queues = lock(&self.queues).clone();
        queues.iter().filter_map(Weak::upgrade).collect()
    }

    /// Posts a receive with `post`, which gets its `wr_id`. Returns the `wr_id`.
    fn begin(
        &self,
        memory: Slices,
        post: impl FnOnce(u64) -> Result<(), VerbsError>,
    ) -> Result<u64, OperationError> {
        let mut state = self.state();
        if state.is_closed {
            return Err(OperationError::Dropped);
        }
        let wr_id = state.slots.begin(0, Qpn::new(0), memory, LIMIT)?;
        drop(state);
        for queue in self.queues() {
            queue.note_futures();
        }
        if let Err(error) = post(wr_id) {
            let unused = self.slots(|slots| slots.cancel(wr_id));
            drop(unused);
            return Err(error.into());
        }
        Ok(wr_id)
    }

    /// Runs `f` on the slots.
    pub(crate) fn slots<T>(&self, f: impl FnOnce(&mut Slots) -> T) -> T {
        f(&mut self.state().slots)
    }

    /// Ends the receive of the completion. Returns the task to wake, and the memory.
    pub(crate) fn complete(&self, completion: Completion) -> (Option<Waker>, Slices) {
        self.slots(|slots| slots.complete(completion))
    }

    /// Makes sure that completions are delivered. Returns true if the caller has to poll again
    /// itself.
    pub(crate) fn ensure_wake(&self) -> Result<bool, OperationError> {
        let mut polls_again = false;
        for queue in self.queues() {
            polls_again |= queue.ensure_wake()?;
        }
        Ok(polls_again)
    }

    pub(crate) fn poll(
        &self,
        id: u64,
        cx: &task::Context<'_>,
    ) -> Poll<Result<Completion, OperationError>> {
        if let Some(outcome) = self.slots(|slots| slots.outcome(id, None)) {
            return Poll::Ready(outcome);
        }
        for queue in self.queues() {
            queue.try_take();
        }
        if let Some(outcome) = self.slots(|slots| slots.outcome(id, Some(cx.waker()))) {
            return Poll::Ready(outcome);
        }
        let polls_again = self.ensure_wake()?;
        if let Some(outcome) = self.slots(|slots| slots.outcome(id, None)) {
            return Poll::Ready(outcome);
        }
        if polls_again {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }

    /// Ends all waits, because the program has dropped the queue. The memory stays until the
    /// completions.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.is_closed = true;
        let woken = state.slots.fail_all();
        drop(state);
        woken.into_iter().for_each(Waker::wake);
    }
}

impl fmt::Debug for SharedReceives {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedReceives").finish_non_exhaustive()
    }
}

/// The part of a queue pair in the futures of its shared receive queue.
pub(crate) struct SharedEnd {
    qp: Qp,
    receives: Arc<SharedReceives>,
    queue: Arc<Router>,
}

impl SharedEnd {
    pub(crate) fn new(
        qp: &Qp,
        srq: &SharedReceiveQueue,
        cq: &CompletionQueue,
    ) -> Result<Self, VerbsError> {
        let receives = Arc::clone(srq.receives());
        receives.attach(cq)?;
        Ok(Self {
            qp: qp.clone(),
            receives,
            queue: Arc::clone(cq.router()),
        })
    }

    /// Returns true if a receive that the queue pair may have taken has a future.
    pub(crate) fn is_awaited(&self) -> bool {
        self.receives.is_awaited()
    }

    /// Hands out the receives that the queue pair has taken, before it ends: those of complete
    /// messages, and that of a message in progress, which is flushed. Other completions of the
    /// queue pair end with it, as always.
    pub(crate) fn settle(&self) {
        if !self.is_awaited() {
            return;
        }
        let attr = QpAttr {
            qp_state: QpState::Err.code(),
            ..QpAttr::default()
        };
        // It fails only if the queue pair has ended already.
        let _ = self.qp.modify(&attr, QpAttrMask::STATE);
        self.queue.take(false);
        self.queue.forget(self.qp.qp_num());
    }
}

impl Drop for SharedEnd {
    fn drop(&mut self) {
        self.settle();
    }
}

impl SharedReceiveQueue {
    /// Posts a receive, as a future, which the next message to any queue pair of the queue
    /// consumes. The completion has the queue pair and the length of the message.
    ///
    /// It arrives in the completion queue of that queue pair, and goes to this future even if the
    /// program polls the queue. See [`Operation`] for ownership and cancellation: a dropped future
    /// leaves its receive in the queue, which takes a message all the same.
    ///
    /// ```
    /// use rocade_verbs::{AccessFlags, Config, ConnectOptions, DeviceList, QueuePair};
    ///
    /// let list = DeviceList::new(Config::simulated(1))?;
    /// let (a, b) = (list.open("a")?.protection_domain()?, list.open("b")?.protection_domain()?);
    /// let (a_cq, b_cq) = (a.context().completion_queue(16)?, b.context().completion_queue(16)?);
    /// let receives = b.shared_receive_queue(16, 1)?;
    /// let to = b.queue_pair(&b_cq).shared_receives(&receives).build()?;
    /// let from = a.queue_pair(&a_cq).build()?;
    /// let (from, to) = QueuePair::connect_pair(from, to, &ConnectOptions::default())?;
    ///
    /// let received = receives.recv(b.register(64, AccessFlags::LOCAL_WRITE)?);
    /// list.simulation()?.block_on(async {
    ///     from.send_inline(b"hello").await?;
    ///     let message = received.await?;
    ///     assert_eq!((message.qp_num, message.byte_len), (to.qp_num(), 5));
    ///     Ok::<(), rocade_verbs::Error>(())
    /// })??;
    /// # Ok::<(), rocade_verbs::Error>(())
    /// ```
    pub fn recv(&self, memory: impl Into<Slices>) -> Operation {
        let (memory, receives) = (memory.into(), self.receives());
        let posted = receives.begin(memory.clone(), |wr_id| {
            memory.with_sges(|sges| self.post_own(wr_id, sges))
        });
        Operation::shared(posted.map(|wr_id| (Arc::clone(receives), wr_id)))
    }
}
