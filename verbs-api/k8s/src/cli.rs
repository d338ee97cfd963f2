//! The command line and the help texts.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueHint};

const PLUGIN_AFTER: &str = "\
Examples:
  rocade k8s device-plugin                              on a node, as root
  rocade k8s device-plugin --resource rocade.dev/nic --resource rdma/ib --count 64
  rocade k8s device-plugin --no-cdi                     for a kubelet before 1.29
  rocade k8s device-plugin --cdi-device 0               every pod gets rocade.dev/nic=0

Each node needs the drop-in libraries and a CDI spec, which `rocade cdi generate` writes. Devices
are named nic-0, nic-1 and so on. If the spec declares a device for each of these numbers, a
container gets those of its numbers, and otherwise all of them get rocade.dev/nic=all.

A device is healthy while all that its CDI device mounts is there, and the broker answers or can be
started. Causes are on standard error. SIGTERM ends the plugin, and removes its sockets.

Exit codes: 0 after SIGTERM or SIGINT, 1 if the plugin cannot go on, 2 for an invalid command line.";

/// Rocade on Kubernetes.
#[derive(Debug, Parser)]
#[command(
    name = "rocade k8s",
    bin_name = "rocade k8s",
    version,
    max_term_width = 100
)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Offer Rocade's devices to the kubelet of this node
    #[command(after_help = PLUGIN_AFTER)]
    DevicePlugin(PluginArgs),
}

#[derive(Clone, Debug, Args)]
pub(crate) struct PluginArgs {
    /// A name by which pods request the devices (can be repeated)
    #[arg(
        long = "resource",
        value_name = "DOMAIN/NAME",
        default_value = "rocade.dev/nic"
    )]
    #[arg(value_parser = resource)]
    pub(crate) resources: Vec<String>,

    /// The number of devices of each resource: so many containers of this node can have one
    #[arg(long, value_name = "N", default_value = "128")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=10_000))]
    pub(crate) count: u16,

    /// The directory of the kubelet's socket and of those of plugins
    #[arg(
        long,
        value_name = "DIR",
        default_value = "/var/lib/kubelet/device-plugins"
    )]
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) kubelet_dir: PathBuf,

    #[command(flatten)]
    pub(crate) pool: PoolArgs,

    /// The time between two checks of the devices
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    pub(crate) health_interval: Duration,
}

/// The origin of the devices, and the form of the answers.
#[derive(Clone, Debug, Args)]
pub(crate) struct PoolArgs {
    /// A directory with CDI specs (can be repeated). Devices of later directories win
    #[arg(long = "cdi-dir", value_name = "DIR", value_hint = ValueHint::DirPath)]
    #[arg(default_values = ["/etc/cdi", "/var/run/cdi"])]
    pub(crate) cdi_dirs: Vec<PathBuf>,

    /// The CDI device that every container gets, such as `all`
    #[arg(long, value_name = "NAME")]
    pub(crate) cdi_device: Option<String>,

    /// Answer with the mounts and variables of the CDI device, instead of its name
    #[arg(long)]
    pub(crate) no_cdi: bool,

    /// Report devices as unhealthy also while no broker runs
    #[arg(long)]
    pub(crate) require_broker: bool,
}

/// Checks a name as the kubelet does, so that the error is not that of a registration.
fn resource(text: &str) -> Result<String, String> {
    const MAX_LABEL: usize = 63;
    let Some((domain, name)) = text.split_once('/') else {
        return Err("a resource has a domain and a name, such as rocade.dev/nic".to_owned());
    };
    if domain == "kubernetes.io" || domain.ends_with(".kubernetes.io") {
        return Err("the domain kubernetes.io belongs to Kubernetes itself".to_owned());
    }
    let is_edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    let is_label = |label: &str, inner: &str| {
        let mut chars = label.chars();
        is_edge(label.chars().next())
            && is_edge(label.chars().next_back())
            && chars.all(|c| c.is_ascii_alphanumeric() || inner.contains(c))
    };
    if domain.to_ascii_lowercase() != domain || !domain.split('.').all(|l| is_label(l, "-")) {
        return Err(format!(
            "{domain} is no domain: lower case letters, digits and '-', separated by dots"
        ));
    }
    if !is_label(name, "-_.") || name.len() > MAX_LABEL {
        return Err(format!(
            "{name} is no name: up to {MAX_LABEL} letters, digits, '-', '_' and '.'"
        ));
    }
    Ok(text.to_owned())
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().map(Duration::try_from_secs_f64);
    match seconds {
        Some(Ok(time)) if time >= Duration::from_millis(10) => Ok(time),
        _ => Err("expected a number of seconds, at least 0.01".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn resources_are_checked_as_the_kubelet_does() {
        for good in [
            "rocade.dev/nic",
            "rdma/ib",
            "rdma/hca_shared_devices_a",
            "a-b.example.com/A.b-c_d",
        ] {
            assert_eq!(resource(good), Ok(good.to_owned()));
        }
        let long = format!("a.b/{}", "x".repeat(64));
        for bad in [
            "nic",
            "/nic",
            "rdma/",
            "Rdma/ib",
            "rdma/ib/0",
            "rdma/-ib",
            "a..b/ib",
            "kubernetes.io/nic",
            "node.kubernetes.io/nic",
            &long,
        ] {
            assert!(resource(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_interval_is_a_number_of_seconds() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for bad in ["0", "-1", "1s", "", "nan", "inf"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }
}
