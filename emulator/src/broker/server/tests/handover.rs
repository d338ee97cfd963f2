//! Clients that come back to a broker, or to the next one.

use super::*;

/// A client that gave up its requests does not know that the broker has performed them. The broker
/// drops what the client does not hand over when it comes back.
#[test]
fn a_resuming_client_has_what_it_hands_over() {
    let mut broker = Stepped::new();
    let (first, slot, lock) = broker.greet(None);
    let lock = lock.expect("a lock file");
    let (kept, lost) = (port(7471, false), port(7472, false));
    let bind = |binding| Request::Bind {
        binding,
        any_port: false,
    };
    for binding in [kept, lost] {
        let answer = broker.ask(&first, &bind(binding));
        assert_eq!(answer, Some(Response::Bound(binding)));
    }
    for id in [1, 2] {
        assert_eq!(
            broker.ask(&first, &open_domain(id, false)),
            Some(Response::Domain)
        );
    }
    let target = |number| Qpn::new(u32::from(slot.get()) << 16 | number);
    let call = |number, call| Request::Target(domain(1), target(number), call);
    for number in [1, 2] {
        let answer = broker.ask(&first, &call(number, TargetCall::New));
        assert_eq!(answer, Some(Response::Target { is_gone: false }));
    }

    let other = broker.client();
    let (second, _, _) = broker.greet(Some((slot, &lock)));
    assert_eq!(
        broker.ask(&second, &bind(kept)),
        Some(Response::Bound(kept))
    );
    assert_eq!(
        broker.ask(&second, &open_domain(1, false)),
        Some(Response::Domain)
    );
    let answer = broker.ask(&second, &call(1, TargetCall::Open));
    assert_eq!(answer, Some(Response::Target { is_gone: false }));
    let answer = broker.ask(&other, &bind(lost));
    assert!(answer.is_none(), "it waits for the end of the handover");
    assert_eq!(
        broker.ask(&second, &Request::Resumed),
        Some(Response::Accepted)
    );
    broker.run_for(LOOK_AGAIN);
    assert_eq!(response(&other), Some(Response::Bound(lost)));
    let view = broker.server.view();
    assert_eq!(view.ports.iter().filter(|(of, _)| *of == slot).count(), 1);
    let domains: Vec<_> = view.domains.keys().copied().collect();
    assert_eq!(domains, [domain(1)]);
    let targets: Vec<_> = view.domains[&domain(1)].targets.keys().copied().collect();
    assert_eq!(targets, [target(1)]);
    let answer = broker.ask(&second, &call(2, TargetCall::New));
    assert_eq!(answer, Some(Response::Target { is_gone: false }), "again");
}

/// A port that can be shared is handed over to the broker that has it, and is there once: else
/// another binding of it would keep the client from listening.
#[test]
fn a_port_that_is_handed_over_again_has_one_binding() {
    let mut broker = Stepped::new();
    let (first, slot, lock) = broker.greet(None);
    let lock = lock.expect("a lock file");
    let binding = port(7471, true);
    let bind = Request::Bind {
        binding,
        any_port: false,
    };
    assert_eq!(broker.ask(&first, &bind), Some(Response::Bound(binding)));
    let (second, _, _) = broker.greet(Some((slot, &lock)));
    for request in [bind, Request::Resumed, Request::Listen(binding)] {
        let answer = broker.ask(&second, &request);
        let is_accepted = matches!(answer, Some(Response::Bound(_) | Response::Accepted));
        assert!(is_accepted, "{request:?}: {answer:?}");
    }
    assert_eq!(broker.server.view().ports.len(), 1);
}

/// A broker that was stopped, or got no CPU time, still waits for the clients of its predecessor,
/// also for one that lost patience in the middle of its handover. Otherwise others get their ports.
#[test]
fn a_late_broker_waits_for_those_that_hand_over() {
    let mut broker = Stepped::new();
    let (_first, slot, lock) = broker.greet(None);
    let lock = lock.expect("a lock file");
    let own = port(7471, false);
    let bind = Request::Bind {
        binding: own,
        any_port: false,
    };
    let other = broker.client();
    let (second, _, _) = broker.greet(Some((slot, &lock)));
    assert_eq!(broker.ask(&other, &bind), None);
    drop(second);
    broker.now = broker.now.plus(broker.server.config.recovery_timeout * 2);
    broker.turn();
    broker.run_for(LOOK_AGAIN);
    assert_eq!(response(&other), None, "the port is not its own");
    let (third, _, _) = broker.greet(Some((slot, &lock)));
    assert_eq!(broker.ask(&third, &bind), Some(Response::Bound(own)));
    let resumed = broker.ask(&third, &Request::Resumed);
    assert_eq!(resumed, Some(Response::Accepted));
    broker.run_for(LOOK_AGAIN);
    let taken = response(&other);
    assert!(matches!(taken, Some(Response::PortTaken(_))), "{taken:?}");
}

/// The wait for a client that never comes back has an end.
#[test]
fn the_wait_for_a_handover_ends() {
    let mut broker = Stepped::new();
    let (_first, slot, lock) = broker.greet(None);
    let lock = lock.expect("a lock file");
    let other = broker.client();
    let (second, _, _) = broker.greet(Some((slot, &lock)));
    let bind = Request::Bind {
        binding: port(7471, false),
        any_port: false,
    };
    assert_eq!(broker.ask(&other, &bind), None);
    drop(second);
    broker.turn();
    let wait = broker.server.config.recovery_timeout;
    assert!(broker.run_for(wait + LOOK_AGAIN));
    assert!(matches!(response(&other), Some(Response::Bound(_))));
}

/// Processes that share an XRC domain come back to a new broker one after the other. The first does
/// not take a target from its owner, which loses it when it has not brought it back, or is dead.
//= XRC-11 type=test
#[test]
fn a_target_keeps_an_owner_that_comes_back_later() {
    for lives in [true, false] {
        let mut broker = Stepped::new();
        let (owner, slot, lock) = broker.greet(None);
        let (user, other, other_lock) = broker.greet(None);
        let [lock, other_lock] = [lock, other_lock].map(|lock| lock.expect("a lock file"));
        let qpn = Qpn::new(u32::from(slot.get()) << 16 | 1);
        let call = |call| Request::Target(domain(1), qpn, call);
        let accepted = Some(Response::Target { is_gone: false });
        let opened = Some(Response::Domain);
        assert_eq!(broker.ask(&owner, &open_domain(1, false)), opened);
        assert_eq!(broker.ask(&owner, &call(TargetCall::New)), accepted);
        let open = open_domain(1, false).encode();
        fdpass::send(user.as_fd(), &open, &[]).expect("it is connected");
        broker.turn();
        let (_, memory) = message(&user).expect("an answer");
        assert_eq!(broker.ask(&user, &call(TargetCall::Open)), accepted);

        let mut broker = broker.restart();
        let (user, _, _) = broker.greet(Some((other, &other_lock)));
        let memory: Vec<_> = memory.iter().map(AsFd::as_fd).collect();
        let open = open_domain(1, true).encode();
        fdpass::send(user.as_fd(), &open, &memory).expect("it is connected");
        broker.turn();
        assert_eq!(response(&user), opened);
        assert_eq!(broker.ask(&user, &call(TargetCall::Open)), accepted);
        let resumed = Some(Response::Accepted);
        assert_eq!(broker.ask(&user, &Request::Resumed), resumed);
        let owner_now =
            |broker: &Stepped| broker.server.view().domains[&domain(1)].targets[&qpn].owner;
        assert_eq!(owner_now(&broker), Some(slot), "it may come back");
        if lives {
            let (owner, _, _) = broker.greet(Some((slot, &lock)));
            assert_eq!(broker.ask(&owner, &Request::Resumed), resumed);
        } else {
            drop(lock);
            broker.run_for(Duration::from_secs(1));
        }
        assert_eq!(owner_now(&broker), None, "lives: {lives}");
    }
}

/// A new process gets no slot before those of an earlier broker have told what they have: the slot
/// may be that of a target whose creator is dead.
#[test]
fn a_new_process_waits_for_those_of_an_earlier_broker() {
    let mut broker = Stepped::new();
    let (_first, slot, lock) = broker.greet(None);
    let lock = lock.expect("a lock file");
    let mut broker = broker.restart();
    let new = broker.connect();
    assert_eq!(broker.ask(&new, &hello(None)), None);
    let early = broker.ask(&new, &Request::Status);
    assert!(matches!(early, Some(Response::Error { .. })), "{early:?}");
    let new = broker.connect();
    assert_eq!(broker.ask(&new, &hello(None)), None);
    let (second, _, _) = broker.greet(Some((slot, &lock)));
    assert_eq!(response(&new), None, "the handover has not ended");
    assert_eq!(
        broker.ask(&second, &Request::Resumed),
        Some(Response::Accepted)
    );
    broker.run_for(LOOK_AGAIN);
    let leased = response(&new);
    assert!(
        matches!(leased, Some(Response::Leased { .. })),
        "{leased:?}"
    );
}
