//! Completion queues.

use std::collections::VecDeque;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rocade_emulator::{
    CompChannel, CompleteTo, Completion as RawCompletion, Context as RawContext, Cq, CqInitAttr,
    ImmOrInv, Qpn, Rkey, VerbsError, WcFlags, WcOpcode, WcStatus,
};

use crate::error::{Error, Result};
use crate::events::ObjectId;
use crate::sys;

/// How long [`CompletionQueue::wait`] polls before it sleeps: longer than a round trip between
/// two processes that poll, short against what sleeping saves.
const SPIN: Duration = Duration::from_micros(50);

/// Where work requests complete.
///
/// Polling drives the device: a program that polls needs no other thread. While nobody polls, a
/// background thread of the device takes over.
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
    cq: Cq,
    id: ObjectId,
    channel: CompChannel,
}

impl CompletionQueue {
    pub(crate) fn new(context: &RawContext, entries: u32, ignores_overrun: bool) -> Result<Self> {
        let channel = context.create_comp_channel()?;
        // SAFETY: the descriptor belongs to the channel, which outlives this borrow.
        sys::set_nonblocking(unsafe { sys::borrow(channel.fd()) })?;
        let id = ObjectId::next();
        let cq = context.create_cq_with(CqInitAttr {
            cqe: entries,
            channel: Some(&channel),
            vector: 0,
            cookie: id.cookie(),
            ignores_overrun,
        })?;
        Ok(Self { cq, id, channel })
    }

    pub(crate) const fn raw(&self) -> &Cq {
        &self.cq
    }

    /// Its name in [events](crate::Context::poll_event).
    #[must_use]
    pub const fn id(&self) -> ObjectId {
        self.id
    }

    /// Takes the next completion, whatever its status, if there is one.
    #[doc(alias = "ibv_poll_cq")]
    #[doc(alias = "ibv_start_poll")]
    #[doc(alias = "ibv_next_poll")]
    #[doc(alias = "ibv_end_poll")]
    pub fn poll(&self) -> Option<Completion> {
        self.cq.poll_one().map(Completion::from)
    }

    /// Takes the next completion; waits for it up to `timeout`, at first polling, then asleep.
    ///
    /// # Errors
    /// [`Error::Completion`] if the work request failed, [`Error::TimedOut`].
    pub fn wait(&self, timeout: Duration) -> Result<Completion> {
        if self.cq.simulated_time().is_some() {
            return self.wait_in_simulation(timeout);
        }
        let start = Instant::now();
        let spin = SPIN.min(timeout);
        loop {
            if let Some(completion) = self.poll() {
                return check(completion);
            }
            if start.elapsed() >= spin {
                break;
            }
            std::hint::spin_loop();
        }
        loop {
            self.cq.req_notify(false)?;
            // What came before the queue was armed causes no event.
            if let Some(completion) = self.poll() {
                return check(completion);
            }
            let Some(left) = timeout.checked_sub(start.elapsed()) else {
                return Err(Error::TimedOut);
            };
            sys::wait_readable(self.as_fd(), left)?;
            self.drain_events()?;
        }
    }

    /// [`wait`](Self::wait) where time is virtual: it goes by while nothing else is left to happen.
    fn wait_in_simulation(&self, timeout: Duration) -> Result<Completion> {
        let timeout_ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        let mut end = None;
        while let Some((now, next)) = self.cq.simulated_time() {
            let end = *end.get_or_insert_with(|| now.plus_ns(timeout_ns));
            if self.cq.is_empty() && next.is_none_or(|next| next > end) {
                self.cq.move_simulated_time(end);
                return Err(Error::TimedOut);
            }
            if let Some(completion) = self.poll() {
                return check(completion);
            }
        }
        Err(Error::TimedOut)
    }

    /// Takes `count` completions, each with its own time limit of `timeout`.
    ///
    /// # Errors
    /// As [`wait`](Self::wait); what completed before the failure is lost.
    pub fn wait_for(&self, count: usize, timeout: Duration) -> Result<VecDeque<Completion>> {
        (0..count).map(|_| self.wait(timeout)).collect()
    }

    /// Asks for the descriptor ([`AsFd`]) to become readable with the next completion. Poll once
    /// more before waiting, and call [`drain_events`](Self::drain_events) after.
    ///
    /// # Errors
    /// None that can happen here: the queue has a completion channel.
    #[doc(alias = "ibv_req_notify_cq")]
    pub fn arm(&self) -> Result<()> {
        Ok(self.cq.req_notify(false)?)
    }

    /// The same for the next receive that the peer marked as solicited, or the next failure of any work
    /// request. It does not take back an [`arm`](Self::arm).
    ///
    /// # Errors
    /// As [`arm`](Self::arm).
    #[doc(alias = "ibv_req_notify_cq")]
    pub fn arm_solicited(&self) -> Result<()> {
        Ok(self.cq.req_notify(true)?)
    }

    /// Lets the event that was asked for wait until there are `count` such completions, or until
    /// `period` after the first of them, whatever comes first. `count` 0 or 1, or a `period` below a
    /// microsecond: it does not wait.
    ///
    /// # Errors
    /// [`Error::Verbs`] if `period` is longer than 65,535 µs.
    #[doc(alias = "ibv_modify_cq")]
    pub fn moderate(&self, count: u16, period: Duration) -> Result<()> {
        let too_long = VerbsError::InvalidArgument("period");
        let period_us = u16::try_from(period.as_micros()).map_err(|_| too_long)?;
        Ok(self.cq.moderate(count, period_us)?)
    }

    /// Changes the room to `entries` completions; those that wait stay.
    ///
    /// # Errors
    /// [`Error::Verbs`] if more than that wait, or `entries` is 0 or above the limit.
    #[doc(alias = "ibv_resize_cq")]
    pub fn resize(&self, entries: u32) -> Result<()> {
        Ok(self.cq.resize(entries)?)
    }

    /// Room for so many completions.
    #[must_use]
    pub fn entries(&self) -> u32 {
        self.cq.capacity()
    }

    /// Takes the events that made the descriptor readable.
    ///
    /// # Errors
    /// What reading the descriptor reports.
    #[doc(alias = "ibv_get_cq_event")]
    #[doc(alias = "ibv_ack_cq_events")]
    pub fn drain_events(&self) -> Result<()> {
        loop {
            match self.channel.get_event() {
                Ok(_) => self.cq.ack_events(1),
                Err(VerbsError::WouldBlock) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// The outcome of a work request.
///
/// The fields below `status` hold for [`WcStatus::Success`] only, except `qp_num` and
/// `timestamp_ns`.
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
    /// The number that the program gave to the work request.
    pub wr_id: u64,
    /// The outcome.
    pub status: WcStatus,
    /// The operation.
    pub opcode: WcOpcode,
    /// Bytes received, read or compared. Of a datagram, the network header counts too.
    pub byte_len: u32,
    /// The queue pair of this side.
    pub qp_num: Qpn,
    /// The queue pair that sent a datagram or a message over DC. 0 otherwise.
    pub src_qp: Qpn,
    /// Immediate data of the message, in the order in which the peer gave the bytes.
    pub immediate: Option<[u8; 4]>,
    /// The key that the message invalidated.
    pub invalidated: Option<Rkey>,
    /// The tag of the flow by which a raw packet came.
    pub flow_tag: Option<u32>,
    /// Set where a network header of [`GRH_LEN`](crate::GRH_LEN) bytes precedes the data.
    pub has_grh: bool,
    /// Set for a raw packet whose IP and TCP or UDP checksums are right.
    pub checksums_are_right: bool,
    /// Set where the peer marked the message as solicited.
    pub is_solicited: bool,
    /// Set for a send request, clear for a receive.
    pub is_send: bool,
    /// The time at which it was generated, in nanoseconds of
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
            status: raw.status,
            opcode: raw.opcode,
            byte_len: raw.byte_len,
            qp_num: raw.qp_num,
            src_qp: raw.src_qp,
            immediate,
            invalidated,
            flow_tag,
            has_grh: raw.wc_flags.contains(WcFlags::GRH),
            checksums_are_right: raw.wc_flags.contains(WcFlags::IP_CSUM_OK),
            is_solicited: raw.solicited,
            is_send: raw.to == CompleteTo::SendCq,
            timestamp_ns: raw.timestamp_ns,
        }
    }
}

/// A failed completion is an error.
fn check(completion: Completion) -> Result<Completion> {
    match completion.status {
        WcStatus::Success => Ok(completion),
        status => Err(Error::Completion {
            wr_id: completion.wr_id,
            status,
        }),
    }
}

impl AsFd for CompletionQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel keeps it open, and lives as long as `self`.
        unsafe { sys::borrow(self.channel.fd()) }
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
