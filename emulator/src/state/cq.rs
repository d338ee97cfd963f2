//! Completion queues: the state that the engine and the handles share.

use std::sync::{Arc, Weak};

use rocade_transport::{Completion, Time};
use rocade_wire::Qpn;

use super::ack_counter::AckCounter;
use super::cq_ring::{CqRing, EventAction};
use super::cross_channel::Waits;
use super::event_queue::EventQueue;
use super::event_waiter::HasEvents;
use super::events::{AsyncEventKind, AsyncEvents, EventElement};
use super::service_queue::ServiceQueue;
use super::users::{User, Users};
use super::wake_later;
use crate::config::Likeness;
use crate::sync::modelled::Mutex;
use crate::sync::modelled::atomic::{
    AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};
use crate::sync::rank;

/// The state of a completion channel.
#[derive(Debug)]
pub(crate) struct CompChannelState {
    pub(crate) events: EventQueue<Arc<CqInner>>,
    cqs: Users,
    /// Number of armed CQs.
    armed: AtomicUsize,
    /// The program has no channel any more that could take events.
    is_closed: AtomicBool,
}

impl HasEvents for CompChannelState {
    type Event = Arc<CqInner>;

    fn events(&self) -> &EventQueue<Arc<CqInner>> {
        &self.events
    }
}

impl CompChannelState {
    pub(crate) fn new(events: EventQueue<Arc<CqInner>>) -> Self {
        Self {
            events,
            cqs: Users::default(),
            armed: AtomicUsize::new(0),
            is_closed: AtomicBool::new(false),
        }
    }

    /// Drops the events that no one can take any more, now and later. Each has its CQ, which has
    /// this channel, so that they would keep each other.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
        self.drop_if_closed();
    }

    /// Drops all events if the channel is closed. One that adds an event calls this afterwards.
    fn drop_if_closed(&self) {
        // Store, fence, load on both sides: one of them finds the event.
        fence(Ordering::SeqCst);
        if self.is_closed.load(Ordering::Relaxed) {
            drop(self.events.drain());
        }
    }

    /// Returns true if an event may come: a CQ is armed.
    pub(crate) fn is_armed(&self) -> bool {
        self.armed.load(Ordering::Relaxed) > 0
    }

    /// The CQs that use the channel.
    pub(crate) const fn users(&self) -> &Users {
        &self.cqs
    }
}

#[derive(Debug)]
pub(crate) struct CqInner {
    events: Arc<AsyncEvents>,
    service_queue: Arc<ServiceQueue>,
    ring: Mutex<CqRing, rank::Cq>,
    /// Number of completions in the ring. Changes under the lock of the ring, and empty polls read
    /// it without.
    len: AtomicUsize,
    /// Number of the oldest completion in the ring, or of the next one if it is empty. The
    /// application has taken all completions before it. Changes under the lock of the ring.
    oldest: AtomicU64,
    channel: Option<Arc<CompChannelState>>,
    /// The channel counts this CQ as a user.
    uses_channel: AtomicBool,
    cookie: u64,
    users: Users,
    /// The kind of device that the completions look like.
    like: Likeness,
    acks: AckCounter,
    /// Number of completion events that were raised and not taken. Grows under the lock of the
    /// ring.
    unread: AtomicU32,
    async_acks: Arc<AckCounter>,
    waits: Waits,
    this: Weak<Self>,
}

impl CqInner {
    /// Makes a CQ with the entries of `ring`. See [`CqInitAttr`](crate::CqInitAttr).
    pub(crate) fn new(
        events: Arc<AsyncEvents>,
        service_queue: Arc<ServiceQueue>,
        channel: Option<Arc<CompChannelState>>,
        cookie: u64,
        ring: CqRing,
        like: Likeness,
    ) -> Arc<Self> {
        if let Some(channel) = &channel {
            channel.cqs.add(User::Cq);
        }
        Arc::new_cyclic(|this| Self {
            events,
            service_queue,
            ring: Mutex::new(ring),
            len: AtomicUsize::new(0),
            oldest: AtomicU64::new(0),
            channel,
            uses_channel: AtomicBool::new(true),
            cookie,
            users: Users::default(),
            like,
            acks: AckCounter::default(),
            unread: AtomicU32::new(0),
            async_acks: Arc::default(),
            waits: Waits::default(),
            this: this.clone(),
        })
    }

    /// Returns true if there are no completions to take.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len.load(Ordering::Acquire) == 0
    }

    /// Returns the number of completions to take.
    pub(crate) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// Returns true if there are completions to take. Unlike [`Self::is_empty`] this takes the
    /// lock: a thread that adds a completion afterwards sees all that the calling thread has
    /// written before.
    pub(crate) fn has_any(&self) -> bool {
        !self.ring.lock().is_empty()
    }

    /// Takes at most `max` completions in order, each handed to `each` with its position, and
    /// returns how many.
    #[inline]
    pub(crate) fn take(&self, max: usize, each: &mut impl FnMut(usize, Completion)) -> usize {
        if self.is_empty() {
            return 0;
        }
        self.take_some(max, each)
    }

    #[inline(never)]
    fn take_some(&self, max: usize, each: &mut impl FnMut(usize, Completion)) -> usize {
        let mut ring = self.ring.lock();
        let mut taken = 0;
        while taken < max
            && let Some(completion) = ring.take()
        {
            each(taken, completion);
            taken += 1;
        }
        self.publish(&ring);
        taken
    }

    /// Changes the moderation of completion events. `now` restarts the period of an event that is
    /// held.
    pub(crate) fn moderate(&self, count: u32, period_ns: u64, now: Time) {
        let mut ring = self.ring.lock();
        let change = ring.moderate(count, period_ns, now);
        self.apply_event(change);
    }

    /// Arms the CQ, unless it has no channel. Returns true if it is armed.
    ///
    /// In a device like mlx5, completions that were not taken and had no event cause it at once.
    /// While an earlier event is unread they do not, because the program is going to look anyway.
    pub(crate) fn arm(&self, solicited_only: bool) -> bool {
        if let Some(channel) = &self.channel {
            let mut ring = self.ring.lock();
            if !ring.is_armed() {
                channel.armed.fetch_add(1, Ordering::Relaxed);
            }
            ring.arm(solicited_only);
            if self.like.arms_by_position() && self.unread.load(Ordering::Acquire) == 0 {
                let present = ring.event_for_present();
                self.apply_event(present);
            }
        }
        self.channel.is_some()
    }

    /// Returns the key by which pollers of this CQ are woken.
    pub(crate) fn key(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Returns the channel, if the CQ has one.
    pub(crate) const fn channel(&self) -> Option<&Arc<CompChannelState>> {
        self.channel.as_ref()
    }

    /// Records that the CQ is not armed any more. The caller holds the lock of the ring.
    fn note_disarmed(&self) {
        if let Some(channel) = &self.channel {
            channel.armed.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Records that the application has taken a completion event.
    pub(crate) fn event_taken(&self) {
        self.acks.delivered();
        self.unread.fetch_sub(1, Ordering::AcqRel);
    }

    /// The number of entries that the CQ has space for.
    pub(crate) fn capacity(&self) -> usize {
        self.ring.lock().capacity()
    }

    /// Changes the number of entries. Returns false if the entries in the ring would not fit.
    pub(crate) fn resize(&self, capacity: usize) -> bool {
        self.ring.lock().resize(capacity)
    }

    /// The QPs and SRQs that complete here.
    pub(crate) const fn users(&self) -> &Users {
        &self.users
    }

    /// Returns true if requests wait for its completions.
    //= XDEC-10
    pub(crate) fn is_awaited(&self) -> bool {
        self.waits.pending.load(Ordering::Acquire) > 0
    }

    pub(super) const fn waits(&self) -> &Waits {
        &self.waits
    }

    /// Allows work requests to wait for the completions of this CQ.
    pub(crate) fn allow_waits(&self) {
        self.waits.allowed.store(true, Ordering::Relaxed);
    }

    pub(crate) fn allows_waits(&self) -> bool {
        self.waits.allowed.load(Ordering::Relaxed)
    }

    /// Switches overrun detection off: a completion that finds no space replaces the oldest one.
    //= XCH-04
    pub(crate) fn ignore_overrun(&self) {
        self.ring.lock().ignore_overrun();
    }

    /// Returns true if the CQ has had `until` completions, modulo 2^32. Otherwise registers
    /// `waiter`, which is served when it has.
    //= XCW-01
    pub(super) fn has_produced(&self, until: u32, waiter: Qpn) -> bool {
        self.ring.lock().has_produced(until, waiter)
    }

    pub(super) fn forget_waiter(&self, waiter: Qpn) {
        self.ring.lock().forget_waiter(waiter);
    }

    /// Destroys the CQ: drops its unread events, and waits until the others are acknowledged.
    pub(crate) fn destroy(self: &Arc<Self>) {
        let mut ring = self.ring.lock();
        if ring.is_armed() {
            self.note_disarmed();
        }
        ring.disarm();
        drop(ring);
        if let Some(channel) = &self.channel {
            channel.events.retain(|cq| !Arc::ptr_eq(cq, self));
        }
        self.events.forget(&self.async_acks);
        self.acks.wait();
        self.async_acks.wait();
        self.leave_channel();
    }

    pub(crate) fn async_acks(&self) -> &AckCounter {
        &self.async_acks
    }

    pub(crate) const fn cookie(&self) -> u64 {
        self.cookie
    }

    pub(crate) const fn acks(&self) -> &AckCounter {
        &self.acks
    }

    /// Stops using the channel, so that it can be destroyed while other threads still hold
    /// references to the CQ, as the background thread sometimes does.
    fn leave_channel(&self) {
        if let Some(channel) = &self.channel
            && self.uses_channel.swap(false, Ordering::AcqRel)
        {
            channel.cqs.remove(User::Cq);
        }
    }

    /// The number of the oldest completion that the application has not taken.
    pub(crate) fn oldest(&self) -> u64 {
        self.oldest.load(Ordering::Acquire)
    }

    /// Reserves space for `count` completions. Where the CQ has space for fewer, it is overrun.
    /// Returns for how many space was reserved.
    pub(crate) fn reserve(&self, count: usize) -> usize {
        let mut ring = self.ring.lock();
        let was_overrun = ring.is_overrun();
        let granted = ring.reserve(count);
        drop(ring);
        if granted < count {
            self.lost_completions(was_overrun);
        }
        granted
    }

    /// Releases space that was reserved for `count` completions.
    pub(crate) fn release_reserved(&self, count: usize) {
        if count > 0 {
            self.ring.lock().release_reserved(count);
        }
    }

    /// Adds completions, into reserved space as long as `reserved` is not 0, and passes their
    /// numbers to `each`. Returns how many are lost because the CQ is full.
    pub(crate) fn add<'c>(
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
                let entry = self.reported(completion);
                let added = if *reserved > 0 {
                    *reserved -= 1;
                    ring.add_reserved(entry)
                } else {
                    ring.add(entry)
                };
                match added {
                    EventAction::None => {}
                    // Arming is one shot: there is at most one event.
                    EventAction::Now => {
                        event = true;
                        self.note_disarmed();
                        self.unread.fetch_add(1, Ordering::AcqRel);
                    }
                    EventAction::At(at) => due = Some(at),
                    EventAction::Overflow => {
                        lost += 1;
                        continue;
                    }
                }
                each(number, completion);
            }
            //= XCW-08
            //= XCH-05
            ring.take_waiters(|waiter| self.service_queue.wake_qp(waiter));
            self.publish(&ring);
        }
        // A poller that sleeps has checked the CQ under the lock, before or after this.
        wake_later::wake_pollers(&self.service_queue, self.key());
        if event {
            self.raise_event();
        } else if let Some(due) = due {
            self.service_queue.enqueue_event(due, &self.this);
        }
        if lost > 0 {
            self.lost_completions(was_overrun);
        }
        lost
    }

    /// Returns the completion as the application gets it.
    #[inline]
    fn reported(&self, completion: &Completion) -> Completion {
        let mut entry = *completion;
        if !entry.is_send() {
            self.like.report_receive(&mut entry);
        }
        entry
    }

    /// Raises or schedules the completion event as `change` demands. The caller holds the lock of
    /// the ring.
    fn apply_event(&self, change: EventAction) {
        match change {
            EventAction::Now => {
                self.note_disarmed();
                self.unread.fetch_add(1, Ordering::AcqRel);
                self.raise_event();
            }
            EventAction::At(due) => self.service_queue.enqueue_event(due, &self.this),
            EventAction::None | EventAction::Overflow => {}
        }
    }

    fn raise_event(&self) {
        if let (Some(channel), Some(this)) = (&self.channel, self.this.upgrade()) {
            wake_later::push_event(channel, this);
            channel.drop_if_closed();
        }
    }

    /// Raises the moderated event if it is due. The lock of the ring is held meanwhile: once the CQ
    /// is disarmed, no event comes.
    pub(crate) fn raise_due_event(&self, now: Time) {
        let mut ring = self.ring.lock();
        let due = ring.take_due(now);
        self.apply_event(due);
    }

    /// Handles an overrun: raises `IBV_EVENT_CQ_ERR` once, and schedules all QPs that complete here
    /// for the error state.
    fn lost_completions(&self, was_overrun: bool) {
        //= CQ-15
        //= AEV-00
        if !was_overrun {
            self.events.raise(
                AsyncEventKind::CqErr,
                EventElement::Cq(self.cookie),
                Some(Arc::clone(&self.async_acks)),
            );
        }
        self.service_queue.enqueue_overrun(&self.this);
    }

    /// Overruns the CQ, although it may have space: later completions are lost.
    #[cold]
    pub(super) fn overrun(&self) {
        let mut ring = self.ring.lock();
        let was_overrun = ring.is_overrun();
        ring.overrun();
        drop(ring);
        self.lost_completions(was_overrun);
    }

    /// Raises an asynchronous event of the CQ.
    pub(crate) fn raise(&self, kind: AsyncEventKind) {
        let (element, acks) = (EventElement::Cq(self.cookie), Arc::clone(&self.async_acks));
        self.events.raise_unless_many(kind, element, Some(acks));
    }

    /// Drops the completions of a QP that is reset or destroyed.
    //= CQ-13
    pub(crate) fn purge(&self, qp_num: Qpn) {
        let mut ring = self.ring.lock();
        if !ring.is_empty() {
            ring.retain(|completion| completion.qp_num != qp_num);
            self.publish(&ring);
        }
    }

    /// Publishes length and oldest number for readers without the lock. A thread that sees the
    /// completion also sees the received data.
    //= RC-RSP-26
    fn publish(&self, ring: &CqRing) {
        self.len.store(ring.len(), Ordering::Release);
        self.oldest.store(ring.oldest(), Ordering::Release);
    }
}

impl Drop for CqInner {
    fn drop(&mut self) {
        if self.ring.lock().is_armed() {
            self.note_disarmed();
        }
        self.leave_channel();
    }
}
