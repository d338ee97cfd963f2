//! Properties of peers that the connection manager learns, and queue pairs have to know.

use std::collections::HashSet;
use std::net::IpAddr;

use crate::sync::Mutex;
use rocade_transport::Qp;
use rocade_wire::{Guid, Qpn};

use super::Host;

/// The most peers that are remembered. They are forgotten together, which costs no correctness.
const MOST: usize = 1_024;

/// The peers with a deviation.
#[derive(Debug, Default)]
pub(in crate::engine) struct PeerTraits {
    /// Hosts whose messages have MigReq clear, as those of the kernel's rxe.
    clear_migreq: Mutex<HashSet<IpAddr>>,
    /// Queue pairs of NICs that say that they have no end-to-end flow control.
    no_flow_control: Mutex<HashSet<(IpAddr, Qpn)>>,
}

fn add<T: Eq + std::hash::Hash>(set: &Mutex<HashSet<T>>, value: T) {
    let mut all = set.lock();
    if all.len() >= MOST {
        all.clear();
    }
    all.insert(value);
}

impl Host {
    /// Notes the MigReq bit of a message of the connection manager.
    //= HW-01 RXE-07
    pub(super) fn note_migreq(&self, host: IpAddr, migreq: bool) {
        if migreq {
            self.known_peers.traits.clear_migreq.lock().remove(&host);
        } else {
            add(&self.known_peers.traits.clear_migreq, host);
        }
    }

    /// Notes what a REQ or REP says about end-to-end flow control. Rocade passes on what its
    /// program says, but announces true credits all the same, so that only NICs count.
    //= HW-04
    pub(crate) fn note_flow_control(&self, peer: (IpAddr, Qpn), guid: Guid, flow_control: bool) {
        if flow_control || !is_of_a_nic(guid) {
            self.known_peers.traits.no_flow_control.lock().remove(&peer);
        } else {
            add(&self.known_peers.traits.no_flow_control, peer);
        }
    }

    /// Tells a QP that gets a new peer what is known of it.
    pub(crate) fn tell_of_peer(&self, qp: &mut Qp, host: IpAddr) {
        if self.known_peers.traits.clear_migreq.lock().contains(&host) {
            qp.note_clear_migreq();
        }
        let peer = (host, qp.dest_qp());
        if self
            .known_peers
            .traits
            .no_flow_control
            .lock()
            .contains(&peer)
        {
            qp.ignore_credits();
        }
    }
}

/// Returns true for a GUID with the number of a manufacturer. Rocade's are locally administered, or
/// those of devices like rxe, whose middle is ff:fe and whose bit for that is inverted.
fn is_of_a_nic(guid: Guid) -> bool {
    const LOCAL: u64 = 2 << 56;
    let is_like_rxe = guid.get() >> 24 & 0xffff == 0xfffe;
    guid != Guid::new(0) && guid.get() & LOCAL == 0 && !is_like_rxe
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn guids_of_nics_have_the_number_of_a_manufacturer() {
        // A ConnectX and a default of Rocade.
        assert!(is_of_a_nic(Guid::new(0xec0d_9a03_0068_21cc)));
        assert!(!is_of_a_nic(Guid::new(0x526f_a1b2_c3d4_e5f6)));
        // Those of devices like mlx5 and like rxe.
        assert!(!is_of_a_nic(Guid::new(0xa2b2_c303_00d4_e5f6)));
        assert!(!is_of_a_nic(Guid::new(0xa0b2_c3ff_fed4_e5f6)));
        assert!(!is_of_a_nic(Guid::new(0)));
    }
}
