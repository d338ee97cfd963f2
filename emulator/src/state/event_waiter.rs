//! Threads that wait for the events of a queue, and may receive packets meanwhile.

use std::fmt::Debug;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::RawFd;
use std::time::Duration;

use super::event_queue::EventQueue;
use crate::error::VerbsError;
use crate::sys::{EventSemaphore, PollSet};

/// Waits for events of a queue.
#[derive(Debug)]
pub struct EventWaiter {
    pub(super) semaphore: EventSemaphore,
    pub(super) receiver: Option<Box<dyn ReceivingWait>>,
}

/// A thread that receives packets while it waits for an event. When this is dropped, an event that
/// it has received and not taken is announced.
pub(crate) trait ReceivingWait: Debug {
    /// Prepares a sleep.
    fn begin(&self) -> WaitStep;

    /// Ends the sleep on `set`, and receives what has come.
    ///
    /// # Errors
    /// `woken`, if the caller has to return it.
    fn end(&self, set: PollSet, woken: io::Result<()>) -> io::Result<()>;
}

/// The events that a thread waits for.
pub(crate) trait AwaitedEvents: Send + Sync {
    /// Returns true if an event is there.
    fn has_event(&self) -> bool;

    /// Records that the call for the event waits from now on.
    fn note_wait(&self, now_ns: u64);

    /// Calls `receive`, and reserves an event that this brings for the calling thread
    /// ([`EventQueue::reserving`]).
    fn reserving(&self, receive: &mut dyn FnMut());

    /// Announces the event, if one is reserved.
    fn announce(&self);
}

/// The owner of a queue that threads wait for.
pub(crate) trait HasEvents: Send + Sync {
    type Event: Send;

    fn events(&self) -> &EventQueue<Self::Event>;
}

impl<T: HasEvents> AwaitedEvents for T {
    fn has_event(&self) -> bool {
        self.events().len() > 0
    }

    fn note_wait(&self, now_ns: u64) {
        self.events().note_wait(now_ns);
    }

    fn reserving(&self, receive: &mut dyn FnMut()) {
        self.events().reserving(receive);
    }

    fn announce(&self) {
        self.events().announce_reserved();
    }
}

/// The next step of a thread that waits. It needs no drop.
#[derive(Debug)]
#[must_use]
pub struct WaitStep(pub(crate) WaitOn);

/// The object that a thread sleeps on.
#[derive(Debug)]
pub(crate) enum WaitOn {
    /// No object, because the event may be there.
    Nothing,
    /// The semaphore of the queue. Another thread receives.
    Semaphore,
    /// These descriptors. The thread receives by itself.
    Descriptors(ManuallyDrop<PollSet>),
}

impl EventWaiter {
    /// Makes a waiter that is never woken.
    pub fn never() -> Result<Self, VerbsError> {
        Ok(Self {
            semaphore: EventSemaphore::new()?,
            receiver: None,
        })
    }

    /// Makes the thread receive while it waits.
    pub(crate) fn receiving(self, receiver: Box<dyn ReceivingWait>) -> Self {
        Self {
            receiver: Some(receiver),
            ..self
        }
    }

    /// Sleeps until there may be an event, which another thread may take first.
    ///
    /// # Errors
    /// `Interrupted` by a signal whose handler does not restart system calls.
    //= CQ-14
    pub fn wait(&self) -> io::Result<()> {
        let mut step = self.begin();
        let woken = self.block(&mut step);
        self.end(step, woken)
    }

    /// Like [`EventWaiter::wait`], but sleeps for `timeout` at most. `event_fd` is the descriptor
    /// of the queue. Not a cancellation point.
    pub(crate) fn wait_for(&self, event_fd: RawFd, timeout: Duration) -> io::Result<()> {
        let mut step = self.begin();
        let woken = match &mut step.0 {
            WaitOn::Nothing => Ok(()),
            WaitOn::Semaphore => {
                let mut set = PollSet::default();
                set.add(event_fd);
                set.wait_uncancelled(Some(timeout))
            }
            WaitOn::Descriptors(set) => set.wait_uncancelled(Some(timeout)),
        };
        self.end(step, woken)
    }

    /// Begins [`EventWaiter::wait`], for callers that take its steps themselves. The next ones are
    /// [`EventWaiter::block`] and [`EventWaiter::end`].
    pub fn begin(&self) -> WaitStep {
        match &self.receiver {
            Some(receiver) => receiver.begin(),
            None => WaitStep(WaitOn::Semaphore),
        }
    }

    /// Sleeps.
    ///
    /// A thread may be cancelled in this call (pthread_cancel(3)), which unwinds the stack. No
    /// frame of the caller may hold anything that needs dropping, `self` included, or catch panics.
    ///
    /// # Errors
    /// `Interrupted` by a signal. [`EventWaiter::end`] decides whether it matters.
    pub fn block(&self, step: &mut WaitStep) -> io::Result<()> {
        match &mut step.0 {
            WaitOn::Nothing => Ok(()),
            WaitOn::Semaphore => self.semaphore.wait(),
            WaitOn::Descriptors(set) => set.wait_cancellable(),
        }
    }

    /// Ends the sleep, given the result of [`EventWaiter::block`]. The caller looks for the event
    /// next, or drops the waiter: until then the event need not be announced.
    ///
    /// # Errors
    /// As [`EventWaiter::wait`].
    pub fn end(&self, step: WaitStep, woken: io::Result<()>) -> io::Result<()> {
        match (step.0, &self.receiver) {
            (WaitOn::Descriptors(set), Some(receiver)) => {
                receiver.end(ManuallyDrop::into_inner(set), woken)
            }
            _ => woken,
        }
    }
}
