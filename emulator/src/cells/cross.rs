//! Queues and CQs that take part in cross-channel operations.
//!
//! What a request waits for, or releases, is fixed when it is posted, counted from a base that moves on with each
//! request that is said to be the last of its group (XCW-03, XCE-03).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::{Mutex, MutexGuard};
use rocade_transport::{Condition, Gate, Release, has_reached};
use rocade_wire::Qpn;

use super::agenda::Agenda;
use super::cq::CqInner;

/// From where counts go, and the greatest one since it moved.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Base {
    from: u32,
    count: u32,
}

impl Base {
    /// A count from here; the last one of its group moves it.
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

/// What a QP may do, and which of its queues others release.
#[derive(Debug)]
pub(crate) struct CrossPart {
    /// It may carry requests that wait, release and compute.
    pub(crate) is_master: bool,
    pub(crate) send: Option<Arc<ManagedQueue>>,
    pub(crate) recv: Option<Arc<ManagedQueue>>,
}

impl CrossPart {
    /// The QP is in RESET.
    //= XCE-06
    pub(crate) fn reset(&self) {
        for queue in self.send.iter().chain(&self.recv) {
            *queue.base.lock() = Base::default();
        }
    }
}

/// A queue that executes what is released to it.
#[derive(Debug)]
pub(crate) struct ManagedQueue {
    gate: Arc<Gate>,
    base: Mutex<Base>,
    /// The QP to be looked at when something was released to its send queue.
    wakes: Option<(Arc<Agenda>, Qpn)>,
}

impl ManagedQueue {
    pub(crate) fn new(wakes: Option<(Arc<Agenda>, Qpn)>) -> Arc<Self> {
        Arc::new(Self {
            gate: Arc::default(),
            base: Mutex::default(),
            wakes,
        })
    }

    pub(crate) const fn gate(&self) -> &Arc<Gate> {
        &self.gate
    }

    /// A request is going to release `count` more than the base, or for 0 all that are there; `None` where that is more.
    //= XCE-02
    pub(crate) fn plan(self: &Arc<Self>, count: u32, last: bool) -> Option<Planned<'_>> {
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
        Some(Planned { base, next, until })
    }
}

/// A count that is fixed as soon as the request is queued; nobody else counts meanwhile.
pub(crate) struct Planned<'a> {
    base: MutexGuard<'a, Base>,
    next: Base,
    until: u32,
}

impl Planned<'_> {
    /// The request is queued: up to where it goes.
    pub(crate) fn commit(mut self) -> u32 {
        *self.base = self.next;
        self.until
    }
}

/// Releases work requests of a queue.
#[derive(Debug)]
pub(crate) struct Releasing {
    pub(crate) queue: Arc<ManagedQueue>,
    pub(crate) until: u32,
}

impl Release for Releasing {
    fn release(&self) {
        self.queue.gate.release_to(self.until);
        if let Some((agenda, qpn)) = &self.queue.wakes {
            agenda.wake_qp(*qpn);
        }
    }
}

/// The requests that wait for completions of a CQ.
#[derive(Debug, Default)]
pub(super) struct Waits {
    /// It may be waited for (XCH-03).
    pub(super) allowed: std::sync::atomic::AtomicBool,
    base: Mutex<Base>,
    /// Requests that are not executed.
    pub(super) pending: AtomicU32,
}

impl CqInner {
    /// A request is going to wait for `count` completions from the base on.
    //= XCW-02
    //= XCW-04
    pub(crate) fn plan(&self, count: u32, last: bool) -> Planned<'_> {
        let base = self.waits().base.lock();
        let until = base.from.wrapping_add(count);
        let next = base.counted(base.count.max(count), last);
        Planned { base, next, until }
    }
}

/// Waits for completions of a CQ, which cannot be destroyed meanwhile (XDEC-10).
#[derive(Debug)]
pub(crate) struct Waiting {
    cq: Arc<CqInner>,
    until: u32,
    /// Who waits, once it does: no QP has the number 0.
    who: AtomicU32,
}

impl Waiting {
    pub(crate) fn new(cq: &Arc<CqInner>, until: u32) -> Self {
        cq.waits().pending.fetch_add(1, Ordering::AcqRel);
        Self {
            cq: Arc::clone(cq),
            until,
            who: AtomicU32::new(0),
        }
    }
}

impl Condition for Waiting {
    fn holds_for(&self, who: Qpn) -> bool {
        self.who.store(who.get(), Ordering::Relaxed);
        self.cq.has_produced(self.until, who)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let who = self.who.load(Ordering::Relaxed);
        if who != 0 {
            self.cq.forget_waiter(Qpn::new(who));
        }
        self.cq.waits().pending.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn enable(queue: &Arc<ManagedQueue>, count: u32, last: bool) -> Option<u32> {
        queue.plan(count, last).map(Planned::commit)
    }

    /// The example of the rules.
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
        assert_eq!(enable(&queue, 1, false), None, "there is no fifth");
        assert_eq!(enable(&queue, 0, false), Some(4));
        post(1);
        assert_eq!(enable(&queue, 1, true), Some(5), "nothing had changed");
    }
}
