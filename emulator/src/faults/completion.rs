//! Rules for completions: another status, a CQ that overruns, and completions that come later.

use std::fmt;

use rocade_transport::{Completion, WcOpcode, WcStatus};

use super::conditions::Conditions;
use super::{RuleError, each_word};
use crate::link::fault::{duration_ns, number, rule_error, unknown, write_duration};

/// Longest delay of a completion in nanoseconds.
const MAX_LATE_NS: u64 = 60_000_000_000;
/// Most completions of a burst.
const MAX_BURST: u64 = 1_000_000;

/// The names of the states of a failed completion, without `IBV_WC_`.
const STATUSES: [(&str, WcStatus); 12] = [
    ("LOC_LEN_ERR", WcStatus::LocLenErr),
    ("LOC_QP_OP_ERR", WcStatus::LocQpOpErr),
    ("LOC_PROT_ERR", WcStatus::LocProtErr),
    ("WR_FLUSH_ERR", WcStatus::WrFlushErr),
    ("MW_BIND_ERR", WcStatus::MwBindErr),
    ("BAD_RESP_ERR", WcStatus::BadRespErr),
    ("LOC_ACCESS_ERR", WcStatus::LocAccessErr),
    ("REM_INV_REQ_ERR", WcStatus::RemInvReqErr),
    ("REM_ACCESS_ERR", WcStatus::RemAccessErr),
    ("REM_OP_ERR", WcStatus::RemOpErr),
    ("RETRY_EXC_ERR", WcStatus::RetryExcErr),
    ("RNR_RETRY_EXC_ERR", WcStatus::RnrRetryExcErr),
];

/// The effect of a rule on a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompletionEffect {
    /// The completion has this status, and the QP goes to the state that it demands.
    Status(WcStatus),
    /// The CQ has no room for the completion, and is overrun.
    Overrun,
    /// The completion and the later ones of its QP appear after this time in nanoseconds.
    Late(u64),
    /// Completions of a QP appear together.
    Burst {
        /// The number of completions that end the wait.
        count: u32,
        /// The longest wait in nanoseconds.
        ns: u64,
    },
    /// The completions of each QP appear after a random time of at most this many nanoseconds.
    Shuffle(u64),
}

/// A rule for completions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompletionRule {
    /// The effect.
    pub effect: CompletionEffect,
    /// The operations. All of them if empty.
    pub opcodes: Vec<WcOpcode>,
    /// The completions, the device and the QP.
    pub conditions: Conditions,
}

/// The conditions of rules for completions.
const CONDITIONS: [&str; 10] = [
    "opcode", "nth", "p", "seed", "dev", "qpn", "at", "for", "every", "times",
];

impl CompletionRule {
    /// The first words of these rules.
    pub(super) const ACTIONS: [&str; 5] = ["complete", "overrun", "late", "burst", "shuffle"];

    /// Parses a rule whose first word is one of [`CompletionRule::ACTIONS`].
    ///
    /// # Errors
    /// [`RuleError`] for the first invalid word, or if a parameter is missing.
    pub(super) fn parse(text: &str) -> Result<Self, RuleError> {
        let action = text.split_whitespace().next().unwrap_or_default();
        let parameters: &[&str] = match action {
            "complete" => &["status"],
            "burst" => &["count", "by"],
            "overrun" => &[],
            _ => &["by"],
        };
        let keys: Vec<_> = parameters.iter().copied().chain(CONDITIONS).collect();
        let (mut status, mut by, mut count) = (None, None, None);
        let (mut opcodes, mut conditions) = (Vec::new(), Conditions::default());
        each_word(text, &keys, |word, key, value| {
            match key {
                "status" => status = Some(named(word, value, "status", &STATUSES)?),
                "opcode" => {
                    let names = value.split(',');
                    let read = names.map(|name| named(word, name, "opcode", WcOpcode::NAMES));
                    opcodes = read.collect::<Result<_, _>>()?;
                }
                "by" => match duration_ns(value) {
                    Some(ns @ 1..=MAX_LATE_NS) => by = Some(ns),
                    _ => return rule_error(word, "it is not a duration", "1ns to 60s, e.g. 5ms"),
                },
                "count" => match number(value) {
                    Some(number @ 2..=MAX_BURST) => count = u32::try_from(number).ok(),
                    _ => return rule_error(word, "it is not a count", "2 to 1000000"),
                },
                _ => drop(conditions.set(word, key, value)?),
            }
            Ok(())
        })?;
        conditions.check_drawing(text, action == "shuffle")?;
        let effect = match (action, status, by, count) {
            ("complete", Some(status), ..) => CompletionEffect::Status(status),
            ("complete", ..) => {
                return rule_error(text, "the status is missing", "status=RETRY_EXC_ERR");
            }
            ("overrun", ..) => CompletionEffect::Overrun,
            ("burst", _, Some(ns), Some(count)) => CompletionEffect::Burst { count, ns },
            ("burst", ..) => return rule_error(text, "a parameter is missing", "count=8 by=1ms"),
            ("late", _, Some(ns), _) => CompletionEffect::Late(ns),
            (_, _, Some(ns), _) => CompletionEffect::Shuffle(ns),
            _ => return rule_error(text, "the duration is missing", "by=5ms"),
        };
        Ok(Self {
            effect,
            opcodes,
            conditions,
        })
    }

    /// Returns true if the rule is for this completion. A completion that has failed already keeps
    /// its status.
    pub(crate) fn is_for(&self, completion: &Completion) -> bool {
        let may = match self.effect {
            CompletionEffect::Status(_) => completion.status == WcStatus::Success,
            _ => true,
        };
        may && (self.opcodes.is_empty() || self.opcodes.contains(&completion.opcode))
            && self
                .conditions
                .qpn
                .is_none_or(|qpn| qpn == completion.qp_num)
    }
}

fn named<T: Copy>(word: &str, name: &str, kind: &str, all: &[(&str, T)]) -> Result<T, RuleError> {
    let plain = name.strip_prefix("IBV_WC_").unwrap_or(name);
    match all.iter().find(|(known, _)| *known == plain) {
        Some((_, value)) => Ok(*value),
        None => {
            let names: Vec<_> = all.iter().map(|(name, _)| *name).collect();
            rule_error(word, unknown(kind, name, &names), names.join(", "))
        }
    }
}

impl fmt::Display for CompletionRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.effect {
            CompletionEffect::Status(status) => {
                let known = STATUSES.iter().find(|(_, known)| *known == status);
                write!(f, "complete status={}", known.map_or("", |(name, _)| name))?;
            }
            CompletionEffect::Overrun => f.write_str("overrun")?,
            CompletionEffect::Late(ns) => {
                f.write_str("late by=")?;
                write_duration(f, ns)?;
            }
            CompletionEffect::Burst { count, ns } => {
                write!(f, "burst count={count} by=")?;
                write_duration(f, ns)?;
            }
            CompletionEffect::Shuffle(ns) => {
                f.write_str("shuffle by=")?;
                write_duration(f, ns)?;
            }
        }
        for (index, opcode) in self.opcodes.iter().enumerate() {
            let name = WcOpcode::NAMES.iter().find(|(_, known)| known == opcode);
            let separator = if index == 0 { " opcode=" } else { "," };
            write!(f, "{separator}{}", name.map_or("", |(name, _)| name))?;
        }
        self.conditions.fmt(f)
    }
}

/// The effects of all rules on the pending completions of a QP.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CompletionVerdict {
    /// The first completion that fails, and its status.
    pub(crate) fail: Option<(usize, WcStatus)>,
    /// The first completion whose CQ is overrun.
    pub(crate) overrun: Option<usize>,
    /// Time in nanoseconds until which the completions are held.
    pub(crate) hold_ns: u64,
    /// The number of pending completions that ends the wait.
    pub(crate) burst: Option<u32>,
}
