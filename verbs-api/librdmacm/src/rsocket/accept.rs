//! `raccept`, which is a cancellation point, as accept(2) is.
//!
//! A cancellation must not unwind a frame that owns values with destructors (`ffi`). The thread
//! therefore sleeps in a frame without such values. Its registration with the listener is a
//! thread-local value, which is dropped when the thread ends.

use std::{
    cell::RefCell,
    ffi::c_int,
    os::fd::RawFd,
    ptr,
    sync::{Arc, Weak, atomic::Ordering},
};

use libc::{nfds_t, pollfd, sigset_t, timespec};

use super::{
    address, find_stream, number,
    process::{Process, Socket},
    stream::StreamSocket,
    sys,
    wait::{IN, Waker},
};
use crate::{args::Answer, ffi::Errno};

unsafe extern "C-unwind" {
    fn pthread_testcancel();
    fn ppoll(
        fds: *mut pollfd,
        count: nfds_t,
        limit: *const timespec,
        mask: *const sigset_t,
    ) -> c_int;
}

/// The registration of a thread that waits for a listener.
struct PendingAccept {
    socket: Weak<StreamSocket>,
    waker: Arc<Waker>,
}

impl Drop for PendingAccept {
    fn drop(&mut self) {
        if let Some(socket) = self.socket.upgrade() {
            socket.unprepare(&self.waker, false);
        }
    }
}

thread_local! {
    static WAITING: RefCell<Option<PendingAccept>> = const { RefCell::new(None) };
}

/// `raccept`. A cancellation point: no frame may own a value with a destructor while it waits.
pub(crate) fn raccept(fd: c_int, addr: Answer<'_>) -> c_int {
    // SAFETY: a function without arguments.
    unsafe { pthread_testcancel() };
    loop {
        let mut wait_at = -1;
        let accepted = number(|| accept(fd, addr, &mut wait_at));
        if wait_at < 0 {
            return accepted;
        }
        let mut entry = sys::readable(wait_at);
        // SAFETY: one entry, and NULL for the time limit and the signal mask.
        let woken = unsafe { ppoll(&raw mut entry, 1, ptr::null(), ptr::null()) };
        number(|| {
            WAITING.take();
            Ok(0)
        });
        if woken < 0 {
            // A signal interrupted the wait (`EINTR`).
            return -1;
        }
    }
}

/// Accepts a connection. If there is none and the socket may block, sets `wait_at` to a descriptor
/// that becomes readable when the caller can try again.
fn accept(fd: c_int, addr: Answer<'_>, wait_at: &mut RawFd) -> Result<c_int, Errno> {
    let (process, socket) = find_stream(fd)?;
    let accepted = match socket.accept(process) {
        Err(Errno(libc::EAGAIN)) if !socket.nonblocking.load(Ordering::Relaxed) => {
            match register(process, &socket)? {
                Ok(accepted) => accepted,
                Err(readable) => {
                    *wait_at = readable;
                    return Ok(0);
                }
            }
        }
        answer => answer?,
    };
    let own = match sys::eventfd() {
        Ok(own) => own,
        Err(errno) => {
            socket.unaccept(accepted);
            return Err(errno);
        }
    };
    if !addr.is_null()
        && let Some(peer) = accepted.peer()
    {
        address::write(peer, accepted.domain, addr)?;
    }
    Ok(process.insert(Socket::Stream(accepted), Some(own)))
}

/// Registers the thread with a listener. Returns the descriptor to wait for, or a connection that
/// was established meanwhile.
fn register(
    process: &'static Process,
    socket: &Arc<StreamSocket>,
) -> Result<Result<Arc<StreamSocket>, RawFd>, Errno> {
    let waker = Waker::current()?;
    waker.clear();
    let readable = waker.fd();
    socket.prepare(&waker, IN, None);
    WAITING.replace(Some(PendingAccept {
        socket: Arc::downgrade(socket),
        waker,
    }));
    let answer = match socket.accept(process) {
        Err(Errno(libc::EAGAIN)) => return Ok(Err(readable)),
        answer => answer,
    };
    WAITING.take();
    answer.map(Ok)
}
