//! `repoll_create`, `repoll_ctl` and `repoll_wait`: epoll(7) for rsockets and ordinary descriptors.
//!
//! A set is an epoll instance of the kernel, which has the ordinary descriptors, and a table of
//! rsockets. A thread that waits for the set looks at both. An edge is noticed by the activity of a
//! socket: it is reported again once anything has arrived or changed. That may be more often than
//! the kernel reports a TCP socket, never less often.

use std::{
    collections::{BTreeMap, VecDeque},
    ffi::c_int,
    os::fd::{AsRawFd, OwnedFd, RawFd},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use libc::{
    EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLET, EPOLLONESHOT, POLLNVAL, epoll_event,
};
use parking_lot::Mutex;

use super::{
    call, number,
    poll::{Wait, sleep},
    process::{Process, Socket, process},
    stream::SPIN,
    sys,
    wait::Waker,
};
use crate::{
    args::{In, Places},
    ffi::Errno,
};

/// The events of epoll(7) that are events of poll(2).
const POLL_EVENTS: u32 = 0x3fff;

/// A socket of a set.
struct Interest {
    socket: Socket,
    events: u32,
    data: u64,
    /// The activity of the socket when its events were last reported to a program that waits for
    /// edges.
    reported: Option<u64>,
    /// The event of a one-shot entry was reported.
    is_disabled: bool,
}

impl Interest {
    const fn new(socket: Socket, event: &epoll_event) -> Self {
        Self {
            socket,
            events: event.events,
            data: event.u64,
            reported: None,
            is_disabled: false,
        }
    }

    /// The events of poll(2) that the program waits for.
    fn polled(&self) -> i16 {
        i16::try_from(self.events & POLL_EVENTS).unwrap_or(0)
    }

    const fn is(&self, flag: c_int) -> bool {
        self.events & flag.cast_unsigned() != 0
    }

    /// Takes the events that are ready, 0 for none. The socket is closed if `POLLNVAL` is one.
    fn take(&mut self) -> i16 {
        if self.is_disabled {
            return 0;
        }
        // What arrives after this makes a new edge.
        let activity = self.socket.activity();
        let ready = self.socket.poll(self.polled());
        if ready == 0 || ready & POLLNVAL != 0 {
            return ready;
        }
        if self.is(EPOLLET) {
            // The call above may have received.
            let now = self.socket.activity();
            if self.reported == Some(activity) && now == activity {
                return 0;
            }
            self.reported = Some(now);
        }
        self.is_disabled = self.is(EPOLLONESHOT);
        ready
    }

    /// Returns the events that a thread waits for, if any.
    fn wait(&self) -> Option<Wait> {
        (!self.is_disabled).then(|| Wait {
            socket: self.socket.clone(),
            events: self.polled(),
            known: self.reported,
        })
    }
}

/// The entries of a set, and the threads that wait for it.
#[derive(Default)]
struct Members {
    sockets: BTreeMap<RawFd, Interest>,
    /// The order in which they are looked at. Those with events are moved to the end.
    order: VecDeque<RawFd>,
    waiting: Vec<Arc<Waker>>,
}

/// A set of `repoll_create`.
pub(super) struct EpollSet {
    fd: OwnedFd,
    members: Mutex<Members>,
    /// Number of calls of `repoll_ctl` for sockets.
    changes: AtomicU64,
    /// Number of calls of `repoll_wait`.
    calls: AtomicU64,
}

impl EpollSet {
    /// Makes a set. Of `flags` only `O_CLOEXEC` has an effect.
    pub(super) fn new(flags: c_int) -> Result<Self, Errno> {
        Ok(Self {
            fd: sys::epoll(flags & libc::EPOLL_CLOEXEC)?,
            members: Mutex::default(),
            changes: AtomicU64::new(0),
            calls: AtomicU64::new(0),
        })
    }

    pub(super) fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Waits for events, and returns at most `most` of them.
    pub(super) fn wait(
        &self,
        process: &Process,
        most: usize,
        limit: Option<Duration>,
    ) -> Result<Vec<epoll_event>, Errno> {
        let start = Instant::now();
        let deadline = limit.and_then(|limit| start.checked_add(limit));
        // Neither kind keeps the other one from being reported.
        let sockets_first = self.calls.fetch_add(1, Ordering::Relaxed).is_multiple_of(2);
        loop {
            let changes = self.changes.load(Ordering::Acquire);
            let ready = self.ready(process, most, sockets_first)?;
            let now = Instant::now();
            if !ready.is_empty() || deadline.is_some_and(|deadline| deadline <= now) {
                return Ok(ready);
            }
            let waits = self.waits();
            if waits.is_empty() || now.duration_since(start) >= SPIN {
                self.sleep(&waits, changes, deadline)?;
            }
        }
    }

    /// Returns at most `most` events that are there.
    fn ready(
        &self,
        process: &Process,
        most: usize,
        sockets_first: bool,
    ) -> Result<Vec<epoll_event>, Errno> {
        let mut events = Vec::new();
        if sockets_first {
            self.take_sockets(process, most, &mut events);
        }
        let space = most - events.len();
        if space > 0 {
            events.extend(sys::epoll_ready(&self.fd, space)?);
        }
        if !sockets_first {
            self.take_sockets(process, most - events.len(), &mut events);
        }
        Ok(events)
    }

    /// Appends events of at most `most` sockets.
    fn take_sockets(&self, process: &Process, most: usize, events: &mut Vec<epoll_event>) {
        let mut members = self.members.lock();
        let Members { sockets, order, .. } = &mut *members;
        let mut found = 0;
        for _ in 0..order.len() {
            if found == most {
                break;
            }
            let Some(fd) = order.pop_front() else { break };
            let is_open = |entry: &Interest| {
                let socket = process.socket(fd);
                socket.is_some_and(|socket| socket.is_same(&entry.socket))
            };
            let Some(entry) = sockets.get_mut(&fd).filter(|entry| is_open(entry)) else {
                sockets.remove(&fd);
                continue;
            };
            order.push_back(fd);
            let ready = entry.take();
            if ready & POLLNVAL == 0 && ready != 0 {
                found += 1;
                events.push(epoll_event {
                    events: u32::from(ready.cast_unsigned()),
                    u64: entry.data,
                });
            }
        }
    }

    fn waits(&self) -> Vec<Wait> {
        let members = self.members.lock();
        members
            .sockets
            .values()
            .filter_map(Interest::wait)
            .collect()
    }

    /// Sleeps until something may be ready, or until the set is changed. `changes` is the number of
    /// changes that `waits` is from.
    fn sleep(&self, waits: &[Wait], changes: u64, deadline: Option<Instant>) -> Result<(), Errno> {
        let waker = Waker::current()?;
        self.members.lock().waiting.push(Arc::clone(&waker));
        let is_outdated = || self.changes.load(Ordering::Acquire) != changes;
        let others = [sys::readable(self.fd())];
        let slept = sleep(waits, &others, deadline, is_outdated);
        let waiting = &mut self.members.lock().waiting;
        if let Some(at) = waiting.iter().position(|own| Arc::ptr_eq(own, &waker)) {
            waiting.swap_remove(at);
        }
        slept
    }

    /// Changes the entry of a socket.
    fn control(
        &self,
        operation: c_int,
        (fd, socket): (RawFd, Socket),
        event: Option<&epoll_event>,
    ) -> Result<(), Errno> {
        let mut members = self.members.lock();
        let is_known = |entry: &Interest| entry.socket.is_same(&socket);
        let known = members.sockets.get(&fd).is_some_and(is_known);
        match (operation, known) {
            (EPOLL_CTL_ADD, true) => return Err(Errno(libc::EEXIST)),
            (EPOLL_CTL_MOD | EPOLL_CTL_DEL, false) => return Err(Errno(libc::ENOENT)),
            (EPOLL_CTL_ADD | EPOLL_CTL_MOD, _) => {
                let event = event.ok_or(Errno(libc::EFAULT))?;
                let entry = Interest::new(socket, event);
                if members.sockets.insert(fd, entry).is_none() {
                    members.order.push_back(fd);
                }
            }
            (EPOLL_CTL_DEL, true) => {
                members.sockets.remove(&fd);
                members.order.retain(|other| *other != fd);
            }
            _ => return Err(Errno::INVAL),
        }
        self.changes.fetch_add(1, Ordering::Release);
        for waker in &members.waiting {
            waker.wake();
        }
        Ok(())
    }
}

/// `repoll_create`.
pub(crate) extern "C" fn repoll_create(flags: c_int) -> c_int {
    number(|| Ok(process()?.insert_set(EpollSet::new(flags)?)))
}

/// `repoll_ctl`.
pub(crate) fn repoll_ctl(
    set: c_int,
    operation: c_int,
    fd: c_int,
    event: In<'_, epoll_event>,
) -> c_int {
    call(|| {
        let event = event.optional();
        let event = event.as_deref();
        let process = process()?;
        let set = process.set(set).ok_or_else(|| sys::not_a_set(set))?;
        match process.socket(fd) {
            Some(socket) => set.control(operation, (fd, socket), event),
            None => sys::epoll_control(&set.fd, operation, fd, event),
        }
    })
}

/// `repoll_wait`.
pub(crate) fn repoll_wait(set: c_int, events: Places<'_, epoll_event>, limit: c_int) -> c_int {
    number(|| {
        let process = process()?;
        let set = process.set(set).ok_or_else(|| sys::not_a_set(set))?;
        let most = events.len();
        if most == 0 {
            return Err(Errno::INVAL);
        }
        if events.is_null() {
            return Err(Errno(libc::EFAULT));
        }
        let limit = u64::try_from(limit).ok().map(Duration::from_millis);
        let ready = set.wait(process, most, limit)?;
        for (at, event) in ready.iter().enumerate() {
            events.at(at).write(*event)?;
        }
        Ok(c_int::try_from(ready.len()).unwrap_or(c_int::MAX))
    })
}
