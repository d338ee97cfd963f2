//! Parses rules.

use std::error::Error;
use std::fmt;

use rocade_wire::{Operation, Psn, Qpn};

use super::ending::Ending;
use super::model::LinkModel;
use super::rule::{Action, CLASSES, PacketDirection, Rule, begins};
use super::units::{BitErrorRate, BitRate, bytes, duration_ns, number, probability, range};
use crate::nearest::nearest;

/// The actions, with which a rule begins.
pub(crate) const PACKET_ACTIONS: [&str; 12] = [
    "drop",
    "dup",
    "delay",
    "reorder",
    "corrupt",
    "ecn",
    "link",
    "spray",
    "partition",
    "mute",
    "kill",
    "stop",
];
/// The conditions that may follow any action.
const CONDITIONS: [&str; 10] = [
    "opcode", "qpn", "ip", "psn", "size", "dir", "nth", "every", "p", "seed",
];
/// The parameters that only some actions take.
const PARAMETERS: [(&str, &str); 9] = [
    ("by", "delay, reorder and spray"),
    ("paths", "spray"),
    ("ber", "corrupt"),
    ("rate", "link"),
    ("latency", "link"),
    ("jitter", "link"),
    ("queue", "link"),
    ("mark", "link"),
    ("pmax", "link"),
];
/// Longest delay.
const MAX_DELAY_NS: u64 = 60_000_000_000;
/// Most packets that may overtake one.
const MAX_BEHIND: u64 = 1_000;
/// Most paths of a network.
const MAX_PATHS: u64 = 256;
/// Largest queue of a link in bytes.
const MAX_QUEUE: u64 = 64 << 20;

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

/// Returns an error of a rule.
pub(crate) fn rule_error<T>(
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
            return rule_error(text, "a rule is missing", PACKET_ACTIONS.join(", "));
        };
        let Some(action) = named(action) else {
            return rule_error(
                action,
                unknown("action", action, &PACKET_ACTIONS),
                PACKET_ACTIONS.join(", "),
            );
        };
        let mut rule = Self {
            action,
            direction: action.default_direction(),
            opcodes: Vec::new(),
            qpn: None,
            ip: None,
            psn: None,
            size: None,
            nth: None,
            every: None,
            per_million: None,
            seed: None,
        };
        let mut before: Vec<&str> = Vec::new();
        for word in words {
            let Some((key, value)) = word.split_once('=') else {
                return rule_error(word, "it is not KEY=VALUE", keys().join(", "));
            };
            if before.contains(&key) {
                return rule_error(word, format!("{key} is given twice"), "each key once");
            }
            before.push(key);
            rule.set(word, key, value)?;
        }
        rule.check(text)?;
        Ok(rule)
    }

    /// Checks the words of a rule together.
    fn check(&self, text: &str) -> Result<(), RuleError> {
        match self.action {
            Action::Delay { ns: 0 } => {
                return rule_error(text, "the duration is missing", "delay by=5ms");
            }
            Action::Spray { ns: 0, .. } => {
                return rule_error(text, "the duration is missing", "spray paths=4 by=20us");
            }
            Action::Link(LinkModel::NEW) => {
                let allowed = "link rate=10gbit latency=5us jitter=2us queue=1M mark=100K..400K";
                return rule_error(text, "the link has no property", allowed);
            }
            Action::Link(LinkModel {
                rate: None,
                queue_bytes,
                mark,
                ..
            }) if mark.is_some() || queue_bytes != LinkModel::NEW.queue_bytes => {
                return rule_error(text, "a queue without a data rate", "link rate=10gbit ..");
            }
            Action::Link(LinkModel {
                mark: Some((_, max)),
                queue_bytes,
                ..
            }) if max > queue_bytes => {
                return rule_error(
                    text,
                    "the marks begin behind the end of the queue",
                    "queue=",
                );
            }
            Action::Link(LinkModel {
                mark: None,
                mark_per_million: ..1_000_000,
                ..
            }) => return rule_error(text, "pmax= without mark=", "mark=100K..400K pmax=1%"),
            _ => {}
        }
        if self.seed.is_some() && self.per_million.is_none() && !self.action.draws() {
            return rule_error(text, "a seed without a probability", "p=0.01 seed=7");
        }
        Ok(())
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
                _ => return rule_error(word, "it is not a QP number", "below 2^24, e.g. 0x11"),
            },
            "ip" => match value.parse() {
                Ok(ip) => self.ip = Some(ip),
                Err(_) => {
                    return rule_error(word, "it is not an IP address", "192.0.2.1 or fd00::1");
                }
            },
            "psn" => match range(value, number) {
                Some((first, last)) if last < 1 << 24 => {
                    let psn = |n: u64| Psn::new(u32::try_from(n).unwrap_or(0));
                    self.psn = Some((psn(first), psn(last)));
                }
                _ => return rule_error(word, "it is not a PSN", "N or FIRST..LAST, below 2^24"),
            },
            "size" => match range(value, bytes) {
                Some((first, last)) if first <= last => self.size = Some((first, last)),
                _ => {
                    return rule_error(
                        word,
                        "it is not a size",
                        "bytes of the IP packet, e.g. 1501..",
                    );
                }
            },
            "dir" if matches!(self.action, Action::Partition | Action::Mute) => {
                return rule_error(word, "this action has its own direction", "no dir=");
            }
            "dir" => {
                self.direction = match value {
                    "tx" => Some(PacketDirection::Tx),
                    "rx" => Some(PacketDirection::Rx),
                    "both" => None,
                    _ => {
                        return rule_error(
                            word,
                            "there is no such direction",
                            "tx (default), rx, both",
                        );
                    }
                };
            }
            "nth" => match range(value, number) {
                Some((first, last)) if first > 0 && first <= last => self.nth = Some((first, last)),
                _ => {
                    return rule_error(
                        word,
                        "it is not a position",
                        "N, FIRST..LAST or FIRST.., from 1",
                    );
                }
            },
            "every" => match number(value) {
                Some(every) if every > 0 => self.every = Some(every),
                _ => return rule_error(word, "it is not a distance", "a number from 1"),
            },
            "p" => match probability(value) {
                Some(per_million) => self.per_million = Some(per_million),
                None => return rule_error(word, "it is not a probability", "0.000001 to 1, or 1%"),
            },
            "seed" => match number(value) {
                Some(seed) => self.seed = Some(seed),
                None => return rule_error(word, "it is not a number", "a number below 2^64"),
            },
            _ => self.set_parameter(word, key, value)?,
        }
        Ok(())
    }

    /// Sets what only some actions have.
    fn set_parameter(&mut self, word: &str, key: &str, value: &str) -> Result<(), RuleError> {
        match (&mut self.action, key) {
            (Action::Delay { ns } | Action::Spray { ns, .. }, "by") => match duration_ns(value) {
                Some(by) if (1..=MAX_DELAY_NS).contains(&by) => *ns = by,
                _ => return rule_error(word, "it is not a duration", "1ns to 60s, e.g. 5ms"),
            },
            (Action::Reorder { packets }, "by") => match number(value) {
                Some(by @ 1..=MAX_BEHIND) => *packets = u32::try_from(by).unwrap_or(1),
                _ => return rule_error(word, "it is not a number of packets", "1 to 1000"),
            },
            (Action::Spray { paths, .. }, "paths") => match number(value) {
                Some(count @ 2..=MAX_PATHS) => *paths = u32::try_from(count).unwrap_or(2),
                _ => return rule_error(word, "it is not a number of paths", "2 to 256"),
            },
            (Action::Corrupt { ber }, "ber") => match BitErrorRate::parse(value) {
                Some(rate) => *ber = Some(rate),
                None => return rule_error(word, "it is not a bit error rate", "1e-15 to 0.01"),
            },
            (Action::Link(model), _) if PARAMETERS.contains(&(key, "link")) => {
                set_link(model, word, key, value)?;
            }
            _ => {
                return match PARAMETERS.iter().find(|(known, _)| *known == key) {
                    Some((_, actions)) => rule_error(
                        word,
                        format!("this action takes no {key}="),
                        format!("{key}= with {actions}"),
                    ),
                    None => rule_error(word, unknown("key", key, &keys()), keys().join(", ")),
                };
            }
        }
        Ok(())
    }
}

/// Returns the action of this name, with its default parameters.
fn named(action: &str) -> Option<Action> {
    Some(match action {
        "drop" => Action::Drop,
        "dup" => Action::Duplicate,
        "delay" => Action::Delay { ns: 0 },
        "reorder" => Action::Reorder { packets: 1 },
        "corrupt" => Action::Corrupt { ber: None },
        "ecn" => Action::Ecn,
        "link" => Action::Link(LinkModel::NEW),
        "spray" => Action::Spray { paths: 2, ns: 0 },
        "partition" => Action::Partition,
        "mute" => Action::Mute,
        _ => return Ending::from_name(action).map(Action::End),
    })
}

/// Returns the known keys.
fn keys() -> Vec<&'static str> {
    let parameters = PARAMETERS.iter().map(|(key, _)| *key);
    CONDITIONS.into_iter().chain(parameters).collect()
}

fn set_link(model: &mut LinkModel, word: &str, key: &str, value: &str) -> Result<(), RuleError> {
    let time = || match duration_ns(value) {
        Some(ns) if (1..=MAX_DELAY_NS).contains(&ns) => Ok(ns),
        _ => rule_error(word, "it is not a duration", "1ns to 60s, e.g. 5us"),
    };
    match key {
        "latency" => model.latency_ns = time()?,
        "jitter" => model.jitter_ns = time()?,
        "rate" => match BitRate::parse(value) {
            Some(rate) => model.rate = Some(rate),
            None => {
                let allowed = "1kbit to 1000gbit, e.g. 10gbit or 100mbit";
                return rule_error(word, "it is not a data rate", allowed);
            }
        },
        "queue" => match bytes(value) {
            Some(size @ 1..=MAX_QUEUE) => model.queue_bytes = size,
            _ => return rule_error(word, "it is not the size of a queue", "1 to 64M, e.g. 256K"),
        },
        "mark" => match range(value, bytes) {
            Some((min, max)) if min <= max && max <= MAX_QUEUE => model.mark = Some((min, max)),
            _ => return rule_error(word, "it is not a range of bytes", "e.g. 100K..400K"),
        },
        _ => match probability(value) {
            Some(per_million) => model.mark_per_million = per_million,
            None => return rule_error(word, "it is not a probability", "0.000001 to 1, or 1%"),
        },
    }
    Ok(())
}

/// Returns the reason for an unknown word, with a similar one.
pub(crate) fn unknown(kind: &str, word: &str, known: &[&str]) -> String {
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
    rule_error(
        word,
        unknown("opcode", &upper, &known),
        "an operation such as SEND_ONLY, the beginning of its name such as SEND or READ_RESPONSE, \
         REQUEST, RESPONSE, ACK, NAK, RNR_NAK, ATOMIC; several separated by commas",
    )
}
