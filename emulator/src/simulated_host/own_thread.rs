//! A thread of a simulated process, seen by itself.

use std::cell::Cell;
use std::os::fd::RawFd;
use std::panic;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::schedule::{Process, Report, Shared, lock};
use crate::broker::simulated::handover::{Receiver, Sender};
use crate::sync::turn::{Pause, Place, Schedule};

/// The reason for which the threads of a killed process unwind.
pub(crate) struct Killed;

/// Mean weight of the places at which a thread could hand over and does not.
const POINTS: u64 = 60 * LOCK;
/// Weight of a lock. That of an access to an atomic is 1.
const LOCK: u64 = 4;

/// A thread, seen by itself.
pub(crate) struct OwnThread {
    shared: Arc<Shared>,
    process: Arc<Process>,
    orders: Receiver<()>,
    reports: Sender<Report>,
    /// Weight of the places that are left until it hands over.
    points: Cell<u64>,
    /// A thread that unwinds, because its process was killed.
    unwinds: Cell<bool>,
    place: Cell<Option<Place>>,
}

impl OwnThread {
    pub(crate) fn new(
        shared: Arc<Shared>,
        process: Arc<Process>,
        orders: Receiver<()>,
        reports: Sender<Report>,
    ) -> Rc<Self> {
        let own = Self {
            shared,
            process,
            orders,
            reports,
            points: Cell::new(0),
            unwinds: Cell::new(false),
            place: Cell::new(None),
        };
        own.draw_points();
        Rc::new(own)
    }

    /// Reports the end of the thread.
    pub(crate) fn end(&self, failure: Option<String>) {
        self.reports.send(Report::Ended(failure));
    }

    fn draw_points(&self) {
        // Often many, sometimes few in a row.
        let limit = match self.shared.below(3) {
            0 => 2 * LOCK,
            1 => POINTS,
            _ => 3 * POINTS,
        };
        self.points.set(self.shared.below(limit));
    }

    fn hand_over(&self, pause: Pause) {
        // The lock that it waits for is among those.
        let waits = usize::from(matches!(pause, Pause::Lock { .. }));
        let locks = crate::sync::held_locks().saturating_sub(waits);
        let place = self.place.get();
        let is_told = self.reports.send(Report::Paused(pause, locks, place));
        if (!is_told || self.orders.receive().is_none()) && !std::thread::panicking() {
            panic::resume_unwind(Box::new(Killed));
        }
    }

    /// Unwinds if the process is dead and the thread does not unwind yet.
    fn die(&self) {
        if self.is_dead() && !self.unwinds.get() && !std::thread::panicking() {
            self.unwinds.set(true);
            panic::resume_unwind(Box::new(Killed));
        }
    }
}

impl Schedule for OwnThread {
    fn set_place(&self, place: Place) {
        self.place.set(Some(place));
    }

    fn pause(&self, pause: Pause) {
        self.die();
        // One that unwinds only waits for what other threads of its process hold.
        if !self.is_dead() || matches!(pause, Pause::Lock { .. } | Pause::Change { time: None, .. })
        {
            self.hand_over(pause);
            self.die();
        }
    }

    fn point(&self, is_lock: bool) {
        if self.is_dead() {
            return;
        }
        if self.place.get().is_some_and(|at| self.shared.slows(at)) {
            self.pause(Pause::Turn);
            return;
        }
        let weight = if is_lock { LOCK } else { 1 };
        match self.points.get().checked_sub(weight) {
            Some(left) => self.points.set(left),
            None => {
                self.draw_points();
                self.pause(Pause::Turn);
            }
        }
    }

    fn sent(&self) {
        if self.is_dead() {
            return;
        }
        self.shared.has_sent.store(true, Ordering::Relaxed);
        if self.process.datagrams_left.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.end_process();
        } else {
            self.point(true);
        }
    }

    fn time(&self) -> &Arc<AtomicU64> {
        &self.shared.time
    }

    fn random(&self) -> u64 {
        self.shared.random()
    }

    fn is_dead(&self) -> bool {
        self.process.is_dead.load(Ordering::Relaxed)
    }

    fn others_hold_locks(&self) -> bool {
        // Release builds do not know.
        !cfg!(debug_assertions) || self.shared.held_by_others.load(Ordering::Relaxed) > 0
    }

    fn end_process(&self) {
        self.process.is_doomed.store(true, Ordering::Relaxed);
        self.pause(Pause::Turn);
    }

    fn spawn(&self, name: &str, run: Box<dyn FnOnce() + Send>) {
        self.shared.spawn(&self.process, name, run);
    }

    fn note_mapping(&self, start: usize, len: usize) {
        lock(&self.process.mappings).insert(start, len);
    }

    fn set_alarm(&self, timer: RawFd, time: Option<Duration>) {
        let due = time.map(|time| self.shared.after(time));
        let mut alarms = lock(&self.process.alarms);
        match due {
            Some(due) => alarms.insert(timer, due),
            None => alarms.remove(&timer),
        };
    }

    fn forget_mapping(&self, start: usize) {
        lock(&self.process.mappings).remove(&start);
    }
}
