//! An opened device, and its asynchronous events.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use rocade_wire::Psn;

use super::comp_channel::CompChannel;
use super::cq::{Cq, CqInitAttr};
use super::event_queue::{AckCounter, EventQueue, EventWaiter};
use super::pd::Pd;
use super::xrcd::{Xrcd, XrcdInitAttr};
use crate::engine::EngineInner;
use crate::error::VerbsError;
use crate::hca::{DeviceAttr, DeviceInfo, GidEntry, Hca, PortAttr};
use crate::sys;

/// What happened (`ibv_event_type`, AEV-*).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[doc(alias = "ibv_event_type")]
pub enum AsyncEventKind {
    /// A CQ overflowed.
    CqErr = 0,
    /// A QP could not report a completion.
    QpFatal = 1,
    /// Invalid request at the responder.
    QpReqErr = 2,
    /// Access violation at the responder.
    QpAccessErr = 3,
    /// First packet in RTR.
    CommEst = 4,
    /// The send queue has drained.
    SqDrained = 5,
    /// A QP goes on on its alternate path.
    PathMig = 6,
    /// The peer of a QP asks for a migration that does not fit the alternate path.
    PathMigErr = 7,
    /// The interfaces behind the device are gone.
    DeviceFatal = 8,
    /// The interface behind the port is up, and has a carrier.
    PortActive = 9,
    /// It is not any more.
    PortErr = 10,
    /// The CQ of an XRC SRQ has no room for its completions.
    SrqErr = 14,
    /// Fewer receives than its limit are left in a shared receive queue.
    SrqLimitReached = 15,
    /// A QP in ERR takes no more receives from its shared receive queue.
    QpLastWqeReached = 16,
    /// The GID table has changed.
    GidChange = 18,
}

impl AsyncEventKind {
    /// The `ibv_event_type` value.
    #[must_use]
    pub const fn code(self) -> u32 {
        self as u32
    }
}

/// Which object an event is about; objects are named by their cookies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventElement {
    /// A CQ.
    Cq(u64),
    /// A QP.
    Qp(u64),
    /// A shared receive queue.
    Srq(u64),
    /// A port, 1-based.
    Port(u8),
    /// The device.
    Device,
}

/// An asynchronous event (`ibv_async_event`). It has to be acknowledged.
#[derive(Clone, Debug)]
#[doc(alias = "ibv_async_event")]
pub struct AsyncEvent {
    /// What happened.
    pub kind: AsyncEventKind,
    /// To what.
    pub element: EventElement,
    /// Of the object, which it also identifies: cookies are the program's, and may be the same.
    acks: Option<Arc<AckCounter>>,
}

/// An opened device (`ibv_context`).
#[derive(Clone, Debug)]
#[doc(alias = "ibv_context")]
pub struct Context {
    pub(super) inner: Arc<ContextInner>,
}

#[derive(Debug)]
pub(crate) struct ContextInner {
    pub(super) engine: Arc<EngineInner>,
    pub(super) hca: Arc<Hca>,
    events: EventQueue<AsyncEvent>,
    command: OwnedFd,
}

impl Context {
    pub(crate) fn new(engine: Arc<EngineInner>, hca: Arc<Hca>) -> Result<Self, VerbsError> {
        let events = EventQueue::new()?;
        let command = sys::silent_fd()?;
        let inner = Arc::new(ContextInner {
            engine,
            hca,
            events,
            command,
        });
        inner.engine.watch_network(&inner);
        Ok(Self { inner })
    }

    /// A first PSN that nobody can guess; in a simulation its seed decides.
    #[must_use]
    pub fn random_psn(&self) -> Psn {
        Psn::new(self.inner.engine.random_word() & 0x00ff_ffff)
    }

    /// Name and place of the device.
    #[must_use]
    pub fn device(&self) -> DeviceInfo {
        self.inner.hca.info()
    }

    /// Identity and limits.
    #[must_use]
    #[doc(alias = "ibv_query_device")]
    pub fn device_attr(&self) -> DeviceAttr {
        self.inner.hca.device_attr()
    }

    /// The clock of completion timestamps, in nanoseconds.
    #[must_use]
    pub fn clock_ns(&self) -> u64 {
        self.inner.engine.now().as_ns()
    }

    /// What a completion timestamp is in nanoseconds since 1970 (`CLOCK_REALTIME`), as the clocks stand
    /// to each other now.
    #[must_use]
    pub fn wallclock_ns(&self, timestamp_ns: u64) -> u64 {
        let now = self.clock_ns();
        (sys::realtime_ns() + timestamp_ns).saturating_sub(now)
    }

    /// State of port `port` (1-based).
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] if there is no such port.
    #[doc(alias = "ibv_query_port")]
    pub fn port_attr(&self, port: u8) -> Result<PortAttr, VerbsError> {
        let hca = &self.inner.hca;
        let port = hca.port(port);
        let port = port.ok_or(VerbsError::InvalidArgument("port_num"))?;
        Ok(hca.port_attr(port))
    }

    /// The GID table of port 1 as it is now; a GID of 0 is an entry that is empty.
    #[must_use]
    #[doc(alias = "ibv_query_gid_table")]
    pub fn gid_entries(&self) -> Arc<[GidEntry]> {
        self.inner
            .hca
            .ports()
            .next()
            .map_or_else(Arc::default, |port| port.gids())
    }

    /// That of any port (1-based).
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] if there is no such port.
    #[doc(alias = "ibv_query_gid_table")]
    pub fn gid_entries_of(&self, port: u8) -> Result<Arc<[GidEntry]>, VerbsError> {
        let port = self.inner.hca.port(port);
        let port = port.ok_or(VerbsError::InvalidArgument("port_num"))?;
        Ok(port.gids())
    }

    /// An entry of the P_Key table, host byte order.
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] beyond the table.
    #[doc(alias = "ibv_query_pkey")]
    pub fn pkey(&self, index: u16) -> Result<u16, VerbsError> {
        self.inner
            .hca
            .pkey(index)
            .map(rocade_wire::Pkey::get)
            .ok_or(VerbsError::InvalidArgument("pkey_index"))
    }

    /// A new protection domain.
    ///
    /// # Errors
    /// None so far; the limit of the device is not reachable.
    #[doc(alias = "ibv_alloc_pd")]
    pub fn alloc_pd(&self) -> Result<Pd, VerbsError> {
        Ok(Pd::new(Arc::clone(&self.inner)))
    }

    /// A new completion channel.
    ///
    /// # Errors
    /// [`VerbsError::Io`] without file descriptors.
    #[doc(alias = "ibv_create_comp_channel")]
    pub fn create_comp_channel(&self) -> Result<CompChannel, VerbsError> {
        CompChannel::new(Arc::clone(&self.inner.engine))
    }

    /// A new completion queue of `cqe` entries. `cookie` comes back in events.
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] if `cqe` is 0 or above the limit, or there is no such
    /// completion vector (CQ-01).
    #[doc(alias = "ibv_create_cq")]
    pub fn create_cq(
        &self,
        cqe: u32,
        channel: Option<&CompChannel>,
        vector: u32,
        cookie: u64,
    ) -> Result<Cq, VerbsError> {
        self.create_cq_with(CqInitAttr {
            cqe,
            channel,
            vector,
            cookie,
            ignores_overrun: false,
        })
    }

    /// A new completion queue, with everything it can have.
    ///
    /// # Errors
    /// As [`Context::create_cq`].
    #[doc(alias = "ibv_create_cq_ex")]
    pub fn create_cq_with(&self, attr: CqInitAttr<'_>) -> Result<Cq, VerbsError> {
        Cq::new(Arc::clone(&self.inner), attr)
    }

    /// Opens an XRC domain.
    ///
    /// # Errors
    /// For that of a file: [`VerbsError::WouldBlock`] (EAGAIN) if there is none and it is not to be made,
    /// [`VerbsError::InvalidArgument`] if there is one and it had to be new (XRCL-03).
    #[doc(alias = "ibv_open_xrcd")]
    pub fn open_xrcd(&self, init: XrcdInitAttr) -> Result<Xrcd, VerbsError> {
        Xrcd::open(Arc::clone(&self.inner), init)
    }

    /// The descriptor that is readable while an asynchronous event waits.
    #[must_use]
    pub fn async_fd(&self) -> RawFd {
        self.inner.events.raw_fd()
    }

    /// A descriptor that stands for the context, as that of a driver would: it can be duplicated, and
    /// never becomes readable or writable.
    #[must_use]
    pub fn command_fd(&self) -> RawFd {
        self.inner.command.as_raw_fd()
    }

    /// Waits for an asynchronous event.
    ///
    /// # Errors
    /// [`VerbsError::WouldBlock`] if the descriptor is non-blocking and no event waits;
    /// [`VerbsError::Io`] (`EINTR`) after a signal (CQ-14).
    #[doc(alias = "ibv_get_async_event")]
    pub fn next_async_event(&self) -> Result<AsyncEvent, VerbsError> {
        let waiter = self.begin_async_wait();
        loop {
            if let Some(event) = self.take_async_event()? {
                return Ok(event);
            }
            waiter.wait()?;
        }
    }

    /// The first step of [`Context::next_async_event`], as [`CompChannel::begin_wait`].
    #[must_use]
    pub fn begin_async_wait(&self) -> EventWaiter<'_> {
        self.inner.engine.leave_inline();
        self.inner.events.waiter()
    }

    /// Takes an asynchronous event; `None` where there is none to take.
    ///
    /// # Errors
    /// As [`Context::next_async_event`].
    pub fn take_async_event(&self) -> Result<Option<AsyncEvent>, VerbsError> {
        self.inner.events.pop(|event| {
            if let Some(acks) = &event.acks {
                acks.delivered();
            }
        })
    }

    /// Acknowledges an event: destroying its object waits for that (AEV-12).
    #[doc(alias = "ibv_ack_async_event")]
    pub fn ack_async_event(&self, event: &AsyncEvent) {
        if let Some(acks) = &event.acks {
            acks.ack(1);
        }
    }
}

impl ContextInner {
    pub(crate) fn is_of(&self, hca: &Arc<Hca>) -> bool {
        Arc::ptr_eq(&self.hca, hca)
    }

    /// Raises an event that is not about an object of the program's. Who reads none does not need more than
    /// so many.
    pub(crate) fn raise_of_port(&self, kind: AsyncEventKind, element: EventElement) {
        const ENOUGH: usize = 1024;
        if self.events.len() < ENOUGH {
            self.raise(kind, element, None);
        }
    }

    pub(super) fn raise(
        &self,
        kind: AsyncEventKind,
        element: EventElement,
        acks: Option<Arc<AckCounter>>,
    ) {
        self.events.push(AsyncEvent {
            kind,
            element,
            acks,
        });
    }

    /// Drops the events of the object with this counter that nobody has read yet.
    pub(super) fn forget_events(&self, of: &Arc<AckCounter>) {
        let is_another = |acks: &Arc<AckCounter>| !Arc::ptr_eq(acks, of);
        self.events
            .retain(|event| event.acks.as_ref().is_none_or(is_another));
    }
}
