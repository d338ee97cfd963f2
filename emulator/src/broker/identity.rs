//! The processes of a host, as the kernel tells them apart.
//!
//! A broker and its clients ask nothing else about each other's processes. A simulation, in which
//! one process has them all, replaces these answers (`hostsim`).

use std::fmt::Debug;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use super::sys;
use crate::fdpass::{self, Peer};

/// The identity of a process, and what it can learn of others.
pub(super) trait Identity: Debug + Send + Sync {
    /// Returns the ID of this process.
    fn own_pid(&self) -> u32;

    /// Prepares a socket that is about to connect. Only a simulated process has to.
    ///
    /// # Errors
    /// The error of a system call.
    fn prepare(&self, socket: BorrowedFd<'_>) -> io::Result<()>;

    /// Returns the process that connected or listens.
    ///
    /// # Errors
    /// The error of the system call.
    fn peer(&self, connection: BorrowedFd<'_>) -> io::Result<Peer>;

    /// Returns a descriptor that is readable when the process has ended.
    ///
    /// # Errors
    /// The process has ended, or the system has no such descriptors.
    fn watch_end(&self, pid: u32) -> io::Result<OwnedFd>;

    /// Returns true if the process was stopped by a signal.
    fn is_stopped(&self, pid: u32) -> bool;

    /// Returns true if the process's hard limits are too low for a broker, or `None` if they are
    /// inaccessible.
    fn are_limits_too_low(&self, pid: u32) -> Option<bool>;
}

/// This process, and the kernel's answers.
#[derive(Debug)]
pub(super) struct ThisProcess;

impl Identity for ThisProcess {
    fn own_pid(&self) -> u32 {
        std::process::id()
    }

    fn prepare(&self, _: BorrowedFd<'_>) -> io::Result<()> {
        Ok(())
    }

    fn peer(&self, connection: BorrowedFd<'_>) -> io::Result<Peer> {
        fdpass::peer(connection)
    }

    fn watch_end(&self, pid: u32) -> io::Result<OwnedFd> {
        sys::open_process(pid)
    }

    fn is_stopped(&self, pid: u32) -> bool {
        sys::is_stopped(pid)
    }

    fn are_limits_too_low(&self, pid: u32) -> Option<bool> {
        sys::are_process_limits_too_low(pid)
    }
}
