//! Unmodified verbs programs on Rocade, as separate processes over loopback.
//!
//! Tests that move data use both links: the default, which is shared memory between processes of
//! one host, and UDP. Each test has its own rig (see `rocade_tests::harness`). It is skipped if its
//! program is not installed.

mod action;
mod addresses;
mod async_rdma;
mod broker;
mod capture;
mod cm;
mod containers;
mod crash;
mod devices;
mod endless;
mod events;
mod fault_report;
mod finding;
mod groups;
mod idle;
mod infinistore;
mod libfabric;
mod librpma;
mod messages;
mod mooncake;
mod mpi;
mod nixl;
mod openshmem;
mod perftest;
mod pingpong;
mod pyverbs;
mod qemu;
mod raw_ethernet;
mod rdma;
mod rsockets;
mod starts;
mod statistics;
mod storage;
mod trace;
mod ucx;
mod view;

use std::{
    env,
    path::{Path, PathBuf},
    time::Duration,
};

use rocade_tests::skip::Reason;

/// Commands of ibverbs-utils, with their packages.
const UTILS: &[(&str, &str)] = &[
    ("ibv_rc_pingpong", "ibverbs-utils"),
    ("ibv_devinfo", "ibverbs-utils"),
    ("ip", "iproute2"),
];

/// Commands of perftest and of ibverbs-utils, with their packages.
const PERFTEST: &[(&str, &str)] = &[
    ("ib_write_bw", "perftest"),
    ("ibv_devinfo", "ibverbs-utils"),
    ("ip", "iproute2"),
];

/// Commands of rdmacm-utils, with their packages.
const RDMACM: &[(&str, &str)] = &[
    ("rping", "rdmacm-utils"),
    ("ucmatose", "rdmacm-utils"),
    ("ip", "iproute2"),
];

/// The distribution's Python, which has the distribution's modules.
const PYTHON: &str = "/usr/bin/python3";

/// The values of `ROCADE_LINK` to test: the default, which is shared memory on one host, and UDP.
const LINKS: [&str; 2] = ["", "udp"];

/// Ample time for a short transfer between two processes that share a processor with others.
const LIMIT: Duration = Duration::from_secs(60);

/// Returns the directory into which `cargo xtask install` has installed a package from PyPI.
fn pypi(name: &str) -> Result<PathBuf, Reason> {
    installed("pypi", name)
}

/// Returns the directory of a package that `cargo xtask install` has put below the build directory.
fn installed(source: &str, name: &str) -> Result<PathBuf, Reason> {
    let test = env::current_exe().unwrap_or_default();
    // target/<profile>/deps/<test>
    let target = test
        .ancestors()
        .nth(3)
        .unwrap_or_else(|| Path::new("target"));
    let path = target.join(source).join(name);
    if path.is_dir() {
        Ok(path)
    } else {
        Err(Reason::Package(format!("{name} (`cargo xtask install`)")))
    }
}
