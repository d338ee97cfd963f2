//! Cross-channel operations: queue pairs that wait for completions and release each other's
//! requests without the program.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rocade_emulator::{Qp, SendFlags, Sge};
pub use rocade_transport::{Calc, CalcOp};

use crate::completion::CompletionQueue;
use crate::datagram::AddressHandle;
use crate::dynamic::{DctAddress, DynamicInitiator, dct_destination};
use crate::error::{Result, TaskError, VerbsError};
use crate::queue_pair::{QueuePair, QueuePairBuilder};
use crate::request::SendRequest;
use crate::slots::check_wr_id;

/// A managed queue of a queue pair: it executes only the work requests that a master releases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ManagedQueue {
    /// The send queue of a queue pair that was built with [`CrossChannel::managed_send`].
    Send,
    /// The receive queue of a queue pair that was built with [`CrossChannel::managed_recv`].
    Recv,
}

/// The position of a request in a group. All counts of a group start from the same base, 0 at
/// first. The last request of a group advances the base by the greatest count of the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskGroup {
    /// More requests of the group follow.
    More,
    /// The request ends its group.
    Last,
}

/// Serializes the requests that count, and each list of tasks as a whole.
static TASKS: Mutex<()> = Mutex::new(());

fn lock_tasks() -> MutexGuard<'static, ()> {
    TASKS.lock().unwrap_or_else(PoisonError::into_inner)
}

mod sealed {
    /// Access to the emulator's queue pair, private to this crate.
    pub trait RawQp {
        fn qp(&self) -> &rocade_emulator::Qp;
    }
}

/// A queue pair that can take part in cross-channel operations: a [`QueuePair`] or a
/// [`DynamicInitiator`] that was built with [`CrossChannel`] options.
pub trait CrossQueuePair: sealed::RawQp + fmt::Debug + Sync {}

impl sealed::RawQp for QueuePair {
    fn qp(&self) -> &Qp {
        self.raw()
    }
}

impl CrossQueuePair for QueuePair {}

impl sealed::RawQp for DynamicInitiator {
    fn qp(&self) -> &Qp {
        self.raw()
    }
}

impl CrossQueuePair for DynamicInitiator {}

/// A task for [`post_tasks`].
///
/// ```
/// # use std::time::Duration;
/// # use rocade_verbs::*;
/// # let list = DeviceList::new(Config::simulated(1))?;
/// # let (a, b) = (list.open("a")?.protection_domain()?, list.open("b")?.protection_domain()?);
/// # let (a_cq, b_cq) = (a.context().completion_queue(16)?, b.context().completion_queue(16)?);
/// # let memory = b.register(8, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE)?;
/// // The sender executes the requests that the master releases.
/// let sender = CrossChannel { managed_send: true, ..CrossChannel::default() };
/// let role = CrossChannel { is_master: true, ..CrossChannel::default() };
/// let sender = a.queue_pair(&a_cq).cross_channel(sender).build()?;
/// let peer = b.queue_pair(&b_cq).build()?;
/// let (sender_end, peer_end) = (sender.endpoint(), peer.endpoint());
/// let sender = sender.connect(peer_end, &ConnectOptions::default())?;
/// let _peer = peer.connect(sender_end, &ConnectOptions::default())?;
/// let master_cq = a.context().completion_queue(16)?;
/// let master = a.queue_pair(&master_cq).cross_channel(role).build()?;
/// let own_end = master.endpoint();
/// let master = master.connect(own_end, &ConnectOptions::default())?;
///
/// let write = SendRequest::write_inline(b"released", memory.remote());
/// sender.post_send(&write)?;
/// assert_eq!(a_cq.poll(), None);
/// let release = Task::Enable {
///     master: &master,
///     of: &sender,
///     which: ManagedQueue::Send,
///     count: 1,
///     group: TaskGroup::Last,
/// };
/// post_tasks(&[release])?;
/// a_cq.wait(Duration::from_secs(1))?;
/// assert_eq!(memory.to_vec(..8)?, b"released");
/// # Ok::<(), rocade_verbs::Error>(())
/// ```
#[derive(Debug, Clone, Copy)]
#[doc(alias = "ibv_exp_task")]
pub enum Task<'a> {
    /// Posts like [`QueuePair::post_send`].
    Send(&'a QueuePair, &'a SendRequest<'a>),
    /// Posts like [`QueuePair::post_calc`].
    Calc(&'a QueuePair, &'a SendRequest<'a>, Calc),
    /// Posts like [`DynamicInitiator::post_send`].
    SendTo {
        /// The initiator that sends.
        from: &'a DynamicInitiator,
        /// The request to send.
        request: &'a SendRequest<'a>,
        /// The route to the target.
        address: &'a AddressHandle,
        /// The target.
        to: &'a DctAddress,
    },
    /// Posts like [`DynamicInitiator::post_calc`].
    CalcTo {
        /// The initiator that sends.
        from: &'a DynamicInitiator,
        /// The request whose elements are the operands.
        request: &'a SendRequest<'a>,
        /// The calculation.
        calc: Calc,
        /// The route to the target.
        address: &'a AddressHandle,
        /// The target.
        to: &'a DctAddress,
    },
    /// Posts like [`QueuePair::post_recv`].
    Recv(&'a QueuePair, u64, &'a [Sge]),
    /// Posts like [`QueuePair::post_wait`].
    Wait {
        /// The queue pair that waits.
        master: &'a dyn CrossQueuePair,
        /// The `wr_id` of the wait's completion.
        wr_id: u64,
        /// The completion queue to wait for.
        cq: &'a CompletionQueue,
        /// The number of completions to wait for, from the base of the group.
        count: u32,
        /// The position in the group of waits.
        group: TaskGroup,
    },
    /// Posts like [`QueuePair::post_enable`].
    Enable {
        /// The queue pair that releases the requests.
        master: &'a dyn CrossQueuePair,
        /// The queue pair whose requests are released.
        of: &'a dyn CrossQueuePair,
        /// The queue whose requests are released.
        which: ManagedQueue,
        /// The number of requests to release, from the base of the group. 0 releases all posted
        /// requests.
        count: u32,
        /// The position in the group of releases.
        group: TaskGroup,
    },
}

/// Posts a list of tasks to several queues, in order. Waits and releases of other threads count
/// before or after the whole list, never in between. See the example `relay`.
///
/// # Errors
/// [`TaskError`] with the index of the first task that failed. The tasks before it stay posted.
#[doc(alias = "ibv_exp_post_task")]
//= XCT-01 XCT-02 XCT-03
pub fn post_tasks(tasks: &[Task<'_>]) -> Result<(), TaskError> {
    let _tasks = lock_tasks();
    for (index, task) in tasks.iter().enumerate() {
        let posted = match *task {
            Task::Send(qp, request) => qp.post_send(request),
            Task::Calc(qp, request, calc) => push_calc(qp.raw(), request, calc),
            Task::SendTo {
                from,
                request,
                address,
                to,
            } => from.post_send(request, address, to),
            Task::CalcTo {
                from,
                request,
                calc,
                address,
                to,
            } => push_calc_to(from.raw(), request, calc, (address, to)),
            Task::Recv(qp, wr_id, sges) => qp.post_recv(wr_id, sges),
            Task::Wait {
                master,
                wr_id,
                cq,
                count,
                group,
            } => push_wait(master.qp(), wr_id, cq, count, group),
            Task::Enable {
                master,
                of,
                which,
                count,
                group,
            } => push_enable(master.qp(), of, which, count, group),
        };
        posted.map_err(|error| TaskError { index, error })?;
    }
    Ok(())
}

/// The role of a queue pair in cross-channel operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[doc(alias = "IBV_EXP_QP_CREATE_CROSS_CHANNEL")]
pub struct CrossChannel {
    /// Set if the queue pair may carry WAIT, ENABLE and compute requests.
    pub is_master: bool,
    /// Set if the send queue executes only released requests.
    pub managed_send: bool,
    /// Set if the receive queue has only released receives.
    pub managed_recv: bool,
    /// Set if the program does not poll the completions of its sends. Their places in the queue are
    /// free when they are executed.
    pub sends_untaken: bool,
    /// Set if the program does not poll the completions of its receives.
    pub receives_untaken: bool,
}

impl CrossChannel {
    pub(crate) const fn raw(self) -> rocade_emulator::CrossChannel {
        rocade_emulator::CrossChannel {
            is_master: self.is_master,
            managed_send: self.managed_send,
            managed_recv: self.managed_recv,
            sends_untaken: self.sends_untaken,
            receives_untaken: self.receives_untaken,
        }
    }
}

impl CompletionQueue {
    /// Allows requests to wait for completions of this queue.
    #[doc(alias = "IBV_EXP_CQ_CREATE_CROSS_CHANNEL")]
    pub fn allow_waits(&self) {
        self.raw().allow_waits();
    }

    /// Makes completions overwrite the oldest ones on overrun from now on. It suits a queue whose
    /// completions only wait requests consume.
    #[doc(alias = "IBV_EXP_CQ_IGNORE_OVERRUN")]
    pub fn ignore_overrun(&self) {
        self.raw().ignore_overrun();
    }
}

impl QueuePairBuilder<'_> {
    /// Enables the cross-channel operations of `how`. RC, UC and XRC initiator queue pairs
    /// support them.
    #[doc(alias = "IBV_EXP_QP_CREATE_CROSS_CHANNEL")]
    pub const fn cross_channel(mut self, how: CrossChannel) -> Self {
        self.cross_channel = Some(how);
        self
    }
}

fn push_wait(
    master: &Qp,
    wr_id: u64,
    cq: &CompletionQueue,
    count: u32,
    group: TaskGroup,
) -> Result<(), VerbsError> {
    check_wr_id(wr_id)?;
    let last = group == TaskGroup::Last;
    let flags = SendFlags::SIGNALED;
    Ok(master.post_sends(|queue| queue.push_wait((wr_id, flags), cq.raw(), count, last))?)
}

fn push_enable(
    master: &Qp,
    of: &dyn CrossQueuePair,
    which: ManagedQueue,
    count: u32,
    group: TaskGroup,
) -> Result<(), VerbsError> {
    let target = (of.qp(), which == ManagedQueue::Recv);
    let last = group == TaskGroup::Last;
    let flags = SendFlags::empty();
    Ok(master.post_sends(|queue| queue.push_enable((0, flags), target, count, last))?)
}

fn push_calc(qp: &Qp, request: &SendRequest<'_>, calc: Calc) -> Result<(), VerbsError> {
    check_wr_id(request.id())?;
    let (wr, data) = request.parts();
    Ok(qp.post_sends(|queue| queue.push_calc(&wr, None, calc, data))?)
}

fn push_calc_to(
    qp: &Qp,
    request: &SendRequest<'_>,
    calc: Calc,
    (address, to): (&AddressHandle, &DctAddress),
) -> Result<(), VerbsError> {
    let to = dct_destination(address, to, 0)?;
    check_wr_id(request.id())?;
    let (wr, data) = request.parts();
    Ok(qp.post_sends(|queue| queue.push_calc(&wr, Some(to), calc, data))?)
}

impl QueuePair {
    /// Posts a request that blocks later requests until `cq` has generated `count` completions from
    /// the base of the group, polled or not. It completes with `wr_id`.
    ///
    /// # Errors
    /// [`VerbsError`]:
    /// - This queue pair is not a master, or its send queue is full.
    /// - `cq` does not [allow waits](CompletionQueue::allow_waits).
    #[doc(alias = "IBV_EXP_WR_CQE_WAIT")]
    pub fn post_wait(
        &self,
        wr_id: u64,
        cq: &CompletionQueue,
        count: u32,
        group: TaskGroup,
    ) -> Result<(), VerbsError> {
        let _tasks = lock_tasks();
        push_wait(self.raw(), wr_id, cq, count, group)
    }

    /// Posts a request that releases work requests of a managed queue. It releases `count` requests
    /// from the base of the group, or all posted ones if `count` is 0. It generates no completion.
    ///
    /// # Errors
    /// [`VerbsError`]:
    /// - This queue pair is not a master, or its send queue is full.
    /// - The queue `which` of `of` is not managed, or holds fewer requests.
    #[doc(alias = "IBV_EXP_WR_SEND_ENABLE")]
    #[doc(alias = "IBV_EXP_WR_RECV_ENABLE")]
    pub fn post_enable(
        &self,
        of: &dyn CrossQueuePair,
        which: ManagedQueue,
        count: u32,
        group: TaskGroup,
    ) -> Result<(), VerbsError> {
        let _tasks = lock_tasks();
        push_enable(self.raw(), of, which, count, group)
    }

    /// Posts a SEND or WRITE that sends the result of a calculation, or a READ that computes on
    /// arrival.
    ///
    /// The operands are the 8-byte elements that the request names. Elements and result are
    /// big-endian. A SEND or WRITE computes when it is executed. A READ fetches as many elements as
    /// its buffers hold, and writes only the result, to the start of the buffers.
    ///
    /// # Errors
    /// [`VerbsError`]:
    /// - This queue pair is not a master, or its send queue is full.
    /// - The request is another operation, or has immediate data.
    /// - The length is 0 or not a multiple of the element size.
    #[doc(alias = "IBV_EXP_SEND_WITH_CALC")]
    pub fn post_calc(&self, request: &SendRequest<'_>, calc: Calc) -> Result<(), VerbsError> {
        let _tasks = lock_tasks();
        push_calc(self.raw(), request, calc)
    }
}

/// Cross-channel requests of an initiator that was built with
/// [`cross_channel`](crate::DynamicInitiatorBuilder::cross_channel).
impl DynamicInitiator {
    /// Posts a wait like [`QueuePair::post_wait`].
    ///
    /// # Errors
    /// As [`QueuePair::post_wait`].
    #[doc(alias = "IBV_EXP_WR_CQE_WAIT")]
    //= XCH-02
    pub fn post_wait(
        &self,
        wr_id: u64,
        cq: &CompletionQueue,
        count: u32,
        group: TaskGroup,
    ) -> Result<(), VerbsError> {
        let _tasks = lock_tasks();
        push_wait(self.raw(), wr_id, cq, count, group)
    }

    /// Posts a release like [`QueuePair::post_enable`].
    ///
    /// # Errors
    /// As [`QueuePair::post_enable`].
    #[doc(alias = "IBV_EXP_WR_SEND_ENABLE")]
    #[doc(alias = "IBV_EXP_WR_RECV_ENABLE")]
    //= XCE-01
    pub fn post_enable(
        &self,
        of: &dyn CrossQueuePair,
        which: ManagedQueue,
        count: u32,
        group: TaskGroup,
    ) -> Result<(), VerbsError> {
        let _tasks = lock_tasks();
        push_enable(self.raw(), of, which, count, group)
    }

    /// Posts a calculation like [`QueuePair::post_calc`], to a target.
    ///
    /// # Errors
    /// As [`QueuePair::post_calc`] and [`post_send`](Self::post_send).
    #[doc(alias = "IBV_EXP_SEND_WITH_CALC")]
    //= XCC-01
    pub fn post_calc(
        &self,
        request: &SendRequest<'_>,
        calc: Calc,
        address: &AddressHandle,
        to: &DctAddress,
    ) -> Result<(), VerbsError> {
        let _tasks = lock_tasks();
        push_calc_to(self.raw(), request, calc, (address, to))
    }
}
