//! QP number to QP.

use std::sync::Arc;

use rocade_wire::Qpn;

use super::qp::QpInner;

/// Indexed by the low 16 bits: the upper 8 are the slot, the same for all QPs of a process.
#[derive(Debug, Default)]
pub(crate) struct QpTable {
    entries: Vec<Option<Arc<QpInner>>>,
}

const fn index(qpn: Qpn) -> usize {
    (qpn.get() & 0xffff) as usize
}

impl QpTable {
    pub(crate) fn insert(&mut self, qp: Arc<QpInner>) {
        let index = index(qp.qp_num());
        if self.entries.len() <= index {
            self.entries.resize_with(index + 1, || None);
        }
        self.entries[index] = Some(qp);
    }

    pub(crate) fn remove(&mut self, qpn: Qpn) -> Option<Arc<QpInner>> {
        self.entries
            .get_mut(index(qpn))?
            .take_if(|qp| qp.qp_num() == qpn)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<QpInner>> {
        self.entries.iter().flatten()
    }

    pub(crate) fn get(&self, qpn: Qpn) -> Option<&Arc<QpInner>> {
        self.entries
            .get(index(qpn))?
            .as_ref()
            .filter(|qp| qp.qp_num() == qpn)
    }
}
