//! Fault injection at run time: rules that the broker sends to all present and future clients.
//!
//! The broker has the authoritative list. It sends each client the whole list that applies to it,
//! with rule numbers, including the rules that the client was started with. Each client counts the
//! hits of a rule in its journal file (`journal/report.rs`), which the broker reads on request.

use super::client::ask_running;
use super::protocol::{FaultList, ProtocolError, Request, Response};
use super::{BrokerConfig, BrokerError};
use crate::faults::FaultRule;

/// Adds a rule to all present and future processes of the running broker. Returns its number.
///
/// # Errors
/// [`BrokerError::NotRunning`] without a broker, [`BrokerError::Refused`] if there are too many
/// rules.
pub fn add_fault(config: &BrokerConfig, rule: &FaultRule) -> Result<u32, BrokerError> {
    match ask_running(config, &Request::AddFault(rule.to_string()))? {
        Response::FaultAdded(id) => Ok(id),
        _ => Err(ProtocolError::Unexpected.into()),
    }
}

/// Removes one rule, or all rules including those that processes were started with. Returns their
/// number.
///
/// # Errors
/// [`BrokerError::NotRunning`] without a broker.
pub fn clear_faults(config: &BrokerConfig, id: Option<u32>) -> Result<u16, BrokerError> {
    match ask_running(config, &Request::ClearFaults(id))? {
        Response::FaultsCleared(count) => Ok(count),
        _ => Err(ProtocolError::Unexpected.into()),
    }
}

/// Returns the rules of the running broker and their hits.
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
