//! The handler of SIGSEGV and SIGBUS that ends sections.
//!
//! The handler is installed with the first memory region. A fault outside a section goes to the
//! handler that was installed before, exactly as the kernel would have called it. So do signals
//! that a process has sent.

use std::ffi::{c_int, c_void};
use std::mem;
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use crate::sync::Mutex;

use super::section;
use crate::notice::notice;

const SIGNALS: [c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];

/// A vector load may touch this many bytes around the needed ones, and the address of a fault may
/// be exact only to a page.
const VECTOR_SLACK: usize = 64;
const PAGE: usize = 4096;

/// The previous action for each signal. Never freed, because the handler may be reading it.
static BEFORE: [AtomicPtr<libc::sigaction>; 2] = [const { AtomicPtr::new(ptr::null_mut()) }; 2];

static INSTALLING: Mutex<()> = Mutex::new(());

/// Set once an installation of the handler was tried.
static INSTALLED: AtomicBool = AtomicBool::new(false);

/// Installs the handler, except where the application has installed its own handler after Rocade's.
/// That one may call Rocade's handler, which would then call it for ever.
pub(in super::super) fn install() {
    if !section::SUPPORTED {
        return;
    }
    let _installing = INSTALLING.lock();
    for (signal, before) in SIGNALS.into_iter().zip(&BEFORE) {
        let Some(now) = action_of(signal) else {
            continue;
        };
        // SAFETY: null, or a value stored below that is never freed.
        let known = unsafe { before.load(Ordering::Acquire).as_ref() };
        let may = match known {
            None => true,
            Some(known) => {
                matches!(now.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN)
                    || now.sa_sigaction == known.sa_sigaction
            }
        };
        if !is_own_handler(&now) && may {
            chain_handler(signal, before, now);
        }
    }
    INSTALLED.store(true, Ordering::Release);
}

fn chain_handler(signal: c_int, before: &AtomicPtr<libc::sigaction>, now: libc::sigaction) {
    let mut ours = now;
    ours.sa_sigaction = handler();
    // Applications with an alternate stack get the signal there (Go insists on it). The other flags
    // are those of the previous handler, on whose behalf Rocade's handler is called.
    let kept = if matches!(now.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN) {
        libc::SA_RESTART
    } else {
        now.sa_flags & (libc::SA_NODEFER | libc::SA_RESTART)
    };
    ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | kept;
    before.store(Box::into_raw(Box::new(now)), Ordering::Release);
    // SAFETY: a valid action whose handler may run at any time.
    unsafe { libc::sigaction(signal, &raw const ours, ptr::null_mut()) };
}

/// Returns true if Rocade's handler would be called in this thread. A check that is not `thorough`
/// covers only the handler of SIGSEGV.
pub(super) fn are_handled_here(thorough: bool) -> bool {
    static ONCE: Once = Once::new();
    if !section::SUPPORTED {
        return false;
    }
    // Without a memory region there is no handler yet, and nothing to copy. This is read before the
    // actions, because another thread may register the first region now.
    let is_installed = INSTALLED.load(Ordering::Acquire);
    let count = if thorough { SIGNALS.len() } else { 1 };
    let handled = SIGNALS[..count]
        .iter()
        .all(|signal| action_of(*signal).is_some_and(|action| is_own_handler(&action)));
    let reached = handled && !(thorough && are_blocked());
    if !reached && is_installed {
        ONCE.call_once(|| {
            notice(
                "the program handles or blocks SIGSEGV or SIGBUS itself, so the kernel copies registered \
                 memory, which is slower: a system call for each run of packets",
            );
        });
    }
    reached
}

/// Returns true if the calling thread blocks the signals of failed accesses.
pub(crate) fn are_blocked() -> bool {
    // SAFETY: a sigset is plain data, which the call fills in.
    let mut mask: libc::sigset_t = unsafe { mem::zeroed() };
    // SAFETY: reads the mask only, and `mask` is writable.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), &raw mut mask) };
    SIGNALS.iter().any(|signal| {
        // SAFETY: an initialised set and a valid signal.
        unsafe { libc::sigismember(&raw const mask, *signal) == 1 }
    })
}

fn action_of(signal: c_int) -> Option<libc::sigaction> {
    // SAFETY: plain data for which zero is a valid value.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    // SAFETY: reads the action only, and `action` is writable.
    let result = unsafe { libc::sigaction(signal, ptr::null(), &raw mut action) };
    (result == 0).then_some(action)
}

fn handler() -> libc::sighandler_t {
    (handle as *const ()).expose_provenance()
}

fn is_own_handler(action: &libc::sigaction) -> bool {
    action.sa_sigaction == handler()
}

/// The signal handler. It must not allocate, lock or panic.
extern "C" fn handle(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: `info` comes from the kernel, as SA_SIGINFO promises.
    let code = unsafe { (*info).si_code };
    // A signal that a process has sent has no address.
    let by_access = code > 0;
    if by_access && let Some((frame, start, end)) = section::current() {
        // SAFETY: it is the information of a fault.
        let addr = unsafe { (*info).si_addr() }.addr();
        let from = start.saturating_sub(VECTOR_SLACK) & !(PAGE - 1);
        let to = end.saturating_add(VECTOR_SLACK) | (PAGE - 1);
        if (from..=to).contains(&untagged(addr)) {
            // SAFETY: the thread's registers, which the kernel restores when the handler returns.
            let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext };
            resume_at(registers, section::landing(), frame.addr());
            return;
        }
    }
    forward_signal(signal, by_access, info, context);
}

/// Addresses of aarch64 may have a tag in their first byte.
const fn untagged(addr: usize) -> usize {
    if cfg!(target_arch = "aarch64") {
        addr & (usize::MAX >> 8)
    } else {
        addr
    }
}

#[cfg(target_arch = "x86_64")]
fn resume_at(registers: &mut libc::mcontext_t, code: usize, stack: usize) {
    let [rip, rsp] = const { [libc::REG_RIP as usize, libc::REG_RSP as usize] };
    registers.gregs[rip] = (code as u64).cast_signed();
    registers.gregs[rsp] = (stack as u64).cast_signed();
}

#[cfg(target_arch = "aarch64")]
fn resume_at(registers: &mut libc::mcontext_t, code: usize, stack: usize) {
    registers.pc = code as u64;
    registers.sp = stack as u64;
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn resume_at(_registers: &mut libc::mcontext_t, _code: usize, _stack: usize) {}

/// Treats the signal as it would be treated without Rocade's handler.
fn forward_signal(
    signal: c_int,
    by_access: bool,
    info: *mut libc::siginfo_t,
    context: *mut c_void,
) {
    let index = usize::from(signal != libc::SIGSEGV);
    // SAFETY: null, or a value that `install` has stored and that is never freed.
    let before = unsafe { BEFORE[index].load(Ordering::Acquire).as_ref() };
    let (action, flags) = before.map_or((libc::SIG_DFL, 0), |before| {
        (before.sa_sigaction, before.sa_flags)
    });
    match action {
        libc::SIG_IGN if !by_access => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            set_default(signal);
            // A faulting access is repeated when the handler returns, and ends the process then. So
            // does a signal that was sent: it is blocked until the handler returns.
            if !by_access {
                send_again(signal, info);
            }
        }
        _ => {
            if flags & libc::SA_RESETHAND != 0 {
                set_default(signal);
            }
            if flags & libc::SA_SIGINFO == 0 {
                // SAFETY: without SA_SIGINFO it is a function of the signal number.
                let plain: extern "C" fn(c_int) = unsafe { mem::transmute(action) };
                plain(signal);
            } else {
                // SAFETY: with SA_SIGINFO it is a function of these three.
                let full: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
                    unsafe { mem::transmute(action) };
                full(signal, info, context);
            }
        }
    }
}

fn set_default(signal: c_int) {
    // SAFETY: plain data, in which zero means SIG_DFL, no flags and nothing blocked.
    let default: libc::sigaction = unsafe { mem::zeroed() };
    // SAFETY: a valid action.
    unsafe { libc::sigaction(signal, &raw const default, ptr::null_mut()) };
}

fn send_again(signal: c_int, info: *mut libc::siginfo_t) {
    // SAFETY: no pointers.
    let (process, thread) = unsafe { (libc::getpid(), libc::syscall(libc::SYS_gettid)) };
    // SAFETY: `info` comes from the kernel.
    unsafe { libc::syscall(libc::SYS_rt_tgsigqueueinfo, process, thread, signal, info) };
}
