//! Shared-memory channels: the broker makes them and keeps nothing of them.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use super::super::protocol::{Ends, Response};
use super::{Client, Server};
use crate::link::shm;

impl Server {
    /// Makes a channel between two clients and hands each its end of it; or says that there can be
    /// none, which means UDP.
    pub(super) fn connect(&mut self, index: usize, ends: Ends) {
        let made = self
            .peer_for(index, ends)
            .and_then(|peer| match Channel::new() {
                Ok(channel) => Some((peer, channel)),
                Err(error) => {
                    tracing::warn!(%error, "making a shared-memory channel");
                    None
                }
            });
        let given = made.is_some_and(|(peer, channel)| self.give(index, peer, ends, &channel));
        if !given {
            self.clients[index].send(&Response::NoChannel, &[]);
        }
    }

    /// The client that a channel leads to, where both take part. The peer's address must be ours to
    /// manage: then this slot on it is that client's, whether it uses the address already or will.
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

    /// Sends both ends; false where the peer receives nothing. Who does not take its end later is
    /// noticed by the other one, whose life line hangs up.
    fn give(&mut self, asking: usize, peer: usize, ends: Ends, channel: &Channel) -> bool {
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
        let memory = channel.memory.as_fd();
        let [line, peer_line] = &channel.life_line;
        if !self.clients[peer].offer(
            &Response::Offer(reverse),
            &[memory, peer_line.as_fd(), asking_wake.as_fd()],
        ) {
            return false;
        }
        self.clients[asking].send(
            &Response::Channel(ends),
            &[memory, line.as_fd(), peer_wake.as_fd()],
        );
        tracing::info!(local = %ends.local, peer = %ends.peer, %own, slot = %ends.slot, "channel");
        true
    }
}

fn copy(fd: Option<&OwnedFd>) -> io::Result<OwnedFd> {
    fd.ok_or(io::ErrorKind::NotFound)?.try_clone()
}

/// What both ends of a channel share.
struct Channel {
    memory: OwnedFd,
    life_line: [UnixStream; 2],
}

impl Channel {
    fn new() -> io::Result<Self> {
        let (one, other) = UnixStream::pair()?;
        Ok(Self {
            memory: shm::create()?,
            life_line: [one, other],
        })
    }
}
