//! Queue pairs.

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use rocade_transport::{
    AddressVector, AlternateContext, Cause, Counters, ModifyContext, QpAttr, QpAttrMask, QpCap,
    QpConfig, QpState, QpType, Receives,
};
use rocade_wire::{Gid, Mtu, Pkey, Qpn};
use socket2::{Domain, Protocol, Type};

use super::cq::Cq;
use super::dct::DciInit;
use super::flow::Flow;
use super::pd::{Pd, PdInner};
use super::poster::{RecvPoster, SendPoster};
use super::srq::Srq;
use super::xrcd::{Xrcd, XrcdInner};
use crate::cells::{
    AckCounter, CrossPart, Driver, Hold, Path, QpInner, QpParts, SrqInner, TargetParts, Uplink,
    User,
};
use crate::engine::EngineInner;
use crate::error::VerbsError;
use crate::hca::{Hca, Port, limits};
use crate::raw::{FlowAttr, RawPart};
use crate::sys;
use crate::travel::share_target;

/// The bit of a Q_Key that unprivileged processes must not set.
const CONTROLLED_QKEY: u32 = 1 << 31;

/// May this process open raw sockets? The kernel asks for the same right.
fn is_privileged() -> bool {
    sys::socket(Domain::IPV4, Type::RAW.cloexec(), Some(Protocol::UDP)).is_ok()
}

/// How often a target is brought here that goes elsewhere before it could be changed.
const TRIES: usize = 16;

/// What a QP is created with (`ibv_qp_init_attr`).
#[derive(Clone, Debug)]
#[doc(alias = "ibv_qp_init_attr")]
pub struct QpInitAttr {
    /// Where sends complete.
    pub send_cq: Cq,
    /// Where receives complete.
    pub recv_cq: Cq,
    /// Where receives come from instead of a queue of its own (SRQ-09).
    pub srq: Option<Srq>,
    /// Queue sizes asked for; granted as asked, those of a receive queue that it does not have as 0.
    pub cap: QpCap,
    /// Transport service.
    pub qp_type: QpType,
    /// Every send generates a completion.
    pub sq_sig_all: bool,
    /// Comes back in events.
    pub cookie: u64,
}

/// A queue pair (`ibv_qp`).
#[derive(Clone, Debug)]
#[doc(alias = "ibv_qp")]
pub struct Qp {
    owner: Arc<QpOwner>,
}

/// What all handles of a QP share: with the last one the QP ends. (The engine's table holds the
/// QP itself.)
#[derive(Debug)]
pub(super) struct QpOwner {
    pub(super) inner: Arc<QpInner>,
    pub(super) pd: Arc<PdInner>,
    /// Of a target, which others may have open too, and through which domain it was opened.
    hold: Option<Box<(Arc<Hold>, Arc<XrcdInner>)>>,
    /// What it has to do with cross-channel operations.
    pub(super) cross: OnceLock<Box<CrossPart>>,
}

impl Drop for QpOwner {
    fn drop(&mut self) {
        self.let_go();
    }
}

/// The queues that completions go to are of the context of the domain.
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
        check_cap(&init.cap)?;
        let receives = match &srq {
            Some(srq) => Receives::Shared(Arc::clone(srq) as _),
            None => Receives::Own,
        };
        let config = config(&pd, init.qp_type, init.cap, init.sq_sig_all);
        let raw = match init.qp_type {
            QpType::RawPacket => {
                let port = pd.context.engine.raw_port(&pd.context.hca)?;
                Some(Box::new(RawPart::new(port)))
            }
            _ => None,
        };
        let parts = QpParts {
            cqs: Some((init.send_cq.inner, init.recv_cq.inner)),
            srq,
            raw,
            ..QpParts::default()
        };
        let inner = create(&pd, config, receives, init.cookie, parts, |_| ())?;
        Ok(Self::held(inner, pd, None))
    }

    /// An XRC target.
    pub(super) fn new_target(xrcd: &Arc<XrcdInner>, cookie: u64) -> Result<Self, VerbsError> {
        let pd = xrcd.nobody();
        let domain = Arc::clone(&xrcd.domain);
        let hold = Hold::new(&pd.context.events, cookie);
        let config = config(&pd, QpType::XrcRecv, QpCap::default(), false);
        let parts = QpParts {
            target: Some(TargetParts {
                domain: Arc::clone(&domain),
                hold: Some(Arc::clone(&hold)),
                travel: None,
            }),
            ..QpParts::default()
        };
        let receives = Receives::Domain(domain);
        let inner = create(&pd, config, receives, cookie, parts, |_| ())?;
        inner.publish();
        xrcd.users.add(User::Qp(inner.qp_num()));
        Ok(Self::held(inner, pd, Some((hold, Arc::clone(xrcd)))))
    }

    //= XRC-11
    pub(super) fn open_target(
        xrcd: &Arc<XrcdInner>,
        qp_num: Qpn,
        cookie: u64,
    ) -> Result<Self, VerbsError> {
        let pd = xrcd.nobody();
        let hold = Hold::new(&pd.context.events, cookie);
        let engine = &*pd.context.engine;
        let inner = engine
            .travels()
            .open_target(engine, &xrcd.domain, qp_num, &hold)?;
        xrcd.users.add(User::Qp(inner.qp_num()));
        Ok(Self::held(inner, pd, Some((hold, Arc::clone(xrcd)))))
    }

    pub(super) fn held(
        inner: Arc<QpInner>,
        pd: Arc<PdInner>,
        hold: Option<(Arc<Hold>, Arc<XrcdInner>)>,
    ) -> Self {
        Self {
            owner: Arc::new(QpOwner {
                inner,
                pd,
                hold: hold.map(Box::new),
                cross: OnceLock::new(),
            }),
        }
    }

    pub(super) fn owner(&self) -> &QpOwner {
        &self.owner
    }

    pub(crate) fn inner(&self) -> &QpInner {
        &self.owner.inner
    }

    /// Its number: 8 bits slot, 16 bits QP.
    #[must_use]
    pub fn qp_num(&self) -> Qpn {
        self.inner().qp_num()
    }

    /// Its domain.
    #[must_use]
    pub fn pd(&self) -> Pd {
        Pd {
            inner: Arc::clone(&self.owner.pd),
        }
    }

    /// Is it a target of this XRC domain, whichever opening that is?
    #[must_use]
    pub fn is_target_of(&self, xrcd: &Xrcd) -> bool {
        let domain = &xrcd.inner().domain;
        self.inner()
            .domain()
            .is_some_and(|own| Arc::ptr_eq(own, domain))
    }

    /// Its transport service.
    #[must_use]
    pub fn qp_type(&self) -> QpType {
        self.inner().lock().qp.config().qp_type
    }

    /// Its state.
    #[must_use]
    pub fn state(&self) -> QpState {
        let core = self.inner().lock();
        match self.inner().travel() {
            Some(travel) if !travel.is_here() => {
                QpState::from_code(travel.attr().qp_state).unwrap_or(QpState::Err)
            }
            _ => core.qp.state(),
        }
    }

    /// Statistics.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.inner().lock().qp.counters()
    }

    /// Changes attributes and state; all or nothing.
    ///
    /// # Errors
    /// [`VerbsError::Modify`] (EINVAL) if the transition, the mask or a value is wrong;
    /// [`VerbsError::Link`], [`VerbsError::Broker`] if the local address cannot be used;
    /// [`VerbsError::Io`] (such as EMFILE) if there is no socket to the peer to be had;
    /// [`VerbsError::PeerRefused`] if the peer is not among the allowed ones; [`VerbsError::Busy`] for a target that
    /// another process is at a message with; [`VerbsError::InvalidArgument`] for an alternate path of a target whose domain
    /// a file names (QPV-08).
    #[doc(alias = "ibv_modify_qp")]
    pub fn modify(&self, attr: &QpAttr, mask: QpAttrMask) -> Result<(), VerbsError> {
        self.modify_by(attr, mask, false)
    }

    /// Likewise; where it is `experimental`, a DC initiator has the state table of the experimental verbs, which knows its
    /// own key (DCS-09).
    ///
    /// # Errors
    /// As [`Qp::modify`].
    pub fn modify_by(
        &self,
        attr: &QpAttr,
        mask: QpAttrMask,
        experimental: bool,
    ) -> Result<(), VerbsError> {
        if self.inner().travel().is_none() {
            return self.modify_here(attr, mask, experimental);
        }
        //= QPV-08
        if mask.contains(QpAttrMask::ALT_PATH) {
            // Each process has its own ways, and none may leave the way of the others.
            return Err(VerbsError::InvalidArgument(
                "alt_ah_attr: a target of a shared XRC domain has one path",
            ));
        }
        let ends = [QpState::Reset.code(), QpState::Err.code()];
        let at_once = mask.contains(QpAttrMask::STATE) && ends.contains(&attr.qp_state);
        for _ in 1..TRIES {
            let engine = &**self.owner.engine();
            engine.travels().bring_here(engine, self.inner(), at_once)?;
            match self.modify_here(attr, mask, experimental) {
                Err(VerbsError::WouldBlock) => {}
                result => return result,
            }
        }
        Err(VerbsError::Busy(
            "XRC target, by another process".to_owned(),
        ))
    }

    /// Likewise, where the QP is in this process. [`VerbsError::WouldBlock`] where it is not.
    fn modify_here(
        &self,
        attr: &QpAttr,
        mask: QpAttrMask,
        experimental: bool,
    ) -> Result<(), VerbsError> {
        let owner = &*self.owner;
        let (inner, engine, hca) = (&*owner.inner, owner.engine(), owner.hca());
        let context = owner.modify_context(attr, mask, experimental);
        let (sgid, alt_sgid) = (context.sgid, context.alternate.sgid);
        let is_dynamic = self.qp_type().is_dynamic();
        if mask.contains(QpAttrMask::PORT) && inner.raw().is_some() && attr.port_num != 1 {
            return Err(VerbsError::InvalidArgument("port_num"));
        }
        //= QPV-05
        //= UD-06
        if mask.contains(QpAttrMask::QKEY) && attr.qkey & CONTROLLED_QKEY != 0 && !is_privileged() {
            return Err(VerbsError::NotPermitted("a Q_Key with the highest bit set"));
        }
        // What can fail comes before the QP changes.
        let route = match mask.contains(QpAttrMask::AV) && !is_dynamic {
            true => owner.route_to(sgid, &attr.ah_attr, attr, mask)?,
            false => None,
        };
        let alternate = match mask.contains(QpAttrMask::ALT_PATH) && !is_dynamic {
            true => owner.route_to(alt_sgid, &attr.alt_ah_attr, attr, mask)?,
            false => None,
        };
        let leads_to_rtr = mask.contains(QpAttrMask::STATE) && attr.qp_state == QpState::Rtr.code();
        if leads_to_rtr && matches!(self.qp_type(), QpType::Ud | QpType::DcInitiator) {
            engine.listen_on(hca)?;
        }
        if leads_to_rtr && self.qp_type() == QpType::Ud {
            engine.show_headers();
        }
        let answers = match sgid {
            Some(sgid) if leads_to_rtr && self.qp_type() == QpType::DcTarget => {
                let local = hca.local_addr(sgid.to_ip());
                let uplink = engine.datagram_uplink(local, attr.ah_attr.hop_limit)?;
                Some((uplink, attr.ah_attr))
            }
            _ => None,
        };
        let mut routes = route.iter().chain(&alternate);
        let by_udp = routes.any(|(_, path)| path.channel().is_none());
        if route.is_some()
            || mask.contains(QpAttrMask::STATE) && attr.qp_state == QpState::Reset.code()
        {
            // A reset forgets what is owed, and on another way nobody waits for it.
            engine.say_farewell(inner);
        }
        if mask.contains(QpAttrMask::STATE) && attr.qp_state == QpState::Err.code() {
            engine.receive_before_end(inner);
        }
        let now = engine.now();
        let mem = engine.regions().read(now);
        let mut core = inner.lock();
        if let Some(travel) = inner.travel() {
            if !travel.is_here() {
                return Err(VerbsError::WouldBlock);
            }
            travel.begin();
            travel.attr_changed();
        }
        let modified = core.qp.modify(now, attr, mask, &context);
        if modified.is_err() {
            inner.write_down(&core.qp);
        }
        modified?;
        if let Some((uplink, path)) = route {
            if core.qp.state() == QpState::Rtr && path.live_channel().is_some() {
                core.qp.expect_credits();
            }
            let peer = attr.ah_attr.dgid.to_ip();
            // A socket of this process has the address that the packets come from.
            let is_own = uplink.link.local() == peer;
            core.tx.set_path(uplink, path);
            let is_ours = engine.is_simulated() || is_own || is_of_this_host(peer);
            core.qp.set_extended(is_ours);
        }
        if let Some((uplink, path)) = alternate {
            core.tx.set_alternate(uplink, path);
            let peer = attr.alt_ah_attr.dgid.to_ip();
            if !engine.is_simulated() && !is_of_this_host(peer) {
                core.qp.set_extended(false);
            }
        }
        if let Some((uplink, av)) = answers {
            core.tx.answer_from(uplink, av);
        }
        if core.qp.state() == QpState::Reset {
            core.tx.reset();
            inner.purge_completions(&mut core);
            if let Some(cross) = owner.cross.get() {
                cross.reset();
            }
        }
        let driver = Driver::Application;
        engine.drain(inner, &mut core, &mem, Cause::Other, now, driver);
        drop(core);
        drop(mem);
        if by_udp {
            engine.reconsider_path(inner);
        }
        Ok(())
    }

    /// Original values that atomics bring are big-endian in memory, unit by unit, instead of in the host's byte order; to be said
    /// before anything is posted.
    //= XAT-05
    #[doc(alias = "IBV_EXP_QP_CREATE_ATOMIC_BE_REPLY")]
    pub fn set_big_endian_results(&self) {
        self.inner().lock().qp.set_big_endian_results(true);
    }

    /// Notes how fast the QP shall send, in kbit/s; 0 is as fast as it can. Its answers are
    /// not slowed down, and only RC is.
    ///
    /// # Errors
    /// [`VerbsError::Modify`] (EINVAL) unless it is connected (RTR, RTS or SQD).
    #[doc(alias = "ibv_modify_qp_rate_limit")]
    pub fn set_rate_limit(&self, kbps: u32) -> Result<(), VerbsError> {
        Ok(self.inner().lock().qp.set_rate_limit(kbps)?)
    }

    /// Attributes as they are now.
    #[must_use]
    #[doc(alias = "ibv_query_qp")]
    pub fn query(&self) -> (QpAttr, QpCap) {
        let core = self.inner().lock();
        let attr = match self.inner().travel() {
            Some(travel) if !travel.is_here() => travel.attr(),
            _ => core.qp.query(),
        };
        (attr, core.qp.config().cap)
    }

    /// Every send generates a completion.
    #[must_use]
    pub fn sq_sig_all(&self) -> bool {
        self.inner().lock().qp.config().sq_sig_all
    }

    /// Locks the send queue for posting; transmission starts when the poster is dropped. The
    /// caller must not call anything else of this engine meanwhile.
    #[must_use]
    pub fn send_queue(&self) -> SendPoster<'_> {
        SendPoster::new(&self.owner)
    }

    /// Locks the receive queue for posting, likewise.
    #[must_use]
    pub fn recv_queue(&self) -> RecvPoster<'_> {
        RecvPoster::new(&self.owner)
    }

    /// Attaches the QP to a multicast group: it gets a copy of what is sent there. Twice is once.
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] for a QP that is none of datagrams, and a GID that is no group or of
    /// an IP version that the device has no address of (MC-01); [`VerbsError::NoMemory`] beyond the limits;
    /// [`VerbsError::Link`] where the network cannot be told.
    #[doc(alias = "ibv_attach_mcast")]
    pub fn attach_mcast(&self, group: Gid) -> Result<(), VerbsError> {
        self.check_group(group)?;
        let (engine, hca) = (self.owner.engine(), self.owner.hca());
        let port = self.owner.inner.lock().qp.query().port_num.max(1);
        engine.attach_to_group((hca, port), group, self.qp_num())
    }

    /// Detaches it.
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] where it is not attached (MC-02).
    #[doc(alias = "ibv_detach_mcast")]
    pub fn detach_mcast(&self, group: Gid) -> Result<(), VerbsError> {
        self.check_group(group)?;
        let (engine, hca) = (self.owner.engine(), self.owner.hca());
        if engine.detach_from_group(hca, group, self.qp_num()) {
            Ok(())
        } else {
            Err(VerbsError::InvalidArgument("not attached to this group"))
        }
    }

    /// The QP gets no copy of what it sends to a group itself (`IBV_QP_CREATE_BLOCK_SELF_MCAST_LB`).
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] for a QP that is none of datagrams.
    //= MC-07
    #[doc(alias = "IBV_QP_CREATE_BLOCK_SELF_MCAST_LB")]
    pub fn block_own_multicast(&self) -> Result<(), VerbsError> {
        if self.qp_type() != QpType::Ud {
            return Err(VerbsError::InvalidArgument("not a datagram QP"));
        }
        self.owner.inner.lock().tx.hear_others();
        Ok(())
    }

    /// Leads frames that match to this raw packet QP, from now on.
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] for a QP of another type, or a flow that makes no sense;
    /// [`VerbsError::Io`] without descriptors.
    #[doc(alias = "ibv_create_flow")]
    pub fn create_flow(&self, attr: FlowAttr) -> Result<Flow, VerbsError> {
        Flow::new(Arc::clone(&self.owner), attr)
    }

    //= MC-01
    fn check_group(&self, group: Gid) -> Result<(), VerbsError> {
        if self.qp_type() != QpType::Ud {
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

    /// Ends the QP, or lets go of a target that others have open: its completions are removed from the CQs (CQ-13); waits until its
    /// asynchronous events are acknowledged (AEV-12).
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] if it was destroyed before; [`VerbsError::Busy`] while it is attached to
    /// a multicast group, or flows lead to it.
    #[doc(alias = "ibv_destroy_qp")]
    pub fn destroy(&self) -> Result<(), VerbsError> {
        //= MC-02
        let groups = self.owner.engine().groups_of(self.qp_num());
        if !groups.is_empty() {
            let (qpn, groups) = (self.qp_num(), groups.join(", "));
            let what = format!("QP {qpn}, attached to multicast group {groups}");
            return Err(VerbsError::Busy(what));
        }
        //= DST-04
        let flows = self.owner.inner.raw();
        let flows = flows.map(|raw| raw.port.flows_of(self.qp_num()));
        if flows.is_some_and(|flows| !flows.is_empty()) {
            let what = format!("QP {}, by flows that lead to it", self.qp_num());
            return Err(VerbsError::Busy(what));
        }
        self.drain_sessions();
        if !self.owner.let_go() {
            return Err(VerbsError::InvalidArgument("destroyed already"));
        }
        if let Some(acks) = self.owner.async_acks() {
            acks.wait();
        }
        Ok(())
    }
}

//= QPC-01
pub(super) fn check_cap(cap: &QpCap) -> Result<(), VerbsError> {
    let checks = [
        (cap.max_send_wr, limits::MAX_QP_WR, "cap.max_send_wr"),
        (cap.max_recv_wr, limits::MAX_QP_WR, "cap.max_recv_wr"),
        (cap.max_send_sge, limits::MAX_SGE, "cap.max_send_sge"),
        (cap.max_recv_sge, limits::MAX_SGE, "cap.max_recv_sge"),
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

/// What a new QP is.
pub(super) fn config(pd: &PdInner, qp_type: QpType, cap: QpCap, sq_sig_all: bool) -> QpConfig {
    QpConfig {
        // Its number comes with its creation.
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
    mut parts: QpParts,
    set_up: impl FnOnce(&mut rocade_transport::Qp),
) -> Result<Arc<QpInner>, VerbsError> {
    let engine = &pd.context.engine;
    let qp_num = engine.allocate_qp_num()?;
    let config = QpConfig { qp_num, ..config };
    if let Some(target) = &mut parts.target {
        target.travel = share_target(&**engine, &target.domain, qp_num)
            .inspect_err(|_| engine.release_qp_num(qp_num))?;
    }
    let Some(mut qp) = rocade_transport::Qp::new(config, receives) else {
        engine.release_qp_num(qp_num);
        return Err(VerbsError::NotSupported("QP type"));
    };
    qp.control_congestion(engine.controls_congestion());
    set_up(&mut qp);
    pd.users.add(User::Qp(qp_num));
    let events = Arc::clone(&pd.context.events);
    let inner = QpInner::new(events, qp, cookie, parts);
    if config.qp_type == QpType::XrcSend {
        inner.lock().tx.hear_anybody();
    }
    engine.add_qp(Arc::clone(&inner));
    Ok(inner)
}

impl QpOwner {
    pub(super) fn engine(&self) -> &Arc<EngineInner> {
        &self.pd.context.engine
    }

    pub(super) fn hca(&self) -> &Arc<Hca> {
        &self.pd.context.hca
    }

    fn async_acks(&self) -> Option<&AckCounter> {
        match self.hold.as_deref() {
            Some((hold, _)) => Some(hold.async_acks()),
            None => self.inner.async_acks(),
        }
    }

    /// False where it was let go of before. With the last one that lets go of a target it ends.
    fn let_go(&self) -> bool {
        let Some((hold, xrcd)) = self.hold.as_deref() else {
            return self.end();
        };
        if self.inner.travel().is_some() {
            let engine = &**self.engine();
            let travels = engine.travels();
            if travels.close_target(engine, &self.inner, hold).is_none() {
                return false;
            }
        } else {
            let Some(was_last) = self.inner.let_go(hold) else {
                return false;
            };
            if was_last {
                self.end();
            }
        }
        hold.forget_events();
        xrcd.users.remove(User::Qp(self.inner.qp_num()));
        true
    }

    fn end(&self) -> bool {
        let inner = &*self.inner;
        if !inner.dies() {
            return false;
        }
        self.engine().end_qp(inner);
        self.pd.users.remove(User::Qp(inner.qp_num()));
        true
    }

    /// What the transport has to know of the device where these attributes change.
    fn modify_context(&self, attr: &QpAttr, mask: QpAttrMask, experimental: bool) -> ModifyContext {
        let hca = self.hca();
        let gid = |av: &AddressVector| hca.port(av.port_num)?.gid(av.sgid_index);
        let pkey = |index| hca.pkey(index).unwrap_or(Pkey::DEFAULT);
        let number = if mask.contains(QpAttrMask::AV) {
            attr.ah_attr.port_num
        } else {
            self.inner.lock().qp.query().port_num
        };
        let active_mtu = |number| hca.port(number).map_or(Mtu::Mtu4096, Port::active_mtu);
        ModifyContext {
            sgid: gid(&attr.ah_attr),
            pkey: pkey(attr.pkey_index),
            active_mtu: active_mtu(number),
            alternate: AlternateContext {
                sgid: gid(&attr.alt_ah_attr),
                pkey: pkey(attr.alt_pkey_index),
                active_mtu: active_mtu(attr.alt_port_num),
            },
            experimental,
        }
    }

    /// The way from `sgid` along an address vector; `None` where the transport will say what is wrong with it.
    ///
    /// # Errors
    /// The peer is not among the allowed ones; those of [`QpOwner::prepare_route`].
    fn route_to(
        &self,
        sgid: Option<Gid>,
        av: &AddressVector,
        attr: &QpAttr,
        mask: QpAttrMask,
    ) -> Result<Option<(Arc<Uplink>, Path)>, VerbsError> {
        let peer = av.dgid.to_ip();
        if av.is_global && !self.engine().peers().allow(peer) {
            let error = VerbsError::PeerRefused(peer);
            tracing::error!("{error}");
            return Err(error);
        }
        match sgid {
            Some(sgid) if sgid.to_ip().is_ipv4() == peer.is_ipv4() => {
                self.prepare_route(sgid, *av, attr, mask).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// The way from `sgid` to the peer that the attributes name, opened where it is not in use yet.
    fn prepare_route(
        &self,
        sgid: Gid,
        av: AddressVector,
        attr: &QpAttr,
        mask: QpAttrMask,
    ) -> Result<(Arc<Uplink>, Path), VerbsError> {
        let dest = if mask.contains(QpAttrMask::DEST_QPN) {
            Qpn::new(attr.dest_qp_num)
        } else {
            self.inner.lock().qp.dest_qp()
        };
        self.engine().open_route(self.hca(), sgid, &av, dest)
    }
}

/// Returns true if this host, in this network namespace, has the address. Then Rocade has the port of RoCEv2 there, and
/// nobody has to be asked. A kernel's RoCE, which does not take packets well that are not of the standard, cannot be
/// there as well.
//= XAW-08
fn is_of_this_host(address: IpAddr) -> bool {
    sys::is_of_this_host((address, 0).into())
}
