//! Drop-in `libibverbs.so.1`: the verbs of the C API over the emulated HCA.
//!
//! This library owns the only engine of the process (see `process`). It holds no transport logic.
//! Each exported function checks its pointers, converts its arguments, calls the emulator and
//! converts the result.
//!
//! # How a C object relates to the emulator
//! The C part of every object is the first member of a `handle::CHandle`, which also holds the
//! emulator's handle. Events of the emulator carry the address of the C object.
//!
//! # Conventions
//! * A panic never crosses the C boundary: `ffi` turns it into `EIO`.
//! * A NULL object gives `EINVAL`. An object inherited through `fork` gives `ENODEV`, but
//!   destroying it succeeds and does nothing.
//! * On failure, a function returns a positive errno, NULL or -1, and sets `errno`.
//! * Each failure is explained on standard error (`diagnostics`).
//!
//! The exported symbols are listed in `exports.tsv`. Inline functions of the header call through
//! the tables that `context`, `cq_ex` and `qp_ex` fill in.

// Test builds have no version script, so nothing is exported and most functions look unused.
#![cfg_attr(
    test,
    allow(dead_code, reason = "exported symbols are left out of test builds")
)]

mod ah;
mod args;
mod buffer;
mod cancel;
mod channel;
mod cm;
mod cm_channel;
mod comp_cntr;
mod context;
mod cq;
mod cq_ex;
mod device;
mod diagnostics;
mod dm;
mod domain;
mod dv;
mod efa;
mod enum_str;
mod events;
mod exp;
mod explain;
mod explain_event;
mod explain_failure;
mod ffi;
mod flow;
mod handle;
mod huge_pages;
mod import;
mod late_calls;
mod mapping;
mod misc;
mod mr;
mod mr_ex;
mod mw;
mod pd_mr;
mod post;
mod process;
mod program_buffer;
mod qp;
mod qp_attr;
mod qp_ex;
mod query;
mod rates;
mod rss;
mod srq;
mod trace;
mod wr_batch;
mod wr_build;
mod xrc_compat;
mod xrcd;

#[cfg(not(test))]
mod exports {
    include!(concat!(env!("OUT_DIR"), "/exports.rs"));
}

#[cfg(not(test))]
rocade_system_calls::own_system_calls!();

#[cfg(not(test))]
pub(crate) use diagnostics::unsupported;
