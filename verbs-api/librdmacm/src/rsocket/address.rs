//! Conversion of addresses between C and Rust.

use std::{
    ffi::c_int,
    mem::size_of,
    net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6},
    ptr,
};

use libc::{sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t};
use rocade_abi::{AF_IB, sockaddr_ib};

use crate::{
    args::zeroed,
    ffi::Errno,
    id::{PS_TCP, address_len, ib_address},
};

/// Reads an address from C. An `AF_IB` address has a GID, which is an IPv6 address on RoCE, and a
/// service ID, whose low bits are the port.
///
/// # Errors
/// `EINVAL` if the address is too short, `EAFNOSUPPORT` for another family.
///
/// # Safety
/// `addr` must be NULL or readable for `len` bytes.
pub(super) unsafe fn read(addr: *const sockaddr, len: socklen_t) -> Result<SocketAddr, Errno> {
    if addr.is_null() {
        return Err(Errno(libc::EFAULT));
    }
    let len = usize::try_from(len).unwrap_or(0);
    if len < size_of::<u16>() {
        return Err(Errno::INVAL);
    }
    let mut storage: sockaddr_storage = zeroed();
    let len = len.min(size_of::<sockaddr_storage>());
    // SAFETY: both have this length.
    unsafe { ptr::copy_nonoverlapping(addr.cast::<u8>(), (&raw mut storage).cast(), len) };
    let needed = address_len(storage.ss_family.into()).ok_or(Errno(libc::EAFNOSUPPORT))?;
    if len < needed {
        return Err(Errno::INVAL);
    }
    if c_int::from(storage.ss_family) == AF_IB {
        // SAFETY: the family determines the type, and the storage is large enough.
        let ib = unsafe { (&raw const storage).cast::<sockaddr_ib>().read() };
        let [.., high, low] = u64::from_be(ib.sib_sid).to_be_bytes();
        let port = u16::from_be_bytes([high, low]);
        return Ok(SocketAddr::new(Ipv6Addr::from(ib.sib_addr).into(), port));
    }
    from_storage(&storage).ok_or(Errno(libc::EAFNOSUPPORT))
}

/// Returns the IP address in a storage, or `None` for another family.
pub(super) fn from_storage(storage: &sockaddr_storage) -> Option<SocketAddr> {
    match c_int::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family determines the type, and the storage is large enough.
            let v4 = unsafe { ptr::from_ref(storage).cast::<sockaddr_in>().read() };
            let ip = u32::from_be(v4.sin_addr.s_addr);
            Some(SocketAddrV4::new(ip.into(), u16::from_be(v4.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: the family determines the type, and the storage is large enough.
            let v6 = unsafe { ptr::from_ref(storage).cast::<sockaddr_in6>().read() };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            let flow = u32::from_be(v6.sin6_flowinfo);
            let port = u16::from_be(v6.sin6_port);
            Some(SocketAddrV6::new(ip, port, flow, v6.sin6_scope_id).into())
        }
        _ => None,
    }
}

/// Writes an IP address to a storage.
pub(super) fn to_storage(addr: SocketAddr) -> sockaddr_storage {
    let mut storage: sockaddr_storage = zeroed();
    match addr {
        SocketAddr::V4(addr) => {
            let mut v4: sockaddr_in = zeroed();
            v4.sin_family = family(libc::AF_INET);
            v4.sin_port = addr.port().to_be();
            v4.sin_addr.s_addr = u32::from(*addr.ip()).to_be();
            // SAFETY: the storage is large enough, and aligned for each.
            unsafe { (&raw mut storage).cast::<sockaddr_in>().write(v4) };
        }
        SocketAddr::V6(addr) => {
            let mut v6: sockaddr_in6 = zeroed();
            v6.sin6_family = family(libc::AF_INET6);
            v6.sin6_port = addr.port().to_be();
            v6.sin6_flowinfo = addr.flowinfo().to_be();
            v6.sin6_addr.s6_addr = addr.ip().octets();
            v6.sin6_scope_id = addr.scope_id();
            // SAFETY: as above.
            unsafe { (&raw mut storage).cast::<sockaddr_in6>().write(v6) };
        }
    }
    storage
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
            let ib = ib_address(v6, addr.port(), space);
            let mut storage: sockaddr_storage = zeroed();
            // SAFETY: the storage is large enough, and aligned for each.
            unsafe { (&raw mut storage).cast::<sockaddr_ib>().write(ib) };
            storage
        }
        libc::AF_INET6 if addr.is_ipv4() => to_storage(SocketAddr::new(v6.into(), addr.port())),
        _ => to_storage(addr),
    }
}

/// Writes an address of a family to C memory, truncated to the given capacity, and sets `len` to
/// its full length.
///
/// # Safety
/// `addr` must be writable for `*len` bytes, and `len` must be NULL or valid.
pub(super) unsafe fn write(
    found: SocketAddr,
    domain: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> Result<(), Errno> {
    // SAFETY: by contract.
    let capacity = unsafe { len.as_mut() }.ok_or(Errno(libc::EFAULT))?;
    let storage = for_domain(found, domain);
    let full = address_len(storage.ss_family.into()).ok_or(Errno::INVAL)?;
    let fits = full.min(usize::try_from(*capacity).unwrap_or(0));
    if fits > 0 && addr.is_null() {
        return Err(Errno(libc::EFAULT));
    }
    if fits > 0 {
        let from = (&raw const storage).cast::<u8>();
        // SAFETY: the storage has that length, and `addr` is writable by contract.
        unsafe { ptr::copy_nonoverlapping(from, addr.cast::<u8>(), fits) };
    }
    *capacity = socklen_t::try_from(full).unwrap_or(0);
    Ok(())
}
