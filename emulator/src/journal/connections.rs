//! The connection journal of a process: the connections whose peers the broker notifies after the
//! process has died.
//!
//! Each connection has a line of [`ROW_WORDS`] words. The first word marks it used and holds its
//! kind. It is written last and in one store, so that a death never leaves a partial line. The head
//! line counts the lines that were ever used. The rest of the file was never touched and takes no
//! memory.

use crate::sync::atomic::Ordering;
use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;

use rocade_transport::cm::{CmRoute, ConnRecord, ConnRecordKind};
use rocade_wire::Qpn;
use rocade_wire::mad::CommId;

use super::ack::{AckJournal, ip_to_words, words_to_ip};
use super::{CONNECTIONS_AT, shm_words};

/// Words of a line: a cache line.
const ROW_WORDS: usize = 8;
/// Length of a line in bytes.
const ROW_LEN: usize = ROW_WORDS * size_of::<u64>();
/// Most connections of a process. Peers of further connections notice by exceeded retries.
const MAX_ROWS: usize = 1 << 14;
/// Length in bytes: the first line is the head.
pub(super) const LEN: usize = (1 + MAX_ROWS) * ROW_LEN;
/// Lines read per system call.
const ROWS_AT_ONCE: usize = 256;

/// The process's side: the line of each connection.
#[derive(Debug)]
pub(crate) struct ConnectionJournal {
    journal: Arc<AckJournal>,
    rows: BTreeMap<CommId, usize>,
    free: Vec<usize>,
    /// Number of lines that were ever used.
    used: usize,
}

impl ConnectionJournal {
    /// Creates an empty journal, at most one per ACK journal. Returns `None` where the process may
    /// only create files of a few KiB.
    pub(crate) fn new(journal: Arc<AckJournal>) -> Option<Self> {
        let has_space = journal.shared.words().len() * size_of::<u64>() >= CONNECTIONS_AT + LEN;
        has_space.then(|| Self {
            journal,
            rows: BTreeMap::new(),
            free: Vec::new(),
            used: 0,
        })
    }

    /// Records a connection, or removes it with `None`.
    pub(crate) fn write(&mut self, own_id: CommId, record: Option<ConnRecord>) {
        let Some(record) = record else {
            if let Some(row) = self.rows.remove(&own_id) {
                self.words(row)[0].store(0, Ordering::Release);
                self.free.push(row);
            }
            return;
        };
        let row = match self.rows.get(&own_id) {
            Some(row) => *row,
            None => match self.take() {
                Some(row) => {
                    self.rows.insert(own_id, row);
                    row
                }
                None => return,
            },
        };
        let [head, rest @ ..] = to_words(&record);
        let words = self.words(row);
        for (word, value) in words[1..].iter().zip(rest) {
            word.store(value, Ordering::Relaxed);
        }
        words[0].store(head, Ordering::Release);
    }

    /// Takes a free line, if there is one.
    fn take(&mut self) -> Option<usize> {
        if let Some(row) = self.free.pop() {
            return Some(row);
        }
        if self.used >= MAX_ROWS {
            return None;
        }
        self.used += 1;
        let used = u64::try_from(self.used).unwrap_or(0);
        self.words(0)[0].store(used, Ordering::Release);
        Some(self.used)
    }

    fn words(&self, row: usize) -> &[crate::sync::atomic::AtomicU64] {
        let at = CONNECTIONS_AT / size_of::<u64>() + row * ROW_WORDS;
        &self.journal.shared.words()[at..][..ROW_WORDS]
    }
}

/// The used bit, above the kind.
const IN_USE: u64 = 1 << 63;

fn to_words(record: &ConnRecord) -> [u64; ROW_WORDS - 2] {
    let kind = match record.kind {
        ConnRecordKind::Requested => 1,
        ConnRecordKind::Established => 2,
        ConnRecordKind::Disconnecting => 3,
    };
    let [l0, l1] = ip_to_words(record.route.local);
    let [r0, r1] = ip_to_words(record.route.remote);
    let ends = u64::from(record.peer_qpn.get()) << 32 | u64::from(record.peer_id.get());
    let head = IN_USE | kind << 32 | u64::from(record.own_id.get());
    [head, ends, l0, l1, r0, r1]
}

fn from_words([head, ends, l0, l1, r0, r1, ..]: [u64; ROW_WORDS]) -> Option<ConnRecord> {
    let low = |word: u64| u32::try_from(word & u64::from(u32::MAX)).unwrap_or(0);
    let kind = match (head & !IN_USE) >> 32 {
        1 => ConnRecordKind::Requested,
        2 => ConnRecordKind::Established,
        3 => ConnRecordKind::Disconnecting,
        _ => return None,
    };
    (head & IN_USE != 0).then(|| ConnRecord {
        route: CmRoute {
            local: words_to_ip([l0, l1]),
            remote: words_to_ip([r0, r1]),
        },
        own_id: CommId::new(low(head)),
        peer_id: CommId::new(low(ends)),
        peer_qpn: Qpn::new(low(ends >> 32) & 0xff_ffff),
        kind,
    })
}

/// Returns the connections of a client. Skips invalid lines, because the client may write anything
/// to the file.
pub(crate) fn read(file: &OwnedFd) -> Vec<ConnRecord> {
    let mut bytes = vec![0; ROWS_AT_ONCE * ROW_LEN];
    let mut read = |row: usize, count: usize| {
        let at = CONNECTIONS_AT + row * ROW_LEN;
        let len = shm_words::read_at(file.as_fd(), &mut bytes[..count * ROW_LEN], at).unwrap_or(0);
        let (words, _) = bytes[..len].as_chunks::<{ size_of::<u64>() }>();
        let words: Vec<_> = words.iter().map(|word| u64::from_ne_bytes(*word)).collect();
        words.as_chunks::<ROW_WORDS>().0.to_vec()
    };
    let used = read(0, 1).first().map_or(0, |head| head[0]);
    let used = usize::try_from(used).unwrap_or(0).min(MAX_ROWS);
    let mut conn_records = Vec::new();
    for first in (1..=used).step_by(ROWS_AT_ONCE) {
        let rows = read(first, ROWS_AT_ONCE.min(used + 1 - first));
        conn_records.extend(rows.into_iter().filter_map(from_words));
    }
    conn_records
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn record(own: u32, kind: ConnRecordKind) -> ConnRecord {
        ConnRecord {
            route: CmRoute {
                local: "127.0.0.2".parse().expect("an address"),
                remote: "fe80::7".parse().expect("an address"),
            },
            own_id: CommId::new(own),
            peer_id: CommId::new(u32::MAX - own),
            peer_qpn: Qpn::new(0xff_fff0 + own % 16),
            kind,
        }
    }

    #[test]
    fn the_broker_reads_the_connections_of_a_dead_process() {
        let journal = Arc::new(AckJournal::new().unwrap());
        let file = journal.fd().try_clone_to_owned().unwrap();
        let mut connections = ConnectionJournal::new(journal).unwrap();
        assert_eq!(read(&file), []);
        let id = CommId::new;
        let requested = record(u32::MAX, ConnRecordKind::Requested);
        connections.write(requested.own_id, Some(requested));
        assert_eq!(read(&file), [requested]);
        let established = ConnRecord {
            kind: ConnRecordKind::Established,
            ..requested
        };
        connections.write(requested.own_id, Some(established));
        let disconnecting = record(2, ConnRecordKind::Disconnecting);
        connections.write(id(2), Some(disconnecting));
        connections.write(id(3), None);
        assert_eq!(read(&file), [established, disconnecting]);
        connections.write(established.own_id, None);
        assert_eq!(read(&file), [disconnecting]);
        // Lines are reused, and there are more of them than are read at a time.
        for own in 3..1_000 {
            connections.write(id(own), Some(record(own, ConnRecordKind::Established)));
        }
        assert_eq!((connections.used, read(&file).len()), (998, 998));
        assert_eq!(super::super::read_acks(&file), [], "no ACK is pending");
    }

    #[test]
    fn the_number_of_rows_is_limited() {
        let journal = Arc::new(AckJournal::new().unwrap());
        let file = journal.fd().try_clone_to_owned().unwrap();
        let mut connections = ConnectionJournal::new(journal).unwrap();
        for own in 0..=u32::try_from(MAX_ROWS).unwrap() {
            connections.write(
                CommId::new(own),
                Some(record(own, ConnRecordKind::Established)),
            );
        }
        assert_eq!(read(&file).len(), MAX_ROWS);
        connections.write(CommId::new(7), None);
        connections.write(
            CommId::new(1 << 20),
            Some(record(1 << 20, ConnRecordKind::Established)),
        );
        assert_eq!(read(&file).len(), MAX_ROWS);
    }

    #[test]
    fn other_files_have_no_connections() {
        let file = tempfile::tempfile().unwrap();
        assert_eq!(read(&file.into()), []);
        let mut file = tempfile::tempfile().unwrap();
        let bytes = vec![0xff; CONNECTIONS_AT + 3 * ROW_LEN + 5];
        std::io::Write::write_all(&mut file, &bytes).unwrap();
        assert_eq!(read(&file.into()), []);
    }
}
