//! Counters, their files, the list of objects, changes of the network: views for others.

use std::sync::{Arc, OnceLock};

use crate::counters::AtomicCounters;
use crate::engine::resources::ResourceSocket;
use crate::hca::Publisher;
use crate::state::NetworkWatch;

/// Views of an engine for others, and its view of the network.
#[derive(Debug, Default)]
pub(crate) struct Observers {
    pub(in crate::engine) counters: AtomicCounters,
    pub(in crate::engine) publisher: Publisher,
    /// The socket at which other processes read the inventory, in a sysfs view.
    pub(in crate::engine) resources: OnceLock<Arc<ResourceSocket>>,
    pub(in crate::engine) network: NetworkWatch,
}
