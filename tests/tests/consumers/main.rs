//! Unmodified programs of ibverbs-utils and perftest on Rocade, as separate processes over loopback.
//!
//! What moves data is run over both links: the default, which between processes of one host is shared memory, and UDP.
//! Each test has a machine of its own (see `rocade_tests::harness`); where a program is not installed it is skipped.

mod addresses;
mod broker;
mod capture;
mod cm;
mod crash;
mod devices;
mod events;
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
mod storage;
mod ucx;
mod view;

use std::{
    env,
    path::{Path, PathBuf},
    time::Duration,
};

use rocade_tests::skip::Reason;

/// Commands of ibverbs-utils, and the package that has them.
const UTILS: &[(&str, &str)] = &[
    ("ibv_rc_pingpong", "ibverbs-utils"),
    ("ibv_devinfo", "ibverbs-utils"),
    ("ip", "iproute2"),
];

/// Commands of perftest and of ibverbs-utils.
const PERFTEST: &[(&str, &str)] = &[
    ("ib_write_bw", "perftest"),
    ("ibv_devinfo", "ibverbs-utils"),
    ("ip", "iproute2"),
];

/// Commands of rdmacm-utils.
const RDMACM: &[(&str, &str)] = &[
    ("rping", "rdmacm-utils"),
    ("ucmatose", "rdmacm-utils"),
    ("ip", "iproute2"),
];

/// The distribution's Python, for which its packages are.
const PYTHON: &str = "/usr/bin/python3";

/// The links that processes of one host have: the default, which is shared memory there, and UDP.
const LINKS: [&str; 2] = ["", "udp"];

/// Ample for a short transfer between two processes that share a processor with others.
const LIMIT: Duration = Duration::from_secs(60);

/// Where `cargo xtask install` has put a package of PyPI.
fn pypi(name: &str) -> Result<PathBuf, Reason> {
    let test = env::current_exe().unwrap_or_default();
    // target/<profile>/deps/<test>
    let target = test
        .ancestors()
        .nth(3)
        .unwrap_or_else(|| Path::new("target"));
    let path = target.join("pypi").join(name);
    if path.is_dir() {
        Ok(path)
    } else {
        Err(Reason::Package(format!(
            "{name} (PyPI, `cargo xtask install`)"
        )))
    }
}
