//! Keys and access checks.

use std::collections::HashSet;

use rocade_transport::{
    AccessError, AccessFlags, Accessor, AtomicOp, Extent, LocalAccess, Memory, PdTag, RemoteAccess,
    Time,
};
use rocade_wire::{Lkey, Qpn, Rkey};

use super::{MrTable, Region};

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
    assert!(table.remove(key));
    assert!(!table.remove(key), "only once");
    assert_eq!(check(key), Err(AccessError::BadKey));
    let region = NOWHERE;
    for _ in 0..1000 {
        let another = table.insert(region).expect("room");
        assert_ne!(another >> 8, key >> 8, "not soon used again");
        assert_eq!(check(key), Err(AccessError::BadKey));
        assert!(table.remove(another));
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
    assert_eq!(indexes.len(), keys.len(), "each names one region");
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
    // Every other one goes; the rest is found as before.
    for key in keys.iter().step_by(2) {
        assert!(table.remove(*key));
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
