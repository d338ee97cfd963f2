//! The memory of an XRC domain that processes share: who takes part, and what its targets are at.
//!
//! The broker makes it and hands it to every process that opens the domain. Each target has a *cell*: which process
//! holds it, its attributes, and what the next holder has to know. The holder writes the cell between two
//! messages, and says with one bit whether it is in the middle of one: who dies there leaves a target that nobody
//! can go on with.
//!
//! All that is read from here is what another process has written, and may be nonsense: it is checked as a packet
//! is.
//!
//! ```text
//! word 0..4     the slots that take part, a bit each
//! word 64..     number of the target in each cell, 0 where there is none
//! word 2048..   the cells, 512 words each
//! ```

use std::io;
use std::iter;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use rocade_transport::{AccessFlags, AddressVector, Progress, QpAttr, Repeatable};
use rocade_wire::{Gid, Msn, Operation, Psn, Qpn, Rkey};

use super::words::Shared;
use crate::steering::Slot;

/// Targets that a domain can have.
pub(crate) const MAX_TARGETS: usize = 1023;

const DIRECTORY_AT: usize = 64;
const CELLS_AT: usize = 2048;
const CELL_WORDS: usize = 512;
const LEN: usize = (CELLS_AT + MAX_TARGETS * CELL_WORDS) * size_of::<u64>();

/// In a cell: who holds it, and how that is.
const CONTROL_AT: usize = 0;
/// Who wants to hold it.
const WANTED_AT: usize = 1;
/// Even while the attributes are whole.
const ATTR_SEQ_AT: usize = 2;
const ATTR_AT: usize = 8;
const ATTR_WORDS: usize = 8;
const PROGRESS_AT: usize = 32;
const COUNT_AT: usize = 33;
const REPEATABLE_AT: usize = 40;
const REPEATABLE_WORDS: usize = 3;
/// As many entries as there is room for. A target remembers 128 requests at most (`limits::MAX_RD_ATOM`), and a masked atomic
/// on more than 8 bytes takes two: where there are too many of these, the oldest requests cannot be answered again.
const MAX_REPEATABLE: usize = (CELL_WORDS - REPEATABLE_AT) / REPEATABLE_WORDS;
/// What an entry is.
const READ: u32 = 1;
const ATOMIC: u32 = 2;
const WIDE: u32 = 3;
/// The other half of a [`WIDE`] one.
const WIDE_MORE: u32 = 4;
/// The operations of [`ATOMIC`] and [`WIDE`], by the numbers that processes tell each other.
const OPERATIONS: [Operation; 8] = [
    Operation::CmpSwap,
    Operation::FetchAdd,
    Operation::Flush,
    Operation::AtomicWrite,
    Operation::MaskedCmpSwap,
    Operation::MaskedFetchAdd,
    Operation::XrcMaskedCmpSwap,
    Operation::XrcMaskedFetchAdd,
];
/// How often the attributes are read again while somebody writes them.
const ATTR_READS: usize = 1000;

/// Whose turn it is with a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Control {
    /// The process that holds it, `None` where the first to need it may take it.
    pub(crate) holder: Option<Slot>,
    /// What the cell says is all there is to know. Else its holder is at something.
    pub(crate) is_whole: bool,
    /// Its holder has died at something.
    pub(crate) has_failed: bool,
}

impl Control {
    const WHOLE: u64 = 1 << 8;
    const FAILED: u64 = 1 << 9;
    /// Each change has another number.
    const CHANGE: u64 = 1 << 16;

    fn of_word(word: u64) -> Self {
        let [slot, ..] = word.to_le_bytes();
        Self {
            holder: (slot != 0).then_some(Slot::new(slot)),
            is_whole: word & Self::WHOLE != 0,
            has_failed: word & Self::FAILED != 0,
        }
    }

    fn follows(self, word: u64) -> u64 {
        let flag = |is_set, bit| if is_set { bit } else { 0 };
        (word & !(Self::CHANGE - 1)).wrapping_add(Self::CHANGE)
            | u64::from(self.holder.map_or(0, Slot::get))
            | flag(self.is_whole, Self::WHOLE)
            | flag(self.has_failed, Self::FAILED)
    }
}

/// The memory of a domain.
#[derive(Debug)]
pub(crate) struct DomainMemory {
    shared: Shared,
}

impl DomainMemory {
    /// That of a new domain.
    pub(super) fn new() -> io::Result<Self> {
        let shared = Shared::new(c"rocade-xrcd", LEN)?;
        Ok(Self { shared })
    }

    /// That of a domain which is there.
    pub(crate) fn of(file: OwnedFd) -> io::Result<Self> {
        let shared = Shared::of(file, LEN)?;
        Ok(Self { shared })
    }

    /// The file.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.shared.fd()
    }

    /// Does the process with this slot take part?
    pub(crate) fn is_member(&self, slot: Slot) -> bool {
        let word = &self.shared.words()[slot.index() / 64];
        word.load(Ordering::Acquire) & (1 << (slot.index() % 64)) != 0
    }

    pub(super) fn set_member(&self, slot: Slot, is_member: bool) {
        let word = &self.shared.words()[slot.index() / 64];
        let bit = 1 << (slot.index() % 64);
        if is_member {
            word.fetch_or(bit, Ordering::AcqRel);
        } else {
            word.fetch_and(!bit, Ordering::AcqRel);
        }
    }

    fn directory(&self) -> &[AtomicU64] {
        &self.shared.words()[DIRECTORY_AT..][..MAX_TARGETS]
    }

    /// The cell of a target.
    pub(crate) fn find(self: &Arc<Self>, qpn: Qpn) -> Option<Cell> {
        let number = u64::from(qpn.get());
        let mut directory = self.directory().iter();
        let index = directory.position(|word| word.load(Ordering::Acquire) == number)?;
        Some(Cell {
            memory: Arc::clone(self),
            index,
        })
    }

    /// Gives a new target a cell, held by `slot`; `None` where there is no room.
    pub(super) fn add(self: &Arc<Self>, qpn: Qpn, slot: Slot) -> Option<Cell> {
        let free = |word: &AtomicU64| word.load(Ordering::Acquire) == 0;
        let index = self.directory().iter().position(free)?;
        let cell = Cell {
            memory: Arc::clone(self),
            index,
        };
        cell.words()[WANTED_AT].store(0, Ordering::Relaxed);
        cell.set(Control {
            holder: Some(slot),
            is_whole: false,
            has_failed: false,
        });
        self.directory()[index].store(qpn.get().into(), Ordering::Release);
        Some(cell)
    }

    /// The target is gone.
    pub(super) fn remove(&self, cell: &Cell) {
        self.directory()[cell.index].store(0, Ordering::Release);
    }
}

/// What is shared of a target.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    memory: Arc<DomainMemory>,
    index: usize,
}

impl Cell {
    fn words(&self) -> &[AtomicU64] {
        let at = CELLS_AT + self.index * CELL_WORDS;
        &self.memory.shared.words()[at..][..CELL_WORDS]
    }

    fn word(&self, at: usize) -> u64 {
        self.words()[at].load(Ordering::Relaxed)
    }

    fn write(&self, at: usize, value: u64) {
        self.words()[at].store(value, Ordering::Relaxed);
    }

    /// Is the cell that of this target, still?
    pub(crate) fn is_of(&self, qpn: Qpn) -> bool {
        self.memory.directory()[self.index].load(Ordering::Acquire) == u64::from(qpn.get())
    }

    /// Whose turn it is.
    pub(crate) fn control(&self) -> Control {
        Control::of_word(self.words()[CONTROL_AT].load(Ordering::Acquire))
    }

    /// Only its holder sets it (or the broker, when that is dead): nobody comes between.
    fn set(&self, control: Control) {
        let word = &self.words()[CONTROL_AT];
        let next = control.follows(word.load(Ordering::Acquire));
        word.store(next, Ordering::Release);
    }

    /// Nobody holds it, or it was meant for us: may we go on with it?
    pub(crate) fn take(&self, slot: Slot) -> bool {
        let word = &self.words()[CONTROL_AT];
        let seen = word.load(Ordering::Acquire);
        let control = Control::of_word(seen);
        match control.holder {
            Some(holder) => holder == slot,
            None => {
                let mine = Control {
                    holder: Some(slot),
                    ..control
                };
                let next = mine.follows(seen);
                word.compare_exchange(seen, next, Ordering::AcqRel, Ordering::Acquire)
                    .is_ok()
            }
        }
    }

    /// Its holder is at something from now on.
    pub(crate) fn begin(&self, slot: Slot) {
        self.set(Control {
            holder: Some(slot),
            is_whole: false,
            has_failed: false,
        });
        // A death after this leaves something half done.
        fence(Ordering::SeqCst);
    }

    /// Its holder has written all there is to know.
    pub(crate) fn finish(&self, slot: Slot) {
        self.set(Control {
            holder: Some(slot),
            is_whole: true,
            has_failed: false,
        });
    }

    /// From its holder to another process, or to who comes first. It has to be whole.
    pub(crate) fn hand_to(&self, slot: Option<Slot>) {
        self.words()[WANTED_AT].store(0, Ordering::Relaxed);
        self.set(Control {
            holder: slot,
            is_whole: true,
            has_failed: false,
        });
    }

    /// Its holder is dead. False where it was at something, so that nobody can go on with it but to end it.
    pub(super) fn forsake(&self) -> bool {
        let control = self.control();
        let is_whole = control.is_whole && !control.has_failed;
        self.set(Control {
            holder: None,
            is_whole,
            has_failed: !is_whole,
        });
        is_whole
    }

    /// Asks its holder for it; `at_once` even if that has to give up a message.
    pub(crate) fn want(&self, slot: Slot, at_once: bool) {
        let word = u64::from(slot.get()) | u64::from(at_once) << 8;
        self.words()[WANTED_AT].store(word, Ordering::Release);
    }

    /// Who wants it, and whether at once.
    pub(crate) fn wanted(&self) -> Option<(Slot, bool)> {
        let [slot, at_once, ..] = self.words()[WANTED_AT]
            .load(Ordering::Acquire)
            .to_le_bytes();
        (slot != 0).then_some((Slot::new(slot), at_once != 0))
    }

    /// Writes down what a holder knows between two messages.
    pub(crate) fn write_progress(
        &self,
        progress: Progress,
        repeatable: impl Iterator<Item = Repeatable> + Clone,
    ) {
        let word = u64::from(progress.epsn.get())
            | u64::from(progress.msn.get()) << 24
            | u64::from(progress.comm_est_raised) << 48;
        self.write(PROGRESS_AT, word);
        let total: usize = repeatable.clone().map(entries_of).sum();
        let mut excess = total.saturating_sub(MAX_REPEATABLE);
        let newest = repeatable.skip_while(|one| {
            let is_too_old = excess > 0;
            excess = excess.saturating_sub(entries_of(*one));
            is_too_old
        });
        let mut count = 0;
        for one in newest {
            let (first, second) = words_of(one);
            for words in iter::once(first).chain(second) {
                let at = REPEATABLE_AT + count * REPEATABLE_WORDS;
                for (at, word) in (at..).zip(words) {
                    self.write(at, word);
                }
                count += 1;
            }
        }
        self.write(COUNT_AT, u64::try_from(count).unwrap_or(0));
    }

    /// What the last holder knew.
    pub(crate) fn progress(&self) -> Progress {
        let word = self.word(PROGRESS_AT);
        Progress {
            epsn: Psn::new(low(word, 24)),
            msn: Msn::new(low(word >> 24, 24)),
            comm_est_raised: word >> 48 & 1 != 0,
        }
    }

    /// What it could repeat, the oldest first.
    pub(crate) fn repeatable(&self) -> impl Iterator<Item = Repeatable> {
        let count = usize::try_from(self.word(COUNT_AT)).unwrap_or(MAX_REPEATABLE);
        let count = count.min(MAX_REPEATABLE);
        let entry = |index: usize| {
            let at = REPEATABLE_AT + index * REPEATABLE_WORDS;
            [self.word(at), self.word(at + 1), self.word(at + 2)]
        };
        (0..count).filter_map(move |index| {
            let next = (index + 1 < count).then(|| entry(index + 1));
            repeatable_of(entry(index), next)
        })
    }

    /// Writes down the attributes.
    pub(crate) fn write_attr(&self, attr: &QpAttr) {
        let seq = &self.words()[ATTR_SEQ_AT];
        // Odd, whatever a writer that died has left.
        let before = seq.load(Ordering::Relaxed) | 1;
        seq.store(before, Ordering::Relaxed);
        fence(Ordering::Release);
        for (at, word) in (ATTR_AT..).zip(words_of_attr(attr)) {
            self.write(at, word);
        }
        seq.store(before.wrapping_add(1), Ordering::Release);
    }

    /// The attributes, and a number that changes with them.
    pub(crate) fn attr(&self) -> (QpAttr, u64) {
        let seq = &self.words()[ATTR_SEQ_AT];
        let (mut words, mut before) = ([0; ATTR_WORDS], 0);
        for _ in 0..ATTR_READS {
            before = seq.load(Ordering::Acquire);
            for (at, word) in (ATTR_AT..).zip(&mut words) {
                *word = self.word(at);
            }
            fence(Ordering::Acquire);
            if before & 1 == 0 && seq.load(Ordering::Relaxed) == before {
                break;
            }
            std::hint::spin_loop();
        }
        (attr_of_words(words), before)
    }
}

fn low(word: u64, bits: u32) -> u32 {
    u32::try_from(word & ((1 << bits) - 1)).unwrap_or(0)
}

type Entry = [u64; REPEATABLE_WORDS];

/// How many entries a request takes.
const fn entries_of(one: Repeatable) -> usize {
    match one {
        Repeatable::Read { .. } | Repeatable::Atomic { .. } => 1,
        Repeatable::Wide { .. } => 2,
    }
}

fn number_of(operation: Operation) -> u64 {
    let at = OPERATIONS.iter().position(|other| *other == operation);
    // No other is remembered.
    at.and_then(|at| u64::try_from(at).ok()).unwrap_or(u64::MAX)
}

fn operation_of(number: u64) -> Option<Operation> {
    OPERATIONS.get(usize::try_from(number).ok()?).copied()
}

fn words_of(one: Repeatable) -> (Entry, Option<Entry>) {
    let begin = |kind: u32, psn: Psn| u64::from(kind) | u64::from(psn.get()) << 8;
    match one {
        Repeatable::Read {
            psn,
            packets,
            rkey,
            va,
            len,
        } => {
            let first = begin(READ, psn) | u64::from(packets) << 32;
            let second = u64::from(rkey.get()) | u64::from(len) << 32;
            ([first, second, va], None)
        }
        Repeatable::Atomic {
            psn,
            operation,
            original,
        } => ([begin(ATOMIC, psn), number_of(operation), original], None),
        Repeatable::Wide {
            psn,
            operation,
            log_size,
            original: [a, b, c, d],
        } => {
            let first = begin(WIDE, psn) | u64::from(log_size) << 32;
            let first = first | (number_of(operation) & 0xff) << 40;
            ([first, a, b], Some([u64::from(WIDE_MORE), c, d]))
        }
    }
}

fn repeatable_of([first, second, third]: Entry, next: Option<Entry>) -> Option<Repeatable> {
    let psn = Psn::new(low(first >> 8, 24));
    match low(first, 8) {
        READ => Some(Repeatable::Read {
            psn,
            packets: low(first >> 32, 32),
            rkey: Rkey::new(low(second, 32)),
            va: third,
            len: low(second >> 32, 32),
        }),
        ATOMIC => Some(Repeatable::Atomic {
            psn,
            operation: operation_of(second)?,
            original: third,
        }),
        WIDE => {
            let [more, fourth, fifth] = next?;
            let [_, _, _, _, log_size, operation, _, _] = first.to_le_bytes();
            let operation = operation_of(operation.into())?;
            let is_whole = more == u64::from(WIDE_MORE);
            let is_wide = operation.is_masked_atomic() && matches!(log_size, 4 | 5);
            (is_whole && is_wide).then_some(Repeatable::Wide {
                psn,
                operation,
                log_size,
                original: [second, third, fourth, fifth],
            })
        }
        _ => None,
    }
}

fn words_of_attr(attr: &QpAttr) -> [u64; ATTR_WORDS] {
    let byte = |value: u32| u8::try_from(value).unwrap_or(u8::MAX);
    let half = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
    let av = &attr.ah_attr;
    let dgid = av.dgid.octets();
    let first = [
        byte(attr.qp_state),
        byte(attr.path_mtu),
        byte(attr.path_mig_state),
        attr.port_num,
        attr.min_rnr_timer,
        attr.max_dest_rd_atomic,
        attr.timeout,
        0,
    ];
    let address = [
        av.sgid_index,
        av.hop_limit,
        av.traffic_class,
        av.sl,
        av.is_global.into(),
        av.src_path_bits,
        av.static_rate,
        av.port_num,
    ];
    [
        u64::from_le_bytes(first),
        u64::from(attr.qp_access_flags.bits()) | u64::from(attr.pkey_index) << 32,
        u64::from(attr.dest_qp_num) | u64::from(attr.rq_psn) << 32,
        u64::from(attr.sq_psn),
        half(&dgid[..8]),
        half(&dgid[8..]),
        u64::from_le_bytes(address),
        u64::from(av.flow_label) | u64::from(av.dlid) << 32,
    ]
}

fn attr_of_words(words: [u64; ATTR_WORDS]) -> QpAttr {
    let [
        first,
        access,
        numbers,
        sq_psn,
        dgid_0,
        dgid_1,
        address,
        flow,
    ] = words;
    let [
        qp_state,
        path_mtu,
        path_mig_state,
        port_num,
        min_rnr_timer,
        max_dest_rd_atomic,
        timeout,
        _,
    ] = first.to_le_bytes();
    let mut dgid = [0; 16];
    dgid[..8].copy_from_slice(&dgid_0.to_le_bytes());
    dgid[8..].copy_from_slice(&dgid_1.to_le_bytes());
    let [
        sgid_index,
        hop_limit,
        traffic_class,
        sl,
        is_global,
        src_path_bits,
        static_rate,
        av_port,
    ] = address.to_le_bytes();
    let low16 = |word: u64| u16::try_from(word & 0xffff).unwrap_or(0);
    QpAttr {
        qp_state: qp_state.into(),
        cur_qp_state: qp_state.into(),
        path_mtu: path_mtu.into(),
        path_mig_state: path_mig_state.into(),
        port_num,
        min_rnr_timer,
        max_dest_rd_atomic,
        timeout,
        qp_access_flags: AccessFlags::from_bits_truncate(low(access, 32)),
        pkey_index: low16(access >> 32),
        dest_qp_num: low(numbers, 32),
        rq_psn: low(numbers >> 32, 32),
        sq_psn: low(sq_psn, 32),
        ah_attr: AddressVector {
            dgid: Gid::new(dgid),
            sgid_index,
            flow_label: low(flow, 32),
            hop_limit,
            traffic_class,
            is_global: is_global != 0,
            sl,
            dlid: low16(flow >> 32),
            src_path_bits,
            static_rate,
            port_num: av_port,
        },
        ..QpAttr::default()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn memory() -> Arc<DomainMemory> {
        Arc::new(DomainMemory::new().expect("memory"))
    }

    const QPN: Qpn = Qpn::new(0x03_1234);
    const A: Slot = Slot::new(3);
    const B: Slot = Slot::new(255);

    fn attr() -> QpAttr {
        QpAttr {
            qp_state: 3,
            cur_qp_state: 3,
            path_mtu: 5,
            port_num: 1,
            min_rnr_timer: 12,
            max_dest_rd_atomic: 16,
            timeout: 14,
            qp_access_flags: AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE,
            pkey_index: 2,
            dest_qp_num: 0xab_cdef,
            rq_psn: 0xff_ffff,
            sq_psn: 7,
            ah_attr: AddressVector {
                dgid: Gid::new([9; 16]),
                sgid_index: 1,
                flow_label: 0xf_ffff,
                hop_limit: 64,
                traffic_class: 2,
                is_global: true,
                sl: 3,
                dlid: 0xffff,
                src_path_bits: 4,
                static_rate: 5,
                port_num: 1,
            },
            ..QpAttr::default()
        }
    }

    #[test]
    fn another_process_reads_what_was_written() {
        let memory = memory();
        let cell = memory.add(QPN, A).unwrap();
        cell.write_attr(&attr());
        let progress = Progress {
            epsn: Psn::new(0xff_ffff),
            msn: Msn::new(0xab_cdef),
            comm_est_raised: true,
        };
        let repeatable = [
            Repeatable::Read {
                psn: Psn::new(0xff_fff0),
                packets: 7,
                rkey: Rkey::new(0xdead_beef),
                va: u64::MAX,
                len: 0x8000_0000,
            },
            Repeatable::Atomic {
                psn: Psn::new(3),
                operation: Operation::FetchAdd,
                original: u64::MAX,
            },
            Repeatable::Wide {
                psn: Psn::new(4),
                operation: Operation::XrcMaskedCmpSwap,
                log_size: 5,
                original: [u64::MAX, 1, 0, 0x0304_0000_0000_0003],
            },
            Repeatable::Atomic {
                psn: Psn::new(5),
                operation: Operation::CmpSwap,
                original: 0,
            },
            Repeatable::Atomic {
                psn: Psn::new(6),
                operation: Operation::AtomicWrite,
                original: 0,
            },
        ];
        cell.write_progress(progress, repeatable.into_iter());
        let other = Arc::new(DomainMemory::of(memory.fd().try_clone_to_owned().unwrap()).unwrap());
        let cell = other.find(QPN).unwrap();
        assert_eq!(cell.attr().0, attr());
        assert_eq!(cell.progress(), progress);
        assert_eq!(cell.repeatable().collect::<Vec<_>>(), repeatable);
        assert!(cell.is_of(QPN));
        memory.remove(&cell);
        assert!(!cell.is_of(QPN));
        assert!(other.find(QPN).is_none());
    }

    /// All operations that a target remembers come back as what they were.
    #[test]
    fn each_operation_has_a_number() {
        let cell = memory().add(QPN, A).unwrap();
        let progress = cell.progress();
        for operation in OPERATIONS {
            let one = Repeatable::Atomic {
                psn: Psn::new(1),
                operation,
                original: 5,
            };
            cell.write_progress(progress, iter::once(one));
            assert_eq!(cell.repeatable().collect::<Vec<_>>(), [one]);
        }
    }

    /// Where there is no room for all, the newest are kept: what comes again is more likely one of them.
    #[test]
    fn the_oldest_are_forgotten_first() {
        let cell = memory().add(QPN, A).unwrap();
        let wide = |psn: usize| Repeatable::Wide {
            psn: Psn::new(u32::try_from(psn).unwrap()),
            operation: Operation::XrcMaskedFetchAdd,
            log_size: 4,
            original: [7; 4],
        };
        let most = MAX_REPEATABLE / 2;
        for (count, kept) in [(most, most), (128, most)] {
            cell.write_progress(cell.progress(), (0..count).map(wide));
            let expected: Vec<_> = (count - kept..count).map(wide).collect();
            assert_eq!(cell.repeatable().collect::<Vec<_>>(), expected);
        }
        let short = |psn| Repeatable::Atomic {
            psn: Psn::new(psn),
            operation: Operation::Flush,
            original: 0,
        };
        cell.write_progress(cell.progress(), (0..128).map(short));
        assert_eq!(cell.repeatable().count(), 128);
    }

    #[test]
    fn a_holder_that_dies_between_messages_loses_nothing() {
        let memory = memory();
        let cell = memory.add(QPN, A).unwrap();
        assert!(!cell.take(B), "held");
        cell.finish(A);
        cell.begin(A);
        cell.finish(A);
        assert!(cell.forsake());
        assert_eq!(cell.control().holder, None);
        assert!(cell.take(B));
        assert!(!cell.take(A), "somebody was faster");
        assert!(cell.take(B), "it is his");
        cell.begin(B);
        assert!(!cell.forsake());
        let control = cell.control();
        assert!(control.has_failed && !control.is_whole);
        assert!(cell.take(A));
        assert!(cell.control().has_failed);
        assert!(!cell.forsake(), "stays so");
    }

    #[test]
    fn who_wants_it_is_forgotten_when_it_is_handed_on() {
        let cell = memory().add(QPN, A).unwrap();
        assert_eq!(cell.wanted(), None);
        cell.want(B, true);
        assert_eq!(cell.wanted(), Some((B, true)));
        cell.hand_to(Some(B));
        assert_eq!(cell.wanted(), None);
        assert!(cell.take(B));
    }

    #[test]
    fn members_come_and_go() {
        let memory = memory();
        for slot in [1, 63, 64, 255] {
            let slot = Slot::new(slot);
            assert!(!memory.is_member(slot));
            memory.set_member(slot, true);
            assert!(memory.is_member(slot));
        }
        memory.set_member(Slot::new(63), false);
        assert!(!memory.is_member(Slot::new(63)));
        assert!(memory.is_member(Slot::new(64)));
    }

    #[test]
    fn there_is_room_for_so_many() {
        let memory = memory();
        for number in 1..=MAX_TARGETS {
            let qpn = Qpn::new(u32::try_from(number).unwrap());
            memory.add(qpn, A).unwrap();
        }
        assert!(memory.add(QPN, A).is_none());
    }

    #[test]
    fn nonsense_is_no_trouble() {
        let memory = memory();
        let cell = memory.add(QPN, A).unwrap();
        for word in cell.words() {
            word.store(u64::MAX, Ordering::Relaxed);
        }
        cell.attr();
        cell.progress();
        assert_eq!(cell.repeatable().count(), 0);
        cell.control();
        // A count of three; one half of an entry, and one with nothing behind it.
        cell.write(COUNT_AT, 3);
        for (index, first) in [
            (0, 3 | 4 << 32 | 5 << 40),
            (1, 4),
            (2, 3 | 4 << 32 | 5 << 40),
        ] {
            cell.write(REPEATABLE_AT + index * REPEATABLE_WORDS, first);
        }
        assert_eq!(cell.repeatable().count(), 1);
        for wrong in [
            3 | 3 << 32 | 5 << 40,
            3 | 4 << 32 | 1 << 40,
            3 | 4 << 32 | 8 << 40,
        ] {
            cell.write(REPEATABLE_AT, wrong);
            assert_eq!(cell.repeatable().count(), 0);
        }
        let short = tempfile::tempfile().unwrap();
        assert!(DomainMemory::of(short.into()).is_err());
    }
}
