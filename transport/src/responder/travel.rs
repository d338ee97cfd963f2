//! A responder that goes on in another process: what it takes along.
//!
//! The target of a shared XRC domain serves receive queues of several processes. Between two messages, with nothing
//! left to send, its state is a few numbers, and what it has to answer duplicates with.

use rocade_wire::{Msn, Operation, Psn, Rkey};

use super::resources::Saved;
use super::{InProgress, Responder};
use crate::masked::Words;

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

/// A request that was executed, has an answer of its own, and may come again (RC-DUP-05).
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
    /// An atomic on up to 8 bytes, FLUSH or ATOMIC WRITE.
    Atomic {
        /// Its PSN.
        psn: Psn,
        /// Which of them.
        operation: Operation,
        /// What was there before; 0 where that is not told.
        original: u64,
    },
    /// A masked atomic on more than 8 bytes.
    Wide {
        /// Its PSN.
        psn: Psn,
        /// Which of them.
        operation: Operation,
        /// It was on 2 to the power of this many bytes.
        log_size: u8,
        /// What was there before.
        original: Words,
    },
}

impl Repeatable {
    const fn of(saved: &Saved) -> Self {
        match *saved {
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
            Saved::Atomic {
                psn,
                operation,
                original,
            } => Self::Atomic {
                psn,
                operation,
                original,
            },
            Saved::Wide {
                psn,
                operation,
                log_size,
                original,
            } => Self::Wide {
                psn,
                operation,
                log_size,
                original,
            },
        }
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
                operation,
                original,
            } => Saved::Atomic {
                psn,
                operation,
                original,
            },
            Self::Wide {
                psn,
                operation,
                log_size,
                original,
            } => Saved::Wide {
                psn,
                operation,
                log_size,
                original,
            },
        }
    }
}

impl Responder {
    /// Is no message in the middle?
    pub(crate) const fn is_between_messages(&self) -> bool {
        matches!(self.current, InProgress::None)
    }

    /// Has it sent all results of READs and atomics? What it has to send then is an acknowledgement at most.
    pub(crate) fn owes_no_data(&self) -> bool {
        self.outstanding_resources() == 0
    }

    pub(crate) const fn progress(&self) -> (Psn, Msn) {
        (self.epsn, self.msn)
    }

    pub(crate) fn repeatable(&self) -> impl Iterator<Item = Repeatable> + Clone {
        self.saved.iter().map(Repeatable::of)
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
