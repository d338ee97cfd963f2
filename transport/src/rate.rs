//! Rate of a QP: the limit set by attribute, and the reaction to congestion notifications (DCQCN).
//!
//! The receiver of marked packets notifies the sender, at most once per interval ([`MarkWatch`]).
//! The sender then reduces its rate at once, by more the more often it is notified. It recovers in
//! steps: first halving the distance to the earlier rate, then going beyond.

use crate::time::Time;

/// Burst size, as time at the current rate: threads do not wake up more precisely.
const BURST_NS: u64 = 100_000;
/// Least interval between two notifications.
const NOTIFY_NS: u64 = 50_000;
/// Time without notifications after which the congestion estimate decreases.
const ALPHA_NS: u64 = 55_000;
/// Interval at which the rate increases.
const STEP_NS: u64 = 300_000;
/// Number of recovery steps before those that go beyond the earlier rate.
const RECOVERY_STEPS: u32 = 5;
/// Rate increase per step beyond the earlier rate.
const STEP_BPS: u64 = 40_000_000;
/// Scale of the congestion estimate, which is a fraction of this.
const ALPHA_ONE: u64 = 1 << 10;
/// Weight of a new sample in the estimate, as a negative power of two.
const ALPHA_WEIGHT: u32 = 4;
/// The lowest rate that notifications can cause.
const LEAST_BPS: u64 = 10_000_000;
/// The lowest rate of READ responses.
///
/// Below it, two packets of 4 KiB would be more than a third of the shortest ACK timeout apart, and
/// the requester would retransmit.
const LEAST_RESPONSES_BPS: u64 = 100_000_000;
/// The rate from which on no limit is needed.
const LINE_BPS: u64 = 100_000_000_000;
/// Assumed send rate if it was not measured.
const UNMEASURED_BPS: u64 = 10_000_000_000;

const NS_PER_S: u128 = 1_000_000_000;

/// A rate limit.
#[derive(Debug)]
pub(crate) struct RateLimit {
    /// The limit by attribute, in bits per second.
    fixed_bps: Option<u64>,
    /// The lowest rate that notifications can cause.
    least_bps: u64,
    reaction: Option<Reaction>,
    /// Time at which the bytes sent so far have passed, at the current rate.
    free_at: Time,
    /// Packets are waiting until this time.
    pub(crate) waits_until: Option<Time>,
}

/// The reaction to notifications.
#[derive(Clone, Copy, Debug)]
struct Reaction {
    current_bps: u64,
    target_bps: u64,
    alpha: u64,
    alpha_at: Time,
    step_at: Time,
    steps: u32,
}

impl RateLimit {
    pub(crate) const fn new() -> Self {
        Self {
            fixed_bps: None,
            least_bps: LEAST_BPS,
            reaction: None,
            free_at: Time::ZERO,
            waits_until: None,
        }
    }

    /// Creates the limit of READ responses.
    const fn of_responses() -> Self {
        Self {
            least_bps: LEAST_RESPONSES_BPS,
            ..Self::new()
        }
    }

    /// Sets the limit by attribute. 0 is unlimited.
    pub(crate) fn set_fixed(&mut self, kbps: u32) {
        self.fixed_bps = (kbps > 0).then_some(u64::from(kbps) * 1000);
    }

    /// Returns true if there is no limit.
    pub(crate) const fn is_idle(&self) -> bool {
        self.fixed_bps.is_none() && self.reaction.is_none()
    }

    /// Handles a notification. `bps` is the current send rate, if known.
    pub(crate) fn on_cnp(&mut self, now: Time, bps: Option<u64>) {
        self.advance(now);
        let fresh = || {
            let bps = bps.unwrap_or(UNMEASURED_BPS);
            let bps = bps.clamp(LEAST_BPS, LINE_BPS);
            Reaction {
                current_bps: bps,
                target_bps: bps,
                alpha: ALPHA_ONE,
                alpha_at: now,
                step_at: now,
                steps: 0,
            }
        };
        let reaction = self.reaction.get_or_insert_with(fresh);
        reaction.slow_down(now, self.least_bps);
    }

    fn bps(&self) -> u64 {
        let reaction = self.reaction.as_ref().map(|reaction| reaction.current_bps);
        let both = [self.fixed_bps, reaction];
        both.into_iter().flatten().min().unwrap_or(LINE_BPS)
    }

    /// Returns the bytes that may be sent now, or 0.
    pub(crate) fn budget(&mut self, now: Time) -> usize {
        self.advance(now);
        let space_ns = now.plus_ns(BURST_NS).ns_since(self.free_at.max(now));
        let late = self.free_at > now.plus_ns(BURST_NS);
        if late || space_ns == 0 {
            return 0;
        }
        let bytes = u128::from(space_ns) * u128::from(self.bps()) / (8 * NS_PER_S);
        usize::try_from(bytes).unwrap_or(usize::MAX).max(1)
    }

    /// Counts bytes that were sent.
    pub(crate) fn spend(&mut self, now: Time, bytes: usize) {
        let ns = bytes as u128 * 8 * NS_PER_S / u128::from(self.bps().max(1));
        let ns = u64::try_from(ns).unwrap_or(u64::MAX / 2);
        self.free_at = self.free_at.max(now).plus_ns(ns);
    }

    /// Returns when the next bytes may be sent.
    pub(crate) const fn ready_at(&self) -> Time {
        Time::from_ns(self.free_at.as_ns().saturating_sub(BURST_NS) + 1)
    }

    fn advance(&mut self, now: Time) {
        if let Some(reaction) = &mut self.reaction {
            reaction.advance(now);
        }
        self.reaction
            .take_if(|reaction| reaction.current_bps >= LINE_BPS);
    }
}

impl Reaction {
    fn slow_down(&mut self, now: Time, least_bps: u64) {
        self.target_bps = self.current_bps;
        let less = self.current_bps * self.alpha / (2 * ALPHA_ONE);
        self.current_bps = (self.current_bps - less).max(least_bps);
        self.alpha += (ALPHA_ONE - self.alpha) >> ALPHA_WEIGHT;
        self.alpha_at = now;
        self.step_at = now;
        self.steps = 0;
    }

    fn advance(&mut self, now: Time) {
        /// After so many steps, no reaction is left.
        const LONGEST: u64 = 10_000;
        let quiet = now.ns_since(self.alpha_at) / ALPHA_NS;
        for _ in 0..quiet.min(LONGEST) {
            self.alpha -= self.alpha >> ALPHA_WEIGHT;
        }
        self.alpha_at = self.alpha_at.plus_ns(quiet * ALPHA_NS);
        let steps = now.ns_since(self.step_at) / STEP_NS;
        for _ in 0..steps.min(LONGEST) {
            self.steps = self.steps.saturating_add(1);
            if self.steps > RECOVERY_STEPS {
                self.target_bps = (self.target_bps + STEP_BPS).min(LINE_BPS);
            }
            self.current_bps = self.current_bps.midpoint(self.target_bps);
            // Halving alone never reaches the target.
            if self.target_bps - self.current_bps < STEP_BPS / 8 {
                self.current_bps = self.target_bps;
            }
        }
        self.step_at = self.step_at.plus_ns(steps * STEP_NS);
    }
}

/// Congestion control of a QP. The rate of its requests is kept in the requester.
#[derive(Debug)]
pub(crate) struct CongestionControl {
    pub(crate) watch: MarkWatch,
    /// READ responses belong to no local request, so they have a rate limit of their own.
    pub(crate) responses: RateLimit,
}

impl Default for CongestionControl {
    fn default() -> Self {
        Self {
            watch: MarkWatch::default(),
            responses: RateLimit::of_responses(),
        }
    }
}

/// Watches for marked packets.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MarkWatch {
    next: Option<Time>,
}

impl MarkWatch {
    /// Records a marked packet. Returns true if a notification is due.
    //= CNP-01
    pub(crate) fn marked(&mut self, now: Time) -> bool {
        let due = self.next.is_none_or(|next| next <= now);
        if due {
            self.next = Some(now.plus_ns(NOTIFY_NS));
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GBPS: u64 = 1_000_000_000;

    const fn at(us: u64) -> Time {
        Time::from_ns(1_000_000 + us * 1_000)
    }

    #[test]
    fn a_fixed_rate_is_kept_but_for_a_burst() {
        let mut limit = RateLimit::new();
        assert!(limit.is_idle());
        // At 8 Gbit/s: a byte per nanosecond.
        limit.set_fixed(8_000_000);
        assert!(!limit.is_idle());
        assert_eq!(limit.budget(at(0)), 100_000);
        limit.spend(at(0), 150_000);
        assert_eq!(limit.budget(at(0)), 0);
        assert_eq!(limit.ready_at(), Time::from_ns(1_000_000 + 50_001));
        assert_eq!(limit.budget(at(60)), 10_000);
        assert_eq!(
            limit.budget(at(10_000)),
            100_000,
            "and no more after a pause"
        );
        limit.set_fixed(0);
        assert!(limit.is_idle());
    }

    #[test]
    fn notifications_slow_down_and_silence_speeds_up() {
        let mut limit = RateLimit::new();
        limit.on_cnp(at(0), Some(10 * GBPS));
        assert_eq!(limit.bps(), 5 * GBPS);
        limit.on_cnp(at(50), Some(10 * GBPS));
        assert_eq!(
            limit.bps(),
            5 * GBPS / 2,
            "by half as long as it is constant"
        );
        limit.budget(at(50 + 300));
        assert_eq!(limit.bps(), 15 * GBPS / 4, "halfway back");
        limit.budget(at(50 + 1500));
        assert!((4_900_000_000..=5 * GBPS).contains(&limit.bps()));
        limit.budget(at(50 + 30_000));
        assert!(limit.bps() > 5 * GBPS, "beyond the earlier rate");
        let before = limit.bps();
        limit.on_cnp(at(50 + 30_000), None);
        let after = limit.bps();
        assert!(
            after < before && after > before * 9 / 10,
            "rarely notified: {after}"
        );
        for _ in 0..200 {
            limit.on_cnp(at(31_000), None);
        }
        assert_eq!(limit.bps(), LEAST_BPS);
        limit.budget(at(100_000_000));
        assert!(limit.is_idle(), "no reaction is left");
    }

    #[test]
    fn each_notification_puts_the_next_step_off() {
        let mut limit = RateLimit::new();
        limit.on_cnp(at(0), Some(10 * GBPS));
        limit.on_cnp(at(299), None);
        let slow = limit.bps();
        limit.budget(at(598));
        assert_eq!(limit.bps(), slow);
        limit.budget(at(599));
        assert!(limit.bps() > slow);
    }

    /// Checks that the rate recovers, whether anything was sent meanwhile or not.
    //= CNP-03 type=test
    #[test]
    fn silence_counts_before_the_next_notification() {
        let [mut quiet, mut busy] = [RateLimit::new(), RateLimit::new()];
        for limit in [&mut quiet, &mut busy] {
            limit.on_cnp(at(0), Some(10 * GBPS));
        }
        for us in (0..30_000).step_by(100) {
            busy.budget(at(us));
        }
        for limit in [&mut quiet, &mut busy] {
            limit.on_cnp(at(30_000), None);
        }
        assert!(quiet.bps() > 5 * GBPS, "{}", quiet.bps());
        assert_eq!(quiet.bps(), busy.bps());
    }

    #[test]
    fn the_slower_one_counts() {
        let mut limit = RateLimit::new();
        limit.set_fixed(1_000_000);
        limit.on_cnp(at(0), Some(10 * GBPS));
        assert_eq!(limit.bps(), GBPS);
        limit.set_fixed(0);
        assert_eq!(limit.bps(), 5 * GBPS);
    }

    /// Checks that a fixed rate is an upper bound: congestion reduces the rate further.
    #[test]
    fn notifications_count_at_a_fixed_rate() {
        let mut limit = RateLimit::new();
        limit.set_fixed(1_000_000);
        assert_eq!(limit.bps(), GBPS);
        for us in 0..3 {
            limit.on_cnp(at(us), Some(GBPS));
        }
        assert_eq!(limit.bps(), GBPS / 8);
        assert_eq!(limit.budget(at(3)), 1562, "100 µs at that rate");
        // Without notifications it recovers up to the fixed rate and no further.
        limit.budget(at(1_000_000));
        assert_eq!(limit.bps(), GBPS);
    }

    /// Checks the lowest rates: that of READ responses is higher, so that the requester does not
    /// retransmit.
    #[test]
    fn there_is_a_floor_for_requests_and_one_for_responses() {
        for (mut limit, least_bps) in [
            (RateLimit::new(), 10_000_000),
            (CongestionControl::default().responses, 100_000_000),
        ] {
            for us in 0..200 {
                limit.on_cnp(at(us), Some(10 * GBPS));
            }
            assert_eq!(limit.bps(), least_bps);
            limit.on_cnp(at(200), None);
            assert_eq!(limit.bps(), least_bps);
        }
    }

    /// Checks that each notification restarts the count of recovery steps.
    #[test]
    fn a_notification_begins_the_way_back_anew() {
        let mut limit = RateLimit::new();
        limit.on_cnp(at(0), Some(10 * GBPS));
        limit.budget(at(300 * 20));
        let before = limit.bps();
        limit.on_cnp(at(300 * 20), None);
        let slow = limit.bps();
        assert!(slow < before);
        limit.budget(at(300 * 21));
        assert_eq!(limit.bps(), slow.midpoint(before), "halfway back");
    }

    /// Checks that an unknown rate, or one measured far too high or low, is clamped at once.
    #[test]
    fn the_first_notification_halves_a_rate_within_bounds() {
        for (measured, expected) in [
            (None, 5 * GBPS),
            (Some(1), LEAST_BPS),
            (Some(u64::MAX), LINE_BPS / 2),
        ] {
            let mut limit = RateLimit::new();
            limit.on_cnp(at(0), measured);
            assert_eq!(limit.bps(), expected, "{measured:?}");
        }
    }

    //= CNP-01 type=test
    #[test]
    fn marks_are_answered_now_and_then() {
        let mut watch = MarkWatch::default();
        assert!(watch.marked(at(0)));
        assert!(!watch.marked(at(49)));
        assert!(watch.marked(at(50)));
        assert!(!watch.marked(at(99)));
    }
}
