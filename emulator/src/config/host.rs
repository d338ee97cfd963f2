//! The network interfaces of this host that can back devices.

use std::fmt::Write as _;
use std::io;
use std::net::IpAddr;

use super::sys;
use crate::failure::named;

/// Assumed MTU in bytes if the kernel reports none: that of Ethernet.
const FALLBACK_MTU_BYTES: u32 = 1500;

/// A network interface with an IP address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// Name, e.g. `eth0`.
    pub name: String,
    /// Index in this network namespace, never 0, and the scope ID of link-local addresses.
    pub index: u32,
    /// MTU in bytes.
    pub mtu_bytes: u32,
    /// True for a loopback interface.
    pub loopback: bool,
    /// Its addresses in GID order: IPv4, then IPv6, then link-local IPv6, each in the kernel's
    /// order.
    pub addrs: Vec<IpAddr>,
}

impl Interface {
    /// Returns true if all addresses are link-local IPv6 addresses.
    fn link_local_only(&self) -> bool {
        self.addrs.iter().all(is_link_local_v6)
    }
}

/// All interfaces of this network namespace that can back a device.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HostNetwork {
    /// The interfaces in device order: by index, those with only link-local addresses after the
    /// others, loopback last.
    pub interfaces: Vec<Interface>,
    /// The interfaces that are down. They back no device, but own their addresses.
    pub down: Vec<Interface>,
}

impl HostNetwork {
    /// Queries the kernel.
    ///
    /// # Errors
    /// Errors of `getifaddrs` and `if_nametoindex`.
    pub fn discover() -> io::Result<Self> {
        let mut all: [Vec<Interface>; 2] = Default::default();
        let listed = if_addrs::get_if_addrs().map_err(named(
            "failed to read the addresses of the system (getifaddrs, which calls getsockname)",
        ))?;
        for found in listed {
            // Without an index, the interface is gone by now, or the system does not tell.
            let index = match found.index {
                None => sys::interface_index(&found.name)?,
                index => index,
            };
            let Some(index) = index else { continue };
            let is_up = found.is_oper_up() || sys::interface_has_link(&found.name).unwrap_or(false);
            let interfaces = &mut all[usize::from(!is_up)];
            let addr = found.ip();
            if let Some(known) = interfaces.iter_mut().find(|known| known.index == index) {
                known.addrs.push(addr);
                known.loopback |= found.is_loopback();
            } else {
                interfaces.push(Interface {
                    mtu_bytes: mtu_of(&found.name),
                    loopback: found.is_loopback(),
                    name: found.name,
                    index,
                    addrs: vec![addr],
                });
            }
        }
        let [up, down] = all;
        Ok(Self {
            down,
            ..Self::new(up)
        })
    }

    /// Sorts a list of interfaces that are up into device order, and their addresses into GID
    /// order.
    #[must_use]
    pub fn new(mut interfaces: Vec<Interface>) -> Self {
        for interface in &mut interfaces {
            interface.addrs.sort_by_key(gid_rank);
            interface.addrs.dedup();
        }
        interfaces.retain(|interface| !interface.addrs.is_empty());
        interfaces.sort_by_key(|i| (i.loopback, i.link_local_only(), i.index));
        Self {
            interfaces,
            down: Vec::new(),
        }
    }

    /// Returns true if the interface with this index is up and has a carrier, or is unknown.
    #[must_use]
    pub fn is_running(&self, index: u32) -> bool {
        !self.down.iter().any(|interface| interface.index == index)
    }

    /// Returns the interface called `name`.
    #[must_use]
    pub fn by_name(&self, name: &str) -> Option<&Interface> {
        self.interfaces
            .iter()
            .find(|interface| interface.name == name)
    }

    /// Returns the interface that carries traffic to and from the local address `addr`. It is the
    /// interface with that address. Otherwise it is the loopback interface if the kernel can bind
    /// the address (all of 127.0.0.0/8, and prefixes with a local route).
    #[must_use]
    pub fn owner_of(&self, addr: IpAddr) -> Option<&Interface> {
        self.interfaces
            .iter()
            .chain(&self.down)
            .find(|interface| interface.addrs.contains(&addr))
            .or_else(|| {
                let loopback = self
                    .interfaces
                    .iter()
                    .find(|interface| interface.loopback)?;
                is_bindable(addr).then_some(loopback)
            })
    }

    /// Returns one line for error messages: `eth0 (192.0.2.2, fd00::2), lo (127.0.0.1, ::1)`.
    #[must_use]
    pub fn summary(&self) -> String {
        let mut out = String::new();
        for interface in &self.interfaces {
            if !out.is_empty() {
                out.push_str(", ");
            }
            let addrs: Vec<String> = interface.addrs.iter().map(ToString::to_string).collect();
            // Writing to a String cannot fail.
            let _ = write!(out, "{} ({})", interface.name, addrs.join(", "));
        }
        if out.is_empty() {
            out.push_str("none is up");
        }
        out
    }
}

/// Returns true if an interface of this name exists, up or down.
pub(super) fn exists(name: &str) -> bool {
    matches!(sys::interface_index(name), Ok(Some(_)))
}

/// Returns true if `addr` is in fe80::/10.
pub(super) fn is_link_local_v6(addr: &IpAddr) -> bool {
    matches!(addr, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

/// Returns the rank of an address in the GID table of its device.
pub(super) fn gid_rank(addr: &IpAddr) -> u8 {
    match addr {
        IpAddr::V4(_) => 0,
        IpAddr::V6(_) if !is_link_local_v6(addr) => 1,
        IpAddr::V6(_) => 2,
    }
}

fn is_bindable(addr: IpAddr) -> bool {
    crate::sys::udp_socket((addr, 0).into()).is_ok()
}

fn mtu_of(name: &str) -> u32 {
    sys::interface_mtu(name)
        .ok()
        .or_else(|| {
            let text = std::fs::read_to_string(format!("/sys/class/net/{name}/mtu")).ok()?;
            text.trim().parse().ok()
        })
        .unwrap_or(FALLBACK_MTU_BYTES)
}
