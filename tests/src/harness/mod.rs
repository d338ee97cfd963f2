//! A harness that runs unmodified verbs programs on Rocade as a user would: `rocade run --
//! PROGRAM`.
//!
//! A [`Rig`] is one machine with RDMA. It has its own network namespace (if the user may create
//! one) and its own runtime directory, and therefore its own broker. [`Rig::start`] runs a program
//! on it as a [`Process`], whose output is kept and shown if an expectation fails. Every wait is
//! bounded. Rigs with their own namespaces run in parallel, and rigs that share a network run one
//! after the other.

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

/// Returns the value of a `Result<T, Reason>`, or skips the test that calls it.
#[macro_export]
macro_rules! or_skip {
    ($result:expr) => {
        match $result {
            Ok(value) => value,
            Err(reason) => $crate::skip!(reason),
        }
    };
}
