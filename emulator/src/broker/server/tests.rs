//! Turns of a broker in virtual time, with clients in the same thread.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rocade_transport::Time;
use rocade_wire::Qpn;
use rocade_wire::mad::ServiceId;
use tempfile::TempDir;

use super::super::identity::ThisProcess;
use super::super::paths::Paths;
use super::super::protocol::{DomainOpening, MAX_LEN, Request, Response, TargetCall};
use super::super::{BrokerConfig, start as client_start};
use super::start::{Step, Takeover};
use super::{FIRST_CLIENT, LOOK_AGAIN, Server};
use crate::fdpass;
use crate::gsi::services::{Binding, BoundTo};
use crate::journal::DomainKey;
use crate::steering::ProcessSlot;

const START: Time = Time::from_ns(1);

/// A broker whose turns the test calls.
struct Stepped {
    server: Server,
    now: Time,
    /// The time of its next turn, unless it has ended.
    next: Option<Time>,
    dir: TempDir,
}

impl Stepped {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let config = BrokerConfig {
            runtime_dir: Some(dir.path().to_owned()),
            ..BrokerConfig::default()
        };
        let takeover = Takeover::new(&config, START, Arc::new(ThisProcess)).expect("a lock file");
        let Ok(Step::Listening(files)) = takeover.step(START) else {
            panic!("there is no other broker");
        };
        let server = Server::new(&config, files, false, START, Arc::new(ThisProcess));
        let next = server.next_turn();
        Self {
            server,
            now: START,
            next,
            dir,
        }
    }

    /// Lets the broker end, and another one take its place.
    fn restart(self) -> Self {
        let Self {
            server: old,
            now,
            dir,
            ..
        } = self;
        old.end();
        let config = old.config.clone();
        drop(old);
        let takeover = Takeover::new(&config, now, Arc::new(ThisProcess)).expect("a lock file");
        let Ok(Step::Listening(files)) = takeover.step(now) else {
            panic!("the other broker has ended");
        };
        let server = Server::new(&config, files, false, now, Arc::new(ThisProcess));
        let next = server.next_turn();
        Self {
            server,
            now,
            next,
            dir,
        }
    }

    /// Handles the input at hand.
    fn turn(&mut self) {
        let input = self.server.wait(Duration::ZERO).expect("poll works");
        self.next = self.server.turn(self.now, &input);
    }

    /// Moves the time to the next turn, again and again, until the broker has ended or `end` has
    /// come. Returns false if it has ended.
    fn run_until(&mut self, end: Time) -> bool {
        while let Some(next) = self.next {
            assert!(next > self.now, "a broker without input sleeps");
            if next > end {
                self.now = end;
                return true;
            }
            self.now = next;
            self.turn();
        }
        false
    }

    fn run_for(&mut self, time: Duration) -> bool {
        self.run_until(self.now.plus(time))
    }

    fn connect(&mut self) -> OwnedFd {
        let connection = client_start::connect(&Paths::new(&self.server.config), &ThisProcess);
        self.turn();
        connection.expect("it listens")
    }

    fn ask(&mut self, connection: &OwnedFd, request: &Request) -> Option<Response> {
        fdpass::send(connection.as_fd(), &request.encode(), &[]).expect("it is connected");
        self.turn();
        response(connection)
    }

    /// Connects a client and leases it a slot.
    fn client(&mut self) -> OwnedFd {
        self.greet(None).0
    }

    /// Connects a client that has a slot and its lock, or none. Returns the connection, the slot,
    /// and the lock of a new one.
    fn greet(
        &mut self,
        resume: Option<(ProcessSlot, &OwnedFd)>,
    ) -> (OwnedFd, ProcessSlot, Option<OwnedFd>) {
        let connection = self.connect();
        let hello = hello(resume.map(|(slot, _)| slot));
        let proof: Vec<_> = resume.iter().map(|(_, lock)| lock.as_fd()).collect();
        fdpass::send(connection.as_fd(), &hello.encode(), &proof).expect("it is connected");
        self.turn();
        let (answer, fds) = message(&connection).expect("an answer");
        let Response::Leased { slot, .. } = answer else {
            panic!("{answer:?}");
        };
        let update = response(&connection);
        assert!(
            matches!(update, Some(Response::FaultUpdate(_)) | None),
            "{update:?}"
        );
        (connection, slot, fds.into_iter().next())
    }
}

/// The next message of the broker, if there is one.
fn response(connection: &OwnedFd) -> Option<Response> {
    message(connection).map(|(response, _)| response)
}

/// The next message of the broker, if there is one, and its descriptors.
fn message(connection: &OwnedFd) -> Option<(Response, Vec<OwnedFd>)> {
    let mut bytes = vec![0; MAX_LEN];
    let (len, fds) = fdpass::receive(connection.as_fd(), &mut bytes).ok()?;
    let response = Response::decode(&bytes[..len], fds.len()).ok()?;
    Some((response, fds))
}

/// The first message of a client.
fn hello(resume: Option<ProcessSlot>) -> Request {
    Request::Hello {
        resume,
        name: "test".to_owned(),
        faults: Vec::new(),
    }
}

/// A shared XRC domain.
const fn domain(inode: u64) -> DomainKey {
    DomainKey {
        guid: 1,
        device: 1,
        inode,
    }
}

const fn open_domain(inode: u64, resumes: bool) -> Request {
    Request::OpenDomain(DomainOpening {
        key: domain(inode),
        create: true,
        exclusive: false,
        resumes,
    })
}

/// A port at all addresses.
fn port(number: u64, reuse: bool) -> Binding {
    Binding {
        service: ServiceId::new(0x0106_0000 + number),
        to: BoundTo::Any,
        reuse,
        listens: false,
    }
}

#[test]
fn an_idle_broker_ends_when_no_client_has_come() {
    let mut broker = Stepped::new();
    let idle = broker.server.config.idle_timeout;
    assert_eq!(idle, Duration::from_secs(60));
    assert!(!broker.run_for(Duration::from_secs(1_000)), "it lives on");
    assert_eq!(broker.now, START.plus(FIRST_CLIENT + idle));
}

/// The time without clients begins with the end of the last one, however long that was silent.
#[test]
fn a_silent_client_leaves_the_whole_idle_time() {
    let mut broker = Stepped::new();
    let client = broker.client();
    assert!(
        broker.run_for(Duration::from_secs(1_000)),
        "it has a client"
    );
    drop(client);
    broker.turn();
    let (end, idle) = (broker.now, broker.server.config.idle_timeout);
    assert!(broker.run_until(end.plus(idle - Duration::from_nanos(1))));
    assert!(!broker.run_for(Duration::from_secs(1)), "it lives on");
    assert_eq!(broker.now, end.plus(idle));
}

#[test]
fn a_connection_that_says_nothing_is_dropped() {
    let mut broker = Stepped::new();
    let silent = broker.connect();
    let client = broker.client();
    assert!(broker.run_for(super::connections::HELLO_TIMEOUT - Duration::from_nanos(1)));
    assert_eq!(broker.server.clients.len(), 2);
    assert!(broker.run_for(Duration::from_secs(1)));
    assert_eq!(broker.server.clients.len(), 1);
    let mut bytes = [0; 8];
    let received = fdpass::receive(silent.as_fd(), &mut bytes).expect("the end of the connection");
    assert_eq!(received.0, 0);
    drop(client);
}

/// A broker that took the lock from one that still listens gives it a while to end.
#[test]
fn a_second_broker_does_not_start() {
    let mut broker = Stepped::new();
    let config = broker.server.config.clone();
    let mut takeover = Takeover::new(&config, START, Arc::new(ThisProcess)).expect("a lock file");
    let mut now = START;
    let error = loop {
        match takeover.step(now) {
            Ok(Step::Wait(again)) => takeover = again,
            Ok(Step::Listening(_)) => panic!("two brokers"),
            Err(error) => break error,
        }
        now = now.plus(Duration::from_millis(100));
        assert!(
            now < START.plus(Duration::from_secs(2)),
            "it waits for ever"
        );
    };
    assert!(
        matches!(error, super::BrokerError::AlreadyRunning),
        "{error}"
    );
    broker.turn();
    assert!(broker.next.is_some());
}

/// An earlier broker that ends makes room at the next step.
#[test]
fn a_successor_starts_when_its_predecessor_has_ended() {
    let broker = Stepped::new();
    let config = broker.server.config.clone();
    let takeover = Takeover::new(&config, START, Arc::new(ThisProcess)).expect("a lock file");
    let Ok(Step::Wait(takeover)) = takeover.step(START) else {
        panic!("the lock is held");
    };
    broker.server.end();
    drop(broker.server);
    let step = takeover.step(START.plus(Duration::from_secs(1)));
    assert!(matches!(step, Ok(Step::Listening(_))));
}

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
        let owner_now =
            |broker: &Stepped| broker.server.view().domains[&domain(1)].targets[&qpn].owner;
        assert_eq!(owner_now(&broker), Some(slot), "it may come back");
        if lives {
            let (owner, _, _) = broker.greet(Some((slot, &lock)));
            let resumed = broker.ask(&owner, &Request::Resumed);
            assert_eq!(resumed, Some(Response::Accepted));
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
