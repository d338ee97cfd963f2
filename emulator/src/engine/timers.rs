//! When which QP has to be woken.
//!
//! A QP's deadline moves with every acknowledgement, nearly always into the future. So an entry
//! is only made where none is pending that comes earlier; when an entry is due, the QP says
//! whether its timer really is, or when else. Nothing late costs nothing.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use parking_lot::Mutex;
use rocade_transport::Time;
use rocade_wire::Qpn;

#[derive(Debug)]
pub(crate) struct Timers {
    heap: Mutex<BinaryHeap<Reverse<(Time, u32)>>>,
}

impl Timers {
    pub(crate) const fn new() -> Self {
        Self {
            heap: Mutex::new(BinaryHeap::new()),
        }
    }

    /// Adds an entry; true where it is the earliest.
    pub(crate) fn add(&self, at: Time, qp: Qpn) -> bool {
        let mut heap = self.heap.lock();
        let earliest = heap.peek().is_none_or(|Reverse((first, _))| at < *first);
        heap.push(Reverse((at, qp.get())));
        earliest
    }

    /// Takes the next entry that is due.
    pub(crate) fn take_due(&self, now: Time) -> Option<Qpn> {
        let mut heap = self.heap.lock();
        if heap.peek().is_some_and(|Reverse((at, _))| *at <= now) {
            heap.pop().map(|Reverse((_, qp))| Qpn::new(qp))
        } else {
            None
        }
    }

    /// When the earliest entry is due.
    pub(crate) fn next(&self) -> Option<Time> {
        self.heap.lock().peek().map(|Reverse((at, _))| *at)
    }
}
