//! The poll policy of the background thread: decides what it does next. It reads no clock.
//!
//! Woken by packets, the thread first backs off: it sleeps for a moment and ignores packets. If the
//! application has polled by then, the thread keeps sleeping, for longer each time, as long as the
//! application polls. If the application has done nothing and the packets are still there, the
//! thread receives them. It then receives the next packets at once, more of them the more often
//! this happened ([`BackoffEstimator`]), unless the application is polling.
//!
//! No thread keeps this one away for long. If the application has not polled for a moment, this
//! thread receives ([`PollStep::TakeOver`]). That includes the packets of a thread that is
//! registered to wait for them, because it may be stopped, or get no processor.
//!
//! After packets the thread spins for a moment to receive the next ones ([`SpinEstimator`]), if a
//! processor is idle. A process whose memory is read and written by peers makes no calls, and
//! waking up takes longer than all the rest.

use rocade_transport::Time;

use crate::state::Activity;
use crate::tuning::{
    BACKOFF_DOUBLINGS, BACKOFF_DOUBLINGS_UNSEEN, BACKOFF_NS, DISPLACED_NS, EMPTY_SPIN_DOUBLINGS,
    FIRST_IMMEDIATE_WAKES, MAX_IMMEDIATE_WAKES, MAX_SENDING_ONLY, MAX_SPIN_NS, MAX_UNREAD_NS,
    SPIN_NS, WATCHED_BACKOFF_NS,
};

/// The observations that a decision is based on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Observation {
    pub(super) now: Time,
    /// After waiting: there are packets. After receiving or polling: there were packets.
    pub(super) packets: bool,
    /// The application's activity so far.
    pub(super) activity: Activity,
    /// Number of times that the application has gone to sleep.
    pub(super) sleep_epoch: u64,
    /// The application is asleep.
    pub(super) app_asleep: bool,
    /// A polling thread of the application waits for packets.
    pub(super) has_sleeping_poller: bool,
    /// A timer is due.
    pub(super) timer_due: bool,
}

/// The next step of the thread. The last three end a turn, after which all other work that is due
/// is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PollStep {
    /// Receive the pending packets.
    Receive,
    /// Receive the pending packets that the other threads have left for `stalled_ns`. If there are
    /// any, watch for packets instead of these threads.
    TakeOver { stalled_ns: u64 },
    /// Poll once for more packets.
    Spin,
    /// Sleep for this time, ignoring packets.
    BackOff { blind_ns: u64 },
    /// Sleep until there is something to do.
    Sleep,
    /// Packets keep coming: do not sleep.
    Poll,
}

#[derive(Clone, Copy, Debug, Default)]
enum Stage {
    /// The thread has slept. `BackedOff`: ignoring packets, with the application's activity before.
    #[default]
    Waited,
    BackedOff(Activity),
    /// The thread has received.
    Received {
        after_backoff: bool,
    },
    /// The thread has received what other threads had left for `stalled_ns`.
    TakenOver {
        stalled_ns: u64,
    },
    /// The thread spins since `begin`, and got packets at `last`.
    Spinning {
        begin: Time,
        last: Option<Time>,
    },
}

/// The state of the policy, which only the background thread uses.
#[derive(Debug, Default)]
pub(super) struct PollPolicy {
    stage: Stage,
    backoff: BackoffEstimator,
    spin: SpinEstimator,
    sleep_epoch: u64,
    /// The application's activity at the last look.
    last_activity: Activity,
    /// Time at which the application was last seen to have polled, or at which this thread began
    /// to wait for a poll.
    unread_since: Time,
    /// The application has not polled since this thread last took over.
    is_stalled: bool,
}

impl PollPolicy {
    /// Returns the step after the last one. Calls `has_idle_processors` only if the answer matters.
    pub(super) fn next(
        &mut self,
        seen: &Observation,
        has_idle_processors: impl FnOnce() -> bool,
    ) -> PollStep {
        match std::mem::take(&mut self.stage) {
            Stage::Waited => self.on_wake(seen, None),
            Stage::BackedOff(before) => self.on_wake(seen, Some(before)),
            Stage::TakenOver { stalled_ns } if !seen.packets => {
                if !seen.has_sleeping_poller || stalled_ns >= DISPLACED_NS {
                    return PollStep::Sleep;
                }
                // The poller sleeps because there is nothing to receive.
                self.stage = Stage::BackedOff(seen.activity);
                PollStep::BackOff {
                    blind_ns: WATCHED_BACKOFF_NS,
                }
            }
            stage @ (Stage::Received { .. } | Stage::TakenOver { .. }) => {
                if !seen.packets {
                    return PollStep::Sleep;
                }
                if !matches!(
                    stage,
                    Stage::Received {
                        after_backoff: false
                    }
                ) {
                    self.backoff.backoff_failed();
                }
                if seen.has_sleeping_poller || !self.spin.should_spin(has_idle_processors) {
                    return PollStep::Sleep;
                }
                let (begin, last) = (seen.now, None);
                self.stage = Stage::Spinning { begin, last };
                PollStep::Spin
            }
            Stage::Spinning { begin, last } => self.spun(seen, begin, last),
        }
    }

    /// Cancels a back-off, because the application has gone to sleep meanwhile.
    pub(super) fn cancel_backoff(&mut self) {
        self.stage = Stage::Waited;
    }

    fn on_wake(&mut self, seen: &Observation, before: Option<Activity>) -> PollStep {
        // An application that sleeps frequently is not waited for while it is awake either.
        let sleeps = std::mem::replace(&mut self.sleep_epoch, seen.sleep_epoch) != seen.sleep_epoch;
        let last = std::mem::replace(&mut self.last_activity, seen.activity);
        if last.has_polled(seen.activity) || (before.is_none() && !self.is_stalled) {
            self.unread_since = seen.now;
            self.is_stalled = false;
        }
        let stalled_ns = seen.now.ns_since(self.unread_since);
        if stalled_ns >= MAX_UNREAD_NS {
            self.is_stalled = true;
            self.stage = Stage::TakenOver { stalled_ns };
            return PollStep::TakeOver { stalled_ns };
        }
        let backoff_step = if seen.has_sleeping_poller {
            Some(WATCHED_BACKOFF_NS)
        } else if sleeps || seen.app_asleep {
            None
        } else if let Some(before) = before {
            self.backoff.continue_backoff(before, seen.activity)
        } else if seen.packets {
            self.backoff.start_backoff(seen.activity)
        } else {
            None
        };
        if let Some(blind_ns) = backoff_step {
            self.stage = Stage::BackedOff(seen.activity);
            return PollStep::BackOff { blind_ns };
        }
        let after_backoff = before.is_some();
        self.stage = Stage::Received { after_backoff };
        PollStep::Receive
    }

    fn spun(&mut self, seen: &Observation, begin: Time, last: Option<Time>) -> PollStep {
        let last = if seen.packets { Some(seen.now) } else { last };
        let idle_ns = seen.now.ns_since(last.unwrap_or(begin));
        let is_over = seen.now.ns_since(begin) >= MAX_SPIN_NS || seen.timer_due;
        if idle_ns >= SPIN_NS || is_over {
            self.spin.note_result(last.is_some());
            return if last.is_some() && idle_ns < SPIN_NS {
                PollStep::Poll
            } else {
                PollStep::Sleep
            };
        }
        if seen.activity.polling() || seen.has_sleeping_poller {
            return PollStep::Sleep;
        }
        self.stage = Stage::Spinning { begin, last };
        PollStep::Spin
    }
}

/// Estimates for how long the background thread backs off to let the application receive.
#[derive(Debug)]
struct BackoffEstimator {
    /// Number of wake-ups left without back-off.
    immediate_wakes: u32,
    /// Value of `immediate_wakes` after the next back-off in which the application did nothing.
    next_immediate_wakes: u32,
    doublings: u32,
    /// Number of back-offs in a row in which the application has sent but not polled.
    sending_only: u32,
}

impl Default for BackoffEstimator {
    fn default() -> Self {
        Self {
            immediate_wakes: 0,
            next_immediate_wakes: FIRST_IMMEDIATE_WAKES,
            doublings: 0,
            sending_only: 0,
        }
    }
}

impl BackoffEstimator {
    /// Returns the time to back off for after packets have woken the thread, or `None` to receive.
    fn start_backoff(&mut self, activity: Activity) -> Option<u64> {
        if self.immediate_wakes > 0 {
            self.immediate_wakes -= 1;
            return activity.polling().then_some(BACKOFF_NS);
        }
        Some(BACKOFF_NS << self.doublings)
    }

    /// Returns the time to back off for again, given the application's activity before and after a
    /// back-off, or `None` to receive.
    fn continue_backoff(&mut self, before: Activity, after: Activity) -> Option<u64> {
        if self.immediate_wakes > 0 {
            self.immediate_wakes /= 2;
            return after.polling().then_some(BACKOFF_NS);
        }
        // With many packets, one poll may take longer than the back-off.
        if before.has_polled(after) || after.polling() {
            self.sending_only = 0;
            self.next_immediate_wakes = (self.next_immediate_wakes / 2).max(FIRST_IMMEDIATE_WAKES);
            let max = if after.polling() {
                BACKOFF_DOUBLINGS
            } else {
                BACKOFF_DOUBLINGS_UNSEEN
            };
            self.doublings = (self.doublings + 1).min(max);
        } else if before.has_sent(after) && self.sending_only < MAX_SENDING_ONLY {
            self.sending_only += 1;
            self.doublings = 0;
        } else {
            return None;
        }
        Some(BACKOFF_NS << self.doublings)
    }

    /// Records that the application did nothing during a back-off although there were packets.
    fn backoff_failed(&mut self) {
        if self.immediate_wakes > 0 {
            return;
        }
        self.immediate_wakes = self.next_immediate_wakes;
        self.next_immediate_wakes = (self.next_immediate_wakes * 2).min(MAX_IMMEDIATE_WAKES);
        self.doublings = 0;
        self.sending_only = 0;
    }
}

/// Estimates whether spinning for the next packets is worth it.
#[derive(Debug, Default)]
pub(super) struct SpinEstimator {
    /// Number of times in a row that spinning found nothing.
    empty_spins: u32,
    /// Number of opportunities to skip.
    skip: u32,
}

impl SpinEstimator {
    /// Returns true if the thread should spin after it has handled packets.
    pub(super) fn should_spin(&mut self, has_idle_processors: impl FnOnce() -> bool) -> bool {
        if self.skip > 0 {
            self.skip -= 1;
            return false;
        }
        has_idle_processors()
    }

    pub(super) fn note_result(&mut self, found: bool) {
        if found {
            self.empty_spins = 0;
        } else {
            self.empty_spins = (self.empty_spins + 1).min(EMPTY_SPIN_DOUBLINGS);
            self.skip = (1 << self.empty_spins) - 1;
        }
    }
}

#[cfg(all(test, not(loom)))]
mod sequences;
#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const IDLE: Activity = Activity::of(7, 7, false);
    const POLLED: Activity = Activity::of(8, 7, false);
    const POLLING: Activity = Activity::of(8, 7, true);
    const SENT: Activity = Activity::of(7, 8, false);

    const QUIET: Observation = Observation {
        now: Time::ZERO,
        packets: false,
        activity: IDLE,
        sleep_epoch: 0,
        app_asleep: false,
        has_sleeping_poller: false,
        timer_due: false,
    };
    const PACKETS: Observation = Observation {
        packets: true,
        ..QUIET
    };

    fn at(us: u64) -> Time {
        Time::from_ns(us * 1_000)
    }

    /// Returns its next step, on a system with an idle processor.
    fn next(policy: &mut PollPolicy, seen: Observation) -> PollStep {
        policy.next(&seen, || true)
    }

    const fn backoff_step(blind_us: u64) -> PollStep {
        PollStep::BackOff {
            blind_ns: blind_us * 1_000,
        }
    }

    #[test]
    fn without_packets_it_sleeps() {
        let mut policy = PollPolicy::default();
        assert_eq!(
            next(&mut policy, QUIET),
            PollStep::Receive,
            "polling once is cheap"
        );
        assert_eq!(next(&mut policy, QUIET), PollStep::Sleep);
        assert_eq!(next(&mut policy, QUIET), PollStep::Receive);
    }

    #[test]
    fn a_polling_application_receives_its_packets() {
        let mut policy = PollPolicy::default();
        assert_eq!(next(&mut policy, PACKETS), backoff_step(10));
        let mut activity = IDLE;
        for us in [20, 40, 80, 160, 320, 320] {
            activity = activity.after_a_poll();
            let seen = Observation {
                activity,
                ..PACKETS
            };
            assert_eq!(next(&mut policy, seen), backoff_step(us));
        }
        // The application has stopped polling: the thread receives.
        let seen = Observation {
            activity,
            ..PACKETS
        };
        assert_eq!(next(&mut policy, seen), PollStep::Receive);
    }

    #[test]
    fn an_application_that_does_nothing_is_waited_for_once() {
        let mut policy = PollPolicy::default();
        assert_eq!(next(&mut policy, PACKETS), backoff_step(10));
        assert_eq!(next(&mut policy, PACKETS), PollStep::Receive);
        assert_eq!(next(&mut policy, PACKETS), PollStep::Spin);
        assert_eq!(
            next(
                &mut policy,
                Observation {
                    now: at(40),
                    ..QUIET
                }
            ),
            PollStep::Sleep
        );
        // The next packets are received at once, without spinning afterwards, because that found
        // nothing before.
        for _ in 0..FIRST_IMMEDIATE_WAKES {
            assert_eq!(next(&mut policy, PACKETS), PollStep::Receive);
            policy.cancel_backoff();
        }
        assert_eq!(
            next(&mut policy, PACKETS),
            backoff_step(10),
            "the application may poll now"
        );
    }

    #[test]
    fn an_application_that_sleeps_is_not_waited_for() {
        let mut policy = PollPolicy::default();
        let app_asleep = Observation {
            app_asleep: true,
            ..PACKETS
        };
        assert_eq!(next(&mut policy, app_asleep), PollStep::Receive);
        policy.cancel_backoff();
        let woke = Observation {
            sleep_epoch: 1,
            ..PACKETS
        };
        assert_eq!(
            next(&mut policy, woke),
            PollStep::Receive,
            "the application has slept since"
        );
        policy.cancel_backoff();
        assert_eq!(next(&mut policy, woke), backoff_step(10));
        // The back-off is not continued either.
        let woke = Observation {
            sleep_epoch: 2,
            activity: POLLED,
            ..PACKETS
        };
        assert_eq!(next(&mut policy, woke), PollStep::Receive);
    }

    #[test]
    fn a_poller_sleeping_on_the_descriptors_receives_its_packets() {
        let mut policy = PollPolicy::default();
        let has_sleeping_poller = Observation {
            has_sleeping_poller: true,
            app_asleep: true,
            ..PACKETS
        };
        assert_eq!(next(&mut policy, has_sleeping_poller), backoff_step(640));
        let mut activity = IDLE;
        for looks in 1..100 {
            activity = activity.after_a_poll();
            let seen = Observation {
                now: at(looks * 640),
                activity,
                ..has_sleeping_poller
            };
            let step = next(&mut policy, seen);
            assert_eq!(step, backoff_step(640), "as long as the poller sleeps");
        }
        // The application has polled since, and does something else now.
        let seen = Observation {
            now: at(64_000),
            activity: activity.after_a_poll(),
            ..QUIET
        };
        assert_eq!(next(&mut policy, seen), backoff_step(20));
        assert_eq!(next(&mut policy, seen), PollStep::Receive);
    }

    /// A poller that is stopped, or gets no processor, keeps the thread away for about 1 ms.
    #[test]
    fn a_watcher_that_does_not_poll_is_helped() {
        let mut policy = PollPolicy::default();
        let stopped = Observation {
            has_sleeping_poller: true,
            ..PACKETS
        };
        let at_us = |us| Observation {
            now: at(us),
            ..stopped
        };
        assert_eq!(next(&mut policy, at_us(5)), backoff_step(640));
        let polled = Observation {
            activity: POLLED,
            ..at_us(645)
        };
        assert_eq!(next(&mut policy, polled), backoff_step(640));
        let still = Observation {
            activity: POLLED,
            ..at_us(1_285)
        };
        let stalled_ns = 640_000;
        assert_eq!(next(&mut policy, still), PollStep::TakeOver { stalled_ns });
        // The next packets do not wait either, until the application polls.
        let received = Observation {
            has_sleeping_poller: false,
            ..still
        };
        assert_eq!(policy.next(&received, || false), PollStep::Sleep);
        assert_eq!(
            next(&mut policy, received),
            PollStep::TakeOver { stalled_ns }
        );
        assert_eq!(policy.next(&received, || false), PollStep::Sleep);
        let polled = Observation {
            activity: POLLED.after_a_poll(),
            ..received
        };
        assert_eq!(next(&mut policy, polled), PollStep::Receive);
    }

    /// Without packets, a poller that sleeps for long remains the watcher for a while. A stopped
    /// one is displaced after that, so that this thread can sleep.
    #[test]
    fn a_watcher_without_packets_is_not_disturbed_at_once() {
        let mut policy = PollPolicy::default();
        let mut us = 0;
        let mut looks = Vec::new();
        loop {
            let seen = Observation {
                now: at(us),
                has_sleeping_poller: true,
                ..QUIET
            };
            match next(&mut policy, seen) {
                PollStep::BackOff { blind_ns } => us += blind_ns / 1_000,
                PollStep::TakeOver { stalled_ns } => looks.push(stalled_ns),
                PollStep::Sleep => break,
                step => panic!("{step:?}"),
            }
        }
        assert_eq!(looks[..2], [640_000, 1_280_000]);
        assert_eq!(looks.last(), Some(&4_480_000));
        assert_eq!(us, 4_480);
        // The lock of a socket may be held as well: the time counts on until the application polls.
        let seen = Observation {
            now: at(20_000),
            activity: Activity::of(7, 7, true),
            ..PACKETS
        };
        let stalled_ns = 20_000_000;
        assert_eq!(next(&mut policy, seen), PollStep::TakeOver { stalled_ns });
        next(&mut policy, QUIET);
        let polled = Observation {
            activity: POLLING,
            ..seen
        };
        assert_eq!(next(&mut policy, polled), backoff_step(10));
    }

    /// A thread that holds the lock of a socket and does not run looks as if it were polling.
    #[test]
    fn a_receiver_that_does_not_go_on_is_helped() {
        let mut policy = PollPolicy::default();
        let mut us = 0;
        let steps = std::iter::from_fn(|| {
            let seen = Observation {
                now: at(us),
                activity: POLLING,
                ..PACKETS
            };
            match next(&mut policy, seen) {
                PollStep::BackOff { blind_ns } => {
                    us += blind_ns / 1_000;
                    Some(blind_ns)
                }
                PollStep::TakeOver { .. } => None,
                step => panic!("{step:?}"),
            }
        });
        assert!(steps.count() < 12);
        assert!((600..=2_000).contains(&us), "{us} µs");
    }

    #[test]
    fn it_spins_as_long_as_packets_keep_coming() {
        let mut policy = PollPolicy::default();
        let app_asleep = Observation {
            app_asleep: true,
            ..PACKETS
        };
        let begin = |policy: &mut PollPolicy| {
            assert_eq!(next(policy, app_asleep), PollStep::Receive);
            assert_eq!(next(policy, app_asleep), PollStep::Spin);
        };
        begin(&mut policy);
        for us in (0..400).step_by(20) {
            assert_eq!(
                next(
                    &mut policy,
                    Observation {
                        now: at(us),
                        ..PACKETS
                    }
                ),
                PollStep::Spin
            );
        }
        assert_eq!(
            next(
                &mut policy,
                Observation {
                    now: at(400),
                    ..PACKETS
                }
            ),
            PollStep::Poll
        );
        begin(&mut policy);
        assert_eq!(
            next(
                &mut policy,
                Observation {
                    now: at(5),
                    ..PACKETS
                }
            ),
            PollStep::Spin
        );
        assert_eq!(
            next(
                &mut policy,
                Observation {
                    now: at(44),
                    ..QUIET
                }
            ),
            PollStep::Spin
        );
        assert_eq!(
            next(
                &mut policy,
                Observation {
                    now: at(45),
                    ..QUIET
                }
            ),
            PollStep::Sleep
        );
        begin(&mut policy);
        let due = Observation {
            now: at(1),
            timer_due: true,
            ..QUIET
        };
        assert_eq!(next(&mut policy, due), PollStep::Sleep, "timers come first");
    }

    #[test]
    fn it_does_not_spin_without_an_idle_processor() {
        let app_asleep = Observation {
            app_asleep: true,
            ..PACKETS
        };
        let mut policy = PollPolicy::default();
        assert_eq!(next(&mut policy, app_asleep), PollStep::Receive);
        assert_eq!(
            policy.next(&app_asleep, || false),
            PollStep::Sleep,
            "no idle processor"
        );
        assert_eq!(next(&mut policy, app_asleep), PollStep::Receive);
        assert_eq!(next(&mut policy, app_asleep), PollStep::Spin);
        let polls = Observation {
            activity: POLLING,
            ..QUIET
        };
        assert_eq!(
            next(&mut policy, polls),
            PollStep::Sleep,
            "the application polls itself"
        );
    }

    #[test]
    fn it_does_not_spin_beside_a_thread_that_waits_for_packets() {
        let app_asleep = Observation {
            app_asleep: true,
            ..PACKETS
        };
        let watched = Observation {
            has_sleeping_poller: true,
            ..app_asleep
        };
        let mut policy = PollPolicy::default();
        assert_eq!(next(&mut policy, app_asleep), PollStep::Receive);
        assert_eq!(next(&mut policy, watched), PollStep::Sleep);
        assert_eq!(next(&mut policy, app_asleep), PollStep::Receive);
        assert_eq!(next(&mut policy, app_asleep), PollStep::Spin);
        assert_eq!(next(&mut policy, watched), PollStep::Sleep);
    }

    #[test]
    fn a_cancelled_backoff_leaves_no_state() {
        let mut policy = PollPolicy::default();
        assert_eq!(next(&mut policy, PACKETS), backoff_step(10));
        policy.cancel_backoff();
        assert_eq!(next(&mut policy, QUIET), PollStep::Receive);
        assert_eq!(next(&mut policy, QUIET), PollStep::Sleep);
    }

    #[test]
    fn backoff_for_a_poller_doubles() {
        let mut backoff = BackoffEstimator::default();
        assert_eq!(backoff.start_backoff(IDLE), Some(10_000));
        assert_eq!(backoff.continue_backoff(IDLE, POLLED), Some(20_000));
        for _ in 0..10 {
            backoff.continue_backoff(IDLE, POLLED);
        }
        assert_eq!(backoff.continue_backoff(IDLE, POLLED), Some(320_000));
        let in_one_poll = Activity::of(7, 7, true);
        assert_eq!(backoff.continue_backoff(IDLE, in_one_poll), Some(640_000));
        assert_eq!(backoff.continue_backoff(IDLE, in_one_poll), Some(1_280_000));
        assert_eq!(backoff.continue_backoff(IDLE, in_one_poll), Some(1_280_000));
        assert_eq!(
            backoff.continue_backoff(IDLE, IDLE),
            None,
            "the application does not poll now"
        );
    }

    #[test]
    fn an_application_that_looks_at_memory_is_not_waited_for() {
        let mut backoff = BackoffEstimator::default();
        let mut waited = 0;
        for _ in 0..10_000 {
            if backoff.start_backoff(IDLE).is_some() {
                waited += 1;
                assert_eq!(backoff.continue_backoff(IDLE, IDLE), None);
                backoff.backoff_failed();
            }
        }
        assert!(waited <= 11, "{waited}");
        // As soon as the application polls, the thread backs off.
        assert!(backoff.start_backoff(POLLING).is_some());
        assert!(backoff.continue_backoff(IDLE, POLLING).is_some());
    }

    #[test]
    fn an_application_that_only_sends_is_not_waited_for_long() {
        let mut backoff = BackoffEstimator::default();
        let patience = (0..100).take_while(|_| backoff.continue_backoff(IDLE, SENT).is_some());
        assert_eq!(patience.count(), MAX_SENDING_ONLY as usize);
    }

    #[test]
    fn spinning_without_packets_becomes_rare() {
        let mut spin = SpinEstimator::default();
        let tried = (0..10_000u32).filter(|_| {
            let should_spin = spin.should_spin(|| true);
            if should_spin {
                spin.note_result(false);
            }
            should_spin
        });
        assert!((10..=20).contains(&tried.count()));
        spin.skip = 0;
        spin.note_result(true);
        assert!((0..100).all(|_| spin.should_spin(|| true)));
    }
}
