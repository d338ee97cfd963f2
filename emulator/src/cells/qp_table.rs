//! QP number to QP.

use std::sync::Arc;

use rocade_wire::Qpn;

use super::qp::QpInner;

/// Indexed by the low 16 bits: the upper 8 are the slot, the same for all QPs that a process makes.
#[derive(Debug, Default)]
pub(crate) struct QpTable {
    entries: Vec<Option<Arc<QpInner>>>,
    /// XRC targets of other processes, which this one serves too.
    foreign: Vec<Arc<QpInner>>,
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

    /// Adds a target that another process has made.
    pub(crate) fn insert_foreign(&mut self, qp: Arc<QpInner>) {
        self.foreign.push(qp);
    }

    pub(crate) fn remove(&mut self, qpn: Qpn) -> Option<Arc<QpInner>> {
        let own = |entry: &mut Option<Arc<QpInner>>| entry.take_if(|qp| qp.qp_num() == qpn);
        self.entries.get_mut(index(qpn)).and_then(own).or_else(|| {
            let mut foreign = self.foreign.iter();
            let at = foreign.position(|qp| qp.qp_num() == qpn)?;
            Some(self.foreign.swap_remove(at))
        })
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<QpInner>> {
        self.entries.iter().flatten().chain(&self.foreign)
    }

    pub(crate) fn get(&self, qpn: Qpn) -> Option<&Arc<QpInner>> {
        self.entries
            .get(index(qpn))
            .and_then(Option::as_ref)
            .filter(|qp| qp.qp_num() == qpn)
            .or_else(|| self.get_foreign(qpn))
    }

    #[cold]
    fn get_foreign(&self, qpn: Qpn) -> Option<&Arc<QpInner>> {
        self.foreign.iter().find(|qp| qp.qp_num() == qpn)
    }
}
