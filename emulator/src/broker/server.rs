//! The broker's main loop: one thread, one poll, no request takes long.

use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::thread;
use std::time::{Duration, Instant};

use socket2::{Domain, SockAddr, Socket, Type};

use super::fdpass::{self, Peer};
use super::group::Group;
use super::paths::{Paths, open_lock};
use super::slots::SlotTable;
use super::{BrokerConfig, BrokerError, effective_uid, sys};
use crate::link::{LocalAddr, socket};
use crate::steering::Slot;
use will::Deposit;

mod channels;
mod requests;
mod will;

/// How long a starting broker waits for one that is ending.
const TAKEOVER_TIMEOUT: Duration = Duration::from_millis(500);
/// How often to look again at what a client waits for.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// Connections that may wait to be accepted.
const BACKLOG: i32 = 128;
/// Most connections at a time: a client for each slot, and some that ask for the status.
const MAX_CONNECTIONS: usize = 300;

/// Runs the broker until it is told to stop, or has had no clients for the idle time.
///
/// # Errors
/// [`BrokerError::AlreadyRunning`] if there is one; others if it cannot start.
pub fn serve(config: &BrokerConfig) -> Result<(), BrokerError> {
    let mut server = Server::start(config)?;
    let result = server.run();
    server.end();
    result
}

/// A connection.
struct Client {
    connection: OwnedFd,
    peer: Peer,
    name: String,
    slot: Option<Slot>,
    /// What wakes it, where it takes part in shared-memory channels.
    wake: Option<OwnedFd>,
    /// What is to be done when it is gone.
    deposit: Option<Deposit>,
    /// An address it has asked for and not got yet.
    pending: Option<Pending>,
    /// To be dropped.
    gone: bool,
}

#[derive(Clone, Copy)]
struct Pending {
    local: LocalAddr,
    deadline: Instant,
}

impl Client {
    const fn new(connection: OwnedFd, peer: Peer) -> Self {
        Self {
            connection,
            peer,
            name: String::new(),
            slot: None,
            wake: None,
            deposit: None,
            pending: None,
            gone: false,
        }
    }
}

struct Server {
    config: BrokerConfig,
    paths: Paths,
    listener: Socket,
    clients: Vec<Client>,
    slots: SlotTable,
    groups: BTreeMap<LocalAddr, Group>,
    started: Instant,
    /// Until when clients of an earlier broker are waited for.
    recovery_deadline: Instant,
    last_active: Instant,
    gsi_datagrams: u64,
    stop: bool,
    /// Locked as long as this broker runs.
    _lock: File,
}

impl Server {
    fn start(config: &BrokerConfig) -> Result<Self, BrokerError> {
        let paths = Paths::new(config);
        paths.prepare()?;
        let lock = take_lock(&paths)?;
        if let Err(error) = sys::raise_fd_limit() {
            tracing::warn!(%error, "raising the limit of open files");
        }
        // Before anybody can connect: whose locks are held now are clients of another broker.
        let slots = SlotTable::new(paths.clone());
        let listener = listen(&paths).map_err(BrokerError::doing("listening"))?;
        let now = Instant::now();
        tracing::info!(dir = %paths.dir().display(), "broker started");
        Ok(Self {
            config: config.clone(),
            paths,
            listener,
            clients: Vec::new(),
            slots,
            groups: BTreeMap::new(),
            started: now,
            recovery_deadline: now + config.recovery_timeout,
            last_active: now,
            gsi_datagrams: 0,
            stop: false,
            _lock: lock,
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

    /// Makes room for the next broker. Connections still in the queue are cut when the listener is
    /// closed; those clients try again.
    fn end(&self) {
        tracing::info!("broker ends");
        if let Err(error) = fs::remove_file(self.paths.socket()) {
            tracing::warn!(%error, "removing the socket");
        }
    }

    /// How long there is nothing to do; `None` when it is time to end.
    fn timeout(&self) -> Option<Duration> {
        if self.clients.iter().any(|client| client.pending.is_some()) {
            return Some(LOOK_AGAIN);
        }
        if let Some(interval) = self.slots.check_interval() {
            return Some(interval);
        }
        let unused = self.groups.values().map(|group| group.unused_since);
        if self.clients.iter().any(|client| client.slot.is_some()) {
            // For the addresses that nobody uses.
            let next = unused.min().map_or(self.config.idle_timeout, |since| {
                self.config.idle_timeout.saturating_sub(since.elapsed())
            });
            return Some(next.max(Duration::from_secs(1)));
        }
        let left = self
            .config
            .idle_timeout
            .saturating_sub(self.last_active.elapsed());
        (!left.is_zero()).then_some(left)
    }

    /// Waits for input, and deals with it.
    fn wait(&mut self, timeout: Duration) -> Result<(), BrokerError> {
        let sockets: Vec<_> = self
            .groups
            .values()
            .filter_map(|group| group.socket(0))
            .collect();
        let mut fds = vec![sys::poll_readable(self.listener.as_fd())];
        fds.extend(sockets.iter().map(|fd| sys::poll_readable(*fd)));
        let first_client = fds.len();
        fds.extend(
            self.clients
                .iter()
                .map(|c| sys::poll_readable(c.connection.as_fd())),
        );
        let processes: Vec<_> = (0..self.clients.len())
            .filter_map(|index| Some((index, self.clients[index].deposit.as_ref()?.process()?)))
            .collect();
        let first_process = fds.len();
        fds.extend(processes.iter().map(|(_, fd)| sys::poll_readable(*fd)));
        let watched: Vec<_> = processes.iter().map(|(index, _)| *index).collect();
        let ready = sys::poll(&mut fds, Some(timeout)).map_err(BrokerError::doing("waiting"))?;
        if ready == 0 {
            return Ok(());
        }
        for (fd, _) in sockets
            .iter()
            .zip(&fds[1..])
            .filter(|(_, entry)| entry.revents != 0)
        {
            self.gsi_datagrams += u64::try_from(socket::drain(*fd)).unwrap_or(0);
        }
        let readable: Vec<_> = (0..self.clients.len())
            .filter(|index| fds[first_client + index].revents != 0)
            .collect();
        for index in readable {
            self.serve_client(index);
        }
        for (index, _) in watched
            .into_iter()
            .zip(&fds[first_process..])
            .filter(|(_, entry)| entry.revents != 0)
        {
            self.clients[index].carry_out_will();
        }
        if fds[0].revents != 0 {
            self.accept();
        }
        Ok(())
    }

    /// What is to be done from time to time.
    fn tick(&mut self) {
        for index in 0..self.clients.len() {
            if let Some(pending) = self.clients[index]
                .pending
                .filter(|_| !self.clients[index].gone)
            {
                self.open(index, pending);
            }
        }
        self.drop_gone();
        for slot in self.slots.check_orphans() {
            self.release(slot);
        }
        let idle_timeout = self.config.idle_timeout;
        // All sockets of an address that nobody has go at once: no order to keep.
        self.groups.retain(|_, group| {
            !group.users().is_empty() || group.unused_since.elapsed() < idle_timeout
        });
        if self.clients.iter().any(|client| client.slot.is_some()) || self.slots.has_orphans() {
            self.last_active = Instant::now();
        }
    }

    fn accept(&mut self) {
        loop {
            let connection = match self.listener.accept() {
                Ok((connection, _)) => connection,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    if error.kind() != io::ErrorKind::WouldBlock {
                        tracing::warn!(%error, "accepting a connection");
                        // Out of file descriptors, most likely: do not spin on it.
                        thread::sleep(LOOK_AGAIN);
                    }
                    return;
                }
            };
            match self.check_peer(connection.as_fd()) {
                Ok(peer) if self.clients.len() < MAX_CONNECTIONS => {
                    self.clients.push(Client::new(connection.into(), peer));
                }
                Ok(_) => tracing::warn!("too many connections"),
                Err(error) => tracing::warn!(%error, "connection refused"),
            }
        }
    }

    fn check_peer(&self, connection: BorrowedFd<'_>) -> io::Result<Peer> {
        let peer = fdpass::peer(connection)?;
        if peer.uid != effective_uid() {
            return Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                format!("process {} belongs to user {}", peer.pid, peer.uid),
            ));
        }
        Ok(peer)
    }
}

fn take_lock(paths: &Paths) -> Result<File, BrokerError> {
    let failed = BrokerError::doing("taking the broker's lock");
    let deadline = Instant::now() + TAKEOVER_TIMEOUT;
    let mut lock = open_lock(&paths.broker_lock()).map_err(&failed)?;
    while !sys::try_lock(lock.as_fd()).map_err(&failed)? {
        if Instant::now() > deadline {
            return Err(BrokerError::AlreadyRunning);
        }
        thread::sleep(LOOK_AGAIN);
    }
    // For people who wonder.
    lock.set_len(0).map_err(&failed)?;
    writeln!(lock, "{}", std::process::id()).map_err(&failed)?;
    Ok(lock)
}

/// Listens in place of an earlier broker; to be called with its lock.
fn listen(paths: &Paths) -> io::Result<Socket> {
    let path = paths.socket();
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = Socket::new(Domain::UNIX, Type::SEQPACKET.nonblocking().cloexec(), None)?;
    listener.bind(&SockAddr::unix(&path)?)?;
    fs::set_permissions(&path, Permissions::from_mode(0o600))?;
    listener.listen(BACKLOG)?;
    Ok(listener)
}
