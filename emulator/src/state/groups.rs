//! Multicast groups and the QPs that are attached to them.
//!
//! A socket that is bound to a unicast address never receives packets that are sent to a group.
//! Each group therefore has its own socket in each process, bound to the group address and a member
//! of it on the device's interface. It is a further local endpoint, whose packets go to all
//! attached QPs.
//!
//! The kernel announces the membership to the network (IGMP, MLD), and loops packets of this host
//! back to all local members. Groups therefore always use UDP, whatever link other packets take. A
//! sender need not know the members, and members outside the broker and on other hosts get their
//! copies the same way.

use std::net::IpAddr;
use std::sync::Arc;

use crate::sync::{Mutex, RwLock, rank};
use rocade_wire::{Gid, Qpn};

use super::local_endpoint::LocalEndpoint;
use crate::error::VerbsError;
use crate::hca::Hca;
use crate::limits;
use crate::link::{LocalAddr, UdpLink};

/// The QPs of one device that are attached to a group.
#[derive(Debug)]
pub(crate) struct Group {
    address: IpAddr,
    /// The port of the device that has joined the group.
    port: u8,
    members: RwLock<Vec<Qpn>>,
}

impl Group {
    /// Returns the current members.
    pub(crate) fn members(&self) -> Vec<Qpn> {
        self.members.read().clone()
    }

    /// The number of the port that has joined the group.
    pub(crate) const fn port(&self) -> u8 {
        self.port
    }

    fn has(&self, qpn: Qpn) -> bool {
        self.members.read().contains(&qpn)
    }
}

/// The groups of a process that have members.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    joined: Mutex<Vec<Arc<LocalEndpoint>>, rank::JoinedGroups>,
}

impl Groups {
    /// Attaches a QP of a port of `hca` to a group. Attaching twice has no further effect. Returns
    /// true if an endpoint was added to `endpoints`.
    //= MC-01
    //= MC-06
    pub(crate) fn attach(
        &self,
        endpoints: &RwLock<Vec<Arc<LocalEndpoint>>, rank::Endpoints>,
        (hca, port): (&Arc<Hca>, u8),
        group: Gid,
        qpn: Qpn,
    ) -> Result<bool, VerbsError> {
        //= MC-05
        let group = group.to_ip();
        let mut joined = self.joined.lock();
        if of_address(&joined, hca, group).any(|known| known.has(qpn)) {
            return Ok(false);
        }
        let port = hca.port(port).ok_or(VerbsError::InvalidArgument("port"))?;
        let mut of_port = of_address(&joined, hca, group).filter(|known| known.port == port.number);
        if let Some(known) = of_port.next() {
            let mut members = known.members.write();
            if members.len() >= limits::MAX_MCAST_QP_ATTACH as usize {
                return Err(VerbsError::NoMemory("QPs of a multicast group"));
            }
            members.push(qpn);
            return Ok(false);
        }
        drop(of_port);
        if joined.len() >= limits::MAX_MCAST_GROUPS as usize {
            return Err(VerbsError::NoMemory("multicast groups"));
        }
        let of_family = |ip: &IpAddr| ip.is_ipv4() == group.is_ipv4();
        let own = port.config.addrs.iter().copied().find(of_family);
        let own = own.ok_or(VerbsError::InvalidArgument("gid"))?;
        let interface = port.config.ifindex;
        let link = UdpLink::join(LocalAddr::new(group, interface), own, interface)?;
        let group = Group {
            address: group,
            port: port.number,
            members: RwLock::new(vec![qpn]),
        };
        let endpoint = Arc::new(LocalEndpoint::of_group(link.into(), Arc::clone(hca), group));
        endpoints.write().push(Arc::clone(&endpoint));
        joined.push(endpoint);
        Ok(true)
    }

    /// Detaches a QP. Returns `None` if it was not attached. The group's socket is closed with its
    /// last member: `Some(true)` if an endpoint was removed from `endpoints`.
    //= MC-02
    pub(crate) fn detach(
        &self,
        endpoints: &RwLock<Vec<Arc<LocalEndpoint>>, rank::Endpoints>,
        hca: &Arc<Hca>,
        group: Gid,
        qpn: Qpn,
    ) -> Option<bool> {
        let mut joined = self.joined.lock();
        let known = of_address(&joined, hca, group.to_ip()).find(|known| known.has(qpn))?;
        known.members.write().retain(|member| *member != qpn);
        Some(close_empty(endpoints, &mut joined))
    }

    /// The addresses of the groups that a QP is attached to.
    pub(crate) fn of(&self, qpn: Qpn) -> Vec<String> {
        let joined = self.joined.lock();
        let groups = joined.iter().filter_map(|endpoint| endpoint.group.as_ref());
        let groups = groups.filter(|group| group.has(qpn));
        groups.map(|group| group.address.to_string()).collect()
    }

    /// Detaches a QP that ends from all groups. Returns true if an endpoint was removed from
    /// `endpoints`.
    pub(crate) fn forget(
        &self,
        endpoints: &RwLock<Vec<Arc<LocalEndpoint>>, rank::Endpoints>,
        qpn: Qpn,
    ) -> bool {
        let mut joined = self.joined.lock();
        for group in joined.iter().filter_map(|endpoint| endpoint.group.as_ref()) {
            group.members.write().retain(|member| *member != qpn);
        }
        close_empty(endpoints, &mut joined)
    }
}

fn close_empty(
    endpoints: &RwLock<Vec<Arc<LocalEndpoint>>, rank::Endpoints>,
    joined: &mut Vec<Arc<LocalEndpoint>>,
) -> bool {
    let is_empty = |endpoint: &Arc<LocalEndpoint>| {
        let group = endpoint.group.as_ref();
        group.is_some_and(|group| group.members.read().is_empty())
    };
    let any = joined.iter().any(is_empty);
    if any {
        joined.retain(|endpoint| !is_empty(endpoint));
        endpoints.write().retain(|endpoint| !is_empty(endpoint));
    }
    any
}

/// The groups of a device with this address: one for each port that has joined it.
fn of_address<'j>(
    joined: &'j [Arc<LocalEndpoint>],
    hca: &Arc<Hca>,
    address: IpAddr,
) -> impl Iterator<Item = &'j Group> {
    let hca = Arc::clone(hca);
    let groups = joined.iter().filter_map(move |endpoint| {
        let own = endpoint.hca.as_ref();
        own.filter(|own| Arc::ptr_eq(own, &hca))?;
        endpoint.group.as_ref()
    });
    groups.filter(move |group| group.address == address)
}
