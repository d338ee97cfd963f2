//! XRC targets: their open handles, and their ownership if several processes serve them in turn.

use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;

use crate::sync::{Mutex, rank};
use rocade_transport::{Qp, QpAttr, QpState};

use super::ack_counter::AckCounter;
use super::domain::Domain;
use super::events::AsyncEvents;
use crate::journal::TargetRecord;
use crate::steering::ProcessSlot;

/// The further state of an XRC target.
#[derive(Debug)]
pub(super) struct XrcTargetState {
    pub(super) domain: Arc<Domain>,
    /// The open handles. When the last one is closed the target ends, and it cannot be opened any
    /// more.
    pub(super) open_handles: Mutex<Vec<Arc<OpenHandle>>, rank::OpenHandles>,
    /// The ownership record, if processes share the domain.
    pub(super) ownership: Option<TargetOwnership>,
}

/// An open handle of a target.
#[derive(Debug)]
pub(crate) struct OpenHandle {
    pub(super) events: Arc<AsyncEvents>,
    pub(super) cookie: u64,
    pub(super) async_acks: Arc<AckCounter>,
}

impl OpenHandle {
    pub(crate) fn new(events: &Arc<AsyncEvents>, cookie: u64) -> Arc<Self> {
        Arc::new(Self {
            events: Arc::clone(events),
            cookie,
            async_acks: Arc::default(),
        })
    }

    pub(crate) fn async_acks(&self) -> &AckCounter {
        &self.async_acks
    }

    /// Drops its unread events.
    pub(crate) fn forget_events(&self) {
        self.events.forget(&self.async_acks);
    }
}

/// The ownership of a target whose messages go to queues in several processes.
///
/// At each moment one process owns the target. The next owner reads from the target's shared record
/// (`journal/targets.rs`) how far the target has come. Everything here changes only under the lock
/// of the QP.
#[derive(Debug)]
pub(crate) struct TargetOwnership {
    record: TargetRecord,
    /// The slot of this process.
    slot: ProcessSlot,
    /// This process owns the target, and its QP is up to date.
    is_owner: AtomicBool,
    /// The shared record is complete, should this process die now.
    is_checkpointed: AtomicBool,
    /// The change number of the attributes in the shared record that the QP has.
    attr_seen: AtomicU64,
    /// The attributes of the QP differ from those in the shared record.
    attr_changed: AtomicBool,
    /// The QP state in the shared record.
    state: AtomicU64,
}

impl TargetOwnership {
    /// Makes the ownership of a target that this process owns (`is_owner`) or not.
    pub(crate) const fn new(record: TargetRecord, slot: ProcessSlot, is_owner: bool) -> Self {
        Self {
            record,
            slot,
            is_owner: AtomicBool::new(is_owner),
            is_checkpointed: AtomicBool::new(false),
            attr_seen: AtomicU64::new(u64::MAX),
            attr_changed: AtomicBool::new(true),
            state: AtomicU64::new(u64::MAX),
        }
    }

    /// The record that is shared with other processes.
    pub(crate) const fn record(&self) -> &TargetRecord {
        &self.record
    }

    /// The slot of this process.
    pub(crate) const fn slot(&self) -> ProcessSlot {
        self.slot
    }

    /// The slot of the other process that owns the target now, if one does.
    pub(crate) fn other_owner(&self) -> Option<ProcessSlot> {
        let owner = self.record.control().owner;
        owner.filter(|owner| *owner != self.slot)
    }

    /// Returns true if this process owns the target and its QP is up to date.
    #[inline]
    pub(crate) fn is_owner(&self) -> bool {
        self.is_owner.load(Ordering::Relaxed)
    }

    /// Marks the shared record as incomplete before the QP changes: an owner that dies now leaves a
    /// message half processed.
    #[inline]
    pub(crate) fn mark_incomplete(&self) {
        if self.is_owner() && self.is_checkpointed.swap(false, Ordering::Relaxed) {
            self.record.mark_incomplete(self.slot);
        }
    }

    /// Records that the attributes of the QP were changed.
    pub(crate) fn attr_changed(&self) {
        self.attr_changed.store(true, Ordering::Relaxed);
    }

    /// Writes a checkpoint after the QP has changed, unless it is in the middle of a message.
    ///
    /// To be called before packets to the peer are sent, because the process may die at any time
    /// afterwards. To be called again after they were sent, which may change the state.
    #[inline]
    pub(crate) fn checkpoint(&self, qp: &Qp) {
        let state = u64::from(qp.state().code());
        let is_other = self.state.load(Ordering::Relaxed) != state;
        if self.is_owner() && (is_other || !self.is_checkpointed.load(Ordering::Relaxed)) {
            self.write_all(qp, state);
        }
    }

    /// Returns true if the record says all that the peer learns from the next packet, so that
    /// another process can continue. In the middle of a message none can.
    #[cfg(debug_assertions)]
    pub(crate) fn may_answer(&self, qp: &Qp) -> bool {
        let is_checkpointed = self.is_checkpointed.load(Ordering::Relaxed);
        !self.is_owner() || is_checkpointed || qp.resumable_snapshot().is_none()
    }

    fn write_all(&self, qp: &Qp, state: u64) {
        let is_other = self.state.swap(state, Ordering::Relaxed) != state;
        if self.attr_changed.swap(false, Ordering::Relaxed) || is_other {
            self.record.write_attr(&qp.query());
            self.attr_seen
                .store(self.record.attr().1, Ordering::Relaxed);
        }
        if let Some(snapshot) = qp.resumable_snapshot() {
            self.record.write_snapshot(snapshot, qp.replay_entries());
            self.record.mark_complete(self.slot);
            self.is_checkpointed.store(true, Ordering::Relaxed);
        }
    }

    /// Hands the ownership to `slot`, or to the next process that wants it. Returns false if the
    /// target cannot be handed over now.
    pub(crate) fn release_to(&self, qp: &Qp, slot: Option<ProcessSlot>) -> bool {
        self.checkpoint(qp);
        let is_checkpointed =
            self.is_checkpointed.load(Ordering::Relaxed) && qp.snapshot().is_some();
        if !self.is_owner() || !is_checkpointed || !qp.is_idle() {
            return false;
        }
        self.is_owner.store(false, Ordering::Relaxed);
        self.record.transfer_to(slot);
        true
    }

    /// Acquires the target if it was handed to this process or has no owner. Returns the attributes
    /// to give the QP, or `None` if it has them, and whether the last owner died in the middle of a
    /// message.
    pub(crate) fn try_acquire(&self) -> Option<(Option<QpAttr>, bool)> {
        if !self.record.try_acquire(self.slot) {
            return None;
        }
        let has_failed = self.record.control().has_failed;
        let (attr, number) = self.record.attr();
        let is_new = self.attr_seen.swap(number, Ordering::Relaxed) != number;
        self.attr_changed.store(has_failed, Ordering::Relaxed);
        self.state.store(attr.qp_state.into(), Ordering::Relaxed);
        Some((is_new.then_some(attr), has_failed))
    }

    /// Forgets that the QP has the attributes, because setting them failed. They will be set again.
    pub(crate) fn invalidate_attr(&self) {
        self.attr_seen.store(u64::MAX, Ordering::Relaxed);
    }

    /// Restores the QP from the shared record and starts serving the target.
    pub(crate) fn resume(&self, qp: &mut Qp) {
        qp.restore(self.record.snapshot(), self.record.replay_entries());
        self.is_owner.store(true, Ordering::Relaxed);
        self.is_checkpointed.store(false, Ordering::Relaxed);
        self.record.mark_incomplete(self.slot);
    }

    /// The attributes of a target that another process owns.
    pub(crate) fn attr(&self) -> QpAttr {
        let (attr, _) = self.record.attr();
        let state = if self.record.control().has_failed {
            QpState::Err.code()
        } else {
            attr.qp_state
        };
        QpAttr {
            qp_state: state,
            cur_qp_state: state,
            ..attr
        }
    }
}
