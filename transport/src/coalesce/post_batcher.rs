//! Batching of small posts.
//!
//! A program that posts one short message after another pays a system call for each, which takes
//! ten times as long as all other work. One system call can send many messages. So if posts follow
//! each other immediately ([`GAP_NS`]) while packets of the QP are in flight, the next posts are
//! delayed. They are sent once there are several, or when a thread services the QP. If a post is
//! delayed too long, the prediction was wrong, and the next burst has to be longer before posts are
//! delayed.

use super::BATCH_DELAY_NS;
use crate::time::Time;

/// The longest gap to a delayed post within a burst.
const GAP_NS: u64 = 1_000;
/// The longest gap to a transmitted post within a burst. A transmission takes a system call.
const GAP_AFTER_SEND_NS: u64 = 6_000;
/// Posts of a burst that are transmitted at once, least and most.
const AT_ONCE: u16 = 4;
const MAX_AT_ONCE: u16 = 1 << 12;
/// Most posts and bytes that are delayed.
const MAX_WAITING_POSTS: u16 = 32;
const MAX_WAITING_BYTES: u32 = 32 << 10;

/// Prediction of the application's posts.
#[derive(Clone, Copy, Debug)]
pub(super) struct PostBatcher {
    last_post: Time,
    since: Time,
    /// Delayed bytes and posts.
    bytes: u32,
    posts: u16,
    /// Posts of the burst so far.
    burst: u16,
    /// Number of posts of a burst that are transmitted at once.
    at_once: u16,
}

impl Default for PostBatcher {
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

impl PostBatcher {
    /// Returns true if a post of `bytes` bytes may be delayed. `in_flight` is true if packets of
    /// the QP are in flight.
    #[inline]
    pub(super) fn should_batch(&mut self, now: Time, bytes: u32, in_flight: bool) -> bool {
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
        let has_space = self.posts + 1 < MAX_WAITING_POSTS
            && self.bytes.saturating_add(bytes) < MAX_WAITING_BYTES;
        let waits = in_flight && self.burst >= self.at_once && has_space;
        if waits {
            self.since = if self.posts == 0 { now } else { self.since };
            self.posts += 1;
            self.bytes += bytes;
        }
        waits
    }

    /// Allows each post to be delayed from now on, even the first of a burst.
    #[cfg(any(test, feature = "test-utils"))]
    pub(super) const fn batch_every_post(&mut self) {
        self.at_once = 0;
    }

    /// Notes that the QP transmits all that it may.
    #[inline]
    pub(super) const fn flush(&mut self) {
        self.posts = 0;
        self.bytes = 0;
    }

    /// Returns true if a post is delayed.
    pub(super) const fn waits(&self) -> bool {
        self.posts > 0
    }

    /// Returns when the oldest delayed post was posted.
    pub(super) fn waits_since(&self) -> Option<Time> {
        self.waits().then_some(self.since)
    }

    /// Returns true if a post was delayed too long. Then the application has stopped posting.
    pub(super) fn is_overdue(&mut self, now: Time) -> bool {
        let overdue = self.waits() && now.ns_since(self.since) >= BATCH_DELAY_NS / 2;
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

    /// Posts 64 bytes every `gap_ns`. Returns how many of `count` posts were delayed, and how often
    /// all were transmitted.
    fn burst(posts: &mut PostBatcher, count: u64, gap_ns: u64) -> (u64, u64) {
        let (mut waited, mut flushes) = (0, 0);
        for index in 0..count {
            if posts.should_batch(Time::from_ns(START_NS + index * gap_ns), 64, true) {
                waited += 1;
            } else {
                posts.flush();
                flushes += 1;
            }
        }
        (waited, flushes)
    }

    #[test]
    fn only_bursts_wait_and_not_forever() {
        assert_eq!(burst(&mut PostBatcher::default(), 4, 500), (0, 4));
        let (waited, flushes) = burst(&mut PostBatcher::default(), 4 + 10 * 32, 500);
        assert_eq!((waited, flushes), (310, 14));
        assert_eq!(burst(&mut PostBatcher::default(), 100, 7_000), (0, 100));
        // After a transmission the permitted gap is longer, but after a delayed post the next one
        // comes too late.
        let (waited, flushes) = burst(&mut PostBatcher::default(), 100, 3_000);
        assert!(waited < flushes, "{waited} delayed, {flushes} sent");
    }

    #[test]
    fn nothing_waits_where_no_packet_is_on_its_way_or_much_waits() {
        let mut posts = PostBatcher::default();
        burst(&mut posts, 4, 500);
        let at = |us: u64| Time::from_ns(START_NS + us * 1_000);
        assert!(!posts.should_batch(at(2), 64, false));
        assert!(posts.should_batch(at(3), MAX_WAITING_BYTES - 1, true));
        assert!(!posts.should_batch(at(3), 1, true));
    }

    #[test]
    fn stopping_in_mid_burst_lengthens_the_next() {
        let mut posts = PostBatcher::default();
        burst(&mut posts, 8, 500);
        assert!(posts.waits());
        let late = Time::from_ns(START_NS + 10 * BATCH_DELAY_NS);
        assert!(posts.is_overdue(late));
        posts.flush();
        assert!(!posts.is_overdue(late));
        let mut posts = PostBatcher {
            burst: 0,
            last_post: Time::ZERO,
            ..posts
        };
        assert_eq!(
            burst(&mut posts, 8, 500),
            (0, 8),
            "twice as many sent at once"
        );
    }
}
