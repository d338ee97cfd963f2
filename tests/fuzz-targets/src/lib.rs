//! Targets of the fuzzers (`tests/fuzz`), and a short run of each as a test.
//!
//! The programs of libFuzzer look for inputs that reach new code, which needs a build of its own.
//! The tests of this crate need none: they run the inputs that are kept in `tests/fuzz/corpus`, and
//! changed ones.

pub mod cm;
pub mod config;
pub mod dc;
pub mod mad;
pub mod packet;
pub mod qp;
pub mod unreliable;
pub mod xrc;

#[cfg(test)]
mod inputs;
mod program;
