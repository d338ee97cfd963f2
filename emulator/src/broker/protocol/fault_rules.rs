//! Fault rules in messages, and those that a program reads of the broker.

use std::fmt;

use crate::faults::FaultRule;
use crate::steering::ProcessSlot;

/// Longest text of a rule that the broker accepts, in bytes.
pub const MAX_RULE_LEN: usize = 400;

/// A rule that the broker distributes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NumberedRule {
    /// Its number, from 1, never reused during the life of the broker.
    pub id: u32,
    /// The text of the rule, as [`FaultRule`] prints it.
    pub text: String,
}

/// A rule in a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleInProcess {
    /// The rule.
    pub rule: NumberedRule,
    /// True if the process was started with the rule, false if it was added at run time.
    pub own: bool,
    /// Number of packets that the rule has hit in the process.
    pub hits: u64,
}

/// A process and its fault rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultyProcess {
    /// Its slot.
    pub slot: ProcessSlot,
    /// Its process id.
    pub pid: u32,
    /// Name of its program.
    pub name: String,
    /// True if the process has applied these rules.
    pub is_up_to_date: bool,
    /// The rules, in order.
    pub rules: Vec<RuleInProcess>,
}

/// All rules, and the processes that apply them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultList {
    /// The rules that were added at run time, which apply to every process.
    pub rules: Vec<NumberedRule>,
    /// The processes of the broker, lowest slot first.
    pub processes: Vec<FaultyProcess>,
}

/// The fault rules of one client, as the broker sends them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FaultUpdate {
    /// Number of changes of the rules, never 0.
    pub(crate) generation: u32,
    pub(crate) rules: Vec<RuleForClient>,
}

impl FaultUpdate {
    /// Returns the rules and their numbers, for a client that was started with the rules `own`.
    pub(crate) fn rules_with(&self, own: &[FaultRule]) -> (Vec<u32>, Vec<FaultRule>) {
        let rule = |which: &WhichRule| match which {
            WhichRule::Own(index) => own.get(usize::from(*index)).cloned(),
            WhichRule::Text(text) => FaultRule::parse(text).ok(),
        };
        let known = self.rules.iter();
        known
            .filter_map(|of| Some((of.id, rule(&of.which)?)))
            .unzip()
    }
}

/// A rule in a message to a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RuleForClient {
    pub(crate) id: u32,
    pub(crate) which: WhichRule,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WhichRule {
    /// A rule that the client was started with, by its index.
    Own(u8),
    /// The text of a rule that was added at run time.
    Text(String),
}

impl fmt::Display for NumberedRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.id, self.text)
    }
}
