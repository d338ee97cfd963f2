//! Faults at run time: rules that the broker hands to all its clients, those that run and those that come.
//!
//! The broker is the one who knows: each client is sent the whole list that holds for it, by number, with
//! the rules among them that the client was started with. What they hit a client counts in its page
//! (`will/report.rs`), where the broker looks when somebody asks.

use std::fmt;

use super::client::ask_running;
use super::protocol::{ProtocolError, Request, Response};
use super::{BrokerConfig, BrokerError};
use crate::link::fault::Rule;
use crate::steering::Slot;

/// Longest text of a rule that the broker takes, in bytes.
pub const MAX_RULE_LEN: usize = 400;

/// A rule that the broker hands out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NumberedRule {
    /// Its number, from 1; as long as the broker lives no other gets it.
    pub id: u32,
    /// As [`Rule`] prints it.
    pub text: String,
}

/// A rule in a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleInProcess {
    /// Which.
    pub rule: NumberedRule,
    /// The process was started with it; else it was added at run time.
    pub own: bool,
    /// How many packets it has hit there.
    pub hits: u64,
}

/// A process and the rules that hold for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultyProcess {
    /// Its slot.
    pub slot: Slot,
    /// Its process id.
    pub pid: u32,
    /// Name of its program.
    pub name: String,
    /// It goes by these rules by now.
    pub is_up_to_date: bool,
    /// The rules, in order.
    pub rules: Vec<RuleInProcess>,
}

/// Which rules there are, and where they hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultList {
    /// Those that were added at run time: for every process.
    pub rules: Vec<NumberedRule>,
    /// The processes of the broker, lowest slot first.
    pub processes: Vec<FaultyProcess>,
}

/// What a client is told: the rules that hold for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FaultNews {
    /// How often rules have changed; never 0.
    pub(crate) generation: u32,
    pub(crate) rules: Vec<RuleForClient>,
}

impl FaultNews {
    /// The rules and their numbers, for a client that was started with its `own`.
    pub(crate) fn rules_with(&self, own: &[Rule]) -> (Vec<u32>, Vec<Rule>) {
        let rule = |which: &WhichRule| match which {
            WhichRule::Own(index) => own.get(usize::from(*index)).cloned(),
            WhichRule::Text(text) => Rule::parse(text).ok(),
        };
        let known = self.rules.iter();
        known
            .filter_map(|of| Some((of.id, rule(&of.which)?)))
            .unzip()
    }
}

/// A rule as a client is told of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RuleForClient {
    pub(crate) id: u32,
    pub(crate) which: WhichRule,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WhichRule {
    /// One that it was started with, by its place among those.
    Own(u8),
    /// This one.
    Text(String),
}

/// Adds a rule for all processes of the running broker, and those to come; returns its number.
///
/// # Errors
/// [`BrokerError::NotRunning`] without a broker; [`BrokerError::Refused`] where there are too many.
pub fn add_fault(config: &BrokerConfig, rule: &Rule) -> Result<u32, BrokerError> {
    match ask_running(config, &Request::AddFault(rule.to_string()))? {
        Response::FaultAdded(id) => Ok(id),
        _ => Err(ProtocolError::Unexpected.into()),
    }
}

/// Takes a rule away, or all with those that processes were started with; returns how many there were.
///
/// # Errors
/// [`BrokerError::NotRunning`] without a broker.
pub fn clear_faults(config: &BrokerConfig, id: Option<u32>) -> Result<u16, BrokerError> {
    match ask_running(config, &Request::ClearFaults(id))? {
        Response::FaultsCleared(count) => Ok(count),
        _ => Err(ProtocolError::Unexpected.into()),
    }
}

/// Asks the running broker which rules there are, and what they have hit.
///
/// # Errors
/// [`BrokerError::NotRunning`] without a broker.
pub fn faults(config: &BrokerConfig) -> Result<FaultList, BrokerError> {
    let Response::FaultRules(rules) = ask_running(config, &Request::Faults)? else {
        return Err(ProtocolError::Unexpected.into());
    };
    let mut list = FaultList {
        rules,
        processes: Vec::new(),
    };
    let mut from = 1u8;
    while let Response::FaultsOf(Some(process)) = ask_running(config, &Request::FaultsFrom(from))? {
        let next = process.slot.get().checked_add(1);
        list.processes.push(process);
        let Some(next) = next else { break };
        from = next;
    }
    Ok(list)
}

impl fmt::Display for NumberedRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.id, self.text)
    }
}
