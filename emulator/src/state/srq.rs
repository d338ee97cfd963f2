//! Shared receive queues: the state that queue pairs, completion queues and handles share.

use std::sync::{Arc, Weak};

use rocade_transport::{Completion, PdTag, RecvWqe, SharedReceives, Srqn, Taken};
use rocade_wire::Qpn;

use super::ack_counter::AckCounter;
use super::cq::CqInner;
use super::domain::Domain;
use super::events::{AsyncEventKind, AsyncEvents, EventElement};
use super::pending_wqes::PendingWqes;
use super::users::{User, Users};
use crate::steering::{ProcessSlot, QpnAllocator};
use crate::sync::modelled::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use crate::sync::modelled::{Mutex, MutexGuard};
use crate::sync::rank;

/// The allocator of a process's SRQ numbers.
#[derive(Clone, Debug)]
pub(crate) struct SrqNumbers(Arc<Mutex<QpnAllocator>>);

/// An SRQ number. It is released when the last reference to its queue is dropped.
#[derive(Debug)]
pub(crate) struct SrqNumber {
    number: Qpn,
    numbers: SrqNumbers,
}

impl SrqNumbers {
    /// Makes the allocator of the numbers of a slot.
    pub(crate) fn new(slot: ProcessSlot) -> Self {
        Self(Arc::new(Mutex::new(QpnAllocator::new(slot))))
    }

    /// Allocates a number.
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
    core: Mutex<rocade_transport::Srq, rank::Srq>,
    /// WQEs that become free when completions are polled. Its lock is taken after that of the core,
    /// and before those of CQs.
    pending: Mutex<Pending, rank::SrqPending>,
    /// QPs that take from it.
    users: Users,
    alive: AtomicBool,
    async_acks: Arc<AckCounter>,
}

/// The further state of an XRC SRQ.
#[derive(Debug)]
struct Xrc {
    domain: Arc<Domain>,
    cq: Arc<CqInner>,
    /// Receives that were taken and have not completed. The domain keeps the queue as long as there
    /// are any.
    taken: AtomicU32,
    /// Its CQ is overrun.
    has_failed: AtomicBool,
}

/// The WQEs that become free with polled completions, per CQ where receives of the SRQ complete.
#[derive(Debug, Default)]
struct Pending {
    of_cqs: Vec<(Weak<CqInner>, PendingWqes)>,
}

impl Pending {
    /// The WQEs that become free when completions of `cq` are polled.
    fn of(&mut self, cq: &Arc<CqInner>) -> &mut PendingWqes {
        let found = self
            .of_cqs
            .iter()
            .position(|(other, _)| std::ptr::eq(other.as_ptr(), Arc::as_ptr(cq)));
        let at = found.unwrap_or_else(|| {
            self.of_cqs
                .push((Arc::downgrade(cq), PendingWqes::default()));
            self.of_cqs.len() - 1
        });
        &mut self.of_cqs[at].1
    }

    /// Returns the number of WQEs that are free now. Those of a destroyed CQ are free, because its
    /// completions are never polled.
    fn reclaim(&mut self) -> u32 {
        let mut freed_wqes = 0;
        self.of_cqs.retain_mut(|(cq, pending)| {
            let cq = cq.upgrade();
            freed_wqes += pending.reclaim(cq.as_ref().map_or(u64::MAX, |cq| cq.oldest()));
            cq.is_some()
        });
        freed_wqes
    }
}

impl SrqInner {
    /// Makes a queue. An XRC SRQ belongs to a domain, and has a CQ.
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

    /// Returns true if a QP of the same opened device may take its receives from it. An XRC SRQ
    /// serves XRC targets only.
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

    /// Frees the WQEs whose completions the application has polled. Returns false if there are
    /// none.
    //= RC-WQE-03
    pub(crate) fn reclaim_wqes(&self, core: &mut rocade_transport::Srq) -> bool {
        let freed_wqes = self.pending.lock().reclaim();
        core.free_wqes(freed_wqes);
        freed_wqes > 0
    }

    /// Destroys the queue. Returns false if it already was destroyed.
    pub(crate) fn end(&self) -> bool {
        // A message that takes a receive concurrently has raised its event before, or raises none.
        let core = self.core.lock();
        if !self.alive.swap(false, Ordering::AcqRel) {
            return false;
        }
        self.events.forget(&self.async_acks);
        drop(core);
        // Completions that another thread was adding are in the CQ now, and no others will come.
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

    /// Returns true if the application has not destroyed it.
    pub(crate) fn is_alive(&self) -> bool {
        self.alive.load(Ordering::Acquire)
    }

    /// Returns true if it is destroyed and all receives that were taken from it have completed.
    pub(crate) fn is_over(&self) -> bool {
        let taken = |xrc: &Xrc| xrc.taken.load(Ordering::Acquire);
        !self.is_alive() && self.xrc.as_ref().is_none_or(|xrc| taken(xrc) == 0)
    }

    /// Records that `count` receives of an XRC SRQ have completed, or never will.
    fn give_back(&self, count: usize) {
        if let Some(xrc) = &self.xrc {
            let count = u32::try_from(count).unwrap_or(u32::MAX);
            let before = xrc.taken.fetch_sub(count, Ordering::AcqRel);
            // Both here and in `end` the thread changes its own variable, issues a fence, and reads
            // the other's. So at least one of the threads sees that the queue is over.
            fence(Ordering::SeqCst);
            if before == count && !self.is_alive() {
                xrc.domain.retire(self.srqn());
            }
        }
    }

    /// Reserves space for completions in the CQ of an XRC SRQ. Returns for how many.
    pub(crate) fn reserve(&self, count: usize) -> usize {
        self.xrc.as_ref().map_or(0, |xrc| xrc.cq.reserve(count))
    }

    /// Hands completions to the CQ of an XRC SRQ, the first `reserved` into reserved space. Returns
    /// how many are lost. Completions of a destroyed queue are dropped, because the CQ may be gone.
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
            xrc.cq.release_reserved(unused);
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

    /// Hands completions of receives of this queue to a CQ. Returns how many are lost. Their WQEs
    /// are free.
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
        let freed_wqes = pending.of(cq);
        let lost = cq.add(run, reserved, |number, completion| {
            freed_wqes.note(number, completion.freed_wqes);
        });
        drop(pending);
        if lost > 0 {
            let lost = u32::try_from(lost).unwrap_or(u32::MAX);
            self.core.lock().free_wqes(lost);
        }
        lost
    }

    pub(crate) fn raise(&self, kind: AsyncEventKind) {
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
        self.core.lock().free_wqes(1);
        self.give_back(1);
    }
}
