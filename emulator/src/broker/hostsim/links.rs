//! Shared-memory links between processes.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use super::super::simulated::identity::inode_of;
use super::super::{BrokerClient, BrokerError, sys};
use super::step::{CLIENTS, Call};
use super::world::World;
use crate::link::LocalAddr;
use crate::link::peer_link::PeerLinkOffer;
use crate::steering::ProcessSlot;

/// An end of a link: the inode of its memory, and whether the other end is gone.
pub(super) type End = (u64, bool);

/// The ends that a process has.
#[derive(Default)]
pub(super) struct Links {
    wake: Option<OwnedFd>,
    ends: Vec<PeerLinkOffer>,
}

impl Links {
    /// Takes part in links, as every process with an address does. The broker is told now or by the
    /// handover to the next one.
    pub(super) fn enable(&mut self, client: &BrokerClient) -> Result<(), BrokerError> {
        if self.wake.is_some() {
            return Ok(());
        }
        let failed = BrokerError::failure("failed to create an eventfd");
        let wake = crate::sys::eventfd_nonblocking().map_err(failed)?;
        match client.share(self.wake.insert(wake).as_fd()) {
            Err(BrokerError::Lost) => Ok(()),
            result => result,
        }
    }

    /// Requests a link to one of these slots, at an address of both. There is none without a
    /// broker.
    pub(super) fn ask(
        &mut self,
        client: &BrokerClient,
        number: u8,
        others: &[(LocalAddr, ProcessSlot)],
    ) -> Result<(), BrokerError> {
        let own = client.view().sockets;
        let others = others.iter().filter(|(local, _)| own.contains_key(local));
        let others: Vec<_> = others.filter(|(_, slot)| *slot != client.slot()).collect();
        let chosen = usize::from(number).checked_rem(others.len());
        let Some((local, slot)) = chosen.map(|chosen| *others[chosen]) else {
            return Ok(());
        };
        match client.shm_link_to(local, local, slot) {
            Err(BrokerError::Lost) => {}
            result => self.ends.extend(result?),
        }
        Ok(())
    }

    /// Takes the ends of links that others have requested.
    pub(super) fn take_offers(&mut self, client: &BrokerClient) {
        self.ends.extend(client.take_offers(true));
    }

    pub(super) fn report(&self) -> Vec<End> {
        let is_gone = |end: &PeerLinkOffer| {
            let mut waiting = [sys::poll_readable(end.liveness_socket.as_fd())];
            sys::poll(&mut waiting, Some(Duration::ZERO)).is_ok_and(|_| waiting[0].revents != 0)
        };
        let ends = self.ends.iter();
        ends.map(|end| (inode_of(end.memory.as_fd()), is_gone(end)))
            .collect()
    }
}

impl World {
    /// Lets the next process that runs know the others of its directory.
    pub(super) fn note_users(&self, dir: u8) {
        let own = self.clients().filter(|(member, _)| member.dir == dir);
        let users = own.flat_map(|(_, view)| {
            let addresses = view.sockets.keys();
            addresses.map(|local| (*local, view.slot))
        });
        *self.notes.users.lock() = users.collect();
    }

    /// Checks that the ends of a link belong together: both processes have the same memory, or the
    /// only one that has it sees that the other end is gone.
    ///
    /// # Errors
    /// A text that names the broken condition.
    pub(super) fn check_links(&mut self) -> Result<(), String> {
        self.notes.links.lock().clear();
        for client in 0..CLIENTS {
            self.call(client, Call::ReportLinks)?;
        }
        let mut all: BTreeMap<u64, Vec<bool>> = BTreeMap::new();
        for (memory, is_gone) in std::mem::take(&mut *self.notes.links.lock()) {
            all.entry(memory).or_default().push(is_gone);
        }
        for (memory, ends) in all {
            match ends[..] {
                [false, false] => self.mark("two processes have a link"),
                [true] => self.mark("a process sees the end of a link"),
                _ => return Err(format!("link {memory} has ends that are gone: {ends:?}")),
            }
        }
        Ok(())
    }
}
