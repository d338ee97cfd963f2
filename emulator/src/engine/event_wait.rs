//! A thread that waits for an event, and receives the packets that cause it by itself.
//!
//! If the background thread received each packet and then woke the waiting thread, a message would
//! cost two turns of the scheduler. So the waiting thread becomes the watcher (`state::Sleepers`):
//! it sleeps on the sockets, the eventfd of shared memory links and its own event. It handles what
//! comes, and returns when its event is there. Further waiting threads follow it: each sleeps until
//! its event is there, or until the watcher leaves and one of them watches.
//!
//! The background thread looks after the watcher at intervals. If packets lie unread, or after some
//! milliseconds without any, it watches too (`poll_policy.rs`).

use std::cell::Cell;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd as _, RawFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use crate::link::Link as _;
use crate::sync::{Mutex, rank};

use super::Nic;
use super::pending::ServiceContext;
use super::poll_policy::SpinEstimator;
use crate::cpu_idle::CpuIdle;
use crate::memory::are_faults_blocked;
use crate::state::{
    Activity, AwaitedEvents, Caller, EventWaiter, Follower, HasEvents, Place, ReceivingWait,
    Sleeper, WaitOn, WaitStep,
};
use crate::sys::{Interruption, PollSet};
use crate::tuning::{OTHERS_POLL_NS, SPIN_NS};

/// Knowledge that the waiting threads of an engine share.
#[derive(Debug, Default)]
pub(super) struct EventWaits {
    /// Estimates for spinning. One thread at a time spins.
    spin: Mutex<(SpinEstimator, CpuIdle), rank::Spin>,
    /// Time until which other threads are expected to poll CQs, in ns. They receive meanwhile.
    pub(super) polled_until: AtomicU64,
    /// Number of sleeps in a row in which another thread has polled all the time.
    pub(super) pollers_seen: AtomicU32,
}

/// The receiving side of a thread that waits for an event.
struct Receiver {
    /// Weak, because a thread that is cancelled while it waits drops nothing.
    engine: Weak<Nic>,
    /// Becomes readable with the event.
    event_fd: RawFd,
    events: Arc<dyn AwaitedEvents>,
    /// This thread has received, so that an event may be reserved for it.
    has_received: Cell<bool>,
    /// The registration of this thread while it sleeps, as one or the other.
    sleeper: Cell<Option<Sleeper>>,
    follower: Cell<Option<Follower>>,
    /// The application's polls when this thread went to sleep.
    before: Cell<Activity>,
    /// Packets woke this thread while another one was receiving, which brings the event.
    others_receive: Cell<bool>,
}

impl std::fmt::Debug for Receiver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Receiver")
            .field("event_fd", &self.event_fd)
            .finish_non_exhaustive()
    }
}

/// Index of the descriptor of shared memory links in the set that a watcher waits for. Sockets
/// follow it.
pub(super) const PEERS: usize = 2;

impl Nic {
    /// Returns a waiter for `events` that receives packets while it waits.
    pub(crate) fn receive_in<T: HasEvents + 'static>(
        self: &Arc<Self>,
        events: &Arc<T>,
    ) -> EventWaiter {
        let waiter = events.events().waiter();
        if self.host.sim.is_some() {
            return waiter;
        }
        waiter.receiving(Box::new(Receiver {
            engine: Arc::downgrade(self),
            event_fd: events.events().event_fd(),
            events: Arc::<T>::clone(events),
            has_received: Cell::new(false),
            sleeper: Cell::new(None),
            follower: Cell::new(None),
            before: Cell::default(),
            others_receive: Cell::new(false),
        }))
    }

    /// Records that the program has requested an event of a blocking channel. `expects_wait`: it
    /// probably waits for the event in a verb.
    ///
    /// That thread receives by itself, so the background thread need not wake. It would receive at
    /// the same time, and both would wait for each other's locks. If the program waits for the
    /// descriptor this time, the background thread finds its packets at the end of its back-off,
    /// within about a millisecond.
    pub(crate) fn leave_for_event(&self, expects_wait: bool) {
        if expects_wait {
            self.serve(ServiceContext::Poll);
            // The background thread does not back off for longer now.
            self.scheduler.arbiter.note_app_sleep();
        } else {
            self.leave_inline();
        }
    }

    /// Spins for a moment if a processor is idle and packets usually follow closely. Returns true
    /// if the event is there.
    fn spin_for_event(&self, has_event: &dyn Fn() -> bool) -> bool {
        let Some(mut spin) = self.scheduler.event_waits.spin.try_lock() else {
            return false;
        };
        let (estimator, cpu_idle) = &mut *spin;
        let begin = self.host.now();
        if !estimator.should_spin(|| cpu_idle.has_idle_processors(begin)) {
            return false;
        }
        let mut spins = 0;
        let found = loop {
            self.spin_once(spins, Caller::Application);
            if has_event() {
                break true;
            }
            let now = self.host.now();
            if now.ns_since(begin) >= SPIN_NS {
                break false;
            }
            self.scheduler.arbiter.note_empty_poll(now.as_ns());
            std::hint::spin_loop();
            spins += 1;
        };
        estimator.note_result(found);
        found
    }

    /// Collects the descriptors that the watcher waits for.
    pub(super) fn watch_set(&self, event_fd: RawFd, sleeper: &Sleeper) -> PollSet {
        let mut set = PollSet::default();
        set.add(event_fd);
        set.add(sleeper.wake_fd());
        set.add(self.scheduler.peer_wake_fd.as_raw_fd());
        // The system keeps these open while the thread waits for them.
        for endpoint in self.links.endpoints.read().iter() {
            if let Some(socket) = endpoint.link.rx_fd() {
                set.add(socket.as_raw_fd());
            }
        }
        for socket in self.links.frames.receivers() {
            set.add(socket.fd());
        }
        set
    }

    /// Ends the sleep of a watcher.
    pub(super) fn end_watch(&self, sleeper: Sleeper) {
        self.links.announce_awake();
        if !self.scheduler.service_queue.sleepers().end(sleeper) {
            // The background thread has taken over, and announces its sleep again.
            self.scheduler.service_queue.wake_thread();
        }
    }
}

impl Receiver {
    /// Leaves the packets to other threads, which open the semaphore with the event.
    fn leave_to_others(engine: &Nic) -> WaitStep {
        engine.leave_inline();
        WaitStep(WaitOn::Semaphore)
    }

    /// Calls `receive`. The event that this brings is reserved for this thread, which takes it next
    /// or drops this object.
    fn reserving(&self, mut receive: impl FnMut()) {
        self.has_received.set(true);
        self.events.reserving(&mut receive);
    }

    /// Receives what has come, also to the `sockets`. If another thread is receiving, the next
    /// sleep leaves that to it. A thread that tried on and on would use up its turn of the
    /// processor, which the other one may wait for.
    fn receive(&self, engine: &Nic, sockets: bool) {
        self.reserving(|| {
            let received = if sockets {
                engine.receive_unlocked(Caller::Application, 0)
            } else {
                engine.receive_from_shm()
            };
            self.others_receive
                .set(!received && engine.links.is_receiving());
        });
    }

    /// Sleeps until the event is there, or until the thread that watches leaves.
    fn follow(&self, engine: &Nic, follower: Follower) -> WaitStep {
        // The background thread need not wake for this, because another thread watches.
        engine.scheduler.arbiter.note_app_sleep();
        let mut set = PollSet::default();
        set.add(self.event_fd);
        set.add(follower.wake_fd());
        self.follower.set(Some(follower));
        WaitStep(WaitOn::Descriptors(ManuallyDrop::new(set)))
    }
}

impl Drop for Receiver {
    /// The verb has ended, perhaps by a signal or an error, so others look for the event.
    fn drop(&mut self) {
        if self.has_received.get() {
            self.events.announce();
        }
    }
}

/// Returns the result of a sleep. If all handlers restart system calls, a signal does not matter.
fn restarted(woken: io::Result<()>) -> io::Result<()> {
    match woken {
        Err(error)
            if error.kind() == io::ErrorKind::Interrupted
                && Interruption::of_handlers() == Interruption::Restart =>
        {
            Ok(())
        }
        woken => woken,
    }
}

impl ReceivingWait for Receiver {
    fn begin(&self) -> WaitStep {
        let Some(engine) = self.engine.upgrade() else {
            return WaitStep(WaitOn::Semaphore);
        };
        let now_ns = engine.host.now().as_ns();
        self.events.note_wait(now_ns);
        let polled_until = engine
            .scheduler
            .event_waits
            .polled_until
            .load(Ordering::Relaxed);
        if self.others_receive.take() || now_ns < polled_until {
            return Self::leave_to_others(&engine);
        }
        if are_faults_blocked() || Interruption::recent() == Interruption::Mixed {
            // The kernel would copy for this thread, which is slower. Or ppoll(2) does not tell
            // whether the handler that has run restarts system calls.
            return Self::leave_to_others(&engine);
        }
        engine.scheduler.polled();
        engine.serve(ServiceContext::Poll);
        engine.serve(ServiceContext::IdlePoll(0));
        let mut found = false;
        self.reserving(|| found = engine.spin_for_event(&|| self.events.has_event()));
        if found {
            return WaitStep(WaitOn::Nothing);
        }
        let sleepers = engine.scheduler.service_queue.sleepers();
        let (sleeper, from_background) = match sleepers.begin_watch_or_follow() {
            Some(Place::Watcher(sleeper, from_background)) => (sleeper, from_background),
            Some(Place::Follower(follower)) => return self.follow(&engine, follower),
            None => return Self::leave_to_others(&engine),
        };
        if from_background {
            // It ignores packets from now on, and looks after this thread.
            engine.scheduler.service_queue.wake_thread();
        }
        let is_quiet = engine.scheduler.service_queue.woken() == 0 && engine.links.announce_sleep();
        if !is_quiet {
            engine.end_watch(sleeper);
            self.receive(&engine, true);
            engine.resume_loop();
            sleepers.hand_over();
            return WaitStep(WaitOn::Nothing);
        }
        let now_ns = engine.host.now().as_ns();
        self.before
            .set(engine.scheduler.arbiter.activity(now_ns, false));
        let set = engine.watch_set(self.event_fd, &sleeper);
        self.sleeper.set(Some(sleeper));
        WaitStep(WaitOn::Descriptors(ManuallyDrop::new(set)))
    }

    fn end(&self, set: PollSet, woken: io::Result<()>) -> io::Result<()> {
        let Some(engine) = self.engine.upgrade() else {
            return woken;
        };
        if let Some(follower) = self.follower.take() {
            engine
                .scheduler
                .service_queue
                .sleepers()
                .end_following(follower);
            return restarted(woken);
        }
        let Some(sleeper) = self.sleeper.take() else {
            return woken;
        };
        engine.end_watch(sleeper);
        let now_ns = engine.host.now().as_ns();
        let after = engine.scheduler.arbiter.activity(now_ns, false);
        if self.before.get().has_polled(after) {
            // Another thread polls, or several wait and are busy. The background thread then
            // receives for all of them, which takes fewer turns than handing over.
            let until = now_ns + OTHERS_POLL_NS;
            engine
                .scheduler
                .event_waits
                .polled_until
                .store(until, Ordering::Relaxed);
        }
        if woken.is_ok() {
            if set.is_ready(PEERS) {
                engine.clear_peer_wake();
            }
            if set.any_ready_from(PEERS) {
                engine.scheduler.polled();
                self.receive(&engine, set.any_ready_from(PEERS + 1));
            }
        }
        engine.resume_loop();
        engine.scheduler.service_queue.sleepers().hand_over();
        restarted(woken)
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
