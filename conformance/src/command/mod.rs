//! The command: its arguments, and what it does with them.

mod arguments;
mod outputs;
mod reports;

use std::{
    error::Error,
    fs,
    io::{self, Write as _},
    net::IpAddr,
    thread,
    time::{Duration, Instant},
};

use rocade_conformance::{
    Agent, Bench, Case, Expectations, Peer as _, Report, Rig, Selection, Timing,
    report::{Device, Verdict},
    rules, run_one,
    suite::{self, Area},
};

pub(crate) use arguments::Arguments;
use arguments::{Command, RunArguments};
use outputs::Outputs;

type Failure = Box<dyn Error>;

/// Executes the command. Returns true if all results were as expected.
pub(crate) fn execute(arguments: &Arguments) -> Result<bool, Failure> {
    if let Some(files) = &arguments.diff {
        return reports::compare(files);
    }
    match &arguments.command {
        Some(Command::Report(report)) => reports::report(report),
        None if arguments.run.list => list(&arguments.run).map(|()| true),
        None => check(&arguments.run),
    }
}

fn areas(names: &[String]) -> Result<Vec<&'static Area>, Failure> {
    let is_known = |name: &&String| suite::AREAS.iter().any(|area| area.name == **name);
    if let Some(name) = names.iter().find(|name| !is_known(name)) {
        return Err(format!("no area {name}").into());
    }
    let is_wanted = |area: &&Area| names.is_empty() || names.iter().any(|name| name == area.name);
    Ok(suite::AREAS.iter().filter(is_wanted).collect())
}

fn selection(arguments: &RunArguments) -> Result<Selection, Failure> {
    let cases = suite::all();
    let is_known = |name: &&String| cases.iter().any(|case| case.name() == **name);
    if let Some(name) = arguments.case.iter().find(|name| !is_known(name)) {
        return Err(format!("no case {name} (see --list)").into());
    }
    Ok(Selection::parse(&arguments.select).named(arguments.case.clone()))
}

/// Prints the selected cases, to a reader that may leave early, such as `head`.
fn list(arguments: &RunArguments) -> Result<(), Failure> {
    let selection = selection(arguments)?;
    let mut output = io::stdout().lock();
    for area in areas(&arguments.area)? {
        for case in area.cases.iter().filter(|case| selection.matches(case)) {
            let statement = rules::find(case.rule).map_or("", |rule| rule.statement);
            let (level, name) = (case.level, case.name());
            let area = area.name;
            match writeln!(output, "{area:<17} {level:<6} {name:<55} {statement}") {
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
                written => written?,
            }
        }
    }
    Ok(())
}

/// Runs the selected cases. Returns true if all results were as expected.
fn check(arguments: &RunArguments) -> Result<bool, Failure> {
    let selection = selection(arguments)?;
    let areas = areas(&arguments.area)?;
    let (Some(local), Some(address)) = (arguments.local, arguments.peer) else {
        return Err("--local and --peer are required".into());
    };
    let token = arguments.token.as_deref();
    let agent = match (&arguments.agent, arguments.connect) {
        (Some(command), _) => Agent::start(command, address, token)?,
        (None, Some(to)) => Agent::connect(to, address, token)?,
        (None, None) => return Err("no agent".into()),
    };
    let expectations = expectations(&arguments.expect, &agent.device())?;
    let rig = bind(local, address, arguments.third_host)
        .map_err(|error| format!("UDP port 4791 of {local}: {error}"))?;
    let timing = Timing {
        patience: Duration::from_millis(arguments.patience),
        silence: Duration::from_millis(arguments.silence),
        ..Timing::default()
    };
    let bench = Bench::new(rig, &agent, timing);
    let mut report = Report::new(agent.name());
    report.device = agent.device();
    let mut outputs = Outputs::open(arguments, &mut report)?;
    for area in areas {
        let mut part = Report::new(agent.name());
        for case in area.cases.iter().filter(|case| selection.matches(case)) {
            if report.find(&case.name()).is_some() {
                continue;
            }
            if arguments.verbose {
                eprintln!("{}", case.name());
            }
            let finished = run_one(&bench, case, &expectations, arguments.repeat);
            outputs.add(&finished)?;
            part.push(finished.entry.clone());
            report.push(finished.entry);
            if let Some(why) = agent.lost() {
                return lost(&mut report, &mut outputs, case, &why);
            }
        }
        if !part.entries.is_empty() {
            eprintln!("{}", summary(area.name, &part));
        }
    }
    println!("{report}");
    outputs.finish(&report)?;
    Ok(report.unexpected().count() == 0)
}

/// Reports what there is, because the agent is lost.
fn lost(
    report: &mut Report,
    outputs: &mut Outputs,
    case: &Case,
    why: &str,
) -> Result<bool, Failure> {
    let why = format!("lost in {}: {why}", case.name());
    report.lost = Some(why.clone());
    println!("{report}");
    outputs.end_early(&why)?;
    outputs.finish(report)?;
    let advice = match outputs.resumable() {
        Some(file) => format!(
            "{} has what was there. --resume goes on after it",
            file.display()
        ),
        None => "with --out DIR, a run like this can be resumed".to_owned(),
    };
    Err(format!("{why}\n{advice}").into())
}

/// Returns the expectations in the files about this device, or in the built-in ones if there are
/// no files. Later files override earlier ones.
fn expectations(files: &[String], device: &Device) -> Result<Expectations, Failure> {
    let mut chosen = Vec::new();
    for file in files.iter().filter(|file| *file != "none") {
        let text = fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))?;
        let these = Expectations::parse(&text, &suite::all())
            .map_err(|error| format!("{file}: {error}"))?;
        if these.is_about(device) {
            chosen.push(these);
        } else {
            eprintln!(
                "{file} is left out: it is not about {} of Linux {}",
                device.driver, device.kernel
            );
        }
    }
    if files.is_empty() {
        for (name, these) in Expectations::built_in(device) {
            eprintln!("uses the known deviations in {name}");
            chosen.push(these);
        }
    }
    let all = chosen
        .into_iter()
        .reduce(|before, these| these.over(before));
    Ok(all.unwrap_or_else(Expectations::unknown))
}

/// Binds the port. Retries while another process has it, which may be ending.
fn bind(local: IpAddr, peer: IpAddr, third_host: Option<IpAddr>) -> io::Result<Rig> {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        match Rig::bind(local, peer, third_host) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(50));
            }
            bound => return bound,
        }
    }
}

/// Returns a progress line about an area.
fn summary(area: &str, part: &Report) -> String {
    let skipped = part.entries.len() - part.run_count();
    let passed = part.count(Verdict::Pass) + part.count(Verdict::UnexpectedPass);
    let failed = part.run_count() - passed;
    let millis: u64 = part.entries.iter().map(|entry| entry.duration_ms).sum();
    format!(
        "{area}: {} cases, {passed} passed, {failed} failed, {skipped} skipped, {millis} ms",
        part.entries.len(),
    )
}
