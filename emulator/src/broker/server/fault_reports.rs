//! The reports of fault rules: those of ended processes, which the broker keeps.

use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;

use super::super::fault_reports::{
    MAX_ENDED_REPORTS, ProcessReport, RULES_AT_ONCE, ReportPart, ReportedState,
};
use super::super::protocol::Response;
use super::{Client, Server};
use crate::journal::read_fault_report;

/// The reports of ended processes, oldest first.
#[derive(Debug, Default)]
pub(super) struct EndedReports {
    ended: VecDeque<EndedReport>,
    forgotten: u32,
    last_number: u64,
}

#[derive(Debug)]
struct EndedReport {
    number: u64,
    /// Inode of the journal file.
    file: u64,
    process: ProcessReport,
}

impl EndedReports {
    /// Returns the number of the report in this journal. A process that connects again keeps that
    /// which it had.
    pub(super) fn number_for(&mut self, journal: &OwnedFd) -> u64 {
        let file = inode(journal);
        let known = self.ended.iter().position(|ended| Some(ended.file) == file);
        if let Some(known) = known.and_then(|index| self.ended.remove(index)) {
            return known.number;
        }
        self.last_number += 1;
        self.last_number
    }

    /// Keeps the report of a client that is about to be forgotten, if there is one.
    pub(super) fn keep(&mut self, client: &Client) {
        let Some((number, journal)) = client.numbered_report() else {
            return;
        };
        let Some(process) = read(client, journal) else {
            return;
        };
        let state = match process.state {
            ReportedState::Running => ReportedState::Ended,
            state => state,
        };
        let Some(file) = inode(journal) else { return };
        self.ended.push_back(EndedReport {
            number,
            file,
            process: ProcessReport { state, ..process },
        });
        if self.ended.len() > MAX_ENDED_REPORTS {
            self.ended.pop_front();
            self.forgotten = self.forgotten.saturating_add(1);
        }
    }
}

/// Returns the report in the journal of a client, or `None` without rules.
fn read(client: &Client, journal: &OwnedFd) -> Option<ProcessReport> {
    let report = read_fault_report(journal);
    if report.rules.is_empty() {
        return None;
    }
    Some(ProcessReport {
        slot: client.slot?,
        pid: client.peer.pid,
        name: client.name.clone(),
        state: match report.has_exited {
            true => ReportedState::Exited,
            false => ReportedState::Running,
        },
        rules: report.rules,
    })
}

fn inode(journal: &OwnedFd) -> Option<u64> {
    let file = File::from(journal.try_clone().ok()?);
    file.metadata().ok().map(|metadata| metadata.ino())
}

impl Client {
    /// Returns the number and the journal of the client's report.
    fn numbered_report(&self) -> Option<(u64, &OwnedFd)> {
        let registered_journal = self.registered_journal.as_ref()?;
        Some((self.report_number, registered_journal.journal()))
    }
}

impl Server {
    /// Returns rules, from `rule` on, of the first report whose number is not below `number`.
    pub(super) fn fault_report_from(&self, number: u64, rule: u16) -> Response {
        let mut running: Vec<_> = (self.clients.iter())
            .filter_map(|client| Some((client.numbered_report()?, client)))
            .filter(|((own, _), _)| *own >= number)
            .collect();
        running.sort_unstable_by_key(|((own, _), _)| *own);
        let mut running = running
            .into_iter()
            .filter_map(|((own, journal), client)| Some((own, read(client, journal)?)));
        let ended = self.reports.ended.iter();
        let ended = ended
            .filter(|ended| ended.number >= number)
            .map(|ended| (ended.number, &ended.process))
            .min_by_key(|(own, _)| *own)
            .map(|(own, process)| (own, process.clone()));
        let first = running.next().into_iter().chain(ended);
        let first = first.min_by_key(|(own, _)| *own);
        Response::FaultReportPart {
            forgotten: self.reports.forgotten,
            part: first.map(|(own, mut process)| {
                let total = u16::try_from(process.rules.len()).unwrap_or(u16::MAX);
                let skipped = if own == number { rule.into() } else { 0 };
                let rules = process.rules.into_iter().skip(skipped);
                process.rules = rules.take(RULES_AT_ONCE).collect();
                ReportPart {
                    number: own,
                    total,
                    process,
                }
            }),
        }
    }
}
