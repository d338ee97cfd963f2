//! `rocade broker`: the process that lets programs share an address.

use std::process::ExitCode;

use rocade_emulator::broker::{self, BrokerError, BrokerStatus};
use rocade_emulator::config::Settings;
use serde_json::{Value, json};

use crate::cli::BrokerCommand;
use crate::error::CliError;
use crate::{output, units};

pub(crate) fn dispatch(command: &BrokerCommand, settings: &Settings) -> Result<ExitCode, CliError> {
    let config = settings.broker_config();
    match command {
        BrokerCommand::Serve => broker::serve(&config).map_err(explain)?,
        BrokerCommand::Status(args) => {
            let status = broker::status(&config);
            if args.json && matches!(status, Ok(_) | Err(BrokerError::NotRunning)) {
                output::json(&view(status.as_ref().ok()))?;
                status.map_err(explain)?;
            } else {
                output::print(status.map_err(explain)?)?;
            }
        }
        BrokerCommand::Units(args) => return units::write(args),
        BrokerCommand::Stop => {
            let stopped = broker::stop(&config).map_err(explain)?;
            output::line(format_args!("stopped the broker, pid {}", stopped.pid))?;
            if stopped.clients > 0 {
                let clients = stopped.clients;
                output::line(format_args!(
                    "its clients ({clients}) keep their connections, and one of them starts another broker"
                ))?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the status as JSON. Without a status, no broker is running.
fn view(status: Option<&BrokerStatus>) -> Value {
    let Some(status) = status else {
        return json!({ "running": false });
    };
    let addresses: Vec<Value> = status
        .addresses
        .iter()
        .map(|address| {
            let local = address.local.to_string();
            json!({ "address": local, "clients": address.users, "sockets": address.sockets })
        })
        .collect();
    let clients: Vec<Value> = status
        .slots
        .iter()
        .map(|client| {
            json!({
                "slot": client.slot.get(),
                "pid": client.pid,
                "name": client.name,
                "connected": client.connected,
            })
        })
        .collect();
    let services: Vec<Value> = status
        .services
        .iter()
        .map(|service| {
            let id = service.service.get();
            let slot = service.slot.get();
            json!({ "port_space": id >> 16, "port": id & 0xffff, "slot": slot })
        })
        .collect();
    json!({
        "running": true,
        "pid": status.pid,
        "version": status.version,
        "uptime_s": status.uptime.as_secs(),
        "gsi_datagrams": status.gsi_datagrams,
        "addresses": addresses,
        "clients": clients,
        "services": services,
    })
}

fn explain(error: BrokerError) -> CliError {
    match error {
        BrokerError::NotRunning => CliError::from(error)
            .exit(1)
            .hint("programs start it on demand, or start it by hand: rocade broker serve"),
        BrokerError::AlreadyRunning => {
            CliError::from(error).hint("`rocade broker status` shows it")
        }
        error => error.into(),
    }
}
