//! Completion counters: the state that handles and queue pairs share.

use std::sync::Arc;

use rocade_transport::OpCounter;

use super::users::{User, Users};
use crate::sync::atomic::{AtomicU64, Ordering};

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

#[derive(Debug)]
pub(crate) struct CompCounterInner {
    unit: CounterUnit,
    completed: AtomicU64,
    failed: AtomicU64,
    users: Users,
}

impl CompCounterInner {
    pub(crate) fn new(unit: CounterUnit) -> Arc<Self> {
        Arc::new(Self {
            unit,
            completed: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            users: Users::default(),
        })
    }

    /// The place of a value. It wraps around to 0 after its maximum.
    pub(crate) const fn value(&self, which: CounterValue) -> &AtomicU64 {
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
        // A program that sees the count also sees the data that it stands for.
        self.counter.completed.fetch_add(amount, Ordering::Release);
    }

    fn add_failed(&self) {
        self.counter.failed.fetch_add(1, Ordering::Release);
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        self.counter.users.remove(self.user);
    }
}
