//! What the broker does with each request.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use super::super::group::Group;
use super::super::protocol::{MAX_FDS, MAX_LEN, ProtocolError, RefusalCode, Request, Response};
use super::super::{AddressStatus, BrokerStatus, SlotStatus, effective_uid, fdpass};
use super::{Client, Deposit, Pending, Server};
use crate::link::holder::{self, BoundSocket};
use crate::link::{Holder, LinkError, LocalAddr};
use crate::steering::Slot;

/// How long sockets that we do not know may stand in the way of a request: those of a process
/// that is ending are gone soon.
const STRANGER_TIMEOUT: Duration = Duration::from_secs(1);

/// A request is refused.
struct Refusal {
    code: RefusalCode,
    text: String,
}

impl Refusal {
    fn new(code: RefusalCode, text: impl Into<String>) -> Self {
        Self {
            code,
            text: text.into(),
        }
    }

    fn malformed(text: &str) -> Self {
        Self::new(RefusalCode::Malformed, text)
    }
}

impl From<LinkError> for Refusal {
    fn from(error: LinkError) -> Self {
        let code = match error {
            LinkError::InUse { .. } => RefusalCode::AddressInUse,
            LinkError::NotLocal { .. } | LinkError::Unusable { .. } => RefusalCode::AddressUnusable,
            _ => RefusalCode::System,
        };
        Self::new(code, error.to_string())
    }
}

/// Why an address cannot be had.
enum Obstacle {
    /// A client of an earlier broker has not come yet; it may have sockets of the group.
    Awaited(Holder),
    /// There is a socket that we do not know.
    Stranger(BoundSocket),
    /// The system does not let us.
    Failed(LinkError),
}

impl Obstacle {
    /// Whether the obstacle may go away by itself: a process of ours that is coming or ending.
    fn may_pass(&self) -> bool {
        match self {
            Self::Awaited(_) => true,
            Self::Stranger(socket) => socket.uid == effective_uid(),
            Self::Failed(_) => false,
        }
    }

    fn into_error(self, local: LocalAddr) -> LinkError {
        match self {
            Self::Awaited(holder) => LinkError::InUse { local, holder },
            Self::Stranger(socket) => LinkError::InUse {
                local,
                holder: holder::of(&socket),
            },
            Self::Failed(error) => error,
        }
    }
}

impl Server {
    /// Receives one message of a client and answers it.
    pub(super) fn serve_client(&mut self, index: usize) {
        let mut buf = vec![0; MAX_LEN];
        let client = &mut self.clients[index];
        let (len, fds) = match fdpass::receive(client.connection.as_fd(), &mut buf) {
            Ok((0, _)) => return client.gone = true,
            Ok(received) => received,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
            Err(error) => {
                tracing::warn!(pid = client.peer.pid, %error, "receiving a request");
                return client.gone = true;
            }
        };
        let result = match Request::decode(&buf[..len], fds.len()) {
            Ok(request) => self.answer(index, request, fds),
            Err(error @ ProtocolError::Version(_)) => {
                let text = format!(
                    "this broker is version {}: {error}",
                    env!("CARGO_PKG_VERSION")
                );
                Err(Refusal::new(RefusalCode::Version, text))
            }
            Err(error) => Err(Refusal::malformed(&error.to_string())),
        };
        if let Err(Refusal { code, text }) = result {
            let client = &mut self.clients[index];
            tracing::warn!(pid = client.peer.pid, ?code, text, "request refused");
            client.send(&Response::Error { code, text }, &[]);
            // Who sends nonsense, sends more of it.
            client.gone |= matches!(
                code,
                RefusalCode::Malformed | RefusalCode::Version | RefusalCode::NotAllowed
            );
        }
    }

    /// Drops the clients that have gone.
    pub(super) fn drop_gone(&mut self) {
        let gone: Vec<_> = self.clients.extract_if(.., |client| client.gone).collect();
        for mut client in gone {
            client.carry_out_will();
            let Some(slot) = client.slot else { continue };
            tracing::info!(pid = client.peer.pid, %slot, "client gone");
            drop(client);
            if self.slots.disconnected(slot) {
                self.release(slot);
            }
        }
    }

    /// A slot has become free.
    pub(super) fn release(&mut self, slot: Slot) {
        self.groups
            .values_mut()
            .for_each(|group| group.release(slot));
    }

    fn answer(&mut self, index: usize, request: Request, fds: Vec<OwnedFd>) -> Result<(), Refusal> {
        let has_slot = self.clients[index].slot;
        match (request, has_slot) {
            (Request::Hello { resume, name }, None) => {
                self.clients[index].name = name;
                match (resume, fds.into_iter().next()) {
                    (Some(slot), Some(proof)) => self.resume(index, slot, proof),
                    _ => self.lease(index),
                }
            }
            (Request::Open { local }, Some(_)) if self.clients[index].pending.is_none() => {
                let now = Instant::now();
                let begin = if self.slots.has_awaited() {
                    self.recovery_deadline
                } else {
                    now
                };
                let deadline = begin.max(now) + STRANGER_TIMEOUT;
                self.open(index, Pending { local, deadline });
                Ok(())
            }
            (Request::Restore { local, first }, Some(slot)) => {
                self.restore(slot, local, first.into(), fds)?;
                self.clients[index].send(&Response::Accepted, &[]);
                Ok(())
            }
            (Request::Share, Some(_)) => {
                self.clients[index].wake = fds.into_iter().next();
                self.clients[index].send(&Response::Accepted, &[]);
                Ok(())
            }
            (Request::Will, Some(_)) => {
                let client = &mut self.clients[index];
                let pid = client.peer.pid;
                client.deposit = fds.into_iter().next().map(|will| Deposit::new(will, pid));
                client.send(&Response::Accepted, &[]);
                Ok(())
            }
            (Request::Channel(ends), Some(_)) => {
                self.connect(index, ends);
                Ok(())
            }
            (Request::Status, _) => {
                let status = self.status();
                self.clients[index].send(&Response::Status(status), &[]);
                Ok(())
            }
            (Request::Stop, _) => {
                let clients = self
                    .clients
                    .iter()
                    .filter(|client| client.slot.is_some())
                    .count();
                let clients = u16::try_from(clients).unwrap_or(u16::MAX);
                let broker_pid = std::process::id();
                self.clients[index].send(
                    &Response::Stopping {
                        broker_pid,
                        clients,
                    },
                    &[],
                );
                self.stop = true;
                Ok(())
            }
            _ => Err(Refusal::malformed("not at this point")),
        }
    }

    /// Leases a slot to a new client.
    fn lease(&mut self, index: usize) -> Result<(), Refusal> {
        let client = &self.clients[index];
        let taken = |slot| self.clients.iter().any(|client| client.slot == Some(slot));
        let (slot, lock) = self
            .slots
            .lease(taken, client.peer.pid, &client.name)
            .map_err(|error| Refusal::new(RefusalCode::System, format!("leasing a slot: {error}")))?
            .ok_or_else(|| Refusal::new(RefusalCode::NoSlot, "all 255 slots are in use"))?;
        // Its last client may be gone without our having noticed.
        self.release(slot);
        let client = &mut self.clients[index];
        client.slot = Some(slot);
        tracing::info!(pid = client.peer.pid, %slot, "client");
        client.send(
            &Response::Welcome {
                slot,
                broker_pid: std::process::id(),
            },
            &[lock.as_fd()],
        );
        Ok(())
    }

    /// Welcomes a client that has a slot from before.
    fn resume(&mut self, index: usize, slot: Slot, proof: OwnedFd) -> Result<(), Refusal> {
        if !self.slots.resume(slot, proof).unwrap_or(false) {
            let text = format!("slot {slot} is not the client's");
            return Err(Refusal::new(RefusalCode::NotAllowed, text));
        }
        // An earlier connection of the same client: its end does not free the slot.
        for earlier in self
            .clients
            .iter_mut()
            .filter(|client| client.slot == Some(slot))
        {
            earlier.slot = None;
            earlier.gone = true;
        }
        let client = &mut self.clients[index];
        client.slot = Some(slot);
        tracing::info!(pid = client.peer.pid, %slot, "client resumed");
        client.send(
            &Response::Welcome {
                slot,
                broker_pid: std::process::id(),
            },
            &[],
        );
        Ok(())
    }

    /// Takes sockets back.
    fn restore(
        &mut self,
        slot: Slot,
        local: LocalAddr,
        first: usize,
        fds: Vec<OwnedFd>,
    ) -> Result<(), Refusal> {
        let group = self
            .groups
            .entry(local)
            .or_insert_with(|| Group::new(local));
        for (index, fd) in (first..).zip(fds) {
            group.restore(index, fd).map_err(|error| {
                let text = format!("socket {index} of {local}: {error:?}");
                Refusal::new(RefusalCode::NotAllowed, text)
            })?;
        }
        group.resume(slot);
        Ok(())
    }

    /// Sends a client the sockets of an address, or an error, or lets it wait.
    pub(super) fn open(&mut self, index: usize, pending: Pending) {
        let Some(slot) = self.clients[index].slot else {
            return;
        };
        let local = pending.local;
        let result = self.prepare(local, slot);
        self.groups.retain(|_, group| group.len() > 0);
        let client = &mut self.clients[index];
        client.pending = None;
        let obstacle = match result {
            Ok(()) => {
                if let Some(group) = self.groups.get(&local) {
                    client.send_sockets(group, local, slot);
                }
                return;
            }
            Err(obstacle) if obstacle.may_pass() && Instant::now() < pending.deadline => {
                client.pending = Some(pending);
                return;
            }
            Err(obstacle) => obstacle,
        };
        let error = obstacle.into_error(local);
        tracing::warn!(pid = client.peer.pid, %slot, %error, "address refused");
        let Refusal { code, text } = error.into();
        client.send(&Response::Error { code, text }, &[]);
    }

    /// Makes sure that the address has a socket for the slot.
    fn prepare(&mut self, local: LocalAddr, slot: Slot) -> Result<(), Obstacle> {
        if self
            .groups
            .get(&local)
            .is_none_or(|group| group.len() <= slot.index())
        {
            self.check_whole(local)?;
        }
        let group = self
            .groups
            .entry(local)
            .or_insert_with(|| Group::new(local));
        group.grow(slot).map_err(Obstacle::Failed)?;
        group.lease(slot).map_err(Obstacle::Failed)
    }

    /// Checks that no sockets of the group are in hands that we do not know: adding to the group
    /// would then put the new one at the wrong index.
    fn check_whole(&mut self, local: LocalAddr) -> Result<(), Obstacle> {
        if self.slots.has_awaited() && Instant::now() < self.recovery_deadline {
            let awaited = self.slots.orphans().next();
            let holder = awaited.map_or(Holder::Unknown, |SlotStatus { pid, name, .. }| {
                Holder::Process { pid, name }
            });
            return Err(Obstacle::Awaited(holder));
        }
        // Without /proc there is no more to know than what the locks say.
        let sockets = holder::bound_sockets().unwrap_or_default();
        let known = |inode| self.groups.values().any(|group| group.has_inode(inode));
        let mut strangers = sockets
            .into_iter()
            .filter(|socket| socket.ip == local.ip() && !known(socket.inode));
        strangers
            .next()
            .map_or(Ok(()), |stranger| Err(Obstacle::Stranger(stranger)))
    }

    fn status(&mut self) -> BrokerStatus {
        let count = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
        let addresses = self.groups.iter().map(|(local, group)| AddressStatus {
            local: *local,
            sockets: count(group.len()),
            users: count(group.users().len()),
        });
        let connected = self.clients.iter().filter_map(|client| {
            let (pid, name) = (client.peer.pid, client.name.clone());
            Some(SlotStatus {
                slot: client.slot?,
                pid,
                name,
                connected: true,
            })
        });
        let mut slots: Vec<_> = connected.chain(self.slots.orphans()).collect();
        slots.sort_by_key(|slot| slot.slot);
        BrokerStatus {
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime: self.started.elapsed(),
            gsi_datagrams: self.gsi_datagrams,
            addresses: addresses.collect(),
            slots,
        }
    }
}

impl Client {
    /// Sends an answer. A client that does not take it is dropped: it has asked for it.
    pub(super) fn send(&mut self, response: &Response, fds: &[BorrowedFd<'_>]) {
        if let Err(error) = fdpass::send(self.connection.as_fd(), &response.encode(), fds) {
            tracing::warn!(pid = self.peer.pid, %error, "answering a client");
            self.gone = true;
        }
    }

    /// Sends the sockets 0 up to that of the slot.
    fn send_sockets(&mut self, group: &Group, local: LocalAddr, slot: Slot) {
        let fds: Vec<_> = (0..=slot.index())
            .filter_map(|at| group.socket(at))
            .collect();
        let total = u16::try_from(fds.len()).unwrap_or(u16::MAX);
        for (chunk, fds) in fds.chunks(MAX_FDS).enumerate() {
            let Ok(first) = u8::try_from(chunk * MAX_FDS) else {
                return;
            };
            self.send(
                &Response::Sockets {
                    local,
                    first,
                    total,
                },
                fds,
            );
        }
    }
}
