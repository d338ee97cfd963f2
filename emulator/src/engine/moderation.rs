//! Completion events that wait for company, and when they come without (CQ-10).

use std::sync::Weak;

use parking_lot::Mutex;
use rocade_transport::Time;

use super::EngineInner;
use crate::objects::CqInner;

/// The CQs with an event that waits, and when it is due; or was, where it came earlier.
#[derive(Debug, Default)]
pub(super) struct ModeratedCqs {
    cqs: Mutex<Vec<(Time, Weak<CqInner>)>>,
}

impl ModeratedCqs {
    /// When the first one is due.
    pub(super) fn next(&self) -> Option<Time> {
        self.cqs.lock().iter().map(|(due, _)| *due).min()
    }

    fn take_due(&self, now: Time) -> Vec<Weak<CqInner>> {
        let mut cqs = self.cqs.lock();
        let due = cqs.extract_if(.., |(due, _)| *due <= now);
        due.map(|(_, cq)| cq).collect()
    }
}

impl EngineInner {
    /// An event of this CQ comes at `due` at the latest. The caller may hold the lock of the CQ.
    pub(crate) fn moderate(&self, due: Time, cq: Weak<CqInner>) {
        self.moderated.cqs.lock().push((due, cq));
        if self.agenda.would_miss(due) {
            self.call_background();
        }
    }

    /// Raises the events that have waited long enough.
    pub(super) fn raise_moderated(&self) {
        let due = self.moderated.take_due(self.now());
        for cq in due.iter().filter_map(Weak::upgrade) {
            cq.raise_due_event(self.now());
        }
    }
}
