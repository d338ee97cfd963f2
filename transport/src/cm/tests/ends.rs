//! Tests of rejections, disconnections and datagram services.

use super::*;

//= CM-ST-08 type=test
#[test]
fn who_gives_up_says_so() {
    let mut pair = Pair::new();
    let (a, b) = pair.request();
    pair.a.destroy(pair.now, a);
    let CmEvent::Rejected { id, rej } = pair.event_of_b() else {
        panic!()
    };
    assert_eq!((id, rej.reason), (b, RejReason::Timeout));
    assert_eq!((rej.local_id, rej.remote_id), (a, CommId::new(0)));
    assert_eq!(rej.rejected, Rejected::LapOrOther);
    assert_eq!(rej.timeout_guid(), Some(Guid::new(0xaaaa)));
    assert!(pair.a.is_empty());
    pair.b.destroy(pair.now, b);
    assert!(pair.b.is_empty());
    pair.run_until_idle();
}

//= CM-ST-08 type=test
#[test]
fn a_rejection_matches_by_what_it_rejects() {
    let mut pair = Pair::new();
    let (a, b) = pair.connection();
    let wrong = CommId::new(b.get() + 1);
    let consumer = RejReason::Consumer;
    for message in [
        rej(wrong, a, Rejected::LapOrOther, consumer),
        rej(CommId::new(0), a, Rejected::LapOrOther, consumer),
        rej(b, CommId::new(a.get() + 1), Rejected::Req, consumer),
        rej(b, a, Rejected::LapOrOther, RejReason::Timeout),
    ] {
        let counted = pair.a.counters().rx_unsolicited;
        pair.send_to_a(message.clone());
        let expected = u64::from(!matches!(
            &message,
            CmMessage::Rej(m) if m.reason == RejReason::Timeout
        ));
        // Without a GUID, a REJ because of a timeout is matched like any other.
        assert_eq!(pair.a.counters().rx_unsolicited, counted + expected);
    }
    assert!(matches!(
        pair.a.poll_event(),
        Some(CmEvent::Rejected { .. })
    ));
    // An established connection enters TimeWait first.
    assert_eq!(pair.a.next_timeout(), Some(pair.now.plus_ns(TIMEWAIT)));
    pair.pass(TIMEWAIT);
    assert_eq!(pair.a.poll_event(), Some(CmEvent::TimewaitExit { id: a }));
}

//= CM-ST-08 type=test
#[test]
fn a_stale_connection_rests() {
    let mut pair = Pair::new();
    let (a, b) = pair.request();
    pair.send_to_a(rej(b, a, Rejected::Req, RejReason::StaleConnection));
    assert!(matches!(
        pair.a.poll_event(),
        Some(CmEvent::Rejected { .. })
    ));
    assert_eq!(pair.a.next_timeout(), Some(pair.now.plus_ns(TIMEWAIT)));
}

/// Checks the case of a peer that has lost its connection, and makes another one with the same QP.
//= CM-ST-04 type=test
#[test]
fn a_qp_has_one_connection() {
    let mut pair = Pair::new();
    let (_, b) = pair.connection();
    let again = CmMessage::Req(Req {
        local_id: CommId::new(0x0300_7777),
        ca_guid: Guid::new(0xaaaa),
        ..req(0x11)
    });
    pair.send_to_b(again.clone());
    let CmMessage::Rej(rej) = pair.said_by_b() else {
        panic!()
    };
    assert_eq!(rej.reason, RejReason::StaleConnection);
    assert_eq!(rej.remote_id, CommId::new(0x0300_7777));
    let CmMessage::Dreq(dreq) = pair.said_by_b() else {
        panic!()
    };
    assert_eq!((dreq.local_id, dreq.remote_qpn), (b, Qpn::new(0x11)));
    assert_eq!(pair.b.poll_event(), None);
    // Another adapter may have a QP of the same number.
    let CmMessage::Req(other) = again else {
        panic!()
    };
    pair.send_to_b(CmMessage::Req(Req {
        ca_guid: Guid::new(0xcccc),
        ..other
    }));
    assert!(matches!(pair.b.poll_event(), Some(CmEvent::Request { .. })));
}

/// The connection of a QP has ended at both sides, and the QP is connected again during TimeWait.
//= CM-ST-04 type=test
#[test]
fn a_qp_may_connect_again_at_once() {
    let mut pair = Pair::new();
    let (a, b) = pair.connection();
    pair.a.disconnect(pair.now, a, &[]).unwrap();
    pair.settle();
    assert_eq!(pair.event_of_b(), CmEvent::Disconnect { id: b });
    pair.b.reply_to_disconnect(pair.now, b, &[]).unwrap();
    pair.settle();
    assert_eq!(pair.event_of_a(), CmEvent::Disconnected { id: a });
    let (next_a, next_b) = pair.connection();
    assert!(next_a != a && next_b != b);
    // The end of TimeWait of the old connection does not make the new one forget its QP.
    pair.pass(TIMEWAIT);
    let again = Req {
        local_id: CommId::new(0x0300_7777),
        ca_guid: Guid::new(0xaaaa),
        ..req(0x11)
    };
    pair.send_to_b(CmMessage::Req(again));
    assert!(matches!(
        pair.said_by_b(),
        CmMessage::Rej(m) if m.reason == RejReason::StaleConnection
    ));
}

//= CM-ST-06 type=test
#[test]
fn a_dreq_names_the_queue_pair() {
    let mut pair = Pair::new();
    let (a, b) = pair.connection();
    pair.send_to_b(dreq(a, b, 0x23));
    assert_eq!((pair.b.poll_event(), pair.b.poll_transmit()), (None, None));
    // A DREQ for an unknown connection is answered, so that the peer stops repeating it.
    pair.send_to_b(dreq(CommId::new(0x0300_9999), b, 0x22));
    let CmMessage::Drep(drep) = pair.said_by_b() else {
        panic!()
    };
    assert_eq!(
        (drep.local_id, drep.remote_id),
        (b, CommId::new(0x0300_9999))
    );
    assert_eq!(pair.b.poll_event(), None);
    assert_eq!(pair.b.counters().rx_unsolicited, 2);
    pair.send_to_b(dreq(a, b, 0x22));
    assert_eq!(pair.b.poll_event(), Some(CmEvent::Disconnect { id: b }));
}

/// Checks the case of a peer that has died after its REP, whose DREQ is not repeated.
//= CM-ST-03 type=test
#[test]
fn a_dreq_before_the_confirmation_counts_after_it() {
    let mut pair = Pair::new();
    let (a, b) = pair.replied();
    pair.send_to_a(dreq(b, a, 0x11));
    assert_eq!((pair.a.poll_event(), pair.a.poll_transmit()), (None, None));
    pair.a.ready(pair.now, a, &[]).unwrap();
    assert!(matches!(pair.said_by_a(), CmMessage::Rtu(_)));
    assert_eq!(pair.a.poll_event(), Some(CmEvent::Disconnect { id: a }));
    pair.a.reply_to_disconnect(pair.now, a, &[]).unwrap();
    assert!(matches!(pair.said_by_a(), CmMessage::Drep(_)));
    pair.pass(TIMEWAIT);
    assert_eq!(pair.a.poll_event(), Some(CmEvent::TimewaitExit { id: a }));
}

//= CM-ST-03 type=test
#[test]
fn both_may_disconnect_at_once() {
    let mut pair = Pair::new();
    let (a, b) = pair.connection();
    pair.a.disconnect(pair.now, a, &[]).unwrap();
    pair.b.disconnect(pair.now, b, &[]).unwrap();
    assert_eq!(pair.event_of_a(), CmEvent::Disconnect { id: a });
    assert_eq!(pair.event_of_b(), CmEvent::Disconnect { id: b });
    pair.a.reply_to_disconnect(pair.now, a, &[]).unwrap();
    pair.b.reply_to_disconnect(pair.now, b, &[]).unwrap();
    pair.run_until_idle();
    pair.pass(TIMEWAIT);
    assert_eq!(pair.event_of_a(), CmEvent::TimewaitExit { id: a });
    assert_eq!(pair.event_of_b(), CmEvent::TimewaitExit { id: b });
}

//= CM-ST-10 type=test
#[test]
fn who_leaves_takes_leave() {
    let mut pair = Pair::new();
    let (a, b) = pair.request();
    pair.b.destroy(pair.now, b);
    let CmEvent::Rejected { id, rej } = pair.event_of_a() else {
        panic!()
    };
    assert_eq!((id, rej.reason), (a, RejReason::Consumer));
    assert!(pair.b.is_empty());

    let mut pair = Pair::new();
    let (a, b) = pair.replied();
    pair.a.destroy(pair.now, a);
    let CmEvent::Rejected { id, rej } = pair.event_of_b() else {
        panic!()
    };
    assert_eq!((id, rej.reason), (b, RejReason::Consumer));

    let mut pair = Pair::new();
    let (a, b) = pair.connection();
    pair.a.destroy(pair.now, a);
    assert_eq!(pair.event_of_b(), CmEvent::Disconnect { id: b });
    pair.b.destroy(pair.now, b);
    pair.run_until_idle();
    assert_eq!(pair.a.counters().tx_messages, 3);
    pair.pass(TIMEWAIT);
    pair.run_until_idle();
    assert!(pair.a.is_empty() && pair.b.is_empty());

    // An ignored request is not answered, and is accepted when it is repeated.
    let mut pair = Pair::new();
    let (_, b) = pair.request();
    pair.b.ignore(pair.now, b);
    assert!(pair.b.is_empty() && pair.b.poll_transmit().is_none());
    pair.pass(REQ_INTERVAL);
    assert!(matches!(pair.event_of_b(), CmEvent::Request { .. }));
}

/// Checks that a DREQ is repeated until it is answered, even if the owner has destroyed the
/// connection.
#[test]
fn a_disconnection_survives_its_owner() {
    let mut pair = Pair::new();
    let (a, b) = pair.connection();
    pair.a.disconnect(pair.now, a, &[]).unwrap();
    let _lost = pair.said_by_a();
    pair.a.destroy(pair.now, a);
    pair.pass(REQ_INTERVAL);
    assert_eq!(pair.event_of_b(), CmEvent::Disconnect { id: b });
    pair.b.reply_to_disconnect(pair.now, b, &[]).unwrap();
    pair.run_until_idle();
    pair.pass(TIMEWAIT);
    assert!(pair.a.is_empty());
    assert_eq!(pair.a.poll_event(), None);
}

/// Checks that commands are refused in the wrong state, and have no effect.
#[test]
fn commands_need_their_state() {
    let mut pair = Pair::new();
    let none = CommId::new(0x0300_0000);
    assert_eq!(pair.a.ready(pair.now, none, &[]), Err(CmError::UnknownId));
    let (a, b) = pair.connection();
    let wrong = Err(CmError::WrongState);
    assert_eq!(pair.a.ready(pair.now, a, &[]), wrong);
    assert_eq!(pair.a.established(pair.now, a), wrong);
    assert_eq!(pair.a.reply_to_disconnect(pair.now, a, &[]), wrong);
    assert_eq!(pair.b.reply(pair.now, b, rep(3)), wrong);
    let service = pair.b.reply_service(pair.now, b, refusal(SidrStatus::NoQp));
    assert_eq!(service, wrong);
    let consumer = RejReason::Consumer;
    assert_eq!(pair.b.reject(pair.now, b, consumer, &[], &[]), wrong);
    pair.run_until_idle();
    pair.a.disconnect(pair.now, a, &[]).unwrap();
    assert_eq!(pair.a.disconnect(pair.now, a, &[]), wrong);
}

//= EVT-08 type=test
#[test]
fn a_packet_is_as_good_as_an_rtu() {
    let mut pair = Pair::new();
    let (a, b) = pair.replied();
    pair.b.established(pair.now, b).unwrap();
    pair.a.ready(pair.now, a, &[]).unwrap();
    pair.run_until_idle();
    assert_eq!(pair.b.counters().rx_duplicates, 1);
    assert_eq!(pair.b.next_timeout(), None);
}

//= CM-ST-12 type=test
//= CM-SIDR-S type=test
#[test]
fn a_datagram_service_is_found() {
    let mut pair = Pair::new();
    let a = pair
        .a
        .request_service(pair.now, to_b(), REP_INTERVAL, 15, sidr_req());
    let CmEvent::ServiceRequest { id: b, req, .. } = pair.event_of_b() else {
        panic!()
    };
    assert_eq!(
        (req.request_id, &req.private_data[..6]),
        (a, &b"where?"[..])
    );
    let found = SidrRep {
        qpn: Qpn::new(0x44),
        qkey: Qkey::new(0x0123_4567),
        ..refusal(SidrStatus::Success)
    };
    pair.b.reply_service(pair.now, b, found).unwrap();
    pair.b.destroy(pair.now, b);
    let _lost = pair.said_by_b();
    // The repeated request gets the same answer, without the program.
    pair.pass(REP_INTERVAL);
    let CmEvent::ServiceReply { id, rep } = pair.event_of_a() else {
        panic!()
    };
    assert_eq!((id, rep.qpn, rep.service_id), (a, Qpn::new(0x44), SERVICE));
    pair.run_until_idle();
    assert_eq!(pair.a.next_timeout(), None);
    pair.pass(100_000 * MS);
    assert!(pair.b.is_empty());

    pair.b.unlisten(SERVICE);
    pair.a
        .request_service(pair.now, to_b(), REP_INTERVAL, 15, sidr_req());
    let CmEvent::ServiceReply { rep, .. } = pair.event_of_a() else {
        panic!()
    };
    assert_eq!(rep.status, SidrStatus::ServiceIdNotSupported);
    pair.b.listen(SERVICE);
    pair.a
        .request_service(pair.now, to_b(), REP_INTERVAL, 15, sidr_req());
    let CmEvent::ServiceRequest { id: b, .. } = pair.event_of_b() else {
        panic!()
    };
    pair.b.destroy(pair.now, b);
    let CmEvent::ServiceReply { rep, .. } = pair.event_of_a() else {
        panic!()
    };
    assert_eq!(rep.status, SidrStatus::Rejected);

    pair.loss = 1000;
    let sent = pair.sent;
    let a = pair
        .a
        .request_service(pair.now, to_b(), REP_INTERVAL, 15, sidr_req());
    while pair.a.next_timeout().is_some() {
        pair.step();
    }
    assert_eq!(pair.a.poll_event(), Some(CmEvent::ServiceTimeout { id: a }));
    assert_eq!(pair.sent - sent, 16);
}

/// Checks that an XRC target has its number in the field of the end-to-end context, and may outlive
/// its connection.
//= CM-FLD-09 type=test
//= CM-ST-10 type=test
#[test]
fn a_target_ends_without_a_word() {
    let mut pair = Pair::new();
    let xrc = Req {
        transport: TransportType::Xrc,
        ..req(0x11)
    };
    let a = pair.a.connect(pair.now, to_b(), LIFE, xrc);
    let CmEvent::Request { id: b, req, .. } = pair.event_of_b() else {
        panic!()
    };
    assert_eq!(req.transport, TransportType::Xrc);
    let target = Rep {
        eecn: Qpn::new(0x22),
        ..rep(0)
    };
    pair.b.reply(pair.now, b, target).unwrap();
    assert!(matches!(pair.event_of_a(), CmEvent::Reply { .. }));
    pair.a.ready(pair.now, a, &[]).unwrap();
    assert_eq!(pair.event_of_b(), CmEvent::Ready { id: b });

    // No peer has to be notified if the process is killed.
    let mut conn_records = std::iter::from_fn(|| pair.b.poll_conn_record());
    assert_eq!(conn_records.find(|(id, _)| *id == b), Some((b, None)));

    // Either side may send the DREQ, which names the receiver's queue pair.
    pair.send_to_b(dreq(a, b, 0x11));
    assert_eq!(pair.b.poll_event(), None);
    let sent = pair.sent;
    pair.b.destroy(pair.now, b);
    pair.run_until_idle();
    assert_eq!(pair.sent, sent);
    assert!(pair.b.is_empty());
    // The connection has no owner any more. The DREQ is still answered.
    pair.a.disconnect(pair.now, a, &[]).unwrap();
    let CmMessage::Dreq(message) = pair.said_by_a() else {
        panic!()
    };
    assert_eq!(message.remote_qpn, Qpn::new(0x22));
    pair.send_to_b(CmMessage::Dreq(message));
    assert_eq!(pair.event_of_a(), CmEvent::Disconnected { id: a });
}

//= CM-ST-11 type=test
//= CM-APR-S type=test
#[test]
fn alternate_paths_are_refused() {
    let mut pair = Pair::new();
    let (a, b) = pair.connection();
    let lap_to = |remote_id, qpn| {
        CmMessage::Lap(Lap {
            local_id: a,
            remote_id,
            remote_qpn: Qpn::new(qpn),
            remote_response_timeout: CmTimeout::new(20),
            alternate: CmPath::NONE,
            private_data: [0; 168],
        })
    };
    // The status is "not supported", or a mismatch of the queue pair.
    for (qpn, code) in [(0x22, 2), (0x23, 6)] {
        pair.send_to_b(lap_to(b, qpn));
        let CmMessage::Apr(apr) = pair.said_by_b() else {
            panic!()
        };
        assert_eq!(apr.status.code(), code);
        assert_eq!((apr.local_id, apr.remote_id), (b, a));
    }
    pair.send_to_b(lap_to(CommId::new(b.get() + 1), 0x22));
    assert!(pair.b.poll_transmit().is_none());
    // An unsolicited answer has no effect.
    let counted = pair.a.counters().rx_unsolicited;
    pair.send_to_a(CmMessage::Apr(Apr {
        local_id: b,
        remote_id: a,
        info_len: 0,
        status: ApStatus::NotSupported,
        info: [0; 72],
        private_data: [0; 148],
    }));
    assert_eq!(pair.a.counters().rx_unsolicited, counted + 1);
    pair.run_until_idle();
}

/// Checks that offers of a path without a connection, from another peer, or in large numbers have
/// no effect. Each is answered at most once.
//= CM-ST-11 MAD-07 type=test
#[test]
fn offers_of_paths_change_nothing() {
    let lap = |local_id, remote_id, qpn| {
        CmMessage::Lap(Lap {
            local_id,
            remote_id,
            remote_qpn: Qpn::new(qpn),
            remote_response_timeout: CmTimeout::new(31),
            alternate: CmPath {
                local_gid: Gid::from_ip([10, 0, 0, 3].into()),
                remote_gid: Gid::from_ip([10, 0, 0, 2].into()),
                sl: 0xf,
                ..CmPath::NONE
            },
            private_data: [0xff; 168],
        })
    };
    let ignored = |pair: &mut Pair, a: CommId, b: CommId| {
        pair.settle();
        let counted = [&pair.a, &pair.b].map(|cm| cm.counters().rx_unsolicited);
        pair.send_to_a(lap(b, a, 0x11));
        pair.send_to_b(lap(a, b, 0x22));
        let now = [&pair.a, &pair.b].map(|cm| cm.counters().rx_unsolicited);
        assert_eq!(now, counted.map(|count| count + 1));
        assert!(pair.a.poll_transmit().is_none() && pair.b.poll_transmit().is_none());
    };
    let mut pair = Pair::new();
    let (a, b) = pair.request();
    ignored(&mut pair, a, b);
    pair.b.reply(pair.now, b, rep(0x22)).unwrap();
    assert!(matches!(pair.event_of_a(), CmEvent::Reply { .. }));
    ignored(&mut pair, a, b);
    pair.a.ready(pair.now, a, &[]).unwrap();
    assert_eq!(pair.event_of_b(), CmEvent::Ready { id: b });

    // The LAPs are from another peer, for another connection, and for none.
    let third_host = CmRoute {
        remote: [10, 0, 0, 9].into(),
        ..back(to_b())
    };
    let mad = Mad::new(TransactionId::new(5), lap(a, b, 0x22)).to_bytes();
    let counted = pair.b.counters().rx_unsolicited;
    pair.b.handle_mad(pair.now, third_host, &mad);
    for (local_id, remote_id) in [(CommId::new(9), b), (a, CommId::new(9)), (b, a)] {
        pair.send_to_b(lap(local_id, remote_id, 0x22));
    }
    assert_eq!(pair.b.counters().rx_unsolicited, counted + 4);
    assert!(pair.b.poll_transmit().is_none());
    let (before, due) = (pair.b.len(), pair.b.next_timeout());
    for _ in 0..1000 {
        pair.send_to_b(lap(a, b, 0x22));
        let CmMessage::Apr(apr) = pair.said_by_b() else {
            panic!()
        };
        assert_eq!(apr.status, ApStatus::NotSupported);
        assert!(pair.b.poll_transmit().is_none());
    }
    assert_eq!((pair.b.len(), pair.b.next_timeout()), (before, due));
    pair.run_until_idle();

    pair.a.disconnect(pair.now, a, &[]).unwrap();
    assert_eq!(pair.event_of_b(), CmEvent::Disconnect { id: b });
    ignored(&mut pair, a, b);
    pair.b.reply_to_disconnect(pair.now, b, &[]).unwrap();
    assert_eq!(pair.event_of_a(), CmEvent::Disconnected { id: a });
    ignored(&mut pair, a, b);
}
