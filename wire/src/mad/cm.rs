//! The messages of the communication manager.
//!
//! Private data are whole fields. The sender fills unused bytes with 0, and the receiver cannot
//! determine the original length.

use super::bytes::{Bytes, put, put24};
use super::codes::{ApStatus, CmTimeout, Failover, RejReason, Rejected, SidrStatus};
use super::{CommId, Mad, ServiceId};
use crate::{Gid, Guid, Pkey, Psn, Qkey, Qpn};

/// Offset of the data of a MAD.
const D: usize = Mad::HEADER_LEN;

/// The transport service that a REQ requests.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum TransportType {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Reliable datagram.
    Rd,
    /// Extended reliable connection.
    Xrc,
    /// A reserved extended type.
    Other(u8),
}

impl TransportType {
    const fn from_codes(base: u8, extended: u8) -> Self {
        match (base, extended) {
            (0, _) => Self::Rc,
            (1, _) => Self::Uc,
            (2, _) => Self::Rd,
            (_, 1) => Self::Xrc,
            (_, other) => Self::Other(other),
        }
    }

    const fn codes(self) -> (u8, u8) {
        match self {
            Self::Rc => (0, 0),
            Self::Uc => (1, 0),
            Self::Rd => (2, 0),
            Self::Xrc => (3, 1),
            Self::Other(other) => (3, other & 7),
        }
    }
}

/// A path in a REQ or LAP, as seen by the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CmPath {
    /// LID of the sender's port. 0 or 0xFFFF on RoCE, and to be ignored.
    //= CMA-08
    pub local_lid: u16,
    /// LID of the receiver's port. 0 or 0xFFFF on RoCE, and to be ignored.
    pub remote_lid: u16,
    /// GID of the sender's port.
    pub local_gid: Gid,
    /// GID of the receiver's port.
    pub remote_gid: Gid,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Packet rate code, 6 bits.
    pub packet_rate: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Service level, 4 bits.
    pub sl: u8,
    /// Both ports are on one subnet.
    pub subnet_local: bool,
    /// The ACK timeout that the receiver's QP should use.
    pub ack_timeout: CmTimeout,
}

impl CmPath {
    /// No path: the alternate path of a REQ without one.
    //= CM-FLD-07
    pub const NONE: Self = Self {
        local_lid: 0,
        remote_lid: 0,
        local_gid: Gid::new([0; 16]),
        remote_gid: Gid::new([0; 16]),
        flow_label: 0,
        packet_rate: 0,
        traffic_class: 0,
        hop_limit: 0,
        sl: 0,
        subnet_local: false,
        ack_timeout: CmTimeout::new(0),
    };

    /// Reads the layout of a REQ. `at` is the offset of the path.
    fn parse_req(b: Bytes<'_>, at: usize) -> Self {
        Self {
            local_lid: b.u16(at),
            remote_lid: b.u16(at + 2),
            local_gid: Gid::new(b.array(at + 4)),
            remote_gid: Gid::new(b.array(at + 20)),
            flow_label: b.u24(at + 36) >> 4,
            packet_rate: b.u8(at + 39) & 0x3f,
            traffic_class: b.u8(at + 40),
            hop_limit: b.u8(at + 41),
            sl: b.u8(at + 42) >> 4,
            subnet_local: b.u8(at + 42) & 8 != 0,
            ack_timeout: CmTimeout::new(b.u8(at + 43) >> 3),
        }
    }

    fn emit_req(&self, mad: &mut [u8; Mad::LEN], at: usize) {
        self.emit_ends(mad, at);
        put24(mad, at + 36, self.flow_label << 4);
        mad[at + 39] = self.packet_rate & 0x3f;
        mad[at + 40] = self.traffic_class;
        mad[at + 41] = self.hop_limit;
        mad[at + 42] = self.sl << 4 | u8::from(self.subnet_local) << 3;
        mad[at + 43] = self.ack_timeout.code() << 3;
    }

    /// Reads the layout of a LAP, where the fields after the flow label have another order.
    fn parse_lap(b: Bytes<'_>, at: usize) -> Self {
        Self {
            traffic_class: b.u8(at + 39),
            hop_limit: b.u8(at + 40),
            packet_rate: b.u8(at + 41) & 0x3f,
            ..Self::parse_req(b, at)
        }
    }

    fn emit_lap(&self, mad: &mut [u8; Mad::LEN], at: usize) {
        self.emit_req(mad, at);
        mad[at + 39] = self.traffic_class;
        mad[at + 40] = self.hop_limit;
        mad[at + 41] = self.packet_rate & 0x3f;
    }

    fn emit_ends(&self, mad: &mut [u8; Mad::LEN], at: usize) {
        put(mad, at, &self.local_lid.to_be_bytes());
        put(mad, at + 2, &self.remote_lid.to_be_bytes());
        put(mad, at + 4, &self.local_gid.octets());
        put(mad, at + 20, &self.remote_gid.octets());
    }
}

/// Enhanced connection establishment: options that adapters of one vendor negotiate beside the
/// standard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ece {
    /// Vendor of the options, 24 bits. 0 for none.
    pub vendor_id: u32,
    /// Options with a meaning defined by the vendor. They are the attribute modifier of the MAD.
    pub options: u32,
}

impl Ece {
    /// No options.
    pub const NONE: Self = Self {
        vendor_id: 0,
        options: 0,
    };

    //= MAD-02
    fn parse(b: Bytes<'_>, vendor_id: u32) -> Self {
        Self {
            vendor_id,
            options: b.u32(20),
        }
    }

    fn emit_options(self, mad: &mut [u8; Mad::LEN]) {
        put(mad, 20, &self.options.to_be_bytes());
    }
}

/// Request for a connection.
//= CM-REQ-01
//= CM-REQ-02
//= CM-REQ-03
//= CM-REQ-04
//= CM-REQ-05
//= CM-REQ-06
//= CM-REQ-07
//= CM-REQ-08
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields of the message, by their names")]
pub struct Req {
    pub local_id: CommId,
    /// Enhanced connection establishment.
    pub ece: Ece,
    pub service_id: ServiceId,
    pub ca_guid: Guid,
    pub qkey: Qkey,
    pub qpn: Qpn,
    pub responder_resources: u8,
    pub eecn: u32,
    pub initiator_depth: u8,
    pub remote_eecn: u32,
    pub remote_response_timeout: CmTimeout,
    pub transport: TransportType,
    pub flow_control: bool,
    /// The PSN from which the receiver of the message sends.
    //= CM-FLD-08
    pub starting_psn: Psn,
    pub local_response_timeout: CmTimeout,
    /// 3 bits.
    pub retry_count: u8,
    pub pkey: Pkey,
    /// MTU code, 4 bits.
    pub mtu: u8,
    pub rdc_exists: bool,
    /// 3 bits.
    pub rnr_retry_count: u8,
    /// 4 bits.
    pub max_cm_retries: u8,
    pub srq: bool,
    pub primary: CmPath,
    pub alternate: CmPath,
    pub sap_supported: bool,
    pub private_data: [u8; Self::PRIVATE_LEN],
}

impl Req {
    /// Bytes of private data.
    //= CM-REQ-09
    pub const PRIVATE_LEN: usize = 92;

    fn parse(b: Bytes<'_>) -> Self {
        Self {
            local_id: CommId::new(b.u32(D)),
            ece: Ece::parse(b, b.u24(D + 5)),
            service_id: ServiceId::new(b.u64(D + 8)),
            ca_guid: Guid::new(b.u64(D + 16)),
            qkey: Qkey::new(b.u32(D + 28)),
            qpn: Qpn::new(b.u24(D + 32)),
            responder_resources: b.u8(D + 35),
            eecn: b.u24(D + 36),
            initiator_depth: b.u8(D + 39),
            remote_eecn: b.u24(D + 40),
            remote_response_timeout: CmTimeout::new(b.u8(D + 43) >> 3),
            transport: TransportType::from_codes(b.u8(D + 43) >> 1 & 3, b.u8(D + 51) & 7),
            flow_control: b.u8(D + 43) & 1 != 0,
            starting_psn: Psn::new(b.u24(D + 44)),
            local_response_timeout: CmTimeout::new(b.u8(D + 47) >> 3),
            retry_count: b.u8(D + 47) & 7,
            pkey: Pkey::new(b.u16(D + 48)),
            mtu: b.u8(D + 50) >> 4,
            rdc_exists: b.u8(D + 50) & 8 != 0,
            rnr_retry_count: b.u8(D + 50) & 7,
            max_cm_retries: b.u8(D + 51) >> 4,
            srq: b.u8(D + 51) & 8 != 0,
            primary: CmPath::parse_req(b, D + 52),
            alternate: CmPath::parse_req(b, D + 96),
            sap_supported: b.u8(D + 139) & 4 != 0,
            private_data: b.array(D + 140),
        }
    }

    fn emit(&self, mad: &mut [u8; Mad::LEN]) {
        let (base, extended) = self.transport.codes();
        put(mad, D, &self.local_id.get().to_be_bytes());
        self.ece.emit_options(mad);
        put24(mad, D + 5, self.ece.vendor_id);
        put(mad, D + 8, &self.service_id.get().to_be_bytes());
        put(mad, D + 16, &self.ca_guid.get().to_be_bytes());
        put(mad, D + 28, &self.qkey.get().to_be_bytes());
        put24(mad, D + 32, self.qpn.get());
        mad[D + 35] = self.responder_resources;
        put24(mad, D + 36, self.eecn);
        mad[D + 39] = self.initiator_depth;
        put24(mad, D + 40, self.remote_eecn);
        mad[D + 43] =
            self.remote_response_timeout.code() << 3 | base << 1 | u8::from(self.flow_control);
        put24(mad, D + 44, self.starting_psn.get());
        mad[D + 47] = self.local_response_timeout.code() << 3 | self.retry_count & 7;
        put(mad, D + 48, &self.pkey.get().to_be_bytes());
        mad[D + 50] = self.mtu << 4 | u8::from(self.rdc_exists) << 3 | self.rnr_retry_count & 7;
        mad[D + 51] = self.max_cm_retries << 4 | u8::from(self.srq) << 3 | extended;
        self.primary.emit_req(mad, D + 52);
        self.alternate.emit_req(mad, D + 96);
        mad[D + 139] |= u8::from(self.sap_supported) << 2;
        put(mad, D + 140, &self.private_data);
    }
}

/// Message receipt acknowledgement: announces that the answer takes longer.
//= CM-MRA
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields of the message, by their names")]
pub struct Mra {
    pub local_id: CommId,
    pub remote_id: CommId,
    /// The message that was received.
    pub received: Rejected,
    pub service_timeout: CmTimeout,
    pub private_data: [u8; Self::PRIVATE_LEN],
}

impl Mra {
    /// Bytes of private data.
    pub const PRIVATE_LEN: usize = 222;
}

/// Rejection.
//= CM-REJ
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields of the message, by their names")]
pub struct Rej {
    pub local_id: CommId,
    pub remote_id: CommId,
    pub rejected: Rejected,
    pub reason: RejReason,
    /// Number of valid bytes of the additional information, up to 72. 7 bits.
    pub info_len: u8,
    pub info: [u8; Self::INFO_LEN],
    pub private_data: [u8; Self::PRIVATE_LEN],
}

impl Rej {
    /// Bytes of additional information.
    pub const INFO_LEN: usize = 72;
    /// Bytes of private data.
    pub const PRIVATE_LEN: usize = 148;

    /// Returns the GUID in a REJ because of a timeout.
    #[must_use]
    pub fn timeout_guid(&self) -> Option<Guid> {
        let (guid, _) = self.info.split_first_chunk()?;
        (self.reason == RejReason::Timeout && self.info_len >= 8)
            .then(|| Guid::new(u64::from_be_bytes(*guid)))
    }
}

/// Reply to a request.
//= CM-REP
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields of the message, by their names")]
pub struct Rep {
    pub local_id: CommId,
    pub remote_id: CommId,
    pub qkey: Qkey,
    pub qpn: Qpn,
    /// The number of an XRC target QP.
    pub eecn: Qpn,
    /// Enhanced connection establishment.
    pub ece: Ece,
    /// The PSN from which the receiver of the message sends.
    pub starting_psn: Psn,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub target_ack_delay: CmTimeout,
    pub failover: Failover,
    pub flow_control: bool,
    /// 3 bits.
    pub rnr_retry_count: u8,
    pub srq: bool,
    pub ca_guid: Guid,
    pub private_data: [u8; Self::PRIVATE_LEN],
}

impl Rep {
    /// Bytes of private data.
    pub const PRIVATE_LEN: usize = 196;

    fn parse(b: Bytes<'_>) -> Self {
        Self {
            local_id: CommId::new(b.u32(D)),
            remote_id: CommId::new(b.u32(D + 4)),
            qkey: Qkey::new(b.u32(D + 8)),
            qpn: Qpn::new(b.u24(D + 12)),
            eecn: Qpn::new(b.u24(D + 16)),
            ece: Ece::parse(
                b,
                u32::from_be_bytes([0, b.u8(D + 15), b.u8(D + 19), b.u8(D + 23)]),
            ),
            starting_psn: Psn::new(b.u24(D + 20)),
            responder_resources: b.u8(D + 24),
            initiator_depth: b.u8(D + 25),
            target_ack_delay: CmTimeout::new(b.u8(D + 26) >> 3),
            failover: Failover::from_code(b.u8(D + 26) >> 1 & 3),
            flow_control: b.u8(D + 26) & 1 != 0,
            rnr_retry_count: b.u8(D + 27) >> 5,
            srq: b.u8(D + 27) & 0x10 != 0,
            ca_guid: Guid::new(b.u64(D + 28)),
            private_data: b.array(D + 36),
        }
    }

    fn emit(&self, mad: &mut [u8; Mad::LEN]) {
        put_ids(mad, self.local_id, self.remote_id);
        put(mad, D + 8, &self.qkey.get().to_be_bytes());
        put24(mad, D + 12, self.qpn.get());
        self.ece.emit_options(mad);
        let [_, high, middle, low] = self.ece.vendor_id.to_be_bytes();
        mad[D + 15] = high;
        put24(mad, D + 16, self.eecn.get());
        mad[D + 19] = middle;
        put24(mad, D + 20, self.starting_psn.get());
        mad[D + 23] = low;
        mad[D + 24] = self.responder_resources;
        mad[D + 25] = self.initiator_depth;
        mad[D + 26] = self.target_ack_delay.code() << 3
            | (self.failover.code() & 3) << 1
            | u8::from(self.flow_control);
        mad[D + 27] = self.rnr_retry_count << 5 | u8::from(self.srq) << 4;
        put(mad, D + 28, &self.ca_guid.get().to_be_bytes());
        put(mad, D + 36, &self.private_data);
    }
}

/// Ready to use: the last message of connection establishment.
//= CM-RTU
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields of the message, by their names")]
pub struct Rtu {
    pub local_id: CommId,
    pub remote_id: CommId,
    pub private_data: [u8; Self::PRIVATE_LEN],
}

impl Rtu {
    /// Bytes of private data.
    pub const PRIVATE_LEN: usize = 224;
}

/// Request to disconnect.
//= CM-DREQ
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields of the message, by their names")]
pub struct Dreq {
    pub local_id: CommId,
    pub remote_id: CommId,
    /// The receiver's QP.
    pub remote_qpn: Qpn,
    pub private_data: [u8; Self::PRIVATE_LEN],
}

impl Dreq {
    /// Bytes of private data.
    pub const PRIVATE_LEN: usize = 220;
}

/// Reply to a request to disconnect.
//= CM-DREP
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields of the message, by their names")]
pub struct Drep {
    pub local_id: CommId,
    pub remote_id: CommId,
    pub private_data: [u8; Self::PRIVATE_LEN],
}

impl Drep {
    /// Bytes of private data.
    pub const PRIVATE_LEN: usize = 224;
}

/// Request for the QP of a datagram service.
//= CM-SIDRQ
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields of the message, by their names")]
pub struct SidrReq {
    pub request_id: CommId,
    pub pkey: Pkey,
    pub service_id: ServiceId,
    pub private_data: [u8; Self::PRIVATE_LEN],
}

impl SidrReq {
    /// Bytes of private data.
    pub const PRIVATE_LEN: usize = 216;
}

/// Reply to a request for the QP of a datagram service.
//= CM-SIDRP
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields of the message, by their names")]
pub struct SidrRep {
    pub request_id: CommId,
    pub status: SidrStatus,
    pub info_len: u8,
    /// Enhanced connection establishment.
    pub ece: Ece,
    pub qpn: Qpn,
    pub service_id: ServiceId,
    pub qkey: Qkey,
    pub info: [u8; Self::INFO_LEN],
    pub private_data: [u8; Self::PRIVATE_LEN],
}

impl SidrRep {
    /// Bytes of additional information.
    pub const INFO_LEN: usize = 72;
    /// Bytes of private data.
    pub const PRIVATE_LEN: usize = 136;
}

/// Load alternate path.
//= CM-LAP
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields of the message, by their names")]
pub struct Lap {
    pub local_id: CommId,
    pub remote_id: CommId,
    /// The receiver's QP.
    pub remote_qpn: Qpn,
    pub remote_response_timeout: CmTimeout,
    pub alternate: CmPath,
    pub private_data: [u8; Self::PRIVATE_LEN],
}

impl Lap {
    /// Bytes of private data.
    pub const PRIVATE_LEN: usize = 168;
}

/// Alternate path response.
//= CM-APR
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields of the message, by their names")]
pub struct Apr {
    pub local_id: CommId,
    pub remote_id: CommId,
    pub info_len: u8,
    pub status: ApStatus,
    pub info: [u8; Self::INFO_LEN],
    pub private_data: [u8; Self::PRIVATE_LEN],
}

impl Apr {
    /// Bytes of additional information.
    pub const INFO_LEN: usize = 72;
    /// Bytes of private data.
    pub const PRIVATE_LEN: usize = 148;
}

/// A message of the communication manager.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is its type")]
pub enum CmMessage {
    Req(Req),
    Mra(Mra),
    Rej(Rej),
    Rep(Rep),
    Rtu(Rtu),
    Dreq(Dreq),
    Drep(Drep),
    SidrReq(SidrReq),
    SidrRep(SidrRep),
    Lap(Lap),
    Apr(Apr),
}

fn put_ids(mad: &mut [u8; Mad::LEN], local: CommId, remote: CommId) {
    put(mad, D, &local.get().to_be_bytes());
    put(mad, D + 4, &remote.get().to_be_bytes());
}

impl CmMessage {
    /// Returns the attribute ID of the message.
    #[must_use]
    pub const fn attribute(&self) -> u16 {
        match self {
            Self::Req(_) => 0x10,
            Self::Mra(_) => 0x11,
            Self::Rej(_) => 0x12,
            Self::Rep(_) => 0x13,
            Self::Rtu(_) => 0x14,
            Self::Dreq(_) => 0x15,
            Self::Drep(_) => 0x16,
            Self::SidrReq(_) => 0x17,
            Self::SidrRep(_) => 0x18,
            Self::Lap(_) => 0x19,
            Self::Apr(_) => 0x1a,
        }
    }

    /// Returns the communication ID that the receiver of the message has assigned. 0 if it does not
    /// know the sender yet.
    #[must_use]
    pub const fn receiver_id(&self) -> CommId {
        match self {
            Self::Req(_) | Self::SidrReq(_) => CommId::new(0),
            Self::Mra(Mra { remote_id, .. })
            | Self::Rej(Rej { remote_id, .. })
            | Self::Rep(Rep { remote_id, .. })
            | Self::Rtu(Rtu { remote_id, .. })
            | Self::Dreq(Dreq { remote_id, .. })
            | Self::Drep(Drep { remote_id, .. })
            | Self::Lap(Lap { remote_id, .. })
            | Self::Apr(Apr { remote_id, .. }) => *remote_id,
            Self::SidrRep(SidrRep { request_id, .. }) => *request_id,
        }
    }

    /// Parses the data of a MAD.
    pub(super) fn parse(attribute: u16, b: Bytes<'_>) -> Option<Self> {
        let (local_id, remote_id) = (CommId::new(b.u32(D)), CommId::new(b.u32(D + 4)));
        Some(match attribute {
            0x10 => Self::Req(Req::parse(b)),
            0x11 => Self::Mra(Mra {
                local_id,
                remote_id,
                received: Rejected::from_code(b.u8(D + 8) >> 6),
                service_timeout: CmTimeout::new(b.u8(D + 9) >> 3),
                private_data: b.array(D + 10),
            }),
            0x12 => Self::Rej(Rej {
                local_id,
                remote_id,
                rejected: Rejected::from_code(b.u8(D + 8) >> 6),
                info_len: b.u8(D + 9) >> 1,
                reason: RejReason::from_code(b.u16(D + 10)),
                info: b.array(D + 12),
                private_data: b.array(D + 84),
            }),
            0x13 => Self::Rep(Rep::parse(b)),
            0x14 => Self::Rtu(Rtu {
                local_id,
                remote_id,
                private_data: b.array(D + 8),
            }),
            0x15 => Self::Dreq(Dreq {
                local_id,
                remote_id,
                remote_qpn: Qpn::new(b.u24(D + 8)),
                private_data: b.array(D + 12),
            }),
            0x16 => Self::Drep(Drep {
                local_id,
                remote_id,
                private_data: b.array(D + 8),
            }),
            0x17 => Self::SidrReq(SidrReq {
                request_id: local_id,
                pkey: Pkey::new(b.u16(D + 4)),
                service_id: ServiceId::new(b.u64(D + 8)),
                private_data: b.array(D + 16),
            }),
            0x18 => Self::SidrRep(SidrRep {
                request_id: local_id,
                status: SidrStatus::from_code(b.u8(D + 4)),
                info_len: b.u8(D + 5),
                ece: Ece::parse(b, u32::from(b.u16(D + 6)) << 8 | u32::from(b.u8(D + 11))),
                qpn: Qpn::new(b.u24(D + 8)),
                service_id: ServiceId::new(b.u64(D + 12)),
                qkey: Qkey::new(b.u32(D + 20)),
                info: b.array(D + 24),
                private_data: b.array(D + 96),
            }),
            0x19 => Self::Lap(Lap {
                local_id,
                remote_id,
                remote_qpn: Qpn::new(b.u24(D + 12)),
                remote_response_timeout: CmTimeout::new(b.u8(D + 15) >> 3),
                alternate: CmPath::parse_lap(b, D + 20),
                private_data: b.array(D + 64),
            }),
            0x1a => Self::Apr(Apr {
                local_id,
                remote_id,
                info_len: b.u8(D + 8),
                status: ApStatus::from_code(b.u8(D + 9)),
                info: b.array(D + 12),
                private_data: b.array(D + 84),
            }),
            //= CM-SAP
            _ => return None,
        })
    }

    /// Writes the nonzero data of a MAD.
    pub(super) fn emit(&self, mad: &mut [u8; Mad::LEN]) {
        match self {
            Self::Req(req) => req.emit(mad),
            Self::Rep(rep) => rep.emit(mad),
            Self::Mra(m) => {
                put_ids(mad, m.local_id, m.remote_id);
                mad[D + 8] = m.received.code() << 6;
                mad[D + 9] = m.service_timeout.code() << 3;
                put(mad, D + 10, &m.private_data);
            }
            Self::Rej(m) => {
                put_ids(mad, m.local_id, m.remote_id);
                mad[D + 8] = m.rejected.code() << 6;
                mad[D + 9] = m.info_len << 1;
                put(mad, D + 10, &m.reason.code().to_be_bytes());
                put(mad, D + 12, &m.info);
                put(mad, D + 84, &m.private_data);
            }
            Self::Rtu(m) => {
                put_ids(mad, m.local_id, m.remote_id);
                put(mad, D + 8, &m.private_data);
            }
            Self::Dreq(m) => {
                put_ids(mad, m.local_id, m.remote_id);
                put24(mad, D + 8, m.remote_qpn.get());
                put(mad, D + 12, &m.private_data);
            }
            Self::Drep(m) => {
                put_ids(mad, m.local_id, m.remote_id);
                put(mad, D + 8, &m.private_data);
            }
            Self::SidrReq(m) => {
                put(mad, D, &m.request_id.get().to_be_bytes());
                put(mad, D + 4, &m.pkey.get().to_be_bytes());
                put(mad, D + 8, &m.service_id.get().to_be_bytes());
                put(mad, D + 16, &m.private_data);
            }
            Self::SidrRep(m) => emit_sidr_rep(m, mad),
            Self::Lap(m) => {
                put_ids(mad, m.local_id, m.remote_id);
                put24(mad, D + 12, m.remote_qpn.get());
                mad[D + 15] = m.remote_response_timeout.code() << 3;
                m.alternate.emit_lap(mad, D + 20);
                put(mad, D + 64, &m.private_data);
            }
            Self::Apr(m) => {
                put_ids(mad, m.local_id, m.remote_id);
                mad[D + 8] = m.info_len;
                mad[D + 9] = m.status.code();
                put(mad, D + 12, &m.info);
                put(mad, D + 84, &m.private_data);
            }
        }
    }
}

fn emit_sidr_rep(m: &SidrRep, mad: &mut [u8; Mad::LEN]) {
    put(mad, D, &m.request_id.get().to_be_bytes());
    mad[D + 4] = m.status.code();
    mad[D + 5] = m.info_len;
    m.ece.emit_options(mad);
    let [_, high, middle, low] = m.ece.vendor_id.to_be_bytes();
    put(mad, D + 6, &[high, middle]);
    put24(mad, D + 8, m.qpn.get());
    mad[D + 11] = low;
    put(mad, D + 12, &m.service_id.get().to_be_bytes());
    put(mad, D + 20, &m.qkey.get().to_be_bytes());
    put(mad, D + 24, &m.info);
    put(mad, D + 96, &m.private_data);
}
