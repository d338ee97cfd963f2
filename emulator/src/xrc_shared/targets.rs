//! Opens and closes domains and targets that processes share.

use std::sync::{Arc, Weak};

use rocade_transport::{PdTag, QpCap, QpConfig, QpType, Receives};
use rocade_wire::Qpn;

use super::{Host, SharedTargets, qp};
use crate::broker::BrokerLink;
use crate::error::VerbsError;
use crate::journal::{DomainMemory, TargetRecord};
use crate::state::{
    AsyncEvents, Domain, OpenHandle, QpInner, QpResources, TargetOwnership, XrcTargetInit,
    XrcdInitAttr,
};
use crate::steering::ProcessSlot;

impl SharedTargets {
    /// Opens an XRC domain. All processes of the broker share the domain of a file. `join` joins
    /// the broker.
    pub(crate) fn open_domain(
        &self,
        host: &dyn Host,
        events: &Arc<AsyncEvents>,
        init: XrcdInitAttr,
        join: impl FnOnce() -> Result<Option<Arc<BrokerLink>>, VerbsError>,
    ) -> Result<Arc<Domain>, VerbsError> {
        let domain = self.domains.open(events, init, |key| {
            let Some(broker) = join()? else {
                return Ok(None);
            };
            let opened = broker
                .client()
                .open_domain(key, init.create, init.exclusive)?;
            let memory = opened.map_err(|exists| {
                if exists {
                    VerbsError::InvalidArgument("the file already has an XRC domain")
                } else {
                    VerbsError::WouldBlock
                }
            })?;
            Ok(Some((DomainMemory::of(memory)?, broker.slot())))
        })?;
        if domain.shared().is_some()
            && let Err(error) = host.listen_on(events.hca())
        {
            self.close_domain(host, &domain);
            return Err(error);
        }
        Ok(domain)
    }

    /// Closes one opening of a domain.
    pub(crate) fn close_domain(&self, host: &dyn Host, domain: &Arc<Domain>) {
        let (has_own_targets, ends) = (
            || has_own_targets(host, domain),
            || destroy_domain(host, domain),
        );
        self.domains.close(domain, has_own_targets, ends);
    }

    /// Removes a target that ended at the broker, and its domain if that only lingered for it.
    pub(super) fn target_gone(&self, host: &dyn Host, inner: &QpInner) {
        destroy_target(host, inner);
        if let Some(domain) = inner.domain() {
            let (has_own_targets, ends) = (
                || has_own_targets(host, domain),
                || destroy_domain(host, domain),
            );
            self.domains.reconsider(domain, has_own_targets, ends);
        }
    }

    /// Adds a handle to a target of this number in the domain.
    //= XRC-11
    pub(crate) fn open_target(
        &self,
        host: &dyn Host,
        domain: &Arc<Domain>,
        qpn: Qpn,
        open_handle: &Arc<OpenHandle>,
    ) -> Result<Arc<QpInner>, VerbsError> {
        let unknown = || VerbsError::InvalidArgument("qp_num");
        let Some(shared) = domain.shared() else {
            let found = qp(host, qpn).filter(|inner| inner.open_as(domain, open_handle));
            return found.ok_or_else(unknown);
        };
        let _guard = self.opening.lock();
        let record = shared.memory.find(qpn).ok_or_else(unknown)?;
        let inner = match qp(host, qpn) {
            Some(inner) => inner,
            None => attach_target(host, domain, qpn, record).ok_or_else(unknown)?,
        };
        let was_open = inner.is_open();
        if !inner.open_as(domain, open_handle) {
            return Err(unknown());
        }
        if !was_open {
            let broker = host.broker().ok_or(VerbsError::NoData)?;
            let opened = broker.client().open_target(shared.key, qpn);
            if !matches!(opened, Ok(true)) {
                inner.close_handle(open_handle);
            }
            if !opened? {
                return Err(unknown());
            }
        }
        Ok(inner)
    }

    /// Closes a handle of a shared target. Returns `None` if it was already closed.
    //= XRC-11
    pub(crate) fn close_target(
        &self,
        host: &dyn Host,
        inner: &QpInner,
        open_handle: &Arc<OpenHandle>,
    ) -> Option<()> {
        let _guard = self.opening.lock();
        let was_last = inner.close_handle(open_handle)?;
        let shared = inner.domain().and_then(|domain| domain.shared());
        if let Some(shared) = shared.filter(|_| was_last) {
            let closed = host.broker().map_or(Ok(true), |broker| {
                broker.client().close_target(shared.key, inner.qp_num())
            });
            match closed {
                Ok(true) => destroy_target(host, inner),
                Ok(false) => {}
                Err(error) => {
                    tracing::info!(%error, "failed to tell the broker that an XRC target was closed");
                    destroy_target(host, inner);
                }
            }
        }
        Some(())
    }

    /// Returns the target of this number in a shared domain, and makes its QP if this process has
    /// none yet.
    pub(super) fn find_target(&self, host: &dyn Host, qpn: Qpn) -> Option<Arc<QpInner>> {
        let found = qp(host, qpn).or_else(|| {
            let (domain, record) = self.domains.find_target(qpn)?;
            let _guard = self.opening.lock();
            // Another thread may have made it meanwhile.
            qp(host, qpn).or_else(|| attach_target(host, &domain, qpn, record))
        });
        found.filter(|inner| inner.ownership().is_some())
    }
}

/// Allocates the shared record of a new target. Returns `None` if the domain is not shared.
pub(crate) fn share_target(
    host: &dyn Host,
    domain: &Domain,
    qpn: Qpn,
) -> Result<Option<TargetOwnership>, VerbsError> {
    let Some(shared) = domain.shared() else {
        return Ok(None);
    };
    // Processes that came late to a new broker are no members of a domain that was made meanwhile.
    let refused = || match shared.memory.is_full() {
        true => VerbsError::NoMemory("targets of the XRC domain"),
        false => VerbsError::NotFound("XRC domain: other processes have made a new one"),
    };
    let broker = host.broker().ok_or(VerbsError::NoData)?;
    if !broker.client().new_target(shared.key, qpn)? {
        return Err(refused());
    }
    let record = shared.memory.find(qpn).ok_or_else(refused)?;
    Ok(Some(TargetOwnership::new(record, shared.slot, true)))
}

/// Returns true if other processes have targets of this process open. Their packets arrive here.
fn has_own_targets(host: &dyn Host, domain: &Arc<Domain>) -> bool {
    let is_own = |qp: &Arc<QpInner>| {
        let slot = qp.ownership().map(TargetOwnership::slot);
        slot == Some(ProcessSlot::of(qp.qp_num()))
            && qp.domain().is_some_and(|other| Arc::ptr_eq(other, domain))
    };
    host.qps().read().iter().any(is_own)
}

/// Ends the targets of a domain that this process has closed, and tells the broker.
fn destroy_domain(host: &dyn Host, domain: &Arc<Domain>) {
    let Some(shared) = domain.shared() else {
        return;
    };
    let of_domain =
        |qp: &&Arc<QpInner>| qp.domain().is_some_and(|other| Arc::ptr_eq(other, domain));
    let targets: Vec<_> = host
        .qps()
        .read()
        .iter()
        .filter(of_domain)
        .cloned()
        .collect();
    for target in targets {
        destroy_target(host, &target);
    }
    if let Some(broker) = host.broker()
        && let Err(error) = broker.client().close_domain(shared.key)
    {
        tracing::info!(%error, "failed to tell the broker that an XRC domain was closed");
    }
}

/// Ends a target.
fn destroy_target(host: &dyn Host, inner: &QpInner) {
    if inner.mark_destroyed() {
        host.end_qp(inner);
    }
}

/// Makes a QP for a target of another process.
fn attach_target(
    host: &dyn Host,
    domain: &Arc<Domain>,
    qpn: Qpn,
    record: TargetRecord,
) -> Option<Arc<QpInner>> {
    let shared = domain.shared()?;
    if ProcessSlot::of(qpn) == shared.slot {
        // This process made it once, and others have kept it open.
        return None;
    }
    let events = {
        let openers = shared.openers.lock();
        openers.iter().find_map(Weak::upgrade)?
    };
    let config = QpConfig {
        qp_num: qpn,
        qp_type: QpType::XrcRecv,
        pd: PdTag(0),
        cap: QpCap::default(),
        sq_sig_all: false,
        limits: events.hca().qp_limits(),
    };
    let receives = Receives::Domain(Arc::clone(domain) as _);
    let mut qp = rocade_transport::Qp::new(config, receives)?;
    qp.control_congestion(host.controls_congestion());
    let parts = QpResources {
        target: Some(XrcTargetInit {
            domain: Arc::clone(domain),
            open_handle: None,
            ownership: Some(TargetOwnership::new(record, shared.slot, false)),
        }),
        ..QpResources::default()
    };
    let inner = QpInner::new(events, qp, 0, parts);
    inner.lock().tx.set_rx_paused(true);
    host.qps().write().insert(Arc::clone(&inner));
    Some(inner)
}
