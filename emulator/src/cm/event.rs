//! What programs hear of their connections.

use std::collections::BTreeMap;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use rocade_transport::AddressVector;
use rocade_wire::{Qkey, Qpn};

use super::CmId;
use super::id::IdKey;
use crate::cells::{EventQueue, EventWaiter};
use crate::engine::{Engine, EngineInner};
use crate::error::VerbsError;

/// What happened (`rdma_cm_event_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[doc(alias = "rdma_cm_event_type")]
pub enum CmEventKind {
    /// The address is resolved.
    AddrResolved = 0,
    /// It is not.
    AddrError = 1,
    /// The route is resolved.
    RouteResolved = 2,
    /// It is not.
    RouteError = 3,
    /// A peer asks for a connection, or for a datagram service.
    ConnectRequest = 4,
    /// The peer accepts; the connection has to be established.
    ConnectResponse = 5,
    /// The connection could not be made.
    ConnectError = 6,
    /// The peer does not answer, or has no such datagram service.
    Unreachable = 7,
    /// The peer rejects.
    Rejected = 8,
    /// The connection is made.
    Established = 9,
    /// It has ended.
    Disconnected = 10,
    /// The device is gone.
    DeviceRemoval = 11,
    /// The multicast group is joined.
    MulticastJoin = 12,
    /// It is not.
    MulticastError = 13,
    /// The address has moved.
    AddrChange = 14,
    /// Packets of the connection are no longer on their way.
    TimewaitExit = 15,
}

impl CmEventKind {
    /// The `rdma_cm_event_type` value.
    #[must_use]
    pub const fn code(self) -> u32 {
        self as u32
    }
}

/// What comes with events of connections (`rdma_conn_param`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[doc(alias = "rdma_conn_param")]
pub struct ConnParam {
    /// The peer's; always of full length when received, filled up with 0 (CMA-05).
    pub private_data: Vec<u8>,
    /// READs and atomics that the peer may have outstanding here.
    pub responder_resources: u8,
    /// READs and atomics outstanding to the peer.
    pub initiator_depth: u8,
    /// Flow control of the hardware.
    pub flow_control: bool,
    /// Retries after timeouts, 0 to 7.
    pub retry_count: u8,
    /// Retries after RNR NAKs, 0 to 7; 7 is without end.
    pub rnr_retry_count: u8,
    /// The QP has a shared receive queue.
    pub srq: bool,
    /// The QP.
    pub qp_num: Qpn,
}

/// What comes with events of datagram services and multicast groups (`rdma_ud_param`).
#[derive(Clone, Debug, PartialEq, Eq)]
#[doc(alias = "rdma_ud_param")]
pub struct UdParam {
    /// The peer's; always of full length when received, filled up with 0 (CMA-05).
    pub private_data: Vec<u8>,
    /// The way to it.
    pub address: AddressVector,
    /// Its QP.
    pub qp_num: Qpn,
    /// The key to send with.
    pub qkey: Qkey,
}

/// What comes with an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CmParam {
    /// Nothing.
    None,
    /// Of a connection.
    Conn(ConnParam),
    /// Of a datagram service.
    Ud(UdParam),
}

/// An event (`rdma_cm_event`).
#[derive(Debug)]
#[doc(alias = "rdma_cm_event")]
pub struct CmEvent {
    /// What happened.
    pub kind: CmEventKind,
    /// 0, a negative errno value, or the reason of a rejection.
    pub status: i32,
    /// The cookie of the ID that it is about; of the listener where it is a request.
    pub cookie: u64,
    /// The new ID of a request.
    pub new_id: Option<CmId>,
    /// What the peer says.
    pub param: CmParam,
}

/// An event that waits.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) id: IdKey,
    pub(super) kind: CmEventKind,
    pub(super) status: i32,
    pub(super) new_id: Option<IdKey>,
    pub(super) param: CmParam,
}

/// Where events arrive (`rdma_event_channel`).
#[derive(Clone, Debug)]
#[doc(alias = "rdma_event_channel")]
pub struct CmChannel {
    pub(super) engine: Arc<EngineInner>,
    pub(super) inner: Arc<ChannelInner>,
}

#[derive(Debug)]
pub(super) struct ChannelInner {
    pub(super) events: EventQueue<Waiting>,
}

impl CmChannel {
    /// A new one.
    ///
    /// # Errors
    /// [`VerbsError::Io`] without file descriptors.
    #[doc(alias = "rdma_create_event_channel")]
    pub fn new(engine: &Engine) -> Result<Self, VerbsError> {
        let events = EventQueue::new()?;
        Ok(Self {
            engine: Arc::clone(engine.inner()),
            inner: Arc::new(ChannelInner { events }),
        })
    }

    /// A new one whose descriptor does not block.
    ///
    /// # Errors
    /// As [`CmChannel::new`].
    pub fn nonblocking(engine: &Engine) -> Result<Self, VerbsError> {
        Self::nonblocking_of(engine.inner())
    }

    /// Another one that does not block, of the same engine.
    ///
    /// # Errors
    /// As [`CmChannel::new`].
    pub fn another(&self) -> Result<Self, VerbsError> {
        Self::nonblocking_of(&self.engine)
    }

    fn nonblocking_of(engine: &Arc<EngineInner>) -> Result<Self, VerbsError> {
        let events = EventQueue::nonblocking()?;
        Ok(Self {
            engine: Arc::clone(engine),
            inner: Arc::new(ChannelInner { events }),
        })
    }

    /// The descriptor that is readable while an event waits; the application may set `O_NONBLOCK`.
    #[must_use]
    pub fn fd(&self) -> RawFd {
        self.inner.events.raw_fd()
    }

    /// Waits for an event.
    ///
    /// # Errors
    /// [`VerbsError::WouldBlock`] if the descriptor is non-blocking and no event waits;
    /// [`VerbsError::Io`] (`EINTR`) after a signal.
    #[doc(alias = "rdma_get_cm_event")]
    pub fn get_event(&self) -> Result<CmEvent, VerbsError> {
        let waiter = self.begin_wait();
        loop {
            if let Some(event) = self.take_event()? {
                return Ok(event);
            }
            waiter.wait()?;
        }
    }

    /// The first step of [`CmChannel::get_event`], as
    /// [`CompChannel::begin_wait`](crate::CompChannel::begin_wait).
    #[must_use]
    pub fn begin_wait(&self) -> EventWaiter {
        self.engine.leave_inline();
        self.inner.events.waiter()
    }

    /// Waits until the descriptor is readable, or the time is up: false then. For programs that do not wait in
    /// [`CmChannel::get_event`]; faster than poll(2) of the descriptor, because the thread looks after the sockets itself
    /// for a moment.
    ///
    /// # Errors
    /// Those of ppoll(2), of which [`io::ErrorKind::Interrupted`](std::io::ErrorKind::Interrupted) is one.
    pub fn wait_readable(&self, timeout: Duration) -> std::io::Result<bool> {
        let is_there = || self.inner.events.len() > 0;
        self.engine.wait_attentively(self.fd(), is_there, timeout)
    }

    /// Takes an event; `None` where there is none to take.
    ///
    /// # Errors
    /// As [`CmChannel::get_event`].
    pub fn take_event(&self) -> Result<Option<CmEvent>, VerbsError> {
        self.take(|events| events.pop(|_| ()))
    }

    /// Takes an event, where there is one, whatever the descriptor does.
    #[must_use]
    pub fn try_event(&self) -> Option<CmEvent> {
        // It never fails.
        self.take(|events| Ok(events.try_pop(|_| ()))).ok()?
    }

    fn take(
        &self,
        pop: impl FnOnce(&EventQueue<Waiting>) -> Result<Option<Waiting>, VerbsError>,
    ) -> Result<Option<CmEvent>, VerbsError> {
        let mut cm = self.engine.cm().lock();
        // Under the lock: an event is taken, or its ID is gone.
        let Some(waiting) = pop(&self.inner.events)? else {
            return Ok(None);
        };
        let Waiting {
            id,
            kind,
            status,
            new_id,
            param,
        } = waiting;
        let cookie = cm.as_mut().map_or(0, |core| {
            let cookie = core.reported(id, new_id);
            // A request that was taken makes room for one that is held.
            if new_id.is_some() && core.cm.holds_requests() {
                self.engine.follow_up(core, self.engine.now());
            }
            cookie
        });
        Ok(Some(CmEvent {
            kind,
            status,
            cookie,
            new_id: new_id.map(|key| CmId::of(&self.engine, key)),
            param,
        }))
    }

    /// Whose channel an ID has, for all of them.
    pub(super) fn moves(&self, id: IdKey, to: &Self) {
        let moved = self.inner.events.extract(|event| event.id == id);
        for event in moved {
            to.inner.events.push(event);
        }
    }
}

/// IDs by what they are called, for tests and figures.
pub(super) type ByKey<T> = BTreeMap<IdKey, T>;
