//! A thread that waits for descriptors of its own, as in ppoll(2), and receives meanwhile.
//!
//! The sockets of librdmacm wait in this way, for the descriptors of their completion channels
//! among others. The thread is the watcher, as one that waits for an event (`event_wait.rs`). If
//! there is a watcher already, the thread follows: it sleeps until a descriptor of its own is
//! ready, or until the watcher leaves. So one thread wakes for a packet, and one more if the packet
//! is for another thread. The background thread wakes for none of them.

use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

use libc::pollfd;
use rocade_transport::Time;

use super::event_wait::PEERS;
use super::pending::ServiceContext;
use super::{Engine, Nic};
use crate::memory::are_faults_blocked;
use crate::state::{Activity, Caller, Follower, Place, Sleeper};
use crate::sys::PollSet;
use crate::tuning::{OTHERS_POLL_NS, OTHERS_POLL_SIGHTS};

/// A descriptor that ppoll(2) ignores.
const NO_FD: i32 = -1;

impl Engine {
    /// Waits until one of the descriptors is ready, and returns the number of ready ones, or 0
    /// after `timeout`. Receives packets meanwhile, if no other thread does. Unlike ppoll(2), this
    /// is no cancellation point (pthread_cancel(3)).
    ///
    /// # Errors
    /// Errors of ppoll(2), [`io::ErrorKind::Interrupted`] by any signal that is handled.
    pub fn poll_descriptors(
        &self,
        fds: &mut [pollfd],
        timeout: Option<Duration>,
    ) -> io::Result<usize> {
        let engine = &*self.inner;
        let until = timeout.map(|timeout| {
            let ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
            engine.host.now().plus_ns(ns)
        });
        let mut wait = DescriptorWait { engine, fds, until };
        let result = loop {
            match wait.step() {
                Ok(None) => {}
                Ok(Some(ready)) => break Ok(ready),
                Err(error) => break Err(error),
            }
        };
        engine.scheduler.service_queue.sleepers().hand_over();
        result
    }
}

struct DescriptorWait<'a> {
    engine: &'a Nic,
    fds: &'a mut [pollfd],
    until: Option<Time>,
}

impl DescriptorWait<'_> {
    /// Sleeps once. Returns the number of ready descriptors, or `None` if there are none and the
    /// time is not over.
    fn step(&mut self) -> io::Result<Option<usize>> {
        let engine = self.engine;
        let polled_until = &engine.scheduler.event_waits.polled_until;
        let others_poll = engine.host.now().as_ns() < polled_until.load(Ordering::Relaxed);
        // If faults are blocked, the kernel would copy for this thread, which is slower.
        if engine.host.sim.is_some() || others_poll || are_faults_blocked() {
            return self.leave_to_others();
        }
        engine.serve(ServiceContext::Poll);
        engine.serve(ServiceContext::IdlePoll(0));
        match engine
            .scheduler
            .service_queue
            .sleepers()
            .begin_watch_or_follow()
        {
            Some(Place::Watcher(sleeper, from_background)) => {
                let result = self.watch(sleeper, from_background);
                engine.resume_loop();
                result
            }
            Some(Place::Follower(follower)) => self.follow(follower),
            None => self.leave_to_others(),
        }
    }

    fn leave_to_others(&mut self) -> io::Result<Option<usize>> {
        self.engine.leave_inline();
        let mut set = PollSet::default();
        set.extend(self.fds);
        set.wait_uncancelled(self.left())?;
        Ok(self.results(&set, 0))
    }

    fn watch(&mut self, sleeper: Sleeper, from_background: bool) -> io::Result<Option<usize>> {
        let engine = self.engine;
        engine.scheduler.polled();
        if from_background {
            // It ignores packets from now on, and looks after this thread.
            engine.scheduler.service_queue.wake_thread();
        }
        let is_quiet = engine.scheduler.service_queue.woken() == 0 && engine.links.announce_sleep();
        if !is_quiet {
            engine.end_watch(sleeper);
            return self.receive();
        }
        let before = engine.activity_of_others();
        let mut set = engine.watch_set(NO_FD, &sleeper);
        let own = set.len();
        set.extend(self.fds);
        let woken = set.wait_uncancelled(self.left());
        engine.end_watch(sleeper);
        engine.note_pollers(before);
        woken?;
        if set.is_ready(PEERS) {
            engine.clear_peer_wake();
        }
        if (PEERS..own).any(|index| set.is_ready(index)) {
            engine.scheduler.polled();
            return self.receive();
        }
        Ok(self.results(&set, own))
    }

    fn follow(&mut self, follower: Follower) -> io::Result<Option<usize>> {
        // The background thread need not wake for this, because another thread watches.
        self.engine.scheduler.arbiter.note_app_sleep();
        let mut set = PollSet::default();
        set.add(follower.wake_fd());
        let own = set.len();
        set.extend(self.fds);
        let woken = set.wait_uncancelled(self.left());
        self.engine
            .scheduler
            .service_queue
            .sleepers()
            .end_following(follower);
        woken?;
        Ok(self.results(&set, own))
    }

    /// Receives what has come, which may have made descriptors ready.
    fn receive(&mut self) -> io::Result<Option<usize>> {
        self.engine.receive_unlocked(Caller::Application, 0);
        let mut set = PollSet::default();
        set.extend(self.fds);
        set.wait_uncancelled(Some(Duration::ZERO))?;
        let is_over = self.left().is_some_and(|left| left.is_zero());
        let ready = set.results(0, self.fds);
        Ok((ready > 0 || is_over).then_some(ready))
    }

    /// Stores the results of a sleep. The descriptors of the caller are at `own` in the set.
    fn results(&mut self, set: &PollSet, own: usize) -> Option<usize> {
        let is_over = !set.any_ready_from(0);
        let ready = set.results(own, self.fds);
        (ready > 0 || is_over).then_some(ready)
    }

    fn left(&self) -> Option<Duration> {
        let until = self.until?;
        Some(Duration::from_nanos(until.ns_since(self.engine.host.now())))
    }
}

impl Nic {
    /// Returns the polls of the application so far, and how often its threads went to sleep.
    fn activity_of_others(&self) -> (Activity, u64) {
        let activity = self
            .scheduler
            .arbiter
            .activity(self.host.now().as_ns(), false);
        (activity, self.scheduler.arbiter.sleep_epoch())
    }

    /// Leaves the packets to a thread that polls on and on, given the activity before a sleep. A
    /// thread that has slept meanwhile is not such a thread.
    fn note_pollers(&self, before: (Activity, u64)) {
        let (after, epoch) = self.activity_of_others();
        let sights = &self.scheduler.event_waits.pollers_seen;
        if !before.0.has_polled(after) || before.1 != epoch {
            sights.store(0, Ordering::Relaxed);
        } else if sights.fetch_add(1, Ordering::Relaxed) + 1 >= OTHERS_POLL_SIGHTS {
            let until = self.host.now().as_ns() + OTHERS_POLL_NS;
            let polled_until = &self.scheduler.event_waits.polled_until;
            polled_until.store(until, Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, not(loom)))]
#[path = "poll_wait/tests.rs"]
mod tests;
