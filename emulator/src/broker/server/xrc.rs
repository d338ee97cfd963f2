//! Shared XRC domains: their members and targets.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use rocade_wire::Qpn;

use super::super::protocol::{DomainOpening, RefusalCode, Response, TargetCall, TargetEvent};
use super::Server;
use super::error::RequestRefusal;
#[cfg(all(test, not(loom)))]
use super::view::{DomainView, TargetView};
use crate::journal::{DomainKey, DomainMemory, TargetRecord};
use crate::steering::ProcessSlot;

mod creators;
mod inherited;
#[cfg(all(test, not(loom)))]
mod tests;

use creators::Creators;

/// Most domains, each of which takes a descriptor.
const MAX_DOMAINS: usize = 256;
/// Service bits of an opcode, and their value for XRC. The BTH of an XRC request is followed by the
/// SRQ number (XRCETH).
const SERVICE: u8 = 0xe0;
const XRC: u8 = 0xa0;
const SRQ_SLOT_AT: usize = 13;

/// An unsolicited message to a client.
pub(super) type TargetNotification = (ProcessSlot, Qpn, TargetEvent);

#[derive(Default)]
pub(super) struct Domains {
    all: BTreeMap<DomainKey, Domain>,
    /// The creators of the targets of all domains.
    creators: Creators,
}

struct Domain {
    memory: Arc<DomainMemory>,
    /// True while clients of an earlier broker may resume the domain, and targets that no other
    /// process has open.
    is_inherited: bool,
    members: BTreeSet<ProcessSlot>,
    targets: BTreeMap<u32, Target>,
}

struct Target {
    record: TargetRecord,
    openers: BTreeSet<ProcessSlot>,
}

impl Domain {
    fn new(memory: DomainMemory) -> Self {
        Self {
            memory: Arc::new(memory),
            is_inherited: false,
            members: BTreeSet::new(),
            targets: BTreeMap::new(),
        }
    }

    fn join(&mut self, slot: ProcessSlot) {
        self.members.insert(slot);
        self.memory.set_member(slot, true);
    }

    fn others(&self, slot: ProcessSlot) -> impl Iterator<Item = ProcessSlot> {
        self.members
            .iter()
            .copied()
            .filter(move |other| *other != slot)
    }

    fn add(&mut self, qpn: Qpn, record: TargetRecord, creators: &mut Creators) {
        let openers = BTreeSet::new();
        self.targets.insert(qpn.get(), Target { record, openers });
        creators.add(qpn);
    }

    /// Handles an operation of a client on a target.
    fn call(
        &mut self,
        slot: ProcessSlot,
        qpn: Qpn,
        call: TargetCall,
        creators: &mut Creators,
        is_alive: impl Fn(ProcessSlot) -> bool,
    ) -> (Response, Vec<TargetNotification>) {
        let gone = |is_gone| Response::Target { is_gone };
        if call == TargetCall::New {
            // A client asks twice if it got no answer. Another may have opened it meanwhile.
            let is_known = self.targets.contains_key(&qpn.get());
            let is_its_own = ProcessSlot::of(qpn) == slot;
            let record = (is_its_own && !is_known).then(|| self.memory.add(qpn, slot));
            if let Some(Some(record)) = record {
                self.add(qpn, record, creators);
            }
            let target = self.targets.get_mut(&qpn.get()).filter(|_| is_its_own);
            let Some(target) = target else {
                return (Response::NoTarget, Vec::new());
            };
            target.openers.insert(slot);
            return (gone(false), Vec::new());
        }
        if call == TargetCall::Open && !self.targets.contains_key(&qpn.get()) {
            // An earlier broker may have known the target.
            if let Some(record) = self.memory.find(qpn) {
                if record.control().owner.is_some_and(|owner| !is_alive(owner)) {
                    record.owner_died();
                }
                self.add(qpn, record, creators);
            }
        }
        let others: Vec<_> = self.others(slot).collect();
        let notify = |event| others.iter().map(|other| (*other, qpn, event)).collect();
        let Some(target) = self.targets.get_mut(&qpn.get()) else {
            return (Response::NoTarget, Vec::new());
        };
        match call {
            TargetCall::New | TargetCall::Open => {
                target.openers.insert(slot);
                (gone(false), Vec::new())
            }
            TargetCall::Close => {
                let had = target.openers.remove(&slot);
                // A client that has not resumed the target may have it open.
                if !had || !target.openers.is_empty() || self.is_inherited {
                    return (gone(false), Vec::new());
                }
                self.memory.remove(&target.record);
                self.targets.remove(&qpn.get());
                creators.remove(qpn);
                (gone(true), notify(TargetEvent::Gone))
            }
            TargetCall::Want => {
                let owner = target.record.control().owner;
                let owner = owner.filter(|owner| *owner != slot);
                let notifications = owner.map(|owner| (owner, qpn, TargetEvent::Wanted));
                (gone(false), notifications.into_iter().collect())
            }
            TargetCall::Event(code) => (gone(false), notify(TargetEvent::Event(code))),
        }
    }

    /// Removes a member: its process is gone, or has closed the domain. A member of an earlier
    /// broker may not have resumed the domain.
    //= XRC-11
    fn leave(
        &mut self,
        slot: ProcessSlot,
        creators: &mut Creators,
        notifications: &mut Vec<TargetNotification>,
    ) {
        if !self.members.remove(&slot) && !self.memory.is_member(slot) {
            return;
        }
        self.memory.set_member(slot, false);
        for target in self.targets.values_mut() {
            target.openers.remove(&slot);
        }
        if !self.is_inherited {
            self.remove_unopened(creators, notifications);
        }
        for (number, target) in &self.targets {
            let is_held = target.record.control().owner == Some(slot);
            if is_held && !target.record.owner_died() {
                let (qpn, members) = (Qpn::new(*number), self.members.iter());
                notifications.extend(members.map(|other| (*other, qpn, TargetEvent::Failed)));
            }
        }
    }

    /// Removes the targets that no process has open.
    fn remove_unopened(
        &mut self,
        creators: &mut Creators,
        notifications: &mut Vec<TargetNotification>,
    ) {
        let (members, memory) = (&self.members, &self.memory);
        self.targets.retain(|number, target| {
            if target.openers.is_empty() {
                let qpn = Qpn::new(*number);
                memory.remove(&target.record);
                creators.remove(qpn);
                let members = members.iter();
                notifications.extend(members.map(|other| (*other, qpn, TargetEvent::Gone)));
            }
            !target.openers.is_empty()
        });
    }
}

/// Returns true if both are the same file.
fn is_same(one: BorrowedFd<'_>, other: BorrowedFd<'_>) -> io::Result<bool> {
    let identity = |fd: BorrowedFd<'_>| {
        let data = File::from(fd.try_clone_to_owned()?).metadata()?;
        io::Result::Ok((data.dev(), data.ino()))
    };
    Ok(identity(one)? == identity(other)?)
}

impl Domains {
    /// Opens a domain. Checks for it and creates it in one step.
    //= XRCL-03
    fn open(
        &mut self,
        slot: ProcessSlot,
        opening: DomainOpening,
        memory: Option<OwnedFd>,
    ) -> io::Result<Result<&Domain, bool>> {
        let count = self.all.len();
        let known = self.all.contains_key(&opening.key);
        if let Some(memory) = memory {
            if !known {
                let mut domain = Domain::new(DomainMemory::of(memory)?);
                domain.is_inherited = true;
                self.all.insert(opening.key, domain);
            } else if !is_same(self.all[&opening.key].memory.fd(), memory.as_fd())? {
                // Other processes have created a new domain while no broker knew this one.
                return Ok(Err(true));
            }
        } else if known && opening.exclusive || !known && !opening.create {
            return Ok(Err(known));
        } else if !known {
            if count >= MAX_DOMAINS {
                return Err(io::ErrorKind::OutOfMemory.into());
            }
            self.all
                .insert(opening.key, Domain::new(DomainMemory::new()?));
        }
        let domain = self.all.get_mut(&opening.key);
        let domain = domain.ok_or(io::ErrorKind::NotFound)?;
        domain.join(slot);
        Ok(Ok(domain))
    }

    /// Returns true if targets created by the process with this slot exist, for which the broker
    /// receives when the process is gone.
    pub(super) fn needs(&self, slot: ProcessSlot) -> bool {
        self.creators.has(slot)
    }

    /// Returns the domains that a process has opened.
    pub(super) fn of_member(&self, slot: ProcessSlot) -> impl Iterator<Item = DomainKey> {
        let all = self.all.iter();
        all.filter(move |(_, domain)| domain.members.contains(&slot))
            .map(|(key, _)| *key)
    }

    /// Returns the targets that a process has opened.
    pub(super) fn opened_by(&self, slot: ProcessSlot) -> impl Iterator<Item = (DomainKey, Qpn)> {
        self.all.iter().flat_map(move |(key, domain)| {
            let targets = domain.targets.iter();
            let opened = targets.filter(move |(_, target)| target.openers.contains(&slot));
            opened.map(|(number, _)| (*key, Qpn::new(*number)))
        })
    }

    /// Removes a process from all domains.
    pub(super) fn leave_all(&mut self, slot: ProcessSlot) -> Vec<TargetNotification> {
        let mut notifications = Vec::new();
        for domain in self.all.values_mut() {
            domain.leave(slot, &mut self.creators, &mut notifications);
        }
        self.drop_unused();
        notifications
    }

    /// Removes a member of a domain.
    pub(super) fn leave(&mut self, slot: ProcessSlot, key: &DomainKey) -> Vec<TargetNotification> {
        let mut notifications = Vec::new();
        if let Some(domain) = self.all.get_mut(key) {
            domain.leave(slot, &mut self.creators, &mut notifications);
            self.drop_unused();
        }
        notifications
    }

    /// Drops the domains without members.
    fn drop_unused(&mut self) {
        let Self { all, creators } = self;
        all.retain(|_, domain| {
            if domain.members.is_empty() {
                let targets = domain.targets.keys();
                targets.for_each(|number| creators.remove(Qpn::new(*number)));
            }
            !domain.members.is_empty()
        });
    }

    /// Returns the state, as a simulation sees it.
    #[cfg(all(test, not(loom)))]
    pub(super) fn view(&self) -> BTreeMap<DomainKey, DomainView> {
        let view = |domain: &Domain| DomainView {
            members: domain.members.clone(),
            in_memory: domain.memory.members().collect(),
            records: domain.memory.targets().collect(),
            targets: (domain.targets.iter())
                .map(|(number, target)| {
                    let qpn = Qpn::new(*number);
                    let found = domain.memory.find(qpn);
                    let view = TargetView {
                        openers: target.openers.clone(),
                        owner: target.record.control().owner,
                        is_found: found.is_some_and(|found| found.is_same(&target.record)),
                    };
                    (qpn, view)
                })
                .collect(),
        };
        let all = self.all.iter();
        all.map(|(key, domain)| (*key, view(domain))).collect()
    }

    /// Returns the recipient of a packet to a target whose creator is gone. This is its owner, else
    /// the process of the SRQ named in the packet, else any process, which rejects it.
    pub(super) fn route(&self, packet: &[u8]) -> Option<ProcessSlot> {
        let [slot, high, low] = *packet.get(5..8)?.first_chunk()?;
        let number = u32::from_be_bytes([0, slot, high, low]);
        let mut domains = self.all.values();
        let (domain, target) =
            domains.find_map(|domain| Some((domain, domain.targets.get(&number)?)))?;
        let named = || {
            let is_xrc = packet.first().is_some_and(|opcode| opcode & SERVICE == XRC);
            let slot = packet.get(SRQ_SLOT_AT).filter(|_| is_xrc)?;
            let slot = ProcessSlot::new(*slot);
            domain.members.contains(&slot).then_some(slot)
        };
        let owner = target.record.control().owner;
        let owner = owner.filter(|owner| domain.members.contains(owner));
        owner
            .or_else(named)
            .or_else(|| target.openers.first().copied())
    }
}

impl Server {
    pub(super) fn open_domain(
        &mut self,
        index: usize,
        slot: ProcessSlot,
        opening: DomainOpening,
        memory: Option<OwnedFd>,
    ) -> Result<(), RequestRefusal> {
        let opened = self.domains.open(slot, opening, memory);
        let opened = opened.map_err(|error| match error.kind() {
            io::ErrorKind::OutOfMemory => {
                RequestRefusal::new(RefusalCode::Limit, "there are too many shared XRC domains")
            }
            _ => RequestRefusal::system("failed to share an XRC domain", &error),
        })?;
        let client = &mut self.clients[index];
        match opened {
            Ok(domain) => client.send(&Response::Domain, &[domain.memory.fd()]),
            Err(exists) => client.send(&Response::NoDomain { exists }, &[]),
        }
        Ok(())
    }

    pub(super) fn close_domain(&mut self, index: usize, slot: ProcessSlot, key: &DomainKey) {
        let notifications = self.domains.leave(slot, key);
        self.clients[index].send(&Response::Accepted, &[]);
        self.notify(notifications);
    }

    pub(super) fn call_target(
        &mut self,
        index: usize,
        slot: ProcessSlot,
        key: &DomainKey,
        qpn: Qpn,
        call: TargetCall,
    ) {
        let (answer, notifications) = self.domain_call(slot, key, qpn, call);
        self.clients[index].send(&answer, &[]);
        self.notify(notifications);
    }

    /// Performs an operation of a client on a target. Returns the answer, and what others learn.
    pub(super) fn domain_call(
        &mut self,
        slot: ProcessSlot,
        key: &DomainKey,
        qpn: Qpn,
        call: TargetCall,
    ) -> (Response, Vec<TargetNotification>) {
        let clients = &self.clients;
        // A client of an earlier broker may not have come yet.
        let is_alive = |slot| {
            self.slots.is_orphan(slot) || clients.iter().any(|client| client.slot == Some(slot))
        };
        let Domains { all, creators } = &mut self.domains;
        let domain = all.get_mut(key);
        let domain = domain.filter(|domain| domain.members.contains(&slot));
        domain.map_or_else(
            || (Response::NoTarget, Vec::new()),
            |domain| domain.call(slot, qpn, call, creators, is_alive),
        )
    }

    /// Sends target events to clients. A client that does not read finds the state in the domain's
    /// memory.
    pub(super) fn notify(&mut self, notifications: Vec<TargetNotification>) {
        for (slot, qpn, what) in notifications {
            let mut clients = self.clients.iter_mut();
            let client = clients.find(|client| client.slot == Some(slot) && !client.gone);
            if let Some(client) = client
                && !client.offer(&Response::TargetEvent(qpn, what), &[])
            {
                tracing::debug!(%slot, ?qpn, ?what, "failed to send a target event: the client does not read");
            }
        }
    }
}
