//! Rules that end or stop the process itself, at a time.

use std::fmt;

use super::conditions::Conditions;
use super::{RuleError, each_word};
use crate::link::fault::Ending;

/// A rule that ends or stops the process at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessRule {
    /// The end or the stop.
    pub ending: Ending,
    /// The time.
    pub conditions: Conditions,
}

/// The keys of these rules.
const KEYS: [&str; 5] = ["at", "every", "times", "p", "seed"];

impl ProcessRule {
    /// Returns true if all words of the rule are for the process alone.
    pub(super) fn is_meant(text: &str) -> bool {
        let mut words = text.split_whitespace().skip(1);
        words.all(|word| {
            word.split_once('=')
                .is_some_and(|(key, _)| KEYS.contains(&key))
        })
    }

    /// Parses `kill at=2s` and `stop at=2s`.
    ///
    /// # Errors
    /// [`RuleError`] for the first invalid word.
    pub(super) fn parse(ending: Ending, text: &str) -> Result<Self, RuleError> {
        let mut conditions = Conditions::default();
        each_word(text, &KEYS, |word, key, value| {
            conditions.set(word, key, value).map(drop)
        })?;
        conditions.check(text)?;
        Ok(Self { ending, conditions })
    }
}

impl fmt::Display for ProcessRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.ending.name(), self.conditions)
    }
}
