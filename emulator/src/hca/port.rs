//! The changing state of a port: whether its interface is up, and the GID table.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::sync::RwLock;
use rocade_transport::Violations;
use rocade_wire::{Gid, Mtu};

use super::overrides::PortOverrides;
use super::{GidEntry, GidKind};
use crate::config::{HostNetwork, Likeness, PortConfig};
use crate::faults::GidEdit;

/// A port of an HCA.
#[derive(Debug)]
pub(crate) struct Port {
    /// Its number, from 1.
    pub(crate) number: u8,
    pub(crate) config: PortConfig,
    active_mtu: Mtu,
    running: AtomicBool,
    gone: AtomicBool,
    pub(super) overrides: PortOverrides,
    table: RwLock<GidTable>,
    bad_pkeys: AtomicU32,
    bad_qkeys: AtomicU32,
}

#[derive(Debug)]
pub(super) struct GidTable {
    pub(super) rows: Vec<GidTableEntry>,
    /// The changes of fault rules.
    pub(super) edits: Vec<GidEdit>,
    order: GidOrder,
    ifindex: u32,
    /// The GID table for applications.
    entries: Arc<[GidEntry]>,
}

/// The entries of a GID table for its addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GidOrder {
    /// One for each address.
    Plain,
    /// Two for each address, RoCE v1 and v2, as mlx5 has them. The first address is link-local.
    Pairs,
    /// A table without a link-local address, which mlx5 always has. The second address is then
    /// the first one once more, so that the others have their usual places.
    PairsFirstTwice,
}

/// An entry of the GID table. It remembers its address, which may come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GidTableEntry {
    pub(super) addr: IpAddr,
    pub(super) there: bool,
}

impl Port {
    pub(super) fn new(number: u8, config: PortConfig, like: Likeness) -> Self {
        let there = |addr: &IpAddr| GidTableEntry {
            addr: *addr,
            there: true,
        };
        let mut addrs = config.addrs.clone();
        let order = if like.lists_gids_in_pairs() {
            match addrs.iter().position(is_link_local_v6) {
                Some(at) => {
                    addrs[..=at].rotate_right(1);
                    GidOrder::Pairs
                }
                None => GidOrder::PairsFirstTwice,
            }
        } else {
            GidOrder::Plain
        };
        let mut table = GidTable {
            rows: addrs.iter().map(there).collect(),
            edits: Vec::new(),
            order,
            ifindex: config.ifindex,
            entries: Arc::new([]),
        };
        table.publish();
        //= MTU-02
        let active_mtu = Mtu::largest_for_netdev(config.netdev_mtu).unwrap_or(Mtu::Mtu256);
        Self {
            number,
            config,
            active_mtu,
            running: AtomicBool::new(true),
            gone: AtomicBool::new(false),
            overrides: PortOverrides::default(),
            table: RwLock::new(table),
            bad_pkeys: AtomicU32::new(0),
            bad_qkeys: AtomicU32::new(0),
        }
    }

    pub(crate) const fn active_mtu(&self) -> Mtu {
        self.active_mtu
    }

    /// Returns true if its network interface is known.
    pub(super) const fn has_interface(&self) -> bool {
        self.config.ifindex != 0 || !self.config.follows.is_empty()
    }

    /// The address at this index of the GID table.
    pub(crate) fn gid(&self, index: u8) -> Option<Gid> {
        let gids = self.gids();
        let entry = gids.get(usize::from(index))?;
        //= QPV-04
        (!entry.gid.is_zero()).then_some(entry.gid)
    }

    /// The index of an address in the GID table, as RoCE v2. An address that is there twice has its
    /// usual place, the last one.
    pub(crate) fn index_of(&self, ip: IpAddr) -> Option<u32> {
        let gid = Gid::from_ip(ip);
        let gids = self.gids();
        let of_ip = |entry: &&GidEntry| entry.gid == gid && entry.kind == GidKind::RoceV2;
        gids.iter().rfind(of_ip).map(|entry| entry.index)
    }

    pub(crate) fn is_running(&self) -> bool {
        self.running.load(Ordering::Acquire) && !self.overrides.is_held_down()
    }

    /// Counts packets with wrong keys. The counters saturate.
    #[cold]
    pub(crate) fn count_violations(&self, new: Violations) {
        for (count, more) in [(&self.bad_pkeys, new.pkey), (&self.bad_qkeys, new.qkey)] {
            let sum = |count: u32| Some(count.saturating_add(more));
            let _ = count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum);
        }
    }

    /// Number of packets with wrong keys since the port was made.
    pub(super) fn violations(&self) -> Violations {
        Violations {
            pkey: self.bad_pkeys.load(Ordering::Relaxed),
            qkey: self.bad_qkeys.load(Ordering::Relaxed),
        }
    }

    /// Sets whether the interface is up. Returns true if the port is up otherwise than before.
    pub(crate) fn set_running(&self, running: bool) -> bool {
        let is_news = self.running.swap(running, Ordering::AcqRel) != running
            && !self.overrides.is_held_down();
        if running {
            self.gone.store(false, Ordering::Release);
        }
        is_news
    }

    /// Records that the interface was removed. Returns true if that is new.
    pub(crate) fn set_gone(&self) -> bool {
        !self.gone.swap(true, Ordering::AcqRel)
    }

    pub(super) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    pub(crate) fn gids(&self) -> Arc<[GidEntry]> {
        Arc::clone(&self.table.read().entries)
    }

    /// Updates the GID table. Entries are empty while their address does not exist. A new address
    /// on an interface that the port follows takes the first empty entry, or extends the table.
    /// Returns true if the table has changed.
    pub(crate) fn follow(&self, network: &HostNetwork) -> bool {
        let mut table = self.table.write();
        let before = Arc::clone(&table.entries);
        for row in &mut table.rows {
            row.there = network.owner_of(row.addr).is_some();
        }
        for addr in followed(&self.config, network) {
            if table.rows.iter().any(|row| row.addr == addr) {
                continue;
            }
            let new = GidTableEntry { addr, there: true };
            match table.rows.iter_mut().find(|row| !row.there) {
                Some(row) => *row = new,
                None => table.rows.push(new),
            }
        }
        table.publish();
        table.entries != before
    }

    /// Sets the changes of the GID table that fault rules make. Returns true if the table has
    /// changed.
    pub(crate) fn edit_gids(&self, edits: Vec<GidEdit>) -> bool {
        let mut table = self.table.write();
        if table.edits == edits {
            return false;
        }
        let before = Arc::clone(&table.entries);
        table.edits = edits;
        table.publish();
        table.entries != before
    }

    pub(super) fn has_gid_edits(&self) -> bool {
        !self.table.read().edits.is_empty()
    }

    /// Returns the addresses that fault rules have taken from the table.
    pub(crate) fn taken_addresses(&self) -> Vec<IpAddr> {
        self.table.read().taken_addresses()
    }
}

/// The addresses of the interfaces that the port follows. Link-local ones are included only for the
/// interface of the port itself.
fn followed(config: &PortConfig, network: &HostNetwork) -> Vec<IpAddr> {
    let interfaces = network.interfaces.iter().chain(&network.down);
    let ours = interfaces.filter(|interface| config.follows.contains(&interface.index));
    ours.flat_map(|interface| {
        let main = interface.index == config.ifindex;
        let usable = move |addr: &&IpAddr| main || !is_link_local_v6(addr);
        interface.addrs.iter().filter(usable).copied()
    })
    .collect()
}

/// Returns true if `addr` is in fe80::/10.
const fn is_link_local_v6(addr: &IpAddr) -> bool {
    matches!(addr, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

impl GidTable {
    /// Returns the kinds of the entries of each address, and the number of first addresses that are
    /// there once more.
    const fn layout(&self) -> (&'static [GidKind], usize) {
        match self.order {
            GidOrder::Plain => (&[GidKind::RoceV2], 0),
            GidOrder::Pairs => (&[GidKind::RoceV1, GidKind::RoceV2], 0),
            GidOrder::PairsFirstTwice => (&[GidKind::RoceV1, GidKind::RoceV2], 1),
        }
    }

    /// Returns the number of the row that has the entry at this index.
    pub(super) fn row_of(&self, index: usize) -> usize {
        let (kinds, repeated) = self.layout();
        (index / kinds.len()).saturating_sub(repeated)
    }

    fn publish(&mut self) {
        let (kinds, repeated) = self.layout();
        let edited = self.edited_rows();
        let rows = edited.iter().take(repeated).chain(&edited);
        let all = rows.flat_map(|row| kinds.iter().map(move |kind| (row, *kind)));
        let entry = |(index, (row, kind)): (u32, (&GidTableEntry, GidKind))| GidEntry {
            gid: if row.there {
                Gid::from_ip(row.addr)
            } else {
                Gid::default()
            },
            kind,
            index,
            ifindex: self.ifindex,
        };
        self.entries = (0u32..).zip(all).map(entry).collect();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::config::Interface;

    fn interface(index: u32, addrs: &[&str]) -> Interface {
        Interface {
            name: format!("x{index}"),
            index,
            mtu_bytes: 1500,
            loopback: false,
            addrs: addrs
                .iter()
                .map(|addr| addr.parse().expect("an address"))
                .collect(),
        }
    }

    fn config(addrs: &[&str], follows: &[u32]) -> PortConfig {
        PortConfig {
            ifname: None,
            ifindex: 7,
            addrs: addrs
                .iter()
                .map(|addr| addr.parse().expect("an address"))
                .collect(),
            follows: follows.to_vec(),
            netdev_mtu: 1500,
        }
    }

    fn gids(port: &Port) -> Vec<String> {
        let text = |entry: &GidEntry| match entry.gid.is_zero() {
            true => "-".to_owned(),
            false => entry.gid.to_ip().to_string(),
        };
        let gids = port.gids();
        assert!((0..).zip(&*gids).all(|(index, entry)| entry.index == index));
        gids.iter().map(text).collect()
    }

    //= AEV-08 type=test
    #[test]
    fn the_table_follows_the_interface() {
        let config = config(&["192.0.2.1", "192.0.2.2"], &[7, 8]);
        let port = Port::new(1, config, Likeness::Rocade);
        let follow = |seven: &[&str], eight: &[&str]| {
            let network = HostNetwork::new(vec![interface(7, seven), interface(8, eight)]);
            (port.follow(&network), gids(&port).join(" "))
        };
        let same = follow(&["192.0.2.1", "192.0.2.2"], &[]);
        assert_eq!(same, (false, "192.0.2.1 192.0.2.2".to_owned()));
        assert_eq!(
            follow(&["192.0.2.2"], &[]),
            (true, "- 192.0.2.2".to_owned())
        );
        let back = follow(&["192.0.2.1", "192.0.2.2"], &[]);
        assert_eq!(back, (true, "192.0.2.1 192.0.2.2".to_owned()));
        let longer = follow(&["192.0.2.1", "192.0.2.2"], &["fd77::3", "fe80::8"]);
        assert_eq!(longer, (true, "192.0.2.1 192.0.2.2 fd77::3".to_owned()));
        let instead = follow(&["192.0.2.2", "fe80::7"], &["fd77::3"]);
        assert_eq!(instead, (true, "fe80::7 192.0.2.2 fd77::3".to_owned()));
        assert_eq!(follow(&[], &[]), (true, "- - -".to_owned()));
        assert_eq!(follow(&[], &[]), (false, "- - -".to_owned()));
    }

    /// The GIDs of a port like mlx5, and the indices that the connection manager uses.
    fn like_mlx5(addrs: &[&str]) -> (String, Vec<Option<u32>>) {
        let port = Port::new(1, config(addrs, &[7]), Likeness::Mlx5);
        let entries = port.gids();
        let kinds = entries.iter().map(|entry| entry.kind);
        let expected = [GidKind::RoceV1, GidKind::RoceV2].into_iter().cycle();
        assert!(kinds.eq(expected.take(entries.len())));
        let index_of = |addr: &&str| port.index_of(addr.parse().expect("an address"));
        (gids(&port).join(" "), addrs.iter().map(index_of).collect())
    }

    #[test]
    fn a_table_like_mlx5_has_ipv4_at_index_3() {
        let all = like_mlx5(&["192.0.2.1", "fd77::3", "fe80::7"]);
        let table = "fe80::7 fe80::7 192.0.2.1 192.0.2.1 fd77::3 fd77::3";
        assert_eq!(all, (table.to_owned(), vec![Some(3), Some(5), Some(1)]));
        let without = like_mlx5(&["192.0.2.1", "192.0.2.2"]);
        let table = "192.0.2.1 192.0.2.1 192.0.2.1 192.0.2.1 192.0.2.2 192.0.2.2";
        assert_eq!(without, (table.to_owned(), vec![Some(3), Some(5)]));
    }

    #[test]
    fn a_table_like_mlx5_follows_the_interface() {
        let port = Port::new(1, config(&["192.0.2.1"], &[7]), Likeness::Mlx5);
        let network = |addrs| HostNetwork::new(vec![interface(7, addrs)]);
        assert!(port.follow(&network(&["192.0.2.1", "fe80::7"])));
        let longer = "192.0.2.1 192.0.2.1 192.0.2.1 192.0.2.1 fe80::7 fe80::7";
        assert_eq!(gids(&port).join(" "), longer);
        assert!(port.follow(&network(&["fe80::7"])));
        assert_eq!(gids(&port).join(" "), "- - - - fe80::7 fe80::7");
    }

    #[test]
    fn an_address_that_was_named_is_the_only_one() {
        let config = config(&["192.0.2.1"], &[]);
        let port = Port::new(1, config, Likeness::Rocade);
        let network = |addrs| HostNetwork::new(vec![interface(7, addrs)]);
        assert!(!port.follow(&network(&["192.0.2.1", "192.0.2.9"])));
        assert!(port.follow(&network(&["192.0.2.9"])));
        assert_eq!(gids(&port), ["-"]);
        assert!(port.follow(&network(&["192.0.2.1"])));
        assert_eq!(gids(&port), ["192.0.2.1"]);
    }

    #[test]
    fn states_are_news_once() {
        let port = Port::new(1, config(&["192.0.2.1"], &[]), Likeness::Rocade);
        assert!(!port.set_running(true));
        assert!(port.set_running(false) && !port.is_running());
        assert!(!port.set_running(false));
        assert!(port.set_gone() && !port.set_gone());
        assert!(port.set_running(true) && port.is_running());
        assert!(port.set_gone(), "the interface had come back");
    }
}
