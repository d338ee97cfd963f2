//! Outputs of a QP besides packets.

use alloc::boxed::Box;
use alloc::collections::VecDeque;

use rocade_wire::Qpn;

use crate::completion::Completion;
use crate::counters::Tally;
use crate::event::QpEvent;

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
            path_failed: false,
        }
    }
}

/// Asynchronous events in order. Most QPs never have any, so the queue is allocated on first use.
#[derive(Debug, Default)]
pub(crate) struct Events(Option<Box<Pending>>);

#[derive(Debug, Default)]
struct Pending {
    events: VecDeque<QpEvent>,
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

    pub(crate) fn clear(&mut self) {
        self.0 = None;
    }
}
