//! `rocade k8s`: Rocade on Kubernetes.
//!
//! The device plugin tells the kubelet of a node how many containers can have Rocade's devices, and
//! what a container gets with one. It carries no data and is on no path of it: the NIC is in the
//! process of each program, as elsewhere.
//!
//! `rocade` executes this program, which is separate because gRPC is a lot of code that nothing
//! else of Rocade needs.
//!
//! * `device_plugin` keeps each `endpoint` registered at the `kubelet`, by a `watch`.
//! * `server` answers the kubelet from the `pool` of devices.
//! * `pool` reads the specs (`cdi`), and checks the devices (`health`).
#![forbid(unsafe_code)]

mod api;
mod cdi;
mod cli;
mod device_plugin;
mod endpoint;
mod error;
mod file_id;
mod health;
mod kubelet;
mod pool;
mod server;
mod watch;

use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser as _;

use self::cli::{Cli, Command};

fn main() -> ExitCode {
    let Command::DevicePlugin(args) = Cli::parse().command;
    match device_plugin::run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            log(&error.to_string());
            ExitCode::FAILURE
        }
    }
}

/// Writes a line to standard error, which is the log of a container.
fn log(text: &str) {
    // Nothing can be done about a log that is closed.
    let _ = writeln!(std::io::stderr(), "rocade-k8s: {text}");
}
