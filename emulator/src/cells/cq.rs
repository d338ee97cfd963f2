//! Completion queues: what the engine and the handles share of one.

use std::sync::{Arc, Weak};

use rocade_transport::{Completion, Time, WcFlags, WcStatus};
use rocade_wire::Qpn;

use super::agenda::Agenda;
use super::cq_ring::{Added, CqRing};
use super::cross::Waits;
use super::event_queue::{AckCounter, EventQueue};
use super::events::{AsyncEventKind, AsyncEvents, EventElement};
use super::users::{User, Users};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Where completion events arrive.
#[derive(Debug)]
pub(crate) struct ChannelInner {
    pub(crate) events: EventQueue<Arc<CqInner>>,
    cqs: Users,
}

impl ChannelInner {
    pub(crate) fn new(events: EventQueue<Arc<CqInner>>) -> Self {
        Self {
            events,
            cqs: Users::default(),
        }
    }

    /// The CQs that use it.
    pub(crate) const fn users(&self) -> &Users {
        &self.cqs
    }
}

#[derive(Debug)]
pub(crate) struct CqInner {
    events: Arc<AsyncEvents>,
    agenda: Arc<Agenda>,
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
    users: Users,
    /// Every successful receive has the flag `GRH`.
    marks_receives: bool,
    acks: AckCounter,
    async_acks: Arc<AckCounter>,
    waits: Waits,
    this: Weak<Self>,
}

impl CqInner {
    /// One of so many entries; see [`CqInitAttr`](crate::CqInitAttr).
    pub(crate) fn new(
        events: Arc<AsyncEvents>,
        agenda: Arc<Agenda>,
        channel: Option<Arc<ChannelInner>>,
        cookie: u64,
        ring: CqRing,
        marks_receives: bool,
    ) -> Arc<Self> {
        if let Some(channel) = &channel {
            channel.cqs.add(User::Cq);
        }
        Arc::new_cyclic(|this| Self {
            events,
            agenda,
            ring: Mutex::new(ring),
            len: AtomicUsize::new(0),
            oldest: AtomicU64::new(0),
            channel,
            uses_channel: AtomicBool::new(true),
            cookie,
            users: Users::default(),
            marks_receives,
            acks: AckCounter::default(),
            async_acks: Arc::default(),
            waits: Waits::default(),
            this: this.clone(),
        })
    }

    /// Are there no completions to take?
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len.load(Ordering::Acquire) == 0
    }

    /// Returns true if there are completions to take. Unlike [`Self::is_empty`] this takes the lock: a completion
    /// that comes later finds all that this thread has written.
    pub(crate) fn has_any(&self) -> bool {
        !self.ring.lock().is_empty()
    }

    /// Takes at most `max` completions in order, each handed to `each` with its position, and returns how many.
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

    /// Changes how long its events wait; `now` for the one that waits already.
    pub(crate) fn moderate(&self, count: u32, period_ns: u64, now: Time) {
        let mut ring = self.ring.lock();
        let change = ring.moderate(count, period_ns, now);
        self.follow(change);
    }

    /// Arms it, unless it has no channel.
    pub(crate) fn arm(&self, solicited_only: bool) -> bool {
        let has_channel = self.channel.is_some();
        if has_channel {
            self.ring.lock().arm(solicited_only);
        }
        has_channel
    }

    /// How many entries it has room for.
    pub(crate) fn capacity(&self) -> usize {
        self.ring.lock().capacity()
    }

    /// Changes the number of entries; false where those that are there would not fit (CQ-04).
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

    /// Requests may wait for its completions (XCH-03).
    pub(crate) fn allow_waits(&self) {
        self.waits.allowed.store(true, Ordering::Relaxed);
    }

    pub(crate) fn allows_waits(&self) -> bool {
        self.waits.allowed.load(Ordering::Relaxed)
    }

    /// From now on a completion that finds no room takes that of the oldest.
    //= XCH-04
    pub(crate) fn ignore_overrun(&self) {
        self.ring.lock().ignore_overrun();
    }

    /// Has it had so many completions, modulo 2^32? If not, `who` is looked at when it has.
    //= XCW-01
    pub(super) fn has_produced(&self, until: u32, who: Qpn) -> bool {
        self.ring.lock().has_produced(until, who)
    }

    pub(super) fn forget_waiter(&self, who: Qpn) {
        self.ring.lock().forget_waiter(who);
    }

    /// It ends: forgets events that nobody has read, and waits until the others are acknowledged (CQ-08).
    pub(crate) fn end(self: &Arc<Self>) {
        self.ring.lock().disarm();
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

    /// The channel may go, whoever still holds a reference to the CQ: the background thread does now and
    /// then.
    fn leave_channel(&self) {
        if let Some(channel) = &self.channel
            && self.uses_channel.swap(false, Ordering::AcqRel)
        {
            channel.cqs.remove(User::Cq);
        }
    }

    /// All completions with a lower number were taken by the application.
    pub(crate) fn oldest(&self) -> u64 {
        self.oldest.load(Ordering::Acquire)
    }

    /// Reserves room for `count` completions, or for fewer where there is no more: then the CQ is overrun.
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

    /// Gives up room that was reserved for `count` completions.
    pub(crate) fn give_up(&self, count: usize) {
        if count > 0 {
            self.ring.lock().give_up(count);
        }
    }

    /// Adds completions, as long as `reserved` is not 0 into reserved room, and tells `each` their
    /// numbers. Returns how many are lost because the CQ is full (CQ-02).
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
                let entry = self.marked(completion);
                let added = if *reserved > 0 {
                    *reserved -= 1;
                    ring.add_reserved(entry)
                } else {
                    ring.add(entry)
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
            //= XCW-08
            //= XCH-05
            ring.take_waiters(|who| self.agenda.wake_qp(who));
            self.publish(&ring);
        }
        // A poller that sleeps has looked here under the lock, before or after this.
        self.agenda.sleepers().wake();
        if event {
            self.raise_event();
        } else if let Some(due) = due {
            self.agenda.put_event(due, &self.this);
        }
        if lost > 0 {
            self.lost_completions(was_overrun);
        }
        lost
    }

    /// The completion as the program gets it.
    #[inline]
    fn marked(&self, completion: &Completion) -> Completion {
        let mut entry = *completion;
        let is_receive = !entry.is_send() && entry.status == WcStatus::Success;
        if self.marks_receives && is_receive {
            entry.wc_flags |= WcFlags::GRH;
        }
        entry
    }

    /// What has changed about the event that is due, or is not yet.
    fn follow(&self, change: Added) {
        match change {
            Added::Event => self.raise_event(),
            Added::EventAt(due) => self.agenda.put_event(due, &self.this),
            Added::Quiet | Added::Overflow => {}
        }
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
        let due = ring.take_due(now);
        self.follow(due);
    }

    /// There was no room: an event, once, and an end to all QPs that complete here.
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
        self.agenda.put_overrun(&self.this);
    }

    /// Drops the completions of a QP that is reset or destroyed (RC-STA-04, CQ-13).
    //= CQ-13
    pub(crate) fn purge(&self, qp_num: Qpn) {
        let mut ring = self.ring.lock();
        if !ring.is_empty() {
            ring.retain(|completion| completion.qp_num != qp_num);
            self.publish(&ring);
        }
    }

    /// For who looks without the lock. What was received before is visible to who sees the completion.
    //= RC-RSP-26
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
