//! Thread cancellation (pthread_cancel(3)).
//!
//! The verbs that wait for an event are cancellation points, like read(2). No other verb is one. A
//! cancellation cannot unwind Rust frames that drop values or catch panics: glibc aborts the
//! process. So this library allows cancellation in two places only: at the start of [`blocking`],
//! and while it waits.
//!
//! Data-path verbs, and waiting verbs outside of these two places, pay nothing for this: they call
//! no cancellation point of the C library. All other verbs run [`uncancelled`].
//!
//! A thread with asynchronous cancelability may call the waiting verbs. POSIX does not allow it to
//! call the others, nor most other functions.

use std::{ffi::c_int, io, mem::ManuallyDrop};

use rocade_emulator::{EventWaiter, VerbsError};

use crate::ffi::{Errno, guarded};

const PTHREAD_CANCEL_DISABLE: c_int = 1;
const PTHREAD_CANCEL_DEFERRED: c_int = 0;

unsafe extern "C-unwind" {
    fn pthread_testcancel();
    safe fn pthread_setcancelstate(state: c_int, old: Option<&mut c_int>) -> c_int;
    safe fn pthread_setcanceltype(kind: c_int, old: Option<&mut c_int>) -> c_int;
}

fn set_state(state: c_int) -> c_int {
    let mut old = state;
    // Fails only for values other than the two states.
    pthread_setcancelstate(state, Some(&mut old));
    old
}

/// Runs `f`, which must not unwind, without cancellation.
pub(crate) fn uncancelled<T>(f: impl FnOnce() -> T) -> T {
    let before = set_state(PTHREAD_CANCEL_DISABLE);
    let result = f();
    set_state(before);
    result
}

/// The outcome of one attempt to take an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Poll {
    Event,
    Empty,
    /// No event can follow, because the channel or the device was closed.
    Closed,
}

/// Runs a waiting verb that returns 0, or -1 and errno. `prepare` returns the waiter, and what the
/// verb remembers of the object. Then `take` is called with the latter, after each wake-up again,
/// until it has taken an event.
pub(crate) fn blocking<T>(
    prepare: impl FnOnce() -> Result<(EventWaiter, T), Errno>,
    take: impl FnMut(&T) -> Result<Poll, Errno>,
) -> c_int {
    // This frame must hold nothing that needs a drop: a thread of asynchronous type is cancelled
    // anywhere in it. SAFETY: no argument.
    unsafe { pthread_testcancel() };
    let mut kind = PTHREAD_CANCEL_DEFERRED;
    pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, Some(&mut kind));
    let status = wait(prepare, take);
    pthread_setcanceltype(kind, None);
    status
}

/// Not inlined, because its callees have values to drop.
#[inline(never)]
fn wait<T>(
    prepare: impl FnOnce() -> Result<(EventWaiter, T), Errno>,
    mut take: impl FnMut(&T) -> Result<Poll, Errno>,
) -> c_int {
    let Ok(prepared) = guarded(|| Ok(ManuallyDrop::new(prepare()?))) else {
        return -1;
    };
    let (waiter, object) = &*prepared;
    let status = loop {
        match guarded(|| take(object)) {
            Ok(Poll::Event) => break 0,
            Ok(Poll::Empty) => {}
            Ok(Poll::Closed) => break sleep_until_signal(&take),
            Err(_) => break -1,
        }
        if !sleep(waiter, &take) {
            break -1;
        }
    };
    // Not reached by a cancelled thread, which leaks what it has prepared.
    drop(ManuallyDrop::into_inner(prepared));
    status
}

/// Waits on `waiter`. Returns false after a signal. Diagnostics take the verb's name from the type
/// of the closure.
fn sleep<V>(waiter: &EventWaiter, _verb: &V) -> bool {
    let Ok(mut step) = guarded(|| Ok(waiter.begin())) else {
        return false;
    };
    let woken = waiter.block(&mut step);
    guarded(|| Ok(waiter.end(step, woken).map_err(VerbsError::from)?)).is_ok()
}

/// Sleeps until a signal arrives, like a read(2) from a descriptor that another thread closes.
fn sleep_until_signal<V>(verb: &V) -> c_int {
    let Ok(waiter) = guarded(|| Ok(ManuallyDrop::new(EventWaiter::never()?))) else {
        return -1;
    };
    while sleep(&waiter, verb) {}
    drop(ManuallyDrop::into_inner(waiter));
    -1
}

/// Standard error as the log's writer. Uncancelled, because threads that post and poll log too.
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
