//! `rpoll` and `rselect`, for sockets of both kinds and for ordinary descriptors.

use std::{
    ffi::{c_int, c_ulong},
    os::fd::RawFd,
    sync::Arc,
    time::{Duration, Instant},
};

use libc::{POLLERR, POLLHUP, POLLIN, POLLOUT, POLLPRI, pollfd};

use super::{
    process::{Process, Socket},
    stream::{SPIN, StreamSocket},
    stream_qp::KEEPALIVE_AFTER,
    sys,
    wait::Waker,
};
use crate::{args::InOut, engine, ffi::Errno};

/// A socket that a thread waits for.
pub(super) struct Wait {
    pub(super) socket: Socket,
    /// The events of poll(2).
    pub(super) events: i16,
    /// The activity of the socket that the thread knows of, if only later changes matter.
    pub(super) known: Option<u64>,
}

impl Wait {
    const fn level(socket: Socket, events: i16) -> Self {
        Self {
            socket,
            events,
            known: None,
        }
    }
}

impl Socket {
    /// Returns the ready ones of `events`.
    pub(super) fn poll(&self, events: i16) -> i16 {
        match self {
            Self::Stream(socket) => socket.poll(events),
            Self::Datagram(socket) => socket.poll(events),
        }
    }

    /// Number of arrivals and changes, approximately. It changes with each of them.
    pub(super) fn activity(&self) -> u64 {
        match self {
            Self::Stream(socket) => socket.activity(),
            Self::Datagram(socket) => socket.activity(),
        }
    }

    /// Registers this thread, which is about to sleep. Adds the descriptors to poll to `fds`.
    fn prepare(&self, waker: &Arc<Waker>, wait: &Wait, fds: &mut Vec<pollfd>) {
        let interest = StreamSocket::interest(wait.events);
        match self {
            Self::Stream(socket) => {
                let fd = socket.prepare(waker, interest, wait.known);
                fds.push(sys::readable(fd));
            }
            Self::Datagram(socket) => socket.prepare(waker, (interest, wait.known), fds),
        }
    }

    /// Unregisters this thread after its sleep. `fds` are the descriptors that [`Self::prepare`]
    /// added.
    fn unprepare(&self, waker: &Arc<Waker>, fds: &[pollfd]) {
        match self {
            Self::Stream(socket) => {
                let has_event = fds.iter().any(|fd| fd.revents != 0);
                socket.unprepare(waker, has_event);
            }
            Self::Datagram(socket) => socket.unprepare(waker, fds),
        }
    }
}

/// Waits for one socket, and fails with `EAGAIN` at the deadline.
pub(super) fn wait_for(
    socket: &Socket,
    events: i16,
    deadline: Option<Instant>,
) -> Result<(), Errno> {
    let spin_until = Instant::now() + SPIN;
    loop {
        if socket.poll(events) != 0 {
            return Ok(());
        }
        let now = Instant::now();
        if deadline.is_some_and(|deadline| deadline <= now) {
            return Err(Errno(libc::EAGAIN));
        }
        if now >= spin_until {
            let wait = Wait::level(socket.clone(), events);
            sleep(&[wait], &[], deadline, || false)?;
        }
    }
}

/// Sleeps until a socket or an ordinary descriptor may be ready. Does not sleep if the arguments
/// are outdated once another thread can wake this one.
pub(super) fn sleep(
    sockets: &[Wait],
    others: &[pollfd],
    deadline: Option<Instant>,
    is_outdated: impl Fn() -> bool,
) -> Result<(), Errno> {
    let waker = Waker::current()?;
    waker.clear();
    let mut fds = vec![sys::readable(waker.fd())];
    fds.extend_from_slice(others);
    let mut parts = Vec::with_capacity(sockets.len());
    for wait in sockets {
        let before = fds.len();
        wait.socket.prepare(&waker, wait, &mut fds);
        parts.push(before..fds.len());
    }
    let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    let limit = match left {
        Some(left) if sockets.is_empty() => Some(left),
        Some(left) => Some(left.min(KEEPALIVE_AFTER)),
        None if sockets.is_empty() => None,
        None => Some(KEEPALIVE_AFTER),
    };
    let limit = if is_outdated() {
        Some(Duration::ZERO)
    } else {
        limit
    };
    let slept = if sockets.is_empty() {
        sys::poll(&mut fds, limit)
    } else {
        engine::poll(&mut fds, limit)
    };
    for (wait, part) in sockets.iter().zip(parts) {
        wait.socket.unprepare(&waker, &fds[part]);
    }
    slept.map(|_| ())
}

/// `rpoll`: returns the number of ready descriptors.
pub(super) fn poll(
    process: &Process,
    fds: &mut [pollfd],
    limit: Option<Duration>,
) -> Result<usize, Errno> {
    let start = Instant::now();
    let deadline = limit.and_then(|limit| start.checked_add(limit));
    let found: Vec<Option<Socket>> = fds.iter().map(|fd| process.socket(fd.fd)).collect();
    let sockets: Vec<Wait> = found
        .iter()
        .zip(fds.iter())
        .filter_map(|(socket, fd)| Some(Wait::level(socket.clone()?, fd.events)))
        .collect();
    let mut others: Vec<pollfd> = found
        .iter()
        .zip(fds.iter())
        .filter(|(socket, _)| socket.is_none())
        .map(|(_, fd)| *fd)
        .collect();
    loop {
        if !others.is_empty() {
            sys::poll(&mut others, Some(Duration::ZERO))?;
        }
        let mut other = others.iter();
        for (fd, socket) in fds.iter_mut().zip(&found) {
            fd.revents = match socket {
                Some(socket) => socket.poll(fd.events),
                None => other.next().map_or(0, |other| other.revents),
            };
        }
        let count = fds.iter().filter(|fd| fd.revents != 0).count();
        let now = Instant::now();
        if count > 0 || deadline.is_some_and(|deadline| deadline <= now) {
            return Ok(count);
        }
        if sockets.is_empty() || now.duration_since(start) >= SPIN {
            sleep(&sockets, &others, deadline, || false)?;
        }
    }
}

/// The bits of an `fd_set`.
pub(crate) type FdSet = [c_ulong; FD_WORDS];

const FD_WORDS: usize = libc::FD_SETSIZE / c_ulong::BITS as usize;

/// Returns the word of a descriptor in a set, and its bit.
fn bit_of(fd: RawFd) -> (usize, c_ulong) {
    let fd = usize::try_from(fd).unwrap_or(0);
    let bits = c_ulong::BITS as usize;
    (fd / bits, 1 << (fd % bits))
}

/// `rselect`: returns the number of bits that are set. A set may be NULL.
pub(super) fn select(
    process: &Process,
    count: c_int,
    sets: [InOut<'_, FdSet>; 3],
    limit: Option<Duration>,
) -> Result<usize, Errno> {
    const WANTED: [i16; 3] = [POLLIN, POLLOUT, POLLPRI];
    const TOLD: [i16; 3] = [POLLIN | POLLHUP | POLLERR, POLLOUT | POLLERR, POLLPRI];
    let most = c_int::try_from(libc::FD_SETSIZE).unwrap_or(c_int::MAX);
    if count < 0 || count > most {
        return Err(Errno::INVAL);
    }
    let asked = sets.map(|set| set.read().map_or([0; FD_WORDS], |set| *set));
    let mut fds = Vec::new();
    for fd in 0..count {
        let (word, bit) = bit_of(fd);
        let mut events = 0;
        for (set, wanted) in asked.iter().zip(WANTED) {
            if set[word] & bit != 0 {
                events |= wanted;
            }
        }
        if events != 0 {
            fds.push(pollfd {
                fd,
                events,
                revents: 0,
            });
        }
    }
    poll(process, &mut fds, limit)?;
    if fds.iter().any(|fd| fd.revents & libc::POLLNVAL != 0) {
        return Err(Errno(libc::EBADF));
    }
    let mut bits = 0;
    for (set, (wanted, told)) in sets.iter().zip(WANTED.into_iter().zip(TOLD)) {
        let mut answer: FdSet = [0; FD_WORDS];
        for fd in &fds {
            if fd.events & wanted != 0 && fd.revents & told != 0 {
                let (word, bit) = bit_of(fd.fd);
                answer[word] |= bit;
                bits += usize::from(!set.is_null());
            }
        }
        // A set may be NULL.
        let _ = set.write(answer);
    }
    Ok(bits)
}
