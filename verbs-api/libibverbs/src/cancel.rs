//! Cancellation of threads (pthread_cancel(3), CQ-14).
//!
//! Verbs that wait for an event are cancellation points, as read(2) is; no other verb is one. Rust
//! frames that have something to drop, or catch panics, cannot be unwound by a cancellation: glibc
//! ends the process then. So a thread may be cancelled in this library in two places only: where
//! [`blocking`] begins, and where it waits.
//!
//! Verbs of the data path, and those that wait where they do not, cost nothing for that: they call no
//! function of the C library in which a thread could be cancelled. All others run [`uncancelled`].
//!
//! A thread whose cancelability type is asynchronous may call the verbs that wait. For the others POSIX
//! does not allow it, as for nearly all functions.

use std::{ffi::c_int, io, mem::ManuallyDrop, ptr};

use rocade_emulator::{EventWaiter, VerbsError};

use crate::ffi::{Errno, guarded};

const PTHREAD_CANCEL_DISABLE: c_int = 1;
const PTHREAD_CANCEL_DEFERRED: c_int = 0;

unsafe extern "C-unwind" {
    fn pthread_testcancel();
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
    fn pthread_setcanceltype(kind: c_int, old: *mut c_int) -> c_int;
}

fn set_state(state: c_int) -> c_int {
    let mut old = state;
    // SAFETY: `old` is writable. Fails for other values than the two only.
    unsafe { pthread_setcancelstate(state, &raw mut old) };
    old
}

/// Runs `f`, which must not unwind, without cancellation.
pub(crate) fn uncancelled<T>(f: impl FnOnce() -> T) -> T {
    let before = set_state(PTHREAD_CANCEL_DISABLE);
    let result = f();
    set_state(before);
    result
}

/// What has become of what a verb waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Taken {
    Event,
    Nothing,
    /// There will be nothing: what it waits at was ended.
    Never,
}

/// A verb that waits, with the convention "0, or -1 and errno": after `prepare`, which says what to wait
/// for, `take` is called until it has taken something.
pub(crate) fn blocking(
    prepare: impl FnOnce() -> Result<EventWaiter, Errno>,
    take: impl FnMut() -> Result<Taken, Errno>,
) -> c_int {
    // Nothing in this frame may have to be dropped: a thread of asynchronous type is cancelled anywhere
    // in it.
    // SAFETY: no argument.
    unsafe { pthread_testcancel() };
    let mut kind = PTHREAD_CANCEL_DEFERRED;
    // SAFETY: `kind` is writable.
    unsafe { pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &raw mut kind) };
    let status = wait(prepare, take);
    // SAFETY: NULL is allowed.
    unsafe { pthread_setcanceltype(kind, ptr::null_mut()) };
    status
}

/// Not inlined: what it calls has things to drop.
#[inline(never)]
fn wait(
    prepare: impl FnOnce() -> Result<EventWaiter, Errno>,
    mut take: impl FnMut() -> Result<Taken, Errno>,
) -> c_int {
    let Ok(waiter) = guarded(|| Ok(ManuallyDrop::new(prepare()?))) else {
        return -1;
    };
    let status = loop {
        match guarded(&mut take) {
            Ok(Taken::Event) => break 0,
            Ok(Taken::Nothing) => {}
            Ok(Taken::Never) => break sleep_for_good(&take),
            Err(_) => break -1,
        }
        if !sleep(&waiter, &take) {
            break -1;
        }
    };
    // A thread that is cancelled takes it along instead.
    drop(ManuallyDrop::into_inner(waiter));
    status
}

/// False after a signal. The type of the closure says which verb it is, for complaints.
fn sleep<V>(waiter: &EventWaiter, _verb: &V) -> bool {
    let woken = waiter.wait();
    guarded(|| Ok(woken.map_err(VerbsError::from)?)).is_ok()
}

/// As a thread does in read(2) of a descriptor that another one closes: until there is a signal.
fn sleep_for_good<V>(verb: &V) -> c_int {
    let Ok(waiter) = guarded(|| Ok(ManuallyDrop::new(EventWaiter::never()?))) else {
        return -1;
    };
    while sleep(&waiter, verb) {}
    drop(ManuallyDrop::into_inner(waiter));
    -1
}

/// Standard error for the log, which is written by threads that post and poll too.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stderr;

impl io::Write for Stderr {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        uncancelled(|| io::stderr().write(text))
    }

    fn flush(&mut self) -> io::Result<()> {
        uncancelled(|| io::stderr().flush())
    }
}
