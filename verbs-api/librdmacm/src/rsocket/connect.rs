//! Connection setup of stream sockets.

use std::{
    net::SocketAddr,
    sync::{Arc, atomic::Ordering},
};

use rocade_abi::AF_IB;
use rocade_rsockets::{ConnData, End};

use super::{
    address,
    cm::{Id, OPTION_AFONLY, OPTION_REUSEADDR, OPTION_TOS},
    process::Process,
    service::CmNotification,
    stream::{Listener, Phase, StreamSocket, StreamState},
    stream_qp::StreamQp,
    wait::{IN, OUT},
};
use crate::{event, ffi::Errno, id::PS_TCP};

/// The maximum number of accepted but unconfirmed connections of a listener. The connection manager
/// has the same limit (`rocade_transport::cm::BACKLOG`), and drops the oldest request beyond it.
const MAX_HALF_OPEN: usize = 256;

/// Converts an error of address resolution to the errno that programs expect.
fn unreachable(errno: Errno) -> Errno {
    match errno.0 {
        libc::ENODEV | libc::EADDRNOTAVAIL => Errno(libc::ENETUNREACH),
        _ => errno,
    }
}

impl StreamState {
    /// Returns the ID, which is created on first use.
    fn id(&mut self, process: &'static Process, token: usize) -> Result<&Id, Errno> {
        if self.id.is_none() {
            let id = Id::new(process.service()?.channel(), token, PS_TCP)?;
            if self.options.reuse_addr {
                id.set_option(OPTION_REUSEADDR, &1_i32.to_ne_bytes())?;
            }
            if let Some(only) = self.options.v6_only {
                id.set_option(OPTION_AFONLY, &i32::from(only).to_ne_bytes())?;
            }
            if let Some(tos) = self.options.tos {
                id.set_option(OPTION_TOS, &[tos])?;
            }
            self.id = Some(id);
        }
        self.id.as_ref().ok_or(Errno::INVAL)
    }

    /// Ends a failed connection attempt. Returns the resources of the attempt, which the caller
    /// drops after unlocking the state.
    fn fail(&mut self, error: i32) -> (Option<StreamQp>, Option<Id>) {
        self.phase = Phase::Failed;
        self.error = error;
        self.changed();
        (self.stream_qp.take(), self.id.take())
    }
}

impl StreamSocket {
    fn check_family(&self, addr: SocketAddr) -> Result<(), Errno> {
        let fits = if addr.is_ipv4() {
            libc::AF_INET
        } else {
            libc::AF_INET6
        };
        // A GID is an IPv6 address.
        let is_gid = self.domain == AF_IB && addr.is_ipv6();
        if fits == self.domain || is_gid {
            Ok(())
        } else {
            Err(Errno(libc::EAFNOSUPPORT))
        }
    }

    pub(super) fn bind(&self, process: &'static Process, addr: SocketAddr) -> Result<(), Errno> {
        self.check_family(addr)?;
        let mut state = self.state.lock();
        let is_bound = state.id.as_ref().and_then(Id::local).is_some();
        if !matches!(state.phase, Phase::New) || is_bound {
            return Err(Errno::INVAL);
        }
        let id = state.id(process, self.token)?;
        id.bind(address::unmapped(addr))
            .map_err(|errno| match errno.0 {
                libc::ENODEV => Errno(libc::EADDRNOTAVAIL),
                _ => errno,
            })
    }

    pub(super) fn listen(&self, process: &'static Process, backlog: i32) -> Result<(), Errno> {
        let mut state = self.state.lock();
        let most = usize::try_from(backlog).unwrap_or(0).max(1);
        match &mut state.phase {
            Phase::Listening(listener) => {
                listener.backlog = most;
                return Ok(());
            }
            Phase::New => {}
            _ => return Err(Errno::INVAL),
        }
        let any = if matches!(self.domain, libc::AF_INET6 | AF_IB) {
            "[::]:0"
        } else {
            "0.0.0.0:0"
        };
        let id = state.id(process, self.token)?;
        if id.local().is_none() {
            id.bind(any.parse().map_err(|_| Errno::INVAL)?)?;
        }
        // The service thread reads requests at once. `admit` limits the number of connections.
        id.listen(0)?;
        state.phase = Phase::Listening(Listener {
            backlog: most,
            ..Listener::default()
        });
        Ok(())
    }

    pub(super) fn connect(&self, process: &'static Process, addr: SocketAddr) -> Result<(), Errno> {
        let nonblocking = self.nonblocking.load(Ordering::Relaxed);
        self.check_family(addr)?;
        {
            let mut state = self.state.lock();
            match &state.phase {
                Phase::New => {}
                Phase::Failed => {
                    state.phase = Phase::New;
                    state.error = 0;
                }
                Phase::Connecting if nonblocking => return Err(Errno(libc::EALREADY)),
                Phase::Connecting => return self.finish_connect(state),
                Phase::Connected | Phase::Accepting(_) => return Err(Errno(libc::EISCONN)),
                Phase::Listening(_) => return Err(Errno(libc::EISCONN)),
                Phase::Closed => return Err(Errno(libc::EBADF)),
            }
            let id = state.id(process, self.token)?;
            id.resolve_addr(None, here_if_anywhere(address::unmapped(addr)))
                .map_err(unreachable)?;
            state.phase = Phase::Connecting;
            if nonblocking {
                return Err(Errno(libc::EINPROGRESS));
            }
            self.finish_connect(state)
        }
    }

    /// Waits until the connection is established or has failed.
    fn finish_connect(&self, state: parking_lot::MutexGuard<'_, StreamState>) -> Result<(), Errno> {
        drop(state);
        self.wait(OUT, false, None, |state| match state.phase {
            Phase::Connecting => Ok(None),
            Phase::Connected => Ok(Some(())),
            _ => match state.take_error() {
                0 => Err(Errno(libc::ECONNABORTED)),
                error => Err(Errno(error)),
            },
        })
    }

    /// Returns an established connection, or `EAGAIN` if there is none.
    pub(super) fn accept(&self, process: &'static Process) -> Result<Arc<Self>, Errno> {
        let accepted = self.wait(IN, true, None, |state| match &mut state.phase {
            Phase::Listening(listener) => Ok(listener.ready.pop_front()),
            Phase::Closed => Err(Errno(libc::EBADF)),
            _ => Err(Errno::INVAL),
        })?;
        self.admit(process);
        Ok(accepted)
    }

    /// Puts a connection back into the queue, because no descriptor could be created for it.
    pub(super) fn unaccept(&self, socket: Arc<Self>) {
        let mut state = self.state.lock();
        if let Phase::Listening(listener) = &mut state.phase {
            listener.ready.push_front(socket);
            state.changed();
        } else {
            drop(state);
            socket.close();
        }
    }

    /// Accepts pending requests until the backlog of established connections is full.
    fn admit(&self, process: &'static Process) {
        loop {
            let (id, data, options) = {
                let mut state = self.state.lock();
                let options = state.options.clone();
                let Phase::Listening(listener) = &mut state.phase else {
                    return;
                };
                // Unconfirmed connections do not count for the backlog, because their peers may
                // never confirm them.
                let is_full = listener.ready.len() > listener.backlog;
                if is_full || listener.accepting.len() >= MAX_HALF_OPEN {
                    return;
                }
                let Some((id, data)) = listener.waiting.pop_front() else {
                    return;
                };
                (id, data, options)
            };
            let socket = Arc::new(Self::new(process.new_token(), self.domain, options));
            process.register(&socket);
            let mut state = self.state.lock();
            let Phase::Listening(listener) = &mut state.phase else {
                id.reject();
                return;
            };
            // The socket must be in this list before the peer can confirm the connection.
            listener.accepting.push(Arc::clone(&socket));
            drop(state);
            if socket
                .accept_request(process, self.token, id, data)
                .is_err()
            {
                self.forget(&socket);
            }
        }
    }

    /// Accepts a connection request.
    fn accept_request(
        &self,
        process: &'static Process,
        listener: usize,
        id: Id,
        data: ConnData,
    ) -> Result<(), Errno> {
        id.set_token(self.token);
        let mut state = self.state.lock();
        let made = StreamQp::new(&id, &state.options);
        let mut stream_qp = match made {
            Ok(stream_qp) => stream_qp,
            Err(errno) => {
                id.reject();
                return Err(errno);
            }
        };
        stream_qp.start(data);
        state.phase = Phase::Accepting(process.weak(listener));
        let accepted = id.accept(&stream_qp.conn_data().encode());
        state.stream_qp = Some(stream_qp);
        state.id = Some(id);
        if let Err(errno) = accepted {
            let left = state.fail(errno.0);
            drop(state);
            drop(left);
            return Err(errno);
        }
        Ok(())
    }

    /// Removes a socket whose connection was not established.
    fn forget(&self, socket: &Arc<Self>) {
        let mut state = self.state.lock();
        if let Phase::Listening(listener) = &mut state.phase {
            listener
                .accepting
                .retain(|other| !Arc::ptr_eq(other, socket));
        }
    }

    /// Handles an event of an ID of this socket.
    pub(super) fn handle_event(
        self: &Arc<Self>,
        process: &'static Process,
        notification: &CmNotification,
    ) {
        match notification.kind {
            event::CONNECT_REQUEST => self.handle_connect_request(process, notification),
            event::ADDR_RESOLVED => self.continue_connect(notification, |state| {
                let id = state.id.as_ref().ok_or(Errno::INVAL)?;
                id.resolve_route()
            }),
            event::ROUTE_RESOLVED => self.continue_connect(notification, |state| {
                let id = state.id.as_ref().ok_or(Errno::INVAL)?;
                let stream_qp = StreamQp::new(id, &state.options)?;
                let result = id.connect(&stream_qp.conn_data().encode());
                state.stream_qp = Some(stream_qp);
                result
            }),
            event::ESTABLISHED => self.handle_established(process, notification),
            event::DISCONNECTED => self.handle_end(process, notification, libc::ECONNRESET),
            _ => self.handle_end(process, notification, failure(notification)),
        }
    }

    /// Runs one step of connection setup, and fails the attempt if the step fails.
    fn continue_connect(
        &self,
        notification: &CmNotification,
        step: impl FnOnce(&mut StreamState) -> Result<(), Errno>,
    ) {
        let mut state = self.state.lock();
        if !state.concerns(notification) || !matches!(state.phase, Phase::Connecting) {
            return;
        }
        if let Err(errno) = step(&mut state) {
            let left = state.fail(unreachable(errno).0);
            drop(state);
            drop(left);
        }
    }

    fn handle_connect_request(&self, process: &'static Process, notification: &CmNotification) {
        /// The maximum number of pending requests.
        const MOST: usize = 1024;
        let Some(id) = notification.new_id.take() else {
            return;
        };
        let Ok(data) = ConnData::decode(&notification.private) else {
            id.reject();
            return;
        };
        {
            let mut state = self.state.lock();
            match &mut state.phase {
                Phase::Listening(listener) if listener.waiting.len() < MOST => {
                    listener.waiting.push_back((id, data));
                }
                _ => {
                    drop(state);
                    id.reject();
                    return;
                }
            }
        }
        self.admit(process);
    }

    fn handle_established(
        self: &Arc<Self>,
        process: &'static Process,
        notification: &CmNotification,
    ) {
        let mut state = self.state.lock();
        if !state.concerns(notification) {
            return;
        }
        let state_ref = &mut *state;
        let Some(stream_qp) = &mut state_ref.stream_qp else {
            return;
        };
        let parent = match &state_ref.phase {
            Phase::Connecting => {
                let Ok(data) = ConnData::decode(&notification.private) else {
                    let left = state.fail(libc::ECONNREFUSED);
                    drop(state);
                    drop(left);
                    return;
                };
                stream_qp.start(data);
                None
            }
            Phase::Accepting(parent) => Some(parent.clone()),
            _ => return,
        };
        stream_qp.open();
        state.phase = Phase::Connected;
        state.turn();
        state.changed();
        drop(state);
        let Some(parent) = parent else { return };
        let parent = parent.upgrade();
        let is_queued = parent.as_ref().is_some_and(|parent| {
            let mut listening = parent.state.lock();
            let Phase::Listening(listener) = &mut listening.phase else {
                return false;
            };
            listener.accepting.retain(|other| !Arc::ptr_eq(other, self));
            listener.ready.push_back(Arc::clone(self));
            listening.changed();
            true
        });
        match parent {
            Some(parent) if is_queued => parent.admit(process),
            _ => {
                process.release_unconfirmed(self);
                self.close_unseen();
            }
        }
    }

    /// Handles the end of a connection, or the failure to establish it.
    fn handle_end(
        self: &Arc<Self>,
        process: &'static Process,
        notification: &CmNotification,
        error: i32,
    ) {
        let mut state = self.state.lock();
        if let Phase::Listening(listener) = &mut state.phase {
            // The requester gave up.
            let gone = |id: &Id| std::ptr::eq(id.as_ptr(), notification.id);
            let at = listener.waiting.iter().position(|(id, _)| gone(id));
            let gone = at.and_then(|at| listener.waiting.remove(at));
            drop(state);
            drop(gone);
            return;
        }
        if !state.concerns(notification) || notification.kind == event::TIMEWAIT_EXIT {
            return;
        }
        match &state.phase {
            Phase::Connected if notification.kind == event::DEVICE_REMOVAL => {
                state.end_by_removal();
            }
            Phase::Connected => {
                let Some(stream_qp) = &mut state.stream_qp else {
                    return;
                };
                // Data that arrived before this event are already in the receive buffer.
                stream_qp.ended(End::Peers);
                if let Some(id) = &state.id {
                    id.disconnect();
                }
                state.turn();
                state.changed();
            }
            Phase::Connecting => {
                let left = state.fail(error);
                drop(state);
                drop(left);
            }
            Phase::Accepting(parent) => {
                let parent = parent.clone();
                let left = state.fail(error);
                drop(state);
                drop(left);
                process.release_unconfirmed(self);
                if let Some(parent) = parent.upgrade() {
                    parent.forget(self);
                    parent.admit(process);
                }
            }
            _ => {}
        }
    }
}

impl StreamState {
    /// Returns true if the event is about the ID of this socket.
    fn concerns(&self, notification: &CmNotification) -> bool {
        self.id
            .as_ref()
            .is_some_and(|id| std::ptr::eq(id.as_ptr(), notification.id))
    }
}

/// Replaces an unspecified destination address by the loopback address.
fn here_if_anywhere(addr: SocketAddr) -> SocketAddr {
    use std::net::{Ipv4Addr, Ipv6Addr};
    match addr {
        SocketAddr::V4(v4) if v4.ip().is_unspecified() => {
            SocketAddr::new(Ipv4Addr::LOCALHOST.into(), v4.port())
        }
        SocketAddr::V6(v6) if v6.ip().is_unspecified() => {
            SocketAddr::new(Ipv6Addr::LOCALHOST.into(), v6.port())
        }
        _ => addr,
    }
}

/// Returns the errno that programs expect for an event that ends a connection attempt.
fn failure(notification: &CmNotification) -> i32 {
    match notification.kind {
        event::REJECTED => libc::ECONNREFUSED,
        event::UNREACHABLE => libc::ETIMEDOUT,
        event::ADDR_ERROR | event::ROUTE_ERROR => match -notification.status {
            errno if errno > 0 => unreachable(Errno(errno)).0,
            _ => libc::EHOSTUNREACH,
        },
        _ => libc::ECONNABORTED,
    }
}
