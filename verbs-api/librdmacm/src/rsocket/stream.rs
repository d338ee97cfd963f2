//! Stream sockets: what programs do with them.

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
    iov::Cursor,
    link::{Link, SILENCE},
    options::Options,
    process::process,
    sys,
    wait::{END, IN, OUT, SENT, Waiters, Waker},
};
use crate::ffi::Errno;

/// How long a call looks again before it sleeps.
pub(super) const SPIN: Duration = Duration::from_micros(20);
/// How long closing waits for the peer to have everything.
const LINGER: Duration = Duration::from_secs(30);
/// And for it to have heard that this was all.
const LAST_WORD: Duration = Duration::from_secs(1);

pub(super) struct StreamSocket {
    /// What its events are known by.
    pub(super) token: usize,
    pub(super) domain: i32,
    pub(super) state: Mutex<State>,
    /// One sender, one receiver at a time: what one call sends stays together.
    sending: Mutex<()>,
    receiving: Mutex<()>,
    pub(super) nonblocking: AtomicBool,
}

/// What becomes of a socket.
pub(super) enum Phase {
    /// Nothing yet; it may be bound.
    New,
    Listening(Listener),
    Connecting,
    /// A peer's request was accepted, and its confirmation has not come. The listener waits for that.
    Accepting(Weak<StreamSocket>),
    Connected,
    /// It could not be connected.
    Failed,
    Closed,
}

/// What a listener has.
#[derive(Default)]
pub(super) struct Listener {
    pub(super) backlog: usize,
    /// Requests that nobody has looked at, because there are enough connections.
    pub(super) waiting: VecDeque<(Id, ConnData)>,
    /// Accepted, but not confirmed.
    pub(super) accepting: Vec<Arc<StreamSocket>>,
    pub(super) ready: VecDeque<Arc<StreamSocket>>,
}

pub(super) struct State {
    pub(super) phase: Phase,
    // In the order in which they have to go.
    pub(super) maps: Maps,
    pub(super) link: Option<Link>,
    pub(super) id: Option<Id>,
    pub(super) options: Options,
    pub(super) waiters: Waiters,
    /// Errno value that nobody has been told yet.
    pub(super) error: i32,
    /// The failure of the connection was seen.
    failed: bool,
}

impl State {
    /// Whether it is connected, or about to be.
    fn check_usable(&mut self, unconnected: i32) -> Result<(), Errno> {
        match self.phase {
            Phase::Failed if self.error != 0 => Err(Errno(self.take_error())),
            Phase::New | Phase::Listening(_) | Phase::Failed => Err(Errno(unconnected)),
            Phase::Closed => Err(Errno(libc::EBADF)),
            Phase::Connecting | Phase::Accepting(_) | Phase::Connected => Ok(()),
        }
    }

    /// What there is to wait for, and is there.
    fn ready(&self) -> u8 {
        match &self.phase {
            Phase::New | Phase::Connecting | Phase::Accepting(_) => 0,
            Phase::Listening(listener) if listener.ready.is_empty() => 0,
            Phase::Listening(_) => IN,
            Phase::Failed | Phase::Closed => IN | OUT | END,
            Phase::Connected => {
                let Some(stream) = self.link.as_ref().and_then(Link::stream) else {
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

    /// Looks at what has arrived, wakes who waits for it, and sees to it that others hear of what comes next.
    pub(super) fn turn(&mut self) {
        loop {
            if let Some(link) = &mut self.link {
                link.progress();
                let end = link.stream().and_then(rocade_rsockets::Stream::end);
                if end == Some(End::Failure) && !self.failed {
                    self.failed = true;
                    self.error = libc::ECONNRESET;
                }
                self.maps.announce(link);
            }
            self.waiters.wake(self.ready());
            match &mut self.link {
                Some(link) if !self.waiters.is_empty() && !link.queue.is_armed() => {
                    link.queue.arm();
                    if !link.queue.is_armed() {
                        break;
                    }
                }
                _ => break,
            }
        }
    }

    /// The state has changed: everybody looks again.
    pub(super) fn changed(&mut self) {
        self.waiters.wake(IN | OUT | END);
    }

    /// Takes the error that nobody has been told.
    pub(super) fn take_error(&mut self) -> i32 {
        std::mem::take(&mut self.error)
    }

    /// The descriptor that becomes readable with completions.
    fn completions(&self) -> RawFd {
        self.link.as_ref().map_or(-1, |link| link.queue.fd())
    }

    /// Bytes to the program: `None` while there are none.
    fn receive(&mut self, to: &mut Cursor, look: bool) -> Result<Option<usize>, Errno> {
        self.check_usable(libc::ENOTCONN)?;
        let Some(link) = &mut self.link else {
            return Ok(None);
        };
        if link.stream().is_none() {
            return Ok(None);
        }
        let copied = link.copy_out(to, look);
        if copied > 0 {
            return Ok(Some(copied));
        }
        if link.stream().is_some_and(rocade_rsockets::Stream::at_end) {
            return match self.take_error() {
                0 => Ok(Some(0)),
                error => Err(Errno(error)),
            };
        }
        Ok(None)
    }

    /// Why nothing can be sent any more.
    fn check_writable(&mut self) -> Result<(), Errno> {
        self.check_usable(libc::EPIPE)?;
        let Some(stream) = self.link.as_ref().and_then(Link::stream) else {
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

    /// Sends as much as can be sent: `None` where that is nothing.
    fn send(&mut self, from: &mut Cursor) -> Result<Option<usize>, Errno> {
        self.check_writable()?;
        let Some(link) = &mut self.link else {
            return Ok(None);
        };
        self.maps.announce(link);
        let before = from.left();
        while from.left() > 0 {
            let Some(stream) = link.stream_mut() else {
                break;
            };
            let Some(write) = stream.send(from.done(), from.left()) else {
                break;
            };
            link.post(&write, Some(from));
        }
        let sent = before - from.left();
        Ok((sent > 0).then_some(sent))
    }

    /// The same into the peer's iomaps. 0 where there are none.
    fn send_direct(&mut self, from: &mut Cursor, offset: u64) -> Result<Option<usize>, Errno> {
        self.check_writable()?;
        let Some(link) = &mut self.link else {
            return Ok(None);
        };
        self.maps.announce(link);
        let before = from.left();
        while from.left() > 0 {
            let Some(stream) = link.stream_mut() else {
                break;
            };
            let at = offset.wrapping_add(from.done() as u64);
            match stream.send_direct(from.done(), from.left(), at) {
                Ok(Some(write)) => link.post(&write, Some(from)),
                Ok(None) => break,
                Err(_) => return Ok(Some(before - from.left())),
            }
        }
        let sent = before - from.left();
        Ok((sent > 0).then_some(sent))
    }
}

/// What a call is told to do.
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
            state: Mutex::new(State {
                phase: Phase::New,
                maps: Maps::default(),
                link: None,
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

    /// Waits until `ready` has an answer; `EAGAIN` when it is time.
    pub(super) fn wait<T>(
        &self,
        interest: u8,
        nonblocking: bool,
        deadline: Option<Instant>,
        mut ready: impl FnMut(&mut State) -> Result<Option<T>, Errno>,
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
            // Asks to be told of completions; those that came meanwhile may be the answer.
            state.turn();
            if let Some(answer) = ready(&mut state).transpose() {
                state.waiters.remove(&waker);
                return answer;
            }
            let slept = self.sleep(state, &waker, deadline);
            spin_until = Some(now);
            slept?;
        }
    }

    /// Sleeps until something happens.
    fn sleep(
        &self,
        state: MutexGuard<'_, State>,
        waker: &Arc<Waker>,
        deadline: Option<Instant>,
    ) -> Result<(), Errno> {
        let mut fds = [
            sys::readable(waker.fd()),
            sys::readable(state.completions()),
        ];
        drop(state);
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let limit = left.map_or(SILENCE, |left| left.min(SILENCE));
        let slept = sys::poll(&mut fds, Some(limit));
        let mut state = self.state.lock();
        state.waiters.remove(waker);
        self.awake(&mut state, fds[1].revents != 0);
        slept.map(|_| ())
    }

    /// After a sleep: whether the descriptor of completions was ready.
    pub(super) fn awake(&self, state: &mut State, has_event: bool) {
        let Some(link) = &mut state.link else { return };
        if has_event {
            link.queue.take_event();
        } else {
            link.keep_alive();
        }
        // Who else sleeps relies on the event that was taken.
        state.turn();
    }

    /// What a thread that waits for several sockets has to know: what is ready, and where to hear of more.
    pub(super) fn prepare(&self, waker: &Arc<Waker>, interest: u8) -> RawFd {
        let mut state = self.state.lock();
        state.waiters.add(waker, interest);
        state.turn();
        state.completions()
    }

    /// The end of that.
    pub(super) fn unprepare(&self, waker: &Arc<Waker>, has_event: bool) {
        let mut state = self.state.lock();
        state.waiters.remove(waker);
        self.awake(&mut state, has_event);
    }

    /// poll(2): what of `events` is so, and what always is told.
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
                if let Some(stream) = state.link.as_ref().and_then(Link::stream) {
                    if stream.reading_is_over() {
                        told |= POLLRDHUP;
                    }
                    match stream.end() {
                        Some(End::Failure) => told |= POLLERR | POLLHUP,
                        // Some programs read nothing more after this.
                        Some(_) if stream.at_end() => told |= POLLHUP,
                        _ => {}
                    }
                }
                told
            }
        };
        told & (events | POLLERR | POLLHUP)
    }

    /// What poll(2) waits for.
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

    /// A call's turn, which another thread may have.
    fn turn_of<'a>(turn: &'a Mutex<()>, nonblocking: bool) -> Result<MutexGuard<'a, ()>, Errno> {
        if nonblocking {
            turn.try_lock().ok_or(Errno(libc::EAGAIN))
        } else {
            Ok(turn.lock())
        }
    }

    pub(super) fn recv(&self, to: &mut Cursor, flags: Flags) -> Result<usize, Errno> {
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

    pub(super) fn send(&self, from: &mut Cursor, nonblocking: bool) -> Result<usize, Errno> {
        self.send_with(from, nonblocking, State::send)
    }

    pub(super) fn send_direct(
        &self,
        from: &mut Cursor,
        offset: u64,
        nonblocking: bool,
    ) -> Result<usize, Errno> {
        self.send_with(from, nonblocking, |state, from| {
            state.send_direct(from, offset)
        })
    }

    fn send_with(
        &self,
        from: &mut Cursor,
        nonblocking: bool,
        mut send: impl FnMut(&mut State, &mut Cursor) -> Result<Option<usize>, Errno>,
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
            let Some(link) = &mut state.link else {
                return Err(Errno(libc::ENOTCONN));
            };
            let Some(stream) = link.stream_mut() else {
                return Err(Errno(libc::ENOTCONN));
            };
            stream.shutdown(how);
            link.flush();
            state.changed();
            how != How::Read && !self.nonblocking.load(Ordering::Relaxed)
        };
        if linger {
            self.linger();
        }
        Ok(())
    }

    /// Waits until the peer has everything that was sent.
    fn linger(&self) {
        let done = |state: &mut State, all: fn(&rocade_rsockets::Stream) -> bool| {
            let stream = state.link.as_ref().and_then(Link::stream);
            Ok(stream.is_none_or(all).then_some(()))
        };
        let wait = |limit: Duration, all: fn(&rocade_rsockets::Stream) -> bool| {
            let deadline = Self::deadline(Some(limit));
            // A signal is no reason to lose data.
            while matches!(
                self.wait(SENT, false, deadline, |state| done(state, all)),
                Err(Errno(libc::EINTR))
            ) {}
        };
        wait(LINGER, rocade_rsockets::Stream::all_data_sent);
        wait(LAST_WORD, rocade_rsockets::Stream::all_sent);
    }

    /// The program has no use for it any more.
    pub(super) fn close(&self) {
        self.close_with(true);
    }

    /// The same for one that the program has never seen: its peer hears that this was all, and nobody waits for that.
    pub(super) fn close_unseen(&self) {
        self.close_with(false);
    }

    fn close_with(&self, may_linger: bool) {
        let lingers = {
            let mut state = self.state.lock();
            state.turn();
            let lingers = state.options.lingers();
            let link = state.link.as_mut();
            let open = link.and_then(|link| {
                link.stream_mut()?.shutdown(How::Both);
                link.flush();
                Some(())
            });
            state.changed();
            open.is_some() && lingers && may_linger
        };
        if lingers {
            self.linger();
        }
        let (phase, maps, link, id) = {
            let mut state = self.state.lock();
            let phase = std::mem::replace(&mut state.phase, Phase::Closed);
            state.changed();
            let maps = std::mem::take(&mut state.maps);
            (phase, maps, state.link.take(), state.id.take())
        };
        // Ending IDs waits for the thread that reads their events, which may want the state.
        drop((maps, link, id));
        if let Phase::Listening(listener) = phase {
            listener.end();
        }
    }

    /// The process ends, and the program has left it open: whether that has to be said.
    pub(super) fn leave(&self) -> bool {
        let Some(mut state) = self.state.try_lock() else {
            return false;
        };
        let Some(link) = &mut state.link else {
            return false;
        };
        let Some(stream) = link.stream_mut() else {
            return false;
        };
        stream.shutdown(How::Both);
        link.flush();
        true
    }

    /// It has been said: what was sent shall arrive.
    pub(super) fn left(&self, deadline: Instant) {
        let _ = self.wait(SENT, false, Some(deadline), |state| {
            let stream = state.link.as_ref().and_then(Link::stream);
            let all = stream.is_none_or(rocade_rsockets::Stream::all_sent);
            Ok(all.then_some(()))
        });
    }

    /// Our address.
    pub(super) fn local(&self) -> Option<SocketAddr> {
        self.state.lock().id.as_ref().and_then(Id::local)
    }

    /// The peer's.
    pub(super) fn peer(&self) -> Option<SocketAddr> {
        let state = self.state.lock();
        match state.phase {
            Phase::Connected => state.id.as_ref().and_then(Id::peer),
            _ => None,
        }
    }
}

impl Listener {
    /// Nobody will accept what is there.
    pub(super) fn end(self) {
        for (id, _) in &self.waiting {
            id.reject();
        }
        for socket in &self.ready {
            socket.close();
        }
        let Ok(process) = process() else { return };
        // Rejected now, a peer that believes itself connected would see its connection break.
        for socket in &self.accepting {
            process.keep(socket);
            let is_early = matches!(socket.state.lock().phase, Phase::Accepting(_));
            if !is_early {
                process.keep_no_more(socket);
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
