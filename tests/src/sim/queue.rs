//! Which requests of a send queue have ended.

use rocade_transport::{Completion, WcStatus};

/// A send queue: what was posted, and what has ended.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// Is it signaled?
    pub(super) posted: Vec<bool>,
    /// So many have.
    pub(super) ended: usize,
    failed: bool,
    /// Requests that failed or were flushed.
    pub(super) flushed: usize,
}

impl Queue {
    /// Does all that nobody has reported need no report?
    pub(super) fn is_accounted_for(&self) -> bool {
        let left = &self.posted[self.ended..];
        left.is_empty() || !self.failed && left.iter().all(|signaled| !signaled)
    }

    /// Each request ends once and in order; unsignaled ones with the next that is reported.
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
