//! Connections by IP address and port, made by the connection manager.
//!
//! The types enforce the order of calls. [`Route::connect`] consumes a [`Route`], accepting or
//! rejecting consumes a [`ConnectRequest`], and only a [`Connection`] has a queue pair that sends.

mod listener;

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::task::{self, Poll};
use std::time::Duration;

use rocade_emulator::cm::{
    CmChannel, CmEvent, CmEventKind, CmId, CmParam, ConnParam, PortSpace, RejReason,
};
use rocade_emulator::{QpState, QpType, Stopwatch, VerbsError as RawError};

pub use self::listener::{ConnectRequest, Listener};
use crate::device::{Context, DeviceList};
use crate::error::{
    ConnectError, EventError, NoAddress, OpenError, Result, RouteError, TimedOut, VerbsError,
};
use crate::queue_pair::{QueuePair, UnconnectedQueuePair};
use crate::simulation::Simulator;
use crate::units::RnrRetry;
use crate::{reactor, sys};

/// A connection manager ID, and the event channel that only this ID uses.
struct Id {
    id: CmId,
    channel: CmChannel,
    /// The executor of a simulated network.
    simulator: Option<Arc<Simulator>>,
}

impl Id {
    fn new(list: &DeviceList) -> Result<Self, VerbsError> {
        let channel = CmChannel::nonblocking(list.engine())?;
        let id = CmId::new(&channel, PortSpace::Tcp, QpType::Rc, 0)?;
        let simulator = list.simulator().cloned();
        Ok(Self {
            id,
            channel,
            simulator,
        })
    }

    /// Moves an ID that arrived in an event to an event channel of its own.
    fn adopt(id: CmId, like: &Self) -> Result<Self, VerbsError> {
        let channel = like.channel.another()?;
        id.migrate(&channel)?;
        let simulator = like.simulator.clone();
        Ok(Self {
            id,
            channel,
            simulator,
        })
    }

    fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor belongs to the channel, which outlives this borrow.
        unsafe { sys::borrow(self.channel.fd()) }
    }

    /// Waits up to `timeout` for an event that `react` accepts, and returns the result of `react`.
    fn wait<T, E: From<TimedOut> + From<RawError>>(
        &self,
        timeout: Duration,
        mut react: impl FnMut(CmEvent) -> Result<Option<T>, E>,
    ) -> Result<T, E> {
        let start = Stopwatch::start();
        let end = self
            .simulator
            .as_ref()
            .map(|simulator| simulator.end_of(timeout));
        loop {
            while let Some(event) = self.channel.try_event() {
                if let Some(done) = react(event)? {
                    return Ok(done);
                }
            }
            if let (Some(simulator), Some(end)) = (&self.simulator, end) {
                if simulator.step_until(end) || self.channel.has_event() {
                    continue;
                }
                return Err(TimedOut.into());
            }
            let Some(left) = timeout.checked_sub(start.elapsed()) else {
                return Err(TimedOut.into());
            };
            match self.channel.wait_readable(left) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => {
                    return Err(RawError::Io(error).into());
                }
                _ => {}
            }
        }
    }

    /// Polls for an event that `react` accepts. The task is woken when there may be an event.
    fn poll<T, E: From<RawError>>(
        &self,
        cx: &task::Context<'_>,
        mut react: impl FnMut(CmEvent) -> Result<Option<T>, E>,
    ) -> Poll<Result<T, E>> {
        self.channel.stop_polling();
        loop {
            match self.channel.try_event().map(&mut react).transpose() {
                Ok(Some(Some(done))) => return Poll::Ready(Ok(done)),
                Ok(Some(None)) => {}
                Ok(None) => break,
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        if let Some(simulator) = &self.simulator {
            if simulator.watch_channel(&self.channel, cx.waker()) {
                cx.waker().wake_by_ref();
            }
            return Poll::Pending;
        }
        match reactor::wake_when_readable(self.fd(), cx.waker()) {
            Ok(()) => Poll::Pending,
            Err(error) => Poll::Ready(Err(RawError::Io(error).into())),
        }
    }

    /// Returns the name of the device that the ID is bound to.
    fn device(&self) -> Option<String> {
        self.id.addresses().device
    }

    /// Moves the queue pair to RTS with the attributes of this connection.
    fn prepare(&self, qp: UnconnectedQueuePair, depths: (u8, u8)) -> Result<QueuePair, VerbsError> {
        qp.follow(|state| {
            let (mut attr, mask) = self.id.qp_attr(state)?;
            if state == QpState::Rtr {
                attr.max_dest_rd_atomic = attr.max_dest_rd_atomic.min(depths.0);
            } else {
                attr.max_rd_atomic = attr.max_rd_atomic.min(depths.1);
            }
            Ok((attr, mask))
        })
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addresses = self.id.addresses();
        f.debug_struct("Id")
            .field("local", &addresses.local)
            .field("peer", &addresses.peer)
            .finish_non_exhaustive()
    }
}

/// Returns the local address of an ID that is bound.
fn local_addr(id: &Id) -> Result<SocketAddr, NoAddress> {
    id.id.addresses().local.ok_or(NoAddress)
}

fn peer_addr(id: &Id) -> Result<SocketAddr, NoAddress> {
    id.id.addresses().peer.ok_or(NoAddress)
}

/// The parameters that one side sends to the other when they connect.
#[derive(Debug, Clone, PartialEq, Eq)]
#[doc(alias = "rdma_conn_param")]
pub struct PeerOptions {
    /// The data for the peer's program: at most 56 bytes in a request and 196 in the reply. The
    /// peer receives the data padded with zeros.
    pub private_data: Vec<u8>,
    /// The number of READs and atomics that the peer may have in flight to this side. It is 16 by
    /// default. The accepting side grants at most what the request asks for.
    pub responder_resources: u8,
    /// The number of READs and atomics that this side may have in flight. It is 16 by default, and
    /// never more than the peer grants.
    pub initiator_depth: u8,
    /// The number of retries of both sides after a timeout or a sequence error, 0 to 7. It is 7 by
    /// default. The accepting side's value is ignored.
    pub retry_cnt: u8,
    /// The number of the peer's retries while this side has no receive posted, without limit by
    /// default.
    pub rnr_retry: RnrRetry,
}

impl Default for PeerOptions {
    fn default() -> Self {
        Self {
            private_data: Vec::new(),
            responder_resources: 16,
            initiator_depth: 16,
            retry_cnt: 7,
            rnr_retry: RnrRetry::default(),
        }
    }
}

impl PeerOptions {
    /// Returns the default options with data for the peer's program.
    #[must_use]
    pub fn with_data(private_data: impl Into<Vec<u8>>) -> Self {
        Self {
            private_data: private_data.into(),
            ..Self::default()
        }
    }

    fn param(&self, qp: &UnconnectedQueuePair) -> ConnParam {
        ConnParam {
            private_data: self.private_data.clone(),
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            retry_count: self.retry_cnt,
            rnr_retry_count: self.rnr_retry.code(),
            srq: false,
            flow_control: false,
            qp_num: qp.endpoint().qp_num,
        }
    }
}

/// A route to an IP address and port: a local device and the address of the peer.
///
/// ```
/// use std::{thread, time::Duration};
///
/// use rocade_verbs::{
///     AccessFlags, DeviceList, Config, Listener, PeerOptions, Route, SendRequest,
/// };
///
/// const LONG: Duration = Duration::from_secs(10);
/// let list = DeviceList::new(Config::from_specs(&["a=127.0.0.91"])?)?;
/// let listener = Listener::bind(&list, "127.0.0.91:0".parse().unwrap())?;
/// let address = listener.local_addr()?;
///
/// let server = thread::spawn(move || {
///     let request = listener.wait(LONG)?;
///     assert_eq!(&request.private_data()[..5], b"hello");
///     let pd = request.context().protection_domain()?;
///     let cq = pd.context().completion_queue(8)?;
///     let memory = pd.register(64, AccessFlags::LOCAL_WRITE)?;
///     let qp = pd.queue_pair(&cq).build()?;
///     qp.post_recv(1, &[memory.sge(..)?])?;
///     let connection = request.accept(qp, &PeerOptions::default(), LONG)?;
///     assert_eq!(cq.wait(LONG)?.byte_len, 5);
///     connection.wait_disconnect(LONG)?;
///     Ok::<_, rocade_verbs::Error>(())
/// });
///
/// let route = Route::to(&list, address)?;
/// let pd = route.context().protection_domain()?;
/// let cq = pd.context().completion_queue(8)?;
/// let qp = pd.queue_pair(&cq).build()?;
/// let connection = route.connect(qp, &PeerOptions::with_data(*b"hello"), LONG)?;
/// connection.post_send(&SendRequest::send_inline(b"world"))?;
/// cq.wait(LONG)?;
/// connection.disconnect(LONG)?;
/// server.join().unwrap()?;
/// # Ok::<(), rocade_verbs::Error>(())
/// ```
#[derive(Debug)]
#[doc(alias = "rdma_resolve_addr")]
#[doc(alias = "rdma_resolve_route")]
pub struct Route {
    id: Id,
    context: Context,
}

impl Route {
    /// Resolves the address and the route to the peer.
    ///
    /// # Errors
    /// [`RouteError::Unreachable`] if no device has a route to `peer`.
    pub fn to(list: &DeviceList, peer: SocketAddr) -> Result<Self, RouteError> {
        let id = Self::resolve(list, None, peer)?;
        let context = open(list, &id)?;
        Ok(Self { id, context })
    }

    /// Resolves the address and the route to the peer, from the local address `local`.
    ///
    /// # Errors
    /// - As [`to`](Self::to).
    /// - [`RouteError::Verbs`] if no device has the address `local`.
    pub fn from(
        list: &DeviceList,
        local: SocketAddr,
        peer: SocketAddr,
    ) -> Result<Self, RouteError> {
        let id = Self::resolve(list, Some(local), peer)?;
        let context = open(list, &id)?;
        Ok(Self { id, context })
    }

    /// Resolves the address and the route to the peer, from the first address of an opened device
    /// with the IP version of `peer`. [`context`](Self::context) is then `context`, whose
    /// protection domains and queues serve all such routes.
    ///
    /// # Errors
    /// [`RouteError::Unreachable`] if the device has no such address, or no route to `peer`.
    pub fn on(context: &Context, peer: SocketAddr) -> Result<Self, RouteError> {
        let local = addresses(context).find(|ip| ip.is_ipv4() == peer.is_ipv4());
        let local = local.ok_or(RouteError::Unreachable)?;
        let local = SocketAddr::new(local, 0);
        let id = Self::resolve(context.list(), Some(local), peer)?;
        if id.device() != Some(context.device().name) {
            return Err(RouteError::Unreachable);
        }
        let context = context.clone();
        Ok(Self { id, context })
    }

    fn resolve(
        list: &DeviceList,
        local: Option<SocketAddr>,
        peer: SocketAddr,
    ) -> Result<Id, RouteError> {
        let id = Id::new(list)?;
        if !id.id.resolve(local.map(Into::into), peer)? {
            return Err(RouteError::Unreachable);
        }
        Ok(id)
    }

    /// Returns the opened device where the route starts. The queue pair has to be created on it.
    #[must_use]
    pub const fn context(&self) -> &Context {
        &self.context
    }

    /// Sends a connection request to the peer and waits for the reply.
    ///
    /// # Errors
    /// - [`ConnectError::Rejected`] if the peer rejects the request.
    /// - [`ConnectError::Unreachable`] if the peer does not answer.
    /// - [`ConnectError::TimedOut`] if `timeout` expires.
    /// - [`ConnectError::Verbs`] if the private data is too long, or if the queue pair belongs to
    ///   another device.
    #[doc(alias = "rdma_connect")]
    pub fn connect(
        self,
        qp: UnconnectedQueuePair,
        options: &PeerOptions,
        timeout: Duration,
    ) -> Result<Connection, ConnectError> {
        let pending = self.send_request(qp, options)?;
        let reply = pending.id.wait(timeout, reply_of)?;
        Ok(pending.finish(reply)?)
    }

    /// Connects like [`connect`](Self::connect), as a future. Dropping the future cancels the
    /// request.
    ///
    /// # Errors
    /// As [`connect`](Self::connect), except [`ConnectError::TimedOut`].
    pub async fn connect_async(
        self,
        qp: UnconnectedQueuePair,
        options: &PeerOptions,
    ) -> Result<Connection, ConnectError> {
        let pending = self.send_request(qp, options)?;
        let reply = poll_fn(|cx| pending.id.poll(cx, reply_of)).await?;
        Ok(pending.finish(reply)?)
    }

    fn send_request(
        self,
        qp: UnconnectedQueuePair,
        options: &PeerOptions,
    ) -> Result<PendingConnect, VerbsError> {
        check_device(&self.id, &qp)?;
        self.id.id.connect(&options.param(&qp))?;
        Ok(PendingConnect {
            id: self.id,
            qp,
            depths: (options.responder_resources, options.initiator_depth),
        })
    }
}

/// Opens the device that the ID is bound to.
fn open(list: &DeviceList, id: &Id) -> Result<Context, RouteError> {
    let name = id.device().ok_or(RouteError::Unreachable)?;
    list.open(&name).map_err(|error| match error {
        OpenError::NoDevice(_) => RouteError::Unreachable,
        OpenError::Verbs(error) => RouteError::Verbs(error),
    })
}

/// Returns the addresses of the device's first port.
fn addresses(context: &Context) -> impl Iterator<Item = IpAddr> {
    let gids = context.gids().into_iter();
    let gids = gids.filter(|entry| !entry.gid.is_zero());
    gids.map(|entry| entry.gid.to_ip())
}

/// Checks that the queue pair belongs to the device with the ID's address.
fn check_device(id: &Id, qp: &UnconnectedQueuePair) -> Result<(), VerbsError> {
    if id.id.has_gid(qp.endpoint().gid) {
        return Ok(());
    }
    Err(RawError::InvalidArgument("the queue pair belongs to another device").into())
}

/// A connection request that was sent.
struct PendingConnect {
    id: Id,
    qp: UnconnectedQueuePair,
    depths: (u8, u8),
}

impl PendingConnect {
    //= EVT-06
    fn finish(self, private_data: Vec<u8>) -> Result<Connection, VerbsError> {
        let qp = self.id.prepare(self.qp, self.depths)?;
        self.id.id.establish()?;
        Ok(Connection {
            id: self.id,
            qp,
            private_data,
        })
    }
}

/// Returns the peer's private data if the event is the reply to a connection request.
fn reply_of(event: CmEvent) -> Result<Option<Vec<u8>>, ConnectError> {
    match event.kind {
        CmEventKind::ConnectResponse => Ok(Some(data_of(event.param))),
        _ => failure(event).map(|()| None),
    }
}

fn data_of(param: CmParam) -> Vec<u8> {
    match param {
        CmParam::Conn(param) => param.private_data,
        CmParam::Ud(param) => param.private_data,
        CmParam::None | CmParam::User(_) => Vec::new(),
    }
}

/// Returns an error for events that end the connection attempt.
fn failure(event: CmEvent) -> Result<(), ConnectError> {
    match event.kind {
        CmEventKind::Rejected => Err(ConnectError::Rejected {
            reason: RejReason::from_code(u16::try_from(event.status).unwrap_or(0)),
            private_data: data_of(event.param),
        }),
        CmEventKind::Unreachable | CmEventKind::ConnectError => Err(ConnectError::Unreachable),
        CmEventKind::Disconnected | CmEventKind::DeviceRemoval => Err(ConnectError::Disconnected),
        _ => Ok(()),
    }
}

//= EVT-02
fn is_established(event: CmEvent) -> Result<Option<()>, ConnectError> {
    match event.kind {
        CmEventKind::Established => Ok(Some(())),
        _ => failure(event).map(|()| None),
    }
}

/// A connection. It dereferences to its queue pair. Dropping it ends the connection.
#[derive(Debug)]
pub struct Connection {
    id: Id,
    qp: QueuePair,
    private_data: Vec<u8>,
}

impl Deref for Connection {
    type Target = QueuePair;

    fn deref(&self) -> &QueuePair {
        &self.qp
    }
}

impl Connection {
    /// Returns the peer's private data, padded with zeros: 196 bytes on the side that connected, 56
    /// bytes on the side that accepted.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// Returns the address and port of this side.
    ///
    /// # Errors
    /// [`NoAddress`] if the connection is not bound to an address.
    pub fn local_addr(&self) -> Result<SocketAddr, NoAddress> {
        local_addr(&self.id)
    }

    /// Returns the address and port of the peer.
    ///
    /// # Errors
    /// [`NoAddress`] if the connection has no address of a peer.
    pub fn peer_addr(&self) -> Result<SocketAddr, NoAddress> {
        peer_addr(&self.id)
    }

    /// Waits until the peer disconnects or terminates. All posted requests are then flushed.
    ///
    /// # Errors
    /// [`EventError::TimedOut`] if the connection still exists after `timeout`.
    /// [`EventError::Verbs`] if the device was removed, for which a fault rule is the only cause.
    #[doc(alias = "RDMA_CM_EVENT_DISCONNECTED")]
    pub fn wait_disconnect(&self, timeout: Duration) -> Result<(), EventError> {
        self.id.wait(timeout, is_disconnect::<EventError>)?;
        Ok(self.end()?)
    }

    /// Waits like [`wait_disconnect`](Self::wait_disconnect), as a future.
    ///
    /// # Errors
    /// [`VerbsError`] if the process has no descriptor left to wait.
    pub async fn disconnect_event(&self) -> Result<(), VerbsError> {
        poll_fn(|cx| self.id.poll(cx, is_disconnect::<VerbsError>)).await?;
        self.end()
    }

    /// Disconnects and waits until the peer confirms.
    ///
    /// # Errors
    /// [`EventError::TimedOut`] if the peer does not confirm in time. The connection has ended
    /// nevertheless.
    #[doc(alias = "rdma_disconnect")]
    pub fn disconnect(self, timeout: Duration) -> Result<(), EventError> {
        self.end()?;
        self.id.wait(timeout, is_disconnect)
    }

    /// Disconnects like [`disconnect`](Self::disconnect), as a future. The only time limit is that
    /// of the protocol, 74 s.
    ///
    /// # Errors
    /// [`VerbsError`] if the process has no descriptor left to wait. The peer is asked to
    /// disconnect nevertheless.
    pub async fn disconnect_async(self) -> Result<(), VerbsError> {
        self.end()?;
        poll_fn(|cx| self.id.poll(cx, is_disconnect)).await
    }

    /// Moves the queue pair to ERR, and sends a disconnect request or reply to the peer.
    //= EVT-03
    fn end(&self) -> Result<(), VerbsError> {
        self.qp.set_error()?;
        Ok(self.id.id.disconnect()?)
    }
}

#[expect(
    clippy::unnecessary_wraps,
    reason = "same signature as the other event handlers"
)]
fn is_disconnect<E>(event: CmEvent) -> Result<Option<()>, E> {
    let ends = [
        CmEventKind::Disconnected,
        CmEventKind::Rejected,
        CmEventKind::TimewaitExit,
        CmEventKind::DeviceRemoval,
    ];
    Ok(ends.contains(&event.kind).then_some(()))
}

/// The descriptor is readable while an event is pending.
/// [`wait_disconnect`](Connection::wait_disconnect) then finds out whether the connection has
/// ended.
impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.id.fd()
    }
}
