//! The times at which rules begin and end. Sans I/O: the caller has the clock.

use std::fmt;

use rocade_transport::Time;

use crate::link::fault::{RuleError, duration_ns, number, rule_error, write_duration};

/// Longest time in a schedule, in nanoseconds: 30 days.
const MAX_NS: u64 = 30 * 24 * 3600 * 1_000_000_000;

/// The phases of a rule, relative to the time at which the process opened its first device, or at
/// which the rule was added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    /// `at=`: the beginning of the first phase, in nanoseconds.
    pub at_ns: u64,
    /// `for=`: the length of a phase in nanoseconds. It does not end if `None`.
    pub for_ns: Option<u64>,
    /// `every=`: the time from one beginning to the next, in nanoseconds. Only one phase if `None`.
    pub every_ns: Option<u64>,
    /// `times=`: the number of phases. Unlimited if `None` and there is a period.
    pub times: Option<u64>,
}

impl Schedule {
    /// Returns true if the rule is in force from the start and does not end.
    #[must_use]
    pub fn is_always(&self) -> bool {
        *self == Self::default()
    }

    pub(super) fn set(&mut self, word: &str, key: &str, value: &str) -> Result<(), RuleError> {
        if key == "times" {
            return match number(value) {
                Some(times @ 1..) => {
                    self.times = Some(times);
                    Ok(())
                }
                _ => rule_error(word, "it is not a count", "a number from 1"),
            };
        }
        let least = u64::from(key != "at");
        let Some(ns) = duration_ns(value).filter(|ns| (least..=MAX_NS).contains(ns)) else {
            let allowed = "a number with ns, us, ms or s, at most 30 days, e.g. 500ms";
            return rule_error(word, "it is not a duration", allowed);
        };
        match key {
            "at" => self.at_ns = ns,
            "for" => self.for_ns = Some(ns),
            _ => self.every_ns = Some(ns),
        }
        Ok(())
    }

    /// Checks the times against each other. `text` is the rule.
    ///
    /// # Errors
    /// [`RuleError`] if the next phase begins before the last one has ended, or if there is a
    /// number of phases without a period.
    pub(super) fn check(&self, text: &str) -> Result<(), RuleError> {
        if let (Some(long), Some(every)) = (self.for_ns, self.every_ns)
            && long >= every
        {
            return rule_error(
                text,
                "for= is not shorter than every=",
                "for=100ms every=1s",
            );
        }
        if self.times.is_some() && self.every_ns.is_none() {
            return rule_error(text, "times= without every=", "every=1s times=3");
        }
        Ok(())
    }

    /// Returns the number of phases.
    fn phases(&self) -> u64 {
        match (self.times, self.every_ns) {
            (Some(times), _) => times,
            (None, Some(_)) => u64::MAX,
            (None, None) => 1,
        }
    }
}

/// Prints the schedule as words that begin with a space.
impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.at_ns > 0 {
            f.write_str(" at=")?;
            write_duration(f, self.at_ns)?;
        }
        for (key, ns) in [("for", self.for_ns), ("every", self.every_ns)] {
            if let Some(ns) = ns {
                write!(f, " {key}=")?;
                write_duration(f, ns)?;
            }
        }
        if let Some(times) = self.times {
            write!(f, " times={times}")?;
        }
        Ok(())
    }
}

/// The identity of an active rule, never used twice in a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleKey(pub u64);

/// The beginning or the end of a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The rule begins to apply. A rule without a duration acts once.
    Begin,
    /// The rule ceases to apply.
    End,
}

/// The beginning or the end of a rule at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// The rule.
    pub key: RuleKey,
    /// The beginning or the end.
    pub phase: Phase,
    /// The time for which the change was scheduled.
    pub at: Time,
}

/// The schedules of the rules that have more phases.
///
/// Changes come in the order of their times, and those of one time in the order in which the rules
/// were added. After a pause of the process, the whole phases that it has missed are left out,
/// except for the last one.
#[derive(Debug, Default)]
pub struct Scheduler {
    entries: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    key: RuleKey,
    schedule: Schedule,
    start: Time,
    /// Number of phases that have begun.
    begun: u64,
    phase: Phase,
    due: Time,
}

impl Scheduler {
    /// Adds a rule whose times count from `start`.
    pub fn add(&mut self, key: RuleKey, schedule: Schedule, start: Time) {
        self.entries.push(Entry {
            key,
            schedule,
            start,
            begun: 0,
            phase: Phase::Begin,
            due: start.plus_ns(schedule.at_ns),
        });
    }

    /// Removes a rule. Does nothing if it has no more phases.
    pub fn remove(&mut self, key: RuleKey) {
        self.entries.retain(|entry| entry.key != key);
    }

    /// Returns the time of the next change, which may be past.
    #[must_use]
    pub fn next_due(&self) -> Option<Time> {
        self.entries.iter().map(|entry| entry.due).min()
    }

    /// Takes the next change that is due at `now`.
    pub fn take_due(&mut self, now: Time) -> Option<Change> {
        let due = self.entries.iter().enumerate();
        let (index, entry) = due.min_by_key(|(_, entry)| entry.due)?;
        if entry.due > now {
            return None;
        }
        let change = Change {
            key: entry.key,
            phase: entry.phase,
            at: entry.due,
        };
        if !self.entries[index].go_on(now) {
            self.entries.remove(index);
        }
        Some(change)
    }
}

impl Entry {
    /// Determines the next change. Returns false if there is none.
    fn go_on(&mut self, now: Time) -> bool {
        if self.phase == Phase::Begin {
            self.begun += 1;
            if let Some(long) = self.schedule.for_ns {
                self.phase = Phase::End;
                self.due = self.due.plus_ns(long);
                return true;
            }
        }
        let Some(every) = self
            .schedule
            .every_ns
            .filter(|_| self.begun < self.schedule.phases())
        else {
            return false;
        };
        let first = self.start.plus_ns(self.schedule.at_ns);
        // The number of the phase that contains this time.
        let number = |time: Time| time.ns_since(first) / every;
        let begun = self.due.ns_since(first) / every;
        let next = (begun + 1).max(number(now));
        self.phase = Phase::Begin;
        self.due = first.plus_ns(next.saturating_mul(every));
        true
    }
}
