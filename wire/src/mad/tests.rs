use proptest::prelude::*;
use std::string::ToString;

use super::*;

fn mad_with(attribute: u16, fill: impl Fn(usize) -> u8) -> [u8; Mad::LEN] {
    let mut mad: [u8; Mad::LEN] = core::array::from_fn(fill);
    mad[..4].copy_from_slice(&[1, 7, 2, 3]);
    mad[16..18].copy_from_slice(&attribute.to_be_bytes());
    mad
}

//= MAD-04 type=test
#[test]
fn what_is_no_message_of_the_manager_is_refused() {
    let good = mad_with(0x14, |_| 0);
    assert!(Mad::parse(&good).is_ok());
    assert_eq!(Mad::parse(&good[1..]), Err(MadError::Length));
    assert_eq!(
        Mad::parse(&[&good[..], &[0]].concat()),
        Err(MadError::Length)
    );
    let with = |at: usize, value| {
        let mut mad = good;
        mad[at] = value;
        Mad::parse(&mad)
    };
    assert_eq!(with(0, 2), Err(MadError::BaseVersion(2)));
    assert_eq!(with(1, 3), Err(MadError::Class(3)));
    assert_eq!(with(2, 1), Err(MadError::ClassVersion(1)));
    assert_eq!(with(3, 0x83), Err(MadError::Method(0x83)));
    assert_eq!(with(17, 0x0f), Err(MadError::Attribute(0x0f)));
    assert_eq!(with(17, 0x1b), Err(MadError::Attribute(0x1b)));
}

//= CM-FLD-03 type=test
#[test]
fn times_are_powers_of_two() {
    assert_eq!(CmTimeout::new(0).as_ns(), 1_000_000);
    assert_eq!(CmTimeout::new(8).as_ns(), 1_000_000);
    assert_eq!(CmTimeout::new(17).as_ns(), 512_000_000);
    assert_eq!(CmTimeout::new(20).as_ns(), 4_096_000_000);
    assert_eq!(CmTimeout::new(31).as_ns(), 8_388_608_000_000);
    assert_eq!(CmTimeout::new(32 + 7).code(), 7);
}

//= CM-FLD-05 type=test
#[test]
fn the_ack_timeout_combines_path_and_adapter() {
    let of =
        |life, delay| CmTimeout::ack_timeout(CmTimeout::new(life), CmTimeout::new(delay)).code();
    assert_eq!(of(16, 15), 17);
    assert_eq!(of(16, 16), 18);
    assert_eq!(of(16, 17), 18);
    assert_eq!(of(16, 18), 19);
    assert_eq!(of(16, 19), 19);
    assert_eq!(of(18, 0), 19);
    assert_eq!(of(31, 31), 31);
    assert_eq!(of(0, 31), 31);
}

//= CMA-01 type=test
#[test]
fn a_service_is_a_port_of_a_port_space() {
    assert_eq!(ServiceId::of_port(0x0106, 7471).get(), 0x0106_1d2f);
}

//= CMA-02 type=test
//= CMA-04 type=test
#[test]
fn addresses_precede_private_data() {
    let header = IpCmHeader {
        src_port: 0x1234,
        src: [10, 1, 2, 3].into(),
        dst: [10, 4, 5, 6].into(),
    };
    let bytes = header.to_bytes();
    let mut expected = [0; 36];
    expected[1..4].copy_from_slice(&[0x40, 0x12, 0x34]);
    expected[16..20].copy_from_slice(&[10, 1, 2, 3]);
    expected[32..].copy_from_slice(&[10, 4, 5, 6]);
    assert_eq!(bytes, expected);
    assert_eq!(IpCmHeader::parse(&bytes), Ok(header));
    assert_eq!(IpCmHeader::parse(&bytes[..35]), Err(IpCmError::Truncated));
    let with = |at: usize, value| {
        let mut bytes = bytes;
        bytes[at] = value;
        IpCmHeader::parse(&bytes)
    };
    assert_eq!(with(0, 0x10), Err(IpCmError::Version(0x10)));
    assert_eq!(with(1, 0x50), Err(IpCmError::IpVersion(5)));
    let v6 = IpCmHeader {
        src_port: 1,
        src: "fd00::1".parse().unwrap(),
        dst: "fd00::2".parse().unwrap(),
    };
    assert_eq!(IpCmHeader::parse(&v6.to_bytes()), Ok(v6));
}

/// Returns the bits of each message that are no field: ignored when read, and written as 0.
fn reserved(attribute: u16) -> std::vec::Vec<(usize, u8)> {
    let whole = |range: core::ops::Range<usize>| range.map(|at| (at, 0xff));
    let mut bits: std::vec::Vec<(usize, u8)> = match attribute {
        0x10 => whole(4..5)
            .chain(whole(24..28))
            .chain([(91, 0xc0), (90, 0x0f), (94, 7), (95, 7)])
            .chain([(135, 0xc0), (134, 0x0f), (138, 7), (139, 3)])
            .collect(),
        0x11 => std::vec![(8, 0x3f), (9, 7)],
        0x12 => std::vec![(8, 0x3f), (9, 1)],
        0x13 => std::vec![(27, 0x0f)],
        0x15 => whole(11..12).collect(),
        0x17 => whole(6..8).collect(),
        0x19 => whole(8..12)
            .chain(whole(16..20))
            .chain([(15, 7), (58, 0x0f), (61, 0xc0), (62, 7), (63, 7)])
            .collect(),
        0x1a => whole(10..12).collect(),
        _ => std::vec![],
    };
    for bit in &mut bits {
        bit.0 += Mad::HEADER_LEN;
    }
    bits
}

proptest! {
    /// Every bit of every message is a field or reserved.
    //= MAD-03 type=test
    #[test]
    fn messages_decode_and_encode_to_the_same_bytes(
        attribute in 0x10u16..=0x1a,
        bytes in proptest::collection::vec(any::<u8>(), Mad::LEN),
    ) {
        let mut bytes = mad_with(attribute, |at| bytes[at]);
        let mad = Mad::parse(&bytes).unwrap();
        prop_assert!(!mad.to_string().contains('\n'));
        prop_assert_eq!(mad.message.attribute(), attribute);
        for (at, mask) in reserved(attribute) {
            bytes[at] &= !mask;
        }
        // Status, class-specific field and the 16 bits after the attribute.
        bytes[4..8].fill(0);
        bytes[18..20].fill(0);
        // The modifier: options of enhanced establishment.
        if !matches!(attribute, 0x10 | 0x13 | 0x18) {
            bytes[20..24].fill(0);
        }
        if let CmMessage::Req(req) = &mad.message {
            // The extended type has a meaning with transport type 3 only.
            let (base, extended) = match req.transport {
                TransportType::Rc => (0, 0),
                TransportType::Uc => (1, 0),
                TransportType::Rd => (2, 0),
                TransportType::Xrc => (3, 1),
                TransportType::Other(other) => (3, other),
            };
            prop_assert_eq!(bytes[Mad::HEADER_LEN + 43] >> 1 & 3, base);
            bytes[Mad::HEADER_LEN + 51] = bytes[Mad::HEADER_LEN + 51] & 0xf8 | extended;
        }
        prop_assert_eq!(&mad.to_bytes()[..], &bytes[..]);
    }

    #[test]
    fn arbitrary_bytes_are_no_trouble(
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
    ) {
        let _ = Mad::parse(&bytes);
        let _ = IpCmHeader::parse(&bytes);
    }
}
