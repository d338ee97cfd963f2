//! The rules that wait for an occasion: a verb, a completion, a packet of a QP.
//!
//! Each hook first reads one word without synchronisation, which has a bit for its kind of rules.
//! So a process without such rules pays for that read only.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::sync::{Mutex, rank};
use rocade_transport::{Completion, Time};
use rocade_wire::Qpn;

use super::completion::{CompletionEffect, CompletionVerdict};
use super::gate::Gate;
use super::limit::Limit;
use super::qp::QpFault;
use super::schedule::RuleKey;
use super::tally::{Subject, Tally};
use super::verb::{Verb, VerbEffect, VerbVerdict};
use super::{Conditions, FaultRule};
use crate::random::Random;

/// Most QPs whose bytes a rule counts. Further QPs fail at their first packet.
const MAX_COUNTED: usize = 4_096;

/// The kind of occasion that a rule waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum HookPoint {
    Verb = 1,
    Completion = 2,
    Sent = 4,
    Received = 8,
    Limit = 16,
}

/// A rule, and whether it applies at present.
#[derive(Clone, Debug)]
pub(crate) struct OpenRule {
    pub(crate) key: RuleKey,
    pub(crate) rule: FaultRule,
    pub(crate) is_open: bool,
}

/// The rules of an engine that wait for an occasion.
#[derive(Debug)]
pub(crate) struct Triggers {
    /// A bit for each [`HookPoint`] that a rule waits for.
    awaited: AtomicU32,
    seed: u64,
    tally: Arc<Tally>,
    state: Mutex<Vec<Trigger>, rank::FaultRules>,
}

#[derive(Debug)]
struct Trigger {
    key: RuleKey,
    rule: FaultRule,
    is_open: bool,
    gate: Gate,
    /// Chooses among the effects of the rule.
    random: Random,
    /// Number of bytes that each QP has sent. `None` for a QP that has failed.
    sent: BTreeMap<Qpn, Option<u64>>,
}

impl Triggers {
    /// Creates an empty list. Rules with a probability and without a seed use `seed`.
    pub(crate) fn new(seed: u64, tally: Arc<Tally>) -> Self {
        Self {
            awaited: AtomicU32::new(0),
            seed,
            tally,
            state: Mutex::default(),
        }
    }

    /// Returns true if a rule waits for this kind of occasion.
    #[inline]
    pub(crate) fn await_any(&self, occasion: HookPoint) -> bool {
        self.awaited.load(Ordering::Relaxed) & occasion as u32 != 0
    }

    /// Replaces the rules. Rules that stay keep their state.
    pub(crate) fn replace(&self, rules: Vec<OpenRule>) {
        let mut state = self.state.lock();
        let mut before = std::mem::take(&mut *state);
        let mut awaited = 0;
        for open_rule in rules {
            let Some(occasion) = occasion_of(&open_rule.rule) else {
                continue;
            };
            let known = before
                .iter()
                .position(|trigger| trigger.key == open_rule.key);
            let mut trigger = match known {
                Some(index) => before.swap_remove(index),
                None => Trigger::new(open_rule.key, open_rule.rule, self.seed),
            };
            trigger.is_open = open_rule.is_open;
            awaited |= if trigger.is_open { occasion as u32 } else { 0 };
            state.push(trigger);
        }
        self.awaited.store(awaited, Ordering::Relaxed);
    }

    /// Applies the rules to a call of a verb.
    #[cold]
    pub(crate) fn on_verb(
        &self,
        now: Time,
        verb: Verb,
        device: &str,
        qpn: Option<Qpn>,
    ) -> VerbVerdict {
        let mut verdict = VerbVerdict::default();
        self.each(|trigger| {
            let FaultRule::Verb(rule) = &trigger.rule else {
                return;
            };
            let fits = rule.is_for(verb) && selects(&rule.conditions, device, qpn);
            if !fits || !trigger.gate.admit() {
                return;
            }
            match rule.effect {
                VerbEffect::Slow(ns) => verdict.slow += Duration::from_nanos(ns),
                VerbEffect::Fail(errno) if verdict.fail.is_none() => {
                    verdict.fail = Some((errno, rule.to_string()));
                }
                VerbEffect::Fail(_) => return,
                VerbEffect::End(ending) => verdict.end = verdict.end.or(Some(ending)),
            }
            let subject = match qpn {
                Some(qpn) => Subject::Qp(qpn),
                None => Subject::Other(format!("{} of {device}", verb.name())),
            };
            self.tally.hit(trigger.key, now, subject);
        });
        verdict
    }

    /// Applies the rules to completions of a QP that were not considered before.
    #[cold]
    pub(crate) fn on_completions(
        &self,
        now: Time,
        device: &str,
        completions: &[Completion],
    ) -> CompletionVerdict {
        let mut verdict = CompletionVerdict::default();
        self.each(|trigger| {
            let FaultRule::Completion(rule) = &trigger.rule else {
                return;
            };
            if !rule.conditions.select(device, None) {
                return;
            }
            for (index, completion) in completions.iter().enumerate() {
                if !rule.is_for(completion) || !trigger.gate.admit() {
                    continue;
                }
                match rule.effect {
                    CompletionEffect::Status(status) => {
                        if verdict.fail.is_none_or(|(first, _)| index < first) {
                            verdict.fail = Some((index, status));
                        }
                    }
                    CompletionEffect::Overrun => {
                        verdict.overrun = verdict.overrun.or(Some(index));
                    }
                    CompletionEffect::Late(ns) => verdict.hold_ns = verdict.hold_ns.max(ns),
                    CompletionEffect::Burst { count, ns } => {
                        verdict.hold_ns = verdict.hold_ns.max(ns);
                        verdict.burst = Some(verdict.burst.unwrap_or(0).max(count));
                    }
                    CompletionEffect::Shuffle(ns) => {
                        let late = trigger.random.next() % (ns + 1);
                        verdict.hold_ns = verdict.hold_ns.max(late);
                    }
                }
                self.tally
                    .hit(trigger.key, now, Subject::Qp(completion.qp_num));
            }
        });
        verdict
    }

    /// Counts bytes of payload that a QP sends. Returns the rule if the QP fails behind them.
    #[cold]
    pub(crate) fn on_sent(&self, now: Time, device: &str, qpn: Qpn, bytes: u64) -> Option<String> {
        let mut fails = None;
        self.each(|trigger| {
            let FaultRule::Qp(rule) = &trigger.rule else {
                return;
            };
            let QpFault::Error { after } = rule.fault else {
                return;
            };
            if !selects(&rule.conditions, device, Some(qpn)) {
                return;
            }
            if trigger.sent.len() >= MAX_COUNTED && !trigger.sent.contains_key(&qpn) {
                trigger.sent.pop_first();
            }
            let sent = trigger.sent.entry(qpn).or_insert(Some(0));
            let Some(count) = sent else { return };
            *count = count.saturating_add(bytes);
            if *count >= after {
                // Each QP is one occasion, and fails once.
                *sent = None;
                if trigger.gate.admit() {
                    fails = fails.take().or_else(|| Some(rule.to_string()));
                    self.tally.hit(trigger.key, now, Subject::Qp(qpn));
                }
            }
        });
        fails
    }

    /// Forgets the bytes of a QP that is reset or destroyed, whose number another QP may get.
    pub(crate) fn forget(&self, qpn: Qpn) {
        if self.await_any(HookPoint::Sent) {
            self.each(|trigger| {
                trigger.sent.remove(&qpn);
            });
        }
    }

    /// Returns true if the QP withholds its receives at present.
    #[cold]
    pub(crate) fn withholds_receives(&self, device: &str, qpn: Qpn) -> bool {
        let mut withholds = false;
        self.each(|trigger| {
            if let FaultRule::Qp(rule) = &trigger.rule
                && rule.fault == QpFault::NotReady
            {
                withholds |= selects(&rule.conditions, device, Some(qpn));
            }
        });
        withholds
    }

    /// Records that a QP has answered `count` requests with RNR NAKs.
    pub(crate) fn note_withheld(&self, now: Time, device: &str, qpn: Qpn, count: u32) {
        self.each(|trigger| {
            if let FaultRule::Qp(rule) = &trigger.rule
                && rule.fault == QpFault::NotReady
                && selects(&rule.conditions, device, Some(qpn))
            {
                for _ in 0..count {
                    self.tally.hit(trigger.key, now, Subject::Qp(qpn));
                }
            }
        });
    }

    /// Returns the lowered limit of a device, if there is one.
    pub(crate) fn limit(&self, device: &str, limit: Limit) -> Option<u64> {
        if !self.await_any(HookPoint::Limit) {
            return None;
        }
        let mut lowest: Option<u64> = None;
        self.each(|trigger| {
            if let FaultRule::Limit(rule) = &trigger.rule
                && rule.conditions.select(device, None)
            {
                let values = rule.limits.iter().filter(|(known, _)| *known == limit);
                lowest = values.map(|(_, value)| *value).chain(lowest).min();
            }
        });
        lowest
    }

    /// Records that a limit has refused an object.
    pub(crate) fn note_limit(&self, now: Time, device: &str, limit: Limit) {
        self.each(|trigger| {
            if let FaultRule::Limit(rule) = &trigger.rule
                && rule.conditions.select(device, None)
                && rule.limits.iter().any(|(known, _)| *known == limit)
            {
                let subject = Subject::Other(format!("{} of {device}", limit.name()));
                self.tally.hit(trigger.key, now, subject);
            }
        });
    }

    /// Calls `f` with each rule that applies at present.
    fn each(&self, f: impl FnMut(&mut Trigger)) {
        let mut state = self.state.lock();
        state
            .iter_mut()
            .filter(|trigger| trigger.is_open)
            .for_each(f);
    }
}

impl Trigger {
    fn new(key: RuleKey, rule: FaultRule, seed: u64) -> Self {
        let conditions = match &rule {
            FaultRule::Verb(rule) => Some(&rule.conditions),
            FaultRule::Completion(rule) => Some(&rule.conditions),
            FaultRule::Qp(rule) => Some(&rule.conditions),
            _ => None,
        };
        let own_seed = conditions.and_then(|conditions| conditions.seed);
        let gate = conditions.map_or_else(
            || Gate::new(None, None, seed),
            |conditions| conditions.gate(seed),
        );
        Self {
            key,
            rule,
            is_open: false,
            gate,
            // Another sequence than that of the gate.
            random: Random(own_seed.unwrap_or(seed) ^ 0x5bd1_e995_9d1b_58d3),
            sent: BTreeMap::new(),
        }
    }
}

/// Returns the occasion that a rule waits for. `None` for rules that act at a time, and for those
/// for packets.
fn occasion_of(rule: &FaultRule) -> Option<HookPoint> {
    match rule {
        FaultRule::Verb(_) => Some(HookPoint::Verb),
        FaultRule::Completion(_) => Some(HookPoint::Completion),
        FaultRule::Limit(_) => Some(HookPoint::Limit),
        FaultRule::Qp(rule) => Some(match rule.fault {
            QpFault::Error { .. } => HookPoint::Sent,
            QpFault::NotReady => HookPoint::Received,
        }),
        _ => None,
    }
}

/// Returns true if the conditions select the device and, if they name a QP, this one.
fn selects(conditions: &Conditions, device: &str, qpn: Option<Qpn>) -> bool {
    conditions.select(device, None) && conditions.qpn.is_none_or(|own| Some(own) == qpn)
}
