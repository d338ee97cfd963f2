//! `rocade-conformance`: runs the suite against any device that has verbs, or against Rocade.

use std::{
    error::Error,
    fs, io,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

use clap::{ArgGroup, Parser};
use rocade_conformance::{
    Agent, Bench, Expectations, Report, Rig, Selection, Timing,
    report::Verdict,
    run,
    suite::{self, Area},
};

/// Tests whether a RoCEv2 device follows the rules. Sends hand-made packets from this machine and
/// checks the responses. An agent on the device's machine (conformance/agent/agent.c) posts work
/// requests there and reports the results.
///
/// Exits with 0 if all results are as expected, with 1 if not, and with 2 if the suite could not be
/// run.
#[derive(Debug, Parser)]
#[command(version, group = ArgGroup::new("way").args(["agent", "connect", "list"]).required(true))]
struct Arguments {
    /// Address of this machine for the suite, with a free UDP port 4791
    #[arg(long, value_name = "ADDRESS", required_unless_present = "list")]
    local: Option<IpAddr>,
    /// Address of the device
    #[arg(long, value_name = "ADDRESS", required_unless_present = "list")]
    peer: Option<IpAddr>,
    /// Another address of this machine, for packets from a wrong source address
    #[arg(long, value_name = "ADDRESS")]
    third_host: Option<IpAddr>,
    /// Shell command line that starts the agent, which reads orders from its standard input
    #[arg(long, value_name = "COMMAND")]
    agent: Option<String>,
    /// Address and port of the agent, if it was started with -l
    #[arg(long, value_name = "ADDRESS:PORT")]
    connect: Option<SocketAddr>,
    /// Known deviations of the device, including features that it lacks. If repeated, each file
    /// overrides those before it
    #[arg(long, value_name = "FILE")]
    expect: Vec<PathBuf>,
    /// Only cases whose names start with one of these prefixes, joined by commas
    #[arg(long, value_name = "NAMES", default_value = "")]
    select: String,
    /// Only these areas, joined by commas
    #[arg(long, value_name = "AREAS", value_delimiter = ',')]
    area: Vec<String>,
    /// Write the report to this file as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Time limit for an answer, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 5000)]
    patience: u64,
    /// Duration of a required silence, in milliseconds: longer than an answer takes
    #[arg(long, value_name = "MS", default_value_t = 20)]
    silence: u64,
    /// Print the name of each case before it is run, which shows the case in which a device hangs
    #[arg(short, long)]
    verbose: bool,
    /// Only print the names of the cases
    #[arg(long)]
    list: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match check(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("rocade-conformance: {error}");
            ExitCode::from(2)
        }
    }
}

fn areas(names: &[String]) -> Result<Vec<&'static Area>, Box<dyn Error>> {
    let is_known = |name: &&String| suite::AREAS.iter().any(|area| area.name == **name);
    if let Some(name) = names.iter().find(|name| !is_known(name)) {
        return Err(format!("no area {name}").into());
    }
    let is_wanted = |area: &&Area| names.is_empty() || names.iter().any(|name| name == area.name);
    Ok(suite::AREAS.iter().filter(is_wanted).collect())
}

/// Returns true if all results were as expected.
fn check(arguments: &Arguments) -> Result<bool, Box<dyn Error>> {
    let areas = areas(&arguments.area)?;
    let selection = Selection::parse(&arguments.select);
    let (Some(local), Some(address)) = (arguments.local, arguments.peer) else {
        list(&areas, &selection);
        return Ok(true);
    };
    let expectations = expectations(&arguments.expect)?;
    let agent = match (&arguments.agent, arguments.connect) {
        (Some(command), _) => Agent::start(command, address)?,
        (None, Some(to)) => Agent::connect(to, address)?,
        (None, None) => return Err("no agent".into()),
    };
    let rig = bind(local, address, arguments.third_host)
        .map_err(|error| format!("UDP port 4791 of {local}: {error}"))?;
    let timing = Timing {
        patience: Duration::from_millis(arguments.patience),
        silence: Duration::from_millis(arguments.silence),
        ..Timing::default()
    };
    let bench = Bench::new(rig, &agent, timing);
    let mut report = Report::new(bench.peer().name());
    for area in areas {
        let mut part = Report::new(bench.peer().name());
        for case in area.cases.iter().filter(|case| selection.matches(case)) {
            if arguments.verbose {
                eprintln!("{}", case.name());
            }
            part.merge(run(&bench, &[*case], &selection, &expectations));
            if let Some(why) = agent.lost() {
                report.merge(part);
                println!("{report}");
                return Err(format!("lost in {}: {why}", case.name()).into());
            }
        }
        eprintln!("{}", summary(area.name, &part));
        report.merge(part);
    }
    println!("{report}");
    if let Some(file) = &arguments.json {
        fs::write(file, report.to_json()?)
            .map_err(|error| format!("{}: {error}", file.display()))?;
    }
    Ok(report.unexpected().count() == 0)
}

/// Reads the files of expectations. Each file overrides those before it.
fn expectations(files: &[PathBuf]) -> Result<Expectations, Box<dyn Error>> {
    let mut all: Option<Expectations> = None;
    for file in files {
        let text =
            fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
        let these = Expectations::parse(&text, &suite::all())?;
        all = Some(match all {
            Some(before) => these.over(before),
            None => these,
        });
    }
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

fn list(areas: &[&Area], selection: &Selection) {
    for area in areas {
        let is_selected = |case: &&rocade_conformance::Case| selection.matches(case);
        for case in area.cases.iter().filter(is_selected) {
            println!("{:<11} {:<6} {}", area.name, case.level, case.name());
        }
    }
}

/// Returns a progress line about an area.
fn summary(area: &str, part: &Report) -> String {
    let skipped = part.entries.len() - part.run_count();
    let failed = part.count(Verdict::Fail) + part.count(Verdict::KnownFailure);
    let millis: u128 = part.entries.iter().map(|entry| entry.duration_ms).sum();
    format!(
        "{area}: {} cases, {} passed, {failed} failed, {skipped} skipped, {millis} ms",
        part.entries.len(),
        part.run_count() - failed
    )
}
