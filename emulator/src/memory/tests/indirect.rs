//! Indirect keys.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rocade_transport::{Block, Fill, Indirect, Layout, Remap};

use super::*;

const RIGHTS: AccessFlags = Indirect::RIGHTS;

fn block(key: u32, addr: u64, len: u64) -> Block {
    Block {
        lkey: Lkey::new(key),
        addr,
        len,
        stride: 0,
    }
}

fn fill_with(key: u32, access: AccessFlags, base: u64, layout: Layout) -> Fill {
    Fill {
        key: Rkey::new(key),
        if_free: false,
        access: Some(access),
        remap: Remap::To { base, layout },
    }
}

fn fill(key: u32, base: u64, blocks: &[Block]) -> Fill {
    let layout = Layout::list(blocks.iter().copied()).expect("a short list");
    fill_with(key, RIGHTS, base, layout)
}

/// An accessor of another protection domain.
const FOREIGN: Accessor = Accessor {
    pd: PdTag(7),
    ..WHO
};

/// A table with a region of all rights at 0x1000, and an indirect key for bytes 0x2000 to 0x2024.
/// The key lists the region's words 4 and 5, words 0 and 1, and the last four bytes of word 7.
fn scattered(access: AccessFlags) -> (MrTable, u32, u32, &'static mut [u64; 8]) {
    let (table, region, memory) = table(access);
    let key = table.insert_indirect(PD, 4, RIGHTS).expect("room");
    let blocks = [
        block(region, 0x1020, 16),
        block(region, 0x1000, 16),
        block(region, 0x103c, 4),
    ];
    let filled = table.read(Time::ZERO).fill(WHO, fill(key, 0x2000, &blocks));
    assert_eq!(filled, Ok(()));
    (table, region, key, memory)
}

//= UMR-24 type=test
//= UMR-13 type=test
#[test]
fn segments_are_one_range_for_every_access() {
    let (table, region, key, _memory) = scattered(RIGHTS);
    let memory = table.read(Time::ZERO);
    let (lkey, rkey) = (Lkey::new(key), Rkey::new(key));
    // The key may change at any moment, so that the access has to be checked again.
    let local = memory.check_local(WHO, lkey, 0x2000, 36, LocalAccess::Write);
    assert_eq!(local, Ok(Extent::Segments));
    let remote = |va, len| memory.check_remote(WHO, rkey, va, len, RemoteAccess::Read);
    assert_eq!(remote(0x2000, 36), Ok(Extent::Segments));
    assert_eq!(remote(0x2001, 36), Err(AccessError::OutOfRange));
    assert_eq!(remote(0x1fff, 2), Err(AccessError::OutOfRange));
    let bytes: Vec<u8> = (1..=36).collect();
    assert_eq!(memory.write_remote(WHO, rkey, 0x2000, &bytes), Ok(()));
    let mut read = [0; 64];
    let whole = memory.read_local(WHO, Lkey::new(region), 0x1000, &mut read);
    assert_eq!(whole, Ok(()));
    assert_eq!(read[..16], bytes[16..32]);
    assert_eq!(read[16..32], [0; 16]);
    assert_eq!(read[32..48], bytes[..16]);
    assert_eq!(read[48..60], [0; 12]);
    assert_eq!(read[60..], bytes[32..]);
    for range in [0..36, 15..17, 3..33, 35..36, 16..32] {
        let va = 0x2000 + range.start as u64;
        let mut part = vec![0; range.len()];
        assert_eq!(memory.read_remote(WHO, rkey, va, &mut part), Ok(()));
        assert_eq!(part, bytes[range.clone()]);
        part.fill(0);
        assert_eq!(memory.read_local(WHO, lkey, va, &mut part), Ok(()));
        assert_eq!(part, bytes[range]);
    }
    assert_eq!(memory.write_local(WHO, lkey, 0x200e, &[9; 4]), Ok(()));
    let whole = memory.read_local(WHO, Lkey::new(region), 0x1000, &mut read);
    assert_eq!(whole, Ok(()));
    assert_eq!(
        (&read[..3], &read[45..48]),
        (&[9, 9, 19][..], &[14, 9, 9][..])
    );
    // Atomics must lie within one segment, and be aligned in both address spaces.
    let add = |va| memory.atomic_remote(WHO, rkey, va, AtomicOp::FetchAdd { add: 1 });
    let word = u64::from_ne_bytes(read[8..16].try_into().expect("8 bytes"));
    assert_eq!((add(0x2018), add(0x2018)), (Ok(word), Ok(word + 1)));
    assert_eq!(add(0x2020), Err(AccessError::OutOfRange));
    let shifted = [
        block(region, 0x1004, 4),
        block(region, 0x1008, 8),
        block(region, 0x1014, 8),
    ];
    assert_eq!(memory.fill(WHO, fill(key, 0, &shifted)), Ok(()));
    for va in [0, 8] {
        assert_eq!(add(va), Err(AccessError::OutOfRange), "across two");
    }
    assert_eq!(
        add(4),
        Ok(word + 2),
        "the caller checks the alignment of its own address"
    );
    let aligned_here_only = [block(region, 0x1004, 16)];
    assert_eq!(memory.fill(WHO, fill(key, 0, &aligned_here_only)), Ok(()));
    assert_eq!(add(8), Err(AccessError::OutOfRange));
}

//= UMR-13 type=test
//= UMR-08 type=test
//= UMR-24 type=test
#[test]
fn both_keys_have_to_allow_it_and_all_segments_before_the_first_byte() {
    let (table, region, key, words) = scattered(RIGHTS);
    let read_only = table.insert(Region {
        pd: PD,
        addr: (&raw mut *words).expose_provenance(),
        len: 64,
        iova: 0,
        access: AccessFlags::REMOTE_READ,
    });
    let read_only = read_only.expect("room");
    let (lkey, rkey) = (Lkey::new(key), Rkey::new(key));
    {
        let memory = table.read(Time::ZERO);
        let mixed = [block(region, 0x1000, 8), block(read_only, 8, 8)];
        assert_eq!(memory.fill(WHO, fill(key, 0, &mixed)), Ok(()));
        let mut bytes = [0; 16];
        assert_eq!(memory.read_remote(WHO, rkey, 0, &mut bytes), Ok(()));
        for (va, len, allowed) in [(0, 8, true), (0, 9, false), (8, 1, false)] {
            let wanted = if allowed {
                Ok(())
            } else {
                Err(AccessError::Permission)
            };
            let bytes = vec![5; len];
            let remote = memory.write_remote(WHO, rkey, va, &bytes);
            assert_eq!(remote, wanted, "{va} {len}");
            assert_eq!(memory.write_local(WHO, lkey, va, &bytes), wanted);
        }
        assert_eq!(memory.write_remote(WHO, rkey, 0, &[5; 8]), Ok(()));
        assert_eq!(
            memory.write_remote(WHO, rkey, 0, &[6; 16]),
            Err(AccessError::Permission)
        );
        assert_eq!(memory.read_remote(WHO, rkey, 0, &mut bytes), Ok(()));
        assert_eq!(
            bytes[..8],
            [5; 8],
            "nothing of what was refused was written"
        );
        // The rights of the key itself.
        let layout = Layout::list([block(region, 0x1000, 8)]).expect("short");
        let narrow = fill_with(key, AccessFlags::REMOTE_READ, 0, layout);
        assert_eq!(memory.fill(WHO, narrow), Ok(()));
        assert_eq!(
            memory.write_remote(WHO, rkey, 0, &[7; 8]),
            Err(AccessError::Permission)
        );
        assert_eq!(
            memory.write_local(WHO, lkey, 0, &[7; 8]),
            Err(AccessError::Permission)
        );
        assert_eq!(
            memory.read_remote(FOREIGN, rkey, 0, &mut bytes[..8]),
            Err(AccessError::WrongPd)
        );
        assert_eq!(memory.fill(WHO, fill(key, 0, &mixed)), Ok(()));
    }
    // After a region was removed, accesses that do not touch it still work.
    assert_eq!(table.remove(read_only), Ok(()));
    let memory = table.read(Time::ZERO);
    let mut bytes = [0; 9];
    assert_eq!(memory.read_remote(WHO, rkey, 0, &mut bytes[..8]), Ok(()));
    assert_eq!(
        memory.read_remote(WHO, rkey, 0, &mut bytes),
        Err(AccessError::BadKey)
    );
    let check = memory.check_local(WHO, lkey, 0, 16, LocalAccess::Read);
    assert_eq!(check, Err(AccessError::BadKey));
}

//= UMR-05 type=test
//= UMR-12 type=test
//= UMR-18 type=test
//= INV-01 type=test
#[test]
fn free_keys_and_what_cannot_be_listed() {
    let (table, region, key, _memory) = scattered(RIGHTS);
    let free = table.insert_indirect(PD, 4, RIGHTS).expect("room");
    let foreign = table.insert_indirect(FOREIGN.pd, 4, RIGHTS).expect("room");
    let window = table.insert_window(WindowKind::Type1, PD).expect("room");
    let memory = table.read(Time::ZERO);
    let mut byte = [0];
    let access = memory.read_local(WHO, Lkey::new(free), 0, &mut byte);
    assert_eq!(access, Err(AccessError::BadKey));
    let list = |accessor, of, entry| memory.fill(accessor, fill(of, 0, &[entry]));
    assert_eq!(list(WHO, key, block(free, 0, 1)), Err(BindError::NoRegion));
    assert_eq!(
        list(WHO, key, block(window, 0, 1)),
        Err(BindError::NoRegion)
    );
    assert_eq!(
        list(WHO, key, block(region ^ 1, 0x1000, 1)),
        Err(BindError::NoRegion)
    );
    assert_eq!(
        list(WHO, key, block(region, 0x1000, 65)),
        Err(BindError::OutOfRange)
    );
    assert_eq!(
        list(WHO, region, block(region, 0x1000, 1)),
        Err(BindError::NoWindow)
    );
    assert_eq!(
        list(WHO, key ^ 1, block(region, 0x1000, 1)),
        Err(BindError::NoWindow)
    );
    assert_eq!(
        list(FOREIGN, key, block(region, 0x1000, 1)),
        Err(BindError::WrongPd)
    );
    assert_eq!(
        list(FOREIGN, foreign, block(region, 0x1000, 1)),
        Err(BindError::WrongPd)
    );
    // None of that has changed anything.
    assert_eq!(
        memory.read_local(WHO, Lkey::new(key), 0x2000, &mut byte),
        Ok(())
    );
    for _turn in 0..2 {
        assert_eq!(
            memory.fill(WHO, fill(key, 0, &[block(region, 0x1000, 1)])),
            Ok(())
        );
        assert_eq!(
            memory.invalidate(FOREIGN, Rkey::new(key)),
            Err(AccessError::WrongPd)
        );
        assert_eq!(memory.invalidate(WHO, Rkey::new(key)), Ok(()));
        let access = memory.read_local(WHO, Lkey::new(key), 0, &mut byte);
        assert_eq!(access, Err(AccessError::BadKey));
        assert_eq!(
            memory.invalidate(WHO, Rkey::new(key)),
            Err(AccessError::BadKey)
        );
    }
    drop(memory);
    for gone in [free, key] {
        assert_eq!(table.remove(gone), Ok(()));
        assert_eq!(table.remove(gone), Err(RemoveError::Unknown));
    }
}

//= NUL-01 type=test
#[test]
fn memory_that_is_not_there_may_be_a_segment() {
    let (table, region, key, _memory) = scattered(RIGHTS);
    let null = table.insert_null(PD).expect("room");
    let memory = table.read(Time::ZERO);
    let blocks = [
        block(region, 0x1000, 2),
        block(null, 77, 3),
        block(region, 0x1002, 2),
    ];
    assert_eq!(memory.fill(WHO, fill(key, 0, &blocks)), Ok(()));
    let rkey = Rkey::new(key);
    assert_eq!(
        memory.write_remote(WHO, rkey, 0, &[1, 2, 3, 4, 5, 6, 7]),
        Ok(())
    );
    let mut read = [9; 7];
    assert_eq!(memory.read_remote(WHO, rkey, 0, &mut read), Ok(()));
    assert_eq!(read, [1, 2, 0, 0, 0, 6, 7]);
}

//= UMR-03 type=test
#[test]
fn keys_of_keys_down_to_the_advertised_depth() {
    let (table, region, first, _memory) = scattered(RIGHTS);
    let keys: Vec<u32> = (0..=Indirect::MAX_DEPTH)
        .map(|_| table.insert_indirect(PD, 2, RIGHTS).expect("room"))
        .collect();
    let memory = table.read(Time::ZERO);
    assert_eq!(
        memory.fill(WHO, fill(first, 0, &[block(region, 0x1000, 64)])),
        Ok(())
    );
    let mut below = first;
    for (depth, key) in (1..).zip(&keys) {
        // The second half, then the first.
        let blocks = [block(below, 32, 32), block(below, 0, 32)];
        let filled = memory.fill(WHO, fill(*key, 0, &blocks));
        if depth > Indirect::MAX_DEPTH {
            assert_eq!(filled, Err(BindError::TooDeep));
            break;
        }
        assert_eq!(filled, Ok(()));
        below = *key;
    }
    let deepest = Rkey::new(below);
    let bytes: Vec<u8> = (0..64).collect();
    assert_eq!(memory.write_remote(WHO, deepest, 0, &bytes), Ok(()));
    let mut read = [0; 64];
    let whole = memory.read_local(WHO, Lkey::new(region), 0x1000, &mut read);
    assert_eq!(whole, Ok(()));
    assert_eq!(read[..], bytes, "an even number of exchanges");
    // An access notices that a nested key was invalidated. It also ends if keys list each other in
    // a circle.
    assert_eq!(memory.invalidate(WHO, Rkey::new(first)), Ok(()));
    assert_eq!(
        memory.read_remote(WHO, deepest, 0, &mut read),
        Err(AccessError::BadKey)
    );
    let circle = fill(first, 0, &[block(keys[0], 0, 64)]);
    assert_eq!(memory.fill(WHO, circle), Ok(()));
    assert_eq!(
        memory.read_remote(WHO, deepest, 0, &mut read),
        Err(AccessError::BadKey)
    );
}

#[test]
fn a_check_of_a_segment_per_byte_takes_no_time() {
    let (table, region, key, _memory) = scattered(RIGHTS);
    let memory = table.read(Time::ZERO);
    let repeats = 1 << 40;
    let bytes = Layout::repeated([block(region, 0x1000, 1)], repeats).expect("short");
    assert_eq!(memory.fill(WHO, fill_with(key, RIGHTS, 0, bytes)), Ok(()));
    let begin = Instant::now();
    let check = memory.check_remote(WHO, Rkey::new(key), 0, 1 << 31, RemoteAccess::Read);
    assert_eq!(check, Ok(Extent::Segments));
    assert!(begin.elapsed() < Duration::from_secs(5));
    let mut read = [0; 100];
    assert_eq!(
        memory.read_remote(WHO, Rkey::new(key), repeats - 100, &mut read),
        Ok(())
    );
}

/// Some threads fill keys with each other, and other threads access them, without deadlock.
#[test]
fn keys_that_list_each_other_change_under_traffic() {
    let (table, region, first, _memory) = scattered(RIGHTS);
    let second = table.insert_indirect(PD, 4, RIGHTS).expect("room");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let accesses: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let (mut done, mut value) = (0u32, [0; 8]);
                    while !stop.load(Ordering::Relaxed) || done == 0 {
                        let memory = table.read(Time::ZERO);
                        for key in [first, second] {
                            let read = memory.read_remote(WHO, Rkey::new(key), 0, &mut value);
                            done += u32::from(read.is_ok());
                        }
                    }
                })
            })
            .collect();
        let change = |one: u32, other: u32| {
            for round in 0..2000 {
                let memory = table.read(Time::ZERO);
                let listed = if round % 2 == 0 { region } else { other };
                let addr = if round % 2 == 0 { 0x1000 } else { 0 };
                let _ = memory.fill(WHO, fill(one, 0, &[block(listed, addr, 8)]));
            }
            let memory = table.read(Time::ZERO);
            assert_eq!(
                memory.fill(WHO, fill(one, 0, &[block(region, 0x1000, 8)])),
                Ok(())
            );
        };
        let writer = scope.spawn(move || change(first, second));
        change(second, first);
        writer.join().expect("no panic");
        stop.store(true, Ordering::Relaxed);
        for access in accesses {
            access.join().expect("no panic");
        }
    });
}

/// Invalidation of a key, or of one that it lists, returns when no access is in flight.
//= UMR-18 type=test
#[test]
fn nothing_is_written_after_a_key_below_is_invalid() {
    let (table, region, inner, memory) = scattered(RIGHTS);
    let outer = table.insert_indirect(PD, 4, RIGHTS).expect("room");
    let watched = &raw const memory[1];
    // SAFETY: leaked memory, read through an atomic only from here on.
    let watched = unsafe { AtomicU64::from_ptr(watched.cast_mut()) };
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut value = 0u64;
            while !stop.load(Ordering::Relaxed) {
                value += 1;
                let guard = table.read(Time::ZERO);
                let _ = guard.write_remote(WHO, Rkey::new(outer), 0, &value.to_ne_bytes());
            }
        });
        let load = || watched.load(Ordering::SeqCst);
        for round in 0..300 {
            let guard = table.read(Time::ZERO);
            let filled = guard.fill(WHO, fill(inner, 0, &[block(region, 0x1008, 8)]));
            assert_eq!(filled, Ok(()));
            let filled = guard.fill(WHO, fill(outer, 0, &[block(inner, 0, 8)]));
            assert_eq!(filled, Ok(()));
            let before = load();
            while load() == before {
                std::thread::yield_now();
            }
            let ends = if round % 2 == 0 { inner } else { outer };
            guard.invalidate(WHO, Rkey::new(ends)).expect("filled");
            let last = load();
            for _ in 0..50 {
                assert_eq!(load(), last);
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
}
