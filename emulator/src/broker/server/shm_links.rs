//! Creates shared-memory links between clients. The broker keeps no part of them.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use super::super::protocol::{Ends, Response};
use super::{Client, Server};
use crate::link::shm;

impl Server {
    /// Creates a shared-memory link between two clients and sends each its end. If that is
    /// impossible, answers [`Response::NoShmLink`], and the clients use UDP.
    pub(super) fn connect(&mut self, index: usize, ends: Ends) {
        let made = self
            .peer_for(index, ends)
            .and_then(|peer| match SharedMemoryPair::new() {
                Ok(shm_link) => Some((peer, shm_link)),
                Err(error) => {
                    tracing::warn!(%error, "failed to create a shared-memory link: the clients use UDP");
                    None
                }
            });
        let given = made.is_some_and(|(peer, shm_link)| self.give(index, peer, ends, &shm_link));
        if !given {
            self.clients[index].send(&Response::NoShmLink, &[]);
        }
    }

    /// Returns the peer of a shared-memory link if both clients have enabled them. This broker must
    /// manage the peer's address, so that the slot identifies the peer there even before the peer
    /// uses the address.
    fn peer_for(&self, index: usize, ends: Ends) -> Option<usize> {
        let asking = &self.clients[index];
        let own = asking.slot?;
        let has_local = self
            .groups
            .get(&ends.local)
            .is_some_and(|g| g.users().contains(&own));
        let takes_part = |client: &Client| client.wake.is_some() && !client.gone;
        if own == ends.slot
            || !takes_part(asking)
            || !has_local
            || !self.groups.contains_key(&ends.peer)
        {
            return None;
        }
        self.clients
            .iter()
            .position(|client| client.slot == Some(ends.slot) && takes_part(client))
    }

    /// Sends both ends. Returns false if the peer does not receive. If a client drops its end
    /// later, the liveness socket hangs up and the other client notices.
    fn give(
        &mut self,
        asking: usize,
        peer: usize,
        ends: Ends,
        shm_link: &SharedMemoryPair,
    ) -> bool {
        let (Some(own), Ok(asking_wake), Ok(peer_wake)) = (
            self.clients[asking].slot,
            copy(self.clients[asking].wake.as_ref()),
            copy(self.clients[peer].wake.as_ref()),
        ) else {
            return false;
        };
        let reverse = Ends {
            local: ends.peer,
            peer: ends.local,
            slot: own,
        };
        let memory = shm_link.memory.as_fd();
        let [liveness, peer_liveness] = &shm_link.liveness_socket;
        if !self.clients[peer].offer(
            &Response::Offer(reverse),
            &[memory, peer_liveness.as_fd(), asking_wake.as_fd()],
        ) {
            return false;
        }
        self.clients[asking].send(
            &Response::ShmLink(ends),
            &[memory, liveness.as_fd(), peer_wake.as_fd()],
        );
        tracing::info!(local = %ends.local, peer = %ends.peer, %own, slot = %ends.slot, "channel");
        true
    }
}

fn copy(fd: Option<&OwnedFd>) -> io::Result<OwnedFd> {
    fd.ok_or(io::ErrorKind::NotFound)?.try_clone()
}

/// The shared parts of a link.
struct SharedMemoryPair {
    memory: OwnedFd,
    liveness_socket: [UnixStream; 2],
}

impl SharedMemoryPair {
    fn new() -> io::Result<Self> {
        let (one, other) = UnixStream::pair()?;
        Ok(Self {
            memory: shm::create()?,
            liveness_socket: [one, other],
        })
    }
}
