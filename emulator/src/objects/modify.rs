//! `ibv_modify_qp`: finds the paths that a change gives to a QP, changes it, and lets it use them.

use std::net::IpAddr;
use std::sync::Arc;

use rocade_transport::{
    AddressVector, ModifyContext, QpAttr, QpAttrMask, QpState, QpType, TransmitTrigger,
};
use socket2::{Domain, Protocol, Type};

use super::qp::Qp;
use crate::engine::Cx;
use crate::error::VerbsError;
use crate::faults::Verb;
use crate::link::Link as _;
use crate::state::{LocalEndpoint, QpCore, TxRoute};
use crate::sys;

/// The bit of a Q_Key that unprivileged processes must not set.
const CONTROLLED_QKEY: u32 = 1 << 31;

/// Returns true if this process may open raw sockets. The kernel demands the same privilege.
fn is_privileged() -> bool {
    sys::socket(Domain::IPV4, Type::RAW.cloexec(), Some(Protocol::UDP)).is_ok()
}

/// Number of attempts to change a target that other processes acquire meanwhile.
const TRIES: usize = 16;

/// Returns true if the change leads to a state.
fn leads_to(attr: &QpAttr, mask: QpAttrMask, state: QpState) -> bool {
    mask.contains(QpAttrMask::STATE) && attr.qp_state == state.code()
}

/// The paths that a change gives to a QP. Everything that can fail precedes the change.
struct NewPaths {
    primary: Option<(Arc<LocalEndpoint>, TxRoute)>,
    alternate: Option<(Arc<LocalEndpoint>, TxRoute)>,
    /// The source of a DC target's responses, and how they are sent.
    responses: Option<(Arc<LocalEndpoint>, AddressVector)>,
}

impl NewPaths {
    /// Returns true if packets take a path over UDP, although the peer may share memory.
    fn use_udp(&self) -> bool {
        let mut routes = self.primary.iter().chain(&self.alternate);
        routes.any(|(_, route)| route.peer_link().is_none())
    }
}

impl Qp {
    /// Changes attributes and state, all or none.
    ///
    /// # Errors
    /// [`VerbsError::Modify`] (EINVAL) if the transition, the mask or a value is wrong.
    /// [`VerbsError::Unreachable`] if the peer is not reachable, which may take a second.
    /// [`VerbsError::Link`], [`VerbsError::Broker`] if the local address cannot be used.
    /// [`VerbsError::Io`] (such as EMFILE) if no socket to the peer can be opened.
    /// [`VerbsError::PeerRefused`] if the peer is not among the allowed ones. [`VerbsError::Busy`]
    /// for a target with which another process is receiving a message.
    /// [`VerbsError::InvalidArgument`] for an alternate path of a target in a file-backed domain.
    #[doc(alias = "ibv_modify_qp")]
    pub fn modify(&self, attr: &QpAttr, mask: QpAttrMask) -> Result<(), VerbsError> {
        self.modify_by(attr, mask, false)
    }

    /// Like [`Qp::modify`]. If `experimental`, a DC initiator has the state table of the
    /// experimental verbs, which includes its own DC key.
    ///
    /// # Errors
    /// As [`Qp::modify`].
    pub fn modify_by(
        &self,
        attr: &QpAttr,
        mask: QpAttrMask,
        experimental: bool,
    ) -> Result<(), VerbsError> {
        self.owner().enter(Verb::ModifyQp)?;
        if self.inner().ownership().is_none() {
            let result = self.modify_here(attr, mask, experimental);
            self.owner().engine().note_change();
            return result;
        }
        //= QPV-08
        if mask.contains(QpAttrMask::ALT_PATH) {
            // Each process has its own routes, and none may leave the path of the others.
            return Err(VerbsError::InvalidArgument(
                "alt_ah_attr: a target of a shared XRC domain has one path",
            ));
        }
        let ends = [QpState::Reset.code(), QpState::Err.code()];
        let at_once = mask.contains(QpAttrMask::STATE) && ends.contains(&attr.qp_state);
        for _ in 1..TRIES {
            let engine = &**self.owner().engine();
            engine
                .shared_targets()
                .acquire(engine, self.inner(), at_once)?;
            match self.modify_here(attr, mask, experimental) {
                Err(VerbsError::WouldBlock) => {}
                result => return result,
            }
        }
        Err(VerbsError::Busy(
            "XRC target, by another process".to_owned(),
        ))
    }

    /// Changes the QP if this process owns it.
    ///
    /// # Errors
    /// [`VerbsError::WouldBlock`] if it does not.
    fn modify_here(
        &self,
        attr: &QpAttr,
        mask: QpAttrMask,
        experimental: bool,
    ) -> Result<(), VerbsError> {
        let (inner, engine) = (self.inner(), self.owner().engine());
        let context = self.owner().modify_context(attr, mask, experimental);
        self.check_values(attr, mask)?;
        let paths = self.new_paths(attr, mask, &context)?;
        let use_udp = paths.use_udp();
        // A reset drops delayed ACKs, and on another path no peer waits for them.
        let drops_acks = paths.primary.is_some()
            || leads_to(attr, mask, QpState::Reset)
            || mask.contains(QpAttrMask::PKEY_INDEX);
        if drops_acks {
            engine.flush_before_close(inner);
        }
        if leads_to(attr, mask, QpState::Err) {
            engine.receive_before_end(inner);
        }
        let now = engine.host.now();
        let mem = engine.tables.regions().read(now);
        let mut core = inner.lock();
        if let Some(ownership) = inner.ownership() {
            if !ownership.is_owner() {
                return Err(VerbsError::WouldBlock);
            }
            ownership.mark_incomplete();
            ownership.attr_changed();
        }
        let cx = Cx::of_application(now, &mem);
        if drops_acks {
            // A message may have come meanwhile, and the program have seen its completion.
            engine.flush_last_ack(inner, &mut core, cx);
            if !core.tx.has_backlog() {
                core.tx.release_journal_slot();
            }
        }
        if leads_to(attr, mask, QpState::Reset) {
            inner.release_held(&mut core);
            engine.faults.forget_sent(inner.qp_num());
        }
        let modified = core.qp.modify(now, attr, mask, &context);
        if modified.is_err() {
            inner.checkpoint(&core.qp);
        }
        modified?;
        self.use_paths(&mut core, paths, attr);
        if core.qp.state() == QpState::Reset {
            core.tx.reset();
            inner.purge_completions(&mut core);
            if let Some(cross) = self.owner().cross_channel.get() {
                cross.reset();
            }
        }
        engine.flush_outputs(inner, &mut core, TransmitTrigger::Other, cx);
        drop(core);
        drop(mem);
        if use_udp {
            engine.attach_peer_links(inner);
        }
        Ok(())
    }

    /// Checks what the transport does not know about.
    fn check_values(&self, attr: &QpAttr, mask: QpAttrMask) -> Result<(), VerbsError> {
        let is_raw = self.inner().raw().is_some();
        if mask.contains(QpAttrMask::PORT) && is_raw && attr.port_num != 1 {
            return Err(VerbsError::InvalidArgument("port_num"));
        }
        //= QPV-05
        //= UD-06
        if mask.contains(QpAttrMask::QKEY) && attr.qkey & CONTROLLED_QKEY != 0 && !is_privileged() {
            return Err(VerbsError::NotPermitted("a Q_Key with the highest bit set"));
        }
        Ok(())
    }

    /// Finds the paths, and opens what datagrams from and to the QP need.
    fn new_paths(
        &self,
        attr: &QpAttr,
        mask: QpAttrMask,
        context: &ModifyContext,
    ) -> Result<NewPaths, VerbsError> {
        let (owner, qp_type) = (self.owner(), self.qp_type());
        let (engine, hca) = (owner.engine(), owner.hca());
        let finds = |bit| mask.contains(bit) && !qp_type.is_dynamic();
        let primary = match finds(QpAttrMask::AV) {
            true => owner.route_to(context.sgid, &attr.ah_attr, attr, mask)?,
            false => None,
        };
        let alternate = match finds(QpAttrMask::ALT_PATH) {
            true => owner.route_to(context.alternate.sgid, &attr.alt_ah_attr, attr, mask)?,
            false => None,
        };
        let leads_to_rtr = leads_to(attr, mask, QpState::Rtr);
        let is_datagram = qp_type.traits().is_datagram;
        if leads_to_rtr && (is_datagram || qp_type == QpType::DcInitiator) {
            engine.listen_on(hca)?;
        }
        if leads_to_rtr && is_datagram {
            engine.show_headers();
        }
        let responses = match context.sgid {
            Some(sgid) if leads_to_rtr && qp_type == QpType::DcTarget => {
                let local = hca.local_addr(sgid.to_ip());
                let endpoint = engine.datagram_endpoint(local, attr.ah_attr.hop_limit)?;
                Some((endpoint, attr.ah_attr))
            }
            _ => None,
        };
        Ok(NewPaths {
            primary,
            alternate,
            responses,
        })
    }

    /// Lets a changed QP use its new paths.
    fn use_paths(&self, core: &mut QpCore, paths: NewPaths, attr: &QpAttr) {
        let is_simulated = self.owner().engine().host.is_simulated();
        if let Some((endpoint, route)) = paths.primary {
            if core.qp.state() == QpState::Rtr && route.live_peer_link().is_some() {
                core.qp.expect_credits();
            }
            let peer = attr.ah_attr.dgid.to_ip();
            // A socket of this process has the source address of the packets.
            let is_own = endpoint.link.local() == peer;
            core.tx.set_route(endpoint, route);
            let is_ours = is_simulated || is_own || is_of_this_host(peer);
            core.qp.set_vendor_ops(is_ours);
            let like = self.owner().hca().like();
            core.qp.set_short_fetch_add(like.sends_short_fetch_add());
            self.owner().engine().host.tell_of_peer(&mut core.qp, peer);
        }
        if let Some((endpoint, route)) = paths.alternate {
            core.tx.set_alternate(endpoint, route);
            let peer = attr.alt_ah_attr.dgid.to_ip();
            if !is_simulated && !is_of_this_host(peer) {
                core.qp.set_vendor_ops(false);
            }
        }
        if let Some((endpoint, av)) = paths.responses {
            core.tx.respond_from(endpoint, av);
        }
    }
}

/// Returns true if this host, in this network namespace, has the address. Then Rocade uses the
/// RoCEv2 port there, and the peer need not be probed. The kernel's rxe, which handles
/// vendor-specific packets badly, cannot use that port as well.
//= XAW-08
fn is_of_this_host(address: IpAddr) -> bool {
    sys::is_of_this_host((address, 0).into())
}
