//! `rocade fault minimize`: runs a program with fewer and fewer rules, as long as it fails.

use std::io::Write as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rocade_emulator::config::{ENV_FAULT, Settings};
use rocade_emulator::faults::{FaultRule, chaos, recipes};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use super::search::{Found, search};
use crate::cli::MinimizeArgs;
use crate::error::CliError;
use crate::output;

/// Finds the smallest set of rules, and prints the command that repeats the failure. Exit code 1 if
/// there is no such set.
pub(crate) fn run(args: &MinimizeArgs, settings: &Settings) -> Result<ExitCode, CliError> {
    let mut search = Search {
        args,
        rules: given(args, settings)?,
        runs: 0,
        deadline: Instant::now() + Duration::from_secs(args.time),
    };
    // First whole recipes, then their single rules.
    let mut found = search.smallest()?;
    if let Found::Smallest(indexes) = &found {
        let kept: Vec<_> = indexes
            .iter()
            .map(|&index| search.rules[index].clone())
            .collect();
        let parts: Vec<_> = kept.iter().flat_map(|text| single_rules(text)).collect();
        let has_more = parts.len() > kept.len();
        search.rules = if has_more { parts } else { kept };
        let all = (0..search.rules.len()).collect();
        found = if has_more {
            search.smallest()?
        } else {
            Found::Smallest(all)
        };
    }
    let (indexes, is_smallest) = match found {
        Found::NeverFails => {
            return Err(CliError::new("the program does not fail with these rules")
                .hint("more rules, another seed, or --repeat N if it fails at times")
                .exit(1));
        }
        Found::AlwaysFails => {
            return Err(CliError::new("the program fails without any rule")
                .hint("run it with --show to see its output, or with a longer --timeout")
                .exit(1));
        }
        Found::Smallest(indexes) => (indexes, true),
        Found::Smaller(indexes) => (indexes, false),
    };
    if !is_smallest {
        note(format_args!(
            "the limit of runs or time is reached (--runs, --time), a smaller set may exist"
        ));
    }
    output::line(search.repeat_with(&indexes))?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the rules to begin with: each rule or recipe by itself.
fn given(args: &MinimizeArgs, settings: &Settings) -> Result<Vec<String>, CliError> {
    let invalid = |error: rocade_emulator::faults::RuleError| CliError::new(error.to_string());
    let mut rules = Vec::new();
    for text in &args.fault {
        FaultRule::parse_list(text).map_err(invalid)?;
        let parts = text.split([';', '\n']).map(str::trim);
        rules.extend(parts.filter(|part| !part.is_empty()).map(str::to_owned));
    }
    if let Some(seed) = &args.chaos {
        rules.extend(chaos::Chaos::parse(seed).map_err(invalid)?.draw());
    }
    if rules.is_empty() {
        rules.extend(settings.faults().iter().map(FaultRule::to_string));
    }
    if rules.is_empty() {
        return Err(CliError::new("there are no rules to leave out")
            .hint("--fault RULE, --chaos SEED, or rules in ROCADE_FAULT or rocade.toml"));
    }
    Ok(rules)
}

/// Returns the rules of a recipe, or the rule itself.
fn single_rules(text: &str) -> Vec<String> {
    let recipe = text
        .starts_with(recipes::PREFIX)
        .then(|| recipes::parse(text));
    match recipe {
        Some(Ok((recipe, words))) if recipe.rules.len() > 1 => recipe
            .texts(&words)
            .unwrap_or_else(|_| vec![text.to_owned()]),
        _ => vec![text.to_owned()],
    }
}

/// The rules, and the budget.
struct Search<'a> {
    args: &'a MinimizeArgs,
    rules: Vec<String>,
    runs: u32,
    deadline: Instant,
}

impl Search<'_> {
    fn smallest(&mut self) -> Result<Found, CliError> {
        search(self.rules.len(), |indexes| self.fails(indexes))
    }

    /// Runs the program until it fails, at most as often as the user wants. Returns `None` if the
    /// budget is used up.
    fn fails(&mut self, indexes: &[usize]) -> Result<Option<bool>, CliError> {
        for _ in 0..self.args.repeat.max(1) {
            if self.runs >= self.args.runs || Instant::now() >= self.deadline {
                return Ok(None);
            }
            self.runs += 1;
            let texts: Vec<_> = indexes.iter().map(|&index| &*self.rules[index]).collect();
            let end = self.run_once(&texts.join(";"))?;
            let rules = match texts.len() {
                0 => "no rule".to_owned(),
                1 => texts[0].to_owned(),
                count => format!("{count} rules"),
            };
            note(format_args!(
                "run {}, {rules}: {}",
                self.runs,
                end.describe()
            ));
            if end.is_failure() {
                return Ok(Some(true));
            }
        }
        Ok(Some(false))
    }

    fn run_once(&self, rules: &str) -> Result<End, CliError> {
        let explain = |error| CliError::new(format!("failed to run the program: {error}"));
        let exe = std::env::current_exe().map_err(explain)?;
        let mut command = Command::new(exe);
        command.arg("run").arg("--end-with-parent");
        for device in &self.args.devices.dev {
            command.arg("--dev").arg(device);
        }
        if let Some(ip) = &self.args.devices.ip {
            command.arg("--ip").arg(ip);
        }
        if let Some(like) = &self.args.devices.like {
            command.arg("--like").arg(like);
        }
        command.arg("--").args(&self.args.command);
        // An empty list also overrides the configuration file.
        command.env(ENV_FAULT, if rules.is_empty() { ";" } else { rules });
        command.stdin(Stdio::null()).process_group(0);
        if !self.args.show {
            command.stdout(Stdio::null()).stderr(Stdio::null());
        }
        let child = command.spawn().map_err(explain)?;
        finish(child, Duration::from_secs(self.args.timeout)).map_err(explain)
    }

    /// Returns the command that repeats the failure.
    fn repeat_with(&self, indexes: &[usize]) -> String {
        let mut words = vec!["rocade".to_owned(), "run".to_owned()];
        let devices = &self.args.devices;
        for device in &devices.dev {
            words.extend(["--dev".to_owned(), quoted(device)]);
        }
        for (flag, value) in [("--ip", &devices.ip), ("--like", &devices.like)] {
            words.extend(
                value
                    .iter()
                    .flat_map(|value| [flag.to_owned(), quoted(value)]),
            );
        }
        for &index in indexes {
            words.extend(["--fault".to_owned(), quoted(&self.rules[index])]);
        }
        words.push("--".to_owned());
        let program = self.args.command.iter();
        words.extend(program.map(|word| quoted(&word.to_string_lossy())));
        words.join(" ")
    }
}

/// The end of a run.
enum End {
    Status(ExitStatus),
    /// The program was killed after this time.
    TimedOut(Duration),
}

impl End {
    fn is_failure(&self) -> bool {
        !matches!(self, Self::Status(status) if status.success())
    }

    fn describe(&self) -> String {
        match self {
            Self::TimedOut(limit) => format!("hangs, killed after {} s", limit.as_secs()),
            Self::Status(status) => match (status.code(), status.signal()) {
                (Some(0), _) => "succeeds".to_owned(),
                (Some(code), _) => format!("exit code {code}"),
                (None, signal) => format!("killed by signal {}", signal.unwrap_or(0)),
            },
        }
    }
}

/// Waits for the end of the program, at most this long, and ends what is left of its process group.
fn finish(mut child: Child, limit: Duration) -> std::io::Result<End> {
    let group = Pid::from_child(&child);
    let (sender, ended) = mpsc::channel();
    // The status stays there until the group has been ended, so that its number is not used again.
    let waiter = thread::spawn(move || {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        // An interrupted wait is repeated.
        while let Err(rustix::io::Errno::INTR) = waitid(WaitId::Pid(group), options) {}
        // The receiver is gone if the time is over.
        let _ = sender.send(());
    });
    let in_time = ended.recv_timeout(limit).is_ok();
    // Fails if no process of the group is left.
    let _ = kill_process_group(group, Signal::KILL);
    // The thread only ends with the program.
    let _ = waiter.join();
    let status = child.wait()?;
    Ok(if in_time {
        End::Status(status)
    } else {
        End::TimedOut(limit)
    })
}

/// Prints progress on standard error.
fn note(text: std::fmt::Arguments<'_>) {
    // Standard error may be closed.
    let _ = writeln!(std::io::stderr(), "rocade: {text}");
}

/// Returns a word of a shell.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,+@%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}
