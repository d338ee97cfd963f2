//! What comes out of a QP besides packets.

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
    pub(crate) events: VecDeque<QpEvent>,
    pub(crate) counters: Tally,
    /// What is fatal is so for the path only: the QP goes on on the alternate one.
    pub(crate) path_failed: bool,
}

impl Outputs {
    pub(crate) fn new(qp_num: Qpn) -> Self {
        Self {
            qp_num,
            completions: VecDeque::new(),
            events: VecDeque::new(),
            counters: Tally::default(),
            path_failed: false,
        }
    }
}
