//! The poll policy of the background thread: decides what it does next. It reads no clock.
//!
//! Woken by packets, the thread first backs off: it sleeps for a moment and ignores packets. If the
//! application has polled by then, the thread keeps sleeping, for longer each time, as long as the
//! application polls. If the application has done nothing and the packets are still there, the
//! thread receives them. It then receives the next packets at once, more of them the more often
//! this happened ([`Trust`]), unless the application is polling.
//!
//! After packets the thread spins for a moment to receive the next ones ([`Habit`]), if a processor
//! is idle. A process whose memory is read and written by peers makes no calls, and waking up takes
//! longer than all the rest.

use rocade_transport::Time;

use crate::figures::{
    FIRST_DOUBT, LINGER_NS, MAX_DOUBT, MAX_SENDING, STEP_BACK_DOUBLINGS,
    STEP_BACK_DOUBLINGS_UNSEEN, STEP_BACK_NS, TURN_NS, VAIN_DOUBLINGS,
};
use crate::state::Activity;

/// The observations that a decision is based on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Observation {
    pub(super) now: Time,
    /// After waiting: there are packets. After receiving or polling: there were packets.
    pub(super) packets: bool,
    /// The application's activity so far.
    pub(super) activity: Activity,
    /// Number of times that the application has gone to sleep.
    pub(super) stops: u64,
    /// The application is asleep.
    pub(super) asleep: bool,
    /// A polling thread of the application waits for packets.
    pub(super) attended: bool,
    /// A timer is due.
    pub(super) timer_due: bool,
}

/// The next step of the thread. The last three end a turn, after which all other work that is due
/// is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Receive the pending packets.
    Receive,
    /// Poll once for more packets.
    Look,
    /// Sleep for this time, ignoring packets.
    Nap { blind_ns: u64 },
    /// Sleep until there is something to do.
    Sleep,
    /// Packets keep coming: do not sleep.
    Peek,
}

#[derive(Clone, Copy, Debug, Default)]
enum Stage {
    /// The thread has slept. `Napped`: ignoring packets, with the application's activity before.
    #[default]
    Awake,
    Napped(Activity),
    /// The thread has received.
    Received {
        after_nap: bool,
    },
    /// The thread spins since `begin`, and got packets at `last`.
    Looking {
        begin: Time,
        last: Option<Time>,
    },
}

/// The state of the policy, which only the background thread uses.
#[derive(Debug, Default)]
pub(super) struct Duty {
    stage: Stage,
    trust: Trust,
    habit: Habit,
    stops: u64,
}

impl Duty {
    /// Returns the step after the last one. Calls `has_idle_processors` only if the answer matters.
    pub(super) fn next(
        &mut self,
        seen: &Observation,
        has_idle_processors: impl FnOnce() -> bool,
    ) -> Step {
        match std::mem::take(&mut self.stage) {
            Stage::Awake => self.awake(seen, None),
            Stage::Napped(before) => self.awake(seen, Some(before)),
            Stage::Received { after_nap } => {
                if !seen.packets {
                    return Step::Sleep;
                }
                if after_nap {
                    self.trust.disappointed();
                }
                if !self.habit.tries(has_idle_processors) {
                    return Step::Sleep;
                }
                let (begin, last) = (seen.now, None);
                self.stage = Stage::Looking { begin, last };
                Step::Look
            }
            Stage::Looking { begin, last } => self.looked(seen, begin, last),
        }
    }

    /// Cancels a back-off, because the application has gone to sleep meanwhile.
    pub(super) fn stay_up(&mut self) {
        self.stage = Stage::Awake;
    }

    fn awake(&mut self, seen: &Observation, before: Option<Activity>) -> Step {
        // An application that sleeps frequently is not waited for while it is awake either.
        let sleeps = std::mem::replace(&mut self.stops, seen.stops) != seen.stops;
        let nap = if seen.attended {
            Some(STEP_BACK_NS << STEP_BACK_DOUBLINGS)
        } else if sleeps || seen.asleep {
            None
        } else if let Some(before) = before {
            self.trust.stay_back(before, seen.activity)
        } else if seen.packets {
            self.trust.step_back(seen.activity)
        } else {
            None
        };
        if let Some(blind_ns) = nap {
            self.stage = Stage::Napped(seen.activity);
            return Step::Nap { blind_ns };
        }
        let after_nap = before.is_some();
        self.stage = Stage::Received { after_nap };
        Step::Receive
    }

    fn looked(&mut self, seen: &Observation, begin: Time, last: Option<Time>) -> Step {
        let last = if seen.packets { Some(seen.now) } else { last };
        let idle_ns = seen.now.ns_since(last.unwrap_or(begin));
        let is_over = seen.now.ns_since(begin) >= TURN_NS || seen.timer_due;
        if idle_ns >= LINGER_NS || is_over {
            self.habit.has_found(last.is_some());
            return if last.is_some() && idle_ns < LINGER_NS {
                Step::Peek
            } else {
                Step::Sleep
            };
        }
        if seen.activity.polling() {
            return Step::Sleep;
        }
        self.stage = Stage::Looking { begin, last };
        Step::Look
    }
}

/// Estimates for how long the background thread backs off to let the application receive.
#[derive(Debug)]
struct Trust {
    /// Number of wake-ups left without back-off.
    doubt: u32,
    /// Value of `doubt` after the next back-off in which the application did nothing.
    next_doubt: u32,
    doublings: u32,
    /// Number of back-offs in a row in which the application has sent but not polled.
    sending: u32,
}

impl Default for Trust {
    fn default() -> Self {
        Self {
            doubt: 0,
            next_doubt: FIRST_DOUBT,
            doublings: 0,
            sending: 0,
        }
    }
}

impl Trust {
    /// Returns the time to back off for after packets have woken the thread, or `None` to receive.
    fn step_back(&mut self, activity: Activity) -> Option<u64> {
        if self.doubt > 0 {
            self.doubt -= 1;
            return activity.polling().then_some(STEP_BACK_NS);
        }
        Some(STEP_BACK_NS << self.doublings)
    }

    /// Returns the time to back off for again, given the application's activity before and after a
    /// back-off, or `None` to receive.
    fn stay_back(&mut self, before: Activity, after: Activity) -> Option<u64> {
        if self.doubt > 0 {
            self.doubt /= 2;
            return after.polling().then_some(STEP_BACK_NS);
        }
        // With many packets, one poll may take longer than the back-off.
        if before.has_polled(after) || after.polling() {
            self.sending = 0;
            self.next_doubt = (self.next_doubt / 2).max(FIRST_DOUBT);
            let max = if after.polling() {
                STEP_BACK_DOUBLINGS
            } else {
                STEP_BACK_DOUBLINGS_UNSEEN
            };
            self.doublings = (self.doublings + 1).min(max);
        } else if before.has_sent(after) && self.sending < MAX_SENDING {
            self.sending += 1;
            self.doublings = 0;
        } else {
            return None;
        }
        Some(STEP_BACK_NS << self.doublings)
    }

    /// Records that the application did nothing during a back-off although there were packets.
    fn disappointed(&mut self) {
        if self.doubt > 0 {
            return;
        }
        self.doubt = self.next_doubt;
        self.next_doubt = (self.next_doubt * 2).min(MAX_DOUBT);
        self.doublings = 0;
        self.sending = 0;
    }
}

/// Estimates whether spinning for the next packets is worth it.
#[derive(Debug, Default)]
struct Habit {
    /// Number of times in a row that spinning found nothing.
    in_vain: u32,
    /// Number of opportunities to skip.
    skip: u32,
}

impl Habit {
    /// Returns true if the thread should spin after it has handled packets.
    fn tries(&mut self, has_idle_processors: impl FnOnce() -> bool) -> bool {
        if self.skip > 0 {
            self.skip -= 1;
            return false;
        }
        has_idle_processors()
    }

    fn has_found(&mut self, found: bool) {
        if found {
            self.in_vain = 0;
        } else {
            self.in_vain = (self.in_vain + 1).min(VAIN_DOUBLINGS);
            self.skip = (1 << self.in_vain) - 1;
        }
    }
}

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
        stops: 0,
        asleep: false,
        attended: false,
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
    fn next(duty: &mut Duty, seen: Observation) -> Step {
        duty.next(&seen, || true)
    }

    const fn nap(blind_us: u64) -> Step {
        Step::Nap {
            blind_ns: blind_us * 1_000,
        }
    }

    #[test]
    fn without_packets_it_sleeps() {
        let mut duty = Duty::default();
        assert_eq!(
            next(&mut duty, QUIET),
            Step::Receive,
            "polling once is cheap"
        );
        assert_eq!(next(&mut duty, QUIET), Step::Sleep);
        assert_eq!(next(&mut duty, QUIET), Step::Receive);
    }

    #[test]
    fn an_application_that_polls_has_the_packets() {
        let mut duty = Duty::default();
        assert_eq!(next(&mut duty, PACKETS), nap(10));
        let mut activity = IDLE;
        for us in [20, 40, 80, 160, 320, 320] {
            activity = activity.after_a_poll();
            let seen = Observation {
                activity,
                ..PACKETS
            };
            assert_eq!(next(&mut duty, seen), nap(us));
        }
        // The application has stopped polling: the thread receives.
        let seen = Observation {
            activity,
            ..PACKETS
        };
        assert_eq!(next(&mut duty, seen), Step::Receive);
    }

    #[test]
    fn an_application_that_does_nothing_is_waited_for_once() {
        let mut duty = Duty::default();
        assert_eq!(next(&mut duty, PACKETS), nap(10));
        assert_eq!(next(&mut duty, PACKETS), Step::Receive);
        assert_eq!(next(&mut duty, PACKETS), Step::Look);
        assert_eq!(
            next(
                &mut duty,
                Observation {
                    now: at(40),
                    ..QUIET
                }
            ),
            Step::Sleep
        );
        // The next packets are received at once, without spinning afterwards, because that found
        // nothing before.
        for _ in 0..FIRST_DOUBT {
            assert_eq!(next(&mut duty, PACKETS), Step::Receive);
            duty.stay_up();
        }
        assert_eq!(
            next(&mut duty, PACKETS),
            nap(10),
            "the application may poll now"
        );
    }

    #[test]
    fn an_application_that_sleeps_is_not_waited_for() {
        let mut duty = Duty::default();
        let asleep = Observation {
            asleep: true,
            ..PACKETS
        };
        assert_eq!(next(&mut duty, asleep), Step::Receive);
        duty.stay_up();
        let woke = Observation {
            stops: 1,
            ..PACKETS
        };
        assert_eq!(
            next(&mut duty, woke),
            Step::Receive,
            "the application has slept since"
        );
        duty.stay_up();
        assert_eq!(next(&mut duty, woke), nap(10));
        // The back-off is not continued either.
        let woke = Observation {
            stops: 2,
            activity: POLLED,
            ..PACKETS
        };
        assert_eq!(next(&mut duty, woke), Step::Receive);
    }

    #[test]
    fn a_poller_that_sleeps_on_the_descriptors_has_the_packets() {
        let mut duty = Duty::default();
        let attended = Observation {
            attended: true,
            asleep: true,
            ..PACKETS
        };
        assert_eq!(next(&mut duty, attended), nap(1_280));
        assert_eq!(
            next(&mut duty, attended),
            nap(1_280),
            "as long as the poller sleeps"
        );
        // The application has polled since, and does something else now.
        let seen = Observation {
            activity: POLLED,
            ..QUIET
        };
        assert_eq!(next(&mut duty, seen), nap(20));
        assert_eq!(next(&mut duty, seen), Step::Receive);
    }

    #[test]
    fn it_looks_as_long_as_packets_keep_coming_and_not_longer() {
        let mut duty = Duty::default();
        let asleep = Observation {
            asleep: true,
            ..PACKETS
        };
        let begin = |duty: &mut Duty| {
            assert_eq!(next(duty, asleep), Step::Receive);
            assert_eq!(next(duty, asleep), Step::Look);
        };
        begin(&mut duty);
        for us in (0..400).step_by(20) {
            assert_eq!(
                next(
                    &mut duty,
                    Observation {
                        now: at(us),
                        ..PACKETS
                    }
                ),
                Step::Look
            );
        }
        assert_eq!(
            next(
                &mut duty,
                Observation {
                    now: at(400),
                    ..PACKETS
                }
            ),
            Step::Peek
        );
        begin(&mut duty);
        assert_eq!(
            next(
                &mut duty,
                Observation {
                    now: at(5),
                    ..PACKETS
                }
            ),
            Step::Look
        );
        assert_eq!(
            next(
                &mut duty,
                Observation {
                    now: at(44),
                    ..QUIET
                }
            ),
            Step::Look
        );
        assert_eq!(
            next(
                &mut duty,
                Observation {
                    now: at(45),
                    ..QUIET
                }
            ),
            Step::Sleep
        );
        begin(&mut duty);
        let due = Observation {
            now: at(1),
            timer_due: true,
            ..QUIET
        };
        assert_eq!(next(&mut duty, due), Step::Sleep, "timers come first");
    }

    #[test]
    fn it_does_not_look_where_that_costs_somebody_something() {
        let asleep = Observation {
            asleep: true,
            ..PACKETS
        };
        let mut duty = Duty::default();
        assert_eq!(next(&mut duty, asleep), Step::Receive);
        assert_eq!(
            duty.next(&asleep, || false),
            Step::Sleep,
            "no idle processor"
        );
        assert_eq!(next(&mut duty, asleep), Step::Receive);
        assert_eq!(next(&mut duty, asleep), Step::Look);
        let polls = Observation {
            activity: POLLING,
            ..QUIET
        };
        assert_eq!(
            next(&mut duty, polls),
            Step::Sleep,
            "the application polls itself"
        );
    }

    #[test]
    fn a_nap_that_is_off_leaves_nothing_behind() {
        let mut duty = Duty::default();
        assert_eq!(next(&mut duty, PACKETS), nap(10));
        duty.stay_up();
        assert_eq!(next(&mut duty, QUIET), Step::Receive);
        assert_eq!(next(&mut duty, QUIET), Step::Sleep);
    }

    #[test]
    fn a_poller_is_left_alone_longer_and_longer() {
        let mut trust = Trust::default();
        assert_eq!(trust.step_back(IDLE), Some(10_000));
        assert_eq!(trust.stay_back(IDLE, POLLED), Some(20_000));
        for _ in 0..10 {
            trust.stay_back(IDLE, POLLED);
        }
        assert_eq!(trust.stay_back(IDLE, POLLED), Some(320_000));
        let in_one_poll = Activity::of(7, 7, true);
        assert_eq!(trust.stay_back(IDLE, in_one_poll), Some(640_000));
        assert_eq!(trust.stay_back(IDLE, in_one_poll), Some(1_280_000));
        assert_eq!(trust.stay_back(IDLE, in_one_poll), Some(1_280_000));
        assert_eq!(
            trust.stay_back(IDLE, IDLE),
            None,
            "the application does not poll now"
        );
    }

    #[test]
    fn an_application_that_looks_at_memory_is_not_waited_for() {
        let mut trust = Trust::default();
        let mut waited = 0;
        for _ in 0..10_000 {
            if trust.step_back(IDLE).is_some() {
                waited += 1;
                assert_eq!(trust.stay_back(IDLE, IDLE), None);
                trust.disappointed();
            }
        }
        assert!(waited <= 11, "{waited}");
        // As soon as the application polls, the thread backs off.
        assert!(trust.step_back(POLLING).is_some());
        assert!(trust.stay_back(IDLE, POLLING).is_some());
    }

    #[test]
    fn one_that_only_sends_is_not_waited_for_long() {
        let mut trust = Trust::default();
        let patience = (0..100).take_while(|_| trust.stay_back(IDLE, SENT).is_some());
        assert_eq!(patience.count(), MAX_SENDING as usize);
    }

    #[test]
    fn what_is_in_vain_is_tried_less_and_less() {
        let mut habit = Habit::default();
        let tried = (0..10_000u32).filter(|_| {
            let tries = habit.tries(|| true);
            if tries {
                habit.has_found(false);
            }
            tries
        });
        assert!((10..=20).contains(&tried.count()));
        habit.skip = 0;
        habit.has_found(true);
        assert!((0..100).all(|_| habit.tries(|| true)));
    }
}
