//! The parts of a runtime that the asynchronous examples use, so that the same program also runs in
//! a simulated network.

use std::future::Future;

use rocade_verbs::{CompletionQueue, Result};

pub(crate) trait Runtime: Clone + Send + Sync + 'static {
    /// Starts a task.
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static);

    /// Delivers the completions of a queue to the tasks that wait for them.
    fn drive(&self, cq: &CompletionQueue) -> Result<()>;
}
