//! Queue pairs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use rocade_transport::{
    AddressVector, AlternateContext, Cause, CompleteTo, Completion, Counters, ModifyContext,
    QpAttr, QpAttrMask, QpCap, QpConfig, QpEvent, QpState, QpType, Receives, Srqn,
};
use rocade_wire::{Gid, Mtu, Pkey, Qpn};

use super::context::{AsyncEventKind, EventElement};
use super::cq::{Cq, CqInner};
use super::event_queue::AckCounter;
use super::pd::{Pd, PdInner};
use super::poster::{RecvPoster, SendPoster};
use super::slots::PendingSlots;
use super::srq::{Srq, SrqInner};
use super::xrcd::{Domain, XrcdInner};
use crate::engine::{Driver, EngineInner, Path, TxState, Uplink};
use crate::error::VerbsError;
use crate::hca::{Hca, Port, limits};

/// The bit of a Q_Key that unprivileged processes must not set.
const CONTROLLED_QKEY: u32 = 1 << 31;

/// May this process open raw sockets? The kernel asks for the same right.
fn is_privileged() -> bool {
    socket2::Socket::new(
        socket2::Domain::IPV4,
        socket2::Type::RAW,
        Some(socket2::Protocol::UDP),
    )
    .is_ok()
}

/// The bits of a traffic class in which the network marks packets, and the value that allows it to.
const ECN: u8 = 3;
const ECN_CAPABLE: u8 = 2;

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
struct QpOwner {
    inner: Arc<QpInner>,
    /// Of a target, which others may have open too.
    hold: Option<Arc<Hold>>,
}

impl QpOwner {
    /// False where it was let go of before.
    fn let_go(&self) -> bool {
        match &self.hold {
            Some(hold) => self.inner.let_go(hold),
            None => self.inner.end(),
        }
    }

    fn async_acks(&self) -> &AckCounter {
        match &self.hold {
            Some(hold) => &hold.async_acks,
            None => &self.inner.async_acks,
        }
    }
}

impl Drop for QpOwner {
    fn drop(&mut self) {
        self.let_go();
    }
}

#[derive(Debug)]
pub(crate) struct QpInner {
    pub(super) pd: Arc<PdInner>,
    qp_num: Qpn,
    /// That of an XRC target has none.
    send_cq: Option<Arc<CqInner>>,
    recv_cq: Option<Arc<CqInner>>,
    srq: Option<Arc<SrqInner>>,
    target: Option<Box<TargetPart>>,
    cookie: u64,
    core: Mutex<QpCore>,
    alive: AtomicBool,
    async_acks: Arc<AckCounter>,
}

/// What a new QP shall be.
struct Plan {
    qp_type: QpType,
    cap: QpCap,
    sq_sig_all: bool,
    cookie: u64,
    cqs: Option<(Arc<CqInner>, Arc<CqInner>)>,
    srq: Option<Arc<SrqInner>>,
    target: Option<Box<TargetPart>>,
}

/// What an XRC target has besides.
#[derive(Debug)]
struct TargetPart {
    domain: Arc<Domain>,
    /// Who has it open; with the last one it ends, and nobody can open it any more.
    holds: Mutex<Vec<Arc<Hold>>>,
}

/// One opening of a target.
#[derive(Debug)]
struct Hold {
    xrcd: Arc<XrcdInner>,
    cookie: u64,
    async_acks: Arc<AckCounter>,
}

impl Hold {
    fn new(xrcd: &Arc<XrcdInner>, cookie: u64) -> Arc<Self> {
        Arc::new(Self {
            xrcd: Arc::clone(xrcd),
            cookie,
            async_acks: Arc::default(),
        })
    }
}

/// What the lock of a QP protects.
#[derive(Debug)]
pub(crate) struct QpCore {
    pub(crate) qp: rocade_transport::Qp,
    pub(crate) tx: TxState,
    /// A completion was lost: events wait until all QPs of the CQ are in ERR.
    pub(crate) overrun: bool,
    /// Slots of the send and the receive queue that become free when their completions are taken.
    send_slots: PendingSlots,
    recv_slots: PendingSlots,
}

impl Qp {
    pub(super) fn new(pd: Arc<PdInner>, mut init: QpInitAttr) -> Result<Self, VerbsError> {
        let srq = init.srq.map(|srq| Arc::clone(srq.inner()));
        let is_initiator = init.qp_type == QpType::XrcSend;
        let fits = |srq: &Arc<SrqInner>| !is_initiator && srq.is_for(&pd);
        if !srq.as_ref().is_none_or(fits) {
            return Err(VerbsError::InvalidArgument("srq"));
        }
        //= SRQ-09
        //= XRC-12
        if srq.is_some() || is_initiator {
            (init.cap.max_recv_wr, init.cap.max_recv_sge) = (0, 0);
        }
        check_cap(&init.cap)?;
        let receives = match &srq {
            Some(srq) => Receives::Shared(Arc::clone(srq) as _),
            None => Receives::Own,
        };
        let plan = Plan {
            qp_type: init.qp_type,
            cap: init.cap,
            sq_sig_all: init.sq_sig_all,
            cookie: init.cookie,
            cqs: Some((init.send_cq.inner, init.recv_cq.inner)),
            srq,
            target: None,
        };
        let inner = QpInner::create(pd, plan, receives)?;
        Ok(Self::held(inner, None))
    }

    /// An XRC target; `nobody` is the domain of its own keys, of which there are none.
    pub(super) fn new_target(
        nobody: Arc<PdInner>,
        xrcd: &Arc<XrcdInner>,
        cookie: u64,
    ) -> Result<Self, VerbsError> {
        let domain = Arc::clone(&xrcd.domain);
        let hold = Hold::new(xrcd, cookie);
        let plan = Plan {
            qp_type: QpType::XrcRecv,
            cap: QpCap::default(),
            sq_sig_all: false,
            cookie,
            cqs: None,
            srq: None,
            target: Some(Box::new(TargetPart {
                domain: Arc::clone(&domain),
                holds: Mutex::new(vec![Arc::clone(&hold)]),
            })),
        };
        let inner = QpInner::create(nobody, plan, Receives::Domain(domain))?;
        xrcd.children.fetch_add(1, Ordering::AcqRel);
        Ok(Self::held(inner, Some(hold)))
    }

    //= XRC-11
    pub(super) fn open_target(
        xrcd: &Arc<XrcdInner>,
        qp_num: Qpn,
        cookie: u64,
    ) -> Result<Self, VerbsError> {
        let unknown = VerbsError::InvalidArgument("qp_num");
        let Some(inner) = xrcd.context().engine.qp(qp_num) else {
            return Err(unknown);
        };
        let hold = Hold::new(xrcd, cookie);
        {
            let of_domain = |target: &&TargetPart| Arc::ptr_eq(&target.domain, &xrcd.domain);
            let Some(target) = inner.target.as_deref().filter(of_domain) else {
                return Err(unknown);
            };
            let mut holds = target.holds.lock();
            if holds.is_empty() {
                // It is about to end.
                return Err(unknown);
            }
            holds.push(Arc::clone(&hold));
        }
        xrcd.children.fetch_add(1, Ordering::AcqRel);
        Ok(Self::held(inner, Some(hold)))
    }

    fn held(inner: Arc<QpInner>, hold: Option<Arc<Hold>>) -> Self {
        Self {
            owner: Arc::new(QpOwner { inner, hold }),
        }
    }

    pub(crate) fn inner(&self) -> &QpInner {
        &self.owner.inner
    }

    /// Its number: 8 bits slot, 16 bits QP.
    #[must_use]
    pub fn qp_num(&self) -> Qpn {
        self.inner().qp_num
    }

    /// Its domain.
    #[must_use]
    pub fn pd(&self) -> Pd {
        Pd {
            inner: Arc::clone(&self.inner().pd),
        }
    }

    /// Its transport service.
    #[must_use]
    pub fn qp_type(&self) -> QpType {
        self.inner().lock().qp.config().qp_type
    }

    /// Its state.
    #[must_use]
    pub fn state(&self) -> QpState {
        self.inner().lock().qp.state()
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
    /// [`VerbsError::PeerRefused`] if the peer is not among the allowed ones.
    #[doc(alias = "ibv_modify_qp")]
    pub fn modify(&self, attr: &QpAttr, mask: QpAttrMask) -> Result<(), VerbsError> {
        let inner = self.inner();
        let engine = inner.engine();
        let context = inner.modify_context(attr, mask);
        let (sgid, alt_sgid) = (context.sgid, context.alternate.sgid);
        //= QPV-05
        //= UD-06
        if mask.contains(QpAttrMask::QKEY) && attr.qkey & CONTROLLED_QKEY != 0 && !is_privileged() {
            return Err(VerbsError::NotPermitted("a Q_Key with the highest bit set"));
        }
        // What can fail comes before the QP changes.
        let route = match mask.contains(QpAttrMask::AV) {
            true => inner.route_to(sgid, &attr.ah_attr, attr, mask)?,
            false => None,
        };
        let alternate = match mask.contains(QpAttrMask::ALT_PATH) {
            true => inner.route_to(alt_sgid, &attr.alt_ah_attr, attr, mask)?,
            false => None,
        };
        let leads_to_rtr = mask.contains(QpAttrMask::STATE) && attr.qp_state == QpState::Rtr.code();
        if leads_to_rtr && inner.lock().qp.config().qp_type == QpType::Ud {
            inner.listen()?;
        }
        let mut routes = route.iter().chain(&alternate);
        let by_udp = routes.any(|(_, path)| path.channel().is_none());
        if route.is_some()
            || mask.contains(QpAttrMask::STATE) && attr.qp_state == QpState::Reset.code()
        {
            // A reset forgets what is owed, and on another way nobody waits for it.
            engine.say_farewell(inner);
        }
        let now = engine.now();
        let mem = engine.regions().read(now);
        let mut core = inner.lock();
        core.qp.modify(now, attr, mask, &context)?;
        if let Some((uplink, path)) = route {
            core.tx.set_path(uplink, path);
        }
        if let Some((uplink, path)) = alternate {
            core.tx.set_alternate(uplink, path);
        }
        if core.qp.state() == QpState::Reset {
            core.tx.reset();
            inner.purge_completions(&mut core);
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
        (core.qp.query(), core.qp.config().cap)
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
        SendPoster::new(self.inner())
    }

    /// Locks the receive queue for posting, likewise.
    #[must_use]
    pub fn recv_queue(&self) -> RecvPoster<'_> {
        RecvPoster::new(self.inner())
    }

    /// Attaches the QP to a multicast group: it gets a copy of what is sent there. Twice is once.
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] for a QP that is none of datagrams, and a GID that is no group or of
    /// an IP version that the device has no address of (MC-01); [`VerbsError::NoMemory`] beyond the limits;
    /// [`VerbsError::Link`] where the network cannot be told.
    #[doc(alias = "ibv_attach_mcast")]
    pub fn attach_mcast(&self, group: Gid) -> Result<(), VerbsError> {
        let inner = self.inner();
        inner.check_group(group)?;
        let hca = &inner.pd.context.hca;
        inner.engine().attach_to_group(hca, group, inner.qp_num)
    }

    /// Detaches it.
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] where it is not attached (MC-02).
    #[doc(alias = "ibv_detach_mcast")]
    pub fn detach_mcast(&self, group: Gid) -> Result<(), VerbsError> {
        let inner = self.inner();
        inner.check_group(group)?;
        let hca = &inner.pd.context.hca;
        if inner.engine().detach_from_group(hca, group, inner.qp_num) {
            Ok(())
        } else {
            Err(VerbsError::InvalidArgument("not attached to this group"))
        }
    }

    /// Acknowledges asynchronous events of this QP.
    pub fn ack_async_events(&self, count: u32) {
        self.owner.async_acks().ack(u64::from(count));
    }

    /// Ends the QP, or lets go of a target that others have open: its completions are removed from the CQs (CQ-13); waits until its
    /// asynchronous events are acknowledged (AEV-12).
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] if it was destroyed before; [`VerbsError::Busy`] while it is attached to
    /// a multicast group.
    #[doc(alias = "ibv_destroy_qp")]
    pub fn destroy(&self) -> Result<(), VerbsError> {
        //= MC-02
        if self.inner().engine().is_in_group(self.qp_num()) {
            return Err(VerbsError::Busy("attached to a multicast group"));
        }
        if !self.owner.let_go() {
            return Err(VerbsError::InvalidArgument("destroyed already"));
        }
        self.owner.async_acks().wait();
        Ok(())
    }
}

//= QPC-01
fn check_cap(cap: &QpCap) -> Result<(), VerbsError> {
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

impl QpInner {
    fn create(pd: Arc<PdInner>, plan: Plan, receives: Receives) -> Result<Arc<Self>, VerbsError> {
        let engine = &pd.context.engine;
        let qp_num = engine.allocate_qp_num()?;
        let config = QpConfig {
            qp_num,
            qp_type: plan.qp_type,
            pd: pd.id,
            cap: plan.cap,
            sq_sig_all: plan.sq_sig_all,
            limits: pd.context.hca.qp_limits(),
        };
        let Some(mut qp) = rocade_transport::Qp::new(config, receives) else {
            engine.release_qp_num(qp_num);
            return Err(VerbsError::NotSupported("QP type"));
        };
        qp.control_congestion(engine.controls_congestion());
        let (send_cq, recv_cq) = plan.cqs.unzip();
        for cq in send_cq.iter().chain(&recv_cq) {
            cq.attach_qp();
        }
        if let Some(srq) = &plan.srq {
            srq.attach_qp();
        }
        pd.children.fetch_add(1, Ordering::AcqRel);
        let inner = Arc::new(Self {
            pd,
            qp_num,
            send_cq,
            recv_cq,
            srq: plan.srq,
            target: plan.target,
            cookie: plan.cookie,
            core: Mutex::new(QpCore {
                qp,
                tx: TxState::default(),
                overrun: false,
                send_slots: PendingSlots::default(),
                recv_slots: PendingSlots::default(),
            }),
            alive: AtomicBool::new(true),
            async_acks: Arc::default(),
        });
        inner.engine().add_qp(Arc::clone(&inner));
        Ok(inner)
    }

    /// One of those that have a target open lets go of it; false where that has happened before. With the
    /// last one it ends.
    //= XRC-11
    fn let_go(&self, hold: &Arc<Hold>) -> bool {
        let Some(target) = &self.target else {
            return false;
        };
        let mut holds = target.holds.lock();
        let before = holds.len();
        holds.retain(|other| !Arc::ptr_eq(other, hold));
        let (was_held, was_last) = (holds.len() < before, holds.is_empty());
        drop(holds);
        if was_held {
            if was_last {
                self.end();
            }
            hold.xrcd.context().forget_events(&hold.async_acks);
            hold.xrcd.children.fetch_sub(1, Ordering::AcqRel);
        }
        was_held
    }

    /// Does a completion that is lost end all QPs of its CQ? That of an XRC SRQ ends only the target that was to
    /// report it: no CQ is the target's.
    pub(crate) const fn has_cqs(&self) -> bool {
        self.send_cq.is_some()
    }

    pub(crate) fn engine(&self) -> &Arc<EngineInner> {
        &self.pd.context.engine
    }

    pub(crate) const fn qp_num(&self) -> Qpn {
        self.qp_num
    }

    /// Its device.
    pub(crate) fn hca(&self) -> &Hca {
        &self.pd.context.hca
    }

    //= MC-01
    fn check_group(&self, group: Gid) -> Result<(), VerbsError> {
        if self.lock().qp.config().qp_type != QpType::Ud {
            return Err(VerbsError::InvalidArgument("not a datagram QP"));
        }
        if !group.is_multicast() {
            return Err(VerbsError::InvalidArgument("gid"));
        }
        Ok(())
    }

    /// Datagrams may come to any address of the device: opens all that can be. One will do.
    fn listen(&self) -> Result<(), VerbsError> {
        let (engine, hca) = (self.engine(), self.hca());
        let mut opened = Err(VerbsError::NoData);
        let gids: Vec<_> = hca.ports().map(Port::gids).collect();
        let gids = gids.iter().flat_map(|gids| gids.iter());
        for entry in gids.filter(|entry| !entry.gid.is_zero()) {
            match engine.uplink_for(hca.local_addr(entry.gid.to_ip())) {
                Ok(_) => opened = Ok(()),
                Err(error) => {
                    tracing::warn!(gid = %entry.gid, %error, "datagrams to this address will not arrive");
                    if opened.is_err() {
                        opened = Err(error);
                    }
                }
            }
        }
        opened
    }

    /// What the transport has to know of the device where these attributes change.
    fn modify_context(&self, attr: &QpAttr, mask: QpAttrMask) -> ModifyContext {
        let hca = self.hca();
        let gid = |av: &AddressVector| hca.port(av.port_num)?.gid(av.sgid_index);
        let pkey = |index| hca.pkey(index).unwrap_or(Pkey::DEFAULT);
        let number = if mask.contains(QpAttrMask::AV) {
            attr.ah_attr.port_num
        } else {
            self.lock().qp.query().port_num
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
        }
    }

    /// The way from `sgid` along an address vector; `None` where the transport will say what is wrong with it.
    ///
    /// # Errors
    /// The peer is not among the allowed ones; those of [`QpInner::prepare_route`].
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
        mut av: AddressVector,
        attr: &QpAttr,
        mask: QpAttrMask,
    ) -> Result<(Arc<Uplink>, Path), VerbsError> {
        let (engine, hca) = (self.engine(), self.hca());
        let uplink = engine.uplink_for(hca.local_addr(sgid.to_ip()))?;
        let dest = if mask.contains(QpAttrMask::DEST_QPN) {
            Qpn::new(attr.dest_qp_num)
        } else {
            self.lock().qp.dest_qp()
        };
        let to = av.dgid.to_ip();
        let channel = engine.channel_to(&uplink, dest, to);
        //= ENC-10
        if engine.controls_congestion() && av.traffic_class & ECN == 0 {
            // The network may mark the packets, rather than drop them.
            av.traffic_class |= ECN_CAPABLE;
        }
        let path = uplink.path_of(dest, to, &av, channel)?;
        Ok((uplink, path))
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
    pub(crate) fn reserve<'c>(&self, completions: impl Iterator<Item = &'c Completion>) -> usize {
        let mut reserved = 0;
        each_run(completions, |to, srqn, run| {
            let count = run.count();
            let granted = match (self.cq_of(to), &self.target) {
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
            ..
        } = core;
        each_run(qp.pending_completions(), |to, srqn, run| {
            lost += match (self.cq_of(to), &self.srq, &self.target) {
                //= XRC-05
                (None, _, Some(target)) => target.domain.complete(srqn, run, reserved),
                (None, _, None) => run.count(),
                (Some(cq), Some(srq), _) if to == CompleteTo::RecvCq => {
                    srq.add_completions(cq, run, reserved)
                }
                (Some(cq), ..) => {
                    let slots = match to {
                        CompleteTo::SendCq => &mut *send_slots,
                        _ => &mut *recv_slots,
                    };
                    cq.add(run, reserved, |number, completion| {
                        slots.note(number, completion.slots);
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
    pub(super) fn reclaim_slots(&self, core: &mut QpCore, is_send: bool) -> bool {
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
        let kind = match event {
            QpEvent::CommEst => AsyncEventKind::CommEst,
            QpEvent::SqDrained => AsyncEventKind::SqDrained,
            QpEvent::ReqErr => AsyncEventKind::QpReqErr,
            QpEvent::AccessErr => AsyncEventKind::QpAccessErr,
            QpEvent::PathMig => AsyncEventKind::PathMig,
            QpEvent::PathMigErr => AsyncEventKind::PathMigErr,
            QpEvent::LastWqeReached => AsyncEventKind::QpLastWqeReached,
            QpEvent::Fatal => AsyncEventKind::QpFatal,
        };
        let Some(target) = &self.target else {
            let acks = Some(Arc::clone(&self.async_acks));
            self.pd
                .context
                .raise(kind, EventElement::Qp(self.cookie), acks);
            return;
        };
        //= XRC-11
        for hold in &*target.holds.lock() {
            let acks = Some(Arc::clone(&hold.async_acks));
            let element = EventElement::Qp(hold.cookie);
            hold.xrcd.context().raise(kind, element, acks);
        }
    }

    fn purge_completions(&self, core: &mut QpCore) {
        for cq in self.send_cq.iter().chain(&self.recv_cq) {
            cq.purge(self.qp_num);
        }
        core.send_slots.clear();
        core.recv_slots.clear();
    }

    fn end(&self) -> bool {
        if !self.alive.swap(false, Ordering::AcqRel) {
            return false;
        }
        let engine = self.engine();
        engine.remove_qp(self.qp_num);
        engine.leave_groups(self.qp_num);
        engine.say_farewell(self);
        {
            // Whoever still holds a reference finds a QP that takes and sends nothing.
            let mut core = self.lock();
            tracing::debug!(qp_num = ?self.qp_num, counters = ?core.qp.counters(), "QP ends");
            core.tx.reset();
            core.qp.abandon();
            self.purge_completions(&mut core);
        }
        engine.regions().free_windows_of(self.qp_num);
        engine.release_qp_num(self.qp_num);
        self.pd.context.forget_events(&self.async_acks);
        for cq in self.send_cq.iter().chain(&self.recv_cq) {
            cq.detach_qp();
        }
        if let Some(srq) = &self.srq {
            srq.detach_qp();
        }
        self.pd.children.fetch_sub(1, Ordering::AcqRel);
        true
    }
}

/// Calls `each` for each run of completions that go to one CQ, until it says false. It has
/// to use up what it gets.
fn each_run<'c, I: Iterator<Item = &'c Completion>>(
    completions: I,
    mut each: impl FnMut(CompleteTo, Srqn, &mut dyn Iterator<Item = &'c Completion>) -> bool,
) {
    let mut completions = completions.peekable();
    while let Some(first) = completions.peek() {
        let (to, srqn) = (first.to, first.srqn);
        let same = |c: &&Completion| c.to == to && c.srqn == srqn;
        let mut run = std::iter::from_fn(|| completions.next_if(same));
        if !each(to, srqn, &mut run) {
            break;
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
        assert!(size_of::<QpInner>() <= 1_280);
    }
}
