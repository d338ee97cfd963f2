//! The state of a broker, as a simulation sees it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use super::{Input, Server};
use crate::broker::client::view::inode_of;
use crate::gsi::services::Binding;
use crate::link::LocalAddr;
use crate::steering::ProcessSlot;

/// State that a broker has of its clients. Files are told apart by their inodes.
pub(in crate::broker) struct View {
    /// The slots of its clients.
    pub(in crate::broker) slots: Vec<ProcessSlot>,
    pub(in crate::broker) groups: BTreeMap<LocalAddr, GroupView>,
}

/// The sockets of an address.
pub(in crate::broker) struct GroupView {
    pub(in crate::broker) sockets: Vec<u64>,
    pub(in crate::broker) users: BTreeSet<ProcessSlot>,
}

impl Input {
    pub(in crate::broker) fn is_empty(&self) -> bool {
        self.fds.iter().all(|entry| entry.revents == 0)
    }
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
        View {
            slots: clients.filter_map(|client| client.slot).collect(),
            groups: groups.collect(),
        }
    }

    /// Returns true if requests to this port reach the process of the slot.
    pub(in crate::broker) fn has_port(&self, slot: ProcessSlot, binding: &Binding) -> bool {
        let local = std::net::Ipv4Addr::LOCALHOST.into();
        self.services.listener(binding.service, local) == Some(slot)
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
