//! The outside of the clients: another host, its packets, and programs that are no clients.

use std::collections::BTreeSet;
use std::io;
use std::net::UdpSocket;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rocade_wire::Qpn;
use rocade_wire::mad::CmMessage;

use super::super::gsi::message_of;
use super::super::paths::{Paths, open_lock};
use super::super::simulated::brokers::address_of;
use super::super::simulated::identity::SimulatedProcess;
use super::super::{start, sys};
use super::life::ACKNOWLEDGE;
use super::process::peer_address;
use super::world::{Member, World};
use crate::link::{LocalAddr, ROCE_PORT, socket};
use crate::steering::ProcessSlot;

/// Length of a packet.
pub(super) const PACKET_LEN: usize = 16;
/// Slots that a crowd keeps: one message takes no more sockets.
const CROWD: u8 = 16;
/// Most rounds until a broker has received all.
const ROUNDS: usize = 100;

/// Returns a packet to a queue pair, of which only its number is read.
pub(super) const fn packet_to(qpn: Qpn) -> [u8; PACKET_LEN] {
    let [_, slot, high, low] = qpn.get().to_be_bytes();
    let mut packet = [0; PACKET_LEN];
    (packet[0], packet[2], packet[3]) = (4, 0xff, 0xff);
    (packet[5], packet[6], packet[7]) = (slot, high, low);
    packet
}

/// Another host.
pub(super) struct Peer {
    socket: UdpSocket,
    /// Connections that it was told to end.
    ended: BTreeSet<u32>,
    /// Connections whose messages were acknowledged.
    acknowledged: BTreeSet<u32>,
}

impl Peer {
    pub(super) fn new() -> Self {
        let socket = UdpSocket::bind(peer_address().with_port(ROCE_PORT)).expect("an address");
        socket.set_nonblocking(true).expect("a socket");
        Self {
            socket,
            ended: BTreeSet::new(),
            acknowledged: BTreeSet::new(),
        }
    }

    fn send(&self, local: LocalAddr, qpn: Qpn) {
        // There may be no socket.
        let _ = (self.socket).send_to(&packet_to(qpn), local.with_port(ROCE_PORT));
    }

    fn receive(&mut self) {
        let mut bytes = [0; 512];
        while let Ok(len) = self.socket.recv(&mut bytes) {
            let packet = &bytes[..len];
            if packet.first() == Some(&ACKNOWLEDGE.get()) && len > 8 {
                let number = [0, packet[5], packet[6], packet[7]];
                self.acknowledged.insert(u32::from_be_bytes(number));
            }
            if let Some(message @ CmMessage::Dreq(_)) = message_of(packet) {
                self.ended.insert(message.receiver_id().get());
            }
        }
    }
}

/// A packet to a slot without a process.
struct ToVacant {
    at: (LocalAddr, ProcessSlot),
    /// The socket of the slot.
    own: OwnedFd,
    /// The sockets of the processes that have its target open, if it is to one.
    heirs: Option<Vec<OwnedFd>>,
}

impl World {
    pub(super) fn be_silent(&mut self, dir: u8) {
        let process = SimulatedProcess::new(&self.host, dir).expect("a process");
        if let Ok(connection) = start::connect(&Paths::new(&self.brokers.config_of(dir)), &process)
        {
            self.mark("a program connects and is silent");
            self.brokers.strangers.push(connection);
        }
    }

    /// Checks that the brokers have hung up all that are no clients.
    pub(super) fn check_strangers(&self) -> Result<(), String> {
        for stranger in &self.brokers.strangers {
            let mut ends = [sys::poll_readable(stranger.as_fd())];
            sys::poll(&mut ends, Some(Duration::ZERO)).map_err(|error| error.to_string())?;
            if ends[0].revents & libc::POLLHUP == 0 {
                return Err("a broker keeps the connection of a program without a slot".to_owned());
            }
        }
        Ok(())
    }

    /// Lets others keep the first slots of a directory.
    pub(super) fn crowd(&mut self) -> Result<(), String> {
        let paths = Paths::new(&self.brokers.config_of(0));
        paths.prepare().map_err(|error| error.to_string())?;
        for slot in (1..=CROWD).map(ProcessSlot::new) {
            let lock = open_lock(&paths.slot_lock(slot)).map_err(|error| error.to_string())?;
            if sys::try_lock(lock.as_fd()).is_ok_and(|is_locked| is_locked) {
                self.crowd.push(lock);
            }
        }
        self.mark("a directory is crowded");
        Ok(())
    }

    /// Sends a packet to a slot, unless a process may be about to get its socket.
    pub(super) fn send_packet(&mut self, address: u8, slot: u8) {
        let local = address_of(address);
        let slot = ProcessSlot::new(slot + u8::try_from(self.crowd.len()).unwrap_or(0));
        let sockets = self.clients().map(|(_, view)| view.sockets.get(&local));
        let len = sockets.flatten().map(Vec::len).max().unwrap_or(0);
        if !self.is_opening() && slot.index() < len {
            self.mark("a packet comes from another host");
            self.peer
                .send(local, Qpn::new(u32::from(slot.get()) << 16 | 0x100));
        }
    }

    /// Notes which broker has to end the connections of a process that is about to be killed.
    pub(super) fn expect_farewells(&mut self, member: &Member) {
        let Some(slot) = member.view.as_ref().map(|view| view.slot) else {
            return;
        };
        let brokers = self
            .brokers
            .list
            .iter()
            .filter(|broker| broker.dir == member.dir);
        let mut brokers = brokers.filter(|broker| {
            let server = broker.server.as_ref();
            server.is_some_and(|server| server.has_journal(slot))
        });
        if let (Some(broker), None) = (brokers.next(), brokers.next()) {
            let talks = self.notes.talks.lock();
            let of_it = talks
                .iter()
                .filter(|(_, process)| **process == member.number);
            let expected = of_it.map(|(number, _)| (*number, broker.number()));
            self.farewells.extend(expected);
        }
    }

    /// Checks that the peers of killed processes know it, and others do not.
    pub(super) fn check_farewells(&mut self) -> Result<(), String> {
        self.peer.receive();
        for (number, broker) in std::mem::take(&mut self.farewells) {
            if !self.brokers.list.iter().any(|one| one.number() == broker) {
                continue;
            }
            self.mark("the peer of a killed process is told");
            if !self.peer.ended.contains(&number) {
                return Err(format!(
                    "the peer of connection {number} waits for a dead process"
                ));
            }
            if !self.peer.acknowledged.contains(&number) {
                return Err(format!(
                    "a message of connection {number} is not acknowledged"
                ));
            }
        }
        let living: BTreeSet<_> = self.clients().map(|(member, _)| member.number).collect();
        let talks = self.notes.talks.lock();
        let mut talks = talks.iter().filter(|(_, process)| living.contains(process));
        match talks.find(|(number, _)| self.peer.ended.contains(number)) {
            Some((number, _)) => Err(format!("connection {number} of a living process is ended")),
            None => Ok(()),
        }
    }

    /// Checks that packets to slots without a process do not stay where they are: the broker
    /// receives them, or passes them to a process that has the target open.
    pub(super) fn check_vacant(&mut self) -> Result<(), String> {
        let sent = self.send_to_vacant().map_err(|error| error.to_string())?;
        for _ in 0..ROUNDS {
            if !self.work()? {
                break;
            }
        }
        let (mut expected, mut arrived) = (0, 0);
        for ToVacant { at, own, heirs } in sent {
            if socket::discard_received(own.as_fd()) > 0 {
                return Err(format!("a packet to {at:?}, without process, stays"));
            }
            let Some(heirs) = heirs else { continue };
            self.mark("a target outlives its process");
            expected += 1;
            // Several targets may have the same heir.
            arrived += heirs
                .iter()
                .map(|one| socket::discard_received(one.as_fd()))
                .sum::<usize>();
        }
        match arrived == expected {
            true => Ok(()),
            false => Err(format!(
                "{arrived} of {expected} packets to targets without their process arrive"
            )),
        }
    }

    /// Sends a packet to each slot without a process, to one of its targets if there is one.
    fn send_to_vacant(&self) -> io::Result<Vec<ToVacant>> {
        let mut sent = Vec::new();
        for server in self
            .brokers
            .list
            .iter()
            .filter_map(|one| one.server.as_deref())
        {
            let known = server.view();
            for (local, group) in &known.groups {
                for slot in (1..group.sockets.len()).filter_map(|at| u8::try_from(at).ok()) {
                    let slot = ProcessSlot::new(slot);
                    if group.users.contains(&slot) || known.orphans.contains(&slot) {
                        continue;
                    }
                    let domains = known.domains.values();
                    let mut targets = domains.flat_map(|domain| &domain.targets);
                    let target = targets.find(|(qpn, _)| ProcessSlot::of(**qpn) == slot);
                    let plain = Qpn::new(u32::from(slot.get()) << 16 | 0x100);
                    let socket = |slot: ProcessSlot| server.socket(*local, slot.index());
                    let heirs = target.map(|(_, target)| &target.openers);
                    let is_dead = !known.slots.contains(&slot);
                    let heirs = heirs.filter(|heirs| is_dead && heirs.is_subset(&group.users));
                    let sockets = heirs.map(|heirs| heirs.iter().map(|slot| socket(*slot)));
                    let heirs = sockets.map(io::Result::<Vec<_>>::from_iter).transpose()?;
                    // They may have received something before.
                    for one in heirs.iter().flatten() {
                        socket::discard_received(one.as_fd());
                    }
                    let qpn = target.map_or(plain, |(qpn, _)| *qpn);
                    self.peer.send(*local, qpn);
                    let (at, own) = ((*local, slot), socket(slot)?);
                    sent.push(ToVacant { at, own, heirs });
                }
            }
        }
        Ok(sent)
    }
}
