//! `rocade broker`: the process that lets others share an address.

use std::process::ExitCode;

use rocade_emulator::broker::{self, BrokerError};
use rocade_emulator::config::Settings;

use crate::cli::BrokerCommand;
use crate::error::CliError;

pub(crate) fn dispatch(command: &BrokerCommand, settings: &Settings) -> Result<ExitCode, CliError> {
    let config = settings.broker_config();
    match command {
        BrokerCommand::Serve => broker::serve(&config).map(|()| ExitCode::SUCCESS),
        BrokerCommand::Status => broker::status(&config).map(|status| {
            print!("{status}");
            ExitCode::SUCCESS
        }),
        BrokerCommand::Stop => broker::stop(&config).map(|stopped| {
            println!("stopped the broker, pid {}", stopped.pid);
            if stopped.clients > 0 {
                println!(
                    "{} programs keep their traffic and start another one",
                    stopped.clients
                );
            }
            ExitCode::SUCCESS
        }),
    }
    .map_err(explain)
}

fn explain(error: BrokerError) -> CliError {
    let explained = CliError::new(error.to_string());
    match error {
        BrokerError::NotRunning => explained
            .exit(1)
            .hint("programs start it when they need it; `rocade broker serve` does so by hand"),
        BrokerError::AlreadyRunning => explained.hint("`rocade broker status` tells which"),
        BrokerError::RuntimeDir { .. } => {
            explained.hint("set ROCADE_RUNTIME_DIR to a directory that only you can write to")
        }
        _ => explained,
    }
}
