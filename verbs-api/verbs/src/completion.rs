//! Completion queues.

use std::fmt;
use std::future::Future;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{self, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use rocade_emulator::{
    CompleteTo, Completion as RawCompletion, Cq, CqInitAttr, ImmOrInv, Qpn, Rkey, Stopwatch,
    VerbsError as RawError, WcFlags, WcOpcode,
};

use crate::device::Context;
use crate::error::{CompletionError, OperationError, Result, VerbsError, WaitError};
use crate::events::ObjectId;
use crate::routing::Router;
use crate::status::WcStatus;
use crate::sys;

/// The time that [`CompletionQueue::wait`] polls before it sleeps. It is longer than a round trip
/// between two polling processes, and short compared to the CPU time that sleeping saves.
const SPIN: Duration = Duration::from_micros(50);

/// A completion queue.
///
/// Polling drives the device, so a program that polls needs no other thread. A background thread of
/// the device takes over while the program does not poll.
///
/// ```
/// # use std::time::Duration;
/// # use rocade_verbs::*;
/// # let list = DeviceList::new(Config::simulated(1))?;
/// # let (a, b) = (list.open("a")?.protection_domain()?, list.open("b")?.protection_domain()?);
/// # let (a_cq, b_cq) = (a.context().completion_queue(16)?, b.context().completion_queue(16)?);
/// # let (a_qp, b_qp) = (a.queue_pair(&a_cq).build()?, b.queue_pair(&b_cq).build()?);
/// # let (a_end, b_end) = (a_qp.endpoint(), b_qp.endpoint());
/// # let a_qp = a_qp.connect(b_end, &ConnectOptions::default())?;
/// # let b_qp = b_qp.connect(a_end, &ConnectOptions::default())?;
/// # let memory = b.register(64, AccessFlags::REMOTE_WRITE | AccessFlags::LOCAL_WRITE)?;
///
/// assert_eq!(a_cq.poll(), None);
/// a_qp.post_send(&SendRequest::write_inline(b"one", memory.remote()).wr_id(1))?;
/// a_qp.post_send(&SendRequest::write_inline(b"two", memory.remote()).wr_id(2))?;
/// let both = a_cq.wait_for(2, Duration::from_secs(1))?;
/// assert_eq!((both[0].wr_id, both[1].wr_id), (1, 2));
/// # Ok::<(), rocade_verbs::Error>(())
/// ```
#[doc(alias = "ibv_cq")]
pub struct CompletionQueue {
    router: Arc<Router>,
    id: ObjectId,
}

impl CompletionQueue {
    pub(crate) fn new(
        context: &Context,
        entries: u32,
        ignores_overrun: bool,
    ) -> Result<Self, VerbsError> {
        let channel = context.raw().create_comp_channel()?;
        // SAFETY: the descriptor belongs to the channel, which outlives this borrow.
        sys::set_nonblocking(unsafe { sys::borrow(channel.fd()) }).map_err(VerbsError::io)?;
        let id = ObjectId::next();
        let cq = context.raw().create_cq_with(CqInitAttr {
            cqe: entries,
            channel: Some(&channel),
            vector: 0,
            cookie: id.cookie(),
            ignores_overrun,
        })?;
        let router = Router::new(cq, channel, context.simulator());
        Ok(Self { router, id })
    }

    pub(crate) const fn router(&self) -> &Arc<Router> {
        &self.router
    }

    pub(crate) fn raw(&self) -> &Cq {
        &self.router.cq
    }

    /// Returns its identifier in [events](crate::Context::poll_event).
    #[must_use]
    pub const fn id(&self) -> ObjectId {
        self.id
    }

    /// Takes the next completion, whatever its status. Returns `None` if the queue is empty.
    #[doc(alias = "ibv_poll_cq")]
    #[doc(alias = "ibv_start_poll")]
    #[doc(alias = "ibv_next_poll")]
    #[doc(alias = "ibv_end_poll")]
    pub fn poll(&self) -> Option<Completion> {
        self.router.poll()
    }

    /// Takes up to `max` completions at once and appends them to `out`, whatever their status.
    /// Returns their number. An empty queue drives the device, as [`poll`](Self::poll) does.
    #[doc(alias = "ibv_poll_cq")]
    pub fn poll_into(&self, out: &mut Vec<Completion>, max: usize) -> usize {
        self.router.poll_into(out, max)
    }

    /// Returns an iterator that takes completions until the queue is empty, whatever their status.
    pub fn drain(&self) -> impl Iterator<Item = Completion> + '_ {
        std::iter::from_fn(|| self.poll())
    }

    /// Takes the next completion. Waits up to `timeout` for it: polls at first, then sleeps.
    ///
    /// # Errors
    /// - [`WaitError::Completion`] with the completion if the work request failed.
    /// - [`WaitError::TimedOut`] if nothing completed in time.
    /// - [`WaitError::Verbs`] if nothing can complete, because the device was removed.
    pub fn wait(&self, timeout: Duration) -> Result<Completion, WaitError> {
        if self.router.cq.simulated_time().is_some() {
            return self.wait_in_simulation(timeout);
        }
        let start = Stopwatch::start();
        let spin = SPIN.min(timeout);
        loop {
            if let Some(completion) = self.poll() {
                return Ok(completion.into_result()?);
            }
            if start.elapsed() >= spin {
                break;
            }
            std::hint::spin_loop();
        }
        self.router.begin_sleep();
        let outcome = self.wait_asleep(start, timeout);
        self.router.end_sleep();
        // Futures that were made meanwhile wait for the events that this thread has taken.
        self.router.go_on()?;
        match outcome? {
            Some(completion) => Ok(completion.into_result()?),
            None => self.wait_as_task(start, timeout),
        }
    }

    /// Sleeps until the channel has an event. Returns `None` if a future was made meanwhile.
    fn wait_asleep(
        &self,
        start: Stopwatch,
        timeout: Duration,
    ) -> Result<Option<Completion>, WaitError> {
        while !self.router.has_futures() {
            self.router.cq.arm(false)?;
            // A completion from before the queue was armed causes no event.
            if let Some(completion) = self.poll() {
                return Ok(Some(completion));
            }
            let Some(left) = timeout.checked_sub(start.elapsed()) else {
                return Err(WaitError::TimedOut);
            };
            let channel = &self.router.channel;
            channel.wait_readable(left).map_err(RawError::Io)?;
            while channel.try_event().is_some() {
                self.router.note_event();
            }
            channel.check_present()?;
        }
        Ok(None)
    }

    /// Waits as a task does, because futures share the events of the channel.
    fn wait_as_task(&self, start: Stopwatch, timeout: Duration) -> Result<Completion, WaitError> {
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let mut cx = task::Context::from_waker(&waker);
        let mut next = self.next();
        loop {
            if let Poll::Ready(outcome) = Pin::new(&mut next).poll(&mut cx) {
                return outcome.map_err(|error| match error {
                    OperationError::Verbs(error) => WaitError::Verbs(error),
                    OperationError::Completion(completion) => WaitError::Completion(completion),
                    // Nothing will complete in a network that does not exist any more.
                    OperationError::Dropped => WaitError::TimedOut,
                });
            }
            let Some(left) = timeout.checked_sub(start.elapsed()) else {
                return Err(WaitError::TimedOut);
            };
            thread::park_timeout(left);
        }
    }

    /// Implements [`wait`](Self::wait) in virtual time, which advances with each packet or timer
    /// that [`poll`](Self::poll) processes.
    fn wait_in_simulation(&self, timeout: Duration) -> Result<Completion, WaitError> {
        let cq = &self.router.cq;
        let timeout_ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        let mut end = None;
        while let Some((now, next)) = cq.simulated_time() {
            let end = *end.get_or_insert_with(|| now.plus_ns(timeout_ns));
            if !self.router.has_completion() && next.is_none_or(|next| next > end) {
                self.router.channel.check_present()?;
                cq.move_simulated_time(end);
                return Err(WaitError::TimedOut);
            }
            if let Some(completion) = self.poll() {
                return Ok(completion.into_result()?);
            }
            self.router.channel.check_present()?;
        }
        Err(WaitError::TimedOut)
    }

    /// Takes `count` completions. Waits up to `timeout` for each.
    ///
    /// # Errors
    /// As [`wait`](Self::wait). The completions before the failed one stay in the queue, in their
    /// order, and the next calls return them.
    pub fn wait_for(&self, count: usize, timeout: Duration) -> Result<Vec<Completion>, WaitError> {
        let mut taken = Vec::with_capacity(count);
        while taken.len() < count {
            match self.wait(timeout) {
                Ok(completion) => taken.push(completion),
                Err(error) => {
                    self.router.put_back(taken);
                    return Err(error);
                }
            }
        }
        Ok(taken)
    }

    /// Requests an event for the next completion: the descriptor ([`AsFd`]) becomes readable.
    ///
    /// Call [`poll`](Self::poll) once more before waiting for the descriptor, and
    /// [`drain_events`](Self::drain_events) after it. Packets make the descriptor readable too, and
    /// `drain_events` processes them.
    ///
    /// # Errors
    /// [`VerbsError`] if the queue has no completion channel, but every one has.
    #[doc(alias = "ibv_req_notify_cq")]
    pub fn arm(&self) -> Result<(), VerbsError> {
        Ok(self.router.cq.req_notify(false)?)
    }

    /// Requests an event for the next solicited receive completion, or the next failed work
    /// request. An earlier [`arm`](Self::arm) stays in effect.
    ///
    /// # Errors
    /// As [`arm`](Self::arm).
    #[doc(alias = "ibv_req_notify_cq")]
    pub fn arm_solicited(&self) -> Result<(), VerbsError> {
        Ok(self.router.cq.req_notify(true)?)
    }

    /// Delays a requested event until `count` completions exist, or until `period` after the first
    /// of them. The earlier time counts. A `count` of 0 or 1, or a `period` below 1 µs, turns the
    /// delay off.
    ///
    /// # Errors
    /// [`VerbsError`] if `period` is longer than 65,535 µs.
    #[doc(alias = "ibv_modify_cq")]
    pub fn moderate(&self, count: u16, period: Duration) -> Result<(), VerbsError> {
        let too_long = RawError::InvalidArgument("period: more than 65,535 µs");
        let period_us = u16::try_from(period.as_micros()).map_err(|_| too_long)?;
        Ok(self.router.cq.moderate(count, period_us)?)
    }

    /// Changes the capacity to at least `entries` completions. Unpolled completions stay in the
    /// queue.
    ///
    /// # Errors
    /// [`VerbsError`] if more completions are unpolled, or if `entries` is 0 or above the
    /// device's limit.
    #[doc(alias = "ibv_resize_cq")]
    pub fn resize(&self, entries: u32) -> Result<(), VerbsError> {
        Ok(self.router.cq.resize(entries)?)
    }

    /// Returns the capacity in completions.
    #[must_use]
    pub fn entries(&self) -> u32 {
        self.router.cq.capacity()
    }

    /// Takes and acknowledges the events that made the descriptor readable.
    ///
    /// # Errors
    /// [`VerbsError`] if the descriptor cannot be read.
    #[doc(alias = "ibv_get_cq_event")]
    #[doc(alias = "ibv_ack_cq_events")]
    pub fn drain_events(&self) -> Result<(), VerbsError> {
        if self.router.has_futures() {
            // Their completions cause no further event.
            return self.router.dispatch();
        }
        self.router.take_events()
    }
}

/// A work completion.
///
/// If `status` is not [`WcStatus::Success`], only `wr_id`, `status`, `qp_num` and `timestamp_ns`
/// are valid.
///
/// ```
/// use std::time::Duration;
///
/// use rocade_verbs::{
///     AccessFlags, Config, ConnectOptions, DeviceList, SendRequest, WcOpcode,
/// };
///
/// let list = DeviceList::new(Config::simulated(1))?;
/// let (a, b) = (list.open("a")?.protection_domain()?, list.open("b")?.protection_domain()?);
/// let (a_cq, b_cq) = (a.context().completion_queue(16)?, b.context().completion_queue(16)?);
/// let (a_qp, b_qp) = (a.queue_pair(&a_cq).build()?, b.queue_pair(&b_cq).build()?);
/// let inbox = b.register(64, AccessFlags::LOCAL_WRITE)?;
/// b_qp.post_recv(7, &[inbox.sge(..)?])?;
/// let (a_end, b_end) = (a_qp.endpoint(), b_qp.endpoint());
/// let a_qp = a_qp.connect(b_end, &ConnectOptions::default())?;
/// let _b_qp = b_qp.connect(a_end, &ConnectOptions::default())?;
///
/// a_qp.post_send(&SendRequest::send_inline(b"hello").imm(*b"tag!"))?;
/// let received = b_cq.wait(Duration::from_secs(1))?;
/// assert_eq!((received.wr_id, received.opcode), (7, WcOpcode::Recv));
/// assert_eq!((received.byte_len, received.immediate), (5, Some(*b"tag!")));
/// # Ok::<(), rocade_verbs::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "ibv_wc")]
#[non_exhaustive]
pub struct Completion {
    /// The `wr_id` of the work request.
    pub wr_id: u64,
    /// The completion status.
    pub status: WcStatus,
    /// The operation.
    pub opcode: WcOpcode,
    /// The number of bytes received, read or returned by an atomic. For a datagram it includes the
    /// network header of [`GRH_LEN`](crate::GRH_LEN) bytes.
    pub byte_len: u32,
    /// The number of this side's queue pair.
    pub qp_num: Qpn,
    /// The number of the sending queue pair, for datagrams and DC messages. It is 0 otherwise.
    pub src_qp: Qpn,
    /// The immediate data of the message, in the byte order in which the peer gave it.
    pub immediate: Option<[u8; 4]>,
    /// The key that the message invalidated.
    pub invalidated: Option<Rkey>,
    /// The tag of the flow that matched a raw packet.
    pub flow_tag: Option<u32>,
    /// True if a network header of [`GRH_LEN`](crate::GRH_LEN) bytes precedes the data.
    pub has_grh: bool,
    /// True for a raw packet with correct IP and TCP or UDP checksums.
    pub checksums_valid: bool,
    /// True if the peer set the solicited event flag of the message.
    pub is_solicited: bool,
    /// True for a send request, false for a receive.
    pub is_send: bool,
    /// The time of the completion, in nanoseconds of
    /// [`Context::clock_ns`](crate::Context::clock_ns).
    pub timestamp_ns: u64,
}

impl From<RawCompletion> for Completion {
    fn from(raw: RawCompletion) -> Self {
        let (immediate, invalidated, flow_tag) = match raw.imm_or_inv {
            ImmOrInv::None => (None, None, None),
            ImmOrInv::Imm(data) => (Some(data), None, None),
            ImmOrInv::Inv(key) => (None, Some(key), None),
            ImmOrInv::FlowTag(tag) => (None, None, Some(tag)),
        };
        Self {
            wr_id: raw.wr_id,
            status: raw.status.into(),
            opcode: raw.opcode,
            byte_len: raw.byte_len,
            qp_num: raw.qp_num,
            src_qp: raw.src_qp,
            immediate,
            invalidated,
            flow_tag,
            has_grh: raw.wc_flags.contains(WcFlags::GRH),
            checksums_valid: raw.wc_flags.contains(WcFlags::IP_CSUM_OK),
            is_solicited: raw.solicited,
            is_send: raw.to == CompleteTo::SendCq,
            timestamp_ns: raw.timestamp_ns,
        }
    }
}

impl Completion {
    /// Returns the completion itself, or the error of a failed one.
    ///
    /// # Errors
    /// [`CompletionError`] if the status is not [`WcStatus::Success`].
    pub fn into_result(self) -> Result<Self, CompletionError> {
        match self.status {
            WcStatus::Success => Ok(self),
            _ => Err(CompletionError(self)),
        }
    }
}

/// A waker that unparks a thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl Router {
    /// Returns the descriptor that is readable while an event is pending.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel keeps the descriptor open, and lives as long as `self`.
        unsafe { sys::borrow(self.channel.fd()) }
    }
}

/// Futures that wait for completions of the queue end with [`OperationError::Dropped`].
impl Drop for CompletionQueue {
    fn drop(&mut self) {
        self.router.close();
    }
}

impl AsFd for CompletionQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.router.fd()
    }
}

impl fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries = self.entries();
        f.debug_struct("CompletionQueue")
            .field("entries", &entries)
            .finish_non_exhaustive()
    }
}
