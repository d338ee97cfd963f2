//! Tests that apply to UD only.

use super::*;
use crate::Violations;
use crate::tests::order::new_drops;

//= UD-07 type=test
//= UD-08 type=test
//= UD-14 type=test
//= GRH-01 type=test
//= GRH-02 type=test
#[test]
fn a_datagram_brings_its_network_header() {
    for len in [0, 1, 63, 4096] {
        let mut pair = ud();
        let src = register_filled(&pair, Side::A, len.max(1), 3);
        let dst = register(&pair, Side::B, GRH_LEN + len);
        pair.recv(Side::B, 1, &[dst.part(0, 30), dst.part(30, 10 + len)]);
        datagram(&mut pair, 2, to_b(QKEY), &[src.part(0, len)]);
        pair.run();
        assert_eq!(
            statuses(&pair.take_completions(Side::A)),
            [(2, WcStatus::Success)]
        );
        let received = pair.take_completions(Side::B);
        assert_eq!(statuses(&received), [(1, WcStatus::Success)], "{len}");
        assert_eq!(received[0].byte_len, GRH_LEN + len);
        assert_eq!(received[0].src_qp, Qpn::new(0x11));
        assert_eq!(received[0].wc_flags, WcFlags::GRH);
        let bytes = pair.node(Side::B).mem.all(&dst);
        assert_eq!(bytes[..20], [0; 20]);
        let header = &bytes[20..40];
        assert_eq!((header[0], header[8], header[9]), (0x45, 64, 17));
        assert_eq!(header[12..], [10, 0, 0, 1, 10, 0, 0, 2]);
        let total = u16::from_be_bytes([header[2], header[3]]);
        // IP, UDP, BTH, DETH, payload and pad, ICRC.
        let padded = (len + 3) & !3;
        assert_eq!(u32::from(total), 20 + 8 + 12 + 8 + padded + 4);
        let sum: u32 = header
            .chunks(2)
            .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])))
            .sum();
        assert_eq!(
            (sum & 0xffff) + (sum >> 16),
            0xffff,
            "the checksum is right"
        );
        assert_eq!(bytes[40..], pattern(len.max(1), 3)[..len as usize]);
        assert!(pair.trace().iter().all(|t| t.from == Side::A));
    }
}

/// Returns a datagram for B, from any sender.
fn ud_packet(qkey: u32, imm: Option<[u8; 4]>, payload: &[u8]) -> Vec<u8> {
    let operation = if imm.is_some() {
        Operation::SendOnlyImm
    } else {
        Operation::SendOnly
    };
    let opcode = Opcode::of(Service::Ud, operation).expect("defined");
    let mut headers = Headers::new(Bth::new(opcode, Qpn::new(0x22), Psn::new(0xabcdef)));
    headers.bth.pad_count = [0, 3, 2, 1][payload.len() % 4];
    headers.bth.solicited = imm.is_some();
    headers.deth = Some(Deth {
        qkey: Qkey::new(qkey),
        resv: 0,
        src_qp: Qpn::new(0x77_7777),
    });
    headers.imm = imm.map(ImmDt);
    with_payload(&headers, payload)
}

fn deliver(pair: &mut Pair, source: IpAddr, bytes: &[u8]) {
    let packet = Packet::parse(bytes).expect("a packet");
    let meta = PacketMeta {
        source,
        destination: IpAddr::from([10, 0, 0, 2]),
        traffic_class: 0x68,
        hop_limit: 3,
    };
    let now = pair.now();
    let node = pair.node_mut(Side::B);
    node.qp.handle_packet(now, &meta, &packet, &node.mem);
    pair.drain_both();
}

//= UD-11 type=test
//= UD-14 type=test
#[test]
fn any_host_may_send_a_datagram() {
    let mut pair = Pair::in_states(QpState::Rts, QpState::Rtr, |_, setup| as_ud(setup));
    let dst = register(&pair, Side::B, 64);
    pair.recv(Side::B, 1, &[dst.sge()]);
    let bytes = ud_packet(QKEY, Some([4, 3, 2, 1]), b"hello");
    deliver(&mut pair, IpAddr::from([192, 0, 2, 9]), &bytes);
    let received = pair.take_completions(Side::B);
    assert_eq!(statuses(&received), [(1, WcStatus::Success)]);
    assert_eq!(received[0].src_qp, Qpn::new(0x77_7777));
    assert_eq!(received[0].imm_or_inv, ImmOrInv::Imm([4, 3, 2, 1]));
    assert_eq!(received[0].wc_flags, WcFlags::GRH | WcFlags::WITH_IMM);
    assert!(received[0].solicited);
    assert_eq!(received[0].sl, 0xa, "an IPv4 header");
    let bytes = pair.node(Side::B).mem.all(&dst);
    assert_eq!(
        (bytes[21], bytes[28]),
        (0x68, 3),
        "traffic class and hop limit"
    );
    assert_eq!(bytes[32..36], [192, 0, 2, 9]);
    assert_eq!(&bytes[40..45], b"hello");
    assert!(
        pair.take_events(Side::B).is_empty(),
        "no connection is established"
    );
}

//= UD-05 type=test
//= UD-09 type=test
//= GRH-06 type=test
//= UD-10 type=test
//= UD-01 type=test
#[test]
fn datagrams_that_cannot_be_taken_are_dropped_and_counted() {
    let mut pair = ud();
    let peer = Side::A.ip();
    deliver(&mut pair, peer, &ud_packet(QKEY, None, b"x"));
    assert_eq!(dropped(&pair, Side::B, DropReason::NoReceive), 1);
    let dst = register(&pair, Side::B, 44);
    pair.recv(Side::B, 1, &[dst.sge()]);
    deliver(&mut pair, peer, &ud_packet(QKEY + 1, None, b"x"));
    assert_eq!(dropped(&pair, Side::B, DropReason::BadQkey), 1);
    deliver(&mut pair, peer, &ud_packet(QKEY, None, b"12345"));
    assert_eq!(dropped(&pair, Side::B, DropReason::TooLong), 1);
    deliver(&mut pair, peer, &ud_packet(QKEY, None, &[0; 4097]));
    assert_eq!(dropped(&pair, Side::B, DropReason::Malformed), 1);
    let mut padded = ud_packet(QKEY, None, b"");
    padded[1] |= 1 << 4;
    padded.insert(20, 0);
    deliver(&mut pair, peer, &padded);
    assert_eq!(dropped(&pair, Side::B, DropReason::Malformed), 2);
    for low in (0..32).filter(|low| !matches!(low, 4 | 5)) {
        let mut other = ud_packet(QKEY, None, b"x");
        other[0] = 0x60 | low;
        deliver(&mut pair, peer, &other);
    }
    assert_eq!(dropped(&pair, Side::B, DropReason::Reserved), 30);
    let mut of_rc = ud_packet(QKEY, None, b"x");
    of_rc[0] = 4;
    deliver(&mut pair, peer, &of_rc);
    assert_eq!(dropped(&pair, Side::B, DropReason::WrongService), 1);
    let mut foreign = ud_packet(QKEY, None, b"x");
    foreign[2..4].copy_from_slice(&[0x12, 0x34]);
    deliver(&mut pair, peer, &foreign);
    assert_eq!(dropped(&pair, Side::B, DropReason::BadPkey), 1);
    // The port counts both, once.
    let qp = &mut pair.node_mut(Side::B).qp;
    let both = Violations { pkey: 1, qkey: 1 };
    assert_eq!(qp.take_violations(), Some(both));
    assert_eq!(qp.take_violations(), None);
    assert!(pair.take_completions(Side::B).is_empty());
    // The receive was not consumed.
    deliver(&mut pair, peer, &ud_packet(QKEY, None, b"1234"));
    assert_eq!(
        statuses(&pair.take_completions(Side::B)),
        [(1, WcStatus::Success)]
    );
    assert_eq!(state(&pair, Side::B), QpState::Rts);
}

/// Checks that all 32 bits of the Q_Key are compared. The bit with a special meaning for the sender
/// has none here.
//= UD-05 UD-06 type=test
#[test]
fn privileged_q_keys_are_compared_like_all_others() {
    for own in [QKEY, CONTROLLED | QKEY, 0x8001_0000] {
        let mut pair = Pair::new(|side, setup| {
            as_ud(setup);
            if side == Side::B {
                setup.attr.qkey = own;
            }
        });
        let dst = register(&pair, Side::B, 64);
        pair.recv(Side::B, 1, &[dst.sge()]);
        let others = [
            own ^ CONTROLLED,
            own ^ 1,
            CONTROLLED,
            0x8000_ffff,
            0x8001_0000,
            u32::MAX,
            0,
        ];
        let others = others.into_iter().filter(|other| *other != own);
        for (count, other) in (1..).zip(others) {
            deliver(&mut pair, Side::A.ip(), &ud_packet(other, None, b"x"));
            let bad = dropped(&pair, Side::B, DropReason::BadQkey);
            assert_eq!(bad, count, "{other:#x} where {own:#x} is right");
        }
        assert!(pair.take_completions(Side::B).is_empty());
        deliver(&mut pair, Side::A.ip(), &ud_packet(own, None, b"x"));
        let received = pair.take_completions(Side::B);
        assert_eq!(statuses(&received), [(1, WcStatus::Success)]);
    }
}

/// Checks that a packet with several faults is counted once, for the first of them.
//= BTH-14 UD-05 UD-09 type=test
#[test]
fn datagrams_with_several_faults_count_for_the_first() {
    let mut pair = ud();
    let (foreign, wrong) = ([0x12, 0x34], QKEY + 1);
    let is_rc = |bytes: &mut Vec<u8>| bytes[0] = 4;
    let in_other_partition = |bytes: &mut Vec<u8>| bytes[2..4].copy_from_slice(&foreign);
    let is_reserved = |bytes: &mut Vec<u8>| bytes[0] = 0x66;
    type Edit<'a> = &'a dyn Fn(&mut Vec<u8>);
    // No receive is posted, which is the last fault of each.
    let cases: [(u32, &[Edit<'_>], DropReason); 5] = [
        (
            wrong,
            &[&is_rc, &in_other_partition],
            DropReason::WrongService,
        ),
        (
            wrong,
            &[&in_other_partition, &is_reserved],
            DropReason::BadPkey,
        ),
        (wrong, &[&is_reserved], DropReason::Reserved),
        (wrong, &[], DropReason::BadQkey),
        (QKEY, &[], DropReason::NoReceive),
    ];
    for (qkey, edits, reason) in cases {
        let mut bytes = ud_packet(qkey, None, b"x");
        edits.iter().for_each(|edit| edit(&mut bytes));
        let before = pair.node(Side::B).qp.counters();
        deliver(&mut pair, Side::A.ip(), &bytes);
        let after = pair.node(Side::B).qp.counters();
        assert_eq!(new_drops(&before, &after), [reason]);
    }
}

/// Checks that a receive that was too short for a message is flushed first.
//= RC-STA-01 type=test
#[test]
fn a_receive_that_was_given_back_is_flushed_first() {
    let mut pair = ud();
    let dst = register(&pair, Side::B, 41);
    pair.recv(Side::B, 1, &[dst.sge()]);
    pair.recv(Side::B, 2, &[dst.sge()]);
    deliver(&mut pair, Side::A.ip(), &ud_packet(QKEY, None, b"long"));
    assert_eq!(pair.node(Side::B).qp.recv_queue_len(), 2);
    pair.modify(
        Side::B,
        QpState::Err,
        QpAttrMask::empty(),
        &QpAttr::default(),
    );
    pair.drain_both();
    let flushed = pair.take_completions(Side::B);
    assert_eq!(
        statuses(&flushed),
        [(1, WcStatus::WrFlushErr), (2, WcStatus::WrFlushErr)]
    );
}

//= UD-04 type=test
//= UD-06 type=test
#[test]
fn a_controlled_q_key_stands_for_the_senders_own() {
    for (asked, sent) in [
        (QKEY, QKEY),
        (5, 5),
        (CONTROLLED, 0x4242),
        (0xffff_ffff, 0x4242),
        (0x8001_0000, 0x4242),
    ] {
        let mut pair = Pair::new(|side, setup| {
            as_ud(setup);
            if side == Side::A {
                setup.attr.qkey = 0x4242;
            }
        });
        let src = register(&pair, Side::A, 1);
        datagram(&mut pair, 1, to_b(asked), &[src.sge()]);
        pair.run();
        let deth = pair.trace()[0].packet().headers().deth.expect("a datagram");
        assert_eq!((deth.qkey, deth.src_qp), (Qkey::new(sent), Qpn::new(0x11)));
        let taken = dropped(&pair, Side::B, DropReason::NoReceive);
        assert_eq!(taken, u64::from(sent == QKEY));
    }
}

//= UD-02 type=test
#[test]
fn a_datagram_longer_than_the_mtu_is_not_sent() {
    let mut pair = ud();
    let src = register(&pair, Side::A, 4097);
    datagram(&mut pair, 1, to_b(QKEY), &[src.part(0, 4096)]);
    datagram(&mut pair, 2, to_b(QKEY), &[src.sge()]);
    pair.run();
    let sent = pair.take_completions(Side::A);
    assert_eq!(
        statuses(&sent),
        [(1, WcStatus::Success), (2, WcStatus::LocLenErr)]
    );
    assert_eq!(pair.trace().len(), 1);
    assert_eq!(state(&pair, Side::A), QpState::Sqe);
}

//= UD-03 type=test
//= UD-11 type=test
#[test]
fn a_run_takes_one_route_and_may_have_many_destinations() {
    let setup = {
        let mut setup = Setup::new(0x11, Side::A.ip(), 0, Side::B.ip());
        as_ud(&mut setup);
        setup
    };
    let mut qp = setup.build(QpState::Rts);
    let mem = TestMemory::new();
    let src = mem.register(64, AccessFlags::empty());
    let routes = [7, 7, 8, 8, 7];
    for (index, &route) in (0u32..).zip(&routes) {
        let to = Destination {
            route: RouteTag(route),
            dest_qp: Qpn::new(index),
            qkey: Qkey::new(0),
        };
        let wr = wr(index.into(), send(), &[]);
        let wr = SendWr {
            sges: &[src.sge()],
            ..wr
        };
        qp.post_datagram(Time::ZERO, &wr, to, None).unwrap();
    }
    assert_eq!(
        qp.queued_routes().map(|tag| tag.0).collect::<Vec<_>>(),
        routes
    );
    let mut tx = TxBuffer::new(65_000, 64);
    let mut runs = Vec::new();
    let mut psn = Psn::new(setup.attr.sq_psn);
    loop {
        tx.clear();
        qp.poll_transmit(Time::ZERO, &mem, AckPlacement::First, &mut tx);
        // Only the previous content of the buffer is complete.
        assert_eq!(
            qp.pending_completions().len(),
            runs.iter().map(Vec::len).sum()
        );
        if tx.is_empty() {
            break;
        }
        let mut run = Vec::new();
        let route = tx.route().0;
        tx.for_each_segment(|segment, _| {
            let packet = Packet::parse(segment).unwrap();
            assert_eq!(packet.bth().psn, psn);
            psn = psn.next();
            run.push((route, packet.bth().dest_qp.get()));
        });
        runs.push(run);
    }
    assert_eq!(
        runs,
        [vec![(7, 0), (7, 1)], vec![(8, 2), (8, 3)], vec![(7, 4)]]
    );
}

/// Checks that each type accepts its own attributes only.
//= UD-13 type=test
#[test]
fn a_datagram_queue_pair_needs_a_q_key_and_no_peer() {
    let mut setup = Setup::new(0x11, Side::A.ip(), 0, Side::B.ip());
    as_ud(&mut setup);
    let mut qp = setup.build(QpState::Reset);
    let attr = |state: QpState| QpAttr {
        qp_state: state.code(),
        ..setup.attr
    };
    let init = QpAttrMask::STATE | QpAttrMask::PKEY_INDEX | QpAttrMask::PORT;
    let context = context(setup.local);
    let mut modify = |state, mask| qp.modify(Time::ZERO, &attr(state), mask, &context).is_ok();
    assert!(!modify(QpState::Init, init));
    assert!(!modify(
        QpState::Init,
        init | QpAttrMask::QKEY | QpAttrMask::ACCESS_FLAGS
    ));
    assert!(modify(QpState::Init, init | QpAttrMask::QKEY));
    assert!(!modify(QpState::Rtr, QpAttrMask::STATE | QpAttrMask::AV));
    assert!(modify(QpState::Rtr, QpAttrMask::STATE));
    assert!(modify(QpState::Rts, QpAttrMask::STATE | QpAttrMask::SQ_PSN));
}
