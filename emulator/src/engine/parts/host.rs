//! Devices, settings, clock and random numbers, which an engine is given at its start.

use std::sync::Arc;

use crate::clock::Clock;
use crate::config::{BrokerMode, LinkMode, Peers};
use crate::engine::peer_traits::PeerTraits;
use crate::engine::reach::ReachedPeers;
use crate::hca::Hca;
use crate::link::sim::SimNetwork;
use crate::random::Randomness;

/// The devices and the settings of an engine, its clock and its random numbers.
#[derive(Debug)]
pub(crate) struct Host {
    pub(in crate::engine) hcas: Vec<Arc<Hca>>,
    pub(in crate::engine) broker_mode: BrokerMode,
    pub(in crate::engine) link_mode: LinkMode,
    pub(in crate::engine) peers: Peers,
    pub(in crate::engine) known_peers: KnownPeers,
    pub(in crate::engine) dcqcn: bool,
    pub(in crate::engine) clock: Clock,
    /// The simulated network, in a simulation.
    pub(in crate::engine) sim: Option<Arc<SimNetwork>>,
    pub(in crate::engine) random: Randomness,
}

/// The peers of which something is known.
#[derive(Debug, Default)]
pub(crate) struct KnownPeers {
    /// Peers that the system could reach.
    pub(in crate::engine) reached: ReachedPeers,
    /// Peers with a deviation.
    pub(in crate::engine) traits: PeerTraits,
}
