//! The conditions that all kinds of rules share.

use std::fmt;

use rocade_wire::Qpn;

use super::gate::Gate;
use super::schedule::Schedule;
use crate::link::fault::{RuleError, number, probability, range, rule_error};

/// The time, the position and the object that a rule is for. Each kind of rule accepts some of
/// them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conditions {
    /// `at=`, `for=`, `every=` and `times=`.
    pub schedule: Schedule,
    /// `nth=`: first and last of the matching occasions, counted from 1.
    pub nth: Option<(u64, u64)>,
    /// `p=`: the probability in millionths.
    pub per_million: Option<u32>,
    /// `seed=`: the seed of the probability.
    pub seed: Option<u64>,
    /// `dev=`: the name of the device. All devices if `None`.
    pub device: Option<String>,
    /// `port=`: the number of the port, from 1. All ports if `None`.
    pub port: Option<u8>,
    /// `qpn=`: the number of the queue pair of this process.
    pub qpn: Option<Qpn>,
}

/// Longest name of a device.
const MAX_NAME: usize = 63;

impl Conditions {
    /// Sets the condition of a word. Returns false if `key` is no shared condition.
    ///
    /// # Errors
    /// [`RuleError`] if the value is invalid.
    pub fn set(&mut self, word: &str, key: &str, value: &str) -> Result<bool, RuleError> {
        match key {
            "at" | "for" | "every" | "times" => self.schedule.set(word, key, value)?,
            "nth" => match range(value, number) {
                Some((first, last)) if first > 0 && first <= last => self.nth = Some((first, last)),
                _ => return invalid(word, "a position", "N, FIRST..LAST or FIRST.., from 1"),
            },
            "p" => match probability(value) {
                Some(per_million) => self.per_million = Some(per_million),
                None => return invalid(word, "a probability", "0.000001 to 1, or 1%"),
            },
            "seed" => match number(value) {
                Some(seed) => self.seed = Some(seed),
                None => return invalid(word, "a number", "a number below 2^64"),
            },
            "dev" => {
                if value.is_empty() || value.len() > MAX_NAME {
                    return invalid(word, "the name of a device", "a name, e.g. dev=rocade0");
                }
                self.device = Some(value.to_owned());
            }
            "port" => match number(value).and_then(|port| u8::try_from(port).ok()) {
                Some(port @ 1..) => self.port = Some(port),
                _ => return invalid(word, "a port", "1 to 255"),
            },
            "qpn" => match number(value).and_then(|qpn| u32::try_from(qpn).ok()) {
                Some(qpn) if qpn < 1 << 24 => self.qpn = Some(Qpn::new(qpn)),
                _ => return invalid(word, "a QP number", "below 2^24, e.g. 0x11"),
            },
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Checks conditions that depend on each other. `text` is the rule.
    ///
    /// # Errors
    /// [`RuleError`] if the phases of the schedule overlap, or if there is a seed but no
    /// probability.
    pub fn check(&self, text: &str) -> Result<(), RuleError> {
        self.schedule.check(text)?;
        if self.seed.is_some() && self.per_million.is_none() {
            return rule_error(text, "a seed without a probability", "p=0.01 seed=7");
        }
        Ok(())
    }

    /// Like [`Conditions::check`], for a rule whose effect may depend on chance.
    pub(super) fn check_drawing(&self, text: &str, draws: bool) -> Result<(), RuleError> {
        if draws {
            return self.schedule.check(text);
        }
        self.check(text)
    }

    /// Returns true if the conditions select the device of this name and, for `Some`, its port.
    #[must_use]
    pub fn select(&self, device: &str, port: Option<u8>) -> bool {
        self.device.as_deref().is_none_or(|name| name == device)
            && (port.is_none() || self.port.is_none() || self.port == port)
    }

    /// Returns the gate of `nth`, `p` and `seed`. Rules without a seed of their own use `seed`.
    #[must_use]
    pub fn gate(&self, seed: u64) -> Gate {
        Gate::new(self.nth, self.per_million, self.seed.unwrap_or(seed))
    }
}

fn invalid(word: &str, what: &str, allowed: &str) -> Result<bool, RuleError> {
    rule_error(word, format!("it is not {what}"), allowed)
}

/// Prints the conditions as words that begin with a space.
impl fmt::Display for Conditions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(device) = &self.device {
            write!(f, " dev={device}")?;
        }
        if let Some(port) = self.port {
            write!(f, " port={port}")?;
        }
        if let Some(qpn) = self.qpn {
            write!(f, " qpn={:#x}", qpn.get())?;
        }
        match self.nth {
            None => {}
            Some((first, last)) if first == last => write!(f, " nth={first}")?,
            Some((first, u64::MAX)) => write!(f, " nth={first}..")?,
            Some((first, last)) => write!(f, " nth={first}..{last}")?,
        }
        if let Some(per_million) = self.per_million {
            write!(f, " p={}", f64::from(per_million) / 1e6)?;
        }
        if let Some(seed) = self.seed {
            write!(f, " seed={seed}")?;
        }
        self.schedule.fmt(f)
    }
}
