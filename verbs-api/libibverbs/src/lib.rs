//! Drop-in `libibverbs.so.1`: the verbs of the C API over the emulated HCA.
//!
//! This library owns the only engine of the process (see `process`). It holds no transport
//! logic: each exported function checks its pointers, translates its arguments, calls the
//! emulator and translates the answer.
//!
//! # How a C object relates to the emulator
//! Every object a program gets a pointer to is the first member of a `shell::Shell`, which also
//! holds the emulator's handle. The emulator hands the address of the C object back in events.
//!
//! # Conventions
//! * A panic never crosses the C boundary: `ffi` turns it into `EIO`.
//! * A NULL object gives `EINVAL`, an object inherited through `fork` gives `ENODEV`; ending an
//!   inherited object succeeds and does nothing.
//! * What the function returns besides follows `ERN-01`: 0 or a positive errno, NULL, or -1, in
//!   each case with `errno` set.
//! * A failure is explained on standard error (`complaint`).
//!
//! The exported symbols are listed in `exports.tsv`; inline functions of the header call through
//! the tables that `context`, `cq_ex` and `qp_ex` fill in.

// Test builds have no version script, so nothing is exported and most functions look unused.
#![cfg_attr(
    test,
    allow(dead_code, reason = "exported symbols are left out of test builds")
)]

mod ah;
mod buffer;
mod cancel;
mod channel;
mod cm;
mod cm_channel;
mod complaint;
mod context;
mod cq;
mod cq_ex;
mod device;
mod dm;
mod domain;
mod dv;
mod enum_str;
mod events;
mod exp;
mod explain;
mod ffi;
mod flow;
mod import;
mod late;
mod misc;
mod mr;
mod mw;
mod older_xrc;
mod pd_mr;
mod post;
mod process;
mod qp;
mod qp_attr;
mod qp_ex;
mod query;
mod rates;
mod rss;
mod shell;
mod srq;
mod wr_batch;
mod wr_build;
mod xrcd;

#[cfg(not(test))]
mod exports {
    include!(concat!(env!("OUT_DIR"), "/exports.rs"));
}

#[cfg(not(test))]
pub(crate) use complaint::unsupported;
