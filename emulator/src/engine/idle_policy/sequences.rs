//! Longer sequences of yields and sleeps.

use super::*;

fn at(ns: u64) -> Time {
    Time::from_ns(ns)
}

fn sleeps(step: IdleStep) -> bool {
    matches!(step, IdleStep::Sleep { .. })
}

/// A long yield shows that the processors are busy, whatever the system has reported before: they
/// have to be idle for the whole period again.
#[test]
fn a_long_yield_restarts_the_idle_period() {
    let mut policy = IdlePolicy::default();
    policy.yielded(at(0), CONTENDED_YIELD_NS);
    assert!(sleeps(next(&mut policy, at(1), || true)));
    let busy = UNCONTENDED_NS - 1;
    policy.yielded(at(busy), CONTENDED_YIELD_NS);
    let again = UNCONTENDED_NS + IDLE_CHECK_NS;
    assert!(sleeps(next(&mut policy, at(again), || true)));
    assert!(policy.is_contended());
    let free = again + UNCONTENDED_NS + IDLE_CHECK_NS;
    assert!(sleeps(next(
        &mut policy,
        at(free - IDLE_CHECK_NS - 1),
        || true
    )));
    assert_eq!(next(&mut policy, at(free), || true), IdleStep::Yield);
    assert!(!policy.is_contended());
}

/// A short yield before the period of contention is over changes nothing.
#[test]
fn a_short_yield_does_not_end_the_contention_early() {
    let mut policy = IdlePolicy::default();
    policy.yielded(at(0), CONTENDED_YIELD_NS);
    policy.yielded(at(CONTENDED_FOR_NS - 1), CONTENDED_YIELD_NS - 1);
    assert!(policy.is_contended());
    policy.yielded(at(CONTENDED_FOR_NS), CONTENDED_YIELD_NS - 1);
    assert!(!policy.is_contended());
}
