//! Keys that end or change while others access memory through them: the table's lock, and those of windows and
//! indirect keys. An access is what happens at its place: there is none, but threads see each other at it.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering::SeqCst};
use loom::thread;
use rocade_transport::{Block, Indirect, Layout, PdTag, Remap, Time, WindowKind};
use rocade_wire::Qpn;

use super::super::table::{Kept, MrTable};
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

/// A type 2 window that is open, and the region behind it: their keys.
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

/// An indirect key that lists a region: their keys.
fn indirect(table: &MrTable) -> (Rkey, u32) {
    let region = region(table);
    let key = table
        .insert_indirect(PD, 1, Indirect::RIGHTS)
        .expect("room");
    assert_eq!(table.read(Time::ZERO).fill(WHO, to(key, region)), Ok(()));
    (Rkey::new(key), region)
}

/// What the threads of a model see of each other.
#[derive(Default)]
struct Seen {
    at_it: AtomicBool,
    is_over: AtomicBool,
}

/// A peer's WRITE.
fn access(table: &MrTable, rkey: Rkey, seen: &Seen) -> Result<(), AccessError> {
    let memory = table.read(Time::ZERO);
    let asked = Asked::Remote(RemoteAccess::Write);
    memory.reach(WHO, rkey.get(), (VA, LEN), asked, |_, _| {
        seen.at_it.store(true, SeqCst);
        assert!(!seen.is_over.load(SeqCst), "it has no right any more");
        seen.at_it.store(false, SeqCst);
        Ok(())
    })
}

/// Whoever takes a key away returns when no access through it is in flight, and none will begin.
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
    // It is invalidated while others are in the table, too.
    ends_all_accesses(window, |table, rkey, _| {
        let memory = table.read(Time::ZERO);
        assert_eq!(memory.invalidate(WHO, rkey, true), Ok(()));
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
        assert_eq!(memory.invalidate(WHO, rkey, true), Ok(()));
    });
    ends_all_accesses(indirect, |table, rkey, _| {
        assert_eq!(table.remove(rkey.get()), Ok(()));
    });
    ends_all_accesses(indirect, |table, _, region| {
        assert_eq!(table.remove(region), Ok(()));
    });
}

/// A region is deregistered or gets a window, whichever comes first: never both.
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
                assert_eq!(removed, Err(Kept::Bound));
                let memory = table.read(Time::ZERO);
                assert_eq!(memory.invalidate(WHO, bind.rkey, false), Ok(()));
                drop(memory);
                assert_eq!(table.remove(region), Ok(()));
            }
            Err(error) => assert_eq!((error, removed), (BindError::NoRegion, Ok(()))),
        }
    });
}

/// However those meet who bind a window and close it, the regions know how many windows they have.
//= MW-02 type=test
#[test]
fn loom_regions_know_their_windows() {
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
        let closed = table.read(Time::ZERO).invalidate(WHO, rkey, false);
        assert_eq!(closed, Ok(()), "nobody else may bind it before");
        let bound = binder.join().unwrap();
        assert_eq!(table.remove(first), Ok(()));
        match bound {
            Ok(()) => assert_eq!(table.remove(second), Err(Kept::Bound)),
            Err(error) => {
                assert_eq!(error, BindError::Bound);
                assert_eq!(table.remove(second), Ok(()));
            }
        }
    });
}

/// A peer sees the memory of an indirect key before a change or after it, whole.
//= UMR-14 type=test
#[test]
fn loom_an_access_has_all_pieces_of_one_layout() {
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
