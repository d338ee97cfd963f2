//! Drop-in `librdmacm.so.1`: the connection manager.
//!
//! It contains no emulator code: IDs and events are the engine's, which is in `libibverbs.so.1` and reached through a
//! private table (`engine`). What is here is what a program sees of them: the structures of `rdma_cma.h`, the
//! synchronous mode, and queue pairs that follow their connections.
//!
//! Sockets (`rsocket` and its kind) are built on that, in `rsocket`. The exported symbols are listed in `exports.tsv`.

// Test builds have no version script, so nothing is exported and most functions look unused.
#![cfg_attr(
    test,
    allow(dead_code, reason = "exported symbols are left out of test builds")
)]

#[cfg(not(test))]
mod exports {
    include!(concat!(env!("OUT_DIR"), "/exports.rs"));
}

mod addrinfo;
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
