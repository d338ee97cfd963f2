//! Captures, faults and ladders as a user meets them.
#![expect(clippy::unwrap_used, reason = "in a test")]

mod build;

use std::fs;

use build::{Build, assert_refused, text};

/// Ends the broker, also when a test fails.
struct StopBroker<'a>(&'a Build);

impl Drop for StopBroker<'_> {
    fn drop(&mut self) {
        let _ = self.0.rocade(&["broker", "stop"]).output();
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
    let output = build.rocade(&args).output().unwrap();
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
    let rule = |rule| {
        build
            .rocade(&["run", "--fault", rule, "--", "env"])
            .output()
            .unwrap()
    };
    assert_refused(
        &rule("drop nht=3"),
        125,
        &["--fault", "nht=3", "did you mean nth?"],
    );
    assert_refused(&rule("explode"), 125, &["--fault", "explode", "drop, dup"]);
    let file = |file| {
        build
            .rocade(&["run", "--capture", file, "--", "env"])
            .output()
            .unwrap()
    };
    assert_refused(
        &file("no/such/dir/x"),
        125,
        &["--capture no/such/dir/x", "No such file"],
    );
    assert_refused(&file("."), 125, &["--capture ."]);
    let none = build.rocade(&["ladder", "none.pcapng"]).output().unwrap();
    assert_refused(&none, 125, &["none.pcapng", "No such file"]);
    fs::write(
        build.path("work/text"),
        "hello, this is a text and no capture",
    )
    .unwrap();
    let none = build.rocade(&["ladder", "text"]).output().unwrap();
    assert_refused(&none, 125, &["text: ", "rocade run --capture"]);
}

/// Two processes, one file, a ladder that tells of the fault, and data that is right all the same.
#[test]
fn the_demo_survives_a_fault_and_its_ladder_tells() {
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
        .output()
        .unwrap();
    let shown = text(&output.stdout);
    assert!(output.status.success(), "{shown}{}", text(&output.stderr));
    assert!(shown.contains("Everything arrived"), "{shown}");

    let drawn = build.rocade(&["ladder", "demo.pcapng"]).output().unwrap();
    let words = text(&drawn.stdout);
    assert!(drawn.status.success(), "{}", text(&drawn.stderr));
    for part in ["demo.html: ", " 1 lost", "sent again"] {
        assert!(words.contains(part), "{link}: {part:?} is not in: {words}");
    }
    let html = fs::read_to_string(build.path("work/demo.html")).unwrap();
    for part in [
        "lost (drop opcode=READ_RESPONSE nth=2)",
        "late (delay by=1ms",
        "; sent again ",
    ] {
        assert!(
            html.contains(part),
            "{link}: {part:?} is not in the drawing"
        );
    }
    let args = ["ladder", "demo.pcapng", "--qp", "0xabcdef", "-o", "x.svg"];
    let none = build.rocade(&args).output().unwrap();
    assert_refused(&none, 125, &["QP 0xabcdef"]);
}
