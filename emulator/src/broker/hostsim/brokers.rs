//! The brokers of a host whose processes have engines (`crate::hostsim`).

use std::cell::RefCell;
use std::ffi::CString;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use rocade_transport::Time;

use super::super::identity::Identity;
use super::super::machine::Machine;
pub(crate) use super::super::sys::expire;
use super::super::{BrokerConfig, BrokerError};
use super::identity::SimulatedProcess;
use super::process::address_of;
use super::step::{ADDRESSES, Step};
use super::world::World;
use crate::link::LocalAddr;
use crate::link::socket_owner::{BoundSocket, bound_sockets};
use crate::sync::turn;
use crate::sys;

/// The directory of all processes.
const DIR: u8 = 0;

/// Longest real time in which the kernel closes sockets.
const MOST_TIME_TO_CLOSE: Duration = Duration::from_secs(10);

thread_local! {
    /// The machine of the process that the thread belongs to.
    static MACHINE: RefCell<Option<Arc<dyn Machine>>> = const { RefCell::new(None) };
}

/// Returns the machine of the calling thread, if it is one of a simulated process.
pub(in crate::broker) fn machine() -> Option<Arc<dyn Machine>> {
    MACHINE.with_borrow(Clone::clone)
}

/// The brokers of a host.
pub(crate) struct Brokers(World);

impl Brokers {
    pub(crate) fn new() -> Self {
        let _ = until_closed();
        Self(World::new())
    }

    /// Returns the time of the host.
    pub(crate) fn time(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.0.host.now_ns)
    }

    pub(crate) fn config(&self) -> BrokerConfig {
        BrokerConfig {
            // A host without packets comes to rest in less time than this.
            idle_timeout: Duration::from_secs(3600),
            ..self.0.config(DIR)
        }
    }

    /// Makes the identity of a new process.
    pub(crate) fn new_process(&self) -> HostProcess {
        HostProcess(SimulatedProcess::new(&self.0.host, DIR))
    }

    /// Gives each broker a turn that has something to do. Returns false if none has.
    ///
    /// # Errors
    /// A text that names the broken condition.
    pub(crate) fn work(&mut self) -> Result<bool, String> {
        self.0.work()
    }

    /// Returns true if a broker has something to do.
    pub(crate) fn has_ready(&mut self) -> bool {
        self.0.start_brokers();
        self.0.has_ready()
    }

    /// Returns the time of the next turn of a broker.
    pub(crate) fn next_deadline(&self) -> Option<Time> {
        self.0.next_deadline()
    }

    /// Kills the brokers. Processes start others.
    ///
    /// # Errors
    /// Those of a step.
    pub(crate) fn kill(&mut self) -> Result<(), String> {
        while !self.0.brokers.is_empty() {
            self.0.take(Step::KillBroker { broker: 0 })?;
        }
        Ok(())
    }

    /// Tells the broker to end, as a user does. Returns false without a broker.
    ///
    /// # Errors
    /// Those of a step.
    pub(crate) fn tell_to_end(&mut self) -> Result<bool, String> {
        let is_there = !self.0.brokers.is_empty();
        self.0.take(Step::EndBroker { dir: DIR })?;
        Ok(is_there)
    }

    /// Notes that a process has ended.
    pub(crate) fn end(&self, process: &HostProcess) {
        self.0.host.processes.lock().end(process.0.number);
    }
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
pub(crate) fn address(number: u8) -> LocalAddr {
    address_of(number)
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
        Time::from_ns(self.time.load(std::sync::atomic::Ordering::Relaxed))
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
