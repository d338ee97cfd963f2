//! Connections by IP address and port, made by the connection manager.
//!
//! What can be done when is in the types: a [`Route`] leads to a peer and is used up by connecting; a [`Request`] is
//! accepted or rejected once; only a [`Connection`] has a queue pair that sends.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd};
use std::task::{self, Poll};
use std::time::{Duration, Instant};

use rocade_emulator::cm::{
    CmChannel, CmEvent, CmEventKind, CmId, CmParam, ConnParam, PortSpace, RejReason,
};
use rocade_emulator::{Engine, QpState, QpType, VerbsError};

use crate::device::{Context, DeviceList};
use crate::error::{Error, Result};
use crate::queue_pair::{QueuePair, UnconnectedQueuePair};
use crate::units::RnrRetry;
use crate::{reactor, sys};

/// Requests that a listener keeps until they are taken.
const BACKLOG: i32 = 128;

/// An ID of the manager, and the channel of its events.
struct Id {
    id: CmId,
    channel: CmChannel,
}

impl Id {
    fn new(engine: &Engine) -> Result<Self> {
        let channel = CmChannel::nonblocking(engine)?;
        let id = CmId::new(&channel, PortSpace::Tcp, QpType::Rc, 0)?;
        Ok(Self { id, channel })
    }

    /// A new one for an ID that has come as an event of another.
    fn adopt(id: CmId, like: &CmChannel) -> Result<Self> {
        let channel = like.another()?;
        id.migrate(&channel)?;
        Ok(Self { id, channel })
    }

    fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor belongs to the channel, which outlives this borrow.
        unsafe { sys::borrow(self.channel.fd()) }
    }

    /// The next event that means something, where one comes in time.
    fn wait<T>(
        &self,
        timeout: Duration,
        mut react: impl FnMut(CmEvent) -> Result<Option<T>>,
    ) -> Result<T> {
        let start = Instant::now();
        loop {
            while let Some(event) = self.channel.try_event() {
                if let Some(done) = react(event)? {
                    return Ok(done);
                }
            }
            let Some(left) = timeout.checked_sub(start.elapsed()) else {
                return Err(Error::TimedOut);
            };
            match self.channel.wait_readable(left) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => {
                    return Err(VerbsError::Io(error).into());
                }
                _ => {}
            }
        }
    }

    /// The same for a task: it is woken when there may be one.
    fn poll<T>(
        &self,
        cx: &task::Context<'_>,
        mut react: impl FnMut(CmEvent) -> Result<Option<T>>,
    ) -> Poll<Result<T>> {
        let _ = self.channel.begin_wait();
        loop {
            match self.channel.try_event().map(&mut react).transpose() {
                Ok(Some(Some(done))) => return Poll::Ready(Ok(done)),
                Ok(Some(None)) => {}
                Ok(None) => break,
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        match reactor::wake_when_readable(self.fd(), cx.waker()) {
            Ok(()) => Poll::Pending,
            Err(error) => Poll::Ready(Err(error.into())),
        }
    }

    /// The device that its address is of.
    fn context(&self, list: &DeviceList) -> Result<Context> {
        let device = self.id.addresses().device;
        list.open(&device.ok_or(Error::Unreachable)?)
    }

    /// The queue pair becomes that of the connection.
    fn prepare(&self, qp: UnconnectedQueuePair, depths: (u8, u8)) -> Result<QueuePair> {
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

/// The local address of an ID, which has one.
fn local_addr(id: &Id) -> Result<SocketAddr> {
    id.id.addresses().local.ok_or(Error::Unreachable)
}

fn peer_addr(id: &Id) -> Result<SocketAddr> {
    id.id.addresses().peer.ok_or(Error::Unreachable)
}

/// What one side tells the other when they connect.
#[derive(Debug, Clone, PartialEq, Eq)]
#[doc(alias = "rdma_conn_param")]
pub struct PeerOptions {
    /// Bytes for the peer's program: at most 56 in a request, 196 in the answer. The peer sees them followed by
    /// zeroes.
    pub private_data: Vec<u8>,
    /// READs and atomics that the peer may have in flight to this side; 16 by default. Whoever accepts gives no more than was
    /// asked for.
    pub responder_resources: u8,
    /// READs and atomics that this side has in flight; 16 by default, and never more than the peer grants.
    pub initiator_depth: u8,
    /// Retries after a timeout or a sequence error, on both sides, 0 to 7; 7 by default. Who accepts has no say.
    pub retry_cnt: u8,
    /// Retries of the peer while there is no receive posted here, without limit by default.
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
    /// The defaults, and bytes for the peer's program.
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

/// The way to an address and port.
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
///     let pd = request.context()?.protection_domain()?;
///     let (cq, memory) = (pd.context().completion_queue(8)?, pd.register(64, AccessFlags::LOCAL_WRITE)?);
///     let qp = pd.queue_pair(&cq).build()?;
///     qp.post_recv(1, &[memory.sge(..)?])?;
///     let connection = request.accept(qp, &PeerOptions::default(), LONG)?;
///     assert_eq!(cq.wait(LONG)?.byte_len, 5);
///     connection.wait_end(LONG)
/// });
///
/// let route = Route::to(&list, address)?;
/// let pd = route.context()?.protection_domain()?;
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
    list: DeviceList,
}

impl Route {
    /// Finds it.
    ///
    /// # Errors
    /// [`Error::Unreachable`] if no device leads there.
    pub fn to(list: &DeviceList, peer: SocketAddr) -> Result<Self> {
        Self::resolve(list, None, peer)
    }

    /// The same from an address of this host.
    ///
    /// # Errors
    /// As [`to`](Self::to); [`Error::Verbs`] if no device has the address.
    pub fn from(list: &DeviceList, local: SocketAddr, peer: SocketAddr) -> Result<Self> {
        Self::resolve(list, Some(local), peer)
    }

    fn resolve(list: &DeviceList, local: Option<SocketAddr>, peer: SocketAddr) -> Result<Self> {
        let id = Id::new(list.engine())?;
        if !id.id.resolve(local.map(Into::into), peer)? {
            return Err(Error::Unreachable);
        }
        Ok(Self {
            id,
            list: list.clone(),
        })
    }

    /// The device that it begins at: the queue pair has to be made there.
    ///
    /// # Errors
    /// None that can happen here.
    pub fn context(&self) -> Result<Context> {
        self.id.context(&self.list)
    }

    /// Asks the peer for a connection and waits for its answer.
    ///
    /// # Errors
    /// [`Error::Rejected`], [`Error::Unreachable`], [`Error::TimedOut`]; [`Error::Verbs`] if the private data are too long, or
    /// the queue pair is of another device.
    #[doc(alias = "rdma_connect")]
    pub fn connect(
        self,
        qp: UnconnectedQueuePair,
        options: &PeerOptions,
        timeout: Duration,
    ) -> Result<Connection> {
        let asked = self.ask(qp, options)?;
        let answer = asked.id.wait(timeout, answer_of)?;
        asked.finish(answer)
    }

    /// The same as a future.
    ///
    /// # Errors
    /// As [`connect`](Self::connect), but for the time limit. A future that is dropped asks for nothing any more.
    pub async fn connected(
        self,
        qp: UnconnectedQueuePair,
        options: &PeerOptions,
    ) -> Result<Connection> {
        let asked = self.ask(qp, options)?;
        let answer = poll_fn(|cx| asked.id.poll(cx, answer_of)).await?;
        asked.finish(answer)
    }

    fn ask(self, qp: UnconnectedQueuePair, options: &PeerOptions) -> Result<Asked> {
        check_device(&self.id, &qp)?;
        self.id.id.connect(&options.param(&qp))?;
        Ok(Asked {
            id: self.id,
            qp,
            depths: (options.responder_resources, options.initiator_depth),
        })
    }
}

/// The queue pair has to be of the device that has the addresses.
fn check_device(id: &Id, qp: &UnconnectedQueuePair) -> Result<()> {
    if id.id.has_gid(qp.endpoint().gid) {
        return Ok(());
    }
    Err(VerbsError::InvalidArgument("the queue pair is of another device").into())
}

/// A connection that was asked for.
struct Asked {
    id: Id,
    qp: UnconnectedQueuePair,
    depths: (u8, u8),
}

impl Asked {
    //= EVT-06
    fn finish(self, private_data: Vec<u8>) -> Result<Connection> {
        let qp = self.id.prepare(self.qp, self.depths)?;
        self.id.id.establish()?;
        Ok(Connection {
            id: self.id,
            qp,
            private_data,
        })
    }
}

/// The answer to a request: the peer's private data.
fn answer_of(event: CmEvent) -> Result<Option<Vec<u8>>> {
    match event.kind {
        CmEventKind::ConnectResponse => Ok(Some(data_of(event.param))),
        _ => failure(event).map(|()| None),
    }
}

fn data_of(param: CmParam) -> Vec<u8> {
    match param {
        CmParam::Conn(param) => param.private_data,
        CmParam::Ud(param) => param.private_data,
        CmParam::None => Vec::new(),
    }
}

/// Events that mean that there will be no connection.
fn failure(event: CmEvent) -> Result<()> {
    match event.kind {
        CmEventKind::Rejected => Err(Error::Rejected {
            reason: RejReason::from_code(u16::try_from(event.status).unwrap_or(0)),
            private_data: data_of(event.param),
        }),
        CmEventKind::Unreachable | CmEventKind::ConnectError => Err(Error::Unreachable),
        CmEventKind::Disconnected => Err(Error::Disconnected),
        _ => Ok(()),
    }
}

/// Waits for requests at an address and port.
#[derive(Debug)]
#[doc(alias = "rdma_listen")]
pub struct Listener {
    id: Id,
    list: DeviceList,
}

impl Listener {
    /// Listens. An unspecified address stands for all of its IP version, port 0 for any.
    ///
    /// # Errors
    /// [`Error::Verbs`] if no device has the address, or somebody listens there.
    #[doc(alias = "rdma_bind_addr")]
    pub fn bind(list: &DeviceList, addr: SocketAddr) -> Result<Self> {
        let id = Id::new(list.engine())?;
        id.id.bind(addr)?;
        id.id.listen(BACKLOG)?;
        Ok(Self {
            id,
            list: list.clone(),
        })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// None that can happen here.
    pub fn local_addr(&self) -> Result<SocketAddr> {
        local_addr(&self.id)
    }

    /// The next request.
    ///
    /// # Errors
    /// [`Error::TimedOut`].
    #[doc(alias = "rdma_get_request")]
    pub fn wait(&self, timeout: Duration) -> Result<Request> {
        self.id.wait(timeout, |event| self.request_of(event))
    }

    /// The same as a future.
    ///
    /// # Errors
    /// None that can happen here.
    pub async fn request(&self) -> Result<Request> {
        poll_fn(|cx| self.poll_request(cx)).await
    }

    /// The same for who makes a stream of it: the task is woken when there may be a request.
    pub fn poll_request(&self, cx: &task::Context<'_>) -> Poll<Result<Request>> {
        self.id.poll(cx, |event| self.request_of(event))
    }

    fn request_of(&self, event: CmEvent) -> Result<Option<Request>> {
        let (Some(new), CmParam::Conn(param)) = (event.new_id, event.param) else {
            return Ok(None);
        };
        Ok(Some(Request {
            id: Id::adopt(new, &self.id.channel)?,
            list: self.list.clone(),
            param,
        }))
    }
}

/// Readable while a request waits.
impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.id.fd()
    }
}

/// A peer asks for a connection. Dropping it rejects it.
#[derive(Debug)]
#[doc(alias = "RDMA_CM_EVENT_CONNECT_REQUEST")]
pub struct Request {
    id: Id,
    list: DeviceList,
    param: ConnParam,
}

impl Request {
    /// What its program says: 56 bytes, of which those that it does not use are 0.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        &self.param.private_data
    }

    /// Address and port of the peer.
    ///
    /// # Errors
    /// None that can happen here.
    pub fn peer_addr(&self) -> Result<SocketAddr> {
        peer_addr(&self.id)
    }

    /// The device that it has come to: the queue pair has to be made there.
    ///
    /// # Errors
    /// None that can happen here.
    pub fn context(&self) -> Result<Context> {
        self.id.context(&self.list)
    }

    /// Accepts, and waits until the peer knows. Post receives before.
    ///
    /// # Errors
    /// [`Error::Disconnected`], [`Error::Rejected`] or [`Error::Unreachable`] if the peer has thought better of it;
    /// [`Error::TimedOut`]; [`Error::Verbs`] if the private data are too long, or the queue pair is of another device.
    #[doc(alias = "rdma_accept")]
    pub fn accept(
        self,
        qp: UnconnectedQueuePair,
        options: &PeerOptions,
        timeout: Duration,
    ) -> Result<Connection> {
        let connection = self.answer(qp, options)?;
        connection.id.wait(timeout, is_established)?;
        Ok(connection)
    }

    /// The same as a future.
    ///
    /// # Errors
    /// As [`accept`](Self::accept), but for the time limit.
    pub async fn accepted(
        self,
        qp: UnconnectedQueuePair,
        options: &PeerOptions,
    ) -> Result<Connection> {
        let connection = self.answer(qp, options)?;
        poll_fn(|cx| connection.id.poll(cx, is_established)).await?;
        Ok(connection)
    }

    fn answer(self, qp: UnconnectedQueuePair, options: &PeerOptions) -> Result<Connection> {
        check_device(&self.id, &qp)?;
        let mut param = options.param(&qp);
        param.responder_resources = param
            .responder_resources
            .min(self.param.responder_resources);
        param.initiator_depth = param.initiator_depth.min(self.param.initiator_depth);
        let qp = self
            .id
            .prepare(qp, (param.responder_resources, param.initiator_depth))?;
        self.id.id.accept(0, &param)?;
        Ok(Connection {
            id: self.id,
            qp,
            private_data: self.param.private_data,
        })
    }

    /// Rejects, with up to 148 bytes for the peer's program.
    ///
    /// # Errors
    /// [`Error::Verbs`] if they are more, or the peer has given up.
    #[doc(alias = "rdma_reject")]
    pub fn reject(self, private_data: &[u8]) -> Result<()> {
        Ok(self.id.id.reject(RejReason::Consumer, private_data)?)
    }
}

//= EVT-02
fn is_established(event: CmEvent) -> Result<Option<()>> {
    match event.kind {
        CmEventKind::Established => Ok(Some(())),
        _ => failure(event).map(|()| None),
    }
}

/// A connection, and its queue pair, which it can be used as. Dropping it ends it.
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
    /// What the peer's program has said: 196 bytes of who has accepted, 56 of who has asked, filled up with 0.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// Address and port of this side.
    ///
    /// # Errors
    /// None that can happen here.
    pub fn local_addr(&self) -> Result<SocketAddr> {
        local_addr(&self.id)
    }

    /// Address and port of the peer.
    ///
    /// # Errors
    /// None that can happen here.
    pub fn peer_addr(&self) -> Result<SocketAddr> {
        peer_addr(&self.id)
    }

    /// Waits until the peer ends the connection, or is gone. What is posted then comes back flushed.
    ///
    /// # Errors
    /// [`Error::TimedOut`].
    #[doc(alias = "RDMA_CM_EVENT_DISCONNECTED")]
    pub fn wait_end(&self, timeout: Duration) -> Result<()> {
        self.id.wait(timeout, is_end)?;
        self.end()
    }

    /// The same as a future.
    ///
    /// # Errors
    /// None that can happen here.
    pub async fn ended(&self) -> Result<()> {
        poll_fn(|cx| self.id.poll(cx, is_end)).await?;
        self.end()
    }

    /// Ends the connection and waits until the peer has heard.
    ///
    /// # Errors
    /// [`Error::TimedOut`]: the peer has not answered; the connection has ended all the same.
    #[doc(alias = "rdma_disconnect")]
    pub fn disconnect(self, timeout: Duration) -> Result<()> {
        self.end()?;
        self.id.wait(timeout, is_end)
    }

    /// The same as a future, without a time limit but that of the protocol: 74 s.
    ///
    /// # Errors
    /// None that can happen here.
    pub async fn disconnected(self) -> Result<()> {
        self.end()?;
        poll_fn(|cx| self.id.poll(cx, is_end)).await
    }

    /// Nothing is sent or received any more; the peer is told, or answered.
    //= EVT-03
    fn end(&self) -> Result<()> {
        self.qp.stop()?;
        Ok(self.id.id.disconnect()?)
    }
}

#[expect(
    clippy::unnecessary_wraps,
    reason = "as the others that look at events"
)]
fn is_end(event: CmEvent) -> Result<Option<()>> {
    let ends = [
        CmEventKind::Disconnected,
        CmEventKind::Rejected,
        CmEventKind::TimewaitExit,
    ];
    Ok(ends.contains(&event.kind).then_some(()))
}

/// Readable when there is news: [`wait_end`](Connection::wait_end) says whether it has ended.
impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.id.fd()
    }
}
