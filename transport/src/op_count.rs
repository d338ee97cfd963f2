//! Counters of completed operations that are attached to a QP.
//!
//! Operations of this side count with their completion, and without one if none was requested.
//! Operations of the peer count when this side has executed them. That is the last packet of a
//! WRITE, and the last data of a READ that was read from memory.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::fmt::Debug;

use bitflags::bitflags;
use rocade_wire::{Operation, OperationKind};

use crate::completion::{Completion, WcOpcode, WcStatus};
use crate::wr::SendOp;

bitflags! {
    /// Operations that a counter counts (`ibv_qp_attach_comp_cntr_op`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct CountedOps: u32 {
        /// SEND of this side, also of datagrams and frames.
        const SEND = 1 << 0;
        /// Receives.
        const RECV = 1 << 1;
        /// RDMA READ of this side.
        const RDMA_READ = 1 << 2;
        /// RDMA READ of the peer.
        const REMOTE_RDMA_READ = 1 << 3;
        /// RDMA WRITE of this side.
        const RDMA_WRITE = 1 << 4;
        /// RDMA WRITE of the peer.
        const REMOTE_RDMA_WRITE = 1 << 5;
    }
}

impl CountedOps {
    /// Returns the operation of a send work request. `None` for atomics, FLUSH and local
    /// operations, which no counter counts.
    const fn of_send(op: &SendOp) -> Option<Self> {
        if op.is_local() {
            return None;
        }
        Self::of_completion(op.completion())
    }

    /// Returns the operation of a completion.
    const fn of_completion(opcode: WcOpcode) -> Option<Self> {
        if matches!(opcode, WcOpcode::Send | WcOpcode::Tso) {
            Some(Self::SEND)
        } else if matches!(opcode, WcOpcode::RdmaWrite) {
            Some(Self::RDMA_WRITE)
        } else if matches!(opcode, WcOpcode::RdmaRead) {
            Some(Self::RDMA_READ)
        } else if matches!(opcode, WcOpcode::Recv | WcOpcode::RecvRdmaWithImm) {
            Some(Self::RECV)
        } else {
            None
        }
    }

    /// Returns the operation of a peer's request, if a counter counts it.
    const fn of_request(operation: Operation) -> Option<Self> {
        match operation.kind() {
            OperationKind::Read => Some(Self::REMOTE_RDMA_READ),
            OperationKind::Write => Some(Self::REMOTE_RDMA_WRITE),
            OperationKind::Send
            | OperationKind::Atomic
            | OperationKind::MaskedAtomic
            | OperationKind::AtomicWrite
            | OperationKind::Flush
            | OperationKind::Disconnect
            | OperationKind::ReadResponse
            | OperationKind::Acknowledge
            | OperationKind::AtomicResponse
            | OperationKind::Cnp => None,
        }
    }

    /// Returns the place of a single operation, below [`KINDS`].
    const fn index(self) -> usize {
        self.bits().trailing_zeros() as usize
    }
}

/// Number of kinds of operations.
const KINDS: usize = CountedOps::all().bits().count_ones() as usize;

/// A counter of completed operations. It may be attached to several QPs.
pub trait OpCounter: Debug + Send + Sync {
    /// Adds `operations` successful operations, which have transferred `bytes` bytes.
    fn add(&self, operations: u64, bytes: u64);

    /// Adds one operation that has failed.
    fn add_failed(&self);
}

/// The counters that are attached to a QP. Most QPs have none.
#[derive(Debug, Default)]
pub(crate) struct OpCounters(Option<Box<Attached>>);

#[derive(Debug, Default)]
struct Attached {
    by_kind: [Option<Arc<dyn OpCounter>>; KINDS],
    /// READs of the peer, and bytes of them, whose last response is in the transmit buffer.
    answered: (u64, u64),
    /// Bytes of responses before.
    in_response: u64,
}

impl Attached {
    fn of(&self, kind: CountedOps) -> Option<&dyn OpCounter> {
        self.by_kind.get(kind.index())?.as_deref()
    }
}

impl OpCounters {
    /// Attaches `counter` for each of `kinds`. Returns false, with no effect, if one of them has a
    /// counter already.
    pub(crate) fn attach(&mut self, kinds: CountedOps, counter: &Arc<dyn OpCounter>) -> bool {
        let attached = self.0.get_or_insert_default();
        if kinds.iter().any(|kind| attached.of(kind).is_some()) {
            return false;
        }
        for kind in kinds.iter() {
            if let Some(place) = attached.by_kind.get_mut(kind.index()) {
                *place = Some(Arc::clone(counter));
            }
        }
        true
    }

    /// Detaches all counters.
    pub(crate) fn clear(&mut self) {
        self.0 = None;
    }

    /// Counts a successful send work request, whether it has a completion or not.
    #[inline]
    pub(crate) fn add_sent(&self, op: &SendOp, bytes: u32) {
        if self.0.is_some() {
            self.add_kind(CountedOps::of_send(op), bytes);
        }
    }

    /// Counts a WRITE of the peer.
    #[inline]
    pub(crate) fn add_remote_write(&self, bytes: u32) {
        if self.0.is_some() {
            self.add_kind(Some(CountedOps::REMOTE_RDMA_WRITE), bytes);
        }
    }

    #[cold]
    fn add_kind(&self, kind: Option<CountedOps>, bytes: u32) {
        let counter = kind.and_then(|kind| self.0.as_deref()?.of(kind));
        if let Some(counter) = counter {
            counter.add(1, u64::from(bytes));
        }
    }

    /// Counts a request of the peer that was refused.
    pub(crate) fn add_refused(&self, operation: Operation) {
        let kind = CountedOps::of_request(operation);
        if let Some(counter) = kind.and_then(|kind| self.0.as_deref()?.of(kind)) {
            counter.add_failed();
        }
    }

    /// Counts completions that are about to be handed out, besides those of [`Self::add_sent`].
    #[inline]
    pub(crate) fn add_completions<'a>(&self, completions: impl Iterator<Item = &'a Completion>) {
        if let Some(attached) = self.0.as_deref() {
            completions.for_each(|completion| attached.add_completion(completion));
        }
    }

    /// Notes bytes of READ responses in the transmit buffer. `ends` is true with the last response
    /// of a READ.
    #[inline]
    pub(crate) fn note_response(&mut self, bytes: u32, ends: bool) {
        if let Some(attached) = self.0.as_deref_mut() {
            attached.in_response += u64::from(bytes);
            if ends {
                attached.answered.0 += 1;
                attached.answered.1 += core::mem::take(&mut attached.in_response);
            }
        }
    }

    /// Counts a READ of the peer as failed, because data of a noted response cannot be read.
    pub(crate) fn fail_response(&mut self) {
        if let Some(attached) = self.0.as_deref_mut() {
            attached.answered.0 = attached.answered.0.saturating_sub(1);
            attached.in_response = 0;
            if let Some(counter) = attached.of(CountedOps::REMOTE_RDMA_READ) {
                counter.add_failed();
            }
        }
    }

    /// Counts the READs of the peer whose responses were noted.
    #[inline]
    pub(crate) fn add_answered(&mut self) {
        if let Some(attached) = self.0.as_deref_mut() {
            let (operations, bytes) = core::mem::take(&mut attached.answered);
            if operations > 0
                && let Some(counter) = attached.of(CountedOps::REMOTE_RDMA_READ)
            {
                counter.add(operations, bytes);
            }
        }
    }
}

impl Attached {
    #[cold]
    fn add_completion(&self, completion: &Completion) {
        let has_succeeded = completion.status == WcStatus::Success;
        if has_succeeded && completion.is_send() {
            return;
        }
        let kind = CountedOps::of_completion(completion.opcode);
        let Some(counter) = kind.and_then(|kind| self.of(kind)) else {
            return;
        };
        if has_succeeded {
            counter.add(1, u64::from(completion.byte_len));
        } else {
            counter.add_failed();
        }
    }
}
