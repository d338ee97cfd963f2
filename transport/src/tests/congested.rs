//! Tests of ECN marks, congestion notifications and rates.

use alloc::vec::Vec;

use rocade_wire::{Bth, Opcode, Operation, Packet, Pkey, Psn, Qpn, Service};

use super::responder::{answer, target, write_only};
use super::{read, register, register_filled, send, statuses, write};
use crate::testing::{Pair, Side, TestMemory};
use crate::{
    AckPlacement, Counters, DropReason, PacketMeta, QpAttr, QpAttrMask, QpState, QpType, Time,
    WcStatus,
};

const MS: u64 = 1_000_000;

fn counters(pair: &Pair, side: Side) -> Counters {
    pair.node(side).qp.counters()
}

fn controlled() -> Pair {
    let mut pair = Pair::default();
    for side in Side::BOTH {
        pair.node_mut(side).qp.control_congestion(true);
    }
    pair
}

/// Returns a notification as another device sends it.
fn notification(dest: Qpn, pkey: Pkey) -> Vec<u8> {
    let bth = Bth {
        opcode: Opcode::of(Service::Cnp, Operation::Cnp).unwrap(),
        solicited: false,
        migreq: false,
        pad_count: 0,
        tver: 0,
        pkey,
        fecn: false,
        becn: true,
        resv6: 0,
        dest_qp: dest,
        ack_req: false,
        resv7: 0,
        psn: Psn::new(0),
    };
    let mut bytes = bth.to_bytes().to_vec();
    bytes.extend([0; 16 + 4]);
    bytes
}

/// Returns the number of notifications that a side has sent.
fn notifications(pair: &Pair, from: Side) -> usize {
    let is_one = |bytes: &[u8]| bytes[0] == 0x81;
    let sent = pair.trace().iter().filter(|traced| traced.from == from);
    sent.filter(|traced| is_one(&traced.bytes)).count()
}

/// Returns the time that writing `len` bytes takes.
fn transfer(pair: &mut Pair, len: u32) -> u64 {
    let source = register_filled(pair, Side::A, len, 5);
    let target = register(pair, Side::B, len);
    let begin = pair.now();
    pair.send(Side::A, 1, write(&target), &[source.sge()]);
    pair.run();
    let done = pair.take_completions(Side::A);
    assert_eq!(done[0].status, WcStatus::Success);
    let (sent, arrived) = (
        pair.node(Side::A).mem.all(&source),
        pair.node(Side::B).mem.all(&target),
    );
    assert_eq!(sent, arrived);
    pair.now().ns_since(begin)
}

//= ENC-10 CNP-01 CNP-02 type=test
//= ETH-11 type=test
#[test]
fn marked_packets_are_answered_by_notifications() {
    let (mut pair, region) = target();
    pair.node_mut(Side::B).qp.control_congestion(true);
    pair.mark_packets(Side::A, true);
    for psn in 0..4 {
        answer(&mut pair, &write_only(psn, &region, 1));
    }
    // Within a round trip or two, only one notification is sent.
    assert_eq!(counters(&pair, Side::B).marked_packets, 4);
    assert_eq!(counters(&pair, Side::B).cnps_sent, 1);
    pair.run_for(MS);
    write_only(4, &region, 1).inject(&mut pair);
    pair.run();
    assert_eq!(counters(&pair, Side::B).cnps_sent, 2);
    let traced = pair
        .trace()
        .iter()
        .find(|traced| traced.from == Side::B && traced.bytes[0] == 0x81)
        .expect("a notification");
    let mut expected = notification(Qpn::new(0x11), Pkey::DEFAULT);
    expected.truncate(28);
    assert_eq!((traced.bytes.len(), &traced.bytes[..28]), (32, &*expected));
    // A notification is neither acknowledged nor counted as a request.
    assert_eq!(counters(&pair, Side::A).cnps_received, 2);
}

#[test]
fn without_the_switch_marks_are_counted_and_nothing_else() {
    let (mut pair, region) = target();
    pair.mark_packets(Side::A, true);
    answer(&mut pair, &write_only(0, &region, 1));
    let counters = counters(&pair, Side::B);
    assert_eq!((counters.marked_packets, counters.cnps_sent), (1, 0));
    assert_eq!(notifications(&pair, Side::B), 0);
    let before = transfer(&mut Pair::default(), 1 << 20);
    let mut pair = Pair::default();
    for _ in 0..9 {
        pair.inject(Side::A, &notification(Qpn::new(0x11), Pkey::DEFAULT));
        pair.drain_both();
    }
    pair.run();
    assert_eq!(counters_of(&pair), 9);
    assert_eq!(
        transfer(&mut pair, 1 << 20),
        before,
        "the notifications are ignored"
    );
}

fn counters_of(pair: &Pair) -> u64 {
    counters(pair, Side::A).cnps_received
}

#[test]
fn acknowledgements_and_notifications_are_not_answered() {
    let mut pair = controlled();
    pair.mark_packets(Side::B, true);
    transfer(&mut pair, 1 << 16);
    assert_eq!(counters(&pair, Side::A).cnps_sent, 0);
    assert_eq!(counters(&pair, Side::B).cnps_received, 0);
}

#[test]
fn a_congested_path_is_sent_to_more_slowly() {
    let len = 4 << 20;
    let free = transfer(&mut controlled(), len);
    let mut pair = controlled();
    pair.mark_packets(Side::A, true);
    let marked = transfer(&mut pair, len);
    assert!(counters_of(&pair) > 3);
    assert!(marked > 2 * free, "{marked} ns, {free} ns without marks");
    // The rate recovers.
    pair.mark_packets(Side::A, false);
    pair.run_for(10_000 * MS);
    let later = transfer(&mut pair, len);
    assert!(later < 2 * free, "{later} ns, {free} ns before");
}

/// Returns the time that reading `len` bytes takes.
fn read_back(pair: &mut Pair, len: u32) -> u64 {
    let source = register_filled(pair, Side::B, len, 7);
    let target = register(pair, Side::A, len);
    let begin = pair.now();
    pair.send(Side::A, 1, read(&source), &[target.sge()]);
    pair.run();
    let done = pair.take_completions(Side::A);
    assert_eq!(statuses(&done), [(1, WcStatus::Success)]);
    let (sent, arrived) = (
        pair.node(Side::B).mem.all(&source),
        pair.node(Side::A).mem.all(&target),
    );
    assert_eq!(sent, arrived);
    pair.now().ns_since(begin)
}

/// Checks that READ responses are controlled as well: their sender is notified, and reduces its
/// rate.
//= ENC-10 CNP-01 CNP-03 type=test
#[test]
fn a_congested_path_is_read_from_more_slowly() {
    let len = 4 << 20;
    let free = read_back(&mut controlled(), len);
    let mut pair = controlled();
    pair.mark_packets(Side::B, true);
    let marked = read_back(&mut pair, len);
    assert!(counters(&pair, Side::B).cnps_received > 3);
    assert!(marked > 2 * free, "{marked} ns, {free} ns without marks");
    // The rate is low, but high enough that the requester does not retransmit.
    assert_eq!(counters(&pair, Side::A).timeouts, 0);
    assert_eq!(counters(&pair, Side::B).duplicate_requests, 0);
    // The rate recovers.
    pair.mark_packets(Side::B, false);
    pair.run_for(10_000 * MS);
    let later = read_back(&mut pair, len);
    assert!(later < 2 * free, "{later} ns, {free} ns before");
}

/// Checks that a responder stays fast enough for the shortest ACK timeout, however many
/// notifications arrive. Packets without data are not delayed.
//= ENC-10 type=test
#[test]
fn responses_never_stop() {
    let mut pair = controlled();
    for _ in 0..400 {
        pair.inject(Side::B, &notification(Qpn::new(0x22), Pkey::DEFAULT));
        pair.drain_both();
    }
    pair.run();
    let ns = read_back(&mut pair, 256 << 10);
    // The rate is at least 100 Mbit/s: 12.5 MB/s, 21 ms.
    assert!((2 * MS..22 * MS).contains(&ns), "{ns}");
    assert_eq!(counters(&pair, Side::A).timeouts, 0);
    for _ in 0..400 {
        pair.inject(Side::B, &notification(Qpn::new(0x22), Pkey::DEFAULT));
        pair.drain_both();
    }
    let ns = transfer(&mut pair, 1 << 20);
    assert!(ns < 20 * MS, "{ns}: writes are acknowledged as ever");
}

/// Checks that an ACK does not wait for the rate limit of READ responses, once those are sent.
//= ENC-10 RC-ACK-01 type=test
#[test]
fn acknowledgements_have_no_pace() {
    for len in 1..=12 {
        let mut pair = controlled();
        for _ in 0..400 {
            pair.inject(Side::B, &notification(Qpn::new(0x22), Pkey::DEFAULT));
            pair.drain_both();
        }
        let source = register_filled(&pair, Side::B, len * 512, 7);
        let target = register(&pair, Side::A, len * 512);
        pair.send(Side::A, 1, read(&source), &[target.sge()]);
        pair.run_until(|pair| !pair.node(Side::A).completions.is_empty());
        pair.clear_trace();
        pair.send(Side::A, 2, write(&source), &[]);
        pair.run_for(MS);
        let times: Vec<_> = pair.trace().iter().map(|sent| sent.time).collect();
        assert_eq!(times.len(), 2, "a WRITE and its acknowledgement");
        let ns = times[1].ns_since(times[0]);
        assert_eq!(ns, 5_000, "the ACK of {len} bytes is immediate");
    }
}

/// Checks that a delayed READ response ends with its queue pair: no packet is sent after a reset,
/// and no timer is left.
#[test]
fn responses_that_wait_end_with_their_queue_pair() {
    let mut pair = controlled();
    for _ in 0..400 {
        pair.inject(Side::B, &notification(Qpn::new(0x22), Pkey::DEFAULT));
        pair.drain_both();
    }
    let source = register_filled(&pair, Side::B, 1 << 20, 7);
    let target = register(&pair, Side::A, 1 << 20);
    pair.send(Side::A, 1, read(&source), &[target.sge()]);
    pair.run_for(2 * MS);
    assert!(pair.node(Side::B).qp.next_timeout().is_some());
    pair.modify(
        Side::B,
        QpState::Reset,
        QpAttrMask::empty(),
        &QpAttr::default(),
    );
    assert_eq!(pair.node(Side::B).qp.next_timeout(), None);
    assert!(!pair.node(Side::B).qp.has_work_to_send(AckPlacement::First));
}

fn unreliable() -> Pair {
    let mut pair = Pair::new(|_, setup| setup.config.qp_type = QpType::Uc);
    for side in Side::BOTH {
        pair.node_mut(side).qp.control_congestion(true);
    }
    pair
}

/// Checks that UC answers marks and obeys notifications, although it sends no other answers.
//= ENC-10 CNP-01 CNP-02 type=test
#[test]
fn unreliable_connections_are_controlled_too() {
    let len = 4 << 20;
    let free = transfer(&mut unreliable(), len);
    let mut pair = unreliable();
    pair.mark_packets(Side::A, true);
    // All packets of the first transfer are in flight before the first notification.
    transfer(&mut pair, len);
    assert!(counters_of(&pair) > 0);
    let marked = transfer(&mut pair, len);
    assert!(counters_of(&pair) > 3);
    assert_eq!(counters(&pair, Side::B).cnps_sent, counters_of(&pair));
    assert!(marked > 2 * free, "{marked} ns, {free} ns without marks");
    pair.mark_packets(Side::A, false);
    pair.run_for(10_000 * MS);
    let later = transfer(&mut pair, len);
    assert!(later < 2 * free, "{later} ns, {free} ns before");
    // Delayed requests are flushed with the queue, and leave no timer.
    for _ in 0..400 {
        pair.inject(Side::A, &notification(Qpn::new(0x11), Pkey::DEFAULT));
        pair.drain_both();
    }
    let source = register_filled(&pair, Side::A, len, 5);
    let target = register(&pair, Side::B, len);
    pair.send(Side::A, 9, write(&target), &[source.sge()]);
    pair.run_for(MS);
    assert!(pair.node(Side::A).qp.next_timeout().is_some());
    pair.modify(
        Side::A,
        QpState::Err,
        QpAttrMask::empty(),
        &QpAttr::default(),
    );
    assert_eq!(pair.node(Side::A).qp.next_timeout(), None);
    pair.run();
    let done = pair.take_completions(Side::A);
    assert_eq!(statuses(&done), [(9, WcStatus::WrFlushErr)]);
}

//= CNP-03 type=test
#[test]
fn a_notification_changes_no_sequence() {
    let (mut pair, region) = target();
    pair.node_mut(Side::B).qp.control_congestion(true);
    assert_eq!(
        answer(&mut pair, &write_only(0, &region, 1)),
        ["ACK psn=0 msn=1"]
    );
    pair.inject(Side::B, &notification(Qpn::new(0x22), Pkey::DEFAULT));
    pair.run();
    assert_eq!(counters(&pair, Side::B).cnps_received, 1);
    assert_eq!(
        answer(&mut pair, &write_only(1, &region, 1)),
        ["ACK psn=1 msn=2"]
    );
}

//= CNP-02 type=test
#[test]
fn notifications_from_elsewhere_are_dropped() {
    let mut pair = controlled();
    let mem = TestMemory::new();
    let meta = PacketMeta {
        source: Side::B.ip(),
        destination: Side::A.ip(),
        traffic_class: 0,
        hop_limit: 64,
    };
    let elsewhere = PacketMeta {
        source: Side::A.ip(),
        ..meta
    };
    let good = notification(Qpn::new(0x11), Pkey::DEFAULT);
    let other = notification(Qpn::new(0x11), Pkey::new(0x8001));
    let qp = &mut pair.node_mut(Side::A).qp;
    for (meta, bytes, reason) in [
        (elsewhere, &good, DropReason::WrongAddress),
        (meta, &other, DropReason::BadPkey),
    ] {
        qp.handle_packet(Time::ZERO, &meta, &Packet::parse(bytes).unwrap(), &mem);
        assert_eq!(qp.counters().dropped(reason), 1);
    }
    assert_eq!(qp.counters().cnps_received, 0);
    let mut reset = Pair::in_states(QpState::Init, QpState::Init, |_, _| {});
    let qp = &mut reset.node_mut(Side::A).qp;
    qp.handle_packet(Time::ZERO, &meta, &Packet::parse(&good).unwrap(), &mem);
    assert_eq!(qp.counters().dropped(DropReason::State), 1);
}

//= QPS-05 type=test
#[test]
fn a_rate_is_kept() {
    let mut pair = Pair::default();
    let qp = &mut pair.node_mut(Side::A).qp;
    // At 80 Mbit/s: 10 MB in a second.
    qp.set_rate_limit(80_000).unwrap();
    assert_eq!(qp.query().rate_limit, 80_000);
    let ns = transfer(&mut pair, 1_000_000);
    assert!((100 * MS..115 * MS).contains(&ns), "{ns}");
    // The rate applies to small messages as well.
    let (source, target) = (
        register_filled(&pair, Side::A, 64, 1),
        register(&pair, Side::B, 64),
    );
    let begin = pair.now();
    for wr_id in 0..500 {
        pair.recv(Side::B, wr_id, &[target.sge()]);
        pair.send(Side::A, wr_id, send(), &[source.sge()]);
        if wr_id % 10 == 9 {
            pair.run();
            for side in Side::BOTH {
                pair.take_completions(side);
            }
        }
    }
    pair.run();
    let ns = pair.now().ns_since(begin);
    assert!(ns > 3 * MS, "{ns} ns for 500 packets of 80 bytes");
    pair.node_mut(Side::A).qp.set_rate_limit(0).unwrap();
    assert!(transfer(&mut pair, 1_000_000) < 50 * MS);
}
