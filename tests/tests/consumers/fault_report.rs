//! The report of fault rules: a program that exits prints it, and the broker keeps it.

use std::time::Duration;

use rocade_tests::{
    harness::{Perftest, Rig, free_port},
    or_skip,
};
use serde_json::Value;

use crate::{LIMIT, LINKS, PERFTEST};

/// A rule that costs a retransmission.
const LOSS: &str = "drop opcode=READ_RESPONSE nth=3";
/// A rule that is never applied.
const MISS: &str = "fail verb=resize_cq errno=ENOMEM";
/// A rule that ends the process.
const END: &str = "kill opcode=READ_REQUEST nth=3";
/// A rule for a program that makes no queue pair.
const PORT: &str = "fail verb=query_port errno=EIO";

fn reader() -> Perftest {
    let size = ["-s", "20000", "-n", "20", "-m", "1024", "-u", "18"];
    Perftest::new("ib_read_bw", &size)
}

/// Returns the processes of the report in that state, each with its rules.
fn reported(rig: &Rig, state: &str) -> Vec<(u64, Vec<Value>)> {
    let text = rig.rocade(&["fault", "report", "--json"]).expect_success();
    let json: Value = serde_json::from_str(&text).expect("JSON");
    let processes = json["processes"].as_array().expect("a list").iter();
    processes
        .filter(|process| process["state"] == state)
        .map(|process| {
            let rules = process["rules"].as_array().expect("a list");
            (process["pid"].as_u64().expect("a number"), rules.clone())
        })
        .collect()
}

/// Returns the lines of the report that a program has printed, below its heading.
fn printed(output: &str) -> Vec<Vec<&str>> {
    let lines = output.lines();
    let from_heading = lines.skip_while(|line| !line.contains("]: fault rules: "));
    from_heading
        .skip(1)
        .take_while(|line| line.starts_with("  "))
        .map(|line| line.split_whitespace().collect())
        .collect()
}

#[test]
fn a_program_that_exits_tells_what_its_rules_have_done() {
    for link in LINKS {
        let rig = or_skip!(Rig::loopback(PERFTEST)).with_link(link);
        let rig = rig.with_options(&["--fault", LOSS, "--fault", MISS]);
        let [server, client] = reader().run(&rig, LIMIT);
        let table = printed(&server);
        assert_eq!(table.len(), 3, "{server}");
        assert_eq!(table[0], ["times", "first", "last", "rule", "object"]);
        assert_eq!(table[1][0], "1", "{server}");
        assert_eq!(table[1][1], table[1][2], "{server}");
        let end = &table[1][3..];
        assert_eq!(end[..6].join(" "), format!("{LOSS} packet to QP"));
        assert_eq!(table[2][..3], ["0", "-", "-"]);
        // The client sends no response, so that the rule does not find one.
        assert_eq!(printed(&client)[1][0], "0", "{client}");

        let ended = reported(&rig, "exited");
        assert_eq!(ended.len(), 2, "{ended:#?}");
        let all = ended.iter().flat_map(|(_, rules)| rules);
        let times = |rule| {
            let of_rule = all.clone().filter(move |one| one["rule"] == rule);
            of_rule.map(|one| one["times"].as_u64().expect("a number"))
        };
        assert_eq!(times(LOSS).sum::<u64>(), 1);
        assert_eq!(times(MISS).sum::<u64>(), 0);
        let lost = all.clone().find(|one| one["times"] == 1).expect("counted");
        assert_eq!(lost["objects"][0]["times"], 1);
        assert!(lost["first_ns"].as_u64() > Some(0), "{lost}");
        assert_eq!(lost["first_ns"], lost["last_ns"]);
    }
}

#[test]
fn the_report_of_a_killed_program_is_kept() {
    for link in LINKS {
        let rig = or_skip!(Rig::loopback(PERFTEST)).with_link(link);
        let port = free_port();
        let mut server = reader().start_server(&rig, port);
        let rig = rig.with_options(&["--fault", END]);
        let client = reader().start_client(&rig, "127.0.0.1", port);
        let id = u64::from(client.id());
        let client = client.finish(LIMIT);
        assert_eq!(client.status.code(), None, "{}", client.output);
        assert_eq!(printed(&client.output).len(), 0, "{}", client.output);
        // The broker learns of the death a moment later.
        let rules = server.wait_until("the report", LIMIT, |_| {
            let ended = reported(&rig, "ended").into_iter();
            ended
                .filter(|(pid, _)| *pid == id)
                .map(|(_, rules)| rules)
                .next()
        });
        assert_eq!(rules.len(), 1, "{rules:?}");
        assert_eq!(rules[0]["rule"], END);
        assert_eq!(rules[0]["times"], 1);
        let text = rig.rocade(&["fault", "report"]).expect_success();
        let head = format!("ib_read_bw ({id}), ended without exit(3)\n");
        assert!(text.contains(&head), "{text}");
        server.finish_or_kill(Duration::from_secs(2));
    }
}

#[test]
fn programs_without_queue_pairs_have_reports_and_silence_is_kept() {
    let rig = or_skip!(Rig::loopback(PERFTEST));
    let devinfo = |words: &[&str]| {
        let process = rig.start_with("ibv_devinfo", &["--fault", PORT], words);
        process.finish(LIMIT)
    };
    let loud = devinfo(&["ibv_devinfo"]);
    let table = printed(&loud.output);
    assert_eq!(table.len(), 2, "{}", loud.output);
    let cells = table[1].join(" ");
    assert!(
        cells.ends_with(&format!("{PORT} query_port of rocade0")),
        "{cells}"
    );
    let silent = devinfo(&["env", "ROCADE_LOG=off", "ibv_devinfo"]);
    assert!(!silent.output.contains("rocade["), "{}", silent.output);
    assert_eq!(silent.status, loud.status, "{}", silent.output);
    assert_eq!(reported(&rig, "exited").len(), 2);
}
