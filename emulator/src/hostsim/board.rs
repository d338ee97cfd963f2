//! The notes of all processes of a host, from which a run is judged. The code under test does not
//! know them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use super::plan::{PROCESSES, Plan, address_of};
use super::services::Service;
use super::{Marks, connecting};
use crate::simulated_host::schedule::lock;
use crate::{Gid, Qpn, Rkey, Srqn, WcStatus};

/// The mark of a broker's death.
pub(super) const BROKER_KILLED: &str = "a broker is killed";
/// The mark of a broker that ends because it is told to.
pub(super) const BROKER_ENDED: &str = "a broker is told to end";

/// Facts that an end tells the other one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Endpoint {
    /// The queue pair that sends, and the one that receives.
    pub(super) sender: Qpn,
    pub(super) receiver: Qpn,
    /// The shared receive queue of XRC.
    pub(super) srqn: Srqn,
    pub(super) gid: Gid,
    /// Start and key of its memory.
    pub(super) addr: u64,
    pub(super) rkey: Rkey,
}

/// The messages of one direction of a connection.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Flow {
    /// Number of messages that the sender has posted.
    pub(super) posted: u32,
    /// Number of messages up to the last one that gets a completion.
    pub(super) signaled: u32,
    /// Number of messages whose acknowledgement the sender has seen.
    pub(super) acknowledged: u32,
    /// Number of messages whose completion the receiver has seen.
    pub(super) received: u32,
    /// The numbers of those messages, as bits.
    pub(super) seen: u64,
    /// The failure that the sender has seen.
    pub(super) failed: Option<WcStatus>,
}

/// The messages to the process that keeps the target of an end, and receives by it as well.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeeperFlow {
    /// The shared receive queue of the keeper.
    pub(super) srqn: Srqn,
    pub(super) posted: u32,
    /// Number of messages whose acknowledgement the sender has seen.
    pub(super) acknowledged: u32,
    /// Number of messages whose completion the keeper has seen.
    pub(super) received: u32,
}

/// The state of one end of a connection: number of the connection, and of the end.
pub(super) type End = (usize, usize);

#[derive(Debug, Default)]
pub(super) struct Notes {
    pub(super) endpoints: BTreeMap<End, Endpoint>,
    /// The messages that each end sends.
    pub(super) flows: BTreeMap<End, Flow>,
    /// Ends whose queue pair is connected.
    pub(super) connected: BTreeSet<End>,
    /// Keys of windows to the memory of ends.
    pub(super) windows: BTreeMap<End, Rkey>,
    /// Ends that drop their objects.
    pub(super) leaving: BTreeSet<End>,
    /// Ends that have done all they were to do.
    pub(super) done: BTreeSet<End>,
    /// Ends that wait for an event, and have nothing under way.
    pub(super) waiting: BTreeSet<End>,
    /// Ends whose connection manager listens.
    pub(super) listening: BTreeSet<End>,
    /// Ends that wait for an event of the connection manager.
    pub(super) managing: BTreeSet<End>,
    /// The targets that processes have made for the ends of others.
    pub(super) targets: BTreeMap<End, Qpn>,
    /// The messages to keepers, by the end whose target each keeps.
    pub(super) keepers: BTreeMap<End, KeeperFlow>,
    pub(super) dead: BTreeSet<usize>,
    /// Processes whose program exits as soon as one of its threads looks.
    pub(super) exiting: BTreeSet<usize>,
    /// Processes that were stopped, perhaps while a thread had packets. Another thread does not
    /// wait for it longer than 16 ms, so that later packets overtake those.
    pub(super) halted: BTreeSet<usize>,
    /// Processes that were stopped for a long time.
    pub(super) stopped: BTreeSet<usize>,
    pub(super) complaints: Vec<String>,
    pub(super) marks: Marks,
    /// Notes of what has happened, with the time.
    pub(super) log: Vec<(u64, String)>,
}

impl Notes {
    /// Returns true if there was a time without a broker.
    pub(super) fn was_without_broker(&self) -> bool {
        let marks = [BROKER_KILLED, BROKER_ENDED];
        marks.iter().any(|mark| self.marks.contains_key(mark))
    }
}

/// The notes of a host.
#[derive(Debug)]
pub(super) struct Board {
    pub(super) plan: Plan,
    /// The file for the packets of all processes.
    pub(super) capture: Option<PathBuf>,
    time: Arc<AtomicU64>,
    notes: Mutex<Notes>,
}

impl Board {
    pub(super) fn new(plan: Plan, capture: Option<PathBuf>, time: Arc<AtomicU64>) -> Self {
        Self {
            plan,
            capture,
            time,
            notes: Mutex::default(),
        }
    }

    pub(super) fn notes(&self) -> MutexGuard<'_, Notes> {
        lock(&self.notes)
    }

    pub(super) fn complain(&self, text: String) {
        self.notes().complaints.push(text);
    }

    /// Notes what has happened, for the text of a failure.
    pub(super) fn note(&self, text: String) {
        let now = self.time.load(Ordering::Relaxed);
        self.notes().log.push((now, text));
    }

    pub(super) fn mark(&self, mark: &'static str) {
        *self.notes().marks.entry(mark).or_default() += 1;
    }

    /// Returns the process of an end.
    pub(super) fn process_of(&self, (connection, end): End) -> usize {
        self.plan.connections[connection].processes[end]
    }

    /// Returns the process that makes the target of an end, if it is another one than that of the
    /// end. Both have the same address.
    pub(super) fn keeper_of(&self, end: End) -> Option<usize> {
        let connection = &self.plan.connections[end.0];
        let own = self.process_of(end);
        let is_keeper = |other: &usize| *other != own && address_of(*other) == address_of(own);
        let has_keeper = connection.service == Service::Xrc && connection.is_kept;
        (0..PROCESSES).find(is_keeper).filter(|_| has_keeper)
    }

    /// Returns the messages to the keeper of an end's target, if it lives and receives any.
    pub(super) fn living_keeper(&self, end: End) -> Option<KeeperFlow> {
        let is_dead = self.is_keeper_dead(end);
        let flow = self.notes().keepers.get(&end).copied();
        flow.filter(|_| !is_dead)
    }

    /// Returns true if the process of an end was killed.
    pub(super) fn is_dead(&self, end: End) -> bool {
        let process = self.process_of(end);
        self.notes().dead.contains(&process)
    }

    /// Returns true if the program of an end exits, or has exited.
    pub(super) fn exits(&self, end: End) -> bool {
        let process = self.process_of(end);
        self.notes().exiting.contains(&process)
    }

    /// Returns true if the process of an end was killed, or its program exits.
    pub(super) fn is_ending(&self, end: End) -> bool {
        self.is_dead(end) || self.exits(end)
    }

    /// Returns true if the process that has made the target of an end was killed.
    pub(super) fn is_keeper_dead(&self, end: End) -> bool {
        let keeper = self.keeper_of(end);
        keeper.is_some_and(|keeper| self.notes().dead.contains(&keeper))
    }

    /// Returns true if the process of an end was stopped for so long that its peer may give it up.
    pub(super) fn was_stopped(&self, end: End) -> bool {
        let process = self.process_of(end);
        self.notes().stopped.contains(&process)
    }

    /// Returns true if an end has seen a failure.
    pub(super) fn has_failed(&self, end: End) -> bool {
        let failed = |flow: &Flow| flow.failed.is_some();
        self.notes().flows.get(&end).is_some_and(failed)
    }

    /// Returns true if an end has done all it was to do, so that its objects may be gone.
    pub(super) fn has_left(&self, end: End) -> bool {
        let notes = self.notes();
        notes.done.contains(&end) || notes.leaving.contains(&end)
    }

    /// Returns true if nothing comes from an end any more that its peer could wait for: its process
    /// was killed, it has given up its peer, or all was sent that need not arrive.
    pub(super) fn is_silent(&self, end: End) -> bool {
        self.is_silent_in(&self.notes(), end)
    }

    fn is_silent_in(&self, notes: &Notes, end: End) -> bool {
        let connection = &self.plan.connections[end.0];
        let flow = notes.flows.get(&end).copied().unwrap_or_default();
        let may_get_lost = !connection.service.traits().is_reliable;
        notes.dead.contains(&self.process_of(end))
            || flow.failed.is_some()
            || may_get_lost && flow.acknowledged == connection.messages[end.1]
    }

    /// Returns all ends.
    pub(super) fn ends(&self) -> impl Iterator<Item = End> + '_ {
        (0..self.plan.connections.len()).flat_map(|connection| [(connection, 0), (connection, 1)])
    }

    /// Returns the ends that are not done although nothing keeps them from it, but those of
    /// `excused` connections.
    pub(super) fn unsettled(&self, excused: &[usize]) -> Vec<End> {
        let is_settled = |end: End| {
            let other = other(end);
            let notes = self.notes();
            let is_dead = |end| notes.dead.contains(&self.process_of(end));
            notes.done.contains(&end)
                || is_dead(end)
                // Nothing more comes, and no one is told.
                || self.is_silent_in(&notes, other) && notes.waiting.contains(&end)
                || connecting::may_wait(self, &notes, end)
                || excused.contains(&end.0)
        };
        self.ends().filter(|end| !is_settled(*end)).collect()
    }

    /// Checks the notes of all flows at the end of a run.
    pub(super) fn check_flows(&self) -> Result<(), String> {
        for end in self.ends() {
            self.check_keeper(end)?;
            let notes = self.notes();
            let flow = notes.flows.get(&end).copied().unwrap_or_default();
            let is_alive = |end| !notes.dead.contains(&self.process_of(end));
            // A failure was judged when it was seen.
            let has_failed = |end| {
                let flow: Option<&Flow> = notes.flows.get(&end);
                flow.is_some_and(|flow| flow.failed.is_some())
            };
            if has_failed(end) || has_failed(other(end)) {
                continue;
            }
            if !self.plan.connections[end.0].service.traits().is_reliable {
                self.check_unreliable(&notes, end, flow)?;
                continue;
            }
            // One that sees an acknowledgement relies on it.
            if flow.acknowledged > flow.received && is_alive(other(end)) {
                return Err(format!(
                    "end {end:?} saw {} acknowledgements, and its peer, which lives, has {} messages",
                    flow.acknowledged, flow.received
                ));
            }
            let due = flow.received.min(flow.signaled);
            if due > flow.acknowledged && is_alive(end) && notes.done.contains(&end) {
                return Err(format!(
                    "end {end:?} has {} acknowledgements of {} messages that were received",
                    flow.acknowledged, due
                ));
            }
        }
        Ok(())
    }
}

impl Board {
    /// Checks that the keeper of an end's target has all that it has acknowledged.
    fn check_keeper(&self, end: End) -> Result<(), String> {
        match self.living_keeper(end) {
            Some(flow) if flow.acknowledged > flow.received => Err(format!(
                "{:?} saw {} acknowledgements of the keeper of {end:?}, which has {} messages",
                other(end),
                flow.acknowledged,
                flow.received
            )),
            _ => Ok(()),
        }
    }

    /// Checks that nothing was lost without a reason.
    fn check_unreliable(&self, notes: &Notes, end: End, flow: Flow) -> Result<(), String> {
        let service = self.plan.connections[end.0].service;
        // Packets may overtake others when a connection changes from UDP to shared memory.
        let may_be_late = service.traits().is_ordered && !self.plan.udp;
        let has_reason = self.plan.loss > 0
            || may_be_late
            || notes.marks.contains_key(BROKER_KILLED)
            || [end, other(end)]
                .iter()
                .any(|end| notes.dead.contains(&self.process_of(*end)));
        if flow.received < flow.acknowledged && !has_reason {
            return Err(format!(
                "end {end:?} sent {} messages, of which {} arrived",
                flow.acknowledged, flow.received
            ));
        }
        Ok(())
    }
}

/// Returns the other end of a connection.
pub(super) const fn other((connection, end): End) -> End {
    (connection, 1 - end)
}
