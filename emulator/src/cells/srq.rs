//! Shared receive queues: what queue pairs, completion queues and handles share of one.

use std::sync::{Arc, Weak};

use rocade_transport::{Completion, PdTag, RecvWqe, SharedReceives, Srqn, Taken};
use rocade_wire::Qpn;

use super::cq::CqInner;
use super::domain::Domain;
use super::event_queue::AckCounter;
use super::events::{AsyncEventKind, AsyncEvents, EventElement};
use super::slots::PendingSlots;
use super::users::{User, Users};
use crate::steering::{QpnAllocator, Slot};
use crate::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use crate::sync::{Mutex, MutexGuard};

/// The numbers of a process's shared receive queues.
#[derive(Clone, Debug)]
pub(crate) struct SrqNumbers(Arc<Mutex<QpnAllocator>>);

/// One of them, given back when nobody knows its queue any more.
#[derive(Debug)]
pub(crate) struct SrqNumber {
    number: Qpn,
    numbers: SrqNumbers,
}

impl SrqNumbers {
    /// Those of a slot.
    pub(crate) fn new(slot: Slot) -> Self {
        Self(Arc::new(Mutex::new(QpnAllocator::new(slot))))
    }

    /// A free one.
    pub(crate) fn allocate(&self) -> Option<SrqNumber> {
        let number = self.0.lock().allocate()?;
        let numbers = self.clone();
        Some(SrqNumber { number, numbers })
    }
}

impl Drop for SrqNumber {
    fn drop(&mut self) {
        self.numbers.0.lock().release(self.number);
    }
}

#[derive(Debug)]
pub(crate) struct SrqInner {
    events: Arc<AsyncEvents>,
    pd: PdTag,
    xrc: Option<Xrc>,
    number: SrqNumber,
    cookie: u64,
    core: Mutex<rocade_transport::Srq>,
    /// Slots that become free when completions are taken. Its lock comes after that of the core, and before
    /// those of CQs.
    pending: Mutex<Pending>,
    /// QPs that take from it.
    users: Users,
    alive: AtomicBool,
    async_acks: Arc<AckCounter>,
}

/// What an XRC SRQ has besides.
#[derive(Debug)]
struct Xrc {
    domain: Arc<Domain>,
    cq: Arc<CqInner>,
    /// Receives that were taken and have not completed: as long as there are any, the domain knows the queue.
    taken: AtomicU32,
    /// Its CQ is overrun.
    has_failed: AtomicBool,
}

/// For each CQ where receives of a shared queue have completed, what becomes free when.
#[derive(Debug, Default)]
struct Pending {
    of_cqs: Vec<(Weak<CqInner>, PendingSlots)>,
}

impl Pending {
    /// The slots that wait for completions of `cq` to be taken.
    fn of(&mut self, cq: &Arc<CqInner>) -> &mut PendingSlots {
        let found = self
            .of_cqs
            .iter()
            .position(|(other, _)| std::ptr::eq(other.as_ptr(), Arc::as_ptr(cq)));
        let at = found.unwrap_or_else(|| {
            self.of_cqs
                .push((Arc::downgrade(cq), PendingSlots::default()));
            self.of_cqs.len() - 1
        });
        &mut self.of_cqs[at].1
    }

    /// The slots that are free now. Those of a CQ that is gone are: nobody will take its completions.
    fn reclaim(&mut self) -> u32 {
        let mut slots = 0;
        self.of_cqs.retain_mut(|(cq, pending)| {
            let cq = cq.upgrade();
            slots += pending.reclaim(cq.as_ref().map_or(u64::MAX, |cq| cq.oldest()));
            cq.is_some()
        });
        slots
    }
}

impl SrqInner {
    /// One that nobody uses yet. An XRC SRQ is of a domain, and completes in a CQ of its own.
    pub(crate) fn new(
        events: Arc<AsyncEvents>,
        number: SrqNumber,
        cookie: u64,
        pd: PdTag,
        core: rocade_transport::Srq,
        xrc: Option<(Arc<Domain>, Arc<CqInner>)>,
    ) -> Arc<Self> {
        let xrc = xrc.map(|(domain, cq)| Xrc {
            domain,
            cq,
            taken: AtomicU32::new(0),
            has_failed: AtomicBool::new(false),
        });
        let srq = Arc::new(Self {
            events,
            pd,
            xrc,
            number,
            cookie,
            core: Mutex::new(core),
            pending: Mutex::default(),
            users: Users::default(),
            alive: AtomicBool::new(true),
            async_acks: Arc::default(),
        });
        if let Some(xrc) = &srq.xrc {
            xrc.cq.users().add(User::Srq(srq.srqn()));
            xrc.domain.add(&srq);
        }
        srq
    }

    /// May a QP that has its events there take its receives from it? An XRC SRQ is for targets only.
    pub(crate) fn is_for(&self, events: &Arc<AsyncEvents>) -> bool {
        Arc::ptr_eq(&self.events, events) && self.xrc.is_none()
    }

    /// The QPs that take from it.
    pub(crate) const fn users(&self) -> &Users {
        &self.users
    }

    pub(crate) fn async_acks(&self) -> &AckCounter {
        &self.async_acks
    }

    /// Locks the queue.
    pub(crate) fn lock(&self) -> MutexGuard<'_, rocade_transport::Srq> {
        self.core.lock()
    }

    /// Frees the slots whose completions the application has taken; false where there are none.
    //= RC-WQE-03
    pub(crate) fn reclaim_slots(&self, core: &mut rocade_transport::Srq) -> bool {
        let slots = self.pending.lock().reclaim();
        core.free_slots(slots);
        slots > 0
    }

    /// The application lets go of it; false where that has happened before.
    pub(crate) fn end(&self) -> bool {
        // A message that takes a receive meanwhile has raised its event before, or raises none.
        let core = self.core.lock();
        if !self.alive.swap(false, Ordering::AcqRel) {
            return false;
        }
        self.events.forget(&self.async_acks);
        drop(core);
        // Completions that are about to be added are there; there will be no others.
        drop(self.pending.lock());
        if let Some(xrc) = &self.xrc {
            xrc.cq.users().remove(User::Srq(self.srqn()));
            fence(Ordering::SeqCst);
            xrc.domain.retire(self.srqn());
        }
        true
    }

    pub(crate) fn srqn(&self) -> Srqn {
        Srqn::new(self.number.number.get())
    }

    /// The application has not destroyed it.
    pub(crate) fn is_alive(&self) -> bool {
        self.alive.load(Ordering::Acquire)
    }

    /// Destroyed, and all that was taken from it has completed.
    pub(crate) fn is_over(&self) -> bool {
        let taken = |xrc: &Xrc| xrc.taken.load(Ordering::Acquire);
        !self.is_alive() && self.xrc.as_ref().is_none_or(|xrc| taken(xrc) == 0)
    }

    /// So many receives of an XRC SRQ have completed, or will not.
    fn give_back(&self, count: usize) {
        if let Some(xrc) = &self.xrc {
            let count = u32::try_from(count).unwrap_or(u32::MAX);
            let before = xrc.taken.fetch_sub(count, Ordering::AcqRel);
            // Here and in `end`: a change, a fence, a look at the other's. So one of both sees that it is over.
            fence(Ordering::SeqCst);
            if before == count && !self.is_alive() {
                xrc.domain.retire(self.srqn());
            }
        }
    }

    /// Reserves room for completions in the CQ of an XRC SRQ, and returns for how many.
    pub(crate) fn reserve(&self, count: usize) -> usize {
        self.xrc.as_ref().map_or(0, |xrc| xrc.cq.reserve(count))
    }

    /// Hands completions to the CQ of an XRC SRQ, the first `reserved` into room that was reserved, and returns
    /// how many are lost. Those of a queue that is destroyed go nowhere: the CQ may be gone.
    pub(crate) fn complete<'c>(
        &self,
        run: impl Iterator<Item = &'c Completion>,
        reserved: &mut usize,
    ) -> usize {
        let Some(xrc) = &self.xrc else {
            return 0;
        };
        let pending = self.pending.lock();
        if !self.is_alive() {
            drop(pending);
            let count = run.count();
            let unused = count.min(*reserved);
            *reserved -= unused;
            xrc.cq.give_up(unused);
            self.give_back(count);
            return 0;
        }
        let mut count = 0;
        let run = run.inspect(|_| count += 1);
        let lost = self.add_to(&xrc.cq, pending, run, reserved);
        //= AEV-09
        if lost > 0 && !xrc.has_failed.swap(true, Ordering::AcqRel) {
            self.raise(AsyncEventKind::SrqErr);
        }
        self.give_back(count);
        lost
    }

    /// Hands completions of receives of this queue to a CQ, and returns how many are lost: their slots are free.
    pub(crate) fn add_completions<'c>(
        &self,
        cq: &Arc<CqInner>,
        run: impl Iterator<Item = &'c Completion>,
        reserved: &mut usize,
    ) -> usize {
        self.add_to(cq, self.pending.lock(), run, reserved)
    }

    fn add_to<'c>(
        &self,
        cq: &Arc<CqInner>,
        mut pending: MutexGuard<'_, Pending>,
        run: impl Iterator<Item = &'c Completion>,
        reserved: &mut usize,
    ) -> usize {
        let slots = pending.of(cq);
        let lost = cq.add(run, reserved, |number, completion| {
            slots.note(number, completion.slots);
        });
        drop(pending);
        if lost > 0 {
            let lost = u32::try_from(lost).unwrap_or(u32::MAX);
            self.core.lock().free_slots(lost);
        }
        lost
    }

    fn raise(&self, kind: AsyncEventKind) {
        if self.alive.load(Ordering::Acquire) {
            let acks = Some(Arc::clone(&self.async_acks));
            let element = EventElement::Srq(self.cookie);
            self.events.raise(kind, element, acks);
        }
    }
}

impl SharedReceives for SrqInner {
    fn pd(&self) -> PdTag {
        self.pd
    }

    fn take(&self) -> Option<RecvWqe> {
        let mut core = self.core.lock();
        if !self.is_alive() && self.xrc.is_some() {
            return None;
        }
        let Taken { wqe, limit_reached } = core.take()?;
        if let Some(xrc) = &self.xrc {
            xrc.taken.fetch_add(1, Ordering::AcqRel);
        }
        if limit_reached {
            //= SRQ-04
            self.raise(AsyncEventKind::SrqLimitReached);
        }
        Some(wqe)
    }

    fn forget(&self) {
        self.core.lock().free_slots(1);
        self.give_back(1);
    }
}
