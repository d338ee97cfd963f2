//! Conditions that hold between any two calls of a queue pair.

use super::Qp;
#[cfg(debug_assertions)]
use super::side::{RecvSide, SendSide};
#[cfg(debug_assertions)]
use crate::attr::QpState;

impl Qp {
    /// Asserts the conditions in debug builds. Each entry point that changes anything ends with it.
    #[cfg(debug_assertions)]
    pub(super) fn check_invariants(&self) {
        match &self.send {
            SendSide::Reliable(requester) => {
                requester.check_invariants();
                requester.check_use();
            }
            SendSide::Dynamic(initiator) => initiator.check_invariants(),
            SendSide::Unreliable(sender) => sender.check_invariants(),
            SendSide::Frames(sender) => sender.check_invariants(),
            SendSide::None => {}
        }
        match &self.recv {
            RecvSide::Reliable(responder) => responder.check_invariants(),
            RecvSide::Target(target) => target.check_invariants(),
            RecvSide::Connected(_)
            | RecvSide::Datagrams(_)
            | RecvSide::Frames(_)
            | RecvSide::None => {}
        }
        if let Some(receives) = self.recv.receives() {
            receives.check_invariants();
        }
        match self.state {
            QpState::Reset => {
                assert_eq!(self.send.queued(), 0, "RESET has no requests");
                assert_eq!(self.recv.queued(), 0, "RESET has no receives");
                assert!(!self.recv.has_responses(), "RESET answers nothing");
            }
            QpState::Err => {
                assert_eq!(self.send.queued(), 0, "requests are flushed in ERR");
                assert_eq!(self.send.next_timeout(), None, "nothing is sent in ERR");
                assert!(!self.recv.is_in_message(), "a message ends in ERR");
            }
            QpState::Sqe => {
                assert_eq!(self.send.queued(), 0, "requests are flushed in SQE");
            }
            QpState::Init | QpState::Rtr => {
                assert_eq!(self.send.queued(), 0, "no request before RTS");
            }
            QpState::Rts | QpState::Sqd => {}
        }
    }

    #[cfg(not(debug_assertions))]
    #[inline(always)]
    #[expect(clippy::unused_self, reason = "the same call as in debug builds")]
    pub(super) const fn check_invariants(&self) {}
}
