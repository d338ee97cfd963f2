//! The broker's files: its lock, and the sockets on which it listens.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::time::Duration;

use rocade_transport::Time;
use socket2::{Domain, SockAddr, Socket, Type};

use super::super::paths::{Paths, open_lock};
use super::super::protocol::Response;
use super::super::{BrokerError, sys};
use super::Server;
use crate::sys::{bind, socket};

/// Most connections that wait to be accepted.
pub(super) const BACKLOG: i32 = 128;
/// Interval of checks whether the files still exist.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The files through which programs find this broker.
pub(in crate::broker) struct Files {
    /// Listens at the well-known path.
    pub(super) listener: Socket,
    /// Listens in the abstract namespace, in case the path is deleted. `None` if another user has
    /// the name.
    pub(super) abstract_listener: Option<Socket>,
    /// Device and inode of the socket file.
    inode: (u64, u64),
    checked: Time,
    /// Locked while this broker runs.
    lock: File,
}

impl Files {
    /// Listens in place of an earlier broker. The caller holds the broker lock.
    pub(super) fn create(
        paths: &Paths,
        lock: File,
        abstract_listener: Option<Socket>,
        now: Time,
    ) -> io::Result<Self> {
        let (listener, inode) = listen(paths)?;
        Ok(Self {
            listener,
            abstract_listener,
            inode,
            checked: now,
            lock,
        })
    }

    /// Returns the listeners.
    pub(super) fn listeners(&self) -> impl Iterator<Item = &Socket> {
        std::iter::once(&self.listener).chain(&self.abstract_listener)
    }

    /// Accepts a connection at one of the listeners. Returns `None` if none is waiting.
    pub(super) fn accept(&self, which: usize) -> Option<io::Result<Socket>> {
        let listener = self.listeners().nth(which)?;
        // Without a free descriptor, accept fails even if no connection is waiting.
        let mut waiting = [sys::poll_readable(listener.as_fd())];
        if !sys::poll(&mut waiting, Some(Duration::ZERO)).is_ok_and(|ready| ready > 0) {
            return None;
        }
        Some(listener.accept().map(|(connection, _)| connection))
    }

    fn are_there(&self, paths: &Paths) -> bool {
        identity(paths).is_ok_and(|inode| inode == self.inode)
    }
}

impl Server {
    /// Recreates deleted files, which new programs need to find the broker. An unused broker does
    /// not, because its user may be cleaning up.
    pub(super) fn keep_files(&mut self) {
        let is_used = self.clients.iter().any(|client| client.slot.is_some());
        if is_used && self.now.since(self.files.checked) >= CHECK_INTERVAL {
            self.restore_files();
        }
    }

    /// Recreates deleted files at once, because a program did not find them.
    pub(super) fn restore_files(&mut self) {
        self.files.checked = self.now;
        if self.files.are_there(&self.paths) {
            return;
        }
        if let Err(error) = self.try_restore_files() {
            tracing::warn!(%error, "failed to recreate the deleted files");
        }
    }

    fn try_restore_files(&mut self) -> Result<(), BrokerError> {
        let failed = BrokerError::failure("failed to recreate files");
        self.paths.prepare()?;
        let lock = open_lock(&self.paths.broker_lock()).map_err(&failed)?;
        if !same_file(&lock, &self.files.lock) {
            if !sys::try_lock(lock.as_fd()).map_err(&failed)? {
                // The other broker gets all new programs.
                return Err(BrokerError::AlreadyRunning);
            }
            self.files.lock = lock;
        }
        tracing::warn!(dir = %self.paths.dir().display(), "the broker's files were deleted");
        (self.files.listener, self.files.inode) = listen(&self.paths).map_err(&failed)?;
        // The next broker has to see from the locks which clients live.
        for client in &mut self.clients {
            let Some(slot) = client.slot else { continue };
            let lock = self.slots.lock(slot, client.peer.pid, &client.name);
            if let Some(lock) = lock.map_err(&failed)? {
                client.send(&Response::Lock, &[lock.as_fd()]);
            }
        }
        Ok(())
    }

    /// Makes room for the next broker. Closing the listener resets the connections in its queue,
    /// whose clients retry.
    pub(in crate::broker) fn end(&self) {
        tracing::info!("broker ends");
        // Does not remove the socket of another broker.
        if self.files.are_there(&self.paths)
            && let Err(error) = fs::remove_file(self.paths.socket())
        {
            tracing::warn!(%error, "failed to remove the socket");
        }
    }
}

fn same_file(one: &File, other: &File) -> bool {
    let identity = |file: &File| file.metadata().map(|data| (data.dev(), data.ino()));
    matches!((identity(one), identity(other)), (Ok(one), Ok(other)) if one == other)
}

fn identity(paths: &Paths) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(paths.socket()).map(|data| (data.dev(), data.ino()))
}

/// Listens in place of an earlier broker. The caller must hold the broker lock.
fn listen(paths: &Paths) -> io::Result<(Socket, (u64, u64))> {
    let path = paths.socket();
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = socket(Domain::UNIX, Type::SEQPACKET.nonblocking().cloexec(), None)?;
    bind(listener.as_fd(), &SockAddr::unix(&path)?)?;
    // Only this user can write to the directory, and the broker checks each peer's user. The mode
    // is informational.
    if let Err(error) = fs::set_permissions(&path, Permissions::from_mode(0o600)) {
        tracing::debug!(%error, "failed to set the mode of the socket");
    }
    listener.listen(BACKLOG)?;
    Ok((listener, identity(paths)?))
}
