//! `rocade stat` and `rocade exporter` with Prometheus, and the infiniband collector of its node
//! exporter in the view.

use std::{
    io::Write as _,
    process::{Command, Stdio},
};

use rocade_tests::{
    harness::{Rig, free_port},
    or_skip,
};
use serde_json::Value;

use crate::{LIMIT, PERFTEST};

const TOOLS: &[(&str, &str)] = &[("promtool", "prometheus"), ("curl", "curl")];
const NODE_EXPORTER: &[(&str, &str)] = &[
    ("prometheus-node-exporter", "prometheus-node-exporter"),
    ("curl", "curl"),
];

/// Runs a shell script under `rocade run` while two processes exchange data, and ends them after
/// it. `$ROCADE` is the command. Both processes have sent something before the script begins.
fn beside_traffic(rig: &Rig, script: &str) -> String {
    let port = free_port();
    let rocade = rig.rocade_path().display();
    let program = format!("ib_send_bw -d rocade0 -F -x 0 -s 4096 -D 1 --run_infinitely -p {port}");
    let script = format!(
        "ROCADE={rocade}
         {program} >/dev/null & server=$!
         until ss -ltn | grep -q ':{port} '; do kill -0 $server || exit 1; done
         {program} 127.0.0.1 >/dev/null & client=$!
         sent() {{ $ROCADE stat | grep -c 'ib_send_bw.* [KMG]iB  .* [KMG]iB'; }}
         until test \"$(sent)\" = 2; do kill -0 $client || exit 1; done
         {script}
         kill $client $server"
    );
    rig.start_with("run", &["--dev", "rocade0=lo"], &["sh", "-c", &script])
        .finish(LIMIT)
        .expect_success()
}

/// Returns the opinion of promtool on a text, if it has one.
fn promtool(text: &str) -> String {
    let mut promtool = Command::new("promtool");
    promtool.args(["check", "metrics"]);
    let mut child = promtool
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool is installed");
    let mut stdin = child.stdin.take().expect("a pipe");
    stdin.write_all(text.as_bytes()).expect("promtool reads");
    drop(stdin);
    let output = child.wait_with_output().expect("promtool ends");
    [output.stdout, output.stderr]
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        .concat()
}

/// Returns the value of the first sample that begins so, and has all words.
fn sample(text: &str, name: &str, words: &[&str]) -> Option<f64> {
    let line = text
        .lines()
        .find(|line| line.starts_with(name) && words.iter().all(|word| line.contains(word)))?;
    line.rsplit(' ').next()?.parse().ok()
}

#[test]
fn values_of_running_programs_are_shown_as_json() {
    let rig = or_skip!(Rig::loopback(PERFTEST));
    // A page may be of a moment in which nothing is in flight.
    let script = "until view=$($ROCADE stat --json --qps)
                        echo \"$view\" | grep -Eq '\"in_flight_bytes\": ?[1-9]'
                  do kill -0 $client || exit 1; done; echo \"$view\"";
    let output = beside_traffic(&rig, script);
    let view: Value = serde_json::from_str(&output).expect("JSON");
    let processes = view["processes"].as_array().expect("a list");
    let sent = |process: &Value| process["devices"][0]["values"]["sent_msgs"].as_u64();
    let received = |process: &Value| process["devices"][0]["values"]["rcvd_msgs"].as_u64();
    assert_eq!(processes.len(), 2, "{output}");
    assert!(processes.iter().any(|one| sent(one) > Some(0)), "{output}");
    let flight = |process: &Value| {
        let values = &process["qps"][0]["values"];
        ["in_flight_bytes", "window_bytes"].map(|name| values[name].as_u64() > Some(0))
    };
    let in_flight = processes.iter().any(|one| flight(one) == [true, true]);
    assert!(in_flight, "{output}");
    assert!(
        processes.iter().any(|one| received(one) > Some(0)),
        "{output}"
    );
    for process in processes {
        let (qp, device) = (&process["qps"][0], &process["devices"][0]);
        assert_eq!(process["name"], "ib_send_bw", "{output}");
        assert_eq!(qp["type"], "RC", "{output}");
        assert_eq!(qp["peer"], "127.0.0.1", "{output}");
        assert_eq!(
            qp["values"]["sent_bytes"], device["values"]["sent_bytes"],
            "{output}"
        );
        assert_eq!(qp["values"]["dropped_pkts"]["bad_pkey"], 0, "{output}");
        assert!(qp["values"]["comp_queue"].is_u64(), "{output}");
        assert!(
            process["values"]["registered_bytes"].as_u64() > Some(0),
            "{output}"
        );
    }
}

#[test]
fn prometheus_accepts_the_page_of_the_exporter() {
    let rig = or_skip!(Rig::loopback(&[PERFTEST, TOOLS].concat()));
    // The file is made by this shell: its child may open it later than `grep` does.
    let script = "touch exporter.log
        $ROCADE exporter --qps --listen 127.0.0.1:0 >exporter.log & exporter=$!
        until grep -q metrics exporter.log; do kill -0 $exporter || exit 1; done
        curl -s \"$(cat exporter.log)\"
        echo ====
        curl -s -H 'Accept: application/openmetrics-text' \"$(cat exporter.log)\"
        echo ====
        curl -s -o /dev/null -w '%{http_code}' \"$(cat exporter.log)/no\"
        kill $exporter";
    let script = format!("cd {}; {script}", rig.dir().display());
    let output = beside_traffic(&rig, &script);
    let [text, open, missing] = *output.split("====\n").collect::<Vec<_>>() else {
        panic!("no three parts: {output}");
    };
    assert_eq!(promtool(text), "", "{text}");
    for name in [
        "rocade_port_sent_bytes_total{",
        "rocade_qp_sent_bytes_total{",
    ] {
        let words = ["program=\"ib_send_bw\"", "device=\"rocade0\""];
        assert!(sample(text, name, &words) > Some(0.0), "{text}");
        assert!(sample(open, name, &words) > Some(0.0), "{open}");
    }
    assert!(
        open.contains("# TYPE rocade_port_sent_bytes counter\n"),
        "{open}"
    );
    assert!(open.ends_with("# EOF\n"), "{open}");
    assert_eq!(missing.trim(), "404", "{output}");
}

/// The collector is a Go program that makes system calls itself.
#[test]
fn the_node_exporter_reads_the_view() {
    let rig = or_skip!(Rig::loopback(&[PERFTEST, NODE_EXPORTER].concat()));
    let port = free_port();
    let script = format!(
        "prometheus-node-exporter --collector.disable-defaults --collector.infiniband \
             --web.listen-address=127.0.0.1:{port} 2>/dev/null & exporter=$!
         until ss -ltn | grep -q ':{port} '; do kill -0 $exporter || exit 1; done
         see() {{ curl -s http://127.0.0.1:{port}/metrics | grep ^node_infiniband; }}
         until see | grep -q 'transmitted_bytes_total.* [1-9]'; do :; done
         see; kill $exporter"
    );
    let output = beside_traffic(&rig, &script);
    let words = ["device=\"rocade0\"", "port=\"1\""];
    for name in [
        "node_infiniband_port_data_transmitted_bytes_total",
        "node_infiniband_port_packets_transmitted_total",
    ] {
        assert!(
            sample(&output, name, &words) > Some(0.0),
            "{name}: {output}"
        );
    }
    let state = sample(&output, "node_infiniband_state_id", &words);
    assert_eq!(state, Some(4.0), "{output}");
}
