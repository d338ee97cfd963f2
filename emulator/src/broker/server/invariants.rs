//! Conditions that hold between any two turns of a broker, asserted in debug builds.

use std::collections::BTreeSet;

use super::Server;

impl Server {
    /// Asserts all conditions.
    pub(super) fn check_invariants(&self) {
        self.check_slots();
        self.check_groups();
        self.domains.check_invariants();
    }

    /// A slot has one process: a client, or an orphan of an earlier broker.
    fn check_slots(&self) {
        let mut slots = BTreeSet::new();
        for client in self.clients.iter().filter(|client| !client.gone) {
            let Some(slot) = client.slot else { continue };
            assert!(slots.insert(slot), "two clients have {slot}");
            assert!(!self.slots.is_orphan(slot), "{slot} has an orphan too");
        }
        for slot in self.journals.keys() {
            assert!(!slots.contains(slot), "{slot} is connected, and has ended");
        }
    }

    /// Each address has its own sockets, and one for each of its processes.
    fn check_groups(&self) {
        let mut inodes = BTreeSet::new();
        for (local, group) in &self.groups {
            group.check_invariants();
            for inode in group.inodes() {
                assert!(inodes.insert(inode), "a socket of {local} is listed twice");
            }
        }
    }
}
