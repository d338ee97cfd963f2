//! The outstanding operations of a completion queue.

use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;

use rocade_emulator::{Qpn, VerbsError as RawError};

use crate::completion::Completion;
use crate::error::{OperationError, Result};
use crate::slice::Slices;

/// The upper 16 bits of the `wr_id` of each operation of a queue pair. User space addresses do not
/// have them.
const PREFIX: u64 = 0xf07e;
/// The upper 16 bits of the `wr_id` of each receive of a shared receive queue.
const SHARED_PREFIX: u64 = 0xf07f;
const INDEX_BITS: u32 = 24;
const MASK: u64 = (1 << INDEX_BITS) - 1;

/// Returns true if the `wr_id` is one of those that operations have.
pub(crate) const fn is_operation(wr_id: u64) -> bool {
    wr_id >> (2 * INDEX_BITS) == PREFIX || is_shared(wr_id)
}

/// Returns true if the `wr_id` is that of a receive of a shared receive queue.
pub(crate) const fn is_shared(wr_id: u64) -> bool {
    wr_id >> (2 * INDEX_BITS) == SHARED_PREFIX
}

/// Returns the tag of the shared receive queue whose receive has this `wr_id`.
pub(crate) const fn tag_of(wr_id: u64) -> u64 {
    wr_id >> INDEX_BITS & MASK
}

/// Returns the tag of a new shared receive queue. It is unique among 2^24 successive ones.
pub(crate) fn new_tag() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) & MASK
}

/// Refuses a `wr_id` of a program that is one of those that operations have.
pub(crate) const fn check_wr_id(wr_id: u64) -> Result<(), RawError> {
    if is_operation(wr_id) {
        return Err(RawError::InvalidArgument(
            "wr_id: its upper 16 bits are 0xf07e or 0xf07f, which futures use",
        ));
    }
    Ok(())
}

/// The end of an operation.
#[derive(Clone, Copy)]
enum Outcome {
    Completed(Completion),
    Dropped,
}

struct Slot {
    generation: u64,
    owner: u64,
    qp_num: Qpn,
    waker: Option<Waker>,
    outcome: Option<Outcome>,
    /// The memory that the device may still access.
    memory: Slices,
    /// The completion has not come.
    is_in_flight: bool,
    has_future: bool,
}

impl Slot {
    /// Sets the outcome, and returns the task that waits for it.
    fn end(&mut self, outcome: Outcome) -> Option<Waker> {
        self.outcome.get_or_insert(outcome);
        self.waker.take()
    }
}

#[derive(Default)]
pub(crate) struct Slots {
    all: Vec<Slot>,
    free: Vec<usize>,
    in_flight: usize,
    /// The tag of the shared receive queue whose receives these are. Their completions come from
    /// any of its queue pairs.
    tag: Option<u64>,
}

impl Slots {
    /// Returns the slots of a shared receive queue.
    pub(crate) fn tagged(tag: u64) -> Self {
        Self {
            tag: Some(tag),
            ..Self::default()
        }
    }

    /// The number of operations without a completion.
    pub(crate) const fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Adds an operation of the queue pair `owner`, and returns its `wr_id`. The completion queue
    /// has room for `limit` completions.
    pub(crate) fn begin(
        &mut self,
        owner: u64,
        qp_num: Qpn,
        memory: Slices,
        limit: u32,
    ) -> Result<u64, OperationError> {
        let limit = (limit as usize).min(1 << INDEX_BITS);
        if self.in_flight >= limit {
            let what = "completion queue: as many operations are outstanding as it has entries";
            return Err(RawError::NoMemory(what).into());
        }
        let index = self.free.pop().unwrap_or(self.all.len());
        let generation = match (self.tag, self.all.get(index)) {
            // A slot is free after its only completion, so that its `wr_id` may be the same again.
            (Some(tag), _) => tag,
            (None, Some(old)) => (old.generation + 1) & MASK,
            (None, None) => 0,
        };
        let prefix = self.tag.map_or(PREFIX, |_| SHARED_PREFIX);
        let slot = Slot {
            generation,
            owner,
            qp_num,
            waker: None,
            outcome: None,
            memory,
            is_in_flight: true,
            has_future: true,
        };
        match self.all.get_mut(index) {
            Some(place) => *place = slot,
            None => self.all.push(slot),
        }
        self.in_flight += 1;
        Ok(prefix << (2 * INDEX_BITS) | generation << INDEX_BITS | index as u64)
    }

    fn find(&mut self, id: u64) -> Option<(usize, &mut Slot)> {
        let index = usize::try_from(id & MASK).ok()?;
        let slot = self.all.get_mut(index)?;
        let is_current = slot.generation == id >> INDEX_BITS & MASK;
        let is_used = slot.is_in_flight || slot.has_future;
        (is_current && is_used).then_some((index, slot))
    }

    /// Forgets an operation that was not posted.
    pub(crate) fn cancel(&mut self, id: u64) -> Slices {
        let Some((index, slot)) = self.find(id) else {
            return Slices::default();
        };
        (slot.is_in_flight, slot.has_future) = (false, false);
        let memory = std::mem::take(&mut slot.memory);
        self.in_flight -= 1;
        self.free.push(index);
        memory
    }

    /// Adds memory that has to live as long as the operation.
    pub(crate) fn keep(&mut self, id: u64, memory: Slices) {
        if let Some((_, slot)) = self.find(id)
            && slot.is_in_flight
        {
            slot.memory.extend(memory);
        }
    }

    /// Ends the operation of the completion. Returns the task to wake, and the memory.
    pub(crate) fn complete(&mut self, completion: Completion) -> (Option<Waker>, Slices) {
        let is_of_any = self.tag.is_some();
        let Some((index, slot)) = self.find(completion.wr_id) else {
            return Default::default();
        };
        if !slot.is_in_flight || !is_of_any && slot.qp_num != completion.qp_num {
            return Default::default();
        }
        slot.is_in_flight = false;
        let waker = slot.end(Outcome::Completed(completion));
        let memory = std::mem::take(&mut slot.memory);
        let is_free = !slot.has_future;
        self.in_flight -= 1;
        if is_free {
            self.free.push(index);
        }
        (waker, memory)
    }

    /// Takes the result of an operation, or stores the waker of the task that waits for it.
    pub(crate) fn outcome(
        &mut self,
        id: u64,
        waker: Option<&Waker>,
    ) -> Option<Result<Completion, OperationError>> {
        let Some((index, slot)) = self.find(id) else {
            return Some(Err(OperationError::Dropped));
        };
        let Some(outcome) = slot.outcome else {
            match (&mut slot.waker, waker) {
                (Some(known), Some(waker)) => known.clone_from(waker),
                (known @ None, Some(waker)) => *known = Some(waker.clone()),
                (_, None) => {}
            }
            return None;
        };
        slot.has_future = false;
        if !slot.is_in_flight {
            self.free.push(index);
        }
        Some(match outcome {
            Outcome::Completed(completion) => completion.into_result().map_err(Into::into),
            Outcome::Dropped => Err(OperationError::Dropped),
        })
    }

    /// Notes that an operation has no future any more. Its memory stays until the completion.
    /// Returns true if the completion has not come.
    pub(crate) fn abandon(&mut self, id: u64) -> bool {
        let Some((index, slot)) = self.find(id) else {
            return false;
        };
        if !slot.has_future {
            return false;
        }
        slot.has_future = false;
        slot.waker = None;
        let is_in_flight = slot.is_in_flight;
        if !is_in_flight {
            self.free.push(index);
        }
        is_in_flight
    }

    /// Ends the operations of a queue pair. Returns the tasks to wake, and the memory.
    pub(crate) fn end_of(&mut self, owner: u64) -> (Vec<Waker>, Vec<Slices>) {
        let (mut woken, mut released) = (Vec::new(), Vec::new());
        for (index, slot) in self.all.iter_mut().enumerate() {
            if !slot.is_in_flight || slot.owner != owner {
                continue;
            }
            slot.is_in_flight = false;
            self.in_flight -= 1;
            woken.extend(slot.end(Outcome::Dropped));
            released.push(std::mem::take(&mut slot.memory));
            if !slot.has_future {
                self.free.push(index);
            }
        }
        (woken, released)
    }

    /// Lets all futures fail. The memory stays until the completions.
    pub(crate) fn fail_all(&mut self) -> Vec<Waker> {
        let in_flight = self.all.iter_mut().filter(|slot| slot.is_in_flight);
        in_flight
            .filter_map(|slot| slot.end(Outcome::Dropped))
            .collect()
    }

    /// Takes the wakers of all tasks.
    pub(crate) fn wakers(&mut self) -> Vec<Waker> {
        let slots = self.all.iter_mut();
        slots.filter_map(|slot| slot.waker.take()).collect()
    }
}
