//! The objects that packets and verbs find by their numbers.

use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Weak};

use crate::engine::inventory::Inventory;
use crate::memory::MrTable;
use crate::state::{AsyncEvents, QpTable};
use crate::sync::{Mutex, RwLock, rank};
use crate::xrc_shared::SharedTargets;

/// The objects of the process, by their numbers.
#[derive(Debug)]
pub(crate) struct Tables {
    pub(in crate::engine) regions: MrTable,
    pub(in crate::engine) qps: RwLock<QpTable, rank::Qps>,
    pub(in crate::engine) next_pd: AtomicU32,
    pub(in crate::engine) inventory: Arc<Inventory>,
    /// The opened devices, for events of ports and devices.
    pub(in crate::engine) opened: Mutex<Vec<Weak<AsyncEvents>>>,
    pub(in crate::engine) shared_targets: SharedTargets,
}

impl Default for Tables {
    fn default() -> Self {
        Self {
            regions: MrTable::new(),
            qps: RwLock::default(),
            next_pd: AtomicU32::new(1),
            inventory: Arc::default(),
            opened: Mutex::default(),
            shared_targets: SharedTargets::default(),
        }
    }
}
