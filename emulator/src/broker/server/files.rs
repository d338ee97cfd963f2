//! The broker's files: its lock, and the sockets at which it listens.

use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::thread;
use std::time::{Duration, Instant};

use socket2::{Domain, SockAddr, Socket, Type};

use super::super::paths::{Paths, open_lock};
use super::super::protocol::Response;
use super::super::{BrokerError, start, sys};
use super::{LOOK_AGAIN, Server};
use crate::sys::{bind, socket};

/// How long a starting broker waits for one that listens, but may be about to end.
const TAKEOVER_TIMEOUT: Duration = Duration::from_millis(500);
/// Longest wait for a broker that no longer listens and needs a processor to end on.
const LONGEST_END: Duration = Duration::from_secs(30);
/// Connections that may wait to be accepted.
const BACKLOG: i32 = 128;
/// How often to look whether the files are still there.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// What shows programs the way to this broker.
pub(super) struct Files {
    /// At the path that programs know.
    pub(super) listener: Socket,
    /// In the abstract namespace, for when the path is gone. `None` where another user has the name.
    pub(super) hidden: Option<Socket>,
    /// Which file the path is to be.
    inode: (u64, u64),
    checked: Instant,
    /// Locked as long as this broker runs.
    lock: File,
}

impl Files {
    /// Begins to listen, unless another broker does.
    pub(super) fn create(paths: &Paths) -> Result<Self, BrokerError> {
        paths.prepare()?;
        let lock = take_lock(paths)?;
        let failed = BrokerError::doing("listening");
        let hidden = listen_hidden(paths)?;
        let (listener, inode) = listen(paths).map_err(&failed)?;
        Ok(Self {
            listener,
            hidden,
            inode,
            checked: Instant::now(),
            lock,
        })
    }

    /// The listeners.
    pub(super) fn listeners(&self) -> impl Iterator<Item = &Socket> {
        std::iter::once(&self.listener).chain(&self.hidden)
    }

    /// Accepts a connection at one of the listeners; `None` if nobody waits there.
    pub(super) fn accept(&self, which: usize) -> Option<io::Result<Socket>> {
        let listener = self.listeners().nth(which)?;
        // Without a descriptor left, accepting fails whether somebody waits or not.
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
    /// Where somebody has deleted our files, makes them anew: programs that start look for them. Not
    /// while nobody uses this broker, who may have tidied up.
    pub(super) fn keep_files(&mut self) {
        let is_used = self.clients.iter().any(|client| client.slot.is_some());
        if is_used && self.files.checked.elapsed() >= CHECK_INTERVAL {
            self.restore_files();
        }
    }

    /// The same at once, because somebody has come who did not find them.
    pub(super) fn restore_files(&mut self) {
        self.files.checked = Instant::now();
        if self.files.are_there(&self.paths) {
            return;
        }
        if let Err(error) = self.try_restore_files() {
            tracing::warn!(%error, "making the deleted files anew");
        }
    }

    fn try_restore_files(&mut self) -> Result<(), BrokerError> {
        let failed = BrokerError::doing("making files anew");
        self.paths.prepare()?;
        let lock = open_lock(&self.paths.broker_lock()).map_err(&failed)?;
        if !same_file(&lock, &self.files.lock) {
            if !sys::try_lock(lock.as_fd()).map_err(&failed)? {
                // That one has all programs that come from now on.
                return Err(BrokerError::AlreadyRunning);
            }
            self.files.lock = lock;
        }
        tracing::warn!(dir = %self.paths.dir().display(), "the broker's files were deleted");
        (self.files.listener, self.files.inode) = listen(&self.paths).map_err(&failed)?;
        // The next broker is to see from the locks who lives.
        for client in &mut self.clients {
            let Some(slot) = client.slot else { continue };
            let lock = self.slots.lock(slot, client.peer.pid, &client.name);
            if let Some(lock) = lock.map_err(&failed)? {
                client.send(&Response::Lock, &[lock.as_fd()]);
            }
        }
        Ok(())
    }

    /// Makes room for the next broker. Connections still in the queue are cut when the listener is
    /// closed; those clients try again.
    pub(super) fn end(&self) {
        tracing::info!("broker ends");
        // Not the socket of another broker.
        if self.files.are_there(&self.paths)
            && let Err(error) = fs::remove_file(self.paths.socket())
        {
            tracing::warn!(%error, "removing the socket");
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

fn take_lock(paths: &Paths) -> Result<File, BrokerError> {
    let failed = BrokerError::doing("taking the broker's lock");
    let begin = Instant::now();
    let mut lock = open_lock(&paths.broker_lock()).map_err(&failed)?;
    while !sys::try_lock(lock.as_fd()).map_err(&failed)? {
        let waited = begin.elapsed();
        let is_late = waited > TAKEOVER_TIMEOUT && start::connect(paths).is_ok();
        if is_late || waited > LONGEST_END {
            return Err(BrokerError::AlreadyRunning);
        }
        thread::sleep(LOOK_AGAIN);
    }
    // For people who wonder; what cannot be written is not needed.
    let _ = lock
        .set_len(0)
        .and_then(|()| writeln!(lock, "{}", std::process::id()));
    Ok(lock)
}

/// Listens in place of an earlier broker; to be called with its lock.
fn listen(paths: &Paths) -> io::Result<(Socket, (u64, u64))> {
    let path = paths.socket();
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = socket(Domain::UNIX, Type::SEQPACKET.nonblocking().cloexec(), None)?;
    bind(listener.as_fd(), &SockAddr::unix(&path)?)?;
    // The directory is ours, and we look who connects: this is for those who look at the file.
    if let Err(error) = fs::set_permissions(&path, Permissions::from_mode(0o600)) {
        tracing::debug!(%error, "setting the mode of the socket");
    }
    listener.listen(BACKLOG)?;
    Ok((listener, identity(paths)?))
}

/// Listens in the abstract namespace; `None` where another user has the name.
fn listen_hidden(paths: &Paths) -> Result<Option<Socket>, BrokerError> {
    let failed = BrokerError::doing("listening");
    let name = paths.abstract_name();
    let address = SockAddr::unix(std::ffi::OsStr::from_bytes(&name)).map_err(&failed)?;
    let deadline = Instant::now() + TAKEOVER_TIMEOUT;
    loop {
        let kind = Type::SEQPACKET.nonblocking().cloexec();
        let listener = socket(Domain::UNIX, kind, None).map_err(&failed)?;
        match bind(listener.as_fd(), &address) {
            Ok(()) => {
                listener.listen(BACKLOG).map_err(&failed)?;
                return Ok(Some(listener));
            }
            Err(error) if error.kind() != io::ErrorKind::AddrInUse => return Err(failed(error)),
            Err(_) => {}
        }
        match start::connect_hidden(paths) {
            Err(BrokerError::ForeignBroker { uid }) => {
                tracing::warn!(uid, "another user has the broker's abstract name");
                return Ok(None);
            }
            // It may be ending.
            Ok(_) if Instant::now() > deadline => return Err(BrokerError::AlreadyRunning),
            // Bound, and nobody listens: so it is none of ours.
            Err(_) if Instant::now() > deadline => return Ok(None),
            _ => thread::sleep(LOOK_AGAIN),
        }
    }
}
