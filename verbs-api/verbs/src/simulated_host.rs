//! Processes of a simulated host, which a test may kill.

use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

pub use rocade_emulator::simulated_host::{HostError, sleep};
use rocade_emulator::simulated_host::{ProcessId, SimulatedHost as RawHost};

use crate::config::Config;

/// A host in one process: several processes of the Rust API with a broker, in virtual time.
///
/// The processes are closures. Each has the device `rocade0` at [`address`](Self::address), and
/// they exchange packets over UDP and shared memory as real processes do. Each is a thread of its
/// own, of which one runs at a time: it hands over to another where it waits, and at moments
/// between that come from the seed. So a run from a seed repeats, but for what depends on the
/// addresses of memory. A process can be killed at any of these moments.
///
/// A process waits with the blocking calls of this crate and [`sleep`] only. It starts no threads
/// and awaits no futures, because the others do not run while it waits for something else. After
/// two minutes of such a wait the host fails and names the thread.
///
/// A panic of a process fails the host. One that is killed unwinds, so panics must not abort.
///
/// ```
/// use std::time::Duration;
///
/// use rocade_verbs::{DeviceList, simulated_host::SimulatedHost};
///
/// let names = SimulatedHost::run(7, |host| {
///     let process = host.start("one", |config| DeviceList::new(config).unwrap().devices())?;
///     host.run_to_end(Duration::from_secs(1))?; // of virtual time
///     Ok::<_, rocade_verbs::simulated_host::HostError>(process.output())
/// })??;
/// assert_eq!(names.unwrap()[0].name, "rocade0");
/// # Ok::<(), rocade_verbs::simulated_host::HostError>(())
/// ```
#[derive(Debug)]
pub struct SimulatedHost<'host>(&'host mut RawHost);

impl SimulatedHost<'_> {
    /// Makes a host without processes, and runs `f` with it. What still runs when `f` returns is
    /// killed. Hosts of a program run one after the other.
    ///
    /// # Errors
    /// [`HostError::System`] if the system lacks what a host needs.
    ///
    /// # Panics
    /// If `f` panics.
    pub fn run<T: Send>(
        seed: u64,
        f: impl FnOnce(&mut SimulatedHost<'_>) -> T + Send,
    ) -> Result<T, HostError> {
        RawHost::run(seed, |host| f(&mut SimulatedHost(host)))
    }

    /// Returns the address of all processes.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        self.0.address()
    }

    /// Returns the virtual time since the host was made.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.0.now()
    }

    /// Starts a process, which ends when `run` returns. It runs in the next
    /// [`run_for`](Self::run_for) or [`run_to_end`](Self::run_to_end).
    ///
    /// # Errors
    /// [`HostError::System`] if the system has no descriptors for it.
    pub fn start<T: Send + 'static>(
        &mut self,
        name: &str,
        run: impl FnOnce(Config) -> T + Send + 'static,
    ) -> Result<SimulatedProcess<T>, HostError> {
        let output = Arc::new(Mutex::new(None));
        let own = Arc::clone(&output);
        let id = self.0.start(name, move |config| {
            let value = run(config.into());
            *own.lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
        })?;
        Ok(SimulatedProcess { id, output })
    }

    /// Returns true if a process has neither ended nor been killed.
    #[must_use]
    pub fn lives<T>(&self, process: &SimulatedProcess<T>) -> bool {
        self.0.lives(process.id)
    }

    /// Kills a process, as SIGKILL does. One that has ended stays as it is.
    ///
    /// # Errors
    /// [`HostError::Failed`] if a destructor of the process panics.
    pub fn kill<T>(&mut self, process: &SimulatedProcess<T>) -> Result<(), HostError> {
        self.0.kill(process.id)
    }

    /// Stops a process for a while, as SIGSTOP and SIGCONT do. Another one that is stopped
    /// continues.
    pub fn stop<T>(&mut self, process: &SimulatedProcess<T>, time: Duration) {
        self.0.stop(process.id, time);
    }

    /// Kills the broker, if there is one. Processes start another.
    pub fn kill_broker(&mut self) {
        self.0.kill_broker();
    }

    /// Tells the broker to end, as `rocade broker stop` does. Returns false without one.
    pub fn stop_broker(&mut self) -> bool {
        self.0.stop_broker()
    }

    /// Lets the processes run for so much virtual time, or until all have ended.
    ///
    /// # Errors
    /// [`HostError::Failed`] if a process panics or holds the host up.
    pub fn run_for(&mut self, time: Duration) -> Result<(), HostError> {
        self.0.run_for(time)
    }

    /// Lets the processes run until all have ended, but not longer than so much virtual time.
    ///
    /// # Errors
    /// - [`HostError::Failed`] as above.
    /// - [`HostError::Stalled`] if nothing is going to happen.
    /// - [`HostError::Late`] after the time.
    pub fn run_to_end(&mut self, limit: Duration) -> Result<(), HostError> {
        self.0.run_to_end(limit)
    }
}

/// A process of a [`SimulatedHost`], which returns a `T` unless it is killed.
pub struct SimulatedProcess<T> {
    id: ProcessId,
    output: Arc<Mutex<Option<T>>>,
}

impl<T> SimulatedProcess<T> {
    /// Takes what the process has returned. `None` if it has not ended, or was killed.
    #[must_use]
    pub fn output(&self) -> Option<T> {
        let mut output = self.output.lock().unwrap_or_else(PoisonError::into_inner);
        output.take()
    }
}

impl<T> fmt::Debug for SimulatedProcess<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SimulatedProcess").field(&self.id).finish()
    }
}
