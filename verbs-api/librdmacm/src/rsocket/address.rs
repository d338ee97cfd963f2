//! Conversion of addresses between C and Rust.

use std::{
    ffi::c_int,
    mem::size_of,
    net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6},
};

use libc::{sockaddr_in, sockaddr_in6, sockaddr_storage};
use rocade_abi::AF_IB;

use crate::{
    args::{Address, Answer, Buffer, Sockaddr, address_len, bytes_of, zeroed},
    ffi::Errno,
    id::{PS_TCP, ib_address},
};

/// Reads an address from C. An `AF_IB` address has a GID, which is an IPv6 address on RoCE, and a
/// service ID, whose low bits are the port.
///
/// # Errors
/// `EFAULT` for NULL, `EINVAL` if the address is too short, `EAFNOSUPPORT` for another family.
pub(super) fn read(addr: Buffer<'_>) -> Result<SocketAddr, Errno> {
    if addr.is_null() {
        return Err(Errno(libc::EFAULT));
    }
    if addr.len() < size_of::<u16>() {
        return Err(Errno::INVAL);
    }
    to_rust(&addr.sockaddr().ok_or(Errno::INVAL)?).ok_or(Errno(libc::EAFNOSUPPORT))
}

/// Converts an address. `None` for another family.
fn to_rust(addr: &Sockaddr) -> Option<SocketAddr> {
    match addr {
        Sockaddr::V4(v4) => {
            let ip = u32::from_be(v4.sin_addr.s_addr);
            Some(SocketAddrV4::new(ip.into(), u16::from_be(v4.sin_port)).into())
        }
        Sockaddr::V6(v6) => {
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            let flow = u32::from_be(v6.sin6_flowinfo);
            let port = u16::from_be(v6.sin6_port);
            Some(SocketAddrV6::new(ip, port, flow, v6.sin6_scope_id).into())
        }
        Sockaddr::Ib(ib) => {
            let [.., high, low] = u64::from_be(ib.sib_sid).to_be_bytes();
            let port = u16::from_be_bytes([high, low]);
            Some(SocketAddr::new(Ipv6Addr::from(ib.sib_addr).into(), port))
        }
        Sockaddr::Other => None,
    }
}

/// Returns the IP address in a storage, or `None` for another family.
pub(super) fn from_storage(storage: &sockaddr_storage) -> Option<SocketAddr> {
    match Address::of(storage).read().ok()? {
        Sockaddr::Ib(_) => None,
        address => to_rust(&address),
    }
}

/// Writes an IP address to a storage.
pub(super) fn to_storage(addr: SocketAddr) -> sockaddr_storage {
    let address = match addr {
        SocketAddr::V4(addr) => {
            let mut v4: sockaddr_in = zeroed();
            v4.sin_family = family(libc::AF_INET);
            v4.sin_port = addr.port().to_be();
            v4.sin_addr.s_addr = u32::from(*addr.ip()).to_be();
            Sockaddr::V4(v4)
        }
        SocketAddr::V6(addr) => {
            let mut v6: sockaddr_in6 = zeroed();
            v6.sin6_family = family(libc::AF_INET6);
            v6.sin6_port = addr.port().to_be();
            v6.sin6_flowinfo = addr.flowinfo().to_be();
            v6.sin6_addr.s6_addr = addr.ip().octets();
            v6.sin6_scope_id = addr.scope_id();
            Sockaddr::V6(v6)
        }
    };
    address.to_storage().unwrap_or_else(zeroed)
}

fn family(family: c_int) -> libc::sa_family_t {
    libc::sa_family_t::try_from(family).unwrap_or(0)
}

/// Converts an IPv4-mapped IPv6 address to IPv4, because IPv4 packets carry it.
pub(super) fn unmapped(addr: SocketAddr) -> SocketAddr {
    match addr.ip() {
        IpAddr::V6(ip) => ip
            .to_ipv4_mapped()
            .map_or(addr, |ip| SocketAddr::new(ip.into(), addr.port())),
        IpAddr::V4(_) => addr,
    }
}

/// Converts an address to the family of the program's socket. IPv6 sockets get IPv4 addresses as
/// IPv4-mapped ones, and `AF_IB` sockets get GIDs.
fn for_domain(addr: SocketAddr, domain: c_int) -> sockaddr_storage {
    let v6 = match addr.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    match domain {
        AF_IB => {
            let space = c_int::try_from(PS_TCP).unwrap_or(0);
            let ib = Sockaddr::Ib(ib_address(v6, addr.port(), space));
            ib.to_storage().unwrap_or_else(zeroed)
        }
        libc::AF_INET6 if addr.is_ipv4() => to_storage(SocketAddr::new(v6.into(), addr.port())),
        _ => to_storage(addr),
    }
}

/// Writes an address of a family to C memory, truncated to the given capacity, and sets the length
/// to its full length.
///
/// # Errors
/// `EFAULT` for NULL.
pub(super) fn write(found: SocketAddr, domain: c_int, to: Answer<'_>) -> Result<(), Errno> {
    if to.has_no_length() {
        return Err(Errno(libc::EFAULT));
    }
    let storage = for_domain(found, domain);
    let full = address_len(storage.ss_family.into()).ok_or(Errno::INVAL)?;
    to.write(bytes_of(&storage).get(..full).ok_or(Errno::INVAL)?)?;
    to.set_len(full);
    Ok(())
}
