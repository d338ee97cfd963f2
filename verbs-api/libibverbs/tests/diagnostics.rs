//! Diagnostics on standard error: a failing verb prints the reason once, unless the failure is
//! expected.
//!
//! Each test restarts itself with a role, because standard error belongs to a process.
#![cfg(target_os = "linux")]

#[allow(dead_code, reason = "each test program uses a part of it")]
mod library;

use std::{
    ffi::{c_int, c_void},
    mem,
    process::{Command, Output},
    ptr,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use library::{Device, init_attr, library};
use rocade_abi::*;

const ROLE: &str = "ROCADE_TEST_ROLE";

/// Returns the standard error of the test `name` in its role, with `ROCADE_LOG` set to `log`.
fn diagnostics(name: &str, log: Option<&str>) -> String {
    diagnostics_as(name, "child", log)
}

/// Like [`diagnostics`], in this role.
fn diagnostics_as(name: &str, role: &str, log: Option<&str>) -> String {
    let mut command = Command::new(std::env::current_exe().expect("a test has a file"));
    command
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(ROLE, role);
    match log {
        Some(log) => command.env("ROCADE_LOG", log),
        None => command.env_remove("ROCADE_LOG"),
    };
    let Output { status, stderr, .. } = command.output().expect("the test starts");
    let stderr = String::from_utf8(stderr).expect("text");
    assert!(status.success(), "{stderr}");
    stderr
}

fn is_child() -> bool {
    let is_child = std::env::var_os(ROLE).is_some();
    if is_child {
        // SAFETY: takes no pointers. A child that hangs ends.
        unsafe { libc::alarm(300) };
    }
    is_child
}

/// Returns the lines that begin with `rocade` and a process ID.
fn headlines(text: &str) -> Vec<&str> {
    let ours = |line: &&str| {
        line.strip_prefix("rocade[")
            .and_then(|rest| rest.split_once("]: "))
            .is_some_and(|(pid, _)| pid.parse::<u32>().is_ok())
    };
    text.lines().filter(ours).collect()
}

fn assert_has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in:\n{text}");
    }
}

fn modify(qp: *mut ibv_qp, attr: &mut ibv_qp_attr, mask: u32) -> c_int {
    // SAFETY: a live QP.
    unsafe { (library().ibv_modify_qp)(qp, attr, mask.cast_signed()) }
}

/// Returns attributes for RTR with an address vector without GID, as programs set them without
/// `-g`.
fn rtr_without_gid(qp: *mut ibv_qp) -> (ibv_qp_attr, u32) {
    // SAFETY: zero is a value for all members.
    let mut attr: ibv_qp_attr = unsafe { mem::zeroed() };
    attr.qp_state = IBV_QPS_INIT;
    attr.port_num = 1;
    let mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    assert_eq!(modify(qp, &mut attr, mask), 0);
    attr.qp_state = IBV_QPS_RTR;
    attr.path_mtu = IBV_MTU_1024;
    attr.dest_qp_num = 2;
    attr.ah_attr.port_num = 1;
    let mask = IBV_QP_STATE
        | IBV_QP_AV
        | IBV_QP_PATH_MTU
        | IBV_QP_DEST_QPN
        | IBV_QP_RQ_PSN
        | IBV_QP_MAX_DEST_RD_ATOMIC
        | IBV_QP_MIN_RNR_TIMER;
    (attr, mask)
}

fn fail_three_times() {
    let device = Device::open();
    let cq = device.create_cq(8, ptr::null_mut());
    for _ in 0..3 {
        let qp = device.create_qp(cq);
        let (mut attr, mask) = rtr_without_gid(qp);
        assert_eq!(modify(qp, &mut attr, mask), libc::EINVAL);
        // SAFETY: a live QP.
        eprintln!("number {:#08x}", unsafe { (*qp).qp_num });
    }
}

#[test]
fn a_missing_gid_is_explained_once() {
    if is_child() {
        return fail_three_times();
    }
    let text = diagnostics("a_missing_gid_is_explained_once", None);
    let lines = headlines(&text);
    assert_eq!(lines.len(), 1, "{text}");
    assert_has(lines[0], &["ibv_modify_qp: QP 0x", "INIT -> RTR", "GID"]);
    assert_has(&text, &["RoCE needs a GID: -g 0"]);
    let number = text
        .lines()
        .find_map(|line| line.strip_prefix("number "))
        .expect("printed by the child");
    assert_has(lines[0], &[number]);
}

/// Makes a system call fail with `errno` in this thread and in its children.
fn refuse_call(number: libc::c_long, errno: c_int) {
    let statement = |code: u32, jt, jf, k| libc::sock_filter {
        code: u16::try_from(code).expect("a BPF code"),
        jt,
        jf,
        k,
    };
    let number = u32::try_from(number).expect("a system call");
    let errno = errno.cast_unsigned();
    let answer = libc::BPF_RET | libc::BPF_K;
    let program = [
        // The number of the call is the first word of the data.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, number),
        statement(answer, 0, 0, libc::SECCOMP_RET_ERRNO | errno),
        statement(answer, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog {
        len: 4,
        filter: program.as_ptr().cast_mut(),
    };
    // SAFETY: takes no pointers.
    let set = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    assert_eq!(set, 0);
    let mode = libc::SECCOMP_MODE_FILTER;
    // SAFETY: the program lives across the call, and the kernel copies it.
    let set = unsafe { libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program) };
    assert_eq!(set, 0);
}

/// Moves a queue pair to RTR, with itself as the peer.
fn to_rtr(device: &Device, qp: *mut ibv_qp) -> c_int {
    let (mut attr, mask) = rtr_without_gid(qp);
    attr.ah_attr.is_global = 1;
    // SAFETY: an open context and a writable GID.
    let got =
        unsafe { (device.lib.ibv_query_gid)(device.context, 1, 0, &raw mut attr.ah_attr.grh.dgid) };
    assert_eq!(got, 0);
    modify(qp, &mut attr, mask)
}

/// Waits for a completion event where the system refuses to wait.
fn wait_in_vain() {
    let device = Device::open();
    // SAFETY: an open context.
    let channel = unsafe { (device.lib.ibv_create_comp_channel)(device.context) };
    assert!(!channel.is_null());
    let cq = device.create_cq(8, channel);
    // With a queue pair, the thread that waits receives packets.
    device.create_qp(cq);
    #[cfg(target_arch = "x86_64")]
    refuse_call(libc::SYS_poll, libc::EPERM);
    refuse_call(libc::SYS_ppoll, libc::EPERM);
    let (mut event_cq, mut context): (*mut ibv_cq, *mut c_void) =
        (ptr::null_mut(), ptr::null_mut());
    // SAFETY: a live channel and places for the answer.
    let got =
        unsafe { (device.lib.ibv_get_cq_event)(channel, &raw mut event_cq, &raw mut context) };
    assert_eq!((got, library::errno()), (-1, libc::EPERM));
}

fn do_without(what: &str) {
    let at_start = match what {
        "eventfd" => Some(libc::SYS_eventfd2),
        "ioctl" => Some(libc::SYS_ioctl),
        "getsockname" => Some(libc::SYS_getsockname),
        _ => None,
    };
    if what == "poll" {
        return wait_in_vain();
    }
    if let Some(call) = at_start {
        // Building it needs processes.
        library();
        refuse_call(call, libc::EPERM);
        // SAFETY: no count is asked for.
        let list = unsafe { (library().ibv_get_device_list)(ptr::null_mut()) };
        assert!(list.is_null());
        return;
    }
    if what == "thread" {
        // Building it needs processes.
        library();
        refuse_call(libc::SYS_clone3, libc::EAGAIN);
    }
    let device = Device::open();
    let cq = device.create_cq(8, ptr::null_mut());
    if what == "thread" {
        let mut init = init_attr(cq);
        // SAFETY: a live domain and a live CQ.
        let qp = unsafe { (device.lib.ibv_create_qp)(device.pd, &raw mut init) };
        assert!(qp.is_null());
        return;
    }
    let qp = device.create_qp(cq);
    if what == "setsockopt" {
        refuse_call(libc::SYS_setsockopt, libc::EPERM);
    } else {
        let none = libc::rlimit {
            rlim_cur: 3,
            rlim_max: 1024,
        };
        // SAFETY: the pointer is to a live rlimit.
        let set = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const none) };
        assert_eq!(set, 0);
    }
    assert_ne!(to_rtr(&device, qp), 0, "{what}");
}

/// "Operation not permitted" alone would not tell what is forbidden.
#[test]
fn a_call_that_the_system_refuses_is_named_with_a_remedy() {
    if let Ok(what) = std::env::var(ROLE) {
        return do_without(&what);
    }
    let name = "a_call_that_the_system_refuses_is_named_with_a_remedy";
    for (what, failed, remedy) in [
        (
            "eventfd",
            "ibv_get_device_list: failed to create an eventfd: Operation not permitted",
            "seccomp",
        ),
        (
            "thread",
            "ibv_create_qp: failed to start a thread: Resource temporarily unavailable",
            "ulimit -u",
        ),
        (
            "setsockopt",
            "failed to forbid fragmentation on a UDP socket (setsockopt): Operation not permitted",
            "seccomp",
        ),
        (
            "ioctl",
            "ibv_get_device_list: failed to list the network interfaces: failed to read the index \
             of a network interface (ioctl): Operation not permitted",
            "seccomp",
        ),
        (
            "getsockname",
            "ibv_get_device_list: failed to list the network interfaces: failed to read the \
             addresses of the system (getifaddrs, which calls getsockname): Operation not permitted",
            "seccomp",
        ),
        (
            "poll",
            "ibv_get_cq_event: failed to wait for packets and events (ppoll): Operation not \
             permitted",
            "seccomp",
        ),
        ("descriptors", "Too many open files", "ulimit -n 1024"),
    ] {
        let text = diagnostics_as(name, what, None);
        assert_eq!(headlines(&text).len(), 1, "{text}");
        assert_has(&text, &[failed, remedy]);
        assert!(!text.contains("rocade_emulator"), "said twice: {text}");
    }
}

#[test]
fn a_peer_that_the_list_excludes_is_said_once() {
    if is_child() {
        // SAFETY: the only thread that uses the environment.
        unsafe { std::env::set_var("ROCADE_PEERS", "192.0.2.0/24") };
        let device = Device::open();
        let cq = device.create_cq(8, ptr::null_mut());
        assert_eq!(to_rtr(&device, device.create_qp(cq)), libc::EACCES);
        return;
    }
    let text = diagnostics("a_peer_that_the_list_excludes_is_said_once", None);
    assert_eq!(text.matches("ROCADE_PEERS").count(), 1, "{text}");
    assert_has(headlines(&text)[0], &["ibv_modify_qp", "ROCADE_PEERS"]);
}

#[test]
fn off_is_silence() {
    if is_child() {
        return fail_three_times();
    }
    let text = diagnostics("off_is_silence", Some("off"));
    assert!(!text.contains("rocade["), "{text}");
    // Any other filter concerns traces only, so the diagnostic is printed.
    let text = diagnostics("off_is_silence", Some("rocade_wire=error"));
    assert_eq!(headlines(&text).len(), 1, "{text}");
}

#[test]
fn the_normal_course_of_programs_is_quiet() {
    if is_child() {
        return succeed_and_probe();
    }
    let text = diagnostics("the_normal_course_of_programs_is_quiet", None);
    assert!(!text.contains("rocade["), "{text}");
    assert!(text.contains("the end"), "{text}");
}

fn succeed_and_probe() {
    let device = Device::open();
    let lib = device.lib;
    // SAFETY: an open context.
    let channel = unsafe { (lib.ibv_create_comp_channel)(device.context) };
    assert!(!channel.is_null());
    let cq = device.create_cq(8, channel);
    let qp = device.create_qp(cq);
    // SAFETY: a live QP.
    device.connect(qp, unsafe { (*qp).qp_num } ^ 1);

    // Posts until the queue is full, as programs do that keep it full.
    let mut wr = ibv_recv_wr {
        wr_id: 1,
        next: ptr::null_mut(),
        sg_list: ptr::null_mut(),
        num_sge: 0,
    };
    // SAFETY: an open context.
    let ops = unsafe { (*device.context).ops };
    let post_recv = ops.post_recv.expect("op is set");
    let mut bad = ptr::null_mut();
    // SAFETY: a live QP and a valid request.
    let full = (0..9).any(|_| unsafe { post_recv(qp, &raw mut wr, &raw mut bad) } == libc::ENOMEM);
    assert!(full);

    // Takes an event when there is none. SAFETY: a live channel.
    let fd = unsafe { (*channel).fd };
    // SAFETY: a descriptor of this test.
    unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK) };
    let (mut event_cq, mut context): (*mut ibv_cq, *mut c_void) =
        (ptr::null_mut(), ptr::null_mut());
    // SAFETY: a live channel and places for the answer.
    let got = unsafe { (lib.ibv_get_cq_event)(channel, &raw mut event_cq, &raw mut context) };
    assert_eq!((got, library::errno()), (-1, libc::EAGAIN));

    // Waits for an event until a signal arrives. SAFETY: a descriptor of this test.
    unsafe { libc::fcntl(fd, libc::F_SETFL, 0) };
    // SAFETY: a live channel and places for the answer.
    let wait = || unsafe { (lib.ibv_get_cq_event)(channel, &raw mut event_cq, &raw mut context) };
    assert_eq!(interrupted(wait), (-1, libc::EINTR));

    // Queries a feature that a device may lack.
    let mut ece = ibv_ece {
        vendor_id: 0,
        options: 0,
        comp_mask: 0,
    };
    // SAFETY: a live QP and a place for the answer.
    assert_eq!(unsafe { (lib.ibv_query_ece)(qp, &raw mut ece) }, 0);
    eprintln!("the end");
}

/// Returns the result and errno of `wait`, in a thread that continuously receives signals.
fn interrupted(wait: impl FnOnce() -> c_int) -> (c_int, c_int) {
    extern "C" fn nothing(_signal: c_int) {}

    // SAFETY: zero is a value for all members. Without SA_RESTART, system calls are interrupted.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    action.sa_sigaction = nothing as extern "C" fn(c_int) as usize;
    // SAFETY: a handler that does nothing.
    unsafe { libc::sigaction(libc::SIGUSR1, &raw const action, ptr::null_mut()) };
    // SAFETY: no argument.
    let me = unsafe { libc::pthread_self() };
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                // SAFETY: that thread waits for the end of this one.
                unsafe { libc::pthread_kill(me, libc::SIGUSR1) };
                thread::sleep(Duration::from_millis(1));
            }
        });
        let outcome = (wait(), library::errno());
        done.store(true, Ordering::Relaxed);
        outcome
    })
}

#[test]
fn each_verb_says_what_it_wants() {
    if is_child() {
        return many_mistakes();
    }
    let text = diagnostics("each_verb_says_what_it_wants", None);
    assert_eq!(headlines(&text).len(), 8, "{text}");
    assert_has(
        &text,
        &[
            "ibv_create_qp: cap.max_send_wr is 1000000",
            "ibv_post_send: QP 0x",
            "is in RESET and accepts no sends",
            "more inline data than max_inline_data, 64 bytes",
            "ibv_modify_qp: QP 0x",
            "RESET -> RTS: there is no such transition",
            "attr_mask lacks IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | IBV_QP_PORT",
            "ibv_create_srq: invalid argument: max_sge: 33; allowed: 0 to 32",
            "ibv_query_gid: GID index 7 is beyond the table, which has 1 entries",
            "ibv_create_ah: invalid argument: grh.dgid has another IP version than the GID with index grh.sgid_index",
        ],
    );
}

fn many_mistakes() {
    let device = Device::open();
    let lib = device.lib;
    let cq = device.create_cq(8, ptr::null_mut());
    let mut init = init_attr(cq);
    init.cap.max_send_wr = 1_000_000;
    // SAFETY: a live domain and a live CQ.
    assert!(unsafe { (lib.ibv_create_qp)(device.pd, &raw mut init) }.is_null());

    let qp = device.create_qp(cq);
    // SAFETY: zero is a value for all members.
    let mut wr: ibv_send_wr = unsafe { mem::zeroed() };
    wr.opcode = IBV_WR_SEND;
    // SAFETY: an open context.
    let post_send = unsafe { (*device.context).ops.post_send }.expect("op is set");
    let mut bad = ptr::null_mut();
    // SAFETY: a live QP and a valid request.
    let posted = unsafe { post_send(qp, &raw mut wr, &raw mut bad) };
    assert_eq!(posted, libc::EINVAL);
    let mut sge = ibv_sge {
        addr: 0,
        length: 65,
        lkey: 0,
    };
    wr.send_flags = IBV_SEND_INLINE;
    (wr.sg_list, wr.num_sge) = (&raw mut sge, 1);
    // SAFETY: as above. The data is too long to be read.
    let posted = unsafe { post_send(qp, &raw mut wr, &raw mut bad) };
    assert_eq!(posted, libc::EINVAL);

    // SAFETY: zero is a value for all members.
    let mut attr: ibv_qp_attr = unsafe { mem::zeroed() };
    attr.qp_state = IBV_QPS_RTS;
    assert_eq!(modify(qp, &mut attr, IBV_QP_STATE), libc::EINVAL);
    attr.qp_state = IBV_QPS_INIT;
    assert_eq!(modify(qp, &mut attr, IBV_QP_STATE), libc::EINVAL);

    // SAFETY: zero is a value for all members.
    let mut srq: ibv_srq_init_attr = unsafe { mem::zeroed() };
    srq.attr.max_sge = 33;
    // SAFETY: a live domain and a valid structure.
    assert!(unsafe { (lib.ibv_create_srq)(device.pd, &raw mut srq) }.is_null());
    // SAFETY: zero is a value for all bytes.
    let mut gid: ibv_gid = unsafe { mem::zeroed() };
    // SAFETY: an open context and a writable GID.
    let found = unsafe { (lib.ibv_query_gid)(device.context, 1, 7, &raw mut gid) };
    assert_eq!(found, -1);
    // An IPv6 group, with an IPv4 source address. SAFETY: zero is a value for all members.
    let mut to: ibv_ah_attr = unsafe { mem::zeroed() };
    (to.is_global, to.port_num) = (1, 1);
    to.grh.dgid.raw = [0xff, 0x0e, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9];
    // SAFETY: a live domain and a valid structure.
    assert!(unsafe { (lib.ibv_create_ah)(device.pd, &raw mut to) }.is_null());
}

#[test]
fn there_is_an_end_to_it() {
    if is_child() {
        let device = Device::open();
        for index in 0..1000 {
            // SAFETY: zero is a value for all bytes.
            let mut gid: ibv_gid = unsafe { mem::zeroed() };
            // SAFETY: an open context and a writable GID.
            unsafe { (device.lib.ibv_query_gid)(device.context, 1, 5 + index, &raw mut gid) };
        }
        return;
    }
    let text = diagnostics("there_is_an_end_to_it", None);
    assert!((2..=50).contains(&headlines(&text).len()), "{text}");
    assert_has(&text, &["further reasons of this process are not shown"]);
}

#[test]
fn misspelt_settings_are_named() {
    if is_child() {
        // SAFETY: the only thread that uses the environment.
        unsafe { std::env::set_var("ROCADE_LNIK", "udp") };
        return Device::open().close();
    }
    let text = diagnostics("misspelt_settings_are_named", Some("debgu"));
    assert_eq!(headlines(&text).len(), 2, "{text}");
    assert_has(
        &text,
        &[
            "ROCADE_LNIK is no setting of Rocade; did you mean ROCADE_LINK?",
            "ROCADE_LOG = \"debgu\"",
            "did you mean debug?",
        ],
    );
}

#[test]
fn levels_and_targets_choose_traces() {
    if is_child() {
        // SAFETY: the only thread that uses the environment.
        unsafe { std::env::set_var("ROCADE_FAULT", "port-down at=0s") };
        return Device::open().close();
    }
    for (log, is_told) in [
        ("info", true),
        ("warn", false),
        ("rocade_emulator=info", true),
        ("warn, rocade_emulator::engine=debug", true),
        ("info,rocade_emulator=warn", false),
        ("rocade_transport=trace", false),
    ] {
        let text = diagnostics("levels_and_targets_choose_traces", Some(log));
        let mut lines = text.lines();
        let line = lines.find(|line| line.contains("a fault rule has changed a port"));
        assert_eq!(line.is_some(), is_told, "{log}: {text}");
        if let Some(line) = line {
            assert_has(
                line,
                &["rocade[", "INFO rocade_emulator::engine::device_faults: "],
            );
        }
    }
}

#[test]
fn a_wrong_configuration_is_named() {
    if is_child() {
        // SAFETY: the only thread that uses the environment.
        unsafe { std::env::set_var("ROCADE_LINK", "udq") };
        let lib = library();
        for _ in 0..2 {
            let mut count = -1;
            // SAFETY: a writable count.
            let list = unsafe { (lib.ibv_get_device_list)(&raw mut count) };
            assert!(list.is_null() && count == 0);
        }
        return;
    }
    let text = diagnostics("a_wrong_configuration_is_named", None);
    assert_eq!(headlines(&text).len(), 1, "{text}");
    assert_has(&text, &["ibv_get_device_list: ", "ROCADE_LINK", "udq"]);
}

#[test]
fn a_peer_that_no_packet_reaches_is_named() {
    if is_child() {
        return send_to_nowhere();
    }
    let text = diagnostics("a_peer_that_no_packet_reaches_is_named", None);
    let lines: Vec<_> = text
        .lines()
        .filter(|line| line.contains("failed to send to"))
        .collect();
    assert_eq!(lines.len(), 1, "{text}");
    assert_has(lines[0], &["rocade[", "127.255.255.255: "]);
}

/// No packet may be sent to all hosts.
fn send_to_nowhere() {
    let device = Device::open();
    let cq = device.create_cq(8, ptr::null_mut());
    let qp = device.create_qp(cq);
    let (mut attr, mask) = rtr_without_gid(qp);
    attr.ah_attr.is_global = 1;
    attr.ah_attr.grh.dgid.raw = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 255, 255, 255];
    assert_eq!(modify(qp, &mut attr, mask), 0);
    attr.qp_state = IBV_QPS_RTS;
    attr.timeout = 8;
    let mask = IBV_QP_STATE
        | IBV_QP_TIMEOUT
        | IBV_QP_RETRY_CNT
        | IBV_QP_RNR_RETRY
        | IBV_QP_SQ_PSN
        | IBV_QP_MAX_QP_RD_ATOMIC;
    assert_eq!(modify(qp, &mut attr, mask), 0);
    // SAFETY: an open context.
    let ops = unsafe { (*device.context).ops };
    let (post, poll) = (ops.post_send.expect("filled"), ops.poll_cq.expect("filled"));
    // SAFETY: zero is a value for all members.
    let mut wr: ibv_send_wr = unsafe { mem::zeroed() };
    wr.opcode = IBV_WR_SEND;
    let mut bad = ptr::null_mut();
    // SAFETY: a live QP and a valid request.
    let posted = unsafe { post(qp, &raw mut wr, &raw mut bad) };
    assert_eq!(posted, 0);
    // SAFETY: zero is a value for all members.
    let mut wc: ibv_wc = unsafe { mem::zeroed() };
    // A failed request completes even if it is unsignaled. SAFETY: a live CQ and room for one
    // completion.
    while unsafe { poll(cq, 1, &raw mut wc) } == 0 {}
    assert_eq!(wc.status, IBV_WC_RETRY_EXC_ERR);
}

#[test]
fn a_peer_without_a_route_is_named() {
    if is_child() {
        return connect_without_a_route();
    }
    let text = diagnostics("a_peer_without_a_route_is_named", None);
    let lines = headlines(&text);
    assert_eq!(lines.len(), 2, "{text}");
    let both = ["there is no route from 127.", " to 192.0.2.9: "];
    assert_has(
        lines[0],
        &["ibv_modify_qp: QP 0x", "INIT -> RTR", both[0], both[1]],
    );
    assert_has(lines[1], &["ibv_create_ah: ", both[0], both[1]]);
    assert_has(&text, &["\n  `ip route get ADDRESS` shows"]);
}

/// A loopback address has no route to other hosts.
fn connect_without_a_route() {
    let device = Device::open();
    let cq = device.create_cq(8, ptr::null_mut());
    let qp = device.create_qp(cq);
    let (mut attr, mask) = rtr_without_gid(qp);
    attr.ah_attr.is_global = 1;
    attr.ah_attr.grh.dgid.raw = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 9];
    assert_eq!(modify(qp, &mut attr, mask), libc::ENETUNREACH);
    // SAFETY: a live domain and an address.
    let ah = unsafe { (device.lib.ibv_create_ah)(device.pd, &raw mut attr.ah_attr) };
    assert!(ah.is_null());
}
