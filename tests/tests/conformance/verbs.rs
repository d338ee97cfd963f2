//! The suite as its users run it: the C agent uses plain verbs to drive the built library. The
//! verdicts must equal those with the Rust peer, except for skipped cases that plain verbs cannot
//! express.

use std::time::Duration;

use rocade_tests::{
    harness::{Rig, conformance_agent, free_port, start_conformance},
    or_skip,
};

/// Takes some seconds.
const LIMIT: Duration = Duration::from_secs(300);

#[test]
fn through_verbs_the_verdicts_are_the_same() {
    let rig = or_skip!(Rig::loopback(&[("gcc", "gcc")]));
    let agent = or_skip!(conformance_agent(&rig));
    let rocade = rig.rocade_path();
    let command = format!(
        "exec {} run --dev rocade0=127.4.0.2 -- {} -d rocade0 -f own -f masked-swap",
        rocade.display(),
        agent.display()
    );
    // An answer may take long on a busy machine. Every one comes.
    let options = "--local 127.4.0.1 --peer 127.4.0.2 --third-host 127.4.0.3 --patience 20000";
    let mut arguments: Vec<_> = options.split(' ').collect();
    arguments.extend(["--agent", &command]);
    let suite = start_conformance(&rig, &["rocade-verbs.toml"], &arguments);
    let output = suite.finish(LIMIT).expect_success();
    let summary = "rocade0: 341 cases, 273 passed, 0 known to fail, 68 skipped, 0 unexpected";
    assert!(output.contains(summary), "{output}");
}

/// Checks that the agent accepts any number of `hello` orders.
#[test]
fn an_agent_is_greeted_often() {
    const OFTEN: usize = 100;
    let rig = or_skip!(Rig::loopback(&[("gcc", "gcc")]));
    let agent = or_skip!(conformance_agent(&rig));
    let script = format!(
        "yes hello 127.4.0.4 | head -n {OFTEN} | {} run --dev rocade0=127.4.0.4 -- {} -d rocade0 -f own",
        rig.rocade_path().display(),
        agent.display()
    );
    let greeted = rig.start_plain("agent", &["sh", "-c", &script]);
    let output = greeted.finish(LIMIT).expect_success();
    let answers = output.lines().filter(|line| line.starts_with("ok "));
    let answers: Vec<&str> = answers.collect();
    assert_eq!(answers.len(), OFTEN, "{output}");
    assert!(
        answers.iter().all(|answer| *answer == answers[0]),
        "{output}"
    );
}

/// Checks that the agent accepts orders from this machine only, unless it was given an address to
/// listen on.
#[test]
fn an_agent_listens_where_it_was_told() {
    let rig = or_skip!(Rig::loopback(&[("gcc", "gcc")]));
    let agent = or_skip!(conformance_agent(&rig));
    let (rocade, agent) = (rig.rocade_path(), agent.display().to_string());
    let rocade = rocade.display().to_string();
    let device = "rocade0=127.4.0.5";
    for (told, here, elsewhere) in [
        (&[][..], "127.0.0.1", "127.4.0.5"),
        (&["-a", "127.4.0.5"][..], "127.4.0.5", "127.0.0.1"),
    ] {
        let port = free_port();
        let listen = port.to_string();
        let words = [rocade.as_str(), "run", "--dev", device, "--", &agent];
        let words = [&words[..], &["-d", "rocade0", "-l", &listen], told].concat();
        let mut process = rig.start_plain("agent", &words);
        process.wait_listening(port, LIMIT);
        let refused = greet(&rig, elsewhere, &listen);
        assert!(
            refused.contains("Connection refused"),
            "{told:?}: {refused}"
        );
        let answer = greet(&rig, here, &listen);
        assert!(answer.contains("ok rocade0"), "{told:?}: {answer}");
        process.finish(LIMIT).expect_success();
    }
}

/// Sends `hello` to the agent at an address and port of the rig's network. Returns its answer or
/// the error.
fn greet(rig: &Rig, address: &str, port: &str) -> String {
    let script = "exec 3<>/dev/tcp/$0/$1 && echo hello 127.4.0.5 >&3 && head -n 1 <&3";
    let words = ["bash", "-c", script, address, port];
    rig.start_plain("greeting", &words).finish(LIMIT).output
}
