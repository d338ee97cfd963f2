//! Conditions that hold between any two calls of the requester, asserted in debug builds.

use super::Requester;
use super::peer_probe::ProbeState;

/// Most WQEs that a check looks at, from both ends of the queue.
const LOOKED_AT: usize = 8;

impl Requester {
    /// Asserts all conditions. Its time does not depend on the length of the queue.
    pub(crate) fn check_invariants(&self) {
        self.check_positions();
        self.check_wqes();
        self.check_responses();
        self.check_timers();
        self.window.check_invariants();
    }

    /// `una <= cursor <= next_new`, and the indices follow them.
    fn check_positions(&self) {
        assert!(self.cursor.diff(self.una) >= 0, "{self:?}");
        assert!(self.next_new.diff(self.cursor) >= 0, "{self:?}");
        assert!(self.current <= self.started, "{self:?}");
        assert!(self.started <= self.sq.wqes.len(), "{self:?}");
        if self.started == 0 {
            assert_eq!(self.una, self.next_new, "nothing is in flight");
            assert_eq!(self.rd_wqes, 0, "no READ has been started");
        }
        if let Some(current) = self.sq.wqes.get(self.current).filter(|_| self.is_behind()) {
            let is_sent = self.cursor == current.end_psn();
            assert!(is_sent || current.contains(self.cursor), "{self:?}");
        } else {
            let end = self
                .started
                .checked_sub(1)
                .map(|last| self.sq.wqes[last].end_psn());
            assert_eq!(self.cursor, end.unwrap_or(self.next_new), "all is sent");
        }
    }

    const fn is_behind(&self) -> bool {
        self.current < self.started
    }

    /// The PSNs of started WQEs follow each other, from `una` to `next_new`.
    fn check_wqes(&self) {
        let Some(last) = self.started.checked_sub(1) else {
            return;
        };
        let front = &self.sq.wqes[0];
        assert!(
            front.contains(self.una),
            "una is in the oldest WQE: {self:?}"
        );
        let (last_wqe, sent) = (&self.sq.wqes[last], self.next_new);
        assert!(
            last_wqe.contains(sent) || last_wqe.end_psn() == sent,
            "the last packet sent is one of the newest WQE: {self:?}"
        );
        let from = last.saturating_sub(LOOKED_AT);
        for first in (0..last.min(LOOKED_AT)).chain(from..last) {
            let (wqe, next) = (&self.sq.wqes[first], &self.sq.wqes[first + 1]);
            assert_eq!(wqe.end_psn(), next.first_psn, "{self:?}");
            assert_eq!(wqe.end_cost(), next.cost_base, "{self:?}");
        }
    }

    /// READs and atomics in flight end after `una` and before `cursor`, in order.
    fn check_responses(&self) {
        let executed = self.executed_before.get().unwrap_or(self.una);
        assert!(self.next_new.diff(executed) >= 0, "{self:?}");
        let mut before = self.una;
        for end in self.rd_pending.iter() {
            assert!(end.diff(before) > 0, "{self:?}");
            before = *end;
        }
        assert!(self.next_new.diff(before) >= 0, "{self:?}");
        assert!(
            self.rd_wqes as usize <= self.started,
            "each READ is a started WQE"
        );
        if self.started <= LOOKED_AT {
            let started = self.sq.wqes.iter().take(self.started);
            let needing = started.filter(|wqe| wqe.op.needs_response_data()).count();
            assert_eq!(self.rd_wqes as usize, needing, "{self:?}");
        }
    }

    /// Counters do not exceed what they begin with.
    fn check_timers(&self) {
        assert!(self.retry_left <= self.attr.retry_cnt, "{self:?}");
        assert!(self.rnr_left <= self.attr.rnr_retry, "{self:?}");
        if let Some(timed) = self.timed {
            assert!(
                self.next_new.diff(timed.psn) > 0,
                "only sent packets are timed"
            );
        }
        if self.rnr_until.is_some() {
            assert!(!self.sq.wqes.is_empty(), "a request waits for a receive");
        }
        if self.ack_deadline.is_some() {
            let waits = self.started > 0 || self.probe != ProbeState::Idle;
            assert!(waits, "a request or a probe waits for its ACK");
        }
    }

    /// Asserts that every WQE of the queue is counted. DC stream channels count theirs together.
    pub(crate) fn check_use(&self) {
        // A managed queue may count its incomplete requests only.
        if self.cross_channel.is_none() {
            self.sq.account.check(self.sq.wqes.len());
        }
    }
}
