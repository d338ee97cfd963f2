//! The rules of an engine, and which of them apply at present.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::sync::{Mutex, rank};
use rocade_transport::Time;

use super::gate::Gate;
use super::schedule::{Change, Phase, RuleKey, Scheduler};
use super::tally::{HitCounter, Tally};
use super::triggers::OpenRule;
use super::{FaultRule, MAX_RULES};
use crate::link::packet_hooks::ScheduledRule;

/// [`FaultPlan::next_due`] if nothing is due.
const NEVER: u64 = u64::MAX;

/// The rules that a process was started with and those that were added, with their schedule.
///
/// Packet rules are executed by the packet hooks, which get them with [`FaultPlan::packet_rules`].
/// The engine executes the others when [`FaultPlan::take_due`] returns them.
#[derive(Debug)]
pub(crate) struct FaultPlan {
    /// The rules that the process was started with.
    own: Vec<FaultRule>,
    tally: Arc<Tally>,
    /// The time of the next change in nanoseconds, or [`NEVER`].
    next_due: AtomicU64,
    state: Mutex<PlanState, rank::FaultRules>,
}

#[derive(Debug)]
struct PlanState {
    rules: Vec<PlannedRule>,
    scheduler: Scheduler,
    /// The time at which the process opened its first device.
    begun: Option<Time>,
    last_key: u64,
    seed: u64,
}

#[derive(Debug)]
struct PlannedRule {
    key: RuleKey,
    rule: FaultRule,
    gate: Gate,
    /// The rule applies at present.
    is_open: bool,
}

/// A rule that begins or ceases to apply.
#[derive(Clone, Debug)]
pub(crate) struct DueFault {
    pub(crate) key: RuleKey,
    pub(crate) rule: FaultRule,
    pub(crate) phase: Phase,
}

impl FaultPlan {
    /// Creates the plan of a process that was started with these rules. Rules with a probability
    /// and without a seed use `seed`.
    pub(crate) fn new(own: Vec<FaultRule>, seed: u64) -> Self {
        let plan = Self {
            own: own.clone(),
            tally: Arc::default(),
            next_due: AtomicU64::new(NEVER),
            state: Mutex::new(PlanState {
                rules: Vec::new(),
                scheduler: Scheduler::default(),
                begun: None,
                last_key: 0,
                seed,
            }),
        };
        // No device is open, so that the time does not count.
        plan.replace(own, None, Time::ZERO);
        plan
    }

    /// Returns the rules that the process was started with.
    pub(crate) fn own_rules(&self) -> &[FaultRule] {
        &self.own
    }

    /// Returns the record of what the rules have done.
    pub(crate) const fn tally(&self) -> &Arc<Tally> {
        &self.tally
    }

    /// Starts the clock of the rules when the process opens its first device. Later calls have no
    /// effect.
    pub(crate) fn begin(&self, now: Time) {
        let mut state = self.state.lock();
        let state = &mut *state;
        if state.begun.is_some() {
            return;
        }
        state.begun = Some(now);
        self.tally.begin(now);
        for rule in &state.rules {
            rule.schedule(&mut state.scheduler, now);
        }
        self.note_due(&state.scheduler);
    }

    /// Replaces the rules at `now`. Rules that stay keep their state and their times.
    pub(crate) fn replace(
        &self,
        rules: Vec<FaultRule>,
        counter: Option<Box<dyn HitCounter>>,
        now: Time,
    ) {
        let mut state = self.state.lock();
        let state = &mut *state;
        let mut before = std::mem::take(&mut state.rules);
        for rule in rules.into_iter().take(MAX_RULES) {
            let known = before.iter().position(|planned| planned.rule == rule);
            let planned = match known {
                Some(at) => before.remove(at),
                None => {
                    state.last_key += 1;
                    let planned = PlannedRule::new(RuleKey(state.last_key), rule, state.seed);
                    if state.begun.is_some() {
                        planned.schedule(&mut state.scheduler, now);
                    }
                    planned
                }
            };
            state.rules.push(planned);
        }
        for gone in &before {
            state.scheduler.remove(gone.key);
        }
        self.note_due(&state.scheduler);
        let names: Vec<_> = state.rules.iter().map(PlannedRule::name).collect();
        self.tally.set_rules(&names, counter);
    }

    /// Returns the rules that wait for an occasion, and whether each applies at present.
    pub(crate) fn trigger_rules(&self) -> Vec<OpenRule> {
        let state = self.state.lock();
        let open = |planned: &PlannedRule| OpenRule {
            key: planned.key,
            rule: planned.rule.clone(),
            is_open: planned.is_open,
        };
        let rules = state
            .rules
            .iter()
            .filter(|planned| !matches!(planned.rule, FaultRule::Packet(_)));
        rules.map(open).collect()
    }

    /// Returns the packet rules in order, and whether each applies at present.
    pub(crate) fn packet_rules(&self) -> Vec<ScheduledRule> {
        let state = self.state.lock();
        let packet = |planned: &PlannedRule| match &planned.rule {
            FaultRule::Packet(packet) => Some(ScheduledRule {
                key: planned.key,
                rule: packet.rule.clone(),
                is_open: planned.is_open,
            }),
            _ => None,
        };
        state.rules.iter().filter_map(packet).collect()
    }

    /// Returns the time of the next change.
    #[inline]
    pub(crate) fn next_due(&self) -> Option<Time> {
        let ns = self.next_due.load(Ordering::Relaxed);
        (ns != NEVER).then(|| Time::from_ns(ns))
    }

    /// Takes the next change that is due at `now`. Phases that the probability excludes are left
    /// out.
    pub(crate) fn take_due(&self, now: Time) -> Option<DueFault> {
        if self.next_due().is_none_or(|due| due > now) {
            return None;
        }
        let mut state = self.state.lock();
        let state = &mut *state;
        let mut found = None;
        while found.is_none()
            && let Some(change) = state.scheduler.take_due(now)
        {
            found = (state.rules.iter_mut())
                .find(|planned| planned.key == change.key)
                .and_then(|planned| planned.change(change));
        }
        self.note_due(&state.scheduler);
        found
    }

    fn note_due(&self, scheduler: &Scheduler) {
        let ns = scheduler.next_due().map_or(NEVER, Time::as_ns);
        self.next_due.store(ns, Ordering::Relaxed);
    }
}

impl PlannedRule {
    fn new(key: RuleKey, rule: FaultRule, seed: u64) -> Self {
        let unconditional = || Gate::new(None, None, 0);
        let (gate, is_open) = match &rule {
            FaultRule::Event(event) => (event.conditions.gate(seed), false),
            FaultRule::Process(process) => (process.conditions.gate(seed), false),
            FaultRule::Device(device) => (device.conditions.gate(seed), false),
            // `Triggers` counts their occasions.
            FaultRule::Verb(_)
            | FaultRule::Completion(_)
            | FaultRule::Qp(_)
            | FaultRule::Limit(_) => (unconditional(), rule.schedule().is_always()),
            // The packet hooks count positions and probabilities of packets.
            FaultRule::Packet(packet) => (Gate::new(None, None, 0), packet.schedule.is_always()),
        };
        Self {
            key,
            rule,
            gate,
            is_open,
        }
    }

    fn name(&self) -> (RuleKey, String) {
        (self.key, self.rule.to_string())
    }

    fn schedule(&self, scheduler: &mut Scheduler, start: Time) {
        // A rule that applies from its creation on has no changes.
        if !self.is_open {
            scheduler.add(self.key, *self.rule.schedule(), start);
        }
    }

    fn change(&mut self, change: Change) -> Option<DueFault> {
        match change.phase {
            Phase::Begin if self.gate.admit() => self.is_open = true,
            Phase::End if self.is_open => self.is_open = false,
            Phase::Begin | Phase::End => return None,
        }
        Some(self.due(change.phase))
    }

    fn due(&self, phase: Phase) -> DueFault {
        DueFault {
            key: self.key,
            rule: self.rule.clone(),
            phase,
        }
    }
}
