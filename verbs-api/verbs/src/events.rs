//! Asynchronous events of devices, ports and objects.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rocade_emulator::{EventElement, Stopwatch, VerbsError as RawError};

use crate::device::Context;
use crate::error::{EventError, Result, VerbsError};
use crate::sys;

/// An identifier, unique in this process, for the object of an [`Event`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ObjectId(u64);

impl ObjectId {
    pub(crate) fn next() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self(LAST.fetch_add(1, Ordering::Relaxed) + 1)
    }

    pub(crate) const fn cookie(self) -> u64 {
        self.0
    }
}

/// The kind of an asynchronous event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[doc(alias = "ibv_event_type")]
pub enum AsyncEventKind {
    /// A completion queue overflowed.
    CqErr,
    /// A queue pair could not report a completion.
    QpFatal,
    /// An invalid request reached the responder.
    QpReqErr,
    /// An access violation happened at the responder.
    QpAccessErr,
    /// The first packet arrived in RTR.
    CommEst,
    /// The send queue has drained.
    SqDrained,
    /// A queue pair has migrated to its alternate path.
    PathMig,
    /// The peer requested a migration that does not match the alternate path.
    PathMigErr,
    /// The network interfaces of the device are gone.
    DeviceFatal,
    /// The network interface of the port is up and has a carrier.
    PortActive,
    /// The network interface of the port is down or has no carrier.
    PortErr,
    /// The completion queue of an XRC shared receive queue has no room.
    SrqErr,
    /// Fewer receives than the limit are left in a shared receive queue.
    SrqLimitReached,
    /// A queue pair in ERR takes no more receives from its shared receive queue.
    QpLastWqeReached,
    /// The GID table has changed.
    GidChange,
    /// The LID of the port has changed. Only a fault rule raises it, as the next four.
    LidChange,
    /// The P_Key table has changed.
    PkeyChange,
    /// Another subnet manager is in charge.
    SmChange,
    /// The subnet manager asks its clients to register again.
    ClientReregister,
    /// The speed of the port has changed.
    DeviceSpeedChange,
    /// A packet with a wrong key came to a DC target that was armed.
    DctKeyViolation,
    /// An access violation happened at a DC target.
    DctAccessErr,
    /// An invalid request reached a DC target.
    DctReqErr,
}

impl AsyncEventKind {
    const fn of(raw: rocade_emulator::AsyncEventKind) -> Self {
        match raw {
            rocade_emulator::AsyncEventKind::CqErr => Self::CqErr,
            rocade_emulator::AsyncEventKind::QpFatal => Self::QpFatal,
            rocade_emulator::AsyncEventKind::QpReqErr => Self::QpReqErr,
            rocade_emulator::AsyncEventKind::QpAccessErr => Self::QpAccessErr,
            rocade_emulator::AsyncEventKind::CommEst => Self::CommEst,
            rocade_emulator::AsyncEventKind::SqDrained => Self::SqDrained,
            rocade_emulator::AsyncEventKind::PathMig => Self::PathMig,
            rocade_emulator::AsyncEventKind::PathMigErr => Self::PathMigErr,
            rocade_emulator::AsyncEventKind::DeviceFatal => Self::DeviceFatal,
            rocade_emulator::AsyncEventKind::PortActive => Self::PortActive,
            rocade_emulator::AsyncEventKind::PortErr => Self::PortErr,
            rocade_emulator::AsyncEventKind::SrqErr => Self::SrqErr,
            rocade_emulator::AsyncEventKind::SrqLimitReached => Self::SrqLimitReached,
            rocade_emulator::AsyncEventKind::QpLastWqeReached => Self::QpLastWqeReached,
            rocade_emulator::AsyncEventKind::GidChange => Self::GidChange,
            rocade_emulator::AsyncEventKind::LidChange => Self::LidChange,
            rocade_emulator::AsyncEventKind::PkeyChange => Self::PkeyChange,
            rocade_emulator::AsyncEventKind::SmChange => Self::SmChange,
            rocade_emulator::AsyncEventKind::ClientReregister => Self::ClientReregister,
            rocade_emulator::AsyncEventKind::DeviceSpeedChange => Self::DeviceSpeedChange,
            rocade_emulator::AsyncEventKind::DctKeyViolation => Self::DctKeyViolation,
            rocade_emulator::AsyncEventKind::DctAccessErr => Self::DctAccessErr,
            rocade_emulator::AsyncEventKind::DctReqErr => Self::DctReqErr,
        }
    }
}

/// The object of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventSource {
    /// The completion queue with this [identifier](crate::CompletionQueue::id).
    CompletionQueue(ObjectId),
    /// The queue pair with this identifier, such as [`QueuePair::id`](crate::QueuePair::id).
    QueuePair(ObjectId),
    /// The shared receive queue with this [identifier](crate::SharedReceiveQueue::id).
    SharedReceiveQueue(ObjectId),
    /// The DC target with this [identifier](crate::DynamicTarget::id).
    DynamicTarget(ObjectId),
    /// The port with this number, from 1 on.
    Port(u8),
    /// The device.
    Device,
}

/// An asynchronous event.
///
/// ```
/// # use std::time::Duration;
/// # use rocade_verbs::*;
/// # let list = DeviceList::new(Config::simulated(1))?;
/// # let (a, b) = (list.open("a")?.protection_domain()?, list.open("b")?.protection_domain()?);
/// # let (a_cq, b_cq) = (a.context().completion_queue(16)?, b.context().completion_queue(16)?);
/// let receives = b.shared_receive_queue(16, 1)?;
/// receives.post_recv(1, &[])?;
/// receives.post_recv(2, &[])?;
/// receives.arm_limit(2)?;
/// # let (from, to) = (a.queue_pair(&a_cq).build()?,
/// b.queue_pair(&b_cq).shared_receives(&receives).build()?);
/// # let (from_end, to_end) = (from.endpoint(), to.endpoint());
/// # let from = from.connect(to_end, &ConnectOptions::default())?;
/// # let _to = to.connect(from_end, &ConnectOptions::default())?;
/// from.post_send(&SendRequest::send_inline(b""))?;
/// b_cq.wait(Duration::from_secs(1))?;
///
/// let event = b.context().poll_event()?.expect("one receive is left");
/// assert_eq!(event.kind, AsyncEventKind::SrqLimitReached);
/// assert_eq!(event.source, EventSource::SharedReceiveQueue(receives.id()));
/// # Ok::<(), rocade_verbs::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[doc(alias = "ibv_async_event")]
pub struct Event {
    /// The kind of event.
    pub kind: AsyncEventKind,
    /// The object that the event concerns.
    pub source: EventSource,
}

impl Context {
    /// Takes the next asynchronous event, or returns `None` if there is none. The event is
    /// acknowledged at once.
    ///
    /// Events concern the objects made from this context, and the port when its network interface
    /// changes.
    ///
    /// # Errors
    /// None at present, because a missing event is `None`.
    #[doc(alias = "ibv_get_async_event")]
    #[doc(alias = "ibv_ack_async_event")]
    pub fn poll_event(&self) -> Result<Option<Event>, VerbsError> {
        match self.raw().take_async_event() {
            Ok(Some(event)) => {
                self.raw().ack_async_event(&event);
                let source = match event.element {
                    EventElement::Cq(id) => EventSource::CompletionQueue(ObjectId(id)),
                    EventElement::Qp(id) => EventSource::QueuePair(ObjectId(id)),
                    EventElement::Srq(id) => EventSource::SharedReceiveQueue(ObjectId(id)),
                    EventElement::Dct(id) => EventSource::DynamicTarget(ObjectId(id)),
                    EventElement::Port(port) => EventSource::Port(port),
                    EventElement::Device => EventSource::Device,
                };
                let kind = AsyncEventKind::of(event.kind);
                Ok(Some(Event { kind, source }))
            }
            Ok(None) | Err(RawError::WouldBlock) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits up to `timeout` for an asynchronous event.
    ///
    /// # Errors
    /// [`EventError::TimedOut`] if no event occurred in time.
    pub fn wait_event(&self, timeout: Duration) -> Result<Event, EventError> {
        let start = Stopwatch::start();
        loop {
            if let Some(event) = self.poll_event()? {
                return Ok(event);
            }
            let Some(left) = timeout.checked_sub(start.elapsed()) else {
                return Err(EventError::TimedOut);
            };
            sys::wait_readable(self.as_fd(), left).map_err(VerbsError::io)?;
        }
    }
}

/// The descriptor is readable while an event is pending.
impl AsFd for Context {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor belongs to the context, which outlives this borrow.
        unsafe { sys::borrow(self.raw().async_fd()) }
    }
}
