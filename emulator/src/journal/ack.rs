//! The ACK journal: acknowledgements that the broker sends if a process dies before it does.
//!
//! A message whose completion the application has seen must be acknowledged, even if the process
//! dies. An ACK that is delayed to share a datagram with a response is therefore recorded first, in
//! memory shared with the broker. After the client's connection ends, for any reason, the broker
//! reads the journal and sends the pending ACKs.
//!
//! The memory is a page of entries of [`WORDS`] words each. The first word tells whether an ACK is
//! pending, and up to which PSN. It is written last and in one store, so that a death never leaves
//! a partial entry. The other words hold the destination, and change only while no ACK is pending.

use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use crate::sync::Mutex;
use rocade_wire::{CreditCode, Msn, Opcode, Operation, Pkey, Psn, Qpn, Service};

use super::shm_words::{self, SharedWords};
use super::{
    CONNECTIONS_AT, FAULT_REPORT_AT, STATISTICS_AT, connections, fault_report, statistics,
};
use crate::link::LocalAddr;
use crate::sys::check_file_size;

/// Words of an entry: a cache line.
const WORDS: usize = 8;
/// Entries of a journal.
const SLOTS: usize = 64;
/// Length of the entries in bytes.
pub(super) const LEN: usize = SLOTS * WORDS * size_of::<u64>();

/// The destination of a pending ACK, and the fields that all ACKs of a connection share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AckDestination {
    /// Source address.
    pub(crate) local: LocalAddr,
    /// Address of the peer.
    pub(crate) peer: IpAddr,
    /// The peer's QP number.
    pub(crate) dest_qp: Qpn,
    /// The ACKNOWLEDGE opcode of the connection's transport service.
    pub(crate) opcode: Opcode,
    /// P_Key of packets to the peer.
    pub(crate) pkey: Pkey,
    /// IPv4 TOS or IPv6 traffic class of packets to the peer.
    pub(crate) traffic_class: u8,
}

/// An ACK of all packets up to a PSN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PendingAck {
    /// PSN of the last packet acknowledged.
    pub(crate) psn: Psn,
    /// Number of messages completed (MSN).
    pub(crate) msn: Msn,
    /// Credits for further messages, from the posted receives.
    pub(crate) credits: CreditCode,
    /// The MigReq bit.
    pub(crate) migreq: bool,
}

/// The ACK journal of a process.
#[derive(Debug)]
pub(crate) struct AckJournal {
    pub(super) shared: SharedWords,
    /// Bit mask of the entries in use.
    used: Mutex<u64>,
    /// True while a broker has the journal.
    registered: AtomicBool,
}

/// An entry of the journal, for one queue pair. Dropping it removes the pending ACK.
#[derive(Debug)]
pub(crate) struct JournalSlot {
    journal: Arc<AckJournal>,
    index: u8,
    is_pending: bool,
}

impl AckJournal {
    /// Creates an empty journal.
    ///
    /// # Errors
    /// Errors of memfd_create(2), ftruncate(2) and mmap(2).
    pub(crate) fn new() -> io::Result<Self> {
        let sizes = [
            STATISTICS_AT + statistics::LEN,
            FAULT_REPORT_AT + fault_report::LEN,
            CONNECTIONS_AT + connections::LEN,
        ];
        let allowed = |len: &usize| check_file_size(*len as u64).is_ok();
        let len = sizes.into_iter().find(allowed).unwrap_or(CONNECTIONS_AT);
        Ok(Self {
            shared: SharedWords::new(c"rocade-will", len)?,
            used: Mutex::new(0),
            registered: AtomicBool::new(false),
        })
    }

    /// Returns the memory file, for the broker.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.shared.fd()
    }

    /// Sets whether a broker has the journal.
    pub(crate) fn set_registered(&self, registered: bool) {
        self.registered.store(registered, Ordering::Release);
    }

    /// Returns true if a broker has the journal and would process it.
    pub(crate) fn is_registered(&self) -> bool {
        self.registered.load(Ordering::Acquire)
    }

    /// Allocates an entry, or returns `None` if all are in use.
    pub(crate) fn allocate_slot(
        self: &Arc<Self>,
        destination: &AckDestination,
    ) -> Option<JournalSlot> {
        let mut used = self.used.lock();
        let index = u8::try_from(used.trailing_ones()).ok()?;
        if usize::from(index) >= SLOTS {
            return None;
        }
        *used |= 1 << index;
        drop(used);
        let words = destination.to_words();
        for (word, value) in self.slot(index)[1..].iter().zip(words) {
            word.store(value, Ordering::Relaxed);
        }
        Some(JournalSlot {
            journal: Arc::clone(self),
            index,
            is_pending: false,
        })
    }

    fn slot(&self, index: u8) -> &[AtomicU64] {
        &self.shared.words()[usize::from(index) * WORDS..][..WORDS]
    }
}

impl JournalSlot {
    /// Records a pending ACK.
    #[inline]
    pub(crate) fn record(&mut self, ack: PendingAck) {
        self.is_pending = true;
        self.journal.slot(self.index)[0].store(ack.to_word(), Ordering::Release);
    }

    /// Returns true if this ACK is the pending one.
    #[cfg(debug_assertions)]
    pub(crate) fn holds(&self, ack: PendingAck) -> bool {
        self.is_pending && self.journal.slot(self.index)[0].load(Ordering::Relaxed) == ack.to_word()
    }

    /// Removes the pending ACK, after it was sent.
    #[inline]
    pub(crate) fn clear(&mut self) {
        if self.is_pending {
            self.is_pending = false;
            self.journal.slot(self.index)[0].store(0, Ordering::Release);
        }
    }
}

impl Drop for JournalSlot {
    fn drop(&mut self) {
        self.clear();
        *self.journal.used.lock() &= !(1 << self.index);
    }
}

// Fields that programs and brokers of earlier versions lack are 0. 0 means: no credits, MigReq set,
// service RC.
impl PendingAck {
    const PENDING: u64 = 1 << 63;
    const READY: u64 = 1 << 62;

    fn to_word(self) -> u64 {
        let credits = self.credits.code() ^ CreditCode::INVALID.code();
        Self::PENDING
            | if self.migreq { 0 } else { Self::READY }
            | u64::from(credits) << 48
            | u64::from(self.msn.get()) << 24
            | u64::from(self.psn.get())
    }

    fn from_word(word: u64) -> Option<Self> {
        let low24 = |word: u64| u32::try_from(word & 0xFF_FFFF).unwrap_or(0);
        let [_, credits, ..] = word.to_be_bytes();
        let credits = CreditCode::new(credits ^ CreditCode::INVALID.code());
        (word & Self::PENDING != 0).then(|| Self {
            psn: Psn::new(low24(word)),
            msn: Msn::new(low24(word >> 24)),
            credits: credits.unwrap_or(CreditCode::INVALID),
            migreq: word & Self::READY == 0,
        })
    }
}

impl AckDestination {
    /// Returns the ACKNOWLEDGE opcode of the service with this number in the journal.
    //= RC-ACK-07 XRC-02
    fn opcode_of(number: u8) -> Option<Opcode> {
        let service = match number {
            0 => Service::Rc,
            1 => Service::Xrc,
            _ => return None,
        };
        Opcode::of(service, Operation::Acknowledge)
    }

    fn to_words(self) -> [u64; WORDS - 1] {
        let [l0, l1] = ip_to_words(self.local.ip());
        let [p0, p1] = ip_to_words(self.peer);
        let numbers = u64::from(self.dest_qp.get())
            | u64::from(self.pkey.get()) << 24
            | u64::from(self.traffic_class) << 40
            | u64::from(self.opcode.service() == Service::Xrc) << 48;
        [l0, l1, p0, p1, numbers, self.local.scope_id().into(), 0]
    }

    fn from_words([l0, l1, p0, p1, numbers, scope, _]: [u64; WORDS - 1]) -> Option<Self> {
        let [_, service, tc, pkey1, pkey0, q2, q1, q0] = numbers.to_be_bytes();
        let scope = u32::try_from(scope).ok()?;
        Some(Self {
            local: LocalAddr::new(words_to_ip([l0, l1]), scope),
            peer: words_to_ip([p0, p1]),
            dest_qp: Qpn::new(u32::from_be_bytes([0, q2, q1, q0])),
            opcode: Self::opcode_of(service)?,
            pkey: Pkey::new(u16::from_be_bytes([pkey1, pkey0])),
            traffic_class: tc,
        })
    }
}

/// Returns the address as words, an IPv4 address as IPv4-mapped IPv6 address.
pub(super) fn ip_to_words(ip: IpAddr) -> [u64; 2] {
    let bits = match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
    .to_bits();
    let half = |bits: u128| u64::try_from(bits & u128::from(u64::MAX)).unwrap_or(0);
    [half(bits >> 64), half(bits)]
}

pub(super) fn words_to_ip([high, low]: [u64; 2]) -> IpAddr {
    let bits = u128::from(high) << 64 | u128::from(low);
    IpAddr::V6(Ipv6Addr::from_bits(bits)).to_canonical()
}

/// Returns the pending ACKs in a client's journal. Skips invalid entries, because the client may
/// write anything to the file.
pub(crate) fn read(file: &OwnedFd) -> Vec<(AckDestination, PendingAck)> {
    let mut bytes = [0; LEN];
    let Ok(len) = shm_words::read(file.as_fd(), &mut bytes) else {
        return Vec::new();
    };
    let (words, _) = bytes[..len].as_chunks::<{ size_of::<u64>() }>();
    let words: Vec<_> = words.iter().map(|word| u64::from_ne_bytes(*word)).collect();
    let (entries, _) = words.as_chunks::<WORDS>();
    let slot = |[ack, rest @ ..]: &[u64; WORDS]| {
        Some((
            AckDestination::from_words(*rest)?,
            PendingAck::from_word(*ack)?,
        ))
    };
    entries.iter().filter_map(slot).collect()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn destination(local: &str, peer: &str) -> AckDestination {
        AckDestination {
            local: LocalAddr::new(local.parse().expect("an address"), 0),
            peer: peer.parse().expect("an address"),
            dest_qp: Qpn::new(0xAB_CDEF),
            opcode: AckDestination::opcode_of(0).expect("RC has acknowledgements"),
            pkey: Pkey::new(0x8123),
            traffic_class: 0x60,
        }
    }

    fn ack(psn: u32, msn: u32) -> PendingAck {
        PendingAck {
            psn: Psn::new(psn),
            msn: Msn::new(msn),
            credits: CreditCode::INVALID,
            migreq: true,
        }
    }

    /// Entries are read as written, and entries of earlier versions keep their meaning.
    //= RC-APM-02 RC-CRD-01 XRC-02 type=test
    #[test]
    fn a_pending_ack_is_read_as_it_was_written() {
        let journal = Arc::new(AckJournal::new().unwrap());
        let file = journal.fd().try_clone_to_owned().unwrap();
        let xrc = AckDestination {
            opcode: Opcode::new(0xb1),
            ..destination("127.0.0.2", "10.1.2.3")
        };
        let mut slot = journal.allocate_slot(&xrc).unwrap();
        for credits in (0..=31).map(|code| CreditCode::new(code).unwrap()) {
            for migreq in [false, true] {
                let ack = PendingAck {
                    credits,
                    migreq,
                    ..ack(0xFF_FFFF, 0xAB_CDEF)
                };
                slot.record(ack);
                assert_eq!(read(&file), [(xrc, ack)]);
            }
        }
        let old = PendingAck::PENDING | 5 << 24 | 7;
        assert_eq!(PendingAck::from_word(old), Some(ack(7, 5)));
        let nonsense = PendingAck::from_word(u64::MAX).unwrap();
        assert_eq!(nonsense.credits, CreditCode::INVALID);
        let words = destination("127.0.0.2", "10.1.2.3").to_words();
        assert_eq!(
            AckDestination::from_words(words).unwrap().opcode.get(),
            0x11
        );
        let mut other = words;
        other[4] |= 2 << 48;
        assert_eq!(AckDestination::from_words(other), None, "of no service");
    }

    #[test]
    fn a_pending_ack_can_be_read_until_it_is_cleared() {
        let journal = Arc::new(AckJournal::new().unwrap());
        let file = journal.fd().try_clone_to_owned().unwrap();
        let v4 = destination("127.0.0.2", "10.1.2.3");
        let v6 = AckDestination {
            local: LocalAddr::new("fe80::1".parse().unwrap(), 7),
            ..destination("::1", "fe80::2")
        };
        let mut first = journal.allocate_slot(&v4).unwrap();
        let mut second = journal.allocate_slot(&v6).unwrap();
        assert_eq!(read(&file), []);
        first.record(ack(0, 0));
        second.record(ack(0xFF_FFFF, 0xFF_FFFF));
        assert_eq!(
            read(&file),
            [(v4, ack(0, 0)), (v6, ack(0xFF_FFFF, 0xFF_FFFF))]
        );
        first.record(ack(1, 2));
        second.clear();
        assert_eq!(read(&file), [(v4, ack(1, 2))]);
        drop(first);
        assert_eq!(read(&file), []);
    }

    #[test]
    fn slots_are_reused() {
        let journal = Arc::new(AckJournal::new().unwrap());
        let to = destination("127.0.0.2", "127.0.0.3");
        let mut all: Vec<_> = (0..SLOTS)
            .map(|_| journal.allocate_slot(&to).unwrap())
            .collect();
        assert!(journal.allocate_slot(&to).is_none());
        all.swap_remove(17);
        assert_eq!(journal.allocate_slot(&to).unwrap().index, 17);
    }

    #[test]
    fn a_truncated_journal_yields_fewer_acks() {
        let journal = Arc::new(AckJournal::new().unwrap());
        let to = destination("127.0.0.2", "127.0.0.3");
        let mut all: Vec<_> = (0..3)
            .map(|_| journal.allocate_slot(&to).unwrap())
            .collect();
        all.iter_mut().for_each(|slot| slot.record(ack(5, 6)));
        let file = std::fs::File::from(journal.fd().try_clone_to_owned().unwrap());
        let mut copy = tempfile::tempfile().unwrap();
        let mut bytes = vec![0; LEN];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, 0).unwrap();
        io::Write::write_all(&mut copy, &bytes[..2 * WORDS * 8 + 8]).unwrap();
        assert_eq!(read(&copy.into()).len(), 2);
    }
}
