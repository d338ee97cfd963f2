//! WQEs of a work queue whose completions wait in a CQ.
//!
//! A WQE is free when the application has polled the completion that covers it. Polling must not
//! have to look up the QP. A CQ therefore numbers its completions and publishes the number of the
//! oldest one that was not polled. The QP remembers how many WQEs each completion frees, and reads
//! the published number when its queue is full.

use std::collections::VecDeque;

/// Completions with consecutive numbers that each free `each` WQEs.
#[derive(Clone, Copy, Debug)]
struct Run {
    first: u64,
    count: u32,
    each: u32,
}

/// The completions of one queue that its QP has not seen polled. A pointer until the first one,
/// because most of many QPs are idle.
#[derive(Debug, Default)]
pub(super) struct PendingWqes(Option<Box<Runs>>);

#[derive(Debug, Default)]
struct Runs(VecDeque<Run>);

impl PendingWqes {
    /// Records that completion `number` of the CQ frees `freed_wqes` WQEs. Numbers grow.
    #[inline]
    pub(super) fn note(&mut self, number: u64, freed_wqes: u32) {
        let Runs(runs) = &mut **self.0.get_or_insert_default();
        match runs.back_mut() {
            Some(run) if run.each == freed_wqes && run.first + u64::from(run.count) == number => {
                run.count += 1;
            }
            _ => runs.push_back(Run {
                first: number,
                count: 1,
                each: freed_wqes,
            }),
        }
    }

    /// Returns the number of WQEs that are free because all completions below `taken` were polled.
    /// Each WQE is returned once.
    pub(super) fn reclaim(&mut self, taken: u64) -> u32 {
        let Some(Runs(runs)) = self.0.as_deref_mut() else {
            return 0;
        };
        let mut freed_wqes = 0;
        while let Some(run) = runs.front_mut() {
            let ahead = u32::try_from(taken.saturating_sub(run.first)).unwrap_or(u32::MAX);
            let count = run.count.min(ahead);
            freed_wqes += count * run.each;
            if count < run.count {
                run.first += u64::from(count);
                run.count -= count;
                break;
            }
            runs.pop_front();
        }
        freed_wqes
    }

    /// Forgets the completions, which were removed from the CQ.
    pub(super) fn clear(&mut self) {
        if let Some(Runs(runs)) = self.0.as_deref_mut() {
            runs.clear();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    //= RC-WQE-03 type=test
    #[test]
    fn wqes_are_free_once_their_completion_is_taken() {
        let mut pending = PendingWqes::default();
        for (number, freed_wqes) in [(3, 1), (4, 1), (6, 1), (7, 5), (8, 5)] {
            pending.note(number, freed_wqes);
        }
        assert_eq!(pending.0.as_ref().unwrap().0.len(), 3);
        assert_eq!(pending.reclaim(3), 0);
        assert_eq!(pending.reclaim(4), 1);
        assert_eq!(pending.reclaim(4), 0, "once");
        assert_eq!(pending.reclaim(8), 1 + 1 + 5);
        pending.note(9, 2);
        assert_eq!(pending.reclaim(100), 5 + 2);
        pending.note(101, 1);
        pending.clear();
        assert_eq!(pending.reclaim(u64::MAX), 0);
    }
}
