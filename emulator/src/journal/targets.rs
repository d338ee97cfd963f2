//! The shared memory of an XRC domain: its member processes and the state of its targets.
//!
//! The broker creates the memory and passes it to every process that opens the domain. Each target
//! has a *target record*: the process that owns it, its attributes, and the state that the next
//! owner needs. The owner writes the record between two messages. One bit tells whether the owner
//! is in the middle of a message. If the owner dies there, no process can continue with the target.
//!
//! All of this memory is written by other processes and may be invalid, so it is validated like a
//! received packet.
//!
//! ```text
//! word 0..4     the slots of the members, one bit each
//! word 64..     QP number of the target in each record, 0 if unused
//! word 2048..   the records, 512 words each
//! ```

use crate::sync::atomic::{AtomicU64, Ordering, fence};
use std::io;
use std::iter;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use rocade_transport::{AccessFlags, AddressVector, QpAttr, ReplayEntry, ResponderSnapshot};
use rocade_wire::{Gid, Msn, Operation, Psn, Qpn, Rkey};

use super::shm_words::SharedWords;
use crate::steering::ProcessSlot;

/// The identity of a shared XRC domain: the device and the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct DomainKey {
    /// GUID of the device.
    pub(crate) guid: u64,
    /// `st_dev` of the file.
    pub(crate) device: u64,
    /// `st_ino` of the file.
    pub(crate) inode: u64,
}

/// Most targets of a domain.
pub(crate) const MAX_TARGETS: usize = 1023;

const DIRECTORY_AT: usize = 64;
const RECORDS_AT: usize = 2048;
const RECORD_WORDS: usize = 512;
const LEN: usize = (RECORDS_AT + MAX_TARGETS * RECORD_WORDS) * size_of::<u64>();

/// In a record: the owner and the flags of [`TargetControl`].
const CONTROL_AT: usize = 0;
/// The process that requests ownership.
const REQUESTED_AT: usize = 1;
/// Sequence lock of the attributes: even while they are consistent.
const ATTR_SEQ_AT: usize = 2;
const ATTR_AT: usize = 8;
const ATTR_WORDS: usize = 8;
const SNAPSHOT_AT: usize = 32;
const COUNT_AT: usize = 33;
const REPLAY_AT: usize = 40;
const REPLAY_WORDS: usize = 3;
/// Entries that fit into the record. A target keeps at most 128 requests (`limits::MAX_RD_ATOM`),
/// and a masked atomic on more than 8 bytes takes two entries. If there are too many of these, the
/// oldest requests cannot be replayed.
const MAX_REPLAY: usize = (RECORD_WORDS - REPLAY_AT) / REPLAY_WORDS;
/// Kinds of entries.
const READ: u32 = 1;
const ATOMIC: u32 = 2;
const WIDE: u32 = 3;
/// The second half of a [`WIDE`] entry.
const WIDE_MORE: u32 = 4;
/// The operations of [`ATOMIC`] and [`WIDE`] entries, by their numbers in the shared memory.
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
/// Most attempts to read the attributes while another process writes them.
const ATTR_READS: usize = 1000;

/// The ownership of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TargetControl {
    /// The process that owns the target, or `None` if the first that needs it may take it.
    pub(crate) owner: Option<ProcessSlot>,
    /// True if the record is complete. Otherwise the owner is processing a message.
    pub(crate) is_checkpointed: bool,
    /// True if the owner died while processing a message.
    pub(crate) has_failed: bool,
}

impl TargetControl {
    const CHECKPOINTED: u64 = 1 << 8;
    const FAILED: u64 = 1 << 9;
    /// The unit of a counter that changes with every write.
    const CHANGE: u64 = 1 << 16;

    fn of_word(word: u64) -> Self {
        let [slot, ..] = word.to_le_bytes();
        Self {
            owner: (slot != 0).then_some(ProcessSlot::new(slot)),
            is_checkpointed: word & Self::CHECKPOINTED != 0,
            has_failed: word & Self::FAILED != 0,
        }
    }

    fn follows(self, word: u64) -> u64 {
        let flag = |is_set, bit| if is_set { bit } else { 0 };
        (word & !(Self::CHANGE - 1)).wrapping_add(Self::CHANGE)
            | u64::from(self.owner.map_or(0, ProcessSlot::get))
            | flag(self.is_checkpointed, Self::CHECKPOINTED)
            | flag(self.has_failed, Self::FAILED)
    }
}

/// The memory of a domain.
#[derive(Debug)]
pub(crate) struct DomainMemory {
    shared: SharedWords,
}

impl DomainMemory {
    /// Allocates the memory of a new domain.
    pub(crate) fn new() -> io::Result<Self> {
        let shared = SharedWords::new(c"rocade-xrcd", LEN)?;
        Ok(Self { shared })
    }

    /// Maps the memory of an existing domain.
    pub(crate) fn of(file: OwnedFd) -> io::Result<Self> {
        let shared = SharedWords::of(file, LEN)?;
        Ok(Self { shared })
    }

    /// Returns the file.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.shared.fd()
    }

    /// Returns true if the process with this slot is a member of the domain.
    pub(crate) fn is_member(&self, slot: ProcessSlot) -> bool {
        let word = &self.shared.words()[slot.index() / 64];
        word.load(Ordering::Acquire) & (1 << (slot.index() % 64)) != 0
    }

    pub(crate) fn set_member(&self, slot: ProcessSlot, is_member: bool) {
        let word = &self.shared.words()[slot.index() / 64];
        let bit = 1 << (slot.index() % 64);
        if is_member {
            word.fetch_or(bit, Ordering::AcqRel);
        } else {
            word.fetch_and(!bit, Ordering::AcqRel);
        }
    }

    /// Returns the members of the domain.
    pub(crate) fn members(&self) -> impl Iterator<Item = ProcessSlot> {
        ProcessSlot::leasable().filter(|slot| self.is_member(*slot))
    }

    fn directory(&self) -> &[AtomicU64] {
        &self.shared.words()[DIRECTORY_AT..][..MAX_TARGETS]
    }

    /// Returns the record of a target.
    pub(crate) fn find(self: &Arc<Self>, qpn: Qpn) -> Option<TargetRecord> {
        let number = u64::from(qpn.get());
        let mut directory = self.directory().iter();
        let index = directory.position(|word| word.load(Ordering::Acquire) == number)?;
        Some(TargetRecord {
            memory: Arc::clone(self),
            index,
        })
    }

    /// Allocates a record for a new target, owned by `slot`. A record with its number is that of
    /// the same request to an earlier broker, and is used again. Returns `None` if the domain is
    /// full.
    pub(crate) fn add(self: &Arc<Self>, qpn: Qpn, slot: ProcessSlot) -> Option<TargetRecord> {
        let holds = |number: u64| {
            let mut directory = self.directory().iter();
            directory.position(|word| word.load(Ordering::Acquire) == number)
        };
        let index = holds(qpn.get().into()).or_else(|| holds(0))?;
        let record = TargetRecord {
            memory: Arc::clone(self),
            index,
        };
        record.words()[REQUESTED_AT].store(0, Ordering::Relaxed);
        record.set(TargetControl {
            owner: Some(slot),
            is_checkpointed: false,
            has_failed: false,
        });
        self.directory()[index].store(qpn.get().into(), Ordering::Release);
        Some(record)
    }

    /// Returns true if there is no record for a new target.
    pub(crate) fn is_full(&self) -> bool {
        let mut directory = self.directory().iter();
        directory.all(|word| word.load(Ordering::Acquire) != 0)
    }

    /// Returns the targets that processes find.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn targets(&self) -> impl Iterator<Item = Qpn> {
        let directory = self.directory().iter();
        let numbers = directory.filter_map(|word| u32::try_from(word.load(Ordering::Acquire)).ok());
        numbers.filter(|number| *number != 0).map(Qpn::new)
    }

    /// Removes all targets but those for which `is_kept` is true.
    pub(crate) fn retain_targets(&self, is_kept: impl Fn(Qpn) -> bool) {
        for word in self.directory() {
            let number = u32::try_from(word.load(Ordering::Acquire));
            if !number.is_ok_and(|number| is_kept(Qpn::new(number))) {
                word.store(0, Ordering::Release);
            }
        }
    }

    /// Removes a target.
    pub(crate) fn remove(&self, record: &TargetRecord) {
        self.directory()[record.index].store(0, Ordering::Release);
    }
}

/// The shared state of a target.
#[derive(Clone, Debug)]
pub(crate) struct TargetRecord {
    memory: Arc<DomainMemory>,
    index: usize,
}

impl TargetRecord {
    fn words(&self) -> &[AtomicU64] {
        let at = RECORDS_AT + self.index * RECORD_WORDS;
        &self.memory.shared.words()[at..][..RECORD_WORDS]
    }

    fn word(&self, at: usize) -> u64 {
        self.words()[at].load(Ordering::Relaxed)
    }

    fn write(&self, at: usize, value: u64) {
        self.words()[at].store(value, Ordering::Relaxed);
    }

    /// Returns true if both are the same record of a domain.
    #[cfg(all(test, not(loom)))]
    pub(crate) const fn is_same(&self, other: &Self) -> bool {
        self.index == other.index
    }

    /// Returns true if the record still belongs to this target.
    pub(crate) fn is_of(&self, qpn: Qpn) -> bool {
        self.memory.directory()[self.index].load(Ordering::Acquire) == u64::from(qpn.get())
    }

    /// Returns the ownership of the target.
    pub(crate) fn control(&self) -> TargetControl {
        TargetControl::of_word(self.words()[CONTROL_AT].load(Ordering::Acquire))
    }

    /// Writes the ownership. Only the owner does so (or the broker, if the owner is dead), so there
    /// is no race.
    fn set(&self, control: TargetControl) {
        let word = &self.words()[CONTROL_AT];
        let next = control.follows(word.load(Ordering::Acquire));
        word.store(next, Ordering::Release);
    }

    /// Takes ownership if the target has no owner. Returns true if `slot` owns it, also if it was
    /// handed over.
    pub(crate) fn try_acquire(&self, slot: ProcessSlot) -> bool {
        let word = &self.words()[CONTROL_AT];
        let seen = word.load(Ordering::Acquire);
        let control = TargetControl::of_word(seen);
        match control.owner {
            Some(owner) => owner == slot,
            None => {
                let acquired = TargetControl {
                    owner: Some(slot),
                    ..control
                };
                let next = acquired.follows(seen);
                word.compare_exchange(seen, next, Ordering::AcqRel, Ordering::Acquire)
                    .is_ok()
            }
        }
    }

    /// Marks the record incomplete, before the owner processes a message.
    pub(crate) fn mark_incomplete(&self, slot: ProcessSlot) {
        self.set(TargetControl {
            owner: Some(slot),
            is_checkpointed: false,
            has_failed: false,
        });
        // If the owner dies from here on, the record is incomplete.
        fence(Ordering::SeqCst);
    }

    /// Marks the record complete, after the owner has written its state.
    pub(crate) fn mark_complete(&self, slot: ProcessSlot) {
        self.set(TargetControl {
            owner: Some(slot),
            is_checkpointed: true,
            has_failed: false,
        });
    }

    /// Hands ownership to another process, or with `None` to the first that needs it. The record
    /// must be complete.
    pub(crate) fn transfer_to(&self, slot: Option<ProcessSlot>) {
        self.words()[REQUESTED_AT].store(0, Ordering::Relaxed);
        self.set(TargetControl {
            owner: slot,
            is_checkpointed: true,
            has_failed: false,
        });
    }

    /// Clears the ownership of a dead process. Returns false if it died while processing a message,
    /// so that the target has failed.
    pub(crate) fn owner_died(&self) -> bool {
        let control = self.control();
        let is_checkpointed = control.is_checkpointed && !control.has_failed;
        self.set(TargetControl {
            owner: None,
            is_checkpointed,
            has_failed: !is_checkpointed,
        });
        is_checkpointed
    }

    /// Requests ownership from the owner. With `at_once`, even if the owner has to abandon a
    /// message.
    pub(crate) fn request(&self, slot: ProcessSlot, at_once: bool) {
        let word = u64::from(slot.get()) | u64::from(at_once) << 8;
        self.words()[REQUESTED_AT].store(word, Ordering::Release);
    }

    /// Returns the process that requests ownership, and `at_once`.
    pub(crate) fn requested(&self) -> Option<(ProcessSlot, bool)> {
        let [slot, at_once, ..] = self.words()[REQUESTED_AT]
            .load(Ordering::Acquire)
            .to_le_bytes();
        (slot != 0).then_some((ProcessSlot::new(slot), at_once != 0))
    }

    /// Writes the owner's responder state between two messages.
    pub(crate) fn write_snapshot(
        &self,
        snapshot: ResponderSnapshot,
        replay_entries: impl Iterator<Item = ReplayEntry> + Clone,
    ) {
        let word = u64::from(snapshot.epsn.get())
            | u64::from(snapshot.msn.get()) << 24
            | u64::from(snapshot.comm_est_raised) << 48;
        self.write(SNAPSHOT_AT, word);
        let total: usize = replay_entries.clone().map(entries_of).sum();
        let mut excess = total.saturating_sub(MAX_REPLAY);
        let newest = replay_entries.skip_while(|one| {
            let is_too_old = excess > 0;
            excess = excess.saturating_sub(entries_of(*one));
            is_too_old
        });
        let mut count = 0;
        for one in newest {
            let (first, second) = words_of(one);
            for words in iter::once(first).chain(second) {
                let at = REPLAY_AT + count * REPLAY_WORDS;
                for (at, word) in (at..).zip(words) {
                    self.write(at, word);
                }
                count += 1;
            }
        }
        self.write(COUNT_AT, u64::try_from(count).unwrap_or(0));
    }

    /// Returns the responder state of the last owner.
    pub(crate) fn snapshot(&self) -> ResponderSnapshot {
        let word = self.word(SNAPSHOT_AT);
        ResponderSnapshot {
            epsn: Psn::new(low(word, 24)),
            msn: Msn::new(low(word >> 24, 24)),
            comm_est_raised: word >> 48 & 1 != 0,
        }
    }

    /// Returns the requests that the last owner could replay, oldest first.
    pub(crate) fn replay_entries(&self) -> impl Iterator<Item = ReplayEntry> {
        let count = usize::try_from(self.word(COUNT_AT)).unwrap_or(MAX_REPLAY);
        let count = count.min(MAX_REPLAY);
        let entry = |index: usize| {
            let at = REPLAY_AT + index * REPLAY_WORDS;
            [self.word(at), self.word(at + 1), self.word(at + 2)]
        };
        (0..count).filter_map(move |index| {
            let next = (index + 1 < count).then(|| entry(index + 1));
            replay_entry_of(entry(index), next)
        })
    }

    /// Writes the attributes.
    pub(crate) fn write_attr(&self, attr: &QpAttr) {
        let seq = &self.words()[ATTR_SEQ_AT];
        // Odd, even if a writer died in between.
        let before = seq.load(Ordering::Relaxed) | 1;
        seq.store(before, Ordering::Relaxed);
        fence(Ordering::Release);
        for (at, word) in (ATTR_AT..).zip(words_of_attr(attr)) {
            self.write(at, word);
        }
        seq.store(before.wrapping_add(1), Ordering::Release);
    }

    /// Returns the attributes, and a number that changes with them.
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

type ReplayWords = [u64; REPLAY_WORDS];

/// Returns the number of entries that a request takes.
const fn entries_of(one: ReplayEntry) -> usize {
    match one {
        ReplayEntry::Read { .. } | ReplayEntry::Atomic { .. } => 1,
        ReplayEntry::Wide { .. } => 2,
    }
}

fn number_of(operation: Operation) -> u64 {
    let at = OPERATIONS.iter().position(|other| *other == operation);
    // Other operations are never stored.
    at.and_then(|at| u64::try_from(at).ok()).unwrap_or(u64::MAX)
}

fn operation_of(number: u64) -> Option<Operation> {
    OPERATIONS.get(usize::try_from(number).ok()?).copied()
}

fn words_of(one: ReplayEntry) -> (ReplayWords, Option<ReplayWords>) {
    let begin = |kind: u32, psn: Psn| u64::from(kind) | u64::from(psn.get()) << 8;
    match one {
        ReplayEntry::Read {
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
        ReplayEntry::Atomic {
            psn,
            operation,
            original,
        } => ([begin(ATOMIC, psn), number_of(operation), original], None),
        ReplayEntry::Wide {
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

fn replay_entry_of(
    [first, second, third]: ReplayWords,
    next: Option<ReplayWords>,
) -> Option<ReplayEntry> {
    let psn = Psn::new(low(first >> 8, 24));
    match low(first, 8) {
        READ => Some(ReplayEntry::Read {
            psn,
            packets: low(first >> 32, 32),
            rkey: Rkey::new(low(second, 32)),
            va: third,
            len: low(second >> 32, 32),
        }),
        ATOMIC => Some(ReplayEntry::Atomic {
            psn,
            operation: operation_of(second)?,
            original: third,
        }),
        WIDE => {
            let [more, fourth, fifth] = next?;
            let [_, _, _, _, log_size, operation, _, _] = first.to_le_bytes();
            let operation = operation_of(operation.into())?;
            let is_checkpointed = more == u64::from(WIDE_MORE);
            let is_wide = operation.is_masked_atomic() && matches!(log_size, 4 | 5);
            (is_checkpointed && is_wide).then_some(ReplayEntry::Wide {
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
mod tests;
