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
mod error;
mod libdir;
mod output;
mod run;
mod table;
mod view;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};
use rocade_emulator::config::Settings;
use tracing_subscriber::EnvFilter;

use self::cli::{Cli, Command};
use self::error::CliError;

fn main() -> ExitCode {
    let cli = Cli::parse();
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
    let settings = run::load_settings()?;
    start_tracing(&settings)?;
    match command {
        Command::Run(args) => run::run(&args, settings),
        Command::Devices(args) => devices::print(&args, settings),
        Command::Demo(args) => demo::run(&args, &settings),
        Command::Libdir => libdir::print(),
        Command::Broker(command) => broker::dispatch(&command, &settings),
    }
}

/// Sends the command's own traces to standard error, if `ROCADE_LOG` asks for them.
fn start_tracing(settings: &Settings) -> Result<(), CliError> {
    let Some(filter) = settings.log() else {
        return Ok(());
    };
    let filter = EnvFilter::try_new(filter).map_err(|error| {
        CliError::new(format!("ROCADE_LOG = \"{filter}\": {error}")).hint(
            "a level (error, warn, info, debug, trace) or TARGET=LEVEL, e.g. rocade_emulator=debug",
        )
    })?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .init();
    Ok(())
}
