//! A host in one process: processes with engines, and their brokers, in virtual time from a seed.
//!
//! The threads of each process are real ones, of which one runs at a time. Each hands over where it
//! would wait, and sometimes where it takes a lock or accesses an atomic (`sync::turn`). Sockets,
//! descriptors and shared memory are the kernel's. A process is killed between any two turns: its
//! shared memory is replaced by memory of its own, what it sends goes nowhere, and all it has is
//! dropped.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;
use std::{fmt, io, panic, thread};

use crate::broker::simulated::brokers::address_of;
use crate::config::{BrokerMode, EngineConfig};
use crate::inherited::stay_on_one_cpu;
use crate::sync::turn;

mod delivery;
mod own_thread;
pub(crate) mod schedule;
pub(crate) mod stage;

use schedule::SlowPlaces;
use stage::{Stage, Turned};

/// Number of groups of places, of which one is slow.
pub(crate) const SLOW_GROUPS: u32 = 6;

/// The name of the device of each process.
const DEVICE: &str = "rocade0";
/// Number of turns that a failure tells.
const STEPS_TOLD: usize = 20;
/// Most turns that are kept.
const STEPS_KEPT: usize = 1_000;

/// A failure of a simulated host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostError {
    /// Processes have not ended, and all threads wait for something that does not come. The text
    /// names what each waits for.
    Stalled(String),
    /// Processes have not ended in the time that they were given. The text is as above.
    Late(String),
    /// A thread of a process panicked, or held the host up. The text tells which and why.
    Failed(String),
    /// The system lacks what the host needs: descriptors, sockets on loopback, a directory.
    System(String),
}

impl fmt::Display for HostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stalled(threads) => write!(
                f,
                "all processes of the simulated host wait, and nothing is going to happen: \
                 does one wait for a process that was killed?{threads}"
            ),
            Self::Late(threads) => write!(
                f,
                "processes of the simulated host have not ended in time{threads}"
            ),
            Self::Failed(text) => write!(f, "a process of the simulated host failed: {text}"),
            Self::System(text) => write!(f, "the system has no room for a simulated host: {text}"),
        }
    }
}

impl std::error::Error for HostError {}

impl From<io::Error> for HostError {
    fn from(error: io::Error) -> Self {
        Self::System(error.to_string())
    }
}

/// The number of a process of a simulated host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProcessId(usize);

/// A host whose processes share an address and a broker, in virtual time.
///
/// All happens on one processor, in an order that comes from the seed.
#[derive(Debug)]
pub struct SimulatedHost {
    stage: Stage,
    names: BTreeMap<usize, String>,
}

impl SimulatedHost {
    /// Makes a host without processes, and runs `f` with it. What still runs when `f` returns is
    /// killed.
    ///
    /// # Errors
    /// [`HostError::System`].
    ///
    /// # Panics
    /// If `f` panics.
    pub fn run<T: Send>(seed: u64, f: impl FnOnce(&mut Self) -> T + Send) -> Result<T, HostError> {
        let run = || {
            stay_on_one_cpu();
            let stage = Stage::new(seed, seed.is_multiple_of(2), slow_places(seed))?;
            stage.schedule.shared.begin_slow();
            let names = BTreeMap::new();
            Ok(f(&mut Self { stage, names }))
        };
        // Threads that it starts stay on the same processor.
        let ended = thread::scope(|scope| scope.spawn(run).join());
        ended.unwrap_or_else(|payload| panic::resume_unwind(payload))
    }

    /// Returns the address of all processes.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        address_of(0).ip()
    }

    /// Returns the virtual time since the host was made.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.stage.since_begin()
    }

    /// Starts a process, which ends when `run` returns. It gets the configuration of its engine,
    /// with the device `rocade0`.
    ///
    /// # Errors
    /// [`HostError::System`].
    pub fn start(
        &mut self,
        name: &str,
        run: impl FnOnce(EngineConfig) + Send + 'static,
    ) -> Result<ProcessId, HostError> {
        let number = self.names.len();
        let spec = format!("{DEVICE}={}", self.address());
        let run = move |broker| {
            let config = EngineConfig::from_specs(&[spec], BrokerMode::Auto(broker));
            run(config.expect("an address of loopback"));
        };
        self.stage.start(number, (name, 0), u64::MAX, run)?;
        self.names.insert(number, name.to_owned());
        Ok(ProcessId(number))
    }

    /// Returns true if a process has neither ended nor been killed.
    #[must_use]
    pub fn lives(&self, process: ProcessId) -> bool {
        self.stage.processes.contains_key(&process.0)
    }

    /// Kills a process, as SIGKILL does. One that has ended stays as it is.
    ///
    /// # Errors
    /// [`HostError::Failed`] if a destructor of the process panics.
    pub fn kill(&mut self, process: ProcessId) -> Result<(), HostError> {
        self.stage.kill(process.0).map_err(HostError::Failed)
    }

    /// Stops a process for a while, as SIGSTOP and SIGCONT do. One that is stopped meanwhile
    /// continues at once.
    pub fn stop(&mut self, process: ProcessId, time: Duration) {
        if self.lives(process) {
            let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
            self.stage.stop(process.0, ns);
        }
    }

    /// Kills the broker, if there is one. Processes start another.
    pub fn kill_broker(&mut self) {
        self.stage.brokers.kill();
    }

    /// Tells the broker to end, as `rocade broker stop` does. Returns false without one.
    pub fn stop_broker(&mut self) -> bool {
        self.stage.brokers.tell_to_end()
    }

    /// Lets the processes run for so much virtual time, or until all have ended.
    ///
    /// # Errors
    /// [`HostError::Failed`].
    pub fn run_for(&mut self, time: Duration) -> Result<(), HostError> {
        let end = self.end_of(time);
        while self.stage.now_ns() < end && !self.stage.processes.is_empty() {
            if let Turned::Waits(next) = self.turn()? {
                self.stage
                    .pass_until(next.map_or(end, |next| next.min(end)));
            }
        }
        Ok(())
    }

    /// Lets the processes run until all have ended, but not longer than so much virtual time.
    ///
    /// # Errors
    /// - [`HostError::Failed`].
    /// - [`HostError::Stalled`] if nothing is going to happen.
    /// - [`HostError::Late`] after the time.
    pub fn run_to_end(&mut self, limit: Duration) -> Result<(), HostError> {
        let end = self.end_of(limit);
        while !self.stage.processes.is_empty() {
            match self.turn()? {
                Turned::Waits(None) => return Err(HostError::Stalled(self.stage.tell_threads())),
                Turned::Waits(Some(next)) => self.stage.pass_until(next.min(end)),
                Turned::Ran => {}
            }
            if self.stage.now_ns() >= end && !self.stage.processes.is_empty() {
                return Err(HostError::Late(self.stage.tell_threads()));
            }
        }
        Ok(())
    }

    fn end_of(&self, time: Duration) -> u64 {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.stage.now_ns().saturating_add(ns)
    }

    /// Gives a thread or a broker a turn, if one can run. Processes whose first thread has ended
    /// are gone then.
    fn turn(&mut self) -> Result<Turned, HostError> {
        self.stage.resume();
        let turned = self.stage.turn().map_err(|text| self.failure(&text))?;
        self.stage.schedule.forget_steps(STEPS_KEPT);
        for number in self.stage.ended() {
            self.kill(ProcessId(number))?;
        }
        Ok(turned)
    }

    fn failure(&self, text: &str) -> HostError {
        let mut text = format!("{text}\nThe last turns, in us:");
        for (at, step) in self.stage.schedule.last_steps(STEPS_TOLD) {
            let us = self.stage.since_begin_of(at).as_nanos() as f64 / 1e3;
            text += &format!("\n{us:12.3}  {step}");
        }
        HostError::Failed(text)
    }
}

impl Drop for SimulatedHost {
    fn drop(&mut self) {
        let left: Vec<_> = self.stage.processes.keys().copied().collect();
        for number in left {
            // There is no one to tell.
            let _ = self.stage.kill(number);
        }
    }
}

/// Returns the slow places of a seed. Two of three have none.
fn slow_places(seed: u64) -> SlowPlaces {
    if !seed.is_multiple_of(3) {
        return SlowPlaces::NONE;
    }
    let group = u32::try_from(seed / 3 % u64::from(SLOW_GROUPS)).unwrap_or(0);
    SlowPlaces {
        groups: SLOW_GROUPS,
        group,
    }
}

/// Lets the calling thread of a simulated process sleep in virtual time. Any other thread sleeps in
/// real time.
pub fn sleep(time: Duration) {
    turn::sleep(time);
}
