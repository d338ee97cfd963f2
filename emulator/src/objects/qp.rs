//! Queue pairs.

use std::sync::{Arc, OnceLock};

use rocade_transport::{Counters, QpAttr, QpCap, QpConfig, QpState, QpType, Receives};
use rocade_wire::{Gid, Qpn};

use super::cq::Cq;
use super::dct::DciInit;
use super::flow::Flow;
use super::pd::{Pd, PdInner};
use super::poster::{RecvPoster, SendPoster};
use super::srq::Srq;
use super::xrcd::{Xrcd, XrcdInner};
use crate::config::Likeness;
use crate::error::VerbsError;
use crate::faults::Verb;
use crate::limits;
use crate::raw::{FlowAttr, RawState};
use crate::state::{
    CrossChannelState, OpenHandle, QpInner, QpResources, SrqInner, User, XrcTargetInit,
};
use crate::xrc_shared::share_target;

/// The attributes of a new QP (`ibv_qp_init_attr`).
#[derive(Clone, Debug)]
#[doc(alias = "ibv_qp_init_attr")]
pub struct QpInitAttr {
    /// The CQ of sends.
    pub send_cq: Cq,
    /// The CQ of receives.
    pub recv_cq: Cq,
    /// The SRQ of receives, instead of a receive queue.
    pub srq: Option<Srq>,
    /// The queue sizes. They are granted exactly, except that those of a missing receive queue are
    /// 0.
    pub cap: QpCap,
    /// Transport service.
    pub qp_type: QpType,
    /// Every send generates a completion.
    pub sq_sig_all: bool,
    /// Identifies the QP in events.
    pub cookie: u64,
}

/// A queue pair (`ibv_qp`).
#[derive(Clone, Debug)]
#[doc(alias = "ibv_qp")]
pub struct Qp {
    owner: Arc<QpOwner>,
}

/// The state that all handles of a QP share. The QP ends with the last handle. (The engine's table
/// references the QP itself.)
#[derive(Debug)]
pub(super) struct QpOwner {
    pub(super) inner: Arc<QpInner>,
    pub(super) pd: Arc<PdInner>,
    /// For an XRC target, which may have other handles too: its open handle, and the domain through
    /// which it was opened.
    pub(super) open_handle: Option<Box<(Arc<OpenHandle>, Arc<XrcdInner>)>>,
    /// The cross-channel state.
    pub(super) cross_channel: OnceLock<Box<CrossChannelState>>,
}

impl Drop for QpOwner {
    fn drop(&mut self) {
        self.close();
    }
}

/// Checks that the CQs belong to the context of the domain.
pub(super) fn check_cqs(pd: &PdInner, init: &QpInitAttr) -> Result<(), VerbsError> {
    let all = [
        (&init.send_cq, "send_cq is of another context"),
        (&init.recv_cq, "recv_cq is of another context"),
    ];
    for (cq, foreign) in all {
        if !Arc::ptr_eq(&cq.context, &pd.context) {
            return Err(VerbsError::InvalidArgument(foreign));
        }
    }
    Ok(())
}

impl Qp {
    pub(super) fn new(pd: Arc<PdInner>, mut init: QpInitAttr) -> Result<Self, VerbsError> {
        if init.qp_type == QpType::DcInitiator {
            //= XDEC-16
            return Self::new_initiator(pd, init, DciInit::default());
        }
        if init.qp_type == QpType::DcTarget {
            return Err(VerbsError::InvalidArgument("qp_type"));
        }
        let srq = init.srq.as_ref().map(|srq| Arc::clone(srq.inner()));
        let is_initiator = init.qp_type == QpType::XrcSend;
        let fits = |srq: &Arc<SrqInner>| !is_initiator && srq.is_for(&pd.context.events);
        if !srq.as_ref().is_none_or(fits) {
            return Err(VerbsError::InvalidArgument("srq"));
        }
        check_cqs(&pd, &init)?;
        //= SRQ-09 QPC-03
        //= XRC-12
        if srq.is_some() || is_initiator {
            (init.cap.max_recv_wr, init.cap.max_recv_sge) = (0, 0);
        }
        let like = pd.context.hca.config.like;
        init.cap = like.granted(init.qp_type, init.cap);
        check_cap(like, &init.cap)?;
        let receives = match &srq {
            Some(srq) => Receives::Shared(Arc::clone(srq) as _),
            None => Receives::Own,
        };
        let config = config(&pd, init.qp_type, init.cap, init.sq_sig_all);
        let raw = if init.qp_type == QpType::RawPacket {
            let port = pd.context.engine.raw_port(&pd.context.hca)?;
            Some(Box::new(RawState::new(port)))
        } else {
            None
        };
        let parts = QpResources {
            cqs: Some((init.send_cq.inner, init.recv_cq.inner)),
            srq,
            raw,
            ..QpResources::default()
        };
        let inner = create(&pd, config, receives, init.cookie, parts, |_| ())?;
        Ok(Self::held(inner, pd, None))
    }

    /// Makes an XRC target.
    pub(super) fn new_target(xrcd: &Arc<XrcdInner>, cookie: u64) -> Result<Self, VerbsError> {
        let pd = xrcd.null_pd();
        let domain = Arc::clone(&xrcd.domain);
        let open_handle = OpenHandle::new(&pd.context.events, cookie);
        let config = config(&pd, QpType::XrcRecv, QpCap::default(), false);
        let parts = QpResources {
            target: Some(XrcTargetInit {
                domain: Arc::clone(&domain),
                open_handle: Some(Arc::clone(&open_handle)),
                ownership: None,
            }),
            ..QpResources::default()
        };
        let receives = Receives::Domain(domain);
        let inner = create(&pd, config, receives, cookie, parts, |_| ())?;
        inner.publish();
        xrcd.users.add(User::Qp(inner.qp_num()));
        Ok(Self::held(inner, pd, Some((open_handle, Arc::clone(xrcd)))))
    }

    //= XRC-11
    pub(super) fn open_target(
        xrcd: &Arc<XrcdInner>,
        qp_num: Qpn,
        cookie: u64,
    ) -> Result<Self, VerbsError> {
        let pd = xrcd.null_pd();
        let open_handle = OpenHandle::new(&pd.context.events, cookie);
        let engine = &*pd.context.engine;
        let inner =
            engine
                .shared_targets()
                .open_target(engine, &xrcd.domain, qp_num, &open_handle)?;
        xrcd.users.add(User::Qp(inner.qp_num()));
        Ok(Self::held(inner, pd, Some((open_handle, Arc::clone(xrcd)))))
    }

    pub(super) fn held(
        inner: Arc<QpInner>,
        pd: Arc<PdInner>,
        open_handle: Option<(Arc<OpenHandle>, Arc<XrcdInner>)>,
    ) -> Self {
        Self {
            owner: Arc::new(QpOwner {
                inner,
                pd,
                open_handle: open_handle.map(Box::new),
                cross_channel: OnceLock::new(),
            }),
        }
    }

    pub(super) fn owner(&self) -> &QpOwner {
        &self.owner
    }

    pub(crate) fn inner(&self) -> &QpInner {
        &self.owner.inner
    }

    /// The QP number: 8 bits slot, 16 bits index.
    #[must_use]
    pub fn qp_num(&self) -> Qpn {
        self.inner().qp_num()
    }

    /// The protection domain.
    #[must_use]
    pub fn pd(&self) -> Pd {
        Pd {
            inner: Arc::clone(&self.owner.pd),
        }
    }

    /// Returns true if it is a target of this XRC domain, through any opening.
    #[must_use]
    pub fn is_target_of(&self, xrcd: &Xrcd) -> bool {
        let domain = &xrcd.inner().domain;
        self.inner()
            .domain()
            .is_some_and(|own| Arc::ptr_eq(own, domain))
    }

    /// The transport service.
    #[must_use]
    pub fn qp_type(&self) -> QpType {
        self.inner().lock().qp.config().qp_type
    }

    /// The current state.
    #[must_use]
    pub fn state(&self) -> QpState {
        let core = self.inner().lock();
        match self.inner().ownership() {
            Some(ownership) if !ownership.is_owner() => {
                QpState::from_code(ownership.attr().qp_state).unwrap_or(QpState::Err)
            }
            _ => core.qp.state(),
        }
    }

    /// The counters of the QP.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.inner().lock().qp.counters()
    }

    /// Stores the original values that atomics return as big-endian units, instead of in the host's
    /// byte order. To be called before anything is posted.
    //= XAT-05
    #[doc(alias = "IBV_EXP_QP_CREATE_ATOMIC_BE_REPLY")]
    pub fn set_big_endian_results(&self) {
        self.inner().lock().qp.set_big_endian_results(true);
    }

    /// Limits the send rate, in kbit/s. 0 removes the limit. Responses are not limited, and only RC
    /// is.
    ///
    /// # Errors
    /// [`VerbsError::Modify`] (EINVAL) unless it is connected (RTR, RTS or SQD).
    #[doc(alias = "ibv_modify_qp_rate_limit")]
    pub fn set_rate_limit(&self, kbps: u32) -> Result<(), VerbsError> {
        Ok(self.inner().lock().qp.set_rate_limit(kbps)?)
    }

    /// The current attributes and capabilities.
    #[must_use]
    #[doc(alias = "ibv_query_qp")]
    pub fn query(&self) -> (QpAttr, QpCap) {
        let core = self.inner().lock();
        let attr = match self.inner().ownership() {
            Some(ownership) if !ownership.is_owner() => ownership.attr(),
            _ => core.qp.query(),
        };
        (attr, core.qp.config().cap)
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

    /// Returns true if every send generates a completion.
    #[must_use]
    pub fn sq_sig_all(&self) -> bool {
        self.inner().lock().qp.config().sq_sig_all
    }

    /// Locks the send queue, lets `post` queue requests, and transmits them, or batches them with
    /// later ones for a moment. Returns what `post` returns. If that is an error, the requests that
    /// were queued before it are transmitted, unless `post` has rolled them back.
    ///
    /// `post` must not call anything else of this engine.
    #[inline]
    pub fn post_sends<R>(&self, post: impl FnOnce(&mut SendPoster<'_>) -> R) -> R {
        let mut poster = SendPoster::new(&self.owner);
        let posted = post(&mut poster);
        poster.transmit();
        posted
    }

    /// Locks the receive queue for posting. The caller must not call anything else of this engine
    /// meanwhile.
    #[must_use]
    pub fn recv_queue(&self) -> RecvPoster<'_> {
        RecvPoster::new(&self.owner)
    }

    /// Attaches the QP to a multicast group: it gets a copy of each datagram to the group.
    /// Attaching twice has no further effect.
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] unless this is a datagram QP, and the GID is a group of an
    /// IP version in which the device has an address. [`VerbsError::NoMemory`] beyond the limits.
    /// [`VerbsError::Link`] if the process cannot join the group.
    #[doc(alias = "ibv_attach_mcast")]
    pub fn attach_mcast(&self, group: Gid) -> Result<(), VerbsError> {
        self.owner.enter(Verb::AttachMcast)?;
        self.check_group(group)?;
        let (engine, hca) = (self.owner.engine(), self.owner.hca());
        let port = self.owner.inner.lock().qp.query().port_num.max(1);
        engine.attach_to_group((hca, port), group, self.qp_num())
    }

    /// Detaches the QP from a multicast group.
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] if it is not attached.
    #[doc(alias = "ibv_detach_mcast")]
    pub fn detach_mcast(&self, group: Gid) -> Result<(), VerbsError> {
        self.owner.enter(Verb::DetachMcast)?;
        self.check_group(group)?;
        let (engine, hca) = (self.owner.engine(), self.owner.hca());
        if engine.detach_from_group(hca, group, self.qp_num()) {
            Ok(())
        } else {
            Err(VerbsError::InvalidArgument("not attached to this group"))
        }
    }

    /// Suppresses copies of the datagrams that the QP itself sends to a group
    /// (`IBV_QP_CREATE_BLOCK_SELF_MCAST_LB`).
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] unless this is a datagram QP.
    //= MC-07
    #[doc(alias = "IBV_QP_CREATE_BLOCK_SELF_MCAST_LB")]
    pub fn block_own_multicast(&self) -> Result<(), VerbsError> {
        if !self.qp_type().traits().is_datagram {
            return Err(VerbsError::InvalidArgument("not a datagram QP"));
        }
        self.owner.inner.lock().tx.accept_except_self();
        Ok(())
    }

    /// Steers matching frames to this raw packet QP.
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] for a QP of another type, or an invalid flow.
    /// [`VerbsError::Io`] if descriptors are exhausted.
    #[doc(alias = "ibv_create_flow")]
    pub fn create_flow(&self, attr: FlowAttr) -> Result<Flow, VerbsError> {
        self.owner.enter(Verb::CreateFlow)?;
        Flow::new(Arc::clone(&self.owner), attr)
    }

    //= MC-01
    fn check_group(&self, group: Gid) -> Result<(), VerbsError> {
        if !self.qp_type().traits().is_datagram {
            return Err(VerbsError::InvalidArgument("not a datagram QP"));
        }
        if !group.is_multicast() {
            return Err(VerbsError::InvalidArgument("gid"));
        }
        Ok(())
    }

    /// Acknowledges asynchronous events of this QP.
    pub fn ack_async_events(&self, count: u32) {
        if let Some(acks) = self.owner.async_acks() {
            acks.ack(u64::from(count));
        }
    }

    /// Destroys the QP, or closes a handle of a target that has others. Removes its completions
    /// from the CQs, and waits until its asynchronous events are acknowledged.
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] if it was already destroyed. [`VerbsError::Busy`] while it
    /// is attached to a multicast group, or flows steer frames to it.
    #[doc(alias = "ibv_destroy_qp")]
    pub fn destroy(&self) -> Result<(), VerbsError> {
        self.owner.enter(Verb::DestroyQp)?;
        //= MC-02
        let groups = self.owner.engine().links.groups_of(self.qp_num());
        if !groups.is_empty() {
            let (qpn, groups) = (self.qp_num(), groups.join(", "));
            let what = format!("QP {qpn}, attached to multicast group {groups}");
            return Err(VerbsError::Busy(what));
        }
        //= DST-04
        let flows = self.owner.inner.raw();
        let flows = flows.map(|raw| raw.port.flows_of(self.qp_num()));
        if flows.is_some_and(|flows| !flows.is_empty()) {
            let what = format!("QP {}, by flows that steer frames to it", self.qp_num());
            return Err(VerbsError::Busy(what));
        }
        if !self.owner.pd.context.events.is_removed() {
            self.drain_sessions();
        }
        if !self.owner.close() {
            return Err(VerbsError::InvalidArgument("already destroyed"));
        }
        if let Some(acks) = self.owner.async_acks() {
            acks.wait();
        }
        Ok(())
    }
}

//= QPC-01
pub(super) fn check_cap(like: Likeness, cap: &QpCap) -> Result<(), VerbsError> {
    let checks = [
        (cap.max_send_wr, limits::MAX_QP_WR, "cap.max_send_wr"),
        (cap.max_recv_wr, limits::MAX_QP_WR, "cap.max_recv_wr"),
        (cap.max_send_sge, like.max_sge(), "cap.max_send_sge"),
        (cap.max_recv_sge, like.max_sge(), "cap.max_recv_sge"),
        (
            cap.max_inline_data,
            limits::MAX_INLINE_DATA,
            "cap.max_inline_data",
        ),
    ];
    match checks.into_iter().find(|(asked, limit, _)| asked > limit) {
        Some((_, _, field)) => Err(VerbsError::InvalidArgument(field)),
        None => Ok(()),
    }
}

/// Returns the configuration of a new QP.
pub(super) fn config(pd: &PdInner, qp_type: QpType, cap: QpCap, sq_sig_all: bool) -> QpConfig {
    QpConfig {
        // The number is allocated when the QP is created.
        qp_num: Qpn::new(0),
        qp_type,
        pd: pd.id,
        cap,
        sq_sig_all,
        limits: pd.context.hca.qp_limits(),
    }
}

pub(super) fn create(
    pd: &PdInner,
    config: QpConfig,
    receives: Receives,
    cookie: u64,
    mut parts: QpResources,
    set_up: impl FnOnce(&mut rocade_transport::Qp),
) -> Result<Arc<QpInner>, VerbsError> {
    let engine = &pd.context.engine;
    let qp_num = engine.allocate_qp_num()?;
    let config = QpConfig { qp_num, ..config };
    if let Some(target) = &mut parts.target {
        target.ownership = share_target(&**engine, &target.domain, qp_num)
            .inspect_err(|_| engine.presence.release_qp_num(qp_num))?;
    }
    let Some(mut qp) = rocade_transport::Qp::new(config, receives) else {
        engine.presence.release_qp_num(qp_num);
        return Err(VerbsError::NotSupported("QP type"));
    };
    qp.control_congestion(engine.host.controls_congestion());
    set_up(&mut qp);
    pd.users.add(User::Qp(qp_num));
    let events = Arc::clone(&pd.context.events);
    let inner = QpInner::new(events, qp, cookie, parts);
    if config.qp_type == QpType::XrcSend {
        inner.lock().tx.accept_any();
    }
    engine.tables.add_qp(Arc::clone(&inner));
    engine.note_change();
    Ok(inner)
}
