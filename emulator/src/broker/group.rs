//! The sockets of one address. The socket of slot *n* is at index *n*.
//!
//! The sockets form a `SO_REUSEPORT` group if the kernel steers. Some sandboxes refuse classic BPF
//! programs on groups. There only the broker's socket has port 4791, the sockets of the processes
//! have other ports, and the broker forwards packets to them.

#![deny(clippy::disallowed_methods)]

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use rocade_transport::Time;
use rocade_transport::cm::{CmRoute, ConnRecord};
use rocade_wire::Psn;
use rocade_wire::mad::Mad;
use socket2::Socket;

use crate::gsi::packet as gsi_packet;
use crate::gsi::services::Services;
use crate::link::address_lock::{AddressLock, OwnerInfo};
use crate::link::socket::{self, ReceiveKind, Sharing};
use crate::link::sys::SendOptions;
use crate::link::{ForwardKey, LinkError, LocalAddr, ROCE_PORT, sys};
use crate::steering::{ProcessSlot, steering_program};

use super::disconnect_notifier::DisconnectNotifier;
use super::gsi::{self, DeferredRequest, GsiTargets, RecentlyReleasedPorts};
use super::relay::Relay;

/// A socket, and its inode in the kernel's socket lists.
#[derive(Debug)]
struct Member {
    fd: OwnedFd,
    inode: u64,
}

impl Member {
    fn new(fd: OwnedFd) -> io::Result<Self> {
        let file = File::from(fd);
        let inode = file.metadata()?.ino();
        Ok(Self {
            fd: file.into(),
            inode,
        })
    }
}

/// Reasons to reject a socket that a client hands back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RestoreError {
    /// Not a receive socket of this address, or not one that belongs at this index.
    NotOfThisAddress,
    /// Sockets before this index are missing.
    Gap,
    /// There is another socket at this index, or this socket at another index.
    Conflict,
}

/// The mechanism that delivers packets to the processes.
#[derive(Debug)]
enum Steering {
    /// Undecided: there is no socket yet, or this broker has not attached the program.
    Open,
    /// The kernel steers by the steering program.
    Kernel,
    /// The broker forwards.
    Relay,
}

/// The sockets of one address.
#[derive(Debug)]
pub(super) struct Group {
    local: LocalAddr,
    address_lock: AddressLock,
    key: ForwardKey,
    members: Vec<Member>,
    steering: Steering,
    relay: Relay,
    users: BTreeSet<ProcessSlot>,
    /// Slots whose process is gone and that still have XRC targets.
    orphaned: BTreeSet<ProcessSlot>,
    /// Slots without a process whose sockets this broker has created or got back. It answers on
    /// them like on its own.
    vacant: BTreeSet<ProcessSlot>,
    notifier: DisconnectNotifier,
    /// Sends disconnect notices. Opened on first use.
    cm_socket: Option<Socket>,
}

impl Group {
    /// Creates a group without sockets for an address that this broker has locked.
    pub(super) fn new(local: LocalAddr, address_lock: AddressLock, key: ForwardKey) -> Self {
        Self {
            local,
            address_lock,
            key,
            members: Vec::new(),
            steering: Steering::Open,
            relay: Relay::default(),
            users: BTreeSet::new(),
            orphaned: BTreeSet::new(),
            vacant: BTreeSet::new(),
            notifier: DisconnectNotifier::default(),
            cm_socket: None,
        }
    }

    /// Returns the number of sockets.
    pub(super) fn len(&self) -> usize {
        self.members.len()
    }

    /// Returns the socket at this index.
    pub(super) fn socket(&self, index: usize) -> Option<BorrowedFd<'_>> {
        self.members.get(index).map(|member| member.fd.as_fd())
    }

    /// Returns true if this is one of the group's sockets.
    pub(super) fn has_inode(&self, inode: u64) -> bool {
        self.members.iter().any(|member| member.inode == inode)
    }

    /// Returns the inodes of the sockets.
    #[cfg(debug_assertions)]
    pub(super) fn inodes(&self) -> impl Iterator<Item = u64> {
        self.members.iter().map(|member| member.inode)
    }

    /// Asserts that each slot has a socket, and one owner. A user may hand over its own socket in a
    /// later message than the first ones.
    #[cfg(debug_assertions)]
    pub(super) fn check_invariants(&self) {
        let local = self.local;
        let slots = self.orphaned.iter().chain(&self.vacant);
        if let Some(slot) = slots.max() {
            assert!(slot.index() < self.len(), "{slot} has no socket of {local}");
        }
        let in_use = self.users.iter().find(|slot| self.vacant.contains(slot));
        assert_eq!(in_use, None, "{local} is used by this slot, and vacant");
        let ended = self.users.iter().find(|slot| self.orphaned.contains(slot));
        assert_eq!(ended, None, "{local} is used by this slot, which has ended");
    }

    /// Returns the lock by which this broker owns the address.
    pub(super) const fn address_lock(&self) -> &AddressLock {
        &self.address_lock
    }

    /// Returns the secret of the processes that share the address.
    pub(super) const fn key(&self) -> ForwardKey {
        self.key
    }

    /// Returns the slots that use the address.
    pub(super) fn users(&self) -> &BTreeSet<ProcessSlot> {
        &self.users
    }

    /// Takes back the socket at this index from a client of an earlier broker. Several clients have
    /// copies of the same socket.
    pub(super) fn restore(&mut self, index: usize, fd: OwnedFd) -> Result<(), RestoreError> {
        let kind = socket::kind_of(fd.as_fd(), self.local).unwrap_or_else(|error| {
            tracing::warn!(local = %self.local, %error, "failed to take back a socket");
            None
        });
        let fits = match kind {
            None => false,
            Some(ReceiveKind::Group) => true,
            Some(ReceiveKind::Alone) => index == 0,
            Some(ReceiveKind::Relayed(_)) => index > 0,
        };
        if !fits {
            return Err(RestoreError::NotOfThisAddress);
        }
        let member = Member::new(fd).map_err(|_| RestoreError::NotOfThisAddress)?;
        match self.members.get(index) {
            Some(known) if known.inode == member.inode => Ok(()),
            Some(_) => Err(RestoreError::Conflict),
            None if index > self.members.len() => Err(RestoreError::Gap),
            None if self.has_inode(member.inode) => Err(RestoreError::Conflict),
            None => {
                self.members.push(member);
                if matches!(kind, Some(ReceiveKind::Relayed(_)))
                    && !matches!(self.steering, Steering::Relay)
                {
                    self.begin_to_relay();
                }
                Ok(())
            }
        }
    }

    /// Adds sockets until the slot has one, and makes sure that packets are delivered to it.
    pub(super) fn grow(&mut self, slot: ProcessSlot) -> Result<(), LinkError> {
        if self.members.is_empty() {
            self.open_first()?;
        }
        self.steer()?;
        while self.members.len() <= slot.index() {
            let failed = |source| LinkError::System {
                local: self.local,
                failure: "failed to add a socket",
                source,
            };
            let socket = match self.steering {
                Steering::Relay => socket::open_relayed(self.local).map_err(failed)?,
                _ => socket::open_receive(self.local, Sharing::ReusePort)?,
            };
            // No process reads it until its slot is leased.
            socket::shrink_receive_buffer(socket.as_fd());
            let index = u8::try_from(self.members.len());
            self.members
                .push(Member::new(socket.into()).map_err(failed)?);
            self.vacant.extend(index.map(ProcessSlot::new));
        }
        Ok(())
    }

    /// Closes the sockets behind the first `len`. Closing the last sockets of a group leaves no
    /// gap.
    pub(super) fn shrink(&mut self, len: usize) {
        self.members.truncate(len);
        self.vacant.retain(|slot| slot.index() < len);
    }

    /// Opens the broker's own socket.
    fn open_first(&mut self) -> Result<(), LinkError> {
        let opened = match socket::open_receive(self.local, Sharing::ReusePort) {
            Err(LinkError::System { source, .. }) if means_refused(&source) => {
                self.begin_to_relay();
                socket::open_receive(self.local, Sharing::Exclusive)
            }
            opened => opened,
        };
        let member = Member::new(opened?.into()).map_err(|source| LinkError::System {
            local: self.local,
            failure: "failed to query a socket",
            source,
        })?;
        self.members.push(member);
        Ok(())
    }

    /// Attaches the steering program unless this broker has done so. Falls back to forwarding if
    /// the system refuses the program.
    fn steer(&mut self) -> Result<(), LinkError> {
        let Some(member) = self.members.first() else {
            return Ok(());
        };
        if !matches!(self.steering, Steering::Open) {
            return Ok(());
        }
        let program = steering_program().encode();
        match sys::attach_reuseport_cbpf(member.fd.as_fd(), &program) {
            Ok(()) => self.steering = Steering::Kernel,
            // An earlier broker must have attached it, or the group would not have several members.
            Err(error) if self.members.len() > 1 => {
                tracing::warn!(local = %self.local, %error, "failed to attach the steering program: the present one stays");
                self.steering = Steering::Kernel;
            }
            Err(source) if means_refused(&source) => self.begin_to_relay(),
            Err(source) => {
                return Err(LinkError::System {
                    local: self.local,
                    failure: "failed to attach the steering program",
                    source,
                });
            }
        }
        Ok(())
    }

    /// Makes the broker forward packets from now on.
    fn begin_to_relay(&mut self) {
        tracing::warn!(
            local = %self.local,
            "the system does not support steering: the broker forwards all packets, \
             which is slower"
        );
        self.steering = Steering::Relay;
    }

    /// Reads the broker's socket: packets to QP 1 of any process and, where the broker forwards,
    /// all others. Also reads the sockets of slots without a process. Returns the number of
    /// datagrams that were for slot 0 or undeliverable.
    pub(super) fn receive(
        &mut self,
        services: &Services<ProcessSlot>,
        released_ports: &mut RecentlyReleasedPorts,
        now: Time,
    ) -> usize {
        let ports = Ports {
            members: &self.members,
            is_relay: matches!(self.steering, Steering::Relay),
            local: self.local,
        };
        let (users, local) = (&self.users, self.local);
        let notifier = &mut self.notifier;
        let mut gsi = |source: SocketAddr, packet: &[u8]| {
            let Some(message) = gsi::message_of(packet) else {
                return Vec::new();
            };
            notifier.on_reply(source.ip(), &message);
            let is_recovering = released_ports.is_recovering;
            let targets = gsi::gsi_targets(&message, local.ip(), services, users, is_recovering);
            let slots = match targets {
                GsiTargets::Slots(slots) => slots,
                GsiTargets::NoListener(service) => {
                    if released_ports.wait(services, (local, service), source, packet, now) {
                        return Vec::new();
                    }
                    users.first().copied().into_iter().collect()
                }
            };
            ports.of(slots)
        };
        let mut received = 0;
        let vacant = self.vacant.iter().copied();
        for slot in [ProcessSlot::BROKER].into_iter().chain(vacant) {
            let Some(member) = self.members.get(slot.index()) else {
                continue;
            };
            let from = (member.fd.as_fd(), slot);
            let passes = ports.is_relay && slot == ProcessSlot::BROKER;
            let port_of = |slot| passes.then(|| ports.relayed(slot)).flatten();
            received += self
                .relay
                .forward(from, local, &self.key, port_of, &mut gsi);
        }
        received
    }

    /// Returns the sockets of slots without a process, which may receive messages to QP 1.
    pub(super) fn vacant(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let slots = self.vacant.iter();
        slots.filter_map(|slot| self.socket(slot.index()))
    }

    /// Delivers a delayed request to its listener or, without one, to any process, which rejects
    /// it.
    pub(super) fn deliver(&mut self, services: &Services<ProcessSlot>, deferred: &DeferredRequest) {
        let ports = Ports {
            members: &self.members,
            is_relay: matches!(self.steering, Steering::Relay),
            local: self.local,
        };
        let listener = services.listener(deferred.service, self.local.ip());
        let to = ports.of(listener.or_else(|| self.users.first().copied()));
        self.relay.deliver(
            self.local,
            &self.key,
            deferred.source,
            &deferred.packet,
            &to,
        );
    }

    /// Sends disconnect notices to the peers of a process that is gone, for its connections at this
    /// address.
    pub(super) fn on_process_exit(&mut self, conn_records: &[ConnRecord], now: Time) {
        for conn_record in conn_records
            .iter()
            .filter(|conn_record| conn_record.route.local == self.local.ip())
        {
            self.notifier.add(*conn_record, now);
        }
        self.send_disconnects(now);
    }

    /// Returns the time of the next disconnect notice.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.notifier.deadline()
    }

    /// Sends the disconnect notices that are due, or all if no process is left at this address.
    pub(super) fn send_disconnects(&mut self, now: Time) {
        let messages = self.notifier.take_due(now, self.users.is_empty());
        for (peer, tid, message) in messages {
            tracing::info!(local = %self.local, %peer, %message, "sending a disconnect notice");
            if let Err(error) = self.send_mad(peer, Mad::new(tid, message)) {
                tracing::warn!(local = %self.local, %peer, %error, "failed to send a disconnect notice");
            }
        }
    }

    fn send_mad(&mut self, peer: IpAddr, mad: Mad) -> io::Result<()> {
        let to = self.local.peer(peer).ok_or(io::ErrorKind::InvalidInput)?;
        if self.cm_socket.is_none() {
            self.cm_socket = Some(socket::open_send(self.local, 0, None)?);
        }
        let socket = self.cm_socket.as_ref().ok_or(io::ErrorKind::NotFound)?;
        let port = socket::port_of(socket)?;
        let route = CmRoute {
            local: self.local.ip(),
            remote: peer,
        };
        let packet = gsi_packet(port, Psn::new(0), route, &mad.to_bytes());
        let packet = packet.ok_or(io::ErrorKind::InvalidInput)?;
        sys::send(socket.as_fd(), &to, &packet, SendOptions::default()).map(drop)
    }

    /// Answers a query for the owner of the address.
    pub(super) fn send_owner_info(&self, owner_info: &OwnerInfo) {
        self.address_lock.send_owner_info(owner_info);
    }

    /// Notes that the slot uses the address. A new user gets an empty socket with the usual buffer
    /// size.
    pub(super) fn lease(&mut self, slot: ProcessSlot) {
        if !self.users.insert(slot) {
            return;
        }
        self.vacant.remove(&slot);
        let Some(fd) = self.socket(slot.index()) else {
            return;
        };
        let stale = socket::discard_received(fd);
        if stale > 0 {
            tracing::debug!(%slot, local = %self.local, stale, "discarded datagrams before leasing a slot");
        }
        socket::grow_receive_buffer(fd);
    }

    /// Notes that a client of an earlier broker uses the address.
    pub(super) fn resume(&mut self, slot: ProcessSlot) {
        self.users.insert(slot);
        self.vacant.remove(&slot);
    }

    /// Notes that the process of a slot is gone while some of its QPs live on, for which the broker
    /// receives.
    pub(super) fn orphan(&mut self, slot: ProcessSlot, now: Time) {
        if self.users.remove(&slot) {
            self.send_disconnects(now);
            self.orphaned.insert(slot);
        }
    }

    /// Receives for the slots that no process uses, unless `may_use` is true. Where `is_needed` is
    /// true, some QPs of a process that is gone live on.
    pub(super) fn adopt_unused(
        &mut self,
        may_use: impl Fn(ProcessSlot) -> bool,
        is_needed: impl Fn(ProcessSlot) -> bool,
    ) {
        let needed = self.vacant.iter().copied().filter(|slot| is_needed(*slot));
        self.orphaned.extend(needed);
        self.vacant.retain(|slot| !self.orphaned.contains(slot));
        let listed = self.users.len() + self.vacant.len() + self.orphaned.len();
        if listed + 1 >= self.members.len() {
            return;
        }
        for slot in (1..self.members.len()).filter_map(|index| u8::try_from(index).ok()) {
            let slot = ProcessSlot::new(slot);
            let lists = [&self.users, &self.vacant, &self.orphaned];
            if may_use(slot) || lists.iter().any(|list| list.contains(&slot)) {
                continue;
            }
            if is_needed(slot) {
                self.orphaned.insert(slot);
            } else {
                self.empty(slot);
            }
        }
    }

    /// Frees the slots without a process that no QP needs any longer.
    pub(super) fn free_unneeded_orphans(&mut self, is_needed: impl Fn(ProcessSlot) -> bool) {
        let orphaned = self.orphaned.iter().copied();
        let free: Vec<_> = orphaned.filter(|slot| !is_needed(*slot)).collect();
        for slot in free {
            self.orphaned.remove(&slot);
            self.empty(slot);
        }
    }

    /// Returns the sockets of slots without a process that the broker receives from.
    pub(super) fn orphaned(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let sockets = self.orphaned.iter();
        sockets.filter_map(|slot| self.socket(slot.index()))
    }

    /// Forwards packets to slots without a process to the slot that `route` returns.
    pub(super) fn receive_orphaned(&mut self, route: impl Fn(&[u8]) -> Option<ProcessSlot>) {
        let ports = Ports {
            members: &self.members,
            is_relay: matches!(self.steering, Steering::Relay),
            local: self.local,
        };
        let to = |packet: &[u8]| ports.of(route(packet)).pop();
        for slot in &self.orphaned {
            if let Some(member) = self.members.get(slot.index()) {
                let from = member.fd.as_fd();
                self.relay
                    .forward_orphaned(from, self.local, &self.key, *slot, to);
            }
        }
    }

    /// Notes that the slot is free. Its socket gets a minimal receive buffer.
    pub(super) fn release(&mut self, slot: ProcessSlot, now: Time) {
        if !self.users.remove(&slot) {
            return;
        }
        self.send_disconnects(now);
        self.empty(slot);
    }

    /// Marks the slot vacant. The broker reads what is left in its socket, because any process can
    /// answer a request that the old one did not.
    fn empty(&mut self, slot: ProcessSlot) {
        self.vacant.insert(slot);
        if let Some(fd) = self.socket(slot.index()) {
            socket::shrink_receive_buffer(fd);
        }
    }
}

/// The UDP ports at which the processes get forwarded packets.
struct Ports<'g> {
    members: &'g [Member],
    is_relay: bool,
    local: LocalAddr,
}

impl Ports<'_> {
    /// Returns the port of a slot that the kernel does not steer to.
    fn relayed(&self, slot: ProcessSlot) -> Option<u16> {
        // Even if the slot is free: a client of an earlier broker may not have resumed yet.
        let member = self.members.get(slot.index())?;
        match socket::kind_of(member.fd.as_fd(), self.local).ok()?? {
            ReceiveKind::Relayed(port) => Some(port),
            _ => None,
        }
    }

    fn of(&self, slots: impl IntoIterator<Item = ProcessSlot>) -> Vec<(ProcessSlot, u16)> {
        let port = |slot| {
            if self.is_relay {
                self.relayed(slot)
            } else {
                Some(ROCE_PORT)
            }
        };
        slots
            .into_iter()
            .filter_map(|slot| Some((slot, port(slot)?)))
            .collect()
    }
}

/// Returns true for errors with which a system refuses an unsupported or forbidden option.
fn means_refused(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(
            libc::EPERM
                | libc::EACCES
                | libc::EINVAL
                | libc::ENOPROTOOPT
                | libc::EOPNOTSUPP
                | libc::ENOSYS
        )
    )
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, UdpSocket};

    use rocade_transport::cm::ConnRecordKind;
    use rocade_wire::Qpn;
    use rocade_wire::mad::CommId;

    use super::*;

    fn local(last: u8) -> LocalAddr {
        let [_, _, high, low] = std::process::id().to_be_bytes();
        IpAddr::from([127, high | 0x40, low, last]).into()
    }

    fn group(local: LocalAddr) -> Group {
        let key = ForwardKey::from_bytes([7; 16]);
        Group::new(local, AddressLock::acquire(local).unwrap(), key)
    }

    fn same(old: &Group) -> Group {
        let address_lock = old.address_lock().fd().try_clone_to_owned().unwrap();
        let address_lock = AddressLock::restore(address_lock, old.local).unwrap();
        Group::new(old.local, address_lock, old.key())
    }

    fn copy(group: &Group, index: usize) -> OwnedFd {
        group.socket(index).unwrap().try_clone_to_owned().unwrap()
    }

    fn datagram(slot: u8) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[5] = slot;
        bytes
    }

    #[test]
    fn sockets_come_in_the_order_of_slots() {
        let mut group = group(local(1));
        group.grow(ProcessSlot::new(3)).unwrap();
        assert_eq!(group.len(), 4);
        group.grow(ProcessSlot::new(1)).unwrap();
        assert_eq!(group.len(), 4);
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        for slot in 0..4 {
            sender
                .send_to(&datagram(slot), local(1).with_port(ROCE_PORT))
                .unwrap();
        }
        for index in 0..4 {
            assert_eq!(
                socket::discard_received(group.socket(index).unwrap()),
                1,
                "{index}"
            );
        }
        // Messages to QP 1: a REQ, and those whose receiver ID names the slot.
        for (attribute, id_at, slot) in [(0x10, 48, 0), (0x13, 48, 2), (0x16, 48, 3), (0x18, 44, 1)]
        {
            let mut message = [0; 280];
            (message[0], message[7]) = (0x64, 1);
            (message[21], message[37]) = (7, attribute);
            message[id_at] = if slot == 0 { 3 } else { slot };
            let to = local(1).with_port(ROCE_PORT);
            sender.send_to(&message, to).unwrap();
            for index in 0..4 {
                let arrived = socket::discard_received(group.socket(index).unwrap());
                assert_eq!(
                    arrived,
                    usize::from(index == usize::from(slot)),
                    "{attribute:#x}"
                );
            }
        }
    }

    #[test]
    fn a_lease_begins_with_an_empty_socket() {
        let mut group = group(local(2));
        let slot = ProcessSlot::new(1);
        group.grow(slot).unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = local(2).with_port(ROCE_PORT);
        sender.send_to(&datagram(1), to).unwrap();
        group.lease(slot);
        assert_eq!(socket::discard_received(group.socket(1).unwrap()), 0);
        sender.send_to(&datagram(1), to).unwrap();
        // A second lease of the same slot changes nothing.
        group.lease(slot);
        assert_eq!(socket::discard_received(group.socket(1).unwrap()), 1);
        sender.send_to(&datagram(1), to).unwrap();
        group.release(slot, Time::from_ns(1));
        assert_eq!(group.vacant().count(), 1);
        let mut released_ports = RecentlyReleasedPorts::default();
        group.receive(&Services::default(), &mut released_ports, Time::from_ns(1));
        assert_eq!(socket::discard_received(group.socket(1).unwrap()), 0);
        assert!(group.users().is_empty());
    }

    /// A notice leaves only from the address of the connection.
    //= CM-ST-10 type=test
    #[test]
    fn a_disconnect_leaves_from_the_address_of_the_connection() {
        let [mut of_it, mut other] = [6, 7].map(|last| group(local(last)));
        for group in [&mut of_it, &mut other] {
            group.grow(ProcessSlot::new(1)).unwrap();
            group.lease(ProcessSlot::new(1));
        }
        let peer = UdpSocket::bind(local(8).with_port(ROCE_PORT)).unwrap();
        let conn_record = ConnRecord {
            route: CmRoute {
                local: local(6).ip(),
                remote: local(8).ip(),
            },
            own_id: CommId::new(0x0100_0001),
            peer_id: CommId::new(7),
            peer_qpn: Qpn::new(8),
            kind: ConnRecordKind::Established,
        };
        let now = Time::from_ns(1);
        for group in [&mut other, &mut of_it] {
            group.on_process_exit(&[conn_record], now);
        }
        assert_eq!(other.deadline(), None);
        assert!(of_it.deadline().is_some_and(|again| again > now));
        let mut buffer = [0; 512];
        let (len, source) = peer.recv_from(&mut buffer).unwrap();
        assert_eq!(source.ip(), local(6).ip());
        let message = gsi::message_of(&buffer[..len]).unwrap();
        assert_eq!(message.receiver_id(), CommId::new(7));
        peer.set_nonblocking(true).unwrap();
        assert!(peer.recv_from(&mut buffer).is_err(), "said once");
    }

    #[test]
    fn restored_groups_have_the_same_order() {
        let mut old = group(local(3));
        old.grow(ProcessSlot::new(2)).unwrap();
        let mut new = same(&old);
        assert_eq!(new.restore(1, copy(&old, 1)), Err(RestoreError::Gap));
        for index in [0, 1, 0, 1, 2] {
            assert_eq!(new.restore(index, copy(&old, index)), Ok(()));
        }
        assert_eq!(new.len(), 3);
        assert_eq!(new.restore(1, copy(&old, 2)), Err(RestoreError::Conflict));
        assert_eq!(new.restore(3, copy(&old, 2)), Err(RestoreError::Conflict));
        let mut other = group(local(4));
        assert_eq!(
            other.restore(0, copy(&old, 0)),
            Err(RestoreError::NotOfThisAddress)
        );
        let plain = UdpSocket::bind(local(5).with_port(ROCE_PORT)).unwrap();
        let mut group = group(local(5));
        let second = plain.try_clone().unwrap();
        assert_eq!(
            group.restore(1, second.into()),
            Err(RestoreError::NotOfThisAddress)
        );
        let file = File::open("/dev/null").unwrap();
        assert_eq!(
            group.restore(0, file.into()),
            Err(RestoreError::NotOfThisAddress)
        );

        // The new group continues where the old one was.
        drop(old);
        new.grow(ProcessSlot::new(3)).unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        sender
            .send_to(&datagram(3), local(3).with_port(ROCE_PORT))
            .unwrap();
        assert_eq!(socket::discard_received(new.socket(3).unwrap()), 1);
    }
}
