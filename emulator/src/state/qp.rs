//! Queue pairs: the state that the engine and the handles share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::sync::{Mutex, MutexGuard, rank};
use rocade_transport::{CompleteTo, Completion, Managed, QpEvent, Srqn, Time};
use rocade_wire::Qpn;

use super::ack_counter::{AckCounter, LazyAcks};
use super::cq::CqInner;
use super::domain::Domain;
use super::events::{AsyncEventKind, AsyncEvents, EventElement};
use super::pending_wqes::PendingWqes;
use super::srq::SrqInner;
use super::target::{OpenHandle, TargetOwnership, XrcTargetState};
use super::tx::TxState;
use super::users::User;
use crate::hca::Hca;
use crate::raw::RawState;

#[derive(Debug)]
pub(crate) struct QpInner {
    events: Arc<AsyncEvents>,
    qp_num: Qpn,
    /// `None` for an XRC target.
    send_cq: Option<Arc<CqInner>>,
    recv_cq: Option<Arc<CqInner>>,
    srq: Option<Arc<SrqInner>>,
    extension: Option<Box<Extension>>,
    dct: Option<DctEvents>,
    cookie: u64,
    core: Mutex<QpCore, rank::Qp>,
    alive: AtomicBool,
    async_acks: LazyAcks,
}

/// State that only few QPs need.
#[derive(Debug)]
enum Extension {
    Target(XrcTargetState),
    Raw(Box<RawState>),
}

/// The CQs, SRQ and extensions of a new QP.
#[derive(Debug, Default)]
pub(crate) struct QpResources {
    /// The CQs of sends and receives.
    pub(crate) cqs: Option<(Arc<CqInner>, Arc<CqInner>)>,
    pub(crate) srq: Option<Arc<SrqInner>>,
    /// The further state of an XRC target.
    pub(crate) target: Option<XrcTargetInit>,
    /// The further state of a raw packet QP.
    pub(crate) raw: Option<Box<RawState>>,
    /// For a DC target: the objects that its events are about.
    pub(crate) dct: Option<DctEvents>,
}

/// The kind of object that the events of a DC target are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DctEvents {
    /// A DCT that `ibv_exp_create_dct` made.
    OfTarget,
    /// A QP that `mlx5dv_create_qp` made.
    OfQp,
}

/// The initial state of an XRC target.
#[derive(Debug)]
pub(crate) struct XrcTargetInit {
    pub(crate) domain: Arc<Domain>,
    /// The handle that created it.
    pub(crate) open_handle: Option<Arc<OpenHandle>>,
    /// The ownership record, if processes share the domain.
    pub(crate) ownership: Option<TargetOwnership>,
}

/// The state that the lock of a QP protects.
#[derive(Debug)]
pub(crate) struct QpCore {
    pub(crate) qp: rocade_transport::Qp,
    pub(crate) tx: TxState,
    /// Completions that a fault rule holds. They stay pending in the transport.
    pub(crate) held: Option<Box<HeldCompletions>>,
    /// A fault rule has removed the device. The QP takes requests, and does nothing with them.
    pub(crate) detached: bool,
    /// A completion was lost. The QP's events are held until all QPs of the CQ are in ERR.
    pub(crate) overrun: bool,
    /// Completions of the send queue, or of the receive queue, do not free WQEs.
    sends_untaken: bool,
    receives_untaken: bool,
    /// WQEs of the send and the receive queue that become free when their completions are polled.
    send_wqes: PendingWqes,
    recv_wqes: PendingWqes,
}

/// Completions that appear later than they could.
#[derive(Debug, Default)]
pub(crate) struct HeldCompletions {
    /// The time at which they appear at the latest.
    pub(crate) until: Time,
    /// True if an ACK that has no space is awaited, and not the time.
    pub(crate) awaits_ack: bool,
    /// The number of pending completions that ends the wait, too.
    pub(crate) burst: Option<u32>,
    /// Number of pending completions that the rules have considered.
    pub(crate) considered: usize,
    /// Number of pending completions that have space in their CQs.
    pub(crate) reserved: usize,
}

impl QpCore {
    /// Returns the time at which the QP has to be served next: its timer, or held completions.
    #[inline]
    pub(crate) fn next_timeout(&self) -> Option<Time> {
        let timer = self.qp.next_timeout();
        match &self.held {
            None => timer,
            Some(held) => Some(timer.map_or(held.until, |timer| timer.min(held.until))),
        }
    }

    /// Returns the number of pending completions that have space in their CQs already.
    #[inline]
    pub(crate) fn held_space(&self) -> usize {
        self.held.as_ref().map_or(0, |held| held.reserved)
    }
}

impl QpInner {
    /// Makes a QP in RESET with the CQs, SRQ and extensions of `parts`.
    pub(crate) fn new(
        events: Arc<AsyncEvents>,
        qp: rocade_transport::Qp,
        cookie: u64,
        parts: QpResources,
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
            Extension::Target(XrcTargetState {
                domain: parts.domain,
                open_handles: Mutex::new(parts.open_handle.into_iter().collect()),
                ownership: parts.ownership,
            })
        });
        let extension = target.or_else(|| parts.raw.map(Extension::Raw));
        Arc::new(Self {
            events,
            qp_num: qp.config().qp_num,
            send_cq,
            recv_cq,
            srq: parts.srq,
            extension: extension.map(Box::new),
            dct: parts.dct,
            cookie,
            core: Mutex::new(QpCore {
                qp,
                tx: TxState::default(),
                held: None,
                detached: false,
                overrun: false,
                sends_untaken: false,
                receives_untaken: false,
                send_wqes: PendingWqes::default(),
                recv_wqes: PendingWqes::default(),
            }),
            alive: AtomicBool::new(true),
            async_acks: LazyAcks::default(),
        })
    }

    #[inline]
    fn target(&self) -> Option<&XrcTargetState> {
        match self.extension.as_deref()? {
            Extension::Target(target) => Some(target),
            Extension::Raw(_) => None,
        }
    }

    /// The XRC domain of a target.
    pub(crate) fn domain(&self) -> Option<&Arc<Domain>> {
        self.target().map(|target| &target.domain)
    }

    /// The ownership of a target that several processes serve.
    #[inline]
    pub(crate) fn ownership(&self) -> Option<&TargetOwnership> {
        self.target()?.ownership.as_ref()
    }

    /// Writes the first checkpoint of a new target, from which other processes may take it over.
    pub(crate) fn publish(&self) {
        self.checkpoint(&self.lock().qp);
    }

    /// Writes a checkpoint of the QP if it is a target that another process may take over.
    #[inline]
    pub(crate) fn checkpoint(&self, qp: &rocade_transport::Qp) {
        if let Some(ownership) = self.ownership() {
            ownership.checkpoint(qp);
        }
    }

    /// Adds a handle to a target of this domain. Returns false if it is no such target or about to
    /// end.
    //= XRC-11
    pub(crate) fn open_as(&self, domain: &Arc<Domain>, open_handle: &Arc<OpenHandle>) -> bool {
        let of_domain = |target: &&XrcTargetState| Arc::ptr_eq(&target.domain, domain);
        let Some(target) = self.target().filter(of_domain) else {
            return false;
        };
        let mut open_handles = target.open_handles.lock();
        // Without handles it ends, except where processes share it and another one may have it
        // open.
        let is_open = !open_handles.is_empty() || target.ownership.is_some();
        if is_open {
            open_handles.push(Arc::clone(open_handle));
        }
        is_open
    }

    /// Returns true if this process has the target open.
    pub(crate) fn is_open(&self) -> bool {
        let target = self.target();
        target.is_some_and(|target| !target.open_handles.lock().is_empty())
    }

    /// Closes one handle. Returns true if it was the last, or `None` if it was already closed.
    //= XRC-11
    pub(crate) fn close_handle(&self, open_handle: &Arc<OpenHandle>) -> Option<bool> {
        let mut open_handles = self.target()?.open_handles.lock();
        let index = open_handles
            .iter()
            .position(|other| Arc::ptr_eq(other, open_handle))?;
        open_handles.remove(index);
        Some(open_handles.is_empty())
    }

    /// Marks the QP as destroyed by the application. Returns false if it already was.
    pub(crate) fn mark_destroyed(&self) -> bool {
        self.alive.swap(false, Ordering::AcqRel)
    }

    /// Stops the QP: a thread that still holds a reference finds a QP that neither receives nor
    /// sends.
    pub(crate) fn stop(&self) {
        let mut core = self.lock();
        tracing::debug!(qp_num = ?self.qp_num, counters = ?core.qp.counters(), "QP has ended");
        core.tx.reset();
        self.release_held(&mut core);
        core.qp.abandon();
        self.purge_completions(&mut core);
    }

    /// Returns true if a fault rule has removed the device since the QP was made.
    pub(crate) fn is_removed(&self) -> bool {
        self.events.is_removed()
    }

    /// Separates the QP from its device, which was removed. The program may go on to post, as it
    /// may to the memory of a driver, but nothing is sent and nothing completes.
    pub(crate) fn detach(&self) {
        let mut core = self.lock();
        core.detached = true;
        core.tx.reset();
        self.release_held(&mut core);
    }

    /// Stops using the CQs and the SRQ, so that they can be destroyed, and drops unread events.
    pub(crate) fn release_queues(&self) {
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

    /// The counter of unacknowledged events, if there were any.
    pub(crate) fn async_acks(&self) -> Option<&AckCounter> {
        self.async_acks.get().map(|acks| &**acks)
    }

    /// Returns the CQs, each once.
    pub(crate) fn cqs(&self) -> impl Iterator<Item = &Arc<CqInner>> {
        let (send, recv) = (self.send_cq.as_ref(), self.recv_cq.as_ref());
        let other = recv.filter(|recv| send.is_none_or(|send| !Arc::ptr_eq(send, recv)));
        send.into_iter().chain(other)
    }

    /// Returns true if a lost completion puts all QPs of the CQ into the error state. A lost
    /// completion of an XRC SRQ affects only the target that reports it, because a target has no
    /// CQ.
    pub(crate) const fn has_cqs(&self) -> bool {
        self.send_cq.is_some()
    }

    /// Returns true if it takes its receives from an SRQ.
    pub(crate) const fn has_srq(&self) -> bool {
        self.srq.is_some()
    }

    /// Lets its queues take part in cross-channel operations.
    pub(crate) fn manage(&self, managed: Managed) {
        let mut core = self.lock();
        core.sends_untaken = managed.sends_untaken;
        core.receives_untaken = managed.receives_untaken;
        core.qp.manage(managed);
    }

    /// The raw packet state of the QP.
    #[inline]
    pub(crate) fn raw(&self) -> Option<&RawState> {
        match self.extension.as_deref()? {
            Extension::Raw(raw) => Some(raw),
            Extension::Target(_) => None,
        }
    }

    /// Returns true if the QP has Ethernet frames that the interface had no space for. The caller
    /// holds the lock of the QP.
    pub(crate) fn waits_for_space(&self) -> bool {
        self.raw().is_some_and(RawState::waits_for_space)
    }

    /// Its QP number.
    pub(crate) const fn qp_num(&self) -> Qpn {
        self.qp_num
    }

    /// Its device.
    pub(crate) fn hca(&self) -> &Hca {
        self.events.hca()
    }

    /// Adds the packets with wrong keys that the QP has received since the last call to the
    /// counters of its port.
    //= BTH-06 UD-05
    #[inline]
    pub(crate) fn note_violations(&self, core: &mut QpCore) {
        if let Some(violations) = core.qp.take_violations()
            && let Some(port) = self.hca().port(core.qp.port_num())
        {
            port.count_violations(violations);
        }
    }

    /// Locks the QP. The guard of the region table has to be taken before.
    pub(crate) fn lock(&self) -> MutexGuard<'_, QpCore> {
        self.core.lock()
    }

    /// Like [`lock`](Self::lock), but gives up after `patience`.
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

    /// Reserves space for completions in their CQs, up to the first one that finds none. Returns
    /// for how many.
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

    /// Forgets that completions are held, and releases their space. They stay pending.
    pub(crate) fn release_held(&self, core: &mut QpCore) {
        let Some(held) = core.held.take() else {
            return;
        };
        let pending = core.qp.pending_completions();
        let with_space = pending.get(..held.reserved).unwrap_or(pending);
        each_run(with_space, |to, _, run| {
            if let Some(cq) = self.cq_of(to) {
                cq.release_reserved(run.len());
            }
            true
        });
    }

    /// Overruns the CQ of completions of this kind, if there is one.
    #[cold]
    pub(crate) fn overrun(&self, to: CompleteTo) {
        if let Some(cq) = self.cq_of(to) {
            cq.overrun();
        }
    }

    /// Raises an event of the CQs of the QP.
    pub(crate) fn raise_of_cqs(&self, kind: AsyncEventKind) {
        let (send_cq, recv_cq) = (self.send_cq.iter(), self.recv_cq.iter());
        let is_other = |cq: &&Arc<CqInner>| {
            !self
                .send_cq
                .as_ref()
                .is_some_and(|own| Arc::ptr_eq(own, cq))
        };
        send_cq
            .chain(recv_cq.filter(is_other))
            .for_each(|cq| cq.raise(kind));
    }

    /// Raises an event of the SRQ of the QP, if there is one.
    pub(crate) fn raise_of_srq(&self, kind: AsyncEventKind) {
        if let Some(srq) = &self.srq {
            srq.raise(kind);
        }
    }

    /// Hands the pending completions to their CQs, the first `reserved` of them into reserved
    /// space. Returns how many are lost.
    pub(crate) fn complete(&self, core: &mut QpCore, reserved: &mut usize) -> usize {
        let mut lost = 0;
        core.qp.count_completions();
        let QpCore {
            qp,
            send_wqes,
            recv_wqes,
            sends_untaken,
            receives_untaken,
            ..
        } = core;
        let completions = qp.pending_completions();
        let sends_first = self.sends_complete_first(completions, *reserved);
        let mut add = |to, srqn, run: &[Completion]| {
            lost += match (self.cq_of(to), &self.srq, self.target()) {
                //= XRC-05
                (None, _, Some(target)) => target.domain.complete(srqn, run.iter(), reserved),
                (None, _, None) => run.len(),
                (Some(cq), Some(srq), _) if to == CompleteTo::RecvCq => {
                    srq.add_completions(cq, run.iter(), reserved)
                }
                (Some(cq), ..) => {
                    let (freed_wqes, untaken) = match to {
                        CompleteTo::SendCq => (&mut *send_wqes, *sends_untaken),
                        _ => (&mut *recv_wqes, *receives_untaken),
                    };
                    cq.add(run.iter(), reserved, |number, completion| {
                        if !untaken {
                            freed_wqes.note(number, completion.freed_wqes);
                        }
                    })
                }
            };
            true
        };
        if sends_first {
            each_run(completions, |to, srqn, run| {
                to != CompleteTo::SendCq || add(to, srqn, run)
            });
            each_run(completions, |to, srqn, run| {
                to == CompleteTo::SendCq || add(to, srqn, run)
            });
        } else {
            each_run(completions, add);
        }
        qp.forget_completions();
        lost
    }

    /// Returns true if sends are reported before receives that were completed earlier. A peer's ACK
    /// precedes its reply on hardware, and may follow it here, in the same datagram. So a program
    /// that has the event of the reply finds the completion of its own message. The order within a
    /// CQ does not change.
    fn sends_complete_first(&self, completions: &[Completion], reserved: usize) -> bool {
        let (Some(send_cq), Some(recv_cq)) = (&self.send_cq, &self.recv_cq) else {
            return false;
        };
        let is_mixed = || {
            let first = completions.first().map(|completion| completion.to);
            completions
                .iter()
                .any(|completion| Some(completion.to) != first)
        };
        // If there is no space for all, the first ones have it.
        let all_have_space = reserved == 0 || reserved >= completions.len();
        all_have_space && !Arc::ptr_eq(send_cq, recv_cq) && is_mixed()
    }

    /// Frees the WQEs whose completions the application has polled. Returns false if there are
    /// none.
    //= RC-WQE-03
    pub(crate) fn reclaim_wqes(&self, core: &mut QpCore, is_send: bool) -> bool {
        let (cq, pending) = if is_send {
            (&self.send_cq, &mut core.send_wqes)
        } else {
            (&self.recv_cq, &mut core.recv_wqes)
        };
        let Some(cq) = cq else {
            return false;
        };
        let freed_wqes = pending.reclaim(cq.oldest());
        core.qp.free_wqes(is_send, freed_wqes);
        freed_wqes > 0
    }

    /// Returns true if completions of this QP go to `cq`.
    pub(crate) fn completes_to(&self, cq: &Arc<CqInner>) -> bool {
        let own = self.send_cq.iter().chain(&self.recv_cq);
        own.into_iter().any(|own| Arc::ptr_eq(own, cq))
    }

    /// Returns true if the application has not destroyed the QP.
    pub(crate) fn is_alive(&self) -> bool {
        self.alive.load(Ordering::Acquire)
    }

    /// Raises an asynchronous event that has no cause in the QP.
    pub(crate) fn raise_kind(&self, kind: AsyncEventKind) {
        let (element, acks) = (EventElement::Qp(self.cookie), self.async_acks.share());
        self.events.raise_unless_many(kind, element, Some(acks));
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
            // An error ends a session of a DC target, which then accepts the next session.
            if self.dct.is_some() {
                self.events.raise_unless_many(kind, element, acks);
            } else {
                self.events.raise(kind, element, acks);
            }
            return;
        };
        //= XRC-11
        for open_handle in &*target.open_handles.lock() {
            let acks = Some(Arc::clone(&open_handle.async_acks));
            let element = EventElement::Qp(open_handle.cookie);
            open_handle.events.raise(kind, element, acks);
        }
    }

    /// Removes its completions from the CQs, and forgets their WQEs.
    pub(crate) fn purge_completions(&self, core: &mut QpCore) {
        for cq in self.send_cq.iter().chain(&self.recv_cq) {
            cq.purge(self.qp_num);
        }
        core.send_wqes.clear();
        core.recv_wqes.clear();
    }
}

/// Calls `each` for each run of completions that go to one CQ, until it returns false.
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

    /// Applications have thousands of queue pairs that are idle for hours. State that only some of
    /// them need belongs behind a `Box`.
    #[test]
    fn an_idle_queue_pair_is_small() {
        let size = size_of::<QpInner>();
        assert!(size <= 1_064, "{size}");
    }
}
