//! The examples do what they say, but for `rc_pingpong`, whose TCP port others may have. `cargo test` builds them along with the tests.
#![expect(clippy::unwrap_used, reason = "in a test")]

use std::env;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};

/// A running example; it is killed where the test ends before it does.
struct Example {
    name: String,
    child: Child,
    output: BufReader<ChildStdout>,
}

/// Where cargo puts them: `target/<profile>/examples`, beside the directory of this test.
fn built(name: &str) -> PathBuf {
    let test = env::current_exe().unwrap();
    let path = test.ancestors().nth(2).unwrap().join("examples").join(name);
    assert!(path.is_file(), "cargo build --examples: {}", path.display());
    path
}

impl Example {
    /// Starts it with devices on this address, and no broker.
    fn start(name: &str, ip: &str, arguments: &[&str]) -> Self {
        let mut command = Command::new(built(name));
        for (variable, _) in env::vars_os() {
            let ours = variable.to_string_lossy().starts_with("ROCADE_");
            if ours && variable != "ROCADE_LOG" {
                command.env_remove(variable);
            }
        }
        command
            .args(arguments)
            .env("ROCADE_DEVICES", format!("dev={ip}"))
            .env("ROCADE_BROKER", "embedded")
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let name = format!("{name} at {ip}");
        Self {
            name,
            child,
            output,
        }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        assert!(!line.is_empty(), "{} says no more", self.name);
        line
    }

    /// The rest of what it says; it has to succeed.
    fn finish(mut self) -> String {
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).unwrap();
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{}: {status}\n{rest}", self.name);
        rest
    }
}

impl Drop for Example {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs one that needs nobody else; every one of these texts has to be in its output.
fn says(name: &str, ip: &str, expected: &[&str]) {
    let output = Example::start(name, ip, &[]).finish();
    for text in expected {
        assert!(output.contains(text), "{text:?} is not in\n{output}");
    }
}

/// Server and client, two processes: `connect`.
#[test]
fn processes_meet_by_address_and_port() {
    let mut server = Example::start("connect", "127.0.77.1", &[]);
    assert!(server.line().starts_with("waits at port "));
    let client = Example::start("connect", "127.0.77.2", &["127.0.77.1", "good morning"]);
    assert_eq!(client.finish(), "good morning\n");
    assert!(server.finish().starts_with("127.0.77.2:"));
}

#[test]
fn connections_are_futures() {
    let clients: Vec<String> = (0..4)
        .flat_map(|n| {
            [
                format!("server: client {n} asks"),
                format!("client {n}: connected to 127.0.0.100:"),
            ]
        })
        .collect();
    let expected: Vec<&str> = clients.iter().map(String::as_str).collect();
    says("connect_async", "127.0.77.3", &expected);
}

#[test]
fn devices_are_listed() {
    let expected = ["dev\n", "::ffff:127.0.77.4", "node GUID"];
    says("devinfo", "127.0.77.4", &expected);
}

#[test]
fn work_is_shared_lent_and_released() {
    let stores = [0, 1, 2].map(|n| format!("store {n}: 40 requests, 320 bytes, 0 forged"));
    says(
        "dynamic",
        "127.0.77.5",
        &stores.each_ref().map(|line| &**line),
    );
    let columns = [
        "[3, 11, 19, 27, 35, 43, 51, 59]",
        "[0, 9, 18, 27, 36, 45, 54, 63]",
        "the lock is taken",
    ];
    says("matrix", "127.0.77.6", &columns);
    says("relay", "127.0.77.7", &["gets [0, 0, 0, 0, 0, 0, 0, 23]"]);
    let line = "8 connections, 50 requests each, 16 buffers for all";
    says("shared_receives", "127.0.77.8", &[line]);
    let hears = [86, 87, 88].map(|n| format!("127.0.0.{n}) hears \"hello, all\""));
    says(
        "ud_multicast",
        "127.0.77.9",
        &hears.each_ref().map(|line| &**line),
    );
    let lent = ["part 2 of the work", "without a bind there is nothing"];
    says("windows", "127.0.77.10", &lent);
}
