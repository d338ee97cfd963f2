//! The sockets of a process.
//!
//! A `fork`ed child has none: the connections are its parent's.

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

use super::{datagram::DatagramSocket, service::Service, stream::StreamSocket};
use crate::{engine::generation, ffi::Errno};

/// A socket.
#[derive(Clone)]
pub(super) enum Socket {
    Stream(Arc<StreamSocket>),
    Datagram(Arc<DatagramSocket>),
}

impl Socket {
    /// The family of its addresses.
    pub(super) fn domain(&self) -> i32 {
        match self {
            Self::Stream(socket) => socket.domain,
            Self::Datagram(socket) => socket.domain,
        }
    }
}

/// A socket with the descriptor that programs know it by.
struct Entry {
    socket: Socket,
    /// Of a stream; that of datagrams is their UDP socket.
    _fd: Option<OwnedFd>,
}

/// What one process has.
pub(super) struct Process {
    generation: u32,
    table: RwLock<BTreeMap<RawFd, Entry>>,
    tokens: Mutex<HashMap<usize, Weak<StreamSocket>>>,
    /// Accepted for a listener that is closed, and not confirmed yet: they end when they are.
    parting: Mutex<Vec<Arc<StreamSocket>>>,
    next_token: AtomicUsize,
    service: Mutex<Option<Arc<Service>>>,
}

static PROCESS: AtomicPtr<Process> = AtomicPtr::new(ptr::null_mut());
static AT_EXIT: Once = Once::new();

/// How long all of them together may take for that.
const LEAVE: Duration = Duration::from_secs(1);

/// That of this process. Never freed: there is one for each `fork`, and the parent's is not touched.
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
            tokens: Mutex::default(),
            parting: Mutex::default(),
            next_token: AtomicUsize::new(1),
            service: Mutex::new(None),
        }));
        let swap = PROCESS.compare_exchange(found, fresh, Ordering::AcqRel, Ordering::Acquire);
        if swap.is_err() {
            // SAFETY: nobody else has seen this box.
            drop(unsafe { Box::from_raw(fresh) });
        }
    }
}

/// What programs leave open is closed as the kernel would.
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
    let deadline = Instant::now() + LEAVE;
    for socket in streams {
        socket.left(deadline);
    }
}

impl Process {
    pub(super) fn new_token(&self) -> usize {
        self.next_token.fetch_add(1, Ordering::Relaxed)
    }

    /// Its events find it from now on.
    pub(super) fn know(&self, socket: &Arc<StreamSocket>) {
        let mut tokens = self.tokens.lock();
        tokens.insert(socket.token, Arc::downgrade(socket));
    }

    /// The socket whose events have that token.
    pub(super) fn weak(&self, token: usize) -> Weak<StreamSocket> {
        let tokens = self.tokens.lock();
        tokens.get(&token).cloned().unwrap_or_default()
    }

    pub(super) fn forget(&self, token: usize) {
        self.tokens.lock().remove(&token);
    }

    /// Keeps a socket that nobody will accept until its peer has confirmed the connection, and hears of its end then.
    pub(super) fn keep(&self, socket: &Arc<StreamSocket>) {
        self.parting.lock().push(Arc::clone(socket));
    }

    pub(super) fn keep_no_more(&self, socket: &Arc<StreamSocket>) {
        let mut parting = self.parting.lock();
        let at = parting.iter().position(|other| Arc::ptr_eq(other, socket));
        let kept = at.map(|at| parting.swap_remove(at));
        drop(parting);
        drop(kept);
    }

    /// The thread that hears of connections.
    pub(super) fn service(&'static self) -> Result<Arc<Service>, Errno> {
        let mut service = self.service.lock();
        if let Some(service) = &*service {
            return Ok(Arc::clone(service));
        }
        let started = Service::start(self)?;
        *service = Some(Arc::clone(&started));
        Ok(started)
    }

    /// Gives a socket its number.
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
        self.table.write().insert(number, Entry { socket, _fd: fd });
        number
    }

    pub(super) fn socket(&self, fd: RawFd) -> Option<Socket> {
        let table = self.table.read();
        table.get(&fd).map(|entry| entry.socket.clone())
    }

    /// Closes a socket.
    pub(super) fn close(&self, fd: RawFd) -> Result<(), Errno> {
        let entry = self.table.write().remove(&fd);
        // The number is not free before all is over.
        let entry = entry.ok_or(Errno(libc::EBADF))?;
        match &entry.socket {
            Socket::Stream(socket) => socket.close(),
            Socket::Datagram(socket) => {
                socket.close();
                if let Some(service) = &*self.service.lock() {
                    service.look_again();
                }
            }
        }
        Ok(())
    }
}
