//! Holding acknowledgements back for a moment, where an answer is about to leave anyway.
//!
//! An acknowledgement costs as much as a message: a system call here, another one and perhaps an
//! awakening there. Where the application answers each message with one of its own, the two can
//! leave together (RC-ACK-01 lets an ACK wait). So each QP learns: after some messages in a row
//! that were answered at once, the next ACK is held. It leaves with the next request, or alone when
//! the application polls on without sending, when the hold is over ([`HOLD_NS`]), when the QP changes
//! or ends, and when the process exits. An ACK that had to leave alone ends the habit.

use std::mem::ManuallyDrop;
use std::process;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Once, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use rocade_transport::{AckTiming, Time};
use rocade_wire::{Psn, Qpn};

use super::handover::Driver;
use super::{EngineInner, sys};

/// How soon an answer has to follow a message to count as one.
const ANSWER_NS: u64 = 60_000;
/// Answers in a row that make a habit, at least.
const HABIT: u8 = 8;
/// More answers in a row do not make a habit stronger.
const FIRM_HABIT: u8 = 64;
/// How long an acknowledgement is held at least before it leaves alone: the background thread looks
/// that often. Well below the shortest ACK timeout that a requester of ours has.
pub(super) const HOLD_NS: u64 = 250_000;
/// A QP that has held nothing for so long is not looked after any more.
const FORGET_NS: u64 = 10_000_000;

/// QPs that may hold acknowledgements at a time: the background thread looks at each of them. In a
/// process with more conversations there is always something else to send.
const MAX_HOLDING: usize = 64;

/// What makes a QP transmit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// Packets were received, up to the end of a message.
    Received,
    /// Packets were received, up to the middle of a message.
    ReceivedPart,
    /// The application has posted sends.
    Posted,
    /// Anything else: a timer, a change of state, the end of a hold.
    Other,
}

/// What a QP knows of the application's habits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AckHold {
    /// Messages in a row that were answered at once.
    answered: u8,
    /// How many make a habit; more after each disappointment.
    habit: u8,
    /// When the message was acknowledged that waits for its answer.
    asked: Option<Time>,
    /// The acknowledgement held back, and since when.
    held: Option<(Psn, Time)>,
    /// When one was last held; somebody looks after the QP.
    last_held: Option<Time>,
}

impl Default for AckHold {
    fn default() -> Self {
        Self {
            answered: 0,
            habit: HABIT,
            asked: None,
            held: None,
            last_held: None,
        }
    }
}

impl AckHold {
    /// Is an answer expected to the message that was received?
    pub(super) const fn expects_answer(&self) -> bool {
        self.answered >= self.habit
    }

    /// Does somebody look after the QP?
    pub(super) const fn is_looked_after(&self) -> bool {
        self.last_held.is_some()
    }

    /// When a lone acknowledgement leaves.
    pub(super) const fn timing(&self, cause: Cause, may_hold: bool) -> AckTiming {
        match cause {
            Cause::Received if self.expects_answer() && may_hold => AckTiming::Later,
            // The peer waits for the answer: it has to be there before its own message is complete.
            Cause::Posted if self.answered > 0 => AckTiming::Last,
            Cause::Posted => AckTiming::Behind,
            Cause::Received | Cause::ReceivedPart | Cause::Other => AckTiming::Now,
        }
    }

    /// The QP has transmitted. `acked` tells whether an acknowledgement has left, `waiting` is the
    /// lone one that was held back. True where somebody has to look after the QP from now on.
    pub(super) fn transmitted(
        &mut self,
        cause: Cause,
        now: Time,
        acked: bool,
        waiting: Option<Psn>,
    ) -> bool {
        let was_held = self.held;
        self.held = waiting.map(|psn| (psn, was_held.map_or(now, |(_, since)| since)));
        match (cause, was_held, waiting) {
            (Cause::Received, None, Some(_)) => {
                let is_new = self.last_held.is_none();
                self.last_held = Some(now);
                return is_new;
            }
            // A second message before the answer to the first: that is no conversation.
            (Cause::Received, Some((held, _)), Some(psn)) if held != psn => self.disappoint(),
            (Cause::Received, None, None) if acked => {
                let unanswered = self.asked.replace(now).is_some();
                self.answered = if unanswered { 0 } else { self.answered };
            }
            (Cause::Posted, Some(_), None) => {
                self.was_answered();
                self.habit = self.habit.max(HABIT + 1) - 1;
            }
            (Cause::Posted, None, None) => {
                // A quick answer may take the ACK along before who received has come to send it.
                let asked = self.asked.take().or_else(|| acked.then_some(now));
                if let Some(asked) = asked {
                    if now.ns_since(asked) <= ANSWER_NS {
                        self.was_answered();
                    } else {
                        self.answered = 0;
                    }
                }
            }
            (Cause::Other | Cause::ReceivedPart, Some(_), _) => self.disappoint(),
            _ => {}
        }
        false
    }

    fn was_answered(&mut self) {
        self.answered = self.answered.saturating_add(1).min(FIRM_HABIT);
    }

    /// A firm habit survives one: the application, or its peer, may have been interrupted.
    fn disappoint(&mut self) {
        self.answered /= 4;
        if self.answered < self.habit {
            self.habit = self.habit.saturating_mul(2).min(FIRM_HABIT);
        }
    }

    /// Is an acknowledgement held back, and has been for so long?
    pub(super) fn holds_for(&self, ns: u64, now: Time) -> bool {
        self.held
            .is_some_and(|(_, since)| now.ns_since(since) >= ns)
    }

    /// Nothing was held for so long that nobody has to look after the QP; it says so when that
    /// changes.
    pub(super) fn forget(&mut self, now: Time) -> bool {
        let idle = self.held.is_none()
            && self
                .last_held
                .is_none_or(|last| now.ns_since(last) >= FORGET_NS);
        if idle {
            self.last_held = None;
        }
        idle
    }
}

impl EngineInner {
    /// The background thread looks after a QP from now on.
    pub(super) fn look_after(&self, qpn: Qpn) {
        let first = {
            let mut holding = self.holding.lock();
            holding.push(qpn);
            self.holding_count.store(holding.len(), Ordering::Relaxed);
            holding.len() == 1
        };
        if first {
            self.call_background();
        }
    }

    /// May one more QP be looked after?
    pub(super) fn can_look_after(&self) -> bool {
        self.holding_count.load(Ordering::Relaxed) < MAX_HOLDING
    }

    /// Does any QP hold acknowledgements now and then?
    pub(super) fn looks_after_acks(&self) -> bool {
        self.holding_count.load(Ordering::Relaxed) > 0
    }

    /// Sends the acknowledgements that have been held for so long.
    pub(super) fn release_acks(&self, held_ns: u64, driver: Driver) {
        if !self.looks_after_acks() {
            return;
        }
        let now = self.now();
        let holding = self.holding.lock().clone();
        for qpn in holding {
            let mut over = true;
            self.with_qp(qpn, |inner, core, mem| {
                if core.tx.hold().holds_for(held_ns, now) {
                    core.tx.announce_quiet_ack();
                    self.drain(inner, core, mem, Cause::Other, now, driver);
                }
                over = core.tx.hold().forget(now);
                if over {
                    core.tx.forget_will();
                }
            });
            if over {
                let mut holding = self.holding.lock();
                // Once: it may have been added again.
                if let Some(index) = holding.iter().position(|&other| other == qpn) {
                    holding.swap_remove(index);
                }
                self.holding_count.store(holding.len(), Ordering::Relaxed);
            }
        }
    }

    /// The process exits: sends what is held back, unless another thread is at it.
    fn release_acks_at_exit(&self) {
        const PATIENCE: Duration = Duration::from_millis(5);
        let Some(holding) = self.holding.try_lock_for(PATIENCE).map(|held| held.clone()) else {
            return;
        };
        let waiting = self.waiting.try_lock_for(PATIENCE).map(|held| held.clone());
        for qpn in holding.into_iter().chain(waiting.into_iter().flatten()) {
            let Some(qps) = self.qps.try_read_for(PATIENCE) else {
                return;
            };
            let Some(inner) = qps.get(qpn).cloned() else {
                continue;
            };
            drop(qps);
            let Some(mem) = self.regions().try_read_for(self.now(), PATIENCE) else {
                return;
            };
            if let Some(mut core) = inner.try_lock_for(PATIENCE) {
                let (now, driver) = (self.now(), Driver::Application);
                self.transmit(&inner, &mut core, &mem, Cause::Other, now, driver);
                // A child that lives on would keep the peer from noticing that we are gone.
                core.tx.announce_quiet_ack();
            }
        }
    }
}

/// Engines, and the processes that made them.
static ENGINES: Mutex<Vec<(u32, Weak<EngineInner>)>> = Mutex::new(Vec::new());

/// Sees to it that an engine's acknowledgements leave before the process exits.
pub(super) fn release_at_exit(engine: &Arc<EngineInner>) {
    static ONCE: Once = Once::new();
    let mut engines = ENGINES.lock();
    engines.retain(|(_, engine)| engine.strong_count() > 0);
    engines.push((process::id(), Arc::downgrade(engine)));
    drop(engines);
    ONCE.call_once(|| sys::at_exit(exiting));
}

/// The engines that a process has made. A forked child has copies of its parent's, whose rings and last
/// will the parent goes on using.
pub(super) fn engines_of(process: u32) -> Vec<Weak<EngineInner>> {
    let engines = ENGINES.try_lock().map(|engines| engines.clone());
    let own = |(maker, engine)| (maker == process).then_some(engine);
    engines.into_iter().flatten().filter_map(own).collect()
}

extern "C" fn exiting() {
    for engine in engines_of(process::id()) {
        // Should this be the last reference by now: nothing is taken apart at the exit.
        if let Some(engine) = engine.upgrade().map(ManuallyDrop::new) {
            engine.release_acks_at_exit();
            engine.publish_at_exit();
            engine.tap.flush();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn at(us: u64) -> Time {
        Time::from_ns(us * 1_000)
    }

    /// A message, acknowledged or held as the QP wants, at a time in µs; true where it was held.
    fn message(hold: &mut AckHold, psn: u32, us: u64) -> bool {
        let held = hold.timing(Cause::Received, true) == AckTiming::Later;
        hold.transmitted(Cause::Received, at(us), !held, held.then(|| Psn::new(psn)));
        held
    }

    fn answer(hold: &mut AckHold, us: u64) {
        assert_ne!(hold.timing(Cause::Posted, true), AckTiming::Now);
        hold.transmitted(Cause::Posted, at(us), true, None);
    }

    /// A conversation of some messages, 10 µs apart; how many acknowledgements were held.
    fn converse(hold: &mut AckHold, from_us: u64, count: u64) -> u64 {
        let mut held = 0;
        for index in 0..count {
            let us = from_us + 10 * index;
            held += u64::from(message(hold, 0, us));
            answer(hold, us + 2);
        }
        held
    }

    #[test]
    fn only_conversations_hold_acknowledgements() {
        let mut hold = AckHold::default();
        assert_eq!(converse(&mut hold, 0, 20), 12, "all after eight answers");
        let mut hold = AckHold::default();
        for index in 0..100 {
            assert!(!message(&mut hold, 0, index), "nobody answers");
        }
        for index in 0..100 {
            assert!(!message(&mut hold, 0, index * 200));
            answer(&mut hold, index * 200 + 100);
        }
        assert!(!message(&mut hold, 0, 30_000), "the answers came late");
        let mut hold = AckHold::default();
        converse(&mut hold, 0, 8);
        assert_eq!(hold.timing(Cause::Received, false), AckTiming::Now);
    }

    #[test]
    fn an_answer_that_takes_the_acknowledgement_along_counts() {
        let mut hold = AckHold::default();
        for index in 0..8 {
            // The poster was faster than the thread that has received.
            hold.transmitted(Cause::Posted, at(10 * index), true, None);
            hold.transmitted(Cause::Received, at(10 * index + 1), false, None);
        }
        assert!(message(&mut hold, 0, 100));
    }

    #[test]
    fn long_messages_are_acknowledged_on_the_way() {
        let mut hold = AckHold::default();
        converse(&mut hold, 0, 8);
        for us in 100..110 {
            assert_eq!(hold.timing(Cause::ReceivedPart, true), AckTiming::Now);
            hold.transmitted(Cause::ReceivedPart, at(us), true, None);
        }
        assert!(message(&mut hold, 0, 110), "the end of it is held");
        assert_eq!(hold.timing(Cause::Posted, true), AckTiming::Last);
        hold.transmitted(Cause::ReceivedPart, at(111), true, None);
        assert!(!message(&mut hold, 1, 120), "another one before the answer");
    }

    #[test]
    fn a_hold_ends_and_is_a_disappointment() {
        let mut hold = AckHold::default();
        converse(&mut hold, 0, 8);
        assert!(message(&mut hold, 0, 100));
        assert!(!hold.holds_for(HOLD_NS, at(300)));
        assert!(hold.holds_for(HOLD_NS, at(350)));
        assert_eq!(hold.timing(Cause::Other, true), AckTiming::Now);
        hold.transmitted(Cause::Other, at(350), true, None);
        assert!(!hold.holds_for(0, at(350)));
        assert_eq!(converse(&mut hold, 400, 14), 0, "two count, of sixteen");
        assert_eq!(converse(&mut hold, 600, 10), 10);
    }

    #[test]
    fn a_firm_habit_survives_interruptions() {
        let mut hold = AckHold::default();
        assert_eq!(converse(&mut hold, 0, 100), 92);
        for us in [1_100, 1_500] {
            assert!(message(&mut hold, 0, us));
            hold.transmitted(Cause::Other, at(us + 300), true, None);
        }
        assert!(!message(&mut hold, 0, 2_000));
    }

    #[test]
    fn a_stream_is_no_conversation() {
        let mut hold = AckHold::default();
        converse(&mut hold, 0, 8);
        assert!(message(&mut hold, 1, 100));
        assert!(message(&mut hold, 2, 101), "the second is noticed");
        assert!(!message(&mut hold, 3, 102));
        assert!(!hold.holds_for(0, at(102)), "it has left with the third");
    }

    #[test]
    fn somebody_looks_after_a_qp_as_long_as_needed() {
        let mut hold = AckHold::default();
        converse(&mut hold, 0, 8);
        let psn = Some(Psn::new(0));
        assert!(hold.transmitted(Cause::Received, at(100), false, psn));
        assert!(!hold.forget(at(100)));
        answer(&mut hold, 101);
        assert!(!hold.transmitted(Cause::Received, at(110), false, psn));
        answer(&mut hold, 111);
        assert!(!hold.forget(at(200)));
        assert!(hold.forget(at(110 + FORGET_NS / 1_000)));
        assert!(hold.transmitted(Cause::Received, at(50_000), false, psn));
        const { assert!(HOLD_NS < MS, "the shortest ACK timeout") };
    }
}
