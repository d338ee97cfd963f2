//! Multicast groups: which QPs are attached to which.
//!
//! A socket that is bound to a unicast address never sees what is sent to a group. So a group has a socket
//! of its own in each process, bound to the group and a member of it on the device's interface: it is one
//! more uplink, whose packets go to all QPs that are attached. The kernel tells the network
//! (IGMP, MLD) that it is a member.

use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use rocade_wire::{Gid, Qpn};

use super::uplink::Uplink;
use crate::error::VerbsError;
use crate::hca::{Hca, limits};
use crate::link::{LocalAddr, UdpLink};

/// The QPs that are attached to a group, as one device sees it.
#[derive(Debug)]
pub(crate) struct Group {
    address: IpAddr,
    members: RwLock<Vec<Qpn>>,
}

impl Group {
    /// They, as they are now.
    pub(crate) fn members(&self) -> Vec<Qpn> {
        self.members.read().clone()
    }

    fn has(&self, qpn: Qpn) -> bool {
        self.members.read().contains(&qpn)
    }
}

/// The groups of a process that have members.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    joined: Mutex<Vec<Arc<Uplink>>>,
}

impl Groups {
    /// Attaches a QP of `hca` to a group. Twice is once. True where `uplinks` has one more now.
    //= MC-01
    pub(crate) fn attach(
        &self,
        uplinks: &RwLock<Vec<Arc<Uplink>>>,
        hca: &Arc<Hca>,
        group: Gid,
        qpn: Qpn,
    ) -> Result<bool, VerbsError> {
        let mut joined = self.joined.lock();
        if let Some(known) = find(&joined, hca, group.to_ip()) {
            let mut members = known.members.write();
            if members.contains(&qpn) {
                return Ok(false);
            }
            if members.len() >= limits::MAX_MCAST_QP_ATTACH as usize {
                return Err(VerbsError::NoMemory("QPs of a multicast group"));
            }
            members.push(qpn);
            return Ok(false);
        }
        if joined.len() >= limits::MAX_MCAST_GROUPS as usize {
            return Err(VerbsError::NoMemory("multicast groups"));
        }
        let of_family = |ip: &IpAddr| ip.is_ipv4() == group.to_ip().is_ipv4();
        let own = hca.config.addrs().find(of_family);
        let own = own.ok_or(VerbsError::InvalidArgument("gid"))?;
        let interface = hca.port_with(own).config.ifindex;
        let address = LocalAddr::new(group.to_ip(), interface);
        let link = UdpLink::join(address, own, interface)?;
        let group = Group {
            address: group.to_ip(),
            members: RwLock::new(vec![qpn]),
        };
        let uplink = Arc::new(Uplink::of_group(Box::new(link), Arc::clone(hca), group));
        uplinks.write().push(Arc::clone(&uplink));
        joined.push(uplink);
        Ok(true)
    }

    /// Detaches it; `None` where it was not attached. The last one to leave closes the door: true where one has
    /// left `uplinks`.
    //= MC-02
    pub(crate) fn detach(
        &self,
        uplinks: &RwLock<Vec<Arc<Uplink>>>,
        hca: &Arc<Hca>,
        group: Gid,
        qpn: Qpn,
    ) -> Option<bool> {
        let mut joined = self.joined.lock();
        let known = find(&joined, hca, group.to_ip())?;
        let mut members = known.members.write();
        let before = members.len();
        members.retain(|member| *member != qpn);
        let was_member = members.len() < before;
        drop(members);
        let left = leave_empty(uplinks, &mut joined);
        was_member.then_some(left)
    }

    /// Is a QP attached to any group?
    pub(crate) fn has(&self, qpn: Qpn) -> bool {
        let joined = self.joined.lock();
        let mut groups = joined.iter().filter_map(|uplink| uplink.group.as_ref());
        groups.any(|group| group.has(qpn))
    }

    /// A QP ends without having been detached. True where one has left `uplinks`.
    pub(crate) fn forget(&self, uplinks: &RwLock<Vec<Arc<Uplink>>>, qpn: Qpn) -> bool {
        let mut joined = self.joined.lock();
        for group in joined.iter().filter_map(|uplink| uplink.group.as_ref()) {
            group.members.write().retain(|member| *member != qpn);
        }
        leave_empty(uplinks, &mut joined)
    }
}

fn leave_empty(uplinks: &RwLock<Vec<Arc<Uplink>>>, joined: &mut Vec<Arc<Uplink>>) -> bool {
    let is_empty = |uplink: &Arc<Uplink>| {
        let group = uplink.group.as_ref();
        group.is_some_and(|group| group.members.read().is_empty())
    };
    let any = joined.iter().any(is_empty);
    if any {
        joined.retain(|uplink| !is_empty(uplink));
        uplinks.write().retain(|uplink| !is_empty(uplink));
    }
    any
}

fn find<'j>(joined: &'j [Arc<Uplink>], hca: &Arc<Hca>, address: IpAddr) -> Option<&'j Group> {
    let of_hca = |uplink: &&Arc<Uplink>| {
        let own = uplink.hca.as_ref();
        own.is_some_and(|own| Arc::ptr_eq(own, hca))
    };
    let groups = joined.iter().filter(of_hca);
    let mut groups = groups.filter_map(|uplink| uplink.group.as_ref());
    groups.find(|group| group.address == address)
}
