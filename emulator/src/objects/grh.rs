//! The sender's addresses in the 40 bytes in front of a datagram.

use rocade_transport::AddressVector;
use rocade_wire::Gid;
use rocade_wire::ip::{GRH_LEN, checksum};

use crate::hca::{GidEntry, GidKind};

/// The network header in front of a received message (`ibv_grh`), as far as a response needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "ibv_grh")]
pub struct Grh {
    from: Gid,
    to: Gid,
    traffic_class: u8,
    hop_limit: u8,
    flow_label: u32,
}

impl Grh {
    /// Offset of the IPv4 header.
    const V4_AT: usize = 20;

    /// Parses the header: an IPv6 header, or an IPv4 header at the end. Returns `None` if it is
    /// neither.
    //= GRH-05
    #[must_use]
    pub fn of(bytes: &[u8; GRH_LEN]) -> Option<Self> {
        let v4 = bytes.last_chunk::<20>()?;
        let gid = |at: usize| {
            let octets: [u8; 16] = bytes.get(at..at + 16)?.try_into().ok()?;
            Some(Gid::new(octets))
        };
        if bytes[0] >> 4 == 6 && (v4[0] != 0x45 || checksum(v4) != 0) {
            let [b0, b1, b2, b3, ..] = *bytes;
            return Some(Self {
                from: gid(8)?,
                to: gid(24)?,
                traffic_class: b0 << 4 | b1 >> 4,
                hop_limit: bytes[7],
                flow_label: u32::from_be_bytes([0, b1 & 0xf, b2, b3]),
            });
        }
        let address = |at: usize| {
            let octets: [u8; 4] = bytes.get(at..at + 4)?.try_into().ok()?;
            Some(Gid::from_ip(octets.into()))
        };
        (v4[0] >> 4 == 4).then_some(())?;
        Some(Self {
            from: address(Self::V4_AT + 12)?,
            to: address(Self::V4_AT + 16)?,
            traffic_class: v4[1],
            hop_limit: v4[8],
            flow_label: 0,
        })
    }

    /// The destination of the message: a local address or a multicast group.
    #[must_use]
    pub const fn to(&self) -> Gid {
        self.to
    }

    /// Returns the address vector of a response from a port with these addresses. Returns `None` if
    /// the message was for none of them.
    #[must_use]
    #[doc(alias = "ibv_init_ah_from_wc")]
    pub fn reply_address(&self, port: u8, gids: &[GidEntry]) -> Option<AddressVector> {
        let is_v4 = self.to.to_ip().is_ipv4();
        let mut v2 = gids.iter().filter(|entry| entry.kind == GidKind::RoceV2);
        let own = v2.find(|entry| {
            // A message to a group may be answered from any address of its IP version.
            let same_family = entry.gid.to_ip().is_ipv4() == is_v4;
            entry.gid == self.to || self.to.is_multicast() && same_family
        })?;
        Some(AddressVector {
            dgid: self.from,
            flow_label: self.flow_label,
            sgid_index: u8::try_from(own.index).ok()?,
            hop_limit: self.hop_limit,
            traffic_class: self.traffic_class,
            is_global: true,
            port_num: port,
            ..AddressVector::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use rocade_wire::ip::Datagram;

    use super::*;

    fn header(src: &str, dst: &str, tos: u8, flow_label: u32) -> [u8; GRH_LEN] {
        let datagram = Datagram {
            src: src.parse().expect("an address"),
            dst: dst.parse().expect("an address"),
            ip_id: 0,
            dont_fragment: true,
            flow_label,
            tos,
            ttl: 61,
            src_port: 50_000,
            dst_port: 4791,
            udp_checksum: 0,
            udp_payload: &[],
        };
        datagram.grh()
    }

    fn entry(index: u32, address: &str) -> GidEntry {
        GidEntry {
            gid: Gid::from_ip(address.parse().expect("an address")),
            kind: GidKind::RoceV2,
            index,
            ifindex: 1,
        }
    }

    //= GRH-05 type=test
    #[test]
    fn the_way_back_is_in_the_header() {
        let gids = [
            entry(0, "fe80::9"),
            entry(1, "10.0.0.7"),
            entry(3, "fd00::7"),
        ];
        let back =
            |bytes: &[u8; GRH_LEN]| Grh::of(bytes).and_then(|grh| grh.reply_address(2, &gids));
        let found = back(&header("fd00::1", "fd00::7", 0xa5, 0xb_cdef)).expect("a local address");
        assert_eq!(found.dgid.to_ip().to_string(), "fd00::1");
        assert_eq!(
            (found.sgid_index, found.port_num, found.is_global),
            (3, 2, true)
        );
        assert_eq!((found.traffic_class, found.flow_label), (0xa5, 0xb_cdef));
        assert_eq!(found.hop_limit, 61);

        let v4 = header("10.0.0.1", "10.0.0.7", 0x5a, 0);
        let found = back(&v4).expect("a local address");
        assert_eq!(found.dgid.to_ip().to_string(), "10.0.0.1");
        assert_eq!(
            (found.sgid_index, found.traffic_class, found.hop_limit),
            (1, 0x5a, 61)
        );
        // The bytes in front of an IPv4 header may look like IPv6. The checksum of the IPv4 header
        // decides.
        let mut behind_six = v4;
        behind_six[0] = 0x60;
        assert_eq!(back(&behind_six), Some(found));
        behind_six[30] ^= 1;
        assert_eq!(back(&behind_six), None, "IPv6, for another destination");
        // To a group, from any address of its version.
        let group = header("10.0.0.1", "239.0.0.1", 0, 0);
        assert_eq!(back(&group).map(|back| back.sgid_index), Some(1));

        assert_eq!(back(&header("10.0.0.1", "10.0.0.8", 0, 0)), None);
        assert_eq!(Grh::of(&[0; GRH_LEN]), None);
    }
}
