//! Checks that peers can be reached, before queue pairs and address handles are set up for them.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use super::EngineInner;
use crate::error::VerbsError;
use crate::link::LocalAddr;
use crate::link::neighbour::{self, SilentPeer};
use crate::sys;

/// How long a call waits for a silent neighbour, as in the kernel.
const PATIENCE: Duration = Duration::from_secs(1);

impl EngineInner {
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
        neighbour::look_up(local, peer)
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
