//! Tests of captures, faults and ladders from a user's view.
#![expect(clippy::unwrap_used, reason = "in a test")]

mod build;

use std::fs;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use build::{Build, LIMIT, Limited as _, assert_refused, text};
use serde_json::{Value, json};

/// Ends the broker, also if a test fails.
struct StopBroker<'a>(&'a Build);

impl Drop for StopBroker<'_> {
    fn drop(&mut self) {
        let mut stop = self.0.rocade(&["broker", "stop"]);
        let _ = stop.run_within(LIMIT);
    }
}

#[test]
fn a_program_is_told_where_to_capture_and_what_goes_wrong() {
    let build = Build::with_libraries();
    let file = build.path("work/x.pcapng");
    fs::write(&file, "what was there").unwrap();
    let args = [
        "run",
        "--ip",
        "127.0.0.2",
        "--capture",
        "x.pcapng",
        "--fault",
        "drop nth=3",
        "--fault",
        "dup p=1%",
        "--",
        "env",
    ];
    let output = build.rocade(&args).run();
    let seen = text(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    let file = fs::canonicalize(file).unwrap();
    for line in [
        format!("ROCADE_CAPTURE={}", file.display()),
        "ROCADE_FAULT=drop nth=3;dup p=1%".to_owned(),
    ] {
        assert!(
            seen.lines().any(|seen| seen == line),
            "{line} is not in {seen}"
        );
    }
    assert_eq!(
        fs::read(file).unwrap(),
        b"",
        "the user wants a new capture there"
    );
}

#[test]
fn what_cannot_be_is_said_before_the_program_starts() {
    let build = Build::with_libraries();
    let rule = |rule| build.rocade(&["run", "--fault", rule, "--", "env"]).run();
    assert_refused(
        &rule("drop nht=3"),
        125,
        &["--fault", "nht=3", "did you mean nth?"],
    );
    assert_refused(&rule("explode"), 125, &["--fault", "explode", "drop, dup"]);
    let file = |file| build.rocade(&["run", "--capture", file, "--", "env"]).run();
    assert_refused(
        &file("no/such/dir/x"),
        125,
        &["--capture no/such/dir/x", "No such file"],
    );
    assert_refused(&file("."), 125, &["--capture ."]);
    let none = build.rocade(&["ladder", "none.pcapng"]).run();
    assert_refused(&none, 125, &["none.pcapng", "No such file"]);
    fs::write(
        build.path("work/text"),
        "hello, this is a text and no capture",
    )
    .unwrap();
    let none = build.rocade(&["ladder", "text"]).run();
    assert_refused(&none, 125, &["text: ", "rocade run --capture"]);
}

/// A capture without a packet says why, and what to do.
#[test]
fn a_capture_without_packets_helps() {
    let build = Build::with_libraries();
    let refused = |name: &str, bytes: &[u8], parts: &[&str]| {
        fs::write(build.path("work").join(name), bytes).unwrap();
        let output = build.rocade(&["ladder", name]).run();
        assert_refused(&output, 125, parts);
    };
    let parts = ["empty.pcapng: the file is empty", "tcpdump when it ends"];
    refused("empty.pcapng", b"", &parts);
    // The header of tcpdump's file, and the beginning of one.
    let mut header = vec![0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    header.extend([0, 0, 4, 0, 1, 0, 0, 0]);
    let parts = [
        "no RoCEv2 packets found in an empty capture",
        "shared memory",
    ];
    refused("none.pcap", &header, &parts);
    let parts = [
        "short.pcap: the file ends within a record",
        "rocade run --capture",
    ];
    refused("short.pcap", &header[..20], &parts);
    // A frame of which 4 of 60 bytes are there.
    let record = [0, 0, 0, 0, 0, 0, 0, 0, 34, 0, 0, 0, 60, 0, 0, 0];
    let mut frame = [0; 34];
    frame[12..14].copy_from_slice(&[8, 0]);
    frame[14..34].copy_from_slice(&[
        0x45, 0, 0, 46, 0, 0, 0x40, 0, 64, 17, 0x3c, 0xbd, 127, 0, 0, 1, 127, 0, 0, 1,
    ]);
    let parts = ["only the beginning of 1 packet", "tcpdump -s 0"];
    refused("cut.pcap", &[&header[..], &record, &frame].concat(), &parts);
}

#[test]
fn what_offloads_have_joined_is_said() {
    let build = Build::with_libraries();
    let captures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/captures/rocade");
    let file = captures.join("gso-lo-ipv4.pcap");
    let args = ["ladder", file.to_str().unwrap(), "-o", "/dev/null"];
    let output = build.rocade(&args).run();
    assert_eq!(
        text(&output.stdout),
        "/dev/null: 12 packets of 1 conversation\n\
         The kernel had joined 10 packets in 2 datagrams (GSO, GRO), which are cut here.\n"
    );
}

/// A capture of a NIC is explained, by rules of which one is about a VLAN tag.
#[test]
fn a_capture_of_a_nic_is_explained() {
    let build = Build::with_libraries();
    let captures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/captures/hardware");
    let file = captures.join("mellanox-cm-send-ack-vlan.pcap");
    let file = file.to_str().unwrap();
    let output = build.rocade(&["explain", "--packets", file]).run();
    let out = text(&output.stdout);
    assert!(output.status.success(), "{out}");
    for line in [
        "192.170.1.2: 5 packets",
        "  HW-10  802.1Q tag (all)",
        "  HW-04  ACK with credit code 0 (2)",
        "3 2.000 ms 192.170.1.2 > 192.170.1.50 RC SEND_ONLY psn=0xfedfed",
    ] {
        assert!(out.lines().any(|of| of == line), "{line}: {out}");
    }
    // A wrong ICRC is explained by nothing.
    let mut bytes = fs::read(file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(build.path("work/bad.pcap"), bytes).unwrap();
    let output = build.rocade(&["explain", "--json", "bad.pcap"]).run();
    assert_eq!(output.status.code(), Some(1));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let findings = json["senders"][0]["findings"].as_array().unwrap();
    let unknown: Vec<_> = findings
        .iter()
        .filter(|finding| finding["basis"] == "?")
        .collect();
    assert_eq!(unknown.len(), 1, "{json}");
    assert_eq!(unknown[0]["text"], "wrong ICRC");
    assert_eq!(unknown[0]["packets"], serde_json::json!([5]));
}

/// Two processes write one capture. The ladder shows the fault, and the data are correct.
#[test]
fn the_demo_survives_a_fault_and_its_ladder_tells() {
    let _alone = ONE_DEMO.lock();
    let build = Build::new();
    let _stop = StopBroker(&build);
    let link = "shm";
    let file = build.path("work/demo.pcapng");
    let _ = fs::remove_file(&file);
    let output = build
        .rocade(&["demo", "--ip", "127.0.21.2"])
        .env("ROCADE_LINK", link)
        .env("ROCADE_CAPTURE", &file)
        .env(
            "ROCADE_FAULT",
            "drop opcode=READ_RESPONSE nth=2; delay opcode=SEND by=1ms nth=1",
        )
        .run();
    let shown = text(&output.stdout);
    assert!(output.status.success(), "{shown}{}", text(&output.stderr));
    assert!(shown.contains("All data arrived correctly"), "{shown}");

    let drawn = build.rocade(&["ladder", "demo.pcapng"]).run();
    let words = text(&drawn.stdout);
    assert!(drawn.status.success(), "{}", text(&drawn.stderr));
    for part in ["demo.html: ", " 1 lost", "sent again"] {
        assert!(words.contains(part), "{link}: {part:?} is not in: {words}");
    }
    let html = fs::read_to_string(build.path("work/demo.html")).unwrap();
    for part in [
        "lost (drop opcode=READ_RESPONSE nth=2)",
        "late (delay by=1ms",
        ", sent again ",
    ] {
        assert!(
            html.contains(part),
            "{link}: {part:?} is not in the drawing"
        );
    }
    let args = ["ladder", "demo.pcapng", "--qp", "0xabcdef", "-o", "x.svg"];
    let none = build.rocade(&args).run();
    assert_refused(&none, 125, &["QP 0xabcdef"]);
}

/// Allows one demo at a time, because a ladder counts a late packet as lost.
static ONE_DEMO: Mutex<()> = Mutex::new(());

/// A process that ends with the test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // Both calls fail if the process has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a demo, and adds rule number `next` when rule 1 has hit it. Returns true if its processes
/// were still there then.
fn watch_a_demo(
    rocade: &impl Fn(&[&str]) -> Command,
    run: &impl Fn(&[&str]) -> String,
    next: u32,
) -> bool {
    let is_hit = || {
        let list: Value = serde_json::from_str(&run(&["fault", "list", "--json"])).unwrap();
        let processes = list["processes"].as_array().unwrap().iter();
        let mut rules = processes.flat_map(|process| process["rules"].as_array().unwrap());
        rules.any(|of| of["id"] == 1 && of["own"] == false && of["hits"] == 1)
    };
    let mut demo = Server(rocade(&["demo", "--ip", "127.0.21.3"]).spawn().unwrap());
    let mut was_hit = false;
    while !was_hit && demo.0.try_wait().unwrap().is_none() {
        was_hit = is_hit();
    }
    let shown = run(&["fault", "list"]);
    assert!(shown.contains("drop opcode=READ_RESPONSE nth=2"), "{shown}");
    let added = run(&["fault", "add", "dup", "nth=999999999"]);
    let head = format!("{next}  dup nth=999999999\n");
    assert!(added.starts_with(&head), "{added}");
    assert!(demo.0.wait().unwrap().success());
    was_hit && shown.contains("rocade (") && added[head.len()..].starts_with("in force in ")
}

/// Fault rules for running programs.
#[test]
fn rules_at_run_time() {
    let build = Build::new();
    // A separate broker, because other tests have rules, too.
    let rocade = |args: &[&str]| {
        let mut command = build.rocade(args);
        command.env("ROCADE_RUNTIME_DIR", build.path("broker"));
        command
    };
    let run = |args: &[&str]| {
        let output = rocade(args).run();
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let refused = |args: &[&str], code, parts: &[&str]| {
        assert_refused(&rocade(args).run(), code, parts);
    };
    refused(&["fault", "list"], 1, &["no broker", "rocade run --fault"]);
    refused(
        &["fault", "add", "drop", "nht=3"],
        125,
        &["nht=3", "did you mean nth?", "--help"],
    );
    refused(&["fault", "report"], 1, &["no broker", "prints its own"]);
    refused(&["fault", "add", " "], 125, &["a rule is missing"]);
    refused(&["fault", "add"], 2, &["<RULE>"]);
    let mut broker = Server(rocade(&["broker", "serve"]).spawn().unwrap());
    while !rocade(&["broker", "status"]).run().status.success() {
        assert!(broker.0.try_wait().unwrap().is_none());
    }
    let list = || -> Value { serde_json::from_str(&run(&["fault", "list", "--json"])).unwrap() };
    assert_eq!(list(), json!({ "rules": [], "processes": [] }));
    assert_eq!(run(&["fault", "list"]), "no rules\n");
    assert_eq!(run(&["fault", "report"]), "no process had rules\n");

    let added = run(&[
        "fault",
        "add",
        "drop",
        "opcode=read_response",
        "nth=2;",
        "ecn every=0x10",
    ]);
    let lines: Vec<_> = added.lines().collect();
    assert_eq!(
        lines[..2],
        ["1  drop opcode=READ_RESPONSE nth=2", "2  ecn every=16"]
    );
    assert!(lines[2].contains("no process is running"), "{added}");
    let shown = run(&["fault", "list"]);
    assert!(shown.contains("drop opcode=READ_RESPONSE nth=2"), "{shown}");
    // Two processes that are affected by the rule, and still get their data. They may end before
    // all is seen, and then the next ones are watched.
    let _alone = ONE_DEMO.lock();
    let until = Instant::now() + Duration::from_secs(120);
    let mut next = 3;
    while !watch_a_demo(&rocade, &run, next) {
        assert!(Instant::now() < until, "no demo is seen in time");
        run(&["fault", "clear", &next.to_string()]);
        next += 1;
    }

    refused(
        &["fault", "clear", "7"],
        1,
        &["no rule 7", "rocade fault list"],
    );
    assert_eq!(run(&["fault", "clear", "2"]), "1 rule removed\n");
    let left = list();
    assert_eq!(left["rules"].as_array().unwrap().len(), 2);
    assert_eq!(run(&["fault", "clear"]), "2 rules removed\n");
    assert_eq!(run(&["fault", "clear"]), "0 rules removed\n");
    run(&["broker", "stop"]);
    assert!(broker.0.wait().unwrap().success());
}
