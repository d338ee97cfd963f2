//! Shared receive queues.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, MutexGuard};
use rocade_transport::{
    Completion, PdTag, PostError, RecvWqe, Sge, SharedReceives, SrqAttr, Srqn, Taken,
};
use rocade_wire::Qpn;

use super::context::{AsyncEventKind, EventElement};
use super::cq::{Cq, CqInner};
use super::event_queue::AckCounter;
use super::pd::{Pd, PdInner};
use super::slots::PendingSlots;
use super::xrcd::{Xrcd, XrcdInner};
use crate::error::VerbsError;
use crate::hca::limits;

/// What a shared receive queue is created with (`ibv_srq_init_attr`).
#[derive(Clone, Copy, Debug)]
#[doc(alias = "ibv_srq_init_attr")]
pub struct SrqInitAttr {
    /// Receives it has room for; granted as asked.
    pub max_wr: u32,
    /// Scatter/gather entries of a receive; granted as asked.
    pub max_sge: u32,
    /// Comes back in events.
    pub cookie: u64,
}

/// A shared receive queue (`ibv_srq`): queue pairs that are created with it take their receives from it.
#[derive(Clone, Debug)]
#[doc(alias = "ibv_srq")]
pub struct Srq {
    owner: Arc<SrqOwner>,
}

/// What all handles share: with the last one the application lets go of it. QPs that use it still do.
#[derive(Debug)]
struct SrqOwner {
    inner: Arc<SrqInner>,
}

impl Drop for SrqOwner {
    fn drop(&mut self) {
        self.inner.end();
    }
}

#[derive(Debug)]
pub(crate) struct SrqInner {
    pd: Arc<PdInner>,
    xrc: Option<Xrc>,
    number: Qpn,
    cookie: u64,
    core: Mutex<rocade_transport::Srq>,
    /// Slots that become free when completions are taken. Its lock comes after that of the core, and before
    /// those of CQs.
    pending: Mutex<Pending>,
    /// QPs that take from it.
    users: AtomicU32,
    alive: AtomicBool,
    async_acks: Arc<AckCounter>,
}

/// What an XRC SRQ has besides.
#[derive(Debug)]
struct Xrc {
    /// Through which it was made.
    xrcd: Arc<XrcdInner>,
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

impl Srq {
    pub(super) fn new(pd: Arc<PdInner>, init: SrqInitAttr) -> Result<Self, VerbsError> {
        Self::create(pd, None, init)
    }

    pub(super) fn of_xrcd(
        xrcd: &Xrcd,
        pd: &Pd,
        cq: &Cq,
        init: SrqInitAttr,
    ) -> Result<Self, VerbsError> {
        let (pd, xrcd, cq) = (Arc::clone(&pd.inner), Arc::clone(xrcd.inner()), &cq.inner);
        if !Arc::ptr_eq(&pd.context, xrcd.context()) || !cq.is_of(&pd.context) {
            return Err(VerbsError::InvalidArgument("pd, xrcd and cq"));
        }
        let cq = Arc::clone(cq);
        let xrc = Xrc {
            xrcd,
            cq,
            taken: AtomicU32::new(0),
            has_failed: AtomicBool::new(false),
        };
        let srq = Self::create(pd, Some(xrc), init)?;
        let inner = srq.inner();
        if let Some(xrc) = &inner.xrc {
            xrc.cq.attach_qp();
            xrc.xrcd.children.fetch_add(1, Ordering::AcqRel);
            xrc.xrcd.domain.add(inner);
        }
        Ok(srq)
    }

    fn create(pd: Arc<PdInner>, xrc: Option<Xrc>, init: SrqInitAttr) -> Result<Self, VerbsError> {
        //= SRQ-01
        if init.max_wr == 0 || init.max_wr > limits::MAX_SRQ_WR {
            return Err(VerbsError::InvalidArgument("max_wr"));
        }
        if init.max_sge == 0 || init.max_sge > limits::MAX_SGE {
            return Err(VerbsError::InvalidArgument("max_sge"));
        }
        let number = pd.context.engine.allocate_srq_num()?;
        pd.children.fetch_add(1, Ordering::AcqRel);
        let core = rocade_transport::Srq::new(pd.id, init.max_wr, init.max_sge);
        Ok(Self {
            owner: Arc::new(SrqOwner {
                inner: Arc::new(SrqInner {
                    pd,
                    xrc,
                    number,
                    cookie: init.cookie,
                    core: Mutex::new(core),
                    pending: Mutex::default(),
                    users: AtomicU32::new(0),
                    alive: AtomicBool::new(true),
                    async_acks: Arc::default(),
                }),
            }),
        })
    }

    pub(super) fn inner(&self) -> &Arc<SrqInner> {
        &self.owner.inner
    }

    /// Its number, 24 bits, unique among those of this address (SRQ-10).
    //= SRQ-10
    #[must_use]
    #[doc(alias = "ibv_get_srq_num")]
    pub fn number(&self) -> u32 {
        self.inner().number.get()
    }

    /// Its domain: receives name memory of it.
    #[must_use]
    pub fn pd(&self) -> Pd {
        Pd {
            inner: Arc::clone(&self.inner().pd),
        }
    }

    /// Changes size, limit, or both. A limit above 0 asks for an event, once, when fewer receives than that
    /// are left after one was taken; 0 takes that back.
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] and [`VerbsError::Srq`] (EINVAL): above the device's limit, below the
    /// number of receives in use, or a limit above the size. Nothing has changed then (SRQ-02, SRQ-03).
    #[doc(alias = "ibv_modify_srq")]
    pub fn modify(&self, max_wr: Option<u32>, srq_limit: Option<u32>) -> Result<(), VerbsError> {
        if max_wr.is_some_and(|max_wr| max_wr > limits::MAX_SRQ_WR) {
            return Err(VerbsError::InvalidArgument("max_wr"));
        }
        let inner = self.inner();
        let mut core = inner.core.lock();
        inner.reclaim_slots(&mut core);
        Ok(core.modify(max_wr, srq_limit)?)
    }

    /// Its attributes as they are now.
    #[must_use]
    #[doc(alias = "ibv_query_srq")]
    pub fn query(&self) -> SrqAttr {
        self.inner().core.lock().query()
    }

    /// Locks the queue for posting. The caller must not call anything else of this engine meanwhile.
    #[must_use]
    #[doc(alias = "ibv_post_srq_recv")]
    pub fn recv_queue(&self) -> SrqPoster<'_> {
        let inner = self.inner();
        SrqPoster {
            inner,
            core: inner.core.lock(),
        }
    }

    /// Acknowledges asynchronous events of this queue.
    pub fn ack_async_events(&self, count: u32) {
        self.inner().async_acks.ack(u64::from(count));
    }

    /// Ends the queue: its receives are forgotten; waits until its asynchronous events are acknowledged
    /// (AEV-12).
    ///
    /// # Errors
    /// [`VerbsError::Busy`] while QPs use it (DST-03);
    /// [`VerbsError::InvalidArgument`] if it was destroyed before.
    //= SRQ-06
    //= DST-03
    #[doc(alias = "ibv_destroy_srq")]
    pub fn destroy(&self) -> Result<(), VerbsError> {
        let inner = self.inner();
        if inner.users.load(Ordering::Acquire) > 0 {
            return Err(VerbsError::Busy("shared receive queue"));
        }
        if !inner.end() {
            return Err(VerbsError::InvalidArgument("destroyed already"));
        }
        inner.async_acks.wait();
        Ok(())
    }
}

impl SrqInner {
    pub(super) fn attach_qp(&self) {
        self.users.fetch_add(1, Ordering::AcqRel);
    }

    pub(super) fn detach_qp(&self) {
        self.users.fetch_sub(1, Ordering::AcqRel);
    }

    /// May a QP of `pd` take its receives from it? An XRC SRQ is for targets only.
    pub(super) fn is_for(&self, pd: &PdInner) -> bool {
        Arc::ptr_eq(&self.pd.context, &pd.context) && self.xrc.is_none()
    }

    /// Frees the slots whose completions the application has taken; false where there are none.
    //= RC-WQE-03
    fn reclaim_slots(&self, core: &mut rocade_transport::Srq) -> bool {
        let slots = self.pending.lock().reclaim();
        core.free_slots(slots);
        slots > 0
    }

    fn end(&self) -> bool {
        // A message that takes a receive meanwhile has raised its event before, or raises none.
        let core = self.core.lock();
        if !self.alive.swap(false, Ordering::AcqRel) {
            return false;
        }
        self.pd.context.forget_events(&self.async_acks);
        drop(core);
        // Completions that are about to be added are there; there will be no others.
        drop(self.pending.lock());
        if let Some(xrc) = &self.xrc {
            xrc.cq.detach_qp();
            xrc.xrcd.domain.retire(self.srqn());
            xrc.xrcd.children.fetch_sub(1, Ordering::AcqRel);
        } else {
            self.pd.context.engine.release_srq_num(self.number);
        }
        self.pd.children.fetch_sub(1, Ordering::AcqRel);
        true
    }

    pub(super) fn srqn(&self) -> Srqn {
        Srqn::new(self.number.get())
    }

    /// The application has not destroyed it.
    pub(super) fn is_alive(&self) -> bool {
        self.alive.load(Ordering::Acquire)
    }

    /// Destroyed, and all that was taken from it has completed.
    pub(super) fn is_over(&self) -> bool {
        let taken = |xrc: &Xrc| xrc.taken.load(Ordering::Acquire);
        !self.is_alive() && self.xrc.as_ref().is_none_or(|xrc| taken(xrc) == 0)
    }

    /// So many receives of an XRC SRQ have completed, or will not.
    fn give_back(&self, count: usize) {
        if let Some(xrc) = &self.xrc {
            let count = u32::try_from(count).unwrap_or(u32::MAX);
            let before = xrc.taken.fetch_sub(count, Ordering::AcqRel);
            if before == count && !self.is_alive() {
                xrc.xrcd.domain.retire(self.srqn());
            }
        }
    }

    /// Reserves room for completions in the CQ of an XRC SRQ, and returns for how many.
    pub(super) fn reserve(&self, count: usize) -> usize {
        self.xrc.as_ref().map_or(0, |xrc| xrc.cq.reserve(count))
    }

    /// Hands completions to the CQ of an XRC SRQ, the first `reserved` into room that was reserved, and returns
    /// how many are lost. Those of a queue that is destroyed go nowhere: the CQ may be gone.
    pub(super) fn complete<'c>(
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
    pub(super) fn add_completions<'c>(
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
            self.pd.context.raise(kind, element, acks);
        }
    }
}

impl Drop for SrqInner {
    fn drop(&mut self) {
        // Nobody else knows the number of an XRC SRQ any more.
        if self.xrc.is_some() {
            self.pd.context.engine.release_srq_num(self.number);
        }
    }
}

impl SharedReceives for SrqInner {
    fn pd(&self) -> PdTag {
        self.pd.id
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

/// A locked shared receive queue.
pub struct SrqPoster<'a> {
    inner: &'a SrqInner,
    core: MutexGuard<'a, rocade_transport::Srq>,
}

impl SrqPoster<'_> {
    /// Queues a receive.
    ///
    /// # Errors
    /// [`VerbsError::Post`]; what was queued before stays queued (SRQ-06).
    #[inline]
    pub fn push(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), VerbsError> {
        let mut posted = self.core.post(wr_id, sges);
        if posted == Err(PostError::QueueFull) && self.inner.reclaim_slots(&mut self.core) {
            posted = self.core.post(wr_id, sges);
        }
        Ok(posted?)
    }
}

impl fmt::Debug for SrqPoster<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SrqPoster").finish_non_exhaustive()
    }
}
