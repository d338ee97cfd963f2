//! The suite as its users run it: the agent in C, which knows plain verbs only, drives the built library. It comes to the verdicts
//! that the peer in Rust comes to; what plain verbs cannot be asked for is counted.

use std::time::Duration;

use rocade_tests::{
    harness::{Rig, conformance_agent, start_conformance},
    or_skip,
};

/// It takes some seconds.
const LIMIT: Duration = Duration::from_secs(300);

#[test]
fn through_verbs_the_verdicts_are_the_same() {
    let rig = or_skip!(Rig::loopback(&[("gcc", "gcc")]));
    let agent = or_skip!(conformance_agent(&rig));
    let rocade = rig.rocade_path();
    let command = format!(
        "exec {} run --dev rocade0=127.4.0.2 -- {} -d rocade0 -f own",
        rocade.display(),
        agent.display()
    );
    let addresses = "--local 127.4.0.1 --peer 127.4.0.2 --stranger 127.4.0.3";
    let mut arguments: Vec<_> = addresses.split(' ').collect();
    arguments.extend(["--agent", &command]);
    let suite = start_conformance(&rig, &["rocade-verbs.toml"], &arguments);
    let output = suite.finish(LIMIT).expect_success();
    let summary = "rocade0: 336 cases, 268 passed, 0 known to fail, 68 skipped, 0 unexpected";
    assert!(output.contains(summary), "{output}");
}
