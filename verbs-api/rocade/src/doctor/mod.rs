//! `rocade doctor`: tells what will work on this machine, and which files will not use Rocade.

mod files;
mod network;
mod setup;
mod system;
mod wheel;

use std::process::ExitCode;

use rocade_emulator::config::{EngineConfig, Settings};
use serde::Serialize;

use crate::cli::DoctorArgs;
use crate::error::CliError;
use crate::output;
use crate::run;

/// The exit code if something will not work.
const EXIT_PROBLEM: u8 = 1;

/// The width of the columns before the finding.
const NAME_WIDTH: usize = 14;

/// The judgement of a check. The worst is the greatest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Status {
    /// Works.
    Ok,
    /// Works more slowly, or not for all programs.
    Warning,
    /// Fails.
    Problem,
}

impl Status {
    const fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Problem => "problem",
        }
    }
}

/// The result of one check.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Check {
    name: String,
    status: Status,
    finding: String,
    /// The remedy, or an empty text.
    advice: String,
}

impl Check {
    pub(crate) fn new(name: impl Into<String>, status: Status, finding: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            status,
            finding: finding.into(),
            advice: String::new(),
        }
    }

    fn ok(name: &str, finding: impl Into<String>) -> Self {
        Self::new(name, Status::Ok, finding)
    }

    fn warning(name: &str, finding: impl Into<String>) -> Self {
        Self::new(name, Status::Warning, finding)
    }

    fn problem(name: &str, finding: impl Into<String>) -> Self {
        Self::new(name, Status::Problem, finding)
    }

    /// Adds what the user can do.
    pub(crate) fn advise(mut self, advice: impl Into<String>) -> Self {
        self.advice = advice.into();
        self
    }

    /// Returns a problem with the text and the hints of an error.
    fn of_error(name: &str, error: &CliError) -> Self {
        let text = error.text();
        let (finding, advice) = text.split_once('\n').unwrap_or((&text, ""));
        let advice: Vec<&str> = advice.lines().map(str::trim).collect();
        Self::problem(name, finding).advise(advice.join("\n"))
    }

    /// Returns the lines for a person. The finding may have several.
    fn lines(&self) -> String {
        let Self { name, status, .. } = self;
        // A path is longer than the column, and has a line of its own.
        let indent = " ".repeat(9 + NAME_WIDTH);
        let finding = self.finding.replace('\n', &format!("\n{indent}"));
        let gap = match name.len() < NAME_WIDTH {
            true => String::new(),
            false => format!("\n{indent}"),
        };
        let head = format!("{:8} {name:NAME_WIDTH$}{gap}{finding}\n", status.word());
        let advice = self.advice.lines();
        let advice = advice.map(|line| format!("{indent}-> {line}\n"));
        std::iter::once(head).chain(advice).collect()
    }
}

/// `rocade doctor`. The exit code is 1 if something will not work.
pub(crate) fn run(args: &DoctorArgs) -> Result<ExitCode, CliError> {
    if let Some(device) = &args.seen {
        return Ok(setup::sees(device));
    }
    let checks = match args.files.as_slice() {
        [] => examine(args),
        files => files::examine(files)?,
    };
    report(&checks, args.output.json)
}

/// The settings of a run, as far as they are valid.
struct Plan {
    settings: Settings,
    config: EngineConfig,
}

fn examine(args: &DoctorArgs) -> Vec<Check> {
    let mut checks = vec![system::kernel()];
    let plan = plan(args);
    checks.push(setup::settings(plan.as_ref().err()));
    let libraries = setup::libraries();
    let has_libraries = libraries.status != Status::Problem;
    checks.extend([libraries, setup::copies()]);
    if let Ok(plan) = &plan {
        checks.push(network::devices(&plan.config));
        let first = plan.config.devices.iter().flat_map(|device| device.addrs());
        if let Some(ip) = first.into_iter().next() {
            checks.extend([network::sockets(ip), network::steering(ip)]);
        }
        checks.push(system::shared_memory(plan.config.link));
        checks.extend(network::broker_and_port(&plan.settings, &plan.config));
        if has_libraries {
            checks.push(setup::view(args, &plan.config));
        }
    }
    checks.extend([system::limits(), system::host_devices()]);
    checks
}

fn plan(args: &DoctorArgs) -> Result<Plan, CliError> {
    let settings = run::with_flags(&args.devices, run::load_settings()?)?;
    settings.log_filter()?;
    let config = settings.resolve_here()?;
    Ok(Plan { settings, config })
}

/// Prints the checks. Returns the exit code for the worst.
pub(crate) fn report(checks: &[Check], as_json: bool) -> Result<ExitCode, CliError> {
    let worst = checks.iter().map(|check| check.status).max();
    let worst = worst.unwrap_or(Status::Ok);
    if as_json {
        output::json(&serde_json::json!({ "status": worst, "checks": checks }))?;
    } else {
        let lines: String = checks.iter().map(Check::lines).collect();
        output::print(lines)?;
        output::line(summary(checks))?;
    }
    Ok(match worst {
        Status::Problem => ExitCode::from(EXIT_PROBLEM),
        _ => ExitCode::SUCCESS,
    })
}

fn summary(checks: &[Check]) -> String {
    let count = |status| checks.iter().filter(|one| one.status == status).count();
    let of = |count: usize, word: &str| match count {
        0 => format!("no {word}"),
        1 => format!("1 {word}"),
        _ => format!("{count} {word}s"),
    };
    let problems = of(count(Status::Problem), "problem");
    format!("\n{problems}, {}", of(count(Status::Warning), "warning"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_of_a_remedy_is_marked() {
        let error = CliError::new("no bread").hint("bake").hint("or buy");
        let check = Check::of_error("food", &error);
        assert_eq!(check.status, Status::Problem);
        let indent = " ".repeat(23);
        let expected =
            format!("problem  food          no bread\n{indent}-> bake\n{indent}-> or buy\n");
        assert_eq!(check.lines(), expected);
    }

    #[test]
    fn the_worst_decides() {
        let ok = Check::ok("a", "");
        let warning = Check::warning("b", "");
        assert!(Status::Problem > Status::Warning && Status::Warning > Status::Ok);
        assert_eq!(summary(&[]), "\nno problem, no warning");
        let text = summary(&[ok, warning.clone(), warning]);
        assert_eq!(text, "\nno problem, 2 warnings");
    }
}
