//! Admission of requests one by one: who gets a backlog entry, who waits, and who is evicted.

use super::super::admission::BACKLOG;
use super::flood::{Server, from, numbered};
use super::*;

/// Places for the first requests of one address, of a second one beside it, and of all. The rest is
/// for addresses that have none.
const OF_ADDRESS: usize = 192;
const OF_SECOND: usize = 15;
const OF_FIRST: usize = 224;
/// Requests that are held, in addition to the backlog.
const HELD: u32 = 1_024;
/// Time after which a request counts as repeated.
const LATER: u64 = 600 * MS;
/// Time for which a half-open connection cannot be evicted.
const GRACE: u64 = 4_096 * MS;

impl Server {
    /// Receives a request, whose event the program does not fetch.
    fn receive(&mut self, source: u8, number: u32) {
        let mad = Mad::new(TransactionId::new(5), numbered(number)).to_bytes();
        self.cm.handle_mad(self.now, from(source), &mad);
    }

    /// Receives a request. The program accepts all that it gets.
    fn ask(&mut self, source: u8, number: u32) {
        self.handle(from(source), numbered(number));
    }

    /// Accepts first requests until no more of them get a backlog entry.
    fn fill(&mut self) {
        for number in 0..u32::try_from(OF_ADDRESS).unwrap() {
            self.ask(1, 1_000_000 + number);
        }
        for number in 0..u32::try_from(OF_SECOND).unwrap() {
            self.ask(2, 2_000_000 + number);
        }
        self.fill_from_new_addresses();
    }

    /// Accepts one request of each further address until the backlog is full.
    fn fill_from_new_addresses(&mut self) {
        assert_eq!(self.accepted.len(), OF_ADDRESS + OF_SECOND);
        for number in 0..u8::try_from(OF_FIRST - OF_ADDRESS - OF_SECOND).unwrap() {
            self.ask(100 + number, 3_000_000 + u32::from(number));
        }
        assert_eq!(self.accepted.len(), OF_FIRST);
    }

    /// Holds as many first requests as possible, from number 0.
    fn hold(&mut self) {
        let before = self.accepted.len();
        for number in 0..HELD {
            self.ask(1, number);
        }
        assert_eq!(self.accepted.len(), before, "held");
        assert_eq!(self.cm.counters().rx_dropped, 0);
    }

    /// Confirms a connection that was accepted.
    fn confirm(&mut self, source: u8, id: CommId) {
        let remote_id = self.cm.conns[&id].remote_id;
        self.handle(from(source), rtu(remote_id, id));
        assert_eq!(self.ready.last(), Some(&id));
    }

    /// Returns the number of the request that was accepted last.
    fn last(&self) -> u32 {
        let id = self.accepted.last().unwrap();
        self.cm.conns[id].remote_id.get() - 0x0900_0000
    }
}

/// Checks that first requests of one address leave backlog entries for other addresses. Those of
/// all addresses leave backlog entries for peers that repeat a request.
//= CM-ST-04 type=test
#[test]
fn entries_are_kept_for_others_and_for_repetitions() {
    let mut server = Server::new();
    for number in 0..250 {
        server.ask(1, number);
    }
    assert_eq!(server.accepted.len(), OF_ADDRESS);
    for number in 250..500 {
        server.ask(2, number);
    }
    server.fill_from_new_addresses();
    server.pass(LATER);
    let repeated = BACKLOG - OF_FIRST;
    for number in 200..250 {
        server.ask(1, number);
        let most = (number as usize - 199).min(repeated);
        assert_eq!(server.accepted.len(), OF_FIRST + most);
    }
}

/// Checks that as many half-open connections are evicted as requests are held, the oldest first.
//= CM-ST-07 type=test
#[test]
fn as_many_are_evicted_as_others_wait() {
    let mut server = Server::new();
    for number in 0..u32::try_from(OF_ADDRESS).unwrap() + 3 {
        server.ask(1, number);
        server.pass(1);
    }
    let first = server.accepted.clone();
    assert_eq!(first.len(), OF_ADDRESS);
    server.pass(GRACE);
    assert_eq!(server.given_up, first[..3]);
    assert_eq!(server.cm.counters().evicted, 3);
    assert_eq!(server.accepted.len(), OF_ADDRESS + 3);
    server.pass(GRACE - MS);
    assert_eq!(server.given_up.len(), 3, "nobody waits any more");
}

/// More connections than an address may have half open.
const CONFIRMED: usize = OF_ADDRESS + 1;

/// Accepts and confirms so many connections of the first address, and accepts as many as possible.
fn of_one_that_confirms() -> Server {
    let mut server = Server::new();
    for number in 0..u32::try_from(CONFIRMED).unwrap() {
        server.ask(1, 1_000_000 + number);
        server.confirm(1, *server.accepted.last().unwrap());
    }
    for number in 0..u32::try_from(OF_ADDRESS).unwrap() {
        server.ask(1, number);
    }
    assert_eq!(server.accepted.len(), CONFIRMED + OF_ADDRESS);
    server
}

/// Checks that a peer that confirms its connections has time to repeat what was lost of others.
//= CM-ST-07 type=test
#[test]
fn who_confirms_most_connections_has_more_time_for_others() {
    let mut server = of_one_that_confirms();
    server.ask(1, 5_000);
    let entries = CONFIRMED + OF_ADDRESS;
    assert_eq!(server.accepted.len(), entries, "one is held");
    server.pass(GRACE);
    server.pass(4 * GRACE - MS);
    assert_eq!(server.given_up.len(), 0);
    server.pass(MS);
    assert_eq!(server.given_up, server.accepted[CONFIRMED..][..1]);
    assert_eq!(server.accepted.len(), entries + 1);
}

/// Checks that of several peers those are evicted that confirm no connection.
//= CM-ST-07 type=test
#[test]
fn who_confirms_none_goes_first() {
    let mut server = of_one_that_confirms();
    for number in 0..=u32::try_from(OF_SECOND).unwrap() {
        server.ask(2, 1_000 + number);
    }
    let entries = CONFIRMED + OF_ADDRESS + OF_SECOND;
    assert_eq!(server.accepted.len(), entries, "one is held");
    server.pass(GRACE);
    assert_eq!(
        server.given_up,
        server.accepted[CONFIRMED + OF_ADDRESS..][..1]
    );
    assert_eq!(server.accepted.len(), entries + 1);
}

/// Checks that a peer that asked for time by an MRA is not evicted, and needs no entry.
//= CM-ST-07 type=test
//= CM-ST-09 type=test
#[test]
fn who_asked_for_time_is_not_evicted() {
    let mut server = Server::new();
    for number in 0..=u32::try_from(OF_ADDRESS).unwrap() {
        server.ask(1, number);
        server.pass(1);
    }
    assert_eq!(server.accepted.len(), OF_ADDRESS);
    let oldest = server.accepted[0];
    let mra = Mra {
        local_id: server.cm.conns[&oldest].remote_id,
        remote_id: oldest,
        received: Rejected::Rep,
        service_timeout: CmTimeout::new(24),
        private_data: [0; Mra::PRIVATE_LEN],
    };
    server.handle(from(1), CmMessage::Mra(mra));
    assert_eq!(server.accepted.len(), OF_ADDRESS + 1, "its entry is free");
    server.ask(1, 5_000);
    assert_eq!(server.accepted.len(), OF_ADDRESS + 1, "held");
    server.pass(GRACE);
    assert_eq!(server.given_up, server.accepted[1..2]);
}

/// Checks that a peer that was evicted has no priority when it asks again, though it asks often.
#[test]
fn who_was_evicted_does_not_go_first() {
    let mut server = Server::new();
    server.ask(1, 1_000_000);
    server.pass(GRACE / 2);
    server.fill();
    server.ask(3, 7);
    server.pass(GRACE / 2);
    assert_eq!(server.given_up, server.accepted[..1]);
    let entries = server.accepted.len();
    assert_eq!(entries, OF_FIRST + 1);
    for _ in 0..2 {
        server.pass(LATER);
        server.ask(1, 1_000_000);
    }
    server.ask(4, 8);
    assert_eq!(server.accepted.len(), entries, "both are held");
}

/// Checks that requests that the program has fetched and not answered, while half-open connections
/// fill the backlog, count as waiting.
//= CM-ST-07 type=test
#[test]
fn fetched_requests_wait_as_held_ones_do() {
    let mut server = Server::new();
    for number in 0..u32::try_from(OF_ADDRESS).unwrap() {
        server.ask(1, number);
    }
    for number in 0..3 {
        server.receive(2, 1_000 + number);
        let Some(CmEvent::Request { id, .. }) = server.cm.poll_event() else {
            panic!()
        };
        server.cm.taken(id);
    }
    assert!(server.cm.holds_requests());
    server.pass(GRACE);
    assert_eq!(server.given_up, server.accepted[..3]);
    server.pass(0);
    assert_eq!(server.given_up.len(), 3, "the backlog is not full any more");
}

/// Checks that a program that fetches requests and never answers gets a bounded number, and that
/// each answer makes room for one more.
#[test]
fn a_program_that_never_answers_gets_no_more() {
    const MOST: u32 = 8_192;
    let mut server = Server::new();
    let mut fetched = Vec::new();
    for number in 0..MOST + 5 {
        server.receive(1, number);
        while let Some(event) = server.cm.poll_event() {
            let CmEvent::Request { id, .. } = event else {
                panic!("{event:?}")
            };
            server.cm.taken(id);
            fetched.push(id);
        }
        while server.cm.poll_transmit().is_some() {}
    }
    assert_eq!(fetched.len(), MOST as usize);
    server.cm.reply(server.now, fetched[0], rep(0x22)).unwrap();
    assert!(matches!(
        server.cm.poll_event(),
        Some(CmEvent::Request { .. })
    ));
}

/// Checks that a request that made room for a repeated one is remembered: its own repetition goes
/// before the first requests that are held.
#[test]
fn a_displaced_request_is_remembered() {
    let mut server = Server::new();
    server.fill();
    server.hold();
    // Repetitions take the rest of the backlog. As many first requests are held instead.
    server.pass(LATER);
    let spare = u32::try_from(BACKLOG - OF_FIRST).unwrap();
    for number in 0..spare {
        server.ask(1, number);
        server.ask(1, HELD + number);
    }
    assert_eq!(server.accepted.len(), BACKLOG);
    let dropped = |server: &Server| server.cm.counters().rx_dropped;
    assert_eq!(dropped(&server), 0);
    server.ask(1, 5_000);
    assert_eq!(dropped(&server), 1, "no room");
    server.pass(LATER);
    let (before, displaced) = (server.cm.len(), spare);
    server.ask(1, 5_000);
    assert_eq!((server.cm.len(), dropped(&server)), (before, 2));
    // The displaced request comes again, and displaces another.
    server.pass(LATER);
    server.ask(1, displaced);
    assert_eq!((server.cm.len(), dropped(&server)), (before, 3));
    // Both are the next to get entries.
    for number in [5_000, displaced] {
        server.confirm(2, server.accepted[OF_ADDRESS + server.ready.len()]);
        assert_eq!(server.last(), number);
    }
    server.confirm(2, server.accepted[OF_ADDRESS + 2]);
    assert_eq!(server.accepted.len(), BACKLOG + 2, "first requests wait");
}

/// Checks that a request that the program's own backlog had no room for is remembered.
#[test]
fn an_ignored_request_is_remembered() {
    let mut server = Server::new();
    server.receive(1, 7);
    let Some(CmEvent::Request { id, .. }) = server.cm.poll_event() else {
        panic!()
    };
    server.cm.ignore(server.now, id);
    server.fill();
    server.pass(LATER);
    server.ask(1, 8);
    assert_eq!(server.accepted.len(), OF_FIRST, "held");
    server.ask(1, 7);
    assert_eq!(server.accepted.len(), OF_FIRST + 1);
}

/// Checks that a request that comes twice within half a second is no repetition, whether it was
/// dropped or is held. Otherwise a flood that sends each request twice would go first.
//= CM-ST-04 type=test
#[test]
fn a_request_that_comes_twice_at_once_is_not_repeated() {
    let mut server = Server::new();
    server.fill();
    server.hold();
    server.sent.clear();
    server.ask(1, 5_000);
    assert_eq!(server.cm.counters().rx_dropped, 1);
    let soon = 400 * MS;
    for _ in 0..2 {
        server.ask(1, 5_000);
        server.ask(1, 7);
        assert_eq!(server.accepted.len(), OF_FIRST);
        // An MRA would delay the repetition.
        assert!(server.sent.is_empty());
        server.pass(soon);
    }
    server.ask(1, 5_000);
    server.ask(1, 7);
    assert_eq!(server.accepted.len(), OF_FIRST + 2);
}

/// Checks that a client of another address connects at once during a flood that sends each request
/// twice.
#[test]
fn a_flood_of_twins_does_not_go_first() {
    let mut server = Server::new();
    for number in 0..2_000 {
        server.ask(1, number);
        server.ask(1, number);
        server.pass(MS / 4);
    }
    assert_eq!(server.accepted.len(), OF_ADDRESS);
    server.ask(3, 5_000);
    assert_eq!(server.last(), 5_000);
}

/// Checks that held requests end with their listener, and are refused when they come again.
#[test]
fn held_requests_end_with_their_listener() {
    let mut server = Server::new();
    server.fill();
    server.hold();
    let before = server.cm.len();
    server.cm.unlisten(SERVICE);
    assert_eq!(server.cm.len(), before - HELD as usize);
    assert!(!server.cm.holds_requests());
    server.pass(GRACE);
    assert_eq!(server.given_up, [], "nobody waits");
    server.sent.clear();
    server.ask(1, 7);
    let (_, mad) = &server.sent[0];
    let CmMessage::Rej(rej) = Mad::parse(&mad[..]).unwrap().message else {
        panic!()
    };
    assert_eq!(rej.reason, RejReason::InvalidServiceId);
}

/// Checks that the memory of refused requests is freed two minutes after the last of them, when the
/// next message arrives.
#[test]
fn the_memory_of_refused_requests_is_freed() {
    let mut server = Server::new();
    let is_free = |server: &Server| format!("{:?}", server.cm.refused).contains("entries: None");
    server.receive(1, 7);
    let Some(CmEvent::Request { id, .. }) = server.cm.poll_event() else {
        panic!()
    };
    assert!(is_free(&server));
    server.cm.ignore(server.now, id);
    assert!(!is_free(&server));
    server.pass(100_000 * MS);
    server.ask(1, 8);
    assert!(!is_free(&server), "its entry is valid");
    server.pass(20_000 * MS);
    assert!(!is_free(&server));
    server.ask(1, 9);
    assert!(is_free(&server));
}
