//! Seeded simulation of reliable connections in virtual time.
//!
//! A seed decides everything: the configuration ([`scenario::Scenario::swarm`]), the work and the
//! faults of the network. What the transport must guarantee is checked outside of it: memory
//! against patterns and models ([`flow`]), packets against the rules for sequence numbers
//! ([`network`]). `ROCADE_SEED=N` repeats one seed.

pub mod flow;
pub mod network;
pub mod rng;
pub mod scenario;

use std::env;

/// The seeds to run: `0..count`, or only `ROCADE_SEED` where that is set.
///
/// # Panics
/// If `ROCADE_SEED` is no number.
#[must_use]
pub fn seeds(count: u64) -> Vec<u64> {
    match env::var("ROCADE_SEED") {
        Ok(seed) => vec![seed.parse().expect("ROCADE_SEED is a number")],
        Err(_) => (0..count).collect(),
    }
}
