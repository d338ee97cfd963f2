//! UCX over Rocade compared with UCX's own transports between two processes, in one run.

use std::{
    fmt::Write as _,
    process::{Command, Stdio},
    time::Duration,
};

use crate::{
    child::{Failure, Peer},
    figures::{median, short},
    probe::perftest::free_port,
    rig::{self, Link, Rig},
};

const START: Duration = Duration::from_secs(20);
const LIMIT: Duration = Duration::from_secs(60);

/// The transports: name in the table, `UCX_TLS`, and Rocade's link, which is `None` for UCX's own
/// transports.
const WAYS: [(&str, &str, Option<Link>); 6] = [
    ("rc, udp", "rc_verbs,ud_verbs", Some(Link::Udp)),
    ("rc, shm", "rc_verbs,ud_verbs", Some(Link::Shm)),
    ("ud, udp", "ud_verbs", Some(Link::Udp)),
    ("ud, shm", "ud_verbs", Some(Link::Shm)),
    ("tcp", "tcp", None),
    ("posix", "posix,cma", None),
];

/// A benchmark of `ucx_perftest`.
#[derive(Clone, Copy, Debug)]
struct Benchmark {
    name: &'static str,
    size: u32,
    iterations: u32,
    figure: Figure,
}

/// The column of its output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Figure {
    /// The median latency in µs.
    Latency,
    /// The overall bandwidth in Gbit/s.
    Bandwidth,
}

const BENCHMARKS: [Benchmark; 5] = [
    latency("tag_lat", 8),
    latency("ucp_am_lat", 8),
    latency("ucp_fadd", 8),
    bandwidth("tag_bw", 65_536),
    bandwidth("ucp_put_bw", 65_536),
];

const fn latency(name: &'static str, size: u32) -> Benchmark {
    Benchmark {
        name,
        size,
        iterations: 20_000,
        figure: Figure::Latency,
    }
}

const fn bandwidth(name: &'static str, size: u32) -> Benchmark {
    Benchmark {
        name,
        size,
        iterations: 20_000,
        figure: Figure::Bandwidth,
    }
}

/// Returns a table with the medians of `runs` of each benchmark over each transport.
pub(crate) fn markdown(rig: &Rig, runs: u32) -> Result<String, Failure> {
    let mut text = "| |".to_owned();
    for (name, ..) in WAYS {
        let _ = write!(text, " {name} |");
    }
    let _ = writeln!(text, "\n|---|{}", "---|".repeat(WAYS.len()));
    for benchmark in BENCHMARKS {
        let Benchmark { name, size, .. } = benchmark;
        let unit = match benchmark.figure {
            Figure::Latency => "µs",
            Figure::Bandwidth => "Gbit/s",
        };
        let _ = write!(text, "| `{name}` {size} B, {unit} |");
        for (way, transports, link) in WAYS {
            let mut figures = (0..runs)
                .map(|_| measure(rig, benchmark, transports, link))
                .collect::<Result<Vec<_>, _>>()
                .map_err(|failure| format!("{name} over {way}: {failure}"))?;
            let figure = median(&mut figures).ok_or("no run")?;
            eprintln!("{name} over {way}: {}", short(figure));
            let _ = write!(text, " {} |", short(figure));
        }
        text.push('\n');
    }
    Ok(text)
}

fn measure(
    rig: &Rig,
    benchmark: Benchmark,
    transports: &str,
    link: Option<Link>,
) -> Result<f64, Failure> {
    let port = free_port();
    let words = |host: &[&str]| {
        let mut command = match link {
            Some(link) => {
                let mut command = rig.run(link);
                command.arg("ucx_perftest");
                command.env("UCX_NET_DEVICES", "rocade0:1");
                command
            }
            None => Command::new("ucx_perftest"),
        };
        command
            .env("UCX_TLS", transports)
            .env("UCX_WARN_UNUSED_ENV_VARS", "n");
        command.args(["-p", &port.to_string()]).args(host);
        command
    };
    let server = Peer::start(words(&[]), Stdio::piped())?;
    rig::await_listener(port, START)?;
    let (size, iterations) = (
        benchmark.size.to_string(),
        rig.count(benchmark.iterations).to_string(),
    );
    let arguments = [
        "127.0.0.1",
        "-t",
        benchmark.name,
        "-s",
        &size,
        "-n",
        &iterations,
    ];
    let client = Peer::start(words(&arguments), Stdio::piped())?;
    let output = client.finish(LIMIT)?;
    server.finish(LIMIT)?;
    parse(&output, benchmark.figure)
}

/// Parses the last line: iterations, latency (median, mean, overall), bandwidth (mean, overall) and
/// rates.
fn parse(output: &str, figure: Figure) -> Result<f64, Failure> {
    /// UCX's "MB" has 2^20 bytes.
    const GBIT_PER_MIB: f64 = 1_048_576.0 * 8.0 / 1e9;
    let mut lines = output.lines();
    let figures: Vec<f64> = lines
        .find_map(|line| line.trim_start().strip_prefix("Final:"))
        .unwrap_or_default()
        .split_whitespace()
        .map_while(|word| word.parse().ok())
        .collect();
    let (index, factor) = match figure {
        Figure::Latency => (1, 1.0),
        Figure::Bandwidth => (5, GBIT_PER_MIB),
    };
    figures
        .get(index)
        .map(|value| value * factor)
        .ok_or_else(|| format!("no figures in the output of ucx_perftest: {output:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_median_and_bandwidth() {
        let output = "|    Stage     | # iterations |\n[thread 0]  49  10017.965 10283.020 10283.020  0.00  0.00  97  97\n\
                      Final:   2000   3.558  48.571  299.315  0.16  1000.00  20589  3341\n";
        assert!((parse(output, Figure::Latency).unwrap() - 3.558).abs() < 1e-9);
        assert!((parse(output, Figure::Bandwidth).unwrap() - 8.388_608).abs() < 1e-9);
        assert!(parse("cannot connect", Figure::Latency).is_err());
    }
}
