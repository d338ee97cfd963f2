//! What comes out of a QP besides packets.

use alloc::boxed::Box;
use alloc::collections::VecDeque;

use rocade_wire::Qpn;

use crate::completion::Completion;
use crate::counters::Tally;
use crate::event::QpEvent;

/// The QP has to go to ERR; whatever caused it has been reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fatal;

/// Completions, events and counters on their way out.
#[derive(Debug)]
pub(crate) struct Outputs {
    /// The QP that they are of.
    pub(crate) qp_num: Qpn,
    pub(crate) completions: VecDeque<Completion>,
    pub(crate) events: Events,
    pub(crate) counters: Tally,
    /// What is fatal is so for the path only: the QP goes on on the alternate one.
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

/// Asynchronous events in order. Most QPs never have any, and the few do not take the room of a queue in all others.
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
