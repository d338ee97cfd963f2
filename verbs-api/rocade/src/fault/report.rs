//! `rocade fault report`: what the rules have done, also in processes that have ended.

use rocade_emulator::broker::{self, BrokerConfig, BrokerError, FaultReports, ReportedState};
use rocade_emulator::faults::{RuleSummary, table};
use serde_json::{Value, json};

use crate::error::CliError;
use crate::output;

/// Prints the reports of the running broker, as text or as JSON.
pub(crate) fn print(config: &BrokerConfig, as_json: bool) -> Result<(), CliError> {
    let reports = match broker::fault_reports(config) {
        Err(BrokerError::NotRunning) if as_json => FaultReports::default(),
        reports => reports.map_err(explain)?,
    };
    if as_json {
        return output::json(&view(&reports));
    }
    if reports.forgotten > 0 {
        output::line(format_args!(
            "{} earlier processes are left out",
            reports.forgotten
        ))?;
    }
    for process in &reports.processes {
        let (name, pid) = (&process.name, process.pid);
        output::line(format_args!("{name} ({pid}), {}", word(process.state)))?;
        output::print(table(&process.rules))?;
    }
    if reports.processes.is_empty() {
        return output::line("no process had rules");
    }
    Ok(())
}

const fn word(state: ReportedState) -> &'static str {
    match state {
        ReportedState::Running => "running",
        ReportedState::Exited => "exited",
        ReportedState::Ended => "ended without exit(3)",
    }
}

/// Returns the reports as JSON.
fn view(reports: &FaultReports) -> Value {
    let processes: Vec<_> = reports
        .processes
        .iter()
        .map(|process| {
            json!({
                "pid": process.pid,
                "name": process.name,
                "slot": process.slot.get(),
                "state": match process.state {
                    ReportedState::Running => "running",
                    ReportedState::Exited => "exited",
                    ReportedState::Ended => "ended",
                },
                "rules": process.rules.iter().map(rule).collect::<Vec<_>>(),
            })
        })
        .collect();
    json!({ "processes": processes, "forgotten": reports.forgotten })
}

fn rule(rule: &RuleSummary) -> Value {
    let objects: Vec<_> = rule
        .objects
        .iter()
        .map(|(object, times)| json!({ "object": object, "times": times }))
        .collect();
    json!({
        "rule": rule.text,
        "times": rule.hits,
        "first_ns": rule.first_ns,
        "last_ns": rule.last_ns,
        "objects": objects,
        "others": rule.other_hits,
    })
}

fn explain(error: BrokerError) -> CliError {
    match error {
        BrokerError::NotRunning => CliError::from(error).exit(1).hint(
            "the broker has the reports, and ends a minute after the last program. A program that \
             ends by exit(3) prints its own",
        ),
        error => error.into(),
    }
}
