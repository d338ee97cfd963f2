//! Completion channels.

use std::os::fd::RawFd;
use std::sync::Arc;

use super::context::ContextInner;
use crate::cells::{ChannelInner, EventQueue, EventWaiter};
use crate::error::VerbsError;

/// Where completion events of CQs arrive (`ibv_comp_channel`).
#[derive(Clone, Debug)]
#[doc(alias = "ibv_comp_channel")]
pub struct CompChannel {
    pub(super) context: Arc<ContextInner>,
    pub(super) inner: Arc<ChannelInner>,
}

impl CompChannel {
    pub(super) fn new(context: Arc<ContextInner>) -> Result<Self, VerbsError> {
        let events = EventQueue::new()?;
        Ok(Self {
            context,
            inner: Arc::new(ChannelInner::new(events)),
        })
    }

    /// The descriptor that is readable while an event waits; the application may set `O_NONBLOCK`.
    #[must_use]
    pub fn fd(&self) -> RawFd {
        self.inner.events.raw_fd()
    }

    /// Waits for a completion event and returns the cookie of its CQ. Each event has to be
    /// acknowledged with [`super::Cq::ack_events`].
    ///
    /// # Errors
    /// [`VerbsError::WouldBlock`] if the descriptor is non-blocking and no event waits (CQ-08), or in a
    /// simulation in which nothing is going to happen;
    /// [`VerbsError::Io`] (`EINTR`) after a signal (CQ-14).
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
                // Nothing is going to happen any more.
                return Err(VerbsError::WouldBlock);
            }
        }
    }

    /// The first step of [`CompChannel::get_event`], for callers that take the steps themselves: the
    /// thread stops polling. Then [`CompChannel::take_event`], and [`EventWaiter::wait`] as long as that
    /// gets none.
    #[must_use]
    pub fn begin_wait(&self) -> EventWaiter {
        // Nobody polls while this thread sleeps.
        self.context.engine.leave_inline();
        self.inner.events.waiter()
    }

    /// Takes a completion event and returns the cookie of its CQ; `None` where there is none to take.
    ///
    /// # Errors
    /// As [`CompChannel::get_event`].
    pub fn take_event(&self) -> Result<Option<u64>, VerbsError> {
        let cq = self.inner.events.pop(|cq| cq.acks().delivered())?;
        Ok(cq.map(|cq| cq.cookie()))
    }

    /// Ends the channel.
    ///
    /// # Errors
    /// [`VerbsError::Busy`] while CQs are attached (CQ-09).
    #[doc(alias = "ibv_destroy_comp_channel")]
    pub fn destroy(&self) -> Result<(), VerbsError> {
        self.inner.users().check("completion channel")
    }
}
