//! Bandwidth and latency over message sizes.

use std::fmt::Write as _;

use crate::{
    child::Failure,
    figures::{median, short},
    plot::{self, Series},
    probe::{
        Probe,
        perftest::{self, Column},
        ping_pong::{SMALL_LEN, Wait},
        stream::Flow,
    },
    rig::{Link, Rig},
};

/// A program, and its label in a plot.
type Program = (&'static str, &'static str);

const BANDWIDTH: [Program; 3] = [
    ("ib_write_bw", "WRITE"),
    ("ib_send_bw", "SEND"),
    ("ib_read_bw", "READ"),
];
const LATENCY: [Program; 3] = [
    ("ib_write_lat", "WRITE"),
    ("ib_send_lat", "SEND"),
    ("ib_read_lat", "READ"),
];
/// The message sizes, as powers of two: 8 B to 4 MiB.
const EXPONENTS: std::ops::RangeInclusive<u32> = 3..=22;
/// The approximate number of bytes in a bandwidth run, within limits for the number of messages.
const BYTES_PER_RUN: u32 = 1 << 30;

/// The data of the two plots.
#[derive(Debug)]
pub(crate) struct Sweep {
    bandwidth: Vec<Series>,
    latency: Vec<Series>,
}

impl Sweep {
    /// Measures every size with every program over each supported link, as medians of `runs`.
    pub(crate) fn new(rig: &Rig, links: &[Link], runs: u32) -> Result<Self, Failure> {
        let mut sweep = Self {
            bandwidth: Vec::new(),
            latency: Vec::new(),
        };
        for &link in links {
            if let Err(reason) = rig.link(link) {
                eprintln!("{reason}: left out");
                continue;
            }
            for program in BANDWIDTH {
                let line = series(rig, link, program, Column::Bandwidth, runs)?;
                sweep.bandwidth.push(line);
            }
            for program in LATENCY {
                let line = series(rig, link, program, Column::Typical, runs)?;
                sweep.latency.push(line);
            }
        }
        sweep.floors(rig, runs)?;
        Ok(sweep)
    }

    fn floors(&mut self, rig: &Rig, runs: u32) -> Result<(), Failure> {
        let stream = Probe::Stream {
            segment_len: 4152,
            segments: 15,
            flow: Flow::Free,
        };
        let spin = Probe::PingPong {
            wait: Wait::Spin,
            len: SMALL_LEN,
        };
        let of_medians = |probe: Probe| -> Result<f64, Failure> {
            let mut figures = (0..runs)
                .map(|_| probe.measure(rig))
                .collect::<Result<Vec<_>, _>>()?;
            median(&mut figures).ok_or_else(|| "no run".to_owned())
        };
        let flat = |name: &str, value: f64| Series {
            name: name.to_owned(),
            points: [*EXPONENTS.start(), *EXPONENTS.end()]
                .map(|exponent| (1 << exponent, value))
                .to_vec(),
            dashed: true,
        };
        self.bandwidth
            .push(flat("raw stream, 15 × 4152 B", of_medians(stream)?));
        self.latency
            .push(flat("raw ping-pong, 24 B", of_medians(spin)?));
        Ok(())
    }

    /// Returns the plot of bandwidths.
    pub(crate) fn bandwidth_svg(&self) -> String {
        let title = "Bandwidth of perftest between two processes on loopback";
        plot::svg(title, "Gbit/s", &self.bandwidth)
    }

    /// Returns the plot of latencies.
    pub(crate) fn latency_svg(&self) -> String {
        let title = "Latency of perftest between two processes on loopback";
        plot::svg(title, "typical latency, µs", &self.latency)
    }

    /// Returns all figures as tables.
    pub(crate) fn markdown(&self) -> String {
        let bandwidth = table("Gbit/s", &self.bandwidth);
        let latency = table("µs, typical", &self.latency);
        format!("{bandwidth}\n{latency}")
    }
}

fn series(
    rig: &Rig,
    link: Link,
    (program, name): Program,
    column: Column,
    runs: u32,
) -> Result<Series, Failure> {
    let mut points = Vec::new();
    for exponent in EXPONENTS {
        let size = 1u32 << exponent;
        let iterations = rig.count(match column {
            Column::Typical => (BYTES_PER_RUN / 8 / size).clamp(1000, 10_000),
            _ => (BYTES_PER_RUN / size).clamp(1000, 200_000),
        });
        let mut figures = Vec::new();
        for _ in 0..runs {
            let own = [
                program.to_owned(),
                "-F".to_owned(),
                "-p".to_owned(),
                perftest::free_port().to_string(),
                "-n".to_owned(),
                iterations.to_string(),
                "-s".to_owned(),
                size.to_string(),
            ];
            figures.push(perftest::run_pair(rig, link, None, &own, column)?);
        }
        let figure = median(&mut figures).unwrap_or_default();
        eprintln!("{program} {} {size} B: {}", link.word(), short(figure));
        points.push((size, figure));
    }
    Ok(Series {
        name: format!("{name}, {}", link.word()),
        points,
        dashed: false,
    })
}

fn table(unit: &str, series: &[Series]) -> String {
    let lines = || series.iter().filter(|line| !line.dashed);
    let mut text = format!("| bytes ({unit}) |");
    for line in lines() {
        let _ = write!(text, " {} |", line.name);
    }
    let _ = writeln!(text, "\n|---|{}", "---|".repeat(lines().count()));
    for exponent in EXPONENTS {
        let size = 1u32 << exponent;
        let _ = write!(text, "| {} |", plot::size_name(f64::from(size)));
        for line in lines() {
            let point = line.points.iter().find(|point| point.0 == size);
            let figure = point.map_or_else(|| "-".to_owned(), |point| short(point.1));
            let _ = write!(text, " {figure} |");
        }
        text.push('\n');
    }
    text
}
