use super::*;

const fn one(word: u64) -> WideOperand {
    [word, 0, 0, 0]
}

const fn swap(compare: u64, compare_mask: u64, swap: u64, swap_mask: u64) -> MaskedOp {
    MaskedOp::CmpSwap {
        compare: one(compare),
        compare_mask: one(compare_mask),
        swap: one(swap),
        swap_mask: one(swap_mask),
    }
}

const fn add(add: u64, boundary: u64) -> MaskedOp {
    MaskedOp::FetchAdd {
        add: one(add),
        boundary: one(boundary),
    }
}

//= XAT-17 type=test
//= XAT-19..20 type=test
//= XAT-22 type=test
//= XEX-01 XEX-02 XEX-03 type=test
//= XEX-04 XEX-05 XEX-06 type=test
//= XEX-07 XEX-08 XEX-09 type=test
//= XEX-10 XEX-11 XEX-12 type=test
//= XEX-13 type=test
#[test]
fn worked_examples() {
    const ALL: u64 = u64::MAX;
    const OLD: u64 = 0x1122_3344_5566_7788;
    let example = swap(
        0x0000_0000_5566_0000,
        0x0000_0000_ffff_0000,
        0xaaaa_aaaa_aaaa_aaaa,
        0x00ff_0000_0000_ff00,
    );
    let mismatch = swap(
        0x0000_0000_5567_0000,
        0x0000_0000_ffff_0000,
        0xaaaa_aaaa_aaaa_aaaa,
        0x00ff_0000_0000_ff00,
    );
    for (log_size, op, old, new) in [
        (3, example, OLD, 0x11aa_3344_5566_aa88),
        (3, mismatch, OLD, OLD),
        (
            3,
            swap(0, 0, 0xdead_beef_cafe_f00d, ALL),
            OLD,
            0xdead_beef_cafe_f00d,
        ),
        (3, swap(OLD, ALL, 0x55, 0), OLD, OLD),
        (3, add(1, 0), 0xffff_ffff, 0x1_0000_0000),
        (3, add(1, 0x8000_0000), 0xffff_ffff, 0),
        (3, add(0x0001_0001_0001_0001, 0x8000_8000_8000_8000), ALL, 0),
        (3, add(0x0001_0001_0001_0001, 0x0000_8000_8000_8000), ALL, 0),
        (
            3,
            add(0x0001_0002_0001_8000, 0x8000_8000_8000_8000),
            0x00ff_00fe_7fff_8000,
            0x0100_0100_8000_0000,
        ),
        (
            3,
            add(0x1111_1111_1111_1111, 0x8888_8888_8888_8888),
            0x0f0f_0f0f_0f0f_0f0f,
            0x1010_1010_1010_1010,
        ),
        (2, add(0x0001_0001, 0x8000_8000), 0xffff_ffff, 0),
        (3, add(ALL, 0), 5, 4),
        (
            3,
            add(ALL, ALL),
            0xaaaa_aaaa_aaaa_aaaa,
            0x5555_5555_5555_5555,
        ),
        // Bits above the operand neither count nor change.
        (2, swap(1 << 40 | 7, ALL, ALL, ALL), 7, 0xffff_ffff),
        (2, add(1, 0), 0xffff_ffff, 0),
    ] {
        assert_eq!(op.apply(log_size, &one(old)), one(new), "{op:?} {old:#x}");
    }
}

/// Checks the addition against a model that adds bit by bit, as the rule is written.
//= XAT-19 type=test
#[test]
fn fields_as_a_model_of_single_bits_adds_them() {
    let mut seed = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    for round in 0..2000 {
        let (log_size, width) = if round % 2 == 0 { (3, 64) } else { (2, 32) };
        let all = u64::MAX >> (64 - width);
        let (old, addend, boundary) = (random() & all, random() & all, random() & random());
        let (mut sum, mut carry) = (0, 0);
        for bit in 0..width {
            let total = (old >> bit & 1) + (addend >> bit & 1) + carry;
            sum |= (total & 1) << bit;
            carry = if boundary >> bit & 1 == 1 {
                0
            } else {
                total >> 1
            };
        }
        assert_eq!(add(addend, boundary).apply(log_size, &one(old)), one(sum));
    }
}

//= XAT-18 type=test
//= XAT-21 type=test
#[test]
fn several_words_are_compared_together_and_added_apart() {
    const ALL: WideOperand = [u64::MAX; 4];
    let old = [1, 2, 3, 4];
    let swap = |compare| MaskedOp::CmpSwap {
        compare,
        compare_mask: ALL,
        swap: [9; 4],
        swap_mask: ALL,
    };
    assert_eq!(swap(old).apply(5, &old), [9; 4]);
    assert_eq!(swap([1, 2, 3, 5]).apply(5, &old), old);
    assert_eq!(swap([1, 2, 3, 5]).apply(4, &old), [9, 9, 3, 4]);
    let add = MaskedOp::FetchAdd {
        add: [1; 4],
        boundary: [0; 4],
    };
    assert_eq!(add.apply(5, &[u64::MAX, 0, u64::MAX, 7]), [0, 1, 0, 8]);
}

//= XAW-03 type=test
//= XAW-04 type=test
//= XAW-05 type=test
//= XAT-14 type=test
#[test]
fn operands_in_a_packet() {
    let op = MaskedOp::CmpSwap {
        compare: [1, 2, 3, 4],
        compare_mask: [5, 6, 7, 8],
        swap: [9, 10, 11, 12],
        swap_mask: [13, 14, 15, 1 << 56],
    };
    let mut out = [0xff; 128];
    assert_eq!(op.to_wire(5, &mut out), 128);
    assert_eq!(out[7], 9, "swap first, its lowest word first, big-endian");
    assert_eq!((out[39], out[71], out[103]), (1, 13, 5));
    assert_eq!(out[88], 1);
    assert_eq!(MaskedOp::from_wire(true, 5, &out), Some(op));
    assert_eq!(op.to_wire(4, &mut out), 64);
    for (swap, log_size, len) in [(true, 5, 128), (true, 3, 32), (true, 2, 32), (false, 4, 32)] {
        assert!(MaskedOp::from_wire(swap, log_size, &out[..len]).is_some());
        assert!(MaskedOp::from_wire(swap, log_size, &out[..len - 8]).is_none());
        assert!(MaskedOp::from_wire(swap, log_size, &[out, out].concat()[..len + 8]).is_none());
    }
    let narrow = add(0xffff_ffff_0000_0001, 1 << 63 | 2);
    assert_eq!(narrow.to_wire(2, &mut out), 16);
    assert_eq!(out[..16], [0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2]);
    let sizes: alloc::vec::Vec<_> = (0..=u8::MAX).filter(|size| is_size(*size)).collect();
    assert_eq!(sizes, [2, 3, 4, 5]);
}
