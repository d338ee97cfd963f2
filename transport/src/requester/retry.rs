//! Retries: timers, retransmission, counters.

use rocade_wire::{Psn, RnrTimer};

use super::maybe_psn::MaybePsn;
use super::peer_probe::ProbeState;
use super::{Requester, Timed};
use crate::completion::WcStatus;
use crate::congestion::Window;
use crate::cx::Cx;
use crate::outputs::Fatal;
use crate::time::Time;

/// The longest ACK timer, as a multiple of the ACK timeout.
const MAX_TIMEOUTS: u64 = 4;

impl Requester {
    /// Starts the ACK timer if it is not running.
    #[inline]
    pub(super) fn arm_ack_timer(&mut self, now: Time) {
        if self.ack_deadline.is_none() {
            self.ack_deadline = self
                .attr
                .ack_timeout_ns()
                .map(|ns| now.plus_ns(self.wait_ns(ns)));
        }
    }

    /// Returns how long to wait for an ACK.
    ///
    /// Each expiry doubles the wait until the round-trip time has been measured again. A large
    /// round-trip time extends it. The last wait is the longest, four times the timeout, as far as
    /// the specification allows. So a stalled peer or a congested path gets the most time that the
    /// attributes grant.
    fn wait_ns(&self, timeout_ns: u64) -> u64 {
        let longest = timeout_ns.saturating_mul(MAX_TIMEOUTS);
        if self.retry_left == 0 {
            return longest;
        }
        let doubled = timeout_ns.saturating_mul(1 << self.timeouts_in_a_row.min(8));
        doubled.max(self.window.patience_ns()).min(longest)
    }

    /// Measures the round-trip time of `psn`, unless another packet is being measured. Call it when
    /// the packet is sent for the first time.
    #[inline]
    pub(super) fn time(&mut self, now: Time, psn: Psn, una_cost: u64) {
        if self.timed.is_none() {
            self.timed = Some(Timed {
                psn,
                at: now,
                una_cost,
            });
        }
    }

    /// Stops measuring a packet before `cursor` that is sent again: it would not be known which
    /// copy is acknowledged.
    #[inline]
    pub(super) fn forget_time(&mut self) {
        self.timed.take_if(|timed| timed.psn.diff(self.cursor) < 0);
    }

    /// Resets the retry counter and the ACK timer after progress.
    pub(super) fn on_progress(&mut self, now: Time, cost_before: u64) {
        //= RC-REQ-17
        self.retry_left = self.attr.retry_cnt;
        self.went_back_at = MaybePsn::NONE;
        self.ack_deadline = None;
        let una_cost = self.una_cost();
        self.window
            .on_progress(una_cost.saturating_sub(cost_before));
        if let Some(timed) = self.timed {
            let delivered = una_cost.saturating_sub(timed.una_cost);
            let elapsed_ns = now.ns_since(timed.at);
            if timed.psn.diff(self.una) < 0 {
                self.window.on_sample(delivered, elapsed_ns);
                self.timed = None;
                self.timeouts_in_a_row = 0;
            } else if self.window.is_overdue(elapsed_ns) {
                self.window.on_sample(delivered, elapsed_ns);
            }
        }
        if self.rewound.is_some() {
            self.resume();
        }
        //= RC-TMR-02
        if self.rnr_until.is_none() && self.una != self.cursor {
            self.arm_ack_timer(now);
        }
    }

    /// Continues transmission at `psn`, which is not acknowledged.
    //= RC-REQ-16
    pub(super) fn go_back(&mut self, psn: Psn) {
        self.cursor = psn;
        self.current = self.index_of(psn);
        self.rewound = None;
        while self.rd_pending.back().is_some_and(|end| end.diff(psn) > 0) {
            self.rd_pending.pop_back();
        }
        self.packets_since_ack_req = 0;
        self.ack_deadline = None;
        if self.probe == ProbeState::Sent {
            self.repeat_probe();
        }
        // A later local error will be found again when transmission reaches it.
        self.failed = None;
    }

    /// Handles the failure to read the data of the request at `psn`, which counted as sent.
    /// Transmission stops before it, and its work request fails once all before it are complete.
    pub(crate) fn fail_request(&mut self, now: Time, psn: Psn) {
        self.go_back(psn);
        if self.current == self.started {
            // It was flushed meanwhile.
            return;
        }
        self.failed = Some(WcStatus::LocProtErr);
        if self.una != self.cursor {
            self.arm_ack_timer(now);
        }
    }

    /// Consumes one retry. Without retries left, the oldest WQE fails.
    fn consume_retry<H>(&mut self, cx: &mut Cx<'_, H>) -> Result<(), Fatal> {
        if self.retry_left == 0 {
            if cx.peer.may_migrate() {
                cx.out.path_failed = true;
                return Err(Fatal);
            }
            cx.out.counters.rare().retry_exceeded += 1;
            //= RC-REQ-18 WCS-12
            return Err(self.fail_front(cx, WcStatus::RetryExcErr));
        }
        self.retry_left -= 1;
        Ok(())
    }

    /// Continues on another path, whose properties are unknown. If the old path has failed, all
    /// unacknowledged packets are sent again.
    //= RC-APM-08
    pub(crate) fn change_path(&mut self, failed: bool) {
        self.window = Window::new();
        self.window.set_timeout(self.attr.ack_timeout_ns());
        self.timed = None;
        self.timeouts_in_a_row = 0;
        self.went_back_at = MaybePsn::NONE;
        if failed && self.rnr_until.is_none() {
            self.go_back(self.una);
        }
    }

    /// Handles a loss at `una`: a sequence NAK, or responses that skip a READ or atomic. Repeated
    /// reports of the same loss count once.
    pub(crate) fn sequence_error<H>(&mut self, cx: &mut Cx<'_, H>) -> Result<(), Fatal> {
        let psn = self.una;
        //= RC-REQ-19
        if self.rnr_until.is_some() || self.went_back_at == MaybePsn::new(psn) {
            return Ok(());
        }
        cx.out.counters.rare().seq_naks_received += 1;
        self.consume_retry(cx)?;
        self.window.on_loss();
        self.go_back(psn);
        self.went_back_at = MaybePsn::new(psn);
        Ok(())
    }

    /// Notes a sequence NAK, which a responder may repeat.
    ///
    /// Once the packet that the NAK names has been sent again, the NAK reports a new loss.
    /// Responses that merely skip something do not, because the responses in flight when
    /// transmission moved back all skip it.
    pub(super) fn note_explicit_nak(&mut self) {
        if self.cursor != self.una {
            self.went_back_at = MaybePsn::NONE;
        }
    }

    /// Handles an RNR NAK: the responder has no receive WQE for the message at `una`.
    //= RC-REQ-06
    pub(crate) fn receiver_not_ready<H>(
        &mut self,
        cx: &mut Cx<'_, H>,
        timer: RnrTimer,
    ) -> Result<(), Fatal> {
        //= RC-REQ-19
        if self.rnr_until.is_some() {
            return Ok(());
        }
        cx.out.counters.rare().rnr_naks_received += 1;
        self.note_not_taken();
        //= RC-TMR-05
        if self.attr.rnr_retry != 7 {
            if self.rnr_left == 0 {
                //= WCS-13
                return Err(self.fail_front(cx, WcStatus::RnrRetryExcErr));
            }
            self.rnr_left -= 1;
        }
        // The request arrived, so the path works. Otherwise, losses spread over a long series of
        // RNR NAKs would add up to RETRY_EXC_ERR.
        self.retry_left = self.attr.retry_cnt;
        self.timeouts_in_a_row = 0;
        self.go_back(self.una);
        //= RC-TMR-04
        self.rnr_until = Some(cx.now.plus_ns(timer.as_ns()));
        Ok(())
    }

    /// Handles all timers that are due.
    pub(crate) fn handle_timeout<H>(&mut self, cx: &mut Cx<'_, H>) -> Result<(), Fatal> {
        if let Some(limit) = &mut self.limit {
            limit.waits_until.take_if(|until| *until <= cx.now);
        }
        if let Some(until) = self.rnr_until {
            if until <= cx.now {
                self.rnr_until = None;
                self.note_waited();
            }
            return Ok(());
        }
        if self.ack_deadline.is_some_and(|deadline| deadline <= cx.now) {
            //= RC-TMR-03
            cx.out.counters.rare().timeouts += 1;
            self.timeouts_in_a_row = self.timeouts_in_a_row.saturating_add(1);
            self.ack_deadline = None;
            self.consume_retry(cx)?;
            if self.probe != ProbeState::Idle {
                self.repeat_probe();
                return Ok(());
            }
            let in_flight = self.in_flight(self.una_cost());
            self.window.on_timeout(in_flight);
            self.went_back_at = MaybePsn::NONE;
            self.rewind();
        }
        Ok(())
    }

    /// Handles a positive ACK: resets the RNR counter and ends an RNR wait.
    pub(super) fn on_positive_ack(&mut self) {
        self.note_taken();
        self.rnr_left = self.attr.rnr_retry;
        self.rnr_until = None;
    }
}
