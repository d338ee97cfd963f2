//! Whose an address is in this network namespace.
//!
//! Two brokers of one user, which do not know of each other because they use different runtime
//! directories, would add their sockets to the same `SO_REUSEPORT` group and so break the order of
//! both. What the two have in common is the network namespace, and unix sockets in the abstract
//! namespace belong to exactly that: so who uses an address first binds a name that is made of the
//! address. The claim lives as long as somebody has a copy of that socket, which travels with the
//! sockets of the group and survives the broker with them.
//!
//! Any user can bind any name. The kernel keeps users apart at the port itself (sockets of
//! different users never are in one group), so the claims of others mean nothing to us: we go on to
//! the next name. Whoever has bound one looks at all the others, so that of two that are at it at
//! once at least one sees the other.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use socket2::{Domain, SockAddr, SockRef, Socket, Type};

use super::{Holder, LocalAddr};
use crate::fdpass;
use crate::random;
use crate::sys::{effective_uid, poll, poll_readable};

/// Names that an address has.
const NAMES: u8 = 8;
/// Questions that may wait to be answered; the kernel may allow fewer.
const BACKLOG: i32 = 4096;
/// How often to look again at a name that is bound and not listened to: its owner has not got that
/// far, or never will.
const MOST_LOOKS: u32 = 20;
/// The time between.
const LOOK_AGAIN: Duration = Duration::from_millis(1);
/// How long a broker may take to introduce itself to somebody who can wait.
const INTRODUCTION_TIMEOUT: Duration = Duration::from_millis(100);
/// Longest introduction in bytes; a path has 4096 at most.
const MAX_INTRODUCTION_LEN: usize = 4200;

/// An address is ours, as long as this or a copy of it lives.
#[derive(Debug)]
pub(crate) struct Claim {
    socket: OwnedFd,
}

/// Why an address cannot be claimed.
#[derive(Debug)]
pub(crate) enum ClaimError {
    /// Somebody else of this user has it.
    Held(Rival),
    /// A system call failed.
    System(io::Error),
}

impl Claim {
    /// Claims an address.
    pub(crate) fn take(local: LocalAddr) -> Result<Self, ClaimError> {
        let mut ours = None;
        for index in 0..NAMES {
            match bind(&name(local, index)).map_err(ClaimError::System)? {
                Some(socket) => {
                    ours = Some((index, socket));
                    break;
                }
                None => look(local, index, true)?,
            }
        }
        for index in 0..NAMES {
            if ours.as_ref().is_some_and(|(own, _)| *own != index) {
                look(local, index, false)?;
            }
        }
        match ours {
            Some((_, socket)) => Ok(Self {
                socket: socket.into(),
            }),
            // Others have all the names there are. What we have instead is seen by nobody.
            None => unseen().map_err(ClaimError::System),
        }
    }

    /// Takes back a claim that somebody else has kept meanwhile; `None` if it is none of this
    /// address.
    pub(crate) fn restore(fd: OwnedFd, local: LocalAddr) -> Option<Self> {
        let socket = Socket::from(fd);
        let good = socket.is_listener().unwrap_or(false)
            && socket.local_addr().is_ok_and(|address| {
                let bound = address.as_abstract_namespace().unwrap_or_default();
                bound.starts_with(UNSEEN)
                    || (0..NAMES).any(|index| bound == &name(local, index)[1..])
            });
        good.then(|| Self {
            socket: socket.into(),
        })
    }

    /// Readable when somebody wants to know who has the address.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Tells those who have asked who we are.
    pub(crate) fn introduce(&self, introduction: &Introduction) {
        let socket = SockRef::from(&self.socket);
        while let Ok((asking, _)) = socket.accept() {
            // Who does not listen has asked for nothing.
            let _ = asking.send(&introduction.encode());
        }
    }
}

/// What a broker says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Introduction {
    /// Its process id, in its own pid namespace.
    pub(crate) pid: u32,
    /// Its runtime directory.
    pub(crate) dir: PathBuf,
}

impl Introduction {
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

/// Somebody of this user who has claimed an address.
#[derive(Debug)]
pub(crate) struct Rival {
    pid: u32,
    connection: OwnedFd,
    introduction: Option<Introduction>,
}

impl Rival {
    /// Who it is, as far as it has said so by now. `None` where only its process id is known, if
    /// that.
    pub(crate) fn holder(&mut self) -> Option<Holder> {
        if self.introduction.is_none() {
            let mut buf = vec![0; MAX_INTRODUCTION_LEN];
            let received = fdpass::receive(self.connection.as_fd(), &mut buf);
            self.introduction = received
                .ok()
                .and_then(|(len, _)| Introduction::decode(&buf[..len]));
        }
        let Introduction { pid, dir } = self.introduction.clone()?;
        Some(Holder::Broker { pid, dir })
    }

    /// The same, waiting a moment for the answer.
    pub(crate) fn wait_for_holder(&mut self) -> Option<Holder> {
        let mut fds = [poll_readable(self.connection.as_fd())];
        // What it is will show.
        let _ = poll(&mut fds, Some(INTRODUCTION_TIMEOUT));
        self.holder()
    }

    /// Its process id; 0 if we cannot see the process.
    pub(crate) const fn pid(&self) -> u32 {
        self.pid
    }
}

/// The name of an address, with the zero byte before it that says where names are.
fn name(local: LocalAddr, index: u8) -> Vec<u8> {
    format!("\0rocade/address/{local}/{index}").into_bytes()
}

/// What names begin with that stand for nothing.
const UNSEEN: &[u8] = b"rocade/unseen/";

fn unseen() -> io::Result<Claim> {
    let name = [b"\0", UNSEEN, &random::bytes::<16>()].concat();
    let socket = bind(&name)?.ok_or(io::ErrorKind::AddrInUse)?;
    Ok(Claim {
        socket: socket.into(),
    })
}

/// Binds and listens; `None` where somebody has the name.
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

/// Looks who has a name; an error if it is this user. `bound`: somebody has.
fn look(local: LocalAddr, index: u8, bound: bool) -> Result<(), ClaimError> {
    let address = address(&name(local, index)).map_err(ClaimError::System)?;
    for _ in 0..MOST_LOOKS {
        let connection = new_socket().map_err(ClaimError::System)?;
        match connection.connect(&address) {
            Ok(()) => {
                let peer = fdpass::peer(connection.as_fd()).map_err(ClaimError::System)?;
                if peer.uid != effective_uid() {
                    return Ok(());
                }
                return Err(ClaimError::Held(Rival {
                    pid: peer.pid,
                    connection: connection.into(),
                    introduction: None,
                }));
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused && bound => {
                thread::sleep(LOOK_AGAIN);
            }
            // Nobody, or somebody who does not answer: the sockets of the address will tell.
            Err(_) => return Ok(()),
        }
    }
    Ok(())
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
    fn an_address_is_claimed_once_until_the_last_copy_is_gone() {
        let _no_starts = crate::sys::STARTS.read();
        let local = own_address(1);
        let claim = Claim::take(local).unwrap();
        let other = Claim::take(own_address(2)).unwrap();
        let Err(ClaimError::Held(mut rival)) = Claim::take(local) else {
            panic!("claimed twice")
        };
        assert_eq!(rival.pid(), std::process::id());
        assert_eq!(rival.holder(), None);
        let introduction = Introduction {
            pid: 7,
            dir: "/a b/c".into(),
        };
        claim.introduce(&introduction);
        let Introduction { pid, dir } = introduction;
        assert_eq!(rival.holder(), Some(Holder::Broker { pid, dir }));

        let copy = claim.fd().try_clone_to_owned().unwrap();
        drop(claim);
        let Err(ClaimError::Held(_)) = Claim::take(local) else {
            panic!("a copy is left")
        };
        assert!(Claim::restore(other.fd().try_clone_to_owned().unwrap(), local).is_none());
        let claim = Claim::restore(copy, local).unwrap();
        drop(claim);
        Claim::take(local).unwrap();
    }

    #[test]
    fn a_name_that_nobody_listens_to_is_passed_over() {
        let _no_starts = crate::sys::STARTS.read();
        let local = own_address(3);
        // As somebody else would do it who wants to lock us out.
        let silent = new_socket().unwrap();
        silent.bind(&address(&name(local, 0)).unwrap()).unwrap();
        let claim = Claim::take(local).unwrap();
        drop(silent);
        // The first name is free again, but the claim on the second one is seen.
        let Err(ClaimError::Held(_)) = Claim::take(local) else {
            panic!("claimed twice")
        };
        drop(claim);
        Claim::take(local).unwrap();
    }

    #[test]
    fn without_any_name_there_is_a_claim_all_the_same() {
        let local = own_address(4);
        let squatted: Vec<_> = (0..NAMES)
            .map(|index| {
                let socket = new_socket().unwrap();
                socket.bind(&address(&name(local, index)).unwrap()).unwrap();
                socket
            })
            .collect();
        let claim = Claim::take(local).unwrap();
        let copy = claim.fd().try_clone_to_owned().unwrap();
        assert!(Claim::restore(copy, local).is_some());
        drop(squatted);
    }
}
