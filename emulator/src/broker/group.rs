//! The `SO_REUSEPORT` group of one address. Keeps the socket of slot *n* at index *n*.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::time::Instant;

use crate::link::socket::{self, Sharing};
use crate::link::{LinkError, LocalAddr, sys};
use crate::steering::{Slot, steering_program};

/// A socket, and the inode by which the kernel's lists call it.
#[derive(Debug)]
struct Member {
    fd: OwnedFd,
    inode: u64,
}

impl Member {
    fn new(fd: OwnedFd) -> io::Result<Self> {
        let file = File::from(fd);
        let inode = file.metadata()?.ino();
        Ok(Self {
            fd: file.into(),
            inode,
        })
    }
}

/// Why a socket that a client hands back is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RestoreError {
    /// It is no `SO_REUSEPORT` socket of port 4791 on this address.
    NotOfThisAddress,
    /// There are sockets missing before it.
    Gap,
    /// There is another socket at this index, or this socket at another index.
    Conflict,
}

/// The group of one address.
#[derive(Debug)]
pub(super) struct Group {
    local: LocalAddr,
    members: Vec<Member>,
    steered: bool,
    users: BTreeSet<Slot>,
    /// Since when nobody uses the address.
    pub(super) unused_since: Instant,
}

impl Group {
    /// A group without sockets.
    pub(super) fn new(local: LocalAddr) -> Self {
        Self {
            local,
            members: Vec::new(),
            steered: false,
            users: BTreeSet::new(),
            unused_since: Instant::now(),
        }
    }

    /// Number of sockets.
    pub(super) fn len(&self) -> usize {
        self.members.len()
    }

    /// The socket at this index.
    pub(super) fn socket(&self, index: usize) -> Option<BorrowedFd<'_>> {
        self.members.get(index).map(|member| member.fd.as_fd())
    }

    /// Whether this is one of the group's sockets.
    pub(super) fn has_inode(&self, inode: u64) -> bool {
        self.members.iter().any(|member| member.inode == inode)
    }

    /// The slots that use the address.
    pub(super) fn users(&self) -> &BTreeSet<Slot> {
        &self.users
    }

    /// Takes back the socket at this index from a client of an earlier broker. Several clients have
    /// the same one.
    pub(super) fn restore(&mut self, index: usize, fd: OwnedFd) -> Result<(), RestoreError> {
        if !socket::is_group_member(fd.as_fd(), self.local) {
            return Err(RestoreError::NotOfThisAddress);
        }
        let member = Member::new(fd).map_err(|_| RestoreError::NotOfThisAddress)?;
        match self.members.get(index) {
            Some(known) if known.inode == member.inode => Ok(()),
            Some(_) => Err(RestoreError::Conflict),
            None if index > self.members.len() => Err(RestoreError::Gap),
            None if self.has_inode(member.inode) => Err(RestoreError::Conflict),
            None => {
                self.members.push(member);
                Ok(())
            }
        }
    }

    /// Adds sockets until there is one for the slot, and makes sure that they are steered to.
    pub(super) fn grow(&mut self, slot: Slot) -> Result<(), LinkError> {
        while self.members.len() <= slot.index() {
            let failed = |source| LinkError::System {
                local: self.local,
                doing: "adding a socket to the group",
                source,
            };
            let socket = socket::open_receive(self.local, Sharing::ReusePort)?;
            // Nobody reads it until its slot is leased; the broker reads its own.
            if !self.members.is_empty() {
                socket::shrink_receive_buffer(socket.as_fd()).map_err(failed)?;
            }
            self.members
                .push(Member::new(socket.into()).map_err(failed)?);
            self.steer()?;
        }
        self.steer()
    }

    /// Attaches the steering program unless this broker has done so.
    fn steer(&mut self) -> Result<(), LinkError> {
        let Some(member) = self.members.first().filter(|_| !self.steered) else {
            return Ok(());
        };
        let program = steering_program().encode();
        sys::attach_reuseport_cbpf(member.fd.as_fd(), &program).map_err(|source| {
            LinkError::System {
                local: self.local,
                doing: "attaching the steering program",
                source,
            }
        })?;
        self.steered = true;
        Ok(())
    }

    /// Notes that the slot uses the address. A slot that did not so far gets an empty socket with
    /// the usual buffer.
    pub(super) fn lease(&mut self, slot: Slot) -> Result<(), LinkError> {
        if !self.users.insert(slot) {
            return Ok(());
        }
        let Some(fd) = self.socket(slot.index()) else {
            return Ok(());
        };
        let stale = socket::drain(fd);
        if stale > 0 {
            tracing::debug!(%slot, local = %self.local, stale, "drained before leasing");
        }
        socket::grow_receive_buffer(fd).map_err(|source| LinkError::System {
            local: self.local,
            doing: "enlarging the receive buffer",
            source,
        })
    }

    /// Notes that a client of an earlier broker uses the address.
    pub(super) fn resume(&mut self, slot: Slot) {
        self.users.insert(slot);
    }

    /// Notes that the slot is free. Its socket keeps next to nothing from here on.
    pub(super) fn release(&mut self, slot: Slot) {
        if !self.users.remove(&slot) {
            return;
        }
        if let Some(fd) = self.socket(slot.index()) {
            if let Err(error) = socket::shrink_receive_buffer(fd) {
                tracing::warn!(%slot, local = %self.local, %error, "shrinking a receive buffer");
            }
            socket::drain(fd);
        }
        self.unused_since = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, UdpSocket};

    use super::*;
    use crate::link::ROCE_PORT;

    fn local(last: u8) -> LocalAddr {
        let [_, _, high, low] = std::process::id().to_be_bytes();
        IpAddr::from([127, high | 0x40, low, last]).into()
    }

    fn copy(group: &Group, index: usize) -> OwnedFd {
        group.socket(index).unwrap().try_clone_to_owned().unwrap()
    }

    fn datagram(slot: u8) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[5] = slot;
        bytes
    }

    #[test]
    fn sockets_come_in_the_order_of_slots() {
        let mut group = Group::new(local(1));
        group.grow(Slot::new(3)).unwrap();
        assert_eq!(group.len(), 4);
        group.grow(Slot::new(1)).unwrap();
        assert_eq!(group.len(), 4);
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        for slot in 0..4 {
            sender
                .send_to(&datagram(slot), local(1).with_port(ROCE_PORT))
                .unwrap();
        }
        for index in 0..4 {
            assert_eq!(socket::drain(group.socket(index).unwrap()), 1, "{index}");
        }
    }

    #[test]
    fn a_lease_begins_with_an_empty_socket() {
        let mut group = Group::new(local(2));
        let slot = Slot::new(1);
        group.grow(slot).unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = local(2).with_port(ROCE_PORT);
        sender.send_to(&datagram(1), to).unwrap();
        group.lease(slot).unwrap();
        assert_eq!(socket::drain(group.socket(1).unwrap()), 0);
        sender.send_to(&datagram(1), to).unwrap();
        // Asking again is no new lease.
        group.lease(slot).unwrap();
        assert_eq!(socket::drain(group.socket(1).unwrap()), 1);
        sender.send_to(&datagram(1), to).unwrap();
        group.release(slot);
        assert_eq!(socket::drain(group.socket(1).unwrap()), 0);
        assert!(group.users().is_empty());
    }

    #[test]
    fn restored_groups_have_the_same_order() {
        let mut old = Group::new(local(3));
        old.grow(Slot::new(2)).unwrap();
        let mut new = Group::new(local(3));
        assert_eq!(new.restore(1, copy(&old, 1)), Err(RestoreError::Gap));
        for index in [0, 1, 0, 1, 2] {
            assert_eq!(new.restore(index, copy(&old, index)), Ok(()));
        }
        assert_eq!(new.len(), 3);
        assert_eq!(new.restore(1, copy(&old, 2)), Err(RestoreError::Conflict));
        assert_eq!(new.restore(3, copy(&old, 2)), Err(RestoreError::Conflict));
        let mut other = Group::new(local(4));
        assert_eq!(
            other.restore(0, copy(&old, 0)),
            Err(RestoreError::NotOfThisAddress)
        );
        let plain = UdpSocket::bind(local(5).with_port(ROCE_PORT)).unwrap();
        let mut group = Group::new(local(5));
        assert_eq!(
            group.restore(0, plain.into()),
            Err(RestoreError::NotOfThisAddress)
        );
        let file = File::open("/dev/null").unwrap();
        assert_eq!(
            group.restore(0, file.into()),
            Err(RestoreError::NotOfThisAddress)
        );

        // The new group goes on where the old one was.
        drop(old);
        new.grow(Slot::new(3)).unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        sender
            .send_to(&datagram(3), local(3).with_port(ROCE_PORT))
            .unwrap();
        assert_eq!(socket::drain(new.socket(3).unwrap()), 1);
    }
}
