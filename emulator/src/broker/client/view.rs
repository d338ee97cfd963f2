//! The state of a client, as a simulation sees it.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, AsRawFd, RawFd};

use rocade_wire::Qpn;

use super::{BrokerClient, Link};
use crate::broker::simulated::identity::inode_of;
use crate::gsi::services::Binding;
use crate::journal::DomainKey;
use crate::link::LocalAddr;
use crate::steering::ProcessSlot;

/// State that a client has of its broker. Files are told apart by their inodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::broker) struct View {
    pub(in crate::broker) slot: ProcessSlot,
    pub(in crate::broker) is_connected: bool,
    /// The sockets of each address, from index 0.
    pub(in crate::broker) sockets: BTreeMap<LocalAddr, Vec<u64>>,
    /// The memory of each shared domain.
    pub(in crate::broker) domains: BTreeMap<DomainKey, u64>,
    /// The targets that it has open.
    pub(in crate::broker) targets: BTreeSet<(DomainKey, Qpn)>,
    /// The memory of its journal.
    pub(in crate::broker) journal: Option<u64>,
    pub(in crate::broker) ports: Vec<Binding>,
    /// Its connection, which is open as long as the client runs nothing.
    pub(in crate::broker) connection: Option<RawFd>,
}

impl BrokerClient {
    pub(in crate::broker) fn view(&self) -> View {
        let mut state = self.state.lock();
        let connection = state.connection().map(|one| one.fd().as_raw_fd());
        let resources = &state.resources;
        let sockets = resources.shares.iter().map(|(local, share)| {
            let inodes = share.sockets.iter().map(|socket| inode_of(socket.as_fd()));
            (*local, inodes.collect())
        });
        let domains = resources.domains.iter();
        let targets = domains.clone().flat_map(|domain| {
            let targets = domain.targets.iter();
            targets.map(|qpn| (domain.key, *qpn))
        });
        let journal = resources.journal.as_ref();
        View {
            slot: self.slot,
            is_connected: matches!(state.link, Link::Up(_)),
            sockets: sockets.collect(),
            domains: domains
                .map(|domain| (domain.key, inode_of(domain.memory.as_fd())))
                .collect(),
            targets: targets.collect(),
            journal: journal.map(|journal| inode_of(journal.fd())),
            ports: resources.ports.clone(),
            connection,
        }
    }
}
