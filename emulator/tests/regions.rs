//! Regions that change, regions of other kinds of memory, and windows, between two devices.

#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "tests: a failure may panic, sizes are small"
)]

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::{ALL_ACCESS, Side, pair, pattern};
use rocade_emulator::{
    AccessFlags, Advice, Bind, Engine, EngineConfig, ImmOrInv, QpAttr, QpAttrMask, QpState, Rereg,
    ReregFlags, Rkey, SendFlags, SendOp, SendWr, Sge, VerbsError, WcFlags, WcOpcode, WcStatus,
    WindowKind,
};

fn errno<T: std::fmt::Debug>(result: Result<T, VerbsError>) -> i32 {
    result.unwrap_err().errno()
}

/// Posts a request, and returns the status of its completion. The other side's background thread
/// responds.
fn execute(side: &Side, op: SendOp, sges: &[Sge]) -> WcStatus {
    let wr = SendWr {
        wr_id: 1,
        op,
        flags: SendFlags::SIGNALED,
        sges,
    };
    side.qp.post_sends(|queue| queue.push(&wr)).unwrap();
    side.completion().status
}

fn write(va: u64, rkey: Rkey) -> SendOp {
    SendOp::Write {
        va,
        rkey,
        imm: None,
    }
}

/// Resets and reconnects both QPs.
fn reconnect(a: &Side, b: &Side) {
    for side in [a, b] {
        let attr = QpAttr {
            qp_state: QpState::Reset.code(),
            ..QpAttr::default()
        };
        side.qp.modify(&attr, QpAttrMask::STATE).unwrap();
    }
    common::connect(a, b);
}

const REREG: Rereg<'_> = Rereg {
    flags: ReregFlags::empty(),
    pd: None,
    addr: 0,
    len: 0,
    access: AccessFlags::empty(),
};

//= MR-10 type=test
//= MR-14 type=test
#[test]
fn a_region_changes_its_place_rights_and_domain() {
    let (a, b) = pair("127.9.1.1", "127.9.1.2", 1 << 16);
    let rereg = |change: Rereg<'_>| {
        // SAFETY: all ranges are of the leaked memory, or the call fails.
        unsafe { b.mr.rereg(&change) }
    };
    let (access, place) = (ReregFlags::ACCESS, ReregFlags::TRANSLATION);
    let old = b.addr(0);
    assert_eq!(errno(rereg(REREG)), libc::EINVAL, "nothing to change");
    let unknown = ReregFlags::from_bits_retain(8);
    assert_eq!(
        errno(rereg(Rereg {
            flags: unknown,
            ..REREG
        })),
        libc::EINVAL
    );
    assert_eq!(
        errno(rereg(Rereg {
            flags: ReregFlags::PD,
            ..REREG
        })),
        libc::EINVAL
    );
    assert_eq!(
        errno(rereg(Rereg {
            flags: place,
            addr: old,
            ..REREG
        })),
        libc::EINVAL
    );
    let unmapped = Rereg {
        flags: place,
        addr: 4096,
        len: 8,
        ..REREG
    };
    assert_eq!(errno(rereg(unmapped)), libc::EFAULT);
    let wraps = Rereg {
        flags: place,
        addr: u64::MAX - 4,
        len: 8,
        ..REREG
    };
    assert_eq!(errno(rereg(wraps)), libc::EINVAL);
    let contradiction = Rereg {
        flags: access,
        access: AccessFlags::REMOTE_WRITE,
        ..REREG
    };
    assert_eq!(errno(rereg(contradiction)), libc::EINVAL);
    let foreign = a.context.alloc_pd().unwrap();
    let elsewhere = Rereg {
        flags: ReregFlags::PD,
        pd: Some(&foreign),
        ..REREG
    };
    assert_eq!(errno(rereg(elsewhere)), libc::EINVAL, "of another device");

    a.fill(0, &pattern(64, 1));
    let moved = Rereg {
        flags: place,
        addr: old + 4096,
        len: 64,
        ..REREG
    };
    rereg(moved).unwrap();
    assert_eq!(
        (b.mr.addr(), b.mr.len(), b.mr.iova()),
        (old + 4096, 64, old + 4096)
    );
    assert_eq!(
        execute(&a, write(old + 4096, b.mr.rkey()), &[a.sge(0, 64)]),
        WcStatus::Success
    );
    assert_eq!(b.bytes(4096, 64), pattern(64, 1));
    assert_eq!(
        execute(&a, write(old, b.mr.rkey()), &[a.sge(0, 64)]),
        WcStatus::RemAccessErr
    );
    reconnect(&a, &b);

    let zero_based = AccessFlags::ZERO_BASED | ALL_ACCESS;
    let both = Rereg {
        flags: place | access,
        addr: old,
        len: 64,
        access: zero_based,
        ..REREG
    };
    rereg(both).unwrap();
    assert_eq!((b.mr.iova(), b.mr.access()), (0, zero_based));
    assert_eq!(
        execute(&a, write(0, b.mr.rkey()), &[a.sge(0, 64)]),
        WcStatus::Success
    );
    assert_eq!(b.bytes(0, 64), pattern(64, 1));
    // Only the rights change.
    rereg(Rereg {
        flags: access,
        access: AccessFlags::LOCAL_WRITE,
        ..REREG
    })
    .unwrap();
    assert_eq!((b.mr.addr(), b.mr.iova()), (old, 0));
    assert_eq!(
        execute(&a, write(0, b.mr.rkey()), &[a.sge(0, 64)]),
        WcStatus::RemAccessErr
    );
    reconnect(&a, &b);

    let other = b.context.alloc_pd().unwrap();
    let all = Rereg {
        flags: ReregFlags::all(),
        pd: Some(&other),
        addr: old,
        len: 1 << 16,
        access: ALL_ACCESS,
    };
    rereg(all.clone()).unwrap();
    assert_eq!(errno(other.destroy()), libc::EBUSY);
    assert_eq!(
        execute(&a, write(old, b.mr.rkey()), &[a.sge(0, 64)]),
        WcStatus::RemAccessErr
    );
    reconnect(&a, &b);
    rereg(Rereg {
        pd: Some(&b.pd),
        ..all.clone()
    })
    .unwrap();
    other.destroy().unwrap();
    assert_eq!(
        execute(&a, write(old, b.mr.rkey()), &[a.sge(0, 64)]),
        WcStatus::Success
    );
    b.mr.destroy().unwrap();
    assert_eq!(errno(rereg(all)), libc::EINVAL, "deregistered");
}

//= MR-10 type=test
#[test]
fn a_region_that_stays_what_it_is_may_change_under_traffic() {
    let (a, b) = pair("127.9.2.1", "127.9.2.2", 1 << 20);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                for side in [&a, &b] {
                    let same = Rereg {
                        flags: ReregFlags::ACCESS,
                        access: ALL_ACCESS,
                        ..REREG
                    };
                    // SAFETY: the same memory.
                    unsafe { side.mr.rereg(&same) }.unwrap();
                }
                std::thread::yield_now();
            }
        });
        for round in 0..30 {
            let data = pattern(1 << 19, round);
            a.fill(0, &data);
            let done = execute(&a, write(b.addr(0), b.mr.rkey()), &[a.sge(0, 1 << 19)]);
            assert_eq!(done, WcStatus::Success);
            assert_eq!(b.bytes(0, 1 << 19), data);
            let read = SendOp::Read {
                va: b.addr(0),
                rkey: b.mr.rkey(),
            };
            assert_eq!(
                execute(&a, read, &[a.sge(1 << 19, 1 << 19)]),
                WcStatus::Success
            );
            assert_eq!(a.bytes(1 << 19, 1 << 19), data);
        }
        stop.store(true, Ordering::Relaxed);
    });
}

//= MW-01 type=test
//= MW-02 type=test
//= MW-06 type=test
//= MW-10 type=test
//= PD-02 type=test
#[test]
fn windows_open_and_close() {
    let (a, b) = pair("127.9.3.1", "127.9.3.2", 1 << 16);
    let bindable = AccessFlags::LOCAL_WRITE | AccessFlags::MW_BIND;
    // SAFETY: leaked memory.
    let region = unsafe { b.pd.reg_mr(b.addr(0), 1 << 16, b.addr(0), bindable) }.unwrap();
    let mw = b.pd.alloc_mw(WindowKind::Type2).unwrap();
    assert_eq!(mw.kind(), WindowKind::Type2);
    let rkey = mw.rkey().with_next_tag();
    let bind = Bind {
        rkey,
        lkey: region.lkey(),
        va: b.addr(4096),
        len: 1 << 15,
        access: AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ,
    };
    assert_eq!(
        errno(b.qp.bind_mw(&mw, 1, SendFlags::SIGNALED, bind)),
        libc::EINVAL
    );
    // Through a window, which may change, long messages are checked packet by packet.
    for round in 0..3 {
        let data = pattern(1 << 15, round);
        a.fill(0, &data);
        assert_eq!(execute(&b, SendOp::Bind(bind), &[]), WcStatus::Success);
        let done = execute(&a, write(b.addr(4096), rkey), &[a.sge(0, 1 << 15)]);
        assert_eq!(done, WcStatus::Success);
        assert_eq!(b.bytes(4096, 1 << 15), data);
        let read = SendOp::Read {
            va: b.addr(4096),
            rkey,
        };
        assert_eq!(
            execute(&a, read, &[a.sge(1 << 15, 1 << 15)]),
            WcStatus::Success
        );
        assert_eq!(a.bytes(1 << 15, 1 << 15), data);
        b.qp.recv_queue().push(7, &[b.sge(0, 64)]).unwrap();
        assert_eq!(
            execute(&a, SendOp::SendInv { rkey }, &[a.sge(0, 64)]),
            WcStatus::Success
        );
        let received = b.completion();
        assert_eq!(
            (received.status, received.opcode),
            (WcStatus::Success, WcOpcode::Recv)
        );
        assert_eq!(
            (received.imm_or_inv, received.wc_flags),
            (ImmOrInv::Inv(rkey), WcFlags::WITH_INV)
        );
    }
    assert_eq!(execute(&b, SendOp::Bind(bind), &[]), WcStatus::Success);
    assert_eq!(errno(region.destroy()), libc::EBUSY);
    assert_eq!(errno(b.pd.destroy()), libc::EBUSY);
    mw.destroy().unwrap();
    assert_eq!(errno(mw.destroy()), libc::EINVAL);
    assert_eq!(
        execute(&a, write(b.addr(4096), rkey), &[a.sge(0, 8)]),
        WcStatus::RemAccessErr
    );
    reconnect(&a, &b);

    // The device chooses the keys of a type 1 window.
    let mw = b.pd.alloc_mw(WindowKind::Type1).unwrap();
    let first = b.qp.bind_mw(&mw, 1, SendFlags::SIGNALED, bind).unwrap();
    let second = b.qp.bind_mw(&mw, 2, SendFlags::SIGNALED, bind).unwrap();
    assert_eq!((second, mw.rkey()), (first.with_next_tag(), second));
    for _ in 0..2 {
        let done = b.completion();
        assert_eq!(
            (done.status, done.opcode),
            (WcStatus::Success, WcOpcode::BindMw)
        );
    }
    assert_eq!(
        execute(&a, write(b.addr(4096), second), &[a.sge(0, 8)]),
        WcStatus::Success
    );
    assert_eq!(
        execute(&a, write(b.addr(4096), first), &[a.sge(0, 8)]),
        WcStatus::RemAccessErr
    );
    reconnect(&a, &b);
    // Dropping the last handle of the region closes the window.
    drop(region);
    assert_eq!(
        execute(&a, write(b.addr(4096), second), &[a.sge(0, 8)]),
        WcStatus::RemAccessErr
    );
    // A bind that fails uses up no key.
    let err = QpAttr {
        qp_state: QpState::Reset.code(),
        ..QpAttr::default()
    };
    b.qp.modify(&err, QpAttrMask::STATE).unwrap();
    assert_eq!(
        errno(b.qp.bind_mw(&mw, 1, SendFlags::SIGNALED, bind)),
        libc::EINVAL
    );
    assert_eq!(mw.rkey(), second);
    drop(mw);
    b.qp.destroy().unwrap();
    b.mr.destroy().unwrap();
    b.pd.destroy().unwrap();
}

//= DM-01 type=test
//= DM-02 type=test
//= DM-03 type=test
//= DM-04 type=test
#[test]
fn device_memory_is_reached_by_copies_and_regions() {
    let (a, b) = pair("127.9.4.1", "127.9.4.2", 4096);
    assert_eq!(errno(b.context.alloc_dm(0)), libc::EINVAL);
    let max = usize::try_from(b.context.device_attr().max_dm_size).unwrap();
    assert_eq!(errno(b.context.alloc_dm(max + 1)), libc::ENOMEM);
    drop(b.context.alloc_dm(max).unwrap());
    let dm = b.context.alloc_dm(100).unwrap();
    assert_eq!(dm.len(), 100);
    dm.write(96, b"last").unwrap();
    assert_eq!(errno(dm.write(100, b"more")), libc::EFAULT);
    assert_eq!(errno(dm.write(2, b"more")), libc::EINVAL);
    assert_eq!(errno(dm.read(0, &mut [0; 3])), libc::EINVAL);
    assert_eq!(errno(dm.read(96, &mut [0; 8])), libc::EFAULT);
    let zero_based = ALL_ACCESS | AccessFlags::ZERO_BASED;
    assert_eq!(errno(b.pd.reg_dm_mr(&dm, 0, 100, ALL_ACCESS)), libc::EINVAL);
    assert_eq!(errno(b.pd.reg_dm_mr(&dm, 0, 101, zero_based)), libc::EINVAL);
    assert_eq!(errno(b.pd.reg_dm_mr(&dm, 101, 0, zero_based)), libc::EINVAL);
    assert!(b.pd.reg_dm_mr(&dm, 100, 0, zero_based).unwrap().is_empty());
    let paged = zero_based | AccessFlags::ON_DEMAND;
    assert_eq!(errno(b.pd.reg_dm_mr(&dm, 0, 100, paged)), libc::EINVAL);
    assert_eq!(errno(a.pd.reg_dm_mr(&dm, 0, 100, zero_based)), libc::EINVAL);
    let mr = b.pd.reg_dm_mr(&dm, 92, 8, zero_based).unwrap();
    assert_eq!(
        (mr.addr(), mr.iova(), mr.len(), mr.is_plain()),
        (0, 0, 8, false)
    );
    // SAFETY: refused.
    let rereg = unsafe {
        mr.rereg(&Rereg {
            flags: ReregFlags::ACCESS,
            ..REREG
        })
    };
    assert_eq!(errno(rereg), libc::EINVAL);
    assert_eq!(errno(dm.destroy()), libc::EBUSY);
    let read = SendOp::Read {
        va: 4,
        rkey: mr.rkey(),
    };
    assert_eq!(execute(&a, read, &[a.sge(0, 4)]), WcStatus::Success);
    assert_eq!(a.bytes(0, 4), b"last");
    mr.destroy().unwrap();
    dm.destroy().unwrap();
    assert_eq!(errno(dm.destroy()), libc::EINVAL);
    drop((dm, mr));
    // A region keeps its device memory allocated.
    let dm = b.context.alloc_dm(8).unwrap();
    let mr = b.pd.reg_dm_mr(&dm, 0, 8, zero_based).unwrap();
    drop(dm);
    let data = execute(&a, write(0, mr.rkey()), &[a.sge(0, 8)]);
    assert_eq!(data, WcStatus::Success);
    assert_eq!(errno(b.context.alloc_dm(max)), libc::ENOMEM);
    drop(mr);
    drop(b.context.alloc_dm(max).unwrap());
}

//= ODP-02 type=test
//= ODP-03 type=test
//= ODP-05 type=test
#[test]
fn memory_on_demand_is_looked_at_when_it_is_used() {
    let (a, b) = pair("127.9.5.1", "127.9.5.2", 1 << 16);
    let paged = ALL_ACCESS | AccessFlags::ON_DEMAND;
    let reg = |addr, len, iova, access| {
        // SAFETY: memory that other code uses is not accessed through it.
        unsafe { b.pd.reg_mr(addr, len, iova, access) }
    };
    let nowhere = reg(1 << 40, 4096, 1 << 40, paged).unwrap();
    let advise = |advice, addr, len, lkey| b.pd.advise_mr(advice, &[Sge { addr, len, lkey }]);
    assert_eq!(
        errno(advise(Advice::Prefetch, 1 << 40, 8, nowhere.lkey())),
        libc::EFAULT
    );
    advise(Advice::PrefetchNoFault, 1 << 40, 8, nowhere.lkey()).unwrap();
    assert_eq!(
        execute(&a, write(1 << 40, nowhere.rkey()), &[a.sge(0, 8)]),
        WcStatus::RemAccessErr
    );
    reconnect(&a, &b);
    advise(Advice::PrefetchWrite, b.addr(9), 5000, b.mr.lkey()).unwrap();
    let beyond = advise(Advice::Prefetch, b.addr(0), (1 << 16) + 1, b.mr.lkey());
    assert_eq!(errno(beyond), libc::EFAULT);
    assert_eq!(
        errno(advise(
            Advice::Prefetch,
            b.addr(0),
            8,
            rocade_emulator::Lkey::new(0)
        )),
        libc::EFAULT
    );
    let read_only = reg(b.addr(0), 64, b.addr(0), AccessFlags::empty()).unwrap();
    assert_eq!(
        errno(advise(
            Advice::PrefetchWrite,
            b.addr(0),
            8,
            read_only.lkey()
        )),
        libc::EPERM
    );
    advise(Advice::Prefetch, b.addr(0), 8, read_only.lkey()).unwrap();
    assert_eq!(
        errno(a.pd.advise_mr(Advice::Prefetch, &[b.sge(0, 8)])),
        libc::EFAULT,
        "another engine"
    );
    let other = b.context.alloc_pd().unwrap();
    assert_eq!(
        errno(other.advise_mr(Advice::Prefetch, &[b.sge(0, 8)])),
        libc::ENOENT
    );
    assert_eq!(
        [Advice::from_code(2), Advice::from_code(3)],
        [Some(Advice::PrefetchNoFault), None]
    );

    let zero_based = paged | AccessFlags::ZERO_BASED;
    assert_eq!(errno(reg(0, usize::MAX, 0, zero_based)), libc::EINVAL);
    assert_eq!(errno(reg(0, usize::MAX, 1, paged)), libc::EINVAL);
    assert_eq!(errno(reg(0, usize::MAX, 0, ALL_ACCESS)), libc::EFAULT);
    assert_eq!(errno(reg(8, 64, 8, paged)), libc::EFAULT, "no pointer");
    let all = reg(0, usize::MAX, 0, paged).unwrap();
    a.fill(0, b"anywhere");
    assert_eq!(
        execute(&a, write(b.addr(77), all.rkey()), &[a.sge(0, 8)]),
        WcStatus::Success
    );
    assert_eq!(b.bytes(77, 8), b"anywhere");
    for va in [0, 1 << 47, 1 << 56, u64::MAX - 7] {
        assert_eq!(
            execute(&a, write(va, all.rkey()), &[a.sge(0, 8)]),
            WcStatus::RemAccessErr
        );
        reconnect(&a, &b);
    }
}

//= NUL-01 type=test
#[test]
fn a_null_region_is_for_this_side_only() {
    let (a, b) = pair("127.9.6.1", "127.9.6.2", 1 << 16);
    let null = a.pd.alloc_null_mr().unwrap();
    assert_eq!(
        (null.len(), null.addr(), null.is_plain()),
        (u64::MAX, 0, false)
    );
    let sge = Sge {
        addr: 77,
        len: 1 << 15,
        lkey: null.lkey(),
    };
    b.fill(0, &pattern(1 << 16, 1));
    let read = SendOp::Read {
        va: b.addr(0),
        rkey: b.mr.rkey(),
    };
    assert_eq!(execute(&a, read, &[sge]), WcStatus::Success);
    assert_eq!(
        execute(&a, write(b.addr(0), b.mr.rkey()), &[sge]),
        WcStatus::Success
    );
    assert_eq!(b.bytes(0, 1 << 15), vec![0; 1 << 15]);
    assert_eq!(b.bytes(1 << 15, 1 << 15), pattern(1 << 16, 1)[1 << 15..]);
    // SAFETY: refused.
    let rereg = unsafe {
        null.rereg(&Rereg {
            flags: ReregFlags::ACCESS,
            ..REREG
        })
    };
    assert_eq!(errno(rereg), libc::EINVAL);
    let peers = write(0, null.rkey());
    assert_eq!(execute(&b, peers, &[b.sge(0, 8)]), WcStatus::RemAccessErr);
    null.destroy().unwrap();
    assert_eq!(errno(null.destroy()), libc::EINVAL);
}

//= ORD-02 type=test
//= ORD-03 type=test
//= ORD-05 type=test
//= ATM-03 type=test
//= RC-RSP-26 type=test
#[test]
fn what_was_written_first_is_seen_first() {
    const LEN: usize = 20_000;
    let (a, b) = pair("127.9.7.1", "127.9.7.2", 1 << 16);
    // Atomic with respect to the processor's own atomics too: IBV_ATOMIC_GLOB.
    assert_eq!(b.context.device_attr().atomic_cap, 2);
    let flag = 1 << 15;
    for round in 1..30 {
        let data = pattern(LEN, round);
        a.fill(0, &data);
        a.fill(flag, &[round as u8]);
        // A program that polls memory sees the flag only after the data.
        a.send(1, write(b.addr(0), b.mr.rkey()), &[a.sge(0, LEN)]);
        a.send(2, write(b.addr(flag), b.mr.rkey()), &[a.sge(flag, 1)]);
        let deadline = Instant::now() + Duration::from_secs(20);
        while b.memory[flag].load(Ordering::Acquire) != round as u8 {
            assert!(Instant::now() < deadline, "no flag");
            std::thread::yield_now();
        }
        assert_eq!(b.bytes(0, LEN), data);
        // A READ after the WRITEs returns what they have written.
        let read = SendOp::Read {
            va: b.addr(0),
            rkey: b.mr.rkey(),
        };
        a.send(3, read, &[a.sge(1 << 15, LEN)]);
        // A receive completion implies that all earlier messages have arrived.
        let again = pattern(LEN, round + 1);
        b.qp.recv_queue().push(9, &[]).unwrap();
        for wr_id in 1..=3 {
            let done = a.completion();
            assert_eq!((done.wr_id, done.status), (wr_id, WcStatus::Success));
        }
        assert_eq!(a.bytes(1 << 15, LEN), data);
        a.fill(0, &again);
        a.send(4, write(b.addr(0), b.mr.rkey()), &[a.sge(0, LEN)]);
        a.send(5, SendOp::Send { imm: None }, &[]);
        assert_eq!(b.completion().wr_id, 9);
        assert_eq!(b.bytes(0, LEN), again);
        for wr_id in 4..=5 {
            assert_eq!(a.completion().wr_id, wr_id);
        }
    }
}

/// Maps memory of the process that may be made inaccessible.
fn page_range(len: usize) -> *mut libc::c_void {
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), len, rights, flags, -1, 0) };
    assert_ne!(start, libc::MAP_FAILED);
    start
}

/// In a simulated network, and between two sockets of one process.
//= RC-RSP-22 type=test
#[test]
fn a_read_of_memory_without_access_is_refused() {
    const LEN: usize = 16 << 10;
    // One packet, full and short. Then several packets, the last of them full and short, partly
    // accessible.
    for (left, len) in [
        (0, 8),
        (0, 1024),
        (0, 4096),
        (0, 5128),
        (0, 8200),
        (4096, 5128),
    ] {
        let engine = Engine::new(EngineConfig::simulated(7)).unwrap();
        let simulated = ["a", "b"].map(|name| Side::on_device(engine.clone(), name, LEN));
        common::connect(&simulated[0], &simulated[1]);
        let sockets = <[Side; 2]>::from(pair("127.9.7.1", "127.9.7.2", LEN));
        for [a, b] in [simulated, sockets] {
            let start = page_range(LEN);
            let addr = start.expose_provenance() as u64;
            // SAFETY: only the device uses it.
            let mr = unsafe { b.pd.reg_mr(addr, LEN, addr, ALL_ACCESS) }.unwrap();
            // SAFETY: pages of that mapping.
            let result =
                unsafe { libc::mprotect(start.byte_add(left), LEN - left, libc::PROT_NONE) };
            assert_eq!(result, 0);
            let (va, rkey) = (addr, mr.rkey());
            let status = execute(&a, SendOp::Read { va, rkey }, &[a.sge(0, len)]);
            assert_eq!(status, WcStatus::RemAccessErr, "{len} bytes, {left} left");
            assert_eq!(b.qp.query().0.qp_state, QpState::Err.code());
        }
    }
}
