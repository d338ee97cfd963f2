//! Parses rules.

use std::error::Error;
use std::fmt;

use rocade_wire::{Operation, Psn, Qpn};

use super::rule::{Action, CLASSES, PacketDirection, Rule, begins};
use crate::nearest::nearest;

/// The actions, with which a rule begins.
const ACTIONS: [&str; 6] = ["drop", "dup", "delay", "reorder", "corrupt", "ecn"];
/// The keys that may follow.
const KEYS: [&str; 10] = [
    "opcode", "qpn", "ip", "psn", "dir", "nth", "every", "p", "seed", "by",
];
/// Longest delay.
const MAX_DELAY_NS: u64 = 60_000_000_000;
/// Most packets that may overtake one.
const MAX_BEHIND: u64 = 1_000;

/// An error in a rule. The text names the key and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleError {
    /// The words at fault, e.g. `nth=0`.
    pub at: String,
    /// The reason why they are invalid.
    pub reason: String,
    /// The allowed values.
    pub allowed: String,
}

impl fmt::Display for RuleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "`{}`: {}; allowed: {}",
            self.at, self.reason, self.allowed
        )
    }
}

impl Error for RuleError {}

fn error<T>(
    at: impl Into<String>,
    reason: impl Into<String>,
    allowed: impl Into<String>,
) -> Result<T, RuleError> {
    Err(RuleError {
        at: at.into(),
        reason: reason.into(),
        allowed: allowed.into(),
    })
}

impl Rule {
    /// Parses `ACTION KEY=VALUE..`, e.g. `drop opcode=READ_RESPONSE nth=3`.
    ///
    /// # Errors
    /// [`RuleError`] for the first invalid word.
    pub fn parse(text: &str) -> Result<Self, RuleError> {
        let mut words = text.split_whitespace();
        let Some(action) = words.next() else {
            return error(text, "a rule is missing", ACTIONS.join(", "));
        };
        let mut rule = Self {
            action: match action {
                "drop" => Action::Drop,
                "dup" => Action::Duplicate,
                "delay" => Action::Delay { ns: 0 },
                "reorder" => Action::Reorder { packets: 1 },
                "corrupt" => Action::Corrupt,
                "ecn" => Action::Ecn,
                _ => {
                    return error(
                        action,
                        unknown("action", action, &ACTIONS),
                        ACTIONS.join(", "),
                    );
                }
            },
            direction: Some(PacketDirection::Tx),
            opcodes: Vec::new(),
            qpn: None,
            ip: None,
            psn: None,
            nth: None,
            every: None,
            per_million: None,
            seed: None,
        };
        let mut before: Vec<&str> = Vec::new();
        for word in words {
            let Some((key, value)) = word.split_once('=') else {
                return error(word, "it is not KEY=VALUE", KEYS.join(", "));
            };
            if before.contains(&key) {
                return error(word, format!("{key} is given twice"), "each key once");
            }
            before.push(key);
            rule.set(word, key, value)?;
        }
        if rule.action == (Action::Delay { ns: 0 }) {
            return error(text, "the duration is missing", "delay by=5ms");
        }
        if rule.seed.is_some() && rule.per_million.is_none() && rule.action != Action::Corrupt {
            return error(text, "a seed without a probability", "p=0.01 seed=7");
        }
        Ok(rule)
    }

    /// Parses rules, one per line or separated by semicolons. `#` begins a comment.
    ///
    /// # Errors
    /// As [`Rule::parse`].
    pub fn parse_list(text: &str) -> Result<Vec<Self>, RuleError> {
        text.lines()
            .map(|line| line.split('#').next().unwrap_or_default())
            .flat_map(|line| line.split(';'))
            .filter(|rule| !rule.trim().is_empty())
            .map(Self::parse)
            .collect()
    }

    fn set(&mut self, word: &str, key: &str, value: &str) -> Result<(), RuleError> {
        match key {
            "opcode" => {
                let names = value.split(',').map(|name| opcode(word, name));
                self.opcodes = names.collect::<Result<_, _>>()?;
            }
            "qpn" => match number(value).and_then(|n| u32::try_from(n).ok()) {
                Some(qpn) if qpn < 1 << 24 => self.qpn = Some(Qpn::new(qpn)),
                _ => return error(word, "it is not a QP number", "below 2^24, e.g. 0x11"),
            },
            "ip" => match value.parse() {
                Ok(ip) => self.ip = Some(ip),
                Err(_) => return error(word, "it is not an IP address", "192.0.2.1 or fd00::1"),
            },
            "psn" => match range(value, number) {
                Some((first, last)) if last < 1 << 24 => {
                    let psn = |n: u64| Psn::new(u32::try_from(n).unwrap_or(0));
                    self.psn = Some((psn(first), psn(last)));
                }
                _ => return error(word, "it is not a PSN", "N or FIRST..LAST, below 2^24"),
            },
            "dir" => {
                self.direction = match value {
                    "tx" => Some(PacketDirection::Tx),
                    "rx" => Some(PacketDirection::Rx),
                    "both" => None,
                    _ => {
                        return error(word, "there is no such direction", "tx (default), rx, both");
                    }
                };
            }
            "nth" => match range(value, number) {
                Some((first, last)) if first > 0 && first <= last => self.nth = Some((first, last)),
                _ => {
                    return error(
                        word,
                        "it is not a position",
                        "N, FIRST..LAST or FIRST.., from 1",
                    );
                }
            },
            "every" => match number(value) {
                Some(every) if every > 0 => self.every = Some(every),
                _ => return error(word, "it is not a distance", "a number from 1"),
            },
            "p" => match probability(value) {
                Some(per_million) => self.per_million = Some(per_million),
                None => return error(word, "it is not a probability", "0.000001 to 1, or 1%"),
            },
            "seed" => match number(value) {
                Some(seed) => self.seed = Some(seed),
                None => return error(word, "it is not a number", "a number below 2^64"),
            },
            "by" => self.set_by(word, value)?,
            _ => return error(word, unknown("key", key, &KEYS), KEYS.join(", ")),
        }
        Ok(())
    }

    fn set_by(&mut self, word: &str, value: &str) -> Result<(), RuleError> {
        match &mut self.action {
            Action::Delay { ns } => match duration_ns(value) {
                Some(by) if (1..=MAX_DELAY_NS).contains(&by) => *ns = by,
                _ => return error(word, "it is not a duration", "1ns to 60s, e.g. 5ms"),
            },
            Action::Reorder { packets } => match number(value) {
                Some(by @ 1..=MAX_BEHIND) => *packets = u32::try_from(by).unwrap_or(1),
                _ => return error(word, "it is not a number of packets", "1 to 1000"),
            },
            _ => {
                return error(
                    word,
                    "this action takes no by=",
                    "by= with delay and reorder",
                );
            }
        }
        Ok(())
    }
}

fn unknown(kind: &str, word: &str, known: &[&str]) -> String {
    match nearest(word, known) {
        Some(near) => format!("there is no {kind} {word}; did you mean {near}?"),
        None => format!("there is no {kind} {word}"),
    }
}

/// Parses the name of an operation or a class.
fn opcode(word: &str, name: &str) -> Result<String, RuleError> {
    let upper = name.to_ascii_uppercase();
    let operations = Operation::ALL.iter().map(|operation| operation.name());
    if CLASSES.contains(&&*upper) || operations.clone().any(|known| begins(known, &upper)) {
        return Ok(upper);
    }
    let short = operations.map(|name| name.strip_prefix("RDMA_").unwrap_or(name));
    let families = ["SEND", "WRITE", "READ_RESPONSE", "READ_REQUEST"];
    let known: Vec<&str> = CLASSES.into_iter().chain(families).chain(short).collect();
    error(
        word,
        unknown("opcode", &upper, &known),
        "an operation such as SEND_ONLY, the beginning of its name such as SEND or READ_RESPONSE, \
         REQUEST, RESPONSE, ACK, NAK, RNR_NAK, ATOMIC; several separated by commas",
    )
}

/// Parses a decimal number, or a hexadecimal one with 0x.
fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(hex) if !hex.starts_with('+') => u64::from_str_radix(hex, 16).ok(),
        None if !text.starts_with('+') => text.parse().ok(),
        _ => None,
    }
}

/// Parses `N`, `FIRST..LAST` or `FIRST..`.
fn range(text: &str, number: impl Fn(&str) -> Option<u64>) -> Option<(u64, u64)> {
    match text.split_once("..") {
        None => number(text).map(|n| (n, n)),
        Some((first, "")) => Some((number(first)?, u64::MAX)),
        Some((first, last)) => Some((number(first)?, number(last)?)),
    }
}

fn duration_ns(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit_ns: u64 = match &text[digits.len()..] {
        "ns" => 1,
        "us" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        _ => return None,
    };
    number(digits)?.checked_mul(unit_ns)
}

/// Parses a probability. Returns it in millionths.
fn probability(text: &str) -> Option<u32> {
    let (digits, scale) = match text.strip_suffix('%') {
        Some(percent) => (percent, 1e4),
        None => (text, 1e6),
    };
    let value: f64 = digits.parse().ok()?;
    let per_million = (value * scale).round();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the range is checked"
    )]
    (1.0..=1e6)
        .contains(&per_million)
        .then_some(per_million as u32)
}
