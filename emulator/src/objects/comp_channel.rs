//! Completion channels.

use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use super::context::ContextInner;
use crate::error::VerbsError;
use crate::state::{CompChannelState, EventQueue, EventWaiter};

/// A completion channel, at which completion events of CQs arrive (`ibv_comp_channel`).
#[derive(Clone, Debug)]
#[doc(alias = "ibv_comp_channel")]
pub struct CompChannel {
    pub(super) context: Arc<ContextInner>,
    pub(super) inner: Arc<CompChannelState>,
}

impl CompChannel {
    pub(super) fn new(context: Arc<ContextInner>) -> Result<Self, VerbsError> {
        let events = EventQueue::new()?;
        Ok(Self {
            context,
            inner: Arc::new(CompChannelState::new(events)),
        })
    }

    /// The descriptor that is readable while an event is pending. The application may set
    /// `O_NONBLOCK`.
    #[must_use]
    pub fn fd(&self) -> RawFd {
        self.inner.events.raw_fd()
    }

    /// Waits for a completion event and returns the cookie of its CQ. Each event has to be
    /// acknowledged with [`super::Cq::ack_events`].
    ///
    /// # Errors
    /// [`VerbsError::WouldBlock`] if the descriptor is non-blocking and no event is pending, or if
    /// a simulation has no further events. [`VerbsError::Io`] (`EINTR`) after a signal.
    #[doc(alias = "ibv_get_cq_event")]
    pub fn get_event(&self) -> Result<u64, VerbsError> {
        let waiter = self.begin_wait();
        let engine = &self.context.engine;
        loop {
            if let Some(cookie) = self.take_event()? {
                return Ok(cookie);
            }
            if !engine.is_simulated() {
                waiter.wait()?;
            } else if !engine.progress_inline(None) {
                // The simulation has no further events.
                return Err(VerbsError::WouldBlock);
            }
        }
    }

    /// Returns the waiter for the first step of [`CompChannel::get_event`], for callers that take
    /// the steps themselves. The next step is [`CompChannel::take_event`], followed by
    /// [`EventWaiter::wait`] as long as there is no event.
    #[must_use]
    pub fn begin_wait(&self) -> EventWaiter {
        let engine = &self.context.engine;
        let channel = Arc::clone(&self.inner);
        let has_event = move || channel.events.len() > 0;
        engine.receive_in(self.inner.events.waiter(), self.fd(), has_event)
    }

    /// Takes a completion event and returns the cookie of its CQ, or `None` if the caller has to
    /// wait.
    ///
    /// # Errors
    /// As [`CompChannel::get_event`].
    pub fn take_event(&self) -> Result<Option<u64>, VerbsError> {
        let taken = self.inner.events.pop(|cq| cq.event_taken());
        if matches!(taken, Err(VerbsError::WouldBlock)) {
            // The program waits for the descriptor, and another thread has to receive.
            self.context.engine.leave_inline();
        }
        Ok(taken?.map(|cq| cq.cookie()))
    }

    /// Takes a completion event and returns the cookie of its CQ, if there is an event.
    #[must_use]
    pub fn try_event(&self) -> Option<u64> {
        let taken = self.inner.events.try_pop(|cq| cq.event_taken());
        taken.map(|cq| cq.cookie())
    }

    /// Waits until there may be an event, and receives meanwhile, even if the descriptor is
    /// non-blocking. It is faster than poll(2) of the descriptor. Ends early after a signal.
    ///
    /// # Errors
    /// Those of ppoll(2) but for `Interrupted`.
    pub fn wait_readable(&self, timeout: Duration) -> io::Result<()> {
        match self.begin_wait().wait_for(self.fd(), timeout) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            result => result,
        }
    }

    /// Destroys the channel.
    ///
    /// # Errors
    /// [`VerbsError::Busy`] while CQs are attached.
    #[doc(alias = "ibv_destroy_comp_channel")]
    pub fn destroy(&self) -> Result<(), VerbsError> {
        self.inner.users().check("completion channel")
    }
}
