//! What the integration tests of Rocade share.
//!
//! * [`harness`]: unmodified verbs programs as processes on Rocade, and the rxe guest;
//! * [`skip`]: tests that cannot run on this machine say why.

pub mod harness;
pub mod skip;
