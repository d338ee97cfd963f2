//! MPI: Open MPI and MPICH over UCX, Intel MPI over libfabric.
//!
//! The ranks of a job run on one host, but may use only verbs, so that all data is sent by RDMA.

use std::path::Path;

use rocade_tests::{
    harness::{Device, Rig},
    or_skip,
};

use crate::{LIMIT, LINKS, PYTHON, libfabric, pypi};

const NEEDS: &[(&str, &str)] = &[
    ("mpirun", "openmpi-bin"),
    (
        "/usr/lib/python3/dist-packages/mpi4py/bench.py",
        "python3-mpi4py",
    ),
    ("env", "coreutils"),
];

const AS_ROOT: [&str; 2] = [
    "OMPI_ALLOW_RUN_AS_ROOT=1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
];

/// UCX may use any of the transports in `UCX_TLS`, and no other component carries messages.
const MPIRUN: &[&str] = &[
    "mpirun",
    "--oversubscribe",
    "-np",
    "3",
    "--mca",
    "pml",
    "ucx",
    "--mca",
    "pml_ucx_tls",
    "any",
    "--mca",
    "pml_ucx_devices",
    "any",
    "--mca",
    "btl",
    "self",
];

const ROCADE: &str = "UCX_NET_DEVICES=rocade0:1";

#[test]
fn a_ring_goes_round() {
    for (link, transports) in LINKS
        .into_iter()
        .zip(["rc_verbs,ud_verbs,self", "ud_verbs,self"])
    {
        let rig = or_skip!(Rig::loopback(NEEDS)).with_link(link);
        let transports = format!("UCX_TLS={transports}");
        let ring = ["-m", "mpi4py.bench", "ringtest", "-l", "3", "-n", "1000000"];
        let exported = ["-x", ROCADE, "-x", &*transports, PYTHON];
        let words = [&["env"], &AS_ROOT[..], MPIRUN, &exported, &ring].concat();
        let output = rig
            .start("mpirun", &Device::on("lo"), &words)
            .finish(2 * LIMIT)
            .expect_success();
        assert!(output.contains("time for 3 loops"), "{output}");
    }
}

/// Runs `interop/mpi/exchange.py` on the ranks of an MPI from PyPI.
///
/// Every rank verifies the results of messages of many sizes, of collective operations, and of put,
/// get and accumulate on windows.
fn exchange(package: &str, library: &str, environment: &[&str], launch: &[&str]) {
    for link in LINKS {
        // libfabric ignores loopback interfaces.
        let rig = or_skip!(libfabric::rig(&[("env", "coreutils")], link));
        let place = or_skip!(pypi(package));
        let modules = or_skip!(pypi("mpi4py-4.1.2"));
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("interop/mpi/exchange.py");
        let below = |name: &str| place.join(name).display().to_string();
        let variables = [
            format!("PYTHONPATH={}", modules.display()),
            format!("MPI4PY_LIBMPI={}", below(&format!("lib/{library}"))),
            format!("I_MPI_ROOT={}", place.display()),
            format!(
                "I_MPI_OFI_LIBRARY={}",
                below("lib/libfabric/libfabric.so.1")
            ),
            format!("FI_PROVIDER_PATH={}", below("lib/libfabric/prov")),
        ];
        let variables: Vec<&str> = variables.iter().map(String::as_str).collect();
        let (program, script) = (
            below(&format!("bin/{}", launch[0])),
            script.to_string_lossy(),
        );
        let words = [
            &["env", ROCADE],
            &variables[..],
            &AS_ROOT,
            environment,
            &[&*program],
            &launch[1..],
            &[PYTHON, &*script],
        ]
        .concat();
        let output = rig
            .start(package, &Device::on("vt0"), &words)
            .finish(2 * LIMIT)
            .expect_success();
        assert!(
            output.contains("ranks have compared everything"),
            "{output}"
        );
    }
}

const RC: &str = "UCX_TLS=rc_verbs,ud_verbs,self";

/// The environment of MPICH, without MPICH's own shared memory between the ranks of a host. There
/// are only two ranks, because they poll continuously.
///
/// A rank that has finished destroys its QPs and no longer responds. UCX in the other rank may
/// still post a flush, and waits until its retries are exhausted, which takes 30 s with UCX's
/// default timeout.
const MPICH: [&str; 4] = [
    "MPIR_CVAR_CH4_NETMOD=ucx",
    "MPIR_CVAR_NOLOCAL=1",
    "UCX_RC_TIMEOUT=250ms",
    RC,
];

#[test]
fn mpich_4_exchanges_everything() {
    let launch = ["mpiexec", "-n", "2"];
    exchange("mpich-4.3.2", "libmpi.so.12", &MPICH, &launch);
}

#[test]
fn mpich_5_exchanges_everything() {
    let launch = ["mpiexec", "-n", "2"];
    exchange("mpich-5.0.2", "libmpi.so.12", &MPICH, &launch);
}

/// One-sided operations over UCX 1.20 require its fences per endpoint.
#[test]
fn open_mpi_5_exchanges_everything() {
    let launch = [MPIRUN, &["--mca", "osc", "ucx"]].concat();
    let environment = [RC, "UCX_FENCE_MODE=ep_based"];
    exchange("openmpi-5.0.11", "libmpi.so.40", &environment, &launch);
}

/// Uses the verbs provider of the libfabric that Intel MPI includes.
#[test]
fn intel_mpi_exchanges_everything() {
    let environment = [
        "I_MPI_FABRICS=ofi",
        "FI_PROVIDER=verbs;ofi_rxm",
        "FI_VERBS_GID_IDX=0",
    ];
    let launch = ["mpiexec.hydra", "-n", "3"];
    exchange("impi-2021.14.2", "libmpi.so.12", &environment, &launch);
}
