//! A snapshot of all values of the engine, for the page of statistics and the counter files.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use rocade_wire::Qpn;

use super::Nic;
use crate::hca::Hca;
use crate::state::{QpCore, QpInner};
use crate::statistics::{
    DeviceRow, ProcessSample, QpLabels, QpRows, QpSample, Snapshot, qp_metrics,
};

/// Longest wait for a queue pair that another thread has locked. Its values are then missing.
const PATIENCE: Duration = Duration::from_millis(1);
/// Longest wait for a table. A process may exit while one of its threads holds the lock.
const PATIENCE_FOR_TABLES: Duration = Duration::from_millis(20);

impl Nic {
    /// Takes a snapshot, which is empty if the tables stay locked. Locks one queue pair after the
    /// other.
    pub(super) fn snapshot(&self) -> Snapshot {
        self.try_snapshot().unwrap_or_default()
    }

    fn try_snapshot(&self) -> Option<Snapshot> {
        let now = self.host.now();
        let hcas = &self.host.hcas;
        let table = self.tables.qps.try_read_for(PATIENCE_FOR_TABLES)?;
        let all: Vec<Arc<QpInner>> = table.iter().cloned().collect();
        drop(table);
        let mut devices: Vec<DeviceRow> = hcas.iter().map(|hca| device_row(hca)).collect();
        let mut qps = QpRows::with_capacity(all.len());
        let mut counted = BTreeSet::new();
        for (inner, (labels, mut sample)) in
            (all.iter()).filter_map(|qp| Some((qp, labels_and_sample(qp)?)))
        {
            let mut values = qp_metrics(&sample);
            qps.push(&labels, &values);
            if sample.comp_queue > 0 {
                // Queue pairs share CQs, each of which counts once in the sum.
                let new = inner.cqs().filter(|cq| counted.insert(cq.key()));
                sample.comp_queue = new.map(|cq| cq.len()).sum();
                values = qp_metrics(&sample);
            }
            let Some(device) = devices.get_mut(labels.device) else {
                continue;
            };
            for (sum, value) in device.sums.iter_mut().zip(values) {
                *sum = sum.saturating_add(value);
            }
        }
        let mut process = ProcessSample {
            counters: self.observers.counters.with(hcas),
            qps: all.len(),
            ..ProcessSample::default()
        };
        let regions = self.tables.regions.try_read_for(now, PATIENCE_FOR_TABLES)?;
        for (_, region) in regions.regions_by_key() {
            process.regions += 1;
            process.memory_bytes = process.memory_bytes.saturating_add(region.len);
        }
        Some(Snapshot {
            unix_ns: self.host.clock.unix_ns(now.as_ns()),
            process,
            devices,
            qps,
        })
    }

    /// Keeps the counters of a queue pair that ends in the sums of its device.
    pub(super) fn keep_counters(&self, inner: &QpInner) {
        let sample = sample(inner, &inner.lock());
        inner.hca().keep_counters(&qp_metrics(&sample));
        self.note_change();
    }
}

fn device_row(hca: &Hca) -> DeviceRow {
    DeviceRow {
        name: hca.config.name.clone(),
        port: hca.port_sample(),
        sums: hca.kept_counters(),
    }
}

fn sample(inner: &QpInner, core: &QpCore) -> QpSample {
    QpSample {
        counters: core.qp.counters(),
        send_queue: core.qp.send_queue_len(),
        recv_queue: core.qp.recv_queue_len(),
        comp_queue: inner.cqs().map(|cq| cq.len()).sum(),
        flight: core.qp.flight(),
    }
}

/// Returns the facts about a queue pair, or `None` if another thread keeps it locked.
fn labels_and_sample(inner: &QpInner) -> Option<(QpLabels, QpSample)> {
    let core = inner.try_lock_for(PATIENCE)?;
    let (attr, sample) = (core.qp.query(), sample(inner, &core));
    let kind = core.qp.config().qp_type as u8;
    drop(core);
    let peer = attr.ah_attr.dgid;
    let labels = QpLabels {
        qpn: inner.qp_num(),
        device: usize::try_from(inner.hca().index).unwrap_or(usize::MAX),
        kind,
        state: u8::try_from(attr.qp_state).unwrap_or(u8::MAX),
        dest: Qpn::new(attr.dest_qp_num),
        peer: (!peer.is_zero()).then(|| peer.to_ip()),
    };
    Some((labels, sample))
}
