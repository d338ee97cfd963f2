//! Longer sequences of observations.

use super::*;

const PACKETS: Observation = Observation {
    now: Time::ZERO,
    packets: true,
    activity: Activity::of(0, 0, false),
    sleep_epoch: 0,
    app_asleep: false,
    has_sleeping_poller: false,
    timer_due: false,
};

fn after(policy: &mut PollPolicy, activity: Activity) -> PollStep {
    let seen = Observation {
        activity,
        ..PACKETS
    };
    policy.next(&seen, || true)
}

/// The patience with an application that only sends is full again after a poll.
#[test]
fn a_poll_renews_the_patience_with_a_sender() {
    let mut policy = PollPolicy::default();
    let (mut polls, mut sends) = (0, 0);
    let is_backoff = |step| matches!(step, PollStep::BackOff { .. });
    assert!(is_backoff(after(&mut policy, PACKETS.activity)));
    for _ in 0..3 {
        for _ in 0..MAX_SENDING_ONLY {
            sends += 1;
            assert!(is_backoff(after(
                &mut policy,
                Activity::of(polls, sends, false)
            )));
        }
        polls += 1;
        assert!(is_backoff(after(
            &mut policy,
            Activity::of(polls, sends, false)
        )));
    }
    for _ in 0..MAX_SENDING_ONLY {
        sends += 1;
        after(&mut policy, Activity::of(polls, sends, false));
    }
    let last = after(&mut policy, Activity::of(polls, sends + 1, false));
    assert_eq!(last, PollStep::Receive);
}

/// An application that has polled is waited for again sooner than one that never does.
#[test]
fn a_poll_shortens_the_time_without_back_off() {
    /// Returns the number of wake-ups without a back-off that follow.
    fn immediate(backoff: &mut BackoffEstimator) -> u32 {
        let idle = Activity::of(0, 0, false);
        let mut count = 0;
        while backoff.start_backoff(idle).is_none() {
            count += 1;
        }
        count
    }
    let (idle, polled) = (Activity::of(0, 0, false), Activity::of(1, 0, false));
    let mut backoff = BackoffEstimator::default();
    let mut counts = Vec::new();
    for _ in 0..4 {
        backoff.backoff_failed();
        counts.push(immediate(&mut backoff));
    }
    assert!(counts.is_sorted() && counts[3] > counts[0], "{counts:?}");
    for _ in 0..10 {
        assert!(backoff.continue_backoff(idle, polled).is_some());
    }
    backoff.backoff_failed();
    assert_eq!(immediate(&mut backoff), counts[0]);
}
