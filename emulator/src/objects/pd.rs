//! Protection domains.

use std::fmt::Write as _;
use std::sync::Arc;

use rocade_transport::{AddressVector, PdTag};

use super::ah::Ah;
use super::context::{Context, ContextInner};
use super::dct::{DciInit, DctInitAttr};
use super::qp::{Qp, QpInitAttr};
use super::srq::{Srq, SrqInitAttr};
use crate::engine::Registration;
use crate::error::VerbsError;
use crate::faults::{Limit, Verb};
use crate::state::Users;

/// A protection domain (`ibv_pd`).
#[derive(Clone, Debug)]
#[doc(alias = "ibv_pd")]
pub struct Pd {
    pub(super) inner: Arc<PdInner>,
}

#[derive(Debug)]
pub(super) struct PdInner {
    pub(super) context: Arc<ContextInner>,
    pub(super) id: PdTag,
    /// Objects that belong to it.
    pub(super) users: Arc<Users>,
    /// `None` for the domain of XRC targets, which no application has made.
    pub(super) _registration: Option<Registration>,
}

impl Pd {
    /// The number of the domain, unique in the process.
    #[must_use]
    pub fn handle(&self) -> u32 {
        self.inner.id.0
    }

    /// Returns true if it was allocated with this context.
    #[must_use]
    pub fn is_of(&self, context: &Context) -> bool {
        Arc::ptr_eq(&self.inner.context, &context.inner)
    }

    pub(super) fn new(context: Arc<ContextInner>) -> Self {
        let id = context.engine.tables.next_pd();
        let users = Arc::new(Users::default());
        let (counted, ctxn) = (Arc::clone(&users), context.registration.number());
        let inventory = context.engine.tables.inventory();
        let registration = inventory.register(&context.hca, Some(id), move |_, text| {
            let users = counted.count();
            let _ = write!(text, "pd pdn={} ctxn={ctxn} users={users}", id.0);
        });
        Self {
            inner: Arc::new(PdInner {
                context,
                id,
                users,
                _registration: Some(registration),
            }),
        }
    }

    /// Applies the fault rules for the creation of a queue pair.
    fn enter_create_qp(&self, init: &QpInitAttr) -> Result<(), VerbsError> {
        self.enter_create(Verb::CreateQp, Limit::MaxQp)?;
        let ContextInner { engine, hca, .. } = &*self.inner.context;
        engine.check_queue_sizes(hca, &init.cap)
    }

    /// Applies the fault rules for the creation of an object that `limit` counts.
    fn enter_create(&self, verb: Verb, limit: Limit) -> Result<(), VerbsError> {
        let context = &self.inner.context;
        context.enter(verb)?;
        context.engine.check_count(&context.hca, limit)
    }

    /// Makes a QP in RESET.
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] if a queue size is above the limit.
    /// [`VerbsError::NotSupported`] for an unsupported QP type. [`VerbsError::Broker`],
    /// [`VerbsError::Link`] if the process cannot join its addresses. [`VerbsError::NoMemory`] if
    /// it is out of QP numbers.
    #[doc(alias = "ibv_create_qp")]
    pub fn create_qp(&self, init: QpInitAttr) -> Result<Qp, VerbsError> {
        self.enter_create_qp(&init)?;
        Qp::new(Arc::clone(&self.inner), init)
    }

    /// Makes a DC initiator in RESET, with its specific attributes.
    ///
    /// # Errors
    /// As [`Pd::create_qp`]. [`VerbsError::InvalidArgument`] for too many streams.
    pub fn create_dci(&self, init: QpInitAttr, dc: DciInit) -> Result<Qp, VerbsError> {
        self.enter_create_qp(&init)?;
        Qp::new_initiator(Arc::clone(&self.inner), init, dc)
    }

    /// Makes a DC target in RESET.
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] for a CQ or SRQ of another context, and as
    /// [`Pd::create_qp`].
    #[doc(alias = "ibv_exp_create_dct")]
    pub fn create_dct(&self, init: DctInitAttr) -> Result<Qp, VerbsError> {
        self.enter_create(Verb::CreateQp, Limit::MaxQp)?;
        Qp::new_dct(Arc::clone(&self.inner), init)
    }

    /// Makes an address handle, the destination of datagrams of this domain's QPs.
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] for an invalid address. [`VerbsError::PeerRefused`] if the
    /// peer is not among the allowed ones. [`VerbsError::Unreachable`] if the peer is not
    /// reachable, which is known after up to a second. [`VerbsError::Link`],
    /// [`VerbsError::Broker`], [`VerbsError::Io`] if the local address cannot be used.
    #[doc(alias = "ibv_create_ah")]
    pub fn create_ah(&self, address: &AddressVector) -> Result<Ah, VerbsError> {
        self.inner.context.enter(Verb::CreateAh)?;
        Ah::new(Arc::clone(&self.inner), address)
    }

    /// Makes a shared receive queue.
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] if a size is above the limit.
    /// [`VerbsError::Broker`] if the process cannot join its addresses. [`VerbsError::NoMemory`] if
    /// it is out of numbers.
    #[doc(alias = "ibv_create_srq")]
    pub fn create_srq(&self, init: SrqInitAttr) -> Result<Srq, VerbsError> {
        self.enter_create(Verb::CreateSrq, Limit::MaxSrq)?;
        let ContextInner { engine, hca, .. } = &*self.inner.context;
        engine.check_size(hca, Limit::MaxSrqWr, init.max_wr.into(), "max_wr")?;
        Srq::new(Arc::clone(&self.inner), init)
    }

    /// Frees the domain.
    ///
    /// # Errors
    /// [`VerbsError::Busy`] while objects belong to it.
    #[doc(alias = "ibv_dealloc_pd")]
    pub fn destroy(&self) -> Result<(), VerbsError> {
        self.inner.context.enter(Verb::DeallocPd)?;
        //= PD-02
        self.inner.users.check("protection domain")
    }
}
