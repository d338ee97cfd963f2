//! Completion counters: the state that handles and queue pairs share.

use std::sync::Arc;

use rocade_transport::OpCounter;

use super::users::{User, Users};
use crate::memory::Word;
use crate::sync::modelled::atomic::{AtomicU64, Ordering};

/// The unit of a completion counter (`ibv_comp_cntr_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CounterUnit {
    /// Completed work requests, or operations of a peer.
    WorkRequests,
    /// Their bytes.
    Bytes,
}

/// One of the two values of a completion counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CounterValue {
    /// The sum of what has completed with success.
    Completed,
    /// The number of operations that have failed, whatever the unit.
    Failed,
}

/// The place of a value. It wraps around to 0 after its maximum.
#[derive(Debug)]
pub(crate) enum CounterPlace {
    Own(AtomicU64),
    /// Memory of the program, which may change it, too.
    Program(Word),
}

impl CounterPlace {
    /// A value of 0 in this memory, or else in memory of its own.
    fn new(word: Option<Word>) -> Self {
        match word {
            Some(word) => {
                word.set(0);
                Self::Program(word)
            }
            None => Self::Own(AtomicU64::new(0)),
        }
    }

    pub(crate) fn get(&self) -> u64 {
        match self {
            Self::Own(value) => value.load(Ordering::Acquire),
            Self::Program(word) => word.add(0),
        }
    }

    pub(crate) fn set(&self, value: u64) {
        match self {
            Self::Own(own) => own.store(value, Ordering::Release),
            Self::Program(word) => word.set(value),
        }
    }

    /// Adds to the value. A program that sees the sum also sees the data that it stands for.
    pub(crate) fn add(&self, amount: u64) {
        match self {
            Self::Own(own) => {
                own.fetch_add(amount, Ordering::AcqRel);
            }
            Self::Program(word) => {
                word.add(amount);
            }
        }
    }
}

#[derive(Debug)]
pub(crate) struct CompCounterInner {
    unit: CounterUnit,
    completed: CounterPlace,
    failed: CounterPlace,
    users: Users,
}

impl CompCounterInner {
    /// Makes a counter with both values 0, in memory of the program where there is some.
    pub(crate) fn new(
        unit: CounterUnit,
        completed: Option<Word>,
        failed: Option<Word>,
    ) -> Arc<Self> {
        Arc::new(Self {
            unit,
            completed: CounterPlace::new(completed),
            failed: CounterPlace::new(failed),
            users: Users::default(),
        })
    }

    /// The place of a value.
    pub(crate) const fn value(&self, which: CounterValue) -> &CounterPlace {
        match which {
            CounterValue::Completed => &self.completed,
            CounterValue::Failed => &self.failed,
        }
    }

    /// The QPs that it is attached to, one user for each call that has attached it.
    pub(crate) const fn users(&self) -> &Users {
        &self.users
    }

    /// Returns the part of this counter that a QP holds. The part is a user until it is dropped.
    pub(crate) fn attachment(self: &Arc<Self>, user: User) -> Arc<dyn OpCounter> {
        self.users.add(user);
        Arc::new(Attachment {
            counter: Arc::clone(self),
            user,
        })
    }
}

#[derive(Debug)]
struct Attachment {
    counter: Arc<CompCounterInner>,
    user: User,
}

impl OpCounter for Attachment {
    fn add(&self, operations: u64, bytes: u64) {
        let amount = match self.counter.unit {
            CounterUnit::WorkRequests => operations,
            CounterUnit::Bytes => bytes,
        };
        self.counter.completed.add(amount);
    }

    fn add_failed(&self) {
        self.counter.failed.add(1);
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        self.counter.users.remove(self.user);
    }
}
