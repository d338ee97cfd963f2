//! Seeded simulation of reliable connections in virtual time.
//!
//! A seed determines the configuration ([`scenario::Scenario::swarm`],
//! [`state_changes::Plan::swarm`]), the work and the network faults. The guarantees of the
//! transport are checked outside of it: memory against patterns and models ([`flow`],
//! `request_log`), packets against the rules for PSNs ([`network`]). Each run uses a fixed set of
//! seeds and a fresh one ([`seeds`]).

pub mod cross_channel;
pub mod flow;
pub mod hostile;
mod kinds;
pub mod memory_windows;
pub mod network;
pub mod paths;
mod queue;
mod request_log;
pub mod rng;
pub mod scenario;
pub mod state_changes;
pub mod unreliable;

use std::{
    env,
    fmt::Debug,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::OnceLock,
    thread,
    time::{SystemTime, UNIX_EPOCH},
};

/// Returns the number in the environment variable `name`.
fn variable(name: &str) -> Option<u64> {
    let value = env::var(name).ok()?;
    Some(value.parse().expect("a seed or their count is a number"))
}

/// Returns the fresh seed of this run: `ROCADE_FRESH_SEED` (which `cargo xtask test` sets and
/// prints), otherwise a seed made from the time.
fn fresh_seed() -> u64 {
    static SEED: OnceLock<u64> = OnceLock::new();
    *SEED.get_or_init(|| {
        variable("ROCADE_FRESH_SEED").unwrap_or_else(|| {
            let now = SystemTime::now().duration_since(UNIX_EPOCH);
            // Short enough to type, and above the fixed seeds.
            (1 << 32) + u64::from(now.map_or(0, |time| time.subsec_nanos()))
        })
    })
}

/// Returns the seeds to run: `0..count` and a fresh one, or `0..ROCADE_SEEDS` if that is set, or
/// only `ROCADE_SEED`.
///
/// # Panics
/// If one of the variables is not a number.
#[must_use]
pub fn seeds(count: u64) -> Vec<u64> {
    match (variable("ROCADE_SEED"), variable("ROCADE_SEEDS")) {
        (Some(seed), _) => vec![seed],
        (None, Some(count)) => (0..count).collect(),
        (None, None) => (0..count).chain([fresh_seed()]).collect(),
    }
}

/// Returns true if fewer seeds run than the `count` of a normal run. Sums over few seeds prove
/// little: such a run repeats a failure, or is a quick look.
///
/// # Panics
/// Like [`seeds`].
#[must_use]
pub fn are_few(count: u64) -> bool {
    (seeds(count).len() as u64) < count
}

/// Runs a plan per seed, and passes each result to `then`. If a run panics, prints the seed and the
/// command that repeats it.
///
/// # Panics
/// If `run` does.
pub fn each_seed<P: Debug, R>(
    count: u64,
    plan: impl Fn(u64) -> P,
    run: impl Fn(&P) -> R,
    mut then: impl FnMut(R),
) {
    for seed in seeds(count) {
        let plan = plan(seed);
        match catch_unwind(AssertUnwindSafe(|| run(&plan))) {
            Ok(result) => then(result),
            Err(panic) => {
                let test = thread::current();
                let program = env::current_exe().unwrap_or_default();
                let program = program.file_stem().unwrap_or_default().to_string_lossy();
                let program = program.rsplit_once('-').map_or(&*program, |(name, _)| name);
                eprintln!(
                    "seed {seed}: {plan:?}\nto repeat: ROCADE_SEED={seed} \
                     cargo test -p rocade-tests --test {program} {} -- --exact",
                    test.name().unwrap_or_default()
                );
                resume_unwind(panic);
            }
        }
    }
}
