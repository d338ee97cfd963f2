//! Rates: the differences of two gatherings, divided by the times between the pages.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use rocade_emulator::broker::ProcessStatistics;
use rocade_emulator::statistics::{PROCESS, QP, Statistics};

use crate::statistics::format::{as_f64, value};
use crate::statistics::stat::title;

/// The processes of two gatherings.
#[derive(Debug)]
pub(in crate::statistics) struct Rates {
    before: Vec<ProcessStatistics>,
    now: Vec<ProcessStatistics>,
}

/// The rates of a process or of one of its queue pairs, per second.
#[derive(Clone, Debug, Default)]
pub(in crate::statistics) struct Row {
    pub(in crate::statistics) process: String,
    /// The number of the queue pair, or the number of all of them.
    pub(in crate::statistics) qp: String,
    pub(in crate::statistics) peer: String,
    pub(in crate::statistics) state: &'static str,
    /// Bytes.
    pub(in crate::statistics) sent: f64,
    pub(in crate::statistics) received: f64,
    pub(in crate::statistics) messages: f64,
    pub(in crate::statistics) retrans: f64,
    pub(in crate::statistics) rnr: f64,
    pub(in crate::statistics) ecn: f64,
    pub(in crate::statistics) dropped: f64,
    /// Work requests that are not complete.
    pub(in crate::statistics) send_queue: u64,
    pub(in crate::statistics) recv_queue: u64,
    /// Completions that are not polled.
    pub(in crate::statistics) comp_queue: u64,
    /// Bytes in flight, and the window.
    pub(in crate::statistics) in_flight: u64,
    pub(in crate::statistics) window: u64,
    /// Registered memory of the process in bytes.
    pub(in crate::statistics) memory: u64,
}

impl Row {
    /// Returns the bytes of both directions.
    fn bytes(&self) -> f64 {
        self.sent + self.received
    }

    /// Adds the numbers of another row.
    fn add(&mut self, other: &Self) {
        self.sent += other.sent;
        self.received += other.received;
        self.messages += other.messages;
        self.retrans += other.retrans;
        self.rnr += other.rnr;
        self.ecn += other.ecn;
        self.dropped += other.dropped;
        self.send_queue += other.send_queue;
        self.recv_queue += other.recv_queue;
        self.in_flight += other.in_flight;
        self.window += other.window;
    }

    /// Sets the rates from values of [`QP`] at two times.
    fn set(&mut self, before: &[u64], now: &[u64], seconds: f64) {
        let rate = |name: &str| {
            let grown = value(QP, now, name).saturating_sub(value(QP, before, name));
            if seconds > 0.0 {
                as_f64(grown) / seconds
            } else {
                0.0
            }
        };
        self.sent += rate("sent_bytes");
        self.received += rate("rcvd_bytes");
        self.messages += rate("sent_msgs") + rate("rcvd_msgs");
        self.retrans += rate("retrans_pkts");
        self.rnr += rate("send_rnr_err") + rate("rnr_nak_retry_err");
        self.ecn += rate("np_ecn_marked_roce_packets");
        self.dropped += rate("dropped_pkts");
        self.send_queue += value(QP, now, "send_queue");
        self.recv_queue += value(QP, now, "recv_queue");
        self.comp_queue += value(QP, now, "comp_queue");
        self.in_flight += value(QP, now, "in_flight_bytes");
        self.window += value(QP, now, "window_bytes");
    }
}

impl Rates {
    pub(in crate::statistics) const fn new(now: Vec<ProcessStatistics>) -> Self {
        Self {
            before: Vec::new(),
            now,
        }
    }

    /// Takes the next gathering. The rates of a process are 0 if its page has not changed.
    pub(in crate::statistics) fn advance(&mut self, now: Vec<ProcessStatistics>) {
        self.before = std::mem::replace(&mut self.now, now);
    }

    /// Returns the processes of the last gathering.
    pub(in crate::statistics) fn processes(&self) -> &[ProcessStatistics] {
        &self.now
    }

    /// Returns the pairs of a process, and its values before and now.
    fn pairs(
        &self,
    ) -> impl Iterator<Item = (&ProcessStatistics, Option<&Statistics>, &Statistics)> {
        self.now.iter().filter_map(|process| {
            let same =
                |other: &&ProcessStatistics| (other.slot, other.pid) == (process.slot, process.pid);
            let before = self.before.iter().find(same);
            let before = before.and_then(|before| before.values.as_ref());
            Some((process, before, process.values.as_ref()?))
        })
    }

    /// Returns the rows of the processes, or of the queue pairs, busiest first.
    pub(in crate::statistics) fn rows(&self, of_qps: bool) -> Vec<Row> {
        let rows = self.pairs().flat_map(|(process, before, now)| {
            if of_qps {
                qp_rows(process, before, now)
            } else {
                vec![process_row(process, before, now)]
            }
        });
        busiest_first(rows.collect())
    }

    /// Returns a row per address of a peer, with the sums over the queue pairs of all processes
    /// that are connected to it, busiest first.
    pub(in crate::statistics) fn hosts(&self) -> Vec<Row> {
        let mut hosts: BTreeMap<String, (u32, Row)> = BTreeMap::new();
        for row in self.rows(true) {
            let peer = match row.peer.as_str() {
                "" => "without a peer",
                peer => peer,
            };
            let (count, sum) = hosts.entry(peer.to_owned()).or_default();
            *count += 1;
            sum.add(&row);
        }
        let rows = hosts.into_iter().map(|(host, (count, sum))| Row {
            process: host,
            qp: count.to_string(),
            ..sum
        });
        busiest_first(rows.collect())
    }

    /// Returns the rates of dropped packets by their reasons, of all processes together, highest
    /// first.
    pub(in crate::statistics) fn drops(&self) -> Vec<(&'static str, f64)> {
        let mut drops: Vec<(&'static str, f64)> = Vec::new();
        let mut add = |reason: Option<&'static str>, rate: f64| {
            let Some(reason) = reason.filter(|_| rate > 0.0) else {
                return;
            };
            match drops.iter_mut().find(|(known, _)| *known == reason) {
                Some((_, sum)) => *sum += rate,
                None => drops.push((reason, rate)),
            }
        };
        for (_, before, now) in self.pairs() {
            let Some(before) = before else { continue };
            let seconds = seconds_between(before, now);
            let rate = |before: u64, now: u64| as_f64(now.saturating_sub(before)) / seconds;
            for (old, new) in before.devices.iter().zip(&now.devices) {
                for ((metric, old), new) in QP.iter().zip(&old.sums).zip(&new.sums) {
                    add(metric.reason, rate(*old, *new));
                }
            }
            for ((metric, old), new) in PROCESS.iter().zip(&before.process).zip(&now.process) {
                add(metric.reason, rate(*old, *new));
            }
        }
        drops.sort_by(|(_, one), (_, other)| other.partial_cmp(one).unwrap_or(Ordering::Equal));
        drops
    }
}

fn busiest_first(mut rows: Vec<Row>) -> Vec<Row> {
    rows.sort_by(|one, other| {
        let by_bytes = other.bytes().partial_cmp(&one.bytes());
        by_bytes.unwrap_or(Ordering::Equal)
    });
    rows
}

/// Returns the seconds between two pages. They are infinite if the page has not changed, so that
/// rates are 0.
fn seconds_between(before: &Statistics, now: &Statistics) -> f64 {
    match now.unix_ns.saturating_sub(before.unix_ns) {
        0 => f64::INFINITY,
        ns => as_f64(ns) / 1e9,
    }
}

fn process_row(process: &ProcessStatistics, before: Option<&Statistics>, now: &Statistics) -> Row {
    let mut row = Row {
        process: title(process),
        qp: now.qp_count.to_string(),
        memory: value(PROCESS, &now.process, "registered_bytes"),
        ..Row::default()
    };
    for (index, device) in now.devices.iter().enumerate() {
        let old = before.and_then(|before| before.devices.get(index));
        let seconds = before.map_or(f64::INFINITY, |before| seconds_between(before, now));
        let old = old.map_or(&*device.sums, |old| &*old.sums);
        row.set(old, &device.sums, seconds);
    }
    row
}

fn qp_rows(process: &ProcessStatistics, before: Option<&Statistics>, now: &Statistics) -> Vec<Row> {
    let seconds = before.map_or(f64::INFINITY, |before| seconds_between(before, now));
    let rows = now.qps.iter().map(|qp| {
        let qps = before.map_or(&[][..], |before| &before.qps);
        let old = qps.iter().find(|old| old.labels.qpn == qp.labels.qpn);
        let mut row = Row {
            process: title(process),
            qp: format!("{} {:#08x}", qp.labels.kind_name(), qp.labels.qpn.get()),
            peer: qp
                .labels
                .peer
                .map_or_else(String::new, |peer| peer.to_string()),
            state: qp.labels.state_name(),
            ..Row::default()
        };
        let old = old.map_or(&*qp.values, |old| &*old.values);
        row.set(old, &qp.values, seconds);
        row
    });
    rows.collect()
}

#[cfg(test)]
mod tests {
    use rocade_emulator::statistics::{DeviceValues, QpLabels, QpValues};
    use rocade_emulator::steering::ProcessSlot;
    use rocade_wire::Qpn;

    use super::*;

    fn gathering(unix_ns: u64, pid: u32, sent_bytes: u64) -> Vec<ProcessStatistics> {
        let at = |name| {
            QP.iter()
                .position(|metric| metric.name == name)
                .expect("a name of the table")
        };
        let mut sums = vec![0; QP.len()];
        sums[at("sent_bytes")] = sent_bytes;
        sums[at("dropped_pkts")] = sent_bytes / 100;
        let device = DeviceValues {
            name: "rocade0".to_owned(),
            sums,
            port: Vec::new(),
        };
        let values = Statistics {
            unix_ns,
            process: vec![0; PROCESS.len()],
            devices: vec![device],
            qps: Vec::new(),
            qp_count: 3,
        };
        vec![ProcessStatistics {
            slot: ProcessSlot::new(1),
            pid,
            name: "a".to_owned(),
            values: Some(values),
        }]
    }

    #[test]
    fn rates_are_of_the_time_between_the_pages() {
        let mut rates = Rates::new(gathering(0, 7, 0));
        rates.advance(gathering(500_000_000, 7, 1000));
        let row = &rates.rows(false)[0];
        assert_eq!((&*row.process, &*row.qp, row.sent), ("a (7)", "3", 2000.0));
        assert_eq!(rates.drops(), [("state", 20.0)]);
        // The process has written no other page.
        rates.advance(gathering(500_000_000, 7, 1000));
        assert_eq!(rates.rows(false)[0].sent, 0.0);
    }

    #[test]
    fn queue_pairs_of_one_peer_are_one_host() {
        let with_qps = |unix_ns, bytes| {
            let mut all = gathering(unix_ns, 7, bytes);
            let values = all[0].values.as_mut().expect("values");
            let peers = ["192.0.2.1", "192.0.2.2", "192.0.2.1"];
            values.qps.extend((1..).zip(peers).map(|(number, peer)| {
                let mut qp = QpValues {
                    labels: QpLabels {
                        qpn: Qpn::new(number),
                        device: 0,
                        kind: 2,
                        state: 3,
                        dest: Qpn::new(number),
                        peer: Some(peer.parse().expect("an address")),
                    },
                    values: vec![0; QP.len()],
                };
                let at = QP.iter().position(|metric| metric.name == "sent_bytes");
                qp.values[at.expect("a name of the table")] = bytes;
                qp
            }));
            all
        };
        let mut rates = Rates::new(with_qps(0, 0));
        rates.advance(with_qps(1_000_000_000, 100));
        let hosts = rates.hosts();
        let seen: Vec<(&str, &str, f64)> = (hosts.iter())
            .map(|row| (&*row.process, &*row.qp, row.sent))
            .collect();
        assert_eq!(seen, [("192.0.2.1", "2", 200.0), ("192.0.2.2", "1", 100.0)]);
    }

    #[test]
    fn another_process_of_the_slot_has_no_rate_yet() {
        let mut rates = Rates::new(gathering(0, 7, 0));
        rates.advance(gathering(500_000_000, 8, 1000));
        assert_eq!(rates.rows(false)[0].sent, 0.0);
        assert_eq!(rates.drops(), []);
    }
}
