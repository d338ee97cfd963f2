//! Payloads that the kernel copies before their packets are handled.

use rocade_transport::{Placement, PlacementKey};

use super::super::KERNEL_CALLS;
use super::super::guard::CopyMethod;
use super::*;

const PAGE: usize = 4096;
const LEN: usize = 100;

/// Two pages as a region, of which only the first is accessible.
fn half_mapped() -> (MrTable, u32, usize) {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping, which is never unmapped.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), 2 * PAGE, rights, flags, -1, 0) };
    assert_ne!(start, libc::MAP_FAILED);
    let addr = start.expose_provenance();
    // SAFETY: the second page of the mapping.
    let changed = unsafe { libc::mprotect(start.byte_add(PAGE), PAGE, libc::PROT_NONE) };
    assert_eq!(changed, 0);
    let table = MrTable::new();
    let region = Region {
        pd: PD,
        addr,
        len: 2 * PAGE as u64,
        iova: 0,
        access: AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE,
    };
    let key = table.insert(region).expect("room");
    (table, key, addr)
}

fn byte_at(addr: usize) -> u8 {
    // SAFETY: inside the first page of a mapping of this test.
    unsafe { std::ptr::with_exposed_provenance::<u8>(addr).read_volatile() }
}

#[test]
fn payloads_are_copied_together_and_checked_one_by_one() {
    let (table, key, addr) = half_mapped();
    let payloads: Vec<[u8; LEN]> = (1..=8).map(|byte| [byte; LEN]).collect();
    // The fifth and later ones are not mapped.
    let first = (PAGE - 4 * LEN) as u64;
    let va = |index: u64| first + index * LEN as u64;
    let mut memory = table.read(Time::ZERO);
    memory.method = CopyMethod::Kernel;
    let placements: Vec<_> = (0..)
        .zip(&payloads)
        .map(|(index, payload)| Placement {
            who: WHO,
            key: PlacementKey::Remote(Rkey::new(key)),
            addr: va(index),
            payload,
            ends: index % 2 == 0,
        })
        .collect();
    // The process ID is queried once.
    let _ = memory.write_remote(WHO, Rkey::new(key), 0, &[1]);
    let calls = KERNEL_CALLS.get();
    assert!(memory.takes_placements());
    memory.place_ahead(&placements);
    assert!(!memory.takes_placements(), "some wait to be handled");
    assert_eq!(KERNEL_CALLS.get() - calls, 1);
    let write = |index: u64| {
        let payload = &payloads[usize::try_from(index).expect("small")];
        memory.write_remote(WHO, Rkey::new(key), va(index), payload)
    };
    for index in 0..4 {
        assert_eq!(
            byte_at(addr + usize::try_from(va(index)).expect("small") + LEN - 1),
            payloads[0][0] + u8::try_from(index).expect("small")
        );
        assert_eq!(write(index), Ok(()));
    }
    assert_eq!(KERNEL_CALLS.get() - calls, 1, "all four were copied");
    assert_eq!(write(4), Err(AccessError::Fault));
    assert!(
        KERNEL_CALLS.get() - calls > 1,
        "the next one copies by itself"
    );
}

#[test]
fn another_access_ends_the_run() {
    let (table, key, addr) = half_mapped();
    let payloads = [[1u8; LEN], [2; LEN], [3; LEN]];
    let mut memory = table.read(Time::ZERO);
    memory.method = CopyMethod::Kernel;
    let placements: Vec<_> = (0..)
        .zip(&payloads)
        .map(|(index, payload)| Placement {
            who: WHO,
            key: PlacementKey::Local(Lkey::new(key)),
            addr: index * LEN as u64,
            payload,
            ends: true,
        })
        .collect();
    memory.place_ahead(&placements);
    let write = |at, payload: &[u8]| memory.write_local(WHO, Lkey::new(key), at, payload);
    write(0, &payloads[0]).expect("was copied");
    // Its payload is elsewhere.
    write(LEN as u64, &[9; LEN]).expect("is copied");
    assert_eq!(byte_at(addr + LEN), 9);
    let calls = KERNEL_CALLS.get();
    write(2 * LEN as u64, &payloads[2]).expect("is copied again");
    assert_eq!(KERNEL_CALLS.get() - calls, 1);

    memory.place_ahead(&placements);
    memory.forget_placements();
    let calls = KERNEL_CALLS.get();
    write(0, &payloads[0]).expect("is copied again");
    assert_eq!(KERNEL_CALLS.get() - calls, 1);
}

#[test]
fn a_place_that_may_not_be_written_is_not() {
    let (table, key, addr) = half_mapped();
    let payloads = [[1u8; LEN], [2; LEN]];
    let mut memory = table.read(Time::ZERO);
    memory.method = CopyMethod::Kernel;
    for (who, key) in [
        (
            Accessor {
                pd: PdTag(2),
                ..WHO
            },
            key,
        ),
        (WHO, key ^ 1),
    ] {
        let placements = payloads.each_ref().map(|payload| Placement {
            who,
            key: PlacementKey::Remote(Rkey::new(key)),
            addr: 0,
            payload,
            ends: true,
        });
        memory.place_ahead(&placements);
    }
    assert_eq!(byte_at(addr), 0);
    assert!(
        !memory.takes_placements(),
        "a run like this is not tried again"
    );
}
