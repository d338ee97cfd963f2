//! Payloads that were copied to their places before their packets are handled.
//!
//! A copy by the kernel ([`CopyMethod::Kernel`]) is a system call. The payloads of a run take one
//! for all. When a packet is handled, its access is checked as always, and its payload is
//! recognised as copied. If the kernel has met unmapped memory, the packets from there on copy by
//! themselves, and the first one that faults is refused as always.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use rocade_transport::{AccessFlags, Placement, PlacementKey};

use super::access::{self, Span};
use super::guard::CopyMethod;
use super::table::MemGuard;

/// The payloads that were copied and not yet handled: address and length of the place, and address
/// of the payload.
#[derive(Debug, Default)]
pub(super) struct Placed {
    payloads: RefCell<VecDeque<(Span, usize)>>,
    /// A run could not be copied ahead. The next ones are probably like it.
    hopeless: Cell<bool>,
}

impl Placed {
    /// Returns true if this is the next payload, which it forgets then. Otherwise it forgets all.
    pub(super) fn take(&self, span: Span, payload: &[u8]) -> bool {
        let mut placed = self.payloads.borrow_mut();
        if placed.pop_front() == Some((span, payload.as_ptr().addr())) {
            return true;
        }
        placed.clear();
        false
    }
}

impl MemGuard<'_> {
    /// Returns true if payloads should be copied ahead: the kernel copies, and none is waiting.
    #[inline]
    pub(crate) fn takes_placements(&self) -> bool {
        let placed = &self.placed;
        self.method == CopyMethod::Kernel
            && !placed.hopeless.get()
            && placed.payloads.borrow().is_empty()
    }

    /// Copies payloads to their places with one system call, up to the first one that needs a
    /// closer look. The packets must be handled next, in this order, under this guard.
    pub(crate) fn place_ahead(&self, placements: &[Placement<'_>]) {
        let mut spans = Vec::with_capacity(placements.len());
        for placement in placements {
            let Some(span) = self.span_of(placement) else {
                break;
            };
            spans.push((span, placement.payload, placement.ends));
        }
        // One alone costs as much when it is handled.
        if placements.len() < 2 {
            return;
        }
        let done = access::write_ahead(&spans);
        self.placed.hopeless.set(done == 0);
        let done = spans.iter().take(done);
        *self.placed.payloads.borrow_mut() = done
            .map(|(span, payload, _)| (*span, payload.as_ptr().addr()))
            .collect();
    }

    /// Forgets payloads whose packets were not handled. Their memory may be reused from now on.
    pub(crate) fn forget_placements(&self) {
        if self.method == CopyMethod::Kernel {
            self.placed.payloads.borrow_mut().clear();
        }
    }

    /// Returns the place in a region, if the access is allowed.
    fn span_of(&self, placement: &Placement<'_>) -> Option<Span> {
        let (key, right) = match placement.key {
            PlacementKey::Local(lkey) => (lkey.get(), AccessFlags::LOCAL_WRITE),
            PlacementKey::Remote(rkey) => (rkey.get(), AccessFlags::REMOTE_WRITE),
        };
        let len = placement.payload.len() as u64;
        let region = self.regions.region(key)?;
        let span = region.span((placement.who, self.method), placement.addr, len, right);
        span.ok()
    }
}
