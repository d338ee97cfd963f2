//! Address handles.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::link::Link as _;
use crate::sync::{Mutex, rank};
use rocade_transport::{AddressVector, RouteTag};
use rocade_wire::Qpn;

use super::pd::{Pd, PdInner};
use crate::error::VerbsError;
use crate::faults::Verb;
use crate::state::{LocalEndpoint, Route, User};
use crate::steering::ProcessSlot;

/// Highest value of the field: applications also store a completion's value there
/// (`Completion::sl`).
const MAX_SL: u8 = 15;

/// An address handle (`ibv_ah`): the destination of datagrams, except for the QP.
#[derive(Clone, Debug)]
#[doc(alias = "ibv_ah")]
pub struct Ah {
    inner: Arc<AhInner>,
}

#[derive(Debug)]
struct AhInner {
    pd: Arc<PdInner>,
    address: AddressVector,
    endpoint: Arc<LocalEndpoint>,
    /// The routes to the processes at the address that were used so far.
    routes: Mutex<Vec<(ProcessSlot, Arc<Route>)>, rank::HandleRoutes>,
    alive: AtomicBool,
}

impl Drop for AhInner {
    fn drop(&mut self) {
        self.end();
    }
}

impl AhInner {
    fn end(&self) -> bool {
        let ends = self.alive.swap(false, Ordering::AcqRel);
        if ends {
            self.pd.users.remove(User::Ah);
            self.routes.lock().clear();
        }
        ends
    }
}

impl Ah {
    pub(super) fn new(pd: Arc<PdInner>, address: &AddressVector) -> Result<Self, VerbsError> {
        let hca = &pd.context.hca;
        //= ENC-14
        if !address.is_global {
            return Err(VerbsError::InvalidArgument("is_global"));
        }
        let port = hca.port(address.port_num);
        let port = port.ok_or(VerbsError::InvalidArgument("port_num"))?;
        if address.sl > MAX_SL {
            return Err(VerbsError::InvalidArgument("sl"));
        }
        let sgid = port
            .gid(address.sgid_index)
            .ok_or(VerbsError::InvalidArgument("grh.sgid_index"))?;
        let (local, to) = (sgid.to_ip(), address.dgid.to_ip());
        //= ENC-12 QPC-05
        if address.dgid.is_zero() {
            return Err(VerbsError::InvalidArgument("grh.dgid"));
        }
        if local.is_ipv4() != to.is_ipv4() {
            return Err(VerbsError::InvalidArgument(
                "grh.dgid has another IP version than the GID with index grh.sgid_index",
            ));
        }
        let engine = &pd.context.engine;
        if !engine.host.peers().allow(to) {
            return Err(VerbsError::PeerRefused(to));
        }
        engine.host.check_reachable(hca.local_addr(local), to)?;
        let endpoint = engine.datagram_endpoint(hca.local_addr(local), address.hop_limit)?;
        if to.is_multicast() {
            let interface = port.config.ifindex;
            endpoint.link.prepare_multicast(interface)?;
        }
        pd.users.add(User::Ah);
        Ok(Self {
            inner: Arc::new(AhInner {
                pd,
                address: *address,
                endpoint,
                routes: Mutex::default(),
                alive: AtomicBool::new(true),
            }),
        })
    }

    /// The protection domain.
    #[must_use]
    pub fn pd(&self) -> Pd {
        Pd {
            inner: Arc::clone(&self.inner.pd),
        }
    }

    /// The address vector given at creation.
    #[must_use]
    pub fn address(&self) -> &AddressVector {
        &self.inner.address
    }

    /// The local and the remote address.
    pub(super) fn ends(&self) -> (IpAddr, IpAddr) {
        let local = self.inner.endpoint.link.local_addr().ip();
        (local, self.inner.address.dgid.to_ip())
    }

    /// Returns the route to a QP at the address, for a QP of domain `pd` that remembers it by
    /// `learn`.
    //= DST-08
    pub(super) fn route_to(
        &self,
        pd: &Arc<PdInner>,
        dest: Qpn,
        learn: impl FnOnce(&Arc<Route>),
    ) -> Result<RouteTag, VerbsError> {
        let inner = &*self.inner;
        if !Arc::ptr_eq(pd, &inner.pd) {
            return Err(VerbsError::InvalidArgument(
                "address handle of another protection domain",
            ));
        }
        let slot = ProcessSlot::of(dest);
        let mut routes = inner.routes.lock();
        if !inner.alive.load(Ordering::Acquire) {
            return Err(VerbsError::InvalidArgument(
                "the address handle was destroyed",
            ));
        }
        let known = routes.iter().position(|(of, _)| *of == slot);
        let index = match known {
            Some(index) => index,
            None => {
                let engine = &pd.context.engine;
                let route = engine.route_to(&inner.endpoint, dest, &inner.address)?;
                routes.push((slot, route));
                routes.len() - 1
            }
        };
        let (_, route) = &routes[index];
        learn(route);
        Ok(route.tag())
    }

    /// Destroys the handle. Datagrams that were posted with it are still sent.
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] if it was already destroyed.
    #[doc(alias = "ibv_destroy_ah")]
    pub fn destroy(&self) -> Result<(), VerbsError> {
        self.inner.pd.context.enter(Verb::DestroyAh)?;
        if self.inner.end() {
            Ok(())
        } else {
            Err(VerbsError::InvalidArgument("already destroyed"))
        }
    }
}
