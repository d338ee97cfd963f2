//! XRC targets that several processes share.

use super::Qp;
use super::side::RecvSide;
use crate::responder::{ReplayEntry, Responder, ResponderSnapshot};

impl Qp {
    const fn responder(&self) -> Option<&Responder> {
        let RecvSide::Reliable(responder) = &self.recv else {
            return None;
        };
        Some(responder)
    }

    /// Returns true once if the last packet was for a shared receive queue of another process
    /// ([`crate::ReceiveDomain::is_in_other_process`]).
    ///
    /// Such a packet had no effect.
    #[inline]
    pub const fn take_misrouted(&mut self) -> bool {
        let RecvSide::Reliable(responder) = &mut self.recv else {
            return false;
        };
        responder.receives_mut().take_misrouted()
    }

    /// Returns the responder state if the QP is between two messages and has no data to send. Then
    /// another process can take over.
    #[must_use]
    pub fn snapshot(&self) -> Option<ResponderSnapshot> {
        self.resumable_snapshot()
            .filter(|_| self.responder().is_some_and(Responder::has_sent_all_data))
    }

    /// Returns the responder state if the QP is between two messages.
    ///
    /// If this process dies now, another one can take over, because the peer repeats requests whose
    /// responses it did not receive.
    //= XRC-11
    #[must_use]
    pub fn resumable_snapshot(&self) -> Option<ResponderSnapshot> {
        let responder = self
            .responder()
            .filter(|responder| responder.is_between_messages())?;
        let (epsn, msn) = responder.snapshot();
        Some(ResponderSnapshot {
            epsn,
            msn,
            comm_est_raised: self.comm_est_raised,
        })
    }

    /// Returns true if the QP has nothing left to send or to report.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.out.completions.is_empty() && !self.recv.has_responses()
    }

    /// Returns the operations that can be replayed for duplicates, oldest first.
    pub fn replay_entries(&self) -> impl Iterator<Item = ReplayEntry> + Clone {
        self.responder()
            .into_iter()
            .flat_map(Responder::replay_entries)
    }

    /// Restores the state of another process. The attributes have to be the same.
    pub fn restore(
        &mut self,
        snapshot: ResponderSnapshot,
        replay_entries: impl Iterator<Item = ReplayEntry>,
    ) {
        self.comm_est_raised = snapshot.comm_est_raised;
        if let RecvSide::Reliable(responder) = &mut self.recv {
            responder.restore(snapshot, replay_entries);
        }
    }
}
