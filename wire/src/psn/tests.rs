use std::format;

use proptest::prelude::*;

use super::Psn;

const HALF: i32 = 1 << 23;

#[test]
//= BTH-13 type=test
fn wraps_at_both_ends() {
    assert_eq!(Psn::MAX.next(), Psn::new(0));
    assert_eq!(Psn::new(0).sub(1), Psn::MAX);
    assert_eq!(Psn::new(0).get(), 0);
    assert_eq!(Psn::MAX.get(), 0xff_ffff);
    assert_eq!(Psn::new(1 << 24), Psn::new(0));
    assert_eq!(Psn::new(u32::MAX), Psn::MAX);
    assert_eq!(Psn::new(5).add(u32::MAX), Psn::new(4));
    assert_eq!(Psn::new(5).sub(u32::MAX), Psn::new(6));
}

#[test]
fn distance_across_the_wrap() {
    assert_eq!(Psn::new(2).diff(Psn::new(0xff_fffe)), 4);
    assert_eq!(Psn::new(0xff_fffe).diff(Psn::new(2)), -4);
    assert_eq!(Psn::new(7).diff(Psn::new(7)), 0);
}

#[test]
fn distance_at_the_half_of_the_circle() {
    let base = Psn::new(0xab_cdef);
    assert_eq!(base.add(0x7f_ffff).diff(base), HALF - 1);
    assert_eq!(base.add(0x80_0000).diff(base), -HALF);
    assert_eq!(base.add(0x80_0001).diff(base), -HALF + 1);
}

#[test]
fn printed_in_hex() {
    assert_eq!(
        format!("{:?} {}", Psn::new(0x12), Psn::new(0xabcdef)),
        "Psn(0x000012) 0xabcdef"
    );
}

proptest! {
    #[test]
    fn arithmetic_is_that_of_integers_modulo_2_to_the_24(a: u32, n: u32) {
        let expected = (u64::from(a) + u64::from(n)) % (1 << 24);
        prop_assert_eq!(u64::from(Psn::new(a).add(n).get()), expected);
        prop_assert_eq!(Psn::new(a).add(n).sub(n), Psn::new(a));
        prop_assert_eq!(Psn::new(a).next(), Psn::new(a).add(1));
    }

    #[test]
    fn diff_inverts_add(a: u32, distance in -HALF..HALF) {
        let moved = Psn::new(a.wrapping_add_signed(distance));
        prop_assert_eq!(moved.diff(Psn::new(a)), distance);
    }

    #[test]
    fn diff_is_antisymmetric_but_for_the_opposite_point(a: u32, b: u32) {
        let (a, b) = (Psn::new(a), Psn::new(b));
        let expected = if a.diff(b) == -HALF { -HALF } else { -a.diff(b) };
        prop_assert_eq!(b.diff(a), expected);
    }

    #[test]
    fn diff_does_not_depend_on_the_origin(a: u32, b: u32, shift: u32) {
        let (a, b) = (Psn::new(a), Psn::new(b));
        prop_assert_eq!(a.add(shift).diff(b.add(shift)), a.diff(b));
    }
}
