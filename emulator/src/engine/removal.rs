//! Devices that a fault rule removes while they are in use.
//!
//! A program sees what the kernel and a provider in user space make of a device that is
//! unplugged. Every opened context gets its last event, [`AsyncEventKind::DeviceFatal`]
//! (`uverbs_async_event_destroy_uobj`), and calls that need the kernel fail with `EIO`, but for
//! those that destroy. Queues are memory of the program, so that posting goes on to succeed, and
//! nothing completes.
//!
//! [`AsyncEventKind::DeviceFatal`]: crate::state::AsyncEventKind::DeviceFatal

use std::sync::Arc;

use super::{Host, Nic};
use crate::hca::Hca;
use crate::state::QpInner;

impl Host {
    /// The devices that no rule has removed.
    pub(crate) fn present_hcas(&self) -> impl Iterator<Item = &Arc<Hca>> {
        self.hcas.iter().filter(|hca| !hca.is_removed())
    }
}

impl Nic {
    /// Takes a device away from all who have opened it. Its packets are lost already.
    pub(super) fn remove_device(&self, hca: &Arc<Hca>) {
        // No further object can be made after that.
        for events in self.tables.opened_contexts(hca) {
            events.remove();
        }
        self.detach_removed();
        self.cm.remove_ids(self, hca);
    }

    /// Separates all QPs of removed devices from them.
    pub(super) fn detach_removed(&self) {
        let qps: Vec<Arc<QpInner>> = {
            let all = self.tables.qps.read();
            all.iter().filter(|qp| qp.is_removed()).cloned().collect()
        };
        for qp in &qps {
            self.detach_qp(qp);
        }
    }

    /// Separates a QP from its device for ever. Packets to its number find no QP.
    fn detach_qp(&self, qp: &QpInner) {
        let qpn = qp.qp_num();
        self.faults.triggers.forget(qpn);
        // Dropped after the lock is released, because it may be the last reference.
        let removed = self.tables.qps.write().remove(qpn);
        let was_listed = removed.is_some();
        drop(removed);
        self.leave_groups(qpn);
        self.end_flows(qp);
        if was_listed {
            self.keep_counters(qp);
        }
        qp.detach();
    }
}
