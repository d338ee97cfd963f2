//! Failures on demand: rules that make packets, verbs, completions and peers fail, and their
//! schedule.
//!
//! A [`FaultRule`] is a line of text whose first word selects the kind: `drop nth=3` is a rule for
//! packets, and `fail verb=reg_mr errno=ENOMEM` one for a verb. [`Conditions`] are shared by all
//! kinds.
//! The [`Scheduler`] tells which rules begin and end at a time, without clock and I/O. `FaultPlan`
//! holds the rules of an engine, which executes them. `Triggers` applies those that wait for a
//! verb, a completion or a packet of a QP, and `Tally` counts what all of them have done.
//!
//! To add a kind: a file with its type, `parse` and [`fmt::Display`], and a variant of
//! [`FaultRule`].

pub mod chaos;
mod completion;
mod conditions;
mod device;
mod errno;
mod event;
mod gate;
mod limit;
#[cfg(all(test, not(loom)))]
mod occasion_tests;
mod packet;
mod plan;
mod process;
mod qp;
pub mod recipes;
mod report;
mod schedule;
#[cfg(all(test, not(loom)))]
mod schedule_tests;
mod tally;
mod triggers;
mod verb;

use std::fmt;

pub use completion::{CompletionEffect, CompletionRule};
pub use conditions::Conditions;
pub use device::{DeviceFault, DeviceRule, GidEdit, GidPlace};
pub use errno::Errno;
pub use event::{EventClass, EventName, EventRule};
pub use gate::Gate;
pub use limit::{Limit, LimitRule};
pub use packet::PacketRule;
pub use process::ProcessRule;
pub use qp::{QpFault, QpRule};
pub use report::{RuleSummary, table};
pub use schedule::{Change, Phase, RuleKey, Schedule, Scheduler};
pub use tally::{FaultReport, MAX_OBJECTS, Occurrence, ReportedRule, Subject};
pub use verb::{Verb, VerbEffect, VerbRule};

pub(crate) use plan::{DueFault, FaultPlan};
pub(crate) use tally::{HitCounter, ReportKeeper, Tally};
pub(crate) use triggers::{HookPoint, OpenRule, Triggers};

use crate::link::fault::{self, PACKET_ACTIONS, rule_error, unknown};
pub use crate::link::fault::{Ending, MAX_RULES, RuleError};

/// A rule of any kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FaultRule {
    /// Drops, changes or delays packets.
    Packet(PacketRule),
    /// Lets verbs fail or last.
    Verb(VerbRule),
    /// Changes or delays completions.
    Completion(CompletionRule),
    /// Lets a queue pair fail.
    Qp(QpRule),
    /// Lowers limits.
    Limit(LimitRule),
    /// Raises an asynchronous event.
    Event(EventRule),
    /// Ends or stops the process.
    Process(ProcessRule),
    /// Lets a device or a port fail or change.
    Device(DeviceRule),
}

impl FaultRule {
    /// Parses a rule, e.g. `drop opcode=ACK nth=3` or `rnr at=2s for=500ms`.
    ///
    /// # Errors
    /// [`RuleError`] for the first invalid word.
    pub fn parse(text: &str) -> Result<Self, RuleError> {
        let first = text.split_whitespace().next();
        let Some(first) = first else {
            return rule_error(text, "a rule is missing", first_words().join(", "));
        };
        let names_verb = |word: &str| word.starts_with("verb=");
        if let Some(ending) = Ending::from_name(first) {
            if ProcessRule::is_meant(text) {
                return ProcessRule::parse(ending, text).map(Self::Process);
            }
            if text.split_whitespace().any(names_verb) {
                return VerbRule::parse(text).map(Self::Verb);
            }
        }
        if VerbRule::ACTIONS.contains(&first) {
            return VerbRule::parse(text).map(Self::Verb);
        }
        if CompletionRule::ACTIONS.contains(&first) {
            return CompletionRule::parse(text).map(Self::Completion);
        }
        if QpRule::ACTIONS.contains(&first) {
            return QpRule::parse(text).map(Self::Qp);
        }
        if DeviceRule::ACTIONS.contains(&first) {
            return DeviceRule::parse(text).map(Self::Device);
        }
        match first {
            "limit" => return LimitRule::parse(text).map(Self::Limit),
            "event" => return EventRule::parse(text).map(Self::Event),
            _ => {}
        }
        if PACKET_ACTIONS.contains(&first) {
            return PacketRule::parse(text).map(Self::Packet);
        }
        let known = first_words();
        rule_error(first, unknown("action", first, &known), known.join(", "))
    }

    /// Parses rules, one per line or separated by semicolons. `#` begins a comment. Each may be a
    /// recipe (`recipe:NAME,KEY=VALUE`, see [`recipes`]) or a draw of some (`chaos:SEED`, see
    /// [`chaos`]).
    ///
    /// # Errors
    /// As [`FaultRule::parse`].
    pub fn parse_list(text: &str) -> Result<Vec<Self>, RuleError> {
        let rules = text
            .lines()
            .map(|line| line.split('#').next().unwrap_or_default())
            .flat_map(|line| line.split(';'))
            .map(str::trim)
            .filter(|rule| !rule.is_empty());
        let mut list = Vec::new();
        for text in rules {
            if text.starts_with(recipes::PREFIX) {
                list.extend(recipes::expand(text)?);
            } else if let Some(seed) = text.strip_prefix(chaos::PREFIX) {
                for recipe in chaos::Chaos::parse(seed)?.draw() {
                    list.extend(recipes::expand(&recipe)?);
                }
            } else {
                list.push(Self::parse(text)?);
            }
        }
        Ok(list)
    }

    /// Returns the schedule of the rule.
    #[must_use]
    pub const fn schedule(&self) -> &Schedule {
        match self {
            Self::Packet(rule) => &rule.schedule,
            Self::Verb(rule) => &rule.conditions.schedule,
            Self::Completion(rule) => &rule.conditions.schedule,
            Self::Qp(rule) => &rule.conditions.schedule,
            Self::Limit(rule) => &rule.conditions.schedule,
            Self::Event(rule) => &rule.conditions.schedule,
            Self::Process(rule) => &rule.conditions.schedule,
            Self::Device(rule) => &rule.conditions.schedule,
        }
    }
}

/// Returns the first words of all rules.
fn first_words() -> Vec<&'static str> {
    let others = VerbRule::ACTIONS.into_iter();
    let others = others.chain(CompletionRule::ACTIONS).chain(QpRule::ACTIONS);
    let others = others.chain(DeviceRule::ACTIONS).chain(["limit", "event"]);
    PACKET_ACTIONS.into_iter().chain(others).collect()
}

impl From<fault::Rule> for FaultRule {
    fn from(rule: fault::Rule) -> Self {
        Self::Packet(PacketRule {
            rule,
            schedule: Schedule::default(),
        })
    }
}

/// Prints the rule in the syntax that [`FaultRule::parse`] reads.
impl fmt::Display for FaultRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Packet(rule) => rule.fmt(f),
            Self::Verb(rule) => rule.fmt(f),
            Self::Completion(rule) => rule.fmt(f),
            Self::Qp(rule) => rule.fmt(f),
            Self::Limit(rule) => rule.fmt(f),
            Self::Event(rule) => rule.fmt(f),
            Self::Process(rule) => rule.fmt(f),
            Self::Device(rule) => rule.fmt(f),
        }
    }
}

/// Calls `set` with each `KEY=VALUE` behind the first word of a rule.
///
/// # Errors
/// [`RuleError`] for a word of another form, a key that is not in `keys` or given twice, and the
/// errors of `set`.
pub(crate) fn each_word<'t>(
    text: &'t str,
    keys: &[&str],
    mut set: impl FnMut(&'t str, &'t str, &'t str) -> Result<(), RuleError>,
) -> Result<(), RuleError> {
    let mut before: Vec<&str> = Vec::new();
    for word in text.split_whitespace().skip(1) {
        let Some((key, value)) = word.split_once('=') else {
            return rule_error(word, "it is not KEY=VALUE", keys.join(", "));
        };
        if !keys.contains(&key) {
            return rule_error(word, unknown("key", key, keys), keys.join(", "));
        }
        if before.contains(&key) {
            return rule_error(word, format!("{key} is given twice"), "each key once");
        }
        before.push(key);
        set(word, key, value)?;
    }
    Ok(())
}
