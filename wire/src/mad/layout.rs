//! Tests of the layout of each message: one field is changed at a time, and only its bits change.

use std::vec::Vec;

use super::*;
use crate::{Gid, Guid, Pkey, Psn, Qkey, Qpn};

/// Returns a message with all fields 0.
fn zero(attribute: u8) -> CmMessage {
    let mut mad = [0; Mad::LEN];
    mad[..4].copy_from_slice(&[1, 7, 2, 3]);
    mad[17] = attribute;
    Mad::parse(&mad).expect("a message").message
}

/// Returns the nonzero bytes of the data, as (offset, value).
fn bytes(message: CmMessage) -> Vec<(usize, u8)> {
    let mad = Mad::new(TransactionId::new(0), message).to_bytes();
    let data = mad[Mad::HEADER_LEN..].iter().enumerate();
    data.filter(|(_, byte)| **byte != 0)
        .map(|(at, byte)| (at, *byte))
        .collect()
}

/// Returns the bytes of a number at an offset, as (offset, value).
fn at<const N: usize>(place: usize, value: [u8; N]) -> Vec<(usize, u8)> {
    (place..).zip(value).collect()
}

/// Applies each change to a message, and checks the bytes that change.
macro_rules! fields {
    ($attribute:literal $kind:ident: $( $($field:ident).+ = $value:expr => $expected:expr; )+) => { $( {
        let CmMessage::$kind(mut m) = zero($attribute) else { panic!("another message") };
        m.$($field).+ = $value;
        assert_eq!(bytes(CmMessage::$kind(m)), $expected, stringify!($($field).+));
    } )+ };
}

const ID: CommId = CommId::new(0x0102_0304);
const ID_BYTES: [u8; 4] = [1, 2, 3, 4];

fn gid() -> Gid {
    Gid::new([7; 16])
}

//= CM-REQ-01 type=test
//= CM-REQ-02 type=test
//= CM-REQ-03 type=test
//= CM-REQ-04 type=test
//= CM-REQ-05 type=test
//= CM-REQ-06 type=test
//= CM-REQ-07 type=test
//= CM-REQ-08 type=test
//= CM-FLD-07 type=test
#[test]
fn a_request() {
    fields! { 0x10 Req:
        local_id = ID => at(0, ID_BYTES);
        ece = Ece { vendor_id: 0x01_0203, options: 0 } => at(5, [1, 2, 3]);
        service_id = ServiceId::new(0x0102_0304_0506_0708) => at(8, [1, 2, 3, 4, 5, 6, 7, 8]);
        ca_guid = Guid::new(0x0102_0304_0506_0708) => at(16, [1, 2, 3, 4, 5, 6, 7, 8]);
        qkey = Qkey::new(0x0102_0304) => at(28, ID_BYTES);
        qpn = Qpn::new(0x01_0203) => at(32, [1, 2, 3]);
        responder_resources = 9 => at(35, [9]);
        eecn = 0x01_0203 => at(36, [1, 2, 3]);
        initiator_depth = 9 => at(39, [9]);
        remote_eecn = 0x01_0203 => at(40, [1, 2, 3]);
        remote_response_timeout = CmTimeout::new(20) => at(43, [20 << 3]);
        transport = TransportType::Uc => at(43, [1 << 1]);
        transport = TransportType::Xrc => [(43, 3 << 1), (51, 1)];
        flow_control = true => at(43, [1]);
        starting_psn = Psn::new(0x01_0203) => at(44, [1, 2, 3]);
        local_response_timeout = CmTimeout::new(21) => at(47, [21 << 3]);
        retry_count = 5 => at(47, [5]);
        pkey = Pkey::new(0x8001) => at(48, [0x80, 1]);
        mtu = 3 => at(50, [3 << 4]);
        rdc_exists = true => at(50, [8]);
        rnr_retry_count = 6 => at(50, [6]);
        max_cm_retries = 15 => at(51, [15 << 4]);
        srq = true => at(51, [8]);
        primary.local_lid = 0x0102 => at(52, [1, 2]);
        primary.remote_lid = 0x0102 => at(54, [1, 2]);
        primary.local_gid = gid() => at(56, [7; 16]);
        primary.remote_gid = gid() => at(72, [7; 16]);
        primary.flow_label = 0x1_2345 => at(88, [0x12, 0x34, 0x50]);
        primary.packet_rate = 3 => at(91, [3]);
        primary.traffic_class = 0x60 => at(92, [0x60]);
        primary.hop_limit = 64 => at(93, [64]);
        primary.sl = 5 => at(94, [5 << 4]);
        primary.subnet_local = true => at(94, [8]);
        primary.ack_timeout = CmTimeout::new(17) => at(95, [17 << 3]);
        alternate.local_lid = 0x0102 => at(96, [1, 2]);
        alternate.remote_lid = 0x0102 => at(98, [1, 2]);
        alternate.local_gid = gid() => at(100, [7; 16]);
        alternate.remote_gid = gid() => at(116, [7; 16]);
        alternate.flow_label = 0x1_2345 => at(132, [0x12, 0x34, 0x50]);
        alternate.packet_rate = 3 => at(135, [3]);
        alternate.traffic_class = 0x60 => at(136, [0x60]);
        alternate.hop_limit = 64 => at(137, [64]);
        alternate.sl = 5 => at(138, [5 << 4]);
        alternate.subnet_local = true => at(138, [8]);
        alternate.ack_timeout = CmTimeout::new(17) => at(139, [17 << 3]);
        sap_supported = true => at(139, [4]);
        private_data = [9; 92] => at(140, [9; 92]);
    }
}

//= CM-REP type=test
//= CM-RTU type=test
#[test]
fn what_answers_a_request() {
    fields! { 0x13 Rep:
        local_id = ID => at(0, ID_BYTES);
        remote_id = ID => at(4, ID_BYTES);
        qkey = Qkey::new(0x0102_0304) => at(8, ID_BYTES);
        qpn = Qpn::new(0x01_0203) => at(12, [1, 2, 3]);
        ece = Ece { vendor_id: 0x01_0203, options: 0 } => [(15, 1), (19, 2), (23, 3)];
        eecn = Qpn::new(0x01_0203) => at(16, [1, 2, 3]);
        starting_psn = Psn::new(0x01_0203) => at(20, [1, 2, 3]);
        responder_resources = 9 => at(24, [9]);
        initiator_depth = 9 => at(25, [9]);
        target_ack_delay = CmTimeout::new(15) => at(26, [15 << 3]);
        failover = Failover::NotSupported => at(26, [1 << 1]);
        flow_control = true => at(26, [1]);
        rnr_retry_count = 6 => at(27, [6 << 5]);
        srq = true => at(27, [0x10]);
        ca_guid = Guid::new(0x0102_0304_0506_0708) => at(28, [1, 2, 3, 4, 5, 6, 7, 8]);
        private_data = [9; 196] => at(36, [9; 196]);
    }
    fields! { 0x14 Rtu:
        local_id = ID => at(0, ID_BYTES);
        remote_id = ID => at(4, ID_BYTES);
        private_data = [9; 224] => at(8, [9; 224]);
    }
}

//= CM-MRA type=test
//= CM-REJ type=test
#[test]
fn what_delays_and_rejects() {
    fields! { 0x11 Mra:
        local_id = ID => at(0, ID_BYTES);
        remote_id = ID => at(4, ID_BYTES);
        received = Rejected::Rep => at(8, [1 << 6]);
        received = Rejected::LapOrOther => at(8, [2 << 6]);
        service_timeout = CmTimeout::new(24) => at(9, [24 << 3]);
        private_data = [9; 222] => at(10, [9; 222]);
    }
    fields! { 0x12 Rej:
        local_id = ID => at(0, ID_BYTES);
        remote_id = ID => at(4, ID_BYTES);
        rejected = Rejected::Rep => at(8, [1 << 6]);
        info_len = 8 => at(9, [8 << 1]);
        reason = RejReason::from_code(0x0102) => at(10, [1, 2]);
        info = [9; 72] => at(12, [9; 72]);
        private_data = [9; 148] => at(84, [9; 148]);
    }
}

//= CM-REJ-A type=test
//= CM-REJ-B type=test
#[test]
fn reasons_have_their_numbers() {
    use RejReason::{Consumer, InvalidServiceId, StaleConnection, Timeout};
    for (reason, code) in [
        (Timeout, 4),
        (InvalidServiceId, 8),
        (StaleConnection, 10),
        (Consumer, 28),
    ] {
        assert_eq!(reason.code(), code);
    }
    for code in 0..=u16::MAX {
        assert_eq!(RejReason::from_code(code).code(), code);
    }
}

//= CM-DREQ type=test
//= CM-DREP type=test
#[test]
fn what_ends_a_connection() {
    fields! { 0x15 Dreq:
        local_id = ID => at(0, ID_BYTES);
        remote_id = ID => at(4, ID_BYTES);
        remote_qpn = Qpn::new(0x01_0203) => at(8, [1, 2, 3]);
        private_data = [9; 220] => at(12, [9; 220]);
    }
    fields! { 0x16 Drep:
        local_id = ID => at(0, ID_BYTES);
        remote_id = ID => at(4, ID_BYTES);
        private_data = [9; 224] => at(8, [9; 224]);
    }
}

//= CM-SIDRQ type=test
//= CM-SIDRP type=test
//= CM-SIDR-S type=test
#[test]
fn services() {
    fields! { 0x17 SidrReq:
        request_id = ID => at(0, ID_BYTES);
        pkey = Pkey::new(0x8001) => at(4, [0x80, 1]);
        service_id = ServiceId::new(0x0102_0304_0506_0708) => at(8, [1, 2, 3, 4, 5, 6, 7, 8]);
        private_data = [9; 216] => at(16, [9; 216]);
    }
    fields! { 0x18 SidrRep:
        request_id = ID => at(0, ID_BYTES);
        status = SidrStatus::ServiceIdNotSupported => at(4, [1]);
        status = SidrStatus::Rejected => at(4, [2]);
        info_len = 7 => at(5, [7]);
        ece = Ece { vendor_id: 0x01_0203, options: 0 } => [(6, 1), (7, 2), (11, 3)];
        qpn = Qpn::new(0x01_0203) => at(8, [1, 2, 3]);
        service_id = ServiceId::new(0x0102_0304_0506_0708) => at(12, [1, 2, 3, 4, 5, 6, 7, 8]);
        qkey = Qkey::new(0x0102_0304) => at(20, ID_BYTES);
        info = [9; 72] => at(24, [9; 72]);
        private_data = [9; 136] => at(96, [9; 136]);
    }
}

//= CM-LAP type=test
//= CM-APR type=test
//= CM-APR-S type=test
#[test]
fn alternate_paths() {
    fields! { 0x19 Lap:
        local_id = ID => at(0, ID_BYTES);
        remote_id = ID => at(4, ID_BYTES);
        remote_qpn = Qpn::new(0x01_0203) => at(12, [1, 2, 3]);
        remote_response_timeout = CmTimeout::new(20) => at(15, [20 << 3]);
        alternate.local_lid = 0x0102 => at(20, [1, 2]);
        alternate.remote_lid = 0x0102 => at(22, [1, 2]);
        alternate.local_gid = gid() => at(24, [7; 16]);
        alternate.remote_gid = gid() => at(40, [7; 16]);
        alternate.flow_label = 0x1_2345 => at(56, [0x12, 0x34, 0x50]);
        alternate.traffic_class = 0x60 => at(59, [0x60]);
        alternate.hop_limit = 64 => at(60, [64]);
        alternate.packet_rate = 3 => at(61, [3]);
        alternate.sl = 5 => at(62, [5 << 4]);
        alternate.subnet_local = true => at(62, [8]);
        alternate.ack_timeout = CmTimeout::new(17) => at(63, [17 << 3]);
        private_data = [9; 168] => at(64, [9; 168]);
    }
    fields! { 0x1a Apr:
        local_id = ID => at(0, ID_BYTES);
        remote_id = ID => at(4, ID_BYTES);
        info_len = 7 => at(8, [7]);
        status = ApStatus::from_code(2) => at(9, [2]);
        info = [9; 72] => at(12, [9; 72]);
        private_data = [9; 148] => at(84, [9; 148]);
    }
    assert_eq!(ApStatus::NotSupported.code(), 2);
}

/// Checks that options of enhanced establishment are in the header, for the three messages that
/// have them.
//= MAD-02 type=test
#[test]
fn options_are_the_modifier() {
    for attribute in 0x10..=0x1a {
        let mut bytes = Mad::new(TransactionId::new(0), zero(attribute)).to_bytes();
        bytes[20..24].copy_from_slice(&ID_BYTES);
        let read = Mad::parse(&bytes).expect("a message");
        let options = match &read.message {
            CmMessage::Req(m) => Some(m.ece.options),
            CmMessage::Rep(m) => Some(m.ece.options),
            CmMessage::SidrRep(m) => Some(m.ece.options),
            _ => None,
        };
        let has_some = [0x10, 0x13, 0x18].contains(&attribute);
        assert_eq!(options, has_some.then_some(0x0102_0304));
        assert_eq!(read.to_bytes()[20..24] == ID_BYTES, has_some);
    }
}

/// Checks that messages of newer standards are not parsed.
//= CM-SAP type=test
#[test]
fn suggestions_are_not_understood() {
    for attribute in [0x0f, 0x1b, 0x1c] {
        let mut mad = [0; Mad::LEN];
        mad[..4].copy_from_slice(&[1, 7, 2, 3]);
        mad[17] = attribute;
        let unknown = MadError::Attribute(attribute.into());
        assert_eq!(Mad::parse(&mad), Err(unknown));
    }
}
