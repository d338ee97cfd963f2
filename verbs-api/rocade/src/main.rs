//! The `rocade` command: runs unmodified RDMA programs on an emulated RDMA NIC.
//!
//! The command carries no data. `rocade run` sets the library path to Rocade's drop-in libraries
//! and executes the program, whose process then contains the NIC. Other subcommands show what a
//! program will see (`devices`), and the directory of the libraries (`libdir`). Others control the
//! broker, the only process of Rocade that outlives a program.
#![forbid(unsafe_code)]

mod broker;
mod cdi;
mod cli;
mod demo;
mod devices;
mod doctor;
mod elf;
mod error;
mod explain;
mod fault;
mod headers;
mod install;
mod k8s;
mod ladder;
mod libdir;
mod loading;
mod manual;
mod output;
mod packages;
mod program;
mod run;
mod search;
mod statistics;
mod sysfs_view;
mod table;
mod trace;
mod units;

use std::io::Write as _;
use std::process::ExitCode;

use clap::CommandFactory as _;
use rocade_emulator::FileSizeErrors;
use rocade_emulator::config::{Settings, unknown_variables};
use rocade_emulator::notice::{self, Notice};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use self::cli::{Cli, Command};
use self::error::CliError;

fn main() -> ExitCode {
    let cli = cli::parse();
    // A limit of the size of files (ulimit -f) is an error of the write, and no silent end.
    let file_size_errors = FileSizeErrors::begin();
    notice::set_printer(|notice| {
        let Notice { call, what, remedy } = notice;
        let separator = if remedy.is_empty() { "" } else { "\n  " };
        let _ = writeln!(
            std::io::stderr(),
            "rocade: {call}: {what}{separator}{remedy}"
        );
    });
    match dispatch(cli, &file_size_errors) {
        Ok(code) => code,
        Err(error) => {
            if !error.is_silent() {
                // Standard error may be a file that has reached its limit.
                let _ = writeln!(std::io::stderr(), "{error}");
            }
            ExitCode::from(error.exit_code())
        }
    }
}

fn dispatch(cli: Cli, file_size_errors: &FileSizeErrors) -> Result<ExitCode, CliError> {
    let Some(command) = cli.command else {
        // `rocade` without arguments prints the help, and is not an error.
        let help = Cli::command().print_help();
        return help
            .map(|()| ExitCode::SUCCESS)
            .map_err(|e| CliError::new(e.to_string()));
    };
    match command {
        Command::Run(args) => run::run(&args, settings()?, file_size_errors),
        Command::Devices(args) => devices::print(&args, settings()?),
        Command::Doctor(args) => doctor::run(&args),
        Command::Demo(args) => demo::run(&args, &settings()?),
        Command::Ladder(args) => ladder::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Trace(args) => trace::run(&args, file_size_errors),
        Command::Stat(args) => statistics::stat(&args, &settings()?),
        Command::Top(args) => statistics::top(&args, &settings()?),
        Command::Exporter(args) => statistics::exporter(&args, &settings()?),
        Command::Libdir => settings().and_then(|_| libdir::print()),
        Command::Fault(command) => fault::dispatch(&command, &settings()?),
        Command::Broker(command) => broker::dispatch(&command, &settings()?),
        Command::Cdi(command) => settings().and_then(|_| cdi::dispatch(&command)),
        Command::K8s { args } => k8s::run(&args, file_size_errors),
        Command::Install(args) => install::install(&args),
        Command::Uninstall(args) => install::uninstall(&args),
        Command::Completions { shell } => manual::print_completions(shell),
        Command::Man { command } => manual::print_page(&command),
    }
}

/// Reads the environment and the configuration file, warns about misspelt variables, and starts
/// tracing.
fn settings() -> Result<Settings, CliError> {
    for unknown in unknown_variables(std::env::vars_os()) {
        eprintln!("rocade: warning: {}", unknown.text);
    }
    let settings = run::load_settings()?;
    start_tracing(&settings)?;
    Ok(settings)
}

/// Sends the command's own traces to standard error, if `ROCADE_LOG` asks for them.
fn start_tracing(settings: &Settings) -> Result<(), CliError> {
    let Some(filter) = settings.log_filter()? else {
        return Ok(());
    };
    let targets = Targets::new()
        .with_default(filter.default_level())
        .with_targets(filter.targets().iter().cloned());
    tracing_subscriber::fmt()
        .with_max_level(filter.max_level())
        .with_timer(Pid)
        .with_writer(std::io::stderr)
        // Another crate of the workspace may ask for colours.
        .with_ansi(false)
        // Reporting an internal error on standard error can fail and panic, because the size of a
        // broker's log may be limited (ulimit -f).
        .log_internal_errors(false)
        .finish()
        .with(targets)
        .init();
    Ok(())
}

/// Writes process and time at the start of each line, as the libraries do.
struct Pid;

impl FormatTime for Pid {
    fn format_time(&self, w: &mut Writer<'_>) -> std::fmt::Result {
        write!(w, "rocade[{}] ", std::process::id())?;
        SystemTime.format_time(w)
    }
}
