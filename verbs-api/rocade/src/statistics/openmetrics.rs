//! The text that Prometheus reads, in two formats: OpenMetrics 1.0, and the older text format.
//!
//! A client library would want all metrics as objects of its own, although the tables of the
//! emulator describe them already and their values come from other processes.

use std::fmt::{self, Write as _};

use rocade_emulator::broker::ProcessStatistics;
use rocade_emulator::statistics::{
    DeviceValues, Kind, Metric, PORT, PROCESS, QP, QpValues, Statistics, Unit,
};

/// The format of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// OpenMetrics 1.0.
    Open,
    /// Version 0.0.4 of the text format, which a Prometheus asks for that knows no other.
    Text,
}

impl Format {
    /// Returns the format that the header `Accept` of a request asks for.
    pub(super) fn accepted(accept: &str) -> Self {
        if accept.contains("application/openmetrics-text") {
            Self::Open
        } else {
            Self::Text
        }
    }

    /// Returns the type of the content.
    pub(super) const fn content_type(self) -> &'static str {
        match self {
            Self::Open => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// Returns the text of all values.
pub(super) fn text(processes: &[ProcessStatistics], with_qps: bool, format: Format) -> String {
    let mut text = Text {
        out: String::new(),
        format,
    };
    let with_values = processes.iter().filter_map(|process| {
        let values = process.values.as_ref()?;
        Some((process, values))
    });
    let all: Vec<Known<'_>> = with_values.collect();
    text.table("process", PROCESS, |index, emit| {
        for (process, values) in &all {
            emit(&labels(process, &[]), values.process.get(index));
        }
    });
    text.table("port", QP, |index, emit| {
        for (process, device) in devices(&all) {
            let labels = labels(process, &[("device", &device.name)]);
            emit(&labels, device.sums.get(index));
        }
    });
    text.table("port", PORT, |index, emit| {
        for (process, device) in devices(&all) {
            let labels = labels(process, &[("device", &device.name)]);
            emit(&labels, device.port.get(index));
        }
    });
    if with_qps {
        text.table("qp", QP, |index, emit| {
            for (process, values, qp) in qps(&all) {
                emit(&qp_labels(process, values, qp), qp.values.get(index));
            }
        });
    }
    if format == Format::Open {
        text.out.push_str("# EOF\n");
    }
    text.out
}

type Known<'a> = (&'a ProcessStatistics, &'a Statistics);

fn devices<'a>(
    all: &'a [Known<'a>],
) -> impl Iterator<Item = (&'a ProcessStatistics, &'a DeviceValues)> {
    let of = |(process, values): &Known<'a>| {
        let process = *process;
        values.devices.iter().map(move |device| (process, device))
    };
    all.iter().flat_map(of)
}

fn qps<'a>(
    all: &'a [Known<'a>],
) -> impl Iterator<Item = (&'a ProcessStatistics, &'a Statistics, &'a QpValues)> {
    let of = |(process, values): &Known<'a>| {
        let (process, values) = (*process, *values);
        values.qps.iter().map(move |qp| (process, values, qp))
    };
    all.iter().flat_map(of)
}

/// Returns the labels of a process and further ones.
fn labels(process: &ProcessStatistics, more: &[(&str, &str)]) -> String {
    let mut text = String::new();
    let (pid, slot) = (process.pid.to_string(), process.slot.to_string());
    let own = [("program", &*process.name), ("pid", &pid), ("slot", &slot)];
    for (name, value) in own.iter().chain(more) {
        let separator = if text.is_empty() { "" } else { "," };
        let _ = write!(text, "{separator}{name}=\"{}\"", Escaped(value));
    }
    text
}

fn qp_labels(process: &ProcessStatistics, values: &Statistics, qp: &QpValues) -> String {
    let device = values.devices.get(qp.labels.device);
    let device = device.map_or("", |device| &device.name);
    let number = format!("{:#08x}", qp.labels.qpn.get());
    let peer = qp.labels.peer.map(|peer| peer.to_string());
    let more = [
        ("device", device),
        ("qp", &number),
        ("type", qp.labels.kind_name()),
        ("peer", peer.as_deref().unwrap_or("")),
    ];
    labels(process, &more)
}

/// A value of a label in quotation marks.
struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| match c {
            '\\' => f.write_str("\\\\"),
            '"' => f.write_str("\\\""),
            '\n' => f.write_str("\\n"),
            c => f.write_char(c),
        })
    }
}

struct Text {
    out: String,
    format: Format,
}

impl Text {
    /// Adds the families of a table. `samples` calls its second argument with labels and value of
    /// each object for the value at an index.
    fn table<S>(
        &mut self,
        level: &str,
        table: &[Metric<S>],
        samples: impl Fn(usize, &mut dyn FnMut(&str, Option<&u64>)),
    ) {
        let mut last = "";
        for (index, metric) in table.iter().enumerate() {
            let family = format!("rocade_{level}_{}", metric.name);
            // Values with different reasons are one family.
            if metric.name != last {
                self.head(&family, metric);
                last = metric.name;
            }
            let suffix = if metric.kind == Kind::Counter {
                "_total"
            } else {
                ""
            };
            samples(index, &mut |labels, value| {
                let Some(value) = value else { return };
                let _ = write!(self.out, "{family}{suffix}{{{labels}");
                if let Some(reason) = metric.reason {
                    let _ = write!(self.out, ",reason=\"{reason}\"");
                }
                let _ = writeln!(self.out, "}} {value}");
            });
        }
    }

    fn head<S>(&mut self, family: &str, metric: &Metric<S>) {
        let (kind, suffix) = match metric.kind {
            Kind::Counter => ("counter", "_total"),
            Kind::Gauge => ("gauge", ""),
        };
        // The older format names the type of the sample, not of the family.
        let suffix = if self.format == Format::Open {
            ""
        } else {
            suffix
        };
        let help = metric.help;
        let _ = writeln!(self.out, "# TYPE {family}{suffix} {kind}");
        if self.format == Format::Open && metric.unit == Unit::Bytes {
            let _ = writeln!(self.out, "# UNIT {family} bytes");
        }
        let _ = writeln!(self.out, "# HELP {family}{suffix} {help}.");
    }
}
