//! Counts of events that the application has got and not acknowledged.

use std::sync::{Arc, OnceLock};

use crate::sync::{Condvar, Mutex};

/// Counts the events of one object that the application has got and not acknowledged. Destroying
/// the object waits until all are acknowledged.
#[derive(Debug, Default)]
pub(crate) struct AckCounter {
    unacked: Mutex<u64>,
    all_acked: Condvar,
}

impl AckCounter {
    pub(crate) fn delivered(&self) {
        *self.unacked.lock() += 1;
    }

    pub(crate) fn ack(&self, count: u64) {
        let mut unacked = self.unacked.lock();
        *unacked = unacked.saturating_sub(count);
        if *unacked == 0 {
            self.all_acked.notify_all();
        }
    }

    pub(crate) fn wait(&self) {
        let mut unacked = self.unacked.lock();
        while *unacked > 0 {
            self.all_acked.wait(&mut unacked);
        }
    }
}

/// The [`AckCounter`] of an object that seldom has events, allocated with the first one.
#[derive(Debug, Default)]
pub(crate) struct LazyAcks(OnceLock<Arc<AckCounter>>);

impl LazyAcks {
    /// Returns the counter for a new event.
    pub(crate) fn share(&self) -> Arc<AckCounter> {
        Arc::clone(self.0.get_or_init(Arc::default))
    }

    /// Returns the counter if there were any events.
    pub(crate) fn get(&self) -> Option<&Arc<AckCounter>> {
        self.0.get()
    }
}
