//! Test programs, run side by side.
//!
//! `cargo test` runs one test program after the other, and most of them wait most of the time. Here
//! a few run at a time, each in a network namespace of its own, so that they share no address and
//! no port.

use std::{
    collections::VecDeque,
    path::{Path, PathBuf},
    process::Command,
    sync::{Mutex, PoisonError},
    thread,
    time::Duration,
};

use serde_json::Value;

use crate::{
    step::{self, Priority},
    tally::Tally,
};

const LIMIT: Duration = Duration::from_secs(1800);

/// Number of programs that run at a time. The test harness runs as many tests of each as there are
/// processors.
const WORKERS: usize = 2;

/// The program that takes longest, of the package `rocade-tests`. It begins first.
const LONGEST: &str = "consumers";

/// The program with guests, of the package `rocade-tests`. It fetches their kernels and makes its
/// namespaces by itself. Nothing of normal priority runs beside it, because an emulated processor
/// that waits for a real one misses the timeouts of its programs.
const HAS_GUESTS: &str = "interop_rxe";

/// Runs a command in a network namespace that has nothing but loopback.
const ALONE: [&str; 6] = [
    "unshare",
    "--net",
    "--",
    "sh",
    "-c",
    "ip link set lo up && exec \"$@\"",
];

/// A program that cargo has built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Program {
    /// Package and target.
    name: String,
    /// The program itself.
    path: PathBuf,
    /// Directory of the package, in which its tests run.
    dir: PathBuf,
    /// True if it begins before the others.
    is_longest: bool,
    /// True if it runs in the network of this process, and without another program.
    has_guests: bool,
}

impl Program {
    /// Reads a line of cargo's messages in JSON. Returns `None` if it names no program with tests.
    fn from_message(line: &str) -> Option<Self> {
        let message: Value = serde_json::from_str(line).ok()?;
        let is_test = message["profile"]["test"].as_bool() == Some(true);
        let path = PathBuf::from(message["executable"].as_str().filter(|_| is_test)?);
        let dir = Path::new(message["manifest_path"].as_str()?).parent()?;
        let target = message["target"]["name"].as_str()?;
        let kind = message["target"]["kind"][0].as_str().unwrap_or_default();
        let is_ours = kind == "test" && dir.ends_with("tests");
        Some(Self {
            name: format!("{} ({kind} {target})", dir.file_name()?.to_string_lossy()),
            path,
            dir: dir.to_owned(),
            is_longest: is_ours && target == LONGEST,
            has_guests: is_ours && target == HAS_GUESTS,
        })
    }

    /// Package and target, for headlines.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The program itself.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The directory in which its tests run.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    fn command(&self, wrapper: &[&str], environment: &[(String, String)]) -> Command {
        let wrapper = if self.has_guests { &[] } else { wrapper };
        let mut words = wrapper.iter();
        let mut command = match words.next() {
            Some(first) => Command::new(first),
            None => Command::new(&self.path),
        };
        if !wrapper.is_empty() {
            command.args(words).arg("sh").arg(&self.path);
        }
        // As cargo does.
        command
            .current_dir(&self.dir)
            .env("CARGO_MANIFEST_DIR", &self.dir)
            .envs(environment.iter().map(|(name, value)| (name, value)));
        command
    }
}

/// The test programs that `cargo build --message-format=json` has told of.
pub(crate) fn from_messages(messages: &[u8]) -> Vec<Program> {
    let text = String::from_utf8_lossy(messages);
    text.lines().filter_map(Program::from_message).collect()
}

/// Runs all programs: those with guests before the others, and of these the longest first.
///
/// A guest waits most of the time, and the builds of low priority that run beside it have most to
/// do in the beginning. At the end of a run, a processor would idle.
pub(crate) fn run(programs: Vec<Program>, environment: &[(String, String)]) -> Tally {
    let mut probe = Command::new(ALONE[0]);
    probe.args(&ALONE[1..]).args(["sh", "true"]);
    let alone = step::succeeds(&mut probe);
    let (wrapper, workers): (&[&str], _) = if alone { (&ALONE, WORKERS) } else { (&[], 1) };
    let run_one = |program: Program| {
        let command = program.command(wrapper, environment);
        let headline = format!("tests: {}", program.name);
        step::aside(Priority::Normal, || step::run(&headline, LIMIT, command)).as_tests()
    };
    let (first, side_by_side): (Vec<_>, _) =
        programs.into_iter().partition(|program| program.has_guests);
    let with_guests = first
        .into_iter()
        .fold(Tally::default(), |sum, program| sum + run_one(program));
    let queue = Mutex::new(in_order(side_by_side));
    let next = || {
        let mut queue = queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.pop_front()
    };
    let worker = || {
        let mut tally = Tally::default();
        while let Some(program) = next() {
            tally = tally + run_one(program);
        }
        tally
    };
    let others = thread::scope(|scope| {
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(worker)).collect();
        let tallies = workers
            .into_iter()
            .map(|worker| worker.join().unwrap_or(Tally::FAIL));
        tallies.fold(Tally::default(), |sum, tally| sum + tally)
    });
    with_guests + others
}

/// The programs with the longest ahead, because what begins last has no other beside it.
fn in_order(mut programs: Vec<Program>) -> VecDeque<Program> {
    programs.sort_by_key(|program| !program.is_longest);
    programs.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MESSAGE: &str = r#"{"reason":"compiler-artifact","package_id":"path+file:///r/tests#rocade-tests@0.1.0",
        "manifest_path":"/r/tests/Cargo.toml","target":{"kind":["test"],"name":"consumers"},
        "profile":{"test":true},"executable":"/r/target/debug/deps/consumers-1"}"#;

    fn program(name: &str, is_longest: bool) -> Program {
        Program {
            name: name.to_owned(),
            path: "true".into(),
            dir: "/".into(),
            is_longest,
            has_guests: false,
        }
    }

    #[test]
    fn reads_what_cargo_tells_of_programs_with_tests() {
        let message = MESSAGE.replace('\n', "");
        let text = format!(
            "{message}\n{}\n{}\nnoise\n{{\"reason\":\"build-finished\",\"success\":true}}\n",
            message.replace("\"test\":true", "\"test\":false"),
            message.replace("consumers", "sim_rc")
        );
        let programs = from_messages(text.as_bytes());
        let names: Vec<_> = programs.iter().map(|p| (&*p.name, p.is_longest)).collect();
        assert_eq!(
            names,
            [
                ("tests (test consumers)", true),
                ("tests (test sim_rc)", false)
            ]
        );
        assert_eq!(
            programs[0].path,
            Path::new("/r/target/debug/deps/consumers-1")
        );
        assert_eq!(programs[0].dir, Path::new("/r/tests"));
    }

    #[test]
    fn a_program_with_guests_has_the_network() {
        let message = MESSAGE
            .replace('\n', "")
            .replace("consumers", "interop_rxe");
        let programs = from_messages(message.as_bytes());
        let command = programs[0].command(&ALONE, &[]);
        assert_eq!(command.get_program(), programs[0].path);
        let [other] = &from_messages(MESSAGE.replace('\n', "").as_bytes())[..] else {
            panic!("one program")
        };
        assert_eq!(other.command(&ALONE, &[]).get_program(), ALONE[0]);
    }

    #[test]
    fn the_longest_program_begins_first() {
        let all = vec![program("a", false), program("l", true), program("b", false)];
        let order: Vec<_> = in_order(all).into_iter().map(|p| p.name).collect();
        assert_eq!(order, ["l", "a", "b"]);
    }

    #[test]
    fn a_program_with_guests_runs_before_all_others() {
        let dir = tempfile::tempdir().unwrap();
        let script = |name: &str, text: &str, has_guests| {
            let path = dir.path().join(name);
            // Another process writes it: a child that another test starts meanwhile would hold it
            // open for writing, and it could not be run.
            let mut write = Command::new("sh");
            write.args([
                "-c",
                "printf '#!/bin/sh\n%s\n' \"$1\" > \"$0\" && chmod +x \"$0\"",
            ]);
            assert!(write.arg(&path).arg(text).status().unwrap().success());
            Program {
                path,
                dir: dir.path().to_owned(),
                has_guests,
                ..program(name, false)
            }
        };
        let programs = vec![
            script("a", "test -e guests.end", false),
            script("b", "test -e guests.end", false),
            script("guests", "sleep 0.2; touch guests.end", true),
        ];
        // A program that prints no result counts only where it fails.
        assert_eq!(run(programs, &[]), Tally::default());
    }

    #[test]
    fn a_program_runs_in_its_directory_and_its_failure_counts() {
        let dir = std::env::temp_dir();
        let mut failing = program("f", false);
        failing.path = "false".into();
        failing.dir = dir;
        let tally = run(vec![failing, program("t", false)], &[]);
        assert_eq!(tally, Tally::FAIL);
    }
}
