//! A forked child starts with an engine of its own.
#![cfg(target_os = "linux")]

#[allow(dead_code, reason = "each test program uses a part of it")]
mod library;

use std::io::{Read, Write};
use std::ptr;

use library::{Device, errno, use_address};

/// Returns the keys of new MRs and the numbers of new QPs.
fn identifiers(device: &Device, cq: *mut rocade_abi::ibv_cq) -> [u32; 8] {
    static MEMORY: [u8; 64] = [0; 64];
    let lib = device.lib;
    let mut ids = [0; 8];
    for (index, id) in ids.iter_mut().enumerate() {
        // SAFETY: a live domain, memory that stays, and a QP that only this function has.
        unsafe {
            if index % 2 == 0 {
                let start = MEMORY.as_ptr().cast_mut().cast();
                let mr = (lib.ibv_reg_mr)(device.pd, start, MEMORY.len(), 0);
                assert!(!mr.is_null());
                *id = (*mr).rkey;
                assert_eq!((lib.ibv_dereg_mr)(mr), 0);
            } else {
                let qp = device.create_qp(cq);
                *id = (*qp).qp_num & 0xffff;
                assert_eq!((lib.ibv_destroy_qp)(qp), 0);
            }
        }
    }
    ids
}

/// Runs the checks in the child. Returns 0, or the number of the failed step.
fn child(
    inherited: &Device,
    cq: *mut rocade_abi::ibv_cq,
    qp: *mut rocade_abi::ibv_qp,
    mut report: impl Write,
) -> i32 {
    let lib = inherited.lib;
    // SAFETY: inherited objects are under test, and the library does not access them.
    unsafe {
        if !(lib.ibv_alloc_pd)(inherited.context).is_null() || errno() != libc::ENODEV {
            return 1;
        }
        let poll = (*inherited.context).ops.poll_cq.expect("op is set");
        let mut wc = std::mem::zeroed();
        if poll(cq, 1, &raw mut wc) != -1 || errno() != libc::ENODEV {
            return 2;
        }
        // Garbage collectors destroy the parent's objects in the child too.
        if (lib.ibv_destroy_qp)(qp) != 0 || (lib.ibv_destroy_cq)(cq) != 0 {
            return 3;
        }
        if (lib.ibv_dealloc_pd)(inherited.pd) != 0 || (lib.ibv_close_device)(inherited.context) != 0
        {
            return 4;
        }
    }
    // The parent holds its address.
    use_address(std::process::id());
    let fresh = Device::open();
    let cq = fresh.create_cq(4, ptr::null_mut());
    let (a, b) = (fresh.create_qp(cq), fresh.create_qp(cq));
    // SAFETY: live QPs.
    let (a_num, b_num) = unsafe { ((*a).qp_num, (*b).qp_num) };
    fresh.connect(a, b_num);
    fresh.connect(b, a_num);
    for id in identifiers(&fresh, cq) {
        if report.write_all(&id.to_ne_bytes()).is_err() {
            return 7;
        }
    }
    // SAFETY: all are alive and not used afterwards.
    unsafe {
        if (lib.ibv_destroy_qp)(a) != 0 || (lib.ibv_destroy_qp)(b) != 0 {
            return 5;
        }
        if (lib.ibv_destroy_cq)(cq) != 0 {
            return 6;
        }
    }
    fresh.close();
    0
}

#[test]
fn a_child_cannot_use_inherited_objects_but_makes_its_own() {
    let device = Device::open();
    let cq = device.create_cq(4, ptr::null_mut());
    let qp = device.create_qp(cq);
    // Starts the background thread, which the child will not have. SAFETY: a live QP.
    device.connect(qp, unsafe { (*qp).qp_num });

    let (mut from_child, to_parent) = std::io::pipe().expect("a pipe");
    // SAFETY: the child uses the library, which supports that, and ends with `_exit`. It allocates,
    // which is sound: no other thread holds the allocator's lock for long, and glibc makes the
    // allocator usable in a child.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let outcome = std::panic::catch_unwind(|| child(&device, cq, qp, &to_parent)).unwrap_or(99);
        // SAFETY: leaves the child without running any destructors.
        unsafe { libc::_exit(outcome) };
    }
    assert!(pid > 0, "fork failed");
    let mut status = -1;
    // SAFETY: a child of this process, and a writable status.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert!(
        libc::WIFEXITED(status),
        "child ended by signal {}",
        libc::WTERMSIG(status)
    );
    assert_eq!(
        libc::WEXITSTATUS(status),
        0,
        "step that failed in the child"
    );

    // Random identifiers of the parent do not recur in the child. Two of them may be equal by
    // chance.
    let mut same = 0;
    for ours in identifiers(&device, cq) {
        let mut theirs = [0; 4];
        let read = from_child.read_exact(&mut theirs);
        read.expect("as many of the child");
        same += usize::from(u32::from_ne_bytes(theirs) == ours);
    }
    assert!(same < 2, "{same} of 8 are the same");

    // The parent's objects still work. SAFETY: all are alive and not used afterwards.
    unsafe {
        assert_eq!((device.lib.ibv_destroy_qp)(qp), 0);
        assert_eq!((device.lib.ibv_destroy_cq)(cq), 0);
    }
    device.close();
}
