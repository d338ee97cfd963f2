//! The broker's main loop: one thread with one poll, in which every request is short.

#![deny(clippy::disallowed_methods)]

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rocade_transport::Time;

use super::group::Group;
use super::gsi::RecentlyReleasedPorts;
use super::identity::{Identity, ThisProcess};
use super::paths::Paths;
use super::slots::SlotTable;
use super::{BrokerConfig, BrokerError, service, sys};
use crate::clock::Clock;
use crate::gsi::services::Services;
use crate::journal::read_conn_records;
use crate::link::LocalAddr;
use crate::link::address_lock::{CompetingBroker, OwnerInfo};
use crate::steering::ProcessSlot;

mod ack_journal;
mod addresses;
mod connections;
mod error;
mod fault_reports;
mod faults;
pub(super) mod files;
mod handover;
#[cfg(debug_assertions)]
mod invariants;
mod requests;
mod shm_links;
pub(super) mod start;
mod statistics;
#[cfg(all(test, not(loom)))]
mod tests;
#[cfg(all(any(test, feature = "simulated-host"), not(loom)))]
mod turns;
#[cfg(all(test, not(loom)))]
pub(super) mod view;
mod xrc;

use connections::{Client, Reserve};
use fault_reports::EndedReports;
use faults::FaultTable;
use files::Files;

/// Interval of retries of a pending request.
pub(super) const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// Interval of checks whether a client has received what it was sent.
const LOOK_AGAIN_SOON: Duration = Duration::from_millis(2);
/// Time that a broker waits for its first client, beyond the idle timeout. The program that started
/// it may have been killed, and nothing else shows that no client will come. A client that comes
/// later starts another broker.
const FIRST_CLIENT: Duration = Duration::from_secs(10);
/// Longest wait in poll.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// Runs the broker until it is told to stop, or until it has had no clients for the idle timeout.
///
/// A service manager may pass the socket in the abstract namespace, and gets a notice when programs
/// can connect (`service.rs`).
///
/// # Errors
/// [`BrokerError::AlreadyRunning`] if another broker runs, or the reason why it cannot start.
pub fn serve(config: &BrokerConfig) -> Result<(), BrokerError> {
    let clock = Clock::new();
    let limits_too_low = prepare_process();
    let process: Arc<dyn Identity> = Arc::new(ThisProcess);
    let passed = service::passed_listener();
    let passed = passed.map_err(BrokerError::failure("failed to take the socket"))?;
    let files = start::take_over(config, &clock, &process, passed)?;
    let mut server = Server::new(config, files, limits_too_low, clock.now(), process);
    service::notify("READY=1");
    let result = server.run(&clock);
    service::notify("STOPPING=1");
    server.end();
    result
}

/// Adapts the process to its task. Returns true if its limits are too small for many clients.
fn prepare_process() -> bool {
    sys::survive_file_size_limit();
    if !sys::run_at_usual_priority() {
        tracing::warn!(
            "failed to raise the low priority inherited from the starting program: clients may have to wait"
        );
    }
    // All clients wait for the broker, and it never runs for long.
    crate::sys::ask_for_short_slice();
    if let Err(error) = sys::raise_limits() {
        tracing::warn!(%error, "failed to raise resource limits");
    }
    let limits_too_low = sys::are_limits_too_low();
    if limits_too_low {
        tracing::warn!("started under small limits (ulimit -H -n, -f)");
    }
    limits_too_low
}

/// Result of [`Server::wait`], for [`Server::turn`].
pub(super) struct Input {
    /// One entry for each listener, each descriptor of the groups, each client, and each process
    /// whose end is watched.
    fds: Vec<libc::pollfd>,
    first_group: usize,
    first_client: usize,
    first_process: usize,
    /// The index of the client of each watched process.
    processes: Vec<usize>,
}

/// A pending request of a client for the sockets of an address.
#[derive(Clone, Copy)]
struct Pending {
    local: LocalAddr,
    /// Index of the first socket requested.
    first: u8,
    deadline: Time,
    /// Time of the next attempt.
    next_look: Time,
    /// Time at which an owner of the address lock was first found not to listen.
    silent_since: Option<Time>,
}

pub(super) struct Server {
    /// The broker's process.
    process: Arc<dyn Identity>,
    config: BrokerConfig,
    paths: Paths,
    files: Files,
    clients: Vec<Client>,
    reserve: Reserve,
    slots: SlotTable,
    groups: BTreeMap<LocalAddr, Group>,
    /// Reserved ports of the connection manager, and their slots.
    services: Services<ProcessSlot>,
    faults: FaultTable,
    /// The reports of fault rules of ended processes.
    reports: EndedReports,
    /// Services whose listener ended, and the requests that wait for a new listener.
    released_ports: RecentlyReleasedPorts,
    /// Journals of processes that have lost their connection and may still live.
    journals: BTreeMap<ProcessSlot, OwnedFd>,
    /// XRC domains that processes share.
    domains: xrc::Domains,
    /// Other brokers that own addresses requested by clients.
    competitors: BTreeMap<LocalAddr, CompetingBroker>,
    /// Time of the current turn.
    now: Time,
    started: Time,
    /// End of the wait for clients of an earlier broker.
    recovery_deadline: Time,
    last_active: Time,
    /// Earliest time to accept connections.
    accept_again: Time,
    gsi_datagrams: u64,
    stop: bool,
    /// True if the broker's resource limits are too small for many clients.
    limits_too_low: bool,
}

impl Server {
    pub(super) fn new(
        config: &BrokerConfig,
        files: Files,
        limits_too_low: bool,
        now: Time,
        process: Arc<dyn Identity>,
    ) -> Self {
        let paths = Paths::new(config);
        // Before any answer: the locks held now belong to clients of another broker.
        let slots = SlotTable::new(paths.clone());
        tracing::info!(dir = %paths.dir().display(), "broker started");
        Self {
            process,
            config: config.clone(),
            paths,
            files,
            clients: Vec::new(),
            reserve: Reserve::new(),
            slots,
            groups: BTreeMap::new(),
            services: Services::default(),
            faults: FaultTable::new(),
            reports: EndedReports::default(),
            released_ports: RecentlyReleasedPorts::default(),
            journals: BTreeMap::new(),
            domains: xrc::Domains::default(),
            competitors: BTreeMap::new(),
            now,
            started: now,
            recovery_deadline: now.plus(config.recovery_timeout),
            // The process that started the broker may take a moment to connect.
            last_active: now.plus(FIRST_CLIENT),
            accept_again: now,
            gsi_datagrams: 0,
            stop: false,
            limits_too_low,
        }
    }

    fn run(&mut self, clock: &Clock) -> Result<(), BrokerError> {
        let mut next = self.next_turn();
        while let Some(time) = next {
            let input = self.wait(time.since(clock.now()))?;
            next = self.turn(clock.now(), &input);
        }
        Ok(())
    }

    /// Returns the time of the next turn if no input comes before, or `None` if the broker has to
    /// end.
    pub(super) fn next_turn(&self) -> Option<Time> {
        if self.stop {
            return None;
        }
        let after = |pause: Duration| Some(self.now.plus(pause));
        if self.clients.iter().any(Client::is_stuck) {
            return after(LOOK_AGAIN_SOON);
        }
        let waits = |client: &Client| client.pending.is_some() || client.deferred.is_some();
        if self.clients.iter().any(waits) {
            return after(LOOK_AGAIN);
        }
        if self.clients.iter().any(|c| c.is_outdated(&self.faults)) {
            return after(faults::TELL_AGAIN);
        }
        let deadlines = self.clients.iter().filter_map(Client::deadline);
        let deadlines = deadlines.chain(self.released_ports.deadline());
        let deadlines = deadlines.chain(self.groups.values().filter_map(Group::deadline));
        let deadlines =
            deadlines.chain((self.accept_again > self.now).then_some(self.accept_again));
        let longest = self.now.plus(LONGEST_WAIT);
        let next = deadlines.fold(longest, Time::min);
        if let Some(interval) = self.slots.check_interval() {
            return Some(self.now.plus(interval).min(next));
        }
        if self.clients.iter().any(|client| client.slot.is_some()) {
            return Some(next);
        }
        let end = self.last_active.plus(self.config.idle_timeout);
        (end > self.now).then_some(end.min(next))
    }

    /// Waits for input.
    pub(super) fn wait(&self, timeout: Duration) -> Result<Input, BrokerError> {
        let readable = |fd: BorrowedFd<'_>| sys::poll_readable(fd);
        let mut fds: Vec<_> = self
            .files
            .listeners()
            .map(|l| readable(l.as_fd()))
            .collect();
        if self.accept_again > self.now {
            fds.iter_mut().for_each(|listener| listener.events = 0);
        }
        let first_group = fds.len();
        for group in self.groups.values() {
            fds.extend(group.socket(0).map(readable));
            fds.push(readable(group.address_lock().fd()));
            fds.extend(group.orphaned().map(readable));
            fds.extend(group.vacant().map(readable));
        }
        let first_client = fds.len();
        fds.extend(self.clients.iter().map(Client::poll));
        let first_process = fds.len();
        let mut processes = Vec::new();
        for (index, client) in self.clients.iter().enumerate() {
            if let Some(fd) = client.registered_journal.as_ref().and_then(|d| d.process()) {
                processes.push(index);
                fds.push(readable(fd));
            }
        }
        sys::poll(&mut fds, Some(timeout))
            .map_err(BrokerError::failure("failed to wait for clients (poll)"))?;
        Ok(Input {
            fds,
            first_group,
            first_client,
            first_process,
            processes,
        })
    }

    /// Handles the input and what is due, without waiting. Returns the time of the next turn if no
    /// input comes before, or `None` if the broker has to end.
    pub(super) fn turn(&mut self, now: Time, input: &Input) -> Option<Time> {
        self.extend_recovery(now);
        self.now = now;
        self.released_ports.is_recovering = self.awaits_clients();
        self.handle(input);
        self.released_ports.is_recovering = self.awaits_clients();
        self.tick();
        #[cfg(debug_assertions)]
        self.check_invariants();
        self.next_turn()
    }

    /// Extends the wait for clients of an earlier broker by the time in which this broker got no
    /// CPU time, or was stopped: the clients could not hand over anything then.
    fn extend_recovery(&mut self, now: Time) {
        if self.now < self.recovery_deadline
            && let Some(due) = self.next_turn().filter(|due| *due < now)
        {
            self.recovery_deadline = self.recovery_deadline.plus(now.since(due));
        }
    }

    fn handle(&mut self, input: &Input) {
        let is_ready = |entry: &libc::pollfd| entry.revents != 0;
        let (listeners, fds) = input.fds.split_at(input.first_group);
        let (groups, fds) = fds.split_at(input.first_client - input.first_group);
        let (clients, processes) = fds.split_at(input.first_process - input.first_client);
        if groups.iter().any(is_ready) {
            self.service_groups();
        }
        for (index, entry) in clients.iter().enumerate() {
            if is_ready(entry) {
                self.serve_client(index);
            }
        }
        for (&index, entry) in input.processes.iter().zip(processes) {
            if is_ready(entry) {
                self.reports.keep(&self.clients[index]);
                // A child of the process may still hold the connection.
                if let Some(journal) = self.clients[index].send_pending_acks() {
                    self.on_process_exit(&journal);
                }
            }
        }
        // Only clients that do not find the first listener connect to the second one.
        if listeners.len() > 1 && listeners.last().is_some_and(is_ready) {
            self.restore_files();
        }
        if listeners.iter().any(is_ready) {
            self.accept_all();
        }
    }

    /// Receives from the broker's sockets, and answers queries for the owner of an address.
    fn service_groups(&mut self) {
        let owner_info = OwnerInfo {
            pid: self.process.own_pid(),
            dir: self.paths.dir().to_owned(),
        };
        let now = self.now;
        for group in self.groups.values_mut() {
            let received = group.receive(&self.services, &mut self.released_ports, now);
            self.gsi_datagrams += u64::try_from(received).unwrap_or(0);
            group.receive_orphaned(|packet| self.domains.route(packet));
            group.send_owner_info(&owner_info);
        }
    }

    /// Sends disconnect notices to the peers of a process that has ended.
    fn on_process_exit(&mut self, journal: &OwnedFd) {
        let (conn_records, now) = (read_conn_records(journal), self.now);
        for group in self.groups.values_mut() {
            group.on_process_exit(&conn_records, now);
        }
    }

    fn accept_all(&mut self) {
        for which in 0..self.files.listeners().count() {
            self.accept(which);
        }
    }

    /// Performs the periodic work.
    fn tick(&mut self) {
        let now = self.now;
        // The time without clients begins when the last one is gone, which may have been silent.
        let had_clients = self.clients.iter().any(|client| client.slot.is_some());
        for index in 0..self.clients.len() {
            let client = &self.clients[index];
            let due = |pending: &Pending| !client.gone && pending.next_look <= now;
            if let Some(pending) = client.pending.filter(due) {
                self.open(index, pending);
            }
        }
        self.answer_deferred();
        self.send_fault_updates();
        self.check_deadlines();
        for waiting in self.released_ports.ready(&self.services, now) {
            if let Some(group) = self.groups.get_mut(&waiting.local) {
                group.deliver(&self.services, &waiting);
            }
        }
        for group in self.groups.values_mut() {
            group.send_disconnects(now);
        }
        self.drop_gone();
        for slot in self.slots.check_orphans() {
            self.release(slot);
        }
        self.adopt_unused();
        self.forget_unresumed();
        for group in self.groups.values_mut() {
            group.free_unneeded_orphans(|slot| self.domains.needs(slot));
        }
        // All sockets of an unused address are closed together, so their order does not matter.
        self.groups.retain(|_, group| !group.users().is_empty());
        let waiting = |local: &LocalAddr| {
            self.clients.iter().any(|client| {
                client
                    .pending
                    .is_some_and(|pending| pending.local == *local)
            })
        };
        self.competitors.retain(|local, _| waiting(local));
        self.keep_files();
        if had_clients || self.slots.has_orphans() {
            self.last_active = now;
        }
    }
}
