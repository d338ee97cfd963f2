use alloc::vec;
use alloc::vec::Vec;

use rocade_wire::Qpn;

use super::*;

const PD: PdTag = PdTag(3);
const WHO: Accessor = Accessor {
    pd: PD,
    qpn: Qpn::new(0x17),
};
const FOREIGN: Accessor = Accessor {
    pd: PdTag(4),
    ..WHO
};
const KEY: Rkey = Rkey::new(0x55_00);
const ALL: AccessFlags = Indirect::RIGHTS;
const NONE: AccessFlags = AccessFlags::empty();

const fn block(lkey: u32, addr: u64, len: u64, stride: u64) -> Block {
    Block {
        lkey: Lkey::new(lkey),
        addr,
        len,
        stride,
    }
}

fn fill(base: u64, layout: Layout) -> Fill {
    Fill {
        key: KEY,
        if_free: false,
        access: Some(ALL),
        remap: Remap::To { base, layout },
    }
}

fn filled(base: u64, layout: Layout) -> Indirect {
    let mut key = Indirect::new(PD, KEY, 16, ALL);
    assert_eq!(key.fill(WHO, fill(base, layout), 0), Ok(()));
    key
}

/// Returns each segment of a range, as (key, address, length).
fn segments(key: &Indirect, va: u64, len: u64) -> Result<Vec<(u32, u64, u64)>, AccessError> {
    let mut found = vec![];
    key.segments(WHO, (va, len), NONE, |lkey, addr, len| {
        found.push((lkey.get(), addr, len));
        Ok::<(), AccessError>(())
    })?;
    Ok(found)
}

fn byte(key: &Indirect, va: u64) -> Result<(u32, u64), AccessError> {
    let found = segments(key, va, 1)?;
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].2, 1);
    Ok((found[0].0, found[0].1))
}

//= UMR-15 type=test
//= UMR-20 type=test
//= UMR-22 type=test
//= UMR-23 type=test
#[test]
fn a_list_is_one_range() {
    let (a, b, c) = (0xa, 0xb, 0xc);
    let list = [
        block(a, 0x7f00_0000, 100, 0),
        block(b, 0x7f10_0040, 28, 0),
        block(c, 0x7f20_0ff0, 64, 0),
    ];
    let key = filled(0x4000_0000, Layout::list(list).unwrap());
    assert_eq!(key.listed().unwrap().len, 192);
    assert_eq!(byte(&key, 0x4000_0000), Ok((a, 0x7f00_0000)));
    assert_eq!(byte(&key, 0x4000_0063), Ok((a, 0x7f00_0063)));
    assert_eq!(byte(&key, 0x4000_0064), Ok((b, 0x7f10_0040)));
    assert_eq!(byte(&key, 0x4000_007f), Ok((b, 0x7f10_005b)));
    assert_eq!(byte(&key, 0x4000_0080), Ok((c, 0x7f20_0ff0)));
    assert_eq!(byte(&key, 0x4000_00bf), Ok((c, 0x7f20_102f)));
    assert_eq!(byte(&key, 0x4000_00c0), Err(AccessError::OutOfRange));
    assert_eq!(byte(&key, 0x3fff_ffff), Err(AccessError::OutOfRange));
    assert_eq!(
        segments(&key, 0x4000_0000, 193),
        Err(AccessError::OutOfRange)
    );
    assert_eq!(
        segments(&key, 0x4000_0001, u64::MAX),
        Err(AccessError::OutOfRange)
    );
    let across = [
        (a, 0x7f00_0062, 2),
        (b, 0x7f10_0040, 28),
        (c, 0x7f20_0ff0, 1),
    ];
    assert_eq!(segments(&key, 0x4000_0062, 31).unwrap(), across);
}

//= UMR-21 type=test
#[test]
fn entries_overlap_repeat_and_may_be_empty() {
    let list = [
        block(1, 50, 0, 0),
        block(1, 10, 4, 0),
        block(1, 12, 4, 0),
        block(2, 0, 0, 0),
        block(1, 10, 1, 0),
        block(3, 7, 0, 0),
    ];
    let layout = Layout::list(list).unwrap();
    assert_eq!((layout.entries(), layout.len()), (6, 9));
    let key = filled(0, layout);
    let all = [(1, 10, 4), (1, 12, 4), (1, 10, 1)];
    assert_eq!(segments(&key, 0, 9).unwrap(), all);
    let nothing = filled(7, Layout::list([block(1, 10, 0, 0)]).unwrap());
    assert_eq!(segments(&nothing, 7, 0).unwrap(), []);
    assert_eq!(segments(&nothing, 7, 1), Err(AccessError::OutOfRange));
    assert!(
        Layout::repeated([block(1, 10, 4, 4)], 0)
            .unwrap()
            .is_empty()
    );
}

//= UMR-30 type=test
//= UMR-31 type=test
//= UMR-34 type=test
#[test]
fn blocks_are_interleaved() {
    let (e0, e1) = (1, 2);
    let blocks = [block(e0, 0x1_0000, 4, 16), block(e1, 0x2_0000, 2, 8)];
    let key = filled(0x1000, Layout::repeated(blocks, 3).unwrap());
    assert_eq!(key.listed().unwrap().len, 18);
    for (va, place) in [
        (0x1000, (e0, 0x1_0000)),
        (0x1003, (e0, 0x1_0003)),
        (0x1004, (e1, 0x2_0000)),
        (0x1005, (e1, 0x2_0001)),
        (0x1006, (e0, 0x1_0010)),
        (0x100b, (e1, 0x2_0009)),
        (0x1011, (e1, 0x2_0011)),
    ] {
        assert_eq!(byte(&key, va), Ok(place), "{va:#x}");
    }
    assert_eq!(byte(&key, 0x1012), Err(AccessError::OutOfRange));
    let middle = [
        (e1, 0x2_0001, 1),
        (e0, 0x1_0010, 4),
        (e1, 0x2_0008, 2),
        (e0, 0x1_0020, 1),
    ];
    assert_eq!(segments(&key, 0x1005, 8).unwrap(), middle);
}

//= UMR-32 type=test
//= UMR-35 type=test
#[test]
fn a_column_of_a_matrix_and_strides_that_overlap() {
    let column = Layout::repeated([block(1, 20, 4, 64)], 8).unwrap();
    let key = filled(0, column);
    assert_eq!(key.listed().unwrap().len, 32);
    assert_eq!(byte(&key, 31), Ok((1, 20 + 7 * 64 + 3)));
    let same = filled(0, Layout::repeated([block(1, 5, 2, 0)], 3).unwrap());
    assert_eq!(
        segments(&same, 1, 4).unwrap(),
        [(1, 6, 1), (1, 5, 2), (1, 5, 1)]
    );
    let sliding = filled(0, Layout::repeated([block(1, 5, 4, 1)], 2).unwrap());
    assert_eq!(segments(&sliding, 0, 8).unwrap(), [(1, 5, 4), (1, 6, 4)]);
}

#[test]
fn what_wraps_around_is_no_layout() {
    let whole = u64::MAX;
    for (blocks, repeats) in [
        (vec![block(1, 1, whole, 0)], 1),
        (vec![block(1, 0, whole, 0)], 2),
        (vec![block(1, 0, whole, 0), block(1, 0, 1, 0)], 1),
        (vec![block(1, 0, 1, whole)], 3),
        (vec![block(1, whole - 4, 1, 1)], 6),
    ] {
        let refused = Layout::repeated(blocks.clone(), repeats);
        assert_eq!(refused, Err(BindError::OutOfRange), "{blocks:?}");
    }
    let find = |_| {
        Some(Listed {
            pd: PD,
            start: 0,
            len: u64::MAX,
            depth: 0,
        })
    };
    let layout = Layout::list([block(1, 0, 10, 0)]).unwrap();
    let wraps = fill(u64::MAX - 9, layout.clone());
    assert_eq!(
        Indirect::check(PD, &wraps, find),
        Err(BindError::OutOfRange)
    );
    assert_eq!(
        Indirect::check(PD, &fill(u64::MAX - 10, layout), find),
        Ok(0)
    );
}

//= UMR-03 type=test
//= UMR-12 type=test
//= UMR-36 type=test
#[test]
fn what_may_be_listed() {
    let listed = Listed {
        pd: PD,
        start: 0x1000,
        len: 0x100,
        depth: 0,
    };
    let check = |blocks: &[Block], repeats, listed: Option<Listed>| {
        let layout = Layout::repeated(blocks.iter().copied(), repeats).unwrap();
        Indirect::check(PD, &fill(0, layout), |lkey| {
            assert_eq!(lkey, Lkey::new(1));
            listed
        })
    };
    let whole = [block(1, 0x1000, 0x100, 0)];
    assert_eq!(check(&whole, 1, Some(listed)), Ok(0));
    assert_eq!(check(&whole, 1, None), Err(BindError::NoRegion));
    let foreign = Listed {
        pd: PdTag(4),
        ..listed
    };
    assert_eq!(check(&whole, 1, Some(foreign)), Err(BindError::WrongPd));
    for (addr, len, stride, repeats, fits) in [
        (0x10ff, 1, 0, 1, true),
        (0x10ff, 2, 0, 1, false),
        (0xfff, 1, 0, 1, false),
        (0x1000, 1, 0xff, 2, true),
        (0x1001, 1, 0xff, 2, false),
        (0x1000, 2, 0xff, 2, false),
        (0x1000, 0x100, 0, 9, true),
    ] {
        let result = check(&[block(1, addr, len, stride)], repeats, Some(listed));
        let wanted = if fits {
            Ok(0)
        } else {
            Err(BindError::OutOfRange)
        };
        assert_eq!(result, wanted, "{addr:#x} {len} {stride} {repeats}");
    }
    for (depth, allowed) in [(1, true), (Indirect::MAX_DEPTH, true), (5, false)] {
        let result = check(&whole, 1, Some(Listed { depth, ..listed }));
        let wanted = if allowed {
            Ok(depth)
        } else {
            Err(BindError::TooDeep)
        };
        assert_eq!(result, wanted);
    }
}

//= UMR-05 type=test
//= UMR-13 type=test
//= UMR-14 type=test
//= UMR-17 type=test
//= UMR-18 type=test
//= XDEC-14 type=test
#[test]
fn a_key_is_free_filled_refilled_and_freed() {
    let rights = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ;
    let mut key = Indirect::new(PD, KEY, 2, rights | AccessFlags::MW_BIND);
    assert_eq!(segments(&key, 0, 1), Err(AccessError::BadKey));
    assert!(key.listed().is_none());
    let layout = |addr| Layout::list([block(1, addr, 8, 0), block(1, addr, 8, 0)]).unwrap();
    let with = |access, addr| Fill {
        access: Some(access),
        ..fill(0, layout(addr))
    };
    // Rights without a meaning for the key are ignored.
    let allowed = rights | AccessFlags::RELAXED_ORDERING;
    let refused = key.fill(WHO, with(AccessFlags::REMOTE_WRITE, 0), 0);
    assert_eq!(refused, Err(BindError::BadRights));
    assert_eq!(
        key.fill(FOREIGN, with(rights, 0), 0),
        Err(BindError::WrongPd)
    );
    assert_eq!(key.fill(WHO, with(allowed, 0), 2), Ok(()));
    assert_eq!(
        (key.key(), key.pd(), key.listed().unwrap().depth),
        (KEY, PD, 3)
    );
    assert_eq!(byte(&key, 1), Ok((1, 1)));
    let may = |key: &Indirect, who, right| {
        key.segments(who, (0, 1), right, |_, _, _| Ok::<(), AccessError>(()))
    };
    assert_eq!(may(&key, WHO, AccessFlags::REMOTE_READ), Ok(()));
    assert_eq!(
        may(&key, WHO, AccessFlags::REMOTE_ATOMIC),
        Err(AccessError::Permission)
    );
    assert_eq!(may(&key, FOREIGN, NONE), Err(AccessError::WrongPd));
    // The key is filled again over the first content.
    assert_eq!(
        key.fill(WHO, with(AccessFlags::LOCAL_WRITE, 100), 0),
        Ok(())
    );
    assert_eq!(byte(&key, 1), Ok((1, 101)));
    assert_eq!(
        may(&key, WHO, AccessFlags::REMOTE_READ),
        Err(AccessError::Permission)
    );
    let guarded = Fill {
        if_free: true,
        ..with(rights, 200)
    };
    assert_eq!(key.fill(WHO, guarded.clone(), 0), Err(BindError::Bound));
    // The key's rights change alone, then its memory alone.
    let only = |access, remap| Fill {
        key: KEY,
        if_free: false,
        access,
        remap,
    };
    assert_eq!(key.fill(WHO, only(Some(rights), Remap::Keep), 0), Ok(()));
    assert_eq!(may(&key, WHO, AccessFlags::REMOTE_READ), Ok(()));
    assert_eq!(byte(&key, 1), Ok((1, 101)));
    let long = Layout::list([block(1, 0, 8, 0); 3]).unwrap();
    let too_long = only(
        None,
        Remap::To {
            base: 0,
            layout: long,
        },
    );
    assert_eq!(key.fill(WHO, too_long, 0), Err(BindError::OutOfRange));
    assert_eq!(byte(&key, 1), Ok((1, 101)));
    // The key can be freed any number of times, and invalidated once.
    for _ in 0..2 {
        assert_eq!(key.fill(WHO, only(None, Remap::Free), 0), Ok(()));
        assert_eq!(segments(&key, 0, 1), Err(AccessError::BadKey));
    }
    assert_eq!(key.invalidate(WHO), Err(AccessError::BadKey));
    assert_eq!(key.fill(WHO, guarded, 0), Ok(()));
    assert_eq!(key.invalidate(FOREIGN), Err(AccessError::WrongPd));
    assert_eq!(key.invalidate(WHO), Ok(()));
    assert_eq!(segments(&key, 0, 1), Err(AccessError::BadKey));
}

//= UMR-33 type=test
#[test]
fn a_segment_that_fails_ends_the_access() {
    let key = filled(0, Layout::repeated([block(1, 0, 1, 1)], 1 << 40).unwrap());
    let mut seen = 0;
    let ended = key.segments(WHO, (0, 1 << 40), NONE, |_, _, _| {
        seen += 1;
        if seen == 3 {
            Err(AccessError::Fault)
        } else {
            Ok(())
        }
    });
    assert_eq!((ended, seen), (Err(AccessError::Fault), 3));
}
