//! Runs of packets that a socket or a channel had no room for: who tries again, and when.
//!
//! An application that polls tries again with each poll: it is awake anyway, and finds room as soon as
//! there is some. The background thread does so where the application has not tried since it last looked,
//! which it does every half millisecond as long as anything is blocked. Only the thread has itself
//! woken by the peer of a channel: a stream that is faster than its receiver is blocked most of the
//! time, and waking a thread takes as long as copying many packets.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use rocade_transport::Time;
use rocade_wire::Qpn;

use super::EngineInner;
use super::handover::Driver;

/// How long the background thread leaves blocked queue pairs alone.
const RETRY_NS: u64 = 500_000;

/// The queue pairs that are blocked.
#[derive(Debug, Default)]
pub(super) struct BlockedQps {
    qps: Mutex<VecDeque<Qpn>>,
    /// How many.
    count: AtomicUsize,
    /// How often one of them was blocked.
    times: AtomicU64,
    /// How often the application has tried again.
    tries: AtomicU64,
}

/// What the background thread remembers from turn to turn.
#[derive(Debug, Default)]
pub(super) struct Seen {
    times: u64,
    tries: u64,
}

impl BlockedQps {
    fn add(&self, qpn: Qpn) {
        let mut qps = self.qps.lock();
        if !qps.contains(&qpn) {
            qps.push_back(qpn);
            self.count.store(qps.len(), Ordering::SeqCst);
        }
    }

    fn next(&self) -> Option<Qpn> {
        let mut qps = self.qps.lock();
        let qpn = qps.pop_front();
        self.count.store(qps.len(), Ordering::SeqCst);
        qpn
    }

    /// Who is blocked counts, then looks whether the background thread sleeps; that does it the other way
    /// round.
    fn count(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }
}

impl EngineInner {
    /// This thread could not send what a QP has to send.
    pub(super) fn note_blocked(&self, qpn: Qpn, driver: Driver) {
        self.blocked.add(qpn);
        self.blocked.times.fetch_add(1, Ordering::Relaxed);
        let in_time = self.now().plus_ns(RETRY_NS);
        if driver == Driver::Application && self.sleeps_beyond(in_time) {
            self.call_background();
        }
    }

    /// The application polls.
    #[inline]
    pub(super) fn retry_blocked_inline(&self) {
        if self.blocked.count() > 0 {
            self.blocked.tries.fetch_add(1, Ordering::Relaxed);
            self.retry_blocked(Driver::Application);
        }
    }

    /// The background thread has a turn.
    pub(super) fn retry_blocked_unless_tried(&self, seen: &mut Seen) {
        let tries = self.blocked.tries.load(Ordering::Relaxed);
        let tried = std::mem::replace(&mut seen.tries, tries) != tries;
        if !tried || self.handover.is_asleep() {
            self.retry_blocked(Driver::Background);
        }
    }

    fn retry_blocked(&self, driver: Driver) {
        // Who is blocked again comes last.
        for _ in 0..self.blocked.count() {
            let Some(qpn) = self.blocked.next() else {
                return;
            };
            self.with_qp(qpn, |inner, core, mem| {
                self.resend_blocked(inner, core, mem, driver)
            });
        }
    }

    /// When the background thread has to look again: where something is blocked, or was since it looked.
    pub(super) fn look_at_blocked(&self, seen: &mut Seen, now: Time) -> Option<Time> {
        let times = self.blocked.times.load(Ordering::Relaxed);
        let lately = std::mem::replace(&mut seen.times, times) != times;
        (lately || self.blocked.count() > 0).then(|| now.plus_ns(RETRY_NS))
    }
}
