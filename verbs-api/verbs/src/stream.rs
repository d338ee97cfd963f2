//! Completions of a queue as futures and as a stream, and drivers for a program's own event loop.

use std::fmt;
use std::future::Future;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{self, Poll};

use futures_core::Stream;

use crate::completion::{Completion, CompletionQueue};
use crate::error::{OperationError, Result, VerbsError};
use crate::routing::Router;

/// Polls for a completion that belongs to no [`Operation`](crate::Operation).
fn poll_router(
    router: &Router,
    key: &mut Option<u64>,
    cx: &task::Context<'_>,
) -> Poll<Result<Completion, OperationError>> {
    if let Some(completion) = router.pop_or_wait(key, None) {
        return Poll::Ready(Ok(completion.into_result()?));
    }
    router.try_take();
    if let Some(completion) = router.pop_or_wait(key, Some(cx.waker())) {
        return Poll::Ready(Ok(completion.into_result()?));
    }
    let polls_again = router.ensure_wake()?;
    if let Some(completion) = router.pop_or_wait(key, None) {
        return Poll::Ready(Ok(completion.into_result()?));
    }
    if polls_again {
        cx.waker().wake_by_ref();
    }
    Poll::Pending
}

impl CompletionQueue {
    /// Waits for the next completion of a request that the program has posted itself. Completions
    /// of [operations](crate::Operation) go to their futures.
    ///
    /// Several tasks can wait, and each completion wakes one of them. A future that is dropped
    /// loses no completion.
    ///
    /// # Errors
    /// - [`OperationError::Completion`] if the work request failed.
    /// - [`OperationError::Verbs`] if the process has no descriptor left to wait.
    ///
    /// ```
    /// use rocade_verbs::{SendRequest, simulated_pair};
    ///
    /// let (a, _b) = simulated_pair(1)?;
    /// a.qp.post_send(&SendRequest::nop().wr_id(5))?;
    /// let completion = a.simulation().block_on(a.cq.next())??;
    /// assert_eq!(completion.wr_id, 5);
    /// # Ok::<(), rocade_verbs::Error>(())
    /// ```
    pub const fn next(&self) -> NextCompletion<'_> {
        NextCompletion {
            router: self.router(),
            key: None,
        }
    }

    /// Polls for the next completion, as [`next`](Self::next) does, for futures of a program's own.
    /// The task that was woken has to poll again, or the others wait longer.
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub fn poll_next(&self, cx: &task::Context<'_>) -> Poll<Result<Completion, OperationError>> {
        poll_router(self.router(), &mut None, cx)
    }

    /// Returns the completions as a stream, which never ends.
    pub const fn completions(&self) -> Completions<'_> {
        Completions(self.next())
    }

    /// Returns a driver, for programs that wait for the descriptor in an event loop of their own,
    /// such as Tokio's `AsyncFd`.
    ///
    /// # Errors
    /// [`VerbsError`] if the queue cannot be armed.
    pub fn driver(&self) -> Result<CompletionDriver, VerbsError> {
        let driver = CompletionDriver(Arc::clone(self.router()));
        driver.0.add_driver();
        driver.0.go_on()?;
        Ok(driver)
    }
}

/// The next completion of a queue, as a future of [`CompletionQueue::next`].
#[must_use = "futures do nothing unless they are polled"]
pub struct NextCompletion<'a> {
    router: &'a Arc<Router>,
    key: Option<u64>,
}

impl Future for NextCompletion<'_> {
    type Output = Result<Completion, OperationError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        poll_router(this.router, &mut this.key, cx)
    }
}

impl Drop for NextCompletion<'_> {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.router.stop_waiting(key);
        }
    }
}

impl fmt::Debug for NextCompletion<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NextCompletion").finish_non_exhaustive()
    }
}

/// The completions of a queue, as a stream of [`CompletionQueue::completions`].
#[derive(Debug)]
#[must_use = "streams do nothing unless they are polled"]
pub struct Completions<'a>(NextCompletion<'a>);

impl Stream for Completions<'_> {
    type Item = Result<Completion, OperationError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<Option<Self::Item>> {
        Pin::new(&mut self.0).poll(cx).map(Some)
    }
}

/// The connection of a completion queue to an event loop of the program.
///
/// While a driver exists, the process needs no thread of its own to wake tasks: the program waits
/// until the descriptor is readable, and calls [`dispatch`](Self::dispatch). Dropping the driver
/// gives the wake-ups back to that thread. In a simulated network it has no effect, because
/// [`Simulation::block_on`](crate::Simulation::block_on) delivers.
pub struct CompletionDriver(Arc<Router>);

impl CompletionDriver {
    /// Takes the events of the descriptor and all completions, wakes the tasks that wait for them,
    /// and requests the next event.
    ///
    /// # Errors
    /// [`VerbsError`] if the descriptor cannot be read.
    pub fn dispatch(&self) -> Result<(), VerbsError> {
        self.0.dispatch()
    }
}

impl Drop for CompletionDriver {
    fn drop(&mut self) {
        self.0.remove_driver();
    }
}

impl AsFd for CompletionDriver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }
}

impl AsRawFd for CompletionDriver {
    fn as_raw_fd(&self) -> RawFd {
        self.0.fd().as_raw_fd()
    }
}

impl fmt::Debug for CompletionDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionDriver").finish_non_exhaustive()
    }
}
