//! The queue pairs that need service without a new packet or verb call: ready lists, one per
//! reason, and timers.
//!
//! A QP stays on the ready list of a reason as long as the reason may last, also while a thread
//! serves it. The process exit therefore finds all pending ACKs, even if a thread was interrupted
//! while it served the QP. The QP's own flags ([`QueuedReasons`], under the lock of the QP) keep it
//! from being on a list twice. Timers differ: nearly every acknowledgement moves a deadline into
//! the future. A timer entry is therefore added only if no earlier entry is pending. When an entry
//! is due, the QP tells whether its timer has expired or when it will.
//!
//! A thread that adds an entry then checks whether the background thread sleeps beyond its
//! deadline, and wakes it if so. The background thread publishes until when it sleeps, and then
//! checks the lists again. So at least one of the two threads notices.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::Duration;

use crossbeam::utils::CachePadded;
use rocade_transport::{BATCH_DELAY_NS, DELAYED_ACK_NS, Time};
use rocade_wire::Qpn;

use super::cq::CqInner;
use super::sleepers::Sleepers;
use crate::sync::modelled::Mutex;
use crate::sync::modelled::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use crate::sys;
use crate::tuning::RETRY_NS;

/// The reason why a QP needs service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServiceReason {
    /// The socket or shared memory ring had no space for its packets.
    TxBlocked,
    /// The QP may hold delayed ACKs.
    DelayedAck,
    /// Its posts may wait to be batched.
    BatchedPost,
}

impl ServiceReason {
    const ALL: [Self; 3] = [Self::TxBlocked, Self::DelayedAck, Self::BatchedPost];

    /// Interval at which the background thread serves the list.
    const fn period_ns(self) -> u64 {
        match self {
            Self::TxBlocked => RETRY_NS,
            Self::DelayedAck => DELAYED_ACK_NS,
            Self::BatchedPost => BATCH_DELAY_NS,
        }
    }

    /// Time within which the background thread must have served a new entry.
    pub(crate) const fn deadline_ns(self) -> u64 {
        match self {
            Self::TxBlocked | Self::DelayedAck => self.period_ns(),
            Self::BatchedPost => 2 * BATCH_DELAY_NS,
        }
    }

    /// Time after that during which the background thread keeps serving an empty list, because
    /// waking it takes a system call.
    const fn linger_ns(self) -> u64 {
        match self {
            Self::TxBlocked | Self::DelayedAck => 0,
            Self::BatchedPost => 8 * BATCH_DELAY_NS,
        }
    }
}

/// The ready lists that a QP is on. Protected by the lock of the QP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct QueuedReasons(u8);

impl QueuedReasons {
    pub(crate) const fn contains(self, reason: ServiceReason) -> bool {
        self.0 & (1 << reason as u8) != 0
    }

    /// Returns true if the QP was not on this list.
    pub(crate) const fn insert(&mut self, reason: ServiceReason) -> bool {
        let is_new = !self.contains(reason);
        self.0 |= 1 << reason as u8;
        is_new
    }

    pub(crate) const fn remove(&mut self, reason: ServiceReason) {
        self.0 &= !(1 << reason as u8);
    }
}

#[derive(Debug, Default)]
struct ReadyList {
    qps: Mutex<VecDeque<Qpn>>,
    /// Length of `qps`, which pollers read without the lock.
    count: AtomicUsize,
    /// Deadline of the entry that was added last, in ns.
    due: AtomicU64,
}

/// The work queue of an engine, and the eventfd that wakes the background thread.
#[derive(Debug)]
pub(crate) struct ServiceQueue {
    ready_lists: CachePadded<[ReadyList; 3]>,
    timers: Mutex<BinaryHeap<Reverse<(Time, u32)>>>,
    /// CQs with a moderated event, and when each must be checked. One entry per CQ.
    events: Mutex<Vec<(Time, Weak<CqInner>)>>,
    /// CQs that had no space for a completion: their QPs have to enter the error state.
    overrun: Mutex<Vec<Weak<CqInner>>>,
    /// QPs whose wait has ended. The next thread that makes progress serves them.
    woken: Mutex<VecDeque<Qpn>>,
    woken_count: CachePadded<AtomicUsize>,
    /// An application's poll has tried to send packets of [`ServiceReason::TxBlocked`] since the
    /// background thread last checked.
    tried: AtomicBool,
    /// Time until which the background thread sleeps, in ns. 0 while it is awake.
    sleeping_until: CachePadded<AtomicU64>,
    wake_fd: Arc<OwnedFd>,
    sleepers: Sleepers,
}

impl ServiceQueue {
    /// An empty work queue. The background thread waits for the eventfd `wake_fd`.
    pub(crate) fn new(wake_fd: Arc<OwnedFd>) -> Self {
        Self {
            ready_lists: CachePadded::default(),
            timers: Mutex::default(),
            events: Mutex::default(),
            overrun: Mutex::default(),
            woken: Mutex::default(),
            woken_count: CachePadded::default(),
            tried: AtomicBool::default(),
            sleeping_until: CachePadded::default(),
            wake_fd,
            sleepers: Sleepers::default(),
        }
    }

    /// The pollers that sleep.
    pub(crate) const fn sleepers(&self) -> &Sleepers {
        &self.sleepers
    }

    /// The eventfd that the background thread waits for.
    pub(crate) const fn wake_fd(&self) -> &Arc<OwnedFd> {
        &self.wake_fd
    }

    /// Wakes the background thread.
    pub(crate) fn wake_thread(&self) {
        sys::eventfd_set(self.wake_fd.as_fd());
    }

    /// Wakes the background thread if it would sleep beyond `due`.
    pub(crate) fn wake_thread_by(&self, due: Time) {
        if self.needs_wake(due) {
            self.wake_thread();
        }
    }

    /// Schedules a check of this CQ at `due`, for its moderated event. The caller may hold the lock
    /// of the CQ.
    pub(crate) fn enqueue_event(&self, due: Time, cq: &Weak<CqInner>) {
        let mut events = self.events.lock();
        match events.iter_mut().find(|(_, other)| other.ptr_eq(cq)) {
            Some((at, _)) => *at = due.min(*at),
            None => events.push((due, cq.clone())),
        }
        drop(events);
        self.wake_thread_by(due);
    }

    /// Removes and returns the CQs whose events may be due.
    pub(crate) fn take_events(&self, now: Time) -> Vec<Arc<CqInner>> {
        let mut events = self.events.lock();
        let due = events.extract_if(.., |(at, _)| *at <= now);
        due.filter_map(|(_, cq)| cq.upgrade()).collect()
    }

    fn next_event(&self) -> Option<Time> {
        self.events.lock().iter().map(|(due, _)| *due).min()
    }

    /// Records that a completion was lost because this CQ is full. The caller may hold the locks of
    /// QPs.
    pub(crate) fn enqueue_overrun(&self, cq: &Weak<CqInner>) {
        let mut overrun = self.overrun.lock();
        if !overrun.iter().any(|other| other.ptr_eq(cq)) {
            overrun.push(cq.clone());
        }
        drop(overrun);
        self.wake_thread();
    }

    /// Records that the wait of this QP has ended. The caller may hold the locks of QPs and CQs.
    pub(crate) fn wake_qp(&self, qpn: Qpn) {
        let mut woken = self.woken.lock();
        woken.push_back(qpn);
        self.woken_count.store(woken.len(), Ordering::Relaxed);
        drop(woken);
        self.wake_thread_by(Time::ZERO);
        self.sleepers.wake_all();
    }

    /// Number of QPs that were woken.
    #[inline]
    pub(crate) fn woken(&self) -> usize {
        self.woken_count.load(Ordering::Relaxed)
    }

    /// Removes and returns the next woken QP.
    pub(crate) fn take_woken(&self) -> Option<Qpn> {
        let mut woken = self.woken.lock();
        let next = woken.pop_front();
        self.woken_count.store(woken.len(), Ordering::Relaxed);
        next
    }

    /// Removes and returns the CQs that were overrun since the last call.
    pub(crate) fn take_overrun(&self) -> Vec<Arc<CqInner>> {
        let noted = std::mem::take(&mut *self.overrun.lock());
        noted.iter().filter_map(Weak::upgrade).collect()
    }

    fn ready_list(&self, reason: ServiceReason) -> &ReadyList {
        &self.ready_lists[reason as usize]
    }

    /// Puts a QP on the ready list of a reason, to be served by `due` at the latest. Returns true
    /// if the background thread has to be woken for that.
    pub(crate) fn enqueue(&self, qpn: Qpn, reason: ServiceReason, due: Time) -> bool {
        let ready_list = self.ready_list(reason);
        ready_list.due.store(due.as_ns(), Ordering::Relaxed);
        let mut qps = ready_list.qps.lock();
        qps.push_back(qpn);
        ready_list.count.store(qps.len(), Ordering::Relaxed);
        drop(qps);
        self.needs_wake(due)
    }

    /// Number of QPs on a list.
    #[inline]
    pub(crate) fn count(&self, reason: ServiceReason) -> usize {
        self.ready_list(reason).count.load(Ordering::Relaxed)
    }

    /// Returns the QP on the list that was served least recently, and moves it to the end.
    pub(crate) fn next_ready(&self, reason: ServiceReason) -> Option<Qpn> {
        let mut qps = self.ready_list(reason).qps.lock();
        let next = qps.pop_front()?;
        qps.push_back(next);
        Some(next)
    }

    /// Removes a QP from a list. Returns false if it is not there.
    pub(crate) fn remove_qp(&self, qpn: Qpn, reason: ServiceReason) -> bool {
        let ready_list = self.ready_list(reason);
        let mut qps = ready_list.qps.lock();
        // Once only: the QP may have been enqueued again. The one that was served last is usually
        // at the end.
        let index = qps.iter().rposition(|&other| other == qpn);
        if let Some(index) = index {
            qps.remove(index);
        }
        ready_list.count.store(qps.len(), Ordering::Relaxed);
        index.is_some()
    }

    /// Returns all QPs on a list, or none if another thread holds its lock for longer than
    /// `patience`.
    pub(crate) fn queued(&self, reason: ServiceReason, patience: Duration) -> Vec<Qpn> {
        let qps = self.ready_list(reason).qps.try_lock_for(patience);
        qps.map_or_else(Vec::new, |qps| qps.iter().copied().collect())
    }

    /// Adds a timer entry: the QP's timer expires at `at` or later. Returns true if the background
    /// thread has to be woken for that.
    pub(crate) fn enqueue_timer(&self, qpn: Qpn, at: Time) -> bool {
        let mut timers = self.timers.lock();
        let earliest = timers.peek().is_none_or(|Reverse((first, _))| at < *first);
        timers.push(Reverse((at, qpn.get())));
        drop(timers);
        earliest && self.needs_wake(at)
    }

    /// Returns true if the background thread sleeps beyond `due`. To be called after an entry with
    /// that deadline was added.
    pub(crate) fn needs_wake(&self, due: Time) -> bool {
        // Store, fence, load on both sides: at least one sees what the other stored.
        fence(Ordering::SeqCst);
        self.sleeps_past(due)
    }

    /// Removes and returns the next QP whose timer may have expired.
    pub(crate) fn take_timer(&self, now: Time) -> Option<Qpn> {
        let mut timers = self.timers.lock();
        let due = timers.peek().is_some_and(|Reverse((at, _))| *at <= now);
        let entry = if due { timers.pop() } else { None };
        entry.map(|Reverse((_, qpn))| Qpn::new(qpn))
    }

    /// Returns when the next timer may expire.
    pub(crate) fn next_timer(&self) -> Option<Time> {
        self.timers.lock().peek().map(|Reverse((at, _))| *at)
    }

    /// Returns when the background thread has to check again.
    pub(crate) fn next_deadline(&self, now: Time) -> Option<Time> {
        let ready_lists = ServiceReason::ALL.into_iter().filter_map(|reason| {
            let due = Time::from_ns(self.ready_list(reason).due.load(Ordering::Relaxed));
            let lingers = now < due.plus_ns(reason.linger_ns());
            (lingers || self.count(reason) > 0).then(|| now.plus_ns(reason.period_ns()))
        });
        let woken = (self.woken() > 0).then_some(now);
        ready_lists
            .chain(woken)
            .chain(self.next_timer())
            .chain(self.next_event())
            .min()
    }

    /// Publishes that the background thread sleeps until `until`, or until an earlier entry is due.
    /// Returns until when it may sleep.
    pub(crate) fn sleep(&self, now: Time, until: Option<Time>) -> Option<Time> {
        let until = [until, self.next_deadline(now)].into_iter().flatten().min();
        let ns = until.map_or(u64::MAX, Time::as_ns);
        self.sleeping_until.store(ns, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        // A thread that added an entry before the store has not woken this one.
        [until, self.next_deadline(now)].into_iter().flatten().min()
    }

    /// Publishes that the background thread is awake.
    pub(crate) fn set_awake(&self) {
        self.sleeping_until.store(0, Ordering::SeqCst);
    }

    /// Returns true if the background thread sleeps until after `at`.
    fn sleeps_past(&self, at: Time) -> bool {
        at.as_ns() < self.sleeping_until.load(Ordering::SeqCst)
    }

    /// Records that an application's poll tries to send packets that there was no space for.
    pub(crate) fn note_inline_retry(&self) {
        self.tried.store(true, Ordering::Relaxed);
    }

    /// Returns true if a poll has tried since the last call.
    pub(crate) fn take_inline_retry(&self) -> bool {
        self.tried.swap(false, Ordering::Relaxed)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn empty() -> ServiceQueue {
        ServiceQueue::new(Arc::new(sys::eventfd().expect("a descriptor")))
    }

    const NOW: Time = Time::from_ns(1_000_000_000);

    fn qpn(number: u32) -> Qpn {
        Qpn::new(number)
    }

    #[test]
    fn a_ready_list_is_served_round_robin_until_a_qp_is_removed() {
        let service_queue = empty();
        for number in 1..=3 {
            service_queue.enqueue(qpn(number), ServiceReason::TxBlocked, NOW);
        }
        let ready: Vec<_> = (0..4)
            .filter_map(|_| service_queue.next_ready(ServiceReason::TxBlocked))
            .collect();
        assert_eq!(ready, [1, 2, 3, 1].map(qpn));
        assert_eq!(service_queue.count(ServiceReason::TxBlocked), 3);
        assert_eq!(service_queue.count(ServiceReason::DelayedAck), 0);
        service_queue.remove_qp(qpn(2), ServiceReason::TxBlocked);
        service_queue.remove_qp(qpn(9), ServiceReason::TxBlocked);
        assert_eq!(
            service_queue.queued(ServiceReason::TxBlocked, Duration::ZERO),
            [3, 1].map(qpn)
        );
        service_queue.enqueue(qpn(1), ServiceReason::TxBlocked, NOW);
        service_queue.remove_qp(qpn(1), ServiceReason::TxBlocked);
        assert_eq!(
            service_queue.count(ServiceReason::TxBlocked),
            2,
            "one of two entries was removed"
        );
        assert_eq!(service_queue.next_ready(ServiceReason::BatchedPost), None);
    }

    #[test]
    fn timers_come_in_the_order_of_their_deadlines() {
        let service_queue = empty();
        assert_eq!(service_queue.next_timer(), None);
        for (number, ns) in [(1, 300), (2, 100), (3, 200)] {
            service_queue.enqueue_timer(qpn(number), NOW.plus_ns(ns));
        }
        assert_eq!(service_queue.next_timer(), Some(NOW.plus_ns(100)));
        assert_eq!(service_queue.take_timer(NOW.plus_ns(99)), None);
        let due = || service_queue.take_timer(NOW.plus_ns(200));
        assert_eq!([due(), due(), due()], [Some(qpn(2)), Some(qpn(3)), None]);
    }

    #[test]
    fn the_background_thread_is_woken_only_if_it_would_be_late() {
        let service_queue = empty();
        assert!(
            !service_queue.enqueue_timer(qpn(1), NOW),
            "the background thread is awake"
        );
        service_queue.take_timer(NOW);
        assert_eq!(service_queue.sleep(NOW, None), None);
        assert!(service_queue.enqueue_timer(qpn(1), NOW.plus_ns(9_000_000)));
        assert!(
            !service_queue.enqueue_timer(qpn(2), NOW.plus_ns(9_000_001)),
            "not first"
        );
        for reason in ServiceReason::ALL {
            let service_queue = empty();
            let due = NOW.plus_ns(reason.deadline_ns());
            service_queue.sleep(NOW, None);
            assert!(service_queue.enqueue(qpn(1), reason, due), "{reason:?}");
            let looks = Some(NOW.plus_ns(reason.period_ns()));
            assert_eq!(service_queue.sleep(NOW, None), looks, "{reason:?}");
            assert!(
                !service_queue.enqueue(qpn(2), reason, due),
                "the background thread checks soon"
            );
            service_queue.set_awake();
            assert!(
                !service_queue.enqueue(qpn(3), reason, NOW),
                "the background thread is awake"
            );
        }
    }

    #[test]
    fn the_thread_lingers_after_a_batched_post() {
        let service_queue = empty();
        let due = NOW.plus_ns(ServiceReason::BatchedPost.deadline_ns());
        service_queue.enqueue(qpn(1), ServiceReason::BatchedPost, due);
        service_queue.remove_qp(qpn(1), ServiceReason::BatchedPost);
        let later = NOW.plus_ns(9 * BATCH_DELAY_NS);
        assert_eq!(
            service_queue.sleep(later, None),
            Some(later.plus_ns(BATCH_DELAY_NS))
        );
        let later = NOW.plus_ns(11 * BATCH_DELAY_NS);
        assert_eq!(service_queue.sleep(later, None), None);
        let soon = later.plus_ns(7);
        assert_eq!(service_queue.sleep(later, Some(soon)), Some(soon));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;

    fn empty() -> ServiceQueue {
        let wake_fd = sys::eventfd().expect("a descriptor");
        ServiceQueue::new(std::sync::Arc::new(wake_fd))
    }

    const NOW: Time = Time::from_ns(1_000);

    /// In every interleaving, an entry that was added is served in time. Either the background
    /// thread is woken, or it sleeps no longer than it may.
    #[test]
    fn loom_no_queued_work_is_slept_over() {
        for timer in [false, true] {
            loom::model(move || {
                let service_queue = Arc::new(empty());
                let due = NOW.plus_ns(ServiceReason::DelayedAck.deadline_ns());
                let application = {
                    let service_queue = Arc::clone(&service_queue);
                    loom::thread::spawn(move || {
                        if timer {
                            service_queue.enqueue_timer(Qpn::new(1), due)
                        } else {
                            service_queue.enqueue(Qpn::new(1), ServiceReason::DelayedAck, due)
                        }
                    })
                };
                let until = service_queue.sleep(NOW, None);
                let called = application.join().unwrap();
                assert!(called || until.is_some_and(|until| until <= due));
            });
        }
    }

    /// A QP is on a ready list exactly as long as its flag is set, however the threads that serve
    /// and enqueue it interleave.
    #[test]
    fn loom_flag_and_ready_list_agree() {
        loom::model(|| {
            let service_queue = Arc::new(empty());
            // The lock of the QP, with its number of pending work items and its flags.
            let qp = Arc::new(Mutex::default());
            let enqueue = |service_queue: &ServiceQueue, qp: &Mutex<(u32, QueuedReasons)>| {
                let mut core = qp.lock();
                core.0 += 1;
                if core.1.insert(ServiceReason::TxBlocked) {
                    service_queue.enqueue(Qpn::new(1), ServiceReason::TxBlocked, NOW);
                }
            };
            enqueue(&service_queue, &qp);
            let other = {
                let (service_queue, qp) = (Arc::clone(&service_queue), Arc::clone(&qp));
                loom::thread::spawn(move || enqueue(&service_queue, &qp))
            };
            if let Some(qpn) = service_queue.next_ready(ServiceReason::TxBlocked) {
                let mut core = qp.lock();
                core.0 = 0;
                core.1.remove(ServiceReason::TxBlocked);
                drop(core);
                service_queue.remove_qp(qpn, ServiceReason::TxBlocked);
            }
            other.join().unwrap();
            let core = qp.lock();
            assert_eq!(
                service_queue.count(ServiceReason::TxBlocked),
                usize::from(core.1.contains(ServiceReason::TxBlocked))
            );
            assert!(
                core.0 == 0 || core.1.contains(ServiceReason::TxBlocked),
                "forgotten"
            );
        });
    }
}
