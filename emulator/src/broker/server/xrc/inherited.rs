//! Members and targets of an earlier broker that no client has resumed.
//!
//! The memory of a domain survives its broker. A process that dies, closes a target or leaves the
//! domain while no broker runs stays in that memory, where other processes find it.

use super::{Creators, Domain, Domains, Server, TargetNotification};
use crate::steering::ProcessSlot;

impl Domain {
    /// Removes what no process has any longer. `may_resume` is true for the slots of clients of an
    /// earlier broker that have not resumed everything. They may have any target open, so the
    /// targets stay until the last of them has resumed it or is gone.
    pub(super) fn forget_unresumed(
        &mut self,
        creators: &mut Creators,
        may_resume: impl Fn(ProcessSlot) -> bool,
    ) -> Vec<TargetNotification> {
        let mut notifications = Vec::new();
        let members = self.memory.members();
        let (late, other): (Vec<_>, Vec<_>) = members.partition(|slot| may_resume(*slot));
        if late.is_empty() {
            self.is_inherited = false;
            self.remove_unopened(creators, &mut notifications);
            let targets = &self.targets;
            self.memory
                .retain_targets(|qpn| targets.contains_key(&qpn.get()));
        }
        for slot in other {
            if !self.members.contains(&slot) {
                self.leave(slot, creators, &mut notifications);
            }
        }
        notifications
    }
}

impl Domains {
    /// Asserts that the creators are those of all targets.
    #[cfg(debug_assertions)]
    pub(in crate::broker::server) fn check_invariants(&self) {
        let mut creators = Creators::default();
        let targets = self.all.values().flat_map(|domain| domain.targets.keys());
        targets.for_each(|number| creators.add(rocade_wire::Qpn::new(*number)));
        assert_eq!(creators, self.creators, "the creators of all targets");
    }
}

impl Server {
    /// Removes members and targets of an earlier broker whose processes are gone, once its other
    /// clients have resumed.
    pub(in crate::broker::server) fn forget_unresumed(&mut self) {
        if self.awaits_clients() {
            return;
        }
        let may_resume = |slot| {
            let mut clients = self.clients.iter();
            self.slots.is_orphan(slot)
                || clients.any(|client| client.slot == Some(slot) && client.is_resuming())
        };
        let mut notifications = Vec::new();
        let Domains { all, creators } = &mut self.domains;
        for domain in all.values_mut().filter(|domain| domain.is_inherited) {
            notifications.extend(domain.forget_unresumed(creators, may_resume));
        }
        self.notify(notifications);
    }
}
