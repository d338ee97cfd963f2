//! CQs that had no space for a completion: all QPs that complete there go to ERR.
//!
//! The thread that loses a completion holds the lock of one of these QPs, and perhaps more, and
//! must not take that of another. It therefore records the CQ, and the background thread does the
//! rest. The QPs' events are raised only afterwards, so that an application that gets one of them
//! finds all the QPs in ERR.

use std::sync::Arc;

use rocade_transport::TransmitTrigger;

use super::Nic;
use super::cx::Cx;
use crate::memory::MemGuard;
use crate::state::{QpCore, QpInner};

impl Nic {
    /// Moves the QPs of all overrun CQs to ERR. Repeats, because their flushed work requests may be
    /// lost as well, in this CQ or in others.
    //= CQ-02
    pub(super) fn fail_qps_of_overrun_cqs(&self) {
        loop {
            let cqs = self.scheduler.service_queue.take_overrun();
            if cqs.is_empty() {
                return;
            }
            let qps: Vec<_> = self
                .tables
                .qps
                .read()
                .iter()
                .filter(|qp| cqs.iter().any(|cq| qp.completes_to(cq)))
                .cloned()
                .collect();
            let now = self.host.now();
            for qp in &qps {
                self.with_live(qp, |core, mem| {
                    // What the QP has received before is acknowledged, if there is space to report
                    // it.
                    let cx = Cx::of_background(now, mem);
                    self.flush_outputs(qp, core, TransmitTrigger::Other, cx);
                    core.qp.set_fatal(now, 0);
                });
            }
            for qp in &qps {
                self.with_live(qp, |core, mem| {
                    core.overrun = false;
                    let cx = Cx::of_background(now, mem);
                    self.flush_outputs(qp, core, TransmitTrigger::Other, cx);
                });
            }
        }
    }

    fn with_live(&self, qp: &Arc<QpInner>, f: impl FnOnce(&mut QpCore, &MemGuard<'_>)) {
        let mem = self.tables.regions().read(self.host.now());
        let mut core = qp.lock();
        if qp.is_alive() {
            f(&mut core, &mem);
        }
    }
}
