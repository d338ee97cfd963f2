//! Runs each example and checks its output.
//!
//! Examples have fixed addresses, so they run one after the other.
#![cfg(target_os = "linux")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A time limit that is long enough for a busy machine.
const LIMIT: Duration = Duration::from_secs(300);

/// Examples of one process, and text that their output contains.
const ALONE: [(&str, &str); 15] = [
    ("connect_async", "client 3: connected to 127.0.0.92"),
    ("completion_cost", "nop, future "),
    ("devinfo", "GID 0"),
    ("echo", "client 3 hears: over and out"),
    ("key_value", "client 4: 4 -> Some(16)"),
    ("dynamic", "store 1: "),
    // Without the privilege it only prints a message.
    ("raw_packets", ""),
    ("flush_atomic_write", "the count stays 3"),
    ("umr", "the lock is taken"),
    ("cross_channel", "50000]: 54123"),
    ("shared_receives", "buffers for all"),
    ("ud_multicast", "hello, all"),
    ("two_ports", "\"the other path\" (from port 2, at port 2)"),
    ("windows", "without a bind there is nothing to be written"),
    ("xrc", "the other process hears \"for you\""),
];

/// The examples of [`ALONE`] whose processes share an address.
const WITH_BROKER: [&str; 1] = ["xrc"];

/// The example that needs a feature, which `simulated_host.rs` runs.
const WITH_FEATURE: &str = "killed_server";

/// Returns the address of an example of one process. Examples with a broker use another one,
/// because the broker keeps its address for a while.
fn home(name: &str) -> &'static str {
    if WITH_BROKER.contains(&name) {
        "127.0.0.112"
    } else {
        "127.0.0.110"
    }
}

/// Examples of two processes, with text that the second one prints, and its arguments: the address
/// of the first comes first.
const PAIRS: [(&str, &str, &[&str]); 2] = [
    (
        "rc_pingpong",
        "1000 round trips of 4096 bytes",
        &["127.0.0.110"],
    ),
    ("connect", "over and out", &["127.0.0.110", "over and out"]),
];

/// Builds the examples and returns their directory.
fn built() -> PathBuf {
    let test = std::env::current_exe().expect("a test has a path");
    let profile = test.ancestors().nth(2).expect("target/PROFILE/deps/test");
    cargo_build(profile, &["--package", "rocade-verbs", "--examples"]);
    profile.join("examples")
}

/// Builds packages, unless `cargo xtask test` has built them before.
fn cargo_build(profile: &Path, what: &[&str]) {
    if std::env::var_os("ROCADE_TEST_BUILT").is_some() {
        return;
    }
    let mut cargo = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned()));
    cargo.args(["build", "--quiet"]).args(what);
    cargo.arg("--target-dir").arg(profile.join(".."));
    if profile.ends_with("release") {
        cargo.arg("--release");
    }
    assert!(cargo.status().expect("cargo runs").success());
}

/// Returns the broker setting of an example.
fn broker(directory: &Path, name: &str) -> PathBuf {
    if !WITH_BROKER.contains(&name) {
        return "embedded".into();
    }
    let profile = directory.parent().expect("the profile directory");
    cargo_build(profile, &["--package", "rocade"]);
    profile.join("rocade")
}

/// Starts a process of an example on a device of its own.
fn start(directory: &Path, name: &str, ip: &str, arguments: &[&str]) -> Ours {
    let child = Command::new(directory.join(name))
        .args(arguments)
        .env("ROCADE_DEVICES", format!("dev={ip}"))
        .env("ROCADE_BROKER", broker(directory, name))
        .env("ROCADE_RUNTIME_DIR", env!("CARGO_TARGET_TMPDIR"))
        .env("ROCADE_BROKER_IDLE_MS", "100")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    Ours(Some(
        child.unwrap_or_else(|error| panic!("{name}: {error}")),
    ))
}

/// A child process that is killed when the test ends, even by a panic.
struct Ours(Option<Child>);

impl Ours {
    /// Returns the output, which is short, and kills the process after [`LIMIT`].
    fn output(mut self) -> Output {
        let mut child = self.0.take().expect("the process was started");
        let deadline = Instant::now() + LIMIT;
        while child.try_wait().expect("a child of this process").is_none() {
            if Instant::now() > deadline {
                child.kill().expect("a child of this process");
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        child.wait_with_output().expect("a child of this process")
    }
}

impl Drop for Ours {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Returns the output of a process, and checks that it succeeded.
fn said(name: &str, output: Output) -> String {
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(output.status.success(), "{name}: {}\n{text}", output.status);
    text
}

#[test]
fn each_example_runs() {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let sources = std::fs::read_dir(sources).expect("the directory of the examples");
    let named = |source: std::fs::DirEntry| {
        let name = source.file_name().into_string().expect("a UTF-8 name");
        name.strip_suffix(".rs").map(str::to_owned)
    };
    let all: BTreeSet<_> = sources.flatten().filter_map(named).collect();
    let alone = ALONE.iter().map(|(name, _)| *name);
    let known = alone.chain(PAIRS.iter().map(|(name, ..)| *name));
    let known = known.chain([WITH_FEATURE]);
    assert_eq!(all, known.map(str::to_owned).collect());

    let directory = built();
    for (name, says) in ALONE {
        let process = start(&directory, name, home(name), &[]);
        let text = said(name, process.output());
        assert!(text.contains(says), "{name}: {text}");
    }
    for (name, says, arguments) in PAIRS {
        let mut first = start(&directory, name, "127.0.0.110", &[]);
        let deadline = Instant::now() + LIMIT;
        let text = loop {
            let second = start(&directory, name, "127.0.0.111", arguments);
            let output = second.output();
            // The first process may not listen yet.
            if output.status.success() || Instant::now() > deadline {
                break said(name, output);
            }
            let child = first.0.as_mut().expect("the process was started");
            if child.try_wait().expect("a child of this process").is_some() {
                let first = said(name, first.output());
                panic!("{name}: the second process failed, the first succeeded: {first}");
            }
        };
        assert!(text.contains(says), "{name}: {text}");
        said(name, first.output());
    }
}
