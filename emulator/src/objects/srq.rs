//! Shared receive queues.

use std::fmt::{self, Write as _};
use std::sync::Arc;

use rocade_transport::{PostError, Sge, SrqAttr};

use super::cq::Cq;
use super::pd::{Pd, PdInner};
use super::xrcd::{Xrcd, XrcdInner};
use crate::config::Likeness;
use crate::engine::Registration;
use crate::error::VerbsError;
use crate::faults::{Limit, Verb};
use crate::limits;
use crate::state::{SrqInner, User};
use crate::sync::modelled::MutexGuard;

/// The attributes of a new shared receive queue (`ibv_srq_init_attr`).
#[derive(Clone, Copy, Debug)]
#[doc(alias = "ibv_srq_init_attr")]
pub struct SrqInitAttr {
    /// Number of receives that it has room for, possibly 0. Exactly this number is granted.
    pub max_wr: u32,
    /// Scatter/gather entries of a receive, possibly 0. Exactly this number is granted, but a
    /// device like rxe grants at least one.
    pub max_sge: u32,
    /// Identifies the queue in events.
    pub cookie: u64,
}

/// A shared receive queue (`ibv_srq`), from which queue pairs take their receives that are created
/// with it.
#[derive(Clone, Debug)]
#[doc(alias = "ibv_srq")]
pub struct Srq {
    owner: Arc<SrqOwner>,
}

/// The state that all handles share. The last one destroys the queue for the application. QPs that
/// use it keep it alive.
#[derive(Debug)]
struct SrqOwner {
    inner: Arc<SrqInner>,
    pd: Arc<PdInner>,
    /// The opening of the XRC domain through which an XRC SRQ was made.
    xrcd: Option<Arc<XrcdInner>>,
    _registration: Registration,
}

impl SrqOwner {
    fn end(&self) -> bool {
        let ends = self.inner.end();
        if ends {
            let user = User::Srq(self.inner.srqn());
            self.pd.users.remove(user);
            if let Some(xrcd) = &self.xrcd {
                xrcd.users.remove(user);
            }
        }
        ends
    }
}

impl Drop for SrqOwner {
    fn drop(&mut self) {
        self.end();
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
        let (pd, xrcd) = (Arc::clone(&pd.inner), Arc::clone(xrcd.inner()));
        let is_of_device = |context| Arc::ptr_eq(&pd.context, context);
        if !is_of_device(xrcd.context()) || !is_of_device(&cq.context) {
            return Err(VerbsError::InvalidArgument("pd, xrcd and cq"));
        }
        Self::create(pd, Some((xrcd, cq)), init)
    }

    fn create(
        pd: Arc<PdInner>,
        xrc: Option<(Arc<XrcdInner>, &Cq)>,
        init: SrqInitAttr,
    ) -> Result<Self, VerbsError> {
        //= SRQ-01
        let like = pd.context.hca.config.like;
        check_size(like, init.max_wr)?;
        if init.max_sge > like.max_srq_sge() {
            return Err(VerbsError::InvalidArgument("max_sge"));
        }
        let max_sge = init.max_sge.max(like.least_srq_size());
        let number = pd.context.engine.allocate_srq_num()?;
        let parts = xrc
            .as_ref()
            .map(|(xrcd, cq)| (Arc::clone(&xrcd.domain), Arc::clone(&cq.inner)));
        let xrcd = xrc.map(|(xrcd, _)| xrcd);
        let inner = SrqInner::new(
            Arc::clone(&pd.context.events),
            number,
            init.cookie,
            pd.id,
            rocade_transport::Srq::new(pd.id, init.max_wr, max_sge),
            parts,
        );
        let user = User::Srq(inner.srqn());
        pd.users.add(user);
        if let Some(xrcd) = &xrcd {
            xrcd.users.add(user);
        }
        // `IB_SRQT_BASIC`, `IB_SRQT_XRC`.
        let (srqn, pdn, kind) = (inner.srqn().get(), pd.id.0, u8::from(xrcd.is_some()));
        let context = &pd.context;
        let registration =
            context
                .engine
                .tables
                .inventory()
                .register(&context.hca, None, move |_, text| {
                    let _ = write!(text, "srq srqn={srqn} type={kind} pdn={pdn}");
                });
        Ok(Self {
            owner: Arc::new(SrqOwner {
                inner,
                pd,
                xrcd,
                _registration: registration,
            }),
        })
    }

    pub(super) fn inner(&self) -> &Arc<SrqInner> {
        &self.owner.inner
    }

    /// The SRQ number, 24 bits, unique among those of this address.
    //= SRQ-10
    #[must_use]
    #[doc(alias = "ibv_get_srq_num")]
    pub fn number(&self) -> u32 {
        self.inner().srqn().get()
    }

    /// The protection domain. Receives name memory of this domain.
    #[must_use]
    pub fn pd(&self) -> Pd {
        Pd {
            inner: Arc::clone(&self.owner.pd),
        }
    }

    /// Changes the size, the limit, or both. A limit above 0 requests one event when fewer receives
    /// than that are left after one was taken. 0 cancels the request.
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] and [`VerbsError::Srq`] (EINVAL) for a size above the
    /// device's limit or below the number of receives in use, or a limit above the size. Nothing
    /// has changed then.
    #[doc(alias = "ibv_modify_srq")]
    pub fn modify(&self, max_wr: Option<u32>, srq_limit: Option<u32>) -> Result<(), VerbsError> {
        let context = &self.owner.pd.context;
        context.enter(Verb::ModifySrq)?;
        if let Some(max_wr) = max_wr {
            let (engine, hca) = (&context.engine, &context.hca);
            engine.check_size(hca, Limit::MaxSrqWr, max_wr.into(), "max_wr")?;
        }
        //= SRQ-01
        if let Some(max_wr) = max_wr {
            check_size(self.owner.pd.context.hca.config.like, max_wr)?;
        }
        let inner = self.inner();
        let mut core = inner.lock();
        inner.reclaim_wqes(&mut core);
        Ok(core.modify(max_wr, srq_limit)?)
    }

    /// Returns an error if a fault rule has removed the device since it was opened.
    ///
    /// # Errors
    /// [`VerbsError::Removed`].
    pub fn check_present(&self) -> Result<(), VerbsError> {
        let context = &self.owner.pd.context;
        if context.events.is_removed() {
            return Err(context.removed());
        }
        Ok(())
    }

    /// The current attributes.
    #[must_use]
    #[doc(alias = "ibv_query_srq")]
    pub fn query(&self) -> SrqAttr {
        self.inner().lock().query()
    }

    /// Locks the queue for posting. The caller must not call anything else of this engine
    /// meanwhile.
    #[must_use]
    #[doc(alias = "ibv_post_srq_recv")]
    pub fn recv_queue(&self) -> SrqPoster<'_> {
        let inner = self.inner();
        let refused = self.owner.pd.context.enter(Verb::PostSrqRecv);
        SrqPoster {
            inner,
            core: inner.lock(),
            refused: refused.err().map(Box::new),
        }
    }

    /// Acknowledges asynchronous events of this queue.
    pub fn ack_async_events(&self, count: u32) {
        self.inner().async_acks().ack(u64::from(count));
    }

    /// Destroys the queue: drops its receives, and waits until its asynchronous events are
    /// acknowledged.
    ///
    /// # Errors
    /// [`VerbsError::Busy`] while QPs use it. [`VerbsError::InvalidArgument`] if it was already
    /// destroyed.
    //= SRQ-06
    //= DST-03
    #[doc(alias = "ibv_destroy_srq")]
    pub fn destroy(&self) -> Result<(), VerbsError> {
        self.owner.pd.context.enter(Verb::DestroySrq)?;
        self.inner().users().check("shared receive queue")?;
        if !self.owner.end() {
            return Err(VerbsError::InvalidArgument("already destroyed"));
        }
        self.inner().async_acks().wait();
        Ok(())
    }
}

/// A queue of no entries accepts no receive. Receives without entries serve messages of immediate
/// data alone.
fn check_size(like: Likeness, max_wr: u32) -> Result<(), VerbsError> {
    if (like.least_srq_size()..=limits::MAX_SRQ_WR).contains(&max_wr) {
        Ok(())
    } else {
        Err(VerbsError::InvalidArgument("max_wr"))
    }
}

/// A locked shared receive queue.
pub struct SrqPoster<'a> {
    inner: &'a SrqInner,
    core: MutexGuard<'a, rocade_transport::Srq>,
    /// The error of a fault rule, for the first receive.
    refused: Option<Box<VerbsError>>,
}

impl SrqPoster<'_> {
    /// Queues a receive.
    ///
    /// # Errors
    /// [`VerbsError::Post`]. Receives that were queued before stay queued.
    #[inline]
    pub fn push(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), VerbsError> {
        if let Some(refused) = self.refused.take() {
            return Err(*refused);
        }
        let mut posted = self.core.post(wr_id, sges);
        if posted == Err(PostError::QueueFull) && self.inner.reclaim_wqes(&mut self.core) {
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
