//! Stream sockets.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    os::fd::RawFd,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::{Mutex, MutexGuard};
use rocade_rsockets::{ConnData, End, How};

use super::{
    cm::Id,
    iomap::Maps,
    iov::{Source, Target},
    options::Options,
    process::process,
    queue::Queue,
    stream_qp::{KEEPALIVE_AFTER, StreamQp},
    sys,
    wait::{END, IN, OUT, SENT, Waiters, Waker},
};
use crate::{engine, ffi::Errno};

/// The time that a call polls before it sleeps.
pub(super) const SPIN: Duration = Duration::from_micros(20);
/// The time that closing waits until the peer has received all data.
const LINGER: Duration = Duration::from_secs(30);
/// The additional time that closing waits until the peer has received the disconnect message.
const LAST_WORD: Duration = Duration::from_secs(1);

pub(super) struct StreamSocket {
    /// Identifies the socket in events.
    pub(super) token: usize,
    pub(super) domain: i32,
    pub(super) state: Mutex<StreamState>,
    /// Serialise senders and receivers, so that the bytes of one call stay together.
    sending: Mutex<()>,
    receiving: Mutex<()>,
    pub(super) nonblocking: AtomicBool,
}

/// The connection state of a socket.
pub(super) enum Phase {
    /// Not connected. The socket may be bound.
    New,
    Listening(Listener),
    Connecting,
    /// A request was accepted, and the peer has not confirmed the connection. Refers to the
    /// listener.
    Accepting(Weak<StreamSocket>),
    Connected,
    /// The connection attempt failed.
    Failed,
    Closed,
}

/// The queues of a listener.
#[derive(Default)]
pub(super) struct Listener {
    pub(super) backlog: usize,
    /// Pending requests, which wait because the backlog is full.
    pub(super) waiting: VecDeque<(Id, ConnData)>,
    /// Accepted connections that their peers have not confirmed.
    pub(super) accepting: Vec<Arc<StreamSocket>>,
    pub(super) ready: VecDeque<Arc<StreamSocket>>,
}

pub(super) struct StreamState {
    pub(super) phase: Phase,
    // The order of these members is the order of their drop.
    pub(super) maps: Maps,
    pub(super) stream_qp: Option<StreamQp>,
    pub(super) id: Option<Id>,
    pub(super) options: Options,
    pub(super) waiters: Waiters,
    /// The errno value that no call has returned yet.
    pub(super) error: i32,
    /// Set once the failure of the connection was reported in `error`.
    failed: bool,
}

impl StreamState {
    /// Returns an error unless the socket is connected or connecting.
    fn check_usable(&mut self, unconnected: i32) -> Result<(), Errno> {
        match self.phase {
            Phase::Failed if self.error != 0 => Err(Errno(self.take_error())),
            Phase::New | Phase::Listening(_) | Phase::Failed => Err(Errno(unconnected)),
            Phase::Closed => Err(Errno(libc::EBADF)),
            Phase::Connecting | Phase::Accepting(_) | Phase::Connected => Ok(()),
        }
    }

    /// Returns the events that are ready.
    fn ready(&self) -> u8 {
        match &self.phase {
            Phase::New | Phase::Connecting | Phase::Accepting(_) => 0,
            Phase::Listening(listener) if listener.ready.is_empty() => 0,
            Phase::Listening(_) => IN,
            Phase::Failed | Phase::Closed => IN | OUT | END,
            Phase::Connected => {
                let Some(stream) = self.stream_qp.as_ref().and_then(StreamQp::stream) else {
                    return 0;
                };
                let mut ready = 0;
                if stream.unread() > 0 || stream.reading_is_over() {
                    ready |= IN;
                }
                if stream.can_send() || !stream.writes() || stream.end().is_some() {
                    ready |= OUT;
                }
                if stream.end().is_some() {
                    ready |= END;
                }
                if stream.all_data_sent() {
                    ready |= SENT;
                }
                ready
            }
        }
    }

    /// Polls the CQ and wakes the threads whose events are ready. Arms the CQ if threads still
    /// wait.
    pub(super) fn turn(&mut self) {
        self.turn_with(Queue::arm);
    }

    /// Like [`Self::turn`], for a thread that is registered and going to sleep.
    fn turn_to_sleep(&mut self) {
        self.turn_with(Queue::arm_to_sleep);
    }

    fn turn_with(&mut self, arm: fn(&mut Queue)) {
        loop {
            if let Some(stream_qp) = &mut self.stream_qp {
                if stream_qp.progress() > 0 {
                    self.waiters.note_activity();
                }
                let end = stream_qp.stream().and_then(rocade_rsockets::Stream::end);
                if end == Some(End::Failure) && !self.failed {
                    self.failed = true;
                    self.error = libc::ECONNRESET;
                    self.waiters.note_activity();
                }
                self.maps.announce(stream_qp);
            }
            self.waiters.wake(self.ready());
            match &mut self.stream_qp {
                Some(stream_qp) if !self.waiters.is_empty() && !stream_qp.queue.is_armed() => {
                    arm(&mut stream_qp.queue);
                    if !stream_qp.queue.is_armed() {
                        break;
                    }
                }
                _ => break,
            }
        }
    }

    /// Wakes all waiting threads after a change of the state.
    pub(super) fn changed(&mut self) {
        self.waiters.note_activity();
        self.waiters.wake(IN | OUT | END);
    }

    /// Takes the error that no call has returned yet.
    pub(super) fn take_error(&mut self) -> i32 {
        std::mem::take(&mut self.error)
    }

    /// Returns the descriptor that becomes readable with completions, or -1.
    fn completions(&self) -> RawFd {
        self.stream_qp
            .as_ref()
            .map_or(-1, |stream_qp| stream_qp.queue.fd_to_poll())
    }

    /// Ends the connection after the removal of its device. What has arrived can still be read.
    pub(super) fn end_by_removal(&mut self) {
        let Some(stream_qp) = &mut self.stream_qp else {
            return;
        };
        let is_new = stream_qp
            .stream()
            .is_some_and(|stream| stream.end().is_none());
        stream_qp.ended(End::Failure);
        if is_new && !std::mem::replace(&mut self.failed, true) {
            // As of `ibv_get_cq_event`, which rdma-core calls (`rs_get_cq_event`).
            self.error = libc::EIO;
            self.changed();
        }
    }

    /// Copies received bytes to the program. Returns `None` if there are none.
    fn receive(&mut self, to: &mut Target<'_>, look: bool) -> Result<Option<usize>, Errno> {
        self.check_usable(libc::ENOTCONN)?;
        let Some(stream_qp) = &mut self.stream_qp else {
            return Ok(None);
        };
        if stream_qp.stream().is_none() {
            return Ok(None);
        }
        let copied = stream_qp.copy_out(to, look);
        if copied > 0 {
            return Ok(Some(copied));
        }
        if stream_qp
            .stream()
            .is_some_and(rocade_rsockets::Stream::at_end)
        {
            return match self.take_error() {
                0 => Ok(Some(0)),
                error => Err(Errno(error)),
            };
        }
        Ok(None)
    }

    /// Returns the error that forbids sending, if there is one.
    fn check_writable(&mut self) -> Result<(), Errno> {
        self.check_usable(libc::EPIPE)?;
        let Some(stream) = self.stream_qp.as_ref().and_then(StreamQp::stream) else {
            return Ok(());
        };
        if !stream.writes() {
            return Err(Errno(libc::EPIPE));
        }
        match stream.end() {
            None => Ok(()),
            Some(End::Peers) => Err(Errno(libc::ECONNRESET)),
            Some(End::Ours) => Err(Errno(libc::EPIPE)),
            Some(End::Failure) => match self.take_error() {
                0 => Err(Errno(libc::EPIPE)),
                error => Err(Errno(error)),
            },
        }
    }

    /// Sends as many bytes as possible. Returns `None` if that is none.
    fn send(&mut self, from: &mut Source<'_>) -> Result<Option<usize>, Errno> {
        self.check_writable()?;
        let Some(stream_qp) = &mut self.stream_qp else {
            return Ok(None);
        };
        self.maps.announce(stream_qp);
        let before = from.left();
        while from.left() > 0 {
            let Some(stream) = stream_qp.stream_mut() else {
                break;
            };
            let Some(write) = stream.send(from.done(), from.left()) else {
                break;
            };
            stream_qp.post(&write, Some(from));
        }
        let sent = before - from.left();
        Ok((sent > 0).then_some(sent))
    }

    /// Writes as many bytes as possible to the peer's iomaps. Returns 0 if no iomap has the offset.
    fn send_direct(&mut self, from: &mut Source<'_>, offset: u64) -> Result<Option<usize>, Errno> {
        self.check_writable()?;
        let Some(stream_qp) = &mut self.stream_qp else {
            return Ok(None);
        };
        self.maps.announce(stream_qp);
        let before = from.left();
        while from.left() > 0 {
            let Some(stream) = stream_qp.stream_mut() else {
                break;
            };
            let at = offset.wrapping_add(from.done() as u64);
            match stream.send_direct(from.done(), from.left(), at) {
                Ok(Some(write)) => stream_qp.post(&write, Some(from)),
                Ok(None) => break,
                Err(_) => return Ok(Some(before - from.left())),
            }
        }
        let sent = before - from.left();
        Ok((sent > 0).then_some(sent))
    }
}

/// The flags of a call.
#[derive(Clone, Copy)]
pub(super) struct Flags {
    pub(super) nonblocking: bool,
    pub(super) wait_all: bool,
    pub(super) peek: bool,
}

impl StreamSocket {
    pub(super) fn new(token: usize, domain: i32, options: Options) -> Self {
        Self {
            token,
            domain,
            state: Mutex::new(StreamState {
                phase: Phase::New,
                maps: Maps::default(),
                stream_qp: None,
                id: None,
                options,
                waiters: Waiters::default(),
                error: 0,
                failed: false,
            }),
            sending: Mutex::new(()),
            receiving: Mutex::new(()),
            nonblocking: AtomicBool::new(false),
        }
    }

    fn deadline(limit: Option<Duration>) -> Option<Instant> {
        limit.and_then(|limit| Instant::now().checked_add(limit))
    }

    /// Waits until `ready` returns a value, and fails with `EAGAIN` at the deadline.
    pub(super) fn wait<T>(
        &self,
        interest: u8,
        nonblocking: bool,
        deadline: Option<Instant>,
        mut ready: impl FnMut(&mut StreamState) -> Result<Option<T>, Errno>,
    ) -> Result<T, Errno> {
        let mut spin_until = None;
        loop {
            let mut state = self.state.lock();
            state.turn();
            if let Some(answer) = ready(&mut state)? {
                return Ok(answer);
            }
            if nonblocking {
                return Err(Errno(libc::EAGAIN));
            }
            let now = Instant::now();
            if deadline.is_some_and(|deadline| deadline <= now) {
                return Err(Errno(libc::EAGAIN));
            }
            if now < *spin_until.get_or_insert(now + SPIN) {
                drop(state);
                std::hint::spin_loop();
                continue;
            }
            let waker = Waker::current()?;
            waker.clear();
            state.waiters.add(&waker, interest);
            // Arms the CQ. Completions that arrived before may make the socket ready.
            state.turn_to_sleep();
            if let Some(answer) = ready(&mut state).transpose() {
                state.waiters.remove(&waker);
                return answer;
            }
            let slept = self.sleep(state, &waker, deadline);
            spin_until = Some(now);
            slept?;
        }
    }

    /// Sleeps until an event wakes the thread.
    fn sleep(
        &self,
        state: MutexGuard<'_, StreamState>,
        waker: &Arc<Waker>,
        deadline: Option<Instant>,
    ) -> Result<(), Errno> {
        let mut fds = [
            sys::readable(waker.fd()),
            sys::readable(state.completions()),
        ];
        drop(state);
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let limit = left.map_or(KEEPALIVE_AFTER, |left| left.min(KEEPALIVE_AFTER));
        let slept = engine::poll(&mut fds, Some(limit));
        let mut state = self.state.lock();
        state.waiters.remove(waker);
        self.awake(&mut state, fds[1].revents != 0);
        slept.map(|_| ())
    }

    /// Handles the end of a sleep. `has_event` tells if the descriptor of completions is readable.
    pub(super) fn awake(&self, state: &mut StreamState, has_event: bool) {
        let Some(stream_qp) = &mut state.stream_qp else {
            return;
        };
        if has_event {
            stream_qp.queue.take_event();
            if stream_qp.queue.failure().is_some() {
                state.end_by_removal();
            }
        } else {
            stream_qp.keep_alive();
        }
        // Polls for the other sleeping threads, because this thread took the channel's event.
        state.turn();
    }

    /// Number of arrivals and changes, approximately.
    pub(super) fn activity(&self) -> u64 {
        self.state.lock().waiters.activity()
    }

    /// Registers a thread that waits for several sockets. If it knows the state as of some
    /// `activity`, later changes wake it. Returns the descriptor that becomes
    /// readable with completions.
    pub(super) fn prepare(&self, waker: &Arc<Waker>, interest: u8, known: Option<u64>) -> RawFd {
        let mut state = self.state.lock();
        state.waiters.add_edge(waker, interest, known);
        state.turn_to_sleep();
        state.completions()
    }

    /// Unregisters a thread after its sleep.
    pub(super) fn unprepare(&self, waker: &Arc<Waker>, has_event: bool) {
        let mut state = self.state.lock();
        state.waiters.remove(waker);
        self.awake(&mut state, has_event);
    }

    /// Implements poll(2): returns the ready ones of `events`, and the conditions that poll(2)
    /// always reports.
    pub(super) fn poll(&self, events: i16) -> i16 {
        use libc::{
            POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLOUT, POLLRDHUP, POLLRDNORM, POLLWRNORM,
        };
        let mut state = self.state.lock();
        state.turn();
        let readable = POLLIN | POLLRDNORM;
        let writable = POLLOUT | POLLWRNORM;
        let told = match &state.phase {
            Phase::New => writable | POLLHUP,
            Phase::Closed => return POLLNVAL,
            Phase::Failed => readable | writable | POLLERR | POLLHUP,
            Phase::Connecting | Phase::Accepting(_) => 0,
            Phase::Listening(listener) if listener.ready.is_empty() => 0,
            Phase::Listening(_) => readable,
            Phase::Connected => {
                let ready = state.ready();
                let mut told = 0;
                if ready & IN != 0 {
                    told |= readable;
                }
                if ready & OUT != 0 {
                    told |= writable;
                }
                if let Some(stream) = state.stream_qp.as_ref().and_then(StreamQp::stream) {
                    if stream.reading_is_over() {
                        told |= POLLRDHUP;
                    }
                    match stream.end() {
                        Some(End::Failure) => told |= POLLERR | POLLHUP,
                        // Some programs do not read any more after `POLLHUP`.
                        Some(_) if stream.at_end() => told |= POLLHUP,
                        _ => {}
                    }
                }
                told
            }
        };
        told & (events | POLLERR | POLLHUP)
    }

    /// Converts the events of poll(2).
    pub(super) const fn interest(events: i16) -> u8 {
        let mut interest = 0;
        if events & (libc::POLLIN | libc::POLLRDNORM | libc::POLLRDHUP) != 0 {
            interest |= IN;
        }
        if events & (libc::POLLOUT | libc::POLLWRNORM) != 0 {
            interest |= OUT;
        }
        interest
    }

    /// Locks the sending or the receiving side.
    fn turn_of<'a>(turn: &'a Mutex<()>, nonblocking: bool) -> Result<MutexGuard<'a, ()>, Errno> {
        if nonblocking {
            turn.try_lock().ok_or(Errno(libc::EAGAIN))
        } else {
            Ok(turn.lock())
        }
    }

    pub(super) fn recv(&self, to: &mut Target<'_>, flags: Flags) -> Result<usize, Errno> {
        if to.left() == 0 {
            return self.state.lock().check_usable(libc::ENOTCONN).map(|()| 0);
        }
        let nonblocking = flags.nonblocking || self.nonblocking.load(Ordering::Relaxed);
        let _turn = Self::turn_of(&self.receiving, nonblocking)?;
        let deadline = Self::deadline(self.state.lock().options.recv_timeout);
        let mut total = 0;
        while to.left() > 0 {
            let got = self.wait(IN, nonblocking, deadline, |state| {
                state.receive(to, flags.peek)
            });
            match got {
                Ok(0) => break,
                Ok(got) => total += got,
                Err(_) if total > 0 => break,
                Err(errno) => return Err(errno),
            }
            if !flags.wait_all || flags.peek {
                break;
            }
        }
        Ok(total)
    }

    pub(super) fn send(&self, from: &mut Source<'_>, nonblocking: bool) -> Result<usize, Errno> {
        self.send_with(from, nonblocking, StreamState::send)
    }

    pub(super) fn send_direct(
        &self,
        from: &mut Source<'_>,
        offset: u64,
        nonblocking: bool,
    ) -> Result<usize, Errno> {
        self.send_with(from, nonblocking, |state, from| {
            state.send_direct(from, offset)
        })
    }

    fn send_with(
        &self,
        from: &mut Source<'_>,
        nonblocking: bool,
        mut send: impl FnMut(&mut StreamState, &mut Source<'_>) -> Result<Option<usize>, Errno>,
    ) -> Result<usize, Errno> {
        if from.left() == 0 {
            return self.state.lock().check_writable().map(|()| 0);
        }
        let nonblocking = nonblocking || self.nonblocking.load(Ordering::Relaxed);
        let _turn = Self::turn_of(&self.sending, nonblocking)?;
        let deadline = Self::deadline(self.state.lock().options.send_timeout);
        let total = from.left();
        while from.left() > 0 {
            match self.wait(OUT, nonblocking, deadline, |state| send(state, from)) {
                Ok(0) => break,
                Ok(_) => {}
                Err(_) if from.left() < total => break,
                Err(errno) => return Err(errno),
            }
        }
        Ok(total - from.left())
    }

    pub(super) fn shutdown(&self, how: How) -> Result<(), Errno> {
        let linger = {
            let mut state = self.state.lock();
            if matches!(state.phase, Phase::Listening(_)) && how != How::Write {
                let phase = std::mem::replace(&mut state.phase, Phase::New);
                state.changed();
                drop(state);
                if let Phase::Listening(listener) = phase {
                    listener.end();
                }
                return Ok(());
            }
            state.turn();
            let Some(stream_qp) = &mut state.stream_qp else {
                return Err(Errno(libc::ENOTCONN));
            };
            let Some(stream) = stream_qp.stream_mut() else {
                return Err(Errno(libc::ENOTCONN));
            };
            stream.shutdown(how);
            stream_qp.flush();
            state.changed();
            how != How::Read && !self.nonblocking.load(Ordering::Relaxed)
        };
        if linger {
            self.linger();
        }
        Ok(())
    }

    /// Waits until the peer has received everything.
    fn linger(&self) {
        let done = |state: &mut StreamState, all: fn(&rocade_rsockets::Stream) -> bool| {
            let stream = state.stream_qp.as_ref().and_then(StreamQp::stream);
            Ok(stream.is_none_or(all).then_some(()))
        };
        let wait = |limit: Duration, all: fn(&rocade_rsockets::Stream) -> bool| {
            let deadline = Self::deadline(Some(limit));
            // A signal must not cause loss of data.
            while matches!(
                self.wait(SENT, false, deadline, |state| done(state, all)),
                Err(Errno(libc::EINTR))
            ) {}
        };
        wait(LINGER, rocade_rsockets::Stream::all_data_sent);
        wait(LAST_WORD, rocade_rsockets::Stream::all_sent);
    }

    /// Closes the socket for the program.
    pub(super) fn close(&self) {
        self.close_with(true);
    }

    /// Closes a connection that the program has not accepted. Sends the disconnect message without
    /// waiting for its completion.
    pub(super) fn close_unseen(&self) {
        self.close_with(false);
    }

    fn close_with(&self, may_linger: bool) {
        let lingers = {
            let mut state = self.state.lock();
            state.turn();
            let lingers = state.options.lingers();
            let stream_qp = state.stream_qp.as_mut();
            let open = stream_qp.and_then(|stream_qp| {
                stream_qp.stream_mut()?.shutdown(How::Both);
                stream_qp.flush();
                Some(())
            });
            state.changed();
            open.is_some() && lingers && may_linger
        };
        if lingers {
            self.linger();
        }
        let (phase, maps, stream_qp, id) = {
            let mut state = self.state.lock();
            let phase = std::mem::replace(&mut state.phase, Phase::Closed);
            state.changed();
            let maps = std::mem::take(&mut state.maps);
            (phase, maps, state.stream_qp.take(), state.id.take())
        };
        // Destroying an ID waits for the service thread, which may need the lock of the state.
        drop((maps, stream_qp, id));
        if let Phase::Listening(listener) = phase {
            listener.end();
        }
    }

    /// Shuts down a socket that is open at process exit. Returns true if there is a stream to shut
    /// down.
    pub(super) fn leave(&self) -> bool {
        let Some(mut state) = self.state.try_lock() else {
            return false;
        };
        let Some(stream_qp) = &mut state.stream_qp else {
            return false;
        };
        let Some(stream) = stream_qp.stream_mut() else {
            return false;
        };
        stream.shutdown(How::Both);
        stream_qp.flush();
        true
    }

    /// Waits after [`Self::leave`] until everything is sent.
    pub(super) fn left(&self, deadline: Instant) {
        let _ = self.wait(SENT, false, Some(deadline), |state| {
            let stream = state.stream_qp.as_ref().and_then(StreamQp::stream);
            let all = stream.is_none_or(rocade_rsockets::Stream::all_sent);
            Ok(all.then_some(()))
        });
    }

    /// Returns the local address.
    pub(super) fn local(&self) -> Option<SocketAddr> {
        self.state.lock().id.as_ref().and_then(Id::local)
    }

    /// Returns the address of the peer.
    pub(super) fn peer(&self) -> Option<SocketAddr> {
        let state = self.state.lock();
        match state.phase {
            Phase::Connected => state.id.as_ref().and_then(Id::peer),
            _ => None,
        }
    }
}

impl Listener {
    /// Rejects pending requests, and closes the connections that no call has accepted.
    pub(super) fn end(self) {
        for (id, _) in &self.waiting {
            id.reject();
        }
        for socket in &self.ready {
            socket.close();
        }
        let Ok(process) = process() else { return };
        // Unconfirmed connections are kept. A rejection now would break a connection that the peer
        // regards as established.
        for socket in &self.accepting {
            process.keep_unconfirmed(socket);
            let is_early = matches!(socket.state.lock().phase, Phase::Accepting(_));
            if !is_early {
                process.release_unconfirmed(socket);
                socket.close();
            }
        }
    }
}

impl Drop for StreamSocket {
    fn drop(&mut self) {
        if let Ok(process) = process() {
            process.forget(self.token);
        }
    }
}
