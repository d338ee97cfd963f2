//! XRC targets that several processes serve in turn.

use super::Qp;
use super::side::RecvSide;
use crate::responder::{Progress, Repeatable, Responder};

impl Qp {
    const fn responder(&self) -> Option<&Responder> {
        match &self.recv {
            RecvSide::Reliable(responder) => Some(responder),
            _ => None,
        }
    }

    /// Was the last packet for a shared receive queue of another process
    /// ([`crate::ReceiveDomain::is_elsewhere`])? Nothing was done with it then. Tells it once.
    #[inline]
    pub const fn take_stray(&mut self) -> bool {
        match &mut self.recv {
            RecvSide::Reliable(responder) => responder.receives_mut().take_stray(),
            _ => false,
        }
    }

    /// What it knows, if it is between two messages and owes no data: then another process may go on with it.
    #[must_use]
    pub fn progress(&self) -> Option<Progress> {
        self.resumable()
            .filter(|_| self.responder().is_some_and(Responder::owes_no_data))
    }

    /// What it knows, if it is between two messages: should this process die now, another one can go on with it, because the peer
    /// asks again for what it was not sent.
    //= XRC-11
    #[must_use]
    pub fn resumable(&self) -> Option<Progress> {
        let responder = self
            .responder()
            .filter(|responder| responder.is_between_messages())?;
        let (epsn, msn) = responder.progress();
        Some(Progress {
            epsn,
            msn,
            comm_est_raised: self.comm_est_raised,
        })
    }

    /// Is there nothing left that it has to send or to report?
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.out.completions.is_empty() && !self.recv.has_responses()
    }

    /// What it can answer again, the oldest first.
    pub fn repeatable(&self) -> impl Iterator<Item = Repeatable> + Clone {
        self.responder().into_iter().flat_map(Responder::repeatable)
    }

    /// Goes on where another process has stopped. The attributes have to be the same.
    pub fn resume(&mut self, progress: Progress, repeatable: impl Iterator<Item = Repeatable>) {
        self.comm_est_raised = progress.comm_est_raised;
        if let RecvSide::Reliable(responder) = &mut self.recv {
            responder.resume(progress, repeatable);
        }
    }
}
