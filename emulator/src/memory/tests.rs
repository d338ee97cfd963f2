//! Keys and access checks.

use std::collections::HashSet;

use rocade_transport::{
    AccessError, AccessFlags, Accessor, AtomicOp, Bind, BindError, Extent, LocalAccess, Memory,
    PdTag, RemoteAccess, Time, WindowKind,
};
use rocade_wire::{Lkey, Qpn, Rkey};

use super::{DeviceMemory, MrTable, Region, RemoveError};

mod indirect;
#[cfg(not(loom))]
mod placed;

const PD: PdTag = PdTag(1);
const WHO: Accessor = Accessor {
    pd: PD,
    qpn: Qpn::new(2),
};

/// A table with one region of leaked memory at iova 0x1000.
fn table(access: AccessFlags) -> (MrTable, u32, &'static mut [u64; 8]) {
    let memory = Box::leak(Box::new([0u64; 8]));
    let addr = (&raw mut *memory).expose_provenance();
    let table = MrTable::new();
    let region = Region {
        pd: PD,
        addr,
        len: 64,
        iova: 0x1000,
        access,
    };
    let key = table.insert(region).expect("room");
    (table, key, memory)
}

//= KEY-02 type=test
//= KEY-03 type=test
//= KEY-05 type=test
#[test]
fn stale_and_invented_keys_are_refused() {
    let (table, key, _memory) = table(AccessFlags::LOCAL_WRITE);
    let check = |key| {
        let access = LocalAccess::Read;
        table
            .read(Time::ZERO)
            .check_local(WHO, Lkey::new(key), 0x1000, 8, access)
    };
    assert_eq!(check(key), Ok(Extent::One));
    for bad in [0, key ^ 1, key + 0x100, u32::MAX] {
        assert_eq!(check(bad), Err(AccessError::BadKey));
    }
    assert_eq!(table.remove(key), Ok(()));
    assert_eq!(table.remove(key), Err(RemoveError::Unknown), "only once");
    assert_eq!(check(key), Err(AccessError::BadKey));
    let region = NOWHERE;
    for _ in 0..1000 {
        let another = table.insert(region).expect("room");
        assert_ne!(another >> 8, key >> 8, "not soon used again");
        assert_eq!(check(key), Err(AccessError::BadKey));
        assert_eq!(table.remove(another), Ok(()));
    }
}

const NOWHERE: Region = Region {
    pd: PD,
    addr: 8,
    len: 8,
    iova: 0x1000,
    access: AccessFlags::empty(),
};

//= KEY-01 type=test
//= KEY-03 type=test
#[test]
fn keys_are_random_in_all_bits_and_found_among_many() {
    let table = MrTable::new();
    let keys: Vec<_> = (0..5000)
        .map(|n| {
            let iova = 0x1000 * n;
            table.insert(Region { iova, ..NOWHERE }).expect("room")
        })
        .collect();
    let indexes: HashSet<_> = keys.iter().map(|key| key >> 8).collect();
    assert_eq!(indexes.len(), keys.len(), "indexes are unique");
    for bit in 0..32 {
        let ones = keys.iter().filter(|key| *key >> bit & 1 == 1).count();
        assert!((2000..3000).contains(&ones), "bit {bit}: {ones} of 5000");
    }
    let memory = table.read(Time::ZERO);
    let check = |key, n: u64| {
        let access = LocalAccess::Read;
        memory.check_local(WHO, Lkey::new(key), 0x1000 * n, 8, access)
    };
    for (n, key) in (0..).zip(&keys) {
        assert_eq!(check(*key, n), Ok(Extent::One));
        assert_eq!(check(key ^ 1, n), Err(AccessError::BadKey));
        assert_eq!(check(key ^ 0x8000_0000, n), Err(AccessError::BadKey));
    }
    drop(memory);
    // Removes every other key. The others are found as before.
    for key in keys.iter().step_by(2) {
        assert_eq!(table.remove(*key), Ok(()));
    }
    let memory = table.read(Time::ZERO);
    for (n, key) in (0u64..).zip(&keys) {
        let found = memory.check_local(WHO, Lkey::new(*key), 0x1000 * n, 8, LocalAccess::Read);
        assert_eq!(found.is_ok(), n % 2 == 1);
    }
}

//= KEY-03 type=test
#[test]
fn the_first_key_of_a_process_says_nothing() {
    let first: HashSet<_> = (0..100)
        .map(|_| MrTable::new().insert(NOWHERE).expect("room"))
        .collect();
    assert_eq!(first.len(), 100);
}

//= PD-01 type=test
//= PD-03 type=test
//= MR-03 type=test
//= MR-11 type=test
//= MR-12 type=test
//= MR-13 type=test
#[test]
fn domain_rights_and_range() {
    let (table, key, _memory) = table(AccessFlags::REMOTE_READ);
    let memory = table.read(Time::ZERO);
    let local = |addr, len, access| memory.check_local(WHO, Lkey::new(key), addr, len, access);
    let remote = |va, len, access| memory.check_remote(WHO, Rkey::new(key), va, len, access);
    assert_eq!(local(0x1000, 64, LocalAccess::Read), Ok(Extent::One));
    assert_eq!(
        local(0x1000, 64, LocalAccess::Write),
        Err(AccessError::Permission)
    );
    assert_eq!(remote(0x1000, 64, RemoteAccess::Read), Ok(Extent::One));
    assert_eq!(
        remote(0x1000, 64, RemoteAccess::Write),
        Err(AccessError::Permission)
    );
    assert_eq!(
        remote(0x1000, 8, RemoteAccess::Atomic),
        Err(AccessError::Permission)
    );
    for (va, len) in [
        (0x1000, 65),
        (0xfff, 2),
        (0x1040, 1),
        (u64::MAX, 2),
        (0x1001, u64::MAX),
    ] {
        assert_eq!(
            remote(va, len, RemoteAccess::Read),
            Err(AccessError::OutOfRange),
            "{va:x}"
        );
    }
    let other = Accessor {
        pd: PdTag(2),
        ..WHO
    };
    let foreign = memory.check_remote(other, Rkey::new(key), 0x1000, 8, RemoteAccess::Read);
    assert_eq!(foreign, Err(AccessError::WrongPd));
}

//= ATM-02 type=test
//= ATM-06 type=test
#[test]
fn copies_and_atomics() {
    let all = AccessFlags::LOCAL_WRITE
        | AccessFlags::REMOTE_WRITE
        | AccessFlags::REMOTE_READ
        | AccessFlags::REMOTE_ATOMIC;
    let (table, key, _memory) = table(all);
    let memory = table.read(Time::ZERO);
    let (lkey, rkey) = (Lkey::new(key), Rkey::new(key));
    memory
        .write_remote(WHO, rkey, 0x1003, b"hello")
        .expect("in range");
    let mut read = [0; 7];
    memory
        .read_local(WHO, lkey, 0x1002, &mut read)
        .expect("in range");
    assert_eq!(&read, b"\0hello\0");
    memory
        .write_local(WHO, lkey, 0x1008, &u64::MAX.to_ne_bytes())
        .expect("in range");
    let add = AtomicOp::FetchAdd { add: 3 };
    assert_eq!(memory.atomic_remote(WHO, rkey, 0x1008, add), Ok(u64::MAX));
    let swap = |compare| AtomicOp::CmpSwap { compare, swap: 9 };
    assert_eq!(
        memory.atomic_remote(WHO, rkey, 0x1008, swap(7)),
        Ok(2),
        "not equal: nothing changes"
    );
    assert_eq!(memory.atomic_remote(WHO, rkey, 0x1008, swap(2)), Ok(2));
    let mut read = [0; 8];
    memory
        .read_remote(WHO, rkey, 0x1008, &mut read)
        .expect("in range");
    assert_eq!(u64::from_ne_bytes(read), 9);
}

const BINDABLE: AccessFlags = AccessFlags::LOCAL_WRITE.union(AccessFlags::MW_BIND);
const OTHER_QP: Accessor = Accessor {
    pd: PD,
    qpn: Qpn::new(3),
};

fn bind(window: u32, region: u32) -> Bind {
    Bind {
        rkey: Rkey::new(window).with_next_tag(),
        lkey: Lkey::new(region),
        va: 0x1008,
        len: 16,
        access: AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC,
    }
}

//= MW-04 type=test
//= MW-08 type=test
//= KEY-05 type=test
#[test]
fn a_window_opens_a_part_of_a_region() {
    let (table, region, _memory) = table(BINDABLE);
    let window = table.insert_window(WindowKind::Type2, PD).expect("room");
    let memory = table.read(Time::ZERO);
    let bind = bind(window, region);
    let check = |va, len| memory.check_remote(WHO, bind.rkey, va, len, RemoteAccess::Write);
    assert_eq!(check(0x1008, 8), Err(AccessError::BadKey), "not bound");
    let free = memory.check_remote(WHO, Rkey::new(window), 0x1008, 8, RemoteAccess::Write);
    assert_eq!(free, Err(AccessError::BadKey));
    assert_eq!(memory.bind(WHO, &bind), Ok(()));
    // The region itself allows no access by peers.
    let whole = memory.write_remote(WHO, Rkey::new(region), 0x1008, b"whole");
    assert_eq!(whole, Err(AccessError::Permission));
    // The window may change at any moment, so that the access has to be checked again.
    assert_eq!(check(0x1008, 16), Ok(Extent::Segments));
    assert_eq!(check(0x1008, 17), Err(AccessError::OutOfRange));
    assert_eq!(check(0x1000, 8), Err(AccessError::OutOfRange));
    let stale = memory.check_remote(WHO, Rkey::new(window), 0x1008, 8, RemoteAccess::Write);
    assert_eq!(stale, Err(AccessError::BadKey));
    let other = memory.check_remote(OTHER_QP, bind.rkey, 0x1008, 8, RemoteAccess::Write);
    assert_eq!(other, Err(AccessError::WrongQp));
    let as_lkey = Lkey::new(bind.rkey.get());
    let local = memory.check_local(WHO, as_lkey, 0x1008, 8, LocalAccess::Read);
    assert_eq!(local, Err(AccessError::BadKey));
    memory
        .write_remote(WHO, bind.rkey, 0x1008, b"window")
        .expect("open");
    let mut read = [0; 6];
    memory
        .read_remote(WHO, bind.rkey, 0x1008, &mut read)
        .expect("open");
    assert_eq!(&read, b"window");
    memory
        .read_local(WHO, Lkey::new(region), 0x1008, &mut read)
        .expect("open");
    assert_eq!(&read, b"window");
    let add = AtomicOp::FetchAdd { add: 5 };
    assert_eq!(memory.atomic_remote(WHO, bind.rkey, 0x1010, add), Ok(0));
    assert_eq!(memory.atomic_remote(WHO, bind.rkey, 0x1010, add), Ok(5));
    assert_eq!(memory.invalidate(WHO, bind.rkey), Ok(()));
    let closed = memory.write_remote(WHO, bind.rkey, 0x1008, b"window");
    assert_eq!(closed, Err(AccessError::BadKey));
    let nowhere = Bind {
        lkey: Lkey::new(region ^ 1),
        ..bind
    };
    assert_eq!(memory.bind(WHO, &nowhere), Err(BindError::NoRegion));
    let no_window = Bind {
        rkey: Rkey::new(region),
        ..bind
    };
    assert_eq!(memory.bind(WHO, &no_window), Err(BindError::NoWindow));
    // A plain region cannot be invalidated.
    let refused = memory.invalidate(WHO, Rkey::new(region));
    assert_eq!(refused, Err(AccessError::BadKey));
}

//= MR-09 type=test
//= MR-10 type=test
//= MW-10 type=test
//= DST-07 type=test
#[test]
fn a_region_stays_while_windows_are_bound_to_it() {
    let (table, region, _memory) = table(BINDABLE);
    let other = Region {
        access: BINDABLE,
        ..NOWHERE
    };
    let other = table.insert(Region { len: 64, ..other }).expect("room");
    let windows: Vec<_> = [WindowKind::Type1, WindowKind::Type2, WindowKind::Type2]
        .map(|kind| table.insert_window(kind, PD).expect("room"))
        .into();
    for window in &windows {
        assert_eq!(
            table.read(Time::ZERO).bind(WHO, &bind(*window, region)),
            Ok(())
        );
    }
    let is_bound = || {
        assert_eq!(table.replace(region, NOWHERE), Err(RemoveError::Bound));
        assert_eq!(table.remove(region), Err(RemoveError::Bound));
    };
    is_bound();
    // One window is bound to another region, one is invalidated, and failed requests change
    // nothing.
    let mut elsewhere = bind(windows[0], other);
    assert_eq!(table.read(Time::ZERO).bind(WHO, &elsewhere), Ok(()));
    elsewhere.lkey = Lkey::new(0x55);
    let nowhere = table.read(Time::ZERO).bind(WHO, &elsewhere);
    assert_eq!(nowhere, Err(BindError::NoRegion));
    is_bound();
    let rkey = bind(windows[1], region).rkey;
    assert_eq!(table.read(Time::ZERO).invalidate(WHO, rkey), Ok(()));
    assert!(table.read(Time::ZERO).invalidate(WHO, rkey).is_err());
    is_bound();
    table.free_windows_of(OTHER_QP.qpn);
    is_bound();
    table.free_windows_of(WHO.qpn);
    assert_eq!(table.replace(region, NOWHERE), Ok(()));
    assert_eq!(table.remove(region), Ok(()));
    // A type 1 window belongs to no QP, and keeps its region until it is destroyed.
    assert_eq!(table.remove(other), Err(RemoveError::Bound));
    table.remove_window(bind(windows[0], other).rkey.get());
    assert_eq!(table.remove(other), Ok(()));
    let gone = table.read(Time::ZERO).bind(WHO, &bind(windows[0], other));
    assert_eq!(gone, Err(BindError::NoWindow));

    // Dropping the last handle of a region frees its windows.
    let region = table.insert(Region {
        len: 64,
        access: BINDABLE,
        ..NOWHERE
    });
    let region = region.expect("room");
    assert_eq!(
        table.read(Time::ZERO).bind(WHO, &bind(windows[1], region)),
        Ok(())
    );
    table.remove_with_windows(region);
    assert_eq!(table.remove(region), Err(RemoveError::Unknown));
    let again = table.insert(Region {
        len: 64,
        access: BINDABLE,
        ..NOWHERE
    });
    let again = again.expect("room");
    assert_eq!(
        table.read(Time::ZERO).bind(WHO, &bind(windows[1], again)),
        Ok(())
    );
}

#[test]
fn windows_are_found_among_many_by_their_index() {
    let (table, region, _memory) = table(BINDABLE);
    let windows: Vec<_> = (0..300)
        .map(|_| table.insert_window(WindowKind::Type2, PD).expect("room"))
        .collect();
    for window in &windows {
        assert_eq!(
            table.read(Time::ZERO).bind(WHO, &bind(*window, region)),
            Ok(())
        );
    }
    for window in windows.iter().step_by(2) {
        table.remove_window(*window);
    }
    let memory = table.read(Time::ZERO);
    for (n, window) in windows.iter().enumerate() {
        let rkey = bind(*window, region).rkey;
        let found = memory.check_remote(WHO, rkey, 0x1008, 1, RemoteAccess::Read);
        assert_eq!(found.is_ok(), n % 2 == 1);
        let no_index = Rkey::new(rkey.get() ^ 0x8000_0000);
        let wrong = memory.check_remote(WHO, no_index, 0x1008, 1, RemoteAccess::Read);
        assert_eq!(wrong, Err(AccessError::BadKey));
    }
    drop(memory);
    assert_eq!(table.remove(region), Err(RemoveError::Bound));
    for window in windows.iter().skip(1).step_by(2) {
        table.remove_window(*window);
    }
    assert_eq!(table.remove(region), Ok(()));
}

/// Invalidation returns when no access is in flight, although all threads hold the read guard.
//= RC-WQE-09 type=test
#[test]
fn nothing_is_written_after_an_invalidation() {
    let (table, region, memory) = table(BINDABLE);
    let window = table.insert_window(WindowKind::Type2, PD).expect("room");
    let bind = bind(window, region);
    let watched = &raw const memory[1];
    // SAFETY: leaked memory, read through an atomic only from here on.
    let watched = unsafe { std::sync::atomic::AtomicU64::from_ptr(watched.cast_mut()) };
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut value = 0u64;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                value += 1;
                let guard = table.read(Time::ZERO);
                let _ = guard.write_remote(WHO, bind.rkey, 0x1008, &value.to_ne_bytes());
            }
        });
        let load = || watched.load(std::sync::atomic::Ordering::SeqCst);
        for _ in 0..300 {
            let guard = table.read(Time::ZERO);
            let before = load();
            guard.bind(WHO, &bind).expect("free");
            while load() == before {
                std::thread::yield_now();
            }
            guard.invalidate(WHO, bind.rkey).expect("bound");
            let last = load();
            for _ in 0..50 {
                assert_eq!(load(), last);
            }
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

//= NUL-01 type=test
#[test]
fn a_null_region_takes_everything_and_has_nothing() {
    let table = MrTable::new();
    let key = table.insert_null(PD).expect("room");
    let memory = table.read(Time::ZERO);
    let lkey = Lkey::new(key);
    for access in [LocalAccess::Read, LocalAccess::Write] {
        let check = memory.check_local(WHO, lkey, u64::MAX, u64::MAX, access);
        assert_eq!(check, Ok(Extent::Segments));
    }
    assert_eq!(memory.write_local(WHO, lkey, 7, b"gone"), Ok(()));
    let mut read = [1; 5];
    assert_eq!(memory.read_local(WHO, lkey, 7, &mut read), Ok(()));
    assert_eq!(read, [0; 5]);
    let rkey = Rkey::new(key);
    let remote = memory.check_remote(WHO, rkey, 0, 1, RemoteAccess::Read);
    assert_eq!(remote, Err(AccessError::BadKey));
    let foreign = Accessor {
        pd: PdTag(9),
        ..WHO
    };
    let refused = memory.read_local(foreign, lkey, 0, &mut read);
    assert_eq!(refused, Err(AccessError::WrongPd));
    let stale = memory.read_local(WHO, Lkey::new(key ^ 1), 0, &mut read);
    assert_eq!(stale, Err(AccessError::BadKey));
    drop(memory);
    assert_eq!(table.replace(key, NOWHERE), Err(RemoveError::Unknown));
    assert_eq!(table.remove(key), Ok(()));
}

//= DM-03 type=test
#[test]
fn copies_to_device_memory_stay_inside() {
    let memory = DeviceMemory::new(13);
    assert_eq!((memory.len(), memory.footprint()), (13, 16));
    assert_eq!(memory.write(8, b"hello"), Some(()));
    let mut read = [9; 6];
    assert_eq!(memory.read(7, &mut read), Some(()));
    assert_eq!(&read, b"\0hello");
    for (offset, len) in [(12, 2), (13, 1), (u64::MAX, 1), (14, 0)] {
        assert_eq!(memory.read(offset, &mut vec![0; len]), None, "{offset}");
        assert_eq!(memory.write(offset, &vec![1; len]), None, "{offset}");
    }
    assert_eq!(memory.read(7, &mut read), Some(()));
    assert_eq!(&read, b"\0hello");
}

//= ATM-03 type=test
//= ATM-04 type=test
//= MR-07 type=test
#[test]
fn atomics_through_two_regions_and_of_the_processor_do_not_lose_each_other() {
    const EACH: u64 = 20_000;
    let all = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_ATOMIC;
    let (table, key, memory) = table(all);
    let addr = (&raw const memory[0]).addr();
    let other = Region {
        pd: PdTag(9),
        addr,
        len: 8,
        iova: 0,
        access: all,
    };
    let other = table.insert(other).expect("room");
    // SAFETY: leaked memory, accessed through atomics only from here on.
    let word = unsafe { std::sync::atomic::AtomicU64::from_ptr(&raw mut memory[0]) };
    let foreign = Accessor {
        pd: PdTag(9),
        ..WHO
    };
    let add = |accessor, key, va| {
        let memory = table.read(Time::ZERO);
        for _ in 0..EACH {
            let done =
                memory.atomic_remote(accessor, Rkey::new(key), va, AtomicOp::FetchAdd { add: 1 });
            assert!(done.is_ok());
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| add(WHO, key, 0x1000));
        scope.spawn(|| add(foreign, other, 0));
        for _ in 0..EACH {
            word.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        }
    });
    assert_eq!(word.load(std::sync::atomic::Ordering::SeqCst), 3 * EACH);
}
