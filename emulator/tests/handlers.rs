//! Programs with their own signal handlers: signals that are no faults of Rocade's accesses reach
//! them as without Rocade. Each program is a process of this test program that registers a region
//! and then behaves according to its name.

#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "tests: a failure may panic, sizes are small"
)]

mod common;

use std::env;
use std::ffi::{c_int, c_void};
use std::mem;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output, Stdio};
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

use common::{ALL_ACCESS, Side, connect};
use rocade_emulator::{SendOp, WcStatus};

const PROGRAM: &str = "ROCADE_TEST_PROGRAM";
const PAGE: usize = 4096;

/// The arguments of the handler's last call.
static ADDR: AtomicUsize = AtomicUsize::new(0);
static CODE: AtomicI32 = AtomicI32::new(0);
static CALLS: AtomicUsize = AtomicUsize::new(0);
/// Tells whether the handler's call blocked SIGUSR1, which the handler requests, and the signal
/// itself.
static MASKED: AtomicI32 = AtomicI32::new(-1);

fn page(rights: c_int) -> *mut u8 {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping.
    let page = unsafe { libc::mmap(ptr::null_mut(), PAGE, rights, flags, -1, 0) };
    assert_ne!(page, libc::MAP_FAILED);
    page.cast()
}

fn handle(signal: c_int, handler: libc::sighandler_t, flags: c_int) {
    // SAFETY: plain data, and a handler that only does what is allowed in handlers.
    unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        action.sa_sigaction = handler;
        action.sa_flags = flags;
        libc::sigaddset(&raw mut action.sa_mask, libc::SIGUSR1);
        assert_eq!(
            libc::sigaction(signal, &raw const action, ptr::null_mut()),
            0
        );
    }
}

/// Makes the page accessible, like garbage collectors.
extern "C" fn repair(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes these to handlers, and the page belongs to this program.
    unsafe {
        let addr = (*info).si_addr().addr();
        ADDR.store(addr, Ordering::Relaxed);
        CODE.store((*info).si_code, Ordering::Relaxed);
        let mut mask: libc::sigset_t = mem::zeroed();
        libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), &raw mut mask);
        let both = libc::sigismember(&raw const mask, libc::SIGUSR1)
            + libc::sigismember(&raw const mask, signal);
        MASKED.store(both, Ordering::Relaxed);
        assert!(!context.is_null());
        let start = ptr::without_provenance_mut(addr & !(PAGE - 1));
        libc::mprotect(start, PAGE, libc::PROT_READ | libc::PROT_WRITE);
    }
    CALLS.fetch_add(1, Ordering::Relaxed);
}

extern "C" fn count(_: c_int) {
    CALLS.fetch_add(1, Ordering::Relaxed);
}

extern "C" fn leave(_: c_int) {
    // SAFETY: ends the process.
    unsafe { libc::_exit(7) };
}

/// The handler that was installed before [`on_top`].
static BELOW: AtomicUsize = AtomicUsize::new(0);

extern "C" fn on_top(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    if CALLS.fetch_add(1, Ordering::Relaxed) > 10 {
        // SAFETY: ends the process.
        unsafe { libc::_exit(8) };
    }
    // SAFETY: the handler that sigaction has returned, which takes these arguments.
    unsafe {
        let below: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
            mem::transmute(BELOW.load(Ordering::Relaxed));
        below(signal, info, context);
    }
}

/// Makes connected sides. Registering their memory has installed Rocade's handler.
fn sides() -> (Side, Side) {
    let number = std::process::id();
    let [_, _, high, low] = number.to_be_bytes();
    let address = |last: u8| format!("127.{}.{low}.{last}", high | 0x80);
    let (a, b) = (Side::new(&address(1), 64), Side::new(&address(2), 64));
    connect(&a, &b);
    (a, b)
}

/// A peer writes to memory that is not accessible any more.
fn late_access(a: &Side, b: &Side) {
    let lost = page(libc::PROT_READ | libc::PROT_WRITE);
    let addr = lost.expose_provenance() as u64;
    // SAFETY: no other code uses it.
    let mr = unsafe { b.pd.reg_mr(addr, PAGE, addr, ALL_ACCESS) }.unwrap();
    // Not unmapped, because a new thread might put its stack there. SAFETY: the page belongs to
    // this test.
    let changed = unsafe { libc::mprotect(lost.cast(), PAGE, libc::PROT_NONE) };
    assert_eq!(changed, 0);
    let op = SendOp::Write {
        va: addr,
        rkey: mr.rkey(),
        imm: None,
    };
    a.send(1, op, &[a.sge(0, 8)]);
    assert_eq!(a.completion().status, WcStatus::RemAccessErr);
}

fn touch(page: *mut u8) {
    // SAFETY: the test checks the consequences of the fault, if there is one.
    unsafe { page.add(100).write_volatile(1) };
}

fn send_to_self(signal: c_int) {
    // SAFETY: takes no pointers.
    assert_eq!(unsafe { libc::raise(signal) }, 0);
}

fn recurse(depth: u64) -> u64 {
    let block = [depth; 500];
    if depth == u64::MAX {
        return 0;
    }
    recurse(depth + 1) + std::hint::black_box(block)[(depth % 500) as usize]
}

fn program(name: &str) {
    let plain = |handler: extern "C" fn(c_int)| handler as *const () as usize;
    let full = |handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void)| {
        handler as *const () as usize
    };
    match name {
        "default" => {
            handle(libc::SIGSEGV, libc::SIG_DFL, 0);
            let (a, b) = sides();
            late_access(&a, &b);
            touch(page(libc::PROT_NONE));
        }
        "default, sent" => {
            handle(libc::SIGBUS, libc::SIG_DFL, 0);
            let _sides = sides();
            send_to_self(libc::SIGBUS);
        }
        "ignored" => {
            handle(libc::SIGSEGV, libc::SIG_IGN, 0);
            let (a, b) = sides();
            late_access(&a, &b);
            send_to_self(libc::SIGSEGV);
            send_to_self(libc::SIGSEGV);
            println!("still here");
            touch(page(libc::PROT_NONE));
        }
        "repairs" => {
            handle(libc::SIGSEGV, full(repair), libc::SA_SIGINFO);
            let (a, b) = sides();
            let page = page(libc::PROT_READ);
            touch(page);
            assert_eq!(CALLS.load(Ordering::Relaxed), 1);
            assert_eq!(ADDR.load(Ordering::Relaxed), page.addr() + 100);
            // SEGV_ACCERR.
            assert_eq!(CODE.load(Ordering::Relaxed), 2);
            assert_eq!(MASKED.load(Ordering::Relaxed), 2);
            // SAFETY: accessible now.
            assert_eq!(unsafe { page.add(100).read_volatile() }, 1);
            late_access(&a, &b);
            assert_eq!(CALLS.load(Ordering::Relaxed), 1);
        }
        "does not block itself" => {
            let flags = libc::SA_SIGINFO | libc::SA_NODEFER;
            handle(libc::SIGSEGV, full(repair), flags);
            let _sides = sides();
            touch(page(libc::PROT_NONE));
            assert_eq!(MASKED.load(Ordering::Relaxed), 1);
        }
        "once only" => {
            handle(libc::SIGSEGV, plain(count), libc::SA_RESETHAND);
            let _sides = sides();
            send_to_self(libc::SIGSEGV);
            assert_eq!(CALLS.load(Ordering::Relaxed), 1);
            println!("still here");
            send_to_self(libc::SIGSEGV);
        }
        "installed later" => {
            let (a, b) = sides();
            handle(libc::SIGSEGV, plain(leave), 0);
            late_access(&a, &b);
            println!("still here");
            touch(page(libc::PROT_NONE));
        }
        "installed later, calls Rocade's" => {
            handle(libc::SIGSEGV, libc::SIG_DFL, 0);
            let (a, b) = sides();
            // SAFETY: plain data that the call fills in.
            let below = unsafe {
                let mut action: libc::sigaction = mem::zeroed();
                libc::sigaction(libc::SIGSEGV, ptr::null(), &raw mut action);
                action.sa_sigaction
            };
            BELOW.store(below, Ordering::Relaxed);
            handle(libc::SIGSEGV, full(on_top), libc::SA_SIGINFO);
            late_access(&a, &b);
            assert_eq!(CALLS.load(Ordering::Relaxed), 0);
            println!("still here");
            touch(page(libc::PROT_NONE));
        }
        "taken away and registered again" => {
            let (a, b) = sides();
            handle(libc::SIGSEGV, libc::SIG_DFL, 0);
            handle(libc::SIGBUS, libc::SIG_DFL, 0);
            late_access(&a, &b);
        }
        "overflows its stack" => {
            let _sides = sides();
            std::thread::spawn(|| println!("{}", recurse(1)))
                .join()
                .unwrap();
        }
        _ => panic!("{name}"),
    }
}

/// The entry point of the processes that the tests start. It is no test itself.
#[test]
fn child_process() {
    if let Ok(name) = env::var(PROGRAM) {
        // SAFETY: takes no pointers. A program that hangs ends.
        unsafe { libc::alarm(300) };
        program(&name);
        println!("to the end");
    }
}

fn run(name: &str) -> Output {
    let output = Command::new(env::current_exe().unwrap())
        .args(["--exact", "child_process", "--nocapture"])
        .env(PROGRAM, name)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    println!("{name}: {}", output.status);
    println!("{}", String::from_utf8_lossy(&output.stderr));
    output
}

fn says(output: &Output, what: &str) -> bool {
    let both = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&both).contains(what)
}

#[test]
fn the_default_is_to_die_of_it() {
    for (name, signal) in [("default", libc::SIGSEGV), ("default, sent", libc::SIGBUS)] {
        let output = run(name);
        assert_eq!(output.status.signal(), Some(signal), "{name}");
    }
}

#[test]
fn signals_that_are_ignored_are_ignored_but_faults_are_not() {
    let output = run("ignored");
    assert!(says(&output, "still here"));
    assert_eq!(output.status.signal(), Some(libc::SIGSEGV));
}

#[test]
fn a_handler_gets_what_the_kernel_says_and_may_go_on() {
    for name in ["repairs", "does not block itself"] {
        let output = run(name);
        assert!(
            output.status.success() && says(&output, "to the end"),
            "{name}"
        );
    }
}

#[test]
fn a_handler_that_wants_to_be_called_once_is() {
    let output = run("once only");
    assert!(says(&output, "still here"));
    assert_eq!(output.status.signal(), Some(libc::SIGSEGV));
}

#[test]
fn a_handler_that_comes_later_has_its_own_faults_and_none_of_ours() {
    let output = run("installed later");
    assert!(says(&output, "still here"));
    assert_eq!(output.status.code(), Some(7));
    let output = run("installed later, calls Rocade's");
    assert!(says(&output, "still here"));
    assert_eq!(output.status.signal(), Some(libc::SIGSEGV));
}

#[test]
fn a_handler_that_was_taken_away_comes_back_with_the_next_region() {
    let output = run("taken away and registered again");
    assert!(output.status.success() && says(&output, "to the end"));
}

#[test]
fn the_alternate_stack_is_used() {
    let output = run("overflows its stack");
    assert!(says(&output, "has overflowed its stack"));
    assert_eq!(output.status.signal(), Some(libc::SIGABRT));
}
