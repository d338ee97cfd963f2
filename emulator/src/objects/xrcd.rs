//! XRC domains, each a set of shared receive queues and target queue pairs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rocade_transport::PdTag;
use rocade_wire::Qpn;

use super::context::ContextInner;
use super::cq::Cq;
use super::pd::{Pd, PdInner};
use super::qp::Qp;
use super::srq::{Srq, SrqInitAttr};
use crate::error::VerbsError;
use crate::faults::{Limit, Verb};
use crate::state::{Domain, Users, XrcdInitAttr};

/// An opened XRC domain (`ibv_xrcd`).
#[derive(Clone, Debug)]
#[doc(alias = "ibv_xrcd")]
pub struct Xrcd {
    owner: Arc<XrcdOwner>,
}

/// The state that all handles from one `open` share. The last handle closes the opening.
#[derive(Debug)]
struct XrcdOwner {
    inner: Arc<XrcdInner>,
}

impl Drop for XrcdOwner {
    fn drop(&mut self) {
        self.inner.close();
    }
}

/// One opening of a domain.
#[derive(Debug)]
pub(crate) struct XrcdInner {
    context: Arc<ContextInner>,
    pub(super) domain: Arc<Domain>,
    /// Objects that were made or opened through it.
    pub(super) users: Users,
    open: AtomicBool,
}

impl Xrcd {
    pub(super) fn open(context: Arc<ContextInner>, init: XrcdInitAttr) -> Result<Self, VerbsError> {
        let domain = context.engine.open_domain(&context.events, init)?;
        Ok(Self {
            owner: Arc::new(XrcdOwner {
                inner: Arc::new(XrcdInner {
                    context,
                    domain,
                    users: Users::default(),
                    open: AtomicBool::new(true),
                }),
            }),
        })
    }

    pub(super) fn inner(&self) -> &Arc<XrcdInner> {
        &self.owner.inner
    }

    /// Makes a shared receive queue of the domain. Its receives complete in `cq` and name memory of
    /// `pd`. Requests of initiators that name this queue access memory of `pd` too.
    ///
    /// # Errors
    /// As [`Pd::create_srq`]. [`VerbsError::InvalidArgument`] if the three belong to different
    /// devices.
    #[doc(alias = "ibv_create_srq_ex")]
    pub fn create_srq(&self, pd: &Pd, cq: &Cq, init: SrqInitAttr) -> Result<Srq, VerbsError> {
        let context = self.inner().context();
        context.enter(Verb::CreateSrq)?;
        context.engine.check_count(&context.hca, Limit::MaxSrq)?;
        Srq::of_xrcd(self, pd, cq, init)
    }

    /// Makes an XRC target: a queue pair in RESET that receives for the domain's queues, and cannot
    /// send. `cookie` identifies it in events.
    ///
    /// # Errors
    /// [`VerbsError::Broker`], [`VerbsError::Link`] if the process cannot join its addresses.
    /// [`VerbsError::NoMemory`] if it is out of QP numbers.
    //= XRC-01
    #[doc(alias = "ibv_create_qp_ex")]
    pub fn create_target(&self, cookie: u64) -> Result<Qp, VerbsError> {
        let context = self.inner().context();
        context.enter(Verb::CreateQp)?;
        context.engine.check_count(&context.hca, Limit::MaxQp)?;
        let inner = self.inner();
        Qp::new_target(inner, cookie)
    }

    /// Opens another handle of a target in the domain, with its own cookie. The target lives until
    /// the last handle is destroyed, and all handles get its events.
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] if there is no such target in the domain.
    //= XRC-11
    #[doc(alias = "ibv_open_qp")]
    pub fn open_target(&self, qp_num: Qpn, cookie: u64) -> Result<Qp, VerbsError> {
        self.inner().context().enter(Verb::OpenQp)?;
        Qp::open_target(self.inner(), qp_num, cookie)
    }

    /// Closes the domain. It ends with the last opening.
    ///
    /// # Errors
    /// [`VerbsError::Busy`] while there are objects that were made or opened through this handle.
    /// [`VerbsError::InvalidArgument`] if it was already closed.
    //= DST-05
    //= XRCL-05
    #[doc(alias = "ibv_close_xrcd")]
    pub fn close(&self) -> Result<(), VerbsError> {
        self.inner().context().enter(Verb::CloseXrcd)?;
        let inner = self.inner();
        inner.users.check("XRC domain")?;
        if inner.close() {
            Ok(())
        } else {
            Err(VerbsError::InvalidArgument("already closed"))
        }
    }
}

/// The protection domain of targets, which contains no memory.
const NO_PD: PdTag = PdTag(0);

impl XrcdInner {
    pub(super) const fn context(&self) -> &Arc<ContextInner> {
        &self.context
    }

    /// Returns a protection domain for a target. The packets of a target are checked against the
    /// domains of the SRQs instead.
    pub(super) fn null_pd(&self) -> Arc<PdInner> {
        Arc::new(PdInner {
            context: Arc::clone(&self.context),
            id: NO_PD,
            users: Arc::default(),
            _registration: None,
        })
    }

    fn close(&self) -> bool {
        let first = self.open.swap(false, Ordering::AcqRel);
        if first {
            let engine = &*self.context.engine;
            engine.shared_targets().close_domain(engine, &self.domain);
        }
        first
    }
}
