//! Implements the services that shared XRC targets need from the engine.

use std::sync::Arc;
use std::time::Duration;

use crate::link::Link as _;
use crate::sync::{RwLock, rank, turn};
use rocade_transport::{AddressVector, Time, TransmitTrigger};
use rocade_wire::{Gid, Qpn};

use super::Nic;
use super::cx::Cx;
use crate::broker::BrokerLink;
use crate::error::VerbsError;
use crate::hca::Hca;
use crate::memory::{MemGuard, MrTable};
use crate::state::{
    AsyncEvents, Domain, LocalEndpoint, QpCore, QpInner, QpTable, TxRoute, XrcdInitAttr,
};
use crate::steering::ProcessSlot;
use crate::xrc_shared::{Host, SharedTargets};

impl Host for Nic {
    fn now(&self) -> Time {
        self.host.now()
    }

    fn pause(&self, wait: Duration) {
        turn::sleep(wait);
    }

    fn regions(&self) -> &MrTable {
        self.tables.regions()
    }

    fn qps(&self) -> &RwLock<QpTable, rank::Qps> {
        &self.tables.qps
    }

    fn endpoints(&self) -> &RwLock<Vec<Arc<LocalEndpoint>>, rank::Endpoints> {
        &self.links.endpoints
    }

    fn broker(&self) -> Option<Arc<BrokerLink>> {
        self.presence.broker_link()
    }

    fn controls_congestion(&self) -> bool {
        self.host.controls_congestion()
    }

    fn listen_on(&self, hca: &Hca) -> Result<(), VerbsError> {
        Self::listen_on(self, hca)
    }

    fn open_peer_route(
        &self,
        hca: &Hca,
        sgid: Gid,
        av: &AddressVector,
        dest: Qpn,
    ) -> Result<(Arc<LocalEndpoint>, TxRoute), VerbsError> {
        let to = av.dgid.to_ip();
        if !self.host.peers().allow(to) {
            return Err(VerbsError::PeerRefused(to));
        }
        self.open_tx_route(hca, sgid, av, (None, dest))
    }

    fn flush_outputs(&self, inner: &QpInner, core: &mut QpCore, mem: &MemGuard<'_>, now: Time) {
        let cx = Cx::of_background(now, mem);
        Self::flush_outputs(self, inner, core, TransmitTrigger::Other, cx);
    }

    fn end_qp(&self, inner: &QpInner) {
        Self::end_qp(self, inner);
    }

    fn wake_background(&self) {
        self.scheduler.wake_background();
    }

    fn count_misrouted(&self, passed_on: bool) {
        self.observers.count(|counters| match passed_on {
            true => &counters.forwarded,
            false => &counters.rx_unknown_qp,
        });
    }
}

impl Nic {
    /// The shared XRC domains and targets.
    pub(crate) const fn shared_targets(&self) -> &SharedTargets {
        &self.tables.shared_targets
    }

    /// Opens an XRC domain.
    pub(crate) fn open_domain(
        self: &Arc<Self>,
        events: &Arc<AsyncEvents>,
        init: XrcdInitAttr,
    ) -> Result<Arc<Domain>, VerbsError> {
        let join = || self.with_attachment(|attachment| attachment.broker.clone());
        self.tables
            .shared_targets
            .open_domain(&**self, events, init, join)
    }

    /// Returns true if a packet to an unknown QP may be for a target of another process.
    pub(super) fn may_be_shared(&self, dest: Qpn) -> bool {
        let endpoints = self.links.endpoints.read_recursive();
        let own = endpoints.first().and_then(|endpoint| endpoint.link.slot());
        own.is_some_and(|own| ProcessSlot::of(dest) != own)
    }
}
