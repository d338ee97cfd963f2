//! Redirects the file functions of a program to Rocade's sysfs view of the devices.
//!
//! If a program cannot have a mount namespace, `rocade run` puts the files of the driver into a
//! staging directory. It also preloads this library in front of libc (`LD_PRELOAD`). The functions
//! of this library take a path and check whether it belongs to the view. They call libc's function
//! of the same name with the path, or with its shadow path in the staging directory. The name of
//! the staging directory is removed from results (`realpath`, `readlink`, `glob`).
//!
//! The library also answers requests on `NETLINK_RDMA` sockets, which iproute2's `rdma` sends to
//! the kernel (`netlink`).
//!
//! Programs call these functions in signal handlers and between `fork` and `exec`. Therefore there
//! are no locks, no allocations and no state that changes after the start of `main`. Only answers
//! to `NETLINK_RDMA` requests allocate. docs/view.md lists the limits.
#![allow(
    clippy::missing_safety_doc,
    reason = "each function has the contract of its namesake in libc"
)]

mod exec;
mod files;
mod links;
mod netlink;
mod next;
mod paths;
