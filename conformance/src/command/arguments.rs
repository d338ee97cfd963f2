//! The arguments of the command.

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
};

use clap::{ArgGroup, Args, Parser, Subcommand};

/// Tests whether a RoCEv2 device follows the rules. Sends hand-made packets from this machine and
/// checks the responses. An agent on the device's machine (conformance/agent) posts work requests
/// there and reports the results.
///
/// Exits with 0 if all results are as expected, with 1 if not, and with 2 if the suite could not be
/// run to its end.
#[derive(Debug, Parser)]
#[command(
    version,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true
)]
#[command(group = ArgGroup::new("way").args(["agent", "connect", "list", "diff"]).required(true))]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(super) command: Option<Command>,
    #[command(flatten)]
    pub(super) run: RunArguments,
    /// Compare two results in JSON. Exits with 1 if a case has another verdict
    #[arg(long, value_names = ["BEFORE", "AFTER"], num_args = 2)]
    pub(super) diff: Option<Vec<PathBuf>>,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Print results that are there, or put several of them on one page
    Report(ReportArguments),
}

#[derive(Debug, Args)]
pub(super) struct ReportArguments {
    /// Results in JSON, one file for each peer
    #[arg(required = true, value_name = "FILE")]
    pub(super) results: Vec<PathBuf>,
    /// Write a page with a matrix of rules and peers
    #[arg(long, value_name = "FILE")]
    pub(super) html: Option<PathBuf>,
    /// Write JUnit XML of the only results
    #[arg(long, value_name = "FILE")]
    pub(super) junit: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(super) struct RunArguments {
    /// Address of this machine for the suite, with a free UDP port 4791
    #[arg(long, value_name = "ADDRESS", required_unless_present_any = ["list", "diff"])]
    pub(super) local: Option<IpAddr>,
    /// Address of the device
    #[arg(long, value_name = "ADDRESS", required_unless_present_any = ["list", "diff"])]
    pub(super) peer: Option<IpAddr>,
    /// Another address of this machine, for packets from a wrong source address
    #[arg(long, value_name = "ADDRESS")]
    pub(super) third_host: Option<IpAddr>,
    /// Shell command line that starts the agent, which reads orders from its standard input
    #[arg(long, value_name = "COMMAND")]
    pub(super) agent: Option<String>,
    /// Address and port of the agent, if it was started with -l
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(super) connect: Option<SocketAddr>,
    /// Token of the agent, which it was given or has printed
    #[arg(long, env = "ROCADE_CONFORMANCE_TOKEN", hide_env_values = true)]
    pub(super) token: Option<String>,
    /// Known deviations of the device, including features that it lacks. If repeated, each file
    /// overrides those before it. The default is what the suite knows about the driver and kernel,
    /// and "none" leaves that out
    #[arg(long, value_name = "FILE")]
    pub(super) expect: Vec<String>,
    /// Only cases whose names start with one of these prefixes, joined by commas
    #[arg(long, value_name = "NAMES", default_value = "")]
    pub(super) select: String,
    /// Only the case with this name. May be repeated
    #[arg(long, value_name = "NAME")]
    pub(super) case: Vec<String>,
    /// Only these areas, joined by commas
    #[arg(long, value_name = "AREAS", value_delimiter = ',')]
    pub(super) area: Vec<String>,
    /// Run each case so many times, and report the worst run
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) repeat: u32,
    /// Write all of the following into this directory: results.json, junit.xml, report.html and
    /// packets/
    #[arg(long, value_name = "DIR")]
    pub(super) out: Option<PathBuf>,
    /// Write the results to this file as JSON, after each case
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
    /// Write the results to this file as JUnit XML
    #[arg(long, value_name = "FILE")]
    pub(super) junit: Option<PathBuf>,
    /// Write the results to this file as a page in HTML
    #[arg(long, value_name = "FILE")]
    pub(super) html: Option<PathBuf>,
    /// Write the packets of each case into this directory, as files in pcapng format
    #[arg(long, value_name = "DIR")]
    pub(super) packets: Option<PathBuf>,
    /// Keep the results in the file of --json or --out, and run only the cases that it lacks
    #[arg(long)]
    pub(super) resume: bool,
    /// Time limit for an answer, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 5000)]
    pub(super) patience: u64,
    /// Duration of a required silence, in milliseconds: longer than an answer takes
    #[arg(long, value_name = "MS", default_value_t = 20)]
    pub(super) silence: u64,
    /// Print the name of each case before it is run, which shows the case in which a device hangs
    #[arg(short, long)]
    pub(super) verbose: bool,
    /// Only print the areas, levels, names and rules of the cases
    #[arg(long)]
    pub(super) list: bool,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_arguments_are_consistent() {
        Arguments::command().debug_assert();
        let parse = |line: &str| Arguments::try_parse_from(line.split(' '));
        assert!(parse("x --list").is_ok());
        assert!(parse("x --diff a.json b.json").is_ok());
        assert!(parse("x report a.json b.json --html c.html").is_ok());
        assert!(parse("x --local ::1 --peer ::1 --connect [::1]:4000").is_ok());
        assert!(parse("x --local ::1 --peer ::1").is_err());
        assert!(parse("x --connect [::1]:4000").is_err());
        assert!(parse("x --list --repeat 0").is_err());
    }
}
