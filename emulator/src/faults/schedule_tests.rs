//! Times of rules: their text, their order, and a process that comes too late.

use super::*;
use rocade_transport::Time;

const MS: u64 = 1_000_000;

fn plan(text: &str) -> FaultPlan {
    FaultPlan::new(FaultRule::parse_list(text).expect(text), 1)
}

/// Returns the changes until `until`, as time in milliseconds and phase. The clock stops at each.
fn changes(plan: &FaultPlan, until: u64) -> Vec<(u64, Phase)> {
    let mut changes = Vec::new();
    while let Some(due) = plan.next_due().filter(|due| due.as_ns() <= until * MS) {
        if let Some(change) = plan.take_due(due) {
            changes.push((due.as_ns() / MS, change.phase));
        }
    }
    changes
}

#[test]
fn rules_begin_and_end_at_their_times() {
    let plan = plan("rnr at=5ms for=2ms every=10ms times=2");
    assert_eq!(plan.next_due(), None, "no device is open");
    plan.begin(Time::from_ns(100 * MS));
    let expected = [
        (105, Phase::Begin),
        (107, Phase::End),
        (115, Phase::Begin),
        (117, Phase::End),
    ];
    assert_eq!(changes(&plan, 1_000), expected);
}

#[test]
fn a_rule_without_a_time_applies_at_once() {
    let plan = plan("rnr; drop; rnr at=1ms; partition at=1ms for=1ms");
    let open = |plan: &FaultPlan| -> Vec<bool> {
        let triggers = plan.trigger_rules().into_iter().map(|rule| rule.is_open);
        let packets = plan.packet_rules().into_iter().map(|rule| rule.is_open);
        triggers.chain(packets).collect()
    };
    assert_eq!(open(&plan), [true, false, true, false]);
    plan.begin(Time::ZERO);
    assert_eq!(changes(&plan, 1).len(), 2);
    assert_eq!(open(&plan), [true; 4]);
    assert_eq!(changes(&plan, 2), [(2, Phase::End)]);
    assert_eq!(open(&plan), [true, true, true, false]);
    assert_eq!(plan.next_due(), None);
}

#[test]
fn a_process_that_was_stopped_misses_whole_phases() {
    let plan = plan("event type=PORT_ERR every=10ms");
    plan.begin(Time::ZERO);
    let mut taken = 0;
    while plan.take_due(Time::from_ns(95 * MS)).is_some() {
        taken += 1;
    }
    assert!((1..=2).contains(&taken), "{taken}");
    assert_eq!(plan.next_due(), Some(Time::from_ns(100 * MS)));
}

#[test]
fn a_rule_that_stays_keeps_its_time_and_a_new_one_counts_from_now() {
    let plan = plan("kill at=20ms");
    plan.begin(Time::ZERO);
    let rules = FaultRule::parse_list("kill at=20ms; stop at=5ms").expect("rules");
    plan.replace(rules, None, Time::from_ns(10 * MS));
    assert_eq!(
        changes(&plan, 100),
        [(15, Phase::Begin), (20, Phase::Begin)]
    );
    plan.replace(Vec::new(), None, Time::from_ns(200 * MS));
    assert_eq!(plan.next_due(), None);
}

#[test]
fn a_probability_leaves_phases_out() {
    let plan = plan("event type=PORT_ERR every=1ms p=0.5 seed=3");
    plan.begin(Time::ZERO);
    let count = changes(&plan, 1_000).len();
    assert!((400..600).contains(&count), "{count}");
}

#[test]
fn wrong_times_are_named() {
    for (text, parts) in [
        ("rnr at=5", ["`at=5`", "500ms"]),
        ("rnr for=0ms", ["`for=0ms`", "500ms"]),
        ("rnr for=2s every=1s", ["for=2s every=1s", "not shorter"]),
        ("rnr times=3", ["times=3", "every=1s"]),
        ("rnr for=1ms every=1s times=0", ["`times=0`", "from 1"]),
        ("drop at=1s at=2s", ["`at=2s`", "twice"]),
        ("drop every=1s", ["drop every=1s", "duration is missing"]),
        (
            "fail verb=any errno=EIO dev=",
            ["`dev=`", "name of a device"],
        ),
        ("event type=PORT_ERR port=0", ["`port=0`", "1 to 255"]),
    ] {
        let error = FaultRule::parse(text).expect_err(text).to_string();
        assert!(
            parts.iter().all(|part| error.contains(part)),
            "{text}: {error}"
        );
    }
}
