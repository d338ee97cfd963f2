//! Checks that peers can be reached, before queue pairs and address handles are set up for them.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

use crate::sync::Mutex;

use super::Host;
use crate::error::VerbsError;
use crate::link::LocalAddr;
use crate::link::neighbour::{self, SilentPeer};
use crate::sys;

/// Time that a call waits for a silent neighbour, as in the kernel.
const PATIENCE: Duration = Duration::from_secs(1);

/// Time that an answer counts, in ns. Programs may make an address handle for each datagram.
const FRESH_NS: u64 = 1_000_000_000;
/// The most answers that are kept.
const MOST: usize = 1_024;

/// The peers that could be reached lately, and when.
#[derive(Debug, Default)]
pub(super) struct ReachedPeers(Mutex<HashMap<(LocalAddr, IpAddr), u64>>);

impl ReachedPeers {
    fn has(&self, peer: (LocalAddr, IpAddr)) -> bool {
        let at = self.0.lock().get(&peer).copied();
        at.is_some_and(|at| sys::monotonic_ns().saturating_sub(at) < FRESH_NS)
    }

    fn add(&self, peer: (LocalAddr, IpAddr)) {
        let mut all = self.0.lock();
        if all.len() >= MOST {
            all.clear();
        }
        all.insert(peer, sys::monotonic_ns());
    }
}

impl Host {
    /// Returns `None` if a peer can be reached from a local address, or if the system does not
    /// tell. Returns the unfinished query if the system still asks for the peer.
    ///
    /// # Errors
    /// `ENETUNREACH` or `EHOSTUNREACH` without a route.
    pub(crate) fn look_up_peer(
        &self,
        local: LocalAddr,
        peer: IpAddr,
    ) -> io::Result<Option<SilentPeer>> {
        // A packet to a group names its interface, and needs no route. This device is reached
        // whatever the system says.
        if self.is_simulated() || peer.is_multicast() || self.has_address(peer) {
            return Ok(None);
        }
        if self.known_peers.reached.has((local, peer)) {
            return Ok(None);
        }
        let found = neighbour::look_up(local, peer)?;
        if found.is_none() {
            self.known_peers.reached.add((local, peer));
        }
        Ok(found)
    }

    /// Checks that a peer can be reached from a local address. Waits for at most a second, and only
    /// while the system asks for a host that does not answer.
    ///
    /// # Errors
    /// [`VerbsError::Unreachable`].
    //= QPC-05
    pub(crate) fn check_reachable(&self, local: LocalAddr, peer: IpAddr) -> Result<(), VerbsError> {
        let reached = self
            .look_up_peer(local, peer)
            .and_then(|silent| silent.map_or(Ok(()), wait_for));
        reached.map_err(|error| VerbsError::Unreachable {
            from: local.ip(),
            peer,
            error,
        })
    }

    fn has_address(&self, ip: IpAddr) -> bool {
        let mut hcas = self.hcas().iter();
        hcas.any(|hca| hca.config.addrs().any(|own| own == ip))
    }
}

/// Waits until the next station on the way to a peer answers.
///
/// # Errors
/// `ETIMEDOUT`.
pub(crate) fn wait_for(mut silent: SilentPeer) -> io::Result<()> {
    let deadline = sys::monotonic_ns() + u64::try_from(PATIENCE.as_nanos()).unwrap_or(0);
    while sys::monotonic_ns() < deadline {
        sys::uncancelled(|| std::thread::sleep(silent.pause()));
        if !silent.is_silent() {
            return Ok(());
        }
    }
    Err(io::Error::from_raw_os_error(libc::ETIMEDOUT))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_of_one_path_and_they_are_few() {
        let reached = ReachedPeers::default();
        let path = |from: u32, to: u32| {
            let ip = |low: u32| IpAddr::from((0x0a00_0000 | low).to_be_bytes());
            (LocalAddr::new(ip(from), 0), ip(to))
        };
        reached.add(path(1, 2));
        assert!(!reached.has(path(1, 3)) && !reached.has(path(2, 2)));
        for to in 0..10_000 {
            reached.add(path(1, to));
        }
        assert!(reached.0.lock().len() <= MOST);
    }
}
