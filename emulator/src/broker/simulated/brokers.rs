//! The brokers of a simulated host, in virtual time.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rocade_transport::Time;
use tempfile::TempDir;

use super::super::identity::Identity;
use super::super::machine::Machine;
use super::super::paths::Paths;
use super::super::protocol::Request;
use super::super::server::start::{Step as Start, Takeover};
use super::super::server::{LOOK_AGAIN, Server};
pub(crate) use super::super::sys::expire;
use super::super::{BrokerConfig, BrokerError, start};
use super::host::Host;
use super::identity::SimulatedProcess;
use crate::fdpass;
use crate::link::LocalAddr;
use crate::link::socket_owner::{BoundSocket, bound_sockets};
use crate::sync::turn;
use crate::sys;

/// Number of addresses of a host.
pub(in crate::broker) const ADDRESSES: u8 = 2;
/// Number of runtime directories, each with a broker of its own.
pub(in crate::broker) const DIRS: u8 = 2;

/// Environment variable with the number of a host, for its real processes.
pub(in crate::broker) const HOST: &str = "ROCADE_HOSTSIM_HOST";

/// Time after which an unused broker ends.
const IDLE: Duration = Duration::from_secs(2);
/// Longest real time in which the kernel closes sockets.
const MOST_TIME_TO_CLOSE: Duration = Duration::from_secs(10);

/// The time at which a host begins, in ns.
const BEGIN_NS: u64 = 1_000_000_000;

thread_local! {
    /// The machine of the process that the thread belongs to.
    static MACHINE: RefCell<Option<Arc<dyn Machine>>> = const { RefCell::new(None) };
}

/// Held by the only host at a time, because all have the same addresses.
static ONLY: Mutex<()> = Mutex::new(());

/// Returns the machine of the calling thread, if it is one of a simulated process.
pub(in crate::broker) fn machine() -> Option<Arc<dyn Machine>> {
    MACHINE.with_borrow(Clone::clone)
}

/// Counts of what has happened.
pub(in crate::broker) type Marks = BTreeMap<&'static str, u64>;

/// A broker of a host.
pub(in crate::broker) struct Broker {
    pub(in crate::broker) dir: u8,
    process: Arc<SimulatedProcess>,
    /// `None` while it starts.
    pub(in crate::broker) server: Option<Box<Server>>,
    takeover: Option<Takeover>,
    /// A user has told it to end.
    is_told: bool,
    /// Time at which it was last used by a process.
    used_at: Time,
    /// Time of its next turn.
    next: Time,
    pub(in crate::broker) is_stopped: bool,
    _liveness_socket: OwnedFd,
}

impl Broker {
    /// Returns the number of its process.
    pub(in crate::broker) fn number(&self) -> u32 {
        self.process.number
    }

    fn has_ready(&self, now: Time) -> bool {
        let has_input = |server: &Server| {
            let input = server.wait(Duration::ZERO);
            input.is_ok_and(|input| !input.is_empty())
        };
        let server = self.server.as_deref();
        !self.is_stopped && (self.next <= now || server.is_some_and(has_input))
    }
}

/// The brokers of a host.
pub(crate) struct Brokers {
    pub(in crate::broker) host: Arc<Host>,
    dirs: Vec<TempDir>,
    pub(in crate::broker) list: Vec<Broker>,
    pub(in crate::broker) marks: Marks,
    /// Connections of programs that are no clients.
    pub(in crate::broker) strangers: Vec<OwnedFd>,
    _only: MutexGuard<'static, ()>,
}

impl fmt::Debug for Brokers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Brokers").finish_non_exhaustive()
    }
}

impl Brokers {
    /// Makes a host without a broker.
    ///
    /// # Errors
    /// The system has no directory for its files.
    pub(crate) fn new() -> io::Result<Self> {
        let only = ONLY.lock().unwrap_or_else(PoisonError::into_inner);
        let host = Host::default();
        host.now_ns.store(BEGIN_NS, Ordering::Relaxed);
        Ok(Self {
            host: Arc::new(host),
            dirs: (0..DIRS).map(|_| runtime_dir()).collect::<Result<_, _>>()?,
            list: Vec::new(),
            marks: Marks::new(),
            strangers: Vec::new(),
            _only: only,
        })
    }

    /// Returns the time of the host.
    pub(crate) fn time(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.host.now_ns)
    }

    /// Returns the broker's configuration for processes with engines of a directory.
    pub(crate) fn config(&self, dir: u8) -> BrokerConfig {
        BrokerConfig {
            // A host without packets comes to rest in less time than this.
            idle_timeout: Duration::from_secs(3600),
            ..self.config_of(dir)
        }
    }

    /// Returns the configuration for a directory.
    pub(in crate::broker) fn config_of(&self, dir: u8) -> BrokerConfig {
        BrokerConfig {
            runtime_dir: Some(self.dirs[usize::from(dir)].path().to_owned()),
            // It is looked for, and not started.
            command: Some(vec!["/bin/sh".into()]),
            // An unused one ends before the host is at rest.
            idle_timeout: IDLE,
            ..BrokerConfig::default()
        }
    }

    /// Makes the identity of a new process with an engine.
    ///
    /// # Errors
    /// The system has no descriptor for it.
    pub(crate) fn new_process(&self, dir: u8) -> io::Result<HostProcess> {
        SimulatedProcess::new(&self.host, dir).map(HostProcess)
    }

    /// Counts what has happened.
    pub(in crate::broker) fn mark(&mut self, mark: &'static str) {
        *self.marks.entry(mark).or_default() += 1;
    }

    /// Lets the brokers begin that processes have started.
    pub(in crate::broker) fn start_brokers(&mut self) {
        let started = std::mem::take(&mut *self.host.started.lock());
        let now = self.host.now();
        for (liveness_socket, dir) in started {
            // Without a descriptor it ends at once, as a real one does.
            let Ok(process) = SimulatedProcess::new(&self.host, dir) else {
                continue;
            };
            let process = Arc::new(process);
            let takeover = Takeover::new(&self.config_of(dir), now, process.clone());
            if self.list.iter().any(|broker| broker.dir == dir) {
                self.mark("two brokers of a directory at a time");
            }
            self.list.push(Broker {
                dir,
                process,
                is_told: false,
                used_at: now,
                server: None,
                takeover: takeover.ok(),
                next: now,
                is_stopped: false,
                _liveness_socket: liveness_socket,
            });
        }
    }

    /// Gives each broker a turn that has something to do. Returns false if none has.
    ///
    /// # Errors
    /// A text that names the broken condition.
    pub(crate) fn work(&mut self) -> Result<bool, String> {
        self.start_brokers();
        let mut any = false;
        // One that ends is removed.
        for index in (0..self.list.len()).rev() {
            any |= self.turn(index)?;
        }
        Ok(any)
    }

    /// Gives a broker a turn. Returns false if it has nothing to do.
    ///
    /// # Errors
    /// A text that names the broken condition.
    pub(in crate::broker) fn turn(&mut self, index: usize) -> Result<bool, String> {
        let now = self.host.now();
        let broker = &mut self.list[index];
        if broker.is_stopped {
            return Ok(false);
        }
        let Some(server) = &mut broker.server else {
            return Ok(self.start(index));
        };
        let input = server.wait(Duration::ZERO).map_err(|e| e.to_string())?;
        if input.is_empty() && broker.next > now {
            return Ok(false);
        }
        let next = server.turn(now, &input);
        if server.is_used() {
            broker.used_at = now;
        }
        match next {
            Some(next) if next <= now => {
                return Err("a broker wants a turn at once, for ever".to_owned());
            }
            Some(next) => broker.next = next,
            None if !broker.is_told && now < broker.used_at.plus(IDLE) => {
                return Err("a broker ends although it was used just now".to_owned());
            }
            None => {
                server.end();
                self.end_broker(index);
            }
        }
        Ok(true)
    }

    /// Takes the next step of a broker that starts. Returns false if it has to wait.
    fn start(&mut self, index: usize) -> bool {
        let now = self.host.now();
        let config = self.config_of(self.list[index].dir);
        let broker = &mut self.list[index];
        if broker.next > now {
            return false;
        }
        match broker.takeover.take().map(|takeover| takeover.step(now)) {
            Some(Ok(Start::Wait(takeover))) => {
                broker.takeover = Some(takeover);
                broker.next = now.plus(LOOK_AGAIN);
            }
            Some(Ok(Start::Listening(files))) => {
                let process = Arc::clone(&broker.process);
                let mut processes = self.host.processes.lock();
                processes.listen(broker.dir, process.number);
                drop(processes);
                let server = Server::new(&config, files, false, now, process);
                broker.next = server.next_turn().unwrap_or(now);
                broker.server = Some(Box::new(server));
            }
            _ => {
                self.mark("a broker ends because another one runs");
                self.end_broker(index);
            }
        }
        true
    }

    /// Returns true if a broker has something to do.
    pub(crate) fn has_ready(&mut self) -> bool {
        self.start_brokers();
        self.have_ready()
    }

    /// Returns true if a broker that has begun has something to do.
    pub(in crate::broker) fn have_ready(&self) -> bool {
        let now = self.host.now();
        self.list.iter().any(|broker| broker.has_ready(now))
    }

    /// Returns the time of the next turn of a broker.
    pub(crate) fn next_deadline(&self) -> Option<Time> {
        let now = self.host.now();
        let brokers = self.list.iter().filter(|broker| !broker.is_stopped);
        let times = brokers.map(|broker| broker.next);
        times.filter(|time| *time > now).min()
    }

    /// Removes a broker that has ended.
    pub(in crate::broker) fn end_broker(&mut self, index: usize) {
        let broker = self.list.remove(index);
        self.host.processes.lock().end(broker.number());
    }

    /// Kills the brokers. Processes start others.
    pub(crate) fn kill(&mut self) {
        while !self.list.is_empty() {
            self.end_broker(0);
        }
        self.start_brokers();
    }

    /// Tells the brokers to end, as a user does. Returns false without a broker.
    pub(crate) fn tell_to_end(&mut self) -> bool {
        let is_there = !self.list.is_empty();
        for dir in 0..DIRS {
            self.tell_to_end_in(dir);
        }
        self.start_brokers();
        is_there
    }

    /// Tells the brokers of a directory to end. Returns false if none listens.
    pub(in crate::broker) fn tell_to_end_in(&mut self, dir: u8) -> bool {
        let is_told = self.tell(dir, &Request::Stop.encode());
        if is_told {
            let brokers = self.list.iter_mut();
            brokers
                .filter(|broker| broker.dir == dir)
                .for_each(|broker| broker.is_told = true);
        }
        is_told
    }

    /// Sends a message of another program to the broker of a directory. Returns false if none
    /// listens.
    pub(in crate::broker) fn tell(&mut self, dir: u8, message: &[u8]) -> bool {
        let Ok(process) = SimulatedProcess::new(&self.host, dir) else {
            return false;
        };
        let Ok(connection) = start::connect(&Paths::new(&self.config_of(dir)), &process) else {
            return false;
        };
        let sent = fdpass::send(connection.as_fd(), message, &[]).is_ok();
        self.strangers.push(connection);
        sent
    }

    /// Notes that a process has ended.
    pub(crate) fn end(&self, process: &HostProcess) {
        self.host.processes.lock().end(process.0.number);
    }
}

/// Returns a directory in memory if there is one, because each seed makes and removes hundreds of
/// files.
fn runtime_dir() -> io::Result<TempDir> {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir())
}

/// Waits until the kernel has closed the sockets of an earlier host, which takes real time.
///
/// # Errors
/// A text that names a socket that stays open.
pub(crate) fn until_closed() -> Result<(), String> {
    let begin = Instant::now();
    let is_own = |socket: &BoundSocket| (0..ADDRESSES).any(|at| socket.ip == address_of(at).ip());
    loop {
        let sockets = bound_sockets().map_err(|error| format!("no list of sockets: {error}"))?;
        let Some(open) = sockets.into_iter().find(is_own) else {
            return Ok(());
        };
        if begin.elapsed() > MOST_TIME_TO_CLOSE {
            return Err(format!("a socket stays open after all has ended: {open:?}"));
        }
        std::thread::yield_now();
    }
}

/// Returns an address of the host that no other test uses.
pub(crate) fn address_of(address: u8) -> LocalAddr {
    let number = std::env::var(HOST).ok().and_then(|text| text.parse().ok());
    let [_, _, high, low] = number.unwrap_or_else(std::process::id).to_be_bytes();
    std::net::IpAddr::from([127, (high & 0x1f) | 0xc0, low, 200 + address]).into()
}

/// A process of the host, for its brokers.
#[derive(Clone, Debug)]
pub(crate) struct HostProcess(SimulatedProcess);

impl HostProcess {
    /// Makes the calling thread one of this process.
    pub(crate) fn enter(&self, host: &Arc<AtomicU64>) {
        let machine = HostMachine {
            time: Arc::clone(host),
            process: self.0.clone(),
        };
        MACHINE.set(Some(Arc::new(machine)));
    }
}

/// The machine of a process with an engine: its waits are those of its threads.
#[derive(Debug)]
struct HostMachine {
    time: Arc<AtomicU64>,
    process: SimulatedProcess,
}

impl Machine for HostMachine {
    fn now(&self) -> Time {
        Time::from_ns(self.time.load(Ordering::Relaxed))
    }

    fn sleep(&self, time: Duration) -> Result<(), BrokerError> {
        check_life()?;
        turn::sleep(time);
        Ok(())
    }

    fn until_readable(&self, fd: BorrowedFd<'_>, time: Duration) -> Result<(), BrokerError> {
        check_life()?;
        let mut waiting = [sys::poll_readable(fd)];
        sys::poll(&mut waiting, Some(time))
            .map(drop)
            .map_err(BrokerError::failure("failed to wait for the broker (poll)"))
    }

    fn process(&self) -> &dyn Identity {
        &self.process
    }

    fn start_broker(&self, _: &[CString], _: &[CString], _: BorrowedFd<'_>) -> io::Result<OwnedFd> {
        self.process.start_broker()
    }
}

/// Ends the waits of a process that was killed, for which no time passes any more.
fn check_life() -> Result<(), BrokerError> {
    if turn::is_dead() {
        Err(BrokerError::Lost)
    } else {
        Ok(())
    }
}
