//! Leads a program's file functions to Rocade's view of the devices.
//!
//! Where a program may have no mount namespace, `rocade run` puts the files that a driver would give
//! into a directory, the stage, and this library in front of libc (`LD_PRELOAD`). Its functions
//! take a path, look whether it belongs to the view, and call libc's function of the same name with
//! the path or with its twin on the stage. What comes back (`realpath`, `readlink`, `glob`) loses
//! the stage's name again.
//!
//! It also answers `NETLINK_RDMA` sockets, on which iproute2's `rdma` asks the kernel (`netlink`).
//!
//! There are no locks, no allocation and no state but what is set before `main`: these functions are
//! called from signal handlers and between `fork` and `exec`. Only answers to `NETLINK_RDMA` allocate.
//! docs/view.md says what is not covered.
#![allow(
    clippy::missing_safety_doc,
    reason = "each function has the contract of its namesake in libc"
)]

mod files;
mod links;
mod netlink;
mod next;
mod paths;
