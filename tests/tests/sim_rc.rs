//! RC over a bad network, in virtual time; see `rocade_tests::sim`.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use rocade_tests::sim::flow::Kind;
use rocade_tests::sim::scenario::{Report, Scenario};
use rocade_tests::sim::seeds;

/// Runs a scenario per seed; a failure says which.
fn run(name: &str, count: u64, scenario: impl Fn(u64) -> Scenario) -> Report {
    let mut sum = Report::default();
    for seed in seeds(count) {
        let scenario = scenario(seed);
        match catch_unwind(AssertUnwindSafe(|| scenario.run())) {
            Ok(report) => sum.add(&report),
            Err(panic) => {
                eprintln!("failed with ROCADE_SEED={seed} {name}: {scenario:?}");
                resume_unwind(panic);
            }
        }
    }
    println!("{name}: {sum:?}");
    sum
}

fn thousand_messages(kinds: &[Kind]) {
    let report = run("thousand_messages", 2, |seed| {
        let mut scenario = Scenario::hostile(seed, kinds, 1000);
        scenario.pmtu = scenario.pmtu.max(3);
        scenario
    });
    assert!(
        report.duplicates > 100 && report.retransmitted > 100,
        "the network was bad"
    );
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

#[test]
fn thousand_mixed_operations_in_both_directions() {
    run("both", 2, |seed| {
        let mut scenario = Scenario::hostile(seed, &Kind::ALL, 1000);
        scenario.pmtu = scenario.pmtu.max(3);
        scenario.work.push(scenario.work[0].clone());
        scenario
    });
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
    run("mixed", 200, |seed| Scenario::swarm(seed, &Kind::ALL, 30));
}

/// The short way of middle packets is no other way: with and without it, the same happens.
#[test]
fn the_short_way_leads_where_the_long_one_does() {
    run("ways", 100, |seed| {
        let mut scenario = Scenario::swarm(seed, &[Kind::Send, Kind::Write, Kind::Read], 20);
        // Many packets per message.
        scenario.pmtu = 1;
        let short = scenario.run();
        scenario.long_way = true;
        assert_eq!(short, scenario.run(), "{scenario:?}");
        scenario
    });
}

/// Each packet takes the peer so long that a careless requester would take it for dead.
//= RC-ACK-21 type=test
#[test]
fn a_slow_peer_is_not_dead() {
    for load in [1, 10, 50, 200, 450] {
        let report = run("slow", 15, |seed| {
            Scenario::slow(seed, &Kind::ALL, 60, load)
        });
        assert!(report.timeouts == 0 || load > 50, "{load}: {report:?}");
        assert!(
            report.retransmitted <= 5 * report.timeouts,
            "{load}: {report:?}"
        );
    }
}

/// It does nothing for a while, with packets waiting for it: what is sent again then is little.
//= RC-ACK-21 type=test
#[test]
fn a_peer_that_stalls_is_not_dead() {
    // A READ that takes many timeouts is asked for again as a whole: no peer of that kind.
    let short = [
        Kind::Send,
        Kind::SendImm,
        Kind::Write,
        Kind::WriteImm,
        Kind::Atomic,
    ];
    for (load, stall, kinds) in [
        (1, 100, &Kind::ALL[..]),
        (1, 600, &Kind::ALL),
        (20, 300, &Kind::ALL),
        (100, 300, &short),
        (300, 300, &short),
    ] {
        let report = run("stalling", 15, |seed| {
            Scenario::stalling(seed, kinds, 60, load, stall)
        });
        assert!(report.timeouts > 0, "B did stall: {report:?}");
        assert!(report.retransmitted <= 5 * report.timeouts, "{report:?}");
    }
}

/// The path is dead for a while, shorter than all retries take.
#[test]
fn a_blackout_is_survived() {
    run("blackout", 50, |seed| {
        let mut scenario = Scenario::swarm(seed, &Kind::ALL, 60);
        scenario.faults.blackout_ns = 3 * (4096 << scenario.timeout);
        scenario
    });
}
