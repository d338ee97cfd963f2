//! A host in one process: brokers and their clients in virtual time, from a seed.
//!
//! Sockets, locks and memory are the kernel's, which act at once, so that a run from a seed
//! repeats. Brokers and clients take turns, and only one of them runs at a time. A client waits
//! through its [`Machine`](super::machine::Machine) only, where it hands over to the schedule. A
//! process is killed by dropping what it has.
//!
//! After each step, `checks.rs` compares what all processes have. A failure prints the seed and
//! the shortest list of steps that was found to fail.
//!
//! `cargo xtask hostsim --seeds N [--seed S]` runs the test of this module.

use std::fmt::Write as _;
use std::panic;
use std::thread;
use std::time::Instant;

use crate::inherited::stay_on_one_cpu;
use crate::random::Random;

mod checks;
mod children;
mod fidelity;
mod knowledge;
mod life;
mod links;
mod outside;
mod process;
mod reasons;
mod step;
mod world;

use super::simulated::brokers::Marks;
use step::{Call, Step};
use world::World;

/// Seeds of a plain test run. Emulated processors are slow.
const SEEDS: u64 = if cfg!(target_arch = "x86_64") {
    2_000
} else {
    100
};
/// Steps of a run.
const STEPS: usize = 120;
/// One seed of so many has a crowded directory, whose sockets do not fit into one message.
const CROWDED: u64 = 8;
/// In one seed of so many, processes share targets and talk to another host.
const SHARING: u64 = 4;
/// Environment variable with the number of seeds and the first seed: `N` or `N,S`.
const ENV: &str = "ROCADE_HOSTSIM";

/// Draws the steps of a seed.
fn steps_of(seed: u64) -> Vec<Step> {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9).wrapping_add(seed));
    let crowd = seed.is_multiple_of(CROWDED).then_some(Step::Crowd);
    // None of these is crowded.
    let draw = match seed % SHARING {
        2 => Step::draw_sharing,
        _ => Step::draw,
    };
    let drawn = (0..STEPS).map(|_| draw(&mut random));
    crowd.into_iter().chain(drawn).collect()
}

/// Runs steps, then lets the host come to rest.
///
/// # Errors
/// A text that names the broken condition, with the number of the step.
fn run(steps: &[Step], marks: &mut Marks) -> Result<(), String> {
    let mut world = World::new();
    let result = world.run(steps);
    for (mark, count) in world.end() {
        *marks.entry(mark).or_default() += count;
    }
    result
}

/// Returns a short list of steps that still fails.
fn shrink(mut steps: Vec<Step>) -> Vec<Step> {
    let fails = |steps: &[Step]| run(steps, &mut Marks::new()).is_err();
    let mut size = steps.len() / 2;
    while size > 0 {
        let mut at = 0;
        while at < steps.len() {
            let end = (at + size).min(steps.len());
            let mut fewer = steps.clone();
            fewer.drain(at..end);
            if fails(&fewer) {
                steps = fewer;
            } else {
                at = end;
            }
        }
        size /= 2;
    }
    steps
}

/// Returns the number of seeds and the first seed, which an environment variable may set.
fn seeds(variable: &str, usual: u64) -> (u64, u64) {
    let text = std::env::var(variable).unwrap_or_default();
    let (count, first) = text.split_once(',').unwrap_or((&text, "1"));
    let count = count.parse().unwrap_or(usual);
    (count, first.parse().expect("a number of a seed"))
}

/// Explains the failure of a seed: the shrunk steps, and how to repeat it.
fn explain(seed: u64, error: &str) -> String {
    let fewer = shrink(steps_of(seed));
    let error = run(&fewer, &mut Marks::new())
        .err()
        .unwrap_or_else(|| error.to_owned());
    let mut text = format!("{error}\nafter these steps:\n");
    for step in fewer {
        let _ = writeln!(text, "  {step:?}");
    }
    let _ = write!(text, "cargo xtask hostsim --seeds 1 --seed {seed}");
    text
}

/// Runs all seeds, and checks that what should happen sometimes has happened.
#[test]
fn brokers_and_clients_keep_their_rules() {
    let _no_starts = crate::sys::STARTS.read();
    let (count, first) = seeds(ENV, SEEDS);
    // A process that hands over to another one then does not wait for a second processor.
    let run_all = || {
        stay_on_one_cpu();
        run_seeds(count, first);
    };
    let ended = thread::scope(|scope| scope.spawn(run_all).join());
    ended.unwrap_or_else(|panic| panic::resume_unwind(panic));
}

fn run_seeds(count: u64, first: u64) {
    let (begin, mut marks) = (Instant::now(), Marks::new());
    for (done, seed) in (first..first + count).enumerate() {
        if let Err(error) = run(&steps_of(seed), &mut marks) {
            panic!("seed {seed}: {}", explain(seed, &error));
        }
        if (done + 1) % 500 == 0 {
            let rate = (done + 1) as f64 / begin.elapsed().as_secs_f64();
            println!("{} of {count} seeds, {rate:.0} a second", done + 1);
        }
    }
    println!("{count} seeds in {:.1} s", begin.elapsed().as_secs_f64());
    for (mark, times) in &marks {
        println!("{times:8} x {mark}");
    }
    if count >= 1_000 {
        let missing = |mark: &&&str| !marks.contains_key(**mark);
        let missing: Vec<_> = world::EXPECTED.iter().filter(missing).collect();
        assert!(missing.is_empty(), "never happened: {missing:?}");
    }
}

/// A seed has the same marks twice, in all detail.
#[test]
fn a_seed_repeats() {
    let _no_starts = crate::sys::STARTS.read();
    for seed in 1..10 {
        let (mut one, mut two) = (Marks::new(), Marks::new());
        let results = [
            run(&steps_of(seed), &mut one),
            run(&steps_of(seed), &mut two),
        ];
        assert_eq!(results[0], results[1], "seed {seed}");
        assert_eq!(one, two, "seed {seed}");
    }
}

/// A client asks a new broker for the port, or the domain, of one that has not resumed yet.
#[test]
fn what_a_client_has_is_kept_for_it_while_it_resumes() {
    let _no_starts = crate::sys::STARTS.read();
    let connect = |client| {
        let work = Step::Work { rounds: 8 };
        [
            Step::Connect { client, dir: 0 },
            work,
            Step::Advance,
            work,
            Step::Advance,
            work,
        ]
    };
    for call in [Call::Bind(0), Call::OpenDomain(0)] {
        let mut steps = Vec::new();
        steps.extend(connect(4));
        steps.extend(connect(0));
        steps.extend([
            Step::Call { client: 4, call },
            Step::Work { rounds: 8 },
            Step::KillBroker { broker: 0 },
            Step::Call { client: 0, call },
        ]);
        assert_eq!(run(&steps, &mut Marks::new()), Ok(()), "{call:?}");
    }
}

/// All that is ready runs.
const WORK: Step = Step::Work { rounds: 8 };

/// A call, and what it causes.
const fn worked(client: u8, call: Call) -> [Step; 2] {
    [Step::Call { client, call }, WORK]
}

/// Connects two processes to the broker of the same directory. The one with the higher number
/// gets the lower slot.
fn two_clients() -> Vec<Step> {
    let connect = |client| {
        let connect = Step::Connect { client, dir: 0 };
        [connect, WORK, Step::Advance, WORK, Step::Advance, WORK]
    };
    [4, 0].into_iter().flat_map(connect).collect()
}

/// Runs steps, after which the host has to come to rest with nothing lost and nothing left.
fn assert_good(steps: impl IntoIterator<Item = Step>) {
    let _no_starts = crate::sys::STARTS.read();
    let steps: Vec<_> = two_clients().into_iter().chain(steps).collect();
    let mut marks = Marks::new();
    assert_eq!(run(&steps, &mut marks), Ok(()), "{marks:?}");
}

/// The owner of a shared target is stopped while another process resumes it.
#[test]
fn an_owner_that_resumes_last_keeps_its_target() {
    let shared = [
        worked(4, Call::ShareTarget(0)),
        worked(0, Call::JoinTarget(0)),
    ];
    let kill = [
        Step::Stop { client: 4 },
        Step::KillBroker { broker: 0 },
        WORK,
        Step::Advance,
        WORK,
        Step::Advance,
        WORK,
        Step::Continue { client: 4 },
    ];
    assert_good(shared.into_iter().flatten().chain(kill));
}

/// A process that dies while there is no broker leaves its domains, and its targets end.
#[test]
fn what_ends_without_a_broker_does_not_stay_in_a_domain() {
    let begin = [
        worked(4, Call::ShareTarget(0)),
        worked(0, Call::ShareTarget(0)),
    ];
    let begin: Vec<_> = begin.into_iter().flatten().collect();
    for end in [
        Step::Kill { client: 4 },
        Step::Call {
            client: 4,
            call: Call::CloseTarget(0),
        },
        Step::Call {
            client: 4,
            call: Call::CloseDomain(0),
        },
    ] {
        let steps = [Step::KillBroker { broker: 0 }, end];
        assert_good(begin.iter().copied().chain(steps));
    }
}

/// The slot of a dead process is not leased again while a process that has its target open has not
/// resumed it.
#[test]
fn a_slot_is_not_leased_while_a_client_may_resume_a_target_of_it() {
    let shared = [
        worked(4, Call::ShareTarget(0)),
        worked(0, Call::JoinTarget(0)),
    ];
    let end = [
        Step::Kill { client: 4 },
        Step::KillBroker { broker: 0 },
        Step::Connect { client: 3, dir: 0 },
        WORK,
    ];
    assert_good(shared.into_iter().flatten().chain(end));
}

/// The only process that has resumed a target dies before its creator resumes it.
#[test]
fn a_target_is_kept_while_its_creator_may_resume_it() {
    let shared = [
        worked(4, Call::ShareTarget(0)),
        worked(0, Call::JoinTarget(0)),
    ];
    let end = [
        Step::Stop { client: 4 },
        Step::KillBroker { broker: 0 },
        Step::Advance,
        WORK,
        Step::Advance,
        WORK,
        Step::Advance,
        WORK,
        Step::Kill { client: 0 },
        WORK,
    ];
    assert_good(shared.into_iter().flatten().chain(end));
}
