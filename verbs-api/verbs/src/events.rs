//! Asynchronous events: what happens to ports and objects while nobody asks.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rocade_emulator::{AsyncEventKind, EventElement, VerbsError};

use crate::device::Context;
use crate::error::{Error, Result};
use crate::sys;

/// Tells the objects of this process apart that events are about.
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

/// What an event is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum About {
    /// The [completion queue](crate::CompletionQueue::id) of this name.
    CompletionQueue(ObjectId),
    /// The queue pair of this name, such as [`QueuePair::id`](crate::QueuePair::id).
    QueuePair(ObjectId),
    /// The [shared receive queue](crate::SharedReceiveQueue::id) of this name.
    SharedReceiveQueue(ObjectId),
    /// The [target](crate::DynamicTarget::id) of dynamic connections of this name.
    DynamicTarget(ObjectId),
    /// A port, from 1 on.
    Port(u8),
    /// The device.
    Device,
}

/// Something that has happened.
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
/// receives.warn_below(2)?;
/// # let (from, to) = (a.queue_pair(&a_cq).build()?, b.queue_pair(&b_cq).shared_receives(&receives).build()?);
/// # let (from_end, to_end) = (from.endpoint(), to.endpoint());
/// # let from = from.connect(to_end, &ConnectOptions::default())?;
/// # let _to = to.connect(from_end, &ConnectOptions::default())?;
/// from.post_send(&SendRequest::send_inline(b""))?;
/// b_cq.wait(Duration::from_secs(1))?;
///
/// let event = b.context().poll_event()?.expect("one receive is left");
/// assert_eq!(event.kind, AsyncEventKind::SrqLimitReached);
/// assert_eq!(event.about, About::SharedReceiveQueue(receives.id()));
/// # Ok::<(), rocade_verbs::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[doc(alias = "ibv_async_event")]
pub struct Event {
    /// What.
    pub kind: AsyncEventKind,
    /// To whom.
    pub about: About,
}

impl Context {
    /// The next asynchronous event, if there is one: of the port, when the network interface behind it
    /// changes, or of an object made from this context. It counts as acknowledged.
    ///
    /// # Errors
    /// None that can happen here.
    #[doc(alias = "ibv_get_async_event")]
    #[doc(alias = "ibv_ack_async_event")]
    pub fn poll_event(&self) -> Result<Option<Event>> {
        match self.raw().take_async_event() {
            Ok(Some(event)) => {
                self.raw().ack_async_event(&event);
                let about = match event.element {
                    EventElement::Cq(id) => About::CompletionQueue(ObjectId(id)),
                    EventElement::Qp(id) => About::QueuePair(ObjectId(id)),
                    EventElement::Srq(id) => About::SharedReceiveQueue(ObjectId(id)),
                    EventElement::Dct(id) => About::DynamicTarget(ObjectId(id)),
                    EventElement::Port(port) => About::Port(port),
                    EventElement::Device => About::Device,
                };
                let kind = event.kind;
                Ok(Some(Event { kind, about }))
            }
            Ok(None) | Err(VerbsError::WouldBlock) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits up to `timeout` for an asynchronous event.
    ///
    /// # Errors
    /// [`Error::TimedOut`].
    pub fn wait_event(&self, timeout: Duration) -> Result<Event> {
        let start = Instant::now();
        loop {
            if let Some(event) = self.poll_event()? {
                return Ok(event);
            }
            let Some(left) = timeout.checked_sub(start.elapsed()) else {
                return Err(Error::TimedOut);
            };
            sys::wait_readable(self.as_fd(), left)?;
        }
    }
}

/// The descriptor that is readable while an event waits.
impl AsFd for Context {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor belongs to the context, which outlives this borrow.
        unsafe { sys::borrow(self.raw().async_fd()) }
    }
}
