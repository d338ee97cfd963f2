//! Seeded simulation of reliable connections in virtual time.
//!
//! A seed decides everything: the configuration ([`scenario::Scenario::swarm`]), the work and the
//! faults of the network. What the transport must guarantee is checked outside of it: memory
//! against patterns and models ([`flow`]), packets against the rules for sequence numbers
//! ([`network`]). `ROCADE_SEED=N` repeats one seed,
//! `ROCADE_SEEDS=N` runs as many per test.

pub mod flow;
pub mod network;
pub mod rng;
pub mod scenario;

use std::env;

/// The seeds to run: `0..count`, `0..ROCADE_SEEDS` where that is set, or only `ROCADE_SEED`.
///
/// # Panics
/// If one of the variables is no number.
#[must_use]
pub fn seeds(count: u64) -> Vec<u64> {
    let variable = |name: &str| {
        env::var(name)
            .ok()
            .map(|value| value.parse().expect("a seed or their count is a number"))
    };
    match variable("ROCADE_SEED") {
        Some(seed) => vec![seed],
        None => (0..variable("ROCADE_SEEDS").unwrap_or(count)).collect(),
    }
}
