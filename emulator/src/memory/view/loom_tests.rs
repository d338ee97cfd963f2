//! Loom tests of keys that are removed or changed while other threads access memory through them.
//! They cover the lock of the table, and those of windows and indirect keys. An access only sets
//! flags instead of copying, so that the threads see each other.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering::SeqCst};
use loom::thread;
use rocade_transport::{Block, Indirect, Layout, PdTag, Remap, Time, WindowKind};
use rocade_wire::Qpn;

use super::super::table::{MrTable, RemoveError};
use super::*;

const PD: PdTag = PdTag(7);
const WHO: Accessor = Accessor {
    pd: PD,
    qpn: Qpn::new(2),
};
const VA: u64 = 0x1000;
const LEN: u64 = 8;

fn region(table: &MrTable) -> u32 {
    let region = Region {
        pd: PD,
        addr: 0x1000,
        len: 64,
        iova: VA,
        access: AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::MW_BIND,
    };
    table.insert(region).expect("room")
}

fn bind(window: u32, region: u32) -> Bind {
    Bind {
        rkey: Rkey::new(window).with_next_tag(),
        lkey: Lkey::new(region),
        va: VA,
        len: LEN,
        access: AccessFlags::REMOTE_WRITE,
    }
}

/// Makes a bound type 2 window and its region, and returns their keys.
fn window(table: &MrTable) -> (Rkey, u32) {
    let region = region(table);
    let window = table.insert_window(WindowKind::Type2, PD).expect("room");
    let bind = bind(window, region);
    assert_eq!(table.read(Time::ZERO).bind(WHO, &bind), Ok(()));
    (bind.rkey, region)
}

fn to(key: u32, region: u32) -> Fill {
    let block = Block {
        lkey: Lkey::new(region),
        addr: VA,
        len: LEN,
        stride: LEN,
    };
    Fill {
        key: Rkey::new(key),
        if_free: false,
        access: Some(Indirect::RIGHTS),
        remap: Remap::To {
            base: VA,
            layout: Layout::list([block]).expect("a short list"),
        },
    }
}

/// Makes an indirect key that lists a region, and returns their keys.
fn indirect(table: &MrTable) -> (Rkey, u32) {
    let region = region(table);
    let key = table
        .insert_indirect(PD, 1, Indirect::RIGHTS)
        .expect("room");
    assert_eq!(table.read(Time::ZERO).fill(WHO, to(key, region)), Ok(()));
    (Rkey::new(key), region)
}

/// The flags through which the threads of a model see each other.
#[derive(Default)]
struct Seen {
    at_it: AtomicBool,
    is_over: AtomicBool,
}

/// A WRITE of a peer.
fn access(table: &MrTable, rkey: Rkey, seen: &Seen) -> Result<(), AccessError> {
    let memory = table.read(Time::ZERO);
    let asked = RequestedAccess::Remote(RemoteAccess::Write);
    memory.with_segments(WHO, rkey.get(), (VA, LEN), asked, |_, _| {
        seen.at_it.store(true, SeqCst);
        assert!(
            !seen.is_over.load(SeqCst),
            "access after the key was removed"
        );
        seen.at_it.store(false, SeqCst);
        Ok(())
    })
}

/// Checks that `end`, which removes or changes a key, returns when no access through the key is in
/// flight, and that none begins later.
fn ends_all_accesses(
    make: fn(&MrTable) -> (Rkey, u32),
    end: impl Fn(&MrTable, Rkey, u32) + Copy + Send + Sync + 'static,
) {
    loom::model(move || {
        let table = Arc::new(MrTable::new());
        let (rkey, region) = make(&table);
        let seen = Arc::new(Seen::default());
        let peer = {
            let (table, seen) = (Arc::clone(&table), Arc::clone(&seen));
            thread::spawn(move || access(&table, rkey, &seen))
        };
        end(&table, rkey, region);
        assert!(!seen.at_it.load(SeqCst), "an access is still in flight");
        seen.is_over.store(true, SeqCst);
        let late = access(&table, rkey, &seen);
        assert_eq!(late, Err(AccessError::BadKey));
        let early = peer.join().unwrap();
        assert!(early.is_ok() || early == late);
    });
}

//= MR-09 type=test
#[test]
fn loom_a_region_that_is_deregistered() {
    let make = |table: &MrTable| {
        let region = region(table);
        (Rkey::new(region), region)
    };
    ends_all_accesses(make, |table, _, region| {
        assert_eq!(table.remove(region), Ok(()));
    });
}

//= MW-10 type=test
//= INV-02 type=test
#[test]
fn loom_a_window_that_closes() {
    // The window is invalidated while other threads hold the read guard, too.
    ends_all_accesses(window, |table, rkey, _| {
        let memory = table.read(Time::ZERO);
        assert_eq!(memory.invalidate(WHO, rkey), Ok(()));
    });
    ends_all_accesses(window, |table, _, _| table.free_windows_of(WHO.qpn));
    ends_all_accesses(window, |table, rkey, _| table.remove_window(rkey.get()));
    ends_all_accesses(window, |table, _, region| table.remove_with_windows(region));
}

//= INV-01 type=test
#[test]
fn loom_an_indirect_key_that_changes() {
    ends_all_accesses(indirect, |table, rkey, _| {
        let memory = table.read(Time::ZERO);
        assert_eq!(memory.invalidate(WHO, rkey), Ok(()));
    });
    ends_all_accesses(indirect, |table, rkey, _| {
        assert_eq!(table.remove(rkey.get()), Ok(()));
    });
    ends_all_accesses(indirect, |table, _, region| {
        assert_eq!(table.remove(region), Ok(()));
    });
}

/// A region is either deregistered or gets a window, never both.
//= MR-09 type=test
#[test]
fn loom_a_region_that_gets_a_window_stays() {
    loom::model(|| {
        let table = Arc::new(MrTable::new());
        let region = region(&table);
        let window = table.insert_window(WindowKind::Type2, PD).expect("room");
        let bind = bind(window, region);
        let binder = {
            let table = Arc::clone(&table);
            thread::spawn(move || table.read(Time::ZERO).bind(WHO, &bind))
        };
        let removed = table.remove(region);
        match binder.join().unwrap() {
            Ok(()) => {
                assert_eq!(removed, Err(RemoveError::Bound));
                let memory = table.read(Time::ZERO);
                assert_eq!(memory.invalidate(WHO, bind.rkey), Ok(()));
                drop(memory);
                assert_eq!(table.remove(region), Ok(()));
            }
            Err(error) => assert_eq!((error, removed), (BindError::NoRegion, Ok(()))),
        }
    });
}

/// However binding and unbinding threads interleave, the regions count their windows correctly.
//= MW-02 type=test
#[test]
fn loom_regions_track_their_windows() {
    loom::model(|| {
        let table = Arc::new(MrTable::new());
        let (rkey, first) = window(&table);
        let second = region(&table);
        let again = Bind {
            lkey: Lkey::new(second),
            ..bind(rkey.get(), second)
        };
        let binder = {
            let table = Arc::clone(&table);
            thread::spawn(move || table.read(Time::ZERO).bind(WHO, &again))
        };
        let closed = table.read(Time::ZERO).invalidate(WHO, rkey);
        assert_eq!(closed, Ok(()), "another thread has bound it");
        let bound = binder.join().unwrap();
        assert_eq!(table.remove(first), Ok(()));
        match bound {
            Ok(()) => assert_eq!(table.remove(second), Err(RemoveError::Bound)),
            Err(error) => {
                assert_eq!(error, BindError::Bound);
                assert_eq!(table.remove(second), Ok(()));
            }
        }
    });
}

/// A peer sees the memory of an indirect key either before or after a change.
//= UMR-14 type=test
#[test]
fn loom_an_access_has_all_segments_of_one_layout() {
    loom::model(|| {
        let table = Arc::new(MrTable::new());
        let (rkey, _) = indirect(&table);
        let other = region(&table);
        let filler = {
            let table = Arc::clone(&table);
            thread::spawn(move || table.read(Time::ZERO).fill(WHO, to(rkey.get(), other)))
        };
        let seen = Seen::default();
        assert_eq!(access(&table, rkey, &seen), Ok(()));
        assert_eq!(filler.join().unwrap(), Ok(()));
    });
}
