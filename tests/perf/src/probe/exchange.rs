//! Messages to and fro between two processes of one program, over Rocade or over TCP, also beside
//! busy loops.

use std::{
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use super::{
    echo::{self, Wake},
    perftest::{self, Column, free_port},
};
use crate::{
    child::{Failure, Peer},
    figures::float,
    rig::{self, Link, Rig},
};

const START: Duration = Duration::from_secs(20);
const LIMIT: Duration = Duration::from_secs(60);
/// The bytes of a message, except for the pings of rping.
const LEN: &str = "64";
/// The directions that a round of rping takes: four SENDs, a READ and a WRITE, which both return.
pub(super) const PING_STEPS: u32 = 8;
/// The seconds of processor time after which a busy loop ends even if this program was killed.
const LOOP: &str = "ulimit -t 60; while :; do :; done";

/// A program whose two processes exchange one message at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Program {
    /// The echo of this package.
    Echo(Wake),
    /// qperf for a second: `rc_lat` with these arguments, or `tcp_lat`.
    Qperf(&'static str),
    /// `rping` with this number of rounds.
    Rping(u32),
    /// `rstream`, which calls `poll`, with this number of round trips.
    Rstream(u32),
    /// `ib_send_lat` with these arguments and this number of round trips.
    SendLat(&'static str, u32),
}

/// The transport of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Over {
    Tcp,
    /// A pipe in each direction, for the echo only.
    Pipes,
    Rocade(Link),
}

/// A program over a transport.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exchange {
    pub(crate) program: Program,
    pub(crate) over: Over,
}

/// `sh` processes that do nothing but run. Dropping them kills them.
#[derive(Debug)]
struct Loops {
    #[cfg_attr(not(test), expect(dead_code, reason = "kept to be dropped"))]
    peers: Vec<Peer>,
}

impl Loops {
    fn start(count: u32) -> Result<Self, Failure> {
        let start = |_| {
            let mut command = Command::new("sh");
            command.args(["-c", LOOP]);
            Peer::start(command, Stdio::null())
        };
        let peers = (0..count).map(start).collect::<Result<_, _>>()?;
        Ok(Self { peers })
    }
}

impl Exchange {
    /// Returns the average microseconds per direction, beside this number of busy loops.
    pub(crate) fn micros(self, rig: &Rig, loops: u32) -> Result<f64, Failure> {
        let _loops = Loops::start(loops)?;
        match self.program {
            Program::Echo(wake) => {
                let words = echo::client_words(rig.count(200_000), rig.duration() / 2);
                let output = self.run_echo(rig, wake, &words, bare)?;
                echo::micros(&output)
            }
            Program::Qperf(arguments) => self.qperf(rig, arguments),
            Program::Rping(rounds) => {
                // `--quick` keeps the rounds, which would otherwise take less than the start.
                let (few, many) = (rounds / 10, rounds);
                let time = |count: u32| {
                    let began = Instant::now();
                    self.run_rping(rig, count, bare)?;
                    Ok(began.elapsed().as_secs_f64() * 1e6)
                };
                per_message(time, few, many, PING_STEPS)
            }
            Program::Rstream(trips) => self.rstream(rig, trips),
            Program::SendLat(arguments, trips) => {
                let output = self.run_send_lat(rig, arguments, rig.count(trips), bare)?;
                perftest::parse(&output, Column::Average)
            }
        }
    }

    /// Runs server and client of the echo. Returns the output of the client.
    pub(super) fn run_echo(
        self,
        rig: &Rig,
        wake: Wake,
        client: &[String],
        wrap: impl Fn(Side, Command) -> Command,
    ) -> Result<String, Failure> {
        let program = rig.echo()?;
        let port = free_port().to_string();
        let (transport, address) = match self.over {
            Over::Tcp => ("tcp", port),
            Over::Pipes => ("pipe", rig.file(&port).display().to_string()),
            Over::Rocade(_) => ("rdma", port),
        };
        let start = |side: Side, words: &[String]| {
            let mut command = wrap(side, self.command(rig));
            command.arg(program).args([transport, wake.word()]);
            command.arg(side.word()).arg(&address).args(words);
            Peer::start(command, Stdio::piped())
        };
        let server = start(Side::Server, &[])?;
        server.line(START)?;
        let output = start(Side::Client, client)?.finish(LIMIT)?;
        server.finish(LIMIT)?;
        Ok(output)
    }

    /// Runs server and client of rping for `count` rounds.
    pub(super) fn run_rping(
        self,
        rig: &Rig,
        count: u32,
        wrap: impl Fn(Side, Command) -> Command,
    ) -> Result<(), Failure> {
        rig::require("rping", "rdmacm-utils")?;
        let port = free_port();
        let start = |side: Side, flag: &str| {
            let mut command = wrap(side, self.command(rig));
            command.args(["rping", flag, "-a", "127.0.0.1"]);
            command.args(["-p", &port.to_string(), "-C", &count.to_string()]);
            Peer::start(command, Stdio::piped())
        };
        let server = start(Side::Server, "-s")?;
        rig.await_service(port, START)?;
        start(Side::Client, "-c")?.finish(LIMIT)?;
        // Its exit status depends on which event it saw last.
        let _ = server.finish(LIMIT);
        Ok(())
    }

    /// Runs server and client of `ib_send_lat`. Returns the output of the client.
    pub(super) fn run_send_lat(
        self,
        rig: &Rig,
        arguments: &str,
        count: u32,
        wrap: impl Fn(Side, Command) -> Command,
    ) -> Result<String, Failure> {
        rig::require("ib_send_lat", "perftest")?;
        let Over::Rocade(link) = self.over else {
            return Err("ib_send_lat has no TCP".to_owned());
        };
        rig.link(link)?;
        let port = free_port();
        let start = |side: Side, host: Option<&str>| {
            let mut command = wrap(side, rig.run(link));
            command.args(["ib_send_lat", "-F", "-d", "rocade0", "-s", LEN]);
            command.args(["-p", &port.to_string(), "-n", &count.to_string()]);
            command.args(arguments.split_whitespace()).args(host);
            Peer::start(command, Stdio::piped())
        };
        let server = start(Side::Server, None)?;
        rig::await_listener(port, START)?;
        let output = start(Side::Client, Some("127.0.0.1"))?.finish(LIMIT)?;
        server.finish(LIMIT)?;
        Ok(output)
    }

    fn qperf(self, rig: &Rig, arguments: &str) -> Result<f64, Failure> {
        rig::require("qperf", "qperf")?;
        let port = free_port();
        let start = |words: &[&str]| {
            let mut command = self.command(rig);
            command.args(["qperf", "-lp", &port.to_string()]);
            command.args(words);
            Peer::start(command, Stdio::piped())
        };
        let _server = start(&[])?;
        rig::await_listener(port, START)?;
        let mut words = vec!["127.0.0.1", "-t", "1", "-m", LEN];
        match self.over {
            Over::Pipes => return Err("qperf has no pipes".to_owned()),
            Over::Tcp => words.push("tcp_lat"),
            Over::Rocade(_) => {
                words.extend(arguments.split_whitespace());
                words.push("rc_lat");
            }
        }
        parse_qperf(&start(&words)?.finish(LIMIT)?)
    }

    fn rstream(self, rig: &Rig, trips: u32) -> Result<f64, Failure> {
        rig::require("rstream", "rdmacm-utils")?;
        let port = free_port();
        let trips = rig.count(trips).to_string();
        let start = |words: &[&str]| {
            let mut command = self.command(rig);
            command.args(["rstream", "-p", &port.to_string(), "-S", LEN]);
            command.args(["-C", "1", "-I", &trips, "-T", "a"]);
            if self.over == Over::Tcp {
                command.args(["-T", "s"]);
            }
            command.args(words);
            Peer::start(command, Stdio::piped())
        };
        let server = start(&[])?;
        match self.over {
            Over::Pipes => return Err("rstream has no pipes".to_owned()),
            Over::Tcp => rig::await_listener(port, START)?,
            Over::Rocade(_) => rig.await_service(port, START)?,
        }
        let output = start(&["-s", "127.0.0.1"])?.finish(LIMIT)?;
        server.finish(LIMIT)?;
        parse_rstream(&output)
    }

    /// Returns the command before the program: `rocade run`, or `env`.
    fn command(self, rig: &Rig) -> Command {
        match self.over {
            Over::Tcp | Over::Pipes => Command::new("env"),
            Over::Rocade(link) => rig.run_connecting(link),
        }
    }
}

/// Starts a program as it is.
fn bare(_: Side, command: Command) -> Command {
    command
}

/// One of the two processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Server,
    Client,
}

impl Side {
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Client => "client",
        }
    }
}

/// Returns the cost of a message from two runs, so that the start and the end do not count.
pub(super) fn per_message(
    mut cost: impl FnMut(u32) -> Result<f64, Failure>,
    few: u32,
    many: u32,
    messages: u32,
) -> Result<f64, Failure> {
    let before = cost(few)?;
    let added = cost(many)? - before;
    if added <= 0.0 {
        return Err(format!("{many} rounds cost no more than {few}"));
    }
    Ok(added / float(u64::from(many - few) * u64::from(messages)))
}

/// Parses `latency  =  12.3 us`.
fn parse_qperf(output: &str) -> Result<f64, Failure> {
    let figure = output.lines().find_map(|line| {
        let (name, value) = line.split_once('=')?;
        let mut words = value.split_whitespace();
        let value: f64 = words.next()?.parse().ok()?;
        let factor = match words.next()? {
            "ns" => 1e-3,
            "us" => 1.0,
            "ms" => 1e3,
            "sec" => 1e6,
            _ => return None,
        };
        (name.trim() == "latency").then_some(value * factor)
    });
    figure.ok_or_else(|| format!("no figure in the output of qperf: {output:?}"))
}

/// Parses the last column of the last line, `usec/xfer`.
fn parse_rstream(output: &str) -> Result<f64, Failure> {
    let last = output.lines().last().unwrap_or_default();
    let figure = last.split_whitespace().nth(7);
    figure
        .and_then(|figure| figure.parse().ok())
        .ok_or_else(|| format!("no figure in the output of rstream: {output:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_latency_of_qperf_in_every_unit() {
        for (said, micros) in [("83.9 us", 83.9), ("1.2 ms", 1200.0), ("950 ns", 0.95)] {
            let output = format!("rc_lat:\n    latency  =  {said}\n");
            let figure = parse_qperf(&output).expect("a figure");
            assert!((figure - micros).abs() < 1e-9, "{figure}");
        }
        assert!(parse_qperf("rc_lat:\nfailed to receive").is_err());
    }

    #[test]
    fn finds_the_transfer_time_of_rstream() {
        let output = "name      bytes   xfers   iters   total       time     Gb/sec    usec/xfer\n\
                      custom    64      1       5k      625k        0.89s      0.01      88.63\n";
        assert!((parse_rstream(output).expect("a figure") - 88.63).abs() < 1e-9);
        assert!(parse_rstream("rconnect: Connection refused\n").is_err());
    }

    #[test]
    fn start_and_end_of_a_program_cost_nothing() {
        let cost = |count: u32| Ok(500.0 + 30.0 * f64::from(count));
        let figure = per_message(cost, 10, 110, 2).expect("a figure");
        assert!((figure - 15.0).abs() < 1e-9, "{figure}");
        assert!(per_message(|_| Ok(1.0), 10, 110, 2).is_err());
    }

    #[test]
    fn busy_loops_end_when_they_are_dropped() {
        let loops = Loops::start(2).expect("sh runs");
        let paths: Vec<_> = loops
            .peers
            .iter()
            .map(|peer| format!("/proc/{}", peer.id()))
            .collect();
        assert!(paths.iter().all(|path| std::path::Path::new(path).exists()));
        drop(loops);
        assert!(!paths.iter().any(|path| std::path::Path::new(path).exists()));
    }
}
