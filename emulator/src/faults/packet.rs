//! Rules for packets, with a schedule.

use std::fmt;

use super::schedule::Schedule;
use crate::link::fault::{Rule, RuleError};

/// A rule for packets that applies in the phases of its schedule only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketRule {
    /// The packets and the action.
    pub rule: Rule,
    /// The phases: always by default.
    pub schedule: Schedule,
}

impl PacketRule {
    /// Parses a rule as [`Rule::parse`] does, which may also have `at=2s`, `for=500ms` and, with a
    /// unit, `every=1s`.
    ///
    /// # Errors
    /// [`RuleError`] for the first invalid word.
    pub(super) fn parse(text: &str) -> Result<Self, RuleError> {
        let mut schedule = Schedule::default();
        let mut others: Vec<&str> = Vec::new();
        let mut before: Vec<&str> = Vec::new();
        for word in text.split_whitespace() {
            let timed = word.split_once('=').filter(|(key, value)| {
                // A distance between packets has no unit.
                matches!(*key, "at" | "for")
                    || *key == "every" && value.ends_with(|c: char| c.is_ascii_alphabetic())
            });
            match timed {
                Some((key, _)) if before.contains(&key) => {
                    let reason = format!("{key} is given twice");
                    return super::rule_error(word, reason, "each key once");
                }
                Some((key, value)) => {
                    before.push(key);
                    schedule.set(word, key, value)?;
                }
                None => others.push(word),
            }
        }
        schedule.check(text)?;
        if schedule.every_ns.is_some() && schedule.for_ns.is_none() {
            return super::rule_error(text, "the duration is missing", "for=100ms every=1s");
        }
        Ok(Self {
            rule: Rule::parse(&others.join(" "))?,
            schedule,
        })
    }
}

impl fmt::Display for PacketRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.rule, self.schedule)
    }
}
