//! Distribution packages that the tests use.

use std::{fs, process::Command, time::Duration};

use crate::{
    step::{self, succeeds},
    tally::Tally,
};

const LIMIT: Duration = Duration::from_secs(600);

/// A package by Debian's name, a command or file that tells that it is there, and what is skipped
/// without it.
#[derive(Debug)]
struct Package {
    name: &'static str,
    /// A command to be found in the search path, or an absolute path.
    proof: &'static str,
    purpose: &'static str,
}

const fn package(name: &'static str, proof: &'static str, purpose: &'static str) -> Package {
    Package {
        name,
        proof,
        purpose,
    }
}

const CONSUMERS: &str = "unmodified verbs programs on Rocade";
const CAPTURES: &str = "tshark's opinion of our packets";
const ABI: &str = "C programs against the installed verbs headers";
const VIEW: &str = "programs that look into /dev/infiniband and /sys/class/infiniband";
const CRATE: &str = "the tests of a crate that uses the verbs headers";
const AARCH64: &str = "tests for AArch64 under QEMU";
const RXE: &str = "interoperation with the kernel's rxe in QEMU";
const CONTAINERS: &str = "containers of podman with Rocade";
const STATISTICS: &str = "the opinion of Prometheus on our statistics";
const UNITS: &str = "the opinion of systemd on our units";

const PACKAGES: &[Package] = &[
    package("ibverbs-utils", "ibv_rc_pingpong", CONSUMERS),
    package("perftest", "ib_write_bw", CONSUMERS),
    package("rdmacm-utils", "rping", CONSUMERS),
    package("qperf", "qperf", CONSUMERS),
    package(
        "librdmacm1",
        "/usr/lib/x86_64-linux-gnu/rsocket/librspreload.so",
        CONSUMERS,
    ),
    package("sockperf", "sockperf", CONSUMERS),
    package("fio", "fio", CONSUMERS),
    package("libfabric-bin", "fi_pingpong", CONSUMERS),
    package("tgt", "/usr/sbin/tgtd", CONSUMERS),
    package("libiscsi-bin", "iscsi-test-cu", CONSUMERS),
    package("iproute2", "ip", CONSUMERS),
    package("tshark", "tshark", CAPTURES),
    package("tcpdump", "tcpdump", CAPTURES),
    package("libibverbs-dev", "/usr/include/infiniband/verbs.h", ABI),
    package("librdmacm-dev", "/usr/include/rdma/rdma_cma.h", ABI),
    package("libev-dev", "/usr/include/ev.h", ABI),
    package("libuv1-dev", "/usr/include/uv.h", ABI),
    package("gcc", "gcc", ABI),
    package("make", "make", CRATE),
    package("pkg-config", "pkg-config", CRATE),
    package("g++", "g++", "fuzzing (libFuzzer is C++)"),
    package("libc6-dev", "/usr/include/stdio.h", ABI),
    package("binutils", "readelf", "symbol versions of our libraries"),
    package("qemu-system-x86", "qemu-system-x86_64", RXE),
    package("busybox-static", "busybox", RXE),
    package("cpio", "cpio", RXE),
    package("zstd", "zstd", RXE),
    package("xz-utils", "xz", RXE),
    package("kmod", "depmod", RXE),
    package("python3", "python3", RXE),
    package("python3-pip", "/usr/bin/pip3", VIEW),
    package("infiniband-diags", "ibstat", VIEW),
    package("iproute2", "rdma", VIEW),
    package("ucx-utils", "ucx_info", VIEW),
    package("openmpi-bin", "mpirun", CONSUMERS),
    package(
        "librpma0",
        "/usr/lib/x86_64-linux-gnu/librpma.so.0",
        CONSUMERS,
    ),
    package(
        "python3-mpi4py",
        "/usr/lib/python3/dist-packages/mpi4py/bench.py",
        CONSUMERS,
    ),
    package("podman", "podman", CONTAINERS),
    package("systemd", "systemd-analyze", UNITS),
    package("prometheus", "promtool", STATISTICS),
    package(
        "prometheus-node-exporter",
        "prometheus-node-exporter",
        STATISTICS,
    ),
    package("curl", "curl", STATISTICS),
    package("util-linux", "setpriv", VIEW),
    package(
        "python3-pyverbs",
        "/usr/lib/python3/dist-packages/pyverbs/__init__.py",
        VIEW,
    ),
];

/// The packages that `cargo xtask aarch64` needs.
const FOR_AARCH64: &[Package] = &[
    package("rustc-web", "/usr/bin/rustc", AARCH64),
    package("lld", "ld.lld", AARCH64),
    package("gcc-aarch64-linux-gnu", "aarch64-linux-gnu-gcc", AARCH64),
    package(
        "libc6-dev-arm64-cross",
        "/usr/aarch64-linux-gnu/include/stdio.h",
        AARCH64,
    ),
    package("qemu-user-static", "qemu-aarch64-static", AARCH64),
];

/// Installs what is missing, as root on a system with apt. Elsewhere it prints what will be
/// skipped.
///
/// With `must` the answer counts as a step: failed where something is still missing.
pub(crate) fn install(must: bool) -> Tally {
    install_of(PACKAGES, must)
}

/// Installs what `cargo xtask aarch64` needs, which tells itself what is still missing.
pub(crate) fn install_for_aarch64() {
    install_of(FOR_AARCH64, false);
}

/// Replaces a package that is too old by the newest one.
pub(crate) fn upgrade(name: &str) {
    if is_root() && succeeds(Command::new("apt-get").arg("--version")) {
        apt_update();
        apt(&format!("upgrade {name}"), &[name]);
    }
}

fn install_of(packages: &'static [Package], must: bool) -> Tally {
    let missing = missing_of(packages);
    if missing.is_empty() {
        return if must { Tally::PASS } else { Tally::default() };
    }
    if is_root() && succeeds(Command::new("apt-get").arg("--version")) {
        let names: Vec<_> = missing.iter().map(|package| package.name).collect();
        // The package lists may be absent or old. An update that failed in part has perhaps brought
        // what is needed.
        if !apt("install packages", &names) {
            apt_update();
            apt("install packages again", &names);
        }
        // One package that this system does not have must not keep the others away.
        for package in missing_of(packages) {
            apt(&format!("install {}", package.name), &[package.name]);
        }
    }
    let missing = missing_of(packages);
    for package in &missing {
        eprintln!(
            "xtask: {} is not installed; skipped: {}",
            package.name, package.purpose
        );
    }
    match (must, missing.is_empty()) {
        (false, _) => Tally::default(),
        (true, true) => Tally::PASS,
        (true, false) => {
            let names: Vec<_> = missing.iter().map(|package| package.name).collect();
            eprintln!(
                "xtask: on Debian or Ubuntu: sudo apt-get install {}",
                names.join(" ")
            );
            Tally::FAIL
        }
    }
}

fn missing_of(packages: &'static [Package]) -> Vec<&'static Package> {
    packages
        .iter()
        .filter(|package| !present(package.proof))
        .collect()
}

/// Returns true if a command is in the search path (or where only root's has it), or a file exists.
pub(crate) fn present(proof: &str) -> bool {
    if proof.starts_with('/') {
        return fs::exists(proof).unwrap_or(false);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin"].map(Into::into);
    std::env::split_paths(&path)
        .chain(system)
        .any(|dir| dir.join(proof).is_file())
}

fn is_root() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    // "Uid: real effective saved filesystem"
    let uids = status
        .lines()
        .find_map(|line| line.strip_prefix("Uid:"))
        .unwrap_or_default();
    uids.split_whitespace().nth(1) == Some("0")
}

fn apt(headline: &str, names: &[&str]) -> bool {
    let mut command = Command::new("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive");
    // Somebody else may be installing something, as a machine does that has just been started.
    command
        .args(["-q", "-y", "-o", "DPkg::Lock::Timeout=120"])
        .args(["--no-install-recommends", "install"])
        .args(names);
    step::run(headline, LIMIT, command).success
}

fn apt_update() {
    let mut command = Command::new("apt-get");
    command.args(["-q", "update"]);
    step::run("update the package lists", LIMIT, command);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_commands_and_files() {
        assert!(present("sh"));
        assert!(present("/proc/self/status"));
        assert!(!present("no-such-command-anywhere"));
        assert!(!present("/no/such/file"));
    }
}
