//! `rocade stat`: statistics as a table, as a list, or in JSON.

use std::process::ExitCode;
use std::thread;

use comfy_table::{CellAlignment, Table};
use rocade_emulator::broker::{BrokerConfig, ProcessStatistics};
use rocade_emulator::statistics::{DeviceValues, Metric, PORT, PROCESS, QP, QpValues, Statistics};
use serde_json::{Map, Value, json};

use super::args::StatArgs;
use super::format::{as_f64, bits, bytes, in_unit, short, value};
use super::gather;
use super::openmetrics::{self, Format};
use super::top::rates::Rates;
use crate::error::CliError;
use crate::{output, table};

pub(super) fn run(args: &StatArgs, config: &BrokerConfig) -> Result<ExitCode, CliError> {
    let processes = gather(config)?;
    if let Some(interval) = args.watch {
        let mut rates = Rates::new(processes);
        loop {
            thread::sleep(interval);
            rates.advance(gather(config)?);
            if args.json {
                let seconds = interval.as_secs_f64();
                let view = json!({ "interval_s": seconds, "processes": views(rates.processes()) });
                output::line(view)?;
            } else {
                output::print(watched(&rates, args.qps))?;
            }
        }
    }
    if args.openmetrics {
        output::print(openmetrics::text(&processes, args.qps, Format::Open))?;
    } else if args.json {
        output::json(&json!({ "processes": views(&processes) }))?;
    } else if processes.is_empty() {
        output::line("no process uses the broker")?;
    } else if args.all {
        output::print(list(&processes, args.qps))?;
    } else {
        output::line(sums(&processes))?;
        if args.qps {
            output::line(queue_pairs(&processes))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the name of a process.
pub(super) fn title(process: &ProcessStatistics) -> String {
    format!("{} ({})", process.name, process.pid)
}

fn header(table: &mut Table, left: usize, titles: &[&str]) {
    table.set_header(titles);
    for column in table.column_iter_mut().skip(left) {
        column.set_cell_alignment(CellAlignment::Right);
    }
}

/// Returns a line per process and device.
fn sums(processes: &[ProcessStatistics]) -> Table {
    let mut table = table::plain();
    let titles = [
        "process", "device", "QPs", "memory", "sent", "received", "messages", "retrans", "RNR",
        "ECN", "dropped",
    ];
    header(&mut table, 2, &titles);
    for process in processes {
        let Some(values) = &process.values else {
            table.add_row([
                title(process),
                "no values yet, or another version".to_owned(),
            ]);
            continue;
        };
        for (index, device) in values.devices.iter().enumerate() {
            let own = values.qps.iter().filter(|qp| qp.labels.device == index);
            let memory = value(PROCESS, &values.process, "registered_bytes");
            let mut row = vec![title(process), device.name.clone(), own.count().to_string()];
            row.push(bytes(as_f64(memory)));
            row.extend(columns(&device.sums));
            table.add_row(row);
        }
    }
    table
}

/// Returns a line per queue pair.
fn queue_pairs(processes: &[ProcessStatistics]) -> Table {
    let mut table = table::plain();
    let titles = [
        "process",
        "QP",
        "type",
        "state",
        "peer",
        "send queue",
        "receive queue",
        "completions",
        "in flight",
        "window",
        "sent",
        "received",
        "messages",
        "retrans",
        "RNR",
        "ECN",
        "dropped",
    ];
    header(&mut table, 5, &titles);
    for process in processes {
        for qp in process.values.iter().flat_map(|values| &values.qps) {
            let labels = &qp.labels;
            let mut row = vec![title(process), format!("{:#08x}", labels.qpn.get())];
            row.extend([labels.kind_name(), labels.state_name()].map(str::to_owned));
            row.push(
                labels
                    .peer
                    .map_or_else(String::new, |peer| peer.to_string()),
            );
            row.push(value(QP, &qp.values, "send_queue").to_string());
            row.push(value(QP, &qp.values, "recv_queue").to_string());
            row.push(value(QP, &qp.values, "comp_queue").to_string());
            let of_flight = ["in_flight_bytes", "window_bytes"];
            row.extend(of_flight.map(|name| bytes(as_f64(value(QP, &qp.values, name)))));
            row.extend(columns(&qp.values));
            table.add_row(row);
        }
    }
    table
}

/// Returns the last columns of both tables.
fn columns(values: &[u64]) -> Vec<String> {
    let get = |name| value(QP, values, name);
    let rnr = get("send_rnr_err") + get("rnr_nak_retry_err");
    vec![
        bytes(as_f64(get("sent_bytes"))),
        bytes(as_f64(get("rcvd_bytes"))),
        short(as_f64(get("sent_msgs") + get("rcvd_msgs"))),
        get("retrans_pkts").to_string(),
        rnr.to_string(),
        get("np_ecn_marked_roce_packets").to_string(),
        get("dropped_pkts").to_string(),
    ]
}

/// Returns the rates since the last time.
fn watched(rates: &Rates, with_qps: bool) -> String {
    let mut table = table::plain();
    let titles = [
        "process",
        "QP",
        "sent",
        "received",
        "messages/s",
        "retrans/s",
        "RNR/s",
        "ECN/s",
        "dropped/s",
    ];
    header(&mut table, 2, &titles);
    for row in rates.rows(with_qps) {
        let mut cells = vec![row.process, row.qp];
        cells.extend([bits(row.sent), bits(row.received)]);
        cells.extend([row.messages, row.retrans, row.rnr, row.ecn, row.dropped].map(short));
        table.add_row(cells);
    }
    format!("{table}\n")
}

/// Returns all values that are not 0 with their meanings.
fn list(processes: &[ProcessStatistics], with_qps: bool) -> String {
    let mut text = String::new();
    let mut part = |title: &str, lines: Vec<String>| {
        text.push_str(title);
        text.push('\n');
        lines.iter().for_each(|line| text.push_str(line));
    };
    for process in processes {
        let Some(values) = &process.values else {
            part(&format!("{}: no values", title(process)), Vec::new());
            continue;
        };
        part(&title(process), lines(PROCESS, &values.process));
        for device in &values.devices {
            let mut all = lines(QP, &device.sums);
            all.extend(lines(PORT, &device.port));
            part(&format!("{}, {}", title(process), device.name), all);
        }
        for qp in values.qps.iter().filter(|_| with_qps) {
            let number = qp.labels.qpn.get();
            let title = format!("{}, QP {number:#08x}", title(process));
            part(&title, lines(QP, &qp.values));
        }
    }
    text
}

fn lines<S>(table: &[Metric<S>], values: &[u64]) -> Vec<String> {
    let used = table.iter().zip(values).filter(|(_, value)| **value > 0);
    used.map(|(metric, value)| {
        let reason = metric.reason.map(|reason| format!(" {reason}"));
        let name = format!("{}{}", metric.name, reason.unwrap_or_default());
        format!(
            "  {name:<28} {:>12}  {}\n",
            in_unit(*value, metric.unit),
            metric.help
        )
    })
    .collect()
}

fn views(processes: &[ProcessStatistics]) -> Vec<Value> {
    let view = |process: &ProcessStatistics| {
        let mut view = json!({
            "slot": process.slot.get(),
            "pid": process.pid,
            "name": process.name,
        });
        if let Some(values) = &process.values {
            let qp = |qp: &QpValues| qp_view(values, qp);
            view["time_ns"] = values.unix_ns.into();
            view["values"] = named(PROCESS, &values.process).into();
            view["devices"] = values.devices.iter().map(device_view).collect();
            view["qps"] = values.qps.iter().map(qp).collect();
        }
        view
    };
    processes.iter().map(view).collect()
}

fn device_view(device: &DeviceValues) -> Value {
    let mut values = named(QP, &device.sums);
    values.append(&mut named(PORT, &device.port));
    json!({ "name": device.name, "values": values })
}

fn qp_view(values: &Statistics, qp: &QpValues) -> Value {
    let device = values.devices.get(qp.labels.device);
    json!({
        "qp": qp.labels.qpn.get(),
        "device": device.map(|device| &device.name),
        "type": qp.labels.kind_name(),
        "state": qp.labels.state_name(),
        "peer_qp": qp.labels.dest.get(),
        "peer": qp.labels.peer.map(|peer| peer.to_string()),
        "values": named(QP, &qp.values),
    })
}

/// Returns values by their names. Those with reasons are in an object of their own.
fn named<S>(table: &[Metric<S>], values: &[u64]) -> Map<String, Value> {
    let mut all = Map::new();
    for (metric, value) in table.iter().zip(values) {
        match metric.reason {
            None => drop(all.insert(metric.name.to_owned(), (*value).into())),
            Some(reason) => {
                let reasons = all.entry(metric.name).or_insert_with(|| json!({}));
                reasons[reason] = (*value).into();
            }
        }
    }
    all
}
