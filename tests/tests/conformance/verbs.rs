//! The suite as its users run it: the C agent uses plain verbs to drive the built library. The
//! verdicts must equal those with the Rust peer, except for skipped cases that plain verbs cannot
//! express.

use std::{ffi::OsString, fs, path::Path, time::Duration};

use rocade_conformance::{Report, suite};
use rocade_tests::{
    harness::{Finished, Rig, conformance_agent, free_port, start_conformance},
    or_skip,
    skip::Reason,
};

/// Takes some seconds.
const LIMIT: Duration = Duration::from_secs(300);

#[test]
fn through_verbs_the_verdicts_are_the_same() {
    let rig = or_skip!(Rig::loopback(&[("gcc", "gcc")]));
    let agent = or_skip!(conformance_agent(&rig));
    let rocade = rig.rocade_path();
    let command = format!(
        "exec {} run --dev rocade0=127.4.0.2 -- {} -d rocade0",
        rocade.display(),
        agent.display()
    );
    // An answer may take long on a busy machine. Every one comes.
    let options = "--local 127.4.0.1 --peer 127.4.0.2 --third-host 127.4.0.3 --patience 20000";
    let mut arguments: Vec<_> = options.split(' ').collect();
    arguments.extend(["--agent", &command]);
    // The suite knows by itself what plain verbs lack.
    let suite = start_conformance(&rig, &[], &arguments);
    let output = suite.finish(LIMIT).expect_success();
    let count = suite::all().len();
    let skipped = 45;
    let summary = format!(
        "rocade0: {count} cases, {} passed, 0 known to fail, {skipped} skipped, 0 unexpected",
        count - skipped
    );
    assert!(output.contains(&summary), "{output}");
}

/// The areas of a run that need not be long.
const QUICK: &str = "packets,messages";

/// Runs the quick areas with an agent that is started by this command behind `rocade run`.
fn run(rig: &Rig, addresses: [&str; 3], agent: &str, options: &[&str]) -> Finished {
    let [suite, device, third_host] = addresses;
    let command = format!(
        "exec {} run --dev rocade0={device} -- {agent}",
        rig.rocade_path().display()
    );
    let mut arguments = vec![
        "--local",
        suite,
        "--peer",
        device,
        "--third-host",
        third_host,
    ];
    arguments.extend(["--patience", "20000", "--agent", &command]);
    arguments.extend(options);
    start_conformance(rig, &[], &arguments).finish(LIMIT)
}

const HOSTS: [&str; 3] = ["127.4.1.1", "127.4.1.2", "127.4.1.3"];

/// Returns the number of cases in these areas.
fn cases_of(areas: &str) -> usize {
    let is_named = |area: &&suite::Area| areas.split(',').any(|name| name == area.name);
    suite::AREAS
        .iter()
        .filter(is_named)
        .map(|area| area.cases.len())
        .sum()
}

fn results(out: &Path) -> Report {
    let text = fs::read_to_string(out.join("results.json")).unwrap();
    Report::from_json(&text).unwrap()
}

/// Loses the agent in the middle of a run, and goes on with another one.
#[test]
fn a_run_that_lost_its_agent_is_resumed() {
    let rig = or_skip!(Rig::loopback(&[("gcc", "gcc")]));
    let agent = or_skip!(conformance_agent(&rig));
    let agent = format!("{} -d rocade0", agent.display());
    let out = rig.dir().join("out");
    let options = ["--area", QUICK, "--out", out.to_str().unwrap()];
    // The agent ends after so many orders.
    let mortal = format!("sh -c 'sed -u 150q | {agent}'");
    let output = run(&rig, HOSTS, &mortal, &options).expect_failure();
    assert!(output.contains("--resume goes on after it"), "{output}");
    let first = results(&out);
    let (count, all) = (first.entries.len(), cases_of(QUICK));
    assert!(0 < count && count < all, "{count} of {all}");
    let why = first.lost.unwrap();
    let last = first.entries.last().unwrap();
    assert!(
        why.starts_with(&format!("lost in {}: ", last.case)),
        "{why}"
    );
    assert!(
        fs::read_to_string(out.join("report.html"))
            .unwrap()
            .contains("The run ended early")
    );

    let before = rig.dir().join("before.json");
    fs::copy(out.join("results.json"), &before).unwrap();
    let resumed = [&options[..], &["--resume"]].concat();
    let output = run(&rig, HOSTS, &agent, &resumed).expect_failure();
    let second = results(&out);
    assert_eq!(second.lost, None);
    assert_eq!(second.entries.len(), all);
    assert_eq!(second.entries[..count], first.entries, "results are kept");
    // The case in which the agent was lost is the only one that is not as expected.
    assert_eq!(second.unexpected().count(), 1, "{output}");
    assert_eq!(second.unexpected().next().unwrap().case, last.case);
    for name in [
        "junit.xml",
        "packets/BTH-05-other-version-is-dropped.pcapng",
    ] {
        assert!(out.join(name).is_file(), "{name}");
    }
}

/// Gives the rig's network an Ethernet with these addresses and a route to groups of IPv6, which
/// the loopback interface lacks.
fn add_ethernet(rig: &Rig, hosts: &[&str]) -> Result<(), Reason> {
    let mut script = "ip link add x0 type veth peer name x1 && ip link set x1 up && \
        ip link set x0 up"
        .to_owned();
    for host in hosts {
        script += &format!(" && ip addr add {host}/64 dev x0 nodad");
    }
    script += " && timeout 20 sh -c 'until ip -6 route show table local dev x0 | \
        grep -q ff00::/8; do sleep 0.01; done'";
    let words = ["sh", "-c", &script].map(OsString::from);
    let made = rig.network().command(&words).status().unwrap().success();
    made.then_some(())
        .ok_or_else(|| Reason::Machine("cannot make a veth pair".to_owned()))
}

/// Runs the same cases over IPv6, the connection manager and groups included.
#[test]
fn over_ipv6_the_verdicts_are_the_same() {
    let rig = or_skip!(Rig::loopback(&[("gcc", "gcc")]));
    if !rig.network().is_isolated() {
        rocade_tests::skip!("adding addresses needs a network namespace");
    }
    let agent = or_skip!(conformance_agent(&rig));
    let hosts = ["fd00:4::1", "fd00:4::2", "fd00:4::3"];
    or_skip!(add_ethernet(&rig, &hosts));
    let areas = "packets,messages,acknowledge,duplicates,unreliable,manager,multicast";
    let agent = format!("{} -d rocade0", agent.display());
    let options = ["--area", areas, "--repeat", "2"];
    let output = run(&rig, hosts, &agent, &options).expect_success();
    let count = cases_of(areas);
    let summary = format!("rocade0: {count} cases, {count} passed, 0 known to fail, 0 skipped");
    assert!(output.contains(&summary), "{output}");
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

/// The token of agents that listen.
const TOKEN: &str = "4c6f-73";

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
        let options = ["-d", "rocade0", "-l", &listen, "-t", TOKEN];
        let words = [&words[..], &options, told].concat();
        let mut process = rig.start_plain("agent", &words);
        process.wait_listening(port, LIMIT);
        let refused = greet(&rig, elsewhere, &listen, TOKEN);
        assert!(
            refused.contains("Connection refused"),
            "{told:?}: {refused}"
        );
        let answer = greet(&rig, here, &listen, TOKEN);
        assert!(answer.contains("ok rocade0"), "{told:?}: {answer}");
        process.finish(LIMIT).expect_success();
    }
}

/// Checks that an agent without a token makes one up, refuses others, and still waits for its own.
#[test]
fn an_agent_refuses_another_token() {
    let rig = or_skip!(Rig::loopback(&[("gcc", "gcc")]));
    let agent = or_skip!(conformance_agent(&rig));
    let port = free_port();
    let listen = port.to_string();
    let rocade = rig.rocade_path().display().to_string();
    let device = "rocade0=127.4.0.5";
    let agent = agent.display().to_string();
    let words = [
        &rocade, "run", "--dev", device, "--", &agent, "-d", "rocade0", "-l", &listen,
    ];
    let mut process = rig.start_plain("agent", &words);
    process.wait_listening(port, LIMIT);
    let printed = process.output();
    let token = printed.split("--token ").nth(1).expect("a token");
    let token = token.split_whitespace().next().unwrap();
    assert_eq!(token.len(), 32, "{printed}");

    let at = format!("127.0.0.1:{listen}");
    let wrong = format!("{}0", &token[1..]);
    for given in [&["--token", &wrong][..], &[]] {
        let mut arguments = vec!["--local", "127.4.0.6", "--peer", "127.4.0.5"];
        arguments.extend(["--connect", &at]);
        arguments.extend(given);
        let output = start_conformance(&rig, &[], &arguments)
            .finish(LIMIT)
            .expect_failure();
        let error = "another token than the agent's: give both sides the same one";
        assert!(output.contains(error), "{given:?}: {output}");
    }
    assert!(greet(&rig, "127.0.0.1", &listen, token).contains("ok rocade0"));
    let output = process.finish(LIMIT).expect_success();
    let told = output
        .matches("refused a connection with another token")
        .count();
    assert_eq!(told, 2, "{output}");
}

/// Sends the token and `hello` to the agent at an address and port of the rig's network. Returns
/// its answer or the error.
fn greet(rig: &Rig, address: &str, port: &str, token: &str) -> String {
    let script = "exec 3<>/dev/tcp/$0/$1 && echo token $2 >&3 && head -n 1 <&3 && \
        echo hello 127.4.0.5 >&3 && head -n 1 <&3";
    let words = ["bash", "-c", script, address, port, token];
    rig.start_plain("greeting", &words).finish(LIMIT).output
}
