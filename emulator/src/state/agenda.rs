//! The queue pairs that need service without a new packet or verb call: ready lists, one per
//! reason, and timers.
//!
//! A QP stays on the ready list of a reason as long as the reason may last, also while a thread
//! serves it. The process exit therefore finds all pending ACKs, even if a thread was interrupted
//! while it served the QP. The QP's own flags ([`Listed`], under the lock of the QP) keep it from
//! being on a list twice. Timers differ: nearly every acknowledgement moves a deadline into the
//! future. A timer entry is therefore added only if no earlier entry is pending. When an entry is
//! due, the QP tells whether its timer has expired or when it will.
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
use rocade_transport::{HOLD_NS, Time, WAIT_NS};
use rocade_wire::Qpn;

use super::cq::CqInner;
use super::sleepers::Sleepers;
use crate::figures::RETRY_NS;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use crate::sys;

/// The reason why a QP needs service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// The socket or shared memory ring had no room for its packets.
    NoRoom,
    /// The QP may hold delayed ACKs.
    HeldAck,
    /// Its posts may wait to be batched.
    WaitingPost,
}

impl Why {
    const ALL: [Self; 3] = [Self::NoRoom, Self::HeldAck, Self::WaitingPost];

    /// Interval at which the background thread serves the list.
    const fn period_ns(self) -> u64 {
        match self {
            Self::NoRoom => RETRY_NS,
            Self::HeldAck => HOLD_NS,
            Self::WaitingPost => WAIT_NS,
        }
    }

    /// Time within which the background thread must have served a new entry.
    pub(crate) const fn patience_ns(self) -> u64 {
        match self {
            Self::NoRoom | Self::HeldAck => self.period_ns(),
            Self::WaitingPost => 2 * WAIT_NS,
        }
    }

    /// Time after that during which the background thread keeps serving an empty list, because
    /// waking it takes a system call.
    const fn lately_ns(self) -> u64 {
        match self {
            Self::NoRoom | Self::HeldAck => 0,
            Self::WaitingPost => 8 * WAIT_NS,
        }
    }
}

/// The ready lists that a QP is on. Protected by the lock of the QP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Listed(u8);

impl Listed {
    pub(crate) const fn contains(self, why: Why) -> bool {
        self.0 & (1 << why as u8) != 0
    }

    /// Returns true if the QP was not on this list.
    pub(crate) const fn insert(&mut self, why: Why) -> bool {
        let is_new = !self.contains(why);
        self.0 |= 1 << why as u8;
        is_new
    }

    pub(crate) const fn remove(&mut self, why: Why) {
        self.0 &= !(1 << why as u8);
    }
}

#[derive(Debug, Default)]
struct Lane {
    qps: Mutex<VecDeque<Qpn>>,
    /// Length of `qps`, which pollers read without the lock.
    count: AtomicUsize,
    /// Deadline of the entry that was added last, in ns.
    due: AtomicU64,
}

/// The work queue of an engine, and the eventfd that wakes the background thread.
#[derive(Debug)]
pub(crate) struct Agenda {
    lanes: CachePadded<[Lane; 3]>,
    timers: Mutex<BinaryHeap<Reverse<(Time, u32)>>>,
    /// CQs with a moderated event, and when each must be checked. One entry per CQ.
    events: Mutex<Vec<(Time, Weak<CqInner>)>>,
    /// CQs that had no room for a completion: their QPs have to enter the error state.
    overrun: Mutex<Vec<Weak<CqInner>>>,
    /// QPs whose wait has ended. The next thread that makes progress serves them.
    woken: Mutex<VecDeque<Qpn>>,
    woken_count: CachePadded<AtomicUsize>,
    /// An application's poll has tried to send packets of [`Why::NoRoom`] since the background
    /// thread last checked.
    tried: AtomicBool,
    /// Time until which the background thread sleeps, in ns. 0 while it is awake.
    sleeping_until: CachePadded<AtomicU64>,
    bell: Arc<OwnedFd>,
    sleepers: Sleepers,
}

impl Agenda {
    /// An empty work queue. The background thread waits for the eventfd `bell`.
    pub(crate) fn new(bell: Arc<OwnedFd>) -> Self {
        Self {
            lanes: CachePadded::default(),
            timers: Mutex::default(),
            events: Mutex::default(),
            overrun: Mutex::default(),
            woken: Mutex::default(),
            woken_count: CachePadded::default(),
            tried: AtomicBool::default(),
            sleeping_until: CachePadded::default(),
            bell,
            sleepers: Sleepers::default(),
        }
    }

    /// The pollers that sleep.
    pub(crate) const fn sleepers(&self) -> &Sleepers {
        &self.sleepers
    }

    /// The eventfd that the background thread waits for.
    pub(crate) const fn bell(&self) -> &Arc<OwnedFd> {
        &self.bell
    }

    /// Wakes the background thread.
    pub(crate) fn call(&self) {
        sys::eventfd_set(self.bell.as_fd());
    }

    /// Wakes the background thread if it would sleep beyond `due`.
    pub(crate) fn call_before(&self, due: Time) {
        if self.would_miss(due) {
            self.call();
        }
    }

    /// Schedules a check of this CQ at `due`, for its moderated event. The caller may hold the lock
    /// of the CQ.
    pub(crate) fn put_event(&self, due: Time, cq: &Weak<CqInner>) {
        let mut events = self.events.lock();
        match events.iter_mut().find(|(_, other)| other.ptr_eq(cq)) {
            Some((at, _)) => *at = due.min(*at),
            None => events.push((due, cq.clone())),
        }
        drop(events);
        self.call_before(due);
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
    pub(crate) fn put_overrun(&self, cq: &Weak<CqInner>) {
        let mut overrun = self.overrun.lock();
        if !overrun.iter().any(|other| other.ptr_eq(cq)) {
            overrun.push(cq.clone());
        }
        drop(overrun);
        self.call();
    }

    /// Records that the wait of this QP has ended. The caller may hold the locks of QPs and CQs.
    pub(crate) fn wake_qp(&self, qpn: Qpn) {
        let mut woken = self.woken.lock();
        woken.push_back(qpn);
        self.woken_count.store(woken.len(), Ordering::Relaxed);
        drop(woken);
        self.call_before(Time::ZERO);
        self.sleepers.wake();
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

    fn lane(&self, why: Why) -> &Lane {
        &self.lanes[why as usize]
    }

    /// Puts a QP on the ready list of a reason, to be served by `due` at the latest. Returns true
    /// if the background thread has to be woken for that.
    pub(crate) fn put(&self, qpn: Qpn, why: Why, due: Time) -> bool {
        let lane = self.lane(why);
        lane.due.store(due.as_ns(), Ordering::Relaxed);
        let mut qps = lane.qps.lock();
        qps.push_back(qpn);
        lane.count.store(qps.len(), Ordering::Relaxed);
        drop(qps);
        self.would_miss(due)
    }

    /// Number of QPs on a list.
    #[inline]
    pub(crate) fn count(&self, why: Why) -> usize {
        self.lane(why).count.load(Ordering::Relaxed)
    }

    /// Returns the QP on the list that was served least recently, and moves it to the end.
    pub(crate) fn turn(&self, why: Why) -> Option<Qpn> {
        let mut qps = self.lane(why).qps.lock();
        let next = qps.pop_front()?;
        qps.push_back(next);
        Some(next)
    }

    /// Removes a QP from a list.
    pub(crate) fn done(&self, qpn: Qpn, why: Why) {
        let lane = self.lane(why);
        let mut qps = lane.qps.lock();
        // Once only: the QP may have been enqueued again. The one that was served last is usually
        // at the end.
        if let Some(index) = qps.iter().rposition(|&other| other == qpn) {
            qps.remove(index);
        }
        lane.count.store(qps.len(), Ordering::Relaxed);
    }

    /// Returns all QPs on a list, or none if another thread holds its lock for longer than
    /// `patience`.
    pub(crate) fn all(&self, why: Why, patience: Duration) -> Vec<Qpn> {
        let qps = self.lane(why).qps.try_lock_for(patience);
        qps.map_or_else(Vec::new, |qps| qps.iter().copied().collect())
    }

    /// Adds a timer entry: the QP's timer expires at `at` or later. Returns true if the background
    /// thread has to be woken for that.
    pub(crate) fn put_timer(&self, qpn: Qpn, at: Time) -> bool {
        let mut timers = self.timers.lock();
        let earliest = timers.peek().is_none_or(|Reverse((first, _))| at < *first);
        timers.push(Reverse((at, qpn.get())));
        drop(timers);
        earliest && self.would_miss(at)
    }

    /// Returns true if the background thread sleeps beyond `due`. To be called after an entry with
    /// that deadline was added.
    pub(crate) fn would_miss(&self, due: Time) -> bool {
        // Store, fence, load on both sides: at least one sees what the other stored.
        fence(Ordering::SeqCst);
        self.sleeps_beyond(due)
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
    pub(crate) fn next(&self, now: Time) -> Option<Time> {
        let lanes = Why::ALL.into_iter().filter_map(|why| {
            let due = Time::from_ns(self.lane(why).due.load(Ordering::Relaxed));
            let lately = now < due.plus_ns(why.lately_ns());
            (lately || self.count(why) > 0).then(|| now.plus_ns(why.period_ns()))
        });
        let woken = (self.woken() > 0).then_some(now);
        lanes
            .chain(woken)
            .chain(self.next_timer())
            .chain(self.next_event())
            .min()
    }

    /// Publishes that the background thread sleeps until `until`, or until an earlier entry is due.
    /// Returns until when it may sleep.
    pub(crate) fn sleep(&self, now: Time, until: Option<Time>) -> Option<Time> {
        let until = [until, self.next(now)].into_iter().flatten().min();
        let ns = until.map_or(u64::MAX, Time::as_ns);
        self.sleeping_until.store(ns, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        // A thread that added an entry before the store has not woken this one.
        [until, self.next(now)].into_iter().flatten().min()
    }

    /// Publishes that the background thread is awake.
    pub(crate) fn wake(&self) {
        self.sleeping_until.store(0, Ordering::SeqCst);
    }

    /// Returns true if the background thread sleeps until after `at`.
    fn sleeps_beyond(&self, at: Time) -> bool {
        at.as_ns() < self.sleeping_until.load(Ordering::SeqCst)
    }

    /// Records that an application's poll tries to send packets that there was no room for.
    pub(crate) fn try_inline(&self) {
        self.tried.store(true, Ordering::Relaxed);
    }

    /// Returns true if a poll has tried since the last call.
    pub(crate) fn was_tried(&self) -> bool {
        self.tried.swap(false, Ordering::Relaxed)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn empty() -> Agenda {
        Agenda::new(Arc::new(sys::eventfd().expect("a descriptor")))
    }

    const NOW: Time = Time::from_ns(1_000_000_000);

    fn qpn(number: u32) -> Qpn {
        Qpn::new(number)
    }

    #[test]
    fn everybody_on_a_lane_has_a_turn_and_stays_until_done() {
        let agenda = empty();
        for number in 1..=3 {
            agenda.put(qpn(number), Why::NoRoom, NOW);
        }
        let turns: Vec<_> = (0..4).filter_map(|_| agenda.turn(Why::NoRoom)).collect();
        assert_eq!(turns, [1, 2, 3, 1].map(qpn));
        assert_eq!(agenda.count(Why::NoRoom), 3);
        assert_eq!(agenda.count(Why::HeldAck), 0);
        agenda.done(qpn(2), Why::NoRoom);
        agenda.done(qpn(9), Why::NoRoom);
        assert_eq!(agenda.all(Why::NoRoom, Duration::ZERO), [3, 1].map(qpn));
        agenda.put(qpn(1), Why::NoRoom, NOW);
        agenda.done(qpn(1), Why::NoRoom);
        assert_eq!(
            agenda.count(Why::NoRoom),
            2,
            "one of two entries was removed"
        );
        assert_eq!(agenda.turn(Why::WaitingPost), None);
    }

    #[test]
    fn timers_come_in_the_order_of_their_deadlines() {
        let agenda = empty();
        assert_eq!(agenda.next_timer(), None);
        for (number, ns) in [(1, 300), (2, 100), (3, 200)] {
            agenda.put_timer(qpn(number), NOW.plus_ns(ns));
        }
        assert_eq!(agenda.next_timer(), Some(NOW.plus_ns(100)));
        assert_eq!(agenda.take_timer(NOW.plus_ns(99)), None);
        let due = || agenda.take_timer(NOW.plus_ns(200));
        assert_eq!([due(), due(), due()], [Some(qpn(2)), Some(qpn(3)), None]);
    }

    #[test]
    fn the_background_thread_is_called_only_where_it_would_be_late() {
        let agenda = empty();
        assert!(
            !agenda.put_timer(qpn(1), NOW),
            "the background thread is awake"
        );
        agenda.take_timer(NOW);
        assert_eq!(agenda.sleep(NOW, None), None);
        assert!(agenda.put_timer(qpn(1), NOW.plus_ns(9_000_000)));
        assert!(
            !agenda.put_timer(qpn(2), NOW.plus_ns(9_000_001)),
            "not first"
        );
        for why in Why::ALL {
            let agenda = empty();
            let due = NOW.plus_ns(why.patience_ns());
            agenda.sleep(NOW, None);
            assert!(agenda.put(qpn(1), why, due), "{why:?}");
            let looks = Some(NOW.plus_ns(why.period_ns()));
            assert_eq!(agenda.sleep(NOW, None), looks, "{why:?}");
            assert!(
                !agenda.put(qpn(2), why, due),
                "the background thread checks soon"
            );
            agenda.wake();
            assert!(
                !agenda.put(qpn(3), why, NOW),
                "the background thread is awake"
            );
        }
    }

    #[test]
    fn who_posts_in_bursts_is_expected_to_go_on() {
        let agenda = empty();
        let due = NOW.plus_ns(Why::WaitingPost.patience_ns());
        agenda.put(qpn(1), Why::WaitingPost, due);
        agenda.done(qpn(1), Why::WaitingPost);
        let later = NOW.plus_ns(9 * WAIT_NS);
        assert_eq!(agenda.sleep(later, None), Some(later.plus_ns(WAIT_NS)));
        let later = NOW.plus_ns(11 * WAIT_NS);
        assert_eq!(agenda.sleep(later, None), None);
        let soon = later.plus_ns(7);
        assert_eq!(agenda.sleep(later, Some(soon)), Some(soon));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;

    fn empty() -> Agenda {
        let bell = sys::eventfd().expect("a descriptor");
        Agenda::new(std::sync::Arc::new(bell))
    }

    const NOW: Time = Time::from_ns(1_000);

    /// In every interleaving, an entry that was added is served in time. Either the background
    /// thread is woken, or it sleeps no longer than it may.
    #[test]
    fn loom_nothing_on_the_agenda_is_slept_over() {
        for timer in [false, true] {
            loom::model(move || {
                let agenda = Arc::new(empty());
                let due = NOW.plus_ns(Why::HeldAck.patience_ns());
                let application = {
                    let agenda = Arc::clone(&agenda);
                    loom::thread::spawn(move || {
                        if timer {
                            agenda.put_timer(Qpn::new(1), due)
                        } else {
                            agenda.put(Qpn::new(1), Why::HeldAck, due)
                        }
                    })
                };
                let until = agenda.sleep(NOW, None);
                let called = application.join().unwrap();
                assert!(called || until.is_some_and(|until| until <= due));
            });
        }
    }

    /// A QP is on a ready list exactly as long as its flag is set, however the threads that serve
    /// and enqueue it interleave.
    #[test]
    fn loom_a_flag_and_a_lane_say_the_same() {
        loom::model(|| {
            let agenda = Arc::new(empty());
            // The lock of the QP, with its number of pending work items and its flags.
            let qp = Arc::new(Mutex::default());
            let put = |agenda: &Agenda, qp: &Mutex<(u32, Listed)>| {
                let mut core = qp.lock();
                core.0 += 1;
                if core.1.insert(Why::NoRoom) {
                    agenda.put(Qpn::new(1), Why::NoRoom, NOW);
                }
            };
            put(&agenda, &qp);
            let other = {
                let (agenda, qp) = (Arc::clone(&agenda), Arc::clone(&qp));
                loom::thread::spawn(move || put(&agenda, &qp))
            };
            if let Some(qpn) = agenda.turn(Why::NoRoom) {
                let mut core = qp.lock();
                core.0 = 0;
                core.1.remove(Why::NoRoom);
                drop(core);
                agenda.done(qpn, Why::NoRoom);
            }
            other.join().unwrap();
            let core = qp.lock();
            assert_eq!(
                agenda.count(Why::NoRoom),
                usize::from(core.1.contains(Why::NoRoom))
            );
            assert!(core.0 == 0 || core.1.contains(Why::NoRoom), "forgotten");
        });
    }
}
