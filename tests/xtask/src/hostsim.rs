//! The simulated host: brokers and their clients (`emulator/src/broker/hostsim`), and programs with
//! engines (`emulator/src/hostsim`), in virtual time.

use std::fs;
use std::path::Path;
use std::time::Duration;

use clap::Args;

use crate::{step, tally::Tally, workspace::Workspace};

/// Includes the build.
const LIMIT: Duration = Duration::from_secs(900);
/// Longest time of a script with real processes, which usually takes half a second.
const REAL_LIMIT: Duration = Duration::from_secs(10);
/// Longest time of a seed, which usually takes a few dozen milliseconds.
const SEED_LIMIT: Duration = Duration::from_millis(400);

#[derive(Clone, Debug, Args)]
pub(crate) struct HostsimArgs {
    /// Number of seeds.
    #[arg(long, default_value_t = 2_000)]
    seeds: u32,
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Event at a place that is added to each plan, from the text of a failure.
    #[arg(long)]
    event: Option<String>,
    /// Number of scripts that run on the simulated host and on real processes.
    #[arg(long, default_value_t = 20)]
    real: u32,
}

/// Runs the seeds in turn. Prints the progress, what happened how often, and of the first failure
/// the shortest list of steps that was found. Draws its packets, too.
pub(crate) fn run(workspace: &Workspace, args: &HostsimArgs) -> Tally {
    let HostsimArgs {
        seeds,
        seed,
        event,
        real,
    } = args;
    let mut command = workspace.cargo(&["test", "--locked", "--package", "rocade-emulator"]);
    command.args(["--lib", "--", "--nocapture", "--test-threads=1", "--exact"]);
    command.args([
        "broker::hostsim::brokers_and_clients_keep_their_rules",
        "broker::hostsim::fidelity::simulated_and_real_processes_see_the_same",
        "hostsim::messages_outlive_processes",
    ]);
    for variable in ["ROCADE_HOSTSIM", "ROCADE_HOSTSIM_ENGINES"] {
        command.env(variable, format!("{seeds},{seed}"));
    }
    if let Some(event) = event {
        command.env("ROCADE_HOSTSIM_EVENT", event);
    }
    command.env("ROCADE_HOSTSIM_REAL", format!("{real},{seed}"));
    let capture = workspace.target().join("hostsim.pcapng");
    let _ = fs::remove_file(&capture);
    command.env("ROCADE_HOSTSIM_CAPTURE", &capture);
    let limit = LIMIT + SEED_LIMIT * *seeds + REAL_LIMIT * *real;
    let tally = step::run(
        &format!("hostsim: {seeds} seeds and {real} real scripts from {seed}"),
        limit,
        command,
    )
    .as_tests();
    if capture.exists() {
        draw(workspace, &capture);
    }
    tally
}

/// Draws the packets of a failure.
fn draw(workspace: &Workspace, capture: &Path) {
    let mut command = workspace.cargo(&["run", "--locked", "--quiet", "--package", "rocade", "--"]);
    command.args(["ladder", "--all"]).arg(capture);
    step::run("the packets of the failure", LIMIT, command);
}
