use core::net::IpAddr;
use std::format;

use super::{Gid, Guid, Msn, Pkey, Qpn, Rkey};

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn numbers_of_24_bits_are_cut() {
    assert_eq!(Qpn::new(0xff00_0011).get(), 0x11);
    assert_eq!(Qpn::new(u32::MAX), Qpn::MULTICAST);
    assert_eq!(Msn::new(0x0100_0000).get(), 0);
    assert_eq!(Msn::new(0xff_ffff).next(), Msn::new(0));
    assert_eq!(Msn::new(1).diff(Msn::new(0xff_ffff)), 2);
    assert_eq!(Rkey::new(u32::MAX).get(), u32::MAX);
}

#[test]
fn printed_in_hex() {
    assert_eq!(
        format!("{:?} {}", Qpn::GSI, Qpn::GSI),
        "Qpn(0x000001) 0x000001"
    );
    assert_eq!(format!("{:?}", Rkey::new(0x54fb)), "Rkey(0x000054fb)");
    assert_eq!(format!("{}", Guid::new(1)), "0x0000000000000001");
    assert_eq!(format!("{:?}", Pkey::DEFAULT), "Pkey(0xffff)");
}

#[test]
//= BTH-06 type=test
fn partition_keys_match_for_one_full_member_at_least() {
    // Two keys, whether they match, and whether they are the same key of full members.
    let cases = [
        (0xffff, 0xffff, true, true),
        (0xffff, 0x7fff, true, false),
        (0x7fff, 0xffff, true, false),
        (0x7fff, 0x7fff, false, false),
        (0x8001, 0x0001, true, false),
        (0x8001, 0x8001, true, true),
        (0x8001, 0x8002, false, false),
        (0x8000, 0x8000, false, false),
        (0x0000, 0x8000, false, false),
        (0x0000, 0x0000, false, false),
    ];
    for (a, b, matches, same) in cases {
        let (one, other) = (Pkey::new(a), Pkey::new(b));
        assert_eq!(one.matches(other), matches, "{a:#06x} {b:#06x}");
        assert_eq!(one.is_same_full(other), same, "{a:#06x} {b:#06x}");
    }
    assert!(Pkey::DEFAULT.is_full_member() && Pkey::DEFAULT.is_valid());
    assert!(!Pkey::new(0x8000).is_valid());
    assert_eq!(Pkey::default(), Pkey::DEFAULT);
}

#[test]
//= ENC-11 type=test
fn gids_are_addresses() {
    let v4 = Gid::from_ip(ip("10.1.2.3"));
    assert_eq!(
        v4.octets(),
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 1, 2, 3]
    );
    assert_eq!(v4.to_ip(), ip("10.1.2.3"));
    assert_eq!(format!("{v4}"), "::ffff:10.1.2.3");
    let v6 = Gid::from_ip(ip("fd77::2"));
    assert_eq!(v6.to_ip(), ip("fd77::2"));
    assert_eq!(Gid::new(v6.octets()), v6);
    assert_eq!(Gid::from_ip(ip("::ffff:10.1.2.3")).to_ip(), ip("10.1.2.3"));
}

#[test]
fn gids_of_groups_and_unused_entries() {
    for (text, multicast) in [
        ("239.77.0.1", true),
        ("ff0e::1", true),
        ("10.0.0.1", false),
        ("fe80::1", false),
    ] {
        assert_eq!(Gid::from_ip(ip(text)).is_multicast(), multicast, "{text}");
    }
    assert!(Gid::default().is_zero());
    assert!(!Gid::from_ip(ip("::1")).is_zero());
}

//= KEY-04 type=test
#[test]
fn the_next_tag_leaves_the_index_alone() {
    for (rkey, next) in [
        (0x1234_5600, 0x1234_5601),
        (0x1234_56ff, 0x1234_5600),
        (0xffff_ffff, 0xffff_ff00),
        (0, 1),
    ] {
        assert_eq!(Rkey::new(rkey).with_next_tag(), Rkey::new(next));
    }
}
