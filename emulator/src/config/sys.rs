//! Three queries of an interface that need a system call.
//!
//! `/sys/class/net` has these values too, but it belongs to the mount namespace. In a network
//! namespace without its own sysfs, it shows the interfaces of another one.

use std::ffi::CString;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, OwnedFd};

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
    let mut request = request_for(name)?;
    let handle = handle()?;
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

/// `struct ethtool_value`, of `linux/ethtool.h`.
#[repr(C)]
struct EthtoolValue {
    cmd: u32,
    data: u32,
}

/// `ETHTOOL_GLINK`.
const GET_LINK: u32 = 0x0a;

/// Returns true if the interface `name` is up and has a carrier at this moment. The flags of an
/// interface follow its carrier up to a second late, so a new interface seems to have none.
///
/// # Errors
/// Errors of `socket` and `ioctl(SIOCETHTOOL)`, such as `EOPNOTSUPP` of a driver that does not
/// know, or `InvalidInput` for an invalid name.
pub(super) fn interface_has_link(name: &str) -> io::Result<bool> {
    let mut request = request_for(name)?;
    let handle = handle()?;
    let mut value = EthtoolValue {
        cmd: GET_LINK,
        data: 0,
    };
    request.ifr_ifru.ifru_data = (&raw mut value).cast();
    // SAFETY: the descriptor is open for the whole call. SIOCETHTOOL reads the name and the pointer
    // from `request`, and reads and writes the `value` that this points to, which outlives it.
    let result = unsafe { libc::ioctl(handle.as_raw_fd(), libc::SIOCETHTOOL, &raw mut request) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(value.data != 0)
}

/// Makes the argument of a request about the interface `name`.
fn request_for(name: &str) -> io::Result<libc::ifreq> {
    // SAFETY: `ifreq` is a plain C structure, for which all-zero bytes are a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // One byte stays for the terminating NUL.
    if name.is_empty() || name.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    Ok(request)
}

/// Opens a handle on the network namespace, for which any socket serves.
fn handle() -> io::Result<OwnedFd> {
    udp_socket((Ipv4Addr::UNSPECIFIED, 0).into())
        .or_else(|_| udp_socket((Ipv6Addr::UNSPECIFIED, 0).into()))
        .map(OwnedFd::from)
}
