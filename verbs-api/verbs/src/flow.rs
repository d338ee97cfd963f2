//! Flow rules: they select the frames that a [`RawQueuePair`](crate::RawQueuePair) or a
//! [`RssQueuePair`](crate::RssQueuePair) receives.
//!
//! ```
//! use rocade_verbs::flow::{FlowAttr, FlowSpec, Masked, PortFields};
//!
//! // UDP frames to port 4791.
//! let port = Masked::new(PortFields { dst_port: 4791, ..PortFields::default() },
//!     PortFields { dst_port: 0xffff, ..PortFields::default() });
//! let rule = FlowAttr::matching(vec![FlowSpec::Udp(port)]);
//! assert_eq!((rule.priority, rule.specs.len()), (0, 1));
//! ```

use std::net::{Ipv4Addr, Ipv6Addr};

use rocade_emulator as emulator;

use crate::error::{Result, VerbsError};

/// The frames that a flow takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
#[doc(alias = "ibv_flow_attr_type")]
pub enum FlowKind {
    /// Frames that match the specifications.
    #[default]
    Normal,
    /// Frames that no normal flow has taken.
    AllDefault,
    /// Multicast frames that no normal flow has taken.
    McDefault,
    /// Copies of all frames that the interface sends and receives.
    Sniffer,
}

/// Fields of an Ethernet header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[doc(alias = "ibv_flow_eth_filter")]
pub struct EthFields {
    /// The destination MAC address.
    pub dst_mac: [u8; 6],
    /// The source MAC address.
    pub src_mac: [u8; 6],
    /// The EtherType of the payload, behind a VLAN tag.
    pub ether_type: u16,
    /// The VLAN tag. A mask of 0 matches frames without a tag too.
    pub vlan_tag: u16,
}

/// Fields of an IPv4 header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[doc(alias = "ibv_flow_ipv4_ext_filter")]
pub struct Ipv4Fields {
    /// The source address.
    pub src_ip: Ipv4Addr,
    /// The destination address.
    pub dst_ip: Ipv4Addr,
    /// The protocol: 6 for TCP, 17 for UDP.
    pub proto: u8,
    /// The type of service, with the ECN bits.
    pub tos: u8,
    /// The time to live.
    pub ttl: u8,
    /// 2 for "don't fragment", 4 for "more fragments".
    pub flags: u8,
}

impl Default for Ipv4Fields {
    /// Returns zeroes: as a mask, they match every header.
    fn default() -> Self {
        Self {
            src_ip: Ipv4Addr::UNSPECIFIED,
            dst_ip: Ipv4Addr::UNSPECIFIED,
            proto: 0,
            tos: 0,
            ttl: 0,
            flags: 0,
        }
    }
}

/// Fields of an IPv6 header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[doc(alias = "ibv_flow_ipv6_filter")]
pub struct Ipv6Fields {
    /// The source address.
    pub src_ip: Ipv6Addr,
    /// The destination address.
    pub dst_ip: Ipv6Addr,
    /// The flow label: the low 20 bits.
    pub flow_label: u32,
    /// The protocol: 6 for TCP, 17 for UDP.
    pub next_hdr: u8,
    /// The traffic class, with the ECN bits.
    pub traffic_class: u8,
    /// The hop limit.
    pub hop_limit: u8,
}

impl Default for Ipv6Fields {
    /// Returns zeroes: as a mask, they match every header.
    fn default() -> Self {
        Self {
            src_ip: Ipv6Addr::UNSPECIFIED,
            dst_ip: Ipv6Addr::UNSPECIFIED,
            flow_label: 0,
            next_hdr: 0,
            traffic_class: 0,
            hop_limit: 0,
        }
    }
}

/// Fields of a TCP or UDP header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[doc(alias = "ibv_flow_tcp_udp_filter")]
pub struct PortFields {
    /// The destination port.
    pub dst_port: u16,
    /// The source port.
    pub src_port: u16,
}

/// Values of header fields, and the bits of them to compare. Fields whose mask is 0 match any
/// value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Masked<T> {
    /// The values.
    pub val: T,
    /// The bits of the values to compare.
    pub mask: T,
}

impl<T> Masked<T> {
    /// Returns a match for headers that have the bits of `val` where `mask` has ones.
    #[must_use]
    pub const fn new(val: T, mask: T) -> Self {
        Self { val, mask }
    }
}

/// A specification of a flow: a header to match, or what happens to the matching frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
#[doc(alias = "ibv_flow_spec")]
pub enum FlowSpec {
    /// Matches the Ethernet header.
    Eth(Masked<EthFields>),
    /// Matches the IPv4 header.
    Ipv4(Masked<Ipv4Fields>),
    /// Matches the IPv6 header.
    Ipv6(Masked<Ipv6Fields>),
    /// Matches the TCP header.
    Tcp(Masked<PortFields>),
    /// Matches the UDP header.
    Udp(Masked<PortFields>),
    /// Sets the tag of the matching frames.
    Tag(u32),
    /// Drops the matching frames.
    Drop,
}

/// A flow rule.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[doc(alias = "ibv_flow_attr")]
pub struct FlowAttr {
    /// The frames that the flow takes.
    pub kind: FlowKind,
    /// The priority. 0 is the highest.
    pub priority: u16,
    /// Set if flows of lower priority receive the frame, too.
    pub dont_trap: bool,
    /// The specifications, up to 16, all of which must match. They begin with the outermost header.
    pub specs: Vec<FlowSpec>,
}

impl FlowAttr {
    /// Returns a rule of the highest priority for the frames that match all of `specs`.
    #[must_use]
    pub fn matching(specs: Vec<FlowSpec>) -> Self {
        Self {
            specs,
            ..Self::default()
        }
    }

    /// Returns a rule for copies of all frames that the interface sends and receives.
    #[must_use]
    pub fn sniffer() -> Self {
        Self {
            kind: FlowKind::Sniffer,
            ..Self::default()
        }
    }

    pub(crate) fn into_emulator(self) -> emulator::FlowAttr {
        emulator::FlowAttr {
            kind: match self.kind {
                FlowKind::Normal => emulator::FlowKind::Normal,
                FlowKind::AllDefault => emulator::FlowKind::AllDefault,
                FlowKind::McDefault => emulator::FlowKind::McDefault,
                FlowKind::Sniffer => emulator::FlowKind::Sniffer,
            },
            priority: self.priority,
            dont_trap: self.dont_trap,
            specs: self.specs.into_iter().map(spec).collect(),
        }
    }
}

/// A flow. It steers frames until it is dropped.
#[derive(Debug)]
#[doc(alias = "ibv_flow")]
pub struct Flow {
    _flow: emulator::Flow,
}

impl Flow {
    pub(crate) fn new(qp: &emulator::Qp, attr: FlowAttr) -> Result<Self, VerbsError> {
        let flow = qp.create_flow(attr.into_emulator())?;
        Ok(Self { _flow: flow })
    }
}

fn spec(spec: FlowSpec) -> emulator::FlowSpec {
    match spec {
        FlowSpec::Eth(fields) => emulator::FlowSpec::Eth(masked(fields, eth)),
        FlowSpec::Ipv4(fields) => emulator::FlowSpec::Ipv4(masked(fields, ipv4)),
        FlowSpec::Ipv6(fields) => emulator::FlowSpec::Ipv6(masked(fields, ipv6)),
        FlowSpec::Tcp(fields) => emulator::FlowSpec::Tcp(masked(fields, ports)),
        FlowSpec::Udp(fields) => emulator::FlowSpec::Udp(masked(fields, ports)),
        FlowSpec::Tag(tag) => emulator::FlowSpec::Tag(tag),
        FlowSpec::Drop => emulator::FlowSpec::Drop,
    }
}

fn masked<T, U>(fields: Masked<T>, convert: impl Fn(T) -> U) -> emulator::Masked<U> {
    emulator::Masked {
        val: convert(fields.val),
        mask: convert(fields.mask),
    }
}

const fn eth(fields: EthFields) -> emulator::EthFields {
    emulator::EthFields {
        dst_mac: fields.dst_mac,
        src_mac: fields.src_mac,
        ether_type: fields.ether_type.to_be_bytes(),
        vlan_tag: fields.vlan_tag.to_be_bytes(),
    }
}

const fn ipv4(fields: Ipv4Fields) -> emulator::Ipv4Fields {
    emulator::Ipv4Fields {
        src_ip: fields.src_ip.octets(),
        dst_ip: fields.dst_ip.octets(),
        proto: fields.proto,
        tos: fields.tos,
        ttl: fields.ttl,
        flags: fields.flags,
    }
}

const fn ipv6(fields: Ipv6Fields) -> emulator::Ipv6Fields {
    emulator::Ipv6Fields {
        src_ip: fields.src_ip.octets(),
        dst_ip: fields.dst_ip.octets(),
        flow_label: fields.flow_label.to_be_bytes(),
        next_hdr: fields.next_hdr,
        traffic_class: fields.traffic_class,
        hop_limit: fields.hop_limit,
    }
}

const fn ports(fields: PortFields) -> emulator::PortFields {
    emulator::PortFields {
        dst_port: fields.dst_port.to_be_bytes(),
        src_port: fields.src_port.to_be_bytes(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_reaches_the_device_in_network_byte_order() {
        let eth = EthFields {
            dst_mac: [1, 2, 3, 4, 5, 6],
            src_mac: [7; 6],
            ether_type: 0x86dd,
            vlan_tag: 0x0102,
        };
        let v4 = Ipv4Fields {
            src_ip: [10, 0, 0, 1].into(),
            dst_ip: [10, 0, 0, 2].into(),
            proto: 6,
            tos: 1,
            ttl: 2,
            flags: 4,
        };
        let v6 = Ipv6Fields {
            src_ip: Ipv6Addr::LOCALHOST,
            flow_label: 0x000a_bcde,
            next_hdr: 17,
            traffic_class: 3,
            hop_limit: 4,
            ..Ipv6Fields::default()
        };
        let port = PortFields {
            dst_port: 0x1234,
            src_port: 7,
        };
        let specs = vec![
            FlowSpec::Eth(Masked::new(eth, EthFields::default())),
            FlowSpec::Ipv4(Masked::new(Ipv4Fields::default(), v4)),
            FlowSpec::Ipv6(Masked::new(v6, Ipv6Fields::default())),
            FlowSpec::Tcp(Masked::new(port, PortFields::default())),
            FlowSpec::Udp(Masked::new(PortFields::default(), port)),
            FlowSpec::Tag(9),
            FlowSpec::Drop,
        ];
        let rule = FlowAttr {
            kind: FlowKind::McDefault,
            priority: 5,
            dont_trap: true,
            specs,
        };
        let raw = rule.into_emulator();
        assert_eq!(raw.kind, emulator::FlowKind::McDefault);
        assert_eq!((raw.priority, raw.dont_trap), (5, true));
        let [
            emulator::FlowSpec::Eth(eth),
            emulator::FlowSpec::Ipv4(v4),
            emulator::FlowSpec::Ipv6(v6),
            emulator::FlowSpec::Tcp(tcp),
            emulator::FlowSpec::Udp(udp),
            emulator::FlowSpec::Tag(9),
            emulator::FlowSpec::Drop,
        ] = raw.specs[..]
        else {
            panic!("{raw:?}")
        };
        assert_eq!(
            (eth.val.ether_type, eth.val.vlan_tag),
            ([0x86, 0xdd], [1, 2])
        );
        assert_eq!(
            (eth.val.dst_mac, eth.val.src_mac),
            ([1, 2, 3, 4, 5, 6], [7; 6])
        );
        assert_eq!(eth.mask, emulator::EthFields::default());
        assert_eq!(
            (v4.mask.src_ip, v4.mask.dst_ip),
            ([10, 0, 0, 1], [10, 0, 0, 2])
        );
        let few = [v4.mask.proto, v4.mask.tos, v4.mask.ttl, v4.mask.flags];
        assert_eq!(
            (v4.val, few),
            (emulator::Ipv4Fields::default(), [6, 1, 2, 4])
        );
        assert_eq!((v6.val.src_ip[15], v6.val.dst_ip), (1, [0; 16]));
        assert_eq!(v6.val.flow_label, [0, 0x0a, 0xbc, 0xde]);
        let few = [v6.val.next_hdr, v6.val.traffic_class, v6.val.hop_limit];
        assert_eq!(
            (v6.mask, few),
            (emulator::Ipv6Fields::default(), [17, 3, 4])
        );
        assert_eq!((tcp.val.dst_port, tcp.val.src_port), ([0x12, 0x34], [0, 7]));
        assert_eq!(
            (udp.val.dst_port, udp.mask.dst_port),
            ([0, 0], [0x12, 0x34])
        );
    }
}
