//! A host in one process: programs with engines, and their brokers, in virtual time from a seed.
//!
//! The threads of each process are real ones, of which one runs at a time. Each hands over where it
//! would wait, and sometimes where it takes a lock (`sync::turn`). Sockets, descriptors and shared
//! memory are the kernel's. A process is killed between any two turns: its shared memory is
//! replaced by memory of its own, what it sends goes nowhere, and all it has is dropped.
//!
//! Programs note what they see (`board.rs`), from which a run is judged.
//!
//! `cargo xtask hostsim --seeds N [--seed S]` runs the test of this module.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::thread;
use std::time::Instant;

use crate::inherited::stay_on_one_cpu;

mod board;
mod connecting;
mod coverage;
mod exchange;
mod host;
mod keeper;
mod keeper_queue;
mod memory;
mod objects;
mod plan;
mod pool;
mod program;
mod scenarios;
mod services;
mod stream;
mod verdict;
mod waiting;

use board::{BROKER_ENDED, BROKER_KILLED};
use coverage::Coverage;
use host::{Host, Outcome};
use plan::{EventAtPlace, Plan};

/// Seeds of a plain test run. Emulated processors are slow.
const SEEDS: u64 = if cfg!(target_arch = "x86_64") { 50 } else { 5 };
/// Environment variable with the number of seeds and the first seed: `N` or `N,S`.
const ENV: &str = "ROCADE_HOSTSIM_ENGINES";

/// Environment variable with the event at a place that is added to each plan.
const ENV_EVENT: &str = "ROCADE_HOSTSIM_EVENT";

/// Environment variable with the file for the packets of a failure.
const ENV_CAPTURE: &str = "ROCADE_HOSTSIM_CAPTURE";
/// Number of schedules that are tried until a failure is captured.
const CAPTURES: u32 = 200;

/// The type of a block that begins a section of a capture.
const SECTION: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];

/// Counts of what must happen sometimes.
type Marks = BTreeMap<&'static str, u64>;

/// Number of seeds in which each of [`EXPECTED`] has to happen.
const SEEDS_OF_ALL: u64 = 1_000;
/// All marks that a long run has to reach.
const EXPECTED: [&str; 39] = [
    BROKER_ENDED,
    BROKER_KILLED,
    "a connection ends with the process of the peer",
    "a connection is accepted",
    "a connection is disconnected",
    "a killed process acknowledges a message that it may answer",
    "a killed process acknowledges in shared memory",
    "a killed process acknowledges over DC",
    "a killed process acknowledges over UDP",
    "a killed process acknowledges over XRC",
    "a killed process acknowledges over a connection of the CM",
    "a message arrives from another host",
    "a message arrives over DC",
    "a message arrives over UC",
    "a message arrives over UD",
    "a message arrives over XRC",
    "a message arrives over XRC at a second process",
    "a message arrives at a multicast group",
    "a message invalidates a window",
    "a message invalidates an indirect key",
    "a message of a killed process arrives",
    "a process exits",
    "a process is killed after a datagram",
    "a process is killed at a place",
    "a process is killed soon after it has received",
    "a process is killed while its peer connects",
    "a process is stopped",
    "a process starts later",
    "a request is rejected",
    "a second thread takes completions of a queue pair",
    "a sender gives up a peer that is stopped",
    "a sender sees the end of its peer",
    "a sender sees the end of the keeper of a target",
    "a shared receive queue reaches its limit",
    "a stream ends",
    "a target is opened that another process has made",
    "a thread gets no processor",
    "a thread gets no processor at a place",
    "bytes arrive over a stream",
];

/// Returns a simpler plan that still fails, with its failure.
fn shrink(mut plan: Plan, mut error: String) -> (Plan, String) {
    let mut left = 100;
    'simpler: loop {
        for simpler in plan.simpler() {
            left -= 1;
            if left == 0 {
                break 'simpler;
            }
            if let Err(text) = Host::new(&simpler).run() {
                (plan, error) = (simpler, text);
                continue 'simpler;
            }
        }
        break;
    }
    (plan, error)
}

/// Runs a plan, and others that only differ in the schedule, until the result of one is `wanted`.
/// Its packets are in the file then. Captured packets take another way, so that the schedule is not
/// the same as without.
fn capture<T>(
    plan: &Plan,
    file: &Path,
    wanted: impl Fn(Result<Outcome, String>) -> Option<T>,
) -> Option<T> {
    let mut plan = plan.clone();
    for _ in 0..CAPTURES {
        let _ = std::fs::remove_file(file);
        let result = Host::captured(&plan, Some(file.to_owned())).run();
        if let Some(value) = wanted(result) {
            return Some(value);
        }
        plan.seed += 1;
    }
    let _ = std::fs::remove_file(file);
    None
}

/// Captures the packets of a plan that fails, if the environment names a file for them. Returns a
/// text about it.
fn capture_failure(plan: &Plan) -> String {
    let Some(file) = std::env::var_os(ENV_CAPTURE) else {
        return String::new();
    };
    let file = Path::new(&file);
    match capture(plan, file, Result::err) {
        Some(error) => format!("\nThe packets are in {}, and then: {error}", file.display()),
        None => format!("\nIt does not fail in {CAPTURES} schedules with a capture"),
    }
}

/// Returns the number of seeds and the first seed, which an environment variable may set.
fn seeds() -> (u64, u64) {
    let text = std::env::var(ENV).unwrap_or_default();
    let (count, first) = text.split_once(',').unwrap_or((&text, "1"));
    let count = count.parse().unwrap_or(SEEDS);
    (count, first.parse().expect("a number of a seed"))
}

/// Runs `f` in a thread that stays on one processor, as those that it starts do. One that hands
/// over to another then does not wait for a second processor.
fn on_one_cpu(f: impl FnOnce() + Send) {
    let _no_starts = crate::sys::STARTS.read();
    let run = || {
        stay_on_one_cpu();
        f();
    };
    let ended = thread::scope(|scope| scope.spawn(run).join());
    ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

/// Runs all seeds.
#[test]
fn messages_outlive_processes() {
    let (count, first) = seeds();
    on_one_cpu(|| run_seeds(count, first));
}

fn run_seeds(count: u64, first: u64) {
    let (begin, mut coverage) = (Instant::now(), Coverage::default());
    let chosen = chosen_event();
    for (done, seed) in (first..first + count).enumerate() {
        let plan = Plan::draw(seed);
        let event = match chosen {
            Some(_) => chosen,
            None => run_plan(&plan, &mut coverage),
        };
        if let Some(event) = event {
            run_plan(&event.added_to(&plan), &mut coverage);
        }
        if (done + 1) % 100 == 0 {
            let rate = (done + 1) as f64 / begin.elapsed().as_secs_f64();
            println!("{} of {count} seeds, {rate:.0} a second", done + 1);
        }
    }
    coverage.print();
    let is_missing = |mark: &&&str| !coverage.marks.contains_key(**mark);
    let missing: Vec<_> = EXPECTED.iter().filter(is_missing).collect();
    assert!(
        count < SEEDS_OF_ALL || missing.is_empty(),
        "never happened in {count} seeds: {missing:?}"
    );
}

/// Runs a plan as it was drawn, or with an event. Returns an event for the next run of a drawn one,
/// at a place where it happened most rarely so far.
fn run_plan(plan: &Plan, coverage: &mut Coverage) -> Option<EventAtPlace> {
    let seed = plan.seed;
    match Host::new(plan).run() {
        Ok(outcome) => {
            coverage.add(&outcome);
            match seed % 4 {
                0 | 2 if plan.death.is_none() => {
                    coverage.death(&outcome, seed).map(EventAtPlace::Death)
                }
                1 if plan.freeze.is_none() => {
                    coverage.freeze(&outcome, seed).map(EventAtPlace::Freeze)
                }
                _ => None,
            }
        }
        Err(error) => {
            println!("seed {seed}: {error}\n{plan:#?}");
            let event = EventAtPlace::argument_of(plan);
            let (plan, error) = shrink(plan.clone(), error);
            let packets = capture_failure(&plan);
            panic!(
                "seed {seed}: {error}\nwith this plan:\n{plan:#?}{packets}\n\
                 cargo xtask hostsim --seeds 1 --seed {seed}{event}"
            );
        }
    }
}

/// Returns the event that the environment names, if it names one.
fn chosen_event() -> Option<EventAtPlace> {
    let text = std::env::var(ENV_EVENT).ok()?;
    Some(EventAtPlace::parse(&text).expect("an event at a place"))
}

/// A seed takes the same decisions twice, in all detail.
#[test]
fn a_seed_repeats() {
    on_one_cpu(|| {
        for seed in 1..4 {
            let plan = Plan::draw(seed);
            let run = || Host::new(&plan).run().expect("no violation");
            let [one, other] = [run(), run()];
            let (first, second) = (&one.turns, &other.turns);
            let differs = first
                .iter()
                .zip(second)
                .position(|(one, other)| one != other);
            let around = differs.map(|at| [first, second].map(|turns| turns[at]));
            assert_eq!(around, None, "seed {seed}, turn {differs:?} of {plan:#?}");
            assert_eq!(first.len(), second.len(), "seed {seed}");
            assert_eq!(one.marks, other.marks, "seed {seed}");
        }
    });
}

/// The packets of a run are captured, with those of each process.
#[test]
fn packets_are_captured() {
    on_one_cpu(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("packets.pcapng");
        let plan = Plan::draw(1);
        let outcome = capture(&plan, &file, Result::ok).expect("no violation");
        let bytes = std::fs::read(&file).expect("a capture");
        // Each process writes a section.
        let sections = bytes.windows(4).filter(|bytes| *bytes == SECTION).count();
        let ends = plan.connections.iter().flat_map(|plan| plan.processes);
        let processes = ends.collect::<BTreeSet<_>>().len();
        assert!(sections >= processes, "{sections} of {processes}");
        assert!(outcome.marks.keys().any(|mark| mark.contains("arrives")));

        let none = capture(&plan, &file, |_| None::<()>);
        assert!(none.is_none() && !file.exists());
    });
}
