//! A responder that goes on in another process: what it takes along.
//!
//! The target of a shared XRC domain serves receive queues of several processes. Between two messages, with nothing
//! left to send, its state is a few numbers, and what it has to answer duplicates with.

use rocade_wire::{Msn, Operation, Psn, Rkey};

use super::resources::Saved;
use super::{InProgress, Responder};

/// What a target knows between two messages, but for what it must be able to repeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Expected PSN of the next request.
    pub epsn: Psn,
    /// Messages completed.
    pub msn: Msn,
    /// The event that the first packet raises has been raised.
    pub comm_est_raised: bool,
}

/// A READ or atomic that was executed and may be asked for again (RC-DUP-05).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeatable {
    /// A READ.
    Read {
        /// PSN of the first response.
        psn: Psn,
        /// Responses.
        packets: u32,
        /// Of the memory that was read.
        rkey: Rkey,
        /// Where it was read from.
        va: u64,
        /// Bytes.
        len: u32,
    },
    /// An atomic.
    Atomic {
        /// Its PSN.
        psn: Psn,
        /// A fetch and add, else a compare and swap.
        is_add: bool,
        /// What was there before.
        original: u64,
    },
}

impl Repeatable {
    /// `None` of a masked atomic, which is not taken along: a duplicate of it is dropped there, not executed again.
    fn of(saved: &Saved) -> Option<Self> {
        Some(match *saved {
            Saved::Read {
                psn,
                packets,
                rkey,
                va,
                len,
                ..
            } => Self::Read {
                psn,
                packets,
                rkey,
                va,
                len,
            },
            Saved::Atomic { operation, .. } if operation.is_masked_atomic() => return None,
            Saved::Wide { .. } => return None,
            Saved::Atomic {
                psn,
                operation,
                original,
            } => Self::Atomic {
                psn,
                is_add: operation == Operation::FetchAdd,
                original,
            },
        })
    }

    const fn to_saved(self) -> Saved {
        match self {
            Self::Read {
                psn,
                packets,
                rkey,
                va,
                len,
            } => Saved::Read {
                psn,
                packets,
                pd: None,
                rkey,
                va,
                len,
            },
            Self::Atomic {
                psn,
                is_add,
                original,
            } => Saved::Atomic {
                psn,
                operation: if is_add {
                    Operation::FetchAdd
                } else {
                    Operation::CmpSwap
                },
                original,
            },
        }
    }
}

impl Responder {
    /// Is it between two messages, with no data to send? What is lost then, an acknowledgement at most, the peer
    /// asks for again.
    pub(crate) fn is_at_rest(&self) -> bool {
        matches!(self.current, InProgress::None) && self.outstanding_resources() == 0
    }

    pub(crate) const fn progress(&self) -> (Psn, Msn) {
        (self.epsn, self.msn)
    }

    pub(crate) fn repeatable(&self) -> impl Iterator<Item = Repeatable> {
        self.saved.iter().filter_map(Repeatable::of)
    }

    /// Goes on where another one has stopped.
    pub(crate) fn resume(
        &mut self,
        progress: Progress,
        repeatable: impl Iterator<Item = Repeatable>,
    ) {
        (self.epsn, self.msn) = (progress.epsn, progress.msn);
        self.nak_outstanding = false;
        self.queue.clear();
        self.received.clear();
        self.reported = None;
        self.saved.clear();
        repeatable.for_each(|one| self.save(one.to_saved()));
    }
}
