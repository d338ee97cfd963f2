//! Rules for queue pairs: an error in the middle of a message, and a receiver that is not ready.

use std::fmt;

use super::conditions::Conditions;
use super::{RuleError, each_word};
use crate::link::fault::{bytes, rule_error};

/// The failure of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpFault {
    /// The QP goes to ERR when it has sent this many bytes of payload.
    Error {
        /// The number of bytes, from 0 for the first packet.
        after: u64,
    },
    /// The QP answers requests that need a receive with RNR NAKs.
    NotReady,
}

/// A rule for queue pairs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QpRule {
    /// The failure.
    pub fault: QpFault,
    /// The time, the device and the QP.
    pub conditions: Conditions,
}

/// The keys of `qp-error`.
const ERROR_KEYS: [&str; 9] = [
    "after", "dev", "qpn", "at", "for", "every", "times", "nth", "p",
];
/// The keys of `rnr`.
const RNR_KEYS: [&str; 6] = ["dev", "qpn", "at", "for", "every", "times"];

impl QpRule {
    /// The first words of these rules.
    pub(super) const ACTIONS: [&str; 2] = ["qp-error", "rnr"];

    /// Parses a rule whose first word is one of [`QpRule::ACTIONS`].
    ///
    /// # Errors
    /// [`RuleError`] for the first invalid word.
    pub(super) fn parse(text: &str) -> Result<Self, RuleError> {
        let is_rnr = text.split_whitespace().next() == Some("rnr");
        let keys: &[&str] = if is_rnr { &RNR_KEYS } else { &ERROR_KEYS };
        let (mut after, mut conditions) = (0, Conditions::default());
        each_word(text, keys, |word, key, value| {
            if key != "after" {
                return conditions.set(word, key, value).map(drop);
            }
            match bytes(value) {
                Some(count) => after = count,
                None => return rule_error(word, "it is not a size", "bytes, e.g. 65536 or 64K"),
            }
            Ok(())
        })?;
        conditions.check(text)?;
        let fault = match is_rnr {
            true => QpFault::NotReady,
            false => QpFault::Error { after },
        };
        Ok(Self { fault, conditions })
    }
}

impl fmt::Display for QpRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.fault {
            QpFault::Error { after } => write!(f, "qp-error after={after}{}", self.conditions),
            QpFault::NotReady => write!(f, "rnr{}", self.conditions),
        }
    }
}
