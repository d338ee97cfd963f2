//! The `rocade` command: runs unmodified RDMA programs on an emulated RDMA NIC.
//!
//! It carries no data itself. `rocade run` points the dynamic linker at Rocade's drop-in
//! libraries and becomes the program; the NIC lives in that process. The other subcommands show
//! what a program will see (`devices`), where the libraries are (`libdir`), and look after the
//! broker, the only process of Rocade that outlives a program.
#![forbid(unsafe_code)]

mod broker;
mod cli;
mod demo;
mod devices;
mod elf;
mod error;
mod fault;
mod headers;
mod install;
mod ladder;
mod libdir;
mod manual;
mod output;
mod program;
mod run;
mod table;
mod view;

use std::process::ExitCode;

use clap::CommandFactory as _;
use rocade_emulator::config::{Settings, unknown_variables};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};

use self::cli::{Cli, Command};
use self::error::CliError;

fn main() -> ExitCode {
    let cli = cli::parse();
    match dispatch(cli) {
        Ok(code) => code,
        Err(error) => {
            if !error.is_silent() {
                eprintln!("{error}");
            }
            ExitCode::from(error.exit_code())
        }
    }
}

fn dispatch(cli: Cli) -> Result<ExitCode, CliError> {
    let Some(command) = cli.command else {
        // `rocade` alone asks what it can do; that is no mistake.
        let help = Cli::command().print_help();
        return help
            .map(|()| ExitCode::SUCCESS)
            .map_err(|e| CliError::new(e.to_string()));
    };
    match command {
        Command::Run(args) => run::run(&args, settings()?),
        Command::Devices(args) => devices::print(&args, settings()?),
        Command::Demo(args) => demo::run(&args, &settings()?),
        Command::Ladder(args) => ladder::run(&args),
        Command::Libdir => settings().and_then(|_| libdir::print()),
        Command::Fault(command) => fault::dispatch(&command, &settings()?),
        Command::Broker(command) => broker::dispatch(&command, &settings()?),
        Command::Install(args) => install::install(&args),
        Command::Uninstall(args) => install::uninstall(&args),
        Command::Completions { shell } => manual::print_completions(shell),
        Command::Man { command } => manual::print_page(&command),
    }
}

/// Environment and configuration file; what is misspelt there is named. Tracing follows them.
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
    let Some(filter) = settings.log() else {
        return Ok(());
    };
    settings.check_log()?;
    let filter = EnvFilter::try_new(filter).map_err(|error| {
        CliError::new(format!("ROCADE_LOG = \"{filter}\": {error}")).hint(
            "a level (error, warn, info, debug, trace) or TARGET=LEVEL, e.g. rocade_emulator=debug",
        )
    })?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_timer(Pid)
        .with_writer(std::io::stderr)
        // It would say so on standard error, and panic where that fails: the log of a broker may not grow (ulimit -f).
        .log_internal_errors(false)
        .init();
    Ok(())
}

/// The process and the time in front of each line, as the libraries write them.
struct Pid;

impl FormatTime for Pid {
    fn format_time(&self, w: &mut Writer<'_>) -> std::fmt::Result {
        write!(w, "rocade[{}] ", std::process::id())?;
        SystemTime.format_time(w)
    }
}
