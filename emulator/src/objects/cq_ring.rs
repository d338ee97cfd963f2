//! Completions of a CQ in order, and its arming (CQ-02…07).

use std::collections::VecDeque;

use rocade_transport::{Completion, WcStatus};

/// What the next completion event waits for (CQ-05).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Armed {
    No,
    Solicited,
    Next,
}

/// What adding a completion leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Added {
    /// Nothing.
    Quiet,
    /// A completion event is due.
    Event,
    /// There was no room: the completion is lost (CQ-02).
    Overflow,
}

#[derive(Debug)]
pub(super) struct CqRing {
    entries: VecDeque<Completion>,
    capacity: usize,
    armed: Armed,
}

impl CqRing {
    pub(super) const fn new(capacity: usize) -> Self {
        Self { entries: VecDeque::new(), capacity, armed: Armed::No }
    }

    pub(super) const fn capacity(&self) -> usize {
        self.capacity
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Adds a completion. An event is due when the CQ is armed for it; arming is one shot.
    //= CQ-06
    pub(super) fn add(&mut self, completion: Completion) -> Added {
        if self.entries.len() >= self.capacity {
            return Added::Overflow;
        }
        let solicited = completion.status != WcStatus::Success
            || (completion.solicited && !completion.is_send);
        self.entries.push_back(completion);
        match self.armed {
            Armed::Next => {}
            Armed::Solicited if solicited => {}
            Armed::Solicited | Armed::No => return Added::Quiet,
        }
        self.armed = Armed::No;
        Added::Event
    }

    pub(super) fn take(&mut self) -> Option<Completion> {
        self.entries.pop_front()
    }

    /// Arms; entries already there cause no event (CQ-07), NEXT is never downgraded (CQ-05).
    pub(super) fn arm(&mut self, solicited_only: bool) {
        self.armed = match (self.armed, solicited_only) {
            (_, false) | (Armed::Next, true) => Armed::Next,
            (_, true) => Armed::Solicited,
        };
    }

    /// Changes the size; false where the entries would not fit (CQ-04).
    pub(super) fn resize(&mut self, capacity: usize) -> bool {
        if capacity < self.entries.len() {
            return false;
        }
        self.capacity = capacity;
        true
    }

    /// Drops the entries that `keep` refuses (RC-STA-04, CQ-13).
    pub(super) fn retain(&mut self, keep: impl FnMut(&Completion) -> bool) {
        self.entries.retain(keep);
    }
}
