//! The way of completions from a queue to those that wait for them: futures of operations, tasks
//! that wait for any completion, and callers that poll.
//!
//! Operations have the `wr_id`s of a range of their own, which names the slot of the operation. A
//! thread that takes completions hands each to its slot, and keeps the others for callers. So any
//! thread that polls serves all, and one completion wakes one task.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::task::{Wake, Waker};

use rocade_emulator::{CompChannel, Cq, Qpn, VerbsError as RawError};

use crate::completion::Completion;
use crate::error::{OperationError, Result, VerbsError};
use crate::reactor;
use crate::shared_futures::SharedReceives;
use crate::simulation::Simulator;
use crate::slots::{Slots, is_operation, is_shared, tag_of};

/// The number of completions that are taken at once.
const BATCH: usize = 16;

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The data is consistent even after a panic of another thread.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A completion queue, and all that wait for its completions.
pub(crate) struct Router {
    pub(crate) cq: Cq,
    pub(crate) channel: CompChannel,
    simulator: Option<Weak<Simulator>>,
    myself: Weak<Self>,
    /// Dispatches when the descriptor is readable.
    hook: Waker,
    /// Held while completions are taken and delivered, so that they keep their order.
    turn: Mutex<()>,
    state: Mutex<State>,
    /// Futures have used the queue, so a completion may belong to one of them.
    has_futures: AtomicBool,
    /// Completions that were taken may wait for callers.
    has_kept: AtomicBool,
}

#[derive(Default)]
struct State {
    slots: Slots,
    /// Completions that belong to no operation.
    kept: VecDeque<Completion>,
    /// The tasks that wait for one of them.
    waiting: VecDeque<(u64, Waker)>,
    last_key: u64,
    is_armed: bool,
    drivers: usize,
    /// Threads that sleep until the channel has an event, which they take.
    sleepers: usize,
    is_closed: bool,
    /// The shared receive queues whose receives complete here.
    shared: Vec<Weak<SharedReceives>>,
}

/// The waker that the reactor calls.
struct Hook(Weak<Router>);

impl Wake for Hook {
    fn wake(self: Arc<Self>) {
        let Some(router) = self.0.upgrade() else {
            return;
        };
        if router.dispatch().is_err() {
            // Each task gets the error by its own attempt.
            router.wake_all();
        }
    }
}

impl Router {
    pub(crate) fn new(
        cq: Cq,
        channel: CompChannel,
        simulator: Option<&Arc<Simulator>>,
    ) -> Arc<Self> {
        Arc::new_cyclic(|myself| Self {
            cq,
            channel,
            simulator: simulator.map(Arc::downgrade),
            myself: Weak::clone(myself),
            hook: Waker::from(Arc::new(Hook(Weak::clone(myself)))),
            turn: Mutex::default(),
            state: Mutex::default(),
            has_futures: AtomicBool::new(false),
            has_kept: AtomicBool::new(false),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Returns true if futures have used the queue.
    pub(crate) fn has_futures(&self) -> bool {
        self.has_futures.load(Ordering::Acquire)
    }

    /// Returns true if a completion waits for callers.
    pub(crate) fn has_completion(&self) -> bool {
        self.has_kept.load(Ordering::Acquire) || !self.cq.is_empty()
    }

    /// Runs `f` on the slots of operations, or fails if the queue was dropped.
    pub(crate) fn with_slots<T>(
        &self,
        f: impl FnOnce(&mut Slots) -> Result<T, OperationError>,
    ) -> Result<T, OperationError> {
        self.has_futures.store(true, Ordering::Release);
        let mut state = self.state();
        if state.is_closed {
            return Err(OperationError::Dropped);
        }
        f(&mut state.slots)
    }

    /// Runs `f` on the slots of operations, even if the queue was dropped.
    pub(crate) fn slots<T>(&self, f: impl FnOnce(&mut Slots) -> T) -> T {
        f(&mut self.state().slots)
    }

    /// Takes completions and delivers them. With `drives`, an empty queue drives the device.
    pub(crate) fn take(&self, drives: bool) {
        let _turn = lock(&self.turn);
        self.take_in_turn(drives);
    }

    /// Takes completions for a task, unless another thread is doing that: its deliveries wake.
    pub(crate) fn try_take(&self) {
        let _turn = match self.turn.try_lock() {
            Ok(turn) => turn,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        // In a simulation only the executor moves the time.
        self.take_in_turn(self.simulator.is_none());
    }

    fn take_in_turn(&self, mut drives: bool) {
        while drives || !self.cq.is_empty() {
            drives = false;
            let mut batch = [None; BATCH];
            let taken = self.cq.poll_with(BATCH, |index, completion| {
                batch[index] = Some(Completion::from(completion));
            });
            self.deliver(batch.into_iter().flatten());
            if taken < BATCH {
                return;
            }
        }
    }

    fn deliver(&self, completions: impl Iterator<Item = Completion>) {
        let (mut woken, mut released) = (Vec::new(), Vec::new());
        let mut shared = Vec::new();
        let mut state = self.state();
        for completion in completions {
            if is_shared(completion.wr_id) {
                shared.push(completion);
            } else if is_operation(completion.wr_id) {
                let (waker, memory) = state.slots.complete(completion);
                woken.extend(waker);
                if !memory.is_empty() {
                    released.push(memory);
                }
            } else {
                state.kept.push_back(completion);
                self.has_kept.store(true, Ordering::Release);
                woken.extend(state.waiting.pop_front().map(|(_, waker)| waker));
            }
        }
        drop(state);
        for completion in shared {
            if let Some(receives) = self.shared(tag_of(completion.wr_id)) {
                let (waker, memory) = receives.complete(completion);
                woken.extend(waker);
                released.push(memory);
            }
        }
        // Ending a region takes locks of the device.
        drop(released);
        woken.into_iter().for_each(Waker::wake);
    }

    /// Returns a shared receive queue whose receives complete here.
    fn shared(&self, tag: u64) -> Option<Arc<SharedReceives>> {
        let shared = self.state().shared.clone();
        let mut receives = shared.iter().filter_map(Weak::upgrade);
        receives.find(|receives| receives.tag() == tag)
    }

    /// Hands receives of a shared receive queue that complete here to their futures from now on.
    pub(crate) fn add_shared(&self, receives: &Arc<SharedReceives>) {
        let mut state = self.state();
        state.shared.retain(|known| known.strong_count() > 0);
        let new = Arc::downgrade(receives);
        if !state.shared.iter().any(|known| known.ptr_eq(&new)) {
            state.shared.push(new);
        }
    }

    /// Notes that futures use the queue.
    pub(crate) fn note_futures(&self) {
        self.has_futures.store(true, Ordering::Release);
    }

    /// Returns true if futures of a shared receive queue may end here.
    fn awaits_shared(&self) -> bool {
        let shared = self.state().shared.clone();
        let mut receives = shared.iter().filter_map(Weak::upgrade);
        receives.any(|receives| receives.is_awaited())
    }

    /// Takes the next completion of a caller.
    pub(crate) fn poll(&self) -> Option<Completion> {
        if !self.has_futures() && !self.has_kept.load(Ordering::Acquire) {
            let completion = self.cq.poll_one().map(Completion::from)?;
            if !is_operation(completion.wr_id) {
                return Some(completion);
            }
            self.deliver([completion].into_iter());
        }
        let _turn = lock(&self.turn);
        self.pop().or_else(|| {
            self.take_in_turn(true);
            self.pop()
        })
    }

    /// Takes up to `max` completions of a caller at once.
    pub(crate) fn poll_into(&self, out: &mut Vec<Completion>, max: usize) -> usize {
        let before = out.len();
        if self.has_futures() || self.has_kept.load(Ordering::Acquire) {
            let some = std::iter::from_fn(|| self.poll());
            out.extend(some.take(max));
            return out.len() - before;
        }
        let mut own = None;
        self.cq.poll_with(max, |_, completion| {
            let completion = Completion::from(completion);
            if is_operation(completion.wr_id) {
                own.get_or_insert_with(Vec::new).push(completion);
            } else {
                out.push(completion);
            }
        });
        if let Some(own) = own {
            self.deliver(own.into_iter());
        }
        out.len() - before
    }

    fn pop(&self) -> Option<Completion> {
        let mut state = self.state();
        let completion = state.kept.pop_front();
        if state.kept.is_empty() {
            self.has_kept.store(false, Ordering::Release);
        }
        completion
    }

    /// Drops the completions that a queue pair has left for callers, because it ends.
    pub(crate) fn forget(&self, qp_num: Qpn) {
        let mut state = self.state();
        state.kept.retain(|kept| kept.qp_num != qp_num);
        let has_kept = !state.kept.is_empty();
        self.has_kept.store(has_kept, Ordering::Release);
    }

    /// Gives completions back, which become the next ones.
    pub(crate) fn put_back(&self, completions: Vec<Completion>) {
        let mut state = self.state();
        for completion in completions.into_iter().rev() {
            state.kept.push_front(completion);
            self.has_kept.store(true, Ordering::Release);
        }
    }

    /// Takes the next completion of a caller, or registers the task that waits for it.
    pub(crate) fn pop_or_wait(
        &self,
        key: &mut Option<u64>,
        waker: Option<&Waker>,
    ) -> Option<Completion> {
        self.has_futures.store(true, Ordering::Release);
        let mut state = self.state();
        if let Some(completion) = state.kept.pop_front() {
            state.waiting.retain(|(other, _)| Some(*other) != *key);
            *key = None;
            let more = !state.kept.is_empty();
            self.has_kept.store(more, Ordering::Release);
            let next = more.then(|| state.waiting.pop_front()).flatten();
            drop(state);
            if let Some((_, waker)) = next {
                waker.wake();
            }
            return Some(completion);
        }
        let waker = waker?;
        let is_own = |(other, known): &&mut (u64, Waker)| {
            key.map_or_else(|| known.will_wake(waker), |key| key == *other)
        };
        if let Some((_, known)) = state.waiting.iter_mut().find(is_own) {
            known.clone_from(waker);
            return None;
        }
        state.last_key += 1;
        let new = state.last_key;
        state.waiting.push_back((new, waker.clone()));
        *key = Some(new);
        None
    }

    /// Forgets a task. If it was woken and has not taken its completion, wakes another one.
    pub(crate) fn stop_waiting(&self, key: u64) {
        let mut state = self.state();
        let before = state.waiting.len();
        state.waiting.retain(|(other, _)| *other != key);
        let is_unused = state.waiting.len() == before && !state.kept.is_empty();
        let next = is_unused.then(|| state.waiting.pop_front()).flatten();
        drop(state);
        if let Some((_, waker)) = next {
            waker.wake();
        }
    }

    /// Makes sure that the next completion is delivered, though the caller stops polling. Returns
    /// true if the caller has to poll again itself: in a simulation that no executor drives.
    pub(crate) fn ensure_wake(&self) -> Result<bool, OperationError> {
        self.channel.check_present()?;
        if let Some(simulator) = &self.simulator {
            let simulator = simulator.upgrade().ok_or(OperationError::Dropped)?;
            return Ok(simulator.watch_queue(&self.myself));
        }
        let mut state = self.state();
        let arms = !std::mem::replace(&mut state.is_armed, true);
        let has_driver = state.drivers > 0;
        drop(state);
        if arms {
            self.cq.req_notify(false)?;
            // A completion from before the queue was armed causes no event.
            self.take(false);
        }
        if !has_driver {
            reactor::wake_when_readable(self.fd(), &self.hook).map_err(VerbsError::io)?;
        }
        Ok(false)
    }

    /// Takes the events of the channel, delivers what has completed, and arms the queue again.
    pub(crate) fn dispatch(&self) -> Result<(), VerbsError> {
        if self.simulator.is_none() && self.state().sleepers == 0 {
            self.take_events()?;
        }
        self.take(self.simulator.is_none());
        self.go_on()
    }

    /// Arms the queue again if tasks wait for it.
    pub(crate) fn go_on(&self) -> Result<(), VerbsError> {
        let state = self.state();
        let is_awaited =
            state.drivers > 0 || !state.waiting.is_empty() || state.slots.in_flight() > 0;
        drop(state);
        let is_awaited = is_awaited || self.has_futures() && self.awaits_shared();
        if is_awaited && let Err(OperationError::Verbs(error)) = self.ensure_wake() {
            return Err(error);
        }
        Ok(())
    }

    /// Takes and acknowledges the events of the channel.
    pub(crate) fn take_events(&self) -> Result<(), VerbsError> {
        loop {
            match self.channel.get_event() {
                Ok(_) => self.note_event(),
                Err(RawError::WouldBlock) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Acknowledges an event. The queue is no longer armed.
    pub(crate) fn note_event(&self) {
        self.cq.ack_events(1);
        self.state().is_armed = false;
    }

    /// Counts a thread that takes events itself.
    pub(crate) fn begin_sleep(&self) {
        self.state().sleepers += 1;
    }

    pub(crate) fn end_sleep(&self) {
        self.state().sleepers -= 1;
    }

    pub(crate) fn add_driver(&self) {
        self.has_futures.store(true, Ordering::Release);
        self.state().drivers += 1;
    }

    pub(crate) fn remove_driver(&self) {
        self.state().drivers -= 1;
        if self.go_on().is_err() {
            self.wake_all();
        }
    }

    /// Wakes all that wait, if the device was removed, so that they get the error.
    pub(crate) fn wake_if_removed(&self) {
        if self.channel.check_present().is_err() {
            self.wake_all();
        }
    }

    fn wake_all(&self) {
        let mut state = self.state();
        let mut woken: Vec<Waker> = state.waiting.drain(..).map(|(_, waker)| waker).collect();
        woken.extend(state.slots.wakers());
        let shared = state.shared.clone();
        drop(state);
        for receives in shared.iter().filter_map(Weak::upgrade) {
            receives.slots(|slots| woken.extend(slots.wakers()));
        }
        woken.into_iter().for_each(Waker::wake);
    }

    /// Ends the operations of a queue pair, which does not exist any more.
    pub(crate) fn end_of(&self, owner: u64) {
        if !self.has_futures() {
            return;
        }
        let (woken, released) = self.slots(|slots| slots.end_of(owner));
        drop(released);
        woken.into_iter().for_each(Waker::wake);
    }

    /// Ends all waits, because the program has dropped the queue.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.is_closed = true;
        let woken = state.slots.fail_all();
        drop(state);
        woken.into_iter().for_each(Waker::wake);
    }
}
