//! The allowed peers of a process: `ADDR[/PREFIX][,..]`.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::error::{ConfigError, Origin};

/// The addresses to which queue pairs may be connected, and whose packets are accepted.
///
/// All addresses by default. Only IPv4 networks allow IPv4 addresses, in either notation:
/// `::ffff:10.0.0.0/104` is `10.0.0.0/8`, and `::/0` is all of IPv6.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peers {
    /// `None` allows all addresses.
    networks: Option<Vec<PeerNetwork>>,
}

/// A network, as address and mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PeerNetwork {
    V4 { addr: u32, mask: u32 },
    V6 { addr: u128, mask: u128 },
}

const ALLOWED: &str =
    "addresses and networks separated by ',', e.g. 10.1.0.0/16,192.0.2.7,fd00::/8";

impl Peers {
    /// Parses a list of addresses and networks. Ignores bits behind a prefix, so that an
    /// interface's address with its prefix names its network.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] if an item is invalid, or if the list is empty.
    pub fn parse(text: &str, origin: &Origin) -> Result<Self, ConfigError> {
        let bad = |reason: String| ConfigError::invalid(origin, text, reason, ALLOWED);
        if text.is_empty() {
            return Err(bad("the list is empty".to_owned()));
        }
        let networks = text
            .split(',')
            .map(|item| PeerNetwork::parse(item.trim()).map_err(bad))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            networks: Some(networks),
        })
    }

    /// Returns true if a peer with this address is allowed.
    #[inline]
    #[must_use]
    pub fn allow(&self, peer: IpAddr) -> bool {
        self.networks
            .as_ref()
            .is_none_or(|networks| networks.iter().any(|network| network.contains(peer)))
    }
}

impl PeerNetwork {
    fn parse(text: &str) -> Result<Self, String> {
        let (addr, prefix) = match text.split_once('/') {
            Some((addr, prefix)) => (addr, Some(prefix)),
            None => (text, None),
        };
        let addr: IpAddr = addr
            .parse()
            .map_err(|_| format!("\"{addr}\" is not an IP address"))?;
        let most = if addr.is_ipv4() { 32 } else { 128 };
        let prefix = match prefix {
            None => most,
            Some(prefix) => prefix
                .parse()
                .ok()
                .filter(|bits| *bits <= most && !prefix.starts_with('+'))
                .ok_or_else(|| format!("\"/{prefix}\" is not a prefix from /0 to /{most}"))?,
        };
        Ok(Self::new(addr, prefix))
    }

    fn new(addr: IpAddr, prefix: u32) -> Self {
        match addr {
            IpAddr::V4(addr) => {
                let mask = u32::MAX.checked_shl(32 - prefix).unwrap_or(0);
                let addr = addr.to_bits() & mask;
                Self::V4 { addr, mask }
            }
            IpAddr::V6(addr) => match (addr.to_ipv4_mapped(), prefix.checked_sub(96)) {
                (Some(addr), Some(prefix)) => Self::new(addr.into(), prefix),
                _ => {
                    let mask = u128::MAX.checked_shl(128 - prefix).unwrap_or(0);
                    let addr = addr.to_bits() & mask;
                    Self::V6 { addr, mask }
                }
            },
        }
    }

    #[inline]
    fn contains(self, peer: IpAddr) -> bool {
        match (self, peer.to_canonical()) {
            (Self::V4 { addr, mask }, IpAddr::V4(peer)) => peer.to_bits() & mask == addr,
            (Self::V6 { addr, mask }, IpAddr::V6(peer)) => peer.to_bits() & mask == addr,
            _ => false,
        }
    }
}

impl fmt::Display for PeerNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::V4 { addr, mask } => {
                write!(f, "{}/{}", Ipv4Addr::from_bits(addr), mask.count_ones())
            }
            Self::V6 { addr, mask } => {
                write!(f, "{}/{}", Ipv6Addr::from_bits(addr), mask.count_ones())
            }
        }
    }
}

/// Prints the list in the syntax that [`Peers::parse`] reads, or `anybody` if all addresses are
/// allowed.
impl fmt::Display for Peers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(networks) = &self.networks else {
            return f.write_str("anybody");
        };
        for (index, network) in networks.iter().enumerate() {
            if index > 0 {
                f.write_str(",")?;
            }
            network.fmt(f)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peers(text: &str) -> Peers {
        Peers::parse(text, &Origin::Env("ROCADE_PEERS")).unwrap()
    }

    #[test]
    fn who_is_in_a_network() {
        for (networks, inside, outside) in [
            (
                "10.1.0.0/16, 192.0.2.7",
                &["10.1.0.0", "10.1.255.255", "192.0.2.7", "::ffff:10.1.2.3"][..],
                &["10.0.255.255", "10.2.0.0", "192.0.2.6", "::1", "::10.1.2.3"][..],
            ),
            (
                "192.168.1.5/24",
                &["192.168.1.0", "192.168.1.255"],
                &["192.168.2.5"],
            ),
            (
                "0.0.0.0/0",
                &["1.2.3.4", "::ffff:1.2.3.4"],
                &["::1", "fd00::1"],
            ),
            (
                "::/0",
                &["::1", "fd00::1", "fe80::1"],
                &["1.2.3.4", "::ffff:1.2.3.4"],
            ),
            ("fd00::/8", &["fd00::", "fdff::1"], &["fc00::1", "fe00::1"]),
            ("2001:db8::1", &["2001:db8::1"], &["2001:db8::2"]),
            ("2001:db8::/127", &["2001:db8::1"], &["2001:db8::2"]),
            (
                "::ffff:10.0.0.0/104",
                &["10.200.0.1", "::ffff:10.0.0.1"],
                &["11.0.0.1", "::1"],
            ),
            ("::ffff:192.0.2.7", &["192.0.2.7"], &["192.0.2.8"]),
            (
                "127.0.0.1/32,::1/128",
                &["127.0.0.1", "::1"],
                &["127.0.0.2", "::2"],
            ),
            ("10.0.0.0/31", &["10.0.0.1"], &["10.0.0.2"]),
        ] {
            let these = peers(networks);
            for peer in inside {
                assert!(these.allow(peer.parse().unwrap()), "{peer} in {networks}");
            }
            for peer in outside {
                assert!(
                    !these.allow(peer.parse().unwrap()),
                    "{peer} not in {networks}"
                );
            }
            assert_eq!(these, peers(&these.to_string()));
        }
    }

    #[test]
    fn any_peer_by_default() {
        for peer in ["1.2.3.4", "::1", "fe80::1"] {
            assert!(Peers::default().allow(peer.parse().unwrap()));
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, part) in [
            ("lo", "\"lo\" is not an IP address"),
            ("10.0.0.0/33", "\"/33\" is not a prefix from /0 to /32"),
            ("fd00::/129", "\"/129\" is not a prefix from /0 to /128"),
            ("10.0.0.0/", "\"/\" is not a prefix"),
            ("10.0.0.0/-1", "\"/-1\" is not a prefix"),
            ("10.0.0.0/+8", "\"/+8\" is not a prefix"),
            ("10.0.0.0/255.0.0.0", "is not a prefix"),
            ("10.0.0.1,", "\"\" is not an IP address"),
            ("10.0.0.1;10.0.0.2", "is not an IP address"),
            ("fe80::1%eth0", "is not an IP address"),
            ("10.1/16", "\"10.1\" is not an IP address"),
        ] {
            let error = Peers::parse(text, &Origin::Env("ROCADE_PEERS")).expect_err(text);
            let error = error.to_string();
            let start = format!("environment variable ROCADE_PEERS = {text:?}: ");
            assert!(error.starts_with(&start), "{error}");
            assert!(error.contains(part), "{error}");
        }
    }
}
