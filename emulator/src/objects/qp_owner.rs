//! The inside of a queue pair's handle: fault rules, routes, and its end.

use std::sync::Arc;

use rocade_transport::{AddressVector, AlternateContext, ModifyContext, QpAttr, QpAttrMask};
use rocade_wire::{Gid, Mtu, Pkey, Qpn};

use super::qp::QpOwner;
use crate::engine::Nic;
use crate::error::VerbsError;
use crate::faults::Verb;
use crate::hca::{Hca, Port};
use crate::state::{AckCounter, LocalEndpoint, TxRoute, User};

impl QpOwner {
    /// Applies the fault rules to a verb of this QP. The caller holds no lock.
    ///
    /// # Errors
    /// [`VerbsError::Injected`]. [`VerbsError::Removed`], but for verbs that destroy or post.
    #[inline]
    pub(super) fn enter(&self, verb: Verb) -> Result<(), VerbsError> {
        self.pd.context.check_verb(verb)?;
        let qpn = Some(self.inner.qp_num());
        let device = &self.pd.context.hca.config.name;
        self.pd.context.engine.intercept(verb, device, qpn)
    }

    pub(super) fn engine(&self) -> &Arc<Nic> {
        &self.pd.context.engine
    }

    pub(super) fn hca(&self) -> &Arc<Hca> {
        &self.pd.context.hca
    }

    pub(super) fn async_acks(&self) -> Option<&AckCounter> {
        match self.open_handle.as_deref() {
            Some((open_handle, _)) => Some(open_handle.async_acks()),
            None => self.inner.async_acks(),
        }
    }

    /// Closes this handle. Returns false if it was already closed. A target ends with its last
    /// handle.
    pub(super) fn close(&self) -> bool {
        let Some((open_handle, xrcd)) = self.open_handle.as_deref() else {
            return self.end();
        };
        if self.inner.ownership().is_some() {
            let engine = &**self.engine();
            let shared_targets = engine.shared_targets();
            if shared_targets
                .close_target(engine, &self.inner, open_handle)
                .is_none()
            {
                return false;
            }
        } else {
            let Some(was_last) = self.inner.close_handle(open_handle) else {
                return false;
            };
            if was_last {
                self.end();
            }
        }
        open_handle.forget_events();
        xrcd.users.remove(User::Qp(self.inner.qp_num()));
        true
    }

    pub(super) fn end(&self) -> bool {
        let inner = &*self.inner;
        if !inner.mark_destroyed() {
            return false;
        }
        self.engine().end_qp(inner);
        self.pd.users.remove(User::Qp(inner.qp_num()));
        true
    }

    /// Returns the device's part of a modify of these attributes.
    pub(super) fn modify_context(
        &self,
        attr: &QpAttr,
        mask: QpAttrMask,
        experimental: bool,
    ) -> ModifyContext {
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

    /// Returns the route from `sgid` along an address vector, or `None` if the transport will
    /// reject it.
    ///
    /// # Errors
    /// [`VerbsError::PeerRefused`], [`VerbsError::Unreachable`], and those of
    /// [`QpOwner::prepare_route`].
    pub(super) fn route_to(
        &self,
        sgid: Option<Gid>,
        av: &AddressVector,
        attr: &QpAttr,
        mask: QpAttrMask,
    ) -> Result<Option<(Arc<LocalEndpoint>, TxRoute)>, VerbsError> {
        let peer = av.dgid.to_ip();
        if av.is_global && !self.engine().host.peers().allow(peer) {
            return Err(VerbsError::PeerRefused(peer));
        }
        match sgid {
            Some(sgid) if sgid.to_ip().is_ipv4() == peer.is_ipv4() => {
                if av.is_global && !av.dgid.is_zero() {
                    let local = self.hca().local_addr(sgid.to_ip());
                    self.engine().host.check_reachable(local, peer)?;
                }
                self.prepare_route(sgid, *av, attr, mask).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Returns the route from `sgid` to the peer of the attributes, and opens it on first use.
    fn prepare_route(
        &self,
        sgid: Gid,
        av: AddressVector,
        attr: &QpAttr,
        mask: QpAttrMask,
    ) -> Result<(Arc<LocalEndpoint>, TxRoute), VerbsError> {
        let dest = if mask.contains(QpAttrMask::DEST_QPN) {
            Qpn::new(attr.dest_qp_num)
        } else {
            self.inner.lock().qp.dest_qp()
        };
        let ends = (Some(self.inner.qp_num()), dest);
        self.engine().open_tx_route(self.hca(), sgid, &av, ends)
    }
}
