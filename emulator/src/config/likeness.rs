//! Known devices that Rocade's devices can imitate in their reported attributes (`ROCADE_LIKE`).

use rocade_transport::{Completion, QpCap, QpType, WcFlags, WcStatus};
use rocade_wire::Guid;

use super::error::{ConfigError, Origin};
use super::identity::DeviceIdentity;
use crate::limits;

/// Length of a scatter/gather element in a work queue entry, for rxe and mlx5.
const SGE_LEN: u32 = 16;
/// Most entries of an rxe completion queue.
const RXE_MAX_CQE: u32 = 32_767;
/// Most scatter/gather elements of an rxe shared receive.
const RXE_MAX_SRQ_SGE: u32 = 27;
/// Most outstanding READs and atomics of an mlx5 QP.
const MLX5_MAX_RD_ATOM: u8 = 16;
/// Most scatter/gather elements that mlx5 reports for a work request and for a shared receive.
const MLX5_MAX_SGE: u32 = 30;
const MLX5_MAX_SRQ_SGE: u32 = 31;
/// Unit in bytes of send queue entries of mlx5.
const MLX5_BLOCK: u32 = 64;
/// Bytes before inline data in an mlx5 entry.
const MLX5_INLINE_HEADER: u32 = 4;
/// The ECN bits of a traffic class, and the value ECT(0).
const ECN: u8 = 3;
const ECN_CAPABLE: u8 = 2;
/// Packet rate codes in a REQ: 10 Gbit/s, and what ConnectX-5 has sent.
const RATE_10G: u8 = 3;
const RATE_40G: u8 = 7;
/// ACK delay that mlx5 reports.
const MLX5_ACK_DELAY: u8 = 16;

/// Returns a traffic class with which the network may mark packets instead of dropping them: the
/// given one, unless it says nothing about that.
pub(crate) const fn ecn_capable(traffic_class: u8) -> u8 {
    if traffic_class & ECN == 0 {
        traffic_class | ECN_CAPABLE
    } else {
        traffic_class
    }
}

/// A kind of device, named after its driver. It changes reported attributes, and free fields of
/// packets, but never the device's abilities.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Likeness {
    /// Rocade's own attributes.
    #[default]
    Rocade,
    /// The kernel's software RoCE (rdma_rxe).
    Rxe,
    /// NVIDIA's ConnectX-4 and later.
    Mlx5,
}

impl Likeness {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Rocade, Self::Rxe, Self::Mlx5];

    /// Returns the name in settings.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rocade => "rocade",
            Self::Rxe => "rxe",
            Self::Mlx5 => "mlx5",
        }
    }

    /// Parses a name.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] with `origin`, the text and the allowed values.
    pub(super) fn parse(text: &str, origin: &Origin) -> Result<Self, ConfigError> {
        let found = Self::ALL.into_iter().find(|like| like.name() == text);
        found.ok_or_else(|| {
            let reason = "there is no such kind of device";
            ConfigError::invalid(origin, text, reason, "rocade, rxe or mlx5")
        })
    }

    /// Returns the default name of device `number`.
    pub(super) fn device_name(self, number: usize) -> String {
        match self {
            Self::Rocade => format!("rocade{number}"),
            Self::Rxe => format!("rxe{number}"),
            Self::Mlx5 => format!("mlx5_{number}"),
        }
    }

    /// Returns the default vendor and part.
    #[must_use]
    pub fn identity(self) -> DeviceIdentity {
        match self {
            Self::Rocade => DeviceIdentity::default(),
            Self::Rxe => DeviceIdentity {
                vendor_id: 0xff_ffff,
                part_id: 0,
            },
            // ConnectX-5.
            Self::Mlx5 => DeviceIdentity {
                vendor_id: 0x02c9,
                part_id: 0x1017,
            },
        }
    }

    /// Returns a node GUID in the driver's format for GUIDs derived from a MAC address. The other
    /// bytes are those of Rocade's GUID.
    pub(super) const fn guid(self, own: Guid) -> Guid {
        let middle = match self {
            Self::Rocade => return own,
            Self::Rxe => 0xfffe,
            Self::Mlx5 => 0x0300,
        };
        let hash = own.get() & 0xffff_ffff_ffff;
        let (high, low) = (hash >> 24, hash & 0xff_ffff);
        // A locally administered unicast MAC address has a first byte that ends in binary 10. An
        // EUI-64 inverts the former bit, but mlx5 does not.
        let first = if middle == 0xfffe { 0 } else { 2 };
        let high = high & 0xfc_ffff | first << 16;
        Guid::new(high << 40 | middle << 24 | low)
    }

    /// Returns the board (`board_id` in sysfs), for devices that report one.
    #[must_use]
    pub const fn board_id(self) -> Option<&'static str> {
        match self {
            Self::Rocade => Some("Rocade"),
            Self::Rxe => None,
            Self::Mlx5 => Some("MT_0000000008"),
        }
    }

    /// Returns the type (`hca_type` in sysfs), for devices that report one. These also report a
    /// revision.
    #[must_use]
    pub const fn hca_type(self) -> Option<&'static str> {
        match self {
            Self::Rocade => Some("Rocade"),
            Self::Rxe => None,
            Self::Mlx5 => Some("MT4119"),
        }
    }

    /// Changes the completion of a receive to what the driver reports.
    ///
    /// In rxe, every successful receive has `IBV_WC_GRH`, for all transport services. A refused
    /// WRITE with immediate has the status that its requester gets.
    //= RXE-58
    //= RXE-69
    pub(crate) fn report_receive(self, completion: &mut Completion) {
        if matches!(self, Self::Rxe) {
            match completion.status {
                WcStatus::Success => completion.wc_flags |= WcFlags::GRH,
                //= WCS-08
                WcStatus::LocAccessErr => completion.status = WcStatus::RemAccessErr,
                _ => {}
            }
        }
    }

    /// Returns true if a request for an event names the program's position in the completion queue.
    /// Completions that were there before and had no event then cause it, too.
    #[must_use]
    pub(crate) const fn arms_by_position(self) -> bool {
        matches!(self, Self::Mlx5)
    }

    /// Returns true if the GID table has each address as RoCE v1 and v2, the link-local one first.
    pub(crate) const fn lists_gids_in_pairs(self) -> bool {
        matches!(self, Self::Mlx5)
    }

    /// Returns true if the device gives the code QDR to a lane of 10 Gbit/s instead of FDR10.
    pub(crate) const fn calls_10g_qdr(self) -> bool {
        matches!(self, Self::Mlx5)
    }

    /// Returns true if the device reports on-demand paging and offloads of raw packets.
    #[must_use]
    pub const fn reports_odp_and_offloads(self) -> bool {
        !matches!(self, Self::Rxe)
    }

    /// Returns the most scatter/gather elements of a work request.
    #[must_use]
    pub const fn max_sge(self) -> u32 {
        match self {
            Self::Mlx5 => MLX5_MAX_SGE,
            Self::Rocade | Self::Rxe => limits::MAX_SGE,
        }
    }

    /// Returns the most scatter/gather elements of a shared receive.
    #[must_use]
    pub const fn max_srq_sge(self) -> u32 {
        match self {
            Self::Rocade => limits::MAX_SGE,
            Self::Rxe => RXE_MAX_SRQ_SGE,
            Self::Mlx5 => MLX5_MAX_SRQ_SGE,
        }
    }

    /// Returns the least number of shared receives, and of elements that each of them has.
    //= SRQ-01
    #[must_use]
    pub const fn least_srq_size(self) -> u32 {
        matches!(self, Self::Rxe) as u32
    }

    /// Returns the most entries of a completion queue.
    #[must_use]
    pub const fn max_cqe(self) -> u32 {
        match self {
            Self::Rxe => RXE_MAX_CQE,
            Self::Rocade | Self::Mlx5 => limits::MAX_CQE,
        }
    }

    /// Returns the most outstanding READs and atomics of a QP, in either role.
    #[must_use]
    pub const fn max_rd_atom(self) -> u8 {
        match self {
            Self::Mlx5 => MLX5_MAX_RD_ATOM,
            Self::Rocade | Self::Rxe => limits::MAX_RD_ATOM,
        }
    }

    /// Returns the length of the longest message in bytes.
    pub(crate) const fn max_msg_sz(self) -> u32 {
        match self {
            Self::Mlx5 => 1 << 30,
            Self::Rocade | Self::Rxe => limits::MAX_MSG_SZ,
        }
    }

    /// Returns the traffic class of packets. Packets of mlx5 are ECN-capable, acknowledgements and
    /// messages of the connection manager included.
    //= HW-02
    pub(crate) const fn traffic_class(self, asked: u8) -> u8 {
        match self {
            Self::Mlx5 => ecn_capable(asked),
            Self::Rocade | Self::Rxe => asked,
        }
    }

    /// Returns true if each connection has a UDP source port of its own, in both directions.
    //= HW-03
    pub(crate) const fn has_port_per_connection(self) -> bool {
        matches!(self, Self::Mlx5)
    }

    /// Returns true if masked FetchAdds of 8 bytes have the format of NVIDIA's masked CmpSwap.
    //= HW-12
    pub(crate) const fn sends_short_fetch_add(self) -> bool {
        matches!(self, Self::Mlx5)
    }

    /// Returns the code of the delay of acknowledgements, in attributes and in a REP.
    //= HW-09
    pub(crate) const fn ack_delay(self) -> u8 {
        match self {
            Self::Mlx5 => MLX5_ACK_DELAY,
            Self::Rocade | Self::Rxe => limits::LOCAL_CA_ACK_DELAY,
        }
    }

    /// Returns the code of the packet rate in a REQ.
    //= HW-09
    pub(crate) const fn packet_rate(self) -> u8 {
        match self {
            Self::Mlx5 => RATE_40G,
            Self::Rocade | Self::Rxe => RATE_10G,
        }
    }

    /// Returns the granted capacities of a queue pair, at least as large as requested.
    #[must_use]
    pub fn granted(self, qp_type: QpType, asked: QpCap) -> QpCap {
        let (sge, inline) = (asked.max_send_sge, asked.max_inline_data);
        if sge > self.max_sge() || inline > limits::MAX_INLINE_DATA {
            // The caller's limit check rejects these.
            return asked;
        }
        let mut cap = asked;
        match self {
            Self::Rocade => {}
            // In rxe, elements and inline data share the same space.
            Self::Rxe => {
                cap.max_inline_data = inline.max(sge * SGE_LEN);
                let elements = cap.max_inline_data / SGE_LEN;
                cap.max_send_sge = elements.clamp(sge, self.max_sge());
            }
            // In mlx5, an entry consists of whole blocks, and inline data gets the rest of the last
            // one.
            Self::Mlx5 => {
                let header = if matches!(qp_type, QpType::Rc | QpType::Uc) {
                    192
                } else if qp_type.traits().is_datagram {
                    64
                } else {
                    return asked;
                };
                let data = (MLX5_INLINE_HEADER + inline).next_multiple_of(SGE_LEN);
                let entry = header + data.max(sge * SGE_LEN);
                let space = entry.next_multiple_of(MLX5_BLOCK) - header - MLX5_INLINE_HEADER;
                cap.max_inline_data = space.min(limits::MAX_INLINE_DATA).max(inline);
            }
        }
        cap
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_known_and_others_refused() {
        let origin = Origin::Env("ROCADE_LIKE");
        for like in Likeness::ALL {
            assert_eq!(Likeness::parse(like.name(), &origin).unwrap(), like);
        }
        let error = Likeness::parse("mlx4", &origin).expect_err("no such kind");
        let text = error.to_string();
        for part in ["ROCADE_LIKE", "mlx4", "rocade, rxe or mlx5"] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn guids_have_the_form_of_the_driver() {
        let own = Guid::new(0x526f_a1b2_c3d4_e5f6);
        assert_eq!(Likeness::Rocade.guid(own), own);
        assert_eq!(Likeness::Rxe.guid(own).get(), 0xa0b2_c3ff_fed4_e5f6);
        assert_eq!(Likeness::Mlx5.guid(own).get(), 0xa2b2_c303_00d4_e5f6);
    }

    fn granted(like: Likeness, qp_type: QpType, sge: u32, inline: u32) -> (u32, u32) {
        let asked = QpCap {
            max_send_sge: sge,
            max_inline_data: inline,
            ..QpCap::default()
        };
        let cap = like.granted(qp_type, asked);
        (cap.max_send_sge, cap.max_inline_data)
    }

    #[test]
    fn queue_pairs_get_what_the_driver_gives() {
        use Likeness::{Mlx5, Rocade, Rxe};
        let rc = QpType::Rc;
        assert_eq!(granted(Rocade, rc, 1, 0), (1, 0));
        assert_eq!(granted(Rxe, rc, 1, 0), (1, 16));
        assert_eq!(granted(Rxe, rc, 1, 64), (4, 64));
        assert_eq!(granted(Rxe, rc, 3, 8), (3, 48));
        assert_eq!(granted(Rxe, rc, 1, 1024), (32, 1024));
        assert_eq!(granted(Mlx5, rc, 1, 0), (1, 60));
        assert_eq!(granted(Mlx5, rc, 1, 61), (1, 124));
        assert_eq!(granted(Mlx5, rc, 1, 220), (1, 252));
        assert_eq!(granted(Mlx5, QpType::Ud, 1, 0), (1, 60));
        assert_eq!(granted(Mlx5, rc, 1, 1024), (1, 1024));
    }

    /// Every request is granted in full, and nothing exceeds Rocade's limits.
    #[test]
    fn nothing_is_granted_that_rocade_does_not_have() {
        for like in Likeness::ALL {
            for sge in 0..=limits::MAX_SGE + 1 {
                for inline in 0..=limits::MAX_INLINE_DATA + 1 {
                    let (got_sge, got_inline) = granted(like, QpType::Rc, sge, inline);
                    let within = |got, asked, limit: u32| got >= asked && got <= limit.max(asked);
                    assert!(
                        within(got_sge, sge, limits::MAX_SGE),
                        "{like:?} {sge} {inline}"
                    );
                    let limit = limits::MAX_INLINE_DATA;
                    assert!(within(got_inline, inline, limit), "{like:?} {sge} {inline}");
                }
            }
        }
    }
}
