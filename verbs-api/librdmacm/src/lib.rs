//! Drop-in `librdmacm.so.1`: the connection manager.
//!
//! This crate contains no emulator code. The engine in `libibverbs.so.1` keeps the IDs and events,
//! and is reached through a private table (`engine`). This crate implements what programs see of
//! them: the structures of `rdma_cma.h`, the synchronous mode, and queue pairs that change state
//! with their connections.
//!
//! The module `rsocket` implements sockets (`rsocket`, `rbind`, ...) with these IDs. `exports.tsv`
//! lists the exported symbols.

// Test builds have no version script, so nothing is exported and most functions look unused.
#![cfg_attr(
    test,
    allow(dead_code, reason = "exported symbols are left out of test builds")
)]

#[cfg(not(test))]
mod exports {
    include!(concat!(env!("OUT_DIR"), "/exports.rs"));
}

#[cfg(not(test))]
rocade_system_calls::own_system_calls!();

mod addrinfo;
#[path = "../../libibverbs/src/args/mod.rs"]
mod args;
mod connect;
mod devices;
mod engine;
mod ep;
mod event;
mod event_str;
mod ffi;
mod id;
mod library;
mod multicast;
mod qp;
mod rsocket;
mod srq;
mod trace;
