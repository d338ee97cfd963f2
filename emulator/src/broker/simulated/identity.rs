//! The processes of a simulated host, which are all in one process for the kernel.
//!
//! A simulated process binds its socket to a name in the abstract namespace before it connects,
//! which tells the broker who it is. Its number stands for its process ID.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use socket2::{SockAddr, SockRef};

use super::super::identity::Identity;
use super::host::Host;
use crate::fdpass::Peer;
use crate::sys::bind;

/// Beginning of the names of sockets.
const PREFIX: &str = "rocade-hostsim";

/// Returns the number of an open file.
pub(in crate::broker) fn inode_of(fd: BorrowedFd<'_>) -> u64 {
    let copy = fd.try_clone_to_owned().expect("a descriptor");
    File::from(copy).metadata().expect("an open file").ino()
}

/// The processes of a host.
#[derive(Debug, Default)]
pub(in crate::broker) struct Processes {
    /// Processes that live. The first end of a pair closes when the process ends, which others see
    /// at the second one.
    living: BTreeMap<u32, (UnixStream, UnixStream)>,
    stopped: BTreeSet<u32>,
    /// The broker that listens in each directory.
    listening: BTreeMap<u8, u32>,
    /// The brokers that processes have connected to, by the inode of the socket.
    brokers: BTreeMap<u64, u32>,
}

impl Processes {
    /// Notes that a process has ended.
    pub(in crate::broker) fn end(&mut self, number: u32) {
        self.living.remove(&number);
        self.stopped.remove(&number);
        self.listening.retain(|_, broker| *broker != number);
    }

    /// Stops or continues a process.
    #[cfg(test)]
    pub(in crate::broker) fn stop(&mut self, number: u32, is_stopped: bool) {
        if is_stopped {
            self.stopped.insert(number);
        } else {
            self.stopped.remove(&number);
        }
    }

    /// Continues all processes.
    #[cfg(test)]
    pub(in crate::broker) fn continue_all(&mut self) {
        self.stopped.clear();
    }

    /// Notes that a broker listens in a directory.
    pub(in crate::broker) fn listen(&mut self, dir: u8, broker: u32) {
        self.listening.insert(dir, broker);
    }
}

/// A process of a simulated host.
#[derive(Clone, Debug)]
pub(in crate::broker) struct SimulatedProcess {
    host: Arc<Host>,
    /// The directory of its broker, or its own if it is one.
    pub(in crate::broker) dir: u8,
    pub(in crate::broker) number: u32,
    uid: u32,
}

impl SimulatedProcess {
    /// Creates a process of this user.
    ///
    /// # Errors
    /// The system has no descriptor for it.
    pub(in crate::broker) fn new(host: &Arc<Host>, dir: u8) -> io::Result<Self> {
        let number = host.number();
        let ends = UnixStream::pair()?;
        host.processes.lock().living.insert(number, ends);
        Ok(Self {
            host: Arc::clone(host),
            dir,
            number,
            uid: crate::sys::effective_uid(),
        })
    }

    /// Starts a broker for its directory. Returns the own end of the liveness socket.
    pub(in crate::broker) fn start_broker(&self) -> io::Result<OwnedFd> {
        let (own, theirs) = UnixStream::pair()?;
        self.host.started.lock().push((theirs.into(), self.dir));
        Ok(own.into())
    }

    /// Makes it a process of another user.
    #[cfg(test)]
    pub(in crate::broker) fn of_another_user(self) -> Self {
        let uid = self.uid + 1;
        Self { uid, ..self }
    }
}

impl Identity for SimulatedProcess {
    fn own_pid(&self) -> u32 {
        self.number
    }

    fn prepare(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        let inode = inode_of(socket);
        let (number, uid) = (self.number, self.uid);
        let name = format!("\0{PREFIX} {number} {uid} {inode}");
        let address = SockAddr::unix(std::ffi::OsStr::from_bytes(name.as_bytes()))?;
        let mut processes = self.host.processes.lock();
        if let Some(broker) = processes.listening.get(&self.dir).copied() {
            processes.brokers.insert(inode, broker);
        }
        bind(socket, &address)
    }

    fn peer(&self, connection: BorrowedFd<'_>) -> io::Result<Peer> {
        if let Some(broker) = self
            .host
            .processes
            .lock()
            .brokers
            .get(&inode_of(connection))
        {
            let (pid, uid) = (*broker, crate::sys::effective_uid());
            return Ok(Peer { pid, uid });
        }
        let address = SockRef::from(&connection).peer_addr()?;
        let name = address.as_abstract_namespace().unwrap_or_default();
        let name = String::from_utf8_lossy(name).into_owned();
        let mut words = name.split(' ').filter_map(|word| word.parse().ok());
        match (words.next(), words.next()) {
            (Some(pid), Some(uid)) => Ok(Peer { pid, uid }),
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn watch_end(&self, pid: u32) -> io::Result<OwnedFd> {
        let processes = self.host.processes.lock();
        let (_, watched) = processes
            .living
            .get(&pid)
            .ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH))?;
        watched.as_fd().try_clone_to_owned()
    }

    fn is_stopped(&self, pid: u32) -> bool {
        self.host.processes.lock().stopped.contains(&pid)
    }

    fn are_limits_too_low(&self, _: u32) -> Option<bool> {
        Some(false)
    }
}
