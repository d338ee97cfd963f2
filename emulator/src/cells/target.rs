//! XRC targets: who has one open, and where a target is that several processes serve in turn.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use rocade_transport::{Qp, QpAttr, QpState};

use super::domain::Domain;
use super::event_queue::AckCounter;
use super::events::AsyncEvents;
use crate::broker::Cell;
use crate::steering::Slot;

/// What an XRC target has besides.
#[derive(Debug)]
pub(super) struct TargetPart {
    pub(super) domain: Arc<Domain>,
    /// Who has it open; with the last one it ends, and nobody can open it any more.
    pub(super) holds: Mutex<Vec<Arc<Hold>>>,
    /// Of a domain that processes share.
    pub(super) travel: Option<Travel>,
}

/// One opening of a target.
#[derive(Debug)]
pub(crate) struct Hold {
    pub(super) events: Arc<AsyncEvents>,
    pub(super) cookie: u64,
    pub(super) async_acks: Arc<AckCounter>,
}

impl Hold {
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

    /// Its events that nobody has read yet are forgotten.
    pub(crate) fn forget_events(&self) {
        self.events.forget(&self.async_acks);
    }
}

/// A target whose messages go to queues in several processes. At each moment one process holds it, and whoever takes
/// over finds in its cell (`broker/domain.rs`) how far it has come. Everything here changes under the lock of the
/// QP only.
#[derive(Debug)]
pub(crate) struct Travel {
    cell: Cell,
    /// The slot of this process.
    slot: Slot,
    /// This process holds it, and its QP knows how far it has come.
    is_here: AtomicBool,
    /// The cell says all there is to know, should this process die now.
    is_whole: AtomicBool,
    /// The attributes in the cell that the QP has: the number of their change.
    attr_seen: AtomicU64,
    /// The QP has others.
    attr_changed: AtomicBool,
    /// The state in the cell.
    state: AtomicU64,
}

impl Travel {
    /// One that is in this process, or not.
    pub(crate) const fn new(cell: Cell, slot: Slot, is_here: bool) -> Self {
        Self {
            cell,
            slot,
            is_here: AtomicBool::new(is_here),
            is_whole: AtomicBool::new(false),
            attr_seen: AtomicU64::new(u64::MAX),
            attr_changed: AtomicBool::new(true),
            state: AtomicU64::new(u64::MAX),
        }
    }

    /// What it shares with other processes.
    pub(crate) const fn cell(&self) -> &Cell {
        &self.cell
    }

    /// The slot of this process.
    pub(crate) const fn slot(&self) -> Slot {
        self.slot
    }

    /// The other process that has it now.
    pub(crate) fn holder_elsewhere(&self) -> Option<Slot> {
        let holder = self.cell.control().holder;
        holder.filter(|holder| *holder != self.slot)
    }

    /// Is it this process's turn, and does its QP know all?
    #[inline]
    pub(crate) fn is_here(&self) -> bool {
        self.is_here.load(Ordering::Relaxed)
    }

    /// The QP is about to do something: whoever dies now leaves something half done.
    #[inline]
    pub(crate) fn begin(&self) {
        if self.is_here() && self.is_whole.swap(false, Ordering::Relaxed) {
            self.cell.begin(self.slot);
        }
    }

    /// The attributes of the QP were changed.
    pub(crate) fn attr_changed(&self) {
        self.attr_changed.store(true, Ordering::Relaxed);
    }

    /// The QP has done something: writes down how far it has come, unless it is in the middle of a message. To be called before
    /// the peer hears of it, because from then on the process may be ended; and again after it has been told, which may change
    /// the state.
    #[inline]
    pub(crate) fn write_down(&self, qp: &Qp) {
        let state = u64::from(qp.state().code());
        let is_other = self.state.load(Ordering::Relaxed) != state;
        if self.is_here() && (is_other || !self.is_whole.load(Ordering::Relaxed)) {
            self.write_all(qp, state);
        }
    }

    fn write_all(&self, qp: &Qp, state: u64) {
        let is_other = self.state.swap(state, Ordering::Relaxed) != state;
        if self.attr_changed.swap(false, Ordering::Relaxed) || is_other {
            self.cell.write_attr(&qp.query());
            self.attr_seen.store(self.cell.attr().1, Ordering::Relaxed);
        }
        if let Some(progress) = qp.resumable() {
            self.cell.write_progress(progress, qp.repeatable());
            self.cell.finish(self.slot);
            self.is_whole.store(true, Ordering::Relaxed);
        }
    }

    /// Gives it to another process, or to whom it may concern. False where it cannot go now.
    pub(crate) fn hand_to(&self, qp: &Qp, slot: Option<Slot>) -> bool {
        self.write_down(qp);
        let is_whole = self.is_whole.load(Ordering::Relaxed) && qp.progress().is_some();
        if !self.is_here() || !is_whole || !qp.is_idle() {
            return false;
        }
        self.is_here.store(false, Ordering::Relaxed);
        self.cell.hand_to(slot);
        true
    }

    /// Takes it, where it is this process's turn or nobody's: the attributes that the QP has to have, `None` where it has
    /// them; and whether the last holder died in the middle of a message.
    pub(crate) fn take(&self) -> Option<(Option<QpAttr>, bool)> {
        if !self.cell.take(self.slot) {
            return None;
        }
        let has_failed = self.cell.control().has_failed;
        let (attr, number) = self.cell.attr();
        let is_new = self.attr_seen.swap(number, Ordering::Relaxed) != number;
        self.attr_changed.store(has_failed, Ordering::Relaxed);
        self.state.store(attr.qp_state.into(), Ordering::Relaxed);
        Some((is_new.then_some(attr), has_failed))
    }

    /// The QP could not be given its attributes: they will be tried again.
    pub(crate) fn forget_attr(&self) {
        self.attr_seen.store(u64::MAX, Ordering::Relaxed);
    }

    /// The QP goes on with it.
    pub(crate) fn arrive(&self, qp: &mut Qp) {
        qp.resume(self.cell.progress(), self.cell.repeatable());
        self.is_here.store(true, Ordering::Relaxed);
        self.is_whole.store(false, Ordering::Relaxed);
        self.cell.begin(self.slot);
    }

    /// Attributes of one that is elsewhere.
    pub(crate) fn attr(&self) -> QpAttr {
        let (attr, _) = self.cell.attr();
        let state = if self.cell.control().has_failed {
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
