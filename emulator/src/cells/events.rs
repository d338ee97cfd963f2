//! Asynchronous events: what has happened to an object, a port or the device.

use std::sync::Arc;

use super::event_queue::{AckCounter, EventQueue};
use crate::error::VerbsError;
use crate::hca::Hca;

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
    /// A packet with a wrong key came to a DC target that was armed.
    //= XCON-13
    //= AEV-11
    DctKeyViolation = 32,
    /// Access violation at a DC target.
    DctAccessErr = 33,
    /// Invalid request at a DC target.
    DctReqErr = 34,
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
    /// A DC target.
    Dct(u64),
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
    pub(crate) acks: Option<Arc<AckCounter>>,
}

/// The asynchronous events of an opened device that nobody has read yet.
#[derive(Debug)]
pub(crate) struct AsyncEvents {
    hca: Arc<Hca>,
    queue: EventQueue<AsyncEvent>,
}

impl AsyncEvents {
    pub(crate) fn new(hca: Arc<Hca>) -> Result<Self, VerbsError> {
        let queue = EventQueue::new()?;
        Ok(Self { hca, queue })
    }

    /// The device that it is of.
    pub(crate) const fn hca(&self) -> &Arc<Hca> {
        &self.hca
    }

    /// For who reads them.
    pub(crate) const fn queue(&self) -> &EventQueue<AsyncEvent> {
        &self.queue
    }

    /// Raises an event that is not about an object of the program's, see [`Self::raise_unless_many`].
    pub(crate) fn raise_of_port(&self, kind: AsyncEventKind, element: EventElement) {
        self.raise_unless_many(kind, element, None);
    }

    /// Raises an event that others can cause again and again. Who reads none does not need more than so many.
    pub(crate) fn raise_unless_many(
        &self,
        kind: AsyncEventKind,
        element: EventElement,
        acks: Option<Arc<AckCounter>>,
    ) {
        const ENOUGH: usize = 1024;
        if self.queue.len() < ENOUGH {
            self.raise(kind, element, acks);
        }
    }

    pub(crate) fn raise(
        &self,
        kind: AsyncEventKind,
        element: EventElement,
        acks: Option<Arc<AckCounter>>,
    ) {
        self.queue.push(AsyncEvent {
            kind,
            element,
            acks,
        });
    }

    /// Drops the events of the object with this counter that nobody has read yet.
    pub(crate) fn forget(&self, of: &Arc<AckCounter>) {
        let is_another = |acks: &Arc<AckCounter>| !Arc::ptr_eq(acks, of);
        self.queue
            .retain(|event| event.acks.as_ref().is_none_or(is_another));
    }
}
