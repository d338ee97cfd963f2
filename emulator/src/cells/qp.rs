//! Queue pairs: what the engine and the handles share of one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use rocade_transport::{CompleteTo, Completion, Managed, QpEvent, Srqn};
use rocade_wire::Qpn;

use super::cq::CqInner;
use super::domain::Domain;
use super::event_queue::{AckCounter, LazyAcks};
use super::events::{AsyncEventKind, AsyncEvents, EventElement};
use super::slots::PendingSlots;
use super::srq::SrqInner;
use super::target::{Hold, TargetPart, Travel};
use super::tx::TxState;
use super::users::User;
use crate::hca::Hca;
use crate::raw::RawPart;

#[derive(Debug)]
pub(crate) struct QpInner {
    events: Arc<AsyncEvents>,
    qp_num: Qpn,
    /// That of an XRC target has none.
    send_cq: Option<Arc<CqInner>>,
    recv_cq: Option<Arc<CqInner>>,
    srq: Option<Arc<SrqInner>>,
    rare: Option<Box<Rare>>,
    dct: Option<DctEvents>,
    cookie: u64,
    core: Mutex<QpCore>,
    alive: AtomicBool,
    async_acks: LazyAcks,
}

/// What only few QPs have.
#[derive(Debug)]
enum Rare {
    Target(TargetPart),
    Raw(Box<RawPart>),
}

/// What a QP completes to and takes from.
#[derive(Debug, Default)]
pub(crate) struct QpParts {
    /// Where sends and receives complete.
    pub(crate) cqs: Option<(Arc<CqInner>, Arc<CqInner>)>,
    pub(crate) srq: Option<Arc<SrqInner>>,
    /// What an XRC target has besides.
    pub(crate) target: Option<TargetParts>,
    /// Of one that has raw packets.
    pub(crate) raw: Option<Box<RawPart>>,
    /// Of a DC target.
    pub(crate) dct: Option<DctEvents>,
}

/// What the events of a DC target are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DctEvents {
    /// A target, as `ibv_exp_create_dct` makes it.
    OfTarget,
    /// A queue pair, as `mlx5dv_create_qp` makes it.
    OfQp,
}

/// What an XRC target begins with.
#[derive(Debug)]
pub(crate) struct TargetParts {
    pub(crate) domain: Arc<Domain>,
    /// Who has it open.
    pub(crate) hold: Option<Arc<Hold>>,
    /// Where it is, if the domain is shared.
    pub(crate) travel: Option<Travel>,
}

/// What the lock of a QP protects.
#[derive(Debug)]
pub(crate) struct QpCore {
    pub(crate) qp: rocade_transport::Qp,
    pub(crate) tx: TxState,
    /// A completion was lost: events wait until all QPs of the CQ are in ERR.
    pub(crate) overrun: bool,
    /// Nobody asks for the slots of completions of the send queue, or of the receive queue (XCH-06).
    sends_untaken: bool,
    receives_untaken: bool,
    /// Slots of the send and the receive queue that become free when their completions are taken.
    send_slots: PendingSlots,
    recv_slots: PendingSlots,
}

impl QpInner {
    /// One in RESET that completes and takes as `parts` say.
    pub(crate) fn new(
        events: Arc<AsyncEvents>,
        qp: rocade_transport::Qp,
        cookie: u64,
        parts: QpParts,
    ) -> Arc<Self> {
        let (send_cq, recv_cq) = parts.cqs.unzip();
        let user = User::Qp(qp.config().qp_num);
        for cq in send_cq.iter().chain(&recv_cq) {
            cq.users().add(user);
        }
        if let Some(srq) = &parts.srq {
            srq.users().add(user);
        }
        let target = parts.target.map(|parts| {
            Rare::Target(TargetPart {
                domain: parts.domain,
                holds: Mutex::new(parts.hold.into_iter().collect()),
                travel: parts.travel,
            })
        });
        let rare = target.or_else(|| parts.raw.map(Rare::Raw));
        Arc::new(Self {
            events,
            qp_num: qp.config().qp_num,
            send_cq,
            recv_cq,
            srq: parts.srq,
            rare: rare.map(Box::new),
            dct: parts.dct,
            cookie,
            core: Mutex::new(QpCore {
                qp,
                tx: TxState::default(),
                overrun: false,
                sends_untaken: false,
                receives_untaken: false,
                send_slots: PendingSlots::default(),
                recv_slots: PendingSlots::default(),
            }),
            alive: AtomicBool::new(true),
            async_acks: LazyAcks::default(),
        })
    }

    #[inline]
    fn target(&self) -> Option<&TargetPart> {
        match self.rare.as_deref()? {
            Rare::Target(target) => Some(target),
            Rare::Raw(_) => None,
        }
    }

    /// The domain of a target.
    pub(crate) fn domain(&self) -> Option<&Arc<Domain>> {
        self.target().map(|target| &target.domain)
    }

    /// Where it is, if it is a target that several processes serve.
    #[inline]
    pub(crate) fn travel(&self) -> Option<&Travel> {
        self.target()?.travel.as_ref()
    }

    /// Other processes may go on with a target that is new.
    pub(crate) fn publish(&self) {
        self.write_down(&self.lock().qp);
    }

    /// Writes down how far it has come, where another process may have to go on with it.
    #[inline]
    pub(crate) fn write_down(&self, qp: &rocade_transport::Qp) {
        if let Some(travel) = self.travel() {
            travel.write_down(qp);
        }
    }

    /// Is it a target of this domain? Then it is held by one more, unless it is about to end.
    //= XRC-11
    pub(crate) fn open_as(&self, domain: &Arc<Domain>, hold: &Arc<Hold>) -> bool {
        let of_domain = |target: &&TargetPart| Arc::ptr_eq(&target.domain, domain);
        let Some(target) = self.target().filter(of_domain) else {
            return false;
        };
        let mut holds = target.holds.lock();
        // With the last one it ends, but where processes share it, and one of them may have it open.
        let lives = !holds.is_empty() || target.travel.is_some();
        if lives {
            holds.push(Arc::clone(hold));
        }
        lives
    }

    /// Has this process it open?
    pub(crate) fn is_open(&self) -> bool {
        let target = self.target();
        target.is_some_and(|target| !target.holds.lock().is_empty())
    }

    /// One of those that have a target open lets go of it: was it the last one? `None` where it had let go before.
    //= XRC-11
    pub(crate) fn let_go(&self, hold: &Arc<Hold>) -> Option<bool> {
        let mut holds = self.target()?.holds.lock();
        let index = holds.iter().position(|other| Arc::ptr_eq(other, hold))?;
        holds.remove(index);
        Some(holds.is_empty())
    }

    /// The application has let go of it; false where that has happened before.
    pub(crate) fn dies(&self) -> bool {
        self.alive.swap(false, Ordering::AcqRel)
    }

    /// Whoever still holds a reference finds a QP that takes and sends nothing.
    pub(crate) fn abandon(&self) {
        let mut core = self.lock();
        tracing::debug!(qp_num = ?self.qp_num, counters = ?core.qp.counters(), "QP ends");
        core.tx.reset();
        core.qp.abandon();
        self.purge_completions(&mut core);
    }

    /// Its queues may end.
    pub(crate) fn detach(&self) {
        if let Some(acks) = self.async_acks.get() {
            self.events.forget(acks);
        }
        let user = User::Qp(self.qp_num);
        for cq in self.send_cq.iter().chain(&self.recv_cq) {
            cq.users().remove(user);
        }
        if let Some(srq) = &self.srq {
            srq.users().remove(user);
        }
    }

    /// Who counts its events, where there were any.
    pub(crate) fn async_acks(&self) -> Option<&AckCounter> {
        self.async_acks.get().map(|acks| &**acks)
    }

    /// Does a completion that is lost end all QPs of its CQ? That of an XRC SRQ ends only the target that was to
    /// report it: no CQ is the target's.
    pub(crate) const fn has_cqs(&self) -> bool {
        self.send_cq.is_some()
    }

    /// Does it take its receives from a queue that others take from?
    pub(crate) const fn has_srq(&self) -> bool {
        self.srq.is_some()
    }

    /// Its queues take part in cross-channel operations.
    pub(crate) fn manage(&self, managed: Managed) {
        let mut core = self.lock();
        core.sends_untaken = managed.sends_untaken;
        core.receives_untaken = managed.receives_untaken;
        core.qp.manage(managed);
    }

    /// Its way to the frames of the interface.
    #[inline]
    pub(crate) fn raw(&self) -> Option<&RawPart> {
        match self.rare.as_deref()? {
            Rare::Raw(raw) => Some(raw),
            Rare::Target(_) => None,
        }
    }

    /// Are frames of it on their way out for which the interface had no room? Its lock is held.
    pub(crate) fn waits_for_room(&self) -> bool {
        self.raw().is_some_and(RawPart::waits_for_room)
    }

    /// Its number.
    pub(crate) const fn qp_num(&self) -> Qpn {
        self.qp_num
    }

    /// Its device.
    pub(crate) fn hca(&self) -> &Hca {
        self.events.hca()
    }

    /// Its port counts the packets with wrong keys that it has got since the last call.
    //= BTH-06 UD-05
    #[inline]
    pub(crate) fn note_violations(&self, core: &mut QpCore) {
        if let Some(violations) = core.qp.take_violations()
            && let Some(port) = self.hca().port(core.qp.port_num())
        {
            port.count_violations(violations);
        }
    }

    /// Locks the QP. The region table's guard has to be taken before.
    pub(crate) fn lock(&self) -> MutexGuard<'_, QpCore> {
        self.core.lock()
    }

    /// Likewise, if that is possible before long.
    pub(crate) fn try_lock_for(&self, patience: Duration) -> Option<MutexGuard<'_, QpCore>> {
        self.core.try_lock_for(patience)
    }

    const fn cq_of(&self, to: CompleteTo) -> Option<&Arc<CqInner>> {
        match to {
            CompleteTo::SendCq => self.send_cq.as_ref(),
            CompleteTo::RecvCq => self.recv_cq.as_ref(),
            CompleteTo::SrqCq => None,
        }
    }

    /// Reserves room for completions in their CQs until there is none, and returns for how many.
    pub(crate) fn reserve(&self, completions: &[Completion]) -> usize {
        let mut reserved = 0;
        each_run(completions, |to, srqn, run| {
            let count = run.len();
            let granted = match (self.cq_of(to), self.target()) {
                (Some(cq), _) => cq.reserve(count),
                (None, Some(target)) => target.domain.reserve(srqn, count),
                (None, None) => count,
            };
            reserved += granted;
            granted == count
        });
        reserved
    }

    /// Hands the completions that wait to their CQs, the first `reserved` of them into the room that was
    /// reserved for them. Returns how many are lost.
    pub(crate) fn complete(&self, core: &mut QpCore, reserved: &mut usize) -> usize {
        let mut lost = 0;
        let QpCore {
            qp,
            send_slots,
            recv_slots,
            sends_untaken,
            receives_untaken,
            ..
        } = core;
        each_run(qp.pending_completions(), |to, srqn, run| {
            lost += match (self.cq_of(to), &self.srq, self.target()) {
                //= XRC-05
                (None, _, Some(target)) => target.domain.complete(srqn, run.iter(), reserved),
                (None, _, None) => run.len(),
                (Some(cq), Some(srq), _) if to == CompleteTo::RecvCq => {
                    srq.add_completions(cq, run.iter(), reserved)
                }
                (Some(cq), ..) => {
                    let (slots, untaken) = match to {
                        CompleteTo::SendCq => (&mut *send_slots, *sends_untaken),
                        _ => (&mut *recv_slots, *receives_untaken),
                    };
                    cq.add(run.iter(), reserved, |number, completion| {
                        if !untaken {
                            slots.note(number, completion.slots);
                        }
                    })
                }
            };
            true
        });
        qp.forget_completions();
        lost
    }

    /// Frees the slots whose completions the application has taken; false where there are none.
    //= RC-WQE-03
    pub(crate) fn reclaim_slots(&self, core: &mut QpCore, is_send: bool) -> bool {
        let (cq, pending) = if is_send {
            (&self.send_cq, &mut core.send_slots)
        } else {
            (&self.recv_cq, &mut core.recv_slots)
        };
        let Some(cq) = cq else {
            return false;
        };
        let slots = pending.reclaim(cq.oldest());
        core.qp.free_slots(is_send, slots);
        slots > 0
    }

    /// Do completions of this QP go to `cq`?
    pub(crate) fn completes_to(&self, cq: &Arc<CqInner>) -> bool {
        let own = self.send_cq.iter().chain(&self.recv_cq);
        own.into_iter().any(|own| Arc::ptr_eq(own, cq))
    }

    /// The application has not destroyed it.
    pub(crate) fn is_alive(&self) -> bool {
        self.alive.load(Ordering::Acquire)
    }

    //= AEV-13
    pub(crate) fn raise(&self, event: QpEvent) {
        let is_dct = self.dct == Some(DctEvents::OfTarget);
        let kind = match event {
            QpEvent::ReqErr if is_dct => AsyncEventKind::DctReqErr,
            QpEvent::AccessErr if is_dct => AsyncEventKind::DctAccessErr,
            QpEvent::DctKeyViolation => AsyncEventKind::DctKeyViolation,
            QpEvent::CommEst => AsyncEventKind::CommEst,
            QpEvent::SqDrained => AsyncEventKind::SqDrained,
            QpEvent::ReqErr => AsyncEventKind::QpReqErr,
            QpEvent::AccessErr => AsyncEventKind::QpAccessErr,
            QpEvent::PathMig => AsyncEventKind::PathMig,
            QpEvent::PathMigErr => AsyncEventKind::PathMigErr,
            QpEvent::LastWqeReached => AsyncEventKind::QpLastWqeReached,
            QpEvent::Fatal => AsyncEventKind::QpFatal,
        };
        let Some(target) = self.target() else {
            let acks = Some(self.async_acks.share());
            let element = if is_dct {
                EventElement::Dct(self.cookie)
            } else {
                EventElement::Qp(self.cookie)
            };
            // An error ends a session of a target, and it takes the next one.
            if self.dct.is_some() {
                self.events.raise_unless_many(kind, element, acks);
            } else {
                self.events.raise(kind, element, acks);
            }
            return;
        };
        //= XRC-11
        for hold in &*target.holds.lock() {
            let acks = Some(Arc::clone(&hold.async_acks));
            let element = EventElement::Qp(hold.cookie);
            hold.events.raise(kind, element, acks);
        }
    }

    /// Its completions are removed from the CQs, and their slots are not waited for.
    pub(crate) fn purge_completions(&self, core: &mut QpCore) {
        for cq in self.send_cq.iter().chain(&self.recv_cq) {
            cq.purge(self.qp_num);
        }
        core.send_slots.clear();
        core.recv_slots.clear();
    }
}

/// Calls `each` for each run of completions that go to one CQ, until it says false.
#[inline]
fn each_run(
    completions: &[Completion],
    mut each: impl FnMut(CompleteTo, Srqn, &[Completion]) -> bool,
) {
    let same = |a: &Completion, b: &Completion| a.to == b.to && a.srqn == b.srqn;
    for run in completions.chunk_by(same) {
        let Some(first) = run.first() else { return };
        if !each(first.to, first.srqn, run) {
            return;
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Programs have thousands of queue pairs that say nothing for hours. What only some of them need, or only in trouble,
    /// belongs into a box.
    #[test]
    fn an_idle_queue_pair_is_small() {
        let size = size_of::<QpInner>();
        assert!(size <= 1_192, "{size}");
    }
}
