//! Shared code of Rocade's integration tests.
//!
//! * [`harness`]: unmodified verbs programs as processes on Rocade, and the rxe guest.
//! * [`mod@c_programs`]: programs in C, compiled against the headers of the distribution.
//! * [`sim`]: reliable connections over a bad network in virtual time.
//! * [`mod@skip`]: skips a test that cannot run on this machine, with a reason.

pub mod c_programs;
pub mod harness;
pub mod sim;
pub use rocade_skip as skip;
pub use rocade_skip::skip;
