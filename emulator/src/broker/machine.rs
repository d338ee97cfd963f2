//! The machine of a client of the broker: the time, waits, and other processes.
//!
//! A client has no other way to wait. A simulation therefore replaces these, and runs brokers and
//! clients in virtual time (`hostsim`).

use std::ffi::CString;
use std::fmt::Debug;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rocade_transport::Time;

use super::identity::{Identity, ThisProcess};
use super::{BrokerError, sys};
use crate::clock::Clock;

/// The machine of a client.
pub(super) trait Machine: Debug + Send + Sync {
    /// Returns the time.
    fn now(&self) -> Time;

    /// Waits.
    ///
    /// # Errors
    /// An error that is not transient, if the process ends meanwhile. Only simulated ones do.
    fn sleep(&self, time: Duration) -> Result<(), BrokerError>;

    /// Waits up to `time` until `fd` is readable or hangs up.
    ///
    /// # Errors
    /// As [`sleep`](Self::sleep), or the error of the system call.
    fn until_readable(&self, fd: BorrowedFd<'_>, time: Duration) -> Result<(), BrokerError>;

    /// Returns the client's process.
    fn process(&self) -> &dyn Identity;

    /// Starts a broker, as [`sys::spawn_detached`].
    fn start_broker(
        &self,
        argv: &[CString],
        env: &[CString],
        log: BorrowedFd<'_>,
    ) -> io::Result<OwnedFd>;
}

/// The machine that this program runs on.
#[derive(Debug)]
pub(super) struct ThisMachine(Clock);

impl ThisMachine {
    pub(super) fn shared() -> Arc<dyn Machine> {
        #[cfg(all(any(test, feature = "simulated-host"), not(loom)))]
        if let Some(machine) = super::simulated::brokers::machine() {
            return machine;
        }
        Arc::new(Self(Clock::new()))
    }
}

impl Machine for ThisMachine {
    fn now(&self) -> Time {
        self.0.now()
    }

    fn sleep(&self, time: Duration) -> Result<(), BrokerError> {
        thread::sleep(time);
        Ok(())
    }

    fn until_readable(&self, fd: BorrowedFd<'_>, time: Duration) -> Result<(), BrokerError> {
        let mut waiting = [sys::poll_readable(fd)];
        sys::poll(&mut waiting, Some(time))
            .map(drop)
            .map_err(BrokerError::failure("failed to wait for the broker (poll)"))
    }

    fn process(&self) -> &dyn Identity {
        &ThisProcess
    }

    fn start_broker(
        &self,
        argv: &[CString],
        env: &[CString],
        log: BorrowedFd<'_>,
    ) -> io::Result<OwnedFd> {
        sys::spawn_detached(argv, env, log)
    }
}
