//! The handover of a client that resumes its slot.
//!
//! A client that lost its connection, or gave up a request that this broker answered too late, does
//! not know of all that the broker has for it. It hands over what it has, and says that this is
//! all. Then the broker drops the rest. A new broker has nothing of the client before.

use std::collections::BTreeSet;

use rocade_wire::Qpn;

use super::super::protocol::{Request, Response, TargetCall};
use super::Server;
use crate::gsi::services::Binding;
use crate::journal::DomainKey;
use crate::link::LocalAddr;
use crate::steering::ProcessSlot;

/// Resources of a slot that its client has not handed over yet.
#[derive(Debug, Default)]
pub(super) struct Unclaimed {
    addresses: BTreeSet<LocalAddr>,
    ports: Vec<Binding>,
    domains: BTreeSet<DomainKey>,
    targets: BTreeSet<(DomainKey, Qpn)>,
}

impl Unclaimed {
    pub(super) fn claim_address(&mut self, local: LocalAddr) {
        self.addresses.remove(&local);
    }

    /// Returns the port as the broker has it. Whether the client listens may have changed.
    fn claim_port(&mut self, binding: &Binding) -> Option<Binding> {
        let same = |port: &Binding| port.service == binding.service && port.to == binding.to;
        let at = self.ports.iter().position(same)?;
        Some(self.ports.swap_remove(at))
    }
}

impl Server {
    /// Returns what the broker has for a slot.
    pub(super) fn unclaimed(&self, slot: ProcessSlot) -> Unclaimed {
        let groups = self.groups.iter();
        let ports = self.services.all();
        Unclaimed {
            addresses: groups
                .filter(|(_, group)| group.users().contains(&slot))
                .map(|(local, _)| *local)
                .collect(),
            ports: ports
                .filter(|(owner, _)| *owner == slot)
                .map(|(_, port)| *port)
                .collect(),
            domains: self.domains.of_member(slot).collect(),
            targets: self.domains.opened_by(slot).collect(),
        }
    }

    /// Notes that a client hands over what it asks for. A port is free for it afterwards.
    pub(super) fn claim(&mut self, index: usize, slot: ProcessSlot, request: &Request) {
        let Some(unclaimed) = &mut self.clients[index].unclaimed else {
            return;
        };
        match request {
            Request::Bind { binding, .. } => {
                if let Some(port) = unclaimed.claim_port(binding) {
                    self.services.release(slot, port);
                }
            }
            Request::OpenDomain(opening) => {
                unclaimed.domains.remove(&opening.key);
            }
            Request::Target(key, qpn, TargetCall::Open) => {
                unclaimed.targets.remove(&(*key, *qpn));
            }
            _ => {}
        }
    }

    /// Ends the handover of a client: drops what it does not have.
    pub(super) fn end_handover(&mut self, index: usize, slot: ProcessSlot) {
        let unclaimed = self.clients[index].unclaimed.take().unwrap_or_default();
        for port in unclaimed.ports {
            self.release_port(slot, port);
        }
        for (key, qpn) in unclaimed.targets {
            let (_, notifications) = self.domain_call(slot, &key, qpn, TargetCall::Close);
            self.notify(notifications);
        }
        for key in unclaimed.domains {
            let notifications = self.domains.leave(slot, &key);
            self.notify(notifications);
        }
        let now = self.now;
        for local in unclaimed.addresses {
            if let Some(group) = self.groups.get_mut(&local) {
                group.release(slot, now);
            }
        }
        self.clients[index].send(&Response::Accepted, &[]);
    }
}
