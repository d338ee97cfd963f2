//! Queue pairs that wait for each other without the program (cross-channel).

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

pub use rocade_emulator::{Calc, CalcOp, CrossChannel};
use rocade_emulator::{Qp, SendFlags, Sge};

use crate::completion::CompletionQueue;
use crate::datagram::AddressHandle;
use crate::dynamic::{DynamicEnd, DynamicInitiator, towards};
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

/// Counts are taken one after another: those of a list as a whole.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

mod sealed {
    /// What is behind a queue pair, which is nobody else's business.
    pub trait Behind {
        fn qp(&self) -> &rocade_emulator::Qp;
    }
}

/// What may wait for completions, release and be released: a [`QueuePair`] or a [`DynamicInitiator`] that was built to
/// take part.
pub trait CrossQueuePair: sealed::Behind + fmt::Debug + Sync {}

impl sealed::Behind for QueuePair {
    fn qp(&self) -> &Qp {
        self.raw()
    }
}

impl CrossQueuePair for QueuePair {}

impl sealed::Behind for DynamicInitiator {
    fn qp(&self) -> &Qp {
        self.raw()
    }
}

impl CrossQueuePair for DynamicInitiator {}

/// One of a list for [`post_tasks`].
///
/// ```
/// # use std::time::Duration;
/// # use rocade_verbs::*;
/// # let list = DeviceList::new(Config::simulated(1))?;
/// # let (a, b) = (list.open("a")?.protection_domain()?, list.open("b")?.protection_domain()?);
/// # let (a_cq, b_cq) = (a.context().completion_queue(16)?, b.context().completion_queue(16)?);
/// # let memory = b.register(8, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE)?;
/// // The sender executes what the master releases to it.
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
///     group: InGroup::Last,
/// };
/// post_tasks(&[release]).map_err(|(_, error)| error)?;
/// a_cq.wait(Duration::from_secs(1))?;
/// assert_eq!(memory.to_vec(0, 8)?, b"released");
/// # Ok::<(), rocade_verbs::Error>(())
/// ```
#[derive(Debug, Clone, Copy)]
#[doc(alias = "ibv_exp_task")]
pub enum Task<'a> {
    /// As [`QueuePair::post_send`].
    Send(&'a QueuePair, &'a SendRequest<'a>),
    /// As [`QueuePair::post_calc`].
    Calc(&'a QueuePair, &'a SendRequest<'a>, Calc),
    /// As [`DynamicInitiator::post_send`].
    SendTo {
        /// Who sends.
        from: &'a DynamicInitiator,
        /// What.
        request: &'a SendRequest<'a>,
        /// The way to the target.
        address: &'a AddressHandle,
        /// The target.
        to: &'a DynamicEnd,
    },
    /// As [`DynamicInitiator::post_calc`].
    CalcTo {
        /// Who sends.
        from: &'a DynamicInitiator,
        /// What of.
        request: &'a SendRequest<'a>,
        /// What is computed.
        calc: Calc,
        /// The way to the target.
        address: &'a AddressHandle,
        /// The target.
        to: &'a DynamicEnd,
    },
    /// As [`QueuePair::post_recv`].
    Recv(&'a QueuePair, u64, &'a [Sge]),
    /// As [`QueuePair::post_wait`], by this master.
    Wait {
        /// Who waits.
        master: &'a dyn CrossQueuePair,
        /// Of its completion.
        wr_id: u64,
        /// What it waits for.
        cq: &'a CompletionQueue,
        /// So many completions of it.
        count: u32,
        /// Whether the group of counts goes on.
        group: InGroup,
    },
    /// As [`QueuePair::post_enable`], by this master.
    Enable {
        /// Who releases.
        master: &'a dyn CrossQueuePair,
        /// Whose requests.
        of: &'a dyn CrossQueuePair,
        /// Which of them.
        which: ManagedQueue,
        /// So many, or 0 for all that are there.
        count: u32,
        /// Whether the group of counts goes on.
        group: InGroup,
    },
}

/// Posts a list of tasks to several queues, in order. What other threads wait for and release by such lists, or by the posts that
/// count, is counted before or after the whole of it. Example: `relay`.
///
/// # Errors
/// Which task failed, the first being 0, and why. Those before it stay posted.
#[doc(alias = "ibv_exp_post_task")]
//= XCT-01 XCT-02 XCT-03
pub fn post_tasks(tasks: &[Task<'_>]) -> std::result::Result<(), (usize, crate::Error)> {
    let _turn = turn();
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
        posted.map_err(|error| (index, error))?;
    }
    Ok(())
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

fn push_wait(
    master: &Qp,
    wr_id: u64,
    cq: &CompletionQueue,
    count: u32,
    group: InGroup,
) -> Result<()> {
    let last = group == InGroup::Last;
    let mut queue = master.send_queue();
    Ok(queue.push_wait((wr_id, SendFlags::SIGNALED), cq.raw(), count, last)?)
}

fn push_enable(
    master: &Qp,
    of: &dyn CrossQueuePair,
    which: ManagedQueue,
    count: u32,
    group: InGroup,
) -> Result<()> {
    let target = (of.qp(), which == ManagedQueue::Recv);
    let last = group == InGroup::Last;
    let mut queue = master.send_queue();
    Ok(queue.push_enable((0, SendFlags::empty()), target, count, last)?)
}

fn push_calc(qp: &Qp, request: &SendRequest<'_>, calc: Calc) -> Result<()> {
    let (wr, data) = request.parts();
    Ok(qp.send_queue().push_calc(&wr, None, calc, data)?)
}

fn push_calc_to(
    qp: &Qp,
    request: &SendRequest<'_>,
    calc: Calc,
    (address, to): (&AddressHandle, &DynamicEnd),
) -> Result<()> {
    let to = towards(address, to, 0)?;
    let (wr, data) = request.parts();
    Ok(qp.send_queue().push_calc(&wr, Some(to), calc, data)?)
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
        let _turn = turn();
        push_wait(self.raw(), wr_id, cq, count, group)
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
        of: &dyn CrossQueuePair,
        which: ManagedQueue,
        count: u32,
        group: InGroup,
    ) -> Result<()> {
        let _turn = turn();
        push_enable(self.raw(), of, which, count, group)
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
        let _turn = turn();
        push_calc(self.raw(), request, calc)
    }
}

/// The same of an initiator that was built with
/// [`cross_channel`](crate::DynamicInitiatorBuilder::cross_channel).
impl DynamicInitiator {
    /// As [`QueuePair::post_wait`].
    ///
    /// # Errors
    /// As there.
    #[doc(alias = "IBV_EXP_WR_CQE_WAIT")]
    //= XCH-02
    pub fn post_wait(
        &self,
        wr_id: u64,
        cq: &CompletionQueue,
        count: u32,
        group: InGroup,
    ) -> Result<()> {
        let _turn = turn();
        push_wait(self.raw(), wr_id, cq, count, group)
    }

    /// As [`QueuePair::post_enable`].
    ///
    /// # Errors
    /// As there.
    #[doc(alias = "IBV_EXP_WR_SEND_ENABLE")]
    #[doc(alias = "IBV_EXP_WR_RECV_ENABLE")]
    //= XCE-01
    pub fn post_enable(
        &self,
        of: &dyn CrossQueuePair,
        which: ManagedQueue,
        count: u32,
        group: InGroup,
    ) -> Result<()> {
        let _turn = turn();
        push_enable(self.raw(), of, which, count, group)
    }

    /// As [`QueuePair::post_calc`], for a target.
    ///
    /// # Errors
    /// As there, and as [`post_send`](Self::post_send).
    #[doc(alias = "IBV_EXP_SEND_WITH_CALC")]
    //= XCC-01
    pub fn post_calc(
        &self,
        request: &SendRequest<'_>,
        calc: Calc,
        address: &AddressHandle,
        to: &DynamicEnd,
    ) -> Result<()> {
        let _turn = turn();
        push_calc_to(self.raw(), request, calc, (address, to))
    }
}
