//! Running unmodified verbs programs on Rocade, as a user would: `rocade run -- PROGRAM`.
//!
//! A [`Rig`] is one machine with RDMA: a network namespace of its own (where the user may make one), a runtime
//! directory of its own, and so a broker of its own. [`Rig::start`] runs a program on it as a [`Process`], whose
//! output is kept and shown where an expectation fails. Every wait is bounded. Rigs with a network of their own exist
//! side by side; those that share one exist one after the other.

mod capture;
mod conformance;
mod guest;
mod network;
mod ports;
mod process;
mod rig;
mod tools;
mod user;

pub use self::{
    capture::{Capture, datagrams, own_datagrams, tshark},
    conformance::{conformance_agent, start_conformance},
    guest::{IcrcCounters, RxeGuest},
    network::Network,
    ports::free_port,
    process::{Finished, Process},
    rig::{Device, Rig},
    tools::{Perftest, Pingpong, devinfo_gids, has_result, perftest_rows, qp_numbers},
    user::{Installation, User},
};

/// Takes the value of a `Result<T, Reason>`, or skips the test that calls it.
#[macro_export]
macro_rules! or_skip {
    ($result:expr) => {
        match $result {
            Ok(value) => value,
            Err(reason) => $crate::skip!(reason),
        }
    };
}
