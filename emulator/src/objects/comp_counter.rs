//! Completion counters.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rocade_transport::{CountedOps, QpState};

use super::context::{Context, ContextInner};
use super::qp::Qp;
use crate::error::VerbsError;
use crate::memory::Word;
use crate::state::{CompCounterInner, CounterUnit, CounterValue, User};

/// A completion counter (`ibv_comp_cntr`): counts the completed operations of queue pairs, and
/// apart from these the failed ones. It ends with the last handle.
///
/// Both values begin with 0 and wrap around after [`u64::MAX`].
#[derive(Clone, Debug)]
#[doc(alias = "ibv_comp_cntr")]
pub struct CompCounter {
    owner: Arc<CounterOwner>,
}

#[derive(Debug)]
struct CounterOwner {
    context: Arc<ContextInner>,
    inner: Arc<CompCounterInner>,
    alive: AtomicBool,
}

impl Drop for CounterOwner {
    fn drop(&mut self) {
        self.end();
    }
}

impl CounterOwner {
    /// Gives its place back. Returns false if that was done before.
    fn end(&self) -> bool {
        let first = self.alive.swap(false, Ordering::AcqRel);
        if first {
            self.context.hca.give_counter_back();
        }
        first
    }
}

impl Context {
    /// Makes a completion counter that adds up `unit`.
    ///
    /// # Errors
    /// [`VerbsError::NoMemory`] above the device's limit.
    #[doc(alias = "ibv_create_comp_cntr")]
    pub fn comp_counter(&self, unit: CounterUnit) -> Result<CompCounter, VerbsError> {
        self.make_counter(unit, [None, None])
    }

    /// Makes a completion counter whose values are in memory of the program, where it gives an
    /// address: `completed`, `failed`. The program reads them there, and may change them.
    ///
    /// # Errors
    /// [`VerbsError::NoMemory`] above the device's limit. [`VerbsError::InvalidArgument`] if an
    /// address is no multiple of 8. [`VerbsError::Fault`] if it is not mapped for writing.
    ///
    /// # Safety
    /// Until the counter is destroyed and its last handle dropped, Rocade writes 8 bytes at each
    /// address. The caller must be entitled to allow that, and no Rust reference to the bytes may
    /// be alive meanwhile. Where nothing is mapped any more, the value is lost.
    #[doc(alias = "efadv_create_comp_cntr")]
    pub unsafe fn comp_counter_in(
        &self,
        unit: CounterUnit,
        completed: Option<u64>,
        failed: Option<u64>,
    ) -> Result<CompCounter, VerbsError> {
        let word = |addr: Option<u64>| match addr {
            Some(addr) if !addr.is_multiple_of(8) => {
                Err(VerbsError::InvalidArgument("address of a counter"))
            }
            // SAFETY: the caller's promise.
            Some(addr) => match unsafe { Word::new(addr) } {
                Some(word) => Ok(Some(word)),
                None => Err(VerbsError::Fault),
            },
            None => Ok(None),
        };
        self.make_counter(unit, [word(completed)?, word(failed)?])
    }

    fn make_counter(
        &self,
        unit: CounterUnit,
        [completed, failed]: [Option<Word>; 2],
    ) -> Result<CompCounter, VerbsError> {
        let context = Arc::clone(&self.inner);
        if !context.hca.take_counter() {
            return Err(VerbsError::NoMemory("completion counters"));
        }
        Ok(CompCounter {
            owner: Arc::new(CounterOwner {
                context,
                inner: CompCounterInner::new(unit, completed, failed),
                alive: AtomicBool::new(true),
            }),
        })
    }
}

impl CompCounter {
    /// Returns a value. Drives the links first, as a poll of an empty completion queue does.
    #[doc(alias = "ibv_read_comp_cntr")]
    #[must_use]
    pub fn read(&self, which: CounterValue) -> u64 {
        let engine = &self.owner.context.engine;
        engine.scheduler.polled();
        engine.progress_inline(None);
        self.owner.inner.value(which).get()
    }

    /// Sets a value. What completes meanwhile may be lost.
    #[doc(alias = "ibv_set_comp_cntr")]
    pub fn set(&self, which: CounterValue, value: u64) {
        self.owner.inner.value(which).set(value);
    }

    /// Adds to a value.
    #[doc(alias = "ibv_inc_comp_cntr")]
    pub fn add(&self, which: CounterValue, amount: u64) {
        self.owner.inner.value(which).add(amount);
    }

    /// Destroys the counter.
    ///
    /// # Errors
    /// [`VerbsError::Busy`] while it is attached to a QP. [`VerbsError::InvalidArgument`] if it was
    /// destroyed before.
    #[doc(alias = "ibv_destroy_comp_cntr")]
    pub fn destroy(&self) -> Result<(), VerbsError> {
        self.owner.inner.users().check("completion counter")?;
        if self.owner.end() {
            Ok(())
        } else {
            Err(VerbsError::InvalidArgument("already destroyed"))
        }
    }
}

impl Qp {
    /// Attaches a counter for some kinds of operations, until the QP is destroyed. Each kind has
    /// one counter at most.
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] if `kinds` is empty, if the counter is of another context,
    /// or if the QP is not in RESET or INIT. [`VerbsError::Busy`] if one of the kinds has a
    /// counter.
    #[doc(alias = "ibv_qp_attach_comp_cntr")]
    pub fn attach_counter(
        &self,
        counter: &CompCounter,
        kinds: CountedOps,
    ) -> Result<(), VerbsError> {
        if kinds.is_empty() {
            return Err(VerbsError::InvalidArgument("op_mask"));
        }
        if !Arc::ptr_eq(&self.owner().pd.context, &counter.owner.context) {
            return Err(VerbsError::InvalidArgument("counter of another context"));
        }
        if !matches!(self.state(), QpState::Reset | QpState::Init) {
            let why = "state of the QP: attach a counter in RESET or INIT";
            return Err(VerbsError::InvalidArgument(why));
        }
        let attachment = counter.owner.inner.attachment(User::Qp(self.qp_num()));
        let attached = self.inner().lock().qp.attach_counter(kinds, &attachment);
        if attached {
            return Ok(());
        }
        let what = format!("operation of QP {}, by another counter", self.qp_num());
        Err(VerbsError::Busy(what))
    }
}
