//! RC over a bad network, in virtual time. See `rocade_tests::sim`.

use rocade_tests::sim::cross_channel::{self, CrossChannelPlan};
use rocade_tests::sim::flow::Kind;
use rocade_tests::sim::memory_windows::MemoryWindows;
use rocade_tests::sim::network::Faults;
use rocade_tests::sim::scenario::{Receives, Report, Scenario};
use rocade_tests::sim::state_changes::{Outcome, Plan, StateChange};
use rocade_tests::sim::{are_few, each_seed};

/// Runs a scenario per seed, and returns the sum of the reports.
fn run(name: &str, count: u64, scenario: impl Fn(u64) -> Scenario) -> Report {
    let mut sum = Report::default();
    each_seed(count, scenario, Scenario::run, |report| sum.add(&report));
    println!("{name}: {sum:?}");
    sum
}

fn thousand_messages(kinds: &[Kind]) {
    const COUNT: u64 = 2;
    let report = run("thousand_messages", COUNT, |seed| {
        let mut scenario = Scenario::hostile(seed, kinds, 1000);
        scenario.pmtu = scenario.pmtu.max(3);
        scenario
    });
    assert!(
        are_few(COUNT) || (report.duplicates > 100 && report.retransmitted > 100),
        "too few duplicates and retransmissions"
    );
    // Responses to READs and atomics carry data, and have no fast path.
    let one_way = matches!(kinds, [Kind::Read] | [Kind::Atomic]);
    assert!(
        are_few(COUNT) || (report.fast_path_packets == 0) == one_way,
        "{report:?}"
    );
}

//= INV-03 type=test
//= INV-05 type=test
//= MW-06 type=test
//= MR-14 type=test
#[test]
fn what_is_lent_through_windows_is_taken_back() {
    const COUNT: u64 = 30;
    let mut repeated = 0;
    each_seed(
        COUNT,
        |seed| MemoryWindows::swarm(seed, 20),
        MemoryWindows::run,
        |count| repeated += count,
    );
    assert!(
        are_few(COUNT) || repeated > 300,
        "the network was bad: {repeated}"
    );
    each_seed(100, MemoryWindows::stopping, MemoryWindows::run, |count| {
        repeated += count
    });
}

/// Runs queues whose work is posted in advance and triggered by completions only.
//= XCW-01 XCW-07 XCE-05 type=test
//= XCE-06 type=test
#[test]
fn queues_that_wait_for_each_other_survive_a_bad_network() {
    const COUNT: u64 = 100;
    let mut sum = cross_channel::Outcome::default();
    for stops in [false, true] {
        let plan = |seed| CrossChannelPlan::swarm(seed, stops);
        each_seed(COUNT, plan, CrossChannelPlan::run, |outcome| {
            sum.echoed += outcome.echoed;
            sum.ended += outcome.ended;
            sum.repeated += outcome.repeated;
        });
        assert!(are_few(COUNT) || (sum.ended > 100) == stops, "{sum:?}");
    }
    println!("cross_channel: {sum:?}");
}

#[test]
fn thousand_sends_arrive_once_in_order_intact() {
    thousand_messages(&[Kind::Send]);
}

#[test]
fn thousand_sends_with_immediate_arrive_once_in_order_intact() {
    thousand_messages(&[Kind::SendImm]);
}

#[test]
fn thousand_writes_arrive_once_in_order_intact() {
    thousand_messages(&[Kind::Write]);
}

#[test]
fn thousand_writes_with_immediate_arrive_once_in_order_intact() {
    thousand_messages(&[Kind::WriteImm]);
}

#[test]
fn thousand_reads_arrive_once_in_order_intact() {
    thousand_messages(&[Kind::Read]);
}

//= RC-DUP-04 type=test
#[test]
fn thousand_atomics_execute_once() {
    thousand_messages(&[Kind::Atomic]);
}

//= RC-SEG-04 type=test
#[test]
fn thousand_mixed_operations_in_both_directions() {
    run("both", 2, |seed| {
        let mut scenario = Scenario::hostile(seed, &Kind::ALL, 1000);
        scenario.pmtu = scenario.pmtu.max(3);
        scenario.work.push(scenario.work[0].clone());
        scenario
    });
}

/// Checks that no message is lost or duplicated when the path in use fails under traffic, or a
/// program requests a migration.
//= RC-APM-05 RC-APM-06 RC-APM-08 type=test
//= RC-APM-10 type=test
#[test]
fn everything_survives_a_change_of_paths() {
    const COUNT: u64 = 35;
    for receives in [Receives::Own, Receives::Shared, Receives::Xrc] {
        let report = run("paths", COUNT, |seed| {
            let mut scenario = Scenario::swarm(seed, &Kind::ALL, 120);
            scenario.receives = receives;
            scenario.path_changes = 30;
            if receives == Receives::Xrc {
                scenario.work.truncate(1);
            }
            scenario
        });
        assert!(
            are_few(COUNT) || (report.migrations > 200 && report.retransmitted > 100),
            "{receives:?}: {report:?}"
        );
    }
}

/// Lets the path change before, during or after a state change (drain, ERR, reset, destroy).
/// Packets of the old path arrive late, beyond the ACK timeout.
//= RC-APM-05 RC-APM-06 RC-APM-08 type=test
//= RC-APM-10 RC-STA-04 RC-STA-06 type=test
#[test]
fn a_change_of_paths_meets_a_change_of_states() {
    const COUNT: u64 = 100;
    for state_change in StateChange::ALL {
        let mut sum = Outcome::default();
        for receives in [Receives::Own, Receives::Shared, Receives::Xrc] {
            let plan = |seed| Plan::swarm(seed, state_change, receives).with_path_change();
            each_seed(COUNT, plan, Plan::run, |outcome| sum.add(&outcome));
        }
        println!("{state_change:?}: {sum:?}");
        assert!(
            are_few(COUNT) || (sum.done > 100 && sum.migrations > 50),
            "{state_change:?}: {sum:?}"
        );
    }
}

/// Checks that everything arrives once and unmodified under fault rules in the users' syntax, and
/// that runs are reproducible.
#[test]
fn faults_by_rule_are_survived() {
    const COUNT: u64 = 8;
    for rules in [
        "drop opcode=READ_RESPONSE p=10%; drop opcode=REQUEST nth=3",
        "drop opcode=ACK p=15%; drop opcode=NAK every=2",
        "dup opcode=REQUEST p=20%; reorder by=3 p=5%; delay by=40ms p=1%",
        "corrupt p=3%; drop opcode=SEND,WRITE nth=4..6; dup opcode=RESPONSE every=3",
    ] {
        let report = run(rules, COUNT, |seed| {
            let mut scenario = Scenario::swarm(seed, &Kind::ALL, 40);
            scenario.faults = Faults::NONE;
            scenario.rules = rules;
            scenario
        });
        assert!(
            are_few(COUNT) || report.retransmitted + report.duplicates > 0,
            "{rules}: {report:?}"
        );
        let again = run(rules, COUNT, |seed| {
            let mut scenario = Scenario::swarm(seed, &Kind::ALL, 40);
            scenario.faults = Faults::NONE;
            scenario.rules = rules;
            scenario
        });
        assert_eq!(report, again, "{rules}");
    }
}

#[test]
fn each_operation_survives_random_configurations() {
    for kind in Kind::ALL {
        run("each", 30, |seed| {
            Scenario::hostile(seed ^ (kind as u64) << 32, &[kind], 20)
        });
    }
}

#[test]
fn mixed_operations_survive_random_configurations() {
    const COUNT: u64 = 200;
    let report = run("mixed", COUNT, |seed| Scenario::swarm(seed, &Kind::ALL, 30));
    assert!(are_few(COUNT) || report.waiting_posts > 100, "{report:?}");
}

/// Runs exchanges in which an ACK that one side delays may be what the other side waits for.
#[test]
fn conversations_survive_random_configurations() {
    const COUNT: u64 = 100;
    let report = run("conversation", COUNT, |seed| {
        Scenario::conversation(seed, 100)
    });
    assert!(are_few(COUNT) || report.held_acks > 100, "{report:?}");
}

/// Runs shared receive queues on both sides, and XRC in one direction.
//= SRQ-07 type=test
//= XRC-02 type=test
#[test]
fn shared_receives_survive_random_configurations() {
    for receives in [Receives::Shared, Receives::Xrc] {
        run("shared", 100, |seed| {
            let mut scenario = Scenario::swarm(seed, &Kind::ALL, 30);
            scenario.receives = receives;
            if receives == Receives::Xrc {
                scenario.work.truncate(1);
            }
            scenario
        });
        run("shared, hostile", 20, |seed| {
            let mut scenario = Scenario::hostile(seed, &Kind::ALL, 60);
            scenario.receives = receives;
            scenario
        });
    }
}

/// Checks that the fast path of middle packets has the same results as the slow path.
#[test]
fn the_fast_path_agrees_with_the_slow_path() {
    const COUNT: u64 = 100;
    let scenario = |seed| {
        let mut scenario = Scenario::swarm(seed, &[Kind::Send, Kind::Write, Kind::Read], 20);
        // Many packets per message.
        scenario.pmtu = 1;
        scenario
    };
    let both_ways = |scenario: &Scenario| {
        let short = scenario.run();
        let long = Scenario {
            long_way: true,
            ..scenario.clone()
        };
        let long = long.run();
        assert_eq!(long.fast_path_packets, 0);
        let as_long = Report {
            fast_path_packets: 0,
            ..short
        };
        assert_eq!(as_long, long);
        short
    };
    let mut sum = Report::default();
    each_seed(COUNT, scenario, both_ways, |report| sum.add(&report));
    // A single seed may draw READs only.
    let enough = are_few(COUNT) || sum.fast_path_packets * 10 > sum.packets;
    assert!(enough, "the fast path was taken: {sum:?}");
}

/// The kinds with short responses. A READ that takes many timeouts is repeated as a whole, and its
/// responses delay those of other requests. With few retries, the tests therefore draw no READs for
/// a peer that slow.
const SHORT_ANSWERS: [Kind; 5] = [
    Kind::Send,
    Kind::SendImm,
    Kind::Write,
    Kind::WriteImm,
    Kind::Atomic,
];

/// Checks that the requester does not give up a peer that takes long for each packet.
//= RC-ACK-21 type=test
#[test]
fn a_slow_peer_is_not_dead() {
    for (load, kinds, retries) in [
        (1, &Kind::ALL[..], 0),
        (10, &Kind::ALL, 0),
        (50, &Kind::ALL, 0),
        (200, &Kind::ALL, 6),
        (200, &SHORT_ANSWERS, 0),
        (450, &Kind::ALL, 6),
        (450, &SHORT_ANSWERS, 0),
    ] {
        let report = run("slow", 15, |seed| {
            let mut scenario = Scenario::slow(seed, kinds, 60, load);
            scenario.retry_cnt = scenario.retry_cnt.max(retries);
            scenario
        });
        assert!(report.timeouts == 0 || load > 50, "{load}: {report:?}");
        assert!(
            report.retransmitted <= 5 * report.timeouts,
            "{load}: {report:?}"
        );
    }
}

/// Checks that the requester does not give up a peer that stalls while packets wait for it, and
/// that few packets are retransmitted.
//= RC-ACK-21 type=test
#[test]
fn a_peer_that_stalls_is_not_dead() {
    const COUNT: u64 = 15;
    for (load, stall, kinds) in [
        (1, 100, &Kind::ALL[..]),
        (1, 600, &Kind::ALL),
        (5, 300, &Kind::ALL),
        (20, 300, &SHORT_ANSWERS),
        (100, 300, &SHORT_ANSWERS),
        (300, 200, &SHORT_ANSWERS),
    ] {
        let report = run("stalling", COUNT, |seed| {
            Scenario::stalling(seed, kinds, 60, load, stall)
        });
        assert!(
            are_few(COUNT) || report.timeouts > 0,
            "no timeout although B stalled: {report:?}"
        );
        assert!(report.retransmitted <= 5 * report.timeouts, "{report:?}");
    }
}

/// Loses all packets for a time that is shorter than all retries.
#[test]
fn a_blackout_is_survived() {
    run("blackout", 50, |seed| {
        let mut scenario = Scenario::swarm(seed, &Kind::ALL, 60);
        scenario.faults.blackout_ns = 3 * (4096 << scenario.timeout);
        scenario
    });
}

fn state_change(state_change: StateChange) {
    const COUNT: u64 = 120;
    for receives in [Receives::Own, Receives::Shared, Receives::Xrc] {
        let mut sum = Outcome::default();
        let plan = |seed| Plan::swarm(seed, state_change, receives);
        each_seed(COUNT, plan, Plan::run, |outcome| sum.add(&outcome));
        println!("{state_change:?}, {receives:?}: {sum:?}");
        if are_few(COUNT) {
            continue;
        }
        assert!(sum.fast_path_packets > 0, "{receives:?}: {sum:?}");
        // Many messages are incomplete, unless the connection continues.
        let cuts_off = matches!(state_change, StateChange::Error | StateChange::Destroy);
        assert!(
            sum.done > 100 && (sum.cut_off > 100) == cuts_off,
            "{receives:?}: {sum:?}"
        );
    }
}

//= RC-STA-06 type=test
#[test]
fn a_connection_that_is_drained_in_mid_flow_goes_on() {
    state_change(StateChange::Drain);
}

//= RC-STA-01 RC-STA-03 type=test
#[test]
fn an_error_in_mid_flow_ends_everything_in_order() {
    state_change(StateChange::Error);
}

//= RC-STA-04 type=test
#[test]
fn a_connection_that_is_reset_in_mid_flow_starts_anew() {
    state_change(StateChange::Reset);
}

//= CQ-13 type=test
#[test]
fn a_qp_that_is_destroyed_in_mid_flow_leaves_no_trace() {
    state_change(StateChange::Destroy);
}
