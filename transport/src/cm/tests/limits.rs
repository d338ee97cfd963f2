//! Timeouts that a peer asks for, as the connections apply them.

use super::*;

/// The longest code.
const LONGEST: CmTimeout = CmTimeout::new(31);

fn greedy(qpn: u32) -> Req {
    Req {
        local_response_timeout: LONGEST,
        primary: CmPath {
            ack_timeout: LONGEST,
            ..req(0).primary
        },
        ..req(qpn)
    }
}

fn mra(local_id: CommId, remote_id: CommId, received: Rejected) -> CmMessage {
    CmMessage::Mra(Mra {
        local_id,
        remote_id,
        received,
        service_timeout: LONGEST,
        private_data: [0; Mra::PRIVATE_LEN],
    })
}

/// Checks a peer that asks for the longest times. These are its response time, the time of its MRA,
/// and the rest after the end of the connection.
//= CM-FLD-04 type=test
//= CM-ST-03 type=test
//= CM-ST-09 type=test
#[test]
fn the_longest_times_of_a_peer_are_cut() {
    let response = CmTimeout::new(22).as_ns();
    let service = CmTimeout::new(24).as_ns();
    let rest = CmTimeout::new(20).as_ns();
    let mut pair = Pair::new();
    let a = pair.a.connect(pair.now, to_b(), LIFE, greedy(0x11));
    let CmEvent::Request { id: b, .. } = pair.event_of_b() else {
        panic!()
    };
    pair.send_to_a(mra(b, a, Rejected::Req));
    let due = pair.now.plus_ns(REQ_INTERVAL + service);
    assert_eq!(pair.a.next_timeout(), Some(due), "the MRA for a REQ");

    pair.b.reply(pair.now, b, rep(0x22)).unwrap();
    let due = pair.now.plus_ns(response);
    assert_eq!(pair.b.next_timeout(), Some(due), "the response time");
    pair.send_to_b(mra(a, b, Rejected::Rep));
    let due = pair.now.plus_ns(response + service);
    assert_eq!(pair.b.next_timeout(), Some(due), "the MRA for a REP");

    assert!(matches!(pair.event_of_a(), CmEvent::Reply { .. }));
    pair.a.ready(pair.now, a, &[]).unwrap();
    assert_eq!(pair.event_of_b(), CmEvent::Ready { id: b });
    pair.a.disconnect(pair.now, a, &[]).unwrap();
    assert_eq!(pair.event_of_b(), CmEvent::Disconnect { id: b });
    pair.b.reply_to_disconnect(pair.now, b, &[]).unwrap();
    let due = pair.now.plus_ns(rest);
    assert_eq!(pair.b.next_timeout(), Some(due), "the passive side rests");
    assert_eq!(pair.event_of_a(), CmEvent::Disconnected { id: a });
    let due = pair.now.plus_ns(rest);
    assert_eq!(pair.a.next_timeout(), Some(due), "the active side rests");
}

/// Checks that a REP is not repeated for longer than 70 s, whatever the peer asks for.
//= CM-FLD-04 type=test
#[test]
fn a_reply_ends_in_time() {
    let mut pair = Pair::new();
    pair.a.connect(pair.now, to_b(), LIFE, greedy(0x11));
    let CmEvent::Request { id: b, .. } = pair.event_of_b() else {
        panic!()
    };
    pair.b.reply(pair.now, b, rep(0x22)).unwrap();
    let begin = pair.now;
    while let Some(at) = pair.b.next_timeout() {
        pair.now = at;
        pair.b.handle_timeout(at);
    }
    assert_eq!(pair.b.poll_event(), Some(CmEvent::ReplyTimeout { id: b }));
    assert!(pair.now.ns_since(begin) <= 70_000 * MS);
}
