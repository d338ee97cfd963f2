//! A model of a send queue, which knows which requests have completed.

use rocade_transport::{Completion, WcStatus};

/// A send queue: the posted requests and how many of them have completed.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// For each posted request, whether it is signaled.
    pub(super) posted: Vec<bool>,
    /// The number of completed requests.
    pub(super) ended: usize,
    failed: bool,
    /// Requests that failed or were flushed.
    pub(super) flushed: usize,
}

impl Queue {
    /// Returns true if no completion is missing: all requests without one are unsignaled, and none
    /// has failed.
    pub(super) fn is_accounted_for(&self) -> bool {
        let left = &self.posted[self.ended..];
        left.is_empty() || !self.failed && left.iter().all(|signaled| !signaled)
    }

    /// Checks that each request completes once and in order, and that unsignaled requests complete
    /// with the next reported one.
    pub(super) fn end(&mut self, completion: &Completion) {
        let index = usize::try_from(completion.wr_id).expect("a small number");
        assert!(
            index < self.posted.len() && index >= self.ended,
            "{completion:?}"
        );
        let passed_over = &self.posted[self.ended..index];
        assert!(
            passed_over.iter().all(|signaled| !signaled),
            "{completion:?}"
        );
        assert!(!self.failed || passed_over.is_empty(), "{completion:?}");
        self.ended = index + 1;
        match completion.status {
            WcStatus::Success => assert!(!self.failed, "{completion:?}"),
            WcStatus::WrFlushErr | WcStatus::RetryExcErr => {
                assert!(!self.failed || completion.status == WcStatus::WrFlushErr);
                self.failed = true;
                self.flushed += 1;
            }
            other => panic!("{other:?}"),
        }
    }
}
