//! Addresses: creating their sockets, passing them to clients and taking them back.

use std::collections::btree_map::Entry;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rocade_transport::Time;

use super::super::SlotStatus;
use super::super::group::{Group, RestoreError};
use super::super::protocol::{RefusalCode, Response, SOCKETS_AT_ONCE};
use super::super::sys::effective_uid;
use super::error::RequestRefusal;
use super::{Client, LOOK_AGAIN, Pending, Server};
use crate::link::address_lock::{AddressLock, AddressLockError, SILENT_OWNER_TIMEOUT};
use crate::link::socket_owner::{self, BoundSocket};
use crate::link::{ForwardKey, LinkError, LocalAddr, SocketOwner};
use crate::steering::ProcessSlot;

/// Time for which foreign sockets may delay a request. Those of a process that is ending disappear
/// soon. Those of another program stay, and its user should learn of the conflict. Nothing tells
/// the two apart.
const STRANGER_TIMEOUT: Duration = Duration::from_secs(1);

/// Interval of attempts to lock an address that another process has locked. Each attempt asks the
/// owner, which costs it CPU time.
const RECHECK_LOCK: Duration = Duration::from_millis(100);

impl From<LinkError> for RequestRefusal {
    fn from(error: LinkError) -> Self {
        if let LinkError::System {
            local,
            failure,
            source,
        } = &error
        {
            return Self::system(&format!("{failure} on {local}"), source);
        }
        let code = match error {
            LinkError::InUse { .. } => RefusalCode::AddressInUse,
            LinkError::NotLocal { .. } | LinkError::Unusable { .. } => RefusalCode::AddressUnusable,
            _ => RefusalCode::System,
        };
        Self::new(code, error.to_string())
    }
}

/// Reasons why an address cannot be opened.
enum OpenBlocker {
    /// A client of an earlier broker has not resumed yet and may have sockets of the group.
    Awaited(SocketOwner),
    /// There is a socket that this broker does not know.
    ForeignSocket(BoundSocket),
    /// Another process of this user has locked the address: its process ID (0 if unknown), and the
    /// owner it reported.
    CompetingBroker(u32, Option<SocketOwner>),
    /// The owner of the address lock does not listen yet.
    SilentOwner,
    /// The system refuses a socket.
    Failed(LinkError),
}

impl OpenBlocker {
    /// Returns true if the blocker may disappear by itself, because it is a process of this user
    /// that is starting or ending.
    fn is_transient(&self) -> bool {
        match self {
            Self::Awaited(_) | Self::CompetingBroker(..) | Self::SilentOwner => true,
            Self::ForeignSocket(socket) => socket.uid == effective_uid(),
            Self::Failed(_) => false,
        }
    }

    fn into_error(self, local: LocalAddr) -> LinkError {
        match self {
            Self::Awaited(owner) | Self::CompetingBroker(_, Some(owner)) => {
                LinkError::InUse { local, owner }
            }
            Self::CompetingBroker(pid, None) => LinkError::InUse {
                local,
                owner: socket_owner::find_or_process(local, pid),
            },
            Self::SilentOwner => LinkError::InUse {
                local,
                owner: SocketOwner::Unknown,
            },
            Self::ForeignSocket(socket) => LinkError::InUse {
                local,
                owner: socket_owner::of(&socket),
            },
            Self::Failed(error) => error,
        }
    }
}

impl Server {
    /// Takes sockets back. The address lock precedes socket 0. An error names the index that
    /// failed.
    pub(super) fn restore(
        &mut self,
        local: LocalAddr,
        key: ForwardKey,
        first: usize,
        fds: Vec<OwnedFd>,
    ) -> Result<(), (usize, RestoreError)> {
        let mut fds = fds.into_iter();
        let address_lock = if first == 0 { fds.next() } else { None };
        let group = match self.groups.entry(local) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(none) => {
                let address_lock = address_lock.ok_or((first, RestoreError::Gap))?;
                let address_lock = AddressLock::restore(address_lock, local)
                    .ok_or((0, RestoreError::NotOfThisAddress))?;
                none.insert(Group::new(local, address_lock, key))
            }
        };
        if group.key() != key {
            return Err((first, RestoreError::Conflict));
        }
        for (index, fd) in (first..).zip(fds) {
            group.restore(index, fd).map_err(|error| (index, error))?;
        }
        Ok(())
    }

    /// Starts a client's request for the sockets of an address, starting at `first`.
    pub(super) fn begin_to_open(&mut self, index: usize, local: LocalAddr, first: u8) {
        let now = self.now;
        let begin = if self.awaits_clients() {
            self.recovery_deadline
        } else {
            now
        };
        let pending = Pending {
            local,
            first,
            deadline: begin.plus(STRANGER_TIMEOUT),
            next_look: now,
            silent_since: None,
        };
        self.open(index, pending);
    }

    /// Sends a client sockets of an address or an error, or delays the request.
    pub(super) fn open(&mut self, index: usize, pending: Pending) {
        let Some(slot) = self.clients[index].slot else {
            return;
        };
        let local = pending.local;
        let silent_for = pending
            .silent_since
            .map_or(Duration::ZERO, |since| self.now.since(since));
        let result = self.prepare(local, slot, silent_for < SILENT_OWNER_TIMEOUT);
        self.groups.retain(|_, group| !group.users().is_empty());
        let client = &mut self.clients[index];
        client.pending = None;
        let may_wait = self.now < pending.deadline;
        let refusal = match result {
            Ok(()) => match self.groups.get(&local) {
                Some(group) => match client.send_sockets(group, local, slot, pending.first) {
                    Ok(()) => return,
                    Err(SendError::InFlightLimit) if may_wait => {
                        client.pending = Some(pending.at(self.now.plus(LOOK_AGAIN)));
                        return;
                    }
                    Err(SendError::InFlightLimit) => {
                        RequestRefusal::new(RefusalCode::Limit, TOO_MANY_IN_FLIGHT)
                    }
                    Err(SendError::Dead) => return client.gone = true,
                },
                None => return,
            },
            Err(blocker) if blocker.is_transient() && may_wait => {
                let pause = match blocker {
                    OpenBlocker::CompetingBroker(..) => RECHECK_LOCK,
                    _ => LOOK_AGAIN,
                };
                let is_silent = matches!(blocker, OpenBlocker::SilentOwner);
                let silent_since = pending
                    .silent_since
                    .or_else(|| is_silent.then_some(self.now));
                client.pending = Some(Pending {
                    silent_since,
                    ..pending.at(self.now.plus(pause))
                });
                return;
            }
            Err(blocker) => blocker.into_error(local).into(),
        };
        self.refuse(index, refusal);
    }

    /// Makes sure that the address has a socket for the slot. `is_patient` is as for
    /// [`AddressLock::try_acquire`].
    fn prepare(
        &mut self,
        local: LocalAddr,
        slot: ProcessSlot,
        is_patient: bool,
    ) -> Result<(), OpenBlocker> {
        let len = self.groups.get(&local).map_or(0, Group::len);
        if len <= slot.index() {
            self.check_awaited()?;
            if !self.groups.contains_key(&local) {
                let group = self.lock_address(local, is_patient)?;
                self.groups.insert(local, group);
            }
            self.check_whole(local)?;
        }
        let Some(group) = self.groups.get_mut(&local) else {
            return Ok(());
        };
        group.grow(slot).map_err(OpenBlocker::Failed)?;
        if group.len() > len
            && let Err(blocker) = self.check_whole(local)
        {
            // Another process has added a socket in between.
            if let Some(group) = self.groups.get_mut(&local) {
                group.shrink(len);
            }
            return Err(blocker);
        }
        if let Some(group) = self.groups.get_mut(&local) {
            group.lease(slot);
        }
        Ok(())
    }

    /// Creates a group for an address after locking the address.
    fn lock_address(&mut self, local: LocalAddr, is_patient: bool) -> Result<Group, OpenBlocker> {
        let address_lock = match AddressLock::try_acquire(local, is_patient) {
            Ok(Some(address_lock)) => address_lock,
            Ok(None) => return Err(OpenBlocker::SilentOwner),
            Err(AddressLockError::Held(mut new)) => {
                // The same competing broker may already have answered an earlier query.
                let competitor = match self.competitors.entry(local) {
                    Entry::Occupied(old) if old.get().pid() == new.pid() => old.into_mut(),
                    Entry::Occupied(mut old) => {
                        std::mem::swap(old.get_mut(), &mut new);
                        old.into_mut()
                    }
                    Entry::Vacant(none) => none.insert(new),
                };
                return Err(OpenBlocker::CompetingBroker(
                    competitor.pid(),
                    competitor.owner(),
                ));
            }
            Err(AddressLockError::System(source)) => {
                return Err(OpenBlocker::Failed(LinkError::System {
                    local,
                    failure: "failed to lock the address",
                    source,
                }));
            }
        };
        Ok(Group::new(local, address_lock, ForwardKey::random()))
    }

    /// Returns true while clients of an earlier broker may still hand over what they have.
    pub(super) fn awaits_clients(&self) -> bool {
        self.now < self.recovery_deadline
            && (self.slots.has_awaited() || self.clients.iter().any(Client::is_resuming))
    }

    /// Begins to receive for the slots without a process whose sockets clients of an earlier broker
    /// have handed over.
    pub(super) fn adopt_unused(&mut self) {
        if self.awaits_clients() {
            return;
        }
        let has_process = |slot| {
            let mut clients = self.clients.iter();
            self.slots.is_orphan(slot) || clients.any(|client| client.slot == Some(slot))
        };
        // One that comes late has not handed over its addresses yet.
        let may_use = |slot| {
            let mut clients = self.clients.iter();
            self.slots.is_orphan(slot)
                || clients.any(|client| client.slot == Some(slot) && client.is_resuming())
        };
        for group in self.groups.values_mut() {
            let is_needed = |slot| self.domains.needs(slot) && !has_process(slot);
            group.adopt_unused(may_use, is_needed);
        }
    }

    /// Answers the requests that have waited for clients of an earlier broker.
    pub(super) fn answer_deferred(&mut self) {
        if self.awaits_clients() {
            return;
        }
        for index in 0..self.clients.len() {
            let Some(request) = self.clients[index].deferred.take() else {
                continue;
            };
            if let Err(refusal) = self.answer(index, request, Vec::new()) {
                self.refuse(index, refusal);
            }
        }
    }

    /// Checks that all clients of an earlier broker have resumed, because they may have sockets of
    /// any group.
    fn check_awaited(&mut self) -> Result<(), OpenBlocker> {
        if !self.awaits_clients() {
            return Ok(());
        }
        let awaited = self.slots.orphans().next();
        let owner = awaited.map_or(SocketOwner::Unknown, |SlotStatus { pid, name, .. }| {
            SocketOwner::Process { pid, name }
        });
        Err(OpenBlocker::Awaited(owner))
    }

    /// Checks that the address has no foreign sockets, because these would move a new socket to a
    /// wrong index.
    fn check_whole(&self, local: LocalAddr) -> Result<(), OpenBlocker> {
        // Without /proc, the locks are the only information.
        let sockets = socket_owner::bound_sockets().unwrap_or_default();
        let known = |inode| self.groups.values().any(|group| group.has_inode(inode));
        let mut foreign_sockets = sockets
            .into_iter()
            .filter(|socket| socket.ip == local.ip() && !known(socket.inode));
        foreign_sockets.next().map_or(Ok(()), |foreign_socket| {
            Err(OpenBlocker::ForeignSocket(foreign_socket))
        })
    }
}

/// Failure to send sockets.
enum SendError {
    /// Too many descriptors are in flight.
    InFlightLimit,
    /// The client cannot receive.
    Dead,
}

/// Descriptors in flight count for the sending user, whatever their receiver.
const TOO_MANY_IN_FLIGHT: &str = "too many file descriptors are in flight to programs of this \
    user that do not receive them";

impl Pending {
    const fn at(self, next_look: Time) -> Self {
        Self { next_look, ..self }
    }
}

impl Client {
    /// Sends sockets starting at `first`, at most up to that of the slot.
    fn send_sockets(
        &self,
        group: &Group,
        local: LocalAddr,
        slot: ProcessSlot,
        first: u8,
    ) -> Result<(), SendError> {
        let end = slot.index() + 1;
        let from = usize::from(first).min(end);
        let sockets = (from..end.min(from + SOCKETS_AT_ONCE)).filter_map(|at| group.socket(at));
        let address_lock = (first == 0).then(|| group.address_lock().fd());
        let fds: Vec<_> = address_lock.into_iter().chain(sockets).collect();
        let response = Response::Sockets {
            local,
            key: group.key(),
            first,
            total: u16::try_from(end).unwrap_or(u16::MAX),
        };
        self.try_send(&response, &fds).map_err(|error| {
            if error.raw_os_error() == Some(libc::ETOOMANYREFS) {
                return SendError::InFlightLimit;
            }
            tracing::warn!(pid = self.peer.pid, %error, "failed to send sockets: dropping the client");
            SendError::Dead
        })
    }
}
