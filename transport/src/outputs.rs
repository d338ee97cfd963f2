//! Outputs of a QP besides packets.

use alloc::boxed::Box;
use alloc::collections::VecDeque;

use rocade_wire::Qpn;

use crate::completion::Completion;
use crate::counters::Tally;
use crate::event::QpEvent;
use crate::failure::{Failure, RefusedRequest};
use crate::op_count::OpCounters;

/// An error that moves the QP to ERR. Its cause has been reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fatal;

/// Completions, events and counters that were not polled yet.
#[derive(Debug)]
pub(crate) struct Outputs {
    /// The QP that they belong to.
    pub(crate) qp_num: Qpn,
    pub(crate) completions: VecDeque<Completion>,
    pub(crate) events: Events,
    pub(crate) counters: Tally,
    pub(crate) op_counters: OpCounters,
    /// The error is fatal for the primary path only: the QP continues on the alternate path.
    pub(crate) path_failed: bool,
}

impl Outputs {
    pub(crate) fn new(qp_num: Qpn) -> Self {
        Self {
            qp_num,
            completions: VecDeque::new(),
            events: Events::default(),
            counters: Tally::default(),
            op_counters: OpCounters::default(),
            path_failed: false,
        }
    }
}

/// Asynchronous events in order, and the first failure. Most QPs never have any, so the queue is
/// allocated on first use.
#[derive(Debug, Default)]
pub(crate) struct Events(Option<Box<Pending>>);

#[derive(Debug, Default)]
struct Pending {
    events: VecDeque<QpEvent>,
    failure: Option<Box<Failure>>,
    /// There was a failure. Later ones are its consequences.
    has_failed: bool,
}

impl Events {
    #[cold]
    pub(crate) fn push(&mut self, event: QpEvent) {
        self.0.get_or_insert_default().events.push_back(event);
    }

    #[inline]
    pub(crate) fn pop(&mut self) -> Option<QpEvent> {
        self.0.as_mut()?.events.pop_front()
    }

    /// Keeps a failure if it is the first one.
    #[cold]
    pub(crate) fn explain(&mut self, failure: impl FnOnce() -> Failure) {
        let pending = self.0.get_or_insert_default();
        if !pending.has_failed {
            pending.has_failed = true;
            pending.failure = Some(Box::new(failure()));
        }
    }

    /// Returns the refused request that is kept and was not taken yet.
    #[cold]
    pub(crate) fn refused(&mut self) -> Option<&mut RefusedRequest> {
        match self.0.as_mut()?.failure.as_deref_mut()? {
            Failure::Request(request) => Some(request),
            Failure::Send(_) | Failure::Receive(_) => None,
        }
    }

    /// Takes the failure that is kept.
    #[inline]
    pub(crate) fn take_failure(&mut self) -> Option<Box<Failure>> {
        self.0.as_mut()?.failure.take()
    }

    pub(crate) fn clear(&mut self) {
        self.0 = None;
    }
}
