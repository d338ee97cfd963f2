//! The events of connections.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use rocade_transport::AddressVector;
use rocade_wire::{Qkey, Qpn};

use super::CmId;
use super::id::IdKey;
use crate::engine::{ChannelKind, Engine, Nic};
use crate::error::VerbsError;
use crate::state::{EventQueue, EventWaiter, HasEvents};

/// The kind of an event (`rdma_cm_event_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[doc(alias = "rdma_cm_event_type")]
pub enum CmEventKind {
    /// The address is resolved.
    AddrResolved = 0,
    /// The address could not be resolved.
    AddrError = 1,
    /// The route is resolved.
    RouteResolved = 2,
    /// The route could not be resolved.
    RouteError = 3,
    /// A peer requests a connection, or a datagram service.
    ConnectRequest = 4,
    /// The peer has accepted. The application has to establish the connection.
    ConnectResponse = 5,
    /// The connection could not be made.
    ConnectError = 6,
    /// The peer does not respond, or has no such datagram service.
    Unreachable = 7,
    /// The peer has rejected the request.
    Rejected = 8,
    /// The connection is established.
    Established = 9,
    /// The connection has ended.
    Disconnected = 10,
    /// The device is gone.
    DeviceRemoval = 11,
    /// The multicast group is joined.
    MulticastJoin = 12,
    /// The multicast group could not be joined.
    MulticastError = 13,
    /// The address has moved.
    AddrChange = 14,
    /// No packets of the connection are in flight any more.
    TimewaitExit = 15,
    /// A name is resolved to addresses.
    AddrinfoResolved = 16,
    /// The application has written the event ([`CmId::write_event`]).
    User = 18,
}

impl CmEventKind {
    /// The `rdma_cm_event_type` value.
    #[must_use]
    pub const fn code(self) -> u32 {
        self as u32
    }
}

/// The parameters of connection events (`rdma_conn_param`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[doc(alias = "rdma_conn_param")]
pub struct ConnParam {
    /// The peer's private data. Received data always has full length, padded with zeros.
    pub private_data: Vec<u8>,
    /// Limit of outstanding READs and atomics of the peer.
    pub responder_resources: u8,
    /// Limit of outstanding READs and atomics to the peer.
    pub initiator_depth: u8,
    /// The hardware supports end-to-end flow control.
    pub flow_control: bool,
    /// Retries after timeouts, 0 to 7.
    pub retry_count: u8,
    /// Retries after RNR NAKs, 0 to 7. 7 retries for ever.
    pub rnr_retry_count: u8,
    /// The QP has a shared receive queue.
    pub srq: bool,
    /// The QP number.
    pub qp_num: Qpn,
}

/// The parameters of events of datagram services and multicast groups (`rdma_ud_param`).
#[derive(Clone, Debug, PartialEq, Eq)]
#[doc(alias = "rdma_ud_param")]
pub struct UdParam {
    /// The peer's private data. Received data always has full length, padded with zeros.
    pub private_data: Vec<u8>,
    /// The address vector of the peer.
    pub address: AddressVector,
    /// The peer's QP number.
    pub qp_num: Qpn,
    /// The Q_Key to send with.
    pub qkey: Qkey,
}

/// The parameters of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CmParam {
    /// No parameters.
    None,
    /// Parameters of a connection.
    Conn(ConnParam),
    /// Parameters of a datagram service.
    Ud(UdParam),
    /// The argument of an event that the application has written.
    User(u64),
}

/// An event (`rdma_cm_event`).
#[derive(Debug)]
#[doc(alias = "rdma_cm_event")]
pub struct CmEvent {
    /// The kind of event.
    pub kind: CmEventKind,
    /// 0, a negative errno value, or the reason of a rejection.
    pub status: i32,
    /// The cookie of the ID. For a request, the cookie of the listener.
    pub cookie: u64,
    /// The new ID of a request.
    pub new_id: Option<CmId>,
    /// The parameters that the peer has sent.
    pub param: CmParam,
    /// The peer's address, if the ID has one.
    pub peer: Option<SocketAddr>,
}

/// A queued event.
#[derive(Debug)]
pub(super) struct QueuedEvent {
    pub(super) id: IdKey,
    pub(super) kind: CmEventKind,
    pub(super) status: i32,
    pub(super) new_id: Option<IdKey>,
    pub(super) param: CmParam,
}

/// An event channel (`rdma_event_channel`).
#[derive(Clone, Debug)]
#[doc(alias = "rdma_event_channel")]
pub struct CmChannel {
    pub(super) engine: Arc<Nic>,
    pub(super) inner: Arc<CmEventChannel>,
}

#[derive(Debug)]
pub(super) struct CmEventChannel {
    pub(super) events: EventQueue<QueuedEvent>,
}

impl HasEvents for CmEventChannel {
    type Event = QueuedEvent;

    fn events(&self) -> &EventQueue<QueuedEvent> {
        &self.events
    }
}

impl CmChannel {
    /// Makes a channel.
    ///
    /// # Errors
    /// [`VerbsError::Io`] if file descriptors are exhausted.
    #[doc(alias = "rdma_create_event_channel")]
    pub fn new(engine: &Engine) -> Result<Self, VerbsError> {
        let events = EventQueue::with_members()?;
        Ok(Self {
            engine: Arc::clone(engine.inner()),
            inner: Arc::new(CmEventChannel { events }),
        })
    }

    /// Makes a channel whose descriptor is non-blocking.
    ///
    /// # Errors
    /// As [`CmChannel::new`].
    pub fn nonblocking(engine: &Engine) -> Result<Self, VerbsError> {
        Self::nonblocking_of(engine.inner())
    }

    /// Makes another channel of the same engine, with a non-blocking descriptor.
    ///
    /// # Errors
    /// As [`CmChannel::new`].
    pub fn another(&self) -> Result<Self, VerbsError> {
        Self::nonblocking_of(&self.engine)
    }

    fn nonblocking_of(engine: &Arc<Nic>) -> Result<Self, VerbsError> {
        let events = EventQueue::nonblocking()?;
        Ok(Self {
            engine: Arc::clone(engine),
            inner: Arc::new(CmEventChannel { events }),
        })
    }

    /// The descriptor that is readable while an event is pending. The application may set
    /// `O_NONBLOCK`. A channel of [`CmChannel::new`] may then also be readable because packets are
    /// there, which [`CmChannel::get_event`] processes.
    #[must_use]
    pub fn fd(&self) -> RawFd {
        self.inner.events.raw_fd()
    }

    /// Waits for an event.
    ///
    /// # Errors
    /// [`VerbsError::WouldBlock`] if the descriptor is non-blocking and no event is pending.
    /// [`VerbsError::Io`] (`EINTR`) after a signal.
    #[doc(alias = "rdma_get_cm_event")]
    pub fn get_event(&self) -> Result<CmEvent, VerbsError> {
        let waiter = self.begin_wait();
        let event = loop {
            match self.take_event().transpose() {
                Some(event) => break event,
                None => match waiter.wait() {
                    Ok(()) => {}
                    Err(error) => break Err(error.into()),
                },
            }
        };
        // If this panics, the event is dropped. A destructor that panics at the end leaks it.
        drop(waiter);
        event
    }

    /// Returns the waiter for the first step of [`CmChannel::get_event`], like
    /// [`CompChannel::begin_wait`](crate::CompChannel::begin_wait).
    #[must_use]
    pub fn begin_wait(&self) -> EventWaiter {
        self.engine.receive_in(&self.inner)
    }

    /// Leaves the packets to other threads, because this one is going to wait for the descriptor.
    pub fn stop_polling(&self) {
        self.engine.leave_inline();
    }

    /// Waits until the descriptor is readable. Returns false after a timeout. For applications that
    /// do not wait in [`CmChannel::get_event`]. It is faster than poll(2) of the descriptor,
    /// because the thread polls the sockets itself for a moment.
    ///
    /// # Errors
    /// Those of ppoll(2), such as [`io::ErrorKind::Interrupted`](std::io::ErrorKind::Interrupted).
    pub fn wait_readable(&self, timeout: Duration) -> std::io::Result<bool> {
        let is_there = || self.inner.events.len() > 0;
        self.engine
            .wait_polling(self.inner.events.event_fd(), is_there, timeout)
    }

    /// Takes an event, or returns `None` if the caller has to wait.
    ///
    /// # Errors
    /// As [`CmChannel::get_event`].
    pub fn take_event(&self) -> Result<Option<CmEvent>, VerbsError> {
        let pop = || self.take(|events| events.pop(|_| ()));
        let events = &self.inner.events;
        let mut taken = pop();
        let Some(outer) = events.outer() else {
            if matches!(taken, Err(VerbsError::WouldBlock)) {
                self.stop_polling();
            }
            return taken;
        };
        if matches!(taken, Err(VerbsError::WouldBlock))
            && self.engine.scheduler.has_loop_sockets(outer)
        {
            self.engine.receive_in_loop(|| events.len() > 0);
            let next = self.take(|events| Ok(events.try_pop(|_| ())));
            if !matches!(next, Ok(None)) {
                taken = next;
            }
        }
        let kind = ChannelKind::Connections;
        match &taken {
            Ok(Some(_)) => {
                self.engine.scheduler.note_loop_event(outer);
                if events.is_nonblocking() {
                    self.engine.watch_in_loop(outer, kind, false);
                }
            }
            Err(VerbsError::WouldBlock) => self.engine.watch_in_loop(outer, kind, true),
            Ok(None) | Err(_) => self.engine.leave_loop(outer),
        }
        taken
    }

    /// Ends the use of the channel's descriptor, which is going to be closed.
    pub fn end(&self) {
        if let Some(outer) = self.inner.events.outer() {
            self.engine.leave_loop(outer);
        }
    }

    /// Returns true if an event is there.
    #[must_use]
    pub fn has_event(&self) -> bool {
        self.inner.events.len() > 0
    }

    /// Takes an event if there is one, even if the descriptor is blocking.
    #[must_use]
    pub fn try_event(&self) -> Option<CmEvent> {
        // `try_pop` never fails.
        self.take(|events| Ok(events.try_pop(|_| ()))).ok()?
    }

    fn take(
        &self,
        pop: impl FnOnce(&EventQueue<QueuedEvent>) -> Result<Option<QueuedEvent>, VerbsError>,
    ) -> Result<Option<CmEvent>, VerbsError> {
        let mut cm = self.engine.cm.lock();
        // The lock ensures that an event is taken only while its ID exists.
        let Some(waiting) = pop(&self.inner.events)? else {
            return Ok(None);
        };
        let QueuedEvent {
            id,
            kind,
            status,
            new_id,
            param,
        } = waiting;
        let peer = cm.as_ref().and_then(|core| {
            let id = core.ids.get(&id)?;
            id.asked.or(id.dst)
        });
        let cookie = cm.as_mut().map_or(0, |core| {
            let cookie = core.reported(id, new_id);
            // A request that was taken makes room for one that is held back.
            if new_id.is_some() && core.cm.holds_requests() {
                self.engine
                    .cm
                    .follow_up(&*self.engine, core, self.engine.host.now());
            }
            cookie
        });
        Ok(Some(CmEvent {
            kind,
            status,
            cookie,
            new_id: new_id.map(|key| CmId::of(&self.engine, key)),
            param,
            peer,
        }))
    }

    /// Moves the events of an ID to another channel.
    pub(super) fn moves(&self, id: IdKey, to: &Self) {
        let moved = self.inner.events.extract(|event| event.id == id);
        for event in moved {
            to.inner.events.push(event);
        }
    }
}

/// IDs by their keys.
pub(super) type ByKey<T> = BTreeMap<IdKey, T>;
