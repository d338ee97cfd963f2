//! The sockets of a process.
//!
//! A forked child has none, because the connections belong to its parent.

use std::{
    collections::{BTreeMap, HashMap},
    os::fd::{AsRawFd, OwnedFd, RawFd},
    ptr,
    sync::{
        Arc, Once, Weak,
        atomic::{AtomicPtr, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::{Mutex, RwLock};

use super::{datagram::DatagramSocket, epoll::EpollSet, service::Service, stream::StreamSocket};
use crate::{engine::generation, ffi::Errno};

/// A socket.
#[derive(Clone)]
pub(super) enum Socket {
    Stream(Arc<StreamSocket>),
    Datagram(Arc<DatagramSocket>),
}

impl Socket {
    /// Returns true for the same socket.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Stream(own), Self::Stream(other)) => Arc::ptr_eq(own, other),
            (Self::Datagram(own), Self::Datagram(other)) => Arc::ptr_eq(own, other),
            _ => false,
        }
    }

    /// Returns the address family of the socket.
    pub(super) fn domain(&self) -> i32 {
        match self {
            Self::Stream(socket) => socket.domain,
            Self::Datagram(socket) => socket.domain,
        }
    }
}

/// A socket and its descriptor.
struct SocketEntry {
    socket: Socket,
    /// The descriptor of a stream socket. A datagram socket uses that of its UDP socket.
    _fd: Option<OwnedFd>,
}

/// The sockets of a process, and its service thread.
pub(super) struct Process {
    generation: u32,
    table: RwLock<BTreeMap<RawFd, SocketEntry>>,
    sets: RwLock<BTreeMap<RawFd, Arc<EpollSet>>>,
    tokens: Mutex<HashMap<usize, Weak<StreamSocket>>>,
    /// Unconfirmed connections of closed listeners. They are closed once they are confirmed.
    unconfirmed: Mutex<Vec<Arc<StreamSocket>>>,
    next_token: AtomicUsize,
    service: Mutex<Option<Arc<Service>>>,
}

static PROCESS: AtomicPtr<Process> = AtomicPtr::new(ptr::null_mut());
static AT_EXIT: Once = Once::new();

/// The time limit at process exit for closing all sockets.
const EXIT_TIMEOUT: Duration = Duration::from_secs(1);

/// Returns the state of this process. It is never freed: each fork creates a new one, and a child
/// does not access its parent's.
pub(super) fn process() -> Result<&'static Process, Errno> {
    let generation = generation()?;
    loop {
        let found = PROCESS.load(Ordering::Acquire);
        // SAFETY: only leaked boxes are stored here.
        if let Some(process) = unsafe { found.as_ref() }
            && process.generation == generation
        {
            return Ok(process);
        }
        let fresh = Box::into_raw(Box::new(Process {
            generation,
            table: RwLock::default(),
            sets: RwLock::default(),
            tokens: Mutex::default(),
            unconfirmed: Mutex::default(),
            next_token: AtomicUsize::new(1),
            service: Mutex::new(None),
        }));
        let swap = PROCESS.compare_exchange(found, fresh, Ordering::AcqRel, Ordering::Acquire);
        if swap.is_err() {
            // SAFETY: this box was not published.
            drop(unsafe { Box::from_raw(fresh) });
        }
    }
}

/// Closes the sockets that are open at process exit, as the kernel does.
extern "C" fn at_exit() {
    let Ok(process) = process() else { return };
    let Some(table) = process.table.try_read() else {
        return;
    };
    let streams = table.values().filter_map(|entry| match &entry.socket {
        Socket::Stream(socket) => Some(socket),
        Socket::Datagram(_) => None,
    });
    let streams: Vec<_> = streams.filter(|socket| socket.leave()).collect();
    let deadline = Instant::now() + EXIT_TIMEOUT;
    for socket in streams {
        socket.left(deadline);
    }
}

impl Process {
    pub(super) fn new_token(&self) -> usize {
        self.next_token.fetch_add(1, Ordering::Relaxed)
    }

    /// Registers a socket, so that its events can find it.
    pub(super) fn register(&self, socket: &Arc<StreamSocket>) {
        let mut tokens = self.tokens.lock();
        tokens.insert(socket.token, Arc::downgrade(socket));
    }

    /// Returns the socket with a token.
    pub(super) fn weak(&self, token: usize) -> Weak<StreamSocket> {
        let tokens = self.tokens.lock();
        tokens.get(&token).cloned().unwrap_or_default()
    }

    pub(super) fn forget(&self, token: usize) {
        self.tokens.lock().remove(&token);
    }

    /// Keeps an unconfirmed connection of a closed listener until its peer confirms it, and then
    /// closes it.
    pub(super) fn keep_unconfirmed(&self, socket: &Arc<StreamSocket>) {
        self.unconfirmed.lock().push(Arc::clone(socket));
    }

    pub(super) fn release_unconfirmed(&self, socket: &Arc<StreamSocket>) {
        let mut unconfirmed = self.unconfirmed.lock();
        let at = unconfirmed
            .iter()
            .position(|other| Arc::ptr_eq(other, socket));
        let kept = at.map(|at| unconfirmed.swap_remove(at));
        drop(unconfirmed);
        drop(kept);
    }

    /// Returns the service thread, which handles connection events. Starts it on first use.
    pub(super) fn service(&'static self) -> Result<Arc<Service>, Errno> {
        let mut service = self.service.lock();
        if let Some(service) = &*service {
            return Ok(Arc::clone(service));
        }
        let started = Service::start(self)?;
        *service = Some(Arc::clone(&started));
        Ok(started)
    }

    /// Inserts a socket into the table, and returns its descriptor.
    pub(super) fn insert(&self, socket: Socket, fd: Option<OwnedFd>) -> RawFd {
        AT_EXIT.call_once(|| {
            // SAFETY: a function without arguments.
            let _ = unsafe { libc::atexit(at_exit) };
        });
        let number = match (&socket, &fd) {
            (_, Some(fd)) => fd.as_raw_fd(),
            (Socket::Datagram(socket), None) => socket.udp_fd(),
            (Socket::Stream(_), None) => return -1,
        };
        self.table
            .write()
            .insert(number, SocketEntry { socket, _fd: fd });
        number
    }

    pub(super) fn socket(&self, fd: RawFd) -> Option<Socket> {
        let table = self.table.read();
        table.get(&fd).map(|entry| entry.socket.clone())
    }

    /// Inserts a set of `repoll_create`, and returns its descriptor.
    pub(super) fn insert_set(&self, set: EpollSet) -> RawFd {
        let fd = set.fd();
        self.sets.write().insert(fd, Arc::new(set));
        fd
    }

    pub(super) fn set(&self, fd: RawFd) -> Option<Arc<EpollSet>> {
        self.sets.read().get(&fd).cloned()
    }

    /// Closes a socket, or a set of `repoll_create`.
    pub(super) fn close(&self, fd: RawFd) -> Result<(), Errno> {
        if self.sets.write().remove(&fd).is_some() {
            return Ok(());
        }
        let entry = self.table.write().remove(&fd);
        // The entry keeps the descriptor in use until the socket is closed.
        let entry = entry.ok_or(Errno(libc::EBADF))?;
        match &entry.socket {
            Socket::Stream(socket) => socket.close(),
            Socket::Datagram(socket) => {
                socket.close();
                if let Some(service) = &*self.service.lock() {
                    service.wake();
                }
            }
        }
        Ok(())
    }
}
