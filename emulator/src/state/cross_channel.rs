//! Work queues and CQs that take part in cross-channel operations.
//!
//! The count that a WAIT or ENABLE request refers to is fixed when the request is posted. Counts
//! start from a base, which each request with the flag "last of its group" advances.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::sync::{Mutex, MutexGuard, rank};
use rocade_transport::{Condition, Gate, Release, has_reached};
use rocade_wire::Qpn;

use super::cq::CqInner;
use super::service_queue::ServiceQueue;

/// The base of counts, and the greatest count since the base was advanced.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Base {
    from: u32,
    count: u32,
}

impl Base {
    /// Records a count from this base. The last request of a group advances the base.
    fn counted(mut self, count: u32, last: bool) -> Self {
        self.count = count;
        //= XCW-03
        //= XCE-03
        if last {
            self.from = self.from.wrapping_add(self.count);
            self.count = 0;
        }
        self
    }
}

/// The cross-channel capabilities of a QP, and those of its queues that other QPs release.
#[derive(Debug)]
pub(crate) struct CrossChannelState {
    /// The QP may carry WAIT, ENABLE and compute requests.
    pub(crate) is_master: bool,
    pub(crate) send: Option<Arc<ManagedQueue>>,
    pub(crate) recv: Option<Arc<ManagedQueue>>,
}

impl CrossChannelState {
    /// Resets the bases when the QP enters RESET.
    //= XCE-06
    pub(crate) fn reset(&self) {
        for queue in self.send.iter().chain(&self.recv) {
            *queue.base.lock() = Base::default();
        }
    }
}

/// A work queue that executes only the requests that are released to it.
#[derive(Debug)]
pub(crate) struct ManagedQueue {
    gate: Arc<Gate>,
    base: Mutex<Base, rank::TaskCount>,
    /// The QP to be served when requests of its send queue are released.
    wakes: Option<(Arc<ServiceQueue>, Qpn)>,
}

impl ManagedQueue {
    pub(crate) fn new(wakes: Option<(Arc<ServiceQueue>, Qpn)>) -> Arc<Self> {
        Arc::new(Self {
            gate: Arc::default(),
            base: Mutex::default(),
            wakes,
        })
    }

    pub(crate) const fn gate(&self) -> &Arc<Gate> {
        &self.gate
    }

    /// Plans a request that releases `count` requests from the base, or with 0 all that are posted.
    /// Returns `None` if fewer are posted.
    //= XCE-02
    pub(crate) fn plan_count(self: &Arc<Self>, count: u32, last: bool) -> Option<PendingCount<'_>> {
        let base = self.base.lock();
        let head = self.gate.posted();
        let (until, counted) = if count == 0 {
            (head, head.wrapping_sub(base.from))
        } else {
            (base.from.wrapping_add(count), base.count.max(count))
        };
        if !has_reached(head, until) {
            return None;
        }
        let next = base.counted(counted, last);
        Some(PendingCount { base, next, until })
    }
}

/// A count that becomes effective when the request is queued. Its lock keeps other requests from
/// counting meanwhile.
pub(crate) struct PendingCount<'a> {
    base: MutexGuard<'a, Base>,
    next: Base,
    until: u32,
}

impl PendingCount<'_> {
    /// Commits the count of a request that was queued. Returns the absolute index to release to.
    pub(crate) fn commit(mut self) -> u32 {
        *self.base = self.next;
        self.until
    }
}

/// Releases work requests of a queue.
#[derive(Debug)]
pub(crate) struct SendRelease {
    pub(crate) queue: Arc<ManagedQueue>,
    pub(crate) until: u32,
}

impl Release for SendRelease {
    fn release(&self) {
        self.queue.gate.release_to(self.until);
        if let Some((service_queue, qpn)) = &self.queue.wakes {
            service_queue.wake_qp(*qpn);
        }
    }
}

/// The requests that wait for completions of a CQ.
#[derive(Debug, Default)]
pub(super) struct Waits {
    /// Requests may wait for this CQ.
    pub(super) allowed: std::sync::atomic::AtomicBool,
    base: Mutex<Base, rank::TaskCount>,
    /// WAIT requests that are not executed yet.
    pub(super) pending: AtomicU32,
}

impl CqInner {
    /// Plans a request that waits for `count` completions from the base.
    //= XCW-02
    //= XCW-04
    pub(crate) fn plan_count(&self, count: u32, last: bool) -> PendingCount<'_> {
        let base = self.waits().base.lock();
        let until = base.from.wrapping_add(count);
        let next = base.counted(base.count.max(count), last);
        PendingCount { base, next, until }
    }
}

/// A WAIT request for completions of a CQ, which cannot be destroyed meanwhile.
#[derive(Debug)]
pub(crate) struct CompletionWait {
    cq: Arc<CqInner>,
    until: u32,
    /// The waiting QP once it waits. 0 is no QP number.
    waiter: AtomicU32,
}

impl CompletionWait {
    pub(crate) fn new(cq: &Arc<CqInner>, until: u32) -> Self {
        cq.waits().pending.fetch_add(1, Ordering::AcqRel);
        Self {
            cq: Arc::clone(cq),
            until,
            waiter: AtomicU32::new(0),
        }
    }
}

impl Condition for CompletionWait {
    fn holds_for(&self, waiter: Qpn) -> bool {
        self.waiter.store(waiter.get(), Ordering::Relaxed);
        self.cq.has_produced(self.until, waiter)
    }
}

impl Drop for CompletionWait {
    fn drop(&mut self) {
        let waiter = self.waiter.load(Ordering::Relaxed);
        if waiter != 0 {
            self.cq.forget_waiter(Qpn::new(waiter));
        }
        self.cq.waits().pending.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn enable(queue: &Arc<ManagedQueue>, count: u32, last: bool) -> Option<u32> {
        queue.plan_count(count, last).map(PendingCount::commit)
    }

    /// The example of the specification.
    //= XCE-09 type=test
    //= XCE-02 type=test
    //= XCE-03 type=test
    #[test]
    fn releases_count_from_a_base_that_the_last_one_moves() {
        let queue = ManagedQueue::new(None);
        let post = |count: u32| {
            for _ in 0..count {
                queue.gate.note_posted();
            }
        };
        post(3);
        assert_eq!(enable(&queue, 2, false), Some(2));
        assert_eq!(enable(&queue, 3, true), Some(3));
        post(1);
        assert_eq!(enable(&queue, 0, true), Some(4));
        assert_eq!(enable(&queue, 1, false), None, "only four are posted");
        assert_eq!(enable(&queue, 0, false), Some(4));
        post(1);
        assert_eq!(enable(&queue, 1, true), Some(5), "nothing had changed");
    }
}
