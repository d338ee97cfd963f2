//! Rocade: an unmodified perftest program in two processes under `rocade run`.

use std::{
    process::Stdio,
    sync::atomic::{AtomicU16, Ordering},
    time::Duration,
};

use super::sum;
use crate::{
    child::{Failure, Peer},
    rig::{self, Link, Rig},
};

const START: Duration = Duration::from_secs(20);
const LIMIT: Duration = Duration::from_secs(60);

/// The column of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Column {
    /// `BW average`, as Gbit/s.
    Bandwidth,
    /// `MsgRate`, as 10^6 messages per second.
    MessageRate,
    /// `t_typical` in microseconds.
    Typical,
    /// `t_avg` in microseconds.
    Average,
}

/// A perftest command line without device, port and number of iterations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Perftest {
    pub(crate) program: &'static str,
    pub(crate) arguments: &'static str,
    pub(crate) iterations: u32,
    pub(crate) column: Column,
    /// The value of `ROCADE_ICRC`, if it differs from the default and from `--icrc`.
    pub(crate) icrc: Option<&'static str>,
}

impl Perftest {
    /// Returns a copy with this `ROCADE_ICRC`.
    pub(crate) const fn with_icrc(self, way: &'static str) -> Self {
        Self {
            icrc: Some(way),
            ..self
        }
    }

    /// Returns the words of the command line, without the device.
    pub(crate) fn words(&self, iterations: u32, port: u16) -> Vec<String> {
        let own = [
            self.program,
            "-F",
            "-p",
            &port.to_string(),
            "-n",
            &iterations.to_string(),
        ];
        let own = own.map(str::to_owned).into_iter();
        own.chain(self.arguments.split_whitespace().map(str::to_owned))
            .collect()
    }

    /// Runs both sides to their end, and returns the client's figure.
    pub(crate) fn measure(&self, rig: &Rig, link: Link) -> Result<f64, Failure> {
        rig.link(link)?;
        if let Some(name) = self.icrc {
            sum::backend(name)?;
        }
        let words = self.words(rig.count(self.iterations), free_port());
        run_pair(rig, link, self.icrc, &words, self.column)
    }
}

/// Runs server and client with these words, of which the fourth is the TCP port.
pub(crate) fn run_pair(
    rig: &Rig,
    link: Link,
    icrc: Option<&str>,
    words: &[String],
    column: Column,
) -> Result<f64, Failure> {
    let port: u16 = words
        .get(3)
        .and_then(|port| port.parse().ok())
        .ok_or("no TCP port")?;
    let start = |host: Option<&str>| {
        let mut command = rig.run(link);
        command.envs(icrc.map(|way| ("ROCADE_ICRC", way)));
        // perftest enables DC only on known devices.
        if words.iter().any(|word| word == "DC") {
            command.env("ROCADE_IDENTITY", "0x02c9:0x1017");
        }
        command.args(words).args(["-d", "rocade0"]).args(host);
        Peer::start(command, Stdio::piped())
    };
    let server = start(None)?;
    rig::await_listener(port, START)?;
    let client = start(Some("127.0.0.1"))?;
    let output = client.finish(LIMIT)?;
    server.finish(LIMIT)?;
    parse(&output, column)
}

/// Returns a TCP port that no earlier pair of this run has used.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    20_000 + NEXT.fetch_add(1, Ordering::Relaxed) % 10_000
}

/// Parses the line below the heading that starts with `#bytes`.
pub(crate) fn parse(output: &str, column: Column) -> Result<f64, Failure> {
    /// perftest's "MB" has 2^20 bytes.
    const GBIT_PER_MIB: f64 = 1_048_576.0 * 8.0 / 1e9;
    let mut lines = output
        .lines()
        .skip_while(|line| !line.trim_start().starts_with("#bytes"));
    let row: Vec<f64> = lines
        .nth(1)
        .unwrap_or_default()
        .split_whitespace()
        .map_while(|word| word.parse().ok())
        .collect();
    // Bandwidth: bytes, iterations, peak, average, rate. Latency: bytes, iterations, minimum,
    // maximum, typical, average, ...
    let (index, factor) = match column {
        Column::Bandwidth => (3, GBIT_PER_MIB),
        Column::MessageRate | Column::Typical => (4, 1.0),
        Column::Average => (5, 1.0),
    };
    row.get(index)
        .map(|value| value * factor)
        .ok_or_else(|| format!("no figure in the output of perftest: {output:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_average_bandwidth_and_rate() {
        let output = "---\n #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n \
                      1048576    1629             0.00               1000.00\t\t   0.001626\n---\n";
        assert!((parse(output, Column::Bandwidth).unwrap() - 8.388_608).abs() < 1e-9);
        assert!((parse(output, Column::MessageRate).unwrap() - 0.001_626).abs() < 1e-9);
    }

    #[test]
    fn finds_typical_and_average_latency() {
        let output = " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]\n \
                      8       2000          14.94          2476.19      25.92    \t       52.15\n";
        assert!((parse(output, Column::Typical).unwrap() - 25.92).abs() < 1e-9);
        assert!((parse(output, Column::Average).unwrap() - 52.15).abs() < 1e-9);
    }

    #[test]
    fn no_table_is_a_failure() {
        assert!(parse("Couldn't connect", Column::Typical).is_err());
        assert!(parse(" #bytes #iterations\n", Column::Typical).is_err());
    }
}
