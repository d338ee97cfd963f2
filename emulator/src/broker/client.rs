//! The client's side of the broker.

#![deny(clippy::disallowed_methods)]

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use crate::sync::{Mutex, MutexGuard, rank};
use rocade_transport::Time;
use rocade_wire::Qpn;

use super::machine::{Machine, ThisMachine};
use super::paths::Paths;
use super::protocol::{
    Ends, FaultUpdate, ProtocolError, Request, Response, RuleForClient, TargetEvent, WhichRule,
};
use super::start::{self, ConnectStep, Connector};
use super::sys::{self, HangupWatch};
use super::{BrokerConfig, BrokerError, BrokerStatus};
use crate::gsi::services::Binding;
use crate::journal::{AckJournal, DomainKey};
use crate::link::peer_link::PeerLinkOffer;
use crate::link::{ForwardKey, LocalAddr, SharedSocket};
use crate::steering::ProcessSlot;
use crate::sys::forked;

mod connection;
mod ports;
mod resume;
mod running;
#[cfg(all(test, not(loom)))]
pub(super) mod view;
mod xrc;

use connection::Connection;
use resume::{Resume, ResumeProgress};
pub(super) use running::{ask_running, ask_running_for_files};

/// Time after which an unanswered request makes the client check whether the broker was stopped. A
/// broker answers at once, except requests for addresses while it waits for clients of its
/// predecessor.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval of further checks. Nothing reports that a process was stopped.
const LOOK_WHETHER_STOPPED: Duration = Duration::from_secs(1);
/// Longest wait for a broker that was not stopped. It may lack CPU time, which looks like a defect
/// of the broker.
const LONGEST_ANSWER: Duration = Duration::from_secs(60);
/// Time for which a request to a stopped broker is repeated. Another broker may have replaced it by
/// then. A stopped process may stay so forever, and the user should learn of it.
const STOPPED_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause after a failed attempt to reach a new broker. It doubles with each failure, because many
/// clients may wait and take CPU time from the new broker. No event shows that a broker listens.
const FIRST_RETRY: Duration = Duration::from_millis(50);
/// Longest pause between attempts.
const LAST_RETRY: Duration = Duration::from_secs(5);
/// Time to the next attempt while another thread uses the connection.
const BUSY_RETRY: Duration = Duration::from_millis(10);

/// Result of [`BrokerClient::service`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceOutcome {
    /// The broker is connected, and there is nothing to do.
    Connected,
    /// The connection was closed. A broker (most likely a new one) has the sockets of this process
    /// again.
    Reconnected,
    /// There is no broker yet. The control fd becomes readable after this time, when
    /// [`BrokerClient::service`] has to be called again. Until then the process sends and receives
    /// as before.
    Retry(Duration),
}

/// The lease of a slot to this process, and the process's sockets on shared addresses.
///
/// Survives the death of the broker: the sockets stay open and packets are still steered to them,
/// and [`Self::service`] finds or starts the next broker. Dropping the client, or any end of the
/// process, gives the slot back. Drop it after the links that use its sockets. After fork, the
/// child should drop its copy, because the slot is taken as long as any process has a copy.
pub struct BrokerClient {
    config: BrokerConfig,
    paths: Paths,
    slot: ProcessSlot,
    pid: u32,
    machine: Arc<dyn Machine>,
    watch: HangupWatch,
    state: Mutex<ClientState, rank::BrokerClient>,
}

struct ClientState {
    link: Link,
    resources: ClientResources,
    /// Shared-memory links that peers have requested and that were not taken yet.
    offers: Vec<PeerLinkOffer>,
    /// Events of XRC targets that were not taken yet.
    of_targets: Vec<(Qpn, TargetEvent)>,
    /// New fault rules that were not taken yet.
    faults: Option<FaultUpdate>,
}

/// State that a process hands to the next broker.
struct ClientResources {
    slot: ProcessSlot,
    /// The slot's lock file, locked.
    lock: OwnedFd,
    /// The addresses in use.
    shares: BTreeMap<LocalAddr, Share>,
    /// The eventfd that wakes this process, if it uses shared-memory links.
    wake: Option<OwnedFd>,
    /// The ACK journal, which the broker processes after the end of this process.
    journal: Option<Arc<AckJournal>>,
    /// The connection manager's ports that this process has.
    ports: Vec<Binding>,
    /// The XRC domains that this process shares with others.
    domains: Vec<SharedDomain>,
    /// Fault rules that this process was started with. Empty where they were cleared.
    own_faults: Vec<String>,
}

/// State of a shared XRC domain in this process.
struct SharedDomain {
    key: DomainKey,
    memory: OwnedFd,
    /// The targets that this process has open.
    targets: Vec<Qpn>,
}

/// State of a shared address in this process.
struct Share {
    /// The lock by which the broker owns the address.
    address_lock: OwnedFd,
    /// The secret of the processes that share the address.
    key: ForwardKey,
    /// Copies of the sockets 0 up to that of this process.
    sockets: Vec<OwnedFd>,
}

/// The connection, or the state of reconnecting.
enum Link {
    Up(Connection),
    Trying {
        connector: Box<Connector>,
        failures: u32,
    },
    /// This process is handing its state to a new broker.
    Resuming {
        resume: Box<Resume>,
        failures: u32,
    },
    Pausing {
        until: Time,
        failures: u32,
    },
}

impl ClientState {
    fn connection(&mut self) -> Option<&mut Connection> {
        match &mut self.link {
            Link::Up(connection) => Some(connection),
            Link::Resuming { resume, .. } => Some(resume.connection()),
            Link::Trying { .. } | Link::Pausing { .. } => None,
        }
    }

    /// Saves unsolicited messages, which stay valid even if the connection fails. Returns true if
    /// there were any.
    fn keep_notifications(&mut self) -> bool {
        let Some(connection) = self.connection() else {
            return false;
        };
        let notifications = connection.notifications();
        let is_any = !notifications.is_empty();
        self.offers.extend(notifications.offers);
        self.of_targets.extend(notifications.of_targets);
        if let Some(lock) = notifications.lock {
            self.resources.lock = lock;
        }
        if let Some(faults) = notifications.faults {
            for (index, own) in self.resources.own_faults.iter_mut().enumerate() {
                let is_it = |rule: &RuleForClient| match rule.which {
                    WhichRule::Own(at) => usize::from(at) == index,
                    WhichRule::Text(_) => false,
                };
                if !faults.rules.iter().any(is_it) {
                    own.clear();
                }
            }
            self.faults = Some(faults);
        }
        is_any
    }

    /// Marks the connection as up, once the broker has the whole state.
    fn resumed(&mut self) {
        let (until, failures) = (Time::ZERO, 0);
        let link = std::mem::replace(&mut self.link, Link::Pausing { until, failures });
        self.link = match link {
            Link::Resuming { resume, .. } => Link::Up(resume.finish()),
            link => link,
        };
    }
}

impl BrokerClient {
    /// Leases a slot from the broker of this user and network namespace. Starts a broker if none is
    /// running. If several processes do so at once, one of them starts it.
    ///
    /// # Errors
    /// See [`BrokerError`].
    pub fn connect_or_start(config: &BrokerConfig) -> Result<Self, BrokerError> {
        Self::connect_with(config, Vec::new())
    }

    /// Like [`connect_or_start`](Self::connect_or_start), for a process that was started with the
    /// fault rules `own_faults`.
    pub(crate) fn connect_with(
        config: &BrokerConfig,
        own_faults: Vec<String>,
    ) -> Result<Self, BrokerError> {
        Self::connect_on(ThisMachine::shared(), config, own_faults)
    }

    pub(super) fn connect_on(
        machine: Arc<dyn Machine>,
        config: &BrokerConfig,
        own_faults: Vec<String>,
    ) -> Result<Self, BrokerError> {
        let paths = Paths::new(config);
        let begin = machine.now();
        let mut replaced = false;
        let (mut connection, lease) = loop {
            let mut connection =
                Connection::new(Connector::new(config, &paths, &machine).run()?, &machine);
            match hello(&mut connection, &own_faults) {
                Ok(lease) if lease.limits_too_low && !replaced && !sys::are_limits_too_low() => {
                    replaced = true;
                    if !replace(connection, config, &paths, &machine)? {
                        continue;
                    }
                }
                Ok(lease) => break (connection, lease),
                // The broker was just about to end, or was killed.
                Err(error) if should_retry(&error, machine.now().since(begin), config) => {
                    machine.sleep(FIRST_RETRY)?;
                }
                Err(error) => return Err(error),
            }
        };
        let Lease { slot, lock, .. } = lease;
        let watch = HangupWatch::new()?;
        connection.watch_with(&watch)?;
        tracing::debug!(%slot, "slot leased");
        let journal = AckJournal::new()
            .inspect_err(|error| tracing::warn!(%error, "failed to create an ACK journal: no ACK is delayed"))
            .ok();
        let registered = match &journal {
            Some(journal) => connection.register_journal(journal),
            None => Ok(()),
        };
        let state = ClientState {
            link: Link::Up(connection),
            resources: ClientResources {
                slot,
                lock,
                shares: BTreeMap::new(),
                wake: None,
                journal: journal.map(Arc::new),
                ports: Vec::new(),
                domains: Vec::new(),
                own_faults,
            },
            offers: Vec::new(),
            of_targets: Vec::new(),
            faults: None,
        };
        let client = Self {
            config: config.clone(),
            paths,
            slot,
            pid: machine.process().own_pid(),
            machine,
            watch,
            state: Mutex::new(state),
        };
        if let Err(error) = registered {
            // The next broker gets the journal. A late answer of this one must not be taken for the
            // answer to another request.
            tracing::info!(%error, "failed to pass the ACK journal to the broker, reconnecting");
            client.disconnect(&mut client.state.lock(), 0);
        }
        Ok(client)
    }

    /// Returns the ACK journal that the broker has of this process.
    pub(crate) fn journal(&self) -> Option<Arc<AckJournal>> {
        self.state.lock().resources.journal.clone()
    }

    /// Returns the leased slot, 1 to 255. It stays the same for the life of the client.
    #[must_use]
    pub const fn slot(&self) -> ProcessSlot {
        self.slot
    }

    /// Returns this process's receive socket on port 4791 of the address. The broker creates the
    /// group unless it exists. Another call for the same address returns another copy of the same
    /// socket.
    ///
    /// # Errors
    /// [`BrokerError::Refused`] if the broker cannot use the address. [`BrokerError::Lost`] if
    /// there is no broker and none can be started now.
    pub fn socket_for(&self, local: impl Into<LocalAddr>) -> Result<SharedSocket, BrokerError> {
        let local = local.into();
        self.check_process()?;
        let mut state = self.state.lock();
        if !state.resources.shares.contains_key(&local) {
            let begin = self.machine.now();
            let share = loop {
                match self.open(&mut state, local) {
                    Err(error) if self.should_retry(&error, begin) => {
                        self.reconnect(&mut state, begin)?;
                    }
                    result => break result?,
                }
            };
            state.resources.shares.insert(local, share);
            self.handle_notifications(&mut state);
        }
        let share = state.resources.shares.get(&local);
        let own = share.and_then(|share| Some((share.sockets.get(self.slot.index())?, share.key)));
        let (fd, key) = own.ok_or(BrokerError::Protocol(ProtocolError::Unexpected))?;
        let fd = fd
            .try_clone()
            .map_err(BrokerError::failure("failed to duplicate a socket"))?;
        forked::note(fd.as_fd());
        Ok(SharedSocket { fd, key })
    }

    /// Returns an fd that is readable when [`Self::service`] should be called. It stays the same
    /// for the life of the client.
    #[must_use]
    pub fn control_fd(&self) -> RawFd {
        self.watch.fd()
    }

    /// Services the connection. If it was closed, takes the next step towards a new one, which
    /// hands all sockets to the next broker. Never blocks on a broker.
    pub fn service(&self) -> ServiceOutcome {
        if self.check_process().is_err() {
            return ServiceOutcome::Connected;
        }
        let Some(mut state) = self.state.try_lock() else {
            return ServiceOutcome::Retry(BUSY_RETRY);
        };
        if let Link::Up(connection) = &mut state.link {
            let alive = connection.read_notifications();
            state.keep_notifications();
            if alive {
                self.watch.wake_after(None);
                return ServiceOutcome::Connected;
            }
            tracing::info!(slot = %self.slot, "the broker has ended or closed the connection");
        }
        let outcome = self.step(&mut state);
        self.watch.wake_after(match outcome {
            ServiceOutcome::Retry(time) => Some(time),
            _ => None,
        });
        outcome
    }

    /// Enables shared-memory links. `wake` is the eventfd that wakes this process.
    ///
    /// # Errors
    /// See [`BrokerError`].
    pub(crate) fn share(&self, wake: BorrowedFd<'_>) -> Result<(), BrokerError> {
        self.check_process()?;
        let wake = wake
            .try_clone_to_owned()
            .map_err(BrokerError::failure("failed to duplicate an eventfd"))?;
        let mut state = self.state.lock();
        let Link::Up(connection) = &mut state.link else {
            // The next broker is told during the reconnect.
            state.resources.wake = Some(wake);
            return Ok(());
        };
        let result = connection.share(&wake);
        if result.is_err() {
            self.disconnect(&mut state, 0);
        }
        state.resources.wake = Some(wake);
        result
    }

    /// Requests a shared-memory link from the own address `local` to the client with that slot at
    /// `peer`. Returns `None` if none is possible, or while there is no broker.
    ///
    /// # Errors
    /// See [`BrokerError`].
    pub(crate) fn shm_link_to(
        &self,
        local: LocalAddr,
        peer: LocalAddr,
        slot: ProcessSlot,
    ) -> Result<Option<PeerLinkOffer>, BrokerError> {
        self.check_process()?;
        let mut state = self.state.lock();
        let Link::Up(connection) = &mut state.link else {
            return Ok(None);
        };
        let result = connection.channel(Ends { local, peer, slot });
        self.handle_notifications(&mut state);
        if result.as_ref().is_err_and(BrokerError::ends_connection) {
            self.disconnect(&mut state, 0);
        }
        result
    }

    /// Returns the shared-memory links that peers have requested since the last call. Unless `wait`
    /// is set, returns none while another thread uses the connection.
    pub(crate) fn take_offers(&self, wait: bool) -> Vec<PeerLinkOffer> {
        if self.check_process().is_err() {
            return Vec::new();
        }
        let state = if wait {
            Some(self.state.lock())
        } else {
            self.try_state()
        };
        let Some(mut state) = state else {
            return Vec::new();
        };
        if let Link::Up(connection) = &mut state.link {
            // `service` handles a closed connection.
            connection.read_notifications();
            self.handle_notifications(&mut state);
        }
        std::mem::take(&mut state.offers)
    }

    /// Returns the current fault rules if they have changed since the last call.
    pub(crate) fn take_faults(&self) -> Option<FaultUpdate> {
        self.check_process().ok()?;
        self.try_state()?.faults.take()
    }

    /// Locks the state to take unsolicited messages after [`Self::service`]. While another thread
    /// uses the connection, returns `None` and makes the control fd readable later.
    fn try_state(&self) -> Option<MutexGuard<'_, ClientState>> {
        let mut state = self.state.try_lock();
        match &mut state {
            Some(state) => self.handle_notifications(state),
            None => self.watch.wake_after(Some(BUSY_RETRY)),
        }
        state
    }

    /// Makes the control fd readable when the peer closes its end of the liveness socket `line`.
    pub(crate) fn watch(&self, line: BorrowedFd<'_>) -> Result<(), BrokerError> {
        let failed = BrokerError::failure("failed to watch a liveness socket");
        self.watch.watch_end(line).map_err(failed)
    }

    /// Stops watching `line`. Must be called before the socket is closed.
    pub(crate) fn unwatch(&self, line: BorrowedFd<'_>) {
        // After fork, the child shares the epoll instance with its parent, which still needs the
        // entry.
        if self.check_process().is_ok() {
            self.watch.forget(line);
        }
    }

    /// Saves unsolicited messages that arrived with an answer, and makes the control fd readable
    /// for them. The fd was readable only while they were unread in the socket.
    fn handle_notifications(&self, state: &mut ClientState) {
        const AT_ONCE: Duration = Duration::from_micros(1);
        if state.keep_notifications() {
            self.watch.wake_after(Some(AT_ONCE));
        }
    }

    /// Sends a request to the broker, or to the next one, for as long as [`should_retry`] allows.
    fn ask_with_reconnect<R>(
        &self,
        request: &Request,
        fds: &[BorrowedFd<'_>],
        mut decode: impl FnMut(&mut ClientState, Response, Vec<OwnedFd>) -> Result<R, BrokerError>,
    ) -> Result<R, BrokerError> {
        self.check_process()?;
        let mut state = self.state.lock();
        let begin = self.machine.now();
        loop {
            let answer = match &mut state.link {
                Link::Up(connection) => connection.ask(request, fds, ANSWER_TIMEOUT),
                _ => Err(BrokerError::Lost),
            };
            let result = answer.and_then(|(answer, fds)| decode(&mut state, answer, fds));
            self.handle_notifications(&mut state);
            if result.as_ref().is_err_and(BrokerError::ends_connection) {
                self.disconnect(&mut state, 0);
            }
            match result {
                Err(error) if self.should_retry(&error, begin) => {
                    self.reconnect(&mut state, begin)?;
                }
                result => return result,
            }
        }
    }

    fn should_retry(&self, error: &BrokerError, begin: Time) -> bool {
        should_retry(error, self.machine.now().since(begin), &self.config)
    }

    fn check_process(&self) -> Result<(), BrokerError> {
        if self.pid == self.machine.process().own_pid() {
            Ok(())
        } else {
            Err(BrokerError::Forked)
        }
    }

    /// Requests the sockets of an address.
    fn open(&self, state: &mut ClientState, local: LocalAddr) -> Result<Share, BrokerError> {
        let Link::Up(connection) = &mut state.link else {
            return Err(BrokerError::Lost);
        };
        let patience = ANSWER_TIMEOUT + self.config.recovery_timeout;
        let result = connection.open(local, self.slot, patience);
        if result.as_ref().is_err_and(BrokerError::ends_connection) {
            // A late answer must not be taken for the answer to another request.
            self.disconnect(state, 0);
        }
        result
    }

    /// Drops the connection, if there is one, and prepares another attempt.
    fn disconnect(&self, state: &mut ClientState, failures: u32) {
        state.keep_notifications();
        let journal = &state.resources.journal;
        journal
            .iter()
            .for_each(|journal| journal.set_registered(false));
        if let Some(connection) = state.connection() {
            self.watch.forget(connection.fd());
        }
        let connector = Box::new(Connector::new(&self.config, &self.paths, &self.machine));
        state.link = Link::Trying {
            connector,
            failures,
        };
        // Makes the control fd readable, so that `service` reconnects unless another thread does.
        self.watch.wake_after(Some(FIRST_RETRY));
    }

    /// Reconnects and blocks until done. Repeats this because the next broker may end as well. The
    /// caller has tried since `begin`.
    fn reconnect(&self, state: &mut ClientState, begin: Time) -> Result<(), BrokerError> {
        let mut pause = FIRST_RETRY;
        loop {
            self.disconnect(state, 0);
            match self.try_reconnect(state) {
                Err(error) if self.should_retry(&error, begin) => {
                    tracing::debug!(%error, "failed to connect to a new broker, trying again");
                    self.machine.sleep(pause)?;
                    pause = (pause * 2).min(LAST_RETRY);
                }
                result => return result,
            }
        }
    }

    fn try_reconnect(&self, state: &mut ClientState) -> Result<(), BrokerError> {
        let Link::Trying { connector, .. } = &mut state.link else {
            return Ok(());
        };
        let connection = connector.run()?;
        self.begin(state, connection, 0)?;
        while let Link::Resuming { resume, .. } = &mut state.link {
            match resume.step(&mut state.resources)? {
                ResumeProgress::Waiting(time) => resume.wait(time)?,
                ResumeProgress::Done => state.resumed(),
            }
        }
        Ok(())
    }

    /// Starts handing the state of this process to a broker.
    fn begin(
        &self,
        state: &mut ClientState,
        connection: OwnedFd,
        failures: u32,
    ) -> Result<(), BrokerError> {
        let resume = Resume::begin(connection, &state.resources, &self.watch, &self.machine)?;
        let resume = Box::new(resume);
        state.link = Link::Resuming { resume, failures };
        Ok(())
    }

    /// Takes one step towards a new connection.
    fn step(&self, state: &mut ClientState) -> ServiceOutcome {
        if matches!(state.link, Link::Up(_)) {
            self.disconnect(state, 0);
        }
        let failures = match &state.link {
            Link::Up(_) => 0,
            Link::Trying { failures, .. } | Link::Resuming { failures, .. } => *failures,
            Link::Pausing { until, failures } => {
                let left = until.since(self.machine.now());
                if !left.is_zero() {
                    return ServiceOutcome::Retry(left);
                }
                let failures = *failures;
                self.disconnect(state, failures);
                failures
            }
        };
        self.try_step(state, failures).unwrap_or_else(|error| {
            self.disconnect(state, failures);
            let pause = (FIRST_RETRY * 2u32.saturating_pow(failures.min(16))).min(LAST_RETRY);
            tracing::warn!(%error, ?pause, "failed to connect to a new broker, trying again");
            let failures = failures.saturating_add(1);
            state.link = Link::Pausing {
                until: self.machine.now().plus(pause),
                failures,
            };
            ServiceOutcome::Retry(pause)
        })
    }

    fn try_step(
        &self,
        state: &mut ClientState,
        failures: u32,
    ) -> Result<ServiceOutcome, BrokerError> {
        if let Link::Trying { connector, .. } = &mut state.link {
            match connector.step()? {
                ConnectStep::Wait(time) => return Ok(ServiceOutcome::Retry(time)),
                ConnectStep::Connected(connection) => self.begin(state, connection, failures)?,
            }
        }
        if let Link::Resuming { resume, .. } = &mut state.link {
            if let ResumeProgress::Waiting(time) = resume.step(&mut state.resources)? {
                return Ok(ServiceOutcome::Retry(time));
            }
            state.resumed();
        }
        Ok(ServiceOutcome::Reconnected)
    }
}

impl fmt::Debug for BrokerClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BrokerClient")
            .field("slot", &self.slot)
            .finish_non_exhaustive()
    }
}

/// Returns the status of the running broker.
///
/// # Errors
/// [`BrokerError::NotRunning`] if there is none.
pub fn status(config: &BrokerConfig) -> Result<BrokerStatus, BrokerError> {
    match ask_running(config, &Request::Status)? {
        Response::Status(status) => Ok(status),
        _ => Err(ProtocolError::Unexpected.into()),
    }
}

/// Result of stopping a broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StopOutcome {
    /// Its process id.
    pub pid: u32,
    /// Number of clients. They keep running, and the first of them to notice starts the next
    /// broker.
    pub clients: u16,
}

/// Stops the running broker, whatever its version. The broker stops even if it has clients, which
/// keep running without it.
///
/// # Errors
/// [`BrokerError::NotRunning`] if there is none.
pub fn stop(config: &BrokerConfig) -> Result<StopOutcome, BrokerError> {
    let paths = Paths::new(config);
    let machine = ThisMachine::shared();
    let mut connection = Connection::new(start::connect(&paths, machine.process())?, &machine);
    match connection.stop()? {
        Stop::Outcome(outcome) => Ok(outcome),
        Stop::OtherVersion(version) => {
            let mut connection =
                Connection::new(start::connect(&paths, machine.process())?, &machine);
            match connection.stop_as(version)? {
                Stop::Outcome(outcome) => Ok(outcome),
                Stop::OtherVersion(_) => Err(ProtocolError::Version(version).into()),
            }
        }
    }
}

/// Answer to a stop request.
enum Stop {
    Outcome(StopOutcome),
    /// The broker accepts only requests of this version.
    OtherVersion(u16),
}

/// Stops a broker with small limits and starts one with larger limits. Returns false if another
/// process is doing so already.
fn replace(
    mut connection: Connection,
    config: &BrokerConfig,
    paths: &Paths,
    machine: &Arc<dyn Machine>,
) -> Result<bool, BrokerError> {
    let mut connector = Connector::new(config, paths, machine);
    if !connector.take_lock()? {
        return Ok(false);
    }
    tracing::info!("the broker was started under small limits: starting another one");
    match connection.stop() {
        // Another process may have stopped it.
        Ok(_) | Err(BrokerError::Lost) => drop(connection),
        Err(error) => return Err(error),
    }
    // While this process holds the lock, no other process starts a broker.
    connector.run().map(|_| true)
}

/// Returns true if another attempt after this error makes sense, given attempts for `tried`.
fn should_retry(error: &BrokerError, tried: Duration, config: &BrokerConfig) -> bool {
    let patience = match error {
        BrokerError::Silent { .. } => config.start_timeout.min(STOPPED_TIMEOUT),
        _ => config.start_timeout,
    };
    error.is_transient() && tried < patience
}

/// The answer to the first message of a new client.
struct Lease {
    slot: ProcessSlot,
    lock: OwnedFd,
    /// The broker runs under small limits.
    limits_too_low: bool,
}

fn hello(connection: &mut Connection, faults: &[String]) -> Result<Lease, BrokerError> {
    let request = Request::Hello {
        resume: None,
        name: process_name(),
        faults: faults.to_vec(),
    };
    let (response, fds) = connection.ask(&request, &[], ANSWER_TIMEOUT)?;
    let Response::Leased {
        slot,
        limits_too_low,
        ..
    } = response
    else {
        return Err(ProtocolError::Unexpected.into());
    };
    let lock = fds.into_iter().next().ok_or(ProtocolError::Descriptors)?;
    Ok(Lease {
        slot,
        lock,
        limits_too_low,
    })
}

fn process_name() -> String {
    fs::read_to_string("/proc/self/comm")
        .map_or_else(|_| String::new(), |s| s.trim_end().to_owned())
}
