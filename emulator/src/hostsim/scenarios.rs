//! The rows of the tables of events in docs/links.md, docs/steering-and-broker.md and
//! docs/xrc-shared.md, as far as they are about engines: each is a test with its name.
//!
//! Each runs in several schedules, in which the event comes at another turn. What must hold in all
//! of them is judged as in runs of drawn plans. In some of them, the expected marks are reached.

use std::collections::BTreeSet;

use super::board::{BROKER_ENDED, BROKER_KILLED};
use super::host::Host;
use super::on_one_cpu;
use super::plan::{Act, Connection, Ending, Mode, Plan, SUCCESSOR};
use super::services::Service;
use crate::simulated_host::SLOW_GROUPS;
use crate::simulated_host::schedule::SlowPlaces;

/// Schedules of a scenario.
const SCHEDULES: u64 = if cfg!(target_arch = "x86_64") { 16 } else { 4 };
/// Turns between the events of two schedules. No divisor is shared with their number.
const TURNS_BETWEEN: u64 = 29;
/// The turn of the first schedule's event.
const FIRST_TURN: u64 = 25;

/// A connection of two processes that sends to and fro.
fn connection(service: Service, processes: [usize; 2]) -> Connection {
    Connection {
        service,
        processes,
        modes: [Mode::Events, Mode::Poll],
        messages: [12, 12],
        len: 64,
        depth: 3,
        timeout: 14,
        answers: false,
        mix: 0,
        spares_completions: false,
        windows: false,
        is_indirect: false,
        pools: false,
        is_kept: false,
        keeper_receives: false,
        ending: Ending::DisconnectBoth,
        is_assisted: [false; 2],
        lingers: true,
    }
}

/// Runs the schedules of a scenario. `acts` returns the events, of which the first comes at a turn.
fn play(
    udp: bool,
    connections: &[Connection],
    acts: impl Fn(u64) -> Vec<(u64, Act)> + Sync,
    expected: &[&str],
) {
    play_slowly(udp, SlowPlaces::NONE, connections, acts, expected);
}

/// Runs the schedules with threads that are slow at some places.
fn play_slowly(
    udp: bool,
    slow: SlowPlaces,
    connections: &[Connection],
    acts: impl Fn(u64) -> Vec<(u64, Act)> + Sync,
    expected: &[&str],
) {
    on_one_cpu(|| {
        let mut reached = BTreeSet::new();
        for schedule in 0..SCHEDULES {
            let plan = Plan {
                seed: schedule + 1,
                udp,
                loss: 0,
                is_quick: schedule % 2 == 0,
                connections: connections.to_vec(),
                strike: None,
                last_datagram: None,
                is_apart: false,
                death: None,
                freeze: None,
                slow,
                acts: acts(FIRST_TURN + schedule * TURNS_BETWEEN),
            };
            match Host::new(&plan).run() {
                Ok(outcome) => reached.extend(outcome.marks.into_keys()),
                Err(error) => panic!("schedule {schedule}: {error}\n{plan:#?}"),
            }
        }
        let is_missing = |mark: &&&str| SCHEDULES > 10 && !reached.contains(**mark);
        let missing: Vec<_> = expected.iter().filter(is_missing).collect();
        assert!(missing.is_empty(), "never: {missing:?} of {reached:?}");
    });
}

const ENDS: &str = "a sender sees the end of its peer";

// The tables of docs/links.md and docs/steering-and-broker.md.

#[test]
fn a_process_is_killed_and_its_peer_uses_shared_memory() {
    let one = connection(Service::Rc, [0, 1]);
    play(false, &[one], |at| vec![(at, Act::Kill(1))], &[ENDS]);
}

#[test]
fn a_process_is_killed_and_its_peer_uses_udp() {
    let one = connection(Service::Rc, [0, 1]);
    play(true, &[one], |at| vec![(at, Act::Kill(1))], &[ENDS]);
}

/// Messages of these services are not repeated. So a thread that is not woken sleeps for ever.
#[test]
fn a_thread_that_goes_to_sleep_meanwhile_gets_its_messages() {
    let few = |service| Connection {
        modes: [Mode::Events, Mode::Events],
        messages: [3, 3],
        lingers: false,
        ..connection(service, [0, 1])
    };
    let both = [Service::Ud, Service::Uc].map(few);
    for group in 0..SLOW_GROUPS {
        let groups = SLOW_GROUPS;
        let slow = SlowPlaces { groups, group };
        play_slowly(false, slow, &both, |_| Vec::new(), &[]);
    }
}

#[test]
fn a_process_is_stopped_for_a_while() {
    let one = connection(Service::Rc, [0, 1]);
    let stop = |at| vec![(at, Act::Stop(1, 50_000_000))];
    play(false, &[one], stop, &["a process is stopped"]);
}

#[test]
fn a_process_is_stopped_for_long() {
    let one = connection(Service::Rc, [0, 1]);
    let stop = |at| vec![(at, Act::Stop(1, 2_000_000_000))];
    let gives_up = "a sender gives up a peer that is stopped";
    play(false, &[one], stop, &[gives_up]);
}

#[test]
fn the_broker_is_killed_while_messages_are_under_way() {
    let both = [Service::Rc, Service::Ud].map(|service| connection(service, [0, 1]));
    for udp in [false, true] {
        play(
            udp,
            &both,
            |at| vec![(at, Act::KillBroker)],
            &[BROKER_KILLED],
        );
    }
}

#[test]
fn the_broker_is_told_to_end_while_messages_are_under_way() {
    let both = [Service::Rc, Service::Dc].map(|service| connection(service, [0, 1]));
    for udp in [false, true] {
        play(udp, &both, |at| vec![(at, Act::EndBroker)], &[BROKER_ENDED]);
    }
}

#[test]
fn the_slot_of_a_killed_process_is_leased_again() {
    let first = connection(Service::Rc, [2, 1]);
    let next = connection(Service::Rc, [1, SUCCESSOR]);
    let acts = |at| vec![(at, Act::Kill(2)), (at + 40, Act::Start)];
    let starts = "a process starts later";
    play(true, &[first, next], acts, &[ENDS, starts]);
}

#[test]
fn a_program_starts_while_others_come_back_to_a_new_broker() {
    let first = connection(Service::Rc, [2, 1]);
    let next = connection(Service::Cm, [1, SUCCESSOR]);
    let acts = |at| {
        let start = at + 20;
        vec![
            (at, Act::KillBroker),
            (start, Act::Kill(2)),
            (start, Act::Start),
        ]
    };
    let starts = "a process starts later";
    play(false, &[first, next], acts, &[BROKER_KILLED, starts]);
}

#[test]
fn a_connection_is_requested_while_the_broker_is_killed() {
    let one = connection(Service::Cm, [0, 1]);
    let is_accepted = "a connection is accepted";
    play(
        false,
        &[one],
        |at| vec![(at, Act::KillBroker)],
        &[BROKER_KILLED, is_accepted],
    );
}

#[test]
fn a_connection_is_ended_while_the_broker_is_killed() {
    let one = Connection {
        messages: [1, 1],
        ..connection(Service::Cm, [0, 1])
    };
    let is_ended = "a connection is disconnected";
    let acts = |at| vec![(at, Act::KillBroker)];
    play(false, &[one], acts, &[BROKER_KILLED, is_ended]);
}

#[test]
fn a_connection_ends_with_a_process() {
    let one = connection(Service::Cm, [0, 1]);
    let ends = "a connection ends with the process of the peer";
    play(false, &[one], |at| vec![(at, Act::Kill(0))], &[ends]);
}

// The table of docs/xrc-shared.md.

/// A connection to targets that a third process makes.
fn kept() -> Connection {
    Connection {
        is_kept: true,
        ..connection(Service::Xrc, [0, 1])
    }
}

const OPENS: &str = "a target is opened that another process has made";

#[test]
fn the_process_that_made_a_target_is_killed() {
    play(true, &[kept()], |at| vec![(at, Act::Kill(2))], &[OPENS]);
}

#[test]
fn the_owner_of_a_target_is_killed() {
    play(
        true,
        &[kept()],
        |at| vec![(at, Act::Kill(0))],
        &[OPENS, ENDS],
    );
}

#[test]
fn the_broker_is_killed_while_targets_are_shared() {
    let acts = |at| vec![(at, Act::KillBroker)];
    play(false, &[kept()], acts, &[OPENS, BROKER_KILLED]);
}

/// A connection to targets by which the process that has made them receives, too.
fn moving() -> Connection {
    Connection {
        keeper_receives: true,
        ..kept()
    }
}

const SECOND: &str = "a message arrives over XRC at a second process";

#[test]
fn a_target_moves_between_two_receivers() {
    for udp in [false, true] {
        play(udp, &[moving()], |_| Vec::new(), &[OPENS, SECOND]);
    }
}

#[test]
fn one_of_two_receivers_by_a_target_is_killed() {
    let ends = "a sender sees the end of the keeper of a target";
    for udp in [false, true] {
        let kill = |at| vec![(at, Act::Kill(2))];
        play(udp, &[moving()], kill, &[OPENS, SECOND, ends]);
        let kill = |at| vec![(at, Act::Kill(0))];
        play(udp, &[moving()], kill, &[OPENS, SECOND, ENDS]);
    }
}
