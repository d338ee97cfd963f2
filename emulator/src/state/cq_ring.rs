//! The completions of a CQ in order, its arming and the moderation of its events.

use std::collections::VecDeque;

use rocade_transport::{Completion, Time, WcStatus, has_reached};
use rocade_wire::Qpn;

/// The kind of completion that the next event waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Armed {
    No,
    Solicited,
    Next,
}

/// The effect of adding a completion on the completion event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EventAction {
    /// No event is due.
    None,
    /// A completion event is due.
    Now,
    /// An event is due at this time, unless enough other completions come before.
    At(Time),
    /// The CQ is full and the completion is lost.
    Overflow,
}

#[derive(Debug)]
pub(crate) struct CqRing {
    entries: VecDeque<CqEntry>,
    /// Number of the next completion.
    next: u64,
    /// Number of the first completion that came after the last event.
    notified: u64,
    /// Room reserved for completions that are about to come.
    reserved: usize,
    capacity: usize,
    armed: Armed,
    /// A completion was lost. All later ones are lost too.
    overrun: bool,
    /// There is always space: a new completion replaces the oldest one.
    ignores_overrun: bool,
    moderation: Moderation,
    /// QPs that wait for a number of completions.
    waiters: Vec<(u32, Qpn)>,
}

/// Interrupt moderation: how long an event is held for further completions (`ibv_modify_cq`).
#[derive(Clone, Copy, Debug, Default)]
struct Moderation {
    /// Number of completions that raise an event at once. 0 and 1: each completion does.
    count: u32,
    /// Longest time that an event is held after the first completion. 0: it is not held.
    period_ns: u64,
    /// Completions since the CQ was armed that would have caused the event.
    held: u32,
    /// Time at which the held event is raised.
    due: Option<Time>,
    /// Time at which the background thread checks the CQ. Until then it need not be told of a later
    /// time.
    checked_at: Option<Time>,
}

impl Moderation {
    const fn is_on(&self) -> bool {
        self.count > 1 && self.period_ns > 0
    }

    /// Holds the event until `due`.
    fn wait_until(&mut self, due: Time) -> EventAction {
        self.due = Some(due);
        if self.checked_at.is_some_and(|at| at <= due) {
            return EventAction::None;
        }
        self.checked_at = Some(due);
        EventAction::At(due)
    }
}

#[derive(Debug)]
struct CqEntry {
    number: u64,
    completion: Completion,
}

impl CqRing {
    pub(crate) fn new(capacity: usize, ignores_overrun: bool) -> Self {
        Self {
            entries: VecDeque::new(),
            next: 0,
            notified: 0,
            reserved: 0,
            capacity,
            armed: Armed::No,
            overrun: false,
            ignores_overrun,
            moderation: Moderation::default(),
            waiters: Vec::new(),
        }
    }

    /// See [`CqInner::ignore_overrun`](super::CqInner::ignore_overrun).
    pub(super) const fn ignore_overrun(&mut self) {
        self.ignores_overrun = true;
    }

    /// Returns true if there were `until` completions, modulo 2^32. Otherwise registers `waiter` as
    /// a waiter.
    pub(super) fn has_produced(&mut self, until: u32, waiter: Qpn) -> bool {
        self.forget_waiter(waiter);
        let reached = has_reached(self.produced(), until);
        if !reached {
            self.waiters.push((until, waiter));
        }
        reached
    }

    #[expect(clippy::cast_possible_truncation, reason = "counted modulo 2^32")]
    const fn produced(&self) -> u32 {
        self.next as u32
    }

    pub(super) fn forget_waiter(&mut self, waiter: Qpn) {
        self.waiters.retain(|(_, other)| *other != waiter);
    }

    /// Removes the waiters whose number of completions is reached, and calls `wake` for each.
    #[inline]
    pub(super) fn take_waiters(&mut self, wake: impl Fn(Qpn)) {
        if !self.waiters.is_empty() {
            let produced = self.produced();
            let done = |(until, _): &mut (u32, Qpn)| has_reached(produced, *until);
            self.waiters
                .extract_if(.., done)
                .for_each(|(_, waiter)| wake(waiter));
        }
    }

    pub(super) const fn capacity(&self) -> usize {
        self.capacity
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Number of the oldest completion that was neither taken nor dropped. Numbers start at 0.
    pub(super) fn oldest(&self) -> u64 {
        self.entries.front().map_or(self.next, |entry| entry.number)
    }

    /// Number of the next completion that is added.
    pub(super) const fn next(&self) -> u64 {
        self.next
    }

    /// Lets later completions be lost, as if there were no space.
    pub(super) const fn overrun(&mut self) {
        self.overrun = true;
    }

    /// Returns true if a completion was lost.
    pub(super) const fn is_overrun(&self) -> bool {
        self.overrun
    }

    fn space(&self) -> usize {
        if self.ignores_overrun {
            return usize::MAX;
        }
        if self.overrun {
            return 0;
        }
        let taken = self.entries.len() + self.reserved;
        self.capacity.saturating_sub(taken)
    }

    /// Reserves space for `count` completions that are about to come. Where there is space for
    /// fewer, the rest will be lost. Returns for how many space was reserved.
    pub(super) fn reserve(&mut self, count: usize) -> usize {
        let granted = count.min(self.space());
        self.reserved += granted;
        self.overrun |= granted < count;
        granted
    }

    /// Releases space that was reserved for `count` completions.
    pub(super) const fn release_reserved(&mut self, count: usize) {
        self.reserved -= count;
    }

    /// Adds a completion that space was reserved for.
    pub(super) fn add_reserved(&mut self, completion: Completion) -> EventAction {
        self.reserved -= 1;
        self.put(completion)
    }

    /// Adds a completion, if there is space.
    //= CQ-02
    pub(super) fn add(&mut self, completion: Completion) -> EventAction {
        if self.space() == 0 {
            self.overrun = true;
            return EventAction::Overflow;
        }
        self.put(completion)
    }

    /// Adds a completion. An event is due if the CQ is armed for it, and arming is one shot.
    //= CQ-06
    fn put(&mut self, completion: Completion) -> EventAction {
        //= CQX-06
        if self.ignores_overrun && self.entries.len() >= self.capacity {
            self.entries.pop_front();
        }
        let solicited = is_solicited(&completion);
        self.entries.push_back(CqEntry {
            number: self.next,
            completion,
        });
        self.next += 1;
        match self.armed {
            Armed::Next => {}
            Armed::Solicited if solicited => {}
            Armed::Solicited | Armed::No => return EventAction::None,
        }
        if self.moderation.is_on()
            && let Some(waits) = self.hold_event(completion.timestamp_ns)
        {
            return waits;
        }
        self.raise()
    }

    /// Disarms the CQ, and returns its event.
    const fn raise(&mut self) -> EventAction {
        self.disarm();
        self.notified = self.next;
        EventAction::Now
    }

    /// Holds the event while there are fewer completions than the moderation demands. Returns
    /// `None` if it is due now.
    //= CQ-10
    fn hold_event(&mut self, now_ns: u64) -> Option<EventAction> {
        let moderation = &mut self.moderation;
        moderation.held += 1;
        if moderation.held >= moderation.count {
            return None;
        }
        if moderation.due.is_some() {
            return Some(EventAction::None);
        }
        let due = Time::from_ns(now_ns).plus_ns(moderation.period_ns);
        Some(moderation.wait_until(due))
    }

    /// Returns the held event if it is due. Called when the background thread checks the CQ.
    pub(super) fn take_due(&mut self, now: Time) -> EventAction {
        self.moderation.checked_at = None;
        match self.moderation.due {
            None => EventAction::None,
            Some(due) if due > now => self.moderation.wait_until(due),
            Some(_) => self.raise(),
        }
    }

    /// Changes how many completions an event is held for, and for how long. The period of a held
    /// event restarts at `now`.
    pub(super) fn moderate(&mut self, count: u32, period_ns: u64, now: Time) -> EventAction {
        let moderation = &mut self.moderation;
        moderation.count = count;
        moderation.period_ns = period_ns;
        if moderation.due.is_none() {
            return EventAction::None;
        }
        if !moderation.is_on() || moderation.held >= count {
            return self.raise();
        }
        moderation.wait_until(now.plus_ns(period_ns))
    }

    /// Disarms the CQ and drops a held event.
    pub(super) const fn disarm(&mut self) {
        self.armed = Armed::No;
        self.moderation.held = 0;
        self.moderation.due = None;
    }

    pub(super) fn take(&mut self) -> Option<Completion> {
        self.entries.pop_front().map(|entry| entry.completion)
    }

    /// Returns true if an event may come.
    pub(super) const fn is_armed(&self) -> bool {
        !matches!(self.armed, Armed::No)
    }

    /// Arms the CQ. Entries already there cause no event, and NEXT is never downgraded.
    //= CQ-05 CQ-07
    pub(super) fn arm(&mut self, solicited_only: bool) {
        self.armed = match (self.armed, solicited_only) {
            (_, false) | (Armed::Next, true) => Armed::Next,
            (_, true) => Armed::Solicited,
        };
    }

    /// Returns the event for completions that are in the CQ already and have had none, as if they
    /// came now. Arming is one shot.
    pub(super) fn event_for_present(&mut self) -> EventAction {
        let solicited_only = self.armed == Armed::Solicited;
        let notified = self.notified;
        let counts = |entry: &&CqEntry| {
            entry.number >= notified && (!solicited_only || is_solicited(&entry.completion))
        };
        let mut counted = self.entries.iter().filter(counts);
        let Some(oldest) = counted.next() else {
            return EventAction::None;
        };
        if self.moderation.is_on() {
            let since = oldest.completion.timestamp_ns;
            let others = counted.take(self.moderation.count as usize).count();
            (self.moderation.held, self.moderation.due) = (0, None);
            let mut held = EventAction::None;
            for _ in 0..=others {
                match self.hold_event(since) {
                    Some(EventAction::None) => {}
                    Some(waits) => held = waits,
                    None => return self.raise(),
                }
            }
            return held;
        }
        self.raise()
    }

    /// Changes the size. Returns false if the entries would not fit.
    pub(super) fn resize(&mut self, capacity: usize) -> bool {
        if capacity < self.entries.len() + self.reserved {
            return false;
        }
        self.capacity = capacity;
        true
    }

    /// Drops the entries that `keep` rejects.
    pub(super) fn retain(&mut self, keep: impl Fn(&Completion) -> bool) {
        self.entries.retain(|entry| keep(&entry.completion));
    }
}

/// Returns true for a completion that an event for solicited ones is due for.
//= CQ-06
fn is_solicited(completion: &Completion) -> bool {
    completion.status != WcStatus::Success || (completion.solicited && !completion.is_send())
}

#[cfg(test)]
pub(super) fn test_completion(wr_id: u64, solicited: bool, status: WcStatus) -> Completion {
    use rocade_transport::{CompleteTo, ImmOrInv, WcFlags, WcOpcode};
    use rocade_wire::Qpn;
    Completion {
        wr_id,
        status,
        opcode: WcOpcode::Recv,
        byte_len: 0,
        qp_num: Qpn::new(2),
        src_qp: Qpn::new(0),
        imm_or_inv: ImmOrInv::None,
        wc_flags: WcFlags::empty(),
        vendor_err: 0,
        sl: 0,
        to: CompleteTo::RecvCq,
        solicited,
        srqn: rocade_transport::Srqn::NONE,
        freed_wqes: 1,
        timestamp_ns: 0,
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use rocade_transport::CompleteTo;

    use super::*;

    fn plain(wr_id: u64) -> Completion {
        test_completion(wr_id, false, WcStatus::Success)
    }

    //= CQ-03 type=test
    #[test]
    fn order_and_overflow() {
        let mut ring = CqRing::new(2, false);
        assert_eq!(ring.add(plain(1)), EventAction::None);
        assert_eq!(ring.add(plain(2)), EventAction::None);
        assert!(!ring.is_overrun());
        assert_eq!(ring.add(plain(3)), EventAction::Overflow);
        assert!(ring.is_overrun());
        assert_eq!(ring.take().map(|c| c.wr_id), Some(1));
        //= CQ-02 type=test
        assert_eq!(
            ring.add(plain(4)),
            EventAction::Overflow,
            "an error is for good"
        );
        assert_eq!(ring.take().map(|c| c.wr_id), Some(2));
        assert!(ring.take().is_none());
    }

    #[test]
    fn completions_are_numbered_whatever_becomes_of_them() {
        let mut ring = CqRing::new(4, false);
        assert_eq!(ring.oldest(), 0);
        for wr_id in 0..4 {
            assert_eq!(ring.add(plain(wr_id)), EventAction::None);
        }
        assert_eq!(ring.oldest(), 0);
        ring.retain(|completion| completion.wr_id != 1);
        ring.take();
        assert_eq!(ring.oldest(), 2);
        ring.retain(|completion| completion.wr_id == 3);
        assert_eq!(ring.oldest(), 3);
        ring.take();
        assert_eq!(ring.oldest(), 4);
    }

    //= RC-ERR-G type=test
    #[test]
    fn reserved_room_is_kept() {
        let mut ring = CqRing::new(2, false);
        assert_eq!(ring.reserve(1), 1);
        assert_eq!(ring.add(plain(1)), EventAction::None);
        assert_eq!(ring.reserve(2), 0);
        assert!(ring.is_overrun());
        assert_eq!(ring.add(plain(2)), EventAction::Overflow);
        assert!(!ring.resize(1));
        assert_eq!(ring.add_reserved(plain(3)), EventAction::None);
        assert_eq!(ring.take().map(|c| c.wr_id), Some(1));
        assert_eq!(ring.take().map(|c| c.wr_id), Some(3));
    }

    //= CQ-05 type=test
    //= CQ-06 type=test
    //= CQ-07 type=test
    #[test]
    fn arming() {
        let solicited = test_completion(0, true, WcStatus::Success);
        let failed = test_completion(0, false, WcStatus::WrFlushErr);
        let sent = Completion {
            to: CompleteTo::SendCq,
            ..solicited
        };
        let mut ring = CqRing::new(64, false);
        ring.add(plain(0));
        ring.arm(true);
        assert_eq!(ring.add(plain(0)), EventAction::None, "not solicited");
        assert_eq!(
            ring.add(sent),
            EventAction::None,
            "solicited counts on receives only"
        );
        assert_eq!(ring.add(solicited), EventAction::Now);
        assert_eq!(ring.add(solicited), EventAction::None, "arming is one shot");
        ring.arm(true);
        assert_eq!(
            ring.add(failed),
            EventAction::Now,
            "errors count as solicited"
        );
        ring.arm(false);
        ring.arm(true);
        assert_eq!(
            ring.add(plain(0)),
            EventAction::Now,
            "NEXT is not downgraded"
        );
    }

    #[test]
    fn completions_before_the_arming_count_where_asked_for() {
        let mut ring = CqRing::new(64, false);
        ring.arm(false);
        assert_eq!(ring.event_for_present(), EventAction::None, "it is empty");
        ring.disarm();
        ring.add(plain(0));
        ring.arm(true);
        assert_eq!(ring.event_for_present(), EventAction::None, "not solicited");
        ring.arm(false);
        assert_eq!(ring.event_for_present(), EventAction::Now);
        ring.arm(false);
        assert_eq!(ring.event_for_present(), EventAction::None, "it had one");
        assert_eq!(ring.add(plain(1)), EventAction::Now, "it stays armed");
        ring.add(test_completion(2, true, WcStatus::Success));
        for event in [EventAction::Now, EventAction::None] {
            ring.arm(true);
            assert_eq!(ring.event_for_present(), event);
        }
    }

    #[test]
    fn completions_before_the_arming_are_moderated() {
        let mut ring = CqRing::new(64, false);
        ring.moderate(3, 1_000, Time::from_ns(0));
        ring.add(at(5));
        ring.add(at(6));
        ring.arm(false);
        let due = EventAction::At(Time::from_ns(1_005));
        assert_eq!(ring.event_for_present(), due);
        ring.arm(false);
        assert_eq!(ring.event_for_present(), EventAction::None, "still held");
        assert_eq!(ring.add(at(7)), EventAction::Now, "the third");
        for timestamp_ns in 8..11 {
            ring.add(at(timestamp_ns));
        }
        ring.arm(false);
        assert_eq!(ring.event_for_present(), EventAction::Now, "three more");
    }

    fn at(timestamp_ns: u64) -> Completion {
        Completion {
            timestamp_ns,
            ..plain(0)
        }
    }

    //= CQ-10 type=test
    #[test]
    fn an_event_waits_for_company_or_until_its_time() {
        let time = Time::from_ns;
        let mut ring = CqRing::new(64, false);
        assert_eq!(ring.moderate(3, 1_000, time(0)), EventAction::None);
        assert_eq!(ring.add(at(5)), EventAction::None, "not armed");
        ring.arm(false);
        assert_eq!(ring.add(at(10)), EventAction::At(time(1_010)));
        assert_eq!(
            ring.add(at(20)),
            EventAction::None,
            "an event is held already"
        );
        assert_eq!(ring.add(at(30)), EventAction::Now, "the third");
        assert_eq!(ring.add(at(40)), EventAction::None, "arming is one shot");

        ring.arm(false);
        assert_eq!(
            ring.add(at(50)),
            EventAction::None,
            "the CQ is checked before"
        );
        assert_eq!(ring.take_due(time(1_010)), EventAction::At(time(1_050)));
        assert_eq!(ring.take_due(time(1_050)), EventAction::Now);
        assert_eq!(
            ring.take_due(time(1_051)),
            EventAction::None,
            "arming is one shot"
        );
        assert_eq!(ring.add(at(60)), EventAction::None);

        ring.arm(true);
        assert_eq!(ring.add(at(70)), EventAction::None, "not solicited");
        let solicited = test_completion(0, true, WcStatus::Success);
        assert_eq!(ring.add(solicited), EventAction::At(time(1_000)));
        assert_eq!(ring.moderate(3, 7, time(100)), EventAction::At(time(107)));
        assert_eq!(
            ring.moderate(0, 0, time(101)),
            EventAction::Now,
            "no longer"
        );
        assert_eq!(ring.moderate(0, 0, time(101)), EventAction::None);
        ring.arm(false);
        assert_eq!(ring.add(at(200)), EventAction::Now);
    }

    #[test]
    fn moderation_takes_both_a_count_and_a_period() {
        for (count, period_ns) in [(0, 0), (1, 1_000), (0, 1_000), (9, 0)] {
            let mut ring = CqRing::new(64, false);
            ring.moderate(count, period_ns, Time::from_ns(0));
            ring.arm(false);
            assert_eq!(ring.add(at(1)), EventAction::Now, "{count}, {period_ns} ns");
        }
    }

    #[test]
    fn an_event_that_waits_goes_with_the_arming() {
        let mut ring = CqRing::new(64, false);
        ring.moderate(2, 10, Time::from_ns(0));
        ring.arm(false);
        ring.add(at(1));
        ring.disarm();
        assert_eq!(ring.take_due(Time::from_ns(99)), EventAction::None);
        ring.arm(false);
        assert_eq!(ring.add(at(2)), EventAction::At(Time::from_ns(12)));
    }

    //= CQ-02 type=test
    //= CQX-06 type=test
    #[test]
    fn a_cq_that_ignores_overruns_loses_the_oldest() {
        let mut ring = CqRing::new(2, true);
        assert_eq!(ring.reserve(5), 5);
        for wr_id in 0..5 {
            assert_eq!(ring.add_reserved(plain(wr_id)), EventAction::None);
        }
        assert_eq!(ring.add(plain(5)), EventAction::None);
        assert!(!ring.is_overrun());
        assert_eq!(
            (ring.len(), ring.oldest()),
            (2, 4),
            "and their slots are free"
        );
        assert_eq!(ring.take().map(|c| c.wr_id), Some(4));
        assert_eq!(ring.take().map(|c| c.wr_id), Some(5));
        assert!(ring.take().is_none());
    }

    //= CQ-04 type=test
    #[test]
    fn resizing_keeps_entries() {
        let mut ring = CqRing::new(4, false);
        ring.add(plain(1));
        ring.add(plain(2));
        assert!(!ring.resize(1));
        assert!(ring.resize(2));
        assert_eq!(ring.add(plain(3)), EventAction::Overflow);
        assert_eq!(ring.take().map(|c| c.wr_id), Some(1));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::{Arc, Condvar, Mutex};

    use super::*;

    /// An event queue reduced to one flag: an event is pending.
    struct Events {
        waiting: Mutex<bool>,
        arrived: Condvar,
    }

    /// The consumer polls, arms, polls again and sleeps. In every interleaving with a producer, no
    /// completion stays unseen while the consumer sleeps.
    #[test]
    fn loom_no_completion_is_missed() {
        loom::model(|| {
            let ring = Arc::new(Mutex::new(CqRing::new(4, false)));
            let events = Arc::new(Events {
                waiting: Mutex::new(false),
                arrived: Condvar::new(),
            });
            let producer = {
                let (ring, events) = (Arc::clone(&ring), Arc::clone(&events));
                loom::thread::spawn(move || {
                    let completion = test_completion(1, false, WcStatus::Success);
                    let added = ring.lock().unwrap().add(completion);
                    if added == EventAction::Now {
                        *events.waiting.lock().unwrap() = true;
                        events.arrived.notify_one();
                    }
                })
            };
            let poll = || ring.lock().unwrap().take();
            let mut seen = poll();
            if seen.is_none() {
                ring.lock().unwrap().arm(false);
                seen = poll();
            }
            if seen.is_none() {
                let mut waiting = events.waiting.lock().unwrap();
                while !*waiting {
                    waiting = events.arrived.wait(waiting).unwrap();
                }
                drop(waiting);
                seen = poll();
            }
            assert_eq!(seen.map(|c| c.wr_id), Some(1));
            producer.join().unwrap();
        });
    }
}
