//! `rocade broker`: the process that lets others share an address.

use std::process::ExitCode;

use rocade_emulator::broker::{self, BrokerError};
use rocade_emulator::config::Settings;

use crate::cli::BrokerCommand;
use crate::error::CliError;
use crate::output;

pub(crate) fn dispatch(command: &BrokerCommand, settings: &Settings) -> Result<ExitCode, CliError> {
    let config = settings.broker_config();
    match command {
        BrokerCommand::Serve => broker::serve(&config).map_err(explain)?,
        BrokerCommand::Status => output::print(broker::status(&config).map_err(explain)?)?,
        BrokerCommand::Stop => {
            let stopped = broker::stop(&config).map_err(explain)?;
            output::line(format_args!("stopped the broker, pid {}", stopped.pid))?;
            if stopped.clients > 0 {
                let clients = stopped.clients;
                output::line(format_args!(
                    "its clients ({clients}) keep their traffic; one of them starts another broker"
                ))?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
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
