//! The state of a broker, as a simulation sees it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rocade_wire::Qpn;

use super::Server;
use crate::broker::simulated::identity::inode_of;
use crate::gsi::services::Binding;
use crate::journal::DomainKey;
use crate::link::LocalAddr;
use crate::steering::ProcessSlot;

/// State that a broker has of its clients. Files are told apart by their inodes.
pub(in crate::broker) struct View {
    /// The slots of its clients.
    pub(in crate::broker) slots: Vec<ProcessSlot>,
    pub(in crate::broker) groups: BTreeMap<LocalAddr, GroupView>,
    /// The slots that are in use by no client.
    pub(in crate::broker) orphans: BTreeSet<ProcessSlot>,
    pub(in crate::broker) ports: Vec<(ProcessSlot, Binding)>,
    pub(in crate::broker) domains: BTreeMap<DomainKey, DomainView>,
    /// The memory of the journal of each client.
    pub(in crate::broker) journals: BTreeMap<ProcessSlot, u64>,
}

/// A shared XRC domain.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::broker) struct DomainView {
    pub(in crate::broker) members: BTreeSet<ProcessSlot>,
    /// The members that the processes see.
    pub(in crate::broker) in_memory: BTreeSet<ProcessSlot>,
    /// The targets that the processes see.
    pub(in crate::broker) records: BTreeSet<Qpn>,
    pub(in crate::broker) targets: BTreeMap<Qpn, TargetView>,
}

/// A shared XRC target.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::broker) struct TargetView {
    pub(in crate::broker) openers: BTreeSet<ProcessSlot>,
    pub(in crate::broker) owner: Option<ProcessSlot>,
    /// The processes that look for the target find the same record as the broker.
    pub(in crate::broker) is_found: bool,
}

/// The sockets of an address.
pub(in crate::broker) struct GroupView {
    pub(in crate::broker) sockets: Vec<u64>,
    pub(in crate::broker) users: BTreeSet<ProcessSlot>,
}

impl Server {
    pub(in crate::broker) fn view(&self) -> View {
        let groups = self.groups.iter().map(|(local, group)| {
            let sockets = (0..group.len()).filter_map(|index| group.socket(index));
            let view = GroupView {
                sockets: sockets.map(inode_of).collect(),
                users: group.users().clone(),
            };
            (*local, view)
        });
        let clients = self.clients.iter().filter(|client| !client.gone);
        let journals = clients.clone().filter_map(|client| {
            let journal = client.registered_journal.as_ref()?.journal();
            Some((client.slot?, inode_of(journal.as_fd())))
        });
        View {
            slots: clients.clone().filter_map(|client| client.slot).collect(),
            groups: groups.collect(),
            orphans: self.slots.orphaned_slots(),
            ports: self.services.all().copied().collect(),
            domains: self.domains.view(),
            journals: journals.collect(),
        }
    }

    /// Returns true if the broker learns from a journal what the process of the slot leaves.
    pub(in crate::broker) fn has_journal(&self, slot: ProcessSlot) -> bool {
        let mut clients = self.clients.iter();
        clients.any(|one| one.slot == Some(slot) && !one.gone && one.registered_journal.is_some())
    }

    /// Returns a copy of a socket.
    ///
    /// # Errors
    /// There is no such socket.
    pub(in crate::broker) fn socket(&self, local: LocalAddr, index: usize) -> io::Result<OwnedFd> {
        let group = self.groups.get(&local).ok_or(io::ErrorKind::NotFound)?;
        let socket = group.socket(index).ok_or(io::ErrorKind::NotFound)?;
        socket.as_fd().try_clone_to_owned()
    }
}
