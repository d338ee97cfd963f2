//! The command as a user meets it. Libraries are stand-ins here: what matters is which directory
//! and which variables the program gets.
#![expect(clippy::unwrap_used, reason = "in a test")]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const LIBRARIES: [&str; 5] = ["libibverbs", "librdmacm", "libmlx5", "libefa", "libmana"];

/// The command in a build directory of its own, with an empty home directory.
struct Build {
    dir: tempfile::TempDir,
}

impl Build {
    fn new() -> Self {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        // A link, not a copy: a file that was just written may still be open in a child that
        // another test forks, and then it cannot be executed.
        fs::hard_link(env!("CARGO_BIN_EXE_rocade"), dir.path().join("rocade")).unwrap();
        fs::create_dir(dir.path().join("work")).unwrap();
        Self { dir }
    }

    fn with_libraries() -> Self {
        let build = Self::new();
        for library in LIBRARIES {
            fs::write(build.path(&format!("{library}.so")), library).unwrap();
        }
        build
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// `rocade ARGS`, in the directory `work`, without settings of the machine.
    fn rocade(&self, args: &[&str]) -> Command {
        let mut command = Command::new(self.path("rocade"));
        command
            .args(args)
            .current_dir(self.path("work"))
            .env_clear();
        command
            .env("PATH", "/usr/bin:/bin")
            .env("HOME", self.path("home"));
        command
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// What env(1) printed.
fn variables(output: &Output) -> BTreeMap<String, String> {
    assert!(output.status.success(), "{output:?}");
    let lines = text(&output.stdout);
    let pairs = lines.lines().filter_map(|line| line.split_once('='));
    pairs
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

/// Fails unless the command ended with `code` and an error text that has all `parts`.
fn assert_refused(output: &Output, code: i32, parts: &[&str]) {
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{error}");
    for part in parts {
        assert!(error.contains(part), "{part:?} is not in: {error}");
    }
}

fn canonical(path: impl AsRef<Path>) -> PathBuf {
    fs::canonicalize(path).unwrap()
}

#[test]
fn alone_it_prints_its_help() {
    let output = Build::new().rocade(&[]).output().unwrap();
    assert!(output.status.success());
    let help = text(&output.stdout);
    for part in [
        "run ",
        "devices",
        "libdir",
        "broker",
        "Examples:",
        "ROCADE_LOG",
    ] {
        assert!(help.contains(part), "{part:?} is not in: {help}");
    }
}

#[test]
fn a_program_gets_libraries_and_devices() {
    let build = Build::with_libraries();
    let args = [
        "run",
        "--dev",
        "a=127.0.0.2",
        "--dev",
        "b=127.0.0.3",
        "--",
        "env",
    ];
    let output = build
        .rocade(&args)
        .env("LD_LIBRARY_PATH", "/opt/other")
        .env("ROCADE_IP", "127.0.0.9")
        .output()
        .unwrap();
    let seen = variables(&output);
    let libraries = canonical(build.path("rocade-libs"));
    assert_eq!(
        seen["LD_LIBRARY_PATH"],
        format!("{}:/opt/other", libraries.display())
    );
    assert_eq!(seen["ROCADE_DEVICES"], "a=127.0.0.2;b=127.0.0.3");
    assert!(
        !seen.contains_key("ROCADE_IP"),
        "the flag wins over the variable"
    );
    assert_eq!(
        canonical(&seen["ROCADE_BROKER"]),
        canonical(build.path("rocade"))
    );

    let printed = text(&build.rocade(&["libdir"]).output().unwrap().stdout);
    assert_eq!(canonical(printed.trim_end()), libraries);
    for library in LIBRARIES {
        let found = fs::read_to_string(libraries.join(format!("{library}.so.1"))).unwrap();
        assert_eq!(found, library);
    }
}

#[test]
fn the_file_of_the_directory_is_handed_down() {
    let build = Build::with_libraries();
    let file = build.path("work/rocade.toml");
    fs::write(
        &file,
        "devices = [\"mine=127.0.0.2\"]\nbroker = \"embedded\"\n",
    )
    .unwrap();
    let seen = variables(&build.rocade(&["run", "env"]).output().unwrap());
    assert_eq!(canonical(&seen["ROCADE_CONFIG"]), canonical(&file));
    assert!(!seen.contains_key("ROCADE_DEVICES"));
    assert!(
        !seen.contains_key("ROCADE_BROKER"),
        "it would win over the file"
    );

    let table = build.rocade(&["devices"]).output().unwrap();
    assert!(text(&table.stdout).contains("mine"), "{table:?}");
    let table = build
        .rocade(&["devices", "--ip", "127.0.0.4"])
        .output()
        .unwrap();
    assert!(text(&table.stdout).contains("127.0.0.4"), "{table:?}");
    assert!(!text(&table.stdout).contains("mine"), "{table:?}");
}

#[test]
fn exit_code_and_signal_are_those_of_the_program() {
    let build = Build::with_libraries();
    let exit = build
        .rocade(&["run", "--", "sh", "-c", "exit 42"])
        .status()
        .unwrap();
    assert_eq!(exit.code(), Some(42));
    let killed = build
        .rocade(&["run", "--", "sh", "-c", "kill -9 $$"])
        .status()
        .unwrap();
    assert_eq!(killed.signal(), Some(9));
}

#[test]
fn what_cannot_be_run_is_said() {
    let build = Build::with_libraries();
    let run = |program: &str| build.rocade(&["run", "--", program]).output().unwrap();
    assert_refused(&run("no-such-program"), 127, &["no-such-program"]);
    assert_refused(
        &run("ib_no_such"),
        127,
        &["ib_no_such", "apt-get install perftest"],
    );
    fs::write(build.path("work/notes.txt"), "not executable").unwrap();
    assert_refused(
        &run("./notes.txt"),
        126,
        &["./notes.txt", "not an executable"],
    );
    assert_refused(&run("notes.txt"), 127, &["./notes.txt"]);
}

#[test]
fn missing_libraries_come_with_the_cure() {
    let build = Build::new();
    let cure = ["libibverbs.so", "cargo build --release --workspace"];
    assert_refused(&build.rocade(&["libdir"]).output().unwrap(), 125, &cure);
    assert_refused(
        &build.rocade(&["run", "true"]).output().unwrap(),
        125,
        &cure,
    );
}

#[test]
fn a_broken_configuration_is_refused_before_the_program_starts() {
    let build = Build::with_libraries();
    let output = build
        .rocade(&["run", "--dev", "lo", "--", "env"])
        .output()
        .unwrap();
    assert_refused(&output, 125, &["--dev", "\"lo\"", "rocade0=lo", "allowed"]);
    assert!(output.stdout.is_empty());

    let output = build
        .rocade(&["devices"])
        .env("ROCADE_DEVICES", "a=no-such-if0")
        .output()
        .unwrap();
    assert_refused(&output, 125, &["ROCADE_DEVICES", "no-such-if0", "allowed"]);

    let output = build
        .rocade(&["devices"])
        .env("ROCADE_LOG", "x=y")
        .output()
        .unwrap();
    assert_refused(&output, 125, &["ROCADE_LOG", "debug"]);

    let output = build
        .rocade(&["devices"])
        .env("ROCADE_CONFIG", "/no/such.toml")
        .output()
        .unwrap();
    assert_refused(&output, 125, &["/no/such.toml", "cannot read it"]);

    let both = ["run", "--dev", "a=lo", "--ip", "::1", "--", "env"];
    assert_refused(
        &build.rocade(&both).output().unwrap(),
        2,
        &["--dev", "--ip"],
    );
}

#[test]
fn devices_lists_the_gids_in_order() {
    let args = ["devices", "--dev", "rocade0=127.0.0.1,127.0.0.7"];
    let output = Build::new().rocade(&args).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let table = text(&output.stdout);
    let first = table.find("::ffff:127.0.0.1").unwrap();
    let second = table.find("::ffff:127.0.0.7").unwrap();
    assert!(
        first < second && table.contains("ACTIVE") && table.contains("4096"),
        "{table}"
    );
}

/// Stops the broker that a test has started, also when the test fails.
struct StopBroker<'a>(&'a Build);

impl Drop for StopBroker<'_> {
    fn drop(&mut self) {
        let _ = self.0.rocade(&["broker", "stop"]).output();
    }
}

#[test]
fn the_demo_moves_data_through_a_broker_that_can_be_asked_and_stopped() {
    let build = Build::new();
    let _stop = StopBroker(&build);
    let asked = build.rocade(&["broker", "status"]).output().unwrap();
    assert_refused(&asked, 1, &["no broker is running"]);

    for (link, way) in [("", "through shared memory"), ("udp", "over UDP port 4791")] {
        let output = build
            .rocade(&["demo", "--ip", "127.0.21.1"])
            .env("ROCADE_LINK", link)
            .output()
            .unwrap();
        let shown = text(&output.stdout);
        assert!(output.status.success(), "{shown}{}", text(&output.stderr));
        for part in [
            "SEND",
            "WRITE",
            "READ",
            "CmpSwap",
            "FetchAdd",
            "Everything arrived",
            way,
            "What next",
        ] {
            assert!(shown.contains(part), "{part:?} is not in: {shown}");
        }
    }

    let status = text(&build.rocade(&["broker", "status"]).output().unwrap().stdout);
    // The broker stays for a while; the address is free as soon as nobody uses it.
    assert!(
        status.contains("pid ") && !status.contains("127.0.21.1"),
        "{status}"
    );
    let stopped = build.rocade(&["broker", "stop"]).output().unwrap();
    assert!(
        text(&stopped.stdout).contains("stopped the broker"),
        "{stopped:?}"
    );
    let asked = build.rocade(&["broker", "status"]).output().unwrap();
    assert_refused(&asked, 1, &["no broker is running"]);
}

#[test]
fn a_closed_pipe_is_no_accident() {
    let build = Build::new();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = build
        .rocade(&["devices", "--ip", "127.0.0.2"])
        .stdout(writer)
        .output()
        .unwrap();
    assert_refused(&output, 141, &[]);
    assert!(output.stderr.is_empty(), "{output:?}");
}

#[test]
fn programs_get_the_usual_signals() {
    // SIGPIPE is ignored in Rust programs; what they execute must not inherit that.
    let build = Build::with_libraries();
    let status = build
        .rocade(&["run", "--", "sh", "-c", "kill -PIPE $$"])
        .status()
        .unwrap();
    assert_eq!(status.signal(), Some(13));
}
