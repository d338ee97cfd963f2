//! A forked child starts with an engine of its own.
#![cfg(target_os = "linux")]

#[allow(dead_code, reason = "each test program uses a part of it")]
mod library;

use std::ptr;

use library::{Device, errno, use_address};

/// What the child finds; 0 if everything is as it should be, else the number of the step.
fn child(inherited: &Device, cq: *mut rocade_abi::ibv_cq, qp: *mut rocade_abi::ibv_qp) -> i32 {
    let lib = inherited.lib;
    // SAFETY: inherited objects are what is tested; the library does not touch them.
    unsafe {
        if !(lib.ibv_alloc_pd)(inherited.context).is_null() || errno() != libc::ENODEV {
            return 1;
        }
        let poll = (*inherited.context).ops.poll_cq.expect("slot is filled");
        let mut wc = std::mem::zeroed();
        if poll(cq, 1, &raw mut wc) != -1 || errno() != libc::ENODEV {
            return 2;
        }
        // Garbage collectors of the parent's language run in the child, too.
        if (lib.ibv_destroy_qp)(qp) != 0 || (lib.ibv_destroy_cq)(cq) != 0 {
            return 3;
        }
        if (lib.ibv_dealloc_pd)(inherited.pd) != 0 || (lib.ibv_close_device)(inherited.context) != 0
        {
            return 4;
        }
    }
    // The parent holds the address it had before.
    use_address(std::process::id());
    let fresh = Device::open();
    let cq = fresh.create_cq(4, ptr::null_mut());
    let (a, b) = (fresh.create_qp(cq), fresh.create_qp(cq));
    // SAFETY: live QPs.
    let (a_num, b_num) = unsafe { ((*a).qp_num, (*b).qp_num) };
    fresh.connect(a, b_num);
    fresh.connect(b, a_num);
    // SAFETY: all are alive and used no more.
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
    // Starts the background thread, which the child will not have.
    // SAFETY: a live QP.
    device.connect(qp, unsafe { (*qp).qp_num });

    // SAFETY: the child uses the library, which supports that, and ends with `_exit`. It
    // allocates: no other thread of this program holds the allocator's lock for long, and glibc
    // makes the allocator usable in a child.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let outcome = std::panic::catch_unwind(|| child(&device, cq, qp)).unwrap_or(99);
        // SAFETY: leaves the child without running any destructors.
        unsafe { libc::_exit(outcome) };
    }
    assert!(pid > 0, "fork failed");
    let mut status = -1;
    // SAFETY: our child, and a writable status.
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

    // The parent's objects are as they were.
    // SAFETY: all are alive and used no more.
    unsafe {
        assert_eq!((device.lib.ibv_destroy_qp)(qp), 0);
        assert_eq!((device.lib.ibv_destroy_cq)(cq), 0);
    }
    device.close();
}
