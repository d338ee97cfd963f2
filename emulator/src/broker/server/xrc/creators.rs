//! The processes that have created targets which still exist.

use rocade_wire::Qpn;

use crate::steering::ProcessSlot;

/// The number of targets by the slot of the process that has created them. The broker asks in each
/// turn, for each of its sockets, and there may be thousands of targets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Creators([u32; 256]);

impl Default for Creators {
    fn default() -> Self {
        Self([0; 256])
    }
}

impl Creators {
    /// Notes a new target.
    pub(super) fn add(&mut self, qpn: Qpn) {
        self.0[ProcessSlot::of(qpn).index()] += 1;
    }

    /// Notes that a target is gone.
    pub(super) fn remove(&mut self, qpn: Qpn) {
        let count = &mut self.0[ProcessSlot::of(qpn).index()];
        *count = count.saturating_sub(1);
    }

    /// Returns true if a target of this creator exists.
    pub(super) const fn has(&self, slot: ProcessSlot) -> bool {
        self.0[slot.index()] > 0
    }
}
