//! Automatic path migration between two paths.

use alloc::vec;
use alloc::vec::Vec;

use rocade_wire::{Gid, Operation, Pkey};

use super::{
    PMTU, Request, operations, pattern, read, register, register_filled, send, statuses, write,
};
use crate::testing::{Delivery, Pair, Setup, Side, context};
use crate::{
    AddressVector, DropReason, ModifyError, QpAttr, QpAttrMask, QpEvent, QpState, QpType, SendOp,
    WcStatus,
};

const ALT: QpAttrMask = QpAttrMask::ALT_PATH;
const MIG: QpAttrMask = QpAttrMask::PATH_MIG_STATE;
const MIGRATED: u32 = 0;
const REARM: u32 = 1;
const ARMED: u32 = 2;
/// The code for 1 ms.
const ALT_TIMEOUT: u8 = 8;

fn two_ports(_: Side, setup: &mut Setup) {
    setup.config.limits.port_count = 2;
    setup.config.limits.pkey_table_len = 2;
    setup.attr.retry_cnt = 2;
    setup.attr.timeout = 10;
}

/// Returns the attributes of the alternate path from a side.
fn alternate(side: Side) -> QpAttr {
    QpAttr {
        alt_ah_attr: AddressVector {
            dgid: Gid::from_ip(side.other().alternate_ip()),
            hop_limit: 7,
            is_global: true,
            port_num: 2,
            ..AddressVector::default()
        },
        alt_port_num: 2,
        alt_pkey_index: 1,
        alt_timeout: ALT_TIMEOUT,
        path_mig_state: REARM,
        ..QpAttr::default()
    }
}

fn rearm(pair: &mut Pair) {
    for side in Side::BOTH {
        pair.modify(side, QpState::Rts, ALT | MIG, &alternate(side));
    }
}

fn migration_of(pair: &Pair, side: Side) -> u32 {
    pair.node(side).qp.query().path_mig_state
}

/// Sends one message from A to B, which must succeed.
fn talk(pair: &mut Pair) {
    let src = register_filled(pair, Side::A, 100, 3);
    let dst = register(pair, Side::B, 100);
    pair.recv(Side::B, 77, &[dst.sge()]);
    pair.send(Side::A, 77, send(), &[src.sge()]);
    pair.run();
    let ok = [(77, WcStatus::Success)];
    if pair.node(Side::A).qp.config().qp_type != QpType::XrcSend {
        assert_eq!(statuses(&pair.take_completions(Side::B)), ok);
    }
    assert_eq!(statuses(&pair.take_completions(Side::A)), ok);
}

/// Creates a pair with both sides armed.
fn armed() -> Pair {
    let mut pair = Pair::new(two_ports);
    rearm(&mut pair);
    talk(&mut pair);
    for side in Side::BOTH {
        assert_eq!(migration_of(&pair, side), ARMED);
        assert_eq!(pair.take_events(side), []);
    }
    pair.clear_trace();
    pair
}

fn is_alternate(from: Side, path: (core::net::IpAddr, core::net::IpAddr)) -> bool {
    path == (from.alternate_ip(), from.other().alternate_ip())
}

/// Asserts that the side uses its former alternate path.
fn assert_moved(pair: &mut Pair, side: Side) {
    assert_eq!(pair.take_events(side), [QpEvent::PathMig]);
    let attr = pair.node(side).qp.query();
    let loaded = alternate(side);
    assert_eq!(attr.path_mig_state, MIGRATED);
    assert_eq!(attr.ah_attr, loaded.alt_ah_attr);
    assert_eq!((attr.port_num, attr.pkey_index), (2, 1));
    assert_eq!(attr.timeout, ALT_TIMEOUT);
    assert_eq!(attr.alt_ah_attr, AddressVector::default());
    assert_eq!((attr.alt_port_num, attr.alt_timeout), (0, 0));
    let qp = &mut pair.node_mut(side).qp;
    assert!(qp.take_migrated() && !qp.take_migrated() && !qp.has_alternate());
    let ips = (side.alternate_ip(), side.other().alternate_ip());
    assert_eq!((qp.local(), qp.remote()), ips);
}

/// Checks the migration bit of every request and response: it tells whether the sender could still
/// migrate.
//= RC-APM-02 BTH-03 type=test
//= RC-APM-04 type=test
#[test]
fn packets_say_whether_their_sender_could_migrate() {
    let mut pair = Pair::new(two_ports);
    talk(&mut pair);
    assert!(pair.trace().iter().all(|t| t.packet().bth().migreq));
    pair.modify(Side::A, QpState::Rts, ALT | MIG, &alternate(Side::A));
    pair.clear_trace();
    talk(&mut pair);
    for t in pair.trace() {
        assert_eq!(t.packet().bth().migreq, t.from == Side::B);
    }
    assert_eq!(migration_of(&pair, Side::A), REARM, "the peer is not ready");
    assert_eq!(migration_of(&pair, Side::B), MIGRATED);
    pair.modify(Side::B, QpState::Rts, ALT | MIG, &alternate(Side::B));
    pair.clear_trace();
    talk(&mut pair);
    assert!(!pair.trace().iter().any(|t| t.packet().bth().migreq));
    for side in Side::BOTH {
        assert_eq!(migration_of(&pair, side), ARMED);
    }
}

/// Checks that everything sent before is executed once, however many packets were lost with the
/// path.
//= RC-APM-05 RC-APM-06 RC-APM-08 type=test
//= RC-REQ-18 AEV-06 type=test
#[test]
fn a_path_that_fails_is_replaced() {
    for dies_at in [0, 1, 3, 6, 9] {
        let mut pair = armed();
        let src = register_filled(&pair, Side::A, 5 * PMTU, 1);
        let dst = register(&pair, Side::B, 5 * PMTU);
        let counter = register(&pair, Side::B, 8);
        let result = register(&pair, Side::A, 8);
        let back = register(&pair, Side::A, 5 * PMTU);
        let mut left = dies_at;
        pair.set_network(move |event| {
            if is_alternate(event.from, event.path) {
                return Delivery::Deliver;
            }
            if left == 0 {
                return Delivery::Drop;
            }
            left -= 1;
            Delivery::Deliver
        });
        let add = SendOp::FetchAdd {
            va: counter.addr,
            rkey: counter.rkey,
            add: 1,
        };
        pair.send(Side::A, 1, write(&dst), &[src.sge()]);
        pair.send(Side::A, 2, add, &[result.sge()]);
        pair.send(Side::A, 3, read(&dst), &[back.sge()]);
        pair.run();
        let ok = WcStatus::Success;
        let expected = [(1, ok), (2, ok), (3, ok)];
        assert_eq!(statuses(&pair.take_completions(Side::A)), expected);
        let mem = &pair.node(Side::B).mem;
        assert_eq!(mem.all(&dst), pattern(5 * PMTU, 1));
        assert_eq!(mem.all(&counter), 1u64.to_ne_bytes());
        assert_eq!(pair.node(Side::A).mem.all(&back), pattern(5 * PMTU, 1));
        assert_eq!(pair.node(Side::A).qp.counters().timeouts, 3, "{dies_at}");
        for t in pair.trace() {
            let migrated = is_alternate(t.from, t.path);
            assert_eq!(t.packet().bth().migreq, migrated);
        }
        for side in Side::BOTH {
            assert_moved(&mut pair, side);
        }
    }
}

/// Checks that the retry counter is full again, with the timeout of the alternate path, and that
/// there is no third path.
//= RC-APM-06 RC-APM-08 RC-REQ-18 type=test
#[test]
fn the_alternate_path_has_its_own_retries() {
    let mut pair = armed();
    let (src, dst) = (register(&pair, Side::A, 9), register(&pair, Side::B, 9));
    pair.set_network(|_| Delivery::Drop);
    pair.send(Side::A, 1, write(&dst), &[src.sge()]);
    pair.run();
    let expected = [(1, WcStatus::RetryExcErr)];
    assert_eq!(statuses(&pair.take_completions(Side::A)), expected);
    let first = |t: &&crate::testing::Traced| !is_alternate(t.from, t.path);
    let times: Vec<u64> = pair.trace().iter().map(|t| t.time.as_ns()).collect();
    assert_eq!(pair.trace().iter().filter(first).count(), 3);
    assert_eq!(times.len(), 6);
    let alternate_ns = 4096 << ALT_TIMEOUT;
    assert_eq!(times[4] - times[3], alternate_ns);
    assert_eq!(pair.node(Side::A).qp.state(), QpState::Err);
    assert_eq!(pair.take_events(Side::A), [QpEvent::PathMig]);
}

/// Checks that a side that is not armed cannot migrate.
//= RC-APM-05 type=test
#[test]
fn a_path_that_dies_too_early_is_fatal() {
    let mut pair = Pair::new(two_ports);
    rearm(&mut pair);
    let (src, dst) = (register(&pair, Side::A, 9), register(&pair, Side::B, 9));
    pair.set_network(|_| Delivery::Drop);
    pair.send(Side::A, 1, write(&dst), &[src.sge()]);
    pair.run();
    let expected = [(1, WcStatus::RetryExcErr)];
    assert_eq!(statuses(&pair.take_completions(Side::A)), expected);
    assert_eq!(pair.take_events(Side::A), []);
}

/// Checks that the application of one side migrates both.
//= RC-APM-03 RC-APM-05 RC-APM-06 type=test
//= RC-APM-11 UC-12 type=test
#[test]
fn a_migration_on_request_takes_the_peer_along() {
    let services = [(QpType::Rc, QpType::Rc), (QpType::Uc, QpType::Uc)];
    for (a, b) in services {
        let mut pair = Pair::new(|side, setup| {
            two_ports(side, setup);
            setup.config.qp_type = if side == Side::A { a } else { b };
        });
        rearm(&mut pair);
        talk(&mut pair);
        if a == QpType::Uc {
            // No packet of B has arrived, so A is not armed yet.
            assert_eq!(migration_of(&pair, Side::A), REARM);
            pair.recv(Side::A, 5, &[]);
            pair.send(Side::B, 5, send(), &[]);
            pair.run();
            pair.take_completions(Side::A);
            pair.take_completions(Side::B);
        }
        pair.clear_trace();
        let request = QpAttr::default();
        pair.modify(Side::A, QpState::Rts, MIG, &request);
        pair.drain_both();
        if a == QpType::Rc {
            assert_moved(&mut pair, Side::A);
        }
        assert_eq!(
            migration_of(&pair, Side::B),
            ARMED,
            "no packet of the peer has arrived"
        );
        talk(&mut pair);
        // Before that, B may announce a receive.
        let since = |from| pair.trace().iter().skip_while(move |t| t.from != from);
        assert!(since(Side::A).all(|t| is_alternate(t.from, t.path)));
        assert!(since(Side::A).all(|t| t.packet().bth().migreq));
        if a == QpType::Rc {
            assert_moved(&mut pair, Side::B);
        } else {
            assert_eq!(pair.take_events(Side::B), [QpEvent::PathMig]);
        }
    }
}

/// Checks that packets in flight on the old path are sent again on the new one, and executed once.
//= RC-APM-10 RC-APM-08 type=test
#[test]
fn packets_of_the_old_path_are_dropped() {
    let mut pair = armed();
    let src = register_filled(&pair, Side::A, 3 * PMTU, 1);
    let counter = register(&pair, Side::B, 8);
    let dst = register(&pair, Side::B, 3 * PMTU);
    let add = SendOp::FetchAdd {
        va: counter.addr,
        rkey: counter.rkey,
        add: 1,
    };
    pair.send(Side::A, 1, add, &[register(&pair, Side::A, 8).sge()]);
    pair.send(Side::A, 2, write(&dst), &[src.sge()]);
    // The requests have arrived, the answers not yet.
    pair.run_for(7_000);
    pair.modify(Side::A, QpState::Rts, MIG, &QpAttr::default());
    pair.run();
    let ok = WcStatus::Success;
    assert_eq!(
        statuses(&pair.take_completions(Side::A)),
        [(1, ok), (2, ok)]
    );
    assert_eq!(pair.node(Side::B).mem.all(&counter), 1u64.to_ne_bytes());
    assert_eq!(pair.node(Side::B).mem.all(&dst), pattern(3 * PMTU, 1));
    let dropped = pair.node(Side::A).qp.counters();
    assert_eq!(dropped.dropped(DropReason::WrongAddress), 2);
}

/// Checks that a new alternate path allows to migrate back.
//= RC-APM-10 type=test
#[test]
fn there_is_a_way_back() {
    let mut pair = armed();
    pair.modify(Side::A, QpState::Rts, MIG, &QpAttr::default());
    talk(&mut pair);
    for side in Side::BOTH {
        assert_moved(&mut pair, side);
        let now = pair.now();
        let attr = QpAttr {
            path_mig_state: REARM,
            ..QpAttr::default()
        };
        let context = context(side.alternate_ip());
        let refused = pair.node_mut(side).qp.modify(now, &attr, MIG, &context);
        assert_eq!(refused, Err(ModifyError::BadValue("path_mig_state")));
    }
    for side in Side::BOTH {
        let mut attr = alternate(side);
        attr.alt_ah_attr.dgid = Gid::from_ip(pair.node(side.other()).qp.local());
        pair.modify(side, QpState::Rts, ALT | MIG, &attr);
    }
    talk(&mut pair);
    for side in Side::BOTH {
        assert_eq!(migration_of(&pair, side), ARMED);
    }
}

/// Checks that in ARMED a packet with the bit counts only if it matches the alternate path.
//= RC-APM-07 RC-APM-05 AEV-06 type=test
#[test]
fn requests_to_migrate_are_checked() {
    let from = |local: bool, remote: bool| {
        let pick = |side: Side, alternate| {
            if alternate {
                side.alternate_ip()
            } else {
                // Any other address.
                core::net::IpAddr::from([10, 0, 0, 1 + side as u8])
            }
        };
        (pick(Side::A, remote), pick(Side::B, local))
    };
    let mut pair = Pair::new(two_ports);
    pair.alternate_pkey = Pkey::new(0x8005);
    rearm(&mut pair);
    // B is armed by a hand-made packet, because the P_Keys of the paths differ.
    let mut ready = Request::new(Operation::WriteOnly, 0).reth(0, rocade_wire::Rkey::new(0), 0);
    ready.headers.bth.migreq = false;
    ready.inject(&mut pair);
    assert_eq!(migration_of(&pair, Side::B), ARMED);
    pair.clear_trace();
    let ask = |pair: &mut Pair, (source, destination), pkey: u16| {
        let mut ask = Request::new(Operation::WriteOnly, 1).reth(0, rocade_wire::Rkey::new(0), 0);
        ask.headers.bth.pkey = Pkey::new(pkey);
        pair.inject_from(Side::B, source, destination, &ask.bytes());
        super::answers(pair)
    };
    for (local, remote) in [(false, false), (false, true), (true, false)] {
        for pkey in [0xffff, 0x8005] {
            assert_eq!(ask(&mut pair, from(local, remote), pkey), vec![""; 0]);
        }
    }
    assert_eq!(pair.take_events(Side::B), []);
    // On the alternate path with the P_Key of the primary one, a single event is raised.
    for events in [vec![QpEvent::PathMigErr], vec![]] {
        assert_eq!(ask(&mut pair, from(true, true), 0xffff), vec![""; 0]);
        assert_eq!(pair.take_events(Side::B), events);
    }
    let counters = pair.node(Side::B).qp.counters();
    assert_eq!(counters.dropped(DropReason::WrongAddress), 6);
    assert_eq!(counters.dropped(DropReason::BadPkey), 2);
    assert_eq!(migration_of(&pair, Side::B), ARMED);
    // Without the bit, and on the alternate path.
    let mut early = Request::new(Operation::WriteOnly, 1).reth(0, rocade_wire::Rkey::new(0), 0);
    early.headers.bth.migreq = false;
    early.headers.bth.pkey = Pkey::new(0x8005);
    let (source, destination) = from(true, true);
    pair.inject_from(Side::B, source, destination, &early.bytes());
    assert_eq!(super::answers(&mut pair), vec![""; 0]);
    assert_eq!(
        ask(&mut pair, from(true, true), 0x8005),
        ["ACK psn=1 msn=2"]
    );
    assert_eq!(pair.take_events(Side::B), [QpEvent::PathMig]);
    assert_eq!(pair.node(Side::B).qp.pkey(), Pkey::new(0x8005));
    // After the migration, the bit is ignored.
    //= RC-APM-09 type=test
    let mut after = Request::new(Operation::WriteOnly, 2).reth(0, rocade_wire::Rkey::new(0), 0);
    after.headers.bth.migreq = false;
    after.headers.bth.pkey = Pkey::new(0x8005);
    pair.inject_from(Side::B, source, destination, &after.bytes());
    assert_eq!(super::answers(&mut pair), ["ACK psn=2 msn=3"]);
    assert_eq!(pair.take_events(Side::B), []);
}

/// Checks that a packet from another sender does not arm the QP.
//= RC-APM-04 type=test
#[test]
fn packets_of_other_hosts_do_not_arm() {
    let mut pair = Pair::new(two_ports);
    rearm(&mut pair);
    let mut ready = Request::new(Operation::WriteOnly, 0).reth(0, rocade_wire::Rkey::new(0), 0);
    ready.headers.bth.migreq = false;
    let alternate = (Side::A.alternate_ip(), Side::B.alternate_ip());
    pair.inject_from(Side::B, alternate.0, alternate.1, &ready.bytes());
    ready.headers.bth.pkey = Pkey::new(0x8009);
    ready.inject(&mut pair);
    assert_eq!(migration_of(&pair, Side::B), REARM);
    ready.headers.bth.pkey = Pkey::DEFAULT;
    ready.headers.bth.migreq = true;
    ready.inject(&mut pair);
    assert_eq!(
        migration_of(&pair, Side::B),
        REARM,
        "the peer cannot migrate"
    );
}

/// Checks that both paths support the same path MTU, and that each starts from an address of the
/// right IP version.
//= RC-APM-08 QPV-04 ENC-12 type=test
#[test]
fn the_alternate_path_has_to_fit() {
    let mut pair = Pair::new(two_ports);
    let now = pair.now();
    let attr = alternate(Side::A);
    let bad = Err(ModifyError::BadValue("alt_ah_attr"));
    let mut context = context(Side::A.alternate_ip());
    let qp = &mut pair.node_mut(Side::A).qp;
    context.alternate.active_mtu = rocade_wire::Mtu::Mtu512;
    assert_eq!(qp.modify(now, &attr, ALT, &context), bad);
    context.alternate.active_mtu = rocade_wire::Mtu::Mtu1024;
    context.alternate.sgid = None;
    assert_eq!(qp.modify(now, &attr, ALT, &context), bad);
    context.alternate.sgid = Some(Gid::from_ip(core::net::IpAddr::from([
        0xfd, 0, 0, 0, 0, 0, 0, 1,
    ])));
    assert_eq!(qp.modify(now, &attr, ALT, &context), bad);
    assert!(!qp.has_alternate());
    context.alternate.sgid = Some(Gid::from_ip(Side::A.alternate_ip()));
    assert_eq!(qp.modify(now, &attr, ALT, &context), Ok(()));
    assert!(qp.has_alternate());
}

/// Checks that RESET removes the alternate path.
//= RC-APM-01 type=test
#[test]
fn reset_forgets_the_alternate_path() {
    let mut pair = armed();
    pair.modify(
        Side::A,
        QpState::Reset,
        QpAttrMask::empty(),
        &QpAttr::default(),
    );
    assert!(!pair.node(Side::A).qp.has_alternate());
    assert_eq!(migration_of(&pair, Side::A), MIGRATED);
}

/// Checks that a READ in progress continues on the other path.
//= RC-APM-06 type=test
#[test]
fn half_a_read_is_enough() {
    let mut pair = armed();
    let src = register_filled(&pair, Side::B, 8 * PMTU, 4);
    let dst = register(&pair, Side::A, 8 * PMTU);
    let mut left = 3;
    pair.set_network(move |event| {
        if event.from == Side::A || is_alternate(event.from, event.path) {
            return Delivery::Deliver;
        }
        if left == 0 {
            return Delivery::Drop;
        }
        left -= 1;
        Delivery::Deliver
    });
    pair.send(Side::A, 1, read(&src), &[dst.sge()]);
    pair.run();
    let expected = [(1, WcStatus::Success)];
    assert_eq!(statuses(&pair.take_completions(Side::A)), expected);
    assert_eq!(pair.node(Side::A).mem.all(&dst), pattern(8 * PMTU, 4));
    let reads = operations(&pair, Side::A);
    assert_eq!(reads.last(), Some(&(Operation::ReadRequest, 4)));
}

/// Checks the terms of an ACK that another process sends: all fields that the QP would send itself.
//= RC-APM-02 RC-CRD-01 type=test
#[test]
fn an_acknowledgement_can_be_left_to_others() {
    let mut pair = Pair::new(two_ports);
    let said = |pair: &mut Pair| {
        talk(pair);
        let mut from_b = pair.trace().iter().filter(|t| t.from == Side::B);
        let ack = from_b.next_back().expect("an answer").packet();
        let aeth = ack.headers().aeth.expect("an acknowledgement");
        let rocade_wire::Syndrome::Ack(credits) = aeth.syndrome else {
            panic!("{ack}")
        };
        let terms = pair.node(Side::B).qp.ack_terms();
        assert_eq!(terms.opcode, ack.bth().opcode);
        assert_eq!(terms.credits, credits);
        assert_eq!(terms.migreq, ack.bth().migreq);
        terms
    };
    let alone = said(&mut pair);
    assert!(alone.migreq);
    rearm(&mut pair);
    let ready = said(&mut pair);
    assert!(!ready.migreq);
    pair.recv(Side::B, 9, &[]);
    let more = pair.node(Side::B).qp.ack_terms().credits;
    assert_ne!(more, ready.credits, "there is a receive");
    pair.modify(Side::B, QpState::Rts, MIG, &QpAttr::default());
    assert!(pair.node(Side::B).qp.ack_terms().migreq);
}
