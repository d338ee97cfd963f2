//! The client's side of the broker.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::paths::Paths;
use super::protocol::{Ends, MAX_FDS, MAX_LEN, ProtocolError, Request, Response};
use super::start::{self, Connector, Step};
use super::sys::{self, HangupWatch};
use super::will::Will;
use super::{BrokerConfig, BrokerError, BrokerStatus, fdpass};
use crate::link::LocalAddr;
use crate::link::shm::ChannelOffer;
use crate::steering::Slot;

/// How long the broker may take for an answer. It answers at once, but for requests for addresses
/// while it waits for clients of its predecessor.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause after a failed attempt to reach a new broker; doubled with each failure.
const FIRST_RETRY: Duration = Duration::from_millis(50);
/// Longest pause between attempts.
const LAST_RETRY: Duration = Duration::from_secs(5);
/// Another thread uses the connection: look again after this time.
const BUSY_RETRY: Duration = Duration::from_millis(10);

/// What [`BrokerClient::service`] found or did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceOutcome {
    /// The broker is there; there is nothing to do.
    Connected,
    /// The connection had ended; a broker (a new one, most likely) now has our sockets again.
    Reconnected,
    /// There is no broker yet. The control fd becomes readable when it is time to call again, after
    /// this time; until then the process sends and receives as before.
    Retry(Duration),
}

/// This process's lease of a slot, and its sockets on shared addresses.
///
/// Survives the death of the broker: sockets stay open and steered to, and [`Self::service`] finds
/// or starts the next broker. Dropping it (or the end of the process, in whatever way) gives the
/// slot back: drop it after the links that use its sockets. After fork, the child should drop its
/// copy: the slot is held as long as any process has it.
pub struct BrokerClient {
    config: BrokerConfig,
    paths: Paths,
    slot: Slot,
    pid: u32,
    /// The slot's lock file, locked.
    lock: OwnedFd,
    watch: HangupWatch,
    state: Mutex<State>,
    /// What the broker does for us when we are gone.
    will: Option<Arc<Will>>,
}

struct State {
    link: Link,
    /// Our copies of the sockets 0 up to our own, of each address in use.
    sockets: BTreeMap<LocalAddr, Vec<OwnedFd>>,
    /// What wakes us, where we take part in shared-memory channels.
    wake: Option<OwnedFd>,
    /// Channels that others have asked for, and that nobody has taken yet.
    offers: Vec<ChannelOffer>,
}

/// The connection, or what is done to get another.
enum Link {
    Up(Connection),
    Trying {
        connector: Box<Connector>,
        failures: u32,
    },
    Pausing {
        until: Instant,
        failures: u32,
    },
}

impl BrokerClient {
    /// Leases a slot from the broker of this user and network namespace. Starts one if none is
    /// running; if several processes do this at once, one of them starts it.
    ///
    /// # Errors
    /// See [`BrokerError`].
    pub fn connect_or_start(config: &BrokerConfig) -> Result<Self, BrokerError> {
        let paths = Paths::new(config);
        let deadline = Instant::now() + config.start_timeout;
        let (connection, slot, lock) = loop {
            let mut connection = Connection::new(Connector::new(config, &paths).run()?);
            match hello(&mut connection) {
                Ok((slot, lock)) => break (connection, slot, lock),
                // It was just about to end.
                Err(BrokerError::Lost) if Instant::now() < deadline => {}
                Err(error) => return Err(error),
            }
        };
        let watch = HangupWatch::new().map_err(BrokerError::doing("creating an epoll instance"))?;
        connection.watch_with(&watch)?;
        tracing::debug!(%slot, "slot leased");
        let state = State {
            link: Link::Up(connection),
            sockets: BTreeMap::new(),
            wake: None,
            offers: Vec::new(),
        };
        let will = Will::new()
            .inspect_err(|error| tracing::warn!(%error, "writing a last will"))
            .ok();
        let client = Self {
            config: config.clone(),
            paths,
            slot,
            pid: std::process::id(),
            lock,
            watch,
            state: Mutex::new(state),
            will: will.map(Arc::new),
        };
        client.deposit_will(&mut client.state.lock())?;
        Ok(client)
    }

    /// The will that the broker has of us.
    pub(crate) fn will(&self) -> Option<&Arc<Will>> {
        self.will.as_ref()
    }

    fn deposit_will(&self, state: &mut State) -> Result<(), BrokerError> {
        if let (Some(will), Link::Up(connection)) = (&self.will, &mut state.link) {
            connection.deposit(will)?;
        }
        Ok(())
    }

    /// The slot leased, 1 to 255. Stays the same for the life of the client.
    #[must_use]
    pub const fn slot(&self) -> Slot {
        self.slot
    }

    /// Our receive socket on port 4791 of the address. The broker makes the group unless it is
    /// there; asking for the same address again yields another copy of the same socket.
    ///
    /// # Errors
    /// [`BrokerError::Refused`] if the broker cannot have the address; [`BrokerError::Lost`] if
    /// there is no broker and none can be started now.
    pub fn socket_for(&self, local: impl Into<LocalAddr>) -> Result<OwnedFd, BrokerError> {
        let local = local.into();
        self.check_process()?;
        let mut state = self.state.lock();
        if !state.sockets.contains_key(&local) {
            let deadline = Instant::now() + self.config.start_timeout;
            let sockets = loop {
                match self.open(&mut state, local) {
                    Err(BrokerError::Lost) if Instant::now() < deadline => {
                        self.reconnect(&mut state)?;
                    }
                    result => break result?,
                }
            };
            state.sockets.insert(local, sockets);
        }
        let own = state
            .sockets
            .get(&local)
            .and_then(|sockets| sockets.get(self.slot.index()));
        own.ok_or(BrokerError::Protocol(ProtocolError::Unexpected))?
            .try_clone()
            .map_err(BrokerError::doing("duplicating a socket"))
    }

    /// An fd that is readable when [`Self::service`] should be called. It stays the same for the
    /// life of the client.
    #[must_use]
    pub fn control_fd(&self) -> RawFd {
        self.watch.fd()
    }

    /// Sees to the connection: if it has ended, takes the next step to a new one, which hands all
    /// sockets to the next broker. Blocks for milliseconds at most when all is well with the broker,
    /// and for seconds if it does not answer.
    pub fn service(&self) -> ServiceOutcome {
        if self.check_process().is_err() {
            return ServiceOutcome::Connected;
        }
        let Some(mut state) = self.state.try_lock() else {
            return ServiceOutcome::Retry(BUSY_RETRY);
        };
        if let Link::Up(connection) = &mut state.link {
            if connection.take_news() {
                self.watch.wake_after(None);
                return ServiceOutcome::Connected;
            }
            tracing::info!(slot = %self.slot, "the broker has gone");
        }
        let outcome = self.step(&mut state);
        self.watch.wake_after(match outcome {
            ServiceOutcome::Retry(time) => Some(time),
            _ => None,
        });
        outcome
    }

    /// Takes part in shared-memory channels from now on; `wake` is the eventfd that wakes us.
    ///
    /// # Errors
    /// See [`BrokerError`].
    pub(crate) fn share(&self, wake: BorrowedFd<'_>) -> Result<(), BrokerError> {
        self.check_process()?;
        let wake = wake
            .try_clone_to_owned()
            .map_err(BrokerError::doing("duplicating an eventfd"))?;
        let mut state = self.state.lock();
        let Link::Up(connection) = &mut state.link else {
            // The next broker is told when it is there.
            state.wake = Some(wake);
            return Ok(());
        };
        let result = connection.share(&wake);
        if result.is_err() {
            self.disconnect(&mut state);
        }
        state.wake = Some(wake);
        result
    }

    /// Asks for a channel from our address `local` to the client with that slot at `peer`. `None`
    /// where there can be none, or while there is no broker.
    ///
    /// # Errors
    /// See [`BrokerError`].
    pub(crate) fn channel_to(
        &self,
        local: LocalAddr,
        peer: LocalAddr,
        slot: Slot,
    ) -> Result<Option<ChannelOffer>, BrokerError> {
        self.check_process()?;
        let mut state = self.state.lock();
        let Link::Up(connection) = &mut state.link else {
            return Ok(None);
        };
        let result = connection.channel(Ends { local, peer, slot });
        if matches!(result, Err(BrokerError::Lost | BrokerError::Protocol(_))) {
            self.disconnect(&mut state);
        }
        result
    }

    /// The channels that others have asked for since the last call. Unless `wait`, there are none
    /// while another thread uses the connection.
    pub(crate) fn take_offers(&self, wait: bool) -> Vec<ChannelOffer> {
        if self.check_process().is_err() {
            return Vec::new();
        }
        let state = if wait {
            Some(self.state.lock())
        } else {
            self.state.try_lock()
        };
        let Some(mut state) = state else {
            return Vec::new();
        };
        if let Link::Up(connection) = &mut state.link {
            // Whether it has ended is for `service` to see.
            connection.take_news();
            let offers = std::mem::take(&mut connection.offers);
            state.offers.extend(offers);
        }
        std::mem::take(&mut state.offers)
    }

    /// Makes the control fd readable when the other end of a socket is closed.
    pub(crate) fn watch(&self, line: BorrowedFd<'_>) -> Result<(), BrokerError> {
        let failed = BrokerError::doing("watching a life line");
        self.watch.watch_end(line).map_err(failed)
    }

    /// Takes that back; to be called before the socket is closed.
    pub(crate) fn unwatch(&self, line: BorrowedFd<'_>) {
        // A child of fork shares the epoll instance with its parent, who still needs it.
        if self.check_process().is_ok() {
            self.watch.forget(line);
        }
    }

    fn check_process(&self) -> Result<(), BrokerError> {
        if self.pid == std::process::id() {
            Ok(())
        } else {
            Err(BrokerError::Forked)
        }
    }

    /// Asks for the sockets of an address.
    fn open(&self, state: &mut State, local: LocalAddr) -> Result<Vec<OwnedFd>, BrokerError> {
        let Link::Up(connection) = &mut state.link else {
            return Err(BrokerError::Lost);
        };
        let patience = ANSWER_TIMEOUT + self.config.recovery_timeout;
        let result = connection.open(local, self.slot, patience);
        if matches!(result, Err(BrokerError::Lost | BrokerError::Protocol(_))) {
            // An answer that comes late must not be taken for that to another question.
            self.disconnect(state);
        }
        result
    }

    fn disconnect(&self, state: &mut State) {
        if let Some(will) = &self.will {
            will.set_deposited(false);
        }
        if let Link::Up(connection) = &mut state.link {
            // The channels that came do not need the broker any more.
            state.offers.append(&mut connection.offers);
            self.watch.forget(connection.socket.as_fd());
        }
        let connector = Box::new(Connector::new(&self.config, &self.paths));
        state.link = Link::Trying {
            connector,
            failures: 0,
        };
        // Somebody shall call `service`, should nobody else get a connection.
        self.watch.wake_after(Some(FIRST_RETRY));
    }

    /// Reconnects, waiting for it.
    fn reconnect(&self, state: &mut State) -> Result<(), BrokerError> {
        self.disconnect(state);
        let Link::Trying { connector, .. } = &mut state.link else {
            return Ok(());
        };
        let connection = connector.run()?;
        match self.resume(&state.sockets, state.wake.as_ref(), connection) {
            Ok(connection) => state.link = Link::Up(connection),
            Err(error) => {
                self.disconnect(state);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Takes a step to a new connection.
    fn step(&self, state: &mut State) -> ServiceOutcome {
        let failures = match &state.link {
            Link::Up(_) => {
                self.disconnect(state);
                0
            }
            Link::Trying { failures, .. } => *failures,
            Link::Pausing { until, failures } => {
                let left = until.saturating_duration_since(Instant::now());
                if !left.is_zero() {
                    return ServiceOutcome::Retry(left);
                }
                let failures = *failures;
                let connector = Box::new(Connector::new(&self.config, &self.paths));
                state.link = Link::Trying {
                    connector,
                    failures,
                };
                failures
            }
        };
        let Link::Trying { connector, .. } = &mut state.link else {
            return ServiceOutcome::Connected;
        };
        let result = connector.step().and_then(|step| match step {
            Step::Wait(time) => Ok(ServiceOutcome::Retry(time)),
            Step::Connected(connection) => {
                let connection = self.resume(&state.sockets, state.wake.as_ref(), connection)?;
                state.link = Link::Up(connection);
                Ok(ServiceOutcome::Reconnected)
            }
        });
        result.unwrap_or_else(|error| {
            let pause = (FIRST_RETRY * 2u32.saturating_pow(failures.min(16))).min(LAST_RETRY);
            tracing::warn!(%error, ?pause, "reaching a new broker");
            let failures = failures.saturating_add(1);
            state.link = Link::Pausing {
                until: Instant::now() + pause,
                failures,
            };
            ServiceOutcome::Retry(pause)
        })
    }

    /// Tells a broker that we live, and hands it our sockets.
    fn resume(
        &self,
        sockets: &BTreeMap<LocalAddr, Vec<OwnedFd>>,
        wake: Option<&OwnedFd>,
        connection: OwnedFd,
    ) -> Result<Connection, BrokerError> {
        let mut connection = Connection::new(connection);
        let request = Request::Hello {
            resume: Some(self.slot),
            name: process_name(),
        };
        let (response, _) = connection.ask(&request, &[self.lock.as_fd()], ANSWER_TIMEOUT)?;
        let Response::Welcome { slot, broker_pid } = response else {
            return Err(ProtocolError::Unexpected.into());
        };
        if slot != self.slot {
            return Err(ProtocolError::Unexpected.into());
        }
        for (local, sockets) in sockets {
            connection.restore(*local, sockets)?;
        }
        if let Some(wake) = wake {
            connection.share(wake)?;
        }
        if let Some(will) = &self.will {
            connection.deposit(will)?;
        }
        connection.watch_with(&self.watch)?;
        tracing::info!(%slot, broker_pid, "resumed with a new broker");
        Ok(connection)
    }
}

impl fmt::Debug for BrokerClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BrokerClient")
            .field("slot", &self.slot)
            .finish_non_exhaustive()
    }
}

/// Asks the running broker what it is doing.
///
/// # Errors
/// [`BrokerError::NotRunning`] if there is none.
pub fn status(config: &BrokerConfig) -> Result<BrokerStatus, BrokerError> {
    match ask_running(config, &Request::Status)? {
        Response::Status(status) => Ok(status),
        _ => Err(ProtocolError::Unexpected.into()),
    }
}

/// A broker that was told to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StopOutcome {
    /// Its process id.
    pub pid: u32,
    /// How many clients it had. They go on, and the next broker, which one of them starts at once,
    /// takes over.
    pub clients: u16,
}

/// Tells the running broker to stop. It does so whether it has clients or not: they survive it.
///
/// # Errors
/// [`BrokerError::NotRunning`] if there is none.
pub fn stop(config: &BrokerConfig) -> Result<StopOutcome, BrokerError> {
    match ask_running(config, &Request::Stop)? {
        Response::Stopping {
            broker_pid,
            clients,
        } => Ok(StopOutcome {
            pid: broker_pid,
            clients,
        }),
        _ => Err(ProtocolError::Unexpected.into()),
    }
}

fn ask_running(config: &BrokerConfig, request: &Request) -> Result<Response, BrokerError> {
    let mut connection = Connection::new(start::connect(&Paths::new(config))?);
    Ok(connection.ask(request, &[], ANSWER_TIMEOUT)?.0)
}

fn hello(connection: &mut Connection) -> Result<(Slot, OwnedFd), BrokerError> {
    let request = Request::Hello {
        resume: None,
        name: process_name(),
    };
    let (response, fds) = connection.ask(&request, &[], ANSWER_TIMEOUT)?;
    let Response::Welcome { slot, .. } = response else {
        return Err(ProtocolError::Unexpected.into());
    };
    let lock = fds.into_iter().next().ok_or(ProtocolError::Descriptors)?;
    Ok((slot, lock))
}

fn process_name() -> String {
    fs::read_to_string("/proc/self/comm")
        .map_or_else(|_| String::new(), |s| s.trim_end().to_owned())
}

/// A connection to the broker, on which requests and answers take turns, and offers of channels come
/// in between.
struct Connection {
    socket: OwnedFd,
    offers: Vec<ChannelOffer>,
}

impl Connection {
    const fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            offers: Vec::new(),
        }
    }

    /// Sends a request and waits for its (first) answer.
    fn ask(
        &mut self,
        request: &Request,
        fds: &[BorrowedFd<'_>],
        patience: Duration,
    ) -> Result<(Response, Vec<OwnedFd>), BrokerError> {
        fdpass::send(self.socket.as_fd(), &request.encode(), fds)
            .map_err(lost_or("asking the broker"))?;
        self.answer(Instant::now() + patience)
    }

    fn answer(&mut self, deadline: Instant) -> Result<(Response, Vec<OwnedFd>), BrokerError> {
        let mut buf = vec![0; MAX_LEN];
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(BrokerError::Lost);
            }
            let mut waiting = [sys::poll_readable(self.socket.as_fd())];
            sys::poll(&mut waiting, Some(left)).map_err(BrokerError::doing("waiting"))?;
            match fdpass::receive(self.socket.as_fd(), &mut buf) {
                Ok((0, _)) => return Err(BrokerError::Lost),
                Ok((len, fds)) => match Response::decode(&buf[..len], fds.len())? {
                    Response::Error { code, text } => {
                        return Err(BrokerError::Refused { code, text });
                    }
                    Response::Offer(ends) => self.offers.push(offer(ends, false, fds)?),
                    response => return Ok((response, fds)),
                },
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(lost_or("receiving the broker's answer")(error)),
            }
        }
    }

    /// Asks for the sockets 0 up to that of our slot.
    fn open(
        &mut self,
        local: LocalAddr,
        slot: Slot,
        patience: Duration,
    ) -> Result<Vec<OwnedFd>, BrokerError> {
        let mut sockets: Vec<OwnedFd> = Vec::new();
        let mut answer = self.ask(&Request::Open { local }, &[], patience)?;
        loop {
            let (response, fds) = answer;
            let wanted = slot.index() + 1;
            match response {
                Response::Sockets {
                    local: of,
                    first,
                    total,
                } if of == local
                    && usize::from(first) == sockets.len()
                    && usize::from(total) == wanted =>
                {
                    sockets.extend(fds);
                }
                _ => return Err(ProtocolError::Unexpected.into()),
            }
            if sockets.len() == wanted {
                return Ok(sockets);
            }
            answer = self.answer(Instant::now() + ANSWER_TIMEOUT)?;
        }
    }

    /// Hands sockets back.
    fn restore(&mut self, local: LocalAddr, sockets: &[OwnedFd]) -> Result<(), BrokerError> {
        for (chunk, sockets) in sockets.chunks(MAX_FDS).enumerate() {
            let first = u8::try_from(chunk * MAX_FDS).map_err(|_| ProtocolError::Descriptors)?;
            let fds: Vec<_> = sockets.iter().map(AsFd::as_fd).collect();
            let request = Request::Restore { local, first };
            match self.ask(&request, &fds, ANSWER_TIMEOUT)? {
                (Response::Accepted, _) => {}
                _ => return Err(ProtocolError::Unexpected.into()),
            }
        }
        Ok(())
    }

    /// Takes part in channels.
    fn share(&mut self, wake: &OwnedFd) -> Result<(), BrokerError> {
        match self.ask(&Request::Share, &[wake.as_fd()], ANSWER_TIMEOUT)? {
            (Response::Accepted, _) => Ok(()),
            _ => Err(ProtocolError::Unexpected.into()),
        }
    }

    /// Hands over a last will.
    fn deposit(&mut self, will: &Will) -> Result<(), BrokerError> {
        match self.ask(&Request::Will, &[will.fd()], ANSWER_TIMEOUT)? {
            (Response::Accepted, _) => {
                will.set_deposited(true);
                Ok(())
            }
            _ => Err(ProtocolError::Unexpected.into()),
        }
    }

    /// Asks for a channel.
    fn channel(&mut self, wanted: Ends) -> Result<Option<ChannelOffer>, BrokerError> {
        match self.ask(&Request::Channel(wanted), &[], ANSWER_TIMEOUT)? {
            (Response::Channel(ends), fds) if ends == wanted => offer(ends, true, fds).map(Some),
            (Response::NoChannel, _) => Ok(None),
            _ => Err(ProtocolError::Unexpected.into()),
        }
    }

    fn watch_with(&self, watch: &HangupWatch) -> Result<(), BrokerError> {
        watch
            .watch(self.socket.as_fd())
            .map_err(BrokerError::doing("watching the broker"))
    }

    /// Takes the offers that have come. False where the broker has closed its end, or sends what
    /// nobody has asked for.
    fn take_news(&mut self) -> bool {
        let mut buf = Vec::new();
        loop {
            let mut fds = [sys::poll_readable(self.socket.as_fd())];
            if !sys::poll(&mut fds, Some(Duration::ZERO)).is_ok_and(|ready| ready > 0) {
                return true;
            }
            buf.resize(MAX_LEN, 0);
            let response = match fdpass::receive(self.socket.as_fd(), &mut buf) {
                Ok((0, _)) => return false,
                Ok((len, fds)) => Response::decode(&buf[..len], fds.len()).map(|kind| (kind, fds)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                Err(_) => return false,
            };
            match response {
                Ok((Response::Offer(ends), fds)) => match offer(ends, false, fds) {
                    Ok(offer) => self.offers.push(offer),
                    Err(_) => return false,
                },
                _ => return false,
            }
        }
    }
}

/// The channel that a message brings.
fn offer(ends: Ends, asked: bool, fds: Vec<OwnedFd>) -> Result<ChannelOffer, BrokerError> {
    let Ends { local, peer, slot } = ends;
    let [memory, life_line, wake] =
        <[OwnedFd; 3]>::try_from(fds).map_err(|_| ProtocolError::Descriptors)?;
    Ok(ChannelOffer {
        local,
        peer,
        slot,
        asked,
        memory,
        life_line,
        wake,
    })
}

/// The broker's end of the connection is gone, or something else went wrong.
fn lost_or(doing: &'static str) -> impl Fn(io::Error) -> BrokerError {
    move |source| match source.kind() {
        io::ErrorKind::BrokenPipe
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::NotConnected
        | io::ErrorKind::WouldBlock => BrokerError::Lost,
        _ => BrokerError::System { doing, source },
    }
}
