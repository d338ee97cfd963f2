//! Completion channels.

#[cfg(all(test, not(loom)))]
mod tests;

use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use super::context::ContextInner;
use crate::engine::ChannelKind;
use crate::error::VerbsError;
use crate::state::{CompChannelState, EventQueue, EventWaiter};

/// A completion channel, at which completion events of CQs arrive (`ibv_comp_channel`).
#[derive(Clone, Debug)]
#[doc(alias = "ibv_comp_channel")]
pub struct CompChannel {
    pub(super) context: Arc<ContextInner>,
    pub(super) inner: Arc<CompChannelState>,
    _owner: Arc<Owner>,
}

/// The channel of the program. CQs have its state only.
#[derive(Debug)]
struct Owner(Arc<CompChannelState>);

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl CompChannel {
    pub(super) fn new(context: Arc<ContextInner>) -> Result<Self, VerbsError> {
        let events = EventQueue::with_members()?;
        let inner = Arc::new(CompChannelState::new(events));
        context.events.add_channel(&inner);
        let owner = Arc::new(Owner(Arc::clone(&inner)));
        Ok(Self {
            context,
            inner,
            _owner: owner,
        })
    }

    /// Returns an error if no event is left and none can come, because the device was removed.
    ///
    /// # Errors
    /// [`VerbsError::Removed`].
    pub fn check_present(&self) -> Result<(), VerbsError> {
        let events = &self.inner.events;
        if events.has_ended() && events.len() == 0 {
            return Err(self.context.removed());
        }
        Ok(())
    }

    /// The descriptor that is readable while an event is pending. The application may set
    /// `O_NONBLOCK`. Then, while a CQ is armed, the descriptor may also be readable because packets
    /// are there, which [`CompChannel::get_event`] processes.
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
    /// [`VerbsError::Removed`] if no event is left after the device was removed.
    #[doc(alias = "ibv_get_cq_event")]
    pub fn get_event(&self) -> Result<u64, VerbsError> {
        let waiter = self.begin_wait();
        let engine = &self.context.engine;
        loop {
            if let Some(cookie) = self.take_event()? {
                return Ok(cookie);
            }
            if !engine.host.is_simulated() {
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
        self.context.engine.receive_in(&self.inner)
    }

    /// Takes a completion event and returns the cookie of its CQ, or `None` if the caller has to
    /// wait.
    ///
    /// # Errors
    /// As [`CompChannel::get_event`].
    pub fn take_event(&self) -> Result<Option<u64>, VerbsError> {
        self.check_present()?;
        let engine = &self.context.engine;
        let taken = self.inner.events.pop_in_loop(
            |cq| cq.event_taken(),
            |outer| engine.scheduler.has_loop_sockets(outer),
            || engine.receive_in_loop(|| self.inner.events.len() > 0),
        );
        let Some(outer) = self.inner.events.outer() else {
            return Ok(taken?.map(|cq| cq.cookie()));
        };
        match &taken {
            Ok(Some(_)) => engine.scheduler.note_loop_event(outer),
            Ok(None) => engine.leave_loop(outer),
            Err(_) if self.inner.is_armed() => {
                engine.watch_in_loop(outer, ChannelKind::Completions, true);
            }
            // No event can come. The program may request the next one before it waits.
            Err(_) => engine.leave_loop_soon(outer),
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
        match self
            .begin_wait()
            .wait_for(self.inner.events.event_fd(), timeout)
        {
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
        self.inner.users().check("completion channel")?;
        if let Some(outer) = self.inner.events.outer() {
            self.context.engine.leave_loop(outer);
        }
        Ok(())
    }
}
