//! `rocade stat`, `rocade top` and `rocade exporter`: the values of the processes of the broker.
//!
//! All three show the tables of [`rocade_emulator::statistics`], and so each line of them.

pub(crate) mod args;
mod exporter;
mod format;
mod openmetrics;
mod stat;
mod top;

use std::process::ExitCode;

use rocade_emulator::broker::{self, BrokerConfig, BrokerError, ProcessStatistics};
use rocade_emulator::config::Settings;

use self::args::{ExporterArgs, StatArgs, TopArgs};
use crate::error::CliError;

pub(crate) fn stat(args: &StatArgs, settings: &Settings) -> Result<ExitCode, CliError> {
    stat::run(args, &settings.broker_config())
}

pub(crate) fn top(args: &TopArgs, settings: &Settings) -> Result<ExitCode, CliError> {
    top::run(args, &settings.broker_config())
}

pub(crate) fn exporter(args: &ExporterArgs, settings: &Settings) -> Result<ExitCode, CliError> {
    exporter::run(args, &settings.broker_config())
}

/// Returns the processes that use the broker. Without a broker there are none.
fn gather(config: &BrokerConfig) -> Result<Vec<ProcessStatistics>, CliError> {
    match broker::statistics(config) {
        Err(BrokerError::NotRunning) => Ok(Vec::new()),
        processes => Ok(processes?),
    }
}
