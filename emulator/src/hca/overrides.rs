//! Changes of a device and its ports by fault rules: link, speed, GIDs and P_Keys.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::sync::RwLock;
use rocade_wire::{Gid, Pkey};

use super::port::{GidTable, GidTableEntry};
use super::{Hca, Port};
use crate::faults::{GidEdit, GidPlace};

/// The speed of a port that no rule has changed, in Gbit/s.
const USUAL_GBIT: u32 = 100;

/// The changes of a port by fault rules, besides its GID table.
#[derive(Debug)]
pub(super) struct PortOverrides {
    held_down: AtomicBool,
    gbit: AtomicU32,
}

impl Default for PortOverrides {
    fn default() -> Self {
        Self {
            held_down: AtomicBool::new(false),
            gbit: AtomicU32::new(USUAL_GBIT),
        }
    }
}

impl PortOverrides {
    pub(super) fn is_held_down(&self) -> bool {
        self.held_down.load(Ordering::Acquire)
    }
}

impl Port {
    /// Returns true if a rule holds the port down.
    pub(crate) fn is_held_down(&self) -> bool {
        self.overrides.is_held_down()
    }

    /// Sets whether a rule holds the port down. Returns true if it is up otherwise than before.
    pub(crate) fn hold_down(&self, held: bool) -> bool {
        let before = self.is_running();
        self.overrides.held_down.store(held, Ordering::Release);
        self.is_running() != before
    }

    fn is_overridden(&self) -> bool {
        self.is_held_down() || self.gbit() != USUAL_GBIT || self.has_gid_edits()
    }

    /// Returns the speed in Gbit/s.
    pub(crate) fn gbit(&self) -> u32 {
        self.overrides.gbit.load(Ordering::Relaxed)
    }

    /// Sets the speed in Gbit/s, or the usual one. Returns true if it is another one than before.
    pub(crate) fn set_gbit(&self, gbit: Option<u32>) -> bool {
        let gbit = gbit.unwrap_or(USUAL_GBIT);
        self.overrides.gbit.swap(gbit, Ordering::Relaxed) != gbit
    }
}

/// The P_Key table of a device.
#[derive(Debug)]
pub(super) struct PkeyTable(RwLock<Vec<Pkey>>);

impl PkeyTable {
    pub(super) const fn new(pkeys: Vec<Pkey>) -> Self {
        Self(RwLock::new(pkeys))
    }
}

impl Hca {
    //= ENC-14
    pub(crate) fn pkey(&self, index: u16) -> Option<Pkey> {
        self.pkeys.0.read().get(usize::from(index)).copied()
    }

    /// Returns true if a rule has removed it, or changed its P_Keys or one of its ports.
    pub(crate) fn is_overridden(&self) -> bool {
        let pkeys = *self.pkeys.0.read() != self.config.pkeys;
        pkeys || self.is_removed() || self.ports().any(Port::is_overridden)
    }

    /// Returns true while a rule has removed the device.
    pub(crate) fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Acquire)
    }

    /// Sets whether a rule has removed the device. Returns true if that is another state than
    /// before.
    pub(crate) fn set_removed(&self, removed: bool) -> bool {
        self.removed.swap(removed, Ordering::AcqRel) != removed
    }

    /// Returns the P_Key table.
    pub(crate) fn pkeys(&self) -> Vec<Pkey> {
        self.pkeys.0.read().clone()
    }

    /// Sets the P_Keys that differ from the configuration, by index. Indices beyond the table have
    /// no effect. Returns true if the table has changed.
    pub(crate) fn override_pkeys(&self, changes: &[(u16, Pkey)]) -> bool {
        let mut table = self.config.pkeys.clone();
        for (index, pkey) in changes {
            if let Some(entry) = table.get_mut(usize::from(*index)) {
                *entry = *pkey;
            }
        }
        let mut pkeys = self.pkeys.0.write();
        let changed = *pkeys != table;
        *pkeys = table;
        changed
    }
}

impl GidTable {
    /// Returns the rows as rules have changed them.
    pub(super) fn edited_rows(&self) -> Vec<GidTableEntry> {
        let mut rows = self.rows.clone();
        for edit in &self.edits {
            match edit {
                GidEdit::Add(addr) => add(&mut rows, *addr),
                GidEdit::Remove(place) => {
                    for at in self.places(*place) {
                        rows[at].there = false;
                    }
                }
                GidEdit::Change(place, addr) => {
                    for at in self.places(*place) {
                        rows[at] = entry(*addr);
                    }
                }
            }
        }
        rows
    }

    /// Returns the addresses of the table that rules have taken away.
    pub(super) fn taken_addresses(&self) -> Vec<IpAddr> {
        let edited = self.edited_rows();
        let stays = |row: &GidTableEntry| edited.contains(row);
        let mut all: Vec<_> = self
            .rows
            .iter()
            .filter(|row| row.there && !stays(row))
            .map(|row| Gid::from_ip(row.addr).to_ip())
            .collect();
        all.dedup();
        all
    }

    /// Returns the numbers of the rows at a place, as they are without rules.
    fn places(&self, place: GidPlace) -> impl Iterator<Item = usize> {
        let is_at = move |(number, row): &(usize, &GidTableEntry)| match place {
            GidPlace::Address(addr) => Gid::from_ip(row.addr) == Gid::from_ip(addr),
            GidPlace::Index(index) => self.row_of(index as usize) == *number,
        };
        let rows = self.rows.iter().enumerate().filter(is_at);
        rows.map(|(number, _)| number)
    }
}

const fn entry(addr: IpAddr) -> GidTableEntry {
    GidTableEntry { addr, there: true }
}

fn add(rows: &mut Vec<GidTableEntry>, addr: IpAddr) {
    if rows.iter().any(|row| row.there && row.addr == addr) {
        return;
    }
    match rows.iter_mut().find(|row| !row.there) {
        Some(row) => *row = entry(addr),
        None => rows.push(entry(addr)),
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::config::{Likeness, PortConfig};

    fn port(like: Likeness) -> Port {
        let addrs = ["192.0.2.1", "fd77::3"].map(|addr| addr.parse().expect("an address"));
        let config = PortConfig {
            ifname: None,
            ifindex: 7,
            addrs: addrs.to_vec(),
            follows: Vec::new(),
            netdev_mtu: 1500,
        };
        Port::new(1, config, like)
    }

    fn gids(port: &Port) -> String {
        let show = |gid: Gid| match gid.is_zero() {
            true => "-".to_owned(),
            false => gid.to_ip().to_string(),
        };
        let all: Vec<_> = port.gids().iter().map(|entry| show(entry.gid)).collect();
        all.join(" ")
    }

    fn addr(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn entries_go_come_and_change() {
        let port = port(Likeness::Rocade);
        let edit = |edits: &[GidEdit]| (port.edit_gids(edits.to_vec()), gids(&port));
        let first = GidEdit::Remove(GidPlace::Index(0));
        assert_eq!(edit(&[first]), (true, "- fd77::3".to_owned()));
        assert_eq!(port.taken_addresses(), [addr("192.0.2.1")]);
        assert_eq!(edit(&[first]), (false, "- fd77::3".to_owned()));
        let new = GidEdit::Add(addr("192.0.2.9"));
        assert_eq!(edit(&[first, new]), (true, "192.0.2.9 fd77::3".to_owned()));
        assert_eq!(
            edit(&[new]),
            (true, "192.0.2.1 fd77::3 192.0.2.9".to_owned())
        );
        let change = GidEdit::Change(GidPlace::Address(addr("fd77::3")), addr("fd77::4"));
        assert_eq!(edit(&[change]), (true, "192.0.2.1 fd77::4".to_owned()));
        assert_eq!(port.taken_addresses(), [addr("fd77::3")]);
        let nothing = GidEdit::Remove(GidPlace::Index(7));
        assert_eq!(edit(&[nothing]), (true, "192.0.2.1 fd77::3".to_owned()));
        assert!(port.taken_addresses().is_empty());
    }

    #[test]
    fn both_entries_of_an_address_change_together() {
        let port = port(Likeness::Mlx5);
        assert_eq!(
            gids(&port),
            "192.0.2.1 192.0.2.1 192.0.2.1 192.0.2.1 fd77::3 fd77::3"
        );
        let change = GidEdit::Change(GidPlace::Index(5), addr("fd77::4"));
        assert!(port.edit_gids(vec![change]));
        assert_eq!(
            gids(&port),
            "192.0.2.1 192.0.2.1 192.0.2.1 192.0.2.1 fd77::4 fd77::4"
        );
        assert!(port.edit_gids(vec![GidEdit::Remove(GidPlace::Index(3))]));
        assert_eq!(gids(&port), "- - - - fd77::3 fd77::3");
    }

    #[test]
    fn a_port_is_up_if_neither_the_host_nor_a_rule_holds_it_down() {
        let port = port(Likeness::Rocade);
        assert!(port.hold_down(true) && !port.is_running());
        assert!(!port.hold_down(true) && !port.set_running(false));
        assert!(!port.hold_down(false) && !port.is_running());
        assert!(port.set_running(true) && port.is_running());
    }
}
