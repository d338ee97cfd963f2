//! The policy of a thread whose polls find nothing. It reads no clock.
//!
//! At first the thread just polls. After some microseconds it yields its processor with each
//! further poll, and the duration of the yield is measured. Without another runnable thread a yield
//! takes less than a microsecond. A long yield shows that the processors are busy. A thread that
//! yields then runs again only when the other threads have used up their time slices, whether or
//! not its packet has arrived. A packet wakes a sleeping thread at once. After a long yield the
//! thread therefore sleeps, for a bounded time, until the processors have been idle for a while.
//!
//! Every now and then a yield tests whether the processors are still busy. The system's count of
//! runnable threads may be that of a larger machine than this process may use.

use rocade_transport::Time;

use crate::tuning::{
    CONTENDED_FOR_NS, CONTENDED_YIELD_NS, FIRST_SLEEP_NS, IDLE_CHECK_NS, MAX_CONTENDED_DOUBLINGS,
    MAX_SPURIOUS_WAKES, SLEEP_DOUBLINGS, UNCONTENDED_NS,
};

/// The step of a thread whose polls have found nothing for some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IdleStep {
    /// Yield the processor, and poll again.
    Yield,
    /// Sleep until something arrives, but not longer than this.
    Sleep { limit_ns: u64 },
}

/// The sleeps of a thread that have found nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sleeps {
    /// Sleeps in a row that ended with a timeout.
    empty: u32,
    /// Sleeps in a row that ended at once without anything to do.
    spurious: u32,
}

impl Sleeps {
    pub(super) const NONE: Self = Self {
        empty: 0,
        spurious: 0,
    };

    /// Returns these with a sleep of at most `limit_ns` that took `took_ns`. `found`: there was
    /// something to receive or to poll.
    #[must_use]
    pub(super) const fn slept(self, limit_ns: u64, took_ns: u64, found: bool) -> Self {
        if found {
            Self::NONE
        } else if took_ns >= limit_ns {
            Self {
                empty: self.empty.saturating_add(1),
                spurious: 0,
            }
        } else {
            Self {
                spurious: self.spurious + 1,
                ..self
            }
        }
    }
}

/// Chooses between the two steps. Shared by all threads of an engine.
#[derive(Debug, Default)]
pub(super) struct IdlePolicy {
    /// Time until which the processors count as busy.
    contended_until: Option<Time>,
    /// Number of doublings of that period.
    contended_doublings: u32,
    /// Time at which the system is asked again for idle processors.
    ask_at: Option<Time>,
    /// Time since which every query has found idle processors.
    idle_since: Option<Time>,
}

impl IdlePolicy {
    /// Returns true if the processors count as busy: pollers sleep soon.
    pub(super) const fn is_contended(&self) -> bool {
        self.contended_until.is_some()
    }

    /// Returns the step at `now` of a thread with these sleeps. Calls `has_idle_processors` only if
    /// the answer matters.
    pub(super) fn next(
        &mut self,
        now: Time,
        sleeps: &mut Sleeps,
        has_idle_processors: impl FnOnce() -> bool,
    ) -> IdleStep {
        let Some(until) = self.contended_until else {
            return IdleStep::Yield;
        };
        if self.ask_at.is_none_or(|at| at <= now) {
            self.ask_at = Some(now.plus_ns(IDLE_CHECK_NS));
            self.idle_since = has_idle_processors().then(|| self.idle_since.unwrap_or(now));
        }
        let is_free = |since: Time| now.ns_since(since) >= UNCONTENDED_NS;
        if self.idle_since.is_some_and(is_free) {
            *self = Self::default();
            return IdleStep::Yield;
        }
        // The duration of the yield decides how long the processors still count as busy.
        if until <= now {
            return IdleStep::Yield;
        }
        if sleeps.spurious >= MAX_SPURIOUS_WAKES {
            sleeps.spurious = 0;
            return IdleStep::Yield;
        }
        IdleStep::Sleep {
            limit_ns: FIRST_SLEEP_NS << sleeps.empty.min(SLEEP_DOUBLINGS),
        }
    }

    /// Records a yield that took `took_ns` and ended at `now`.
    pub(super) fn yielded(&mut self, now: Time, took_ns: u64) {
        if took_ns >= CONTENDED_YIELD_NS {
            let doublings = self.contended_doublings;
            self.contended_doublings = (doublings + 1).min(MAX_CONTENDED_DOUBLINGS);
            self.contended_until = Some(now.plus_ns(CONTENDED_FOR_NS << doublings));
            self.idle_since = None;
        } else if self.contended_until.is_some_and(|until| until <= now) {
            *self = Self::default();
        }
    }
}

#[cfg(all(test, not(loom)))]
/// The step of a thread that has not slept.
fn next(
    policy: &mut IdlePolicy,
    now: Time,
    has_idle_processors: impl FnOnce() -> bool,
) -> IdleStep {
    policy.next(now, &mut Sleeps::default(), has_idle_processors)
}

#[cfg(all(test, not(loom)))]
mod sequences;
#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn at(us: u64) -> Time {
        Time::from_ns(us * 1_000)
    }

    const fn sleep(us: u64) -> IdleStep {
        IdleStep::Sleep {
            limit_ns: us * 1_000,
        }
    }

    /// A policy after a long yield that ended at 0.
    fn contended() -> IdlePolicy {
        let mut policy = IdlePolicy::default();
        policy.yielded(Time::ZERO, CONTENDED_YIELD_NS);
        policy
    }

    #[test]
    fn no_poller_sleeps_while_yields_are_short() {
        let mut policy = IdlePolicy::default();
        for us in 0..1_000_000 {
            let step = next(&mut policy, at(us), || {
                panic!("the system must not be asked")
            });
            assert_eq!(step, IdleStep::Yield);
            policy.yielded(at(us), CONTENDED_YIELD_NS - 1);
        }
        assert!(!policy.is_contended());
    }

    #[test]
    fn a_long_yield_makes_the_next_polls_sleep() {
        let mut policy = contended();
        assert!(policy.is_contended());
        for us in 0..CONTENDED_FOR_NS / 1_000 {
            assert_eq!(next(&mut policy, at(us), || false), sleep(125));
        }
    }

    #[test]
    fn empty_sleeps_become_longer_until_a_packet_comes() {
        let (mut policy, mut sleeps) = (contended(), Sleeps::default());
        for us in [125, 250, 500, 1_000, 1_000] {
            assert_eq!(policy.next(at(1), &mut sleeps, || false), sleep(us));
            sleeps = sleeps.slept(us * 1_000, us * 1_000 + 50, false);
        }
        let mut others = Sleeps::default();
        let step = policy.next(at(1), &mut others, || false);
        assert_eq!(step, sleep(125), "another thread has its own sleeps");
        sleeps = sleeps.slept(1_000_000, 3_000, true);
        assert_eq!(policy.next(at(1), &mut sleeps, || false), sleep(125));
    }

    #[test]
    fn idle_processors_end_it_when_they_stay_idle() {
        let mut policy = contended();
        let free_us = UNCONTENDED_NS / 1_000;
        assert_eq!(next(&mut policy, at(1), || true), sleep(125));
        assert_eq!(next(&mut policy, at(free_us), || true), sleep(125));
        assert_eq!(
            next(&mut policy, at(free_us + 1_000), || false),
            sleep(125),
            "not all the time"
        );
        assert_eq!(next(&mut policy, at(2 * free_us), || true), sleep(125));
        assert_eq!(next(&mut policy, at(3 * free_us), || true), IdleStep::Yield);
        assert!(!policy.is_contended());
    }

    #[test]
    fn an_occasional_yield_measures_the_contention() {
        let mut policy = contended();
        let mut now = Time::ZERO;
        let mut lengths = Vec::new();
        for _ in 0..10 {
            let begin = now;
            while next(&mut policy, now, || false) != IdleStep::Yield {
                now = now.plus_ns(1_000_000);
            }
            lengths.push(now.ns_since(begin));
            assert!(policy.is_contended());
            policy.yielded(now, 5_000_000);
        }
        assert_eq!(lengths[0], CONTENDED_FOR_NS);
        assert_eq!(
            lengths[9],
            CONTENDED_FOR_NS << MAX_CONTENDED_DOUBLINGS,
            "seldom"
        );
        // Whatever the system reports about other processors, this one is idle.
        while next(&mut policy, now, || false) != IdleStep::Yield {
            now = now.plus_ns(1_000_000);
        }
        policy.yielded(now, 300);
        assert!(!policy.is_contended());
        policy.yielded(now, CONTENDED_YIELD_NS);
        assert_eq!(next(&mut policy, now, || false), sleep(125));
        assert_eq!(
            next(&mut policy, now.plus_ns(CONTENDED_FOR_NS), || false),
            IdleStep::Yield
        );
    }

    /// The application may have closed the descriptors that its threads would sleep on.
    #[test]
    fn spurious_wakes_lead_to_yields() {
        let (mut policy, mut sleeps) = (contended(), Sleeps::default());
        let steps = (0..100).map(|_| {
            let step = policy.next(at(1), &mut sleeps, || false);
            sleeps = sleeps.slept(125_000, 200, false);
            step
        });
        let yields = steps.filter(|step| *step == IdleStep::Yield).count();
        assert!(yields >= 20, "{yields}");
    }
}
