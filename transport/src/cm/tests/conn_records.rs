//! Connection records for a process that outlives this one.

use super::super::ConnRecordKind;
use super::*;

/// Returns the last state of the only connection's record, or none.
fn kind(cm: &mut Cm, id: CommId) -> Option<ConnRecordKind> {
    let mut last = None;
    while let Some((of, conn_record)) = cm.poll_conn_record() {
        assert_eq!(of, id);
        last = Some(conn_record.map(|conn_record| conn_record.kind));
    }
    last.expect("the state has changed")
}

#[test]
fn a_conn_record_lasts_from_the_request_to_the_peers_drep() {
    let mut pair = Pair::new();
    let (a, b) = pair.request();
    assert_eq!(kind(&mut pair.b, b), Some(ConnRecordKind::Requested));
    // Before the REP arrives, the peer of the active side need not be notified.
    assert_eq!(kind(&mut pair.a, a), None);
    pair.b.reply(pair.now, b, rep(0x22)).unwrap();
    let (of, conn_record) = pair.b.poll_conn_record().expect("the state has changed");
    let conn_record = conn_record.expect("a bond");
    assert_eq!((of, conn_record.own_id, conn_record.peer_id), (b, b, a));
    assert_eq!(
        (conn_record.route, conn_record.peer_qpn),
        (back(to_b()), Qpn::new(0x11))
    );
    assert_eq!(conn_record.kind, ConnRecordKind::Established);
    pair.event_of_a();
    assert_eq!(kind(&mut pair.a, a), Some(ConnRecordKind::Established));
    pair.a.ready(pair.now, a, &[]).unwrap();
    pair.event_of_b();
    assert_eq!(kind(&mut pair.b, b), Some(ConnRecordKind::Established));
    pair.a.disconnect(pair.now, a, &[]).unwrap();
    assert_eq!(kind(&mut pair.a, a), Some(ConnRecordKind::Disconnecting));
    pair.event_of_b();
    assert_eq!(
        kind(&mut pair.b, b),
        Some(ConnRecordKind::Established),
        "A waits"
    );
    pair.b.reply_to_disconnect(pair.now, b, &[]).unwrap();
    assert_eq!(kind(&mut pair.b, b), None);
    pair.event_of_a();
    assert_eq!(kind(&mut pair.a, a), None);
    assert_eq!(pair.a.poll_conn_record(), None, "nothing has changed");
}

/// Checks that a destroyed connection sends one DREQ, and that its record stays until the peer
/// answers.
#[test]
fn who_parts_without_waiting_is_bound_until_the_peer_answers() {
    let mut pair = Pair::new();
    let (a, b) = pair.connection();
    pair.a.destroy(pair.now, a);
    assert_eq!(kind(&mut pair.a, a), Some(ConnRecordKind::Disconnecting));
    pair.event_of_b();
    pair.b.reply_to_disconnect(pair.now, b, &[]).unwrap();
    pair.settle();
    assert_eq!(kind(&mut pair.a, a), None);

    // Both disconnect at once: the peer's DREQ proves that the peer has ended the connection.
    let mut pair = Pair::new();
    let (a, b) = pair.connection();
    kind(&mut pair.a, a);
    pair.a.destroy(pair.now, a);
    pair.said_by_a();
    assert_eq!(kind(&mut pair.a, a), Some(ConnRecordKind::Disconnecting));
    pair.send_to_a(dreq(b, a, 0x11));
    assert_eq!(kind(&mut pair.a, a), None);

    // An unanswered DREQ times out.
    let mut pair = Pair::new();
    let (a, _) = pair.connection();
    kind(&mut pair.a, a);
    pair.a.destroy(pair.now, a);
    assert_eq!(kind(&mut pair.a, a), Some(ConnRecordKind::Disconnecting));
    pair.said_by_a();
    pair.pass(2 * TIMEWAIT);
    assert_eq!(kind(&mut pair.a, a), None);
}

#[test]
fn a_rejection_unbinds() {
    let mut pair = Pair::new();
    let (_, b) = pair.request();
    assert_eq!(kind(&mut pair.b, b), Some(ConnRecordKind::Requested));
    pair.b
        .reject(pair.now, b, RejReason::Consumer, &[], &[])
        .unwrap();
    assert_eq!(kind(&mut pair.b, b), None);
    let mut pair = Pair::new();
    let (a, b) = pair.replied();
    pair.a.destroy(pair.now, a);
    assert!(matches!(pair.event_of_b(), CmEvent::Rejected { .. }));
    kind(&mut pair.b, b);
    pair.pass(2 * TIMEWAIT);
    while pair.b.poll_event().is_some() {}
    assert!(
        pair.b
            .poll_conn_record()
            .is_none_or(|(_, conn_record)| conn_record.is_none())
    );
}
