//! The examples on Tokio: its own event loop waits for the completion queues.

use std::future::Future;
use std::io;

use rocade_verbs::{CompletionDriver, CompletionQueue, Result};
use tokio::io::unix::AsyncFd;

use super::Runtime;

#[derive(Clone)]
pub(crate) struct Tokio;

impl Runtime for Tokio {
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        tokio::spawn(task);
    }

    fn drive(&self, cq: &CompletionQueue) -> Result<()> {
        // SAFETY: the driver keeps its descriptor open, and always returns the same one.
        let fd = unsafe { AsyncFd::register(cq.driver()?) }.map_err(io::Error::from)?;
        tokio::spawn(dispatch(fd));
        Ok(())
    }
}

async fn dispatch(fd: AsyncFd<CompletionDriver>) -> Result<()> {
    loop {
        let mut ready = fd.readable().await?;
        ready.get_inner().dispatch()?;
        ready.clear_ready();
    }
}
