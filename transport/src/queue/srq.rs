//! Shared receive queues.

use alloc::sync::Arc;
use core::fmt;

use super::recv::{RecvLimits, RecvQueue, RecvWqe};
use crate::error::PostError;
use crate::memory::PdTag;
use crate::wr::Sge;

/// Number of an XRC SRQ, 24 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Srqn(u32);

impl Srqn {
    /// The number that no SRQ has.
    pub const NONE: Self = Self(0);

    /// Creates a number from the low 24 bits.
    #[must_use]
    pub const fn new(number: u32) -> Self {
        Self(number & 0x00ff_ffff)
    }

    /// Returns the number.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }
}

/// Attributes of `ibv_modify_srq` and `ibv_query_srq`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "ibv_srq_attr")]
pub struct SrqAttr {
    /// Size of the queue, in receives.
    pub max_wr: u32,
    /// Scatter/gather entries of a receive.
    pub max_sge: u32,
    /// An event is raised when fewer receives than this are left. 0 for none.
    pub srq_limit: u32,
}

/// The reason why `ibv_modify_srq` was refused. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SrqError {
    /// Fewer receives than are in use (EINVAL).
    TooSmall,
    /// The limit is above the size of the queue (EINVAL).
    LimitAboveSize,
}

impl fmt::Display for SrqError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TooSmall => "max_wr is below the number of receives in use",
            Self::LimitAboveSize => "srq_limit is above max_wr",
        })
    }
}

/// A receive that was taken from a shared queue.
#[derive(Debug)]
pub struct Taken {
    /// The receive.
    pub wqe: RecvWqe,
    /// Fewer receives than the limit are left: an event is due.
    pub limit_reached: bool,
}

/// A shared receive queue: receives of one protection domain that several queue pairs consume,
/// oldest first.
///
/// A WQE is free once the application has polled the completion of its receive, as in the own queue
/// of a QP.
#[derive(Debug)]
pub struct Srq {
    queue: RecvQueue,
    limit: u32,
}

impl Srq {
    /// Creates an empty queue. The sizes were granted.
    #[must_use]
    pub const fn new(pd: PdTag, max_wr: u32, max_sge: u32) -> Self {
        Self {
            queue: RecvQueue::new(pd, RecvLimits { max_wr, max_sge }),
            limit: 0,
        }
    }

    /// Queues a receive.
    ///
    /// # Errors
    /// [`PostError::QueueFull`] if the queue holds `max_wr` receives, [`PostError::TooManySges`] if
    /// `sges` is longer than the queue allows. The receive is not queued.
    #[inline]
    pub fn post(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        let result = self.queue.post(wr_id, sges);
        self.check_invariants();
        result
    }

    /// Takes the oldest receive. `None` if there is none.
    //= SRQ-07
    #[inline]
    pub fn take(&mut self) -> Option<Taken> {
        let wqe = self.queue.take()?;
        //= SRQ-04
        //= SRQ-05
        let limit_reached = self.queue.len() < self.limit as usize;
        if limit_reached {
            self.limit = 0;
        }
        self.check_invariants();
        Some(Taken { wqe, limit_reached })
    }

    /// Frees WQEs: the application has polled the completions of their receives, or the receives
    /// will not complete.
    pub const fn free_wqes(&mut self, freed_wqes: u32) {
        self.queue.free_wqes(freed_wqes);
    }

    /// Changes the size, the limit, or both.
    ///
    /// # Errors
    /// [`SrqError::TooSmall`] if more receives are in use, [`SrqError::LimitAboveSize`] if the
    /// limit is above the size. Nothing has changed.
    //= SRQ-02
    //= SRQ-03
    pub fn modify(&mut self, max_wr: Option<u32>, limit: Option<u32>) -> Result<(), SrqError> {
        let RecvLimits { max_wr: now, .. } = self.queue.limits();
        let size = max_wr.unwrap_or(now);
        if size < self.queue.used() {
            return Err(SrqError::TooSmall);
        }
        let limit = limit.unwrap_or(self.limit);
        if limit > size {
            return Err(SrqError::LimitAboveSize);
        }
        self.queue.resize(size);
        self.limit = limit;
        self.check_invariants();
        Ok(())
    }

    /// Asserts in debug builds that the limit and the receives fit the queue.
    #[inline]
    fn check_invariants(&self) {
        #[cfg(debug_assertions)]
        {
            self.queue.check_invariants();
            assert!(self.limit <= self.queue.limits().max_wr, "{self:?}");
        }
    }

    /// Returns the current attributes.
    //= SRQ-08
    #[must_use]
    pub const fn query(&self) -> SrqAttr {
        let RecvLimits { max_wr, max_sge } = self.queue.limits();
        SrqAttr {
            max_wr,
            max_sge,
            srq_limit: self.limit,
        }
    }

    /// Returns the number of receives that no message has consumed.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.queue.len()
    }
}

/// A shared receive queue as a queue pair uses it. The implementation does the locking.
///
/// Locks are taken in the order queue pair, shared receive queue, completion queue. An
/// implementation must not call a queue pair.
pub trait SharedReceives: fmt::Debug + Send + Sync {
    /// Returns the protection domain of its receives. With XRC, the peer's remote accesses are
    /// checked against it, too.
    fn pd(&self) -> PdTag;

    /// Takes the receive for a new message. `None` if there is none.
    fn take(&self) -> Option<RecvWqe>;

    /// Notes that a receive that was taken will not complete: its WQE is free.
    fn forget(&self);
}

/// The shared receive queues of an XRC domain.
pub trait ReceiveDomain: fmt::Debug + Send + Sync {
    /// Returns the queue with this number, if the domain has it.
    fn find(&self, srqn: Srqn) -> Option<Arc<dyn SharedReceives>>;

    /// Returns true if another process that shares the domain has a queue of this number.
    ///
    /// Called if [`ReceiveDomain::find`] finds none.
    fn is_in_other_process(&self, srqn: Srqn) -> bool {
        let _ = srqn;
        false
    }

    /// Notes that a receive that was taken from that queue will not complete: its WQE is free.
    fn forget(&self, srqn: Srqn);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn srq(max_wr: u32) -> Srq {
        Srq::new(PdTag(1), max_wr, 2)
    }

    fn take(srq: &mut Srq) -> Option<(u64, bool)> {
        srq.take().map(|t| (t.wqe.wr_id, t.limit_reached))
    }

    //= SRQ-07 type=test
    //= SRQ-06 type=test
    #[test]
    fn receives_are_taken_in_order_and_their_slots_last_until_freed() {
        let mut srq = srq(2);
        assert_eq!(take(&mut srq), None);
        let sge = Sge::default();
        assert_eq!(srq.post(1, &[sge; 3]), Err(PostError::TooManySges));
        assert_eq!(srq.post(1, &[sge; 2]), Ok(()));
        assert_eq!(srq.post(2, &[]), Ok(()));
        assert_eq!(srq.post(3, &[]), Err(PostError::QueueFull));
        assert_eq!(take(&mut srq), Some((1, false)));
        //= RC-WQE-03 type=test
        assert_eq!(srq.post(3, &[]), Err(PostError::QueueFull));
        srq.free_wqes(1);
        assert_eq!(srq.post(3, &[]), Ok(()));
        assert_eq!(srq.queued(), 2);
        assert_eq!(take(&mut srq), Some((2, false)));
        assert_eq!(take(&mut srq), Some((3, false)));
        assert_eq!(take(&mut srq), None);
    }

    //= SRQ-04 type=test
    //= SRQ-05 type=test
    //= SRQ-08 type=test
    #[test]
    fn the_limit_is_reached_once() {
        let mut srq = srq(4);
        for wr_id in 0..4 {
            srq.post(wr_id, &[]).unwrap();
        }
        srq.modify(None, Some(3)).unwrap();
        let attr = |srq_limit| SrqAttr {
            max_wr: 4,
            max_sge: 2,
            srq_limit,
        };
        assert_eq!(srq.query(), attr(3));
        assert_eq!(
            take(&mut srq),
            Some((0, false)),
            "three are not below three"
        );
        assert_eq!(take(&mut srq), Some((1, true)));
        assert_eq!(srq.query(), attr(0), "disarmed");
        assert_eq!(take(&mut srq), Some((2, false)));
        srq.modify(None, Some(4)).unwrap();
        assert_eq!(take(&mut srq), Some((3, true)), "armed when below already");
        srq.post(4, &[]).unwrap_err();
        srq.free_wqes(4);
        srq.post(4, &[]).unwrap();
        srq.modify(None, Some(1)).unwrap();
        srq.modify(None, Some(0)).unwrap();
        assert_eq!(take(&mut srq), Some((4, false)), "0 disarms");
    }

    //= SRQ-02 type=test
    //= SRQ-03 type=test
    #[test]
    fn size_and_limit_change_together_or_not_at_all() {
        let mut srq = srq(4);
        for wr_id in 0..3 {
            srq.post(wr_id, &[]).unwrap();
        }
        take(&mut srq).unwrap();
        let before = srq.query();
        for (max_wr, limit, error) in [
            (Some(2), None, SrqError::TooSmall),
            (Some(0), None, SrqError::TooSmall),
            (None, Some(5), SrqError::LimitAboveSize),
            (Some(8), Some(9), SrqError::LimitAboveSize),
            (Some(2), Some(1), SrqError::TooSmall),
        ] {
            assert_eq!(
                srq.modify(max_wr, limit),
                Err(error),
                "{max_wr:?} {limit:?}"
            );
            assert_eq!(srq.query(), before);
        }
        srq.modify(Some(3), Some(3)).unwrap();
        assert_eq!((srq.query().max_wr, srq.query().srq_limit), (3, 3));
        assert_eq!(srq.post(3, &[]), Err(PostError::QueueFull));
        srq.modify(Some(5), None).unwrap();
        assert_eq!(srq.query().srq_limit, 3, "stays armed");
        srq.post(3, &[]).unwrap();
        srq.post(4, &[]).unwrap();
        assert_eq!(srq.post(5, &[]), Err(PostError::QueueFull));
        while srq.take().is_some() {}
        srq.free_wqes(5);
        srq.modify(None, Some(3)).unwrap();
        assert_eq!(
            srq.modify(Some(2), None),
            Err(SrqError::LimitAboveSize),
            "the limit that is armed has to fit as well"
        );
    }
}
