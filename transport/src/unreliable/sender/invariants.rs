//! Conditions that hold between any two calls of the sender of UC and UD, asserted in debug builds.

use super::Sender;

impl Sender {
    /// Asserts all conditions.
    pub(crate) fn check_invariants(&self) {
        let queued = self.sq.wqes.len();
        assert!(self.sent <= queued, "{} of {queued} are sent", self.sent);
        if self.packets > 0 {
            assert!(self.sent < queued, "packets of no request: {self:?}");
        }
        let counts_wqes = self.cross_channel.as_ref();
        if counts_wqes.is_none_or(|cross_channel| cross_channel.counts_wqes) {
            self.sq.account.check(queued);
        }
        for wqe in [self.sq.wqes.front(), self.sq.wqes.back()]
            .into_iter()
            .flatten()
        {
            //= UD-03
            assert_eq!(wqe.to.is_some(), self.datagrams, "{wqe:?}");
        }
        if let Some(wqe) = self.sq.wqes.get(self.sent).filter(|_| self.packets > 0) {
            assert!(!self.datagrams, "a datagram has one packet: {wqe:?}");
            assert_eq!(
                self.psn,
                wqe.first_psn.add(self.packets),
                "the next packet follows the last one: {self:?}"
            );
        }
    }
}
