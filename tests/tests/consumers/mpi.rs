//! Open MPI over UCX: the ring of mpi4py's benchmarks.

use rocade_tests::{
    harness::{Device, Rig},
    or_skip,
};

use crate::{LIMIT, LINKS, PYTHON};

const NEEDS: &[(&str, &str)] = &[
    ("mpirun", "openmpi-bin"),
    (
        "/usr/lib/python3/dist-packages/mpi4py/bench.py",
        "python3-mpi4py",
    ),
    ("env", "coreutils"),
];

/// UCX may use nothing but verbs, so that what arrives came by RDMA.
const MPIRUN: &[&str] = &[
    "env",
    "OMPI_ALLOW_RUN_AS_ROOT=1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
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
    "-x",
    "UCX_NET_DEVICES=rocade0:1",
    "-x",
];

#[test]
fn a_ring_goes_round() {
    for (link, transports) in LINKS
        .into_iter()
        .zip(["rc_verbs,ud_verbs,self", "ud_verbs,self"])
    {
        let rig = or_skip!(Rig::loopback(NEEDS)).with_link(link);
        let transports = format!("UCX_TLS={transports}");
        let ring = ["-m", "mpi4py.bench", "ringtest", "-l", "3", "-n", "1000000"];
        let words = [MPIRUN, &[&*transports, PYTHON], &ring].concat();
        let output = rig
            .start("mpirun", &Device::on("lo"), &words)
            .finish(2 * LIMIT)
            .expect_success();
        assert!(output.contains("time for 3 loops"), "{output}");
    }
}
