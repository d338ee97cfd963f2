//! Retries: timers, going back, counters (RC-TMR-*, RC-REQ-16…19).

use rocade_wire::{Psn, RnrTimer};

use super::acquaint::Asks;
use super::{Requester, Timed};
use crate::completion::WcStatus;
use crate::congestion::Window;
use crate::cx::Cx;
use crate::outputs::Fatal;
use crate::time::Time;

/// The ACK timer may wait for so many ACK timeouts (RC-TMR-01).
const MAX_TIMEOUTS: u64 = 4;

impl Requester {
    /// Starts the ACK timer if it is not running (RC-TMR-02).
    #[inline]
    pub(super) fn arm_ack_timer(&mut self, now: Time) {
        if self.ack_deadline.is_none() {
            self.ack_deadline = self
                .attr
                .ack_timeout_ns()
                .map(|ns| now.plus_ns(self.wait_ns(ns)));
        }
    }

    /// How long to wait for an acknowledgement. Each expiry doubles the wait until the path has been measured
    /// again, a peer that takes long is given the time, and the last wait is the longest, up to the
    /// four times that RC-TMR-01 allows: a peer that stalls, or a path that is congested, gets the most
    /// time that the attributes grant.
    fn wait_ns(&self, timeout_ns: u64) -> u64 {
        let longest = timeout_ns.saturating_mul(MAX_TIMEOUTS);
        if self.retry_left == 0 {
            return longest;
        }
        let doubled = timeout_ns.saturating_mul(1 << self.timeouts_in_a_row.min(8));
        doubled.max(self.window.patience_ns()).min(longest)
    }

    /// Times the acknowledgement of `psn`, unless that of another packet is timed; to be called when it is
    /// sent for the first time.
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

    /// Packets before `cursor` were sent again: it would not be known which copy is acknowledged.
    #[inline]
    pub(super) fn forget_time(&mut self) {
        self.timed.take_if(|timed| timed.psn.diff(self.cursor) < 0);
    }

    /// After progress: full counters again, the timer from now or off (RC-REQ-17, RC-TMR-02).
    pub(super) fn on_progress(&mut self, now: Time, cost_before: u64) {
        //= RC-REQ-17
        self.retry_left = self.attr.retry_cnt;
        self.went_back_at = None;
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
            } else if self.window.is_late(elapsed_ns) {
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

    /// Transmission continues at `psn`, which is not acknowledged.
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
        if self.asks == Asks::Sent {
            self.ask_again();
        }
        // A local error further on will be found again when transmission gets there.
        self.failed = None;
    }

    /// The data of the request at `psn`, which has been taken for sent, could not be read: transmission stops
    /// before it, and its work request fails when all before it are complete (RC-REQ-14).
    pub(crate) fn fail_request(&mut self, now: Time, psn: Psn) {
        self.go_back(psn);
        if self.current == self.started {
            // Flushed meanwhile.
            return;
        }
        self.failed = Some(WcStatus::LocProtErr);
        if self.una != self.cursor {
            self.arm_ack_timer(now);
        }
    }

    /// One retry less; none left is fatal for the oldest WQE (RC-REQ-18).
    fn consume_retry<H>(&mut self, cx: &mut Cx<'_, H>) -> Result<(), Fatal> {
        if self.retry_left == 0 {
            if cx.peer.may_migrate() {
                cx.out.path_failed = true;
                return Err(Fatal);
            }
            //= RC-REQ-18 WCS-12
            return Err(self.fail_front(cx, WcStatus::RetryExcErr));
        }
        self.retry_left -= 1;
        Ok(())
    }

    /// Goes on on another path, of which nothing is known yet; where the old one has failed, with all that is
    /// not acknowledged.
    //= RC-APM-08
    pub(crate) fn change_path(&mut self, failed: bool) {
        self.window = Window::new();
        self.window.set_timeout(self.attr.ack_timeout_ns());
        self.timed = None;
        self.timeouts_in_a_row = 0;
        self.went_back_at = None;
        if failed && self.rnr_until.is_none() {
            self.go_back(self.una);
        }
    }

    /// Something at `una` was lost: a sequence NAK, or responses that skip a READ or atomic
    /// (RC-REQ-04, RC-REQ-05, RC-REQ-12). Repeated reports of the same loss count once.
    pub(crate) fn sequence_error<H>(&mut self, cx: &mut Cx<'_, H>) -> Result<(), Fatal> {
        let psn = self.una;
        //= RC-REQ-19
        if self.rnr_until.is_some() || self.went_back_at == Some(psn) {
            return Ok(());
        }
        cx.out.counters.rare().seq_naks_received += 1;
        self.consume_retry(cx)?;
        self.window.on_loss();
        self.go_back(psn);
        self.went_back_at = Some(psn);
        Ok(())
    }

    /// A responder may repeat a sequence NAK (RC-DUP-08): once the packet it names has been sent
    /// again, that is a new loss. Responses that merely skip something are no such sign: those on
    /// their way when transmission went back all do.
    pub(super) fn note_explicit_nak(&mut self) {
        if self.cursor != self.una {
            self.went_back_at = None;
        }
    }

    /// The responder has no receive WQE for the message at `una` (RC-REQ-06).
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
        // The request arrived, so the path works. Without this, losses spread over a long series
        // of RNR NAKs would add up to RETRY_EXC_ERR.
        self.retry_left = self.attr.retry_cnt;
        self.timeouts_in_a_row = 0;
        self.go_back(self.una);
        //= RC-TMR-04
        self.rnr_until = Some(cx.now.plus_ns(timer.as_ns()));
        Ok(())
    }

    /// Fires whatever is due.
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
            if self.asks != Asks::No {
                self.ask_again();
                return Ok(());
            }
            let in_flight = self.in_flight(self.una_cost());
            self.window.on_timeout(in_flight);
            self.went_back_at = None;
            self.rewind();
        }
        Ok(())
    }

    /// A positive acknowledgement reloads the RNR counter and ends an RNR wait that it
    /// overtakes (RC-REQ-17, RC-REQ-19).
    pub(super) fn on_positive_ack(&mut self) {
        self.note_taken();
        self.rnr_left = self.attr.rnr_retry;
        self.rnr_until = None;
    }
}
