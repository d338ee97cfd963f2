//! UD and UC between HCAs inside one process, without a broker, over real sockets.

#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "tests: a failure may panic, sizes are small"
)]

mod common;

use common::datagrams::{
    GRH, QKEY, address, completions, create, create_with, send_to, to_rts, ud, wait, wr,
};
use common::{ALL_ACCESS, Side, engine, pattern};
use rocade_emulator::{
    AddressVector, Ah, Connection, Datagram, DropReason, Gid, PostError, Psn, Qkey, Qp, QpAttr,
    QpAttrMask, QpState, QpType, Qpn, SendOp, SendWr, SrqInitAttr, VerbsError, WcFlags, WcStatus,
};

/// Two sides with a datagram QP each, and an address handle from the first to the second.
fn pair(a: &str, b: &str) -> (Side, Side, Qp, Qp, Ah) {
    let (a, b) = (Side::new(a, 1 << 16), Side::new(b, 1 << 16));
    let (from, to) = (ud(&a), ud(&b));
    let ah = a.pd.create_ah(&address(b.gid())).unwrap();
    (a, b, from, to, ah)
}

//= UD-07 type=test
//= UD-08 type=test
//= UD-14 type=test
//= UD-15 type=test
#[test]
fn datagrams_arrive_with_their_header() {
    for (a, b, ip_at) in [("127.2.0.1", "127.2.0.2", 20), ("::1", "::1", 0)] {
        let a = Side::new(a, 1 << 16);
        let b = if b == "::1" {
            Side::on(a.engine.clone(), 1 << 16)
        } else {
            Side::new(b, 1 << 16)
        };
        let (from, to) = (ud(&a), ud(&b));
        let ah = a.pd.create_ah(&address(b.gid())).unwrap();
        for (wr_id, len) in (0..).zip([0, 1, 100, 1024, 4096]) {
            a.fill(0, &pattern(len, 3));
            b.fill(0, &[0xee; 40]);
            to.recv_queue().push(wr_id, &[b.sge(0, GRH + len)]).unwrap();
            send_to(&from, &ah, &to, &wr(wr_id, &[a.sge(0, len)])).unwrap();
            assert_eq!(a.completion().status, WcStatus::Success);
            let received = b.completion();
            assert_eq!(
                (received.wr_id, received.status),
                (wr_id, WcStatus::Success)
            );
            assert_eq!(received.byte_len as usize, GRH + len);
            assert_eq!(received.src_qp, from.qp_num());
            assert_eq!(received.sl, if ip_at == 20 { 0xa } else { 0x9 });
            assert_eq!(received.qp_num, to.qp_num());
            assert_eq!(received.wc_flags, WcFlags::GRH);
            let header = b.bytes(0, GRH);
            assert_eq!(header[..ip_at], vec![0; ip_at]);
            assert_eq!(header[ip_at] >> 4, if ip_at == 20 { 4 } else { 6 });
            assert_eq!(b.bytes(GRH, len), pattern(len, 3));
        }
    }
}

/// A datagram QP can send to itself, and to another QP of the same address.
//= UD-15 type=test
#[test]
fn a_queue_pair_can_write_to_itself_and_its_neighbours() {
    let a = Side::new("127.2.0.3", 1 << 16);
    let (from, other) = (ud(&a), ud(&a));
    let ah = a.pd.create_ah(&address(a.gid())).unwrap();
    a.fill(0, b"echo");
    for to in [&from, &other] {
        to.recv_queue().push(5, &[a.sge(1000, 100)]).unwrap();
        send_to(&from, &ah, to, &wr(6, &[a.sge(0, 4)])).unwrap();
        let mut ids: Vec<_> = completions(&a, 2)
            .iter()
            .map(|c| (c.wr_id, c.qp_num))
            .collect();
        ids.sort_by_key(|(wr_id, _)| *wr_id);
        assert_eq!(ids, [(5, to.qp_num()), (6, from.qp_num())]);
        assert_eq!(a.bytes(1000 + GRH, 4), b"echo");
    }
}

//= UD-03 type=test
//= QPC-05 type=test
//= ENC-14 type=test
#[test]
fn addresses_that_lead_nowhere_are_refused() {
    let a = Side::new("127.2.0.4", 4096);
    let good = address(a.gid());
    let v6 = Gid::from_ip("2001:db8::1".parse().unwrap());
    let bad = [
        AddressVector {
            is_global: false,
            ..good
        },
        AddressVector {
            port_num: 0,
            ..good
        },
        AddressVector {
            port_num: 2,
            ..good
        },
        AddressVector { sl: 16, ..good },
        AddressVector {
            sgid_index: 7,
            ..good
        },
        AddressVector {
            dgid: Gid::default(),
            ..good
        },
        AddressVector { dgid: v6, ..good },
    ];
    for address in bad {
        let error = a.pd.create_ah(&address).unwrap_err();
        assert_eq!(error.errno(), 22, "{address:?}");
    }
    let ah = a.pd.create_ah(&good).unwrap();
    assert_eq!(*ah.address(), good);
    assert!(matches!(a.pd.destroy(), Err(VerbsError::Busy(_))));
    // A handle of another domain, a destroyed one, and none at all.
    let other = a.context.alloc_pd().unwrap();
    let foreign = other.create_ah(&good).unwrap();
    let qp = ud(&a);
    let sges = [a.sge(0, 4)];
    assert_eq!(
        send_to(&qp, &foreign, &qp, &wr(1, &sges))
            .unwrap_err()
            .errno(),
        22
    );
    ah.destroy().unwrap();
    assert_eq!(ah.destroy().unwrap_err().errno(), 22);
    assert_eq!(
        send_to(&qp, &ah, &qp, &wr(1, &sges)).unwrap_err().errno(),
        22
    );
    let posted = qp.post_sends(|queue| queue.push(&wr(1, &sges)));
    assert!(matches!(
        posted,
        Err(VerbsError::Post(PostError::NoDestination))
    ));
    assert!(matches!(other.destroy(), Err(VerbsError::Busy(_))));
    drop(foreign);
    other.destroy().unwrap();
}

//= CQ-04 type=test
#[test]
fn a_queue_does_not_shrink_below_what_was_posted_for_it() {
    let a = Side::new("127.2.0.60", 1 << 16);
    let (from, to) = (ud(&a), ud(&a));
    let ah = a.pd.create_ah(&address(a.gid())).unwrap();
    for wr_id in 0..6 {
        send_to(&from, &ah, &to, &wr(wr_id, &[a.sge(0, 64)])).unwrap();
    }
    // The route may not be resolved yet.
    assert!(a.cq.resize(5).is_err());
    assert_eq!(completions(&a, 6).len(), 6);
    a.cq.resize(1).unwrap();
}

/// Datagrams are sent although their address handle was destroyed before.
//= DST-08 type=test
#[test]
fn an_address_handle_may_go_before_its_datagrams() {
    let (a, b, from, to, ah) = pair("127.2.0.5", "127.2.0.6");
    a.fill(0, &pattern(256, 1));
    for wr_id in 0..8 {
        to.recv_queue()
            .push(wr_id, &[b.sge(1000 * wr_id as usize, 296)])
            .unwrap();
    }
    from.post_sends(|queue| {
        for wr_id in 0..8 {
            let to = Datagram {
                ah: &ah,
                dest_qp: to.qp_num(),
                qkey: Qkey::new(QKEY),
            };
            queue
                .push_datagram(&wr(wr_id, &[a.sge(0, 256)]), to, None)
                .unwrap();
        }
        ah.destroy().unwrap();
        drop(ah);
    });
    assert!(
        completions(&a, 8)
            .iter()
            .all(|c| c.status == WcStatus::Success)
    );
    for received in completions(&b, 8) {
        assert_eq!(
            b.bytes(1000 * received.wr_id as usize + GRH, 256),
            pattern(256, 1)
        );
    }
}

/// More handles than a queue pair remembers routes, most of them to unused addresses.
#[test]
fn a_queue_pair_writes_to_many() {
    let (a, b, from, to, ah) = pair("127.2.0.7", "127.2.0.8");
    a.fill(0, b"hi");
    for round in 0..300u32 {
        let [_, _, high, low] = round.to_be_bytes();
        let unreachable = Gid::from_ip([127, 2, 100 + high, low].into());
        let other = a.pd.create_ah(&address(unreachable)).unwrap();
        send_to(&from, &other, &to, &wr(1, &[a.sge(0, 2)])).unwrap();
        if round % 50 == 0 {
            to.recv_queue().push(2, &[b.sge(0, 64)]).unwrap();
            send_to(&from, &ah, &to, &wr(3, &[a.sge(0, 2)])).unwrap();
            assert_eq!(b.completion().wr_id, 2);
            assert_eq!(a.completion().status, WcStatus::Success);
        }
        assert_eq!(a.completion().status, WcStatus::Success);
    }
}

//= UD-05 type=test
//= UD-09 type=test
//= UD-10 type=test
//= GRH-06 type=test
#[test]
fn what_cannot_be_taken_is_dropped() {
    let (a, b, from, to, ah) = pair("127.2.0.9", "127.2.0.10");
    let sges = [a.sge(0, 100)];
    // Floods a QP without receives.
    for _ in 0..4 {
        for wr_id in 0..60 {
            send_to(&from, &ah, &to, &wr(wr_id, &sges)).unwrap();
        }
        assert!(
            completions(&a, 60)
                .iter()
                .all(|c| c.status == WcStatus::Success)
        );
    }
    wait(&b, || to.counters().dropped(DropReason::NoReceive) == 240);
    // A receive that is too short is not consumed.
    to.recv_queue().push(7, &[b.sge(0, GRH + 99)]).unwrap();
    send_to(&from, &ah, &to, &wr(1, &sges)).unwrap();
    wait(&b, || to.counters().dropped(DropReason::TooLong) == 1);
    let wrong_key = Datagram {
        ah: &ah,
        dest_qp: to.qp_num(),
        qkey: Qkey::new(QKEY + 1),
    };
    from.post_sends(|queue| queue.push_datagram(&wr(2, &sges), wrong_key, None))
        .unwrap();
    wait(&b, || to.counters().dropped(DropReason::BadQkey) == 1);
    // The port of the receiver counts it, that of the sender does not.
    let violations = |side: &Side| {
        let port = side.context.port_attr(1).unwrap();
        (port.bad_pkey_cntr, port.qkey_viol_cntr)
    };
    wait(&b, || violations(&b) == (0, 1));
    assert_eq!(violations(&a), (0, 0));
    send_to(&from, &ah, &to, &wr(3, &[a.sge(0, 99)])).unwrap();
    assert_eq!(b.completion().wr_id, 7);
    assert_eq!(to.state(), QpState::Rts);
}

/// A local error stops only the send queue. Inline data is sent as it was when posted.
//= UD-02 type=test
//= UD-12 type=test
#[test]
fn a_local_error_stops_the_send_queue() {
    let (a, b, from, to, ah) = pair("127.2.0.11", "127.2.0.12");
    send_to(&from, &ah, &to, &wr(1, &[a.sge(0, 4097)])).unwrap();
    assert_eq!(a.completion().status, WcStatus::LocLenErr);
    assert_eq!(from.state(), QpState::Sqe);
    send_to(&from, &ah, &to, &wr(2, &[a.sge(0, 4)])).unwrap();
    assert_eq!(a.completion().status, WcStatus::WrFlushErr);
    let attr = QpAttr {
        qp_state: QpState::Rts.code(),
        ..QpAttr::default()
    };
    from.modify(&attr, QpAttrMask::STATE).unwrap();
    to.recv_queue().push(3, &[b.sge(0, 64)]).unwrap();
    let to = Datagram {
        ah: &ah,
        dest_qp: to.qp_num(),
        qkey: Qkey::new(QKEY),
    };
    from.post_sends(|queue| queue.push_datagram(&wr(4, &[]), to, Some(b"inline")))
        .unwrap();
    assert_eq!(b.completion().byte_len as usize, GRH + 6);
    assert_eq!(b.bytes(GRH, 6), b"inline");
}

/// Only a privileged process may set a Q_Key with the highest bit.
//= QPV-05 type=test
//= UD-06 type=test
#[test]
fn controlled_q_keys_need_a_privilege() {
    let a = Side::new("127.2.0.13", 4096);
    let qp = create(&a, QpType::Ud);
    let attr = QpAttr {
        qp_state: QpState::Init.code(),
        port_num: 1,
        qkey: 0x8001_0000,
        ..QpAttr::default()
    };
    let mask = QpAttrMask::STATE | QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | QpAttrMask::QKEY;
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let caps = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:\t"))
        .unwrap();
    let has_net_raw = u64::from_str_radix(caps, 16).unwrap() & 1 << 13 != 0;
    match qp.modify(&attr, mask) {
        Ok(()) => assert!(has_net_raw),
        Err(error) => assert_eq!((error.errno(), has_net_raw), (1, false)),
    }
}

//= UC-01 type=test
//= UC-02 type=test
#[test]
fn unreliable_connections_carry_messages_and_writes() {
    let (a, b) = (
        Side::new("127.2.0.14", 1 << 20),
        Side::new("127.2.0.15", 1 << 20),
    );
    let (from, to) = (create(&a, QpType::Uc), create(&b, QpType::Uc));
    for (qp, peer, gid) in [(&from, &to, b.gid()), (&to, &from, a.gid())] {
        qp.connect(ALL_ACCESS, &Connection::to(gid, peer.qp_num()))
            .unwrap();
    }
    let data = pattern(100_000, 9);
    a.fill(0, &data);
    to.recv_queue().push(1, &[b.sge(0, 100_000)]).unwrap();
    from.post_sends(|queue| queue.push(&wr(2, &[a.sge(0, 100_000)])))
        .unwrap();
    assert_eq!(a.completion().status, WcStatus::Success);
    assert_eq!(b.completion().byte_len, 100_000);
    assert_eq!(b.bytes(0, 100_000), data);
    to.recv_queue().push(3, &[]).unwrap();
    let op = SendOp::Write {
        va: b.addr(500_000),
        rkey: b.mr.rkey(),
        imm: Some([1, 2, 3, 4]),
    };
    let write = SendWr { op, ..wr(4, &[]) };
    from.post_sends(|queue| {
        queue.push(&SendWr {
            sges: &[a.sge(0, 100_000)],
            ..write
        })
    })
    .unwrap();
    assert_eq!(b.completion().wr_id, 3);
    assert_eq!(b.bytes(500_000, 100_000), data);
    let read = SendOp::Read {
        va: b.addr(0),
        rkey: b.mr.rkey(),
    };
    let posted = from.post_sends(|queue| {
        queue.push(&SendWr {
            op: read,
            ..wr(5, &[])
        })
    });
    assert!(matches!(
        posted,
        Err(VerbsError::Post(PostError::UnsupportedOpcode))
    ));
}

/// A connected RC queue pair accepts no address handle.
#[test]
fn connected_queue_pairs_take_no_address() {
    let a = Side::new("127.2.0.16", 4096);
    let ah = a.pd.create_ah(&address(a.gid())).unwrap();
    let connection = Connection {
        rq_psn: Psn::new(0),
        ..Connection::to(a.gid(), Qpn::new(a.qp.qp_num().get()))
    };
    a.qp.connect(ALL_ACCESS, &connection).unwrap();
    let error = send_to(&a.qp, &ah, &a.qp, &wr(1, &[a.sge(0, 4)])).unwrap_err();
    assert!(matches!(error, VerbsError::Post(PostError::NoDestination)));
    let _ = engine("127.2.0.17");
}

/// SRQs serve UD and UC like RC.
//= QPC-03 type=test
#[test]
fn shared_receives_serve_every_service() {
    let a = Side::new("127.2.0.18", 1 << 16);
    let srq_init = SrqInitAttr {
        max_wr: 8,
        max_sge: 1,
        cookie: 3,
    };
    for qp_type in [QpType::Ud, QpType::Uc] {
        let srq = a.pd.create_srq(srq_init).unwrap();
        let from = create(&a, qp_type);
        let to = create_with(&a, qp_type, Some(&srq));
        let header = if qp_type == QpType::Ud { GRH } else { 0 };
        srq.recv_queue().push(5, &[a.sge(1000, 100)]).unwrap();
        a.fill(0, b"shared");
        let source = [a.sge(0, 6)];
        let wr = wr(6, &source);
        if qp_type == QpType::Ud {
            to_rts(&from, QKEY);
            to_rts(&to, QKEY);
            let ah = a.pd.create_ah(&address(a.gid())).unwrap();
            send_to(&from, &ah, &to, &wr).unwrap();
        } else {
            for (qp, other) in [(&from, &to), (&to, &from)] {
                let connection = Connection {
                    rq_psn: Psn::new(0),
                    ..Connection::to(a.gid(), other.qp_num())
                };
                qp.connect(ALL_ACCESS, &connection).unwrap();
            }
            from.post_sends(|queue| queue.push(&wr)).unwrap();
        }
        let mut done = completions(&a, 2);
        done.sort_by_key(|completion| completion.wr_id);
        assert_eq!((done[0].wr_id, done[0].status), (5, WcStatus::Success));
        assert_eq!(done[0].byte_len as usize, header + 6);
        assert_eq!((done[1].wr_id, done[1].status), (6, WcStatus::Success));
        assert_eq!(a.bytes(1000 + header, 6), b"shared");
        let own = to.recv_queue().push(7, &[a.sge(1000, 100)]);
        assert_eq!(own.unwrap_err().errno(), 22);
        to.destroy().unwrap();
        srq.destroy().unwrap();
    }
}
