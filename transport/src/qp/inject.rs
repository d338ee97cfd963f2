//! Failures that fault rules cause, where a QP has to take part in them.

use crate::attr::QpState;
use crate::completion::WcStatus;
use crate::outputs::Fatal;
use crate::time::Time;

use super::Qp;
use super::side::RecvSide;

impl Qp {
    /// Lets the pending completion at `index` fail with `status`, and flushes the later ones of its
    /// queue. Does nothing beyond the last one.
    ///
    /// The QP goes to the state that a failed work request demands: SQE for the send queue of an
    /// unreliable service, ERR otherwise.
    pub fn fail_completion(&mut self, now: Time, index: usize, status: WcStatus) {
        let Some(failed) = self.out.completions.get_mut(index) else {
            return;
        };
        failed.status = status;
        let is_send = failed.is_send();
        let later = self.out.completions.iter_mut().skip(index + 1);
        for flushed in later.filter(|completion| completion.is_send() == is_send) {
            flushed.status = WcStatus::WrFlushErr;
        }
        if self.state == QpState::Err {
            return;
        }
        if is_send {
            self.conclude_send(now, Err(Fatal));
        } else {
            self.conclude(now, Err(Fatal));
        }
    }

    /// Withholds the posted receives from messages, or releases them again. Requests that need a
    /// receive are answered with RNR NAKs meanwhile. Only RC and XRC targets have such answers, and
    /// nothing changes for other services.
    pub fn withhold_receives(&mut self, withhold: bool) {
        if let RecvSide::Reliable(responder) = &mut self.recv {
            responder.withhold_receives(withhold);
        }
    }

    /// Takes the number of requests that were answered with RNR NAKs because receives were
    /// withheld, since the last call.
    pub const fn take_withheld(&mut self) -> u32 {
        let RecvSide::Reliable(responder) = &mut self.recv else {
            return 0;
        };
        responder.take_withheld()
    }
}
