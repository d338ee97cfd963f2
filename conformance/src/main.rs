//! `rocade-conformance`: the suite against any device that has verbs, or Rocade.

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

/// Does a RoCEv2 device keep the rules? Sends it packets made by hand from this machine, and looks at the answers; an
/// agent on the device's machine (conformance/agent/agent.c) posts work there and tells what came of it.
///
/// Exits with 0 where all is as expected, with 1 where it is not, with 2 where the suite could not be run.
#[derive(Debug, Parser)]
#[command(version, group = ArgGroup::new("way").args(["agent", "connect", "list"]).required(true))]
struct Arguments {
    /// Address of this machine that the suite takes; its UDP port 4791 must be free
    #[arg(long, value_name = "ADDRESS", required_unless_present = "list")]
    local: Option<IpAddr>,
    /// Address of the device
    #[arg(long, value_name = "ADDRESS", required_unless_present = "list")]
    peer: Option<IpAddr>,
    /// Another address of this machine, for packets that come from where they should not
    #[arg(long, value_name = "ADDRESS")]
    stranger: Option<IpAddr>,
    /// Shell command line that starts the agent, which obeys on its standard input
    #[arg(long, value_name = "COMMAND")]
    agent: Option<String>,
    /// Where the agent listens, if it was started with -l
    #[arg(long, value_name = "ADDRESS:PORT")]
    connect: Option<SocketAddr>,
    /// Known deviations of the device; what it cannot be asked for must be among them. Repeated, each file corrects those
    /// before it
    #[arg(long, value_name = "FILE")]
    expect: Vec<PathBuf>,
    /// Only cases whose names start with one of these, joined by commas
    #[arg(long, value_name = "NAMES", default_value = "")]
    select: String,
    /// Only these areas, joined by commas
    #[arg(long, value_name = "AREAS", value_delimiter = ',')]
    area: Vec<String>,
    /// Write the report there as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// How long an answer may take, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 5000)]
    patience: u64,
    /// How long silence has to last, in milliseconds: longer than an answer is on its way
    #[arg(long, value_name = "MS", default_value_t = 20)]
    silence: u64,
    /// Print the name of each case before it is run: what does not come back is the last one
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

/// Whether nothing was unexpected.
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
    let rig = bind(local, address, arguments.stranger)
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

/// Reads the files of expectations, the last of which counts first.
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

/// Takes the port. Who has it may be about to end.
fn bind(local: IpAddr, peer: IpAddr, stranger: Option<IpAddr>) -> io::Result<Rig> {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        match Rig::bind(local, peer, stranger) {
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

/// A line for those who wait.
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
