//! Resolves the address of a peer and the path to it (`rdma_resolve_addr`, `rdma_resolve_route`).
//!
//! A peer is resolved when the host has a route to it, and the next station on the way has
//! answered. While the system asks for that station, a query waits in the connection manager, whose
//! timer looks at it.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use rocade_transport::Time;

use super::address::CmAddr;
use super::command::{CmId, ephemeral_port, with_cm, wrong_state};
use super::event::{CmEventKind, CmParam};
use super::host::CmCore;
use super::id::{IdCore, IdKey, IdState};
use super::resolve::{
    hca_with, instead_of_loopback, route_from, source_for, stands_for_all, with_port,
};
use crate::engine::reach;
use crate::error::VerbsError;
use crate::failure;
use crate::faults::Verb;
use crate::link::neighbour::SilentPeer;

/// An ID whose peer the system asks for.
#[derive(Debug)]
pub(super) struct AddressQuery {
    key: IdKey,
    silent: SilentPeer,
    /// Time when it fails.
    deadline: Time,
    /// Time of the next look at the system.
    next: Time,
}

impl IdCore {
    /// Returns to the state before the address was resolved.
    fn forget_peer(&mut self) {
        self.state = match self.binding {
            Some(_) => IdState::AddrBound,
            None => IdState::Idle,
        };
    }
}

impl CmCore {
    /// Ends the query of an ID, with an event.
    fn end_query(&mut self, key: IdKey, is_found: bool) {
        let Some(id) = self.ids.get_mut(&key) else {
            return;
        };
        let (kind, status) = if is_found {
            id.state = IdState::AddrResolved;
            (CmEventKind::AddrResolved, 0)
        } else {
            id.forget_peer();
            (CmEventKind::AddrError, -libc::ETIMEDOUT)
        };
        self.queue_event(key, kind, status, CmParam::None);
    }

    /// Handles the queries that are due.
    pub(super) fn look_at_queries(&mut self, now: Time) {
        if self.queries.is_empty() {
            return;
        }
        let mut ended = Vec::new();
        let ids = &self.ids;
        self.queries.retain_mut(|query| {
            let id = ids.get(&query.key);
            if id.is_none_or(|id| id.state != IdState::AddrQuery) {
                return false;
            }
            if query.next > now {
                return true;
            }
            let is_silent = query.silent.is_silent();
            if is_silent && now < query.deadline {
                query.plan(now);
                return true;
            }
            ended.push((query.key, !is_silent));
            false
        });
        for (key, is_found) in ended {
            self.end_query(key, is_found);
        }
    }

    /// The time of the next query.
    pub(super) fn next_query(&self) -> Option<Time> {
        self.queries.iter().map(|query| query.next).min()
    }
}

impl AddressQuery {
    fn plan(&mut self, now: Time) {
        self.next = plus(now, self.silent.pause()).min(self.deadline);
    }
}

fn plus(now: Time, time: Duration) -> Time {
    now.plus_ns(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

impl CmId {
    /// Resolves the address of a peer. The result is an event, after `timeout` at most. It is
    /// queued at once unless the system has to ask for the peer.
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] if the state of the ID does not allow it,
    /// [`VerbsError::PeerRefused`] if `ROCADE_PEERS` excludes the peer. Those of [`CmId::bind`] if
    /// no port is free. An invalid address is reported as [`CmEventKind::AddrError`].
    #[doc(alias = "rdma_resolve_addr")]
    pub fn resolve_addr(
        &self,
        src: Option<CmAddr>,
        dst: impl Into<CmAddr>,
        timeout: Duration,
    ) -> Result<(), VerbsError> {
        self.enter(Verb::ResolveAddr)?;
        let (kind, status) = match self.find(src, dst.into())? {
            Ok(Some(silent)) => return self.wait_for(silent, timeout),
            Ok(None) => (CmEventKind::AddrResolved, 0),
            Err(error) => {
                let errno = failure::code(&error).unwrap_or(libc::ENODEV);
                (CmEventKind::AddrError, -errno)
            }
        };
        self.engine.cm.inspect(|core| {
            core.queue_event(self.key, kind, status, CmParam::None);
            Ok(())
        })
    }

    /// Lets the connection manager wait for a silent peer.
    fn wait_for(&self, silent: SilentPeer, timeout: Duration) -> Result<(), VerbsError> {
        with_cm(&self.engine, |core, now| {
            let mut query = AddressQuery {
                key: self.key,
                silent,
                deadline: plus(now, timeout),
                next: now,
            };
            query.plan(now);
            core.queries.push(query);
        })
    }

    /// Resolves the address of a peer and the path to it, without events. Returns false if no route
    /// leads there. Waits for up to a second if the system has to ask for the peer, and returns
    /// false if there is no answer.
    ///
    /// # Errors
    /// As [`CmId::resolve_addr`].
    pub fn resolve(&self, src: Option<CmAddr>, dst: impl Into<CmAddr>) -> Result<bool, VerbsError> {
        self.enter(Verb::ResolveAddr)?;
        let is_found = match self.find(src, dst.into())? {
            Ok(None) => true,
            Err(_) => false,
            Ok(Some(silent)) => {
                let answers = reach::wait_for(silent).is_ok();
                self.with_id(|id| {
                    if answers {
                        id.state = IdState::AddrResolved;
                    } else {
                        id.forget_peer();
                    }
                    Ok(())
                })?;
                answers
            }
        };
        if is_found {
            self.find_route()?;
        }
        Ok(is_found)
    }

    /// Chooses the local address, and the device that leads to the peer's. Returns the unfinished
    /// query if the system still asks for the peer.
    fn find(
        &self,
        src: Option<CmAddr>,
        given: CmAddr,
    ) -> Result<io::Result<Option<SilentPeer>>, VerbsError> {
        let dst = instead_of_loopback(&self.engine.host, given.socket());
        let state = self.with_id(|id| Ok(id.state))?;
        let says = |src: SocketAddr| !(src.ip().is_unspecified() && src.port() == 0);
        match (state, src) {
            (IdState::Idle, Some(src)) if says(src.socket()) => self.bind(src)?,
            // The kernel rejects a second resolution, but libfabric 2 does it.
            (IdState::Idle | IdState::AddrBound | IdState::AddrResolved, _) => {}
            _ => return wrong_state(),
        }
        if !self.engine.host.peers().allow(dst.ip()) {
            return Err(VerbsError::PeerRefused(dst.ip()));
        }
        let own = self.with_id(|id| {
            id.asked = Some(dst);
            Ok(id.src)
        })?;
        let found = match own {
            Some(own) if !stands_for_all(&self.engine.host, own.ip()) => {
                match hca_with(&self.engine.host, own.ip()) {
                    Some(hca) if own.is_ipv4() == dst.is_ipv4() => {
                        route_from(&self.engine.host, own, dst).map(|()| (own, hca))
                    }
                    _ => Err(io::Error::from_raw_os_error(libc::ENETUNREACH)),
                }
            }
            _ => source_for(&self.engine.host, dst),
        };
        let opened = found.and_then(|(own, hca)| {
            let endpoint = self.engine.endpoint_for(hca.local_addr(own.ip()));
            endpoint.map_err(|error| io::Error::from_raw_os_error(error.errno()))?;
            let silent = self.engine.host.look_up_peer(own.into(), dst.ip())?;
            Ok((own, hca, silent))
        });
        self.with_id(|id| {
            let (own, hca, silent) = match opened {
                Ok(opened) => opened,
                Err(error) => {
                    id.forget_peer();
                    return Ok(Err(error));
                }
            };
            let port = id.src.map_or(0, |src| src.port());
            let port = match port {
                0 => ephemeral_port(&self.engine),
                bound => bound,
            };
            id.src = Some(with_port(own, port));
            id.dst = Some(dst);
            id.hca = Some(hca);
            id.ib = match given {
                CmAddr::Ip(_) => None,
                CmAddr::Ib(ib) => Some(ib.service_id),
            };
            id.state = match silent {
                Some(_) => IdState::AddrQuery,
                None => IdState::AddrResolved,
            };
            Ok(Ok(silent))
        })
    }

    /// Resolves the path to the peer. The result is an event.
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] if the address is not resolved.
    #[doc(alias = "rdma_resolve_route")]
    pub fn resolve_route(&self) -> Result<(), VerbsError> {
        self.enter(Verb::ResolveRoute)?;
        self.find_route()?;
        self.engine.cm.inspect(|core| {
            core.queue_event(self.key, CmEventKind::RouteResolved, 0, CmParam::None);
            Ok(())
        })
    }
}
