//! Small posts that wait for company.
//!
//! A program that posts one short message after the other pays a system call for each of them, which
//! takes ten times as long as all the rest; one call can send many. So where posts follow each other
//! at once ([`GAP_NS`]) and packets of the QP are on their way anyway, the next posts wait until there are
//! some of them, or until somebody looks after them. That ends a burst which was not one, and the next one has
//! to be longer before anything waits.

use super::WAIT_NS;
use crate::time::Time;

/// Posts that follow so soon after one that had to wait belong to the same burst.
const GAP_NS: u64 = 1_000;
/// The same after one that was transmitted, which takes a system call.
const GAP_AFTER_SEND_NS: u64 = 6_000;
/// Posts of a burst that are transmitted at once, at least and at most.
const AT_ONCE: u16 = 4;
const MAX_AT_ONCE: u16 = 1 << 12;
/// Posts and bytes that wait at most.
const MAX_WAITING_POSTS: u16 = 32;
const MAX_WAITING_BYTES: u32 = 32 << 10;

/// What a QP knows of how the application posts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Burst {
    last_post: Time,
    since: Time,
    /// What waits.
    bytes: u32,
    posts: u16,
    /// Posts of the burst so far.
    burst: u16,
    /// How many of them are transmitted at once.
    at_once: u16,
}

impl Default for Burst {
    fn default() -> Self {
        Self {
            last_post: Time::ZERO,
            since: Time::ZERO,
            bytes: 0,
            posts: 0,
            burst: 0,
            at_once: AT_ONCE,
        }
    }
}

impl Burst {
    /// A post of `bytes` bytes: may it wait? `in_flight`: packets of the QP are on their way.
    #[inline]
    pub(super) fn may_wait(&mut self, now: Time, bytes: u32, in_flight: bool) -> bool {
        let gap_ns = if self.posts > 0 {
            GAP_NS
        } else {
            GAP_AFTER_SEND_NS
        };
        let follows = now.ns_since(self.last_post) < gap_ns;
        self.last_post = now;
        self.burst = if follows {
            self.burst.saturating_add(1)
        } else {
            0
        };
        let has_room = self.posts + 1 < MAX_WAITING_POSTS
            && self.bytes.saturating_add(bytes) < MAX_WAITING_BYTES;
        let waits = in_flight && self.burst >= self.at_once && has_room;
        if waits {
            self.since = if self.posts == 0 { now } else { self.since };
            self.posts += 1;
            self.bytes += bytes;
        }
        waits
    }

    /// Each post may wait from now on, however long after the one before it comes.
    #[cfg(any(test, feature = "test-utils"))]
    pub(super) const fn do_not_hurry(&mut self) {
        self.at_once = 0;
    }

    /// The QP transmits all that it may.
    #[inline]
    pub(super) const fn rung(&mut self) {
        self.posts = 0;
        self.bytes = 0;
    }

    /// Does a post wait?
    pub(super) const fn waits(&self) -> bool {
        self.posts > 0
    }

    /// Since when the first of them has waited.
    pub(super) fn waits_since(&self) -> Option<Time> {
        self.waits().then_some(self.since)
    }

    /// Has one waited until its time is up? Then the application does not keep posting.
    pub(super) fn is_overdue(&mut self, now: Time) -> bool {
        let overdue = self.waits() && now.ns_since(self.since) >= WAIT_NS / 2;
        if overdue {
            self.at_once = self.at_once.saturating_mul(2).min(MAX_AT_ONCE);
        }
        overdue
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START_NS: u64 = 1_000_000_000;

    /// Posts 64 bytes every `gap_ns`; how many of `count` posts waited, and how often all left.
    fn burst(posts: &mut Burst, count: u64, gap_ns: u64) -> (u64, u64) {
        let (mut waited, mut rung) = (0, 0);
        for index in 0..count {
            if posts.may_wait(Time::from_ns(START_NS + index * gap_ns), 64, true) {
                waited += 1;
            } else {
                posts.rung();
                rung += 1;
            }
        }
        (waited, rung)
    }

    #[test]
    fn only_bursts_wait_and_not_forever() {
        assert_eq!(burst(&mut Burst::default(), 4, 500), (0, 4));
        let (waited, rung) = burst(&mut Burst::default(), 4 + 10 * 32, 500);
        assert_eq!((waited, rung), (310, 14));
        assert_eq!(burst(&mut Burst::default(), 100, 7_000), (0, 100));
        // Each that was transmitted allows for the time that takes, but then the next comes too late.
        let (waited, rung) = burst(&mut Burst::default(), 100, 3_000);
        assert!(waited < rung, "{waited} waited, {rung} left");
    }

    #[test]
    fn nothing_waits_where_no_packet_is_on_its_way_or_much_waits() {
        let mut posts = Burst::default();
        burst(&mut posts, 4, 500);
        let at = |us: u64| Time::from_ns(START_NS + us * 1_000);
        assert!(!posts.may_wait(at(2), 64, false));
        assert!(posts.may_wait(at(3), MAX_WAITING_BYTES - 1, true));
        assert!(!posts.may_wait(at(3), 1, true));
    }

    #[test]
    fn who_stops_in_mid_burst_is_believed_less() {
        let mut posts = Burst::default();
        burst(&mut posts, 8, 500);
        assert!(posts.waits());
        let late = Time::from_ns(START_NS + 10 * WAIT_NS);
        assert!(posts.is_overdue(late));
        posts.rung();
        assert!(!posts.is_overdue(late));
        let mut posts = Burst {
            burst: 0,
            last_post: Time::ZERO,
            ..posts
        };
        assert_eq!(burst(&mut posts, 8, 500), (0, 8), "twice as many at once");
    }
}
