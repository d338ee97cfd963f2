//! Messages between the schedule and a process, of which only one runs.
//!
//! A receiver sleeps at once. The channels of the libraries yield the processor first, which costs
//! a time slice for each message if the machine is busy.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Returns the two ends of a channel for one message at a time.
pub(crate) fn channel<T>() -> (Sender<T>, Receiver<T>) {
    let shared = Arc::new(Shared {
        state: Mutex::new(State {
            message: None,
            has_ended: false,
        }),
        changed: Condvar::new(),
    });
    (Sender(Arc::clone(&shared)), Receiver(shared))
}

#[derive(Debug)]
struct Shared<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

#[derive(Debug)]
struct State<T> {
    message: Option<T>,
    /// One of the ends is gone.
    has_ended: bool,
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self) {
        self.lock().has_ended = true;
        self.changed.notify_one();
    }
}

/// The only end that sends.
#[derive(Debug)]
pub(crate) struct Sender<T>(Arc<Shared<T>>);

impl<T> Sender<T> {
    /// Sends a message. Returns false if the receiver is gone.
    pub(crate) fn send(&self, message: T) -> bool {
        let mut state = self.0.lock();
        if state.has_ended {
            return false;
        }
        let before = state.message.replace(message);
        assert!(before.is_none(), "each message has its answer");
        drop(state);
        self.0.changed.notify_one();
        true
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// The reason for which there is no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Silence {
    /// The sender is gone.
    Ended,
    /// The time is over.
    Late,
}

/// The only end that receives.
#[derive(Debug)]
pub(crate) struct Receiver<T>(Arc<Shared<T>>);

impl<T> Receiver<T> {
    /// Waits for a message. Returns `None` if there is none and the sender is gone.
    pub(crate) fn receive(&self) -> Option<T> {
        let mut state = self.0.lock();
        loop {
            if let Some(message) = state.message.take() {
                return Some(message);
            }
            if state.has_ended {
                return None;
            }
            let changed = self.0.changed.wait(state);
            state = changed.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits for a message, for this time at most.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn receive_within(&self, limit: Duration) -> Result<T, Silence> {
        let end = Instant::now() + limit;
        let mut state = self.0.lock();
        loop {
            if let Some(message) = state.message.take() {
                return Ok(message);
            }
            if state.has_ended {
                return Err(Silence::Ended);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Silence::Late);
            }
            let changed = self.0.changed.wait_timeout(state, left);
            (state, _) = changed.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.0.end();
    }
}
