//! Device specifications: `NAME=IFACE|ADDR[,IFACE|ADDR...][+IFACE|ADDR...]`.

use std::fmt;
use std::net::IpAddr;

use super::error::{ConfigError, Origin};

/// Longest device name in bytes. `struct ibv_device` has 64 with the terminating NUL.
pub const MAX_DEVICE_NAME_LEN: usize = 63;

/// The value of `--dev` and `ROCADE_DEVICES` for a program that finds no RDMA device.
pub(super) const NO_DEVICES: &str = "none";

/// The beginning of a specification that asks for a device of the host.
const OF_HOST: &str = "host:";

/// Longest interface name in bytes (IFNAMSIZ without the terminating NUL).
const MAX_IFACE_NAME_LEN: usize = 15;

const GRAMMAR: &str = "NAME=IFACE or NAME=ADDR, several separated by commas, \
                       those of a second port behind a '+', e.g. rocade0=eth0, \
                       rocade0=127.0.0.2, rocade0=192.0.2.1,fd00::1 or rocade0=eth0+eth1";

/// An item of a device: a whole interface or a single address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SpecItem {
    /// All addresses of the interface with this name.
    Iface(String),
    /// An address of this host.
    Addr {
        /// The address, never IPv4-mapped IPv6.
        addr: IpAddr,
        /// Interface of a link-local address, written after `%`, if given.
        zone: Option<String>,
    },
}

impl fmt::Display for SpecItem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Iface(name) => f.write_str(name),
            Self::Addr { addr, zone: None } => write!(f, "{addr}"),
            Self::Addr {
                addr,
                zone: Some(zone),
            } => write!(f, "{addr}%{zone}"),
        }
    }
}

/// The specification of a device.
///
/// The order of the items is the order of the GID table. An interface stands for its addresses in
/// the order IPv4, IPv6, link-local IPv6.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceSpec {
    /// Device name, e.g. `rocade0`.
    pub name: String,
    /// Items of the first port, at least one.
    pub items: Vec<SpecItem>,
    /// Items of the second port, empty if there is no second port.
    pub second: Vec<SpecItem>,
}

impl fmt::Display for DeviceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}=", self.name)?;
        for (begin, items) in [("", &self.items), ("+", &self.second)] {
            for (index, item) in items.iter().enumerate() {
                let separator = if index == 0 { begin } else { "," };
                write!(f, "{separator}{item}")?;
            }
        }
        Ok(())
    }
}

impl DeviceSpec {
    /// Parses `NAME=IFACE|ADDR[,IFACE|ADDR...][+IFACE|ADDR...]`.
    /// [`Settings::resolve`](super::Settings::resolve) checks later that the interface or address
    /// exists.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] with `origin`, the text and the grammar.
    pub fn parse(text: &str, origin: &Origin) -> Result<Self, ConfigError> {
        let bad = |reason: String| ConfigError::invalid(origin, text, reason, GRAMMAR);
        if text.trim() == NO_DEVICES {
            let reason = "it means that there is no device, and stands alone";
            return Err(ConfigError::invalid(origin, text, reason, GRAMMAR));
        }
        if let Some(name) = text.trim().strip_prefix(OF_HOST) {
            let reason = format!(
                "Rocade's libraries know Rocade's devices only, so they cannot open {name}"
            );
            let allowed = "the program without rocade run, for a device of the host";
            return Err(ConfigError::invalid(origin, text, reason, allowed));
        }
        let Some((name, items)) = text.split_once('=') else {
            return Err(bad(format!(
                "no '=' in it; did you mean rocade0={}?",
                text.trim()
            )));
        };
        let name = name.trim();
        check_name(name).map_err(bad)?;
        let mut ports = items.split('+').map(parse_items);
        let mut next = || ports.next().transpose().map_err(bad);
        let (items, second) = (next()?.unwrap_or_default(), next()?.unwrap_or_default());
        if ports.next().is_some() {
            return Err(bad("a device has two ports at most".to_owned()));
        }
        Ok(Self {
            name: name.to_owned(),
            items,
            second,
        })
    }

    /// Parses specifications separated by `;` (or line breaks), as in `ROCADE_DEVICES`.
    ///
    /// # Errors
    /// Errors of [`parse`](Self::parse), or an error if the list is empty.
    pub fn parse_list(text: &str, origin: &Origin) -> Result<Vec<Self>, ConfigError> {
        let specs: Vec<Self> = text
            .split([';', '\n'])
            .map(str::trim)
            .filter(|spec| !spec.is_empty())
            .map(|spec| Self::parse(spec, origin))
            .collect::<Result<_, _>>()?;
        if specs.is_empty() {
            return Err(ConfigError::invalid(
                origin,
                text,
                "no device in it",
                "one or more of NAME=IFACE|ADDR, separated by ';'",
            ));
        }
        Ok(specs)
    }

    /// Returns one device `rocade0` with the given comma-separated addresses, as in `ROCADE_IP`.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] if one of them is not an IP address.
    pub fn from_ip_list(text: &str, origin: &Origin) -> Result<Self, ConfigError> {
        let allowed = "one or more addresses of this host, e.g. 127.0.0.2 or 192.0.2.1,fd00::1";
        let bad = |reason: String| ConfigError::invalid(origin, text, reason, allowed);
        let items = parse_items(text).map_err(bad)?;
        if let Some(SpecItem::Iface(name)) =
            items.iter().find(|item| matches!(item, SpecItem::Iface(_)))
        {
            return Err(bad(format!("{name:?} is not an IP address")));
        }
        Ok(Self {
            name: "rocade0".to_owned(),
            items,
            second: Vec::new(),
        })
    }
}

fn parse_items(text: &str) -> Result<Vec<SpecItem>, String> {
    text.split(',')
        .map(|item| parse_item(item.trim()))
        .collect()
}

fn parse_item(text: &str) -> Result<SpecItem, String> {
    if text.is_empty() {
        return Err("an interface or address is missing".to_owned());
    }
    let (addr, zone) = match text.split_once('%') {
        Some((addr, zone)) => (addr, Some(zone)),
        None => (text, None),
    };
    // IPv6 addresses are in brackets next to a port.
    let bare = addr
        .strip_prefix('[')
        .and_then(|a| a.strip_suffix(']'))
        .unwrap_or(addr);
    if let Ok(addr) = bare.parse::<IpAddr>() {
        let addr = addr.to_canonical();
        check_addr(addr)?;
        if zone.is_some() && !super::host::is_link_local_v6(&addr) {
            return Err(format!(
                "only link-local addresses (fe80::) take a %interface, not {addr}"
            ));
        }
        return Ok(SpecItem::Addr {
            addr,
            zone: zone.map(str::to_owned),
        });
    }
    let looks_like_iface = text.len() <= MAX_IFACE_NAME_LEN
        && !text.contains(|c: char| c == '/' || c.is_whitespace() || c.is_control());
    if !looks_like_iface {
        return Err(format!(
            "{text:?} is neither an IP address nor an interface name"
        ));
    }
    Ok(SpecItem::Iface(text.to_owned()))
}

fn check_name(name: &str) -> Result<(), String> {
    if name.is_empty() {
        return Err("the device name is missing".to_owned());
    }
    if name.len() > MAX_DEVICE_NAME_LEN {
        return Err(format!(
            "the device name has {} characters, at most {MAX_DEVICE_NAME_LEN} fit",
            name.len()
        ));
    }
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    if !name.chars().all(allowed) || name.starts_with(['.', '-']) {
        return Err(format!(
            "device name {name:?}: letters, digits, '_', '-' and '.' make a name, \
             and it starts with a letter, a digit or '_'"
        ));
    }
    Ok(())
}

fn check_addr(addr: IpAddr) -> Result<(), String> {
    if addr.is_unspecified() {
        return Err(format!(
            "{addr} means any address; a GID needs a particular one"
        ));
    }
    let broadcast = matches!(addr, IpAddr::V4(v4) if v4.is_broadcast());
    if addr.is_multicast() || broadcast {
        return Err(format!("{addr} is not a unicast address"));
    }
    Ok(())
}
