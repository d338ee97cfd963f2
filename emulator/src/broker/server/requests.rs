//! Handles the requests of clients.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use super::super::protocol::{
    MAX_LEN, ProtocolError, RefusalCode, Request, Response, VERSION, version_of,
};
use super::super::slots::Resumed;
use super::super::{AddressStatus, BrokerStatus, ServiceStatus, SlotStatus};
use super::Server;
use super::ack_journal::RegisteredJournal;
use super::error::RequestRefusal;
use crate::fdpass;
use crate::gsi::port_range;
use crate::gsi::services::Binding;
use crate::random;
use crate::steering::ProcessSlot;

impl Server {
    /// Receives one message of a client and answers it.
    pub(super) fn serve_client(&mut self, index: usize) {
        let mut buf = vec![0; MAX_LEN];
        let client = &mut self.clients[index];
        if !client.has_read_all(self.now) {
            return;
        }
        let (len, fds) = match fdpass::receive(client.connection.as_fd(), &mut buf) {
            Ok((0, _)) => return client.gone = true,
            Ok(received) => received,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Err(error) => {
                // Descriptors that exceed the limits were discarded.
                let peer = client.peer;
                tracing::warn!(pid = peer.pid, %error, "failed to receive a request: dropping the client");
                client.gone = true;
                self.end_for_larger_limits(peer);
                return;
            }
        };
        client.version = version_of(&buf[..len]).unwrap_or(VERSION);
        let result = match Request::decode(&buf[..len], fds.len()) {
            Ok(request) => self.answer(index, request, fds),
            Err(ProtocolError::Version(theirs)) => {
                let ours = env!("CARGO_PKG_VERSION");
                let text = format!(
                    "it is of another version ({ours}, protocol {VERSION}) than this program \
                     (protocol {theirs}). When the programs that use it have ended, \
                     `rocade broker stop` makes room for one of this version"
                );
                Err(RequestRefusal::new(RefusalCode::Version, text))
            }
            Err(error) => Err(RequestRefusal::malformed(&error.to_string())),
        };
        if let Err(refusal) = result {
            self.refuse(index, refusal);
        }
    }

    /// Sends a client the refusal of its request.
    pub(super) fn refuse(&mut self, index: usize, refusal: RequestRefusal) {
        let RequestRefusal { code, text } = refusal;
        let peer = self.clients[index].peer;
        if code == RefusalCode::Limit && self.end_for_larger_limits(peer) {
            return;
        }
        let client = &mut self.clients[index];
        tracing::warn!(pid = peer.pid, ?code, text, "request refused");
        client.send(&Response::Error { code, text }, &[]);
        // An invalid request is likely followed by more.
        client.gone |= matches!(
            code,
            RefusalCode::Malformed | RefusalCode::Version | RefusalCode::NotAllowed
        );
    }

    /// Drops the clients that are gone.
    pub(super) fn drop_gone(&mut self) {
        let gone: Vec<_> = self.clients.extract_if(.., |client| client.gone).collect();
        for mut client in gone {
            self.reports.keep(&client);
            let journal = client.send_pending_acks();
            let Some(slot) = client.slot else { continue };
            let is_awaited = client.is_resuming();
            tracing::info!(pid = client.peer.pid, %slot, "client gone");
            drop(client);
            self.journals.extend(journal.map(|journal| (slot, journal)));
            if self.slots.disconnected(slot, is_awaited) {
                self.release(slot);
            }
        }
    }

    /// Frees a slot.
    pub(super) fn release(&mut self, slot: ProcessSlot) {
        self.services.release_all(slot);
        let now = self.now;
        if let Some(journal) = self.journals.remove(&slot) {
            self.on_process_exit(&journal);
        }
        let notifications = self.domains.leave_all(slot);
        let lives_on = self.domains.needs(slot);
        for group in self.groups.values_mut() {
            if lives_on {
                group.orphan(slot, now);
            } else {
                group.release(slot, now);
            }
        }
        self.notify(notifications);
    }

    /// Answers a request, now or later.
    ///
    /// # Errors
    /// The reason for which the request is refused.
    pub(super) fn answer(
        &mut self,
        index: usize,
        request: Request,
        fds: Vec<OwnedFd>,
    ) -> Result<(), RequestRefusal> {
        let client = &mut self.clients[index];
        let Some(slot) = client.slot else {
            return self.answer_stranger(index, request, fds);
        };
        match request {
            Request::Open { local, first } if client.pending.is_none() => {
                self.begin_to_open(index, local, first);
                Ok(())
            }
            Request::Restore { local, key, first } => {
                let restored = self.restore(local, key, first.into(), fds);
                restored.map_err(|(at, error)| {
                    let text = format!("socket {at} of {local}: {error:?}");
                    RequestRefusal::new(RefusalCode::NotAllowed, text)
                })?;
                if let Some(group) = self.groups.get_mut(&local) {
                    group.resume(slot);
                }
                if let Some(unclaimed) = &mut self.clients[index].unclaimed {
                    unclaimed.claim_address(local);
                }
                self.clients[index].send(&Response::Accepted, &[]);
                Ok(())
            }
            Request::Resumed => {
                self.end_handover(index, slot);
                Ok(())
            }
            _ if client.deferred.is_some() => Err(RequestRefusal::early()),
            // Otherwise a new client could get what a resuming one has.
            request @ (Request::Bind { .. } | Request::OpenDomain(_))
                if !self.clients[index].is_resuming() && self.awaits_clients() =>
            {
                self.clients[index].deferred = Some(request);
                Ok(())
            }
            request => {
                self.claim(index, slot, &request);
                self.answer_client(index, slot, request, fds)
            }
        }
    }

    /// Answers a request of a process without a slot.
    fn answer_stranger(
        &mut self,
        index: usize,
        request: Request,
        fds: Vec<OwnedFd>,
    ) -> Result<(), RequestRefusal> {
        if self.clients[index].deferred.is_some() {
            return Err(RequestRefusal::early());
        }
        match request {
            // The numbers of targets contain the slot of their creator, which may be gone while
            // clients that have not resumed yet have the targets open.
            Request::Hello { resume: None, .. } if self.awaits_clients() => {
                self.clients[index].deferred = Some(request);
                Ok(())
            }
            Request::Hello {
                resume,
                name,
                faults,
            } => {
                let client = &mut self.clients[index];
                client.name = name;
                client.faults = self.faults.register(faults, resume.is_none());
                self.greet(index, resume, fds.into_iter().next())
            }
            request => self.answer_anyone(index, request),
        }
    }

    /// Gives a slot to a new client, or to one of an earlier broker.
    fn greet(
        &mut self,
        index: usize,
        resume: Option<ProcessSlot>,
        proof: Option<OwnedFd>,
    ) -> Result<(), RequestRefusal> {
        match (resume, proof) {
            (Some(slot), Some(proof)) => self.resume(index, slot, proof)?,
            _ => self.lease(index)?,
        }
        self.send_fault_update(index);
        Ok(())
    }

    /// Answers a request of a process that has a slot.
    fn answer_client(
        &mut self,
        index: usize,
        slot: ProcessSlot,
        request: Request,
        fds: Vec<OwnedFd>,
    ) -> Result<(), RequestRefusal> {
        let mut fds = fds.into_iter();
        let answer = match request {
            Request::RegisterWake => {
                self.clients[index].wake = fds.next();
                Response::Accepted
            }
            Request::AckJournal => {
                let client = &mut self.clients[index];
                let (pid, journal) = (client.peer.pid, fds.next());
                let process = self
                    .process
                    .watch_end(pid)
                    .inspect_err(
                        |error| tracing::debug!(%error, pid, "failed to watch a client's process"),
                    )
                    .ok();
                if let Some(journal) = &journal {
                    client.report_number = self.reports.number_for(journal);
                }
                client.registered_journal =
                    journal.map(|journal| RegisteredJournal::new(journal, process));
                Response::Accepted
            }
            Request::Bind { binding, any_port } => self.bind(slot, binding, any_port),
            Request::Listen(binding) => {
                if self.services.listen(slot, binding) {
                    Response::Accepted
                } else {
                    Response::PortTaken(self.services.listen_conflict(slot, &binding))
                }
            }
            Request::Release(binding) => {
                self.release_port(slot, binding);
                Response::Accepted
            }
            Request::ShmLink(ends) => {
                self.connect(index, ends);
                return Ok(());
            }
            Request::OpenDomain(opening) => {
                return self.open_domain(index, slot, opening, fds.next());
            }
            Request::CloseDomain(key) => {
                self.close_domain(index, slot, &key);
                return Ok(());
            }
            Request::Target(key, qpn, call) => {
                self.call_target(index, slot, &key, qpn, call);
                return Ok(());
            }
            request => return self.answer_anyone(index, request),
        };
        self.clients[index].send(&answer, &[]);
        Ok(())
    }

    /// Answers a request that needs no slot.
    fn answer_anyone(&mut self, index: usize, request: Request) -> Result<(), RequestRefusal> {
        let answer = match request {
            Request::AddFault(rule) => self.add_fault(&rule)?,
            Request::ClearFaults(id) => self.clear_faults(id),
            Request::Faults => self.fault_rules(),
            Request::FaultsFrom(slot) => self.faults_from(slot),
            Request::FaultReportFrom { number, rule } => self.fault_report_from(number, rule),
            Request::StatisticsFrom(slot) => {
                self.send_statistics(index, slot);
                return Ok(());
            }
            Request::Status => Response::Status(self.status()),
            Request::Stop => {
                self.stop = true;
                let clients = self.clients.iter();
                let clients = clients.filter(|client| client.slot.is_some()).count();
                Response::Stopping {
                    broker_pid: self.process.own_pid(),
                    clients: u16::try_from(clients).unwrap_or(u16::MAX),
                }
            }
            _ => {
                let text = "the request is not valid in this state";
                return Err(RequestRefusal::malformed(text));
            }
        };
        self.clients[index].send(&answer, &[]);
        Ok(())
    }

    /// Leases a slot to a new client.
    fn lease(&mut self, index: usize) -> Result<(), RequestRefusal> {
        let client = &self.clients[index];
        let taken = |slot| {
            self.domains.needs(slot) || self.clients.iter().any(|client| client.slot == Some(slot))
        };
        let (slot, lock) = self
            .slots
            .lease(taken, client.peer.pid, &client.name)
            .map_err(|error| RequestRefusal::system("failed to lease a slot", &error))?
            .ok_or_else(|| RequestRefusal::new(RefusalCode::NoSlot, "all 255 slots are in use"))?;
        // The last client of the slot may be gone unnoticed.
        self.release(slot);
        let client = &mut self.clients[index];
        client.slot = Some(slot);
        tracing::info!(pid = client.peer.pid, %slot, "client");
        client.send(
            &Response::Leased {
                slot,
                broker_pid: self.process.own_pid(),
                limits_too_low: self.limits_too_low,
            },
            &[lock.as_fd()],
        );
        Ok(())
    }

    /// Accepts a client that has a slot from an earlier broker.
    fn resume(
        &mut self,
        index: usize,
        slot: ProcessSlot,
        proof: OwnedFd,
    ) -> Result<(), RequestRefusal> {
        let client = &self.clients[index];
        let resumed = self
            .slots
            .resume(slot, proof, client.peer.pid, &client.name);
        let lock = match resumed {
            Ok(Resumed::Locked) => None,
            Ok(Resumed::Relocked(lock)) => Some(lock),
            Ok(Resumed::Refused) | Err(_) => {
                let text = format!("slot {slot} is not the client's");
                return Err(RequestRefusal::new(RefusalCode::NotAllowed, text));
            }
        };
        // The client lives and sends its journal again.
        self.journals.remove(&slot);
        // An earlier connection of the same client must not free the slot when it ends.
        for earlier in self
            .clients
            .iter_mut()
            .filter(|client| client.slot == Some(slot))
        {
            earlier.slot = None;
            earlier.unclaimed = None;
            earlier.gone = true;
        }
        let unclaimed = self.unclaimed(slot);
        let client = &mut self.clients[index];
        client.slot = Some(slot);
        client.unclaimed = Some(unclaimed);
        tracing::info!(pid = client.peer.pid, %slot, "client resumed");
        client.send(
            &Response::Leased {
                slot,
                broker_pid: self.process.own_pid(),
                limits_too_low: self.limits_too_low,
            },
            &lock.iter().map(AsFd::as_fd).collect::<Vec<_>>(),
        );
        Ok(())
    }

    /// Reserves a port for a client, if it is free.
    fn bind(&mut self, slot: ProcessSlot, binding: Binding, any_port: bool) -> Response {
        let bound = if any_port {
            let (first, last) = port_range();
            let start = random::below(usize::from(last - first) + 1);
            self.services.bind_any(slot, binding, (first, last), start)
        } else {
            self.services.bind(slot, binding).then_some(binding)
        };
        bound.map_or_else(
            || Response::PortTaken(self.services.conflict(&binding)),
            Response::Bound,
        )
    }

    /// Releases a port. Requests to a listener's port wait for a short time for another one.
    pub(super) fn release_port(&mut self, slot: ProcessSlot, binding: Binding) {
        self.services.release(slot, binding);
        if binding.listens {
            self.released_ports.remember(binding.service, self.now);
        }
    }

    fn status(&mut self) -> BrokerStatus {
        let count = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
        let addresses = self.groups.iter().map(|(local, group)| AddressStatus {
            local: *local,
            sockets: count(group.len()),
            users: count(group.users().len()),
        });
        let listening = self.services.all().filter(|(_, binding)| binding.listens);
        let services = listening.map(|(slot, binding)| ServiceStatus {
            service: binding.service,
            slot: *slot,
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
            pid: self.process.own_pid(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime: self.now.since(self.started),
            gsi_datagrams: self.gsi_datagrams,
            addresses: addresses.collect(),
            slots,
            services: services.collect(),
        }
    }
}
