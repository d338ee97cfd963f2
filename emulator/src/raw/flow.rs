//! Flow steering: selects the raw packet QPs that receive a frame.

use rocade_wire::Qpn;

use super::frame::{Layout, NetworkHeader, TCP, UDP, be16};
use crate::error::VerbsError;

/// Most specifications of a flow.
pub const MAX_FLOW_SPECS: usize = 16;

/// The type of a flow (`ibv_flow_attr_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowKind {
    /// Frames that match the specifications.
    Normal,
    /// Frames that no normal flow has taken.
    AllDefault,
    /// Multicast frames that no normal flow has taken.
    McDefault,
    /// Copies of all frames that the interface sends and receives.
    Sniffer,
}

/// Fields of an Ethernet header, in network byte order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "field for field ibv_flow_eth_filter")]
pub struct EthFields {
    pub dst_mac: [u8; 6],
    pub src_mac: [u8; 6],
    pub ether_type: [u8; 2],
    pub vlan_tag: [u8; 2],
}

/// Fields of an IPv4 header in network byte order, except for the flags: 2 for "don't fragment", 4
/// for "more fragments".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "field for field ibv_flow_ipv4_ext_filter")]
pub struct Ipv4Fields {
    pub src_ip: [u8; 4],
    pub dst_ip: [u8; 4],
    pub proto: u8,
    pub tos: u8,
    pub ttl: u8,
    pub flags: u8,
}

/// Fields of an IPv6 header, in network byte order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "field for field ibv_flow_ipv6_filter")]
pub struct Ipv6Fields {
    pub src_ip: [u8; 16],
    pub dst_ip: [u8; 16],
    pub flow_label: [u8; 4],
    pub next_hdr: u8,
    pub traffic_class: u8,
    pub hop_limit: u8,
}

/// Fields of a TCP or UDP header, in network byte order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "field for field ibv_flow_tcp_udp_filter")]
pub struct PortFields {
    pub dst_port: [u8; 2],
    pub src_port: [u8; 2],
}

/// A value and its mask.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Masked<T> {
    /// The value.
    pub val: T,
    /// The bits of the value to compare.
    pub mask: T,
}

/// A specification of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// Sets the tag of matching frames.
    Tag(u32),
    /// Drops matching frames.
    Drop,
}

impl FlowSpec {
    /// Returns the layer of the header that it matches, 0 for an action.
    const fn layer(&self) -> u8 {
        match self {
            Self::Tag(_) | Self::Drop => 0,
            Self::Eth(_) => 2,
            Self::Ipv4(_) | Self::Ipv6(_) => 3,
            Self::Tcp(_) | Self::Udp(_) => 4,
        }
    }
}

/// The attributes of a flow (`ibv_flow_attr`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowAttr {
    /// The type of the flow.
    pub kind: FlowKind,
    /// The priority. 0 is the highest.
    pub priority: u16,
    /// True if flows of lower priority receive the frame, too.
    pub dont_trap: bool,
    /// The specifications, all of which must match.
    pub specs: Vec<FlowSpec>,
}

/// Compares the masked bytes.
fn eq<const N: usize>(found: [u8; N], val: [u8; N], mask: [u8; N]) -> bool {
    (0..N).all(|n| found[n] & mask[n] == val[n] & mask[n])
}

fn eq1(found: u8, val: u8, mask: u8) -> bool {
    found & mask == val & mask
}

fn take<const N: usize>(frame: &[u8], at: usize) -> Option<[u8; N]> {
    frame.get(at..at + N)?.try_into().ok()
}

impl Masked<EthFields> {
    fn matches(&self, frame: &[u8], layout: &Layout) -> Option<bool> {
        let Self { val, mask } = self;
        let tag = layout.vlan.map(u16::to_be_bytes);
        Some(
            eq(take(frame, 0)?, val.dst_mac, mask.dst_mac)
                && eq(take(frame, 6)?, val.src_mac, mask.src_mac)
                && eq(
                    layout.ether_type.to_be_bytes(),
                    val.ether_type,
                    mask.ether_type,
                )
                && (mask.vlan_tag == [0; 2]
                    || tag.is_some_and(|tag| eq(tag, val.vlan_tag, mask.vlan_tag))),
        )
    }
}

impl Masked<Ipv4Fields> {
    fn matches(&self, frame: &[u8], layout: &Layout) -> Option<bool> {
        let Some((NetworkHeader::V4(_), at)) = layout.network else {
            return Some(false);
        };
        let Self { val, mask } = self;
        let fragment = be16(frame, at + 6);
        // Bits 14 (don't fragment) and 13 (more fragments).
        let flags = u8::from(fragment & 0x4000 != 0) << 1 | u8::from(fragment & 0x2000 != 0) << 2;
        Some(
            eq(take(frame, at + 12)?, val.src_ip, mask.src_ip)
                && eq(take(frame, at + 16)?, val.dst_ip, mask.dst_ip)
                && eq1(*frame.get(at + 9)?, val.proto, mask.proto)
                && eq1(*frame.get(at + 1)?, val.tos, mask.tos)
                && eq1(*frame.get(at + 8)?, val.ttl, mask.ttl)
                && eq1(flags, val.flags, mask.flags),
        )
    }
}

impl Masked<Ipv6Fields> {
    fn matches(&self, frame: &[u8], layout: &Layout) -> Option<bool> {
        let Some((NetworkHeader::V6, at)) = layout.network else {
            return Some(false);
        };
        let Self { val, mask } = self;
        let first = u32::from_be_bytes(take(frame, at)?);
        let label = (first & 0xf_ffff).to_be_bytes();
        let [_, class, ..] = (first >> 4).to_be_bytes();
        Some(
            eq(take(frame, at + 8)?, val.src_ip, mask.src_ip)
                && eq(take(frame, at + 24)?, val.dst_ip, mask.dst_ip)
                && eq(label, val.flow_label, mask.flow_label)
                && eq1(*frame.get(at + 6)?, val.next_hdr, mask.next_hdr)
                && eq1(class, val.traffic_class, mask.traffic_class)
                && eq1(*frame.get(at + 7)?, val.hop_limit, mask.hop_limit),
        )
    }
}

impl Masked<PortFields> {
    fn matches(&self, protocol: u8, frame: &[u8], layout: &Layout) -> Option<bool> {
        let Some((found, at)) = layout.transport else {
            return Some(false);
        };
        let Self { val, mask } = self;
        Some(
            found == protocol
                && eq(take(frame, at)?, val.src_port, mask.src_port)
                && eq(take(frame, at + 2)?, val.dst_port, mask.dst_port),
        )
    }
}

impl FlowAttr {
    /// Validates the attributes.
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`].
    pub(crate) fn check(&self) -> Result<(), VerbsError> {
        let wrong = |what| Err(VerbsError::InvalidArgument(what));
        if self.specs.len() > MAX_FLOW_SPECS {
            return wrong("num_of_specs");
        }
        if self.kind != FlowKind::Normal && !self.specs.is_empty() {
            return wrong("num_of_specs: only a normal flow has specifications");
        }
        let is_default = matches!(self.kind, FlowKind::AllDefault | FlowKind::McDefault);
        if is_default && self.dont_trap {
            return wrong("flags: a default flow cannot have DONT_TRAP");
        }
        let layers: Vec<u8> = self.specs.iter().map(FlowSpec::layer).collect();
        let headers: Vec<u8> = layers.iter().copied().filter(|layer| *layer > 0).collect();
        if !headers.is_sorted_by(|a, b| a < b) {
            return wrong("specs: each header once, from the outermost on");
        }
        let actions =
            |action: fn(&FlowSpec) -> bool| self.specs.iter().filter(|s| action(s)).count();
        let tags = actions(|spec| matches!(spec, FlowSpec::Tag(_)));
        let drops = actions(|spec| matches!(spec, FlowSpec::Drop));
        if tags > 1 || drops > 1 || tags + drops > 1 {
            return wrong("specs: one action");
        }
        if self.contradicts_itself() {
            return wrong("specs: ether_type is not that of the next header");
        }
        Ok(())
    }

    /// Returns true if the EtherType contradicts the network header that the flow matches.
    fn contradicts_itself(&self) -> bool {
        let mut said = None;
        for spec in &self.specs {
            match spec {
                FlowSpec::Eth(eth) if eth.mask.ether_type == [0xff; 2] => {
                    said = Some(eth.val.ether_type);
                }
                FlowSpec::Ipv4(_) if said.is_some_and(|said| said != [8, 0]) => return true,
                FlowSpec::Ipv6(_) if said.is_some_and(|said| said != [0x86, 0xdd]) => return true,
                _ => {}
            }
        }
        false
    }

    fn matches(&self, frame: &[u8], layout: &Layout) -> bool {
        self.specs.iter().all(|spec| {
            let matches = match spec {
                FlowSpec::Eth(eth) => eth.matches(frame, layout),
                FlowSpec::Ipv4(ip) => ip.matches(frame, layout),
                FlowSpec::Ipv6(ip) => ip.matches(frame, layout),
                FlowSpec::Tcp(ports) => ports.matches(TCP, frame, layout),
                FlowSpec::Udp(ports) => ports.matches(UDP, frame, layout),
                FlowSpec::Tag(_) | FlowSpec::Drop => Some(true),
            };
            matches.unwrap_or(false)
        })
    }

    fn tag(&self) -> u32 {
        let tag = self.specs.iter().find_map(|spec| match spec {
            FlowSpec::Tag(tag) => Some(*tag),
            _ => None,
        });
        tag.unwrap_or(0)
    }

    fn drops(&self) -> bool {
        self.specs.contains(&FlowSpec::Drop)
    }

    /// Returns the destination address that all matching frames have, if the flow matches a single
    /// one.
    pub(crate) fn address(&self) -> Option<[u8; 6]> {
        self.specs.iter().find_map(|spec| match spec {
            FlowSpec::Eth(eth) if eth.mask.dst_mac == [0xff; 6] => Some(eth.val.dst_mac),
            _ => None,
        })
    }
}

/// The ID of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FlowId(u64);

#[derive(Debug)]
struct FlowRule {
    id: FlowId,
    qpn: Qpn,
    attr: FlowAttr,
}

/// The direction of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlowDirection {
    /// Received by the device, or sent to itself.
    In,
    /// Sent by the device.
    Out,
}

/// A QP that receives a frame, and the frame's tag there.
pub(crate) type Target = (Qpn, u32);

/// The flows of a device.
#[derive(Debug, Default)]
pub(crate) struct FlowTable {
    /// The flows by priority, those of equal priority in the order of creation.
    rules: Vec<FlowRule>,
    named: u64,
}

impl FlowTable {
    pub(crate) fn add(&mut self, qpn: Qpn, attr: FlowAttr) -> FlowId {
        self.named += 1;
        let id = FlowId(self.named);
        let at = self
            .rules
            .partition_point(|rule| rule.attr.priority <= attr.priority);
        self.rules.insert(at, FlowRule { id, qpn, attr });
        id
    }

    /// Removes a flow, and returns its attributes.
    pub(crate) fn remove(&mut self, id: FlowId) -> Option<FlowAttr> {
        let at = self.rules.iter().position(|rule| rule.id == id)?;
        Some(self.rules.remove(at).attr)
    }

    /// Returns the flows of a QP.
    pub(crate) fn of_qp(&self, qpn: Qpn) -> Vec<FlowId> {
        let own = self.rules.iter().filter(|rule| rule.qpn == qpn);
        own.map(|rule| rule.id).collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Returns the QPs that receive a frame, each once.
    ///
    /// Normal flows are matched by priority. A matching flow takes the frame from flows of lower
    /// priority, unless it has `DONT_TRAP`. Frames that no flow takes go to the default flows.
    /// Sniffers receive all frames.
    pub(crate) fn targets(
        &self,
        frame: &[u8],
        layout: &Layout,
        direction: FlowDirection,
    ) -> Vec<Target> {
        let mut targets: Vec<Target> = Vec::new();
        let mut add = |rule: &FlowRule| {
            if !targets.iter().any(|(qpn, _)| *qpn == rule.qpn) {
                targets.push((rule.qpn, rule.attr.tag()));
            }
        };
        let of = |kind| self.rules.iter().filter(move |rule| rule.attr.kind == kind);
        let mut taken_at = None;
        if direction == FlowDirection::In {
            for rule in of(FlowKind::Normal) {
                if taken_at.is_some_and(|priority| rule.attr.priority > priority) {
                    break;
                }
                if !rule.attr.matches(frame, layout) {
                    continue;
                }
                if !rule.attr.drops() {
                    add(rule);
                }
                if !rule.attr.dont_trap {
                    taken_at = Some(rule.attr.priority);
                }
            }
            let is_for_group = frame.first().is_some_and(|first| first & 1 != 0);
            let mut is_left = taken_at.is_none();
            if is_left && is_for_group {
                for rule in of(FlowKind::McDefault) {
                    add(rule);
                    is_left = false;
                }
            }
            if is_left {
                of(FlowKind::AllDefault).for_each(&mut add);
            }
        }
        of(FlowKind::Sniffer).for_each(&mut add);
        targets
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::frame::tests::frame;
    use super::*;

    fn attr(kind: FlowKind, priority: u16, specs: &[FlowSpec]) -> FlowAttr {
        FlowAttr {
            kind,
            priority,
            dont_trap: false,
            specs: specs.to_vec(),
        }
    }

    fn normal(specs: &[FlowSpec]) -> FlowAttr {
        attr(FlowKind::Normal, 0, specs)
    }

    fn targets(table: &FlowTable, bytes: &[u8], direction: FlowDirection) -> Vec<(u32, u32)> {
        let layout = Layout::of(bytes).expect("a frame");
        let found = table.targets(bytes, &layout, direction);
        found.iter().map(|(qpn, tag)| (qpn.get(), *tag)).collect()
    }

    fn matches(spec: FlowSpec, bytes: &[u8]) -> bool {
        normal(&[spec]).matches(bytes, &Layout::of(bytes).expect("a frame"))
    }

    /// Returns a specification of one field with its mask, with a matching and with a different
    /// value.
    fn field<T: Copy + Default>(
        make: fn(Masked<T>) -> FlowSpec,
        bytes: &[u8],
        set: impl Fn(&mut T, u8),
        right: u8,
    ) {
        let spec = |value: u8, bits: u8| {
            let mut masked = Masked::<T>::default();
            set(&mut masked.val, value);
            set(&mut masked.mask, bits);
            make(masked)
        };
        assert!(matches(spec(right, 0xff), bytes), "{:?}", spec(right, 0xff));
        let wrong = spec(right ^ 1, 0xff);
        assert!(!matches(wrong, bytes), "{wrong:?}");
        assert!(
            matches(spec(right ^ 1, 0xfe), bytes),
            "bit 0 does not count"
        );
        assert!(matches(spec(!right, 0), bytes), "nothing counts");
    }

    #[test]
    fn each_field_counts_by_its_mask() {
        let v4 = frame(false, UDP, Some(0x2005), b"data");
        let eth = FlowSpec::Eth;
        field(eth, &v4, |f: &mut EthFields, v| f.dst_mac[5] = v, 1);
        field(eth, &v4, |f: &mut EthFields, v| f.src_mac[5] = v, 2);
        field(eth, &v4, |f: &mut EthFields, v| f.ether_type[0] = v, 8);
        field(eth, &v4, |f: &mut EthFields, v| f.vlan_tag[1] = v, 5);
        let ip = FlowSpec::Ipv4;
        field(ip, &v4, |f: &mut Ipv4Fields, v| f.src_ip[3] = v, 1);
        field(ip, &v4, |f: &mut Ipv4Fields, v| f.dst_ip[3] = v, 2);
        field(ip, &v4, |f: &mut Ipv4Fields, v| f.proto = v, UDP);
        field(ip, &v4, |f: &mut Ipv4Fields, v| f.tos = v, 0x20);
        field(ip, &v4, |f: &mut Ipv4Fields, v| f.ttl = v, 7);
        field(ip, &v4, |f: &mut Ipv4Fields, v| f.flags = v, 2);
        let udp = FlowSpec::Udp;
        field(udp, &v4, |f: &mut PortFields, v| f.src_port[1] = v, 0xe8);
        field(udp, &v4, |f: &mut PortFields, v| f.dst_port[1] = v, 0xd0);
        let v6 = frame(true, TCP, None, b"data");
        let ip = FlowSpec::Ipv6;
        field(ip, &v6, |f: &mut Ipv6Fields, v| f.src_ip[15] = v, 1);
        field(ip, &v6, |f: &mut Ipv6Fields, v| f.dst_ip[15] = v, 2);
        field(ip, &v6, |f: &mut Ipv6Fields, v| f.flow_label[3] = v, 0x67);
        field(ip, &v6, |f: &mut Ipv6Fields, v| f.next_hdr = v, TCP);
        field(ip, &v6, |f: &mut Ipv6Fields, v| f.traffic_class = v, 0x12);
        field(ip, &v6, |f: &mut Ipv6Fields, v| f.hop_limit = v, 9);
        let tcp = FlowSpec::Tcp;
        field(tcp, &v6, |f: &mut PortFields, v| f.src_port[1] = v, 0xe8);
    }

    #[test]
    fn a_header_that_is_not_there_matches_nothing() {
        let (v4, v6) = (frame(false, UDP, None, b""), frame(true, TCP, None, b""));
        assert!(!matches(FlowSpec::Ipv4(Masked::default()), &v6));
        assert!(!matches(FlowSpec::Ipv6(Masked::default()), &v4));
        assert!(!matches(FlowSpec::Tcp(Masked::default()), &v4));
        assert!(!matches(FlowSpec::Udp(Masked::default()), &v6));
        let mut tagged = Masked::<EthFields>::default();
        tagged.mask.vlan_tag = [0, 1];
        assert!(!matches(FlowSpec::Eth(tagged), &v4), "there is no tag");
    }

    #[test]
    fn priorities_defaults_and_sniffers() {
        let udp = frame(false, UDP, None, b"");
        let tcp = frame(false, TCP, None, b"");
        let mut group = tcp.clone();
        group[0] = 3;
        let only_udp = FlowSpec::Udp(Masked::default());
        let mut table = FlowTable::default();
        let mut add = |qpn: u32, attr: FlowAttr| table.add(Qpn::new(qpn), attr);
        let first = add(
            10,
            attr(FlowKind::Normal, 1, &[only_udp, FlowSpec::Tag(77)]),
        );
        add(11, attr(FlowKind::Normal, 2, &[only_udp]));
        add(12, attr(FlowKind::Normal, 1, &[only_udp]));
        add(13, attr(FlowKind::AllDefault, 0, &[]));
        add(14, attr(FlowKind::McDefault, 0, &[]));
        add(15, attr(FlowKind::Sniffer, 0, &[]));
        let polite = FlowAttr {
            dont_trap: true,
            ..attr(FlowKind::Normal, 0, &[only_udp])
        };
        let polite = add(16, polite);
        let all = targets(&table, &udp, FlowDirection::In);
        assert_eq!(all, [(16, 0), (10, 77), (12, 0), (15, 0)]);
        assert_eq!(targets(&table, &tcp, FlowDirection::In), [(13, 0), (15, 0)]);
        assert_eq!(
            targets(&table, &group, FlowDirection::In),
            [(14, 0), (15, 0)]
        );
        assert_eq!(targets(&table, &udp, FlowDirection::Out), [(15, 0)]);
        assert_eq!(table.of_qp(Qpn::new(10)), [first]);
        assert!(table.remove(first).is_some() && table.remove(first).is_none());
        assert!(table.remove(polite).is_some());
        assert_eq!(targets(&table, &udp, FlowDirection::In), [(12, 0), (15, 0)]);
        table.add(Qpn::new(17), normal(&[FlowSpec::Drop, only_udp]));
        assert_eq!(targets(&table, &udp, FlowDirection::In), [(15, 0)]);
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        let eth = |ether_type| {
            FlowSpec::Eth(Masked {
                val: EthFields {
                    ether_type,
                    ..EthFields::default()
                },
                mask: EthFields {
                    ether_type: [0xff; 2],
                    ..EthFields::default()
                },
            })
        };
        let v4 = FlowSpec::Ipv4(Masked::default());
        let v6 = FlowSpec::Ipv6(Masked::default());
        let udp = FlowSpec::Udp(Masked::default());
        for right in [
            &[][..],
            &[eth([8, 0]), v4, udp],
            &[v6, udp, FlowSpec::Tag(1)],
            &[FlowSpec::Drop, udp],
        ] {
            normal(right).check().unwrap();
        }
        for wrong in [
            &[v4, v6][..],
            &[v4, eth([8, 0])],
            &[udp, udp],
            &[eth([8, 0]), v6],
            &[eth([0x86, 0xdd]), v4],
            &[FlowSpec::Tag(1), FlowSpec::Tag(2)],
            &[FlowSpec::Tag(1), FlowSpec::Drop],
            &[v4; MAX_FLOW_SPECS + 1],
        ] {
            assert!(normal(wrong).check().is_err(), "{wrong:?}");
        }
        for kind in [FlowKind::AllDefault, FlowKind::McDefault, FlowKind::Sniffer] {
            attr(kind, 0, &[]).check().unwrap();
            assert!(attr(kind, 0, &[udp]).check().is_err());
            let polite = FlowAttr {
                dont_trap: true,
                ..attr(kind, 0, &[])
            };
            assert_eq!(polite.check().is_ok(), kind == FlowKind::Sniffer);
        }
    }
}
