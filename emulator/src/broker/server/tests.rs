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

mod handover;

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

    /// Returns the answer, after events before the request.
    fn ask(&mut self, connection: &OwnedFd, request: &Request) -> Option<Response> {
        // The broker serves no client that leaves messages unread.
        while response(connection).is_some() {}
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

/// Number of targets that one process shares with another.
const TARGETS: u32 = 3;

/// The slot of a process that is gone is leased again when the last of its targets is closed.
#[test]
fn the_slot_of_a_process_is_free_when_its_last_target_is() {
    let mut broker = Stepped::new();
    let key = domain(3);
    let (creator, slot, _) = broker.greet(None);
    let (other, _, _) = broker.greet(None);
    let open = open_domain(3, false);
    let target = |number: u32| Qpn::new(u32::from(slot.get()) << 16 | number);
    let is_done = |answer| matches!(answer, Some(Response::Target { .. }));
    for (client, call) in [(&creator, TargetCall::New), (&other, TargetCall::Open)] {
        let answer = broker.ask(client, &open);
        assert!(matches!(answer, Some(Response::Domain)), "{answer:?}");
        for qpn in (1..=TARGETS).map(target) {
            let answer = broker.ask(client, &Request::Target(key, qpn, call));
            assert!(is_done(answer));
        }
    }
    drop(creator);
    broker.turn();
    for qpn in (1..=TARGETS).map(target) {
        let (_, next, _) = broker.greet(None);
        broker.turn();
        assert_ne!(next, slot, "{qpn} of this slot is open");
        let request = Request::Target(key, qpn, TargetCall::Close);
        assert!(is_done(broker.ask(&other, &request)));
    }
    assert_eq!(broker.greet(None).1, slot);
}
