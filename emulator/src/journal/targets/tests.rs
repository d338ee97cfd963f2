//! Tests of the records in the shared memory of an XRC domain.

use super::*;

fn memory() -> Arc<DomainMemory> {
    Arc::new(DomainMemory::new().expect("memory"))
}

const QPN: Qpn = Qpn::new(0x03_1234);
const A: ProcessSlot = ProcessSlot::new(3);
const B: ProcessSlot = ProcessSlot::new(255);

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
    let record = memory.add(QPN, A).unwrap();
    record.write_attr(&attr());
    let snapshot = ResponderSnapshot {
        epsn: Psn::new(0xff_ffff),
        msn: Msn::new(0xab_cdef),
        comm_est_raised: true,
    };
    let replay_entries = [
        ReplayEntry::Read {
            psn: Psn::new(0xff_fff0),
            packets: 7,
            rkey: Rkey::new(0xdead_beef),
            va: u64::MAX,
            len: 0x8000_0000,
        },
        ReplayEntry::Atomic {
            psn: Psn::new(3),
            operation: Operation::FetchAdd,
            original: u64::MAX,
        },
        ReplayEntry::Wide {
            psn: Psn::new(4),
            operation: Operation::XrcMaskedCmpSwap,
            log_size: 5,
            original: [u64::MAX, 1, 0, 0x0304_0000_0000_0003],
        },
        ReplayEntry::Atomic {
            psn: Psn::new(5),
            operation: Operation::CmpSwap,
            original: 0,
        },
        ReplayEntry::Atomic {
            psn: Psn::new(6),
            operation: Operation::AtomicWrite,
            original: 0,
        },
    ];
    record.write_snapshot(snapshot, replay_entries.into_iter());
    let other = Arc::new(DomainMemory::of(memory.fd().try_clone_to_owned().unwrap()).unwrap());
    let record = other.find(QPN).unwrap();
    assert_eq!(record.attr().0, attr());
    assert_eq!(record.snapshot(), snapshot);
    assert_eq!(record.replay_entries().collect::<Vec<_>>(), replay_entries);
    assert!(record.is_of(QPN));
    memory.remove(&record);
    assert!(!record.is_of(QPN));
    assert!(other.find(QPN).is_none());
}

/// All operations of replay entries survive encoding and decoding.
#[test]
fn each_operation_has_a_number() {
    let record = memory().add(QPN, A).unwrap();
    let snapshot = record.snapshot();
    for operation in OPERATIONS {
        let one = ReplayEntry::Atomic {
            psn: Psn::new(1),
            operation,
            original: 5,
        };
        record.write_snapshot(snapshot, iter::once(one));
        assert_eq!(record.replay_entries().collect::<Vec<_>>(), [one]);
    }
}

/// Keeps the newest entries if space runs out, because the requester more likely repeats those.
#[test]
fn the_oldest_are_forgotten_first() {
    let record = memory().add(QPN, A).unwrap();
    let wide = |psn: usize| ReplayEntry::Wide {
        psn: Psn::new(u32::try_from(psn).unwrap()),
        operation: Operation::XrcMaskedFetchAdd,
        log_size: 4,
        original: [7; 4],
    };
    let most = MAX_REPLAY / 2;
    for (count, kept) in [(most, most), (128, most)] {
        record.write_snapshot(record.snapshot(), (0..count).map(wide));
        let expected: Vec<_> = (count - kept..count).map(wide).collect();
        assert_eq!(record.replay_entries().collect::<Vec<_>>(), expected);
    }
    let short = |psn| ReplayEntry::Atomic {
        psn: Psn::new(psn),
        operation: Operation::Flush,
        original: 0,
    };
    record.write_snapshot(record.snapshot(), (0..128).map(short));
    assert_eq!(record.replay_entries().count(), 128);
}

#[test]
fn an_owner_that_dies_between_messages_loses_nothing() {
    let memory = memory();
    let record = memory.add(QPN, A).unwrap();
    assert!(!record.try_acquire(B), "held");
    record.mark_complete(A);
    record.mark_incomplete(A);
    record.mark_complete(A);
    assert!(record.owner_died());
    assert_eq!(record.control().owner, None);
    assert!(record.try_acquire(B));
    assert!(!record.try_acquire(A), "another process was faster");
    assert!(record.try_acquire(B), "it is his");
    record.mark_incomplete(B);
    assert!(!record.owner_died());
    let control = record.control();
    assert!(control.has_failed && !control.is_checkpointed);
    assert!(record.try_acquire(A));
    assert!(record.control().has_failed);
    assert!(!record.owner_died(), "stays so");
}

#[test]
fn a_request_ends_with_the_transfer() {
    let record = memory().add(QPN, A).unwrap();
    assert_eq!(record.requested(), None);
    record.request(B, true);
    assert_eq!(record.requested(), Some((B, true)));
    record.transfer_to(Some(B));
    assert_eq!(record.requested(), None);
    assert!(record.try_acquire(B));
}

#[test]
fn members_come_and_go() {
    let memory = memory();
    for slot in [1, 63, 64, 255] {
        let slot = ProcessSlot::new(slot);
        assert!(!memory.is_member(slot));
        memory.set_member(slot, true);
        assert!(memory.is_member(slot));
    }
    memory.set_member(ProcessSlot::new(63), false);
    assert!(!memory.is_member(ProcessSlot::new(63)));
    assert!(memory.is_member(ProcessSlot::new(64)));
}

/// A client that got no answer asks again, and there is one record.
#[test]
fn a_target_that_is_added_twice_has_one_record() {
    let memory = memory();
    let (one, again) = (memory.add(QPN, A).unwrap(), memory.add(QPN, A).unwrap());
    again.mark_complete(A);
    assert!(one.control().is_checkpointed);
    memory.remove(&again);
    assert!(memory.find(QPN).is_none());
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
    let record = memory.add(QPN, A).unwrap();
    for word in record.words() {
        word.store(u64::MAX, Ordering::Relaxed);
    }
    record.attr();
    record.snapshot();
    assert_eq!(record.replay_entries().count(), 0);
    record.control();
    // A count of three: one half of an entry, and one with nothing behind it.
    record.write(COUNT_AT, 3);
    for (index, first) in [
        (0, 3 | 4 << 32 | 5 << 40),
        (1, 4),
        (2, 3 | 4 << 32 | 5 << 40),
    ] {
        record.write(REPLAY_AT + index * REPLAY_WORDS, first);
    }
    assert_eq!(record.replay_entries().count(), 1);
    for wrong in [
        3 | 3 << 32 | 5 << 40,
        3 | 4 << 32 | 1 << 40,
        3 | 4 << 32 | 8 << 40,
    ] {
        record.write(REPLAY_AT, wrong);
        assert_eq!(record.replay_entries().count(), 0);
    }
    let short = tempfile::tempfile().unwrap();
    assert!(DomainMemory::of(short.into()).is_err());
}
