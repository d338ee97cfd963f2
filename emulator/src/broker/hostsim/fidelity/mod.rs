//! A comparison of the simulated host with real processes: each client has to see the same of the
//! same script.
//!
//! A script has one act at a time, and the next one follows when the host has settled, because the
//! order of what happens at the same time is the kernel's in real life. Numbers of files are
//! replaced by the order in which they were first seen.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Instant;

use super::seeds;
use super::step::{ADDRESSES, CLIENTS, Call, DIRS, NAMES, below};
use crate::random::Random;

mod real;
mod simulated;

/// Number of scripts of a plain test run. Emulated processors are slow.
const SCRIPTS: u64 = if cfg!(target_arch = "x86_64") { 20 } else { 2 };
/// Environment variable with the number of scripts and the first seed: `N` or `N,S`.
const ENV: &str = "ROCADE_HOSTSIM_REAL";
/// Acts of a script.
const ACTS: usize = 40;

/// One act.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Connect {
        client: u8,
        dir: u8,
    },
    Call {
        client: u8,
        call: Call,
    },
    Kill {
        client: u8,
    },
    KillBroker {
        dir: u8,
    },
    /// A user stops the broker of a directory.
    EndBroker {
        dir: u8,
    },
    /// A program of another version greets the broker of a directory.
    OtherVersion {
        dir: u8,
    },
}

impl Act {
    fn draw(random: &mut Random) -> Self {
        let client = below(random, CLIENTS);
        // The second directory is the exception.
        let dir = below(random, 5) / 4 % DIRS;
        match below(random, 100) {
            0..=24 => Self::Connect { client, dir },
            25..=79 => Self::Call {
                client,
                call: Call::draw(random),
            },
            80..=87 => Self::Kill { client },
            88..=92 => Self::KillBroker { dir },
            93..=96 => Self::EndBroker { dir },
            _ => Self::OtherVersion { dir },
        }
    }
}

/// A host on which a script is performed.
trait Stage {
    /// Performs an act and lets the host settle. Returns what the clients see then, as text, where
    /// each file is `#` and its number.
    ///
    /// # Errors
    /// A text that says why the host does not settle.
    fn perform(&mut self, act: Act) -> Result<String, String>;
}

/// Returns what has been seen after each act.
fn perform(stage: &mut dyn Stage, script: &[Act]) -> Result<Vec<String>, String> {
    let mut files = Files::default();
    let seen = script.iter().enumerate().map(|(number, act)| {
        let seen = stage.perform(*act);
        seen.map(|text| files.rename(&text))
            .map_err(|error| format!("act {number} ({act:?}): {error}"))
    });
    seen.collect()
}

/// The files that were seen, in order.
#[derive(Default)]
struct Files(BTreeMap<String, usize>);

impl Files {
    fn rename(&mut self, text: &str) -> String {
        let mut parts = text.split('#');
        let mut renamed = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let digits = part.find(|c: char| !c.is_ascii_digit());
            let (number, rest) = part.split_at(digits.unwrap_or(part.len()));
            let next = self.0.len();
            let order = *self.0.entry(number.to_owned()).or_insert(next);
            let _ = write!(renamed, "file {order}{rest}");
        }
        renamed
    }
}

/// Words that have to appear in what is seen.
const EXPECTED: [&str; 6] = [
    "AddressInUse",
    "gets Everywhere",
    "address 1 file",
    "domain 1 file",
    "port 1",
    "slot 5",
];

/// Compares the two stages. Returns what was seen after each act.
fn compare(seed: u64) -> Vec<String> {
    let mut random = Random(seed);
    let script: Vec<_> = (0..ACTS).map(|_| Act::draw(&mut random)).collect();
    let again = format!("cargo xtask hostsim --seeds 0 --real 1 --seed {seed}");
    let simulated = perform(&mut simulated::Simulated::new(), &script);
    let simulated = simulated.unwrap_or_else(|error| panic!("simulated: {error}\n{again}"));
    let real = perform(&mut real::Real::new(), &script);
    let real = real.unwrap_or_else(|error| panic!("real: {error}\n{again}"));
    for (number, (one, two)) in simulated.iter().zip(&real).enumerate() {
        assert!(
            one == two,
            "after act {number} of {script:?}\n\
            simulated processes see:\n{one}\nreal processes see:\n{two}\n{again}"
        );
    }
    real
}

#[test]
fn simulated_and_real_processes_see_the_same() {
    // No other test may start a process that inherits a lock or a connection for a moment.
    let _starts = crate::sys::STARTS.write();
    let (scripts, first) = seeds(ENV, SCRIPTS);
    let begin = Instant::now();
    let seen: Vec<_> = (first..first + scripts).flat_map(compare).collect();
    // Scripts from a seed of the user may miss one of them.
    if std::env::var_os(ENV).is_none() || scripts >= 10 * SCRIPTS {
        let is_missing = |word: &&&str| !seen.iter().any(|text| text.contains(**word));
        let missing: Vec<_> = EXPECTED.iter().filter(is_missing).collect();
        assert!(missing.is_empty(), "never seen: {missing:?}");
    }
    println!(
        "{scripts} scripts, simulated and real, in {:.1} s",
        begin.elapsed().as_secs_f64()
    );
}

#[test]
fn files_are_named_in_the_order_of_their_first_use() {
    let mut files = Files::default();
    assert_eq!(
        files.rename("#70 #8, #70\n#8"),
        "file 0 file 1, file 0\nfile 1"
    );
    assert_eq!(files.rename("none, #9"), "none, file 2");
}

/// All calls, by their text.
fn call_of(text: &str) -> Option<Call> {
    let mut calls = vec![Call::Service];
    calls.extend((0..ADDRESSES).map(Call::Open));
    for name in 0..NAMES {
        calls.extend([
            Call::Bind(name),
            Call::Release(name),
            Call::OpenDomain(name),
            Call::CloseDomain(name),
            Call::NewTarget(name),
            Call::CloseTarget(name),
        ]);
    }
    calls.into_iter().find(|call| format!("{call:?}") == text)
}
