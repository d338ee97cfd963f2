//! Two queries of an interface that need a system call.
//!
//! `/sys/class/net` has both values too, but it belongs to the mount namespace. In a network
//! namespace without its own sysfs, it shows the interfaces of another one.

use std::ffi::CString;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::AsRawFd;

use crate::failure::named;
use crate::sys::udp_socket;

/// Returns the index of the interface `name` in this network namespace, or `None` if there is none.
///
/// # Errors
/// Errors of `socket` and `ioctl(SIOCGIFINDEX)`, such as a refusal of the system.
pub(super) fn interface_index(name: &str) -> io::Result<Option<u32>> {
    let Ok(name) = CString::new(name) else {
        return Ok(None);
    };
    // SAFETY: `name` is a NUL-terminated string that lives across the call, and the function only
    // reads it.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    if index != 0 {
        return Ok(Some(index));
    }
    match io::Error::last_os_error() {
        error if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
        error => Err(named(
            "failed to read the index of a network interface (ioctl)",
        )(error)),
    }
}

/// Returns the MTU in bytes of the interface `name` in this network namespace.
///
/// # Errors
/// Errors of `socket` and `ioctl(SIOCGIFMTU)`, or `InvalidInput` for an invalid name.
pub(super) fn interface_mtu(name: &str) -> io::Result<u32> {
    // SAFETY: `ifreq` is a plain C structure, for which all-zero bytes are a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // One byte stays for the terminating NUL.
    if name.is_empty() || name.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    // Any socket serves as a handle on the network namespace.
    let handle = udp_socket((Ipv4Addr::UNSPECIFIED, 0).into())
        .or_else(|_| udp_socket((Ipv6Addr::UNSPECIFIED, 0).into()))?;
    // SAFETY: the descriptor is open for the whole call. SIOCGIFMTU reads the name and writes the
    // MTU, both inside `request`, which is exclusively borrowed here.
    let result = unsafe { libc::ioctl(handle.as_raw_fd(), libc::SIOCGIFMTU, &raw mut request) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just filled in the `mtu` member of this union, and every bit
    // pattern is a valid integer.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    u32::try_from(mtu).map_err(|_| io::ErrorKind::InvalidData.into())
}
