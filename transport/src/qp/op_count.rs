//! Counters of operations that are attached to a queue pair.

use alloc::sync::Arc;

use super::Qp;
use crate::op_count::{CountedOps, OpCounter};

impl Qp {
    /// Attaches a counter for `kinds` of operations, until [`Qp::abandon`]. Returns false, with no
    /// effect, if one of them has a counter already.
    #[must_use]
    pub fn attach_counter(&mut self, kinds: CountedOps, counter: &Arc<dyn OpCounter>) -> bool {
        self.out.op_counters.attach(kinds, counter)
    }

    /// Counts the completions that [`Qp::pending_completions`] returns. Call it once, before they
    /// are handed out.
    #[inline]
    pub fn count_completions(&self) {
        let completions = self.out.completions.iter();
        self.out.op_counters.add_completions(completions);
    }

    /// Counts the READs of the peer whose last response [`Qp::poll_transmit`] has returned. Call it
    /// after the deferred payloads were read.
    #[inline]
    pub fn count_answered_reads(&mut self) {
        self.out.op_counters.add_answered();
    }
}
