//! Restrictions for test processes: limits, and a seccomp filter like those of sandboxes. They are
//! set in a process before exec, and its children inherit them.

#![allow(
    dead_code,
    clippy::cast_sign_loss,
    clippy::cast_possible_truncation,
    reason = "shared by several test programs, none of which uses all of it; the numbers are small"
)]

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// The system calls that a sandbox refuses.
#[derive(Clone, Copy)]
pub(crate) struct Refused {
    /// The error of refused calls.
    pub(crate) errno: i32,
    /// Socket options: level and name.
    pub(crate) options: &'static [(i32, i32)],
}

const CBPF: (i32, i32) = (libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_CBPF);
const GRO: (i32, i32) = (libc::SOL_UDP, libc::UDP_GRO);
const GSO: (i32, i32) = (libc::SOL_UDP, libc::UDP_SEGMENT);
const REUSEPORT: (i32, i32) = (libc::SOL_SOCKET, libc::SO_REUSEPORT);
const BUFFERS: [(i32, i32); 4] = [
    (libc::SOL_SOCKET, libc::SO_RCVBUF),
    (libc::SOL_SOCKET, libc::SO_RCVBUFFORCE),
    (libc::SOL_SOCKET, libc::SO_SNDBUF),
    (libc::SOL_SOCKET, libc::SO_SNDBUFFORCE),
];

/// Refuses offloads, steering and buffer sizes.
pub(crate) const STRICT: Refused = Refused {
    errno: libc::EPERM,
    options: &[
        CBPF, GRO, GSO, BUFFERS[0], BUFFERS[1], BUFFERS[2], BUFFERS[3],
    ],
};
pub(crate) const UNKNOWN: Refused = Refused {
    errno: libc::ENOPROTOOPT,
    ..STRICT
};
/// Also refuses shared ports, with another error.
pub(crate) const NO_GROUPS: Refused = Refused {
    errno: libc::ENOPROTOOPT,
    options: &[REUSEPORT, CBPF, GRO],
};

const fn stmt(code: u32, k: u32) -> libc::sock_filter {
    libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf: 0,
        k,
    }
}

/// Continues if the accumulator is `k`, otherwise skips `skip` instructions.
const fn only(k: u32, skip: u8) -> libc::sock_filter {
    libc::sock_filter {
        code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
        jt: 0,
        jf: skip,
        k,
    }
}

/// The low half of a word of `seccomp_data`.
fn load(at: u32) -> libc::sock_filter {
    let half = if cfg!(target_endian = "big") && at >= 16 {
        4
    } else {
        0
    };
    stmt(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, at + half)
}

const NUMBER: u32 = 0;

fn ret(value: u32) -> libc::sock_filter {
    stmt(libc::BPF_RET | libc::BPF_K, value)
}

fn filter(refused: Refused) -> Vec<libc::sock_filter> {
    const ARGUMENTS: u32 = 16;
    let deny = ret(libc::SECCOMP_RET_ERRNO | refused.errno as u32);
    let mut program = Vec::new();
    let modes = [
        #[cfg(target_arch = "x86_64")]
        libc::SYS_chmod,
        libc::SYS_fchmod,
        libc::SYS_fchmodat,
    ];
    for call in modes {
        program.extend([load(NUMBER), only(call as u32, 1), deny]);
    }
    for (level, name) in refused.options {
        program.extend([
            load(NUMBER),
            only(libc::SYS_setsockopt as u32, 5),
            load(ARGUMENTS + 8),
            only(*level as u32, 3),
            load(ARGUMENTS + 16),
            only(*name as u32, 1),
            deny,
        ]);
    }
    program.push(ret(libc::SECCOMP_RET_ALLOW));
    program
}

/// Starts the program in a sandbox.
pub(crate) fn sandbox(command: &mut Command, refused: Refused) {
    install(command, filter(refused));
}

/// Starts the program in a sandbox that refuses these system calls with `EPERM`.
pub(crate) fn refuse(command: &mut Command, calls: &[libc::c_long]) {
    let deny = ret(libc::SECCOMP_RET_ERRNO | libc::EPERM as u32);
    let mut program = Vec::new();
    for call in calls {
        program.extend([load(NUMBER), only(*call as u32, 1), deny]);
    }
    program.push(ret(libc::SECCOMP_RET_ALLOW));
    install(command, program);
}

fn install(command: &mut Command, filter: Vec<libc::sock_filter>) {
    // SAFETY: system calls only, on memory that was prepared before.
    unsafe {
        command.pre_exec(move || {
            let program = libc::sock_fprog {
                len: filter.len() as u16,
                filter: filter.as_ptr().cast_mut(),
            };
            if libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
                || libc::prctl(
                    libc::PR_SET_SECCOMP,
                    libc::SECCOMP_MODE_FILTER,
                    &raw const program,
                ) != 0
            {
                return Err(io::Error::last_os_error());
            }
            Ok(())
        });
    }
}

/// Starts the program with these limits, soft and hard.
pub(crate) fn limit(command: &mut Command, limits: &[(u32, u64)]) {
    let limits = limits.to_vec();
    // SAFETY: system calls only, on memory that was prepared before.
    unsafe {
        command.pre_exec(move || {
            for &(resource, value) in &limits {
                let limit = libc::rlimit {
                    rlim_cur: value as _,
                    rlim_max: value as _,
                };
                if libc::setrlimit(resource as _, &raw const limit) != 0 {
                    return Err(io::Error::last_os_error());
                }
            }
            Ok(())
        });
    }
}

/// Starts the program without the capabilities that lift limits, if this process has them.
pub(crate) fn without_privilege_over_limits(command: &mut Command) {
    const CAP_SYS_ADMIN: libc::c_int = 21;
    const CAP_SYS_RESOURCE: libc::c_int = 24;
    // SAFETY: system calls only. A process without capabilities cannot drop them, and need not.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_CAPBSET_DROP, CAP_SYS_ADMIN, 0, 0, 0);
            libc::prctl(libc::PR_CAPBSET_DROP, CAP_SYS_RESOURCE, 0, 0, 0);
            Ok(())
        });
    }
}

/// Moves this thread, and the threads that it starts, into a new network namespace. Returns false
/// if that is not permitted.
pub(crate) fn own_network() -> bool {
    // SAFETY: a system call without pointers. Nothing that std has open depends on the network.
    unsafe { libc::unshare(libc::CLONE_NEWNET) == 0 }
}
