//! The reports of processes with fault rules, also of those that have ended.
//!
//! Each process writes its report to its journal file (`journal/fault_report.rs`). The broker reads
//! it on request, and keeps that of a process that has ended, however it ended.

use super::client::ask_running;
use super::protocol::{ProtocolError, Request, Response};
use super::{BrokerConfig, BrokerError};
use crate::faults::RuleSummary;
use crate::steering::ProcessSlot;

/// Most reports of ended processes that a broker keeps.
pub const MAX_ENDED_REPORTS: usize = 64;
/// Most rules in a message.
pub(super) const RULES_AT_ONCE: usize = 16;

/// The state of a process with a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportedState {
    /// The process uses the broker.
    Running,
    /// The process has ended by exit(3) or by returning from `main`.
    Exited,
    /// The process has ended in another way, such as by a signal, or has closed its devices.
    Ended,
}

/// The report of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessReport {
    /// Its slot.
    pub slot: ProcessSlot,
    /// Its process id.
    pub pid: u32,
    /// Name of its program.
    pub name: String,
    /// Its state.
    pub state: ReportedState,
    /// Its rules, with those that were removed, in the order in which they were added.
    pub rules: Vec<RuleSummary>,
}

/// The reports that a broker has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultReports {
    /// The processes with rules, in the order in which they began to use the broker.
    pub processes: Vec<ProcessReport>,
    /// Number of further processes that have ended. Their reports made room for later ones.
    pub forgotten: u32,
}

/// A part of the report of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ReportPart {
    /// Number of the report, from 1 in the order of the processes.
    pub(super) number: u64,
    /// Number of rules of the whole report.
    pub(super) total: u16,
    /// The report with some of its rules.
    pub(super) process: ProcessReport,
}

/// Returns the reports of the running broker.
///
/// # Errors
/// [`BrokerError::NotRunning`] without a broker.
pub fn fault_reports(config: &BrokerConfig) -> Result<FaultReports, BrokerError> {
    let mut reports = FaultReports::default();
    let (mut number, mut rule) = (1, 0);
    loop {
        let request = Request::FaultReportFrom { number, rule };
        let Response::FaultReportPart { forgotten, part } = ask_running(config, &request)? else {
            return Err(ProtocolError::Unexpected.into());
        };
        reports.forgotten = forgotten;
        let Some(part) = part else {
            return Ok(reports);
        };
        let rules = u16::try_from(part.process.rules.len()).unwrap_or(u16::MAX);
        match reports.processes.last_mut() {
            Some(last) if rule > 0 && part.number == number => {
                last.state = part.process.state;
                last.rules.extend(part.process.rules);
            }
            _ => {
                if part.number < number {
                    return Err(ProtocolError::Unexpected.into());
                }
                reports.processes.push(part.process);
                rule = 0;
            }
        }
        (number, rule) = match rule.saturating_add(rules) {
            read if rules > 0 && read < part.total => (part.number, read),
            _ => (part.number.saturating_add(1), 0),
        };
    }
}
