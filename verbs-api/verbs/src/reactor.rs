//! Wakes tasks when a descriptor becomes readable, without an async runtime. One thread serves all
//! tasks. It starts with the first task that waits.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, RawFd};
use std::sync::{Arc, Mutex};
use std::task::Waker;

use crate::routing::lock;
use crate::sys::{self, WakeFd};

/// The tasks that wait for descriptors, and the thread's wake-up.
#[derive(Debug)]
struct Reactor {
    waiting: Mutex<Vec<(RawFd, Waker)>>,
    /// Wakes the thread when a task was added.
    wake_fd: WakeFd,
}

/// The reactor of this process, with the process ID. A forked child has to start its own, because
/// threads do not survive `fork`.
static REACTOR: Mutex<Option<(u32, Arc<Reactor>)>> = Mutex::new(None);

/// Wakes the task once when the descriptor becomes readable or is closed. Spurious wake-ups are
/// possible.
pub(crate) fn wake_when_readable(fd: BorrowedFd<'_>, waker: &Waker) -> io::Result<()> {
    let reactor = get()?;
    let fd = fd.as_raw_fd();
    let mut waiting = lock(&reactor.waiting);
    let is_known = |(known, other): &(RawFd, Waker)| *known == fd && other.will_wake(waker);
    if !waiting.iter().any(is_known) {
        waiting.push((fd, waker.clone()));
        drop(waiting);
        reactor.wake_fd.wake();
    }
    Ok(())
}

fn get() -> io::Result<Arc<Reactor>> {
    let mut current = lock(&REACTOR);
    let process = std::process::id();
    if let Some((owner, reactor)) = &*current
        && *owner == process
    {
        return Ok(Arc::clone(reactor));
    }
    let reactor = Arc::new(Reactor {
        waiting: Mutex::default(),
        wake_fd: WakeFd::new()?,
    });
    let own = Arc::clone(&reactor);
    rocade_emulator::spawn_thread("rocade-wake", move || own.run())?;
    *current = Some((process, Arc::clone(&reactor)));
    Ok(reactor)
}

impl Reactor {
    fn run(&self) {
        loop {
            let fds: Vec<RawFd> = lock(&self.waiting).iter().map(|(fd, _)| *fd).collect();
            let ready = sys::wait_any(self.wake_fd.as_fd(), &fds);
            self.wake_fd.clear();
            let woken: Vec<_> = lock(&self.waiting)
                .extract_if(.., |(fd, _)| ready.contains(fd))
                .collect();
            for (_, waker) in woken {
                waker.wake();
            }
        }
    }
}
