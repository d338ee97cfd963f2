//! The connection journal of a process: the connections whose peers the broker notifies after the
//! process has died.
//!
//! Each connection has a line of [`WORDS`] words. The first word marks it used and holds its kind.
//! It is written last and in one store, so that a death never leaves a partial line. The head line
//! counts the lines that were ever used. The rest of the file was never touched and takes no
//! memory.

use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rocade_transport::cm::{Bond, BondKind, CmRoute};
use rocade_wire::Qpn;
use rocade_wire::mad::CommId;

use super::{LEDGER_AT, Will, ip_to_words, words, words_to_ip};

/// Words of a line: a cache line.
const WORDS: usize = 8;
/// Length of a line in bytes.
const LINE: usize = WORDS * size_of::<u64>();
/// Most connections of a process. Peers of further connections notice by exceeded retries.
const LINES: usize = 1 << 14;
/// Length in bytes: the first line is the head.
pub(super) const LEN: usize = (1 + LINES) * LINE;
/// Lines read per system call.
const AT_ONCE: usize = 256;

/// The process's side: the line of each connection.
#[derive(Debug)]
pub(crate) struct Ledger {
    will: Arc<Will>,
    lines: BTreeMap<CommId, usize>,
    free: Vec<usize>,
    /// Number of lines that were ever used.
    used: usize,
}

impl Ledger {
    /// Creates an empty journal, at most one per ACK journal. Returns `None` where the process may
    /// only create files of a few KiB.
    pub(crate) fn new(will: Arc<Will>) -> Option<Self> {
        let has_room = will.shared.words().len() * size_of::<u64>() >= LEDGER_AT + LEN;
        has_room.then(|| Self {
            will,
            lines: BTreeMap::new(),
            free: Vec::new(),
            used: 0,
        })
    }

    /// Records a connection, or removes it with `None`.
    pub(crate) fn write(&mut self, own_id: CommId, bond: Option<Bond>) {
        let Some(bond) = bond else {
            if let Some(line) = self.lines.remove(&own_id) {
                self.words(line)[0].store(0, Ordering::Release);
                self.free.push(line);
            }
            return;
        };
        let line = match self.lines.get(&own_id) {
            Some(line) => *line,
            None => match self.take() {
                Some(line) => {
                    self.lines.insert(own_id, line);
                    line
                }
                None => return,
            },
        };
        let [head, rest @ ..] = to_words(&bond);
        let words = self.words(line);
        for (word, value) in words[1..].iter().zip(rest) {
            word.store(value, Ordering::Relaxed);
        }
        words[0].store(head, Ordering::Release);
    }

    /// Takes a free line, if there is one.
    fn take(&mut self) -> Option<usize> {
        if let Some(line) = self.free.pop() {
            return Some(line);
        }
        if self.used >= LINES {
            return None;
        }
        self.used += 1;
        let used = u64::try_from(self.used).unwrap_or(0);
        self.words(0)[0].store(used, Ordering::Release);
        Some(self.used)
    }

    fn words(&self, line: usize) -> &[std::sync::atomic::AtomicU64] {
        let at = LEDGER_AT / size_of::<u64>() + line * WORDS;
        &self.will.shared.words()[at..][..WORDS]
    }
}

/// The used bit, above the kind.
const IN_USE: u64 = 1 << 63;

fn to_words(bond: &Bond) -> [u64; WORDS - 2] {
    let kind = match bond.kind {
        BondKind::Asked => 1,
        BondKind::Made => 2,
        BondKind::Parting => 3,
    };
    let [l0, l1] = ip_to_words(bond.route.local);
    let [r0, r1] = ip_to_words(bond.route.remote);
    let ends = u64::from(bond.peer_qpn.get()) << 32 | u64::from(bond.peer_id.get());
    let head = IN_USE | kind << 32 | u64::from(bond.own_id.get());
    [head, ends, l0, l1, r0, r1]
}

fn from_words([head, ends, l0, l1, r0, r1, ..]: [u64; WORDS]) -> Option<Bond> {
    let low = |word: u64| u32::try_from(word & u64::from(u32::MAX)).unwrap_or(0);
    let kind = match (head & !IN_USE) >> 32 {
        1 => BondKind::Asked,
        2 => BondKind::Made,
        3 => BondKind::Parting,
        _ => return None,
    };
    (head & IN_USE != 0).then(|| Bond {
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
pub(crate) fn read(file: &OwnedFd) -> Vec<Bond> {
    let mut bytes = vec![0; AT_ONCE * LINE];
    let mut read = |line: usize, count: usize| {
        let at = LEDGER_AT + line * LINE;
        let len = words::read_at(file.as_fd(), &mut bytes[..count * LINE], at).unwrap_or(0);
        let (words, _) = bytes[..len].as_chunks::<{ size_of::<u64>() }>();
        let words: Vec<_> = words.iter().map(|word| u64::from_ne_bytes(*word)).collect();
        words.as_chunks::<WORDS>().0.to_vec()
    };
    let used = read(0, 1).first().map_or(0, |head| head[0]);
    let used = usize::try_from(used).unwrap_or(0).min(LINES);
    let mut bonds = Vec::new();
    for first in (1..=used).step_by(AT_ONCE) {
        let lines = read(first, AT_ONCE.min(used + 1 - first));
        bonds.extend(lines.into_iter().filter_map(from_words));
    }
    bonds
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn bond(own: u32, kind: BondKind) -> Bond {
        Bond {
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
    fn who_outlives_the_process_finds_its_connections() {
        let will = Arc::new(Will::new().unwrap());
        let file = will.fd().try_clone_to_owned().unwrap();
        let mut ledger = Ledger::new(will).unwrap();
        assert_eq!(read(&file), []);
        let id = CommId::new;
        let asked = bond(u32::MAX, BondKind::Asked);
        ledger.write(asked.own_id, Some(asked));
        assert_eq!(read(&file), [asked]);
        let made = Bond {
            kind: BondKind::Made,
            ..asked
        };
        ledger.write(asked.own_id, Some(made));
        let parting = bond(2, BondKind::Parting);
        ledger.write(id(2), Some(parting));
        ledger.write(id(3), None);
        assert_eq!(read(&file), [made, parting]);
        ledger.write(made.own_id, None);
        assert_eq!(read(&file), [parting]);
        // Lines are reused, and there are more of them than are read at a time.
        for own in 3..1_000 {
            ledger.write(id(own), Some(bond(own, BondKind::Made)));
        }
        assert_eq!((ledger.used, read(&file).len()), (998, 998));
        assert_eq!(super::super::read(&file), [], "no ACK is pending");
    }

    #[test]
    fn there_is_an_end_to_the_lines() {
        let will = Arc::new(Will::new().unwrap());
        let file = will.fd().try_clone_to_owned().unwrap();
        let mut ledger = Ledger::new(will).unwrap();
        for own in 0..=u32::try_from(LINES).unwrap() {
            ledger.write(CommId::new(own), Some(bond(own, BondKind::Made)));
        }
        assert_eq!(read(&file).len(), LINES);
        ledger.write(CommId::new(7), None);
        ledger.write(CommId::new(1 << 20), Some(bond(1 << 20, BondKind::Made)));
        assert_eq!(read(&file).len(), LINES);
    }

    #[test]
    fn other_files_have_no_connections() {
        let file = tempfile::tempfile().unwrap();
        assert_eq!(read(&file.into()), []);
        let mut file = tempfile::tempfile().unwrap();
        let bytes = vec![0xff; LEDGER_AT + 3 * LINE + 5];
        std::io::Write::write_all(&mut file, &bytes).unwrap();
        assert_eq!(read(&file.into()), []);
    }
}
