//! A shared receive queue behind a lock.

use std::sync::{Mutex, PoisonError};

use crate::memory::PdTag;
use crate::queue::{RecvWqe, SharedReceives, Srq};

/// A shared receive queue, and how often its limit was reached.
#[derive(Debug)]
pub struct TestSrq {
    inner: Mutex<(Srq, usize)>,
}

impl TestSrq {
    /// With room for `max_wr` receives of up to 4 entries.
    #[must_use]
    pub const fn new(pd: PdTag, max_wr: u32) -> Self {
        Self {
            inner: Mutex::new((Srq::new(pd, max_wr, 4), 0)),
        }
    }

    /// Calls `f` with the queue.
    pub fn with<R>(&self, f: impl FnOnce(&mut Srq) -> R) -> R {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        f(&mut inner.0)
    }

    /// How often the limit was reached.
    #[must_use]
    pub fn limit_events(&self) -> usize {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).1
    }
}

impl SharedReceives for TestSrq {
    fn take(&self) -> Option<RecvWqe> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = inner.0.take()?;
        inner.1 += usize::from(taken.limit_reached);
        Some(taken.wqe)
    }

    fn forget(&self) {
        self.with(|srq| srq.free_slots(1));
    }
}
