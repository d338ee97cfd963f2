//! Asynchronous events of objects, ports and devices.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use crate::sync::Mutex;

use super::ack_counter::AckCounter;
use super::cq::CompChannelState;
use super::event_queue::EventQueue;
use crate::error::VerbsError;
use crate::hca::Hca;

/// The kind of an asynchronous event (`ibv_event_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[doc(alias = "ibv_event_type")]
pub enum AsyncEventKind {
    /// A CQ overflowed.
    CqErr = 0,
    /// A QP could not report a completion.
    QpFatal = 1,
    /// An invalid request reached the responder.
    QpReqErr = 2,
    /// An access violation happened at the responder.
    QpAccessErr = 3,
    /// The first packet arrived in RTR.
    CommEst = 4,
    /// The send queue has drained.
    SqDrained = 5,
    /// A QP has migrated to its alternate path.
    PathMig = 6,
    /// The peer of a QP requested a migration that does not match the alternate path.
    PathMigErr = 7,
    /// The network interfaces of the device are gone, or a fault rule has removed it.
    DeviceFatal = 8,
    /// The network interface of the port is up and has a carrier.
    PortActive = 9,
    /// The network interface of the port is down or has no carrier.
    PortErr = 10,
    /// The LID of the port has changed, which RoCE does not have.
    LidChange = 11,
    /// The P_Key table has changed.
    PkeyChange = 12,
    /// Another subnet manager is in charge, which RoCE does not have.
    SmChange = 13,
    /// The CQ of an XRC SRQ has no space for its completions.
    SrqErr = 14,
    /// Fewer receives than the limit are left in a shared receive queue.
    SrqLimitReached = 15,
    /// A QP in ERR takes no more receives from its shared receive queue.
    QpLastWqeReached = 16,
    /// The subnet manager asks clients to register again, which RoCE does not have.
    ClientReregister = 17,
    /// The GID table has changed.
    GidChange = 18,
    /// The speed of the port has changed.
    DeviceSpeedChange = 20,
    /// A packet with a wrong key came to a DC target that was armed.
    //= XCON-13
    //= AEV-11
    DctKeyViolation = 32,
    /// An access violation happened at a DC target.
    DctAccessErr = 33,
    /// An invalid request reached a DC target.
    DctReqErr = 34,
}

impl AsyncEventKind {
    /// Returns the kind of this `ibv_event_type` value, if devices of RoCE have it.
    #[must_use]
    pub fn from_code(code: u32) -> Option<Self> {
        use AsyncEventKind as Kind;
        const ALL: [AsyncEventKind; 20] = [
            Kind::CqErr,
            Kind::QpFatal,
            Kind::QpReqErr,
            Kind::QpAccessErr,
            Kind::CommEst,
            Kind::SqDrained,
            Kind::PathMig,
            Kind::PathMigErr,
            Kind::DeviceFatal,
            Kind::PortActive,
            Kind::PortErr,
            Kind::LidChange,
            Kind::PkeyChange,
            Kind::SmChange,
            Kind::SrqErr,
            Kind::SrqLimitReached,
            Kind::QpLastWqeReached,
            Kind::ClientReregister,
            Kind::GidChange,
            Kind::DeviceSpeedChange,
        ];
        ALL.into_iter().find(|kind| kind.code() == code)
    }

    /// The `ibv_event_type` value.
    #[must_use]
    pub const fn code(self) -> u32 {
        self as u32
    }
}

/// The object that an event is about, by its cookie.
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
    /// The kind of event.
    pub kind: AsyncEventKind,
    /// The object that it happened to.
    pub element: EventElement,
    /// The counter of the object. It also identifies the object, because the application may use
    /// the same cookie twice.
    pub(crate) acks: Option<Arc<AckCounter>>,
}

/// The unread asynchronous events of an opened device.
#[derive(Debug)]
pub(crate) struct AsyncEvents {
    hca: Arc<Hca>,
    queue: EventQueue<AsyncEvent>,
    /// A rule has removed the device since it was opened.
    removed: AtomicBool,
    /// The completion channels of the opened device.
    channels: Mutex<Vec<Weak<CompChannelState>>>,
}

impl AsyncEvents {
    pub(crate) fn new(hca: Arc<Hca>) -> Result<Self, VerbsError> {
        let queue = EventQueue::new()?;
        Ok(Self {
            hca,
            queue,
            removed: AtomicBool::new(false),
            channels: Mutex::default(),
        })
    }

    /// Records a completion channel of the opened device.
    pub(crate) fn add_channel(&self, channel: &Arc<CompChannelState>) {
        let mut channels = self.channels.lock();
        channels.retain(|other| other.strong_count() > 0);
        channels.push(Arc::downgrade(channel));
        drop(channels);
        if self.is_removed() {
            channel.events.end();
        }
    }

    /// Returns true if a rule has removed the device since it was opened, so that it stays
    /// unusable.
    #[inline]
    pub(crate) fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Acquire)
    }

    /// Ends the use of the device: there are no events after [`AsyncEventKind::DeviceFatal`], and
    /// waiting for completion events fails. Later calls have no effect.
    pub(crate) fn remove(&self) {
        self.raise(AsyncEventKind::DeviceFatal, EventElement::Device, None);
        if self.removed.swap(true, Ordering::AcqRel) {
            return;
        }
        let channels = std::mem::take(&mut *self.channels.lock());
        for channel in channels.iter().filter_map(Weak::upgrade) {
            channel.events.end();
        }
    }

    /// The opened device.
    pub(crate) const fn hca(&self) -> &Arc<Hca> {
        &self.hca
    }

    /// The queue that applications read the events from.
    pub(crate) const fn queue(&self) -> &EventQueue<AsyncEvent> {
        &self.queue
    }

    /// Raises an event of a port or the device. See [`Self::raise_unless_many`].
    pub(crate) fn raise_of_port(&self, kind: AsyncEventKind, element: EventElement) {
        self.raise_unless_many(kind, element, None);
    }

    /// Raises an event that a peer can cause any number of times. It is dropped if too many events
    /// are unread.
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
        if self.is_removed() {
            return;
        }
        self.queue.push(AsyncEvent {
            kind,
            element,
            acks,
        });
    }

    /// Drops the unread events of the object with this counter.
    pub(crate) fn forget(&self, of: &Arc<AckCounter>) {
        let is_another = |acks: &Arc<AckCounter>| !Arc::ptr_eq(acks, of);
        self.queue
            .retain(|event| event.acks.as_ref().is_none_or(is_another));
    }
}
