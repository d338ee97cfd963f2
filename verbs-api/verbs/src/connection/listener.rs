//! Listeners, and the requests that arrive at them.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Mutex;
use std::task::{self, Poll};
use std::time::Duration;

use rocade_emulator::VerbsError as RawError;
use rocade_emulator::cm::{CmEvent, CmEventKind, CmParam, ConnParam, RejReason};

use super::{
    Connection, Id, PeerOptions, addresses, check_device, is_established, local_addr, peer_addr,
};
use crate::device::{Context, DeviceList};
use crate::error::{ConnectError, EventError, NoAddress, OpenError, Result, VerbsError};
use crate::queue_pair::UnconnectedQueuePair;
use crate::routing::lock;

/// The number of requests that a listener queues.
const BACKLOG: i32 = 128;

/// A listener for connection requests at an IP address and port.
#[derive(Debug)]
#[doc(alias = "rdma_listen")]
pub struct Listener {
    id: Id,
    list: DeviceList,
    /// The devices that requests arrived at.
    contexts: Mutex<Vec<Context>>,
}

impl Listener {
    /// Binds to `addr` and listens. An unspecified address listens on all addresses of its IP
    /// version. Port 0 selects a free port.
    ///
    /// # Errors
    /// [`VerbsError`] if no device has the address, or if the port is in use.
    #[doc(alias = "rdma_bind_addr")]
    pub fn bind(list: &DeviceList, addr: SocketAddr) -> Result<Self, VerbsError> {
        Self::new(list, addr, Vec::new())
    }

    /// Binds to an address of an opened device and listens. An unspecified address is the first one
    /// of its IP version. [`ConnectRequest::context`] is then `context` for all requests.
    ///
    /// # Errors
    /// [`VerbsError`] if `addr` is not an address of this device, or if the port is in use.
    #[doc(alias = "rdma_bind_addr")]
    pub fn on(context: &Context, mut addr: SocketAddr) -> Result<Self, VerbsError> {
        let other = RawError::InvalidArgument("addr: the device does not have this address");
        let own: Vec<_> = addresses(context).collect();
        if addr.ip().is_unspecified() {
            let first = own.iter().find(|ip| ip.is_ipv4() == addr.is_ipv4());
            addr.set_ip(*first.ok_or(other)?);
        } else if !own.contains(&addr.ip()) {
            return Err(other.into());
        }
        Self::new(context.list(), addr, vec![context.clone()])
    }

    fn new(
        list: &DeviceList,
        addr: SocketAddr,
        contexts: Vec<Context>,
    ) -> Result<Self, VerbsError> {
        let id = Id::new(list)?;
        id.id.bind(addr)?;
        id.id.listen(BACKLOG)?;
        Ok(Self {
            id,
            list: list.clone(),
            contexts: Mutex::new(contexts),
        })
    }

    /// Returns the device that the request has arrived at, opened once for all requests.
    fn context_of(&self, id: &Id) -> Result<Context, VerbsError> {
        let unbound = || RawError::InvalidArgument("request: it is not bound to a device");
        let name = id.device().ok_or_else(unbound)?;
        let mut contexts = lock(&self.contexts);
        // A device that was removed and has come back is another one.
        contexts.retain(|known| known.raw().check_present().is_ok());
        if let Some(known) = contexts.iter().find(|known| known.device().name == name) {
            return Ok(known.clone());
        }
        let context = self.list.open(&name).map_err(|error| match error {
            OpenError::NoDevice(_) => unbound().into(),
            OpenError::Verbs(error) => error,
        })?;
        contexts.push(context.clone());
        Ok(context)
    }

    /// Returns the address and port that the listener is bound to.
    ///
    /// # Errors
    /// [`NoAddress`] if the listener is not bound to an address.
    pub fn local_addr(&self) -> Result<SocketAddr, NoAddress> {
        local_addr(&self.id)
    }

    /// Waits up to `timeout` for the next connection request.
    ///
    /// # Errors
    /// - [`EventError::TimedOut`] if no request arrived in time.
    /// - [`EventError::Verbs`] if the process has no descriptor left for the request, or if the
    ///   device of the address was removed.
    #[doc(alias = "rdma_get_request")]
    pub fn wait(&self, timeout: Duration) -> Result<ConnectRequest, EventError> {
        self.id.wait(timeout, |event| Ok(self.request_of(event)?))
    }

    /// Waits for the next connection request, as a future.
    ///
    /// # Errors
    /// [`VerbsError`] if the process has no descriptor left, for the channel of the request or to
    /// wait, or if the device of the address was removed.
    pub async fn request(&self) -> Result<ConnectRequest, VerbsError> {
        poll_fn(|cx| self.poll_request(cx)).await
    }

    /// Polls for the next connection request, for streams. The task is woken when there may be a
    /// request.
    pub fn poll_request(&self, cx: &task::Context<'_>) -> Poll<Result<ConnectRequest, VerbsError>> {
        self.id.poll(cx, |event| self.request_of(event))
    }

    fn request_of(&self, event: CmEvent) -> Result<Option<ConnectRequest>, VerbsError> {
        if event.kind == CmEventKind::DeviceRemoval {
            let device = self.id.device().unwrap_or_default();
            return Err(RawError::Removed { device }.into());
        }
        let (Some(new), CmParam::Conn(param)) = (event.new_id, event.param) else {
            return Ok(None);
        };
        let id = Id::adopt(new, &self.id)?;
        let context = self.context_of(&id)?;
        Ok(Some(ConnectRequest { id, context, param }))
    }
}

/// The descriptor is readable while a request is pending.
impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.id.fd()
    }
}

/// A connection request from a peer. Dropping it rejects the request.
#[derive(Debug)]
#[doc(alias = "RDMA_CM_EVENT_CONNECT_REQUEST")]
pub struct ConnectRequest {
    id: Id,
    context: Context,
    param: ConnParam,
}

impl ConnectRequest {
    /// Returns the peer's private data: 56 bytes, padded with zeros.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        &self.param.private_data
    }

    /// Returns the address and port of the peer.
    ///
    /// # Errors
    /// [`NoAddress`] if the request has no address of a peer.
    pub fn peer_addr(&self) -> Result<SocketAddr, NoAddress> {
        peer_addr(&self.id)
    }

    /// Returns the opened device that received the request. The queue pair has to be created on it.
    /// All requests of a listener that arrive at one device share it.
    #[must_use]
    pub const fn context(&self) -> &Context {
        &self.context
    }

    /// Accepts the request and waits until the peer confirms. Programs should post receives before.
    ///
    /// # Errors
    /// - [`ConnectError::Disconnected`], [`ConnectError::Rejected`] or
    ///   [`ConnectError::Unreachable`] if the peer has canceled the request or does not confirm.
    /// - [`ConnectError::TimedOut`] if `timeout` expires.
    /// - [`ConnectError::Verbs`] if the private data is too long, or if the queue pair belongs to
    ///   another device.
    #[doc(alias = "rdma_accept")]
    pub fn accept(
        self,
        qp: UnconnectedQueuePair,
        options: &PeerOptions,
        timeout: Duration,
    ) -> Result<Connection, ConnectError> {
        let connection = self.send_reply(qp, options)?;
        connection.id.wait(timeout, is_established)?;
        Ok(connection)
    }

    /// Accepts like [`accept`](Self::accept), as a future.
    ///
    /// # Errors
    /// As [`accept`](Self::accept), except [`ConnectError::TimedOut`].
    pub async fn accept_async(
        self,
        qp: UnconnectedQueuePair,
        options: &PeerOptions,
    ) -> Result<Connection, ConnectError> {
        let connection = self.send_reply(qp, options)?;
        poll_fn(|cx| connection.id.poll(cx, is_established)).await?;
        Ok(connection)
    }

    fn send_reply(
        self,
        qp: UnconnectedQueuePair,
        options: &PeerOptions,
    ) -> Result<Connection, VerbsError> {
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

    /// Rejects the request, with up to 148 bytes of data for the peer's program.
    ///
    /// # Errors
    /// [`VerbsError`] if the data is longer, or if the peer has canceled the request.
    #[doc(alias = "rdma_reject")]
    pub fn reject(self, private_data: &[u8]) -> Result<(), VerbsError> {
        Ok(self.id.id.reject(RejReason::Consumer, private_data)?)
    }
}
