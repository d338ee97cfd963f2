//! The arguments of `rocade trace`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueHint};

use crate::cli::{DeviceArgs, qp_number};

const TRACE_AFTER: &str = "\
Examples:
  rocade trace -- ./my_program              every call, post and completion, on standard error
  rocade trace -e ibv_modify_qp -- ./my_program             only calls of this name
  rocade trace -e ibv_post,rdma_ -- ./my_program            only names that begin so
  rocade trace --failed -- ./my_program     only what failed
  rocade trace --qp 0x11 --packets -- ./my_program          one queue pair, with its packets
  rocade trace -c -- ib_send_lat            a table of calls, failures and latencies
  rocade trace --perfetto x.pftrace -- ./my_program         a timeline for ui.perfetto.dev
  rocade trace show x.pftrace               the same timeline as a page: x.html

A line has the process (and thread), the time since the first record in seconds, the call with its
arguments, its result, and its duration. Lines with ** are packets that were refused, sent again or
lost. A completion tells how long its request took, and where. If nothing happens for 2 seconds, the
trace tells what the program waits for. Calls of all processes that the program starts are traced.";

#[derive(Debug, Args)]
#[command(after_help = TRACE_AFTER, args_conflicts_with_subcommands = true)]
pub(crate) struct TraceArgs {
    #[command(subcommand)]
    pub(crate) command: Option<TraceCommand>,

    #[command(flatten)]
    pub(crate) run: TraceRunArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TraceCommand {
    /// Draw a timeline of --perfetto as a page that needs no network
    Show(ShowArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// A timeline that `rocade trace --perfetto` has written
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) file: PathBuf,

    /// The page [default: FILE with .html], or `-` for standard output
    #[arg(short, long, value_name = "OUT", value_hint = ValueHint::FilePath)]
    pub(crate) output: Option<PathBuf>,
}

/// Events to print.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct TraceFilter {
    /// Only calls whose names begin so (can be repeated)
    #[arg(short = 'e', long, value_name = "NAME[,NAME..]", value_delimiter = ',')]
    pub(crate) call: Vec<String>,

    /// Only what names this queue pair (0x11 or decimal)
    #[arg(long, value_name = "QPN", value_parser = qp_number)]
    pub(crate) qp: Option<u32>,

    /// Only failed calls and completions, and packets that were refused, sent again or lost
    #[arg(long)]
    pub(crate) failed: bool,

    /// Also the first and the last packet of each message
    #[arg(long)]
    pub(crate) packets: bool,
}

impl TraceFilter {
    /// Returns true if calls of this name are wanted.
    pub(crate) fn names(&self, name: &str) -> bool {
        let matches = |wanted: &String| name.starts_with(wanted.as_str());
        self.call.is_empty() || self.call.iter().any(matches)
    }
}

/// A program and how it is traced.
#[derive(Debug, Args)]
pub(crate) struct TraceRunArgs {
    #[command(flatten)]
    pub(crate) devices: DeviceArgs,

    #[command(flatten)]
    pub(crate) filter: TraceFilter,

    /// Print a table of calls, failures and latencies at the end, instead of lines
    #[arg(short, long)]
    pub(crate) count: bool,

    /// Write the lines, or the table, into this file [default: standard error]
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) output: Option<PathBuf>,

    /// Write a timeline for ui.perfetto.dev and `rocade trace show`, instead of lines
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) perfetto: Option<PathBuf>,

    /// A fault rule, as for `rocade run` (can be repeated)
    #[arg(long, value_name = "RULE")]
    pub(crate) fault: Vec<String>,

    /// Capture all packets, as for `rocade run`
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) capture: Option<PathBuf>,

    /// The program and its arguments
    #[arg(
        value_name = "CMD",
        trailing_var_arg = true,
        value_hint = ValueHint::CommandWithArguments
    )]
    pub(crate) command: Vec<OsString>,
}

impl TraceRunArgs {
    /// Returns the options for `rocade run`.
    pub(crate) fn run_args(&self) -> Vec<OsString> {
        let mut args: Vec<OsString> = Vec::new();
        let mut add = |flag: &str, value: OsString| args.extend([flag.into(), value]);
        let DeviceArgs { dev, ip, like } = &self.devices;
        dev.iter().for_each(|value| add("--dev", value.into()));
        ip.iter().for_each(|value| add("--ip", value.into()));
        like.iter().for_each(|value| add("--like", value.into()));
        self.fault
            .iter()
            .for_each(|value| add("--fault", value.into()));
        let capture = self.capture.iter();
        capture.for_each(|value| add("--capture", value.into()));
        args
    }
}
