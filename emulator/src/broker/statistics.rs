//! The statistics of the processes that use the broker.
//!
//! Each process keeps them in its journal file (`journal/statistics.rs`), of which the broker hands
//! out a descriptor that can only be read. So it neither reads nor copies them itself.

use super::client::ask_running_for_files;
use super::protocol::{ProtocolError, Request, Response};
use super::{BrokerConfig, BrokerError};
use crate::journal::read_statistics;
use crate::statistics::Statistics;
use crate::steering::ProcessSlot;

/// A process with its statistics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessStatistics {
    /// Its slot.
    pub slot: ProcessSlot,
    /// Its process ID, 0 if unknown.
    pub pid: u32,
    /// Name of its program.
    pub name: String,
    /// Its values, or `None` if there are none yet, or those of another version of Rocade.
    pub values: Option<Statistics>,
}

/// Returns the statistics of all processes that use the running broker, in the order of their
/// slots.
///
/// # Errors
/// [`BrokerError::NotRunning`] without a broker.
pub fn statistics(config: &BrokerConfig) -> Result<Vec<ProcessStatistics>, BrokerError> {
    let mut processes = Vec::new();
    let mut from = Some(0);
    while let Some(first) = from {
        let (answer, files) = ask_running_for_files(config, &Request::StatisticsFrom(first))?;
        let Response::StatisticsOf(client) = answer else {
            return Err(ProtocolError::Unexpected.into());
        };
        let (Some((slot, pid, name)), [journal]) = (client, &*files) else {
            return Ok(processes);
        };
        if slot.get() < first {
            return Err(ProtocolError::Unexpected.into());
        }
        processes.push(ProcessStatistics {
            slot,
            pid,
            name,
            values: Statistics::from_words(&read_statistics(journal)),
        });
        from = slot.get().checked_add(1);
    }
    Ok(processes)
}
