//! The broker's main loop: one thread with one poll, in which every request is short.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use super::group::Group;
use super::gsi::RecentlyReleasedPorts;
use super::paths::Paths;
use super::slots::SlotTable;
use super::{BrokerConfig, BrokerError, sys};
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
mod files;
mod requests;
mod shm_links;
mod xrc;

use connections::{Client, Reserve};
use fault_reports::EndedReports;
use faults::FaultTable;
use files::Files;

/// Interval of retries of a pending request.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
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
/// # Errors
/// [`BrokerError::AlreadyRunning`] if another broker runs, or the reason why it cannot start.
pub fn serve(config: &BrokerConfig) -> Result<(), BrokerError> {
    let mut server = Server::start(config)?;
    let result = server.run();
    server.end();
    result
}

/// A pending request of a client for the sockets of an address.
#[derive(Clone, Copy)]
struct Pending {
    local: LocalAddr,
    /// Index of the first socket requested.
    first: u8,
    deadline: Instant,
    /// Time of the next attempt.
    next_look: Instant,
}

struct Server {
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
    started: Instant,
    /// End of the wait for clients of an earlier broker.
    recovery_deadline: Instant,
    last_active: Instant,
    gsi_datagrams: u64,
    stop: bool,
    /// True if the broker's resource limits are too small for many clients.
    limits_too_low: bool,
}

impl Server {
    fn start(config: &BrokerConfig) -> Result<Self, BrokerError> {
        let paths = Paths::new(config);
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
        let files = Files::create(&paths)?;
        // Before any answer: the locks held now belong to clients of another broker.
        let slots = SlotTable::new(paths.clone());
        let now = Instant::now();
        tracing::info!(dir = %paths.dir().display(), "broker started");
        Ok(Self {
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
            started: now,
            recovery_deadline: now + config.recovery_timeout,
            // The process that started the broker may take a moment to connect.
            last_active: now + FIRST_CLIENT,
            gsi_datagrams: 0,
            stop: false,
            limits_too_low,
        })
    }

    fn run(&mut self) -> Result<(), BrokerError> {
        while !self.stop {
            let Some(timeout) = self.timeout() else { break };
            self.wait(timeout)?;
            self.tick();
        }
        Ok(())
    }

    /// Returns the longest time to wait, or `None` if the broker has to end.
    fn timeout(&self) -> Option<Duration> {
        if self.clients.iter().any(Client::is_stuck) {
            return Some(LOOK_AGAIN_SOON);
        }
        if self.clients.iter().any(|client| client.pending.is_some()) {
            return Some(LOOK_AGAIN);
        }
        if self.clients.iter().any(|c| c.is_outdated(&self.faults)) {
            return Some(faults::TELL_AGAIN);
        }
        let now = Instant::now();
        let deadlines = self.clients.iter().filter_map(Client::deadline);
        let deadlines = deadlines.chain(self.released_ports.deadline());
        let deadlines = deadlines.chain(self.groups.values().filter_map(Group::deadline));
        let next = deadlines.map(|at| at.saturating_duration_since(now)).min();
        let next = next.unwrap_or(LONGEST_WAIT).min(LONGEST_WAIT);
        if let Some(interval) = self.slots.check_interval() {
            return Some(interval.min(next));
        }
        if self.clients.iter().any(|client| client.slot.is_some()) {
            return Some(next);
        }
        let left = self
            .config
            .idle_timeout
            .saturating_sub(self.last_active.elapsed());
        (!left.is_zero()).then_some(left.min(next))
    }

    /// Waits for input and handles it.
    fn wait(&mut self, timeout: Duration) -> Result<(), BrokerError> {
        let readable = |fd: BorrowedFd<'_>| sys::poll_readable(fd);
        let mut fds: Vec<_> = self
            .files
            .listeners()
            .map(|l| readable(l.as_fd()))
            .collect();
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
        let ready = sys::poll(&mut fds, Some(timeout))
            .map_err(BrokerError::failure("failed to wait for clients (poll)"))?;
        if ready == 0 {
            return Ok(());
        }
        if fds[first_group..first_client]
            .iter()
            .any(|fd| fd.revents != 0)
        {
            self.service_groups();
        }
        let readable: Vec<_> = (0..self.clients.len())
            .filter(|index| fds[first_client + index].revents != 0)
            .collect();
        for index in readable {
            self.serve_client(index);
        }
        for (index, entry) in processes.into_iter().zip(&fds[first_process..]) {
            if entry.revents != 0 {
                self.reports.keep(&self.clients[index]);
                // A child of the process may still hold the connection.
                if let Some(journal) = self.clients[index].send_pending_acks() {
                    self.on_process_exit(&journal);
                }
            }
        }
        // Only clients that do not find the first listener connect to the second one.
        if fds[first_group - 1].revents != 0 && first_group > 1 {
            self.restore_files();
        }
        if fds[..first_group].iter().any(|fd| fd.revents != 0) {
            self.accept_all();
        }
        Ok(())
    }

    /// Receives from the broker's sockets, and answers queries for the owner of an address.
    fn service_groups(&mut self) {
        let owner_info = OwnerInfo {
            pid: std::process::id(),
            dir: self.paths.dir().to_owned(),
        };
        let now = Instant::now();
        for group in self.groups.values_mut() {
            let received = group.receive(&self.services, &mut self.released_ports, now);
            self.gsi_datagrams += u64::try_from(received).unwrap_or(0);
            group.receive_orphaned(|packet| self.domains.route(packet));
            group.send_owner_info(&owner_info);
        }
    }

    /// Sends disconnect notices to the peers of a process that has ended.
    fn on_process_exit(&mut self, journal: &OwnedFd) {
        let (conn_records, now) = (read_conn_records(journal), Instant::now());
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
        let now = Instant::now();
        // The time without clients begins when the last one is gone, which may have been silent.
        let had_clients = self.clients.iter().any(|client| client.slot.is_some());
        for index in 0..self.clients.len() {
            let client = &self.clients[index];
            let due = |pending: &Pending| !client.gone && pending.next_look <= now;
            if let Some(pending) = client.pending.filter(due) {
                self.open(index, pending);
            }
        }
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
