//! A report of the process's objects on its devices, for `rdma resource`.
//!
//! Queue pairs, memory regions and connection IDs are in other tables. Contexts, protection
//! domains, completion queues and shared receive queues are listed here as long as they live.
//!
//! A report has a line for each object: its kind, then `name=value` fields. Readers skip unknown
//! kinds and names.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::sync::Mutex;
use rocade_transport::PdTag;

use super::{Nic, Tables};
use crate::hca::Hca;
use crate::state::QpInner;

/// Longest wait for a queue pair that another thread has locked. Beside other programs, that thread
/// may get no processor for a while.
const PATIENCE: Duration = Duration::from_millis(200);
/// `IB_QPT_DRIVER`: a driver-specific type.
const DRIVER_TYPE: u8 = 0xff;

/// Writes the kind and fields of an object, given its number in the inventory.
type Describe = Box<dyn Fn(u32, &mut String) + Send + Sync>;

struct Resource {
    hca: Arc<Hca>,
    /// The tag of a protection domain.
    pd: Option<PdTag>,
    describe: Describe,
}

/// The objects that are in no other table.
#[derive(Default)]
pub(crate) struct Inventory {
    last: AtomicU32,
    /// Descriptions are asked for without the lock, because they lock what they describe.
    resources: Mutex<BTreeMap<u32, Arc<Resource>>>,
}

impl fmt::Debug for Inventory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.resources.lock().len();
        f.debug_struct("Inventory").field("count", &count).finish()
    }
}

/// The entry of an object in the inventory, which is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct Registration {
    inventory: Arc<Inventory>,
    number: u32,
}

impl Registration {
    /// Returns a number that no other object of the inventory has.
    pub(crate) const fn number(&self) -> u32 {
        self.number
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // Dropped after the lock is released, because it may hold the last reference.
        let removed = self.inventory.resources.lock().remove(&self.number);
        drop(removed);
    }
}

impl Inventory {
    /// Lists an object of `hca`. `pd` is the tag of a protection domain. `describe` writes kind and
    /// fields without an end of line, and holds no strong reference to the object.
    pub(crate) fn register(
        self: &Arc<Self>,
        hca: &Arc<Hca>,
        pd: Option<PdTag>,
        describe: impl Fn(u32, &mut String) + Send + Sync + 'static,
    ) -> Registration {
        let number = self.last.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        let resource = Resource {
            hca: Arc::clone(hca),
            pd,
            describe: Box::new(describe),
        };
        self.resources.lock().insert(number, Arc::new(resource));
        Registration {
            inventory: Arc::clone(self),
            number,
        }
    }

    fn all(&self) -> Vec<(u32, Arc<Resource>)> {
        let resources = self.resources.lock();
        let entry = |(number, resource): (&u32, &Arc<Resource>)| (*number, Arc::clone(resource));
        resources.iter().map(entry).collect()
    }

    /// Returns the number of objects of `hca` whose line begins with `kind`.
    pub(crate) fn count(&self, hca: &Hca, kind: &str) -> u64 {
        let mut text = String::new();
        let resources = self.all();
        let of_kind = resources.iter().filter(|(number, resource)| {
            text.clear();
            (resource.describe)(*number, &mut text);
            std::ptr::eq::<Hca>(&*resource.hca, hca) && text.starts_with(kind)
        });
        of_kind.count() as u64
    }

    /// Returns the tags of the protection domains of `hca`.
    pub(crate) fn domains_of(&self, hca: &Hca) -> BTreeSet<u32> {
        let resources = self.resources.lock();
        let own = resources
            .values()
            .filter(|one| std::ptr::eq::<Hca>(&*one.hca, hca));
        own.filter_map(|one| one.pd.map(|pd| pd.0)).collect()
    }

    /// Writes the lines of all objects. Returns the devices of the protection domains.
    fn report(&self, text: &mut String) -> BTreeMap<u32, Arc<Hca>> {
        let mut domains = BTreeMap::new();
        for (number, resource) in self.all() {
            (resource.describe)(number, text);
            end_line(text, &resource.hca);
            if let Some(pd) = resource.pd {
                domains.insert(pd.0, Arc::clone(&resource.hca));
            }
        }
        domains
    }
}

/// Ends a line with the GUID of the object's device, whose name may differ between runs.
fn end_line(text: &mut String, hca: &Hca) {
    let guid = hca.config.guid.get();
    // Writing to a string cannot fail, here and below.
    let _ = writeln!(text, " guid={guid:016x}");
}

impl Tables {
    /// The objects of the process that are in no other table.
    pub(crate) const fn inventory(&self) -> &Arc<Inventory> {
        &self.inventory
    }
}

impl Nic {
    /// Returns a line for each object of the process.
    pub(super) fn report_resources(&self) -> String {
        let mut text = String::new();
        let domains = self.tables.inventory.report(&mut text);
        for (key, region) in self.tables.regions.read(self.host.now()).regions_by_key() {
            let Some(hca) = domains.get(&region.pd.0) else {
                continue;
            };
            let _ = write!(
                text,
                "mr mrn={} iova={} mrlen={} pdn={}",
                key >> 8,
                region.iova,
                region.len,
                region.pd.0
            );
            end_line(&mut text, hca);
        }
        let qps: Vec<Arc<QpInner>> = self.tables.qps.read().iter().cloned().collect();
        for qp in qps {
            report_qp(&mut text, &qp);
        }
        self.cm.report(|hca, line| {
            let all = self.host.hcas.iter().map(|hca| &**hca);
            for hca in all.filter(|one| hca.is_none_or(|hca| std::ptr::eq(*one, hca))) {
                text.push_str(line);
                end_line(&mut text, hca);
            }
        });
        text
    }
}

/// Writes the line of a queue pair. Skips it if another thread keeps it locked.
fn report_qp(text: &mut String, inner: &QpInner) {
    let Some(core) = inner.try_lock_for(PATIENCE) else {
        return;
    };
    let (attr, config) = (core.qp.query(), core.qp.config());
    let is_connected = config.qp_type.traits().is_connected;
    let kind = match config.qp_type.is_dynamic() {
        true => DRIVER_TYPE,
        false => config.qp_type as u8,
    };
    let _ = write!(
        text,
        "qp port={} lqpn={} type={kind} state={} sq_psn={} pdn={}",
        attr.port_num.max(1),
        inner.qp_num().get(),
        attr.qp_state,
        attr.sq_psn & 0x00ff_ffff,
        config.pd.0
    );
    if is_connected {
        let _ = write!(
            text,
            " rqpn={} rq_psn={} mig={}",
            attr.dest_qp_num,
            attr.rq_psn & 0x00ff_ffff,
            attr.path_mig_state
        );
    }
    drop(core);
    end_line(text, inner.hca());
}
