//! Operations of queue pairs as futures.

mod datagram;
mod dynamic;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{self, Poll};

use rocade_emulator::{Qp, Qpn};

use crate::completion::{Completion, CompletionQueue};
use crate::endpoint::RemoteMemory;
use crate::error::{OperationError, Result, VerbsError};
use crate::events::ObjectId;
use crate::queue_pair::{QueuePair, UnconnectedQueuePair};
use crate::request::SendRequest;
use crate::routing::Router;
use crate::shared_futures::{SharedEnd, SharedReceives};
use crate::shared_receives::SharedReceiveQueue;
use crate::slice::Slices;
use crate::slots::Slots;

/// The completion queues of a queue pair. Dropped after the queue pair itself.
pub(crate) struct Ends {
    /// Dropped first, because it hands out completions.
    shared: Option<Box<SharedEnd>>,
    owner: ObjectId,
    queues: Option<[Arc<Router>; 2]>,
}

impl Ends {
    pub(crate) fn new(owner: ObjectId, send: &CompletionQueue, recv: &CompletionQueue) -> Self {
        let queues = [send, recv].map(|cq| Arc::clone(cq.router()));
        Self {
            shared: None,
            owner,
            queues: Some(queues),
        }
    }

    /// Adds the shared receive queue from which the queue pair takes its receives.
    pub(crate) fn with_shared(
        mut self,
        qp: &Qp,
        srq: Option<&SharedReceiveQueue>,
        cq: &CompletionQueue,
    ) -> Result<Self, VerbsError> {
        let end = |srq| SharedEnd::new(qp, srq, cq).map(Box::new);
        self.shared = srq.map(end).transpose()?;
        Ok(self)
    }

    /// Returns the part in the futures of a shared receive queue.
    pub(crate) const fn owner(&self) -> ObjectId {
        self.owner
    }

    pub(crate) fn shared(&self) -> Option<&SharedEnd> {
        self.shared.as_deref()
    }

    /// The ends of a queue pair without completions.
    pub(crate) const fn none(owner: ObjectId) -> Self {
        Self {
            shared: None,
            owner,
            queues: None,
        }
    }

    /// Posts an operation with `post`, which gets its `wr_id`.
    pub(crate) fn start(
        &self,
        is_receive: bool,
        qp_num: Qpn,
        memory: Slices,
        post: impl FnOnce(u64) -> Result<(), VerbsError>,
    ) -> Operation {
        match self.try_start(is_receive, qp_num, memory, post) {
            Ok((router, wr_id)) => Operation(State::Posted {
                source: Source::Queue(router),
                wr_id,
            }),
            Err(error) => Operation(State::Refused(error)),
        }
    }

    fn try_start(
        &self,
        is_receive: bool,
        qp_num: Qpn,
        memory: Slices,
        post: impl FnOnce(u64) -> Result<(), VerbsError>,
    ) -> Result<(Arc<Router>, u64), OperationError> {
        let queues = self.queues.as_ref().ok_or(OperationError::Dropped)?;
        let router = &queues[usize::from(is_receive)];
        let limit = router.cq.capacity();
        let owner = self.owner.cookie();
        let wr_id = router.with_slots(|slots| slots.begin(owner, qp_num, memory, limit))?;
        if let Err(error) = post(wr_id) {
            let unused = router.slots(|slots| slots.cancel(wr_id));
            drop(unused);
            return Err(error.into());
        }
        Ok((Arc::clone(router), wr_id))
    }
}

impl Drop for Ends {
    fn drop(&mut self) {
        drop(self.shared.take());
        for router in self.queues.iter().flatten() {
            router.end_of(self.owner.cookie());
        }
    }
}

impl fmt::Debug for Ends {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Ends").field(&self.owner).finish()
    }
}

/// An operation of a queue pair or shared receive queue: a future of its [`Completion`].
///
/// The operation is posted when it is made, in the order of the calls. The future only waits for
/// its end, on any runtime or none. It borrows nothing, so it can be moved to another task.
///
/// # Errors
/// - [`OperationError::Verbs`] if the operation could not be posted, for example because a queue is
///   full.
/// - [`OperationError::Completion`] if it failed.
/// - [`OperationError::Dropped`] if its queue pair, shared receive queue or completion queue was
///   dropped before.
///
/// # Cancellation
/// Dropping the future does not cancel the operation, which no NIC can do. The operation completes
/// all the same, and its memory stays registered until then, also after [`std::mem::forget`]. Its
/// completion goes to no other future and no other caller.
///
/// ```
/// use std::sync::Arc;
///
/// use rocade_verbs::{AccessFlags, simulated_pair};
///
/// let (a, b) = simulated_pair(1)?;
/// let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ;
/// let (here, there) = (Arc::new(a.register(64, access)?), b.register(64, access)?);
/// there.write(0, b"from the peer")?;
/// let completion = a.simulation().block_on(a.qp.read(&here, there.remote()))??;
/// assert_eq!(completion.byte_len, 64);
/// assert_eq!(here.to_vec(..13)?, b"from the peer");
/// # Ok::<(), rocade_verbs::Error>(())
/// ```
#[must_use = "the operation runs even without a wait, but its result is lost"]
pub struct Operation(State);

enum State {
    Posted { source: Source, wr_id: u64 },
    Refused(OperationError),
    Finished,
}

/// The place of the completion.
enum Source {
    /// One completion queue.
    Queue(Arc<Router>),
    /// The completion queues of the queue pairs of a shared receive queue.
    Shared(Arc<SharedReceives>),
}

impl Source {
    fn slots<T>(&self, f: impl FnOnce(&mut Slots) -> T) -> T {
        match self {
            Self::Queue(router) => router.slots(f),
            Self::Shared(receives) => receives.slots(f),
        }
    }

    fn ensure_wake(&self) -> Result<bool, OperationError> {
        match self {
            Self::Queue(router) => router.ensure_wake(),
            Self::Shared(receives) => receives.ensure_wake(),
        }
    }
}

impl Operation {
    /// Returns the operation of a receive that was posted to a shared receive queue, or refused.
    pub(crate) fn shared(posted: Result<(Arc<SharedReceives>, u64), OperationError>) -> Self {
        Self(match posted {
            Ok((receives, wr_id)) => State::Posted {
                source: Source::Shared(receives),
                wr_id,
            },
            Err(error) => State::Refused(error),
        })
    }

    /// Returns the `wr_id`, or `None` if the operation was not posted or has ended.
    #[must_use]
    pub const fn wr_id(&self) -> Option<u64> {
        match &self.0 {
            State::Posted { wr_id, .. } => Some(*wr_id),
            State::Refused(_) | State::Finished => None,
        }
    }

    /// Keeps memory registered until the operation has completed, for operations of
    /// [`QueuePair::submit`].
    pub fn keep(self, memory: impl Into<Slices>) -> Self {
        if let State::Posted { source, wr_id } = &self.0 {
            source.slots(|slots| slots.keep(*wr_id, memory.into()));
        }
        self
    }
}

impl Future for Operation {
    type Output = Result<Completion, OperationError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let outcome = match &this.0 {
            State::Posted { source, wr_id } => match source {
                Source::Queue(router) => poll_router(router, *wr_id, cx),
                Source::Shared(receives) => receives.poll(*wr_id, cx),
            },
            State::Refused(error) => Poll::Ready(Err(error.clone())),
            State::Finished => Poll::Ready(Err(OperationError::Dropped)),
        };
        if outcome.is_ready() {
            abandon(std::mem::replace(&mut this.0, State::Finished));
        }
        outcome
    }
}

fn poll_router(
    router: &Router,
    id: u64,
    cx: &task::Context<'_>,
) -> Poll<Result<Completion, OperationError>> {
    if let Some(outcome) = router.slots(|slots| slots.outcome(id, None)) {
        return Poll::Ready(outcome);
    }
    router.try_take();
    if let Some(outcome) = router.slots(|slots| slots.outcome(id, Some(cx.waker()))) {
        return Poll::Ready(outcome);
    }
    let polls_again = router.ensure_wake()?;
    match router.slots(|slots| slots.outcome(id, None)) {
        Some(outcome) => Poll::Ready(outcome),
        None => {
            if polls_again {
                cx.waker().wake_by_ref();
            }
            Poll::Pending
        }
    }
}

/// Ends the wait for an operation. If it has not completed, its memory is released by the thread
/// that takes the completion.
fn abandon(state: State) {
    if let State::Posted { source, wr_id } = state
        && source.slots(|slots| slots.abandon(wr_id))
    {
        // Without a descriptor for the wait, the next poll of the queue releases the memory.
        let _ = source.ensure_wake();
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        abandon(std::mem::replace(&mut self.0, State::Finished));
    }
}

impl fmt::Debug for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operation")
            .field("wr_id", &self.wr_id())
            .finish_non_exhaustive()
    }
}

/// Operations as futures. Each owns its `wr_id`, from a range that is closed to programs: the upper
/// 16 bits are 0xf07e or 0xf07f. They can be mixed with [`post_send`](Self::post_send) and
/// [`post_recv`](Self::post_recv) on the same completion queue.
///
/// The number of operations in flight is limited by the depths of the queue pair and the entries of
/// the completion queue.
impl QueuePair {
    /// Posts a request, as a future. The memory that the request names is not kept: see
    /// [`Operation::keep`]. Its own `wr_id` is replaced, and it generates a completion in any case.
    pub fn submit(&self, request: &SendRequest<'_>) -> Operation {
        self.start_send(Slices::default(), |wr_id| {
            self.post_own(&request.wr_id(wr_id).signaled())
        })
    }

    fn start_send(
        &self,
        memory: Slices,
        post: impl FnOnce(u64) -> Result<(), VerbsError>,
    ) -> Operation {
        self.ends().start(false, self.qp_num(), memory, post)
    }

    fn submit_with<'m>(
        &self,
        memory: Slices,
        request: impl for<'a> FnOnce(&'a [rocade_emulator::Sge]) -> SendRequest<'a> + 'm,
    ) -> Operation {
        let kept = memory.clone();
        self.start_send(kept, |wr_id| {
            memory.with_sges(|sges| self.post_own(&request(sges).wr_id(wr_id)))
        })
    }

    /// Sends the bytes of `memory` to a receive of the peer.
    pub fn send(&self, memory: impl Into<Slices>) -> Operation {
        self.submit_with(memory.into(), |sges| SendRequest::send(sges))
    }

    /// Sends `data`, which need not be registered, up to the length of inline data
    /// ([`QueuePairBuilder::max_inline`](crate::QueuePairBuilder::max_inline)).
    pub fn send_inline(&self, data: &[u8]) -> Operation {
        self.submit(&SendRequest::send_inline(data))
    }

    /// Posts a receive. The completion has the length of the message.
    pub fn recv(&self, memory: impl Into<Slices>) -> Operation {
        recv(self.ends(), self.qp_num(), memory.into(), |wr_id, sges| {
            self.post_own_recv(wr_id, sges)
        })
    }

    /// Writes the bytes of `memory` to the peer's memory.
    pub fn write(&self, memory: impl Into<Slices>, to: RemoteMemory) -> Operation {
        self.submit_with(memory.into(), |sges| SendRequest::write(sges, to))
    }

    /// Writes `data`, which need not be registered, to the peer's memory.
    pub fn write_inline(&self, data: &[u8], to: RemoteMemory) -> Operation {
        self.submit(&SendRequest::write_inline(data, to))
    }

    /// Reads the peer's memory into `memory`.
    pub fn read(&self, memory: impl Into<Slices>, from: RemoteMemory) -> Operation {
        self.submit_with(memory.into(), |sges| SendRequest::read(sges, from))
    }

    /// Adds `add` to the 8 bytes at `at`. The old value is written to the 8 bytes of `result`.
    pub fn fetch_add(&self, result: impl Into<Slices>, at: RemoteMemory, add: u64) -> Operation {
        self.submit_with(result.into(), |sges| SendRequest::fetch_add(sges, at, add))
    }

    /// Replaces the 8 bytes at `at` by `swap` if they equal `compare`. The old value is written to
    /// the 8 bytes of `result`.
    pub fn compare_swap(
        &self,
        result: impl Into<Slices>,
        at: RemoteMemory,
        compare: u64,
        swap: u64,
    ) -> Operation {
        self.submit_with(result.into(), |sges| {
            SendRequest::compare_swap(sges, at, compare, swap)
        })
    }

    /// Waits until earlier writes to `range` are visible to every process on the peer's host.
    pub fn flush(&self, range: RemoteMemory) -> Operation {
        self.submit(&SendRequest::flush(range))
    }
}

impl UnconnectedQueuePair {
    /// Posts a receive, as a future, so that it is ready for the first message.
    pub fn recv(&self, memory: impl Into<Slices>) -> Operation {
        let qp_num = self.endpoint().qp_num;
        recv(self.ends(), qp_num, memory.into(), |wr_id, sges| {
            self.post_own_recv(wr_id, sges)
        })
    }
}

pub(crate) fn recv(
    ends: &Ends,
    qp_num: Qpn,
    memory: Slices,
    post: impl FnOnce(u64, &[rocade_emulator::Sge]) -> Result<(), VerbsError>,
) -> Operation {
    let kept = memory.clone();
    ends.start(true, qp_num, kept, |wr_id| {
        memory.with_sges(|sges| post(wr_id, sges))
    })
}
