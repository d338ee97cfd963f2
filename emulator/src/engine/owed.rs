//! Acknowledgements that are held back, and are sent whatever becomes of the process.
//!
//! The application may have seen the completion of a message, so its acknowledgement is owed. Through
//! shared memory it is written into the ring at once, as a promise: the peer sees it with the answer, when
//! the hold is over ([`announce_quiet_ack`](crate::cells::TxState::announce_quiet_ack)), or when it needs it. Over UDP an
//! acknowledgement is held only after it was written into the process's last will, which the broker
//! carries out (`broker/will.rs`). Without a broker nothing is held.

use std::mem::ManuallyDrop;
use std::process;
use std::sync::{Arc, Once, Weak};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use rocade_transport::{AckTiming, Cause};
use rocade_wire::{Msn, Psn};

use super::EngineInner;
use crate::cells::{Driver, QpCore, QpInner, Why, debt_of};
use crate::figures::{LAST_PAUSE_NS, LAST_TRIES};
use crate::sys;

impl EngineInner {
    /// When a lone acknowledgement leaves, with this cause to transmit.
    #[inline]
    pub(super) fn ack_timing(&self, core: &mut QpCore, cause: Cause) -> AckTiming {
        let expected = cause == Cause::Received && core.qp.pace().expects_answer();
        let may_hold = expected && self.may_hold(core);
        core.qp.pace().ack_timing(cause, may_hold)
    }

    /// May a QP hold an acknowledgement? Only while the background thread can look after it, and
    /// the application is awake: waking it takes longer than sending the ACK.
    fn may_hold(&self, core: &mut QpCore) -> bool {
        let looked_after = core.tx.listed.contains(Why::HeldAck) || self.can_look_after();
        let may = looked_after && !self.handover.is_asleep();
        may && (!core.tx.uses_socket() || self.may_write_down(core))
    }

    /// Can what is owed be written into the will?
    fn may_write_down(&self, core: &mut QpCore) -> bool {
        let Some(will) = self.will.get().filter(|will| will.is_deposited()) else {
            return false;
        };
        if core.tx.bequest.is_none()
            && let Some(creditor) = core.tx.creditor(&core.qp)
        {
            core.tx.bequest = will.bequest(&creditor);
        }
        core.tx.bequest.is_some()
    }

    /// There was no room for what has to leave, an acknowledgement perhaps among it.
    #[cold]
    pub(super) fn note_unsent(&self, core: &mut QpCore, owed: Option<(Psn, Msn)>) {
        if let Some(owed) = owed
            && self.may_write_down(core)
            && let Some(bequest) = &mut core.tx.bequest
        {
            bequest.owe(debt_of(&core.qp, owed));
        }
    }

    /// A QP ends, or is reset: what it holds back leaves first.
    pub(crate) fn say_farewell(&self, inner: &QpInner) {
        let driver = Driver::Application;
        for _ in 0..LAST_TRIES {
            {
                let now = self.now();
                let mem = self.regions().read(now);
                let mut core = inner.lock();
                //= DCW-12
                core.qp.hang_up();
                let is_dynamic = core.qp.config().qp_type.is_dynamic();
                let owes = core.qp.owed_ack().is_some()
                    || core.qp.pace().posts_wait()
                    || is_dynamic && core.qp.wants_to_transmit(AckTiming::Now);
                if owes {
                    self.transmit(inner, &mut core, &mem, Cause::Other, (now, driver), true);
                } else if core.tx.is_blocked() {
                    self.resend_blocked(inner, &mut core, &mem, driver);
                }
                core.tx.announce_quiet_ack();
                if !core.tx.is_blocked() {
                    return;
                }
            }
            thread::sleep(Duration::from_nanos(LAST_PAUSE_NS));
        }
    }

    /// The process exits: sends what is held back, unless another thread is at it.
    fn release_acks_at_exit(&self) {
        const PATIENCE: Duration = Duration::from_millis(5);
        let lanes = [Why::HeldAck, Why::WaitingPost];
        let listed = lanes.map(|why| self.agenda.all(why, PATIENCE));
        for qpn in listed.into_iter().flatten() {
            let Some(qps) = self.qps.try_read_for(PATIENCE) else {
                return;
            };
            let Some(inner) = qps.get(qpn).cloned() else {
                continue;
            };
            drop(qps);
            let Some(mem) = self.regions().try_read_for(self.now(), PATIENCE) else {
                return;
            };
            if let Some(mut core) = inner.try_lock_for(PATIENCE) {
                let (now, driver) = (self.now(), Driver::Application);
                self.transmit(&inner, &mut core, &mem, Cause::Other, (now, driver), true);
                // A child that lives on would keep the peer from noticing that we are gone.
                core.tx.announce_quiet_ack();
            }
        }
    }
}

/// Engines, and the processes that made them.
static ENGINES: Mutex<Vec<(u32, Weak<EngineInner>)>> = Mutex::new(Vec::new());

/// Sees to it that an engine's acknowledgements leave before the process exits.
pub(super) fn release_at_exit(engine: &Arc<EngineInner>) {
    static ONCE: Once = Once::new();
    let mut engines = ENGINES.lock();
    engines.retain(|(_, engine)| engine.strong_count() > 0);
    engines.push((process::id(), Arc::downgrade(engine)));
    drop(engines);
    ONCE.call_once(|| sys::at_exit(exiting));
}

/// The engines that a process has made. A forked child has copies of its parent's, whose rings and last
/// will the parent goes on using.
pub(super) fn engines_of(process: u32) -> Vec<Weak<EngineInner>> {
    let engines = ENGINES.try_lock().map(|engines| engines.clone());
    let own = |(maker, engine)| (maker == process).then_some(engine);
    engines.into_iter().flatten().filter_map(own).collect()
}

extern "C" fn exiting() {
    for engine in engines_of(process::id()) {
        // Should this be the last reference by now: nothing is taken apart at the exit.
        if let Some(engine) = engine.upgrade().map(ManuallyDrop::new) {
            engine.release_acks_at_exit();
            engine.end_connections_at_exit();
            engine.publisher.publish_at_exit(&engine.hcas);
            engine.tap.flush();
        }
    }
}
