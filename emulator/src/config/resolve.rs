//! Resolves settings to devices, given the interfaces of the host.

use std::net::IpAddr;

use rocade_wire::Pkey;

use super::error::{ConfigError, Origin};
use super::guid::HostIdentity;
use super::host::{self, HostNetwork};
use super::likeness::Likeness;
use super::spec::{DeviceSpec, SpecItem};
use super::{DeviceConfig, PortConfig};

/// Returns one device per interface that has an address.
pub(super) fn default_devices(
    network: &HostNetwork,
    identity: &HostIdentity,
    like: Likeness,
) -> Vec<DeviceConfig> {
    let with_addr = network
        .interfaces
        .iter()
        .filter_map(|i| Some((i, *i.addrs.first()?)));
    with_addr
        .enumerate()
        .map(|(number, (interface, first))| {
            let name = like.device_name(number);
            DeviceConfig {
                guid: like.guid(identity.device_guid(&name, first)),
                name,
                port: PortConfig {
                    ifname: Some(interface.name.clone()),
                    ifindex: interface.index,
                    addrs: interface.addrs.clone(),
                    follows: vec![interface.index],
                    netdev_mtu: interface.mtu_bytes,
                },
                second_port: None,
                like,
                identity: like.identity(),
                pkeys: vec![Pkey::DEFAULT],
            }
        })
        .collect()
}

/// Returns the devices of the specifications.
pub(super) fn resolve_specs(
    specs: &[DeviceSpec],
    origin: &Origin,
    network: &HostNetwork,
    identity: &HostIdentity,
    like: Likeness,
) -> Result<Vec<DeviceConfig>, ConfigError> {
    let mut devices: Vec<DeviceConfig> = Vec::new();
    for spec in specs {
        let device = resolve_spec(spec, origin, network, identity, like)?;
        if devices.iter().any(|other| other.name == device.name) {
            return Err(ConfigError::invalid(
                origin,
                spec.to_string(),
                format!("there are two devices called {}", device.name),
                "a different name for each device",
            ));
        }
        let shared = |other: &&DeviceConfig| {
            let mut addrs = device.addrs();
            addrs.any(|addr| other.addrs().any(|theirs| theirs == addr))
        };
        if let Some(other) = devices.iter().find(shared) {
            return Err(ConfigError::invalid(
                origin,
                spec.to_string(),
                format!(
                    "{} and {} have an address in common",
                    other.name, device.name
                ),
                "each address on one device only, e.g. rocade0=127.0.0.2 and rocade1=127.0.0.3",
            ));
        }
        devices.push(device);
    }
    Ok(devices)
}

fn resolve_spec(
    spec: &DeviceSpec,
    origin: &Origin,
    network: &HostNetwork,
    identity: &HostIdentity,
    like: Likeness,
) -> Result<DeviceConfig, ConfigError> {
    let bad = |reason: String| {
        let allowed = format!(
            "an interface that is up or an address of this host; here: {}",
            network.summary()
        );
        ConfigError::invalid(origin, spec.to_string(), reason, allowed)
    };
    let port = |items| resolve_port(items, network, &bad);
    let first = port(&spec.items)?;
    let second = match &*spec.second {
        [] => None,
        items => Some(port(items)?),
    };
    let in_both = |second: &PortConfig| first.addrs.iter().any(|a| second.addrs.contains(a));
    if second.as_ref().is_some_and(in_both) {
        return Err(bad("its ports have an address in common".to_owned()));
    }
    let Some(first_addr) = first.addrs.first() else {
        return Err(bad("it has no address".to_owned()));
    };
    Ok(DeviceConfig {
        guid: like.guid(identity.device_guid(&spec.name, *first_addr)),
        name: spec.name.clone(),
        port: first,
        second_port: second,
        like,
        identity: like.identity(),
        pkeys: vec![Pkey::DEFAULT],
    })
}

fn resolve_port(
    items: &[SpecItem],
    network: &HostNetwork,
    bad: &impl Fn(String) -> ConfigError,
) -> Result<PortConfig, ConfigError> {
    let mut addrs: Vec<IpAddr> = Vec::new();
    let mut owners: Vec<&host::Interface> = Vec::new();
    let mut follows = Vec::new();
    for item in items {
        let (interface, new): (_, &[IpAddr]) = match item {
            SpecItem::Iface(name) => {
                let interface = network
                    .by_name(name)
                    .ok_or_else(|| bad(no_interface(name)))?;
                follows.push(interface.index);
                (interface, &interface.addrs)
            }
            SpecItem::Addr { addr, zone: None } => {
                let missing = || bad(format!("{addr} is not an address of this host"));
                (
                    network.owner_of(*addr).ok_or_else(missing)?,
                    std::slice::from_ref(addr),
                )
            }
            SpecItem::Addr {
                addr,
                zone: Some(zone),
            } => {
                let interface = network
                    .by_name(zone)
                    .ok_or_else(|| bad(no_interface(zone)))?;
                if !interface.addrs.contains(addr) {
                    return Err(bad(format!("{addr} is not an address of {zone}")));
                }
                (interface, std::slice::from_ref(addr))
            }
        };
        let first_owner = owners.first().copied().unwrap_or(interface);
        if interface.index != first_owner.index && new.iter().any(host::is_link_local_v6) {
            return Err(bad(format!(
                "a link-local address of {} cannot join a device of {}",
                interface.name, first_owner.name
            )));
        }
        for addr in new {
            if !addrs.contains(addr) {
                addrs.push(*addr);
            }
        }
        owners.push(interface);
    }
    let Some(first) = owners.first() else {
        return Err(bad("it has no address".to_owned()));
    };
    let mtu = owners.iter().map(|owner| owner.mtu_bytes).min();
    Ok(PortConfig {
        ifname: Some(first.name.clone()),
        ifindex: first.index,
        netdev_mtu: mtu.unwrap_or(first.mtu_bytes),
        addrs,
        follows,
    })
}

fn no_interface(name: &str) -> String {
    if host::exists(name) {
        format!("the interface {name} is down or has no IP address")
    } else {
        format!("there is no interface {name}")
    }
}
