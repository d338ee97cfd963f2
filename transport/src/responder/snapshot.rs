//! State of a responder that another process takes over.
//!
//! The target of a shared XRC domain serves receive queues of several processes. Between two
//! messages, with nothing left to send, its state is a few numbers and the saved requests for
//! answering duplicates.

use rocade_wire::{Msn, Operation, Psn, Rkey};

use super::resources::Saved;
use super::{InProgress, Responder};
use crate::masked::WideOperand;

/// State of a responder between two messages, without the saved requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponderSnapshot {
    /// Expected PSN of the next request.
    pub epsn: Psn,
    /// Number of completed messages.
    pub msn: Msn,
    /// The event for the first packet has been raised.
    pub comm_est_raised: bool,
}

/// A saved request: executed, with a response of its own, and possibly repeated by the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayEntry {
    /// A READ.
    Read {
        /// PSN of the first response.
        psn: Psn,
        /// Number of responses.
        packets: u32,
        /// Key of the memory that was read.
        rkey: Rkey,
        /// Address of the memory that was read.
        va: u64,
        /// Length in bytes.
        len: u32,
    },
    /// An atomic on up to 8 bytes, FLUSH or ATOMIC WRITE.
    Atomic {
        /// PSN of the request.
        psn: Psn,
        /// The operation.
        operation: Operation,
        /// The original value, or 0 if the response has none.
        original: u64,
    },
    /// A masked atomic on more than 8 bytes.
    Wide {
        /// PSN of the request.
        psn: Psn,
        /// The operation.
        operation: Operation,
        /// Size of the operand: 2 to the power of this many bytes.
        log_size: u8,
        /// The original value.
        original: WideOperand,
    },
}

impl ReplayEntry {
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
    /// Returns true if no message is in progress.
    pub(crate) const fn is_between_messages(&self) -> bool {
        matches!(self.current, InProgress::None)
    }

    /// Returns true if all responses of READs and atomics were sent. Then at most an ACK is left to
    /// send.
    pub(crate) fn has_sent_all_data(&self) -> bool {
        self.outstanding_resources() == 0
    }

    pub(crate) const fn snapshot(&self) -> (Psn, Msn) {
        (self.epsn, self.msn)
    }

    pub(crate) fn replay_entries(&self) -> impl Iterator<Item = ReplayEntry> + Clone {
        self.saved.iter().map(ReplayEntry::of)
    }

    /// Restores the state of another responder.
    pub(crate) fn restore(
        &mut self,
        snapshot: ResponderSnapshot,
        replay_entries: impl Iterator<Item = ReplayEntry>,
    ) {
        (self.epsn, self.msn) = (snapshot.epsn, snapshot.msn);
        self.nak_outstanding = false;
        self.queue.clear();
        self.received.clear();
        self.reported = None;
        self.saved.clear();
        replay_entries.for_each(|one| self.save(one.to_saved()));
    }
}
