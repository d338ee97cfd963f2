//! Tests with other devices, sessions that are lost, forgotten or remembered, and hostile packets.

use super::*;

/// Checks that only ordinary datagrams go to an address that has not proved to run Rocade.
//= DCW-18 RXE-115 type=test
#[test]
fn a_peer_that_is_not_rocade_gets_no_vendor_packet() {
    let (mut fabric, dci, dcts) = star(2);
    let a = region(&fabric, dci, 64);
    let b = region(&fabric, dcts[1], 64);
    fabric.node_mut(dcts[0]).is_dead = true;
    let to = fabric.to(dci, dcts[0], KEY);
    fabric.post(dci, to, 1, write(&b, 0), &[a.part(0, 8)]);
    fabric.run();
    assert_eq!(
        statuses(&fabric.take_completions(dci)),
        [(1, WcStatus::RetryExcErr)]
    );
    assert_eq!(fabric.trace().len(), 8);
    assert!(
        fabric
            .trace()
            .iter()
            .all(|line| line.starts_with("UD SEND_ONLY"))
    );
    // An unsolicited answer, or one from another sender, proves nothing.
    recover(&mut fabric, dci);
    fabric.post(dci, to, 2, write(&b, 0), &[a.part(0, 8)]);
    let dci_num = fabric.node(dci).qp.qp_num();
    let answer = probe_bytes(dci_num, Qpn::new(9), RocadeProbe::Reply);
    let other = IpAddr::from([10, 0, 0, 77]);
    fabric.inject(other, dci, &answer);
    let ask = probe_bytes(dci_num, Qpn::new(9), RocadeProbe::Request);
    fabric.inject(to.remote, dci, &ask);
    fabric.run_for(MS);
    assert_eq!(count(&fabric, "DC "), 0);
    assert_eq!(
        fabric
            .node(dci)
            .qp
            .counters()
            .dropped(DropReason::WrongService),
        2
    );
    fabric.inject(to.remote, dci, &answer);
    assert_eq!(count(&fabric, "DC RDMA_WRITE_ONLY"), 1);
}

fn probe_bytes(to: Qpn, from: Qpn, probe: RocadeProbe) -> Vec<u8> {
    let opcode = Opcode::of(Service::Ud, Operation::SendOnly).unwrap();
    let mut headers = Headers::new(Bth::new(opcode, to, Psn::new(0)));
    headers.deth = Some(rocade_wire::Deth {
        qkey: rocade_wire::Qkey::new(RocadeProbe::QKEY),
        resv: 0,
        src_qp: from,
    });
    packet(&headers, &probe.to_bytes())
}

pub(super) fn packet(headers: &Headers, payload: &[u8]) -> Vec<u8> {
    let mut headers = *headers;
    headers.bth.pad_count = Bth::pad_for(payload.len());
    let mut bytes = vec![0; headers.len()];
    headers.emit(&mut bytes).unwrap();
    bytes.extend_from_slice(payload);
    let pad = usize::from(headers.bth.pad_count);
    bytes.resize(bytes.len() + pad + Fabric::ICRC_LEN, 0);
    bytes
}

/// Checks that an answer counts only from the right partition, and between the right addresses.
//= DCW-18 BTH-06 type=test
#[test]
fn only_the_answer_of_the_peer_that_was_asked_counts() {
    let (mut fabric, dci, dcts) = star(1);
    let (a, b) = (region(&fabric, dci, 64), region(&fabric, dcts[0], 64));
    let to = fabric.to(dci, dcts[0], KEY);
    fabric.set_network(|_| Delivery::Drop);
    fabric.post(dci, to, 1, write(&b, 0), &[a.part(0, 8)]);
    let answer = probe_bytes(
        fabric.node(dci).qp.qp_num(),
        Qpn::new(9),
        RocadeProbe::Reply,
    );
    let mut of_others = answer.clone();
    of_others[2..4].copy_from_slice(&[0x80, 0x01]);
    let elsewhere = IpAddr::from([10, 0, 0, 77]);
    let cases = [
        (to.remote, to.local, &of_others),
        (elsewhere, to.local, &answer),
        (to.remote, elsewhere, &answer),
    ];
    for (count_before, (source, destination, bytes)) in (0..).zip(cases) {
        inject_to(&mut fabric, dci, (source, destination), bytes);
        let counters = fabric.node(dci).qp.counters();
        let dropped = counters.dropped(DropReason::WrongService);
        assert_eq!(dropped, count_before + 1);
        assert_eq!(count(&fabric, "DC "), 0);
    }
    inject_to(&mut fabric, dci, (to.remote, to.local), &answer);
    assert_eq!(count(&fabric, "DC RDMA_WRITE_ONLY"), 1);
}

/// Delivers a packet that was sent to this address.
pub(super) fn inject_to(
    fabric: &mut Fabric,
    to: NodeId,
    (source, destination): (IpAddr, IpAddr),
    bytes: &[u8],
) {
    let meta = crate::PacketMeta {
        source,
        destination,
        traffic_class: 0,
        hop_limit: 64,
    };
    let parsed = rocade_wire::Packet::parse(bytes).expect("a packet");
    let now = fabric.now();
    let node = fabric.node_mut(to);
    node.qp.handle_packet(now, &meta, &parsed, &node.mem);
    fabric.drain(to);
}

/// Checks the order service, P_Key, address, access key, session: of two faults the first one
/// counts.
//= DCW-17 DCT-04 DCK-03 type=test
#[test]
fn a_target_drops_a_packet_for_the_first_of_its_faults() {
    let (mut fabric, dci, dcts) = star(1);
    let dct = dcts[0];
    let b = region(&fabric, dct, 64);
    let reth = Reth {
        va: b.addr,
        rkey: b.rkey,
        dma_len: 8,
    };
    let good = start_packet(&fabric, dci, dct, 100, 5, |headers| {
        headers.reth = Some(reth)
    });
    let reasons = [
        DropReason::WrongService,
        DropReason::BadPkey,
        DropReason::WrongAddress,
        DropReason::BadDcKey,
        DropReason::NoSession,
    ];
    let (source, own) = (fabric.node(dci).ip, fabric.node(dct).ip);
    let elsewhere = IpAddr::from([10, 0, 0, 77]);
    for first in 0..reasons.len() {
        for second in first..reasons.len() {
            let has = |fault: usize| fault == first || fault == second;
            let mut headers = good;
            if let Some(eth) = &mut headers.dceth {
                eth.key ^= u64::from(has(3));
                eth.start = !has(4);
            }
            if has(0) {
                headers.bth.opcode = Opcode::of(Service::Rc, Operation::WriteOnly).unwrap();
                headers.dceth = None;
            }
            if has(1) {
                headers.bth.pkey = Pkey::new(0x8001);
            }
            let destination = if has(2) { elsewhere } else { own };
            let before = fabric.node(dct).qp.counters();
            let bytes = packet(&headers, &[9; 8]);
            inject_to(&mut fabric, dct, (source, destination), &bytes);
            let after = fabric.node(dct).qp.counters();
            let drops = crate::tests::order::new_drops(&before, &after);
            assert_eq!(drops, [reasons[first]], "{first} {second}");
        }
    }
    assert_eq!(fabric.node(dct).mem.all(&b), [0; 64]);
    let status = fabric.node(dct).qp.target_status().unwrap();
    // The wrong key alone, and together with a missing session.
    assert_eq!((status.sessions, status.key_violations), (0, 2));
    inject_to(&mut fabric, dct, (source, own), &packet(&good, &[9; 8]));
    assert_eq!(fabric.node(dct).mem.bytes(&b, 0..8), [9; 8]);
}

/// Checks a lost START: the packet behind it is refused, and the initiator goes back once.
//= DCW-09 DCW-10 DCW-11 type=test
#[test]
fn a_lost_start_is_repeated_at_once() {
    let (mut fabric, dci, dcts) = star(1);
    let (a, b) = (region(&fabric, dci, 8192), region(&fabric, dcts[0], 8192));
    let mut lost = false;
    fabric.set_network(move |event| {
        let is_start = event.packet.headers().dceth.is_some_and(|eth| eth.start);
        if is_start && !lost {
            lost = true;
            return Delivery::Drop;
        }
        Delivery::Deliver
    });
    let to = fabric.to(dci, dcts[0], KEY);
    fabric.post(dci, to, 1, write(&b, 0), &[a.part(0, 8192)]);
    fabric.run_for(MS);
    assert_eq!(
        statuses(&fabric.take_completions(dci)),
        [(1, WcStatus::Success)]
    );
    assert_eq!(count(&fabric, "START"), 2);
    assert_eq!(count(&fabric, "NO_SESSION"), 7);
    assert_eq!(fabric.node(dci).qp.counters().timeouts, 0);
}

/// Checks that a session fails if the target has lost its state, because the packets in flight may
/// have been executed.
//= DCW-10 type=test
#[test]
fn a_session_that_is_forgotten_fails() {
    let mut fabric = Fabric::default();
    let dci = fabric.add_initiator(1, None, |_| {});
    let dct = fabric.add_target(2, KEY, |_| {});
    let (a, b) = (region(&fabric, dci, 64), region(&fabric, dct, 64));
    let to = fabric.to(dci, dct, KEY);
    fabric.post(dci, to, 1, write(&b, 0), &[a.part(0, 8)]);
    fabric.run_for(MS);
    let (number, ip) = (fabric.node(dct).qp.qp_num(), fabric.node(dct).ip);
    fabric.node_mut(dct).is_dead = true;
    let reborn = fabric.add_target(2, KEY, |setup| setup.config.qp_num = number);
    assert_eq!(fabric.node(reborn).ip, ip);
    fabric.post(dci, to, 2, write(&b, 0), &[a.part(0, 8)]);
    fabric.run();
    let ok = WcStatus::Success;
    let expected = [(1, ok), (2, WcStatus::RetryExcErr)];
    assert_eq!(statuses(&fabric.take_completions(dci)), expected);
}

/// Checks that a packet repeated after the end of its session is acknowledged and not executed, for
/// a minute.
//= DCW-12 DCW-14 DCW-15 type=test
#[test]
fn the_end_of_a_session_is_remembered() {
    let (mut fabric, dci, dcts) = star(1);
    let dct = dcts[0];
    let (a, b) = (region(&fabric, dci, 64), region(&fabric, dct, 64));
    let to = fabric.to(dci, dct, KEY);
    let (va, rkey) = (b.addr, b.rkey);
    let add = SendOp::FetchAdd { va, rkey, add: 1 };
    fabric.post(dci, to, 1, add, &[a.part(0, 8)]);
    fabric.run();
    let ip = fabric.node(dci).ip;
    let start = start_packet(&fabric, dci, dct, u32::MAX - 2, 0xff_fff0, |headers| {
        headers.bth.opcode = Opcode::of(Service::Dc, Operation::FetchAdd).unwrap();
        headers.reth = None;
        headers.atomic = Some(AtomicEth {
            va,
            rkey,
            swap_add: 1,
            compare: 0,
        });
    });
    let bytes = packet(&start, &[]);
    fabric.clear_trace();
    fabric.inject(ip, dct, &bytes);
    assert_eq!(fabric.node(dct).mem.atomics(), 1);
    assert!(
        fabric.trace()[0].contains("DC ACKNOWLEDGE"),
        "{:?}",
        fabric.trace()
    );
    assert!(
        fabric.trace()[0].contains("psn=0xfffff1") && fabric.trace()[0].contains(" ACK msn=1"),
        "{:?}",
        fabric.trace()
    );
    // A session that never began, and the DISCONNECT of such a session, are not answered.
    for end in [false, true] {
        let mut other = start;
        if let Some(eth) = &mut other.dceth {
            eth.session = u32::MAX - 3;
        }
        if end {
            other.bth.opcode = Opcode::of(Service::Dc, Operation::Disconnect).unwrap();
            other.atomic = None;
        }
        fabric.clear_trace();
        fabric.inject(ip, dct, &packet(&other, &[]));
        assert!(fabric.trace().is_empty());
    }
    // After a minute without packets, the first packet of another initiator removes the session.
    fabric.run_for(SESSION_MEMORY_NS + MS);
    let other = fabric.add_initiator(9, None, |_| {});
    let c = region(&fabric, other, 64);
    let to = fabric.to(other, dct, KEY);
    fabric.post(other, to, 1, write(&b, 8), &[c.part(0, 8)]);
    fabric.run();
    fabric.clear_trace();
    let mut late = start;
    if let Some(eth) = &mut late.dceth {
        eth.start = false;
    }
    fabric.inject(ip, dct, &packet(&late, &[]));
    assert!(fabric.trace()[0].contains("NO_SESSION"));
}

/// Returns the first packet of a session as an attacker might forge it: a WRITE of 8 bytes.
pub(super) fn start_packet(
    fabric: &Fabric,
    dci: NodeId,
    dct: NodeId,
    session: u32,
    psn: u32,
    edit: impl FnOnce(&mut Headers),
) -> Headers {
    let opcode = Opcode::of(Service::Dc, Operation::WriteOnly).unwrap();
    let to = fabric.node(dct).qp.qp_num();
    let mut headers = Headers::new(Bth::new(opcode, to, Psn::new(psn)));
    headers.bth.ack_req = true;
    headers.bth.pkey = Pkey::DEFAULT;
    headers.dceth = Some(DcEth {
        key: KEY,
        start: true,
        pmtu: 3,
        stream_channel: 0,
        dci: fabric.node(dci).qp.qp_num(),
        session,
    });
    headers.reth = Some(Reth::default());
    edit(&mut headers);
    headers
}

//= DCT-05 DCW-06 DCW-07 type=test
//= DCW-09 DCW-17 type=test
#[test]
fn hostile_packets_have_no_effect() {
    let (mut fabric, dci, dcts) = star(1);
    let dct = dcts[0];
    let b = region(&fabric, dct, 64);
    let ip = fabric.node(dci).ip;
    let reth = Reth {
        va: b.addr,
        rkey: b.rkey,
        dma_len: 8,
    };
    let good = start_packet(&fabric, dci, dct, 100, 5, |headers| {
        headers.reth = Some(reth)
    });
    type Edit = fn(&mut Headers);
    let cases: [(Edit, Option<DropReason>, &str); 8] = [
        (
            |h| h.bth.pkey = Pkey::new(0x8001),
            Some(DropReason::BadPkey),
            "",
        ),
        (
            |h| h.bth.opcode = Opcode::of(Service::Rc, Operation::WriteOnly).unwrap(),
            Some(DropReason::WrongService),
            "",
        ),
        (
            |h| h.bth.opcode = Opcode::new(0xdf),
            Some(DropReason::Reserved),
            "",
        ),
        (
            |h| h.dceth.as_mut().unwrap().key ^= 1 << 63,
            Some(DropReason::BadDcKey),
            "",
        ),
        (
            |h| h.dceth.as_mut().unwrap().start = false,
            Some(DropReason::NoSession),
            "NO_SESSION",
        ),
        (
            |h| h.dceth.as_mut().unwrap().pmtu = 0,
            None,
            "INVALID_REQUEST",
        ),
        (
            |h| h.dceth.as_mut().unwrap().pmtu = 4,
            None,
            "INVALID_REQUEST",
        ),
        (
            |h| h.dceth.as_mut().unwrap().pmtu = 7,
            None,
            "INVALID_REQUEST",
        ),
    ];
    for (edit, reason, answer) in cases {
        let mut headers = good;
        edit(&mut headers);
        let mut bytes = packet(&headers, &[9; 8]);
        if headers.bth.opcode.service() == Service::Rc {
            bytes = packet(
                &Headers {
                    dceth: None,
                    ..headers
                },
                &[9; 8],
            );
        }
        let before = reason.map(|reason| fabric.node(dct).qp.counters().dropped(reason));
        fabric.clear_trace();
        fabric.inject(ip, dct, &bytes);
        let after = reason.map(|reason| fabric.node(dct).qp.counters().dropped(reason));
        assert_eq!(after, before.map(|n| n + 1), "{headers}");
        match fabric.trace() {
            [] => assert_eq!(answer, "", "{headers}"),
            [line] => assert!(!answer.is_empty() && line.contains(answer), "{line}"),
            _ => panic!("{:?}", fabric.trace()),
        }
    }
    assert_eq!(fabric.node(dct).mem.all(&b), [0; 64]);
    assert_eq!(fabric.node(dct).qp.target_status().unwrap().sessions, 0);
    // First the valid packet, and then one of an earlier session.
    fabric.inject(ip, dct, &packet(&good, &[9; 8]));
    assert_eq!(fabric.node(dct).mem.bytes(&b, 0..8), [9; 8]);
    let mut older = good;
    older.dceth.as_mut().unwrap().session = 99;
    fabric.clear_trace();
    fabric.inject(ip, dct, &packet(&older, &[1; 8]));
    assert!(fabric.trace().is_empty());
    // A repeated START is an ordinary duplicate.
    fabric.inject(ip, dct, &packet(&good, &[2; 8]));
    assert!(fabric.trace()[0].contains("ACKNOWLEDGE"));
    assert_eq!(fabric.node(dct).mem.bytes(&b, 0..8), [9; 8]);
    // From another address it belongs to another session.
    fabric.inject(IpAddr::from([10, 0, 0, 50]), dct, &packet(&older, &[3; 8]));
    assert_eq!(fabric.node(dct).mem.bytes(&b, 0..8), [3; 8]);
    assert_eq!(fabric.node(dct).qp.target_status().unwrap().sessions, 2);

    // The responses are not of the session, or not from its target.
    let a = region(&fabric, dci, 64);
    let to = fabric.to(dci, dct, KEY);
    fabric.set_network(|event| {
        let is_ack = event.packet.headers().aeth.is_some();
        if is_ack {
            Delivery::Drop
        } else {
            Delivery::Deliver
        }
    });
    fabric.post(dci, to, 1, write(&b, 0), &[a.part(0, 8)]);
    fabric.run_for(MS);
    let number = fabric.node(dci).qp.qp_num();
    let ack = |session, psn, code| {
        let opcode = Opcode::of(Service::Dc, Operation::Acknowledge).unwrap();
        let mut headers = Headers::new(Bth::new(opcode, number, Psn::new(psn)));
        headers.dcreth = Some(DcRespEth { session });
        headers.aeth = Some(Aeth {
            syndrome: Syndrome::from_code(code),
            msn: Msn::new(1),
        });
        packet(&headers, &[])
    };
    let no_session = 0x60 | DcRespEth::NAK_NO_SESSION;
    let id = u32::MAX - 2;
    let psn = 0xff_fff0;
    for (source, bytes) in [
        (to.remote, ack(id + 1, psn, 0x1f)),
        (to.remote, ack(id + 1, psn, no_session)),
        (IpAddr::from([10, 0, 0, 50]), ack(id, psn, 0x1f)),
        (to.remote, ack(id, psn + 1, 0x1f)),
        (to.remote, ack(id, psn - 1, no_session)),
        (to.remote, ack(id, psn, 0x60 | NakCode::Reserved(9).code())),
    ] {
        fabric.inject(source, dci, &bytes);
        assert!(fabric.take_completions(dci).is_empty());
        assert_eq!(fabric.node(dci).qp.state(), QpState::Rts);
    }
    fabric.inject(to.remote, dci, &ack(id, psn, 0x1f));
    assert_eq!(
        statuses(&fabric.take_completions(dci)),
        [(1, WcStatus::Success)]
    );
}

/// Checks that an incomplete message returns its receive when its session ends.
//= DCW-09 type=test
#[test]
fn half_a_message_ends_with_its_session() {
    let (mut fabric, dci, dcts) = star(1);
    let dct = dcts[0];
    let b = region(&fabric, dct, 4096);
    let ip = fabric.node(dci).ip;
    fabric.recv(dct, 1, &[b.part(0, 4096)]);
    let first = |fabric: &Fabric, session| {
        let first = Opcode::of(Service::Dc, Operation::SendFirst).unwrap();
        start_packet(fabric, dci, dct, session, 5, |h| {
            h.reth = None;
            h.bth.opcode = first;
        })
    };
    let (one, two) = (
        packet(&first(&fabric, 1), &[1; 1024]),
        packet(&first(&fabric, 2), &[2; 1024]),
    );
    fabric.inject(ip, dct, &one);
    assert!(fabric.take_completions(dct).is_empty());
    fabric.recv(dct, 2, &[b.part(0, 4096)]);
    fabric.inject(ip, dct, &two);
    assert_eq!(
        statuses(&fabric.take_completions(dct)),
        [(1, WcStatus::WrFlushErr)]
    );
    let mut end = first(&fabric, 2);
    end.bth.opcode = Opcode::of(Service::Dc, Operation::Disconnect).unwrap();
    end.bth.psn = Psn::new(6);
    end.dceth.as_mut().unwrap().start = false;
    fabric.inject(ip, dct, &packet(&end, &[]));
    assert_eq!(
        statuses(&fabric.take_completions(dct)),
        [(2, WcStatus::WrFlushErr)]
    );
    assert_eq!(fabric.node(dct).qp.target_status().unwrap().sessions, 0);
}

//= DCT-09 DCW-16 type=test
#[test]
fn a_draining_target_serves_its_sessions_and_takes_no_others() {
    let mut fabric = Fabric::default();
    let dct = fabric.add_target(1, KEY, |_| {});
    let (one, two) = (
        fabric.add_initiator(2, None, |_| {}),
        fabric.add_initiator(3, None, |_| {}),
    );
    let b = region(&fabric, dct, 64);
    let (a, c) = (region(&fabric, one, 64), region(&fabric, two, 64));
    let to = fabric.to(one, dct, KEY);
    fabric.post(one, to, 1, write(&b, 0), &[a.part(0, 8)]);
    fabric.run_for(MS);
    fabric.node_mut(dct).qp.drain_sessions();
    fabric.post(one, to, 2, write(&b, 0), &[a.part(0, 8)]);
    let other = fabric.to(two, dct, KEY);
    fabric.post(two, other, 3, write(&b, 0), &[c.part(0, 8)]);
    fabric.run_for(SESSION_IDLE_NS / 2);
    let ok = WcStatus::Success;
    assert_eq!(statuses(&fabric.take_completions(one)), [(1, ok), (2, ok)]);
    let status = fabric.node(dct).qp.target_status().unwrap();
    assert!(status.is_draining && status.sessions == 1);
    fabric.run();
    assert_eq!(fabric.node(dct).qp.target_status().unwrap().sessions, 0);
    assert_eq!(
        statuses(&fabric.take_completions(two)),
        [(3, WcStatus::RetryExcErr)]
    );
}

/// Checks that an initiator waits if the target has no room for a session, as after an RNR NAK.
//= DCW-11 type=test
#[test]
fn no_resources_is_a_reason_to_wait() {
    let (mut fabric, dci, dcts) = star(1);
    let (a, b) = (region(&fabric, dci, 64), region(&fabric, dcts[0], 64));
    let mut refusals = 3;
    fabric.set_network(move |event| {
        let headers = event.packet.headers();
        if headers.aeth.is_none() || refusals == 0 {
            return Delivery::Deliver;
        }
        refusals -= 1;
        let mut nak = *headers;
        nak.aeth = Some(Aeth {
            syndrome: Syndrome::Nak(NakCode::Reserved(DcRespEth::NAK_NO_RESOURCES)),
            msn: Msn::new(0),
        });
        Delivery::Replace(packet(&nak, &[]))
    });
    let to = fabric.to(dci, dcts[0], KEY);
    let before = fabric.now();
    fabric.post(dci, to, 1, write(&b, 0), &[a.part(0, 8)]);
    while fabric.node(dci).completions.is_empty() {
        assert!(fabric.step(before.plus_ns(100 * MS)));
    }
    assert_eq!(
        statuses(&fabric.take_completions(dci)),
        [(1, WcStatus::Success)]
    );
    assert!(fabric.now().ns_since(before) > 3 * 1_280_000);
    assert_eq!(count(&fabric, "DC RDMA_WRITE_ONLY"), 4);
}

/// A target, and initiators that send it the first packet of a session each.
struct Flood {
    fabric: Fabric,
    dct: NodeId,
    good: Headers,
}

impl Flood {
    const MAX: u32 = 16_384;

    fn new() -> Self {
        assert_eq!(Self::MAX as usize, crate::dc::MAX_SESSIONS);
        let (fabric, dci, dcts) = star(1);
        let dct = dcts[0];
        let b = region(&fabric, dct, 64);
        let reth = Reth {
            va: b.addr,
            rkey: b.rkey,
            dma_len: 0,
        };
        let good = start_packet(&fabric, dci, dct, 100, 5, |headers| {
            headers.reth = Some(reth)
        });
        Self { fabric, dct, good }
    }

    /// Sends the packet of each of these initiators.
    fn send(&mut self, initiators: core::ops::Range<u32>) {
        for n in initiators {
            let mut headers = self.good;
            let eth = headers.dceth.as_mut().unwrap();
            eth.dci = Qpn::new(n);
            let ip = IpAddr::from([10, 0, 9, 9]);
            self.fabric.inject(ip, self.dct, &packet(&headers, &[]));
        }
    }

    fn sessions(&self) -> usize {
        self.fabric
            .node(self.dct)
            .qp
            .target_status()
            .unwrap()
            .sessions
    }
}

/// Checks that a full table costs a further START no more than a look at the oldest sessions,
/// whether they are due or not. A flood of STARTs must not take the target's time.
//= DCW-11 DCW-15 type=test
#[test]
fn a_start_at_a_full_table_looks_at_the_oldest_sessions_alone() {
    const FURTHER: u32 = 100;
    let mut flood = Flood::new();
    flood.send(0..Flood::MAX - 1);
    flood.fabric.run_for(SESSION_MEMORY_NS / 2);
    flood.send(Flood::MAX - 1..Flood::MAX);
    let visits = |flood: &Flood| flood.fabric.node(flood.dct).qp.session_visits();
    assert_eq!(visits(&flood), 0, "no session is due while the table fills");
    flood.send(Flood::MAX..Flood::MAX + FURTHER);
    assert_eq!(visits(&flood), 0, "no session is due at the full table");
    // All sessions have had a packet since, so that each is looked at once and kept.
    flood.send(0..Flood::MAX);
    flood.fabric.run_for(SESSION_MEMORY_NS / 2);
    flood.send(Flood::MAX..Flood::MAX + FURTHER);
    assert_eq!(flood.sessions(), Flood::MAX as usize);
    assert!(visits(&flood) <= Flood::MAX, "{} looks", visits(&flood));
}

/// Checks that the number of sessions is bounded. Those of a flood are removed after a minute.
//= DCW-11 DCW-15 type=test
#[test]
fn a_flood_of_sessions_is_bounded() {
    let mut flood = Flood::new();
    flood.send(0..Flood::MAX);
    assert_eq!(flood.sessions(), Flood::MAX as usize);
    flood.fabric.clear_trace();
    flood.send(Flood::MAX..Flood::MAX + 1);
    assert!(flood.fabric.trace()[0].contains("NO_RESOURCES"));
    assert_eq!(flood.sessions(), Flood::MAX as usize);
    flood.fabric.run_for(SESSION_MEMORY_NS);
    flood.send(Flood::MAX..Flood::MAX + 1);
    assert_eq!(flood.sessions(), 1);
}

/// Checks that a full table keeps the sessions that are in use, for as long as they are.
//= DCW-14 DCW-15 type=test
#[test]
fn only_silent_sessions_give_way() {
    let mut flood = Flood::new();
    flood.send(0..Flood::MAX);
    for minutes in 1..4 {
        flood.fabric.run_for(SESSION_MEMORY_NS / 2);
        flood.send(0..100);
        flood.fabric.run_for(SESSION_MEMORY_NS / 2);
        let newcomers = 1_000_000 * minutes;
        flood.send(newcomers..newcomers + 7);
        assert_eq!(flood.sessions(), 107, "{minutes}");
    }
    // Half a minute after the last packets, no session has been silent for a minute.
    flood.fabric.run_for(SESSION_MEMORY_NS / 2 - MS);
    flood.send(5_000_000..5_000_001);
    assert_eq!(flood.sessions(), 108);
}
