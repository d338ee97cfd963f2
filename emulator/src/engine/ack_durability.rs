//! Durability of delayed ACKs, which are sent even if the process ends.
//!
//! The application may have seen the completion of a message, so its ACK must not be lost. Through
//! shared memory the ACK is written into the ring at once, as an unpublished record. The peer sees
//! it with the response, when the delay is over
//! ([`publish_ack`](crate::state::TxState::publish_ack)), or when it needs it. Over UDP an ACK is
//! delayed only after it was recorded in the process's ACK journal, which the broker executes
//! (`journal/ack.rs`). Without a broker no ACK is delayed.

use std::mem::ManuallyDrop;
use std::process;
use std::sync::{Arc, Once, Weak};
use std::time::Duration;

use crate::sync::{Mutex, turn};
use rocade_transport::{AckPlacement, TransmitTrigger};
use rocade_wire::{Msn, Psn};

use super::cx::Cx;
use super::{Nic, Presence};
use crate::state::{QpCore, QpInner, ServiceReason, pending_ack_of};
use crate::sys;
use crate::tuning::{CLOSE_ATTEMPTS, CLOSE_PAUSE_NS};

impl Presence {
    /// Returns true if a delayed ACK can be recorded in the journal.
    fn has_journal_slot(&self, core: &mut QpCore) -> bool {
        let Some(journal) = self
            .ack_journal
            .get()
            .filter(|journal| journal.is_registered())
        else {
            return false;
        };
        if core.tx.journal_slot.is_none()
            && let Some(ack_destination) = core.tx.ack_destination(&core.qp)
        {
            core.tx.journal_slot = journal.allocate_slot(&ack_destination);
        }
        core.tx.journal_slot.is_some()
    }

    /// Records the newest ACK of a QP whose packets are blocked, if it had one to send.
    #[cold]
    pub(super) fn secure_unsent_ack(&self, core: &mut QpCore, newest: Option<(Psn, Msn)>) {
        let is_blocked = core.tx.backlog.as_ref().is_some_and(|all| all.has_ack());
        if !is_blocked && core.qp.newest_ack().is_none() {
            core.tx.has_unsafe_ack = false;
        } else if let Some(newest) = newest {
            core.tx.has_unsafe_ack = !self.has_journal_slot(core);
            if let Some(journal_slot) = &mut core.tx.journal_slot {
                journal_slot.record(pending_ack_of(&core.qp, newest));
            }
        }
    }
}

impl Nic {
    /// Returns where a lone ACK is sent, or that it is delayed, given the transmit trigger.
    #[inline]
    pub(super) fn ack_placement(
        &self,
        core: &mut QpCore,
        trigger: TransmitTrigger,
    ) -> AckPlacement {
        let expected = trigger == TransmitTrigger::Received && core.qp.coalescer().expects_reply();
        let may_delay_ack = expected && self.may_delay_ack(core);
        core.qp.coalescer().ack_placement(trigger, may_delay_ack)
    }

    /// Returns true if a QP may delay an ACK. The background thread has to be able to send it
    /// later. The application has to be awake, because waking it takes longer than sending the ACK.
    fn may_delay_ack(&self, core: &mut QpCore) -> bool {
        let is_watched = core.tx.queued.contains(ServiceReason::DelayedAck)
            || self.scheduler.can_delay_more_acks();
        let may = is_watched && !self.scheduler.arbiter.is_asleep();
        may && (!core.tx.uses_socket() || self.presence.has_journal_slot(core))
    }

    /// Flushes delayed ACKs and batched posts before a QP is destroyed or reset.
    pub(crate) fn flush_before_close(&self, inner: &QpInner) {
        for _ in 0..CLOSE_ATTEMPTS {
            {
                let now = self.host.now();
                let mem = self.tables.regions().read(now);
                let cx = Cx::of_application(now, &mem);
                let mut core = inner.lock();
                //= DCW-12
                core.qp.end_idle_sessions();
                let is_dynamic = core.qp.config().qp_type.is_dynamic();
                let has_unsent = core.qp.newest_ack().is_some()
                    || core.qp.coalescer().has_batched_posts()
                    || is_dynamic && core.qp.has_work_to_send(AckPlacement::First);
                if has_unsent {
                    inner.checkpoint(&core.qp);
                    self.transmit(inner, &mut core, TransmitTrigger::Other, cx, true);
                } else if core.tx.has_backlog() {
                    self.resend_backlog(inner, &mut core, cx);
                }
                core.tx.publish_ack();
                if !core.tx.has_backlog() {
                    return;
                }
            }
            turn::sleep(Duration::from_nanos(CLOSE_PAUSE_NS));
        }
    }

    /// Sends the ACK that a QP delays, if there is one, before its path changes.
    pub(crate) fn flush_last_ack(&self, inner: &QpInner, core: &mut QpCore, cx: Cx<'_>) {
        if core.qp.newest_ack().is_some() {
            inner.checkpoint(&core.qp);
            self.transmit(inner, core, TransmitTrigger::Other, cx, true);
        }
        core.tx.publish_ack();
    }

    /// Tells others all that they have to know of a process that exits.
    pub(crate) fn finish_at_exit(self: &Arc<Self>) {
        self.release_acks_at_exit();
        self.cm.end_connections_at_exit(&**self);
        let publisher = &self.observers.publisher;
        publisher.publish_at_exit(&self.host.hcas, || self.snapshot());
        self.links.hooks.flush();
        self.tell_faults_at_exit();
    }

    /// Sends delayed ACKs and batched posts when the process exits, except those of QPs that
    /// another thread has locked.
    fn release_acks_at_exit(&self) {
        const PATIENCE: Duration = Duration::from_millis(5);
        let reasons = [ServiceReason::DelayedAck, ServiceReason::BatchedPost];
        let queued = reasons.map(|reason| self.scheduler.service_queue.queued(reason, PATIENCE));
        for qpn in queued.into_iter().flatten() {
            let Some(qps) = self.tables.qps.try_read_for(PATIENCE) else {
                return;
            };
            let Some(inner) = qps.get(qpn).cloned() else {
                continue;
            };
            drop(qps);
            let Some(mem) = self
                .tables
                .regions()
                .try_read_for(self.host.now(), PATIENCE)
            else {
                return;
            };
            if let Some(mut core) = inner.try_lock_for(PATIENCE) {
                let cx = Cx::of_application(self.host.now(), &mem);
                inner.checkpoint(&core.qp);
                self.transmit(&inner, &mut core, TransmitTrigger::Other, cx, true);
                // While a child of the process lives on, the peer does not notice that this process
                // has ended, so the ACK is published.
                core.tx.publish_ack();
            }
        }
    }
}

/// All engines, with the IDs of the processes that made them.
static ENGINES: Mutex<Vec<(u32, Weak<Nic>)>> = Mutex::new(Vec::new());

/// Registers an engine so that its delayed ACKs are sent before the process exits.
pub(super) fn release_at_exit(engine: &Arc<Nic>) {
    static ONCE: Once = Once::new();
    let mut engines = ENGINES.lock();
    engines.retain(|(_, engine)| engine.strong_count() > 0);
    let own = (process::id(), Arc::downgrade(engine));
    let is_own = |(process, engine): &(u32, Weak<Nic>)| *process == own.0 && engine.ptr_eq(&own.1);
    if !engines.iter().any(is_own) {
        engines.push(own);
    }
    drop(engines);
    ONCE.call_once(|| sys::at_exit(exiting));
}

/// Returns the engines that a process has made. A forked child has copies of its parent's, whose
/// rings and journal the parent goes on using.
pub(super) fn engines_of(process: u32) -> Vec<Weak<Nic>> {
    let engines = ENGINES.try_lock().map(|engines| engines.clone());
    let own = |(maker, engine)| (maker == process).then_some(engine);
    engines.into_iter().flatten().filter_map(own).collect()
}

extern "C" fn exiting() {
    for engine in engines_of(process::id()) {
        // Even if this is the last reference by now, nothing is dropped at the exit.
        if let Some(engine) = engine.upgrade().map(ManuallyDrop::new) {
            engine.finish_at_exit();
        }
    }
}
