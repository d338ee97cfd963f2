//! Finds the device of an address, and the device that leads to a peer.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::sync::Arc;

use crate::engine::Host;
use crate::failure::{NO_ADDRESS, named};
use crate::hca::Hca;
use crate::sys;

/// The unspecified address of an IP version.
pub(super) const fn unspecified(like: IpAddr) -> IpAddr {
    match like {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    }
}

/// Returns an address with another port.
pub(super) const fn with_port(mut addr: SocketAddr, port: u16) -> SocketAddr {
    addr.set_port(port);
    addr
}

/// Converts IPv4-mapped IPv6 addresses to IPv4.
pub(super) const fn canonical(addr: SocketAddr) -> SocketAddr {
    match addr {
        SocketAddr::V6(v6) if v6.scope_id() == 0 => {
            SocketAddr::new(addr.ip().to_canonical(), addr.port())
        }
        addr => addr,
    }
}

/// Returns true for a link-local address, which is ambiguous without an interface.
const fn has_scope(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(_) => false,
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

/// Returns an address of a device, without a port.
fn scoped(hca: &Hca, ip: IpAddr) -> SocketAddr {
    match ip {
        IpAddr::V4(_) => SocketAddr::new(ip, 0),
        IpAddr::V6(v6) => SocketAddrV6::new(v6, 0, 0, hca.local_addr(ip).scope_id()).into(),
    }
}

/// The device that has an address, unless a fault rule has removed it.
pub(super) fn hca_with(host: &Host, ip: IpAddr) -> Option<Arc<Hca>> {
    let mut hcas = host.present_hcas();
    hcas.find(|hca| hca.config.addrs().any(|own| own == ip))
        .cloned()
}

/// Returns true if an address means all addresses. A loopback address does if no device has
/// one.
pub(super) fn stands_for_all(host: &Host, ip: IpAddr) -> bool {
    ip.is_unspecified() || (ip.is_loopback() && !has_loopback(host))
}

fn has_loopback(host: &Host) -> bool {
    let mut addrs = host.hcas().iter().flat_map(|hca| hca.config.addrs());
    addrs.any(|own| own.is_loopback())
}

/// Replaces a loopback address of the peer by an address of a device, unless a device has a
/// loopback address.
//= CMA-16
pub(super) fn instead_of_loopback(host: &Host, dst: SocketAddr) -> SocketAddr {
    if !dst.ip().is_loopback() || has_loopback(host) {
        return dst;
    }
    let mut own = host.present_hcas().flat_map(|hca| {
        let addrs = hca.config.addrs();
        addrs.map(|own| scoped(hca, own))
    });
    let own = own.find(|own| own.is_ipv4() == dst.is_ipv4());
    own.map_or(dst, |own| with_port(own, dst.port()))
}

/// Checks that the system has a route from an address of a device to a peer.
///
/// # Errors
/// [`io::Error`] if the host has no route from `own` to `dst`, or no descriptor is left.
//= EVT-01
pub(super) fn route_from(host: &Host, own: SocketAddr, dst: SocketAddr) -> io::Result<()> {
    // A local address is reachable from each of them. A packet to a group names its interface,
    // and needs no route.
    let is_own = !has_scope(dst.ip()) && hca_with(host, dst.ip()).is_some();
    if host.is_simulated() || is_own || dst.ip().is_multicast() {
        return Ok(());
    }
    let socket = sys::udp_socket(with_port(own, 0))?;
    // The port does not matter, but must not be 0.
    socket.connect(with_port(dst, dst.port().max(1)))
}

/// Returns the local address that the system would use to reach a peer, and its device.
///
/// # Errors
/// [`io::Error`] if there is no route, or if it starts at an address of no device.
//= CMA-16
pub(super) fn source_for(host: &Host, dst: SocketAddr) -> io::Result<(SocketAddr, Arc<Hca>)> {
    // A local address is reached from itself, whatever the system would use. The system need
    // not be asked.
    if !has_scope(dst.ip())
        && let Some(hca) = hca_with(host, dst.ip())
        && hca.has_address(dst.ip())
    {
        return Ok((scoped(&hca, dst.ip()), hca));
    }
    let socket = sys::udp_socket((unspecified(dst.ip()), 0).into())?;
    // The port does not matter, but must not be 0.
    socket.connect(with_port(dst, dst.port().max(1)))?;
    let chosen = socket.local_addr().map_err(named(NO_ADDRESS))?;
    // To a local address the system may use another source. That source may belong to no device
    // although another address of the same kind does.
    let of_kind =
        |ip: &IpAddr| ip.is_ipv4() == dst.is_ipv4() && ip.is_loopback() == dst.ip().is_loopback();
    let mut others = host.present_hcas().flat_map(|hca| hca.config.addrs());
    let other = others.find(of_kind);
    for ip in [Some(dst.ip()), Some(chosen.ip()), other]
        .into_iter()
        .flatten()
    {
        if let Some(hca) = hca_with(host, ip) {
            return Ok((scoped(&hca, ip), hca));
        }
    }
    Err(io::Error::from_raw_os_error(libc::ENODEV))
}
