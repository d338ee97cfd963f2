//! Letting small posts wait for company.
//!
//! A program that posts one short message after the other pays a system call for each of them, which
//! takes ten times as long as all the rest; one call can send many. So where posts follow each other
//! at once ([`GAP_NS`]) and packets of the QP are on their way anyway, the next posts wait until there are
//! some of them, or until a packet arrives for the QP, the application polls an empty CQ, goes to sleep
//! or exits. At the latest the background thread sends them ([`WAIT_NS`]): then the burst had ended,
//! and the next one has to be longer before anything waits. Shared memory needs no system call, and there
//! nothing waits.

use std::mem;
use std::sync::atomic::Ordering;

use rocade_transport::{QpState, Time};
use rocade_wire::Qpn;

use super::EngineInner;
use super::ack_hold::Cause;
use super::handover::Driver;
use crate::objects::QpCore;

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
/// How long posts wait at most, or nearly.
const WAIT_NS: u64 = 1_000_000;
/// The background thread looks for posts that wait as long as some have waited so lately.
const LATELY_NS: u64 = 10 * WAIT_NS;

/// What a QP knows of how the application posts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Doorbell {
    last_post: Time,
    /// Posts of the burst so far.
    burst: u16,
    /// How many of them are transmitted at once.
    at_once: u16,
    /// What waits.
    posts: u16,
    bytes: u32,
    since: Time,
    /// The engine knows that something may wait.
    is_listed: bool,
}

impl Default for Doorbell {
    fn default() -> Self {
        Self {
            last_post: Time::ZERO,
            burst: 0,
            at_once: AT_ONCE,
            posts: 0,
            bytes: 0,
            since: Time::ZERO,
            is_listed: false,
        }
    }
}

impl Doorbell {
    /// A post of `bytes` bytes: may it wait? `in_flight`: packets of the QP are on their way.
    #[inline]
    fn may_wait(&mut self, now: Time, bytes: u32, in_flight: bool) -> bool {
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
    #[cfg(all(test, not(loom)))]
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

    /// Has one waited until its time is up? Then the application does not keep posting.
    fn is_overdue(&mut self, now: Time) -> bool {
        let overdue = self.waits() && now.ns_since(self.since) >= WAIT_NS / 2;
        if overdue {
            self.at_once = self.at_once.saturating_mul(2).min(MAX_AT_ONCE);
        }
        overdue
    }
}

impl EngineInner {
    /// The application has posted `bytes` bytes: let them wait? If not, they are to be transmitted.
    #[inline]
    pub(crate) fn may_wait(&self, qpn: Qpn, core: &mut QpCore, bytes: u32, now: Time) -> bool {
        let may = core.tx.uses_socket()
            && core.qp.state() == QpState::Rts
            && core.qp.pending_completions().len() == 0;
        let in_flight = may && core.qp.requests_in_flight();
        let doorbell = core.tx.doorbell();
        if !doorbell.may_wait(now, bytes, in_flight) {
            return false;
        }
        if !doorbell.is_listed {
            doorbell.is_listed = true;
            self.list_waiting(qpn, now);
        }
        true
    }

    fn list_waiting(&self, qpn: Qpn, now: Time) {
        let mut waiting = self.waiting.lock();
        waiting.push(qpn);
        self.waiting_count.store(waiting.len(), Ordering::Relaxed);
        drop(waiting);
        self.waited_at.store(now.as_ns(), Ordering::Relaxed);
        let latest = now.plus_ns(2 * WAIT_NS).as_ns();
        if self.sleeping_until.load(Ordering::SeqCst) > latest {
            self.call_background();
        }
    }

    /// Transmits all posts that wait.
    #[inline]
    pub(crate) fn ring_doorbells(&self) {
        if self.waiting_count.load(Ordering::Relaxed) > 0 {
            self.ring(Driver::Application, |_, _| true);
        }
    }

    /// Transmits the posts that have waited too long.
    pub(super) fn ring_overdue_doorbells(&self) {
        if self.waiting_count.load(Ordering::Relaxed) > 0 {
            self.ring(Driver::Background, Doorbell::is_overdue);
        }
    }

    /// When the background thread should look for posts that wait.
    pub(super) fn next_doorbell(&self, now: Time) -> Option<Time> {
        let waited_at = self.waited_at.load(Ordering::Relaxed);
        let lately = now.as_ns().saturating_sub(waited_at) < LATELY_NS;
        let some = lately || self.waiting_count.load(Ordering::Relaxed) > 0;
        some.then(|| now.plus_ns(WAIT_NS))
    }

    fn ring(&self, driver: Driver, is_due: impl Fn(&mut Doorbell, Time) -> bool) {
        let now = self.now();
        let waiting = mem::take(&mut *self.waiting.lock());
        self.waiting_count.store(0, Ordering::Relaxed);
        for qpn in waiting {
            self.with_qp(qpn, |inner, core, mem| {
                let doorbell = core.tx.doorbell();
                if !doorbell.waits() {
                    doorbell.is_listed = false;
                } else if is_due(doorbell, now) {
                    doorbell.is_listed = false;
                    self.drain(inner, core, mem, Cause::Posted, now, driver);
                } else {
                    self.list_waiting(qpn, now);
                }
            });
        }
    }
}

#[cfg(all(test, not(loom)))]
#[path = "../../tests/common/mod.rs"]
mod common;

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::{Duration, Instant};

    use rocade_transport::SendOp;

    use super::common::{self, Side};
    use super::*;

    const START_NS: u64 = 1_000_000_000;

    /// Posts 64 bytes every `gap_ns`; how many of `count` posts waited, and how often all left.
    fn burst(doorbell: &mut Doorbell, count: u64, gap_ns: u64) -> (u64, u64) {
        let (mut waited, mut rung) = (0, 0);
        for index in 0..count {
            if doorbell.may_wait(Time::from_ns(START_NS + index * gap_ns), 64, true) {
                waited += 1;
            } else {
                doorbell.rung();
                rung += 1;
            }
        }
        (waited, rung)
    }

    #[test]
    fn only_bursts_wait_and_not_forever() {
        assert_eq!(burst(&mut Doorbell::default(), 4, 500), (0, 4));
        let (waited, rung) = burst(&mut Doorbell::default(), 4 + 10 * 32, 500);
        assert_eq!((waited, rung), (310, 14));
        assert_eq!(burst(&mut Doorbell::default(), 100, 7_000), (0, 100));
        // Each that was transmitted allows for the time that takes, but then the next comes too late.
        let (waited, rung) = burst(&mut Doorbell::default(), 100, 3_000);
        assert!(waited < rung, "{waited} waited, {rung} left");
    }

    #[test]
    fn nothing_waits_where_no_packet_is_on_its_way_or_much_waits() {
        let mut doorbell = Doorbell::default();
        burst(&mut doorbell, 4, 500);
        let at = |us: u64| Time::from_ns(START_NS + us * 1_000);
        assert!(!doorbell.may_wait(at(2), 64, false));
        assert!(doorbell.may_wait(at(3), MAX_WAITING_BYTES - 1, true));
        assert!(!doorbell.may_wait(at(3), 1, true));
    }

    #[test]
    fn who_stops_in_mid_burst_is_believed_less() {
        let mut doorbell = Doorbell::default();
        burst(&mut doorbell, 8, 500);
        assert!(doorbell.waits());
        let late = Time::from_ns(START_NS + 10 * WAIT_NS);
        assert!(doorbell.is_overdue(late));
        doorbell.rung();
        assert!(!doorbell.is_overdue(late));
        let mut doorbell = Doorbell {
            burst: 0,
            last_post: Time::ZERO,
            ..doorbell
        };
        assert_eq!(
            burst(&mut doorbell, 8, 500),
            (0, 8),
            "twice as many at once"
        );
    }

    /// Posts 8-byte WRITEs, the n-th to place n, until one waits for company, and returns its number.
    fn post_until_one_waits(a: &Side, b: &Side) -> usize {
        for number in 1..1000 {
            a.qp.inner().lock().tx.doorbell().do_not_hurry();
            let op = SendOp::Write {
                va: b.addr(8 * number),
                rkey: b.mr.rkey(),
                imm: None,
            };
            a.send(1, op, &[a.sge(8 * number, 8)]);
            if a.qp.inner().lock().tx.doorbell().waits() {
                return number;
            }
            // Nothing was on its way: room for the next ones.
            while a.cq.poll_one().is_some() {}
        }
        panic!("each was acknowledged at once");
    }

    /// Posts wait for company where packets are on their way, and leave at the next opportunity: a
    /// poll in vain, an application that sleeps or, if it does nothing at all, soon.
    #[test]
    fn posts_that_wait_leave_whatever_the_application_does() {
        let opportunities: [fn(&Side); 3] = [
            |_| (),
            |a| while a.cq.poll_one().is_some() {},
            |a| a.engine.inner.leave_inline(),
        ];
        for opportunity in opportunities {
            let (a, b) = common::pair("127.4.0.3", "127.4.0.4", 8 * 1000);
            a.fill(0, &[1; 8 * 1000]);
            let number = post_until_one_waits(&a, &b);
            opportunity(&a);
            let deadline = Instant::now() + Duration::from_secs(10);
            while b.bytes(8 * number, 8) != [1; 8] {
                assert!(Instant::now() < deadline, "post {number} is still waiting");
                std::thread::yield_now();
            }
            assert!(!a.qp.inner().lock().tx.doorbell().waits());
        }
    }
}
