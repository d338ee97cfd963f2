//! `rocade fault`: fault rules for running programs.

mod minimize;
mod recipes;
mod report;
mod search;

use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use rocade_emulator::broker::{self, BrokerConfig, BrokerError, FaultList, FaultyProcess};
use rocade_emulator::config::Settings;
use rocade_emulator::faults::FaultRule;
use serde_json::{Value, json};

use crate::cli::FaultCommand;
use crate::error::CliError;
use crate::{output, table};

/// The time limit for all processes to install a rule. They take milliseconds, unless they are
/// stopped.
const PATIENCE: Duration = Duration::from_secs(2);
const LOOK_AGAIN: Duration = Duration::from_millis(5);

pub(crate) fn dispatch(command: &FaultCommand, settings: &Settings) -> Result<ExitCode, CliError> {
    let config = settings.broker_config();
    match command {
        FaultCommand::Add { rule } => add(&config, &rule.join(" "))?,
        FaultCommand::List(args) if args.recipes => recipes::print_all(args.output.json)?,
        FaultCommand::Report(args) => report::print(&config, args.json)?,
        FaultCommand::Recipes(args) => return recipes::print(args),
        FaultCommand::Minimize(args) => return minimize::run(args, settings),
        FaultCommand::List(args) => {
            let args = &args.output;
            let list = broker::faults(&config);
            if args.json && matches!(list, Err(BrokerError::NotRunning)) {
                output::json(&view(&FaultList::default()))?;
            } else if args.json {
                output::json(&view(&list.map_err(explain)?))?;
            } else {
                show(&list.map_err(explain)?)?;
            }
        }
        FaultCommand::Clear { ids } => clear(&config, ids)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn add(config: &BrokerConfig, text: &str) -> Result<(), CliError> {
    let rules = FaultRule::parse_list(text).map_err(|error| {
        CliError::new(error.to_string()).hint("`rocade fault --help` has examples")
    })?;
    if rules.is_empty() {
        return Err(CliError::new("a rule is missing").hint("e.g. drop opcode=READ_RESPONSE nth=3"));
    }
    for rule in &rules {
        let id = broker::add_fault(config, rule).map_err(explain)?;
        output::line(format_args!("{id}  {rule}"))?;
    }
    say_where(&settled(config)?)
}

/// Returns the processes once all of them have installed the rules, or at the time limit.
fn settled(config: &BrokerConfig) -> Result<Vec<FaultyProcess>, CliError> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let processes = broker::faults(config).map_err(explain)?.processes;
        let done = processes.iter().all(|process| process.is_up_to_date);
        if done || Instant::now() >= deadline {
            return Ok(processes);
        }
        thread::sleep(LOOK_AGAIN);
    }
}

fn say_where(processes: &[FaultyProcess]) -> Result<(), CliError> {
    let (done, behind): (Vec<_>, Vec<_>) = processes.iter().partition(|p| p.is_up_to_date);
    match done.len() {
        0 if behind.is_empty() => output::line(
            "no process is running: the rule applies to those that start while the broker is running",
        )?,
        1 => output::line(format_args!("in force in {}", name(done[0])))?,
        count => output::line(format_args!("in force in {count} processes"))?,
    }
    for process in behind {
        output::line(format_args!(
            "not yet active in {}, which does not answer and may be stopped",
            name(process)
        ))?;
    }
    Ok(())
}

fn clear(config: &BrokerConfig, ids: &[u32]) -> Result<(), CliError> {
    let mut count = 0;
    if ids.is_empty() {
        count = broker::clear_faults(config, None).map_err(explain)?;
    }
    for id in ids {
        let cleared = broker::clear_faults(config, Some(*id)).map_err(explain)?;
        if cleared == 0 {
            return Err(CliError::new(format!("no rule {id}"))
                .exit(1)
                .hint("`rocade fault list` shows the rules"));
        }
        count += cleared;
    }
    settled(config)?;
    match count {
        1 => output::line("1 rule removed"),
        count => output::line(format_args!("{count} rules removed")),
    }
}

fn show(list: &FaultList) -> Result<(), CliError> {
    let mut rows = table::plain();
    rows.set_header(["id", "rule", "process", "hits"]);
    let mut any = false;
    let nowhere = list
        .rules
        .iter()
        .filter(|_| list.processes.is_empty())
        .map(|rule| {
            [
                rule.id.to_string(),
                rule.text.clone(),
                "-".into(),
                "-".into(),
            ]
        });
    for row in nowhere {
        any = true;
        rows.add_row(row);
    }
    let mut of_processes: Vec<_> = list
        .processes
        .iter()
        .flat_map(|process| process.rules.iter().map(move |rule| (rule, process)))
        .collect();
    of_processes.sort_by_key(|(rule, process)| (rule.rule.id, process.slot));
    for (rule, process) in of_processes {
        any = true;
        let hits = if process.is_up_to_date {
            rule.hits.to_string()
        } else {
            "not in force yet".to_owned()
        };
        let (id, text) = (rule.rule.id.to_string(), rule.rule.text.clone());
        rows.add_row([id, text, name(process), hits]);
    }
    if any {
        output::line(rows)
    } else {
        output::line("no rules")
    }
}

fn name(process: &FaultyProcess) -> String {
    format!("{} ({})", process.name, process.pid)
}

/// Returns the list as JSON.
fn view(list: &FaultList) -> Value {
    let rules: Vec<_> = list
        .rules
        .iter()
        .map(|rule| json!({ "id": rule.id, "rule": rule.text }))
        .collect();
    let processes: Vec<_> = list
        .processes
        .iter()
        .map(|process| {
            let rules: Vec<_> = process
                .rules
                .iter()
                .map(|of| {
                    json!({
                        "id": of.rule.id,
                        "rule": of.rule.text,
                        "own": of.own,
                        "hits": of.hits,
                    })
                })
                .collect();
            json!({
                "pid": process.pid,
                "name": process.name,
                "slot": process.slot.get(),
                "in_force": process.is_up_to_date,
                "rules": rules,
            })
        })
        .collect();
    json!({ "rules": rules, "processes": processes })
}

fn explain(error: BrokerError) -> CliError {
    match error {
        BrokerError::NotRunning => CliError::from(error).exit(1).hint(
            "the broker distributes the rules, and the first program starts it. For a rule from the \
             start of a program: rocade run --fault RULE -- CMD",
        ),
        error => error.into(),
    }
}
