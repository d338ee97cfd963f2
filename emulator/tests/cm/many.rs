//! Many connections at a time.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use rocade_emulator::cm::{CmEventKind as Kind, CmId};
use rocade_emulator::{BrokerMode, Engine, EngineConfig, QpState, Qpn};

use super::{Node, PATIENCE, addr, conn, param};

/// The events of a connection on each side.
type Story = Vec<Kind>;

/// A tenth of all datagrams to QP 1 is lost, others are duplicated or delayed. All events of a
/// thousand connections are right and in order.
#[test]
fn a_thousand_connections_though_a_tenth_is_lost() {
    const COUNT: u64 = 1_000;
    let lossy = |ip, seed: u8| {
        let faults = format!(
            "drop qpn=1 p=10% seed={seed}; dup qpn=1 p=5% seed={seed}; delay by=3ms qpn=1 p=5% seed={seed}"
        );
        let config = EngineConfig::from_specs(&[format!("dev={ip}")], BrokerMode::Embedded);
        Node::on(
            ip,
            Engine::new(config.unwrap().with_faults(&faults).unwrap()).unwrap(),
        )
    };
    let (a, b) = (lossy("127.1.9.19", 1), lossy("127.1.9.20", 2));
    let _listener = b.listener(7478, 0);
    let mut active = Vec::new();
    for cookie in 0..COUNT {
        let id = a.id(cookie);
        a.routed(&id, cookie, addr(b.ip, 7478));
        id.connect(&param(Qpn::new(1 + cookie as u32), &cookie.to_be_bytes()))
            .unwrap();
        active.push(id);
    }
    let mut passive: BTreeMap<u64, CmId> = BTreeMap::new();
    let mut stories = vec![(Story::new(), Story::new()); COUNT as usize];
    let mut exits = 0;
    let deadline = Instant::now() + 10 * PATIENCE;
    while exits < 2 * COUNT {
        assert!(Instant::now() < deadline, "{exits} of {}", 2 * COUNT);
        let (at_a, at_b) = (a.poll(), b.poll());
        if at_a.is_none() && at_b.is_none() {
            thread::sleep(Duration::from_micros(500));
        }
        if let Some(event) = at_a {
            assert_eq!(event.status, 0, "{event:?}");
            let id = &active[event.cookie as usize];
            match event.kind {
                Kind::ConnectResponse => id.establish().unwrap(),
                // Answers the peer's DREQ, or does nothing if this side has sent the DREQ.
                Kind::Disconnected => id.disconnect().unwrap(),
                _ => {}
            }
            exits += u64::from(event.kind == Kind::TimewaitExit);
            stories[event.cookie as usize].0.push(event.kind);
        }
        if let Some(mut event) = at_b {
            assert_eq!(event.status, 0, "{event:?}");
            let cookie = match event.kind {
                Kind::ConnectRequest => {
                    let bytes = conn(&event).private_data[..8].try_into().unwrap();
                    u64::from_be_bytes(bytes)
                }
                _ => event.cookie,
            };
            match event.kind {
                Kind::ConnectRequest => {
                    let id = event.new_id.take().unwrap();
                    id.accept(cookie, &param(Qpn::new(0x8_0000 + cookie as u32), &[]))
                        .unwrap();
                    assert!(passive.insert(cookie, id).is_none(), "requested twice");
                }
                // One half of them is disconnected by this side, the other half by the peer.
                Kind::Established if cookie.is_multiple_of(2) => {
                    passive[&cookie].disconnect().unwrap();
                }
                Kind::Established => active[cookie as usize].disconnect().unwrap(),
                Kind::Disconnected => passive[&cookie].disconnect().unwrap(),
                _ => {}
            }
            exits += u64::from(event.kind == Kind::TimewaitExit);
            stories[cookie as usize].1.push(event.kind);
        }
    }
    let ends = [Kind::Disconnected, Kind::TimewaitExit];
    for (of_a, of_b) in stories {
        assert_eq!(of_a, [&[Kind::ConnectResponse], &ends[..]].concat());
        let begins = [Kind::ConnectRequest, Kind::Established];
        assert_eq!(of_b, [begins, ends].concat());
    }
    let retries = a.engine.cm_counters().tx_retries + b.engine.cm_counters().tx_retries;
    assert!(retries > COUNT / 5, "{retries}");
}

/// Five thousand simultaneous connections, as a busy server has, each with its own data.
#[test]
fn five_thousand_connections_at_a_time() {
    const COUNT: u64 = 5_000;
    let (a, b) = (Node::new("127.1.9.17"), Node::new("127.1.9.18"));
    let _listener = b.listener(7477, 0);
    let mut active = Vec::new();
    let mut passive = Vec::new();
    let mut psns = Vec::new();
    for cookie in 10..10 + COUNT {
        let id = a.id(cookie);
        a.routed(&id, cookie, addr(b.ip, 7477));
        let qpn = Qpn::new(cookie as u32);
        id.connect(&param(qpn, &cookie.to_be_bytes())).unwrap();
        let event = b.expect(Kind::ConnectRequest, 1);
        assert_eq!(conn(&event).private_data[..8], cookie.to_be_bytes());
        let new = event.new_id.unwrap();
        new.accept(cookie, &param(qpn, &[])).unwrap();
        a.expect(Kind::ConnectResponse, cookie);
        id.establish().unwrap();
        b.expect(Kind::Established, cookie);
        let psn = |id: &CmId, state| id.qp_attr(state).unwrap().0;
        for (one, other) in [(&id, &new), (&new, &id)] {
            let first = psn(one, QpState::Rtr).rq_psn;
            assert_eq!(psn(other, QpState::Rts).sq_psn, first);
            psns.push(first);
        }
        active.push(id);
        passive.push(new);
    }
    // Initial PSNs are random.
    for bit in 0..24 {
        let ones = psns.iter().filter(|psn| *psn >> bit & 1 == 1).count();
        assert!((4500..5500).contains(&ones), "bit {bit}: {ones} of 10000");
    }
    for (id, cookie) in active.iter().zip(10..) {
        id.disconnect().unwrap();
        b.expect(Kind::Disconnected, cookie);
    }
    for (id, cookie) in passive.iter().zip(10..) {
        id.disconnect().unwrap();
        // Fast connections have left TIMEWAIT already.
        let next = || {
            let mut event = a.next();
            while event.kind == Kind::TimewaitExit {
                event = a.next();
            }
            event
        };
        let event = next();
        assert_eq!((event.kind, event.cookie), (Kind::Disconnected, cookie));
    }
    // On a slow machine some messages are retransmitted, and may arrive after the end of the
    // connection.
    let counters = [a.engine.cm_counters(), b.engine.cm_counters()];
    let again: u64 = counters.iter().map(|counters| counters.tx_retries).sum();
    let unsolicited: u64 = counters
        .iter()
        .map(|counters| counters.rx_unsolicited)
        .sum();
    assert!(unsolicited <= 2 * again, "{counters:?}");
}

/// More requests than a backlog has places for one address. A program that fetches all of them
/// before it answers the first gets them without a pause. Each that it fetches makes room for one
/// that is held.
//= CM-ST-04 type=test
#[test]
fn each_request_that_is_fetched_makes_room_for_one_that_waits() {
    const COUNT: u64 = 300;
    let (a, b) = (Node::new("127.1.9.21"), Node::new("127.1.9.22"));
    let _listener = b.listener(7479, 0);
    let mut active = Vec::new();
    for cookie in 10..10 + COUNT {
        let id = a.id(cookie);
        a.routed(&id, cookie, addr(b.ip, 7479));
        id.connect(&param(Qpn::new(cookie as u32), &cookie.to_be_bytes()))
            .unwrap();
        active.push(id);
    }
    let deadline = Instant::now() + PATIENCE;
    let have_arrived = || {
        let counters = b.engine.cm_counters();
        counters.rx_messages - counters.rx_duplicates >= COUNT
    };
    while !have_arrived() {
        assert!(Instant::now() < deadline, "{:?}", b.engine.cm_counters());
        thread::sleep(Duration::from_millis(1));
    }
    let mut requests = Vec::new();
    for fetched in 0..COUNT {
        let event = b.poll();
        let event = event.unwrap_or_else(|| panic!("only {fetched} requests"));
        let bytes = conn(&event).private_data[..8].try_into().unwrap();
        requests.push((u64::from_be_bytes(bytes), event.new_id.unwrap()));
    }
    // Answered one by one, all connect.
    for (cookie, new) in &requests {
        new.accept(*cookie, &param(Qpn::new(7), &[])).unwrap();
        a.expect(Kind::ConnectResponse, *cookie);
        active[(*cookie - 10) as usize].establish().unwrap();
        b.expect(Kind::Established, *cookie);
    }
}
