//! The arguments of the commands that show statistics.

use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;

const STAT_AFTER: &str = "\
Examples:
  rocade stat                               a line per process and device
  rocade stat --qps                         a line per queue pair, too
  rocade stat --all                         every value that is not 0, with its meaning
  rocade stat --watch                       rates, once a second
  rocade stat --json | jq '.processes[].devices[].values.retrans_pkts'
  rocade stat --openmetrics                 the text that Prometheus reads

The values are those of the running programs that use the broker, as old as 200 ms. Names are those
of the kernel's hw_counters where it has one.";

const TOP_AFTER: &str = "\
Examples:
  rocade top                                processes, queue pairs and hosts, busiest first
  rocade top --interval 0.5                 twice a second

Keys: q or Esc ends, Tab shows the queue pairs, the hosts (addresses of peers) or neither. All rates
are per second.";

const EXPORTER_AFTER: &str = "\
Examples:
  rocade exporter                           http://127.0.0.1:9478/metrics
  rocade exporter --listen 0.0.0.0:9478     for a Prometheus on another machine
  rocade exporter --qps                     the values of each queue pair, too

Nothing protects the page, so it is on the loopback interface unless you name another address.
Values of a process are there as long as it runs.";

#[derive(Debug, Args)]
#[command(after_help = STAT_AFTER)]
pub(crate) struct StatArgs {
    /// Show each queue pair, too
    #[arg(long)]
    pub(crate) qps: bool,

    /// Show every value that is not 0, with its meaning
    #[arg(long, conflicts_with_all = ["json", "openmetrics", "watch"])]
    pub(crate) all: bool,

    /// Show rates again and again, after this time
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1")]
    #[arg(value_parser = seconds, conflicts_with = "openmetrics")]
    pub(crate) watch: Option<Duration>,

    /// Print JSON, for programs, and with --watch a line each time
    #[arg(long, conflicts_with = "openmetrics")]
    pub(crate) json: bool,

    /// Print the format of OpenMetrics
    #[arg(long)]
    pub(crate) openmetrics: bool,
}

#[derive(Debug, Args)]
#[command(after_help = TOP_AFTER)]
pub(crate) struct TopArgs {
    /// The time between two updates
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    pub(crate) interval: Duration,
}

#[derive(Debug, Args)]
#[command(after_help = EXPORTER_AFTER)]
pub(crate) struct ExporterArgs {
    /// The address and port of the page
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:9478")]
    pub(crate) listen: SocketAddr,

    /// Export the values of each queue pair, too
    #[arg(long)]
    pub(crate) qps: bool,
}

/// Parses a time between half a second, in which each process writes its page, and an hour.
fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds")?;
    if (0.5..=3600.0).contains(&seconds) {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err("not between 0.5 and 3600 seconds".to_owned())
    }
}
