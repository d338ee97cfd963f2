//! Connection records for a process that outlives this one.

use super::super::BondKind;
use super::*;

/// Returns the last state of the only connection's record, or none.
fn kind(cm: &mut Cm, id: CommId) -> Option<BondKind> {
    let mut last = None;
    while let Some((of, bond)) = cm.poll_bond() {
        assert_eq!(of, id);
        last = Some(bond.map(|bond| bond.kind));
    }
    last.expect("the state has changed")
}

#[test]
fn a_bond_lasts_from_the_request_to_the_peers_farewell() {
    let mut pair = Pair::new();
    let (a, b) = pair.request();
    assert_eq!(kind(&mut pair.b, b), Some(BondKind::Asked));
    // Before the REP arrives, the peer of the active side need not be notified.
    assert_eq!(kind(&mut pair.a, a), None);
    pair.b.reply(pair.now, b, rep(0x22)).unwrap();
    let (of, bond) = pair.b.poll_bond().expect("the state has changed");
    let bond = bond.expect("a bond");
    assert_eq!((of, bond.own_id, bond.peer_id), (b, b, a));
    assert_eq!((bond.route, bond.peer_qpn), (back(to_b()), Qpn::new(0x11)));
    assert_eq!(bond.kind, BondKind::Made);
    pair.event_of_a();
    assert_eq!(kind(&mut pair.a, a), Some(BondKind::Made));
    pair.a.ready(pair.now, a, &[]).unwrap();
    pair.event_of_b();
    assert_eq!(kind(&mut pair.b, b), Some(BondKind::Made));
    pair.a.disconnect(pair.now, a, &[]).unwrap();
    assert_eq!(kind(&mut pair.a, a), Some(BondKind::Parting));
    pair.event_of_b();
    assert_eq!(kind(&mut pair.b, b), Some(BondKind::Made), "A waits");
    pair.b.answer_disconnect(pair.now, b, &[]).unwrap();
    assert_eq!(kind(&mut pair.b, b), None);
    pair.event_of_a();
    assert_eq!(kind(&mut pair.a, a), None);
    assert_eq!(pair.a.poll_bond(), None, "nothing has changed");
}

/// Checks that a destroyed connection sends one DREQ, and that its record stays until the peer
/// answers.
#[test]
fn who_parts_without_waiting_is_bound_until_the_peer_answers() {
    let mut pair = Pair::new();
    let (a, b) = pair.connection();
    pair.a.destroy(pair.now, a);
    assert_eq!(kind(&mut pair.a, a), Some(BondKind::Parting));
    pair.event_of_b();
    pair.b.answer_disconnect(pair.now, b, &[]).unwrap();
    pair.settle();
    assert_eq!(kind(&mut pair.a, a), None);

    // Both disconnect at once: the peer's DREQ proves that the peer has ended the connection.
    let mut pair = Pair::new();
    let (a, b) = pair.connection();
    kind(&mut pair.a, a);
    pair.a.destroy(pair.now, a);
    pair.said_by_a();
    assert_eq!(kind(&mut pair.a, a), Some(BondKind::Parting));
    pair.tell_a(dreq(b, a, 0x11));
    assert_eq!(kind(&mut pair.a, a), None);

    // An unanswered DREQ times out.
    let mut pair = Pair::new();
    let (a, _) = pair.connection();
    kind(&mut pair.a, a);
    pair.a.destroy(pair.now, a);
    assert_eq!(kind(&mut pair.a, a), Some(BondKind::Parting));
    pair.said_by_a();
    pair.pass(2 * TIMEWAIT);
    assert_eq!(kind(&mut pair.a, a), None);
}

#[test]
fn a_rejection_unbinds() {
    let mut pair = Pair::new();
    let (_, b) = pair.request();
    assert_eq!(kind(&mut pair.b, b), Some(BondKind::Asked));
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
    assert!(pair.b.poll_bond().is_none_or(|(_, bond)| bond.is_none()));
}
