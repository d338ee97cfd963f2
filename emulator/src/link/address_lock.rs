//! Locks an address for its broker in this network namespace.
//!
//! Two brokers of one user with different runtime directories do not know of each other. Both would
//! add sockets to the same `SO_REUSEPORT` group and break each other's order. They share the
//! network namespace, and abstract unix sockets belong to exactly that. Before the first use of an
//! address, a broker therefore binds an abstract name that contains the address. The lock lives as
//! long as any process has a copy of that socket. The broker passes copies along with the sockets
//! of the group, so that the lock survives the broker.
//!
//! Any user can bind any name. The kernel separates users at the port itself, because sockets of
//! different users never share a group. Locks of other users are therefore ignored, and the next
//! name is used. A broker that has bound one name checks all others, so that of two concurrent
//! brokers at least one sees the other.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use socket2::{Domain, SockAddr, SockRef, Socket, Type};

use super::{LocalAddr, SocketOwner};
use crate::fdpass;
use crate::random;
use crate::sys::{effective_uid, poll, poll_readable};

/// Number of names per address.
const NAMES: u8 = 8;
/// Longest queue of owner queries. The kernel may limit it further.
const BACKLOG: i32 = 4096;
/// Longest wait for the owner of a name that is bound without a listener. It has not called listen
/// yet, or never will, and only time tells.
pub(crate) const SILENT_OWNER_TIMEOUT: Duration = Duration::from_millis(20);
/// Time between the checks.
const LOOK_AGAIN: Duration = Duration::from_millis(1);
/// Time that a broker has to identify itself to a process that can wait. A later answer only makes
/// the error message less precise.
const OWNER_INFO_TIMEOUT: Duration = Duration::from_millis(100);
/// Longest owner information in bytes. A path has 4096 at most.
const MAX_OWNER_INFO_LEN: usize = 4200;

/// The lock of an address, held as long as this or a copy of it lives.
#[derive(Debug)]
pub(crate) struct AddressLock {
    socket: OwnedFd,
}

/// Reasons why an address cannot be locked.
#[derive(Debug)]
pub(crate) enum AddressLockError {
    /// Another process of this user has locked it.
    Held(CompetingBroker),
    /// A system call failed.
    System(io::Error),
}

impl AddressLock {
    /// Locks an address. Waits up to [`SILENT_OWNER_TIMEOUT`] for an owner that does not listen.
    pub(crate) fn acquire(local: LocalAddr) -> Result<Self, AddressLockError> {
        let begin = Instant::now();
        loop {
            let is_patient = begin.elapsed() < SILENT_OWNER_TIMEOUT;
            match Self::try_acquire(local, is_patient) {
                Ok(None) => thread::sleep(LOOK_AGAIN),
                Ok(Some(lock)) => return Ok(lock),
                Err(error) => return Err(error),
            }
        }
    }

    /// Locks an address without waiting. A patient caller gets `None` if the owner of a name has
    /// not called listen. For others, such an owner counts as none.
    pub(crate) fn try_acquire(
        local: LocalAddr,
        is_patient: bool,
    ) -> Result<Option<Self>, AddressLockError> {
        let mut ours = None;
        for index in 0..NAMES {
            match bind(&name(local, index)).map_err(AddressLockError::System)? {
                Some(socket) => {
                    ours = Some((index, socket));
                    break;
                }
                None => {
                    let listens = check_owner(local, index)?;
                    if is_patient && !listens {
                        return Ok(None);
                    }
                }
            }
        }
        for index in 0..NAMES {
            if ours.as_ref().is_some_and(|(own, _)| *own != index) {
                check_owner(local, index)?;
            }
        }
        match ours {
            Some((_, socket)) => Ok(Some(Self {
                socket: socket.into(),
            })),
            // Other users have all names. An unused name stands in for the lock.
            None => placeholder().map(Some).map_err(AddressLockError::System),
        }
    }

    /// Takes back a lock that a client kept. Returns `None` if it does not belong to this address.
    pub(crate) fn restore(fd: OwnedFd, local: LocalAddr) -> Option<Self> {
        let socket = Socket::from(fd);
        let good = socket.is_listener().unwrap_or(false)
            && socket.local_addr().is_ok_and(|address| {
                let bound = address.as_abstract_namespace().unwrap_or_default();
                bound.starts_with(PLACEHOLDER)
                    || (0..NAMES).any(|index| bound == &name(local, index)[1..])
            });
        good.then(|| Self {
            socket: socket.into(),
        })
    }

    /// Returns the fd that is readable when a process queries the owner of the address.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Answers all pending owner queries.
    pub(crate) fn send_owner_info(&self, owner_info: &OwnerInfo) {
        let socket = SockRef::from(&self.socket);
        while let Ok((asking, _)) = socket.accept() {
            // A process that does not read needs no answer.
            let _ = asking.send(&owner_info.encode());
        }
    }
}

/// The identity of a broker, as it reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OwnerInfo {
    /// The broker's process ID in its own PID namespace.
    pub(crate) pid: u32,
    /// The broker's runtime directory.
    pub(crate) dir: PathBuf,
}

impl OwnerInfo {
    fn encode(&self) -> Vec<u8> {
        format!("{} {}", self.pid, self.dir.display()).into_bytes()
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (pid, dir) = str::from_utf8(bytes).ok()?.split_once(' ')?;
        Some(Self {
            pid: pid.parse().ok()?,
            dir: dir.into(),
        })
    }
}

/// A process of this user that has locked an address.
#[derive(Debug)]
pub(crate) struct CompetingBroker {
    pid: u32,
    connection: OwnedFd,
    owner_info: Option<OwnerInfo>,
}

impl CompetingBroker {
    /// Returns the owner, if its answer has arrived. Returns `None` if at most its process ID is
    /// known.
    pub(crate) fn owner(&mut self) -> Option<SocketOwner> {
        if self.owner_info.is_none() {
            let mut buf = vec![0; MAX_OWNER_INFO_LEN];
            let received = fdpass::receive(self.connection.as_fd(), &mut buf);
            self.owner_info = received
                .ok()
                .and_then(|(len, _)| OwnerInfo::decode(&buf[..len]));
        }
        let OwnerInfo { pid, dir } = self.owner_info.clone()?;
        Some(SocketOwner::Broker { pid, dir })
    }

    /// Like [`owner`](Self::owner), but waits briefly for the answer.
    pub(crate) fn wait_for_owner(&mut self) -> Option<SocketOwner> {
        let mut fds = [poll_readable(self.connection.as_fd())];
        // The attempt to read shows the result.
        let _ = poll(&mut fds, Some(OWNER_INFO_TIMEOUT));
        self.owner()
    }

    /// Returns the process ID, 0 if the process is invisible to this one.
    pub(crate) const fn pid(&self) -> u32 {
        self.pid
    }
}

/// Returns the name of an address. The leading zero byte marks an abstract name.
fn name(local: LocalAddr, index: u8) -> Vec<u8> {
    format!("\0rocade/address/{local}/{index}").into_bytes()
}

/// Prefix of names that stand for no address.
const PLACEHOLDER: &[u8] = b"rocade/unseen/";

fn placeholder() -> io::Result<AddressLock> {
    let name = [b"\0", PLACEHOLDER, &random::bytes::<16>()].concat();
    let socket = bind(&name)?.ok_or(io::ErrorKind::AddrInUse)?;
    Ok(AddressLock {
        socket: socket.into(),
    })
}

/// Binds a name and listens. Returns `None` if the name is taken.
fn bind(name: &[u8]) -> io::Result<Option<Socket>> {
    let socket = new_socket()?;
    match crate::sys::bind(socket.as_fd(), &address(name)?) {
        Ok(()) => {
            socket.listen(BACKLOG)?;
            Ok(Some(socket))
        }
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Ok(None),
        Err(error) => Err(error),
    }
}

/// Checks the owner of a name, and fails if it is a process of this user. Returns false if no
/// process listens there.
fn check_owner(local: LocalAddr, index: u8) -> Result<bool, AddressLockError> {
    let address = address(&name(local, index)).map_err(AddressLockError::System)?;
    let connection = new_socket().map_err(AddressLockError::System)?;
    match connection.connect(&address) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => return Ok(false),
        // One that does not respond. The list of the address's sockets decides.
        Err(_) => return Ok(true),
    }
    let peer = fdpass::peer(connection.as_fd()).map_err(AddressLockError::System)?;
    if peer.uid != effective_uid() {
        return Ok(true);
    }
    Err(AddressLockError::Held(CompetingBroker {
        pid: peer.pid,
        connection: connection.into(),
        owner_info: None,
    }))
}

fn new_socket() -> io::Result<Socket> {
    crate::sys::socket(Domain::UNIX, Type::SEQPACKET.nonblocking().cloexec(), None)
}

fn address(name: &[u8]) -> io::Result<SockAddr> {
    use std::os::unix::ffi::OsStrExt;
    SockAddr::unix(std::ffi::OsStr::from_bytes(name))
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn own_address(last: u8) -> LocalAddr {
        let [_, _, high, low] = std::process::id().to_be_bytes();
        IpAddr::from([127, high | 0xC0, low, last]).into()
    }

    #[test]
    fn an_address_is_locked_until_the_last_copy_is_closed() {
        let _no_starts = crate::sys::STARTS.read();
        let local = own_address(1);
        let address_lock = AddressLock::acquire(local).unwrap();
        let other = AddressLock::acquire(own_address(2)).unwrap();
        let Err(AddressLockError::Held(mut competitor)) = AddressLock::acquire(local) else {
            panic!("locked twice")
        };
        assert_eq!(competitor.pid(), std::process::id());
        assert_eq!(competitor.owner(), None);
        let owner_info = OwnerInfo {
            pid: 7,
            dir: "/a b/c".into(),
        };
        address_lock.send_owner_info(&owner_info);
        let OwnerInfo { pid, dir } = owner_info;
        assert_eq!(competitor.owner(), Some(SocketOwner::Broker { pid, dir }));

        let copy = address_lock.fd().try_clone_to_owned().unwrap();
        drop(address_lock);
        let Err(AddressLockError::Held(_)) = AddressLock::acquire(local) else {
            panic!("a copy is left")
        };
        assert!(AddressLock::restore(other.fd().try_clone_to_owned().unwrap(), local).is_none());
        let address_lock = AddressLock::restore(copy, local).unwrap();
        drop(address_lock);
        AddressLock::acquire(local).unwrap();
    }

    #[test]
    fn a_stale_socket_name_is_skipped() {
        let _no_starts = crate::sys::STARTS.read();
        let local = own_address(3);
        // A different user could do this to block the address.
        let silent = new_socket().unwrap();
        silent.bind(&address(&name(local, 0)).unwrap()).unwrap();
        let address_lock = AddressLock::acquire(local).unwrap();
        drop(silent);
        // The first name is free again, but the lock on the second one is found.
        let Err(AddressLockError::Held(_)) = AddressLock::acquire(local) else {
            panic!("locked twice")
        };
        drop(address_lock);
        AddressLock::acquire(local).unwrap();
    }

    #[test]
    fn without_any_name_the_address_is_still_locked() {
        let local = own_address(4);
        let squatted: Vec<_> = (0..NAMES)
            .map(|index| {
                let socket = new_socket().unwrap();
                socket.bind(&address(&name(local, index)).unwrap()).unwrap();
                socket
            })
            .collect();
        let address_lock = AddressLock::acquire(local).unwrap();
        let copy = address_lock.fd().try_clone_to_owned().unwrap();
        assert!(AddressLock::restore(copy, local).is_some());
        drop(squatted);
    }
}
