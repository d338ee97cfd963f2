//! Completion queues.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rocade_transport::{Completion, Time};
use rocade_wire::Qpn;

use super::comp_channel::{ChannelInner, CompChannel};
use super::context::{AsyncEventKind, ContextInner, EventElement};
use super::cq_ring::{Added, CqRing};
use super::event_queue::AckCounter;
use crate::error::VerbsError;
use crate::hca::limits;

/// A completion queue (`ibv_cq`).
#[derive(Clone, Debug)]
#[doc(alias = "ibv_cq")]
pub struct Cq {
    pub(super) inner: Arc<CqInner>,
}

/// What a CQ is created with (`ibv_cq_init_attr_ex`).
#[derive(Clone, Copy, Debug)]
#[doc(alias = "ibv_cq_init_attr_ex")]
pub struct CqInitAttr<'a> {
    /// Entries, at least 1; granted as asked.
    pub cqe: u32,
    /// Where its events arrive.
    pub channel: Option<&'a CompChannel>,
    /// Completion vector, below [`limits::COMP_VECTORS`].
    pub vector: u32,
    /// Comes back in events.
    pub cookie: u64,
    /// A completion that finds no room takes that of the oldest, which is lost; else the CQ is
    /// overrun (CQX-06).
    pub ignores_overrun: bool,
}

#[derive(Debug)]
pub(crate) struct CqInner {
    context: Arc<ContextInner>,
    ring: Mutex<CqRing>,
    /// Completions in the ring; changes under its lock. Looking here first saves empty polls the lock.
    len: AtomicUsize,
    /// Number of the oldest completion in the ring, or of the next one: all before it were taken. Changes
    /// under its lock.
    oldest: AtomicU64,
    channel: Option<Arc<ChannelInner>>,
    /// The channel counts this CQ.
    uses_channel: AtomicBool,
    cookie: u64,
    qps: AtomicU32,
    acks: AckCounter,
    async_acks: Arc<AckCounter>,
    this: Weak<Self>,
}

impl Cq {
    pub(super) fn new(
        context: Arc<ContextInner>,
        attr: CqInitAttr<'_>,
    ) -> Result<Self, VerbsError> {
        let CqInitAttr {
            cqe,
            channel,
            vector,
            cookie,
            ignores_overrun,
        } = attr;
        //= CQ-01
        if cqe == 0 || cqe > limits::MAX_CQE {
            return Err(VerbsError::InvalidArgument("cqe"));
        }
        if vector >= limits::COMP_VECTORS {
            return Err(VerbsError::InvalidArgument("comp_vector"));
        }
        let channel = channel.map(|channel| Arc::clone(&channel.inner));
        if let Some(channel) = &channel {
            channel.cqs.fetch_add(1, Ordering::AcqRel);
        }
        Ok(Self {
            inner: Arc::new_cyclic(|this| CqInner {
                context,
                ring: Mutex::new(CqRing::new(cqe as usize, ignores_overrun)),
                len: AtomicUsize::new(0),
                oldest: AtomicU64::new(0),
                channel,
                uses_channel: AtomicBool::new(true),
                cookie,
                qps: AtomicU32::new(0),
                acks: AckCounter::default(),
                async_acks: Arc::default(),
                this: this.clone(),
            }),
        })
    }

    /// Takes completions in order and returns how many; drives the link if there are none.
    #[doc(alias = "ibv_poll_cq")]
    pub fn poll(&self, out: &mut [Completion]) -> usize {
        self.poll_with(out.len(), |index, completion| out[index] = completion)
    }

    /// Like [`Cq::poll`] for at most `max` completions, each handed to `each` with its position.
    pub fn poll_with(&self, max: usize, mut each: impl FnMut(usize, Completion)) -> usize {
        if max == 0 {
            return 0;
        }
        let engine = &self.inner.context.engine;
        engine.polled();
        let taken = self.take(max, &mut each);
        if taken > 0 {
            return taken;
        }
        if engine.progress_inline() {
            self.take(max, &mut each)
        } else {
            0
        }
    }

    /// The time of a simulation, and when something happens next of its own accord: `None` where the network is
    /// real.
    #[must_use]
    pub fn simulated_time(&self) -> Option<(Time, Option<Time>)> {
        let engine = &self.inner.context.engine;
        engine
            .is_simulated()
            .then(|| (engine.now(), engine.next_event()))
    }

    /// Moves the time of a simulation on; what should have happened by then happens with the next poll.
    pub fn move_simulated_time(&self, to: Time) {
        self.inner.context.engine.move_to(to);
    }

    /// Are there no completions to take?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.inner.len.load(Ordering::Acquire) == 0
    }

    fn take(&self, max: usize, each: &mut impl FnMut(usize, Completion)) -> usize {
        if self.inner.len.load(Ordering::Acquire) == 0 {
            return 0;
        }
        let mut ring = self.inner.ring.lock();
        let mut taken = 0;
        while taken < max
            && let Some(completion) = ring.take()
        {
            each(taken, completion);
            taken += 1;
        }
        self.inner.publish(&ring);
        taken
    }

    /// Takes one completion.
    pub fn poll_one(&self) -> Option<Completion> {
        let mut one = None;
        self.poll_with(1, |_, completion| one = Some(completion));
        one
    }

    /// Asks for an event when the next completion, or the next solicited one, is added
    /// (CQ-05…07).
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] if the CQ has no completion channel.
    #[doc(alias = "ibv_req_notify_cq")]
    pub fn req_notify(&self, solicited_only: bool) -> Result<(), VerbsError> {
        if self.inner.channel.is_none() {
            return Err(VerbsError::InvalidArgument(
                "the CQ has no completion channel",
            ));
        }
        self.inner.ring.lock().arm(solicited_only);
        self.inner.context.engine.leave_inline();
        Ok(())
    }

    /// Changes the number of entries.
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] if the entries there would not fit, or `cqe` is 0 or above
    /// the device's limit (CQ-04).
    #[doc(alias = "ibv_resize_cq")]
    pub fn resize(&self, cqe: u32) -> Result<(), VerbsError> {
        if cqe == 0 || cqe > limits::MAX_CQE {
            return Err(VerbsError::InvalidArgument("cqe"));
        }
        if (cqe as usize) < self.inner.ring.lock().capacity() {
            // Datagrams that wait for their route would be complete by now.
            self.inner.context.engine.let_posts_leave(&self.inner);
        }
        //= CQ-04
        if !self.inner.ring.lock().resize(cqe as usize) {
            let why = "the CQ has more completions than that";
            return Err(VerbsError::InvalidArgument(why));
        }
        Ok(())
    }

    /// An event waits until there are `count` completions it is due for, or until `period_us`
    /// microseconds after the first of them. 0 or 1 for the one, or 0 for the other: it does not wait.
    ///
    /// # Errors
    /// None so far.
    //= CQ-10
    #[doc(alias = "ibv_modify_cq")]
    pub fn moderate(&self, count: u16, period_us: u16) -> Result<(), VerbsError> {
        let inner = &self.inner;
        let now = inner.context.engine.now();
        let mut ring = inner.ring.lock();
        match ring.moderate(count.into(), u64::from(period_us) * 1_000, now) {
            Added::Event => inner.raise_event(),
            Added::EventAt(due) => inner.context.engine.moderate(due, inner.this.clone()),
            Added::Quiet | Added::Overflow => {}
        }
        Ok(())
    }

    /// Number of entries.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        u32::try_from(self.inner.ring.lock().capacity()).unwrap_or(u32::MAX)
    }

    /// The value given at creation.
    #[must_use]
    pub fn cookie(&self) -> u64 {
        self.inner.cookie
    }

    /// Acknowledges completion events of this CQ.
    #[doc(alias = "ibv_ack_cq_events")]
    pub fn ack_events(&self, count: u32) {
        self.inner.acks.ack(u64::from(count));
    }

    /// Acknowledges asynchronous events of this CQ.
    pub fn ack_async_events(&self, count: u32) {
        self.inner.async_acks.ack(u64::from(count));
    }

    /// Ends the CQ: waits until all its events are acknowledged, drops those not yet read
    /// (CQ-08).
    ///
    /// # Errors
    /// [`VerbsError::Busy`] while QPs use it (DST-02).
    #[doc(alias = "ibv_destroy_cq")]
    pub fn destroy(&self) -> Result<(), VerbsError> {
        let inner = &self.inner;
        if inner.qps.load(Ordering::Acquire) > 0 {
            //= DST-02
            return Err(VerbsError::Busy("completion queue"));
        }
        inner.ring.lock().disarm();
        if let Some(channel) = &inner.channel {
            channel.events.retain(|cq| !Arc::ptr_eq(cq, inner));
        }
        inner.context.forget_events(&inner.async_acks);
        inner.acks.wait();
        inner.async_acks.wait();
        inner.leave_channel();
        Ok(())
    }
}

impl CqInner {
    pub(super) const fn cookie(&self) -> u64 {
        self.cookie
    }

    pub(super) const fn acks(&self) -> &AckCounter {
        &self.acks
    }

    /// The channel may go, whoever still holds a reference to the CQ: the background thread does now and
    /// then.
    fn leave_channel(&self) {
        if let Some(channel) = &self.channel
            && self.uses_channel.swap(false, Ordering::AcqRel)
        {
            channel.cqs.fetch_sub(1, Ordering::AcqRel);
        }
    }

    pub(super) fn attach_qp(&self) {
        self.qps.fetch_add(1, Ordering::AcqRel);
    }

    pub(super) fn detach_qp(&self) {
        self.qps.fetch_sub(1, Ordering::AcqRel);
    }

    /// All completions with a lower number were taken by the application.
    pub(super) fn oldest(&self) -> u64 {
        self.oldest.load(Ordering::Acquire)
    }

    /// Reserves room for `count` completions, or for fewer where there is no more: then the CQ is overrun.
    pub(super) fn reserve(&self, count: usize) -> usize {
        let mut ring = self.ring.lock();
        let was_overrun = ring.is_overrun();
        let granted = ring.reserve(count);
        drop(ring);
        if granted < count {
            self.lost_completions(was_overrun);
        }
        granted
    }

    /// Gives up room that was reserved for `count` completions.
    pub(super) fn give_up(&self, count: usize) {
        if count > 0 {
            self.ring.lock().give_up(count);
        }
    }

    /// Is it one of this device?
    pub(super) fn is_of(&self, context: &Arc<ContextInner>) -> bool {
        Arc::ptr_eq(&self.context, context)
    }

    /// Adds completions, as long as `reserved` is not 0 into reserved room, and tells `each` their
    /// numbers. Returns how many are lost because the CQ is full (CQ-02).
    pub(super) fn add<'c>(
        &self,
        completions: impl Iterator<Item = &'c Completion>,
        reserved: &mut usize,
        mut each: impl FnMut(u64, &Completion),
    ) -> usize {
        let mut event = false;
        let mut due = None;
        let mut lost = 0;
        let was_overrun;
        {
            let mut ring = self.ring.lock();
            was_overrun = ring.is_overrun();
            for completion in completions {
                let number = ring.next();
                let added = if *reserved > 0 {
                    *reserved -= 1;
                    ring.add_reserved(*completion)
                } else {
                    ring.add(*completion)
                };
                match added {
                    Added::Quiet => {}
                    // Arming is one shot: there is one.
                    Added::Event => event = true,
                    Added::EventAt(at) => due = Some(at),
                    Added::Overflow => {
                        lost += 1;
                        continue;
                    }
                }
                each(number, completion);
            }
            self.publish(&ring);
        }
        if event {
            self.raise_event();
        } else if let Some(due) = due {
            self.context.engine.moderate(due, self.this.clone());
        }
        if lost > 0 {
            self.lost_completions(was_overrun);
        }
        lost
    }

    fn raise_event(&self) {
        if let (Some(channel), Some(this)) = (&self.channel, self.this.upgrade()) {
            channel.events.push(this);
        }
    }

    /// Raises the event that has waited, if it is due. Under the lock of the ring: once it is disarmed, no
    /// event comes.
    pub(crate) fn raise_due_event(&self, now: Time) {
        let mut ring = self.ring.lock();
        if ring.take_due(now) {
            self.raise_event();
        }
    }

    /// There was no room: an event, once, and an end to all QPs that complete here.
    fn lost_completions(&self, was_overrun: bool) {
        //= CQ-15
        //= AEV-00
        if !was_overrun {
            self.context.raise(
                AsyncEventKind::CqErr,
                EventElement::Cq(self.cookie),
                Some(Arc::clone(&self.async_acks)),
            );
        }
        self.context.engine.note_overrun(self.this.clone());
    }

    /// Drops the completions of a QP that is reset or destroyed (RC-STA-04, CQ-13).
    //= CQ-13
    pub(super) fn purge(&self, qp_num: Qpn) {
        let mut ring = self.ring.lock();
        if !ring.is_empty() {
            ring.retain(|completion| completion.qp_num != qp_num);
            self.publish(&ring);
        }
    }

    /// For who looks without the lock.
    fn publish(&self, ring: &CqRing) {
        self.len.store(ring.len(), Ordering::Release);
        self.oldest.store(ring.oldest(), Ordering::Release);
    }
}

impl Drop for CqInner {
    fn drop(&mut self) {
        self.leave_channel();
    }
}
