//! The services of the connection manager and their owners, within a process or on a host.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use rocade_wire::mad::ServiceId;

/// The local addresses that a port is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum BoundTo {
    /// One address.
    Ip(IpAddr),
    /// All IPv4 addresses.
    AnyV4,
    /// All IPv6 addresses.
    AnyV6,
    /// All addresses.
    Any,
}

impl BoundTo {
    /// Returns true if it includes this address.
    pub(crate) fn covers(self, ip: IpAddr) -> bool {
        match self {
            Self::Ip(own) => own == ip,
            Self::AnyV4 => ip.is_ipv4(),
            Self::AnyV6 => ip.is_ipv6(),
            Self::Any => true,
        }
    }

    /// Returns true if both have an address in common.
    fn overlaps(self, other: Self) -> bool {
        match (self, other) {
            (Self::Ip(ip), other) | (other, Self::Ip(ip)) => other.covers(ip),
            (Self::AnyV4, Self::AnyV6) | (Self::AnyV6, Self::AnyV4) => false,
            _ => true,
        }
    }
}

/// The reason why a port is not available. The error numbers are those of Linux.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Conflict {
    /// The port is in use at that address.
    Here,
    /// One of both bindings is for all addresses.
    Everywhere,
}

impl Conflict {
    pub(crate) const fn errno(self) -> i32 {
        match self {
            Self::Here => libc::EADDRINUSE,
            Self::Everywhere => libc::EADDRNOTAVAIL,
        }
    }
}

/// A port that is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Binding {
    /// Port space and port.
    pub(crate) service: ServiceId,
    /// The addresses.
    pub(crate) to: BoundTo,
    /// Other bindings that also set this may have the same port.
    pub(crate) reuse: bool,
    /// The binding is that of a listener. There can be only one.
    pub(crate) listens: bool,
}

/// The port of a service ID of `rdma_cm`.
pub(crate) const fn port_of(service: ServiceId) -> u16 {
    (service.get() & 0xffff) as u16
}

/// The services and their owners.
#[derive(Debug)]
pub(crate) struct Services<O> {
    by_id: BTreeMap<ServiceId, Vec<(O, Binding)>>,
}

impl<O> Default for Services<O> {
    fn default() -> Self {
        Self {
            by_id: BTreeMap::new(),
        }
    }
}

impl<O: Copy + PartialEq> Services<O> {
    /// Returns why a binding was refused. A refused binding without a port means that no port is
    /// left.
    //= CMA-13
    pub(crate) fn conflict(&self, binding: &Binding) -> Conflict {
        self.conflict_with_others(binding, None)
    }

    /// Returns why an owner may not listen, ignoring its own binding.
    pub(crate) fn listen_conflict(&self, owner: O, binding: &Binding) -> Conflict {
        self.conflict_with_others(binding, Some(owner))
    }

    fn conflict_with_others(&self, binding: &Binding, owner: Option<O>) -> Conflict {
        let at_one = |to| matches!(to, BoundTo::Ip(_));
        let taken = self.by_id.get(&binding.service);
        let own = |(who, other): &&(O, Binding)| {
            owner == Some(*who) && other.to == binding.to && !other.listens
        };
        let others = taken.into_iter().flatten().filter(|entry| !own(entry));
        let mut others = others.map(|(_, other)| other.to);
        let here = others.any(|to| at_one(to) && to.overlaps(binding.to));
        if here && at_one(binding.to) {
            Conflict::Here
        } else {
            Conflict::Everywhere
        }
    }

    /// Takes a port. Returns false if it is in use.
    //= CMA-13
    pub(crate) fn bind(&mut self, owner: O, binding: Binding) -> bool {
        let taken = self.by_id.entry(binding.service).or_default();
        let is_free = taken.iter().all(|(_, other)| {
            let shared = binding.reuse && other.reuse && !(binding.listens && other.listens);
            shared || !binding.to.overlaps(other.to)
        });
        if is_free {
            taken.push((owner, binding));
        } else if taken.is_empty() {
            self.by_id.remove(&binding.service);
        }
        is_free
    }

    /// Takes any free port of the range. The search begins at offset `start`.
    //= CMA-13
    pub(crate) fn bind_any(
        &mut self,
        owner: O,
        binding: Binding,
        (first, last): (u16, u16),
        start: usize,
    ) -> Option<Binding> {
        let count = usize::from(last.saturating_sub(first)) + 1;
        (0..count).find_map(|step| {
            let offset = u64::try_from((start + step) % count).unwrap_or(0);
            let id = binding.service.get() + u64::from(first) + offset;
            let binding = Binding {
                service: ServiceId::new(id),
                ..binding
            };
            // Not even shared ports.
            let is_free = !self.by_id.contains_key(&binding.service);
            (is_free && self.bind(owner, binding)).then_some(binding)
        })
    }

    /// Marks a binding as that of a listener, whose port cannot be shared. Returns false if there
    /// is another owner of the port, or the owner already listens there.
    //= CMA-13
    pub(crate) fn listen(&mut self, owner: O, binding: Binding) -> bool {
        let Some(taken) = self.by_id.get_mut(&binding.service) else {
            return false;
        };
        let own = |(who, other): &(O, Binding)| *who == owner && other.to == binding.to;
        let is_shared = taken
            .iter()
            .any(|entry| !own(entry) && entry.1.to.overlaps(binding.to))
            || taken.iter().filter(|entry| own(entry)).count() > 1;
        match taken
            .iter_mut()
            .find(|entry| own(entry) && !entry.1.listens)
        {
            Some((_, found)) if !is_shared => {
                found.listens = true;
                found.reuse = false;
                true
            }
            _ => false,
        }
    }

    /// Undoes [`Services::listen`]: the owner has the port as before.
    pub(crate) fn unlisten(&mut self, owner: O, binding: Binding) {
        let mut taken = self.by_id.get_mut(&binding.service).into_iter().flatten();
        let own = taken.find(|(who, other)| *who == owner && other.to == binding.to);
        if let Some((_, found)) = own {
            *found = Binding {
                listens: false,
                ..binding
            };
        }
    }

    /// Releases a port.
    pub(crate) fn release(&mut self, owner: O, binding: Binding) {
        let Some(taken) = self.by_id.get_mut(&binding.service) else {
            return;
        };
        let same = |(who, other): &(O, Binding)| {
            *who == owner && other.to == binding.to && other.listens == binding.listens
        };
        if let Some(at) = taken.iter().position(same) {
            taken.swap_remove(at);
        }
        if taken.is_empty() {
            self.by_id.remove(&binding.service);
        }
    }

    /// Releases all ports of an owner.
    pub(crate) fn release_all(&mut self, owner: O) {
        self.by_id.retain(|_, taken| {
            taken.retain(|(who, _)| *who != owner);
            !taken.is_empty()
        });
    }

    /// All bindings, by service.
    pub(crate) fn all(&self) -> impl Iterator<Item = &(O, Binding)> {
        self.by_id.values().flatten()
    }

    /// The owners that listen.
    pub(crate) fn listeners(&self) -> BTreeSet<O>
    where
        O: Ord,
    {
        self.all()
            .filter(|(_, binding)| binding.listens)
            .map(|(owner, _)| *owner)
            .collect()
    }

    /// Returns true if the port is bound at this address, listening or not.
    pub(crate) fn is_bound(&self, service: ServiceId, at: IpAddr) -> bool {
        let taken = self.by_id.get(&service);
        taken.is_some_and(|taken| taken.iter().any(|(_, binding)| binding.to.covers(at)))
    }

    /// Returns true if the service has a listener.
    pub(crate) fn has_listener(&self, service: ServiceId) -> bool {
        let taken = self.by_id.get(&service);
        taken.is_some_and(|taken| taken.iter().any(|(_, binding)| binding.listens))
    }

    /// Returns the listener for a request to this address. A listener at exactly that address takes
    /// precedence over listeners at all addresses.
    pub(crate) fn listener(&self, service: ServiceId, at: IpAddr) -> Option<O> {
        let taken = self.by_id.get(&service)?;
        let listening = taken
            .iter()
            .filter(|(_, binding)| binding.listens && binding.to.covers(at));
        listening
            .min_by_key(|(_, binding)| binding.to)
            .map(|(owner, _)| *owner)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const TCP: u64 = 0x0106_0000;

    fn binding(port: u16, to: BoundTo) -> Binding {
        Binding {
            service: ServiceId::new(TCP + u64::from(port)),
            to,
            reuse: false,
            listens: false,
        }
    }

    fn ip(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    //= CMA-13 type=test
    #[test]
    fn a_port_has_one_owner_at_each_address() {
        let mut services = Services::default();
        let at = |to| binding(7471, to);
        assert!(services.bind(1, at(BoundTo::Ip(ip(1)))));
        assert!(services.bind(2, at(BoundTo::Ip(ip(2)))));
        assert!(!services.bind(3, at(BoundTo::Ip(ip(1)))));
        assert!(!services.bind(3, at(BoundTo::AnyV4)));
        assert!(!services.bind(3, at(BoundTo::Any)));
        assert!(services.bind(3, at(BoundTo::AnyV6)));
        assert!(services.bind(3, binding(7472, BoundTo::Any)));
        assert!(!services.bind(4, binding(7472, BoundTo::AnyV6)));
        services.release(1, at(BoundTo::Ip(ip(1))));
        assert!(services.bind(4, at(BoundTo::Ip(ip(1)))));
        services.release_all(3);
        assert!(services.bind(5, binding(7472, BoundTo::AnyV4)));
        assert!(services.bind(5, at(BoundTo::AnyV6)));
        // Another port space.
        let udp = Binding {
            service: ServiceId::new(0x0111_0000 + 7472),
            ..binding(0, BoundTo::Any)
        };
        assert!(services.bind(6, udp));
    }

    /// A port is shared only by owners that do not listen there, as on Linux.
    //= CMA-13 type=test
    #[test]
    fn a_port_that_is_shared_has_no_listener() {
        let mut services = Services::default();
        let shared = Binding {
            reuse: true,
            ..binding(5000, BoundTo::Any)
        };
        assert!(services.bind(1, shared) && services.bind(2, shared));
        assert!(!services.bind(3, binding(5000, BoundTo::AnyV4)));
        assert_eq!(services.listener(shared.service, ip(1)), None);
        assert!(!services.listen(2, shared) && !services.listen(1, shared));
        assert_eq!(services.listen_conflict(2, &shared), Conflict::Everywhere);
        services.release(1, shared);
        assert!(services.listen(2, shared));
        assert!(!services.listen(2, shared), "the owner listens already");
        assert_eq!(services.listener(shared.service, ip(1)), Some(2));
        assert!(!services.bind(1, shared), "a listener shares nothing");
        services.unlisten(2, shared);
        assert_eq!(services.listener(shared.service, ip(1)), None);
        assert!(services.bind(1, shared));
        services.release_all(1);
        assert!(services.listen(2, shared));
        services.release_all(2);
        assert!(services.bind(3, binding(5000, BoundTo::AnyV4)));
        assert_eq!(services.listener(shared.service, ip(1)), None);
        // Two bindings of one owner also share the port.
        let at_one = Binding {
            reuse: true,
            ..binding(5001, BoundTo::Ip(ip(1)))
        };
        assert!(services.bind(1, at_one) && services.bind(1, at_one));
        assert!(!services.listen(1, at_one));
        assert_eq!(services.listen_conflict(4, &at_one), Conflict::Here);
    }

    #[test]
    fn a_listener_at_the_address_comes_first() {
        let mut services = Services::default();
        let (one, v4) = (BoundTo::Ip(ip(1)), BoundTo::AnyV4);
        assert!(services.bind(1, binding(5000, v4)));
        assert!(services.listen(1, binding(5000, v4)));
        let service = binding(5000, v4).service;
        assert_eq!(services.listener(service, ip(1)), Some(1));
        assert_eq!(services.listener(service, "fd00::1".parse().unwrap()), None);
        assert!(!services.bind(2, binding(5000, one)));
    }

    #[test]
    fn any_port_of_the_range() {
        let mut services = Services::default();
        let base = binding(0, BoundTo::Any);
        let range = (1000, 1002);
        let ports: Vec<u16> = (0..3)
            .map(|_| services.bind_any(1, base, range, 7).unwrap())
            .map(|binding| port_of(binding.service))
            .collect();
        assert_eq!(ports, [1001, 1002, 1000]);
        assert_eq!(services.bind_any(1, base, range, 7), None);
    }
}
