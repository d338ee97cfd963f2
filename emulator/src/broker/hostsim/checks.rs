//! Conditions of a host, checked outside the code under test.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, UdpSocket};
use std::os::fd::AsFd;
use std::time::Duration;

use rocade_wire::Qpn;

use super::super::client::view::View;
use super::super::server::view::View as ServerView;
use super::super::simulated::brokers::address_of;
use super::super::sys;
use super::outside::{PACKET_LEN, packet_to};
use super::step::{ADDRESSES, DIRS};
use super::world::{Member, World};
use crate::link::socket_owner::bound_sockets;
use crate::link::{LocalAddr, ROCE_PORT, socket};
use crate::steering::ProcessSlot;

/// Longest wait for a datagram on the loopback interface, which is never late.
const ARRIVAL: Duration = Duration::from_secs(5);

/// Most lists of the kernel's sockets that are read for one that is whole.
const MOST_LISTS: u32 = 100;

impl World {
    /// Checks what holds at any time.
    ///
    /// # Errors
    /// A text that names the broken condition.
    pub(super) fn check(&mut self) -> Result<(), String> {
        let mut slots = BTreeSet::new();
        let mut sockets: BTreeMap<LocalAddr, Vec<u64>> = BTreeMap::new();
        let mut is_shared = false;
        for (member, view) in self.clients() {
            let (dir, slot) = (member.dir, view.slot);
            if !slots.insert((dir, slot)) {
                return Err(format!("two processes have {slot}"));
            }
            for (local, own) in &view.sockets {
                if own.len() != slot.index() + 1 {
                    return Err(format!("{slot} has {} sockets of {local}", own.len()));
                }
                let known = sockets.entry(*local).or_default();
                is_shared |= !known.is_empty();
                let common = known.len().min(own.len());
                if known[..common] != own[..common] {
                    return Err(format!("the sockets of {local} differ: {known:?}, {own:?}"));
                }
                if own.len() > common {
                    known.clone_from(own);
                }
            }
        }
        let children = self.children.iter();
        let kept = children.filter_map(|child| Some((child.dir, child.view.as_ref()?.slot)));
        for (dir, slot) in kept {
            if !slots.insert((dir, slot)) {
                return Err(format!("a child of its last process still has {slot}"));
            }
        }
        if is_shared {
            self.note_shared();
        }
        Ok(())
    }

    /// Checks what holds when nothing is left to do: each process is connected to one broker, which
    /// knows what the process has, and no more. Packets arrive where they should.
    ///
    /// # Errors
    /// A text that names the broken condition.
    pub(super) fn check_at_rest(&mut self) -> Result<(), String> {
        if self.waiting() > 0 {
            return Err(format!("{} processes still wait", self.waiting()));
        }
        self.check_strangers()?;
        for dir in 0..DIRS {
            self.check_dir(dir)?;
        }
        let mut domains = BTreeMap::new();
        for (member, view) in self.clients() {
            for (key, memory) in &view.domains {
                let known = *domains.entry((member.dir, *key)).or_insert(*memory);
                if known != *memory {
                    return Err(format!("a domain has two memories: {known} and {memory}"));
                }
            }
        }
        self.check_all_bound()?;
        self.check_links()?;
        self.check_vacant()?;
        self.check_farewells()
    }

    fn check_dir(&self, dir: u8) -> Result<(), String> {
        let own: Vec<(&Member, &View)> = self
            .clients()
            .filter(|(member, _)| member.dir == dir)
            .collect();
        let mut brokers = self.brokers.list.iter().filter(|broker| broker.dir == dir);
        let server = brokers.find_map(|broker| broker.server.as_deref());
        let Some(server) = server else {
            return match own.is_empty() {
                true => Ok(()),
                false => Err("there are clients and no broker".to_owned()),
            };
        };
        let known = server.view();
        if own.is_empty() && known.orphans.is_empty() {
            return Err("a broker without clients does not end".to_owned());
        }
        for (_, view) in &own {
            let slot = view.slot;
            if !view.is_connected {
                return Err(format!("{slot} has no broker"));
            }
            for (local, sockets) in &view.sockets {
                check_group(&known, slot, *local, sockets)?;
            }
        }
        self.check_knowledge(&known, &own)?;
        for (local, group) in &known.groups {
            let users: BTreeSet<_> = own
                .iter()
                .filter(|(_, view)| view.sockets.contains_key(local))
                .map(|(_, view)| view.slot)
                .collect();
            if group.users != users {
                return Err(format!("{local}: {:?} use it, not {users:?}", group.users));
            }
            if group.users.is_empty() {
                return Err(format!("{local} stays open, and no process uses it"));
            }
            for slot in &users {
                let target = server.socket(*local, slot.index());
                let target = target.map_err(|error| error.to_string())?;
                check_arrival(*local, *slot, &target)?;
            }
        }
        Ok(())
    }

    /// Checks that no sockets are bound to an address but those of one broker, because others would
    /// move its sockets.
    fn check_all_bound(&self) -> Result<(), String> {
        let servers = self
            .brokers
            .list
            .iter()
            .filter_map(|one| one.server.as_deref());
        let mut known: BTreeMap<LocalAddr, Vec<BTreeSet<u64>>> = BTreeMap::new();
        for server in servers {
            for (local, group) in server.view().groups {
                let sockets = group.sockets.into_iter().collect();
                known.entry(local).or_default().push(sockets);
            }
        }
        let all = all_bound(known.values().flatten().flatten())?;
        for local in (0..ADDRESSES).map(address_of) {
            let bound = all.iter().filter(|(ip, _)| *ip == local.ip());
            let bound: BTreeSet<_> = bound.map(|(_, inode)| *inode).collect();
            let brokers = known.remove(&local).unwrap_or_default();
            if brokers.len() > 1 {
                return Err(format!("two brokers have {local}"));
            }
            let own = brokers.into_iter().next().unwrap_or_default();
            if bound != own {
                return Err(format!("{bound:?} are bound to {local}, not {own:?}"));
            }
        }
        Ok(())
    }
}

/// Returns addresses and inodes of all bound sockets. Nothing of the host changes meanwhile.
///
/// The kernel forms the list in parts, and leaves a socket out if another program closes one in
/// between. So several lists count, until all `expected` sockets are there.
fn all_bound<'a>(
    expected: impl Iterator<Item = &'a u64> + Clone,
) -> Result<BTreeSet<(IpAddr, u64)>, String> {
    let mut all = BTreeSet::new();
    for _ in 0..MOST_LISTS {
        let list = bound_sockets().map_err(|error| error.to_string())?;
        all.extend(list.into_iter().map(|socket| (socket.ip, socket.inode)));
        let has = |inode: &u64| all.iter().any(|(_, other)| other == inode);
        if expected.clone().all(has) {
            break;
        }
    }
    Ok(all)
}

fn check_group(
    known: &ServerView,
    slot: ProcessSlot,
    local: LocalAddr,
    own: &[u64],
) -> Result<(), String> {
    let group = known.groups.get(&local);
    let group = group.ok_or_else(|| format!("the broker has lost {local} of {slot}"))?;
    if group.sockets.get(..own.len()) != Some(own) {
        return Err(format!(
            "{slot} has other sockets of {local} than the broker: {own:?}, {:?}",
            group.sockets
        ));
    }
    Ok(())
}

/// Checks that the kernel delivers a packet to the process of the queue pair's number.
fn check_arrival(local: LocalAddr, slot: ProcessSlot, target: &impl AsFd) -> Result<(), String> {
    let failed = |error: std::io::Error| error.to_string();
    // Others may have sent something before.
    socket::discard_received(target.as_fd());
    let sender = UdpSocket::bind((local.ip(), 0)).map_err(failed)?;
    let number = Qpn::new(u32::from(slot.get()) << 16 | 0x100);
    sender
        .send_to(&packet_to(number), (local.ip(), ROCE_PORT))
        .map_err(failed)?;
    let mut waiting = [sys::poll_readable(target.as_fd())];
    sys::poll(&mut waiting, Some(ARRIVAL)).map_err(failed)?;
    let socket = socket2::SockRef::from(target);
    let mut bytes = [std::mem::MaybeUninit::uninit(); 64];
    match socket.recv(&mut bytes) {
        Ok(PACKET_LEN) => Ok(()),
        other => Err(format!(
            "a packet to {slot} at {local} has gone astray: {other:?}"
        )),
    }
}
