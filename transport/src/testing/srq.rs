//! A shared receive queue behind a lock.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use std::sync::{Mutex, PoisonError};

use crate::memory::PdTag;
use crate::queue::{ReceiveDomain, RecvWqe, SharedReceives, Srq, Srqn};

/// An XRC domain: a map from numbers to queues.
#[derive(Debug, Default)]
pub struct TestDomain {
    srqs: Mutex<BTreeMap<Srqn, Arc<TestSrq>>>,
    elsewhere: Mutex<BTreeSet<Srqn>>,
}

impl TestDomain {
    /// The default queue of a [`Pair`](super::Pair).
    pub const FIRST: Srqn = Srqn::new(0x01_0001);

    /// Returns the queue of this number.
    #[must_use]
    pub fn get(&self, srqn: Srqn) -> Option<Arc<TestSrq>> {
        let srqs = self.srqs.lock().unwrap_or_else(PoisonError::into_inner);
        srqs.get(&srqn).cloned()
    }

    /// Sets or removes the queue of this number.
    pub fn set(&self, srqn: Srqn, srq: Option<&Arc<TestSrq>>) {
        let mut srqs = self.srqs.lock().unwrap_or_else(PoisonError::into_inner);
        match srq {
            Some(srq) => srqs.insert(srqn, Arc::clone(srq)),
            None => srqs.remove(&srqn),
        };
    }

    /// Assigns the number to a queue of another process.
    pub fn set_in_other_process(&self, srqn: Srqn) {
        self.set(srqn, None);
        let mut elsewhere = self
            .elsewhere
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        elsewhere.insert(srqn);
    }
}

impl ReceiveDomain for TestDomain {
    fn find(&self, srqn: Srqn) -> Option<Arc<dyn SharedReceives>> {
        self.get(srqn).map(|srq| srq as _)
    }

    fn is_in_other_process(&self, srqn: Srqn) -> bool {
        let elsewhere = self
            .elsewhere
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        elsewhere.contains(&srqn)
    }

    fn forget(&self, srqn: Srqn) {
        if let Some(srq) = self.find(srqn) {
            srq.forget();
        }
    }
}

/// A shared receive queue, with a count of limit events.
#[derive(Debug)]
pub struct TestSrq {
    pd: PdTag,
    inner: Mutex<(Srq, usize)>,
}

impl TestSrq {
    /// Creates a queue for `max_wr` receives of up to 8 entries.
    #[must_use]
    pub const fn new(pd: PdTag, max_wr: u32) -> Self {
        Self {
            pd,
            inner: Mutex::new((Srq::new(pd, max_wr, 8), 0)),
        }
    }

    /// Calls `f` with the queue.
    pub fn with<R>(&self, f: impl FnOnce(&mut Srq) -> R) -> R {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        f(&mut inner.0)
    }

    /// Returns how often the limit was reached.
    #[must_use]
    pub fn limit_events(&self) -> usize {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).1
    }
}

impl SharedReceives for TestSrq {
    fn pd(&self) -> PdTag {
        self.pd
    }

    fn take(&self) -> Option<RecvWqe> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = inner.0.take()?;
        inner.1 += usize::from(taken.limit_reached);
        Some(taken.wqe)
    }

    fn forget(&self) {
        self.with(|srq| srq.free_wqes(1));
    }
}
