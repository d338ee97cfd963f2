//! Conditions that hold between any two calls of the responder, asserted in debug builds.

use super::ack_policy::{MAX_QUEUED_REPLAYS, Response};
use super::{InProgress, Responder};

impl Responder {
    /// Asserts all conditions.
    pub(crate) fn check_invariants(&self) {
        self.check_queue();
        self.check_saved();
        self.check_received();
        self.check_message();
    }

    /// Responses are few, and acknowledge only what was received.
    fn check_queue(&self) {
        // An ACK and a NAK may follow the replays.
        let limit = MAX_QUEUED_REPLAYS + usize::from(self.most_resources) + 8;
        assert!(self.queue.len() <= limit, "{} responses", self.queue.len());
        let mut acks = self
            .queue
            .iter()
            .filter(|response| response.as_ack().is_some());
        for response in acks.by_ref() {
            let Response::Ack { psn, .. } = response else {
                continue;
            };
            assert!(self.epsn.diff(*psn) > 0, "an ACK of the future: {self:?}");
        }
        let in_a_row = self.queue.iter().zip(self.queue.iter().skip(1));
        for (one, next) in in_a_row {
            assert!(
                one.as_ack().is_none() || next.as_ack().is_none(),
                "one ACK covers all before it: {self:?}"
            );
        }
    }

    /// Keeps as many READs and atomics as the peer may have in flight.
    fn check_saved(&self) {
        let limit = usize::from(self.most_resources);
        assert!(self.saved.len() <= limit, "{} are kept", self.saved.len());
    }

    /// The messages whose completions were not handed out are in order, and before `epsn`.
    fn check_received(&self) {
        let mut before = self.reported;
        for message in self.received.iter() {
            if let Some((psn, _)) = before {
                assert!(message.0.diff(psn) > 0, "{self:?}");
            }
            assert!(self.epsn.diff(message.0) > 0, "{self:?}");
            before = Some(*message);
        }
    }

    /// A message in progress fits its buffer.
    fn check_message(&self) {
        match &self.current {
            InProgress::None => {}
            InProgress::Send { wqe, received } => {
                assert!(u64::from(*received) <= wqe.data.len(), "{self:?}");
            }
            InProgress::Write { len, received, .. } => {
                assert!(received <= len, "{self:?}");
            }
        }
    }
}
