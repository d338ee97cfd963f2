//! Tests with lost, unsolicited and malformed messages.

use super::*;

/// Checks that messages that match no connection are counted and have no effect.
#[test]
fn the_unsolicited_has_no_effect() {
    let mut pair = Pair::new();
    let (a, b) = pair.connection();
    let elsewhere = CommId::new(0x0377_7777);
    let from_third_host = |pair: &mut Pair, message: CmMessage| {
        let route = CmRoute {
            local: [10, 0, 0, 2].into(),
            remote: [10, 0, 0, 3].into(),
        };
        let mad = Mad::new(TransactionId::new(5), message).to_bytes();
        pair.b.handle_mad(pair.now, route, &mad);
    };
    let drep = |local_id, remote_id| {
        CmMessage::Drep(rocade_wire::mad::Drep {
            local_id,
            remote_id,
            private_data: [0; 224],
        })
    };
    let mra = CmMessage::Mra(Mra {
        local_id: a,
        remote_id: b,
        received: Rejected::Req,
        service_timeout: CmTimeout::new(31),
        private_data: [0; 222],
    });
    let mut wrong_rep = rep(0x66);
    wrong_rep.local_id = a;
    wrong_rep.remote_id = b;
    let sidr = SidrRep {
        request_id: b,
        ..refusal(SidrStatus::Success)
    };
    let ours = vec![
        rtu(elsewhere, b),
        drep(a, b),
        mra,
        CmMessage::Rep(wrong_rep),
        CmMessage::SidrRep(sidr),
        rej(elsewhere, b, Rejected::Rep, RejReason::Consumer),
    ];
    for message in ours {
        let before = pair.b.counters().rx_unsolicited;
        pair.send_to_b(message.clone());
        let after = pair.b.counters();
        // On the other side only, a REP may have caused the repetition of an RTU.
        assert_eq!(
            after.rx_unsolicited + after.rx_duplicates,
            before + 1,
            "{message}"
        );
        assert_eq!((pair.b.poll_event(), pair.b.poll_transmit()), (None, None));
        if let CmMessage::Rep(_) = message {
            pair = Pair::new();
            pair.connection();
        }
    }
    let (a, b) = {
        pair = Pair::new();
        pair.connection()
    };
    for message in [
        rtu(a, b),
        rej(a, b, Rejected::LapOrOther, RejReason::Consumer),
        rej(a, b, Rejected::Req, RejReason::Consumer),
    ] {
        let before = pair.b.counters().rx_unsolicited;
        from_third_host(&mut pair, message);
        assert_eq!(pair.b.counters().rx_unsolicited, before + 1);
        assert_eq!((pair.b.poll_event(), pair.b.poll_transmit()), (None, None));
    }
    let before = pair.b.counters().rx_malformed;
    for len in [0, 1, 24, 255, 257] {
        pair.b.handle_mad(pair.now, back(to_b()), &vec![1; len]);
    }
    pair.b.handle_mad(pair.now, back(to_b()), &[0; 256]);
    assert_eq!(pair.b.counters().rx_malformed, before + 6);
    // The connection is unchanged.
    pair.a.disconnect(pair.now, a, &[]).unwrap();
    assert_eq!(pair.event_of_b(), CmEvent::Disconnect { id: b });
}

/// Checks every event of every connection, in order, with a tenth of the datagrams lost.
#[test]
fn a_thousand_connections_on_a_lossy_network() {
    let mut pair = Pair::new();
    pair.loss = 100;
    let mut of_a: BTreeMap<CommId, VecDeque<&str>> = BTreeMap::new();
    let mut of_b: BTreeMap<CommId, VecDeque<&str>> = BTreeMap::new();
    let mut peer_of_b: BTreeMap<CommId, CommId> = BTreeMap::new();
    let mut done = 0;
    let mut started = 0;
    let expect = |log: &mut BTreeMap<CommId, VecDeque<&str>>, id: CommId, what: &str| {
        let next = log.get_mut(&id).and_then(VecDeque::pop_front);
        assert_eq!(next, Some(what), "{id}");
        log.get(&id).is_some_and(VecDeque::is_empty)
    };
    while done < 2_000 {
        if started < 1_000 {
            started += 1;
            let id = pair.a.connect(pair.now, to_b(), LIFE, req(started));
            of_a.insert(id, VecDeque::from(["reply"]));
        }
        assert!(pair.step(), "no event after {done}");
        while let Some(event) = pair.a.poll_event() {
            match event {
                CmEvent::Reply { id, rep } => {
                    expect(&mut of_a, id, "reply");
                    peer_of_b.insert(rep.local_id, id);
                    pair.a.ready(pair.now, id, &[]).unwrap();
                }
                CmEvent::Disconnected { id } => {
                    expect(&mut of_a, id, "disconnected");
                }
                CmEvent::Disconnect { id } => {
                    expect(&mut of_a, id, "disconnect");
                    pair.a.reply_to_disconnect(pair.now, id, &[]).unwrap();
                }
                CmEvent::TimewaitExit { id } => {
                    assert!(expect(&mut of_a, id, "exit"));
                    pair.a.destroy(pair.now, id);
                    done += 1;
                }
                other => panic!("{other:?}"),
            }
        }
        while let Some(event) = pair.b.poll_event() {
            match event {
                CmEvent::Request { id, req, .. } => {
                    of_b.insert(id, VecDeque::from(["ready"]));
                    assert_eq!(&req.private_data[..5], b"hello");
                    pair.b
                        .reply(pair.now, id, rep(req.qpn.get() + 50_000))
                        .unwrap();
                }
                CmEvent::Ready { id } => {
                    expect(&mut of_b, id, "ready");
                    let a = peer_of_b[&id];
                    let (at_a, at_b) = if id.get() % 2 == 0 {
                        pair.a.disconnect(pair.now, a, &[]).unwrap();
                        ("disconnected", "disconnect")
                    } else {
                        pair.b.disconnect(pair.now, id, &[]).unwrap();
                        ("disconnect", "disconnected")
                    };
                    of_a.insert(a, VecDeque::from([at_a, "exit"]));
                    of_b.insert(id, VecDeque::from([at_b, "exit"]));
                }
                CmEvent::Disconnect { id } => {
                    expect(&mut of_b, id, "disconnect");
                    pair.b.reply_to_disconnect(pair.now, id, &[]).unwrap();
                }
                CmEvent::Disconnected { id } => {
                    expect(&mut of_b, id, "disconnected");
                }
                CmEvent::TimewaitExit { id } => {
                    assert!(expect(&mut of_b, id, "exit"));
                    pair.b.destroy(pair.now, id);
                    done += 1;
                }
                other => panic!("{other:?}"),
            }
        }
    }
    while pair.step() {}
    assert_eq!((pair.a.poll_event(), pair.b.poll_event()), (None, None));
    assert!(pair.a.is_empty() && pair.b.is_empty());
    assert!(pair.a.by_remote_id.is_empty() && pair.a.by_remote_qp.is_empty());
    assert!(pair.b.by_remote_id.is_empty() && pair.b.by_remote_qp.is_empty());
    let retries = pair.a.counters().tx_retries + pair.b.counters().tx_retries;
    assert!(retries > 300, "{retries}");
}

/// Checks that random messages, and random commands of both owners, cause only errors and events.
#[test]
fn arbitrary_messages_are_no_trouble() {
    let mut pair = Pair::new();
    let mut ids: Vec<CommId> = Vec::new();
    for round in 0..20_000u32 {
        let mut mad = [0; Mad::LEN];
        for byte in &mut mad {
            *byte = if pair.random().is_multiple_of(4) {
                u8::try_from(pair.random() % 256).unwrap()
            } else {
                0
            };
        }
        mad[..4].copy_from_slice(&[1, 7, 2, 3]);
        mad[16] = 0;
        mad[17] = 0x10 + u8::try_from(pair.random() % 12).unwrap();
        if let Some(id) = ids.get(usize::try_from(pair.random() % 40).unwrap()) {
            mad[28..32].copy_from_slice(&id.get().to_be_bytes());
        }
        mad[32..40].copy_from_slice(&SERVICE.get().to_be_bytes());
        pair.b.handle_mad(pair.now, back(to_b()), &mad);
        while let Some(event) = pair.b.poll_event() {
            if let CmEvent::Request { id, .. } | CmEvent::ServiceRequest { id, .. } = event {
                ids.insert(0, id);
                ids.truncate(40);
            }
            assert!(!format!("{event:?}").is_empty());
        }
        if let Some(&id) = ids.get(usize::try_from(pair.random() % 40).unwrap()) {
            let _ = match pair.random() % 8 {
                0 => pair.b.reply(pair.now, id, rep(round)),
                1 => pair.b.ready(pair.now, id, &[]),
                2 => pair.b.disconnect(pair.now, id, &[]),
                3 => pair.b.reply_to_disconnect(pair.now, id, &[]),
                4 => pair.b.established(pair.now, id),
                5 => pair
                    .b
                    .reply_service(pair.now, id, refusal(SidrStatus::NoQp)),
                6 => {
                    pair.b.destroy(pair.now, id);
                    Ok(())
                }
                _ => pair.b.reject(pair.now, id, RejReason::Consumer, &[], &[]),
            };
        }
        while pair.b.poll_transmit().is_some() {}
        if round.is_multiple_of(16) {
            pair.pass(REP_INTERVAL);
        }
    }
    let all: Vec<CommId> = pair.b.conns.keys().copied().collect();
    for id in all {
        pair.b.destroy(pair.now, id);
    }
    while let Some(at) = pair.b.next_timeout() {
        pair.b.handle_timeout(at);
        while pair.b.poll_transmit().is_some() {}
    }
    assert!(pair.b.is_empty(), "{:?}", pair.b.conns);
    assert!(pair.b.by_remote_id.is_empty() && pair.b.by_remote_qp.is_empty());
    assert!(pair.b.by_request.is_empty() && pair.b.timers.is_empty());
}
