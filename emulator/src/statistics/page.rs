//! A snapshot of all values, and its form as words.
//!
//! ```text
//! hash of the tables, time, devices, queue pairs of the page, queue pairs of the process,
//! values of PROCESS, devices (name, sums of QP, PORT),
//! queue pairs (labels, bits of the values of QP that are not 0, those values)
//! ```
//! So a queue pair without traffic takes few words, as most of a thousand are.
//! Another version may have other tables, and then another hash. Its page is not read.

use std::net::Ipv6Addr;

use rocade_wire::Qpn;

use super::{Metric, PORT, PROCESS, PortSample, ProcessSample, QP, QpLabels, QpSample};

/// Most queue pairs in a page. Further ones are in the sums only.
const MAX_QPS: usize = 1024;
/// Most devices in a page.
const MAX_DEVICES: usize = 16;
const HEAD_WORDS: usize = 5;
/// Words of a device's name.
const NAME_WORDS: usize = 8;
const DEVICE_WORDS: usize = NAME_WORDS + QP.len() + PORT.len();
const LABEL_WORDS: usize = 5;
/// Most words of a queue pair.
const QP_WORDS: usize = LABEL_WORDS + 1 + QP.len();
/// The form of the words. Another form gets another number.
const FORM: &str = "2";
/// Most words of a page.
const MAX_WORDS: usize =
    HEAD_WORDS + PROCESS.len() + MAX_DEVICES * DEVICE_WORDS + MAX_QPS * QP_WORDS;

// The journal reserves the space (`journal/statistics.rs`), and is below this module.
const _: () = assert!(MAX_WORDS <= crate::journal::STATISTICS_WORDS);
// A word says which values of a queue pair are not 0.
const _: () = assert!(QP.len() <= 64);

/// All values of a process at a time.
#[derive(Debug, Default)]
pub(crate) struct Snapshot {
    /// Nanoseconds since 1970.
    pub(crate) unix_ns: u64,
    pub(crate) process: ProcessSample,
    pub(crate) devices: Vec<DeviceRow>,
    pub(crate) qps: QpRows,
}

/// The values of [`QP`] of one queue pair, in their order.
pub(crate) type QpMetrics = [u64; QP.len()];

/// The words of queue pairs.
#[derive(Debug, Default)]
pub(crate) struct QpRows {
    words: Vec<u64>,
    rows: usize,
    count: usize,
}

/// The values of a device.
#[derive(Debug)]
pub(crate) struct DeviceRow {
    pub(crate) name: String,
    pub(crate) port: PortSample,
    /// The sums of [`QP`] over its queue pairs, also over those that were destroyed.
    pub(crate) sums: Vec<u64>,
}

/// The values of a process, as another process reads them. Each list is in the order of its table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statistics {
    /// The time of the values in nanoseconds since 1970.
    pub unix_ns: u64,
    /// The values of [`PROCESS`].
    pub process: Vec<u64>,
    /// Its devices.
    pub devices: Vec<DeviceValues>,
    /// Its queue pairs, at most 1024.
    pub qps: Vec<QpValues>,
    /// The number of all its queue pairs.
    pub qp_count: usize,
}

/// The values of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceValues {
    /// Its name.
    pub name: String,
    /// The sums of [`QP`] over its queue pairs, also over those that were destroyed.
    pub sums: Vec<u64>,
    /// The values of [`PORT`].
    pub port: Vec<u64>,
}

/// The values of a queue pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QpValues {
    /// Number, peer and state.
    pub labels: QpLabels,
    /// The values of [`QP`].
    pub values: Vec<u64>,
}

/// Returns the values of a sample in the order of its table.
pub(super) fn values_of<S>(table: &[Metric<S>], sample: &S) -> Vec<u64> {
    table.iter().map(|metric| metric.get(sample)).collect()
}

/// Returns the values of a queue pair.
pub(crate) fn qp_metrics(sample: &QpSample) -> QpMetrics {
    std::array::from_fn(|index| QP[index].get(sample))
}

impl QpRows {
    /// Makes room for a number of queue pairs without traffic.
    pub(crate) fn with_capacity(count: usize) -> Self {
        Self {
            words: Vec::with_capacity(count.min(MAX_QPS) * (LABEL_WORDS + 2)),
            ..Self::default()
        }
    }

    /// Adds a queue pair. Those that have no place in a page are counted only.
    pub(crate) fn push(&mut self, labels: &QpLabels, values: &QpMetrics) {
        self.count += 1;
        if self.rows == MAX_QPS {
            return;
        }
        self.rows += 1;
        let bit = |(index, value): (usize, &u64)| u64::from(*value != 0) << index;
        let present = values.iter().enumerate().map(bit).sum();
        self.words.extend(label_words(labels));
        self.words.push(present);
        self.words
            .extend(values.iter().filter(|value| **value != 0));
    }

    /// Returns the number of queue pairs, also of those without a place in a page.
    pub(crate) const fn count(&self) -> usize {
        self.count
    }
}

impl Snapshot {
    /// Returns the words of a page up to the queue pairs. [`Self::qp_words`] are the rest.
    pub(crate) fn head_words(&self) -> Vec<u64> {
        let devices = &self.devices[..self.devices.len().min(MAX_DEVICES)];
        let counts = [devices.len(), self.qps.rows, self.qps.count].map(|count| count as u64);
        let mut words = vec![tables_hash(), self.unix_ns];
        words.extend(counts);
        words.extend(values_of(PROCESS, &self.process));
        for device in devices {
            words.extend(name_words(&device.name));
            let sums = device.sums.iter().copied().chain(std::iter::repeat(0));
            words.extend(sums.take(QP.len()));
            words.extend(values_of(PORT, &device.port));
        }
        words
    }

    /// Returns the words of the queue pairs.
    pub(crate) fn qp_words(&self) -> &[u64] {
        &self.qps.words
    }

    #[cfg(all(test, not(loom)))]
    fn to_words(&self) -> Vec<u64> {
        [&self.head_words(), self.qp_words()].concat()
    }

    /// Replaces the sums of a device in the words of a page.
    pub(crate) fn replace_sums(words: &mut [u64], device: usize, sums: &[u64]) {
        let at = HEAD_WORDS + PROCESS.len() + device * DEVICE_WORDS + NAME_WORDS;
        if device < MAX_DEVICES
            && let Some(places) = words.get_mut(at..at + QP.len())
        {
            for (place, sum) in places.iter_mut().zip(sums) {
                *place = *sum;
            }
        }
    }
}

impl Statistics {
    /// Returns the values in the words of a page, or `None` if they are not those of this version.
    /// The process may have written anything.
    pub(crate) fn from_words(words: &[u64]) -> Option<Self> {
        let (&[hash, unix_ns, devices, qps, qp_count], words) = words.split_first_chunk()?;
        if hash != tables_hash() {
            return None;
        }
        let devices = usize::try_from(devices).ok()?.min(MAX_DEVICES);
        let qps = usize::try_from(qps).ok()?.min(MAX_QPS);
        let (process, words) = words.split_at_checked(PROCESS.len())?;
        let (device_words, mut qp_words) = words.split_at_checked(devices * DEVICE_WORDS)?;
        let device = |words: &[u64]| {
            let (name, values) = words.split_at_checked(NAME_WORDS)?;
            let (sums, port) = values.split_at_checked(QP.len())?;
            Some(DeviceValues {
                name: text_of(name)?,
                sums: sums.to_vec(),
                port: port.to_vec(),
            })
        };
        Some(Self {
            unix_ns,
            process: process.to_vec(),
            devices: device_words
                .chunks_exact(DEVICE_WORDS)
                .map(device)
                .collect::<Option<_>>()?,
            qps: (0..qps)
                .map(|_| take_qp(&mut qp_words))
                .collect::<Option<_>>()?,
            qp_count: usize::try_from(qp_count).ok()?,
        })
    }
}

/// Takes the values of a queue pair from the begin of the words.
fn take_qp(words: &mut &[u64]) -> Option<QpValues> {
    let (labels, rest) = words.split_first_chunk()?;
    let (present, rest) = rest.split_first()?;
    let (kept, rest) = rest.split_at_checked(present.count_ones() as usize)?;
    if u128::from(*present) >> QP.len() != 0 {
        return None;
    }
    let mut kept = kept.iter();
    let value = |index| {
        let is_kept = present >> index & 1 != 0;
        if is_kept {
            kept.next().copied()
        } else {
            Some(0)
        }
    };
    let values = (0..QP.len()).map(value).collect::<Option<_>>()?;
    *words = rest;
    Some(QpValues {
        labels: labels_of(labels)?,
        values,
    })
}

/// Returns a number that differs between different tables and forms (FNV-1a of all names).
fn tables_hash() -> u64 {
    fn names<S>(table: &'static [Metric<S>]) -> impl Iterator<Item = &'static str> {
        let both = |metric: &'static Metric<S>| [metric.name, metric.reason.unwrap_or("")];
        table.iter().flat_map(both).chain(["|"])
    }
    let names = names(QP)
        .chain(names(PORT))
        .chain(names(PROCESS))
        .chain([FORM]);
    let bytes = names.flat_map(|name| name.bytes().chain([0]));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}

fn name_words(name: &str) -> [u64; NAME_WORDS] {
    let mut bytes = [0; NAME_WORDS * 8];
    let room = bytes.len().min(name.len());
    let len = (0..=room).rev().find(|at| name.is_char_boundary(*at));
    let name = &name.as_bytes()[..len.unwrap_or(0)];
    bytes[..name.len()].copy_from_slice(name);
    let (words, _) = bytes.as_chunks();
    let mut name = [0; NAME_WORDS];
    for (word, bytes) in name.iter_mut().zip(words) {
        *word = u64::from_le_bytes(*bytes);
    }
    name
}

/// Returns the text up to the first zero, or `None` if it is none that a terminal may get.
fn text_of(words: &[u64]) -> Option<String> {
    let bytes = words.iter().flat_map(|word| word.to_le_bytes());
    let text = String::from_utf8(bytes.take_while(|byte| *byte != 0).collect()).ok()?;
    (!text.contains(char::is_control)).then_some(text)
}

fn label_words(labels: &QpLabels) -> [u64; LABEL_WORDS] {
    let peer = labels.peer.map_or(0, |peer| match peer {
        std::net::IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
        std::net::IpAddr::V6(v6) => v6.to_bits(),
    });
    let bytes = peer.to_le_bytes();
    let (halves, _) = bytes.as_chunks();
    let half = |index: usize| {
        halves
            .get(index)
            .map_or(0, |half| u64::from_le_bytes(*half))
    };
    let codes = u64::from(labels.kind) << 8 | u64::from(labels.state);
    [
        labels.qpn.get().into(),
        (labels.device as u64) << 16 | codes,
        labels.dest.get().into(),
        half(0),
        half(1),
    ]
}

fn labels_of(words: &[u64; LABEL_WORDS]) -> Option<QpLabels> {
    let [qpn, codes, dest, low, high] = *words;
    let number = |word: u64| u32::try_from(word).ok().map(Qpn::new);
    let [state, kind, ..] = codes.to_le_bytes();
    let peer = u128::from(high) << 64 | u128::from(low);
    Some(QpLabels {
        qpn: number(qpn)?,
        device: usize::try_from(codes >> 16).ok()?,
        kind,
        state,
        dest: number(dest)?,
        peer: (peer != 0).then(|| Ipv6Addr::from_bits(peer).to_canonical()),
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::{Kind, hw_counters};
    use super::*;

    fn snapshot(qps: usize) -> Snapshot {
        let mut sample = QpSample::default();
        sample.counters.tx_packets = 7;
        sample.recv_queue = 3;
        let labels = QpLabels {
            qpn: Qpn::new(0x11),
            device: 0,
            kind: 2,
            state: 3,
            dest: Qpn::new(0x12),
            peer: Some("192.0.2.1".parse().expect("an address")),
        };
        let device = DeviceRow {
            name: "ä".repeat(60),
            port: PortSample::default(),
            sums: vec![9; QP.len()],
        };
        let mut rows = QpRows::default();
        for _ in 0..qps {
            rows.push(&labels, &qp_metrics(&sample));
        }
        Snapshot {
            unix_ns: 5,
            process: ProcessSample::default(),
            devices: vec![device],
            qps: rows,
        }
    }

    #[test]
    fn a_page_is_read_as_it_was_written() {
        let read = Statistics::from_words(&snapshot(2).to_words()).unwrap();
        assert_eq!((read.unix_ns, read.qp_count, read.qps.len()), (5, 2, 2));
        assert_eq!(read.devices[0].name, "ä".repeat(32));
        assert_eq!(read.devices[0].sums, vec![9; QP.len()]);
        let qp = &read.qps[1];
        assert_eq!(
            (qp.labels.kind_name(), qp.labels.state_name()),
            ("RC", "RTS")
        );
        assert_eq!(qp.labels.peer, Some("192.0.2.1".parse().unwrap()));
        let value = |name| QP.iter().position(|metric| metric.name == name).unwrap();
        assert_eq!(qp.values[value("sent_pkts")], 7);
        assert_eq!(qp.values[value("recv_queue")], 3);
        assert_eq!(qp.values.iter().sum::<u64>(), 10);
        assert_eq!(qp.values.len(), QP.len());
    }

    /// A process may have a thousand queue pairs of which few have traffic.
    #[test]
    fn values_of_0_take_no_words() {
        let len = |qps| snapshot(qps).to_words().len();
        assert_eq!(len(2) - len(1), LABEL_WORDS + 1 + 2);
        let mut full = QpRows::default();
        let labels = labels_of(&[1, 0, 0, 0, 0]).unwrap();
        full.push(&labels, &[u64::MAX; QP.len()]);
        assert_eq!(full.words.len(), QP_WORDS);
        let read = take_qp(&mut full.words.as_slice()).unwrap();
        assert_eq!(read.values, [u64::MAX; QP.len()]);
    }

    #[test]
    fn a_page_has_room_for_some_queue_pairs_only() {
        let words = snapshot(MAX_QPS + 5).to_words();
        assert!(words.len() <= MAX_WORDS);
        let read = Statistics::from_words(&words).unwrap();
        assert_eq!((read.qps.len(), read.qp_count), (MAX_QPS, MAX_QPS + 5));
    }

    #[test]
    fn other_words_are_no_page() {
        let words = snapshot(1).to_words();
        for len in 0..words.len() {
            assert_eq!(Statistics::from_words(&words[..len]), None, "{len}");
        }
        let mut other = words.clone();
        other[0] ^= 1;
        assert_eq!(Statistics::from_words(&other), None);
        let mut other = words.clone();
        other[HEAD_WORDS + PROCESS.len() + DEVICE_WORDS + LABEL_WORDS] |= 1 << QP.len();
        other.push(0);
        assert_eq!(Statistics::from_words(&other), None);
        let mut other = words;
        other[HEAD_WORDS + PROCESS.len()] = u64::from_le_bytes(*b"\x1b[2J\0\0\0\0");
        assert_eq!(Statistics::from_words(&other), None);
    }

    /// Names become names of Prometheus and of files.
    #[test]
    fn names_are_unique_and_plain() {
        fn check<S>(table: &[Metric<S>]) {
            for (index, metric) in table.iter().enumerate() {
                let parts = metric
                    .name
                    .chars()
                    .chain(metric.reason.unwrap_or("").chars());
                let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
                assert!(parts.into_iter().all(is_plain), "{}", metric.name);
                let same =
                    |other: &Metric<S>| (other.name, other.reason) == (metric.name, metric.reason);
                assert!(!table[..index].iter().any(same), "{}", metric.name);
                assert!(!metric.help.ends_with('.'), "{}", metric.help);
            }
        }
        check(QP);
        check(PORT);
        check(PROCESS);
        assert!(hw_counters().all(|(index, _)| QP[index].kind == Kind::Counter));
    }
}
